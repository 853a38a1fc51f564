/* SPDX-License-Identifier: MIT */
/* Sines and cosines of a token's rotation, in double precision. The loop has no branch, so that compilers turn it into the
 * tier's vectors.
 *
 * An angle is position x frequency, thousands of turns at most, of which only the part beyond whole turns counts. So
 * frequencies are in turns: the product with the 22 bits of `high` is exact, and so is taking off the nearest whole number;
 * that with `rest` is below 2^9 turns. What is left, |r| <= 1/2 turn, is a quarter turn q = -2..2 and an angle |x| <= pi /
 * 4, for which the Taylor polynomials below leave 2.1e-14 (x^15 / 15!) and 1.0e-15 (x^16 / 16!). With a frequency that is
 * rounded once, by 2^-53, an angle's error is below position x frequency x 2^-50 + 2^-45: 1e-9 at position 1e6. */
#ifndef ATTN_COMMON_ROPE_ANGLES_H
#define ATTN_COMMON_ROPE_ANGLES_H

#include "kernels/kv_rows.h"

#define ROPE_ROUND  0x1.8p52 /* x + this - this is the whole number nearest to x, |x| < 2^51 */
#define ROPE_TWO_PI 0x1.921fb54442d18p+2

/* cosine[i], sine[i] of pair i. */
static void rope_pair_angles(const attn_rope_turns *turns, double position, double *restrict cosine, double *restrict sine) {
  const double *restrict high = turns->high, *restrict rest = turns->rest;
  const double magnitude = turns->magnitude;
  for (int64_t i = 0; i < turns->dim / 2; i++) {
    const double all = position * high[i];
    const double part = (all - ((all + ROPE_ROUND) - ROPE_ROUND)) + position * rest[i];
    const double r = part - ((part + ROPE_ROUND) - ROPE_ROUND);
    const double q = (4.0 * r + ROPE_ROUND) - ROPE_ROUND;
    const double x = (r - 0.25 * q) * ROPE_TWO_PI, z = x * x;
    double s = 1.0 / 6227020800.0, c = -1.0 / 87178291200.0; /* 13!, 14! */
    s = s * z - 1.0 / 39916800.0;
    c = c * z + 1.0 / 479001600.0;
    s = s * z + 1.0 / 362880.0;
    c = c * z - 1.0 / 3628800.0;
    s = s * z - 1.0 / 5040.0;
    c = c * z + 1.0 / 40320.0;
    s = s * z + 1.0 / 120.0;
    c = c * z - 1.0 / 720.0;
    s = s * z - 1.0 / 6.0;
    c = c * z + 1.0 / 24.0;
    s = s * z * x + x;
    c = (c * z - 0.5) * z + 1.0;
    const double square = q * q, odd = square * (4.0 - square) * (1.0 / 3.0); /* exactly 1 for q = +-1, else 0 */
    const double even = (1.0 - 0.5 * square) * (1.0 - odd);                   /* 1 for q = 0, -1 for +-2, 0 for +-1 */
    cosine[i] = magnitude * (even * c - odd * q * s);
    sine[i] = magnitude * (even * s + odd * q * c);
  }
}

/* kernels/kv_rows.h: what rows are multiplied by, rounded once to float. */
static void rope_angles(const attn_rope_turns *turns, int64_t position, float *cosine, float *sine) {
  double c[ROPE_MOST_DIM / 2], s[ROPE_MOST_DIM / 2];
  const int64_t pairs = turns->dim / 2;
  rope_pair_angles(turns, (double)position, c, s);
  if (turns->pairing == ATTN_ROPE_HALVES) {
    for (int64_t i = 0; i < pairs; i++) cosine[i] = cosine[pairs + i] = (float)c[i];
    for (int64_t i = 0; i < pairs; i++) sine[pairs + i] = (float)s[i];
    for (int64_t i = 0; i < pairs; i++) sine[i] = -(float)s[i];
    return;
  }
  for (int64_t i = 0; i < pairs; i++) cosine[2 * i] = cosine[2 * i + 1] = (float)c[i];
  for (int64_t i = 0; i < pairs; i++) {
    sine[2 * i] = -(float)s[i];
    sine[2 * i + 1] = (float)s[i];
  }
}

#endif
