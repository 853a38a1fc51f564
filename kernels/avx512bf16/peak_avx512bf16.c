/* SPDX-License-Identifier: MIT */
/* Peak loop of the avx512bf16 tier: independent chains of vdpbf16ps, 32 bf16 products summed into 16 floats each. Its rate
 * against the float32 FMA loop differs by CPU (2x on one, 1/2 on another), which src/cpu.c probes with it. */
#include "kernels/peak.h"

#include <immintrin.h>
#include <stddef.h>
#include <string.h>

enum { CHAINS = 24, REPEAT = 4, PRODUCTS = 32 };

/* The compiler must not know the operands, or it could fold. */
static volatile short source = 0x3f00; /* 0.5 */
static volatile float sink;

static void dot_loop(int64_t iterations) {
  __m512 sum[CHAINS];
  const __m512i half = _mm512_set1_epi16(source);
  __m512bh a, b;
  memcpy(&a, &half, sizeof a);
  memcpy(&b, &half, sizeof b);
#pragma GCC unroll 32
  for (int c = 0; c < CHAINS; c++) sum[c] = _mm512_set1_ps((float)c);
  for (int64_t i = 0; i < iterations; i++) {
#pragma GCC unroll 4
    for (int r = 0; r < REPEAT; r++) { /* so that the loop's own instructions cost nothing */
#pragma GCC unroll 32
      for (int c = 0; c < CHAINS; c++) sum[c] = _mm512_dpbf16_ps(sum[c], a, b);
    }
  }
#pragma GCC unroll 32
  for (int c = 1; c < CHAINS; c++) sum[0] = _mm512_add_ps(sum[0], sum[c]);
  sink = _mm512_cvtss_f32(sum[0]);
}

const attn_peak_loop attn_peak_avx512bf16[] = {
    {.isa = "avx512bf16",
     .dtype = "bf16",
     .what = "vdpbf16ps, 512 bit",
     .flops = 2.0 * REPEAT * CHAINS * PRODUCTS,
     .run = dot_loop},
    {.isa = NULL},
};
