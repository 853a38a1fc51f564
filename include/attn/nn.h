/* SPDX-License-Identifier: MIT */
/** @file
 * libattn_nn: what stands around attention in the models built from it. Each piece is a small function or a plan of its
 * own.
 *
 * It uses libattn (attn.h) for all attention and all products, and reports errors as libattn does: a status, and a
 * sentence in attn_last_error(). docs/semantics.md ("The family around it") gives every formula with its source.
 *
 *     #include <attn/nn.h>
 *
 *     float positions[128 * 64];
 *     attn_sinusoidal_positions(0, 128, 64, positions);
 *
 * Everything is row-major, and float32 unless a type is named. "May be x" says that an output may be the same array as an
 * input; otherwise outputs may not overlap inputs.
 *
 * A layer is created from a config, which says its shape and its weights, and is then immutable: any number of threads may
 * run it at once, each with a workspace of its own (64-byte aligned, private to the call). Creating copies the weights, so
 * nothing in the config has to outlive it. Calls of another batch or length take a second layer over the same packed
 * weights, which a _reshape function makes in some microseconds; each is destroyed by itself, in any order. options may be
 * NULL: options->kernel names the attention kernel where there is attention inside, threads and pool are used for
 * everything. Running allocates nothing unless it says so.
 *
 * Creating returns ATTN_OK, ATTN_INVALID_ARGUMENT (a field of the config), ATTN_UNSUPPORTED or ATTN_UNKNOWN_KERNEL (the
 * named kernel) or ATTN_OUT_OF_MEMORY. Running returns ATTN_OK, ATTN_INVALID_ARGUMENT (a pointer or a length) or
 * ATTN_WORKSPACE_TOO_SMALL; where it allocates, also ATTN_OUT_OF_MEMORY.
 *
 * find_package(attn COMPONENTS nn) gives attn::nn; pkg-config knows it as attn_nn.
 */
#ifndef ATTN_NN_H
#define ATTN_NN_H

#include "attn/attn.h"
#include "attn/kv.h"
#include "attn/product.h"
#include "attn/rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Small pieces ------------------------------------------------------------------------------------------------- */

/** Sinusoidal positions first .. first + rows - 1 into out[rows][width] (Vaswani et al. 2017, section 3.5):
 *
 *     out[p][2i] = sin((first + p) / 10000^(2i / width)),   out[p][2i + 1] = cos((first + p) / 10000^(2i / width))
 *
 * first >= 0, rows >= 0, width >= 1; first + rows at most 2^31. Where the width is odd, the last column is a sine. Returns
 * ATTN_OK or ATTN_INVALID_ARGUMENT. */
ATTN_API attn_status attn_sinusoidal_positions(int64_t first, int64_t rows, int64_t width, float *out);

/** Add & norm (Vaswani et al. 2017, section 3.1; layer normalisation: Ba et al. 2016, https://arxiv.org/abs/1607.06450, eq.
 * 3 and 4):
 *
 *     s = x + residual,   y = gain (s - mean(s)) / sqrt(variance(s) + epsilon) + bias
 *
 * for each of `rows` >= 0 rows of `width` >= 1. The variance is the mean square, without correction. residual NULL: s = x.
 * If `sum` is not NULL, s is written there too (the stream that a pre-norm block carries on). y and sum may be x or
 * residual, but not each other. Returns ATTN_OK or ATTN_INVALID_ARGUMENT. */
ATTN_API attn_status attn_add_layer_norm(int64_t rows, int64_t width, const float *x, const float *residual,
                                         const attn_norm *norm, float *sum, float *y);

/** Add & root mean square norm (Zhang & Sennrich 2019, https://arxiv.org/abs/1910.07467, eq. 4), likewise:
 *
 *     s = x + residual,   y = gain s / sqrt(mean(s^2) + epsilon) + bias */
ATTN_API attn_status attn_add_rms_norm(int64_t rows, int64_t width, const float *x, const float *residual,
                                       const attn_norm *norm, float *sum, float *y);

/** A table of embeddings: row t stands for token t. */
typedef struct attn_embedding {
  size_t struct_size;    /**< Bytes of this struct; ATTN_STRUCT sets it. */
  int64_t vocabulary;    /**< Rows of the table, >= 1. */
  int64_t width;         /**< Elements of a row, >= 1. */
  const void *table;     /**< [vocabulary][width] by stride. */
  attn_dtype dtype;      /**< Type of the table: ATTN_F32, ATTN_F16 or ATTN_BF16. */
  int64_t stride;        /**< Elements from one row to the next, >= width; 0 = width. */
  float factor;          /**< Multiplies every element; 0 = 1. Gemma's is sqrt(width). */
  attn_dtype dtype_rows; /**< Type of rows, likewise. */
} attn_embedding;

/** Rows of embeddings (Vaswani et al. 2017, section 3.4):
 *
 *     rows[i] = factor table[tokens[i]],   i < count
 *
 * rows is [count][width], of dtype_rows. A token outside 0..vocabulary - 1 is an error that names the first one; then no row
 * is written. Returns ATTN_OK or ATTN_INVALID_ARGUMENT. */
ATTN_API attn_status attn_embed(const attn_embedding *embedding, int64_t count, const int32_t *tokens, void *rows);

/** How the rows of a sequence become one row. */
typedef enum attn_pooling_kind {
  ATTN_POOL_MEAN = 0, /**< Their mean (Reimers & Gurevych 2019, https://arxiv.org/abs/1908.10084, section 3) */
  ATTN_POOL_FIRST,    /**< The first one: BERT's [CLS] */
} attn_pooling_kind;

/** Sequences of rows, padded or packed, that shall become one row each. */
typedef struct attn_pooling {
  size_t struct_size;        /**< Bytes of this struct; ATTN_STRUCT sets it. */
  attn_pooling_kind kind;    /**< Mean or first. */
  bool unit;                 /**< Results are scaled to length 1, so that cosines are dot products; a row of zeros stays. */
  int64_t batch;             /**< Sequences, >= 0. */
  int64_t seq;               /**< Rows of each sequence, padding included, >= 0; not read with cu_seqlens. */
  int64_t width;             /**< Elements of a row, >= 1. */
  const void *x;             /**< [batch][seq][width], or with cu_seqlens [cu_seqlens[batch]][width], of dtype. */
  const int32_t *lengths;    /**< [batch], each in 0..seq: rows that count, the first ones; NULL = all. */
  const int32_t *cu_seqlens; /**< [batch + 1], ascending from 0: where packed sequences begin; NULL = padded. */
  float *y;                  /**< Output [batch][width]; 0 for a sequence without rows. May not overlap x. */
  attn_dtype dtype;          /**< Type of x: f32, bf16 or f16. */
} attn_pooling;

/** Computes pooling->y. Sums are taken in float64. Returns ATTN_OK or ATTN_INVALID_ARGUMENT. */
ATTN_API attn_status attn_pool_rows(const attn_pooling *pooling);

/** How a token is drawn from logits. The fields apply in this order. */
typedef struct attn_sampling {
  size_t struct_size; /**< Bytes of this struct; ATTN_STRUCT sets it. */
  float temperature;  /**< Divides the logits; >= 0 and finite; 0 = greedy: the largest logit, of equal ones the first. */
  int64_t top_k;      /**< Tokens that stay: all whose logit is at least the k-th largest; 0 = all. */
  float top_p;        /**< Then stay the fewest most probable tokens whose probabilities add up to at least this, at least
                         one; of equal ones the first. In 0..1; 0 = 1 = all (Holtzman et al. 2020,
                         https://arxiv.org/abs/1904.09751, section 3.1). */
} attn_sampling;

/** Draws a token from logits[vocabulary]: with probability softmax(logits / temperature) over the tokens that stay. The
 * definition is that of transformers' TemperatureLogitsWarper, TopKLogitsWarper and TopPLogitsWarper in this order.
 *
 * *state is the caller's, and any number is a good seed. Each draw takes one step of SplitMix64 (Steele et al. 2014,
 * doi:10.1145/2660193.2660195); greedy takes none, and state may be NULL. Equal logits, sampling and state give the same
 * token on every machine. probabilities, if not NULL, receives [vocabulary]: 0 for tokens that do not stay.
 *
 * A logit of -inf is never drawn. NaN, +inf, or -inf in every place, is an error that names the first place; then nothing
 * is drawn. Allocates nothing. Returns ATTN_OK or ATTN_INVALID_ARGUMENT. */
ATTN_API attn_status attn_sample_token(const attn_sampling *sampling, int64_t vocabulary, const float *logits,
                                       uint64_t *state, float *probabilities, int32_t *token);

/** The attention weights, p of docs/semantics.md, for looking at: weights[batch][heads_q][seq_q][seq_k], dense.
 *
 * It runs the kernel with the unit vectors as values, at the cost of dim_v = seq_k. So the weights are those of the
 * kernel's own softmax. args->v, o and lse, and the problem's dim_v, v_stride, o_stride and dtype_o are ignored. Masked
 * keys weigh 0. A row sums to 1, to less with a sink, and to 0 if no key is allowed. Not for VARLEN. options may be NULL.
 *
 * It takes q and k as any problem has them, and allocates. attn_mha_attention_weights() (attn/mha.h) looks into a whole
 * multi-head layer: it projects q and k itself, works in the caller's workspace and writes by strides. */
ATTN_API attn_status attn_weights(const attn_problem *problem, const attn_args *args, const attn_options *options,
                                  float *weights);

/* ---- Generating text ---------------------------------------------------------------------------------------------- */

/** The texts that follow one prompt: one that is drawn, or those of a beam search (Sutskever et al. 2014,
 * https://arxiv.org/abs/1409.3215, section 3.2). The program runs the model and has its cache; this says which tokens come
 * next, and when a text ends. With `beams` sequences of a cache, of which the first one has read the prompt:
 *
 *     while (attn_generation_running(g)) {
 *       ... logits [attn_generation_running(g)][vocabulary] of the texts that run, at first of the prompt
 *       attn_generation_advance(g, logits, tokens, parents);
 *       attn_kv_cache_reorder(cache, parents);
 *       ... a step of the model: tokens[i] >= 0 is the new token of sequence i
 *     }
 */
typedef struct attn_generation attn_generation;

/** How texts grow. */
typedef struct attn_generation_config {
  size_t struct_size;            /**< Bytes of this struct; ATTN_STRUCT sets it. */
  int64_t vocabulary;            /**< Logits of a row, 1 to 2^31 - 1. */
  int64_t most_tokens;           /**< Tokens after which a text ends at the latest, >= 1. */
  int64_t beams;                 /**< Texts that run side by side, >= 1; 0 = 1. */
  const int32_t *stop_tokens;    /**< [stop_count], copied: tokens that end a text, as its last one; or NULL. */
  int64_t stop_count;            /**< Number of stop_tokens, >= 0. */
  const attn_sampling *sampling; /**< How one beam draws its tokens, copied; NULL = greedily. More beams do not draw. */
  uint64_t seed;                 /**< Where the draws begin (attn_sample_token). */
  int64_t first_sequence;        /**< Number of the first of the cache's `beams` sequences: parents count from it. */
} attn_generation_config;

/** Begins with one text without tokens. On failure *generation is NULL. */
ATTN_API attn_status attn_generation_create(const attn_generation_config *config, attn_generation **generation);

/** How many texts run, the first rows of logits of the next call: 1 at first, 0 once the best text is known. */
ATTN_API int64_t attn_generation_running(const attn_generation *generation);

/** Gives every running text its next token. logits: [running][vocabulary]; NaN, +inf, or -inf in every place of a row, is an
 * error, and then nothing has changed. tokens[beams] receives the new token of each text that runs on, parents[beams] the
 * sequence that this text continues, as attn_kv_cache_reorder() takes them; -1 for the others.
 *
 * A beam search is that of transformers with length_penalty = 1 and early_stopping = False. A text scores the sum of the
 * logarithms of its tokens' probabilities. The best `beams` continuations run on that do not end. One that ends is kept if
 * it is among the best `beams` of all, by its score per token; of these the best `beams` stay. The search ends once no
 * running text has more than the least of them. Of equal scores the earlier one is better. */
ATTN_API attn_status attn_generation_advance(attn_generation *generation, const float *logits, int32_t *tokens,
                                             int32_t *parents);

/** The best text that has ended; before one has, the best that runs. Returns the number of its tokens, without the prompt's,
 * and writes them to tokens[most_tokens], unless that is NULL. */
ATTN_API int64_t attn_generation_text(const attn_generation *generation, int32_t *tokens);

/** Frees it. NULL is fine. */
ATTN_API void attn_generation_destroy(attn_generation *generation);

/* ---- Kernel regression -------------------------------------------------------------------------------------------- */

/** Nadaraya-Watson kernel regression with a Gaussian kernel (Nadaraya 1964, Watson 1964): the prediction at a point is the
 * mean of the known values, weighted by how near their points are. It is attention with ATTN_SCORE_GAUSSIAN:
 *
 *     f(x) = sum_i K(x - x_i) y_i / sum_i K(x - x_i),   K(d) = exp(-1/2 sum_c (inverse_width_c d_c)^2)
 */
typedef struct attn_regression {
  size_t struct_size;         /**< Bytes of this struct; ATTN_STRUCT sets it. */
  int64_t points;             /**< Known points, >= 1. */
  int64_t queries;            /**< Points to predict at, >= 0. */
  int64_t dim_x;              /**< Coordinates of a point, >= 1. */
  int64_t dim_y;              /**< Elements of a value, >= 1. */
  const float *x;             /**< Known points [points][dim_x]. */
  const float *y;             /**< Their values [points][dim_y]. */
  const float *query;         /**< Where to predict: [queries][dim_x]. */
  const float *inverse_width; /**< 1 / bandwidth of each coordinate: [dim_x]; NULL = 1. */
  float *prediction;          /**< Output [queries][dim_y]. */
  float *weights;             /**< Output [queries][points], how much each known point counts; or NULL. */
} attn_regression;

/** Computes the predictions. Plans and allocates in every call. options may be NULL. */
ATTN_API attn_status attn_kernel_regression(const attn_regression *regression, const attn_options *options);

/* ---- Decoding with a KV cache -------------------------------------------------------------------------------------- */

/** Pages of keys and values, which caches take and give back. Several caches may have one pool; only one call may use it at
 * a time. */
typedef struct attn_kv_pool attn_kv_pool;

/** Shape of a pool. */
typedef struct attn_kv_pool_shape {
  size_t struct_size;  /**< Bytes of this struct; ATTN_STRUCT sets it. */
  int64_t layers;      /**< Layers of the model: a page has keys and values of its tokens in each; 0 = 1. */
  int64_t pages;       /**< Pages, >= 1. */
  int64_t page_tokens; /**< Tokens of a page, a multiple of 16 in 16..1024; 0 = 64. */
  int64_t heads_kv;    /**< KV heads, >= 1. */
  int64_t dim_qk;      /**< Elements of a key, >= 1. */
  int64_t dim_v;       /**< Elements of a value, >= 1. */
  attn_dtype dtype;    /**< Type of keys and values as they are kept. */
  bool scales;         /**< Types of 8 bits: a float32 factor is kept beside each key and value (attn_kv_pool_key_scales). */
  bool key_channels;   /**< With scales: keys have a factor of each channel of a page, not of each token. */
} attn_kv_pool_shape;

/** Makes a pool with all pages free: keys [layers][pages][heads_kv][page_tokens][dim_qk], and values likewise. On failure
 * *pool is NULL. On several NUMA nodes (attn_parallel_nodes()) node n of N gets the pages from n * pages / N on; the system
 * is asked to place them there. Sequence b of a cache takes pages of node b * N / batch, whose threads attend to it, or of
 * each node in turn where N > batch; where that has none, another's. */
ATTN_API attn_status attn_kv_pool_create(const attn_kv_pool_shape *shape, attn_kv_pool **pool);

/** Pages that no sequence holds. */
ATTN_API int64_t attn_kv_pool_free_pages(const attn_kv_pool *pool);

/** Keys of a layer, [pages][heads_kv][page_tokens][dim_qk], for programs that attend or append themselves, by
 * attn_kv_cache_pages(). NULL if there is no such layer. */
ATTN_API void *attn_kv_pool_keys(const attn_kv_pool *pool, int64_t layer);

/** Values of a layer, likewise. */
ATTN_API void *attn_kv_pool_values(const attn_kv_pool *pool, int64_t layer);

/** Factors of the keys of a layer, [pages][heads_kv][page_tokens], with key_channels [pages][heads_kv][dim_qk]; NULL also in
 * a pool without scales. */
ATTN_API float *attn_kv_pool_key_scales(const attn_kv_pool *pool, int64_t layer);

/** Factors of the values, [pages][heads_kv][page_tokens], likewise. */
ATTN_API float *attn_kv_pool_value_scales(const attn_kv_pool *pool, int64_t layer);

/** Frees the pool, once the last cache that has it is destroyed. NULL is fine. */
ATTN_API void attn_kv_pool_destroy(attn_kv_pool *pool);

/** Sequences, each with its own length, and the attention of their new tokens to everything cached. Keys and values lie in
 * the pages of a pool. Sequences are numbered; one that holds no tokens costs nothing, so sequences join by their first step
 * and leave by attn_kv_cache_truncate_sequence() to 0. */
typedef struct attn_kv_cache attn_kv_cache;

/** Shape of a cache. */
typedef struct attn_kv_cache_shape {
  size_t struct_size; /**< Bytes of this struct; ATTN_STRUCT sets it. */
  int64_t batch;      /**< Sequences at most, >= 1. */
  int64_t heads_q;    /**< Query heads, a multiple of heads_kv. */
  int64_t heads_kv;   /**< KV heads, >= 1. */
  int64_t dim_qk;     /**< Elements of a query and of a key, >= 1. */
  int64_t dim_v;      /**< Elements of a value, >= 1. */
  int64_t capacity;   /**< Most tokens that a sequence may have. */
  attn_dtype dtype;   /**< Type of keys and values as kept, and of q, k and v as given; outputs are float32. */

  int64_t window; /**< Tokens that a query sees, itself included; 0 = all. Pages that left the window are given back. */
  int64_t window_first;      /**< First tokens that stay seen beside the window (attention sinks); 0 = none. */
  bool float_tokens;         /**< q, k and v are given as float32 whatever dtype is; queries stay float32. Required with 8
                                bits and blocks. */
  float scale;               /**< Factor of the scores; 0 = 1/sqrt(dim_qk). */
  float softcap;             /**< See attn_problem; 0 = off. */
  const float *sinks;        /**< [heads_q], copied: sink logits; or NULL. */
  const float *alibi_slopes; /**< [heads_q], copied: ALiBi slopes; or NULL. */
  const attn_rope *rope;     /**< Rotates keys and queries by their positions; must outlive the cache. Or NULL. */

  attn_kv_pool *pool;  /**< Its pages, alike in heads_kv, dims, dtype and factors; NULL = its own pool, by the next: */
  int64_t layers;      /**< See attn_kv_pool_shape. */
  int64_t page_tokens; /**< See attn_kv_pool_shape. */
  int64_t pages;       /**< Pages; 0 = as many as `batch` sequences of `capacity` tokens need. */

  bool scales; /**< Types of 8 bits: each key and value is kept with a factor of its own, made when it is appended
                  (k_scale_cache of attn_kv_append_args). ATTN_I8 needs it. */

  /** With scales: keys have a factor of each channel of a page, made when the page is full; values have one of each token
   * (Liu et al. 2024, https://arxiv.org/abs/2402.02750: KIVI). Until then tokens stay float32, in up to two pages of each
   * sequence beside the pool: the one that the last step began in, and the last one. A query sees its own page in float32,
   * and earlier ones as they are kept, however steps are cut. A sequence that is cut within these two pages goes on exactly;
   * within another, its tokens there go on with the values that they were kept with. A step that has begun counts, even if
   * it then fails and its tokens are forgotten. window_first must be 0, and the kernel one that takes pieces
   * (ATTN_USE_STATE). */
  bool key_channels;

  /** [heads_q][bias_distances], copied: added to the score of a key that is n tokens before the query, [h][min(n,
   * bias_distances - 1)], as T5's relative position bias (Raffel et al. 2020, https://arxiv.org/abs/1910.10683, section
   * 2.1); or NULL. A step works in batch heads_q (capacity + tokens) floats for it. key_channels must be false. */
  const float *bias_by_distance;
  int64_t bias_distances; /**< With bias_by_distance: >= 1; else 0. */

  bool hadamard; /**< Keys are kept, and queries attend, as attn_kv_append_args.hadamard has it; dim_qk must be even. */
} attn_kv_cache_shape;

/** Makes an empty cache. options may be NULL; they choose the kernel. On failure *cache is NULL. */
ATTN_API attn_status attn_kv_cache_create(const attn_kv_cache_shape *shape, const attn_options *options,
                                          attn_kv_cache **cache);

/** One step: appends the keys and values of `tokens` new tokens per sequence, then lets their queries attend to everything
 * cached so far, causally (bottom-right: token i of the step sees the old tokens and the new ones up to itself).
 *
 * q: [batch][heads_q][tokens][dim_qk], k and v: [batch][heads_kv][tokens][dim], o: [batch][heads_q][tokens][dim_v] float.
 * counts[batch], each in 0..tokens, says how many of the step's tokens each sequence really has; NULL means all. The
 * others are padding, and their o is 0. A step of many tokens is a prompt, a step of one is generation. When `tokens` is new
 * to the cache, the step makes a plan. On failure, too few free pages included, nothing is appended. Only one step may run
 * at a time per pool. A cache of several layers takes attn_kv_cache_begin() and attn_kv_cache_attend(). */
ATTN_API attn_status attn_kv_cache_step(attn_kv_cache *cache, int64_t tokens, const int32_t *counts, const void *q,
                                        const void *k, const void *v, float *o);

/** Begins a step for all layers: sequence b gets counts[b] >= 0 new tokens, its length grows by them, and it takes the pages
 * that they need, copies of shared ones included. attn_kv_cache_attend() then brings them, once for each layer. Returns
 * ATTN_OK; ATTN_INVALID_ARGUMENT for a count below 0 or beyond the capacity; ATTN_OUT_OF_MEMORY where the pool has too few
 * free pages: then nothing has changed, and the step can be repeated once other sequences have left. */
ATTN_API attn_status attn_kv_cache_begin(attn_kv_cache *cache, const int32_t *counts);

/** The tensors of the step that has begun, for one layer. */
typedef struct attn_kv_cache_args {
  size_t struct_size; /**< Bytes of this struct; ATTN_STRUCT sets it. */
  int64_t layer;      /**< Layer, from 0 on. */
  int64_t tokens;     /**< 0 = packed: q [all new tokens][heads_q][dim_qk], k, v and o likewise, sequence after sequence.
                         Otherwise at least the largest count: padded, as in attn_kv_cache_step(). */
  const void *q;      /**< Queries of the new tokens. */
  const void *k;      /**< Their keys. */
  const void *v;      /**< Their values. */
  float *o;           /**< Output. */
} attn_kv_cache_args;

/** Appends the step's keys and values in one layer and attends, as attn_kv_cache_step() does. On failure the step remains
 * begun: repeat the call, or forget the step's tokens by attn_kv_cache_truncate_sequence(). May allocate a plan. */
ATTN_API attn_status attn_kv_cache_attend(attn_kv_cache *cache, const attn_kv_cache_args *args);

/** A multi-head layer in a step that has begun: x [all new tokens][width], sequence after sequence, is projected; keys and
 * values are appended in the cache's layer, the queries attend, and y [all new tokens][width_out] is their projection. They
 * are of the layer's dtype_x and dtype_y; y may be x. The layer must have the cache's heads and dims, and width_memory =
 * width; scale, window and the like are the cache's, which must take tokens of the layer's dtype_q and dtype_kv. y has the
 * bits of attn_mha_run() over the whole text with the same kernel, if the cache keeps dtype_kv. Allocates until it has seen
 * the largest step. */
ATTN_API attn_status attn_mha_step(const attn_mha *mha, attn_kv_cache *cache, int64_t layer, const void *x, void *y);

/** New tokens of the step that has begun, of all sequences together. */
ATTN_API int64_t attn_kv_cache_step_tokens(const attn_kv_cache *cache);

/** Tokens cached per sequence: [batch], valid as long as the cache lives. */
ATTN_API const int32_t *attn_kv_cache_lengths(const attn_kv_cache *cache);

/** The pages of each sequence: [batch][ceil(capacity / page_tokens)], valid as long as the cache lives; -1 = none, no
 * longer, or with key_channels not yet full. */
ATTN_API const int32_t *attn_kv_cache_pages(const attn_kv_cache *cache);

/** The pool of the cache. */
ATTN_API attn_kv_pool *attn_kv_cache_pool(const attn_kv_cache *cache);

/** Forgets all but the first `length` >= 0 tokens of every sequence that has more; 0 empties the cache. With a window a
 * sequence cannot go back to where it would see tokens that it has given back, but to 0; then nothing changes. */
ATTN_API attn_status attn_kv_cache_truncate(attn_kv_cache *cache, int64_t length);

/** The same for one sequence. */
ATTN_API attn_status attn_kv_cache_truncate_sequence(attn_kv_cache *cache, int64_t sequence, int64_t length);

/** Makes sequence `to` what the first `length` tokens of sequence `from` are; what it held before is forgotten. Their pages
 * are shared until one of them appends, which then copies the last one: a common prompt is kept once. */
ATTN_API attn_status attn_kv_cache_fork(attn_kv_cache *cache, int64_t from, int64_t to, int64_t length);

/** Beam search: sequence b becomes what sequence parents[b] was, for all b at once; -1 = empty. Pages are shared as by
 * attn_kv_cache_fork(). */
ATTN_API attn_status attn_kv_cache_reorder(attn_kv_cache *cache, const int32_t *parents);

/** The name of the kernel that the last step ran; before the first step, of the one that a step of one token would run.
 * With key_channels two kernels may run; the name is that of the one for pages in float32. */
ATTN_API const char *attn_kv_cache_kernel(const attn_kv_cache *cache);

/** Gives the pages back and frees the cache. NULL is fine. */
ATTN_API void attn_kv_cache_destroy(attn_kv_cache *cache);

/* ---- Layers: learnt weights packed once, run many times -------------------------------------------------------------- */

/** A learnt map y = x W + b. */
typedef struct attn_linear {
  const float *weight; /**< [in][out], as y = x W wants it. */
  const float *bias;   /**< [out], or NULL for none. */
  bool transposed;     /**< weight is [out][in] instead: PyTorch's nn.Linear. */
} attn_linear;

/** Position-wise feed-forward network (Vaswani et al. 2017, section 3.3, eq. 2), with a choice of activation, or with a gate
 * (Shazeer 2020, https://arxiv.org/abs/2002.05202: SwiGLU with ATTN_SILU, GeGLU with ATTN_GELU):
 *
 *     y = activation(x W1 + b1) W2 + b2,   or   y = (activation(x Wg + bg) (x W1 + b1)) W2 + b2 */
typedef struct attn_feed_forward_config {
  size_t struct_size;         /**< Bytes of this struct; ATTN_STRUCT sets it. */
  int64_t width;              /**< Elements of a row of x and of y, >= 1. */
  int64_t hidden;             /**< Elements of a row in between, >= 1. */
  attn_activation activation; /**< Applied to the hidden rows; with a gate to the gate's. */
  attn_linear first;          /**< width -> hidden */
  attn_linear second;         /**< hidden -> width */
  const char *product;        /**< Kernel of the maps, as attn_product_create() takes it; NULL = our own. */
  attn_linear gate;           /**< Wg, bg: width -> hidden; its weight is NULL without a gate. */
  attn_dtype dtype;   /**< Type of all weights here, to which their pointers are cast; biases are float32. Weights are
                         kept as attn_product_weights says of this type. */
  bool bf16_rows;     /**< With dtype bf16: rows are rounded to bf16 before each map, see attn_product_weights. */
  bool int8_weights;  /**< Weights are rounded to i8, with a scale for each column, see attn_product_weights. */
  bool int8_rows;     /**< With int8_weights: rows are rounded to i8 before each map, see attn_product_weights. */
  attn_dtype dtype_x; /**< Type of x, and of the rows in between: f32, bf16 or f16. */
  attn_dtype dtype_y; /**< Type of y, likewise. */
} attn_feed_forward_config;

/** A feed-forward network with its weights packed. */
typedef struct attn_feed_forward attn_feed_forward;

/** Checks the config and packs the weights. options may be NULL. On failure *layer is NULL. */
ATTN_API attn_status attn_feed_forward_create(const attn_feed_forward_config *config, const attn_options *options,
                                              attn_feed_forward **layer);

/** Bytes of workspace for this many rows; more rows need more. */
ATTN_API size_t attn_feed_forward_workspace(const attn_feed_forward *layer, int64_t rows);

/** Computes y from x, both [rows][width], of dtype_y and dtype_x. y may be x. */
ATTN_API attn_status attn_feed_forward_run(const attn_feed_forward *layer, int64_t rows, const void *x, void *y,
                                           void *workspace, size_t workspace_bytes);

/** Frees the layer. NULL is fine. */
ATTN_API void attn_feed_forward_destroy(attn_feed_forward *layer);

/** Additive attention with its projections (Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473, appendix A.1.2):
 *
 *     o_i = sum_j p_ij v_j,   p_i = softmax over j of <w, tanh(q_i Wq + k_j Wk)> */
typedef struct attn_additive_config {
  size_t struct_size;        /**< Bytes of this struct; ATTN_STRUCT sets it. */
  int64_t batch;             /**< Sequences, >= 0. */
  int64_t seq_q;             /**< Queries of a sequence, >= 0. */
  int64_t seq_k;             /**< Keys of a sequence, >= 0. */
  int64_t width_q;           /**< Elements of a query, >= 1. */
  int64_t width_k;           /**< Elements of a key, >= 1. */
  int64_t hidden;            /**< Elements of a projected query or key, >= 1. */
  int64_t dim_v;             /**< Elements of a value, >= 1. */
  bool use_kv_len;           /**< args bring kv_len. */
  attn_linear query;         /**< Wq: width_q -> hidden */
  attn_linear key;           /**< Wk: width_k -> hidden */
  const float *score_weight; /**< w: [hidden] */
} attn_additive_config;

/** The pointers of one call. */
typedef struct attn_additive_args {
  size_t struct_size;        /**< Bytes of this struct; ATTN_STRUCT sets it. */
  const float *q;            /**< [batch][seq_q][width_q] */
  const float *k;            /**< [batch][seq_k][width_k]; not read where projected_k is given. */
  const float *projected_k;  /**< [batch][seq_k][hidden] from attn_additive_project_keys(), for a decoder that attends to the
                                same keys often; or NULL. */
  const float *v;            /**< [batch][seq_k][dim_v] */
  const int32_t *kv_len;     /**< [batch], each in 0..seq_k; with use_kv_len. */
  float *o;                  /**< Output [batch][seq_q][dim_v]. */
  float *weights;            /**< Output [batch][seq_q][seq_k]: p, for looking at; allocates. Or NULL. */
  attn_mha_profile *profile; /**< Times are added to it; NULL = take no times. */
} attn_additive_args;

/** Additive attention with its weights packed. */
typedef struct attn_additive attn_additive;

/** Checks the config and packs the weights. options may be NULL. On failure *layer is NULL. */
ATTN_API attn_status attn_additive_create(const attn_additive_config *config, const attn_options *options,
                                          attn_additive **layer);

/** A layer over the same packed weights for other numbers of sequences, queries and keys. On failure *reshaped is NULL. */
ATTN_API attn_status attn_additive_reshape(const attn_additive *layer, int64_t batch, int64_t seq_q, int64_t seq_k,
                                           attn_additive **reshaped);

/** Bytes of workspace that one run needs. */
ATTN_API size_t attn_additive_workspace(const attn_additive *layer);

/** Computes projected[batch][seq_k][hidden] = k Wk from k[batch][seq_k][width_k]. */
ATTN_API attn_status attn_additive_project_keys(const attn_additive *layer, const float *k, float *projected,
                                                void *workspace, size_t workspace_bytes);

/** Computes args->o, and args->weights if it is not NULL. */
ATTN_API attn_status attn_additive_run(const attn_additive *layer, const attn_additive_args *args, void *workspace,
                                       size_t workspace_bytes);

/** The name of the attention kernel that the layer runs. */
ATTN_API const char *attn_additive_kernel(const attn_additive *layer);

/** Frees the layer. NULL is fine. */
ATTN_API void attn_additive_destroy(attn_additive *layer);

/** Where the scores of a Synthesizer come from (Tay et al. 2021, section 3). */
typedef enum attn_synthesizer_kind {
  ATTN_SYNTHESIZER_DENSE = 0, /**< S_h = relu(x W1_h + b1_h) W2_h + b2_h: a row's scores from that row alone */
  ATTN_SYNTHESIZER_RANDOM     /**< S_h = R_h: learnt, the same for every input */
} attn_synthesizer_kind;

/** Synthesizer: attention whose scores do not come from queries and keys (Tay et al. 2021,
 * https://arxiv.org/abs/2005.00743). Heads stand side by side, and one output projection follows over all of them, as in
 * multi-head attention:
 *
 *     y = concat_h(softmax(S_h) (x Wv)_h) Wo + bo
 */
typedef struct attn_synthesizer_config {
  size_t struct_size;         /**< Bytes of this struct; ATTN_STRUCT sets it. */
  attn_synthesizer_kind kind; /**< Dense or random. */
  int64_t batch;              /**< Sequences, >= 0. */
  int64_t seq;                /**< Tokens of a sequence, 0..length. */
  int64_t width;              /**< Elements of a row of x and of y, >= 1. */
  int64_t heads;              /**< >= 1 */
  int64_t dim_v;              /**< Elements of a value of one head, >= 1. */
  int64_t length;             /**< The longest sequence that the scores were learnt for, >= 1. */
  int64_t hidden;             /**< DENSE: width of the inner layer, >= 1. */
  bool causal;                /**< Each token sees itself and those before it. */
  bool use_kv_len;            /**< args bring kv_len. */
  const attn_linear *first;   /**< DENSE: W1, b1: [heads] of width -> hidden. */
  const attn_linear *second;  /**< DENSE: W2, b2: [heads] of hidden -> length. */
  const float *scores;        /**< RANDOM: R [heads][length][length]. */
  attn_linear value;          /**< Wv: width -> heads dim_v */
  attn_linear output;         /**< Wo, bo: heads dim_v -> width */
} attn_synthesizer_config;

/** A Synthesizer with its weights packed. */
typedef struct attn_synthesizer attn_synthesizer;

/** Checks the config and packs the weights. options may be NULL. On failure *layer is NULL. */
ATTN_API attn_status attn_synthesizer_create(const attn_synthesizer_config *config, const attn_options *options,
                                             attn_synthesizer **layer);

/** A layer over the same packed weights for other numbers of sequences and tokens. On failure *reshaped is NULL. */
ATTN_API attn_status attn_synthesizer_reshape(const attn_synthesizer *layer, int64_t batch, int64_t seq,
                                              attn_synthesizer **reshaped);

/** Bytes of workspace that one run needs. */
ATTN_API size_t attn_synthesizer_workspace(const attn_synthesizer *layer);

/** The pointers of one call. */
typedef struct attn_synthesizer_args {
  size_t struct_size;    /**< Bytes of this struct; ATTN_STRUCT sets it. */
  const float *x;        /**< [batch][seq][width] */
  float *y;              /**< Output, shaped as x; may be x. */
  const int32_t *kv_len; /**< [batch], each in 0..seq; with use_kv_len. */
  attn_mha_profile
      *profile; /**< Times are added to it (the networks of DENSE count as projections); NULL = take no times. */
} attn_synthesizer_args;

/** Computes args->y. */
ATTN_API attn_status attn_synthesizer_run(const attn_synthesizer *layer, const attn_synthesizer_args *args, void *workspace,
                                          size_t workspace_bytes);

/** The name of the attention kernel that the layer runs. */
ATTN_API const char *attn_synthesizer_kernel(const attn_synthesizer *layer);

/** Frees the layer. NULL is fine. */
ATTN_API void attn_synthesizer_destroy(attn_synthesizer *layer);

/* ---- Transformer blocks
 * ------------------------------------------------------------------------------------------------ */

/* Multi-head attention as models use it: attn_mha_problem_init() (attn/mha.h), and two of its kinds by name. */

/** Causal self-attention (Vaswani et al. 2017, section 3.2.3, the decoder's first): every token sees itself and those
 * before it. */
ATTN_API void attn_causal_self_attention_init(attn_mha_problem *problem, int64_t batch, int64_t heads, int64_t seq,
                                              int64_t width);
/** Sets struct_size and calls the function of this name. */
#define attn_causal_self_attention_init(problem, ...) \
  attn_causal_self_attention_init(attn_mha_problem_sized(problem), __VA_ARGS__)

/** Cross-attention (Vaswani et al. 2017, section 3.2.3, "encoder-decoder attention"): queries of width `width` attend to a
 * memory of another length and width, to all of it, or to as much as kv_len says (set ATTN_USE_KV_LEN). */
ATTN_API void attn_cross_attention_init(attn_mha_problem *problem, int64_t batch, int64_t heads, int64_t seq_q,
                                        int64_t seq_memory, int64_t width, int64_t width_memory);
/** Sets struct_size and calls the function of this name. */
#define attn_cross_attention_init(problem, ...) attn_cross_attention_init(attn_mha_problem_sized(problem), __VA_ARGS__)

/** A transformer block (Vaswani et al. 2017, section 3.1 and figure 1): self-attention, in a decoder also attention to
 * the encoder's output, and a feed-forward network, each with a residual connection around it and a layer norm:
 *
 *     post-norm, as in the paper:  x <- norm(x + sublayer(x))
 *     pre-norm:                    x <- x + sublayer(norm(x))  (Xiong et al. 2020, https://arxiv.org/abs/2002.04745, fig. 1)
 *
 *     pre-norm with post_norms:    x <- x + post_norm(sublayer(norm(x)))  (Gemma 2, https://arxiv.org/abs/2408.00118)
 *
 * A pre-norm stack ends with one more norm, which the caller computes by attn_add_layer_norm(). */
typedef struct attn_block_config {
  size_t struct_size; /**< Bytes of this struct; its init functions set it. */

  attn_mha_problem self;         /**< Shape, masks and lengths of the self-attention; x and y dense, width = width_out. */
  attn_mha_weights self_weights; /**< Weights of the self-attention. */
  attn_norm self_norm;           /**< Norm of the self-attention. */

  bool has_cross;                 /**< A decoder block: with attention to the memory. */
  attn_mha_problem cross;         /**< Shape, masks and lengths of that attention. */
  attn_mha_weights cross_weights; /**< Its weights. */
  attn_norm cross_norm;           /**< Its norm. */

  attn_feed_forward_config feed_forward; /**< The feed-forward network. */
  attn_norm feed_forward_norm;           /**< Its norm. */

  bool pre_norm; /**< Norms before the sublayers instead of after them. */

  const char *product; /**< Kernel of all dense layers, as attn_product_create() takes it; NULL = our own, but for the
                          feed-forward network what its config names. */
  bool rms_norm;       /**< Its norms are those of attn_add_rms_norm(), not layer norms. */

  attn_norm self_post_norm;         /**< With post_norms: norm of what the self-attention gives, before it is added. */
  attn_norm cross_post_norm;        /**< The same of the cross-attention. */
  attn_norm feed_forward_post_norm; /**< The same of the feed-forward network. */
  bool post_norms;                  /**< With pre_norm: norms of what the sublayers give, too. */

  /** Type of x, y and the memory, and of every row that enters a sublayer: f32, bf16 or f16. The sums between sublayers stay
   * float32, but for post-norm, whose norms give such rows. The dtype_x and dtype_y of self, cross and feed_forward are set
   * by the block. */
  attn_dtype dtype_rows;
} attn_block_config;

/** Sets the sizes that the init functions of blocks read, and returns its argument. */
static inline attn_block_config *attn_block_config_sized(attn_block_config *config) {
  config->struct_size = sizeof *config;
  attn_mha_problem_sized(&config->self);
  attn_mha_problem_sized(&config->cross);
  config->self_weights.struct_size = config->cross_weights.struct_size = sizeof config->self_weights;
  config->feed_forward.struct_size = sizeof config->feed_forward;
  return config;
}

/** Shapes of an encoder block: self-attention over all tokens, ReLU, post-norm, norms without gain and bias, epsilon 1e-5.
 * The caller fills in the weights, and whatever else differs (config.self.attention.uses |= ATTN_USE_KV_LEN;
 * config.pre_norm = true). */
ATTN_API void attn_encoder_block_init(attn_block_config *config, int64_t batch, int64_t heads, int64_t seq, int64_t width,
                                      int64_t hidden);
/** Sets struct_size and calls the function of this name. */
#define attn_encoder_block_init(config, ...) attn_encoder_block_init(attn_block_config_sized(config), __VA_ARGS__)

/** Shapes of a decoder block, likewise: causal self-attention, and attention to a memory of seq_memory rows of
 * width_memory. */
ATTN_API void attn_decoder_block_init(attn_block_config *config, int64_t batch, int64_t heads, int64_t seq,
                                      int64_t seq_memory, int64_t width, int64_t width_memory, int64_t hidden);
/** Sets struct_size and calls the function of this name. */
#define attn_decoder_block_init(config, ...) attn_decoder_block_init(attn_block_config_sized(config), __VA_ARGS__)

/** Where the time of a run went, added up over runs. */
typedef struct attn_block_profile {
  int64_t runs;           /**< Runs so far. */
  double projections_ns;  /**< Nanoseconds in the four products around each attention. */
  double attention_ns;    /**< Nanoseconds in attention. */
  double feed_forward_ns; /**< Nanoseconds in the feed-forward network. */
  double norm_ns;         /**< Nanoseconds in residuals and norms. */
  double total_ns;        /**< Nanoseconds of the whole runs. */
} attn_block_profile;

/** The pointers of one call. */
typedef struct attn_block_args {
  size_t struct_size;          /**< Bytes of this struct; ATTN_STRUCT sets it. */
  const void *x;               /**< [batch][seq][width], or with VARLEN [total_q][width], of dtype_rows. */
  const void *memory;          /**< [batch][seq_memory][width_memory] by cross.memory_stride; decoder blocks only. */
  void *y;                     /**< Output, shaped as x; may be x. */
  const attn_args *self;       /**< Masks and lengths that self.attention.uses asks for, or NULL; its q, k, v and o are not
                                  read. */
  const attn_args *cross;      /**< The same for cross.attention.uses. */
  attn_block_profile *profile; /**< Times are added to it; NULL = take no times. */
  const void *projected_k; /**< Decoder blocks: the memory's keys from attn_block_project_memory(), in place of memory. */
  const void *projected_v; /**< Its values, likewise. */
} attn_block_args;

/** A transformer block with its weights packed. */
typedef struct attn_block attn_block;

/** Checks the config and packs the weights. options may be NULL. On failure *block is NULL. */
ATTN_API attn_status attn_block_create(const attn_block_config *config, const attn_options *options, attn_block **block);

/** A block over the same packed weights for other attentions: another batch, other lengths, masks, windows; widths, heads
 * and head dimensions must be the block's. cross is NULL without cross-attention. attn_encoder_block_init() or
 * attn_decoder_block_init() of another config sets both. On failure *reshaped is NULL. */
ATTN_API attn_status attn_block_reshape(const attn_block *block, const attn_mha_problem *self, const attn_mha_problem *cross,
                                        attn_block **reshaped);

/** Bytes of workspace that one run needs. */
ATTN_API size_t attn_block_workspace(const attn_block *block);

/** Projects a decoder block's memory once, args->memory, for steps and runs that attend to it: k
 * [batch][heads_kv][seq_memory][dim_qk] and v [batch][heads_kv][seq_memory][dim_v] as attn_mha_project_memory() lays them,
 * for args.projected_k and projected_v. Both have cross.attention.dtype_kv. The workspace is that of a run. */
ATTN_API attn_status attn_block_project_memory(const attn_block *block, const attn_block_args *args, void *k, void *v,
                                               void *workspace, size_t workspace_bytes);

/** Computes args->y. */
ATTN_API attn_status attn_block_run(const attn_block *block, const attn_block_args *args, void *workspace,
                                    size_t workspace_bytes);

/** A block in a step that has begun (attn_kv_cache_begin()): args->x and y are [all new tokens][width], sequence after
 * sequence; the self-attention is that of attn_mha_step(), so args->self is NULL, and the block's sizes of batch and seq do
 * not count. y has the bits of attn_block_run() over the whole text with the same kernel, if the cache keeps dtype_kv.
 *
 * A decoder block also attends to args->memory, or to what attn_block_project_memory() made of it: then each of the
 * cross-attention's sequences takes cross.seq_q tokens in every step. Allocates until it has seen the largest step. On
 * failure the step remains begun, as after attn_kv_cache_attend(). A profile counts all of the self-attention as attention.
 */
ATTN_API attn_status attn_block_step(const attn_block *block, attn_kv_cache *cache, int64_t layer,
                                     const attn_block_args *args);

/** The name of the kernel of the self-attention. */
ATTN_API const char *attn_block_kernel(const attn_block *block);

/** Frees the block. NULL is fine. */
ATTN_API void attn_block_destroy(attn_block *block);

#ifdef __cplusplus
}
#endif
#endif
