/* SPDX-License-Identifier: MIT */
/* Peak loops of the avx512 tier: independent chains of fused multiply-adds on registers alone, 24 of them, which is more
 * than FMA latency times throughput on any CPU of the tier. Operands are ordinary numbers: denormals would be far slower. */
#include "kernels/peak.h"

#include <immintrin.h>
#include <stddef.h>

enum { CHAINS = 24, REPEAT = 4, STREAMS = 8, LANES = 16 };

/* The compiler must not know the operands, or it folds chains that have reached their fixed point. */
static volatile float source = 0.5f, sink;

static void fma_loop(int64_t iterations) {
  __m512 sum[CHAINS], a = _mm512_set1_ps(source), b = _mm512_set1_ps(source);
#pragma GCC unroll 32
  for (int c = 0; c < CHAINS; c++) sum[c] = _mm512_set1_ps((float)c);
  for (int64_t i = 0; i < iterations; i++) {
#pragma GCC unroll 4
    for (int r = 0; r < REPEAT; r++) { /* so that the loop's own instructions cost nothing */
#pragma GCC unroll 32
      for (int c = 0; c < CHAINS; c++) sum[c] = _mm512_fmadd_ps(sum[c], a, b);
    }
  }
#pragma GCC unroll 32
  for (int c = 1; c < CHAINS; c++) sum[0] = _mm512_add_ps(sum[0], sum[c]);
  sink = _mm512_cvtss_f32(sum[0]);
}

static uint64_t read_loop(const void *data, size_t bytes) {
  const __m512i *from = data;
  __m512i seen[STREAMS];
#pragma GCC unroll 8
  for (int i = 0; i < STREAMS; i++) seen[i] = _mm512_setzero_si512();
  for (size_t n = 0; n < bytes / sizeof *from; n += STREAMS) {
#pragma GCC unroll 8
    for (int i = 0; i < STREAMS; i++) seen[i] = _mm512_or_si512(seen[i], _mm512_load_si512(from + n + i));
  }
#pragma GCC unroll 8
  for (int i = 1; i < STREAMS; i++) seen[0] = _mm512_or_si512(seen[0], seen[i]);
  return (uint64_t)_mm512_reduce_or_epi64(seen[0]);
}

const attn_peak_loop attn_peak_avx512[] = {
    {.isa = "avx512",
     .dtype = "f32",
     .what = "fma, 512 bit",
     .flops = 2.0 * REPEAT * CHAINS * LANES,
     .run = fma_loop,
     .read = read_loop},
    {.isa = NULL},
};
