/* Peak loop of the c tier: independent multiply-add chains in plain C, on whatever vectors the baseline flags give (SSE2 on
 * x86-64, without fused multiply-add). */
#include "kernels/peak.h"

#include <stddef.h>

typedef float four __attribute__((vector_size(16)));

enum { CHAINS = 12, LANES = 4 };

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

const attn_peak_loop attn_peak_c[] = {
    {.isa = "c",
     .dtype = "f32",
     .what = "multiply and add, 128 bit",
     .flops = 2.0 * CHAINS * LANES,
     .run = multiply_add_loop},
    {.isa = NULL},
};
