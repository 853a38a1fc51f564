/* SPDX-License-Identifier: MIT */
/* Add & norm, row by row.
 *
 * The mean is subtracted before squares are summed, because sum(x^2) - n mean^2 would cancel for rows far from 0. The mean
 * of the centred row is the rounding error of the first mean, and is subtracted as well. Sums run in LANES independent
 * chains. This lets the compiler use vectors and keeps the rounding error of a chain small. */
#include <inttypes.h>
#include <math.h>

#include "src/api/float_mode.h"
#include "src/nn/layer_norm.h"

enum { LANES = 16 };

/* sum of (x - shift) and of its square */
static void sums_about(const float *x, int64_t width, float shift, double *sum, double *squares) {
  float lane_sum[LANES] = {0}, lane_squares[LANES] = {0};
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES)
    for (int lane = 0; lane < LANES; lane++) {
      const float centred = x[i + lane] - shift;
      lane_sum[lane] += centred;
      lane_squares[lane] += centred * centred;
    }
  *sum = *squares = 0;
  for (int lane = 0; lane < LANES; lane++) {
    *sum += (double)lane_sum[lane];
    *squares += (double)lane_squares[lane];
  }
  for (; i < width; i++) {
    const double centred = (double)x[i] - (double)shift;
    *sum += centred;
    *squares += centred * centred;
  }
}

static void norm_row(const float *s, int64_t width, const attn_norm *norm, bool rms, float *y) {
  double sum, squares, rest = 0;
  float mean = 0;
  sums_about(s, width, 0, &sum, &squares);
  if (!rms) {
    mean = (float)(sum / (double)width);
    sums_about(s, width, mean, &sum, &squares);
    rest = sum / (double)width; /* rounding error of the float mean */
  }
  const double variance = squares / (double)width - rest * rest;
  const float scale = (float)(1 / sqrt((variance > 0 ? variance : 0) + (double)norm->epsilon)), missed = (float)rest;
  for (int64_t i = 0; i < width; i++) y[i] = (s[i] - mean - missed) * scale;
  if (norm->gain)
    for (int64_t i = 0; i < width; i++) y[i] *= norm->gain[i];
  if (norm->bias)
    for (int64_t i = 0; i < width; i++) y[i] += norm->bias[i];
}

int64_t attn_nn_join_floats(const attn_nn_join *j) {
  int64_t times = j->residual || j->sum ? 2 + (j->residual != NULL) : 0;
  if (j->norm) times += 4 + 3 * (j->norm->gain != NULL) + 3 * (j->norm->bias != NULL); /* two sums, and centring */
  return times * j->width;
}

void attn_nn_join_rows(const void *join, int64_t first, int64_t rows) {
  const attn_nn_join *j = join;
  for (int64_t at = first * j->width; at < (first + rows) * j->width; at += j->width) {
    const float *x = j->x + at;
    if (j->residual || j->sum) {
      float *into = (j->sum ? j->sum : j->y) + at;
      for (int64_t i = 0; i < j->width; i++) into[i] = j->residual ? x[i] + j->residual[at + i] : x[i];
      x = into;
    }
    if (j->norm) norm_row(x, j->width, j->norm, j->rms, j->y + at);
  }
}

attn_status attn_nn_check_norm(const attn_norm *norm) {
  REQUIRE(norm, "norm is NULL; it must point to an attn_norm");
  REQUIRE(norm->epsilon >= 0 && isfinite(norm->epsilon), "attn_norm.epsilon is %g; it must be finite and at least 0",
          (double)norm->epsilon);
  return ATTN_OK;
}

static attn_status add_norm(int64_t rows, const attn_nn_join *j) {
  const attn_nn_size sizes[] = {{"rows", rows, 0}, {"width", j->width, 1}};
  const attn_nn_pointer pointers[] = {{"x", j->x}, {"y", j->y}};
  attn_status status = attn_nn_check_sizes(sizes, NN_COUNT(sizes));
  if (status == ATTN_OK) status = attn_nn_check_norm(j->norm);
  if (status == ATTN_OK && rows > 0) status = attn_nn_check_pointers(pointers, NN_COUNT(pointers));
  if (status != ATTN_OK) return status;
  REQUIRE(!j->sum || j->sum != j->y, "sum and y are the same array; each needs its own");
  const uint64_t mode = attn_float_mode_enter();
  attn_nn_join_rows(j, 0, rows);
  attn_float_mode_leave(mode);
  return ATTN_OK;
}

attn_status attn_add_layer_norm(int64_t rows, int64_t width, const float *x, const float *residual, const attn_norm *norm,
                                float *sum, float *y) {
  return add_norm(rows, &(attn_nn_join){width, x, residual, norm, sum, y, false});
}

attn_status attn_add_rms_norm(int64_t rows, int64_t width, const float *x, const float *residual, const attn_norm *norm,
                              float *sum, float *y) {
  return add_norm(rows, &(attn_nn_join){width, x, residual, norm, sum, y, true});
}
