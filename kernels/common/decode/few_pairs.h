/* SPDX-License-Identifier: MIT */
/* Pairs of bf16 values in the lanes of few_rows.h, as dot products take them: two neighbours of a row of Q or K, and P and V
 * of two keys, the even one first. few_floats.h has the same names for floats.
 *
 * Pairs begin at even keys, whatever keys a block has, so that a row's bits depend on its own keys alone. A key that lacks
 * its neighbour shares its lane with a P of 0.
 *
 * A tier whose products are of pairs includes it before other headers of decode. Parameters: those of register_tile.h, whose
 * vec_fma_factor() multiplies pairs, too, and
 *   vec dot_pairs(vec a, vec b, vec sum)               adds the products of both values of each lane to the lane's sum
 *   vec narrow(vec low, vec high)                      rounds floats to bf16: lanes of `low`, then of `high`
 *   vec load_pairs(const uint16_t *from, int64_t n)    loads n adjacent values; those beyond are 0
 *   void zip_pairs(vec even, vec odd, vec pairs[2])    pairs the values of two keys, in an order that the tier chooses
 *   void unzip_columns(vec low, vec high, vec sum[2])  brings sums from that order into the order of the values */
#ifndef ATTN_COMMON_DECODE_FEW_PAIRS_H
#define ATTN_COMMON_DECODE_FEW_PAIRS_H

#include "kernels/common/tiles/pair_weights.h"
#include "kernels/common/tiles/rows_io.h"

enum { LANE_VALUES = 2, PAIRED_VALUES = 2 * VEC_LANES, FLOAT_QUERIES = false };

#define LANES_TAKE(dtype) ((dtype) == ATTN_BF16)
#define LANE_DTYPES       "kernels/common/problem/bf16.def" /* types of K and V */

static ALWAYS_INLINE vec load_row_lanes(attn_storage from, int64_t index, int64_t d, int64_t n) {
  return load_pairs((const uint16_t *)from.data + (index + d), n);
}

static ALWAYS_INLINE vec multiply_lanes(vec a, vec b, vec sum) { return dot_pairs(a, b, sum); }

static ALWAYS_INLINE void load_columns(vec x[2], attn_storage from, const int64_t at[2], int64_t c, int64_t n) {
  zip_pairs(load_row_lanes(from, at[0], c, n), load_row_lanes(from, at[1], c, n), x);
}

/* A row of Q where it lies. Rows without keys are not read, because they may hold anything; those behind the last are
 * zeros, too: they have no dimensions. */
typedef struct query_row {
  const uint16_t *at;
  int64_t stride, dim;
} query_row;

static query_row query_row_of(const row_block *block, int64_t row) {
  const attn_problem *p = block->problem;
  if (row >= block->rows || block->range[row].begin >= block->range[row].end) return (query_row){0};
  const problem_row at = problem_row_of(block, row);
  const uint16_t *q = (const uint16_t *)block->args->q + attn_q_offset(p, block->seq, block->b, at.head, at.query);
  return (query_row){q, p->q_stride.d, p->dim_qk};
}

/* The row's values from d on, with zeros behind them. */
static vec query_lanes(const query_row *q, int64_t d) {
  const int64_t n = min64(q->dim - d, PAIRED_VALUES);
  if (q->stride == 1) return load_pairs(q->at + d, n);
  uint16_t values[PAIRED_VALUES] = {0};
  for (int64_t i = 0; i < n; i++) values[i] = q->at[(d + i) * q->stride];
  return load_pairs(values, PAIRED_VALUES);
}

/* Q times the factor is no bf16 value, so scores are multiplied by it. */
static ALWAYS_INLINE vec scores_of(vec sum, float factor) { return vec_mul(sum, vec_set1(factor)); }

static ALWAYS_INLINE void join_weights(float *p, int64_t keys) { pair_weights(p, keys); }

static ALWAYS_INLINE void order_columns(float *acc) {
  vec sum[2];
  unzip_columns(vec_load(acc), vec_load(acc + VEC_LANES), sum);
  vec_store(acc, sum[0]);
  vec_store(acc + VEC_LANES, sum[1]);
}

#endif
