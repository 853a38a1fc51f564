/* SPDX-License-Identifier: MIT */
/* Edge cases of the arithmetic in kernels/common: ties of the 16-bit types, windows as wide as an integer allows, a sink
 * above all scores, and a reference that moves by an amount that float32 cannot store. */
#include "kernels/common/convert.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/common/exact_row.h"
#include "kernels/common/indexing.h"
#include "kernels/ref/oracle_f64.h"
#include "support.h"

/* ---- 16-bit types ---------------------------------------------------------------------------------------------------- */

/* The middle between two neighbours rounds to the even one, the float32 beside it to the nearer one; with both signs, and
 * for denormals too. */
static void check_rounding(uint16_t largest, float (*widen)(uint16_t), uint16_t (*narrow)(float)) {
  for (uint16_t low = 0; low < largest; low++) {
    const uint16_t high = (uint16_t)(low + 1), even = low % 2 ? high : low;
    const float middle = (float)(((double)widen(low) + (double)widen(high)) / 2);
    const struct {
      float value;
      uint16_t nearest;
    } tries[] = {{widen(low), low}, {middle, even}, {nextafterf(middle, 0), low}, {nextafterf(middle, 1e38f), high}};
    for (int i = 0; i < 4; i++) {
      assert_int_equal(narrow(tries[i].value), tries[i].nearest);
      assert_int_equal(narrow(-tries[i].value), tries[i].nearest | 0x8000);
    }
  }
}

TEST(float16_rounds_to_nearest_even) {
  check_rounding(0x7bff, attn_f32_of_f16, attn_f16_of_f32);
  assert_int_equal(attn_f16_of_f32(65519.996f), 0x7bff);
  assert_int_equal(attn_f16_of_f32(65520), 0x7c00);
}

/* Only values below 1e38, because check_rounding() steps upwards by nextafterf(middle, 1e38f). */
TEST(bfloat16_rounds_to_nearest_even) { check_rounding(0x7e00, attn_f32_of_bf16, attn_bf16_of_f32); }

/* ---- Windows --------------------------------------------------------------------------------------------------------- */

/* The widest possible window hides no key, whatever the offset of the queries is. */
TEST(widest_windows_hide_nothing) {
  const int64_t widths[] = {INT64_MAX, INT64_MAX - 1};
  const int32_t offsets[] = {INT32_MIN, -5, 0, 5, INT32_MAX};
  for (int w = 0; w < 2; w++)
    for (int o = 0; o < 5; o++) {
      attn_problem p;
      attn_problem_init(&p, 1, 1, 1, 4, 9, 1, 1);
      p.align = ATTN_ALIGN_OFFSET;
      p.window_left = p.window_right = widths[w];
      const attn_args args = ATTN_STRUCT(attn_args, .offsets = &offsets[o]);
      const attn_sequence seq = attn_sequence_of(&p, &args, 0);
      for (int64_t i = 0; i < 4; i++) {
        const attn_key_range keys = attn_allowed_keys(&p, &args, &seq, 0, i);
        assert_int_equal(keys.begin, 0);
        assert_int_equal(keys.end, 9);
      }
    }
}

/* ---- The exact row --------------------------------------------------------------------------------------------------- */

TEST(sinks_above_all_scores_weigh_in_the_exact_row) {
  enum { KEYS = 7, DIM = 5 };
  const float sinks[] = {-INFINITY, -900, -3, 0, 2, 30, 900, INFINITY};
  attn_problem p;
  attn_problem_init(&p, 1, 1, 1, 1, KEYS, DIM, DIM);
  p.uses = ATTN_USE_SINKS | ATTN_USE_LSE;
  const test_data data = test_data_create(&p, 3);
  for (size_t n = 0; n < COUNT(sinks); n++) {
    attn_args args = data.args;
    double o[DIM], m[DIM], w[DIM], score[KEYS];
    args.sinks = &sinks[n];
    attn_exact_row(&p, &args, 0, 0, 0);
    const attn_oracle_output exact = {.o = o, .m = m, .w = w, .p = score};
    const attn_oracle_row row = attn_oracle_f64_row(&p, &args, (attn_oracle_index){0, 0, 0}, &exact);
    for (int d = 0; d < DIM; d++) assert_true(fabs((double)((const float *)args.o)[d] - o[d]) <= 1e-7 * fabs(o[d]));
    assert_true(fabs((double)args.lse[0] - row.lse) <= 1e-7 * (1 + fabs(row.lse)));
  }
  test_data_destroy((test_data *)(uintptr_t)&data);
}

/* ---- Long sequences ----------------------------------------------------------------------------------------------------
 */

/* More keys than one split of the decode kernels, than a block of the others and than a quarter of the scores' memory. */
static void long_rows_are_right(const char *kernel) {
  enum { QUERIES = 3, LONG = 2500, DIM = 8 };
  static double p[LONG];
  const double limit = attn_kernel_find(kernel)->numerics.p_rounding > 0 ? 4e-4 : 4e-5;
  for (int n = 0; n < 6; n++) {
    static const int32_t lengths[] = {LONG, 2049, 1024};
    double o[DIM], m[DIM], w[DIM];
    attn_problem problem;
    attn_problem_init(&problem, 1, 2, 1, QUERIES, LONG, DIM, DIM);
    problem.dtype_q = problem.dtype_kv = (attn_dtype)(n % 3);
    if (n >= 3) problem.uses = ATTN_USE_ROW_LEN | ATTN_USE_ALIBI;
    if (attn_kernel_rejects(attn_kernel_find(kernel), &problem)) continue;
    test_data data = test_data_create(&problem, 21);
    if (n >= 3) data.args.row_len = lengths, data.args.alibi_slopes = (const float[]){0.001f, 0.0005f};
    test_ok(test_run(&problem, &data.args, &ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1)));
    for (int row = 0; row < 2 * QUERIES; row++) {
      attn_oracle_f64_row(&problem, &data.args, (attn_oracle_index){0, row / QUERIES, row % QUERIES},
                          &(attn_oracle_output){.o = o, .m = m, .w = w, .p = p});
      for (int d = 0; d < DIM; d++)
        if (fabs((double)((const float *)data.args.o)[row * DIM + d] - o[d]) > limit)
          fail_msg("%s, dtype %d: row %d is %g off", kernel, n % 3, row,
                   (double)((const float *)data.args.o)[row * DIM + d] - o[d]);
    }
    test_data_destroy(&data);
  }
}

KERNEL_TEST(long_rows_are_right)

/* ---- Rescaling ------------------------------------------------------------------------------------------------------- */

enum { ROWS = 16, LOW = 256, KEYS = 1024, FIRST = 8 };

/* LOW keys with one score, then keys with a higher one. References near 8192 are stored in steps of 2^-10, and the
 * difference of the two scores is no multiple of that. The first keys after the move must weigh as much as all later ones.
 */
static void check_equal_weights(const char *kernel) {
  static float q[ROWS], k[KEYS], v[KEYS], o[ROWS];
  attn_problem p;
  attn_problem_init(&p, 1, 1, 1, ROWS, KEYS, 1, 1);
  p.scale = 0.693147181f; /* log 2: scores are powers of 2 */
  if (attn_kernel_rejects(attn_kernel_find(kernel), &p)) return;
  for (int i = 0; i < ROWS; i++) q[i] = 1 + 0.0123457f * (float)i;
  for (int j = 0; j < KEYS; j++) {
    k[j] = j < LOW ? 8191.25f : 8205.5f;
    v[j] = j >= LOW && j < LOW + FIRST;
  }
  const attn_args args = ATTN_STRUCT(attn_args, .q = q, .k = k, .v = v, .o = o);
  test_ok(test_run(&p, &args, &ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1)));
  for (int i = 0; i < ROWS; i++) {
    const double low = exp2(-(double)q[i] * (8205.5 - 8191.25)), expected = FIRST / (KEYS - LOW + LOW * low);
    if (fabs((double)o[i] / expected - 1) > 2e-5)
      fail_msg("%s: row %d weighs its first keys %.7g, should be %.7g", kernel, i, (double)o[i], expected);
  }
}

TEST(equal_scores_weigh_the_same_after_a_rescale) { test_each_kernel(check_equal_weights); }
