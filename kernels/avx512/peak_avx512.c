/* SPDX-License-Identifier: MIT */
/* Peak loops of the avx512 tier: fused multiply-adds on 16 floats. */
#include "vec_avx512.h"

enum { CHAINS = 24 };

#include "kernels/common/tiles/peak_loops.h"

const attn_peak_loop attn_peak_avx512[] = {
    {.isa = "avx512", .dtype = "f32", .what = "fma, 512 bit", .flops = PEAK_FLOPS(16), .run = peak_loop, .read = read_loop},
    {.isa = NULL},
};
