/* Peak loop of the neon tier: independent chains of fused multiply-adds on registers alone, 24 of the 32 registers. */
#include "kernels/peak.h"

#include <arm_neon.h>
#include <stddef.h>

enum { CHAINS = 24, LANES = 4 };

static volatile float sink; /* keeps the loop from being removed */

static void fma_loop(int64_t iterations) {
  float32x4_t sum[CHAINS], a = vdupq_n_f32(0.5f), b = vdupq_n_f32(0.25f);
#pragma GCC unroll 32
  for (int c = 0; c < CHAINS; c++) sum[c] = vdupq_n_f32((float)c);
  for (int64_t i = 0; i < iterations; i++) {
#pragma GCC unroll 32
    for (int c = 0; c < CHAINS; c++) sum[c] = vfmaq_f32(sum[c], a, b);
  }
#pragma GCC unroll 32
  for (int c = 1; c < CHAINS; c++) sum[0] = vaddq_f32(sum[0], sum[c]);
  sink = vgetq_lane_f32(sum[0], 0);
}

const attn_peak_loop attn_peak_neon[] = {
    {.isa = "neon", .dtype = "f32", .what = "fma, 128 bit", .flops = 2.0 * CHAINS * LANES, .run = fma_loop},
    {.isa = NULL},
};
