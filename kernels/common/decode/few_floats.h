/* SPDX-License-Identifier: MIT */
/* Floats in the lanes of few_rows.h: a value of Q or K, and P and V of a key. few_pairs.h has the same names for pairs.
 * Parameters: those of rows_io.h. */
#ifndef ATTN_COMMON_DECODE_FEW_FLOATS_H
#define ATTN_COMMON_DECODE_FEW_FLOATS_H

#include "kernels/common/tiles/rows_io.h"

enum { LANE_VALUES = 1, FLOAT_QUERIES = true };

#define LANES_TAKE(dtype) true
#define LANE_DTYPES       "kernels/common/problem/dtypes.def" /* types of K and V */

/* n <= VEC_LANES adjacent values of K or V, 0 in the other lanes; index and d as for load_elements(). */
static ALWAYS_INLINE vec load_row_lanes(attn_storage from, int64_t index, int64_t d, int64_t n) {
  return load_elements(from, index, d, n);
}

static ALWAYS_INLINE vec multiply_lanes(vec a, vec b, vec sum) { return vec_fma(a, b, sum); }

/* n columns of V of a lane's key, from element at[0] + c on. */
static ALWAYS_INLINE void load_columns(vec x[1], attn_storage from, const int64_t at[1], int64_t c, int64_t n) {
  x[0] = load_elements(from, at[0], c, n);
}

/* A row of Q, as block->q has it. */
typedef const float *query_row;
static query_row query_row_of(const row_block *block, int64_t row) { return block->q + row * block->q_stride; }

/* Its values from d on. */
static vec query_lanes(const query_row *q, int64_t d) { return vec_load(*q + d); }

/* Queries have been multiplied by the factor. */
static ALWAYS_INLINE vec scores_of(vec sum, float factor) {
  (void)factor;
  return sum;
}

/* A row's first `keys` P, ready to be multiplied. */
static ALWAYS_INLINE void join_weights(float *p, int64_t keys) { (void)p, (void)keys; }

/* Puts the columns that load_columns() has loaded together in their order. */
static ALWAYS_INLINE void order_columns(float *acc) { (void)acc; }

#endif
