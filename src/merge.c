/* SPDX-License-Identifier: MIT */
/* attn_merge: partial (O, LSE) pairs over disjoint keys become one. In double, so that merging adds no more than the
 * rounding of its results; parts without a key are skipped rather than multiplied by 0, whatever their O holds. */
#include <inttypes.h>
#include <math.h>

#include "error.h"

enum { BLOCK = 64 };

static double largest_lse(int parts, const float *const *lse, int64_t row) {
  double largest = -INFINITY;
  for (int p = 0; p < parts; p++)
    if (!((double)lse[p][row] <= largest)) largest = (double)lse[p][row]; /* a NaN spreads through the weights */
  return largest;
}

static double weight_of(const float *const *lse, int part, int64_t row, double reference) {
  return lse[part][row] == -INFINITY ? 0 : exp((double)lse[part][row] - reference);
}

/* Columns go in blocks, so that every part is read before the block is written: o_out may be one of them. */
static void merge_row(int parts, int64_t row, int64_t dim_v, const float *const *o, const float *const *lse,
                      double reference, double total, float *o_out) {
  for (int64_t first = 0; first < dim_v; first += BLOCK) {
    const int64_t count = dim_v - first < BLOCK ? dim_v - first : BLOCK, at = row * dim_v + first;
    double sum[BLOCK] = {0};
    for (int p = 0; p < parts; p++) {
      const double weight = weight_of(lse, p, row, reference) / total;
      for (int64_t d = 0; lse[p][row] != -INFINITY && d < count; d++) sum[d] += weight * (double)o[p][at + d];
    }
    for (int64_t d = 0; d < count; d++) o_out[at + d] = (float)sum[d];
  }
}

static attn_status check(int parts, int64_t rows, int64_t dim_v, const float *const *o, const float *const *lse,
                         const float *o_out) {
  if (parts < 1) return attn_fail(ATTN_INVALID_ARGUMENT, "parts is %d; it must be at least 1", parts);
  if (rows < 0) return attn_fail(ATTN_INVALID_ARGUMENT, "rows is %" PRId64 "; it must be at least 0", rows);
  if (dim_v < 1) return attn_fail(ATTN_INVALID_ARGUMENT, "dim_v is %" PRId64 "; it must be at least 1", dim_v);
  if (rows == 0) return ATTN_OK;
  if (!o || !lse || !o_out)
    return attn_fail(ATTN_INVALID_ARGUMENT, "%s is NULL; it must point to the rows", !o ? "o" : !lse ? "lse" : "o_out");
  for (int p = 0; p < parts; p++)
    if (!o[p] || !lse[p])
      return attn_fail(ATTN_INVALID_ARGUMENT, "%s[%d] is NULL; every part needs its rows", !o[p] ? "o" : "lse", p);
  return ATTN_OK;
}

attn_status attn_merge(int parts, int64_t rows, int64_t dim_v, const float *const *o, const float *const *lse, float *o_out,
                       float *lse_out) {
  attn_status status = check(parts, rows, dim_v, o, lse, o_out);
  for (int64_t row = 0; status == ATTN_OK && row < rows; row++) {
    const double reference = largest_lse(parts, lse, row);
    double total = 0;
    for (int p = 0; p < parts; p++) total += weight_of(lse, p, row, reference);
    merge_row(parts, row, dim_v, o, lse, reference, total, o_out);
    if (lse_out) lse_out[row] = total > 0 || isnan(total) ? (float)(reference + log(total)) : -INFINITY;
  }
  return status;
}
