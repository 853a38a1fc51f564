/* SPDX-License-Identifier: MIT */
/** @file
 * Writing a KV cache: new tokens' keys and values, converted, rotated and stored where attention will read them.
 *
 * attn_kv_append() writes into dense caches, into pages by a page table, and into slots as vLLM's slot_mapping names them.
 * RoPE, rotary position embeddings (Su et al. 2021, https://arxiv.org/abs/2104.09864), is applied to keys and queries on the
 * way, or on its own by attn_rope_run(). docs/semantics.md ("Writing a KV cache") has the formulas.
 *
 *     attn_rope *rope;
 *     attn_rope_create(&ATTN_STRUCT(attn_rope_config, .pairing = ATTN_ROPE_HALVES, .dim = 128, .base = 500000), &rope);
 *     attn_kv_append_args args = ATTN_STRUCT(attn_kv_append_args, .batch = 1, .tokens = 1, .heads_kv = 8, .dim_qk = 128,
 *         .dim_v = 128, .k = k, .v = v, .k_cache = k_cache, .v_cache = v_cache, .capacity = 4096, .past = &length,
 *         .rope = rope);
 *     if (attn_kv_append(&args, NULL) != ATTN_OK) puts(attn_last_error());
 *
 * Errors as in attn.h: a status, and a sentence from attn_last_error(). Where an error is returned, nothing was written.
 */
#ifndef ATTN_KV_H
#define ATTN_KV_H

#include "attn/attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Rotary position embeddings ------------------------------------------------------------------------------------ */

/** Which elements of a row are rotated together, for i < dim / 2. There is no default: models differ, and the wrong one
 * gives results that look right. */
typedef enum attn_rope_pairing {
  ATTN_ROPE_INTERLEAVED = 1, /**< 2i and 2i + 1: GPT-J, the paper, Meta's own Llama; ggml's NORM */
  ATTN_ROPE_HALVES,          /**< i and i + dim / 2: GPT-NeoX, Hugging Face's Llama; ggml's NEOX */
} attn_rope_pairing;

/** How the frequencies change for contexts longer than those of the training. */
typedef enum attn_rope_scaling {
  ATTN_ROPE_UNSCALED = 0, /**< frequency_i = base^(-2i / dim) */
  ATTN_ROPE_LINEAR,       /**< frequency_i / factor: positions are interpolated (Chen et al. 2023, arXiv:2306.15595) */
  ATTN_ROPE_NTK,          /**< base factor^(dim / (dim - 2)) in place of base; dim >= 4 */
  ATTN_ROPE_YARN,         /**< YaRN (Peng et al. 2023, arXiv:2309.00071): high frequencies stay, low ones are divided */
  ATTN_ROPE_LLAMA3,       /**< Llama 3.1's: as YaRN, with a ramp over wavelengths */
} attn_rope_scaling;

/** Which rotation. Fields that the scaling does not name are not read; the names are those of Hugging Face's rope_scaling.
 */
typedef struct attn_rope_config {
  size_t struct_size;        /**< Bytes of this struct; ATTN_STRUCT sets it. */
  attn_rope_pairing pairing; /**< Which elements are pairs; required. */
  int64_t dim;               /**< Rotated elements of a row, the first ones: even, 2..256. The others stay. */
  double base;               /**< rope_theta, > 1: 10000 in the paper. */
  attn_rope_scaling scaling; /**< Default ATTN_ROPE_UNSCALED. */
  double factor;             /**< All scalings: >= 1. */
  double original_length;    /**< YARN, LLAMA3: tokens of a context in training, >= 1. */
  double beta_fast;          /**< YARN: turns in that context above which a frequency stays; 0 = 32. */
  double beta_slow;          /**< YARN: turns below which it is divided by factor; 0 = 1. */
  bool exact_ramp;           /**< YARN: the ramp's ends are not rounded to whole pairs (Hugging Face: truncate false). */
  double attention_factor;   /**< YARN: multiplies sine and cosine, > 0; 0 = 0.1 ln(factor) + 1. */
  double low_freq_factor;    /**< LLAMA3: wavelengths above original_length / this are divided; 0 = 1. */
  double high_freq_factor;   /**< LLAMA3: wavelengths below original_length / this stay; > low_freq_factor; 0 = 4. */
  const double *frequencies; /**< [dim / 2], copied: radians per position in place of base and scaling, for what is not
                                here (LongRoPE, dynamic NTK); in 0..1e6. Or NULL. */
} attn_rope_config;

/** A rotation, its frequencies computed. Immutable: any number of threads may use it at once. */
typedef struct attn_rope attn_rope;

/** Checks the config and computes the frequencies in double precision. On failure *rope is NULL. Returns ATTN_OK,
 * ATTN_INVALID_ARGUMENT or ATTN_OUT_OF_MEMORY. */
ATTN_API attn_status attn_rope_create(const attn_rope_config *config, attn_rope **rope);

/** The frequencies: radians per position, [dim / 2]. They live as long as the rotation. NULL for NULL. */
ATTN_API const double *attn_rope_frequencies(const attn_rope *rope);

/** Frees the rotation. NULL is fine. */
ATTN_API void attn_rope_destroy(attn_rope *rope);

/** Rows to rotate. A row's element d < dim of pair i, with position p and its partner's element, becomes
 *
 *     first' = first cos(p f_i) - second sin(p f_i),   second' = second cos(p f_i) + first sin(p f_i)
 *
 * Angles are computed in double precision, the rest in float32 without fused operations: every tier gives the same bits. */
typedef struct attn_rope_args {
  size_t struct_size;       /**< Bytes of this struct; ATTN_STRUCT sets it. */
  int64_t batch;            /**< Sequences, >= 0. */
  int64_t tokens;           /**< Tokens of a sequence, >= 0. */
  int64_t heads;            /**< >= 1 */
  int64_t dim;              /**< Elements of a row, at least those of the rotation. */
  attn_dtype dtype;         /**< Type of x. */
  attn_dtype out_dtype;     /**< Type of out. */
  const void *x;            /**< [batch][heads][tokens][dim] by x_stride. */
  void *out;                /**< Likewise by out_stride. It may be x where types and strides are alike. */
  attn_strides x_stride;    /**< Strides of x; all 0 = dense. */
  attn_strides out_stride;  /**< Strides of out; all 0 = dense. */
  const int32_t *positions; /**< [batch][tokens], dense, each >= 0; NULL = past[b] + token. */
  const int32_t *past;      /**< [batch], each >= 0: the position of each sequence's first token; NULL = 0. */
} attn_rope_args;

/** Rotates every row. options may be NULL; they give the tier, the threads and their pool. Allocates nothing. Returns
 * ATTN_OK or ATTN_INVALID_ARGUMENT. */
ATTN_API attn_status attn_rope_run(const attn_rope *rope, const attn_rope_args *args, const attn_options *options);

/* ---- Appending ------------------------------------------------------------------------------------------------------- */

/** New tokens, and where they go. Token i of sequence b has the place past[b] + i in its cache, unless `slots` says it:
 *
 *     dense:  sequence b of the cache, token past[b] + i < capacity
 *     pages:  page page_table[b][(past[b] + i) / page_tokens], token (past[b] + i) % page_tokens of it
 *     slots:  page (or sequence) slot / page_tokens (or capacity), token slot % page_tokens of it
 *
 * A ring is a page table whose entries repeat. Strides that are all 0 mean dense: [batch][heads][tokens][dim] for new
 * tokens, with cu_seqlens [tokens][heads][dim]; for caches [batch][heads_kv][capacity][dim], or
 * [pages][heads_kv][page_tokens][dim]. Caches may have any other stride; k_cache_stride.s = 1 with .d = page_tokens keeps
 * the keys of a page transposed.
 *
 * Factors of keys and values are those of ATTN_USE_KV_SCALES, one for each place of the cache: a row goes there, rotated,
 * multiplied by 1 / its factor, so that attention multiplies it back. They are given (k_scale), or made (k_scale_cache): the
 * largest absolute value of the row over the largest of cache_dtype. */
typedef struct attn_kv_append_args {
  size_t struct_size; /**< Bytes of this struct; ATTN_STRUCT sets it. */
  int64_t batch;      /**< Sequences, >= 0. */
  int64_t tokens;     /**< New tokens of a sequence at most, >= 0; with cu_seqlens the tokens that q, k and v hold. */
  int64_t heads_q;    /**< Heads of q, >= 1; not read without q. */
  int64_t heads_kv;   /**< Heads of k and v, >= 1; not read without them. */
  int64_t dim_qk;     /**< Elements of a row of q and k, >= 1. */
  int64_t dim_v;      /**< Elements of a row of v, >= 1. */

  attn_dtype dtype;       /**< Type of q, k and v. */
  attn_dtype cache_dtype; /**< Type of k_cache and v_cache; rounding is to nearest, ties to even. Blocks (ATTN_Q8_0, Q4_0):
                             the bytes that ggml makes of a row; strides as in attn_dtype, dense rows rounded up. */
  attn_dtype q_out_dtype; /**< Type of q_out. */

  const void *q; /**< Queries, which go rotated to q_out; NULL = none. */
  const void *k; /**< Keys, which go to k_cache; NULL = none. */
  const void *v; /**< Values, which go to v_cache; NULL = none. */
  void *q_out;   /**< Shaped as q; may be q where types and strides are alike. NULL without q. */
  void *k_cache; /**< NULL without k. */
  void *v_cache; /**< NULL without v. */

  attn_strides q_stride;       /**< Strides of q. With cu_seqlens .b is ignored and .s walks packed tokens, also next. */
  attn_strides k_stride;       /**< Strides of k. */
  attn_strides v_stride;       /**< Strides of v. */
  attn_strides q_out_stride;   /**< Strides of q_out. */
  attn_strides k_cache_stride; /**< Strides of k_cache: .b from page to page, or from sequence to sequence. */
  attn_strides v_cache_stride; /**< Strides of v_cache, likewise. */

  int64_t capacity;          /**< Dense caches: tokens that a sequence has room for; 0 with pages. */
  int64_t page_tokens;       /**< Pages: tokens of a page, >= 1; 0 = the caches are dense. */
  int64_t pages;             /**< Pages: how many the caches hold. */
  const int32_t *page_table; /**< Pages: [batch][..] by page_table_stride; NULL with slots. */
  int64_t page_table_stride; /**< Entries from one sequence's page_table to the next one's: all that a sequence has. */

  const int32_t *past;       /**< [batch], each >= 0: tokens of each sequence before the new ones; NULL = 0. */
  const int32_t *counts;     /**< [batch], each in 0..tokens: new tokens of each sequence; NULL = all. Without cu_seqlens. */
  const int32_t *cu_seqlens; /**< [batch + 1], not decreasing, within 0..tokens: new tokens are packed. Or NULL. */
  const int64_t *slots;      /**< [batch][tokens], or [tokens] with cu_seqlens: where each token goes; -1 = nowhere, and its
                                query stays unrotated too. Or NULL. The slots of a call differ. */

  const attn_rope *rope;    /**< Rotates q and k; NULL = they go as they are. */
  const int32_t *positions; /**< [batch][tokens], or [tokens] with cu_seqlens, each >= 0; NULL = past[b] + i. With rope. */

  const float *k_scale; /**< [pages or batch][heads_kv][page_tokens or capacity] by k_scale_stride: factors of k_cache,
                           normal numbers where new tokens go. NULL = 1, or k_scale_cache. */
  const float *v_scale; /**< Factors of v_cache, likewise. */
  float *k_scale_cache; /**< Where factors go that are made for the new keys: finite, 0 for rows of zeros and of denormals;
                           or NULL. cache_dtype is one of 8 bits. Rows with an infinite value or a NaN get that as factor. */
  float *v_scale_cache; /**< The same for the new values. */
  attn_strides k_scale_stride; /**< Strides of k_scale, of which 0 repeats: all 0 is one number; or of k_scale_cache, all 0
                                  being dense. .d is ignored. */
  attn_strides v_scale_stride; /**< Strides of v_scale or v_scale_cache, likewise. */

  bool hadamard; /**< q and k are multiplied, behind rope, by an orthogonal matrix that mixes their elements (QuaRot,
                    Ashkboos et al. 2024, https://arxiv.org/abs/2404.00456): q k stays what it is, and keys whose channels
                    differ in size lose less in 8 and 4 bits. dim_qk must be even. Formula: docs/semantics.md. */
} attn_kv_append_args;

/** Appends, in one pass over the new tokens. options may be NULL; they give the tier, the threads and their pool. Allocates
 * nothing. Every tier gives the same bits. Caches and q_out may not overlap q, k and v, but for q_out = q.
 *
 * Returns ATTN_OK; ATTN_INVALID_ARGUMENT where a field, a length, a table's entry, a slot or a factor does not fit, a
 * sequence has no room, or a ring is shorter than the new tokens of its sequence: then nothing was written. */
ATTN_API attn_status attn_kv_append(const attn_kv_append_args *args, const attn_options *options);

#ifdef __cplusplus
}
#endif
#endif
