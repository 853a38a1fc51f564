/* SPDX-License-Identifier: MIT */
/* The vectors of the portable tier: vec_c.h's, 4 floats in whatever registers the compiler's baseline has, and what the tile
 * engine needs beside them. The flags ask for no instructions, so there is none that fuses on x86-64; nor is one used where
 * the baseline has it: a multiply-add rounds twice on every CPU. */
#ifndef ATTN_VEC_PORTABLE_H
#define ATTN_VEC_PORTABLE_H

/* 3 rows x 4 vectors are 12 sums: of the shapes that fit SSE2's 16 registers the one with the fewest broadcasts, which take
 * a slot of the units that add. decode, whose tiles have 4 rows, asks for 2 vectors. */
#ifndef PORTABLE_TILE_VECS
#define PORTABLE_TILE_VECS 4
#endif
#define VEC_C_TILE_ROWS 3
#define VEC_C_TILE_VECS PORTABLE_TILE_VECS
#include "kernels/common/problem/unroll.h"
#include "kernels/ref/vec_c.h"

#ifdef __SSE2__
/* Steps of product() in register_tile.h, row by row: four factors of a row are one load, and each takes one instruction to
 * spread. clang 14 would spill sums with more than one step. */
#ifdef __clang__
#define PRODUCT_STEPS 1
#else
#define PRODUCT_STEPS 4
#endif

/* x's lane k in all lanes. As integers, because gcc copies x before it shuffles floats. */
static ALWAYS_INLINE vec vec_spread(vec x, const int k) {
  const vec_bits bits = (vec_bits)x;
  switch (k) {
    case 0: return (vec)SHUFFLE(bits, bits, 0, 0, 0, 0);
    case 1: return (vec)SHUFFLE(bits, bits, 1, 1, 1, 1);
    case 2: return (vec)SHUFFLE(bits, bits, 2, 2, 2, 2);
    default: return (vec)SHUFFLE(bits, bits, 3, 3, 3, 3);
  }
}

/* SSE2's products overwrite a factor, so each overwrites what it has just loaded of b. The empty statement of assembly keeps
 * the compiler from loading b once for all rows, and from spreading all factors first: either would spill sums. */
static ALWAYS_INLINE void product_steps(vec sum[][TILE_VECS], const float *a, int64_t a_stride, const float *b,
                                        int64_t b_stride, const int vecs) {
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    const float *row = a + i * a_stride;
    vec factors = PRODUCT_STEPS == 1 ? vec_set1(*row) : vec_load(row);
    UNROLL
    for (int k = 0; k < PRODUCT_STEPS; k++) {
      __asm__ volatile("" : "+x"(factors)::"memory");
      const vec x = PRODUCT_STEPS == 1 ? factors : vec_spread(factors, k);
      UNROLL
      for (int v = 0; v < vecs; v++) sum[i][v] = vec_fma(vec_load(b + k * b_stride + v * VEC_LANES), x, sum[i][v]);
    }
  }
}
#endif

#endif
