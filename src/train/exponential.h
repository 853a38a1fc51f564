/* SPDX-License-Identifier: MIT */
/* e^x for x <= 0 in plain C that compilers make vectors of, and sums in lanes. */
#ifndef ATTN_TRAIN_EXPONENTIAL_H
#define ATTN_TRAIN_EXPONENTIAL_H

#include <stdint.h>
#include <string.h>

/* x = n ln 2 + f, |f| <= ln 2 / 2; e^f by its series to f^7: the relative error is below 2^-23. Below -87 the result is 0;
 * NaN stays NaN. */
static inline float train_exp(float x) {
  const float at = x < -87.0f ? -87.0f : x;
  const float shifted = at * 0x1.715476p+0f + 0x1.8p+23f, n = shifted - 0x1.8p+23f;
  const float f = (at - n * 0x1.62e400p-1f) - n * 0x1.7f7d1cp-20f; /* ln 2 in two parts; the first times n is exact */
  float e = 1.0f / 5040;
  e = e * f + 1.0f / 720;
  e = e * f + 1.0f / 120;
  e = e * f + 1.0f / 24;
  e = e * f + 1.0f / 6;
  e = e * f + 0.5f;
  e = e * f + 1.0f;
  e = e * f + 1.0f;
  uint32_t bits;
  memcpy(&bits, &shifted, sizeof bits);
  bits = (bits << 23) + 0x3f800000u; /* 2^n: the low bits of `shifted` are those of n */
  float power;
  memcpy(&power, &bits, sizeof power);
  return x < -87.0f ? 0.0f : e * power;
}

enum { TRAIN_LANES = 16 };

/* Always the same tree. */
static inline double train_add_lanes(const float lanes[TRAIN_LANES]) {
  double sums[TRAIN_LANES];
  for (int i = 0; i < TRAIN_LANES; i++) sums[i] = (double)lanes[i];
  for (int half = TRAIN_LANES / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) sums[i] += sums[i + half];
  return sums[0];
}

#endif
