/* SPDX-License-Identifier: MIT */
/* Peak loops of the avx2 tier: independent chains of fused multiply-adds on registers alone, 12 of them, which is more than
 * FMA latency times throughput on any CPU of the tier. Operands are ordinary numbers: denormals would be far slower. */
#include "kernels/peak.h"

#include <immintrin.h>
#include <stddef.h>

enum { CHAINS = 12, REPEAT = 4, STREAMS = 8, LANES = 8 };

/* The compiler must not know the operands, or it folds chains that have reached their fixed point. */
static volatile float source = 0.5f, sink;

static void fma_loop(int64_t iterations) {
  __m256 sum[CHAINS], a = _mm256_set1_ps(source), b = _mm256_set1_ps(source);
#pragma GCC unroll 32
  for (int c = 0; c < CHAINS; c++) sum[c] = _mm256_set1_ps((float)c);
  for (int64_t i = 0; i < iterations; i++) {
#pragma GCC unroll 4
    for (int r = 0; r < REPEAT; r++) { /* so that the loop's own instructions cost nothing */
#pragma GCC unroll 32
      for (int c = 0; c < CHAINS; c++) sum[c] = _mm256_fmadd_ps(sum[c], a, b);
    }
  }
#pragma GCC unroll 32
  for (int c = 1; c < CHAINS; c++) sum[0] = _mm256_add_ps(sum[0], sum[c]);
  sink = _mm256_cvtss_f32(sum[0]);
}

static uint64_t read_loop(const void *data, size_t bytes) {
  const __m256i *from = data;
  __m256i seen[STREAMS];
#pragma GCC unroll 8
  for (int i = 0; i < STREAMS; i++) seen[i] = _mm256_setzero_si256();
  for (size_t n = 0; n < bytes / sizeof *from; n += STREAMS) {
#pragma GCC unroll 8
    for (int i = 0; i < STREAMS; i++) seen[i] = _mm256_or_si256(seen[i], _mm256_load_si256(from + n + i));
  }
#pragma GCC unroll 8
  for (int i = 1; i < STREAMS; i++) seen[0] = _mm256_or_si256(seen[0], seen[i]);
  uint64_t word[4];
  _mm256_storeu_si256((__m256i *)(void *)word, seen[0]);
  return word[0] | word[1] | word[2] | word[3];
}

const attn_peak_loop attn_peak_avx2[] = {
    {.isa = "avx2",
     .dtype = "f32",
     .what = "fma, 256 bit",
     .flops = 2.0 * REPEAT * CHAINS * LANES,
     .run = fma_loop,
     .read = read_loop},
    {.isa = NULL},
};
