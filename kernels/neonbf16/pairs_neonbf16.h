/* SPDX-License-Identifier: MIT */
/* Vectors of pairs of bf16 values, and their products by BFDOT. A pair takes the place of a float of vec_neon.h. */
#ifndef ATTN_PAIRS_NEONBF16_H
#define ATTN_PAIRS_NEONBF16_H

#include "kernels/neon/vec_neon.h"

/* The nearest bf16 values of `low`, then of `high`. */
static inline vec narrow(vec low, vec high) {
  return vreinterpretq_f32_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(low), high));
}

static inline vec round_to_bf16(vec x) {
  return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_bf16(vcvt_bf16_f32(x)), 16));
}
#define ROUND_P(p) round_to_bf16(p)

static inline vec dot_pairs(vec a, vec b, vec sum) {
  return vbfdotq_f32(sum, vreinterpretq_bf16_f32(a), vreinterpretq_bf16_f32(b));
}
static inline vec dot_factor(vec_factor a, vec b, vec sum) {
  return vbfdotq_laneq_f32(sum, vreinterpretq_bf16_f32(b), vreinterpretq_bf16_f32(a), 0);
}
#define vec_fma_factor dot_factor /* for register_tile.h's product() */

/* The first n of adjacent values; zeros beyond. */
static inline vec load_pairs(const uint16_t *from, int64_t n) {
  uint16_t padded[8] = {0};
  if (n >= 8) return vreinterpretq_f32_u16(vld1q_u16(from));
  memcpy(padded, from, (size_t)n * sizeof *from);
  return vreinterpretq_f32_u16(vld1q_u16(padded));
}

/* Values of two keys to pairs: of columns 0 .. 3, then of 4 .. 7. */
static inline void zip_pairs(vec even, vec odd, vec pairs[2]) {
  const uint16x8_t first = vreinterpretq_u16_f32(even), second = vreinterpretq_u16_f32(odd);
  pairs[0] = vreinterpretq_f32_u16(vzip1q_u16(first, second));
  pairs[1] = vreinterpretq_f32_u16(vzip2q_u16(first, second));
}

/* Lane by lane, the nearest bf16 values of both as a pair. */
static inline vec join_lanes(vec even, vec odd) {
  const uint16x8_t values = vreinterpretq_u16_f32(narrow(even, odd));
  return vreinterpretq_f32_u16(vzip1q_u16(values, vextq_u16(values, values, 4)));
}

/* Undoes the order of zip_pairs() for columns. Nothing is to be done: they already lie in order. */
static inline void unzip_columns(vec low, vec high, vec columns[2]) {
  columns[0] = low;
  columns[1] = high;
}

#endif
