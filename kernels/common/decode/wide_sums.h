/* SPDX-License-Identifier: MIT */
/* P V of 2, 4 or 8 rows in tiles of as many rows and vectors of columns as there are registers for: a tile of 4 x 3 sums
 * takes 19 instructions for 12 multiply-adds, one of 8 x 1 17 for 8.
 *
 * Parameters: those of few_rows.h, with group_rows above 0, and
 *   vec vec_in_register(vec x)  x, but loaded once for all its uses */
#ifndef ATTN_COMMON_DECODE_WIDE_SUMS_H
#define ATTN_COMMON_DECODE_WIDE_SUMS_H

#include "few_rows.h"

/* V and P of whole lanes, none of which lacks a key, and where their product is added. P of row r and lane j is
 * p[r * row_step + j * lane_step]; steps are constants at every call. */
typedef struct wide_work {
  block_rows v;
  int64_t keys;
  const float *p;
  int row_step, lane_step;
  float *acc;
  int64_t acc_stride;
} wide_work;

enum { WIDE_VECS = 8, MOST_WIDE_SUMS = 24 };

/* Rows of a tile. */
static ALWAYS_INLINE int wide_rows(const int rows) {
  return rows < DECODE_KNOBS.group_rows ? rows : DECODE_KNOBS.group_rows;
}

/* Vectors of columns of a tile for 2, 4 or 8 rows. */
static ALWAYS_INLINE int wide_vecs(const int rows) {
  const int sums = DECODE_KNOBS.group_rows == 4 ? 12 : MOST_WIDE_SUMS, fit = sums / wide_rows(rows);
  return fit >= WIDE_VECS ? WIDE_VECS : fit >= 4 ? 4 : fit / LANE_VALUES * LANE_VALUES;
}

/* acc += P V for `vecs`, at most wide_vecs(), vectors of columns from `column` on. `last`: columns of the last load;
 * `steps`: vectors of the steps up to this one (columns_before); `at_once`: lanes between two looks at what is to be
 * prefetched, a divisor of `lanes`. All tiles together prefetch as many lines as they read. */
static ALWAYS_INLINE void accumulate_wide(const wide_work w, int64_t column, int64_t last, const few_kind kind,
                                          const int vecs, const int steps, const int at_once, prefetch_lines *next) {
  enum { PARTS = 16 };
  const int tile = wide_rows(kind.rows), two_lines = 2 * line_elements(kind.dtype);
  const int share = PARTS * vecs * VEC_VALUES / two_lines * tile / kind.rows; /* part of a pair of lines for each lane */
  const int64_t whole = columns_before(kind.dtype, column, steps), rest = column - whole;
  int due = 0;
  NO_UNROLL
  for (int row = 0; row < kind.rows; row += tile) {
    float *to = w.acc + row * w.acc_stride + column;
    const float *weights = w.p + row * w.row_step;
    vec sum[MOST_WIDE_SUMS];
    UNROLL
    for (int r = 0; r < tile; r++) {
      UNROLL
      for (int c = 0; c < vecs; c++) sum[r * vecs + c] = vec_load(to + r * w.acc_stride + c * VEC_LANES);
    }
    int64_t at[LANE_VALUES];
    UNROLL
    for (int i = 0; i < LANE_VALUES; i++) at[i] = w.v.rows.first + i * w.v.rows.stride + whole;
    NO_UNROLL
    for (int64_t j = 0; j < w.keys; j += at_once * LANE_VALUES) {
      for (due -= share * at_once; due < 0; due += PARTS)
        prefetch_ahead(next, kind.policy, kind.paged, 1, line_step(kind.dtype), &next->k_again);
      UNROLL
      for (int i = 0; i < at_once; i++, weights += w.lane_step) {
        vec x[WIDE_VECS];
        UNROLL
        for (int c = 0; c < vecs; c += LANE_VALUES)
          load_columns(x + c, attn_storage_as(w.v.rows.from, kind.dtype), at, rest + c * VEC_LANES,
                       c < vecs - LANE_VALUES ? VEC_VALUES : last);
        UNROLL
        for (int c = 0; c < vecs; c++) x[c] = vec_in_register(x[c]);
        UNROLL
        for (int l = 0; l < LANE_VALUES; l++) at[l] += LANE_VALUES * w.v.rows.stride;
        UNROLL
        for (int r = 0; r < tile; r++) {
          const vec_factor weight = vec_factor_at(weights + r * w.row_step);
          UNROLL
          for (int c = 0; c < vecs; c++) sum[r * vecs + c] = vec_fma_factor(weight, x[c], sum[r * vecs + c]);
        }
      }
      UNROLL
      for (int l = 0; l < LANE_VALUES; l++) at[l] += j + at_once * LANE_VALUES == RUN_KEYS ? w.v.gap : 0;
    }
    UNROLL
    for (int r = 0; r < tile; r++) {
      UNROLL
      for (int c = 0; c < vecs; c++) vec_store(to + r * w.acc_stride + c * VEC_LANES, sum[r * vecs + c]);
    }
  }
}

/* accumulate_vecs() in wide tiles. */
static ALWAYS_INLINE void accumulate_wide_vecs(const few_rows t, int64_t *column, const few_kind kind, const int vecs,
                                               const int steps, prefetch_lines *next) {
  const wide_work w = {{t.keys, 0}, t.lanes * LANE_VALUES, t.score, DECODE_SCORE_STRIDE, 1, t.acc, t.acc_stride};
  for (; *column + vecs * VEC_LANES <= t.acc_stride; *column += vecs * VEC_LANES) {
    const int64_t last =
        LOADS_PARTS_OF(kind.dtype) ? min64(t.columns - *column - (vecs - 1) * VEC_LANES, VEC_LANES) : VEC_LANES;
    accumulate_wide(w, *column, last, kind, vecs, steps, 1, next);
  }
}

#endif
