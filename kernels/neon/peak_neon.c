/* SPDX-License-Identifier: MIT */
/* Peak loop of the neon tier: fused multiply-adds on 4 floats. */
#include "vec_neon.h"

enum { CHAINS = 24 };

#include "kernels/common/tiles/peak_loops.h"

const attn_peak_loop attn_peak_neon[] = {
    {.isa = "neon", .dtype = "f32", .what = "fma, 128 bit", .flops = PEAK_FLOPS(4), .run = peak_loop},
    {.isa = NULL},
};
