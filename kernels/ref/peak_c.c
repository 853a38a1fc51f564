/* SPDX-License-Identifier: MIT */
/* Peak loops of the c tier: a product and a sum in plain C, on the vectors that the baseline flags give (SSE2 on x86-64,
 * without fused multiply-add). */
#include "vec_c.h"

enum { CHAINS = 12 };

#define PEAK_STEP(sum, a, b) vec_fma(sum, a, b) /* without fused multiply-adds a * b would leave the loop */

#include "kernels/common/tiles/peak_loops.h"

const attn_peak_loop attn_peak_c[] = {
    {.isa = "c",
     .dtype = "f32",
     .what = "multiply and add, 128 bit",
     .flops = PEAK_FLOPS(4),
     .run = peak_loop,
     .read = read_loop},
    {.isa = NULL},
};
