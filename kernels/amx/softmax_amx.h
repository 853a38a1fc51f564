/* SPDX-License-Identifier: MIT */
/* Softmax with queries in lanes: two rows of S^T, which are two keys of 16 queries, become one row of P^T, in which a pair
 * of keys stands side by side as the tile unit takes it. Maxima, sums and references are vertical: lane i is query i. */
#ifndef ATTN_SOFTMAX_AMX_H
#define ATTN_SOFTMAX_AMX_H

#include "shape_amx.h"

/* Softmax of one block of keys: where its S^T is and P^T goes. */
typedef struct softmax_work {
  const float *s;
  uint16_t *p;
  const uint32_t *visible; /* [KEY_BLOCK / 32][TILE_QUERIES]: bit j of a query's word is its key j; read if masked */
  const float *minus_ref;  /* [TILE_QUERIES]: minus the reference of each query */
  float *sum;              /* [TILE_QUERIES]: receives the sum of P as rounded */
  float scale;             /* of the scores, to log2 units */
} softmax_work;

/* Where softmax of a block stands; all of it in registers. */
typedef struct softmax {
  const float *s, *end; /* the next two keys of S^T */
  uint16_t *p;          /* their row of P^T */
  const uint32_t *visible;
  int key; /* of the block, counted if masked */
  vec scale, minus_ref[2], sum[2];
  __m512i odd_words, high_words;
} softmax;

static ALWAYS_INLINE softmax start_softmax(const softmax_work *w) {
  /* Of each pair of words the high one, in the place of the low one. */
  static const uint8_t odd_words[64] = {2,  3,  0,  0,  6, 7, 0,  0,  10, 11, 0, 0, 14, 15, 0, 0, 2,  3,  0,  0,  6, 7,
                                        0,  0,  10, 11, 0, 0, 14, 15, 0,  0,  2, 3, 0,  0,  6, 7, 0,  0,  10, 11, 0, 0,
                                        14, 15, 0,  0,  2, 3, 0,  0,  6,  7,  0, 0, 10, 11, 0, 0, 14, 15, 0,  0};
  return (softmax){.s = w->s,
                   .end = w->s + SCORES,
                   .p = w->p,
                   .visible = w->visible,
                   .scale = vec_set1(w->scale),
                   .minus_ref = {vec_load(w->minus_ref), vec_load(w->minus_ref + HALF)},
                   .sum = {vec_zero(), vec_zero()},
                   .odd_words = _mm512_loadu_si512(odd_words),
                   .high_words = _mm512_set1_epi32((int)0xffff0000)};
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

/* Two keys of all queries: four vectors, step by step side by side, because one alone would wait for each of its steps.
 *
 * 2^t for t <= 127, 0 for -inf, is computed with half a unit of bfloat16's last place added, so that cutting the low word
 * off rounds to nearest. The polynomial is of degree 4 on [0, 1) (docs/numerics.md). */
static ALWAYS_INLINE void softmax_pair(softmax *x, const bool masked) {
  vec t[4], f[4], e[4]; /* queries 0-15 and 16-31 of the first key, then of the second */
  __m512i p[4];
  UNROLL
  for (int i = 0; i < 4; i++) t[i] = vec_fma(vec_load(x->s + i * HALF), x->scale, x->minus_ref[i % 2]);
  UNROLL
  for (int i = 0; i < 4; i++) f[i] = _mm512_reduce_ps(t[i], 0x09); /* t - floor(t), no exceptions */
  UNROLL
  for (int i = 0; i < 4; i++) e[i] = vec_fma(f[i], vec_set1(0x1.b7f730p-7f), vec_set1(0x1.abf868p-5f));
  UNROLL
  for (int i = 0; i < 4; i++) e[i] = vec_fma(e[i], f[i], vec_set1(0x1.ee2450p-3f));
  UNROLL
  for (int i = 0; i < 4; i++) e[i] = vec_fma(e[i], f[i], vec_set1(0x1.62d6c6p-1f));
  UNROLL
  for (int i = 0; i < 4; i++) e[i] = vec_fma(e[i], f[i], vec_set1(1 + 0x1p-8f));
  UNROLL
  for (int i = 0; i < 4; i++) e[i] = _mm512_scalef_ps(e[i], t[i]);
  UNROLL
  for (int i = 0; i < 4; i++)
    if (masked) /* keys that a query does not see get 0, whatever their scores are */
      p[i] = _mm512_maskz_and_epi32(sees_key(x->visible, i % 2, x->key + i / 2), _mm512_castps_si512(e[i]), x->high_words);
    else
      p[i] = _mm512_and_si512(_mm512_castps_si512(e[i]), x->high_words);
  UNROLL
  for (int i = 0; i < 2; i++) {
    _mm512_storeu_si512(x->p + i * DEPTH, _mm512_mask_shuffle_epi8(p[2 + i], 0x3333333333333333, p[i], x->odd_words));
    x->sum[i] = vec_add(x->sum[i], vec_add(_mm512_castsi512_ps(p[i]), _mm512_castsi512_ps(p[2 + i])));
  }
  x->s += 2 * TILE_QUERIES;
  x->p += 2 * DEPTH;
  x->key += masked ? 2 : 0;
}

#endif
