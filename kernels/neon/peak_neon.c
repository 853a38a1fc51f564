/* SPDX-License-Identifier: MIT */
/* Peak loop of the neon tier: independent chains of fused multiply-adds on registers alone, 24 of the 32 registers. */
#include "kernels/peak.h"

#include <arm_neon.h>
#include <stddef.h>

enum { CHAINS = 24, REPEAT = 4, LANES = 4 };

/* The compiler must not know the operands, or it folds chains that have reached their fixed point. */
static volatile float source = 0.5f, sink;

static void fma_loop(int64_t iterations) {
  float32x4_t sum[CHAINS], a = vdupq_n_f32(source), b = vdupq_n_f32(source);
#pragma GCC unroll 32
  for (int c = 0; c < CHAINS; c++) sum[c] = vdupq_n_f32((float)c);
  for (int64_t i = 0; i < iterations; i++) {
#pragma GCC unroll 4
    for (int r = 0; r < REPEAT; r++) { /* so that the loop's own instructions cost nothing */
#pragma GCC unroll 32
      for (int c = 0; c < CHAINS; c++) sum[c] = vfmaq_f32(sum[c], a, b);
    }
  }
#pragma GCC unroll 32
  for (int c = 1; c < CHAINS; c++) sum[0] = vaddq_f32(sum[0], sum[c]);
  sink = vgetq_lane_f32(sum[0], 0);
}

const attn_peak_loop attn_peak_neon[] = {
    {.isa = "neon", .dtype = "f32", .what = "fma, 128 bit", .flops = 2.0 * REPEAT * CHAINS * LANES, .run = fma_loop},
    {.isa = NULL},
};
