/* SPDX-License-Identifier: MIT */
/* The caller's floating-point mode does not matter: with flush-to-zero, denormals-are-zero, rounding towards zero or
 * trapping exceptions every kernel gives the same bits, within the proven limit, and restores the mode. The inputs are
 * ordinary values, denormals and logits of +-10^4. The functions that run no kernel are tested in the same way. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/nn.h"
#include "attn/product.h"
#include "check/check.h"
#include "kernels/common/problem/convert.h"
#include "src/choice/tuning.h"
#include "tests/support/support.h"

#ifdef __x86_64__
#include <immintrin.h>

/* Bits of MXCSR that differ from the default mode. TRAPS: all exceptions except denormal operands. */
enum { FLUSH_TO_ZERO = 0x8000, DENORMALS_ARE_ZERO = 0x0040, TOWARDS_ZERO = 0x6000, TRAPS = 0x1e80, MODES = 0xffc0 };

static const unsigned modes[] = {
    0, FLUSH_TO_ZERO, DENORMALS_ARE_ZERO, FLUSH_TO_ZERO | DENORMALS_ARE_ZERO, TOWARDS_ZERO, TRAPS, TRAPS | TOWARDS_ZERO};
enum { MODE_COUNT = COUNT(modes) };

/* Runs the statement in a mode, with no exception pending, and checks that the mode is unchanged afterwards. */
#define IN_MODE(mode, statement)                                \
  do {                                                          \
    const unsigned default_mode = _mm_getcsr() & MODES;         \
    _mm_setcsr(default_mode ^ (mode));                          \
    statement;                                                  \
    const unsigned mode_after = _mm_getcsr();                   \
    _mm_setcsr(default_mode);                                   \
    assert_int_equal(mode_after &MODES, default_mode ^ (mode)); \
  } while (0)

typedef struct flush_case {
  const char *what;
  float q, k, v; /* factors of values in [-1, 1) */
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

static const void *integers(const float *values, size_t count, int8_t *to) {
  for (size_t i = 0; i < count; i++) to[i] = attn_i8_of_f32(values[i]);
  return to;
}

/* The kernel runs in the mode, the oracle in the default mode. */
static void within_limit(const char *kernel, const flush_case *c, bool in_bf16, unsigned mode) {
  enum { HEADS = 2, QUERIES = 8, KEYS = 150, DIM = 24 };
  static float q[HEADS * QUERIES * DIM], k[HEADS * KEYS * DIM], v[HEADS * KEYS * DIM], o[HEADS * QUERIES * DIM],
      lse[HEADS * QUERIES];
  static uint16_t narrow_q[HEADS * QUERIES * DIM], narrow_k[HEADS * KEYS * DIM], narrow_v[HEADS * KEYS * DIM];
  static int8_t integer_k[HEADS * KEYS * DIM], integer_v[HEADS * KEYS * DIM];
  static float plain[HEADS * QUERIES * DIM]; /* the output in mode 0, which comes first */
  attn_problem p;
  attn_problem_init(&p, 1, HEADS, HEADS, QUERIES, KEYS, DIM, DIM);
  p.uses = ATTN_USE_LSE;
  if (in_bf16) p.dtype_q = p.dtype_kv = ATTN_BF16;
  test_fit_types(kernel, &p);
  if (attn_kernel_rejects(attn_kernel_find(kernel), &p)) p.uses = 0;        /* the library has no LSE */
  if (in_bf16 && attn_kernel_rejects(attn_kernel_find(kernel), &p)) return; /* nor products of bf16, on some CPUs */
  fill(q, COUNT(q), c->q, 1);
  fill(k, COUNT(k), c->k, 2);
  fill(v, COUNT(v), c->v, 3);
  attn_args args = ATTN_STRUCT(attn_args, .q = q, .k = k, .v = v, .o = o, .lse = lse);
  if (p.dtype_kv == ATTN_I8) {
    args.k = integers(k, COUNT(k), integer_k);
    args.v = integers(v, COUNT(v), integer_v);
  }
  if (p.dtype_kv == ATTN_BF16) {
    args.q = narrow(q, COUNT(q), narrow_q);
    args.k = narrow(k, COUNT(k), narrow_k);
    args.v = narrow(v, COUNT(v), narrow_v);
  }
  bench_expected *expected = bench_expected_create(&p, &args, 1, false);
  assert_non_null(expected);
  attn_status status;
  IN_MODE(mode, status = test_run(&p, &args, &ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1)));
  test_ok(status);
  if (mode == 0) memcpy(plain, o, sizeof o);
  assert_memory_equal(o, plain, sizeof o);
  const bench_verdict verdict = bench_check_values(expected, &args, &attn_kernel_find(kernel)->numerics);
  if (verdict.status != BENCH_PASS && verdict.status != BENCH_DEGENERATE)
    fail_msg("%s, %s, mode 0x%x: %s", kernel, c->what, mode, verdict.reason);
  bench_expected_destroy(expected);
}

static void modes_stay_within_the_limit(const char *kernel) {
  static const flush_case cases[] = {
      {"ordinary values", 1, 1, 1}, {"denormal V", 1, 1, 1e-38f},   {"denormal products", 1e-20f, 1e-20f, 1},
      {"denormal Q", 1e-39f, 1, 1}, {"logits of 1e4", 300, 300, 1}, {"logits of 1e4, denormal V", 300, 300, 3e-39f},
  };
  for (size_t i = 0; i < COUNT(cases); i++)
    for (int in_bf16 = 0; in_bf16 <= (attn_kernel_find(kernel)->library[0] != 0); in_bf16++)
      for (int m = 0; m < MODE_COUNT; m++) within_limit(kernel, &cases[i], in_bf16, modes[m]);
}

TEST(each_modes_stay_within_the_limit) { test_each_kernel(modes_stay_within_the_limit); }

/* The choice, the number of threads that pay, and the numbers in a description are computed, which is inexact. */
TEST(plans_are_the_same_in_every_mode) {
  char plain[2900];
  for (int i = 0; i < MODE_COUNT; i++) {
    attn_problem p;
    attn_plan *plan;
    const char *text;
    attn_problem_init(&p, 3, 7, 7, 5, 11, 24, 24);
    IN_MODE(modes[i], test_ok(attn_plan_create(&p, NULL, &plan)));
    IN_MODE(modes[i], text = attn_plan_describe(plan));
    if (i == 0) snprintf(plain, sizeof plain, "%s", text);
    assert_string_equal(text, plain);
    attn_plan_destroy(plan);
  }
}

/* Numbers of a tuning file are computed from decimals. */
TEST(tuning_files_mean_the_same_in_every_mode) {
  char text[16384];
  double plain = 0;
  int count;
  attn_tuning *tuning;
  const size_t head = attn_tuning_head(text, sizeof text);
  snprintf(text + head, sizeof text - head, "cost kernel=flash_portable f32 error=0.1 row=0.3 call=0.123e1\n");
  for (int i = 0; i < MODE_COUNT; i++) {
    IN_MODE(modes[i], test_ok(attn_tuning_read("a.tuning", text, strlen(text), &tuning)));
    const attn_kernel_costs *costs = attn_tuning_costs(tuning, &count);
    assert_int_equal(count, 1);
    const double now = costs->ns[attn_term_find(costs->kernel, "call")];
    if (i == 0) plain = now;
    assert_true(plain > 1.22 && now == plain);
    attn_tuning_destroy(tuning);
  }
}

/* Results of the functions that run no kernel, in one mode: the default scale, a merge with one row without keys, a dense
 * layer, layer norm, positions, embeddings, pooling and sampling. */
typedef struct results {
  float scale[9], merged[4], lse[2], product[6], norm[6], positions[8], embedded[4], pooled[2], sampled[6], greedy[2];
} results;

static results compute(unsigned mode) {
  static const float x[] = {0.1f, 0.2f, 0.7f, -0.3f, 1e-39f, 3.0f};
  static const float first_lse[] = {-INFINITY, 0.3f}, second_lse[] = {-INFINITY, -1.7f};
  const float *const parts[] = {x, x + 1}, *const lses[] = {first_lse, second_lse};
  const attn_product_weights weights =
      ATTN_STRUCT(attn_product_weights, .depth = 3, .columns = 2, .weight = x, .stride_depth = 2, .stride_column = 1);
  const attn_norm norm = {.epsilon = 1e-5f};
  results r;
  attn_product *product;
  memset(&r, 0, sizeof r);
  test_ok(attn_product_create(&weights, NULL, &product));
  const size_t bytes = attn_product_workspace(product, 2);
  void *workspace = aligned_alloc(64, bytes);
  const attn_product_args args = ATTN_STRUCT(attn_product_args, .batch = 1, .rows = 2, .x = x, .x_stride = {.s = 3, .d = 1},
                                             .y = r.product, .y_stride = {.s = 3, .d = 1});
  for (int dim = 1; dim <= 9; dim++) {
    attn_problem p;
    IN_MODE(mode, attn_problem_init(&p, 1, 1, 1, 1, 1, dim, 1));
    r.scale[dim - 1] = p.scale;
  }
  IN_MODE(mode, test_ok(attn_merge(2, 2, 2, parts, lses, r.merged, r.lse)));
  IN_MODE(mode, test_ok(attn_product_run(product, &args, workspace, bytes)));
  IN_MODE(mode, test_ok(attn_add_layer_norm(2, 3, x, NULL, &norm, NULL, r.norm)));
  IN_MODE(mode, test_ok(attn_sinusoidal_positions(7, 2, 4, r.positions)));
  const attn_embedding embedding = ATTN_STRUCT(attn_embedding, .vocabulary = 3, .width = 2, .table = x, .factor = 1e-3f);
  const attn_pooling pooling =
      ATTN_STRUCT(attn_pooling, .unit = true, .batch = 1, .seq = 3, .width = 2, .x = x, .y = r.pooled);
  const attn_sampling sampling = ATTN_STRUCT(attn_sampling, .temperature = 0.7f, .top_p = 0.9f);
  uint64_t seed = 1;
  int32_t token;
  IN_MODE(mode, test_ok(attn_embed(&embedding, 2, (const int32_t[]){2, 0}, r.embedded)));
  IN_MODE(mode, test_ok(attn_pool_rows(&pooling)));
  IN_MODE(mode, test_ok(attn_sample_token(&sampling, 6, x, &seed, r.sampled, &token)));
  const attn_sampling greedy = ATTN_STRUCT(attn_sampling, .temperature = 0);
  IN_MODE(mode, test_ok(attn_sample_token(&greedy, 2, (const float[]){0, 1e-40f}, NULL, r.greedy, &token)));
  attn_product_destroy(product);
  free(workspace);
  return r;
}

TEST(modes_change_no_bit_of_other_functions) {
  const results expected = compute(0);
  for (int m = 1; m < MODE_COUNT; m++) {
    const results r = compute(modes[m]);
    assert_memory_equal(&r, &expected, sizeof r);
  }
}
#else
int test_begin(char **arguments) { return (void)arguments, puts("skipped: the modes are set by x86's MXCSR here"), 77; }
#endif
