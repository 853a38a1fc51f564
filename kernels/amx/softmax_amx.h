/* SPDX-License-Identifier: MIT */
/* Softmax with queries in lanes: two rows of S^T, which are two keys of 16 queries, become one row of P^T, in which a pair
 * of keys stands side by side as the tile unit takes it. Maxima, sums and references are vertical: lane i is query i. */
#ifndef ATTN_SOFTMAX_AMX_H
#define ATTN_SOFTMAX_AMX_H

#include "kernels/avx512bf16/exp_bf16.h"
#include "shape_amx.h"

/* Softmax of one block of keys: where its S^T is and P^T goes. */
typedef struct softmax_work {
  const float *s;
  uint16_t *p;
  const uint32_t *visible; /* [KEY_BLOCK / 32][TILE_QUERIES]: bit j of a query's word is its key j; read if masked */
  const float *minus_ref;  /* [TILE_QUERIES]: minus the reference of each query */
  float *sum;              /* [TILE_QUERIES]: receives the sum of P, as rounded if it is one bfloat16 */
  float scale;             /* factor of the scores, to log2 units */
  const float *bias[2];    /* where the bias of this block begins, and that of the next one; read if biased */
  int64_t bias_stride;     /* floats from query to query */
  float *turned;           /* [KEY_BLOCK][TILE_QUERIES]: bias with queries in lanes */
  uintptr_t wanted;        /* adjacent lines that are used later: each pair of keys prefetches two, or four if biased */
  uintptr_t wanted_step;   /* bytes to the lines of the next pair; 0: nothing to prefetch */
} softmax_work;

/* Where softmax of a block stands; all of it in registers. */
typedef struct softmax {
  const float *s, *end; /* the next two keys of S^T */
  uint16_t *p;          /* their row of P^T, of its first part */
  const uint32_t *visible;
  int key; /* place in the block, counted if masked or biased */
  const float *bias[2];
  int64_t bias_stride;
  float *turned;
  uintptr_t wanted, wanted_step;
  vec scale, minus_ref[2], sum[2];
  exp_lines lines; /* where P is one bfloat16 */
  __m512i odd_words;
} softmax;

static ALWAYS_INLINE softmax start_softmax(const softmax_work *w) {
  return (softmax){.s = w->s,
                   .end = w->s + SCORES,
                   .p = w->p,
                   .visible = w->visible,
                   .bias = {w->bias[0], w->bias[1]},
                   .bias_stride = w->bias_stride,
                   .turned = w->turned,
                   .wanted = w->wanted,
                   .wanted_step = w->wanted_step,
                   .scale = vec_set1(w->scale),
                   .minus_ref = {vec_load(w->minus_ref), vec_load(w->minus_ref + HALF)},
                   .sum = {vec_zero(), vec_zero()},
                   .lines = load_exp_lines(exp_tables),
                   .odd_words = odd_words()};
}

/* Goes on with the next block: its S^T has replaced that of this block. */
static ALWAYS_INLINE void next_block(softmax *x, const softmax_work *w, uint16_t *p) {
  x->s = w->s;
  x->p = p;
  x->sum[0] = x->sum[1] = vec_zero();
}

static ALWAYS_INLINE void end_softmax(const softmax *x, const softmax_work *w) {
  vec_store(w->sum, x->sum[0]);
  vec_store(w->sum + HALF, x->sum[1]);
}

static const uint32_t bit_of[32] = {1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,
                                    1u << 8,  1u << 9,  1u << 10, 1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15,
                                    1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21, 1u << 22, 1u << 23,
                                    1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};

/* The queries of a half that see key `key` of the block. */
static ALWAYS_INLINE __mmask16 sees_key(const uint32_t *visible, int half, int key) {
  const __m512i words = _mm512_loadu_si512(visible + key / 32 * TILE_QUERIES + half * HALF);
  return _mm512_test_epi32_mask(words, _mm512_set1_epi32((int)bit_of[key % 32]));
}

/* ---- Bias ---- */

/* Bias lies in rows of keys, but softmax wants queries in lanes. A part is 16 keys of 4 queries, one of BIAS_PARTS of a
 * block. Parts are whole lines, each read once: rows a power of two apart share a set of the cache. */
enum { BIAS_PARTS = 32, PARTS_AHEAD = 16 };

static ALWAYS_INLINE void store_quarters(float *to, vec x) { /* bias of one query quarter; every fourth key */
  _mm_storeu_ps(to, _mm512_castps512_ps128(x));
  _mm_storeu_ps(to + 4 * TILE_QUERIES, _mm512_extractf32x4_ps(x, 1));
  _mm_storeu_ps(to + 8 * TILE_QUERIES, _mm512_extractf32x4_ps(x, 2));
  _mm_storeu_ps(to + 12 * TILE_QUERIES, _mm512_extractf32x4_ps(x, 3));
}

/* Part `part` of the block whose bias is at `bias`, to its place in `turned`. */
static ALWAYS_INLINE void turn_bias_part(const float *bias, int64_t stride, float *turned, int part) {
  const int query = part % 8 * 4, key = part / 8 * HALF;
  const float *from = bias + query * stride + key;
  float *to = turned + key * TILE_QUERIES + query;
  const vec a = vec_load(from), b = vec_load(from + stride), c = vec_load(from + 2 * stride),
            d = vec_load(from + 3 * stride);
  const __m512d ab_low = _mm512_castps_pd(_mm512_unpacklo_ps(a, b)), ab_high = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
  const __m512d cd_low = _mm512_castps_pd(_mm512_unpacklo_ps(c, d)), cd_high = _mm512_castps_pd(_mm512_unpackhi_ps(c, d));
  store_quarters(to, _mm512_castpd_ps(_mm512_unpacklo_pd(ab_low, cd_low)));
  store_quarters(to + TILE_QUERIES, _mm512_castpd_ps(_mm512_unpackhi_pd(ab_low, cd_low)));
  store_quarters(to + 2 * TILE_QUERIES, _mm512_castpd_ps(_mm512_unpacklo_pd(ab_high, cd_high)));
  store_quarters(to + 3 * TILE_QUERIES, _mm512_castpd_ps(_mm512_unpackhi_pd(ab_high, cd_high)));
}

/* The parts that the first keys of a block need. */
static NO_INLINE void turn_first_bias(const float *bias, int64_t stride, float *turned) {
  for (int part = 0; part < PARTS_AHEAD; part++) turn_bias_part(bias, stride, turned, part);
}

/* Half a block ahead of the keys that softmax is at. */
static ALWAYS_INLINE void turn_bias_ahead(const softmax *x) {
  const int part = x->key / 2 + PARTS_AHEAD;
  turn_bias_part(x->bias[part >= BIAS_PARTS], x->bias_stride, x->turned, part % BIAS_PARTS);
}

/* ---- References ---- */

/* A row's P is 2^(score - reference), in log2 units. It starts from a reference that suits nearly all data, so that its
 * first scores need not be awaited. Whether it suits a row is seen by the sum of P over a block: below LEAST_SUM in the
 * row's first block some weights might vanish against the largest one, above MOST_SUM sums might overflow. Then the
 * reference moves to the largest score of the block, rounded up, and the block's P is made again before anything has used
 * it. Only the row's own scores decide. */
static const float FIRST_REFERENCE = -20, LEAST_SUM = 64 * 1.01f, MOST_SUM = 0x1p60f;

/* The queries of a half whose references do not suit the sums of their block; `total`: of the blocks before. NaN suits: no
 * reference would fix it. */
static ALWAYS_INLINE __mmask16 misfits(vec total, vec block_sum, __mmask16 seen) {
  const __mmask16 new = _mm512_cmp_ps_mask(total, vec_zero(), _CMP_EQ_OQ);
  const __mmask16 low = _mm512_cmp_ps_mask(block_sum, vec_set1(LEAST_SUM), _CMP_LT_OQ);
  return (__mmask16)(_mm512_cmp_ps_mask(block_sum, vec_set1(MOST_SUM), _CMP_GT_OQ) | (new &low &seen));
}

/* Adds a block's sums to `total` [TILE_QUERIES], for a block that all queries see; false if some reference does not suit. */
static ALWAYS_INLINE bool add_sums(const softmax *x, float *total) {
  const vec before[2] = {vec_load(total), vec_load(total + HALF)};
  if (misfits(before[0], x->sum[0], (__mmask16)-1) | misfits(before[1], x->sum[1], (__mmask16)-1)) return false;
  vec_store(total, vec_add(before[0], x->sum[0]));
  vec_store(total + HALF, vec_add(before[1], x->sum[1]));
  return true;
}

/* ---- Softmax ---- */

static ALWAYS_INLINE void prefetch_wanted(softmax *x, const int lines) {
  if (x->wanted_step == 0) return;
  UNROLL
  for (uintptr_t i = 0; i < (uintptr_t)lines; i++) __builtin_prefetch((const void *)(x->wanted + i * LINE_BYTES), 0, 2);
  x->wanted += x->wanted_step;
}

/* Weights of four vectors of scores in log2 units: 2^(t - reference) up to 2^127, 0 for -inf and for what is not seen. As
 * one bfloat16 they are cut, which rounds them. Float32 weights take the fraction from t alone: beside the first reference
 * it would lose five bits. */
static ALWAYS_INLINE void weights_of(const softmax *x, const __mmask16 seen[4], vec t[4], vec e[4]) {
#if PARTS == 1
  UNROLL
  for (int i = 0; i < 4; i++) e[i] = exp_fraction(&x->lines, t[i]);
  UNROLL
  for (int i = 0; i < 4; i++) e[i] = _mm512_scalef_ps(e[i], t[i]);
  UNROLL
  for (int i = 0; i < 4; i++)
    e[i] = _mm512_castsi512_ps(_mm512_maskz_and_epi32(seen[i], _mm512_castps_si512(e[i]), high_words()));
#else
  UNROLL
  for (int i = 0; i < 4; i++) e[i] = vec_exp2(_mm512_reduce_ps(t[i], 0x09));
  UNROLL
  for (int i = 0; i < 4; i++)
    e[i] = _mm512_maskz_scalef_ps(seen[i], e[i], vec_add(_mm512_roundscale_ps(t[i], 0x09), x->minus_ref[i % 2]));
#endif
}

/* Two keys of all queries: four vectors side by side, because one alone would wait for each of its steps. */
static ALWAYS_INLINE void softmax_pair(softmax *x, const bool masked, const bool biased) {
  vec t[4], e[4]; /* queries 0-15 and 16-31 of the first key, then of the second */
  __m512i p[4][PARTS];
  UNROLL
  for (int i = 0; i < 4; i++) {
    const vec s = vec_load(x->s + i * HALF);
    if (biased) /* rounded as adjust_block rounds, so that a row's bits do not tell whose block it shared */
      t[i] = vec_fma(vec_set1(LOG2_E), vec_load(x->turned + x->key * TILE_QUERIES + i * HALF), vec_mul(s, x->scale));
    else
      t[i] = PARTS == 1 ? vec_fma(s, x->scale, x->minus_ref[i % 2]) : vec_mul(s, x->scale);
    if (PARTS == 1 && biased) t[i] = vec_add(t[i], x->minus_ref[i % 2]);
  }
  __mmask16 seen[4]; /* keys that a query does not see get 0, whatever their scores are */
  UNROLL
  for (int i = 0; i < 4; i++) seen[i] = masked ? sees_key(x->visible, i % 2, x->key + i / 2) : (__mmask16)-1;
  weights_of(x, seen, t, e);
  UNROLL
  for (int i = 0; i < 4; i++) split(e[i], p[i]);
  UNROLL
  for (int i = 0; i < 2; i++) {
    UNROLL
    for (int n = 0; n < PARTS; n++)
      _mm512_storeu_si512(x->p + n * (KEY_BLOCK * TILE_QUERIES) + i * DEPTH, pair_of(p[i][n], p[2 + i][n], x->odd_words));
    x->sum[i] = vec_add(x->sum[i], vec_add(e[i], e[2 + i]));
  }
  x->s += 2 * TILE_QUERIES;
  x->p += 2 * DEPTH;
  if (biased) turn_bias_ahead(x);
  prefetch_wanted(x, biased ? 4 : 2);
  x->key += masked || biased ? 2 : 0;
}

#endif
