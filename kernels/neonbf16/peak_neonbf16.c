/* SPDX-License-Identifier: MIT */
/* Peak loop of the neonbf16 tier: independent chains of BFMMLA on registers alone. One multiplies 2 x 4 by 4 x 2 bf16
 * values: 16 multiply-adds. */
#include "kernels/peak.h"

#include <arm_neon.h>
#include <stddef.h>

enum { CHAINS = 24, REPEAT = 4, PRODUCTS = 16 };

/* The compiler must not know the operands, or it could fold. */
static volatile uint16_t source = 0x3f00; /* 0.5 */
static volatile float sink;

static void dot_loop(int64_t iterations) {
  float32x4_t sum[CHAINS];
  const bfloat16x8_t a = vreinterpretq_bf16_u16(vdupq_n_u16(source)), b = vreinterpretq_bf16_u16(vdupq_n_u16(source));
#pragma GCC unroll 32
  for (int c = 0; c < CHAINS; c++) sum[c] = vdupq_n_f32((float)c);
  for (int64_t i = 0; i < iterations; i++) {
#pragma GCC unroll 4
    for (int r = 0; r < REPEAT; r++) { /* so that the loop's own instructions cost nothing */
#pragma GCC unroll 32
      for (int c = 0; c < CHAINS; c++) sum[c] = vbfmmlaq_f32(sum[c], a, b);
    }
  }
#pragma GCC unroll 32
  for (int c = 1; c < CHAINS; c++) sum[0] = vaddq_f32(sum[0], sum[c]);
  sink = vgetq_lane_f32(sum[0], 0);
}

const attn_peak_loop attn_peak_neonbf16[] = {
    {.isa = "neonbf16",
     .dtype = "bf16",
     .what = "bfmmla, 128 bit",
     .flops = 2.0 * REPEAT * CHAINS * PRODUCTS,
     .run = dot_loop},
    {.isa = NULL},
};
