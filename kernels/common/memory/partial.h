/* SPDX-License-Identifier: MIT */
/* How two partial states of a row become one (attn_partial in attn/attn.h). decode merges its splits by this rule,
 * attn_merge() and attn_partial_merge() what callers have computed in pieces.
 *
 * States are folded from the left, in the order of the keys. So bits depend on the pieces, and not on how many of them one
 * call folds. One of the two weights is always 1. Each product and sum is rounded to float32 by itself: fused, they would
 * need an instruction that not all tiers have, and a row would have other bits by tier. Code with vectors repeats
 * join_partials() operation by operation. */
#ifndef ATTN_COMMON_PARTIAL_H
#define ATTN_COMMON_PARTIAL_H

#include <math.h>

#include "attn/attn.h"

static const double LOG2_E_DOUBLE = 0x1.71547652b82fep+0, LN_2 = 0x1.62e42fefa39efp-1;

/* The factors of two states, and the reference of their sum. */
typedef struct partial_weights {
  double reference;
  float earlier, later;
} partial_weights;

/* References in log2 units; at most one is -inf. A NaN makes one of the weights NaN. */
static inline partial_weights weigh_partials(double earlier, double later) {
  const double step = later - earlier;
  const float weight = exp2f((float)-fabs(step));
  return step > 0 ? (partial_weights){later, weight, 1} : (partial_weights){earlier, 1, weight};
}

/* An element of O, or a sum of P. */
static inline float join_partials(partial_weights weights, float earlier, float later) {
  return earlier * weights.earlier + later * weights.later;
}

/* The rest of a reference beyond a float: both together hold that of another unit exactly enough to be found again. */
static inline float rest_of_reference(double reference) {
  return isfinite(reference) ? (float)(reference - (double)(float)reference) : 0;
}

/* ---- A row of args->state: o [dim_v], the parts of its sum, the reference and the rest of it ---- */

static inline void keep_reference(float *row, int64_t dim_v, double reference) {
  row[dim_v + ATTN_STATE_SUMS] = (float)reference;
  row[dim_v + ATTN_STATE_SUMS + 1] = rest_of_reference(reference);
}

/* -inf: the row has seen no key, and the rest of it is not read. NaN: it has met an allowed NaN. */
static inline double kept_reference(const float *row, int64_t dim_v) {
  const double reference = (double)row[dim_v + ATTN_STATE_SUMS];
  return isfinite(reference) ? reference + (double)row[dim_v + ATTN_STATE_SUMS + 1] : reference;
}

/* The row's sum in `lanes` parts: those it was kept in, if they are as many. */
static inline void kept_sums(const float *row, int64_t dim_v, int lanes, float *sums) {
  for (int i = 0; i < lanes; i++) sums[i] = 0;
  for (int i = 0; i < ATTN_STATE_SUMS; i++) sums[i % lanes] += row[dim_v + i];
}

static inline void keep_sums(float *row, int64_t dim_v, int lanes, const float *sums) {
  for (int i = 0; i < ATTN_STATE_SUMS; i++) row[dim_v + i] = i < lanes ? sums[i] : 0;
}

#endif
