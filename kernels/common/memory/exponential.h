/* SPDX-License-Identifier: MIT */
/* e^x for x <= 0 in plain C that compilers make vectors of: the same bits in all tiers. */
#ifndef ATTN_COMMON_EXPONENTIAL_H
#define ATTN_COMMON_EXPONENTIAL_H

#include <stdint.h>
#include <string.h>

/* x = n ln 2 + f, |f| <= ln 2 / 2; e^f by its series to f^7: the relative error is below 2^-23. Below -87 the result is 0;
 * NaN stays NaN. */
static inline float negative_exp(float x) {
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

#endif
