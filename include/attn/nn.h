/* SPDX-License-Identifier: MIT */
/* libattn_nn: what stands around attention in the models built from it, each a small function or a plan of its own.
 *
 * It uses libattn (attn.h) for all attention and all products, and reports errors as libattn does: a status, and a sentence
 * in attn_last_error(). docs/semantics.md ("The family around it") gives every formula with its source.
 *
 *     #include <attn/nn.h>
 *
 *     float positions[128 * 64];
 *     attn_sinusoidal_positions(0, 128, 64, positions);
 *
 * Everything is float32 and row-major. "May be x" says that an output may be the same array as an input; otherwise outputs
 * may not overlap inputs.
 *
 * find_package(attn COMPONENTS nn) gives attn::nn; pkg-config knows it as attn_nn.
 */
#ifndef ATTN_NN_H
#define ATTN_NN_H

#include "attn/attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Small pieces ------------------------------------------------------------------------------------------------- */

/* Sinusoidal positions first .. first + rows - 1 into out[rows][width] (Vaswani et al. 2017, section 3.5):
 *
 *     out[p][2i] = sin((first + p) / 10000^(2i / width)),   out[p][2i + 1] = cos((first + p) / 10000^(2i / width))
 *
 * first >= 0, rows >= 0, width >= 1; first + rows at most 2^31. Of an odd width the last column is a sine. */
ATTN_API attn_status attn_sinusoidal_positions(int64_t first, int64_t rows, int64_t width, float *out);

/* What layer normalisation learns. */
typedef struct attn_norm {
  const float *gain; /* [width]; NULL = 1 */
  const float *bias; /* [width]; NULL = 0 */
  float epsilon;     /* added to the variance; >= 0 and finite (PyTorch: 1e-5) */
} attn_norm;

/* Add & norm (Vaswani et al. 2017, section 3.1; layer normalisation: Ba et al. 2016, https://arxiv.org/abs/1607.06450, eq. 3 and 4):
 *
 *     s = x + residual,   y = gain (s - mean(s)) / sqrt(variance(s) + epsilon) + bias
 *
 * for each of `rows` rows of `width`, the variance being the mean square without correction. residual NULL: s = x. If
 * `sum` is not NULL, s is written there too (the stream that a pre-norm block carries on). y and sum may be x or
 * residual, but not each other. */
ATTN_API attn_status attn_add_layer_norm(int64_t rows, int64_t width, const float *x, const float *residual,
                                         const attn_norm *norm, float *sum, float *y);

/* The attention weights themselves, p of docs/semantics.md, for looking at: weights[batch][heads_q][seq_q][seq_k], dense.
 * Runs the kernel with the unit vectors as values, so that it is the kernel's own softmax that is shown, at the cost of
 * dim_v = seq_k. args->v, o and lse, and the problem's dim_v, v_stride, o_stride and dtype_o are ignored. Masked keys
 * weigh 0; a row sums to 1, to less with a sink, and to 0 if no key is allowed. Not for VARLEN. options may be NULL.
 *
 * Takes q and k as any problem has them, and allocates. To look into a whole multi-head layer take attn_mha_attention_weights
 * (attn/mha.h), which projects q and k itself, works in the caller's workspace and writes by strides. */
ATTN_API attn_status attn_weights(const attn_problem *problem, const attn_args *args, const attn_options *options,
                                  float *weights);

/* ---- Kernel regression -------------------------------------------------------------------------------------------- */

/* Nadaraya-Watson kernel regression with a Gaussian kernel (Nadaraya 1964, Watson 1964): the prediction at a point is the
 * mean of the known values, weighted by how near their points are. It is attention with ATTN_SCORE_GAUSSIAN:
 *
 *     f(x) = sum_i K(x - x_i) y_i / sum_i K(x - x_i),   K(d) = exp(-1/2 sum_c (inverse_width_c d_c)^2)
 */
typedef struct attn_regression {
  int64_t points, queries;    /* known points, >= 1; where to predict, >= 0 */
  int64_t dim_x, dim_y;       /* coordinates of a point and of a value, >= 1 */
  const float *x, *y;         /* [points][dim_x], [points][dim_y] */
  const float *query;         /* [queries][dim_x] */
  const float *inverse_width; /* [dim_x]: 1 / bandwidth; NULL = 1 */
  float *prediction;          /* [queries][dim_y] */
  float *weights;             /* [queries][points], or NULL: how much each known point counts */
} attn_regression;

/* options may be NULL. */
ATTN_API attn_status attn_kernel_regression(const attn_regression *regression, const attn_options *options);

/* ---- Decoding with a KV cache -------------------------------------------------------------------------------------- */

typedef struct attn_kv_cache attn_kv_cache;

typedef struct attn_kv_cache_shape {
  int64_t batch, heads_q, heads_kv; /* heads_q a multiple of heads_kv */
  int64_t dim_qk, dim_v;
  int64_t capacity; /* most tokens a sequence may have */
  attn_dtype dtype; /* of q, k and v, as given and as kept; outputs are float32 */
} attn_kv_cache_shape;

/* An empty cache: keys [batch][heads_kv][capacity][dim_qk], and values likewise. options may be NULL; they choose the kernel. */
ATTN_API attn_status attn_kv_cache_create(const attn_kv_cache_shape *shape, const attn_options *options,
                                          attn_kv_cache **cache);

/* One step: appends the keys and values of `tokens` new tokens per sequence, then lets their queries attend to everything
 * cached so far, causally (bottom-right: token i of the step sees the old tokens and the new ones up to itself).
 *
 * q: [batch][heads_q][tokens][dim_qk], k and v: [batch][heads_kv][tokens][dim], o: [batch][heads_q][tokens][dim_v] float.
 * counts[batch], or NULL for all of them: how many of the step's tokens each sequence really has (0..tokens); the others are
 * padding, whose o is 0. A step of many tokens is a prompt, a step of one is generation; when `tokens` changes from one
 * step to the next, the step makes a new plan. On failure nothing is appended. One step at a time per cache. */
ATTN_API attn_status attn_kv_cache_step(attn_kv_cache *cache, int64_t tokens, const int32_t *counts, const void *q,
                                        const void *k, const void *v, float *o);

/* Tokens cached per sequence: [batch], as long as the cache lives. */
ATTN_API const int32_t *attn_kv_cache_lengths(const attn_kv_cache *cache);

/* Forgets all but the first `length` tokens of every sequence that has more; 0 empties the cache. */
ATTN_API attn_status attn_kv_cache_truncate(attn_kv_cache *cache, int64_t length);

/* The kernel that the last step ran, or that a step of one token would. */
ATTN_API const char *attn_kv_cache_kernel(const attn_kv_cache *cache);

ATTN_API void attn_kv_cache_destroy(attn_kv_cache *cache); /* NULL is fine */

/* ---- Layers: learnt weights packed once, run many times --------------------------------------------------------------- */

/* Each layer is created from a config, which says its shape and its weights, and is then immutable: any number of threads may
 * run it at once, each with a workspace of its own (64-byte aligned, private to the call). Creating copies the weights;
 * nothing in the config need outlive it. options may be NULL: options->kernel names the attention kernel where there is
 * attention inside, threads and pool are used for everything. Running allocates nothing unless it says so. */

/* A learnt map y = x W + b. */
typedef struct attn_linear {
  const float *weight; /* [in][out], as y = x W wants it */
  const float *bias;   /* [out], or NULL for none */
  bool transposed;     /* weight is [out][in] instead: PyTorch's nn.Linear */
} attn_linear;

/* Position-wise feed-forward network (Vaswani et al. 2017, section 3.3, eq. 2), with the activation of one's choice:
 *
 *     y = activation(x W1 + b1) W2 + b2 */
typedef enum attn_activation {
  ATTN_RELU = 0, /* max(0, x) */
  ATTN_GELU, /* x times the normal distribution function, exact (Hendrycks & Gimpel 2016, https://arxiv.org/abs/1606.08415) */
} attn_activation;

typedef struct attn_feed_forward_config {
  int64_t width, hidden; /* >= 1 */
  attn_activation activation;
  attn_linear first, second; /* width -> hidden, hidden -> width */
} attn_feed_forward_config;

typedef struct attn_feed_forward attn_feed_forward;
ATTN_API attn_status attn_feed_forward_create(const attn_feed_forward_config *config, const attn_options *options,
                                              attn_feed_forward **layer);
/* Bytes of workspace for so many rows; more for more rows. */
ATTN_API size_t attn_feed_forward_workspace(const attn_feed_forward *layer, int64_t rows);
/* x and y: [rows][width]. y may be x. */
ATTN_API attn_status attn_feed_forward_run(const attn_feed_forward *layer, int64_t rows, const float *x, float *y,
                                           void *workspace, size_t workspace_bytes);
ATTN_API void attn_feed_forward_destroy(attn_feed_forward *layer); /* NULL is fine */

/* Additive attention with its projections (Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473, appendix A.1.2):
 *
 *     o_i = sum_j p_ij v_j,   p_i = softmax over j of <w, tanh(q_i Wq + k_j Wk)> */
typedef struct attn_additive_config {
  int64_t batch, seq_q, seq_k;             /* >= 0 */
  int64_t width_q, width_k, hidden, dim_v; /* >= 1 */
  bool use_kv_len;                         /* args bring kv_len */
  attn_linear query, key;                  /* width_q -> hidden, width_k -> hidden */
  const float *score_weight;               /* w: [hidden] */
} attn_additive_config;

typedef struct attn_additive_args {
  const float *q; /* [batch][seq_q][width_q] */
  const float *k; /* [batch][seq_k][width_k]; not read where projected_k is given */
  const float
      *projected_k; /* [batch][seq_k][hidden] from attn_additive_project_keys, or NULL: a decoder asks the same keys often */
  const float *v;   /* [batch][seq_k][dim_v] */
  const int32_t *kv_len;     /* [batch], 0..seq_k */
  float *o;                  /* [batch][seq_q][dim_v] */
  float *weights;            /* [batch][seq_q][seq_k], or NULL: p, for looking at; allocates */
  attn_mha_profile *profile; /* NULL = take no times */
} attn_additive_args;

typedef struct attn_additive attn_additive;
ATTN_API attn_status attn_additive_create(const attn_additive_config *config, const attn_options *options,
                                          attn_additive **layer);
ATTN_API size_t attn_additive_workspace(const attn_additive *layer);
/* projected[batch][seq_k][hidden] = k Wk. */
ATTN_API attn_status attn_additive_project_keys(const attn_additive *layer, const float *k, float *projected,
                                                void *workspace, size_t workspace_bytes);
ATTN_API attn_status attn_additive_run(const attn_additive *layer, const attn_additive_args *args, void *workspace,
                                       size_t workspace_bytes);
/* The attention kernel that the layer runs. */
ATTN_API const char *attn_additive_kernel(const attn_additive *layer);
ATTN_API void attn_additive_destroy(attn_additive *layer); /* NULL is fine */

/* Synthesizer: attention whose scores do not come from queries and keys (Tay et al. 2021, https://arxiv.org/abs/2005.00743).
 * With heads side by side and one output projection over all of them, as in multi-head attention:
 *
 *     y = concat_h(softmax(S_h) (x Wv)_h) Wo + bo
 *     "dense" (section 3):  S_h = relu(x W1_h + b1_h) W2_h + b2_h      a row's scores from that row alone
 *     "random" (section 3): S_h = R_h                                  learnt, the same for every input */
typedef enum attn_synthesizer_kind { ATTN_SYNTHESIZER_DENSE = 0, ATTN_SYNTHESIZER_RANDOM } attn_synthesizer_kind;

typedef struct attn_synthesizer_config {
  attn_synthesizer_kind kind;
  int64_t batch, seq;          /* >= 0; seq at most length */
  int64_t width, heads, dim_v; /* >= 1: x [batch][seq][width]; dim_v per head */
  int64_t length;              /* the longest sequence that the scores were learnt for, >= 1 */
  int64_t hidden;              /* DENSE: width of the inner layer, >= 1 */
  bool causal, use_kv_len;
  const attn_linear *first;  /* DENSE: [heads] of width -> hidden */
  const attn_linear *second; /* DENSE: [heads] of hidden -> length */
  const float *scores;       /* RANDOM: R [heads][length][length] */
  attn_linear value, output; /* width -> heads dim_v, heads dim_v -> width */
} attn_synthesizer_config;

typedef struct attn_synthesizer attn_synthesizer;
ATTN_API attn_status attn_synthesizer_create(const attn_synthesizer_config *config, const attn_options *options,
                                             attn_synthesizer **layer);
ATTN_API size_t attn_synthesizer_workspace(const attn_synthesizer *layer);
typedef struct attn_synthesizer_args {
  const float *x;            /* [batch][seq][width] */
  float *y;                  /* as x; may be x */
  const int32_t *kv_len;     /* [batch]: with use_kv_len */
  attn_mha_profile *profile; /* NULL = take no times; the small networks count as projections */
} attn_synthesizer_args;
ATTN_API attn_status attn_synthesizer_run(const attn_synthesizer *layer, const attn_synthesizer_args *args, void *workspace,
                                          size_t workspace_bytes);
/* The attention kernel that the layer runs. */
ATTN_API const char *attn_synthesizer_kernel(const attn_synthesizer *layer);
ATTN_API void attn_synthesizer_destroy(attn_synthesizer *layer); /* NULL is fine */

/* ---- Transformer blocks ------------------------------------------------------------------------------------------------ */

/* Multi-head attention as models use it: attn_mha_problem_init (attn/attn.h), and two of its kinds by name.
 *
 * Causal self-attention (Vaswani et al. 2017, section 3.2.3, the decoder's first): every token sees itself and those before it. */
ATTN_API void attn_causal_self_attention_init(attn_mha_problem *problem, int64_t batch, int64_t heads, int64_t seq,
                                              int64_t width);
/* Cross-attention (section 3.2.3, "encoder-decoder attention"): queries of width `width` attend to a memory of another length and
 * width, all of it, or as much as kv_len says (set ATTN_USE_KV_LEN). */
ATTN_API void attn_cross_attention_init(attn_mha_problem *problem, int64_t batch, int64_t heads, int64_t seq_q,
                                        int64_t seq_memory, int64_t width, int64_t width_memory);

/* A transformer block (Vaswani et al. 2017, section 3.1 and figure 1): self-attention, in a decoder also attention to the encoder's
 * output, and a feed-forward network, each with a residual connection around it and a layer norm:
 *
 *     post-norm, as in the paper:  x <- norm(x + sublayer(x))
 *     pre-norm:                    x <- x + sublayer(norm(x))       (Xiong et al. 2020, https://arxiv.org/abs/2002.04745, figure 1)
 *
 * A pre-norm stack ends with one more norm, which is the caller's: attn_add_layer_norm. */
typedef struct attn_block_config {
  attn_mha_problem self; /* shape, masks and lengths of the self-attention; x and y dense, width = width_out */
  attn_mha_weights self_weights;
  attn_norm self_norm;

  bool has_cross; /* a decoder block */
  attn_mha_problem cross;
  attn_mha_weights cross_weights;
  attn_norm cross_norm;

  attn_feed_forward_config feed_forward;
  attn_norm feed_forward_norm;

  bool pre_norm;
} attn_block_config;

/* Shapes of an encoder block: self-attention over all tokens, ReLU, post-norm, norms without gain and bias, epsilon 1e-5. The weights
 * are left to fill in, as is what else should differ (config.self.attention.uses |= ATTN_USE_KV_LEN; config.pre_norm = true). */
ATTN_API void attn_encoder_block_init(attn_block_config *config, int64_t batch, int64_t heads, int64_t seq, int64_t width,
                                      int64_t hidden);
/* Likewise of a decoder block: causal self-attention, and attention to a memory of seq_memory rows of width_memory. */
ATTN_API void attn_decoder_block_init(attn_block_config *config, int64_t batch, int64_t heads, int64_t seq,
                                      int64_t seq_memory, int64_t width, int64_t width_memory, int64_t hidden);

/* Where the time of a run went, added up over runs. projections: the four products around each attention. */
typedef struct attn_block_profile {
  int64_t runs;
  double projections_ns, attention_ns, feed_forward_ns, norm_ns, total_ns;
} attn_block_profile;

typedef struct attn_block_args {
  const float *x;              /* [batch][seq][width], or with VARLEN [total_q][width] */
  const float *memory;         /* [batch][seq_memory][width_memory] by cross.memory_stride; decoder blocks only */
  float *y;                    /* as x; may be x */
  attn_args self, cross;       /* masks and lengths, where the problems' uses ask for them; q, k, v, o are not read */
  attn_block_profile *profile; /* NULL = take no times */
} attn_block_args;

typedef struct attn_block attn_block;
ATTN_API attn_status attn_block_create(const attn_block_config *config, const attn_options *options, attn_block **block);
ATTN_API size_t attn_block_workspace(const attn_block *block);
ATTN_API attn_status attn_block_run(const attn_block *block, const attn_block_args *args, void *workspace,
                                    size_t workspace_bytes);
/* The kernel of the self-attention. */
ATTN_API const char *attn_block_kernel(const attn_block *block);
ATTN_API void attn_block_destroy(attn_block *block); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
