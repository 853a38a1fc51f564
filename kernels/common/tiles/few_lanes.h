/* SPDX-License-Identifier: MIT */
/* Floats in the lanes of flash_few.h: a value of Q or K, and P and V of a key. A tier whose products take pairs of values
 * brings the same names. Parameters: those of streaming_softmax.h. */
#ifndef ATTN_COMMON_FEW_LANES_H
#define ATTN_COMMON_FEW_LANES_H

#include "streaming_softmax.h"

enum { FEW_VALUES = 1, FEW_BORDER = VEC_LANES /* P of a key block begins at a multiple */ };
#define FEW_DTYPES "kernels/common/problem/dtypes.def" /* types of K and V */

/* n adjacent values, 0 in the other lanes. */
static ALWAYS_INLINE vec few_values(attn_storage from, int64_t at, int64_t d, int64_t n) {
  return load_elements(from, at, d, n);
}

/* The value of lane-dimension i of n keys that lie side by side, 0 in the other lanes. step: from one dimension to the next.
 */
static ALWAYS_INLINE vec few_values_beside(attn_storage from, int64_t at, int64_t i, int64_t step, int64_t dim, int64_t n) {
  (void)dim;
  return load_elements(from, at + i * step, 0, n);
}

/* n[i] columns of V of a lane's key i, from element at[i] + c on. */
static ALWAYS_INLINE void few_values_of_keys(vec x[FEW_VALUES], attn_storage from, const int64_t at[FEW_VALUES], int64_t c,
                                             const int64_t n[FEW_VALUES]) {
  x[0] = load_elements(from, at[0], c, n[0]);
}

/* Queries as start_rows() loads them. */
static inline void few_queries(const row_block *block, int64_t capacity) { (void)block, (void)capacity; }

/* Sums of products begin with what is added to them. */
static ALWAYS_INLINE vec few_start(vec added) { return added; }
static ALWAYS_INLINE vec few_score(const row_block *block, vec sum, vec added) {
  (void)block, (void)added;
  return sum;
}

/* P of a row's scores x of a panel, which go to p[`pending`] and on. Returns sum + their lane-wise sum. */
static ALWAYS_INLINE vec few_weights(vec x[TILE_VECS], float *p, int64_t pending, vec sum, int64_t vecs) {
  return exponentials(x, p + pending, sum, vecs);
}

/* Columns of acc to the order in which few_values_of_keys() has them, and back. */
static ALWAYS_INLINE void few_zip(float *acc) { (void)acc; }
static ALWAYS_INLINE void few_unzip(float *acc) { (void)acc; }

#endif
