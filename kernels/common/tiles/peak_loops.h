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

/* Ors the next `count` vectors into sums of their own. */
static inline void read_vectors(peak_words *seen, const peak_words *from, int count, size_t ahead) {
#pragma GCC unroll 8
  for (int i = 0; i < count; i++) {
    if (ahead && (size_t)i * sizeof *from % ATTN_READ_LINE == 0) __builtin_prefetch((const char *)(from + i) + ahead, 0, 2);
    seen[i] |= from[i];
  }
}

/* Reads whole steps of both, a half of a step each; returns how many vectors of each. */
static inline size_t read_both(peak_words *seen, const peak_words *first, const peak_words *second, size_t vectors,
                               size_t ahead) {
  size_t n = 0;
  for (; n + STREAMS / 2 <= vectors; n += STREAMS / 2) {
    read_vectors(seen, first + n, STREAMS / 2, ahead);
    read_vectors(seen + STREAMS / 2, second + n, STREAMS / 2, ahead);
  }
  return n;
}

static inline size_t read_one(peak_words *seen, const peak_words *first, size_t vectors, size_t ahead) {
  size_t n = 0;
  for (; n + STREAMS <= vectors; n += STREAMS) read_vectors(seen, first + n, STREAMS, ahead);
  return n;
}

static inline uint64_t read_loop(const void *data, const void *beside, size_t bytes, size_t ahead) {
  const peak_words *first = data, *second = beside;
  const size_t vectors = bytes / sizeof *first;
  peak_words seen[STREAMS], rest = {0};
#pragma GCC unroll 8
  for (int i = 0; i < STREAMS; i++) seen[i] = (peak_words){0};
  size_t n = !second ? ahead ? read_one(seen, first, vectors, ahead) : read_one(seen, first, vectors, 0)
             : ahead ? read_both(seen, first, second, vectors, ahead)
                     : read_both(seen, first, second, vectors, 0);
  for (; n < vectors; n++) rest |= second ? first[n] | second[n] : first[n];
#pragma GCC unroll 8
  for (int i = 0; i < STREAMS; i++) rest |= seen[i];
  uint64_t all = 0;
  for (size_t w = 0; w < sizeof rest / sizeof all; w++) all |= rest[w];
  return all;
}

#endif
