/* SPDX-License-Identifier: MIT */
/* Peak loops of the c tier: independent multiply-add chains in plain C, on whatever vectors the baseline flags give (SSE2 on
 * x86-64, without fused multiply-add). */
#include "kernels/peak.h"

#include <stddef.h>

typedef uint64_t two_words __attribute__((vector_size(16)));
typedef float four __attribute__((vector_size(16)));

enum { CHAINS = 12, STREAMS = 8, LANES = 4 };

/* The compiler must not know the operands, or it folds chains that have reached their fixed point. */
static volatile float source = 0.5f, sink;

static void multiply_add_loop(int64_t iterations) {
  four sum[CHAINS];
  const float x = source;
  const four a = {x, x, x, x}, b = a;
  for (int c = 0; c < CHAINS; c++) sum[c] = b * (float)c;
  for (int64_t i = 0; i < iterations; i++)
    for (int c = 0; c < CHAINS; c++) sum[c] = sum[c] * a + b;
  for (int c = 1; c < CHAINS; c++) sum[0] += sum[c];
  sink = sum[0][0];
}

static uint64_t read_loop(const void *data, size_t bytes) {
  const two_words *from = data;
  two_words seen[STREAMS];
  for (int i = 0; i < STREAMS; i++) seen[i] = (two_words){0, 0};
  for (size_t n = 0; n < bytes / sizeof *from; n += STREAMS)
    for (int i = 0; i < STREAMS; i++) seen[i] |= from[n + (size_t)i];
  for (int i = 1; i < STREAMS; i++) seen[0] |= seen[i];
  return seen[0][0] | seen[0][1];
}

const attn_peak_loop attn_peak_c[] = {
    {.isa = "c",
     .dtype = "f32",
     .what = "multiply and add, 128 bit",
     .flops = 2.0 * CHAINS * LANES,
     .run = multiply_add_loop,
     .read = read_loop},
    {.isa = NULL},
};
