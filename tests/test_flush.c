/* SPDX-License-Identifier: MIT */
/* Flush-to-zero and denormals-are-zero, and rounding towards zero: with any of the caller's floating-point modes every
 * kernel gives the same bits, within the proven limit, on ordinary data, on denormals and on logits of +-10^4, and leaves
 * the mode as it was. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/check.h"
#include "kernels/common/convert.h"
#include "support.h"

#ifdef __x86_64__
#include <immintrin.h>

enum { FLUSH_TO_ZERO = 0x8000, DENORMALS_ARE_ZERO = 0x0040, TOWARDS_ZERO = 0x6000, MODES = 0xe040 };

typedef struct flush_case {
  const char *what;
  float q, k, v; /* factors on values in [-1, 1) */
} flush_case;

static void fill(float *data, size_t count, float factor, unsigned seed) {
  for (size_t i = 0; i < count; i++) {
    seed = seed * 1664525u + 1013904223u;
    data[i] = factor * ((float)(seed >> 8) / 8388608.0f - 1.0f);
  }
}

static const void *narrow(const float *values, size_t count, uint16_t *to) {
  for (size_t i = 0; i < count; i++) to[i] = attn_bf16_of_f32(values[i]);
  return to;
}

/* The oracle runs in the default mode; only the kernel sees the flags. */
static void within_limit(const char *kernel, const flush_case *c, unsigned mode) {
  enum { HEADS = 2, QUERIES = 8, KEYS = 150, DIM = 24 };
  static float q[HEADS * QUERIES * DIM], k[HEADS * KEYS * DIM], v[HEADS * KEYS * DIM], o[HEADS * QUERIES * DIM],
      lse[HEADS * QUERIES];
  static uint16_t narrow_q[HEADS * QUERIES * DIM], narrow_k[HEADS * KEYS * DIM], narrow_v[HEADS * KEYS * DIM];
  static float plain[HEADS * QUERIES * DIM]; /* of mode 0, which comes first */
  attn_problem p;
  attn_problem_init(&p, 1, HEADS, HEADS, QUERIES, KEYS, DIM, DIM);
  p.uses = ATTN_USE_LSE;
  const bool is_narrow = test_fit_types(kernel, &p);
  if (attn_kernel_rejects(attn_kernel_find(kernel), &p)) p.uses = 0; /* a library that has no LSE */
  fill(q, sizeof q / sizeof *q, c->q, 1);
  fill(k, sizeof k / sizeof *k, c->k, 2);
  fill(v, sizeof v / sizeof *v, c->v, 3);
  attn_args args = {.q = q, .k = k, .v = v, .o = o, .lse = lse};
  if (is_narrow) {
    args.q = narrow(q, sizeof q / sizeof *q, narrow_q);
    args.k = narrow(k, sizeof k / sizeof *k, narrow_k);
    args.v = narrow(v, sizeof v / sizeof *v, narrow_v);
  }
  bench_expected *expected = bench_expected_create(&p, &args, 1, false);
  assert_non_null(expected);
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | mode);
  const attn_status status = test_run(&p, &args, &(attn_options){.kernel = kernel, .threads = 1});
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  test_ok(status);
  assert_int_equal(after & MODES, (before | mode) & MODES);
  if (mode == 0) memcpy(plain, o, sizeof o);
  assert_memory_equal(o, plain, sizeof o);
  const bench_verdict verdict = bench_compare(expected, &args, &attn_kernel_find(kernel)->numerics);
  if (verdict.status != BENCH_PASS && verdict.status != BENCH_DEGENERATE) /* degenerate: right, if easy */
    fail_msg("%s, %s, mode 0x%x: %s", kernel, c->what, mode, verdict.reason);
  bench_expected_destroy(expected);
}

static void modes_stay_within_the_limit(const char *kernel) {
  static const flush_case cases[] = {
      {"ordinary values", 1, 1, 1}, {"denormal V", 1, 1, 1e-38f},   {"denormal products", 1e-20f, 1e-20f, 1},
      {"denormal Q", 1e-39f, 1, 1}, {"logits of 1e4", 300, 300, 1}, {"logits of 1e4, denormal V", 300, 300, 3e-39f},
  };
  static const unsigned modes[] = {0, FLUSH_TO_ZERO, DENORMALS_ARE_ZERO, FLUSH_TO_ZERO | DENORMALS_ARE_ZERO, TOWARDS_ZERO};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) within_limit(kernel, &cases[i], modes[m]);
}

static void each_modes_stay_within_the_limit(void **state) {
  (void)state;
  test_each_kernel(modes_stay_within_the_limit);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(each_modes_stay_within_the_limit)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) { return puts("skipped: the modes are set by x86's MXCSR here"), 77; }
#endif
