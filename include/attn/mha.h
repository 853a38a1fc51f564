/* SPDX-License-Identifier: MIT */
/** @file
 * Multi-head attention, the whole layer (part of attn.h, which includes this):
 *
 *     Y = concat_h( softmax(Q_h K_h^T / sqrt(dim_qk)) V_h ) W_O + b_O,   Q = X W_Q + b_Q,  K = M W_K + b_K,  V = M W_V + b_V
 *
 * (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.2.2). X are the inputs. M is the memory that the layer
 * attends to: X itself in self-attention, an encoder's output in cross-attention. In between is any attention of attn.h,
 * by any of its kernels.
 *
 *     attn_mha_problem problem;
 *     attn_mha_problem_init(&problem, 1, 8, 128, 128, 512);     // batch, heads, seq_q, seq_k, width
 *     attn_problem_set_causal(&problem.attention, ATTN_ALIGN_TOP_LEFT);
 *     attn_mha_weights weights = ATTN_STRUCT(attn_mha_weights, .layout = ATTN_OUT_IN,   // as PyTorch stores them
 *         .w_qkv = in_proj_weight, .b_qkv = in_proj_bias, .w_o = out_proj_weight, .b_o = out_proj_bias);
 *     attn_mha *layer;
 *     if (attn_mha_create(&problem, &weights, NULL, &layer) != ATTN_OK) puts(attn_last_error());
 *     void *workspace = aligned_alloc(64, attn_mha_workspace(layer));
 *     attn_mha_args args = ATTN_STRUCT(attn_mha_args, .x = x, .y = y);   // float [batch][seq][width]
 *     attn_mha_run(layer, &args, workspace, attn_mha_workspace(layer));
 *     attn_mha_destroy(layer);
 */
#ifndef ATTN_MHA_H
#define ATTN_MHA_H

#include "attn/attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Shape and semantics, no data. Strides are in elements and may have any value; y must not overlap itself. */
typedef struct attn_mha_problem {
  size_t struct_size; /**< Bytes of this struct, set by attn_mha_problem_init(). */

  /** Batch, heads, sequence lengths and head dimensions; scale, masks, windows, lengths, and what the args will bring. The
   * layer keeps queries as dtype_q, keys and values as dtype_kv, each f32, bf16 or f16, rounded once when they are
   * projected, and with qk_norm once more when they are normed; the heads' outputs as dtype_o, f32 or that of
   * the queries. The score is DOT. The strides of q, k, v and o are not read: the layer lays them out itself. */
  attn_problem attention;

  int64_t width;        /**< Elements of a row of x, >= 1. */
  int64_t width_memory; /**< Elements of a row of the memory; = width in self-attention. */
  int64_t width_out;    /**< Elements of a row of y, >= 1. */

  attn_strides x_stride; /**< Strides of x [batch][seq_q][width]; .h is not read. With VARLEN [tokens][width]; nor is .b. */
  attn_strides memory_stride; /**< Strides of the memory [batch][seq_k][width_memory], likewise. */
  attn_strides y_stride;      /**< Strides of y [batch][seq_q][width_out], likewise. */

  bool want_weights;                 /**< attn_mha_attention_weights() will be called: costs workspace, and nothing else. */
  attn_score_strides weights_stride; /**< Strides of the weights that it writes, [batch][heads_q][seq_q][seq_k]. */

  attn_dtype dtype_x; /**< Type of x and of the memory: f32, bf16 or f16. */
  attn_dtype dtype_y; /**< Type of y, likewise. */
} attn_mha_problem;

/** The usual layer: dim_qk = dim_v = width / heads, as many KV heads as query heads, the memory as wide as x, everything
 * dense. width must be a multiple of heads. For other layers fill in `attention` again by attn_problem_init(), and the
 * fields after it. Checks nothing: attn_mha_create() does. */
ATTN_API void attn_mha_problem_init(attn_mha_problem *problem, int64_t batch, int64_t heads, int64_t seq_q, int64_t seq_k,
                                    int64_t width);

/** Sets the sizes that attn_mha_problem_init() reads, and returns its argument. */
static inline attn_mha_problem *attn_mha_problem_sized(attn_mha_problem *problem) {
  problem->struct_size = sizeof *problem;
  attn_problem_sized(&problem->attention);
  return problem;
}
/** Sets struct_size and calls the function of this name. */
#define attn_mha_problem_init(problem, ...) attn_mha_problem_init(attn_mha_problem_sized(problem), __VA_ARGS__)

/** How a weight matrix lies in memory. */
typedef enum attn_weight_layout {
  ATTN_IN_OUT = 0,  /**< [in][out]: y = x W */
  ATTN_OUT_IN,      /**< [out][in]: y = x W^T, as PyTorch stores it */
  ATTN_HEADS_IN_OUT /**< [heads][in][dim]: a matrix for each head, as in the paper; w_o is [heads][dim][out]. */
} attn_weight_layout;

/** Dense weights. attn_mha_create() copies and packs them, so they need not outlive it. The columns (`out`) of Q, K and V
 * are head after head; the rows (`in`) of w_o are the concatenated heads. Q, K and V come in three parts or in one. In
 * one, the columns of Q stand before those of K, and those of K before those of V, unless head_columns says otherwise, and
 * width_memory = width. Biases are optional, each on its own. */
typedef struct attn_mha_weights {
  size_t struct_size;        /**< Bytes of this struct; ATTN_STRUCT sets it. */
  attn_weight_layout layout; /**< Layout of every matrix here. */
  attn_dtype dtype;          /**< Type of every matrix here, as in attn_product_weights. */
  const void *w_qkv;  /**< width x (heads_q dim_qk + heads_kv dim_qk + heads_kv dim_v), or NULL: then the next three. */
  const void *w_q;    /**< width x heads_q dim_qk */
  const void *w_k;    /**< width_memory x heads_kv dim_qk */
  const void *w_v;    /**< width_memory x heads_kv dim_v */
  const void *w_o;    /**< heads_q dim_v x width_out */
  const float *b_qkv; /**< [columns of w_qkv], or NULL; with w_qkv only. */
  const float *b_q;   /**< [columns of w_q], or NULL. */
  const float *b_k;   /**< [columns of w_k], or NULL. */
  const float *b_v;   /**< [columns of w_v], or NULL. */
  const float *b_o;   /**< [width_out], or NULL. */

  const float *q_norm_gain; /**< With qk_norm: [dim_qk], gain of the norm of each query head; NULL = 1. */
  const float *k_norm_gain; /**< The same of each key head. */
  float qk_norm_epsilon;    /**< Added to the mean square; >= 0 and finite. */
  bool qk_norm;      /**< Each head of Q and of K is divided by its root mean square after its projection (Henry et al. 2020,
                        https://arxiv.org/abs/2010.04245; with gains: Qwen 3, Gemma 3). A cache's rotation comes after it. */
  bool bf16_rows;    /**< With dtype bf16: rows are rounded to bf16 before each projection, see attn_product_weights. */
  bool int8_weights; /**< Every matrix is rounded to i8, with a scale for each column, see attn_product_weights. */
  bool int8_rows;    /**< With int8_weights: rows are rounded to i8 before each projection, see attn_product_weights. */

  /** With w_qkv: [heads_q + 2 heads_kv], where in w_qkv and b_qkv the columns of each head begin: the heads of Q, then of K,
   * then of V. NULL = one behind the other. BLOOM and GPT-NeoX keep Q, K and V of a head side by side, 3 h dim + {0, dim,
   * 2 dim}; Falcon keeps the query heads of a KV head before it. Where layout has a matrix for each head, that of columns c
   * on begins at element c width. */
  const int64_t *head_columns;
} attn_mha_weights;

/** How a layer is to be made. */
typedef struct attn_mha_options {
  size_t struct_size;            /**< Bytes of this struct; ATTN_STRUCT sets it. */
  const attn_options *attention; /**< Kernel of the attention; tier, threads and pool of the whole layer; or NULL. */
  const char *product; /**< Kernel of the projections, as attn_product_create() takes it: "product_avx2", "product_openblas",
                          ...; NULL = our own, of the highest tier. */
} attn_mha_options;

/** A layer: plan and packed weights. Immutable: any number of threads may run it at once, each with its own workspace. */
typedef struct attn_mha attn_mha;

/** Checks the shape, makes all choices and packs the weights. options may be NULL. On failure *layer is NULL and
 * attn_last_error() says why. */
ATTN_API attn_status attn_mha_create(const attn_mha_problem *problem, const attn_mha_weights *weights,
                                     const attn_mha_options *options, attn_mha **layer);

/** A second layer over the same packed weights: for another batch, other lengths, masks, windows, strides, whatever a
 * problem says but widths, heads, head dimensions and dtypes, which must be the layer's. It takes a few microseconds, as a
 * plan does, and little memory. A program whose calls differ makes one layer, and another of it for each shape that it
 * meets:
 *
 *     attn_mha_problem_init(&problem, batch, 8, seq, seq, 512);
 *     attn_mha_reshape(layer, &problem, &reshaped);
 *
 * Options are the layer's. Both are destroyed by attn_mha_destroy(), in any order. On failure *reshaped is NULL. */
ATTN_API attn_status attn_mha_reshape(const attn_mha *layer, const attn_mha_problem *problem, attn_mha **reshaped);

/** Where the time of a run went, added up over runs. */
typedef struct attn_mha_profile {
  int64_t runs;          /**< Runs so far. */
  double projections_ns; /**< Nanoseconds in the four products. */
  double attention_ns;   /**< Nanoseconds in attention. */
  double total_ns;       /**< Nanoseconds of the whole runs. */
} attn_mha_profile;

/** The pointers of one call. */
typedef struct attn_mha_args {
  size_t struct_size;         /**< Bytes of this struct; ATTN_STRUCT sets it. */
  const void *x;              /**< [batch][seq_q][width] by x_stride, of dtype_x. */
  const void *memory;         /**< [batch][seq_k][width_memory] by memory_stride, of dtype_x; NULL = x: self-attention, seq_k
                                 = seq_q. */
  void *y;                    /**< [batch][seq_q][width_out] by y_stride, of dtype_y; may not overlap x or memory. */
  const attn_args *attention; /**< Arrays that problem.attention.uses asks for: lse, masks, lengths, ...; its q, k, v and o
                                 are not read. NULL = nothing. */
  attn_mha_profile *profile;  /**< Times are added to it; NULL = take no times. */
  const void *projected_k;    /**< The memory's keys from attn_mha_project_memory(), in place of memory; or NULL. */
  const void *projected_v;    /**< Its values, likewise. */
} attn_mha_args;

/** Bytes of workspace that one run needs, a multiple of 64. It holds Q, K, V and the heads' outputs of the whole batch, and
 * what the attention and the projections work in. */
ATTN_API size_t attn_mha_workspace(const attn_mha *layer);

/** Computes y (and lse). Rows without allowed keys, and rows beyond q_len, give y = b_O. `workspace` is 64-byte aligned and
 * private to this call. Allocates nothing. A row's bits depend on that row's inputs alone: not on batch, threads or
 * workspace.
 *
 * Returns ATTN_INVALID_ARGUMENT, ATTN_WORKSPACE_TOO_SMALL or ATTN_OK. */
ATTN_API attn_status attn_mha_run(const attn_mha *layer, const attn_mha_args *args, void *workspace, size_t workspace_bytes);

/** Projects the memory once, for a decoder that attends to it often: k[batch][heads_kv][seq_k][dim_qk] and
 * v[batch][heads_kv][seq_k][dim_v] from args->memory (or x in self-attention), to be given to attn_mha_run() as projected_k
 * and projected_v, both of dtype_kv. With VARLEN k[heads_kv][total_k][dim_qk]. The workspace is that of a run. y has the
 * same bits as without. */
ATTN_API attn_status attn_mha_project_memory(const attn_mha *layer, const attn_mha_args *args, void *k, void *v,
                                             void *workspace, size_t workspace_bytes);

/** The projections of a layer on their own, with qk_norm the norms too, for programs that keep keys in a cache
 * (attn_mha_step() of attn/nn.h): q [rows][heads_q][dim_qk], k [rows][heads_kv][dim_qk] and v [rows][heads_kv][dim_v] of x
 * [rows][width], all dense; x is of dtype_x, q of dtype_q, k and v are of dtype_kv. q, k or v may be NULL. Rows have the
 * bits that they have in attn_mha_run(). */
ATTN_API attn_status attn_mha_project_rows(const attn_mha *layer, int64_t rows, const void *x, void *q, void *k, void *v,
                                           void *workspace, size_t workspace_bytes);

/** The last projection: y [rows][width_out], of dtype_y, of o [rows][heads_q][dim_v], of dtype_o; both dense. */
ATTN_API attn_status attn_mha_project_output(const attn_mha *layer, int64_t rows, const void *o, void *y, void *workspace,
                                             size_t workspace_bytes);

/** Bytes of workspace for so many rows, for the two functions above: a multiple of 64. Fewer rows never need more. */
ATTN_API size_t attn_mha_rows_workspace(const attn_mha *layer, int64_t rows);

/** The problem that a layer was made for, with its strides filled in. Returns ATTN_OK or ATTN_INVALID_ARGUMENT. */
ATTN_API attn_status attn_mha_get_problem(const attn_mha *layer, attn_mha_problem *problem);
/** Sets the sizes that the function of this name reads, and calls it. */
#define attn_mha_get_problem(layer, problem) attn_mha_get_problem(layer, attn_mha_problem_sized(problem))

/** The attention weights P, for looking at: [batch][heads_q][seq_q][seq_k] by weights_stride, 0 for masked keys. It
 * computes Q, K and the softmax again, in time proportional to seq_q seq_k^2, and writes neither y nor lse. It needs
 * want_weights, and does not take VARLEN. attn_weights() (attn/nn.h) does the same from q and k, for every score
 * function. */
ATTN_API attn_status attn_mha_attention_weights(const attn_mha *layer, const attn_mha_args *args, float *weights,
                                                void *workspace, size_t workspace_bytes);

/** A few lines: shape, projections, and the attention as attn_plan_describe() tells it. Lives as long as the layer. */
ATTN_API const char *attn_mha_describe(const attn_mha *layer);

/** The name of the attention kernel that the layer runs. */
ATTN_API const char *attn_mha_kernel(const attn_mha *layer);

/** The name of the product that the layer projects with. */
ATTN_API const char *attn_mha_product(const attn_mha *layer);

/** Frees the layer. NULL is fine. */
ATTN_API void attn_mha_destroy(attn_mha *layer);

#ifdef __cplusplus
}
#endif
#endif
