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

/* Add & norm (Vaswani et al. 2017, section 5.4; layer normalisation: Ba et al. 2016, https://arxiv.org/abs/1607.06450, eq. 3 and 4):
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
 * weigh 0; a row sums to 1, to less with a sink, and to 0 if no key is allowed. Not for VARLEN. options may be NULL. */
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

#ifdef __cplusplus
}
#endif
#endif
