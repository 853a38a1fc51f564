/* SPDX-License-Identifier: MIT */
/* vec_exp2 of one tier (the macro TIER) over every float32 input that kernels can pass, against the C library's double exp2.
 *
 *     exp_every_float_<isa> [STEP]
 *
 * Kernels call it with t <= 8 (lazy rescaling), and for rescaling factors with t <= 0. The inputs are every float32 t in
 * [-160, 8] with |t| >= 2^-27, and every 997th nearer to 0. Where 2^t is a normal number, the relative error must be at most
 * what each kernel of the tier declares, and at least half of it; below, the absolute error must be at most 2^-126, as in
 * docs/numerics.md. -inf and what is below -127 must give exactly 0, because denormal weights are slow on some CPUs, and NaN
 * must give NaN.
 *
 * STEP: only every STEP-th input, for emulators. A prime reaches all residues of the low bits. */
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "tests/kernels/vec_exp2.h"

enum { BLOCK = 4096, SKIPPED = 77 };

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

static void compare(const float *t, const float *result, int64_t count, extremes *seen) {
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
static void try_range(uint32_t first, uint32_t last, uint32_t step, extremes *seen) {
  static float t[BLOCK], result[BLOCK];
  for (uint64_t bits = first; bits <= last;) {
    int64_t count = 0;
    for (; count < BLOCK && bits <= last; bits += step) t[count++] = float_of((uint32_t)bits);
    for (int64_t i = 0; i < BLOCK; i++) result[i] = i < count ? t[i] : 0.0f;
    vec_exp2_array(result, BLOCK);
    compare(t, result, count, seen);
  }
}

static int check_special(void) {
  float x[16] = {-INFINITY, -1e30f, -160.0f, -140.0f, -127.01f, NAN, 0.0f, -0.0f};
  int failures = 0;
  vec_exp2_array(x, 16);
  for (int i = 0; i < 5; i++) failures += x[i] != 0.0f;
  if (failures == 0 && isnan(x[5]) && x[6] == 1.0f && x[7] == 1.0f) return 0;
  printf("WRONG: of -inf, -1e30, -160, -140, -127.01, NAN, 0, -0:");
  for (int i = 0; i < 8; i++) printf(" %g", (double)x[i]);
  printf("\n");
  return 1;
}

/* NaNs whose lowest bits are not 0: no sum of exponents may make numbers of them. */
static int check_nans(void) {
  int failures = 0;
  for (uint32_t low = 0; low < 1024; low += 2) {
    const uint32_t bits[] = {0x7fc00000 | low, 0xffc00000 | low, 0x7f800001 | low, 0xff800001 | low};
    float x[16] = {0};
    for (int i = 0; i < 4; i++) x[i] = float_of(bits[i]);
    vec_exp2_array(x, 16);
    for (int i = 0; i < 4; i++) {
      if (isnan(x[i])) continue;
      if (failures++ == 0) printf("WRONG: of the NaN 0x%x: %g\n", bits[i], (double)x[i]);
    }
  }
  return failures;
}

/* Whether the error lies between half of what the kernel declares and all of it. */
static bool is_declared(const char *kernel, double declared, double worst) {
  if (worst <= declared && declared <= 2 * worst) return true;
  printf("WRONG: %s declares %.3g; right are %.3g to %.3g\n", kernel, declared, worst, 2 * worst);
  return false;
}

static bool uses_tier(const attn_kernel_info *kernel) { return !strcmp(kernel->isa, TIER) && !kernel->library[0]; }

/* vec_c.h serves kernels of libraries (kernels/library/score_steps.h), which all declare 2^-22; the kernels in plain C call
 * expf. */
static bool all_are_declared(double worst) {
  bool right = true;
  if (!strcmp(TIER, "c")) return is_declared("kernels/library", 0x1p-22, worst);
  for (int i = 0; i < attn_kernel_count(); i++) {
    const attn_kernel_info *kernel = attn_kernel_get(i);
    if (uses_tier(kernel)) right &= is_declared(kernel->name, kernel->numerics.exp_error, worst);
  }
  return right;
}

static const attn_kernel_info *first_of_tier(void) {
  for (int i = 0; i < attn_kernel_count(); i++)
    if (uses_tier(attn_kernel_get(i))) return attn_kernel_get(i);
  return NULL;
}

int main(int argc, char **argv) {
  const uint32_t step = argc == 2 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1, rarely = step > 997 ? step : 997;
  const uint32_t near_zero = bits_of(0x1p-27f), sign = 0x80000000u;
  const attn_kernel_info *kernel = first_of_tier();
  extremes seen = {0};
  if (argc > 2 || step == 0) return fprintf(stderr, "usage: exp_every_float_%s [STEP]\n", TIER), 2;
  if (!kernel) return printf("WRONG: tier %s has no kernel\n", TIER), 1;
  if (attn_kernel_unusable(kernel)) return printf("SKIP: %s\n", attn_kernel_unusable(kernel)), SKIPPED;
  try_range(0, near_zero, rarely, &seen);
  try_range(sign, sign | near_zero, rarely, &seen);
  try_range(near_zero, bits_of(8.0f), step, &seen);
  try_range(sign | near_zero, bits_of(-160.0f), step, &seen);
  printf("%s: %" PRId64 " inputs; relative error %.3g at %.9g; where 2^t < 2^-126, absolute error %.3g at %.9g\n", TIER,
         seen.tried, seen.worst, seen.worst_at, seen.lost, seen.lost_at);
  const bool declared = all_are_declared(seen.worst);
  return check_special() || check_nans() || !declared || !(seen.lost <= 0x1p-126);
}
