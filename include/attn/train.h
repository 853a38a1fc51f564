/* SPDX-License-Identifier: MIT */
/** @file
 * Training (part of libattn_nn): gradients of the layers around attention, losses, and steps of optimisers, in float32.
 *
 * There is no tape and no graph. A program calls the layers forwards and keeps what it will need again in arrays of its own;
 * then it calls their gradients backwards. docs/training.md has the formulas, and examples/train_gpt a whole program.
 *
 *     attn_dense layer = ATTN_STRUCT(attn_dense, .rows = 64, .in = 256, .out = 512, .map = {.weight = w, .bias = b},
 *                                    .x = x, .y = y, .d_y = d_y, .d_x = d_x, .d_weight = d_w, .d_bias = d_b);
 *     attn_dense_run(&layer, NULL);     // y
 *     attn_dense_grad(&layer, NULL);    // d_x, d_w, d_b from d_y, the gradient of the loss by y
 *
 * Everything is row-major and dense. d_x is the gradient of the loss by x. Gradients by weights are written, or with
 * `accumulate` added to what stands there, as micro-batches need it. Outputs may not overlap inputs unless it says so.
 *
 * Every sum has a fixed order, so bits depend neither on threads nor on the pool. options may be NULL; threads and pool of
 * them are used, and kernel and max_isa where it says so. Functions with products pack their weights and allocate; the
 * others allocate some numbers for each row at most. All return ATTN_OK, ATTN_INVALID_ARGUMENT or ATTN_OUT_OF_MEMORY.
 */
#ifndef ATTN_TRAIN_H
#define ATTN_TRAIN_H

#include "attn/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Dense layers ---------------------------------------------------------------------------------------------------- */

/** y = x W + b, and its gradients:
 *
 *     d_x = d_y W^T,   d_weight = x^T d_y,   d_bias = sum over rows of d_y
 */
typedef struct attn_dense {
  size_t struct_size; /**< Bytes of this struct; ATTN_STRUCT sets it. */
  int64_t rows;       /**< Rows, >= 0. */
  int64_t in;         /**< Elements of a row of x, >= 1. */
  int64_t out;        /**< Elements of a row of y, >= 1. */
  attn_linear map;    /**< W and b; W transposed: d_weight lies so, too. */
  const float *x;     /**< [rows][in]; attn_dense_grad() reads it for d_weight. */
  float *y;           /**< [rows][out], of attn_dense_run(). */
  const float *d_y;   /**< [rows][out], of attn_dense_grad(). */
  float *d_x;         /**< Output [rows][in]; or NULL. */
  float *d_weight;    /**< Output [in][out], or [out][in] if W is transposed; or NULL. */
  float *d_bias;      /**< Output [out]; or NULL. */
  bool accumulate;    /**< d_weight and d_bias are added to what stands there. */
  bool bf16_products; /**< x, W and d_y are rounded to bf16 for the products, whose sums stay float32: W is the master of
                         such weights. Quicker where the CPU's products of bf16 are (attn_product_create()). */
} attn_dense;

/** Computes y. options are those of attn_product_create(), whose kernel names the product. Allocates the packed W, and
 * with bf16_products its values. */
ATTN_API attn_status attn_dense_run(const attn_dense *layer, const attn_options *options);

/** Computes d_x, d_weight and d_bias, those that are not NULL. options likewise. Each element of d_x is a chain over out,
 * each of d_weight a chain over rows; d_bias is summed in float64. With accumulate the chains of d_weight
 * begin with what stands there, so that parts of a batch give the bits of the whole. Allocates the packed factors. */
ATTN_API attn_status attn_dense_grad(const attn_dense *layer, const attn_options *options);

/* ---- Norms, activations, dropout -----------------------------------------------------------------------------------------
 */

/** Gradients of y = norm(s) (attn_norm_kind), and with d_sum of the residual connection around it. With n = (s - mean(s)) r
 * and r = 1 / sqrt(variance(s) + epsilon), or n = s r and r = 1 / sqrt(mean(s^2) + epsilon), g = gain d_y:
 *
 *     d_s = r (g - mean(g) - n mean(g n)) + d_sum     (no mean(g) with ATTN_NORM_RMS)
 *     d_gain = sum over rows of d_y n,   d_bias = sum over rows of d_y
 *
 * Since s = x + residual, d_s is the gradient of both. */
typedef struct attn_norm_grad {
  size_t struct_size;  /**< Bytes of this struct; ATTN_STRUCT sets it. */
  int64_t rows;        /**< Rows, >= 0. */
  int64_t width;       /**< Elements of a row, >= 1. */
  attn_norm_kind kind; /**< ATTN_NORM_LAYER or ATTN_NORM_RMS. */
  attn_norm norm;      /**< Its parameters; the bias is not read. */
  const float *s;      /**< [rows][width], what was normed: x + residual, as attn_row_join.sum has it. */
  const float *d_y;    /**< [rows][width] */
  const float *d_sum;  /**< [rows][width], gradient of s by its other ways, as a pre-norm block carries it on; or NULL. */
  float *d_s;          /**< Output [rows][width]; may be d_y or d_sum; or NULL. */
  float *d_gain;       /**< Output [width]; or NULL. */
  float *d_bias;       /**< Output [width]; or NULL. */
  bool accumulate;     /**< d_gain and d_bias are added to what stands there. */
  const float *scales; /**< [rows][3], mean(s) and r as attn_row_join.scales has them; NULL: computed again from s. */
} attn_norm_grad;

/** Computes d_s, d_gain and d_bias. Those of parameters are summed in float64, in blocks of
 * rows whose size the width alone decides, and over the blocks. */
ATTN_API attn_status attn_norm_grad_run(const attn_norm_grad *grad, const attn_options *options);

/** y = activation(x), `count` >= 0 elements each; y may be x. By the function of attn_activation_function(). */
ATTN_API attn_status attn_activation_run(attn_activation activation, int64_t count, const float *x, float *y,
                                         const attn_options *options);

/** d_x = d_y activation'(x); d_x may be d_y or x. At 0 the slope of ATTN_RELU is 0. Errors are below 1e-6 |d_y|. */
ATTN_API attn_status attn_activation_grad(attn_activation activation, int64_t count, const float *x, const float *d_y,
                                          float *d_x, const attn_options *options);

/** Dropout (Srivastava et al. 2014, https://jmlr.org/papers/v15/srivastava14a.html), inverted: an element becomes 0 with
 * this probability, or is divided by its complement. The rule to the bit is that of dropout in attention
 * (docs/semantics.md), for row r and column j of the rows given. */
typedef struct attn_dropout {
  size_t struct_size; /**< Bytes of this struct; ATTN_STRUCT sets it. */
  float probability;  /**< At least 0 and below 1; rounded to 1 / 65536. */
  uint64_t seed;      /**< Any number. */
  uint64_t offset;    /**< Different in each step. */
  uint32_t stream;    /**< Different in each place of the model. */
} attn_dropout;

/** y = dropout(x), both [rows][width]; y may be x. The same call with d_y gives d_x. At most 2^31 rows. */
ATTN_API attn_status attn_dropout_rows(const attn_dropout *dropout, int64_t rows, int64_t width, const float *x, float *y,
                                       const attn_options *options);

/* ---- Attention -----------------------------------------------------------------------------------------------------------
 */

/** Where the gradients of a map go; NULL = not wanted. */
typedef struct attn_linear_grad {
  float *weight; /**< Lies like the weight. */
  float *bias;   /**< [out] */
} attn_linear_grad;

/** Multi-head attention with its projections (attn/mha.h has the formula), and its gradients:
 *
 *     Q = x W_Q + b_Q,   K = m W_K + b_K,   V = m W_V + b_V,   y = concat_h(O_h) W_out + b_out
 *     d_O = d_y W_out^T,   d_Q, d_K and d_V by ATTN_BACKWARD,   d_x = d_Q W_Q^T,   d_m = d_K W_K^T + d_V W_V^T
 *
 * In self-attention, without a memory, m is x, and d_x has both. Heads stand side by side in columns, those of Q before
 * those of K, and those of K before those of V. Any score function, mask or length of attn.h is possible, so that
 *
 *     additive attention (Bahdanau et al. 2015)   is ATTN_SCORE_ADDITIVE with one head, plain_values and no `out`;
 *     a Synthesizer (Tay et al. 2021)             is ATTN_SCORE_PRECOMPUTED: `in` has the columns of V alone, and
 *                                                 arrays->scores are learnt, or made by dense layers of the program. */
typedef struct attn_multi_head {
  size_t struct_size; /**< Bytes of this struct; ATTN_STRUCT sets it. */
  /** Shape and semantics. Strides of q, k, v, o and lse are not read, types are f32. uses: not those of pages, states,
   * scales and lists of key blocks; ATTN_USE_LSE counts as set; those of gradients (ATTN_USE_D_SCORE_WEIGHT) are for
   * attn_multi_head_grad(). Packed sequences have rows [total_q] and [total_k] in place of [batch][seq]. */
  const attn_problem *attention;
  /** Arrays that `uses` asks for, scores, their gradients, seed and offset, which differs in each step and layer. q, k, v,
   * o, lse and their gradients are not read. NULL = nothing. */
  const attn_args *arrays;
  int64_t width;                /**< Elements of a row of x, and of y, >= 1. */
  int64_t width_memory;         /**< Elements of a row of the memory; 0 = none: self-attention, seq_k = seq_q. */
  attn_linear in;               /**< width -> columns of Q, K and V; with a memory of Q alone. */
  attn_linear in_memory;        /**< With a memory: width_memory -> columns of K and V. */
  attn_linear out;              /**< heads_q dim_v -> width. Without a weight: y, and d_y, are as wide as the heads' outputs,
                                   and attn_multi_head_grad() reads y. */
  const float *x;               /**< [batch][seq_q][width] */
  const float *memory;          /**< [batch][seq_k][width_memory] */
  float *y;                     /**< Output [batch][seq_q][width]. */
  float *kept;                  /**< Q, K, V, lse and O: attn_multi_head_kept() floats, for attn_multi_head_grad(). */
  const float *d_y;             /**< [batch][seq_q][width], of attn_multi_head_grad(). */
  float *d_x;                   /**< Output [batch][seq_q][width]; may be d_y; or NULL. */
  float *d_memory;              /**< Output [batch][seq_k][width_memory]; or NULL. */
  attn_linear_grad d_in;        /**< Outputs: gradients of `in`. */
  attn_linear_grad d_in_memory; /**< Outputs: gradients of `in_memory`. */
  attn_linear_grad d_out;       /**< Outputs: gradients of `out`. */
  bool plain_values;            /**< V is m itself, whose rows have heads_kv dim_v elements: no map has columns of V. */
  bool accumulate;              /**< Gradients of weights and of `arrays` are added to what stands there. */
  bool bf16_products;           /**< Products with maps round as those of attn_dense. */
} attn_multi_head;

/** Floats of `kept`; -1, with the sentence set, for a layer that is wrong. */
ATTN_API int64_t attn_multi_head_kept(const attn_multi_head *layer);

/** Computes y and kept. Plans and allocates. Also returns ATTN_UNSUPPORTED. options->kernel is not read. */
ATTN_API attn_status attn_multi_head_run(const attn_multi_head *layer, const attn_options *options);

/** Computes all gradients that have a place to go. Plans and allocates, rows times the columns of Q, K, V and O among
 * others. */
ATTN_API attn_status attn_multi_head_grad(const attn_multi_head *layer, const attn_options *options);

/* ---- Tokens and losses ---------------------------------------------------------------------------------------------------
 */

/** Gradient of attn_embed(): d_table[tokens[i]] += factor d_rows[i], i = 0 .. count - 1 in this order. Of the embedding
 * vocabulary, width, stride and factor are read. d_table is [vocabulary][width] by stride, and always added to. Learnt
 * positions are a table whose tokens are the positions. */
ATTN_API attn_status attn_embed_grad(const attn_embedding *embedding, int64_t count, const int32_t *tokens,
                                     const float *d_rows, float *d_table, const attn_options *options);

/** Cross-entropy of logits, with label smoothing (Szegedy et al. 2016, https://arxiv.org/abs/1512.00567, section 7). With t
 * the target of a row, l its logits, and lse = log sum exp l, a row's loss and gradient are
 *
 *     lse - (1 - smoothing) l_t - smoothing mean(l),   softmax(l) - (1 - smoothing) [c = t] - smoothing / classes
 *
 * Loss and gradients are means over the rows that count, or sums. */
typedef struct attn_cross_entropy {
  size_t struct_size;     /**< Bytes of this struct; ATTN_STRUCT sets it. */
  int64_t rows;           /**< Rows, >= 0. */
  int64_t classes;        /**< Elements of a row, >= 1. */
  const float *logits;    /**< [rows][classes] */
  const int32_t *targets; /**< [rows], each < classes; a row whose target is below 0 does not count: PyTorch's -100. */
  float smoothing;        /**< In 0..1. */
  bool sum;               /**< Sums in place of means. */
  float factor;           /**< Multiplies d_logits, not the loss; 0 = 1. */
  float *d_logits;        /**< Output [rows][classes], 0 for rows that do not count; may be logits; or NULL. */
} attn_cross_entropy;

/** Computes *loss and d_logits. Where no row counts, the loss is 0. Losses of rows are summed in float64, row by row. */
ATTN_API attn_status attn_cross_entropy_run(const attn_cross_entropy *entropy, const attn_options *options, double *loss);

/* ---- Optimisers ----------------------------------------------------------------------------------------------------------
 */

/** Parameters of AdamW (Loshchilov & Hutter 2019, https://arxiv.org/abs/1711.05101, algorithm 2; Kingma & Ba 2015,
 * https://arxiv.org/abs/1412.6980), as PyTorch has it: decay is multiplied by the rate. */
typedef struct attn_adamw {
  size_t struct_size; /**< Bytes of this struct; ATTN_STRUCT sets it. */
  float rate;         /**< Learning rate of this step. */
  float beta1;        /**< Share of the old mean that stays, in 0 .. below 1 (usual: 0.9). */
  float beta2;        /**< The same of the mean square (0.999, 0.98 or 0.95). */
  float epsilon;      /**< >= 0 (1e-8) */
  float decay;        /**< Weight decay, >= 0. */
} attn_adamw;

/** One step, `step` = 1, 2, ...: changes `count` weights and their moments, which begin as 0:
 *
 *     w -= rate decay w,   m = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2
 *     w -= rate (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + epsilon)
 */
ATTN_API attn_status attn_adamw_step(const attn_adamw *adamw, int64_t step, int64_t count, float *weights,
                                     const float *grads, float *m, float *v, const attn_options *options);

/** Parameters of gradient descent with momentum (Sutskever et al. 2013), as PyTorch has it. */
typedef struct attn_sgd {
  size_t struct_size; /**< Bytes of this struct; ATTN_STRUCT sets it. */
  float rate;         /**< Learning rate of this step. */
  float momentum;     /**< In 0 .. below 1. */
  float decay;        /**< Weight decay, >= 0: g + decay w takes the place of g. */
} attn_sgd;

/** One step: b = momentum b + g,  w -= rate b. momenta, [count], begin as 0; NULL without momentum. */
ATTN_API attn_status attn_sgd_step(const attn_sgd *sgd, int64_t count, float *weights, const float *grads, float *momenta,
                                   const attn_options *options);

/** Clips gradients to a norm (Pascanu et al. 2013, https://arxiv.org/abs/1211.5063, section 3.2): where the root of the
 * summed squares exceeds `most`, all `count` gradients are multiplied by most / norm. The norm before that goes to *norm,
 * unless it is NULL. most: above 0; INFINITY only measures. A norm that is not finite multiplies nothing. */
ATTN_API attn_status attn_clip_grads(int64_t count, float *grads, float most, double *norm, const attn_options *options);

/** Learning rate of step 1, 2, ... that rises in a line for `warmup` steps to `peak`, and then falls by the root of the step
 * (Vaswani et al. 2017, section 5.3, where peak is (width warmup)^-1/2), or, with `steps` above warmup, to 0 at that step by
 * half a period of the cosine (Loshchilov & Hutter 2017, https://arxiv.org/abs/1608.03983). 0 where step < 1. */
ATTN_API double attn_warmup_rate(double peak, int64_t warmup, int64_t steps, int64_t step);

/** How weights begin. */
typedef enum attn_init {
  ATTN_INIT_NORMAL = 0, /**< Normal, with deviation `gain`. */
  ATTN_INIT_XAVIER,  /**< Uniform in +- gain sqrt(6 / (in + out)) (Glorot & Bengio 2010, proceedings.mlr.press/v9/glorot10a).
                      */
  ATTN_INIT_KAIMING, /**< Normal, with deviation gain sqrt(2 / in) (He et al. 2015, https://arxiv.org/abs/1502.01852). */
} attn_init;

/** Fills weights [in][out], or [out][in]. gain: 1 is usual with Xavier and Kaiming. Element i depends on i, seed and stream
 * alone. */
ATTN_API attn_status attn_init_weights(attn_init kind, float gain, int64_t in, int64_t out, uint64_t seed, uint32_t stream,
                                       float *weights);

#ifdef __cplusplus
}
#endif
#endif
