/* SPDX-License-Identifier: MIT */
/* O += P V in float32, 32 columns at a time. P takes the factors of V's blocks, 16 keys at a time, so that V is converted
 * without them. */
#ifndef ATTN_INTEGER_SUMS_AVX512VNNI_H
#define ATTN_INTEGER_SUMS_AVX512VNNI_H

#include "integers_avx512vnni.h"

/* Columns of V of a key as floats, without the factor of the block: `left` of them, a constant if there are 32. */
static ALWAYS_INLINE void load_columns(vec x[2], const char *v, int64_t left, const few_kind kind) {
  v += integers_at(kind.dtype);
  if (kind.dtype == ATTN_Q4_0) {
    const vec numbers = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    const __m512i wide = _mm512_cvtepu8_epi32(load_bytes(v, HALF_VALUES)); /* VPERMPS takes the lower 4 bits */
    x[0] = _mm512_permutexvar_ps(wide, numbers);
    x[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(wide, 4), numbers);
    return;
  }
  x[0] = floats_of_i8(load_bytes(v, left < HALF_VALUES ? left : HALF_VALUES));
  x[1] = floats_of_i8(load_bytes(v + HALF_VALUES, left == BLOCK_VALUES ? HALF_VALUES : max64(left - HALF_VALUES, 0)));
}

/* P of the block's keys and rows times the factors of a block of V, `at` bytes behind the beginning of its rows. */
static ALWAYS_INLINE void scale_weights(const products *work, const float *score, int64_t at, const int rows,
                                        float *scaled) {
  NO_UNROLL
  for (int group = work->from; group < work->to; group++) {
    const byte_rows v = work->v[group];
    const vec factors = factors_of_keys(v.at + at, places_of_keys(v.stride));
    UNROLL
    for (int r = 0; r < rows; r++) {
      const int64_t place = r * DECODE_SCORE_STRIDE + group * GROUP_KEYS;
      vec_store(scaled + place, vec_mul(vec_load(score + place), factors));
    }
  }
}

/* acc += P V for 32 columns from byte `at` of V's rows on. */
static ALWAYS_INLINE void sum_columns(const products *work, const row_block *block, float *acc, int64_t at, int64_t left,
                                      const few_kind kind, prefetch_lines *next) {
  const int64_t acc_stride = block->acc_stride;
  const float *score = block->score;
  float scaled[MOST_TILE_ROWS * DECODE_SCORE_STRIDE];
  if (kind.dtype != ATTN_I8) {
    scale_weights(work, score, at, kind.rows, scaled);
    score = scaled;
  }
  vec sum[2 * MOST_TILE_ROWS];
  UNROLL
  for (int i = 0; i < 2 * kind.rows; i++) sum[i] = vec_load(acc + i / 2 * acc_stride + i % 2 * HALF_VALUES);
  NO_UNROLL
  for (int group = work->from; group < work->to; group++) {
    const byte_rows rows = work->v[group];
    const char *v = rows.at + at;
    const float *p = score + group * GROUP_KEYS;
    prefetch_ahead(next, PREFETCH_NEAR, false, line_pairs(kind.dtype), line_step(kind.dtype), NULL);
    NO_UNROLL
    for (const float *end = p + GROUP_KEYS; p < end; p++, v += rows.stride) {
      vec x[2];
      load_columns(x, v, left, kind);
      UNROLL
      for (int c = 0; c < 2; c++) x[c] = vec_in_register(x[c]);
      UNROLL
      for (int r = 0; r < kind.rows; r++) {
        const vec weight = vec_in_register(vec_set1(p[r * DECODE_SCORE_STRIDE]));
        UNROLL
        for (int c = 0; c < 2; c++) sum[2 * r + c] = vec_fma(weight, x[c], sum[2 * r + c]);
      }
    }
  }
  UNROLL
  for (int i = 0; i < 2 * kind.rows; i++) vec_store(acc + i / 2 * acc_stride + i % 2 * HALF_VALUES, sum[i]);
}

/* acc += P V for rows from tile_row on, whose P begins at block->score. */
static ALWAYS_INLINE void sum_few(products *work, const row_block *block, int64_t tile_row, const few_kind kind) {
  const int64_t columns = kind.dtype == ATTN_I8 ? block->problem->dim_v : block->acc_stride;
  float *acc = block->acc + tile_row * block->acc_stride;
  int64_t c = 0, at = 0;
  for (; c + BLOCK_VALUES <= columns; c += BLOCK_VALUES, at += block_bytes(kind.dtype)) {
    if (c == columns / 2 / BLOCK_VALUES * BLOCK_VALUES && c > 0) aim_behind(work, block, 3);
    sum_columns(work, block, acc + c, at, BLOCK_VALUES, kind, &work->next);
  }
  if (kind.dtype == ATTN_I8 && c < columns) sum_columns(work, block, acc + c, at, columns - c, kind, &work->next);
}

#endif
