/* SPDX-License-Identifier: MIT */
/* The norm of one row: layer norm, or root mean square norm.
 *
 * The mean is subtracted before squares are summed, because sum(x^2) - n mean^2 would cancel for rows far from 0. The
 * centred row has a mean too: the rounding error of the first one, which is subtracted as well. Sums run in NORM_LANES
 * independent chains. This lets the compiler use vectors and keeps the rounding error of a chain small. */
#ifndef ATTN_NORM_ROW_H
#define ATTN_NORM_ROW_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

enum { NORM_LANES = 16 };

/* sum of (x - shift) and of its square */
static inline void sums_about(const float *x, int64_t width, float shift, double *sum, double *squares) {
  float lane_sum[NORM_LANES] = {0}, lane_squares[NORM_LANES] = {0};
  int64_t i = 0;
  for (; i + NORM_LANES <= width; i += NORM_LANES)
    for (int lane = 0; lane < NORM_LANES; lane++) {
      const float centred = x[i + lane] - shift;
      lane_sum[lane] += centred;
      lane_squares[lane] += centred * centred;
    }
  *sum = *squares = 0;
  for (int lane = 0; lane < NORM_LANES; lane++) {
    *sum += (double)lane_sum[lane];
    *squares += (double)lane_squares[lane];
  }
  for (; i < width; i++) {
    const double centred = (double)x[i] - (double)shift;
    *sum += centred;
    *squares += centred * centred;
  }
}

/* How a row is normed. */
typedef struct row_norm {
  int64_t width;
  bool rms;          /* root mean square norm, without a mean */
  const float *gain; /* [width]; NULL = 1 */
  const float *bias; /* [width]; NULL = 0 */
  float epsilon;
} row_norm;

/* y may be x. */
static inline void norm_row(const row_norm *norm, const float *x, float *y) {
  const int64_t width = norm->width;
  double sum, squares, rest = 0;
  float mean = 0;
  sums_about(x, width, 0, &sum, &squares);
  if (!norm->rms) {
    mean = (float)(sum / (double)width);
    sums_about(x, width, mean, &sum, &squares);
    rest = sum / (double)width; /* rounding error of the float mean */
  }
  const double variance = squares / (double)width - rest * rest;
  const float scale = (float)(1 / sqrt((variance > 0 ? variance : 0) + (double)norm->epsilon)), missed = (float)rest;
  for (int64_t i = 0; i < width; i++) y[i] = (x[i] - mean - missed) * scale;
  if (norm->gain)
    for (int64_t i = 0; i < width; i++) y[i] *= norm->gain[i];
  if (norm->bias)
    for (int64_t i = 0; i < width; i++) y[i] += norm->bias[i];
}

#endif
