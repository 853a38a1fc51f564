/* SPDX-License-Identifier: MIT */
/* Peak loops of the avx2 tier: fused multiply-adds on 8 floats. */
#include "vec_avx2.h"

enum { CHAINS = 12 };

#include "kernels/common/tiles/peak_loops.h"

const attn_peak_loop attn_peak_avx2[] = {
    {.isa = "avx2", .dtype = "f32", .what = "fma, 256 bit", .flops = PEAK_FLOPS(8), .run = peak_loop, .read = read_loop},
    {.isa = NULL},
};
