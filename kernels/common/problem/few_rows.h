/* SPDX-License-Identifier: MIT */
/* Units of flash whose few query rows are computed without packing (tiles/flash_few.h). */
#ifndef ATTN_COMMON_FEW_ROWS_H
#define ATTN_COMMON_FEW_ROWS_H

#include "arithmetic.h"
#include "indexing.h"

enum {
  MOST_FEW_ROWS = 24 /* sharing a KV head; tested: 8, 16, 24, 32 */,
  FEW_AT_ONCE = 4 /* rows of a walk over K and V */
};

/* Whether problems like this one have such units at all. */
static inline bool few_take(const attn_problem *p) {
  return p->score == ATTN_SCORE_DOT && !attn_uses(p, ATTN_USE_KV_SCALES) && p->k_stride.d == 1 && p->v_stride.d == 1 &&
         attn_group(p) <= MOST_FEW_ROWS;
}

/* More rows of one head would need two walks, where a tile needs one. */
static inline bool few_rows_in(const attn_problem *p, int64_t rows) {
  return few_take(p) && rows <= min64(MOST_FEW_ROWS / attn_group(p), FEW_AT_ONCE);
}

/* How many of the rows left the next walk takes: 4, 2 or 1. 3 are taken as 4. */
static inline int64_t few_at_once(int64_t rows) { return rows >= 3 ? FEW_AT_ONCE : rows; }

/* Vectors of columns of V whose sums such a walk keeps in registers, where vectors have so many lanes. */
static inline int few_vecs(int rows, int lanes) { return rows == 1 ? 8 : (lanes == 16 ? 16 : 8) / rows; }

#endif
