/* SPDX-License-Identifier: MIT */
/* Peak loop of the avx512bf16 tier: VDPBF16PS, which adds 32 products of bf16 values to 16 floats. Its rate against the
 * float32 FMA loop differs by CPU: 2x on one, 1/2 on another. */
#include "kernels/avx512/vec_avx512.h"

enum { CHAINS = 24 };

#define PEAK_OPERAND __m512bh

/* Read from memory: clang 16 and 17 crash on a loop whose operand is one value in all lanes, which _mm512_set1_epi16
 * makes. */
static __m512bh peak_source(void) {
  static volatile union {
    short values[32];
    __m512bh vector;
  } source;
  for (int i = 0; i < 32; i++) source.values[i] = 0x3f00; /* 0.5 */
  return source.vector;
}

#define PEAK_STEP(sum, a, b) _mm512_dpbf16_ps(sum, a, b)

#include "kernels/common/tiles/peak_loops.h"

const attn_peak_loop attn_peak_avx512bf16[] = {
    {.isa = "avx512bf16", .dtype = "bf16", .what = "vdpbf16ps, 512 bit", .flops = PEAK_FLOPS(32), .run = peak_loop},
    {.isa = NULL},
};
