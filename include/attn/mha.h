/* SPDX-License-Identifier: MIT */
/* Multi-head attention, whole layer (part of attn.h, which includes this):
 *
 *     Y = concat_h( softmax(Q_h K_h^T / sqrt(dim_qk)) V_h ) W_O + b_O,   Q = X W_Q + b_Q,  K = M W_K + b_K,  V = M W_V + b_V
 *
 * (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.2.2). X are the inputs, M the memory that is attended to: X itself
 * in self-attention, an encoder's output in cross-attention. In between is any attention of attn.h, by any of its kernels.
 *
 *     attn_mha_problem problem;
 *     attn_mha_problem_init(&problem, 1, 8, 128, 128, 512);     // batch, heads, seq_q, seq_k, width
 *     attn_problem_set_causal(&problem.attention, ATTN_ALIGN_TOP_LEFT);
 *     attn_mha_weights weights = {.layout = ATTN_OUT_IN, .w_qkv = in_proj_weight, .b_qkv = in_proj_bias,
 *                                 .w_o = out_proj_weight, .b_o = out_proj_bias};   // as PyTorch stores them
 *     attn_mha *layer;
 *     if (attn_mha_create(&problem, &weights, NULL, &layer) != ATTN_OK) puts(attn_last_error());
 *     void *workspace = aligned_alloc(64, attn_mha_workspace(layer));
 *     attn_mha_args args = {.x = x, .y = y};                    // float [batch][seq][width]
 *     attn_mha_run(layer, &args, workspace, attn_mha_workspace(layer));
 *     attn_mha_destroy(layer);
 */
#ifndef ATTN_MHA_H
#define ATTN_MHA_H

#include "attn/attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Shape and semantics, no data. Strides in elements, any value; y must not overlap itself. */
typedef struct attn_mha_problem {
  size_t struct_size; /* set by attn_mha_problem_init */

  /* batch, heads, sequence lengths and head dimensions; scale, masks, windows, lengths, what the args will bring. Its dtypes are
   * float32, its score is DOT, and the strides of q, k, v and o are the layer's own business: not read. */
  attn_problem attention;

  int64_t width;        /* of a row of x */
  int64_t width_memory; /* of a row of the memory; = width in self-attention */
  int64_t width_out;    /* of a row of y */

  attn_strides x_stride, memory_stride,
      y_stride; /* [batch][seq][width]; .h is not read. With VARLEN [total][width], .b not read */

  bool want_weights;                 /* attn_mha_attention_weights will be called: costs workspace, and nothing else */
  attn_score_strides weights_stride; /* of what it writes, [batch][heads_q][seq_q][seq_k] */
} attn_mha_problem;

/* The usual layer: dim_qk = dim_v = width / heads, as many KV heads, the memory as wide as x, everything dense. For others, fill in
 * `attention` again by attn_problem_init(), and the fields above. Checks nothing: attn_mha_create() does. */
ATTN_API void attn_mha_problem_init(attn_mha_problem *problem, int64_t batch, int64_t heads, int64_t seq_q, int64_t seq_k,
                                    int64_t width);

typedef enum attn_weight_layout {
  ATTN_IN_OUT = 0, /* [in][out]: y = x W */
  ATTN_OUT_IN,     /* [out][in]: y = x W^T, as PyTorch stores it */
} attn_weight_layout;

/* Dense weights; copied and packed by attn_mha_create, so they need not outlive it. The columns (`out`) of Q, K and V are head after
 * head; the rows (`in`) of w_o are the concatenated heads. Q, K and V come in three parts or in one: then the columns of Q stand
 * before those of K and those of V, and width_memory = width. Biases are float and optional, each on its own. */
typedef struct attn_mha_weights {
  attn_weight_layout layout;
  attn_dtype dtype;            /* of the weights; f16 and bf16 are widened to float32 */
  const void *w_qkv;           /* width x (heads_q dim_qk + heads_kv dim_qk + heads_kv dim_v); or NULL, and */
  const void *w_q, *w_k, *w_v; /* width x heads_q dim_qk, width_memory x heads_kv dim_qk, width_memory x heads_kv dim_v */
  const void *w_o;             /* heads_q dim_v x width_out */
  const float *b_qkv;          /* with w_qkv only */
  const float *b_q, *b_k, *b_v, *b_o;
} attn_mha_weights;

typedef struct attn_mha_options {
  attn_options attention; /* kernel of the attention; tier, threads and pool of the whole layer */
  const char *
      product; /* of the projections, as attn_product_create takes it: "product_avx2", "product_openblas"; NULL = our own, of the highest tier */
} attn_mha_options;

/* A layer: plan and packed weights. Immutable: any number of threads may run it at once, each with its own workspace. */
typedef struct attn_mha attn_mha;

/* All choices and all checks of the shape; options may be NULL. On failure *layer is NULL and attn_last_error() says why. */
ATTN_API attn_status attn_mha_create(const attn_mha_problem *problem, const attn_mha_weights *weights,
                                     const attn_mha_options *options, attn_mha **layer);

/* Where the time of a run went, added up over runs. */
typedef struct attn_mha_profile {
  int64_t runs;
  double projections_ns, attention_ns, total_ns;
} attn_mha_profile;

typedef struct attn_mha_args {
  const float *x;            /* [batch][seq_q][width] by x_stride */
  const float *memory;       /* [batch][seq_k][width_memory] by memory_stride; NULL = x: self-attention, seq_k = seq_q */
  float *y;                  /* [batch][seq_q][width_out] by y_stride; may not overlap x or memory */
  attn_args attention;       /* what problem.attention.uses says: lse, masks, lengths, ...; its q, k, v, o are not read */
  attn_mha_profile *profile; /* NULL = take no times */
} attn_mha_args;

/* Bytes of workspace one run needs; a multiple of 64: Q, K, V and the heads' outputs of the whole batch, beside them what the attention
 * and the projections work in. */
ATTN_API size_t attn_mha_workspace(const attn_mha *layer);

/* Computes y (and lse). Rows without allowed keys, and rows beyond q_len, give y = b_o. `workspace` is 64-byte aligned and private to
 * this call. Allocates nothing. A row's bits depend on that row's inputs alone: not on batch, threads or workspace. */
ATTN_API attn_status attn_mha_run(const attn_mha *layer, const attn_mha_args *args, void *workspace, size_t workspace_bytes);

/* For looking at: the attention weights P themselves, [batch][heads_q][seq_q][seq_k] by weights_stride, 0 for masked keys. A pass of its
 * own that does Q, K and the softmax again, in time proportional to seq_q seq_k^2; y and lse are not written. Needs want_weights, and
 * no VARLEN. Where q and k are at hand, or for other scores than dot products: attn_weights (attn/nn.h). */
ATTN_API attn_status attn_mha_attention_weights(const attn_mha *layer, const attn_mha_args *args, float *weights,
                                                void *workspace, size_t workspace_bytes);

/* A few lines: shape, projections, and the attention as attn_plan_describe() tells it. Lives as long as the layer. */
ATTN_API const char *attn_mha_describe(const attn_mha *layer);

/* The attention kernel and the product that the layer runs. */
ATTN_API const char *attn_mha_kernel(const attn_mha *layer);
ATTN_API const char *attn_mha_product(const attn_mha *layer);

ATTN_API void attn_mha_destroy(attn_mha *layer); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
