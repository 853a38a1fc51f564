/* SPDX-License-Identifier: MIT */
/* The loops of kernels/peak.h for one tier: independent chains of multiply-adds on registers alone, and a loop that only
 * reads. A tier's peak_<isa>.c includes its vec_<isa>.h, then this.
 *
 * Parameters:
 *   CHAINS        more than latency times throughput of a multiply-add on any CPU of the tier, and no more than fit into its
 *                 registers; tested: 12 and 24
 *   PEAK_STEP(sum, a, b)  optional: a multiply-add that the compiler cannot move out of the loop; default: vec_fma;
 *                 tested: bf16 (avx512bf16, neonbf16), a product and a sum (c)
 *   PEAK_OPERAND  optional: the type of a and b; default: vec; tested: bf16. A tier that defines it also defines
 *                 peak_source(), an operand of ordinary numbers (denormals would be far slower), read from a volatile: the
 *                 compiler must not know it, or it folds chains that have reached their fixed point */
#ifndef ATTN_COMMON_PEAK_LOOPS_H
#define ATTN_COMMON_PEAK_LOOPS_H

#include <stddef.h>

#include "kernels/peak.h"

#ifndef PEAK_OPERAND
#define PEAK_OPERAND vec

static vec peak_source(void) {
  static volatile float half = 0.5f;
  return vec_set1(half);
}
#endif

#ifndef PEAK_STEP
#define PEAK_STEP(sum, a, b) vec_fma(a, b, sum)
#endif

enum { REPEAT = 4, STREAMS = 8 };

/* flop of one iteration of peak_loop, if a step multiplies and adds `pairs` pairs. */
#define PEAK_FLOPS(pairs) (2.0 * REPEAT * CHAINS * (pairs))

static volatile float peak_sink; /* keeps the compiler from leaving out the loop */

static void peak_loop(int64_t iterations) {
  const PEAK_OPERAND a = peak_source(), b = peak_source();
  vec sum[CHAINS];
#pragma GCC unroll 32
  for (int c = 0; c < CHAINS; c++) sum[c] = vec_set1((float)c);
  for (int64_t i = 0; i < iterations; i++) {
#pragma GCC unroll 4
    for (int r = 0; r < REPEAT; r++) { /* so that the loop's own instructions cost nothing */
#pragma GCC unroll 32
      for (int c = 0; c < CHAINS; c++) sum[c] = PEAK_STEP(sum[c], a, b);
    }
  }
#pragma GCC unroll 32
  for (int c = 1; c < CHAINS; c++) sum[0] = vec_add(sum[0], sum[c]);
  peak_sink = vec_reduce_add(sum[0]);
}

typedef uint64_t peak_words __attribute__((vector_size(VEC_LANES * sizeof(float))));

static inline uint64_t read_loop(const void *data, size_t bytes) {
  const peak_words *from = data;
  peak_words seen[STREAMS];
#pragma GCC unroll 8
  for (int i = 0; i < STREAMS; i++) seen[i] = (peak_words){0};
  for (size_t n = 0; n < bytes / sizeof *from; n += STREAMS) {
#pragma GCC unroll 8
    for (int i = 0; i < STREAMS; i++) seen[i] |= from[n + (size_t)i];
  }
  uint64_t all = 0;
#pragma GCC unroll 8
  for (int i = 0; i < STREAMS; i++)
    for (size_t w = 0; w < sizeof *from / sizeof all; w++) all |= seen[i][w];
  return all;
}

#endif
