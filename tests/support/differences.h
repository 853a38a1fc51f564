/* SPDX-License-Identifier: MIT */
/* Gradients against central differences in float64. */
#ifndef TESTS_DIFFERENCES_H
#define TESTS_DIFFERENCES_H

#include <math.h>
#include <stdint.h>

#include "tests/support/support.h"

/* A function of `count` numbers; shapes are the test's. */
typedef double (*scalar)(const double *p);

/* d f / d p[i] for i = first .. first + count - 1, by differences of fourth order; their error is about 1e-11. */
static inline void differences(scalar f, double *p, int64_t first, int64_t count, double *slopes) {
  const double h = 1e-3;
  for (int64_t i = first; i < first + count; i++) {
    const double at = p[i], steps[] = {2 * h, h, -h, -2 * h}, factors[] = {-1, 8, -8, 1};
    double sum = 0;
    for (int s = 0; s < 4; s++) {
      p[i] = at + steps[s];
      sum += factors[s] * f(p);
    }
    p[i] = at;
    slopes[i - first] = sum / (12 * h);
  }
}

static inline double largest(const double *slopes, int64_t count) {
  double most = 0;
  for (int64_t i = 0; i < count; i++) most = fmax(most, fabs(slopes[i]));
  return most;
}

/* Within 16 units of `size`: a dozen roundings, each of a value no larger. */
static inline double worst_of_size(const double *slopes, const float *got, int64_t count, double size) {
  double worst = 0;
  for (int64_t i = 0; i < count; i++) {
    const double miss = fabs((double)got[i] - slopes[i]) / (16 * 0x1p-24 * size + 1e-9);
    if (isnan(miss)) return INFINITY;
    worst = fmax(worst, miss);
  }
  return worst;
}

/* The same of the largest gradient. */
static inline double worst_of(const double *slopes, const float *got, int64_t count) {
  return worst_of_size(slopes, got, count, largest(slopes, count));
}

static inline void passes(const double *slopes, const float *got, int64_t count) {
  const double worst = worst_of(slopes, got, count);
  if (!(worst <= 1)) fail_msg("%.3g times the limit", worst);
}

static inline void fill_both(float *floats, double *doubles, int64_t count, unsigned seed) {
  test_fill(floats, (size_t)count, seed);
  for (int64_t i = 0; i < count; i++) doubles[i] = (double)floats[i];
}

#endif
