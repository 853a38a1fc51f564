/* SPDX-License-Identifier: MIT */
/* The formulas of docs/numerics.md, written once more: every term of every limit, with numbers that make it visible. */
#include <math.h>

#include "check/check.h"
#include "data/generate.h"
#include "kernels/common/problem/dtypes.h"
#include "tests/support/limits_model.h"
#include "tests/support/support.h"

static void assert_near(double got, double wanted) {
  if (!(fabs(got - wanted) <= 1e-13 * fabs(wanted))) fail_msg("%.17g, should be %.17g", got, wanted);
}

/* ---- Limits of a row ------------------------------------------------------------------------------------------------- */

typedef struct row {
  attn_problem problem;
  attn_numerics numerics;
  attn_oracle_row facts;
} row;

static row row_of(attn_score score, attn_dtype dtype_kv) {
  row r = {.numerics = {.exp_error = 0x1p-19, .p_rounding = 0x1p-9},
           .facts = {.lse = -2.5,
                     .abs_sum = 3,
                     .allowed = 100,
                     .ties = 44,
                     .max_v = 4,
                     .max_q = 2,
                     .max_k = 5,
                     .sum_k = 40,
                     .norm_k = 7,
                     .exists = true}};
  attn_problem_init(&r.problem, 1, 1, 1, 1, 200, 36, 8);
  r.problem.score = score;
  r.problem.dtype_kv = dtype_kv;
  return r;
}

static void expect_formulas(const row *r) {
  model wanted = {.proven = 0};
  add_kernel(&wanted, &r->problem, &r->numerics, &r->facts);
  for (int zero_mean = 0; zero_mean < 2; zero_mean++) {
    const bench_row_limits got = bench_limits_of_row(&r->problem, &r->numerics, &r->facts, zero_mean);
    assert_near(got.proven, wanted.proven);
    assert_near(got.sharp, wanted.sharp);
    assert_near(got.lost, wanted.lost);
    assert_near(got.lse, limit_of(&wanted, ATTN_F32, zero_mean, true, 0, 0, 0));
    assert_true(got.max_v == r->facts.max_v && got.p_rounding == wanted.u_p);
    assert_near(got.moved, wanted.moved);
    assert_true(got.both == zero_mean && got.empty == (r->facts.allowed == 0) && got.dtype_o == r->problem.dtype_o);
    assert_true(got.store_error == wanted.store);
  }
}

/* Underflow and flushed inputs, of a size that other terms do not hide. */
TEST(what_vanishes_is_part_of_the_limits) {
  row r = row_of(ATTN_SCORE_DOT, ATTN_BF16);
  r.problem.scale = -1e37f;
  r.facts.max_k = 1e36;
  r.facts.max_v = 1e37;
  expect_formulas(&r);
  r.facts.max_k = 1e37;
  r.problem.scale = 1;
  expect_formulas(&r);
  r.facts.max_k = 5;
  r.numerics.input_flush = 0.25;
  expect_formulas(&r);
  r.problem.score = ATTN_SCORE_GAUSSIAN;
  expect_formulas(&r);
}

/* Rounded inputs, of a size that other terms do not hide. */
TEST(rounded_inputs_are_part_of_the_limits) {
  row r = row_of(ATTN_SCORE_DOT, ATTN_F32);
  r.numerics.input_rounding = 0x1p-10;
  expect_formulas(&r);
}

/* So are queries that are rounded to integers, in scores that are products of theirs. */
TEST(rounded_queries_are_part_of_the_limits) {
  row r = row_of(ATTN_SCORE_DOT, ATTN_I8);
  const double without = bench_limits_of_row(&r.problem, &r.numerics, &r.facts, true).proven;
  r.numerics.query_rounding = 0x1p-10;
  r.problem.scale = -0.25f;
  expect_formulas(&r);
  assert_true(bench_limits_of_row(&r.problem, &r.numerics, &r.facts, true).proven > without);
  bench_row_limits limits = bench_limits_of_row(&r.problem, &r.numerics, &r.facts, true);
  limits.store_error = limits.lost = 0;
  assert_near(bench_output_ratio(&limits, 0, 1, 1, 1), 1 / (limits.sharp * 2 + 6 * limits.p_rounding + limits.moved));
  r.problem.score = ATTN_SCORE_ADDITIVE;
  expect_formulas(&r);
}

/* The limit is exactly that of 24 results and of the flushed values. */
TEST(the_smallest_results_are_lost) {
  row r = row_of(ATTN_SCORE_DOT, ATTN_F32);
  r.facts.max_v = 0;
  r.facts.allowed = 10;
  assert_true(bench_limits_of_row(&r.problem, &r.numerics, &r.facts, false).lost == 24 * 0x1p-149);
  r.numerics.input_flush = 0x1p-126;
  assert_true(bench_limits_of_row(&r.problem, &r.numerics, &r.facts, false).lost == 25 * 0x1p-126);
}

/* An infinite input widens no limit of a kernel that flushes nothing. */
TEST(nothing_is_flushed_of_infinite_inputs) {
  row r = row_of(ATTN_SCORE_DOT, ATTN_F32);
  r.facts.max_q = INFINITY;
  assert_true(isfinite(bench_limits_of_row(&r.problem, &r.numerics, &r.facts, false).proven));
  r.numerics.input_flush = 0x1p-126;
  assert_true(isinf(bench_limits_of_row(&r.problem, &r.numerics, &r.facts, false).proven));
}

/* Normal scores, be they so alike that all additions round one way, or so different that most weights vanish in the sum:
 * the LSE of a sum one by one is within the sharp limit. In between no weight is like many others: it grows by sqrt(n). */
TEST(a_sum_one_by_one_is_within_the_sharp_limit) {
  enum { KEYS = 16384 };
  static const double spreads[] = {1e-6, 1e-5, 1e-4, 1e-3, 0.1, 1, 3, 4, 6};
  static float scores[KEYS], v[KEYS];
  for (int64_t n = 64; n <= KEYS; n *= 4)
    for (size_t i = 0; i < COUNT(spreads); i++) {
      attn_problem p;
      float sum = 0, most = -INFINITY;
      attn_problem_init(&p, 1, 1, 1, 1, n, 1, 1);
      p.score = ATTN_SCORE_PRECOMPUTED;
      for (int64_t j = 0; j < n; j++)
        most = fmaxf(most, scores[j] = (float)(spreads[i] * bench_value_normal(1, BENCH_STREAM_SCORES, (uint64_t)(n + j))));
      for (int64_t j = 0; j < n; j++) sum += expf(scores[j] - most);
      bench_expected *e = bench_expected_create(&p, &(attn_args){.scores = scores, .v = v}, 1, true);
      const attn_oracle_row *facts = &e->row[0].facts;
      const bench_row_limits limits = bench_limits_of_row(&p, &(attn_numerics){0}, facts, true);
      const double ratio = bench_lse_ratio(&limits, facts->lse, (double)most + log((double)sum));
      if (ratio > 1) fail_msg("%d scores of spread %g: %g times the limit", (int)n, spreads[i], ratio);
      if (spreads[i] >= 0.1 && spreads[i] <= 1) assert_true(facts->ties < (double)n);
      bench_expected_destroy(e);
    }
}

TEST(limits_that_are_no_numbers_fail) {
  bench_row_limits l = {.dtype_o = ATTN_F32, .lse = NAN, .lost = NAN};
  assert_true(isinf(bench_lse_ratio(&l, 0, 0)) && isinf(bench_output_ratio(&l, 1, 1, 1, 1)));
}

TEST(two_answers_may_differ_by_the_sum) {
  const bench_row_limits a = {1, 2, 3, 4, 5, 6, 7, 8, ATTN_F32, true, false},
                         b = {10, 20, 30, 40, 50, 60, 70, 80, ATTN_BF16, 0, 0};
  const bench_row_limits sum = bench_limits_sum(a, b);
  assert_true(sum.proven == 11 && sum.sharp == 22 && sum.lost == 33 && sum.lse == 44);
  assert_true(sum.moved == 88 && sum.max_v == 5 && sum.p_rounding == 66 && sum.store_error == 77);
  assert_true(sum.dtype_o == ATTN_F32 && sum.both && !sum.empty);
}

/* ---- Errors against limits ------------------------------------------------------------------------------------------- */

/* A limit of 1/4 + 1/8 at o = 0, and what storing adds. */
static const bench_row_limits simple = {.proven = 1, .sharp = 0.125, .lost = 0.125, .lse = 0.25, .max_v = 3, .both = true};

/* An error of exactly the limit passes; the next one does not, whatever the quotient is rounded to. */
TEST(errors_of_exactly_the_limit_pass) {
  bench_row_limits l = simple;
  assert_true(bench_lse_ratio(&l, 1, 1.25) == 1 && bench_lse_ratio(&l, 1, 0.75) == 1);
  assert_true(bench_lse_ratio(&l, 1, nextafter(1.25, 2)) > 1 && bench_lse_ratio(&l, 1, nextafter(0.75, 0)) > 1);
  assert_near(bench_lse_ratio(&l, 1, 1.5), 2);
  assert_true(bench_lse_ratio(&l, 0, 0.125) == 0.5);
}

TEST(limits_without_end_pass_what_is_finite) {
  bench_row_limits l = simple;
  l.lse = INFINITY;
  assert_true(bench_lse_ratio(&l, 0, 1e300) == 0);
  assert_true(isinf(bench_lse_ratio(&l, 0, INFINITY)) && isinf(bench_lse_ratio(&l, 0, -INFINITY)));
  assert_true(isinf(bench_lse_ratio(&l, 0, NAN)) && bench_lse_ratio(&l, NAN, NAN) == 0 &&
              isinf(bench_lse_ratio(&l, NAN, 0)));
  assert_true(bench_lse_ratio(&l, -INFINITY, -INFINITY) == 0 && isinf(bench_lse_ratio(&l, INFINITY, -INFINITY)));
}

/* Outputs near the end of their type's range may round to infinity, of their own sign. */
TEST(overflowing_outputs_may_be_infinite) {
  static const struct {
    attn_dtype type;
    double overflow;
  } types[] = {{ATTN_F16, 65520}, {ATTN_F32, 0x1.ffffffp127}, {ATTN_BF16, 0x1.ffp127}};
  for (size_t i = 0; i < COUNT(types); i++)
    for (double sign = -1; sign <= 1; sign += 2) {
      bench_row_limits l = simple;
      l.dtype_o = types[i].type;
      l.lost = types[i].overflow / 0x1p12; /* the whole limit: m = 0 */
      const double edge = sign * (types[i].overflow - l.lost), inside = sign * (types[i].overflow - 1.001 * l.lost);
      assert_true(bench_output_ratio(&l, edge, 0, 0, sign * (double)INFINITY) == 0);
      assert_true(isinf(bench_output_ratio(&l, edge, 0, 0, -sign * (double)INFINITY)));
      assert_true(isinf(bench_output_ratio(&l, inside, 0, 0, sign * (double)INFINITY)));
      assert_true(fabs(bench_output_ratio(&l, edge, 0, 0, edge - 0.5 * l.lost) - 0.5) < 1e-6);
    }
}

/* Half of the smallest number of the type may be lost in storing. */
TEST(outputs_round_to_the_smallest_numbers) {
  static const attn_dtype types[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
  static const double smallest[] = {0x1p-149, 0x1p-24, 0x1p-133};
  for (size_t i = 0; i < COUNT(types); i++) {
    const bench_row_limits l = {.dtype_o = types[i]};
    assert_near(bench_output_ratio(&l, 0, 0, 0, smallest[i] / 4), 0.5);
  }
}

/* ---- Declared errors ------------------------------------------------------------------------------------------------- */

/* The largest declared errors that are not refused, and the largest that are not marked as approximate. */
TEST(the_caps_are_those_of_numerics_md) {
  attn_problem problem = row_of(ATTN_SCORE_DOT, ATTN_F32).problem;
  const attn_numerics edge = {.exp_error = 0x1p-8,
                              .p_rounding = 0x1p-8,
                              .input_flush = 0x1p-126,
                              .input_rounding = 0x1p-8,
                              .query_rounding = 0x1p-7};
  attn_numerics over[] = {edge, edge, edge, edge, edge};
  over[0].exp_error *= 1.01, over[1].p_rounding *= 1.01, over[2].input_flush *= 1.01, over[3].input_rounding *= 1.01;
  over[4].query_rounding *= 1.01;
  assert_null(bench_beyond_cap(&edge));
  for (int i = 0; i < 5; i++) assert_non_null(bench_beyond_cap(&over[i]));
  assert_false(bench_is_approximate(&problem, &(attn_numerics){.exp_error = 0x1p-21, .p_rounding = 0x1p-8}));
  assert_true(bench_is_approximate(&problem, &(attn_numerics){.exp_error = 0x1.1p-21}));
  assert_true(bench_is_approximate(&problem, &(attn_numerics){.input_rounding = 0x1p-17}));
  assert_true(bench_is_approximate(&problem, &(attn_numerics){.query_rounding = 0x1p-17}));
  problem.dtype_kv = ATTN_F16;
  assert_true(bench_is_approximate(&problem, &(attn_numerics){.exp_error = 0x1.1p-11}));
  assert_false(bench_is_approximate(&problem, &(attn_numerics){.exp_error = 0x1p-11, .p_rounding = 0x1p-11}));
  problem.dtype_kv = ATTN_BF16;
  assert_false(bench_is_approximate(&problem, &(attn_numerics){.exp_error = 0x1p-8, .input_rounding = 0x1p-8}));
}
