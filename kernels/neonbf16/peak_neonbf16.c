/* SPDX-License-Identifier: MIT */
/* Peak loop of the neonbf16 tier: BFMMLA, which multiplies 2 x 4 by 4 x 2 bf16 values: 16 multiply-adds. */
#include "kernels/neon/vec_neon.h"

enum { CHAINS = 24 };

#define PEAK_OPERAND bfloat16x8_t

static bfloat16x8_t peak_source(void) {
  static volatile uint16_t half = 0x3f00; /* 0.5 */
  return vreinterpretq_bf16_u16(vdupq_n_u16(half));
}

#define PEAK_STEP(sum, a, b) vbfmmlaq_f32(sum, a, b)

#include "kernels/common/tiles/peak_loops.h"

const attn_peak_loop attn_peak_neonbf16[] = {
    {.isa = "neonbf16", .dtype = "bf16", .what = "bfmmla, 128 bit", .flops = PEAK_FLOPS(16), .run = peak_loop},
    {.isa = NULL},
};
