/* SPDX-License-Identifier: MIT */
/* vec_exp2 of one tier over every float32 input that can matter, against the C library's double exp2.
 *
 *     exp_every_float TIER [STEP]
 *
 * Kernels call it with t <= 8 (lazy rescaling) and rescaling factors with t <= 0. Inputs: every float32 with 2^-27 <= |t|, t in
 * [-160, 8]; nearer to 0 the result must be 1 within the same error, of which every 997th is tried. Where 2^t is a normal number the
 * relative error must be within what the tier's kernels declare; below that, the absolute error within 2^-126, which is the limit's
 * n 2^-126 term; -inf must give exactly 0 and NaN must stay NaN.
 *
 * STEP: only every STEP-th of them, for emulators; a prime reaches all residues of the low bits. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "vec_exp2.h"

enum { BLOCK = 4096, SKIPPED = 77 };

typedef void (*exp2_array)(float *x, int64_t count);

typedef struct extremes {
  double worst, worst_at; /* relative error of normal results */
  double lost, lost_at;   /* absolute error of the others */
  int64_t tried;
} extremes;

static float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static void judge(const float *t, const float *result, int64_t count, extremes *seen) {
  for (int64_t i = 0; i < count; i++) {
    const double exact = exp2((double)t[i]), error = fabs((double)result[i] - exact);
    if (exact >= 0x1p-126) {
      if (!(error / exact <= seen->worst)) seen->worst = error / exact, seen->worst_at = (double)t[i];
    } else if (!(error <= seen->lost)) {
      seen->lost = error, seen->lost_at = (double)t[i];
    }
  }
  seen->tried += count;
}

/* All floats from bits `first` up to and including `last`, by `step`. */
static void try_range(exp2_array f, uint32_t first, uint32_t last, uint32_t step, extremes *seen) {
  static float t[BLOCK], result[BLOCK];
  for (uint64_t bits = first; bits <= last;) {
    int64_t count = 0;
    for (; count < BLOCK && bits <= last; bits += step) t[count++] = float_of((uint32_t)bits);
    for (int64_t i = 0; i < BLOCK; i++) result[i] = i < count ? t[i] : 0.0f;
    f(result, BLOCK);
    judge(t, result, count, seen);
  }
}

static int check_special(exp2_array f) {
  float x[16] = {-INFINITY, NAN, 0.0f, -0.0f, -1e30f, -160.0f};
  f(x, 16);
  if (x[0] == 0.0f && isnan(x[1]) && x[2] == 1.0f && x[3] == 1.0f && x[4] == 0.0f && x[5] == 0.0f) return 0;
  printf("WRONG: of -inf, NaN, 0, -0, -1e30, -160: %g %g %g %g %g %g\n", (double)x[0], (double)x[1], (double)x[2],
         (double)x[3], (double)x[4], (double)x[5]);
  return 1;
}

int main(int argc, char **argv) {
  static const struct {
    const char *tier, *kernel;
    exp2_array function;
  } tiers[] = {
      {"c", "blocked_c", vec_exp2_array_c},
#ifdef __aarch64__
      {"neon", "flash_neon", vec_exp2_array_neon},
#else
      {"avx2", "flash_avx2", vec_exp2_array_avx2},
      {"avx512", "flash_avx512", vec_exp2_array_avx512},
#endif
  };
  const uint32_t step = argc == 3 ? (uint32_t)strtoul(argv[2], NULL, 10) : 1;
  for (size_t i = 0; argc > 1 && step > 0 && i < sizeof tiers / sizeof *tiers; i++) {
    if (strcmp(argv[1], tiers[i].tier) != 0) continue;
    const attn_kernel_info *kernel = attn_kernel_find(tiers[i].kernel);
    if (attn_kernel_unusable(kernel)) return printf("SKIP: %s\n", attn_kernel_unusable(kernel)), SKIPPED;
    extremes seen = {0};
    const uint32_t near_zero = bits_of(0x1p-27f), sign = 0x80000000u;
    const uint32_t rarely = step > 997 ? step : 997;
    try_range(tiers[i].function, 0, near_zero, rarely, &seen);
    try_range(tiers[i].function, sign, sign | near_zero, rarely, &seen);
    try_range(tiers[i].function, near_zero, bits_of(8.0f), step, &seen);
    try_range(tiers[i].function, sign | near_zero, bits_of(-160.0f), step, &seen);
    /* vec_c.h serves kernels of libraries (score_steps.h), which all declare this; the kernels in plain C use the C library's exp. */
    const double declared = strcmp(tiers[i].tier, "c") ? kernel->numerics.exp_error : 0x1p-22;
    printf("%s: %" PRId64
           " inputs; relative error %.3g at %.9g (declared %.3g); where 2^t < 2^-126, absolute error %.3g at %.9g\n",
           tiers[i].tier, seen.tried, seen.worst, seen.worst_at, declared, seen.lost, seen.lost_at);
    return check_special(tiers[i].function) || !(seen.worst <= declared) || !(seen.lost <= 0x1p-126);
  }
  return fprintf(stderr, "usage: exp_every_float TIER [STEP], of this architecture's vector tiers\n"), 2;
}
