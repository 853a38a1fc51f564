/* SPDX-License-Identifier: MIT */
/* attn_merge joins partial (O, LSE) pairs over disjoint keys. It computes in double, so that only the rounding of its
 * results is added. Parts without a key are skipped, not multiplied by 0, because their O may hold NaN. */
#include <inttypes.h>
#include <math.h>

#include "kernels/common/problem/arithmetic.h"
#include "kernels/common/problem/unroll.h"
#include "src/api/error.h"
#include "src/api/float_mode.h"

enum { BLOCK = 64 };

typedef struct partial_results {
  int parts;
  int64_t dim_v;
  const float *const *o, *const *lse; /* [part][row][dim_v], [part][row] */
} partial_results;

static double largest_lse(const partial_results *in, int64_t row) {
  double largest = -INFINITY;
  for (int p = 0; p < in->parts; p++)
    if (!((double)in->lse[p][row] <= largest)) largest = (double)in->lse[p][row]; /* a NaN spreads through the weights */
  return largest;
}

static double weight_of(const partial_results *in, int part, int64_t row, double reference) {
  return in->lse[part][row] == -INFINITY ? 0 : exp((double)in->lse[part][row] - reference);
}

/* Columns go in blocks, so that every part is read before the block is written: o_out may be one of them. */
static void merge_row(const partial_results *in, int64_t row, double reference, double total, float *o_out) {
  for (int64_t first = 0; first < in->dim_v; first += BLOCK) {
    const int64_t count = min64(in->dim_v - first, BLOCK), at = row * in->dim_v + first;
    double sum[BLOCK] = {0};
    for (int p = 0; p < in->parts; p++) {
      const double weight = weight_of(in, p, row, reference) / total;
      for (int64_t d = 0; in->lse[p][row] != -INFINITY && d < count; d++) sum[d] += weight * (double)in->o[p][at + d];
    }
    for (int64_t d = 0; d < count; d++) o_out[at + d] = (float)sum[d];
  }
}

static attn_status check(int parts, int64_t rows, int64_t dim_v, const float *const *o, const float *const *lse,
                         const float *o_out) {
  REQUIRE(parts >= 1, "parts is %d; it must be at least 1", parts);
  REQUIRE(rows >= 0, "rows is %" PRId64 "; it must be at least 0", rows);
  REQUIRE(dim_v >= 1, "dim_v is %" PRId64 "; it must be at least 1", dim_v);
  if (rows == 0) return ATTN_OK;
  if (!o || !lse || !o_out)
    return attn_fail(ATTN_INVALID_ARGUMENT, "%s is NULL; it must point to the rows", !o ? "o" : !lse ? "lse" : "o_out");
  for (int p = 0; p < parts; p++)
    if (!o[p] || !lse[p])
      return attn_fail(ATTN_INVALID_ARGUMENT, "%s[%d] is NULL; every part needs its rows", !o[p] ? "o" : "lse", p);
  return ATTN_OK;
}

/* Not inlined: the compiler must not move arithmetic out of the default floating-point mode. */
static NO_INLINE void merge_rows(const partial_results *in, int64_t rows, float *o_out, float *lse_out) {
  for (int64_t row = 0; row < rows; row++) {
    const double reference = largest_lse(in, row);
    double total = 0;
    for (int p = 0; p < in->parts; p++) total += weight_of(in, p, row, reference);
    merge_row(in, row, reference, total, o_out);
    if (lse_out) lse_out[row] = total > 0 || isnan(total) ? (float)(reference + log(total)) : -INFINITY;
  }
}

attn_status attn_merge(int parts, int64_t rows, int64_t dim_v, const float *const *o, const float *const *lse, float *o_out,
                       float *lse_out) {
  const attn_status status = check(parts, rows, dim_v, o, lse, o_out);
  if (status != ATTN_OK) return status;
  const partial_results in = {.parts = parts, .dim_v = dim_v, .o = o, .lse = lse};
  const uint64_t mode = attn_float_mode_enter();
  merge_rows(&in, rows, o_out, lse_out);
  attn_float_mode_leave(mode);
  return ATTN_OK;
}
