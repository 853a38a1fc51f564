/* SPDX-License-Identifier: MIT */
/* The vectors of the portable tier: vec_c.h's, 4 floats in whatever registers the compiler's baseline has, and what the tile
 * engine needs beside them. The flags ask for no instructions, so there is none that fuses on x86-64; nor is one used where
 * the baseline has it: a multiply-add rounds twice on every CPU. */
#ifndef ATTN_VEC_PORTABLE_H
#define ATTN_VEC_PORTABLE_H

/* 6 rows x 2 vectors, as in vec_avx2.h, fill SSE2's 16 registers: 12 sums, 2 for the streamed operand, a broadcast and a
 * product. gcc and clang keep them there in a loop of one step; unrolled, clang spills. */
#define VEC_C_TILE_ROWS 6
#define VEC_C_TILE_VECS 2
#define PRODUCT_UNROLL  NO_UNROLL
#include "kernels/common/unroll.h"
#include "kernels/ref/vec_c.h"

/* Elements i, j, k, l of the 8 of a and b. */
#ifdef __clang__
#define SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, (vec_bits){i, j, k, l})
#endif

/* r[i] lane j <-> r[j] lane i. */
static ALWAYS_INLINE void vec_transpose(vec r[4]) {
  const vec low[2] = {SHUFFLE(r[0], r[1], 0, 4, 1, 5), SHUFFLE(r[2], r[3], 0, 4, 1, 5)};
  const vec high[2] = {SHUFFLE(r[0], r[1], 2, 6, 3, 7), SHUFFLE(r[2], r[3], 2, 6, 3, 7)};
  r[0] = SHUFFLE(low[0], low[1], 0, 1, 4, 5);
  r[1] = SHUFFLE(low[0], low[1], 2, 3, 6, 7);
  r[2] = SHUFFLE(high[0], high[1], 0, 1, 4, 5);
  r[3] = SHUFFLE(high[0], high[1], 2, 3, 6, 7);
}

/* Lane i of the result is the sum of x[i]'s lanes. */
static ALWAYS_INLINE vec vec_sum_each(const vec x[4]) {
  vec r[4] = {x[0], x[1], x[2], x[3]};
  vec_transpose(r);
  return (r[0] + r[2]) + (r[1] + r[3]);
}

#endif
