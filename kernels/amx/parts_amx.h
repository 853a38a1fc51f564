/* SPDX-License-Identifier: MIT */
/* Values as sums of bfloat16 numbers, their parts, which the tile unit multiplies one with another. Parameter, defined
 * before: PARTS, the parts of each value.
 *
 *   1   bfloat16 inputs, as they are
 *   2   float32 inputs, both parts rounded to nearest: they leave 2^-18 of the value
 *   3   float32 inputs, cut after every 8 significant bits: exact, but for parts below 2^-126, which the unit takes for 0
 *
 * Infinities have parts that are NaN: outputs that they reach are computed once more, without the unit. */
#ifndef ATTN_PARTS_AMX_H
#define ATTN_PARTS_AMX_H

#include "kernels/avx512/vec_avx512.h"
#include "kernels/avx512bf16/values_bf16.h"
#include "kernels/common/problem/unroll.h"

/* Products of parts that a product of values takes, smallest first but for an order that loads few tiles: which part of the
 * left value, which of the right one; 0 is the highest. Those left out are below 2^-24, or with two parts 2^-18, of the
 * whole. */
#if PARTS == 1
enum { PART_PRODUCTS = 1 };
static const int left_part[PART_PRODUCTS] = {0}, right_part[PART_PRODUCTS] = {0};
#elif PARTS == 2
enum { PART_PRODUCTS = 3 };
static const int left_part[PART_PRODUCTS] = {1, 0, 0}, right_part[PART_PRODUCTS] = {0, 0, 1};
#else
enum { PART_PRODUCTS = 6 };
static const int left_part[PART_PRODUCTS] = {2, 1, 1, 0, 0, 0}, right_part[PART_PRODUCTS] = {0, 0, 1, 1, 2, 0};
#endif

/* ---- Splitting ---- */

static ALWAYS_INLINE __m512i high_words(void) { return _mm512_set1_epi32((int)0xffff0000); }

/* The parts of 16 floats, each in the high words. */
static ALWAYS_INLINE void split(vec x, __m512i part[PARTS]) {
#if PARTS == 2
  const __m512i half = _mm512_set1_epi32(0x8000); /* added to the bits, it rounds what is cut behind them */
  part[0] = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), half), high_words());
  x = vec_sub(x, _mm512_castsi512_ps(part[0]));
  part[1] = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), half), high_words());
#else
  UNROLL
  for (int i = 0; i < PARTS; i++) {
    part[i] = i + 1 < PARTS ? _mm512_and_si512(_mm512_castps_si512(x), high_words()) : _mm512_castps_si512(x);
    x = vec_sub(x, _mm512_castsi512_ps(part[i]));
  }
#endif
}

/* Byte indices that move the high word of each pair to the place of the low one. */
static ALWAYS_INLINE __m512i odd_words(void) {
  static const uint8_t indices[64] = {2,  3,  0,  0,  6, 7, 0,  0,  10, 11, 0, 0, 14, 15, 0, 0, 2,  3,  0,  0,  6, 7,
                                      0,  0,  10, 11, 0, 0, 14, 15, 0,  0,  2, 3, 0,  0,  6, 7, 0,  0,  10, 11, 0, 0,
                                      14, 15, 0,  0,  2, 3, 0,  0,  6,  7,  0, 0, 10, 11, 0, 0, 14, 15, 0,  0};
  return _mm512_loadu_si512(indices);
}

/* Parts of 16 values, each in a high word, side by side in pairs: those of `first` are the low words. */
static ALWAYS_INLINE __m512i pair_of(__m512i first, __m512i second, __m512i odd) {
  return _mm512_mask_shuffle_epi8(second, 0x3333333333333333, first, odd);
}

static ALWAYS_INLINE void store_parts(const __m512i part[PARTS], uint16_t *to, int64_t distance) {
  UNROLL
  for (int i = 0; i < PARTS; i++) _mm512_storeu_si512(to + i * distance, part[i]);
}

/* ---- Inputs ---- */

#if PARTS == 1

typedef uint16_t input_value;

/* The first n of ROW_VALUES values that are `stride` apart; zeros beyond. */
static ALWAYS_INLINE void load_parts(const input_value *from, int64_t stride, int64_t n, __m512i part[PARTS]) {
  part[0] = load_values(from, stride, n);
}

/* Copies the first n of ROW_VALUES values that are `stride` apart; zeros beyond. */
static ALWAYS_INLINE void copy_values(const input_value *from, int64_t stride, int64_t n, input_value to[ROW_VALUES]) {
  _mm512_storeu_si512(to, load_values(from, stride, n));
}

#else

typedef float input_value;

/* 16 of the n floats that are `stride` apart, from the first one on; zeros beyond. */
static ALWAYS_INLINE vec load_floats(const float *from, int64_t stride, int64_t n) {
  if (stride == 1) return n >= VEC_LANES ? vec_load(from) : n > 0 ? vec_load_first(from, n) : vec_zero();
  float lanes[VEC_LANES] = {0};
  for (int64_t i = 0; i < (n < VEC_LANES ? n : VEC_LANES); i++) lanes[i] = from[i * stride];
  return vec_load(lanes);
}

/* The parts of 32 floats. */
static ALWAYS_INLINE void split_row(vec first, vec second, __m512i part[PARTS]) {
  __m512i low[PARTS], high[PARTS];
  split(first, low);
  split(second, high);
  UNROLL
  for (int i = 0; i < PARTS; i++) { /* exact: parts are bfloat16 already */
    const __m512bh values = _mm512_cvtne2ps_pbh(_mm512_castsi512_ps(high[i]), _mm512_castsi512_ps(low[i]));
    memcpy(&part[i], &values, sizeof values);
  }
}

/* The parts of the first n of ROW_VALUES values that are `stride` apart; zeros beyond. */
static ALWAYS_INLINE void load_parts(const input_value *from, int64_t stride, int64_t n, __m512i part[PARTS]) {
  split_row(load_floats(from, stride, n), load_floats(from + VEC_LANES * stride, stride, n - VEC_LANES), part);
}

/* Copies the first n of ROW_VALUES values that are `stride` apart; zeros beyond. */
static ALWAYS_INLINE void copy_values(const input_value *from, int64_t stride, int64_t n, input_value to[ROW_VALUES]) {
  vec_store(to, load_floats(from, stride, n));
  vec_store(to + VEC_LANES, load_floats(from + VEC_LANES * stride, stride, n - VEC_LANES));
}

#endif
#endif
