/* SPDX-License-Identifier: MIT */
/* S = Q K^T by VPDPBUSD, 16 keys in lanes. It multiplies numbers without sign with numbers that have one. So integers of K
 * are moved up by 128 (q4_0 stores them moved by 8), and sums start from what that adds too much. They are exact. */
#ifndef ATTN_INTEGER_SCORES_AVX512VNNI_H
#define ATTN_INTEGER_SCORES_AVX512VNNI_H

#include "integers_avx512vnni.h"

/* n bytes of each of 16 keys: lane i of x[w] has bytes [4 w, 4 w + 4) of key i. */
static ALWAYS_INLINE void transpose_bytes(const char *from, int64_t stride, int64_t n, __m512i x[4]) {
  __m512i y[4];
  UNROLL
  for (int j = 0; j < 4; j++) {
    y[j] = _mm512_castsi128_si512(load_bytes(from + j * stride, n));
    y[j] = _mm512_inserti32x4(y[j], load_bytes(from + (j + 4) * stride, n), 1);
    y[j] = _mm512_inserti32x4(y[j], load_bytes(from + (j + 8) * stride, n), 2);
    y[j] = _mm512_inserti32x4(y[j], load_bytes(from + (j + 12) * stride, n), 3);
  }
  const __m512i low[2] = {_mm512_unpacklo_epi32(y[0], y[1]), _mm512_unpacklo_epi32(y[2], y[3])};
  const __m512i high[2] = {_mm512_unpackhi_epi32(y[0], y[1]), _mm512_unpackhi_epi32(y[2], y[3])};
  x[0] = _mm512_unpacklo_epi64(low[0], low[1]);
  x[1] = _mm512_unpackhi_epi64(low[0], low[1]);
  x[2] = _mm512_unpacklo_epi64(high[0], high[1]);
  x[3] = _mm512_unpackhi_epi64(high[0], high[1]);
}

/* sum[r] += the products of 4 integers of each key with those of row r. */
static ALWAYS_INLINE void multiply_words(__m512i *sum, __m512i x, const int32_t *words, const int rows) {
  UNROLL
  for (int r = 0; r < rows; r++) sum[r] = _mm512_dpbusd_epi32(sum[r], x, _mm512_set1_epi32(words[r]));
}

/* The same for n <= 16 values, or 32 of q4_0, of each key. */
static ALWAYS_INLINE void multiply_values(__m512i *sum, const char *from, int64_t stride, int64_t n, const int32_t *words,
                                          const few_kind kind) {
  const __m512i low = _mm512_set1_epi8(15), bias = _mm512_set1_epi8((char)-128);
  __m512i x[4];
  transpose_bytes(from, stride, n, x);
  UNROLL
  for (int w = 0; w < 4; w++) {
    if (kind.dtype != ATTN_Q4_0) {
      multiply_words(sum, _mm512_xor_si512(x[w], bias), words + w * kind.rows, kind.rows);
      continue;
    }
    multiply_words(sum, _mm512_and_si512(x[w], low), words + w * kind.rows, kind.rows);
    multiply_words(sum, _mm512_and_si512(_mm512_srli_epi32(x[w], 4), low), words + (w + 4) * kind.rows, kind.rows);
  }
}

static ALWAYS_INLINE void start_sums(__m512i *sum, const int32_t *offsets, const int rows) {
  UNROLL
  for (int r = 0; r < rows; r++) sum[r] = _mm512_set1_epi32(offsets[r]);
}

/* Scores of 16 keys of blocks. Factors that are infinite become NaN, because a value of 0 is NaN then. */
static ALWAYS_INLINE void score_blocks(vec *score, const byte_rows k, int64_t dim, const int32_t *words,
                                       const int32_t *offsets, const few_kind kind, prefetch_lines *next) {
  const int bytes = block_bytes(kind.dtype), from = integers_at(kind.dtype);
  const char *block = k.at;
  const __m512i places = places_of_keys(k.stride);
  NO_UNROLL
  for (int64_t d = 0; d < dim; d += BLOCK_VALUES, block += bytes, words += BLOCK_WORDS * kind.rows, offsets += kind.rows) {
    __m512i sum[MOST_TILE_ROWS];
    prefetch_ahead(next, PREFETCH_NEAR, false, line_pairs(kind.dtype), line_step(kind.dtype), NULL);
    const vec factors = factors_of_keys(block, places), finite = vec_fma(factors, vec_zero(), factors);
    start_sums(sum, offsets, kind.rows);
    UNROLL
    for (int at = 0; at < bytes - from; at += 16)
      multiply_values(sum, block + from + at, k.stride, 16, words + at / 4 * kind.rows, kind);
    UNROLL
    for (int r = 0; r < kind.rows; r++) score[r] = vec_fma(_mm512_cvtepi32_ps(sum[r]), finite, score[r]);
  }
}

/* The same for single integers. */
static ALWAYS_INLINE void score_integers(vec *score, const byte_rows k, int64_t dim, const int32_t *words,
                                         const int32_t *offsets, const few_kind kind, prefetch_lines *next) {
  __m512i sum[MOST_TILE_ROWS];
  int64_t d = 0;
  start_sums(sum, offsets, kind.rows);
  NO_UNROLL
  for (; d + 16 <= dim; d += 16, words += 4 * kind.rows) {
    prefetch_ahead(next, PREFETCH_NEAR, false, line_pairs(kind.dtype) / 2, line_step(kind.dtype), NULL);
    multiply_values(sum, k.at + d, k.stride, 16, words, kind);
  }
  if (d < dim) multiply_values(sum, k.at + d, k.stride, dim - d, words, kind);
  UNROLL
  for (int r = 0; r < kind.rows; r++) score[r] = _mm512_cvtepi32_ps(sum[r]);
}

/* S of rows from tile_row on. */
static ALWAYS_INLINE void score_few(products *work, const row_block *block, int64_t tile_row, const few_kind kind) {
  const int64_t dim = block->problem->dim_qk, blocks = ceil_div(dim, BLOCK_VALUES);
  const int32_t *words = work->q_words + tile_row * blocks * BLOCK_WORDS, *offsets = work->q_offsets + tile_row * blocks;
  for (int group = work->from; group < work->to; group++) {
    vec score[MOST_TILE_ROWS];
    UNROLL
    for (int r = 0; r < kind.rows; r++) score[r] = vec_zero();
    if (group == GROUPS / 2) aim_behind(work, block, 1);
    if (kind.dtype == ATTN_I8)
      score_integers(score, work->k[group], dim, words, offsets, kind, &work->next);
    else
      score_blocks(score, work->k[group], dim, words, offsets, kind, &work->next);
    UNROLL
    for (int r = 0; r < kind.rows; r++)
      vec_store(block->score + r * DECODE_SCORE_STRIDE + group * GROUP_KEYS,
                vec_mul(score[r], vec_set1(work->q_factors[tile_row + r])));
  }
}

#endif
