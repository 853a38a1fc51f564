/* SPDX-License-Identifier: MIT */
/* Verdicts of `attnbench compare`, with errors and intervals calculated by hand. tests/harness/compare/simulated_verdicts.c
 * counts how often they are wrong. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "compare/compare.h"
#include "tests/support/support.h"

static void assert_near(double a, double b, double relative) {
  if (!(fabs(a - b) <= relative * fabs(b))) fail_msg("%.12g instead of %.12g", a, b);
}

enum { ROUNDS = 12, MOST_ROWS = 8 };

typedef struct fixed_row {
  bench_row row;
  double samples[ROUNDS], peaks[ROUNDS];
} fixed_row;

/* All samples are equal, so that there is no error within the run. */
static const bench_row *fix(fixed_row *f, double time_ns, double peak) {
  f->row = bench_row_create(NULL, NULL);
  for (int i = 0; i < ROUNDS; i++) f->samples[i] = time_ns, f->peaks[i] = peak;
  f->row.samples_ns = f->samples;
  f->row.peaks = peak > 0 ? f->peaks : NULL;
  f->row.time = bench_summarise(f->samples, ROUNDS);
  return &f->row;
}

static bench_comparison one_run(double time_a, double peak_a, double time_b, double peak_b) {
  fixed_row a, b;
  const bench_row *row_a = fix(&a, time_a, peak_a), *row_b = fix(&b, time_b, peak_b);
  bench_comparison c;
  bench_comparison_measure(&c, &row_a, 1, &row_b, 1);
  return c;
}

/* A table of one-run comparisons with these ratios, and their verdicts. */
static bench_comparisons decide(const double *ratios, int count, bench_comparison *items) {
  bench_comparisons t = {.design = BENCH_ONE_RUN, .margin = 0.01, .item = items, .count = count};
  for (int i = 0; i < count; i++) items[i] = one_run(100 * ratios[i], 0, 100, 0);
  assert_true(bench_comparisons_decide(&t));
  return t;
}

TEST(student_has_the_values_of_tables) {
  assert_near(bench_student_p(12.7062, 1), 0.05, 1e-5);
  assert_near(bench_student_p(2.228139, 10), 0.05, 1e-6);
  assert_near(bench_student_p(-4.604095, 4), 0.01, 1e-6);
  assert_near(bench_student_p(3.290527, 100000000), 0.001, 1e-4);
  assert_near(bench_student_p(0, 7), 1, 1e-12);
  assert_near(bench_student_quantile(0.01, 8), 3.355387, 1e-6);
  assert_near(bench_student_quantile(0.05, 3), 3.182446, 1e-6);
  assert_near(bench_student_quantile(0.5, 5), 0.7266868, 1e-6);
  assert_near(bench_student_p(0.5, 3), 0.6514480, 1e-6);
  assert_near(bench_student_p(9.531018, 3), 0.00244965, 1e-6);
}

/* One row, one run a side: an error of 1 % with 3 degrees of freedom. 1.10 is 9.53 errors away (p 0.0024), 1.05 is 4.88
 * (p 0.0165); the interval is 3.182 errors to each side. */
TEST(single_runs_have_an_error_of_one_per_cent) {
  bench_comparison c[1];
  const double ratios[] = {1.10, 1 / 1.10, 1.05};
  (void)decide(&ratios[0], 1, c);
  assert_int_equal(c->verdict, BENCH_FASTER);
  assert_near(c->ratio, 1.10, 1e-12);
  assert_near(c->ci_lo, 1.10 * exp(-0.03182446), 1e-6);
  assert_near(c->ci_hi, 1.10 * exp(0.03182446), 1e-6);
  assert_near(c->p, 0.00244965, 1e-6);
  (void)decide(&ratios[1], 1, c);
  assert_int_equal(c->verdict, BENCH_SLOWER);
  (void)decide(&ratios[2], 1, c);
  assert_int_equal(c->verdict, BENCH_INCONCLUSIVE);
  test_contains(c->reason, "one run a side");
}

/* Eight equal ratios of 1.12 are 11.3 errors, with 5 degrees of freedom: p is 0.0001, times 8. With ratios of 1.06 each p is
 * 0.0021: a verdict alone, but none times 8. */
TEST(p_values_are_adjusted_over_the_table) {
  bench_comparison c[MOST_ROWS];
  double ratios[MOST_ROWS] = {1.12, 1.12, 1.12, 1.12, 1.12, 1.12, 1.12, 1.12};
  (void)decide(ratios, 8, c);
  const double alone = bench_student_p(log(1.12) / 0.01, 5);
  assert_near(c[0].p, 8 * alone, 1e-9);
  assert_int_equal(c[0].verdict, BENCH_FASTER);
  for (int i = 0; i < 8; i++) ratios[i] = 1.06;
  (void)decide(ratios, 8, c);
  assert_true(bench_student_p(log(1.06) / 0.01, 5) < 0.01);
  assert_int_equal(c[0].verdict, BENCH_INCONCLUSIVE);
}

/* Time and peak slow down together: the ratio is 1, but a peak that moved by 10 % is an error of 10 %. */
TEST(shares_of_the_peak_are_compared) {
  bench_comparison c = one_run(100, 1e11, 110, 1e11 / 1.1);
  bench_comparisons t = {.design = BENCH_ONE_RUN, .margin = 0.01, .item = &c, .count = 1};
  assert_true(fabs(c.log_ratio) < 1e-12);
  assert_true(bench_comparisons_decide(&t));
  assert_near(c.error, hypot(0.01, log(1.1)), 1e-9);
  assert_int_equal(c.verdict, BENCH_INCONCLUSIVE);
  test_contains(c.reason, "peak loop moved");
  assert_near(t.mean.error, c.error, 1e-9); /* for one row: the same */
  c = one_run(100, 1e11, 110, 0);           /* without a peak on one side, times are compared */
  assert_near(c.log_ratio, -log(1.1), 1e-9);
  assert_true(isnan(c.drift));
}

/* Three runs a side: levels log 100 + (0, 0.01, -0.01) and log 80 + (0, 0.01, -0.01). The pooled standard deviation is 0.01
 * with 4 degrees of freedom. In a table of one row its square is also the typical one, divided by (1 - 2 / 36)^3. */
TEST(several_runs_tell_how_runs_differ) {
  fixed_row a[3], b[3];
  const bench_row *rows_a[3], *rows_b[3];
  for (int i = 0; i < 3; i++) {
    const double shift = exp(0.01 * (i == 1) - 0.01 * (i == 2));
    rows_a[i] = fix(&a[i], 100 * shift, 0);
    rows_b[i] = fix(&b[i], 80 * shift, 0);
  }
  bench_comparison c;
  bench_comparisons t = {.design = BENCH_SEVERAL_RUNS, .margin = 0.01, .item = &c, .count = 1};
  bench_comparison_measure(&c, rows_a, 3, rows_b, 3);
  assert_near(c.runs, 0.01, 1e-9);
  assert_near(c.log_ratio, log(1.25), 1e-9);
  assert_true(bench_comparisons_decide(&t));
  assert_int_equal(c.degrees, 4);
  assert_near(c.error, 0.01 / pow(1 - 2.0 / 36, 1.5) * sqrt(2.0 / 3), 1e-9);
  assert_int_equal(c.verdict, BENCH_FASTER);
  assert_near(t.mean.ratio, 1.25, 1e-9); /* with one row the mean is the row, with its error */
  assert_near(t.mean.error, 0.01 * sqrt(2.0 / 3), 1e-9);
}

/* Runs that agree by chance have an error of 0.05 % all the same. A table of six rows or more has twice the degrees of
 * freedom of a row. */
TEST(runs_that_agree_still_have_an_error) {
  fixed_row f[6];
  bench_comparison items[6];
  const bench_row *a[3], *b[3];
  for (int i = 0; i < 3; i++) a[i] = fix(&f[i], 100, 0), b[i] = fix(&f[3 + i], 100, 0);
  for (int count = 5; count <= 6; count++) {
    bench_comparisons t = {.design = BENCH_SEVERAL_RUNS, .margin = 0.01, .item = items, .count = count};
    for (int i = 0; i < count; i++) bench_comparison_measure(&items[i], a, 3, b, 3);
    assert_true(bench_comparisons_decide(&t));
    assert_near(items[0].error, 0.0005 * sqrt(2. / 3), 1e-9);
    assert_near(t.mean.error, 0.0005 * sqrt(2. / 3), 1e-9);
    assert_int_equal(items[0].degrees, count < 6 ? 4 : 8);
    assert_int_equal(items[0].verdict, BENCH_SAME);
  }
}

#define PAIRS(one, other) (&(bench_pairs){.a = (one), .b = (other), .n = 21})

/* 21 pairs, ratios 0.97 +- 0.001 in turns. Four at each end count as their neighbours, so that the squares of the steps are
 * 2 (1 + 4 + 9 + 16 + 25 + 36 x 5), over 13 x 12 (tests/harness/timing/test_stats.c). */
TEST(paired_rounds_see_three_per_cent) {
  double a[21], b[21];
  bench_comparison c = {0};
  bench_comparisons t = {.design = BENCH_PAIRED_ROUNDS, .margin = 0.01, .item = &c, .count = 1};
  for (int i = 0; i < 21; i++) b[i] = 100 + 10 * (i % 5), a[i] = b[i] * (0.97 + 0.0001 * (i - 10));
  bench_comparison_measure_paired(&c, PAIRS(a, b), PAIRS(a, a));
  assert_near(c.log_ratio, log(0.97), 1e-5);
  assert_near(c.within, 0.0001 / 0.97 * sqrt(470. / 13 / 12), 1e-4);
  assert_true(bench_comparisons_decide(&t));
  assert_near(c.error, c.within, 1e-12);
  assert_int_equal(c.degrees, 12);
  assert_int_equal(t.mean.degrees, 12);
  assert_int_equal(c.verdict, BENCH_SLOWER);
  for (int i = 0; i < 21; i++) a[i] = b[i] * (0.995 + 0.0001 * (i - 10)); /* surely different, but by less than 1 % */
  bench_comparison_measure_paired(&c, PAIRS(a, b), PAIRS(a, a));
  assert_true(bench_comparisons_decide(&t));
  assert_true(c.p < 0.01);
  assert_int_equal(c.verdict, BENCH_SAME);
}

/* A control that differs by 3 %, far beyond its rounds, is an error of 3 %: a ratio of 0.97 then says nothing. */
TEST(controls_that_differ_widen_the_interval) {
  double a[21], b[21], control[21];
  bench_comparison c = {0};
  bench_comparisons t = {.design = BENCH_PAIRED_ROUNDS, .margin = 0.01, .item = &c, .count = 1};
  for (int i = 0; i < 21; i++) b[i] = 100, a[i] = 97 + 0.01 * (i - 10), control[i] = a[i] / 1.03;
  bench_comparison_measure_paired(&c, PAIRS(a, b), PAIRS(a, control));
  assert_true(bench_comparisons_decide(&t));
  assert_true(c.error > log(1.03));
  assert_int_equal(c.verdict, BENCH_INCONCLUSIVE);
  test_contains(c.reason, "A/A control");
}

TEST(few_rounds_are_inconclusive) {
  fixed_row a, b;
  const bench_row *row_a = fix(&a, 100, 0), *row_b = fix(&b, 50, 0);
  b.row.time.n = 5;
  bench_comparison items[2];
  bench_comparisons t = {.design = BENCH_ONE_RUN, .margin = 0.01, .item = items, .count = 2};
  bench_comparison_measure(&items[0], &row_a, 1, &row_b, 1);
  b.row.time.n = 21;
  bench_comparison_measure(&items[1], &row_a, 1, &row_b, 1);
  assert_true(bench_comparisons_decide(&t));
  assert_int_equal(items[0].verdict, BENCH_INCONCLUSIVE);
  assert_string_equal(items[0].reason, "5 rounds are too few for an interval");
  assert_near(items[0].ratio, 2, 1e-12);
  assert_true(isnan(items[0].ci_lo) && !isnan(items[1].ci_lo));
  assert_near(t.mean.ratio, 2, 1e-12);
  assert_true(isnan(t.mean.ci_lo));
  assert_int_equal(t.mean.verdict, BENCH_INCONCLUSIVE);
  assert_string_equal(t.mean.reason, "1 of its 2 rows have too few rounds for an interval");
}

/* A comparison that memory was too short for: neither it nor the mean has a ratio. */
TEST(what_is_not_known_is_out_of_memory) {
  bench_comparison c = {.log_ratio = NAN, .within = NAN, .noise = NAN, .drift = NAN, .runs = NAN, .runs_a = 1, .runs_b = 1};
  for (bench_design design = BENCH_ONE_RUN; design <= BENCH_PAIRED_ROUNDS; design++) {
    bench_comparisons t = {.design = design, .margin = 0.01, .item = &c, .count = 1};
    assert_true(bench_comparisons_decide(&t));
    assert_string_equal(c.reason, "out of memory");
    assert_string_equal(t.mean.reason, "out of memory");
    assert_int_equal(c.verdict, BENCH_INCONCLUSIVE);
    assert_true(c.p == 1 && isnan(c.ci_lo) && isnan(c.ci_hi) && isnan(c.error) && isnan(c.ratio) && isnan(t.mean.ratio));
  }
}

TEST(equal_times_are_the_same) {
  double a[21];
  bench_comparison c = {0};
  bench_comparisons t = {.design = BENCH_PAIRED_ROUNDS, .margin = 0.01, .item = &c, .count = 1};
  for (int i = 0; i < 21; i++) a[i] = 100;
  bench_comparison_measure_paired(&c, PAIRS(a, a), PAIRS(a, a));
  assert_true(bench_comparisons_decide(&t));
  assert_int_equal(c.verdict, BENCH_SAME);
  assert_near(c.p, 1, 1e-12);
  t.count = 0; /* an empty table is none */
  assert_true(bench_comparisons_decide(&t));
}

/* ---- What errors are made of ----------------------------------------------------------------------------------------- */

/* A table that compares two runs, whose rounds do not differ. */
typedef struct kernel_table {
  bench_row row[MOST_ROWS];
  bench_comparison item[MOST_ROWS];
  bench_comparisons table;
} kernel_table;

/* Row i has ratio i and noise i; `each` rows that follow each other are of one kernel. */
static void fill_kernels(kernel_table *t, const double *ratios, const double *noises, int count, int each) {
  *t = (kernel_table){.table = {.design = BENCH_ONE_RUN, .margin = 0.01, .item = t->item, .count = count}};
  for (int i = 0; i < count; i++) {
    snprintf(t->row[i].kernel, sizeof t->row[i].kernel, "kernel %d", i / each);
    t->item[i] = one_run(100 * ratios[i], 0, 100, 0);
    t->item[i].a = t->item[i].b = &t->row[i];
    if (noises) t->item[i].noise = log1p(noises[i]);
  }
  assert_true(bench_comparisons_decide(&t->table));
}

/* Three rows of a kernel spread around their own middle, two rows around the middle of all. */
TEST(ratios_spread_around_the_middle_of_their_kernel) {
  static const double ratios[] = {1.2, 1.2 * 1.1, 1.2 / 1.1, 0.8, 0.8 * 1.1, 0.8 / 1.1};
  kernel_table t;
  fill_kernels(&t, ratios, NULL, 6, 3);
  for (int i = 0; i < 6; i++) assert_near(t.item[i].error, 1.482602 * log(1.1) * sqrt(1.5), 1e-6);
  assert_string_equal(t.item[0].reason, "+-56 %: ratios of equal kernels spread as far");
  static const double two_each[] = {1.1, 1 / 1.1, 1.2, 1 / 1.2, 1.3, 1 / 1.3};
  fill_kernels(&t, two_each, NULL, 6, 2);
  for (int i = 0; i < 6; i++) assert_near(t.item[i].error, 1.482602 * log(1.2) * sqrt(6. / 5), 1e-6);
  fill_kernels(&t, two_each, NULL, 5, 3); /* five rows say nothing of a spread */
  for (int i = 0; i < 5; i++) assert_near(t.item[i].error, 0.01, 1e-9);
  assert_int_equal(t.item[0].degrees, 3);
  fill_kernels(&t, ratios, NULL, 6, 3);
  assert_int_equal(t.item[0].degrees, 5);
  assert_int_equal(t.table.mean.degrees, 5);
  assert_near(t.table.mean.error, hypot(0.01, 1.482602 * log(1.1) * sqrt(1.5) / sqrt(6)), 1e-6);
}

/* The controls of both files differ by 5 % as a rule: an error, and of a row whose own control differs by more, that. */
TEST(controls_are_errors_of_single_runs) {
  static const double ratios[] = {1.01, 1.01, 1.01}, noises[] = {0.05, 0.05, 0.3};
  kernel_table t;
  fill_kernels(&t, ratios, noises, 3, 3);
  assert_near(t.item[0].error, 1.482602 * log1p(0.05), 1e-6);
  assert_near(t.item[2].error, log1p(0.3), 1e-6);
  test_contains(t.item[0].reason, "the A/A controls differ as well");
  static const double quiet[] = {0.002, 0.002, 0.3}; /* less than two runs may differ */
  fill_kernels(&t, ratios, quiet, 3, 3);
  assert_near(t.item[0].error, 0.01, 1e-9);
  assert_near(t.item[2].error, log1p(0.3), 1e-6);
}

/* One side's rows without samples, from what results.csv says: 100 +- 2 and 80 +- 1 ns. */
TEST(summaries_have_errors_as_well) {
  bench_row a = bench_row_create(NULL, NULL), b = a;
  const bench_row *rows_a = &a, *rows_b = &b;
  bench_comparison c;
  a.time = (bench_summary){.n = 21, .median = 100, .ci_lo = 98, .ci_hi = 102};
  b.time = (bench_summary){.n = 11, .median = 80, .ci_lo = 79, .ci_hi = 81};
  b.noise = 0.02;
  bench_comparison_measure(&c, &rows_a, 1, &rows_b, 1);
  const double error_a = log(102. / 98) / (2 * 1.959964), error_b = log(81. / 79) / (2 * 1.959964);
  assert_near(c.within, hypot(error_a, error_b), 1e-9);
  assert_near(c.log_ratio, log(1.25), 1e-9);
  assert_near(c.noise, log1p(0.02), 1e-9);
  assert_true(c.rounds == 11 && isnan(c.drift) && isnan(c.runs));
  a.peak_gflops = 50, b.peak_gflops = 60;
  bench_comparison_measure(&c, &rows_a, 1, &rows_b, 1);
  assert_near(c.log_ratio, log(1.25 * 50 / 60), 1e-9);
  assert_near(c.drift, log(60. / 50), 1e-9);
  bench_comparison_measure(&c, &rows_b, 1, &rows_a, 1);
  assert_int_equal(c.rounds, 11);
  assert_near(c.drift, log(60. / 50), 1e-9);
  b.peak_gflops = 0;
  bench_comparison_measure(&c, &rows_a, 1, &rows_b, 1);
  assert_near(c.log_ratio, log(1.25), 1e-9);
  const bench_row *several_a[] = {&a, &a, &a, &a}, *several_b[] = {&b, &b}; /* means have smaller errors */
  bench_comparison_measure(&c, several_a, 4, several_b, 2);
  assert_near(c.within, hypot(error_a / 2, error_b / sqrt(2)), 1e-9);
}

/* The rounds of a block are alike, and two of four blocks are 10 % slower, which is more than the interval of the median
 * says. Blocks of three rounds tell too little. */
TEST(neighbours_that_are_alike_widen_the_error) {
  double samples[20];
  bench_row row = bench_row_create(NULL, NULL), same = row;
  const bench_row *rows = &row, *others = &same;
  bench_comparison c;
  row.samples_ns = samples;
  same.time = (bench_summary){.n = 21, .median = 100, .ci_lo = 100, .ci_hi = 100};
  for (int length = 3; length <= 5; length++) {
    for (int i = 0; i < 4 * length; i++) samples[i] = exp(0.1 * (i / length / 2));
    row.time = bench_summarise(samples, 4 * length);
    bench_comparison_measure(&c, &rows, 1, &others, 1);
    const double interval = log(row.time.ci_hi / row.time.ci_lo) / (2 * 1.959964), blocks = sqrt(0.01 / 3 / 4);
    assert_true(interval < blocks);
    assert_near(c.within, length > 3 ? blocks : interval, 1e-6);
  }
}

/* Two rows of paired rounds, 1.5 and 0.5 % apart from their control: the mean knows both errors. */
TEST(means_of_paired_rounds_have_half_the_controls_error) {
  double a[2][21], b[21], control[2][21];
  bench_comparison items[2] = {{.log_ratio = 0}};
  bench_comparisons t = {.design = BENCH_PAIRED_ROUNDS, .margin = 0.01, .item = items, .count = 2};
  for (int i = 0; i < 21; i++)
    for (int row = 0; row < 2; row++) {
      b[i] = 100, a[row][i] = (row ? 90 : 110) + 0.01 * (i - 10);
      control[row][i] = a[row][i] / (row ? 1.005 : 1.015);
    }
  for (int row = 0; row < 2; row++)
    bench_comparison_measure_paired(&items[row], PAIRS(a[row], b), PAIRS(a[row], control[row]));
  assert_true(bench_comparisons_decide(&t));
  const double noise = 1.482602 * (log(1.015) + log(1.005)) / 2;
  const double within = (items[0].within + items[1].within) / 2;
  const double unequal = sqrt(noise * noise - within * within);
  assert_near(items[0].error, hypot(items[0].within, fmax(unequal, log(1.015) - 2 * items[0].within)), 1e-6);
  const double both = hypot(items[0].within / 2, items[1].within / 2);
  assert_near(t.mean.error, hypot(both, unequal / sqrt(2)), 1e-6);
  assert_near(t.mean.ratio, sqrt(1.1 * 0.9), 1e-6);
}

/* Two rows, two runs a side. The second runs of A are 2 and 4 % slower, those of B are equal: the mean of A shifts by 3 %.
 */
TEST(what_shifts_a_run_shifts_its_mean) {
  fixed_row f[8];
  bench_comparison items[2];
  bench_comparisons t = {.design = BENCH_SEVERAL_RUNS, .margin = 0.01, .item = items, .count = 2};
  for (int row = 0; row < 2; row++) {
    const bench_row *a[] = {fix(&f[4 * row], 100, 0), fix(&f[4 * row + 1], 100 * exp(row ? 0.04 : 0.02), 0)};
    const bench_row *b[] = {fix(&f[4 * row + 2], 90, 0), fix(&f[4 * row + 3], 90, 0)};
    bench_comparison_measure(&items[row], a, 2, b, 2);
    assert_near(items[row].runs, (row ? 0.02 : 0.01) * sqrt(2) / sqrt(2), 1e-6);
  }
  assert_true(bench_comparisons_decide(&t));
  assert_near(t.mean.log_ratio, log(100. / 90) + 0.015, 1e-9);
  assert_near(t.mean.error, 0.015 * sqrt(1. / 2 + 1. / 2), 1e-6);
  assert_int_equal(t.mean.degrees, 2);
  assert_int_equal(items[0].degrees, 2);
  const double typical = sqrt((0.01 * 0.01 + 0.02 * 0.02) / 2 / pow(1 - 2. / 18, 3)); /* in both rows */
  assert_near(items[0].error, typical, 1e-6);
  assert_near(items[1].error, fmax(typical, 0.02), 1e-6);
  test_contains(items[0].reason, "runs of one side differ by more");
}

/* The reason of a verdict: its p-value, the margin, or half the width of its interval. */
TEST(reasons_are_sentences) {
  double a[21], b[21];
  static const struct {
    double ratio, step; /* ratios of 21 rounds are this far apart */
    bench_change verdict;
    const char *reason;
  } cases[] = {{0.9, 1e-3, BENCH_SLOWER, "p 9.3e-16"},
               {1.1, 1e-3, BENCH_FASTER, "p 2.8e-16"},
               {1.001, 1e-9, BENCH_SAME, "within 1 %"},
               {1.009, 0.0005, BENCH_INCONCLUSIVE, "differs, perhaps by less than 1 %"},
               {1.0, 0.01, BENCH_INCONCLUSIVE, "+-3.9 %: rounds and placements differ by more"}};
  for (size_t n = 0; n < COUNT(cases); n++) {
    bench_comparison c = {0};
    bench_comparisons t = {.design = BENCH_PAIRED_ROUNDS, .margin = 0.01, .item = &c, .count = 1};
    for (int i = 0; i < 21; i++) b[i] = 100, a[i] = 100 * cases[n].ratio + 100 * cases[n].step * (i - 10);
    bench_comparison_measure_paired(&c, PAIRS(a, b), PAIRS(a, a));
    assert_true(bench_comparisons_decide(&t));
    assert_string_equal(c.reason, cases[n].reason);
    assert_int_equal(c.verdict, cases[n].verdict);
  }
}

/* ---- Tables ---------------------------------------------------------------------------------------------------------- */

/* Worst verdicts first, and among equal ones the smallest ratio. */
TEST(rows_are_sorted) {
  static const double ratios[] = {1.5, 0.6, 1.0, 2.0, 0.5, 0.7, 3.0, 1.01};
  static const double sorted[] = {0.5, 0.6, 0.7, 1.0, 1.01, 1.5, 2.0, 3.0};
  bench_matches m = {.table = {.design = BENCH_PAIRED_ROUNDS, .margin = 0.02}};
  double a[MOST_ROWS][21], b[21];
  for (int i = 0; i < MOST_ROWS; i++) {
    bench_comparison c = {0};
    for (int r = 0; r < 21; r++) b[r] = 100, a[i][r] = 100 * ratios[i] + 1e-4 * (r - 10);
    bench_comparison_measure_paired(&c, PAIRS(a[i], b), PAIRS(a[i], a[i]));
    assert_true(bench_matches_add(&m, &c));
  }
  assert_true(bench_matches_decide(&m));
  for (int i = 0; i < MOST_ROWS; i++) {
    assert_near(m.table.item[i].ratio, sorted[i], 1e-6);
    assert_int_equal(m.table.item[i].verdict, i < 3 ? BENCH_SLOWER : i < 5 ? BENCH_SAME : BENCH_FASTER);
  }
  bench_matches_clear(&m);
}

/* A comparison of two rows, and rows without a partner. */
typedef struct printed {
  bench_row row[6];
  bench_comparison item[2];
  bench_unpaired unpaired[4];
  bench_matches matches;
  bench_comparison_report report;
} printed;

static void name_row(bench_row *row, const char *kernel, const char *case_id, double time_ns) {
  *row = bench_row_create(NULL, NULL);
  snprintf(row->kernel, sizeof row->kernel, "%s", kernel);
  snprintf(row->case_id, sizeof row->case_id, "%s", case_id);
  row->seq_q = strstr(case_id, "Sq:64") ? 64 : 128;
  if (time_ns > 0) row->time = (bench_summary){.n = 21, .median = time_ns};
}

static void fill_printed(printed *p) {
  *p = (printed){.unpaired = {{&p->row[4], NULL}, {NULL, &p->row[4]}, {&p->row[0], &p->row[5]}, {&p->row[0], &p->row[1]}}};
  name_row(&p->row[0], "flash_c", "dtype:f32/Sq:64/D:32", 2000);
  name_row(&p->row[1], "flash_c", "dtype:f32/Sq:64/D:32", 2500);
  name_row(&p->row[2], "naive_c", "dtype:f32/Sq:128/D:32", 9000);
  name_row(&p->row[3], "naive_c", "dtype:f32/Sq:128/D:32", 6000);
  name_row(&p->row[4], "decode_c", "dtype:f32/Sq:1/D:32", 100);
  name_row(&p->row[5], "flash_c", "dtype:f32/Sq:64/D:32", 0);
  bench_set_reason(&p->row[5].verdict, BENCH_SKIP, "too \"long\"");
  for (int i = 0; i < 2; i++)
    p->item[i] = (bench_comparison){.a = &p->row[2 * i],
                                    .b = &p->row[2 * i + 1],
                                    .log_ratio = log(i ? 1.5 : 0.8),
                                    .within = 0.01,
                                    .degrees = 60,
                                    .noise = NAN,
                                    .drift = NAN,
                                    .ratio = i ? 1.5 : 0.8,
                                    .ci_lo = i ? 1.25 : 0.75,
                                    .ci_hi = i ? 1.75 : 0.875,
                                    .p = i ? 0.25 : 1e-6,
                                    .rounds = 21 + i,
                                    .verdict = i ? BENCH_INCONCLUSIVE : BENCH_SLOWER,
                                    .reason = "why"};
  p->matches = (bench_matches){
      .table =
          {.design = BENCH_PAIRED_ROUNDS,
           .margin = 0.01,
           .item = p->item,
           .count = 2,
           .mean = {.ratio = 1.125, .ci_lo = 1, .ci_hi = 1.25, .p = 0.5, .verdict = BENCH_SAME, .reason = "all, \"told\""}},
      .unpaired = p->unpaired,
      .unpaired_count = 4};
  p->report = (bench_comparison_report){
      .name_a = "old", .name_b = "new", .about_a = " (1 run)", .about_b = " (2 runs)", .matches = &p->matches};
}

static void expect_printed(bench_write_fn write, printed *p, const char *wanted) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *file = open_memstream(&text, &bytes);
  assert_non_null(file);
  write(&p->report, file);
  (void)fclose(file);
  assert_string_equal(text, wanted);
  free(text);
}

/* The rounds of the row that has the most of those that are undecided, four times. */
TEST(more_rounds_are_advised_where_they_decide) {
  static const char *const advice[] = {"", "--rounds 396\n", "--rounds 88\n", "--rounds 396\n"};
  printed p;
  fill_printed(&p);
  p.item[0].rounds = 99;
  for (int undecided = 0; undecided < 4; undecided++) { /* a bit for each row */
    char wanted[80] = "";
    for (int i = 0; i < 2; i++) p.item[i].verdict = undecided >> i & 1 ? BENCH_INCONCLUSIVE : BENCH_SAME;
    if (undecided) snprintf(wanted, sizeof wanted, "\nTo decide, take more rounds: %s", advice[undecided]);
    test_listen(stdout);
    bench_sides_advise(NULL, NULL, &p.matches);
    assert_string_equal(test_heard(), wanted);
  }
  p.item[0].verdict = BENCH_SAME;
  p.matches.table.count = 1; /* text behind the table is no row */
  test_listen(stdout);
  bench_sides_advise(NULL, NULL, &p.matches);
  assert_string_equal(test_heard(), "");
}

#define SIDES   "A: old (1 run)\nB: new (2 runs)\nratio: time of A / time of B; above 1, B is faster\n"
#define COLUMNS "\nverdict      ratio [95 %]               time of A  time of B  kernel           case  (reason)\n"
#define MEAN                                                               \
  "\ngeometric mean of 2: 1.1250 [1.0000, 1.2500], SAME (all, \"told\")\n" \
  "1 SLOWER, 1 INCONCLUSIVE, 0 SAME, 0 FASTER\n"

/* The text for people has lines with their own parts of the case id, the mean, missing rows and why, colours, and a pivot
 * table. */
TEST(tables_are_printed) {
  printed p;
  fill_printed(&p);
  expect_printed(bench_comparison_print, &p,
                 SIDES "all cases: dtype:f32/D:32\n" COLUMNS
                       "SLOWER       0.8000 [0.7500, 0.8750]     2.000 us   2.500 us  flash_c          Sq:64  (why)\n"
                       "INCONCLUSIVE 1.5000 [1.2500, 1.7500]     9.000 us   6.000 us  naive_c          Sq:128  (why)\n" MEAN
                       "\n"
                       "not compared: 4\n"
                       "  decode_c dtype:f32/Sq:1/D:32 (not in B)\n"
                       "  decode_c dtype:f32/Sq:1/D:32 (not in A)\n"
                       "  flash_c dtype:f32/Sq:64/D:32 (SKIP in B: too \"long\")\n"
                       "  flash_c dtype:f32/Sq:64/D:32 (not in every run)\n");
  p.report.by[0] = "kernel", p.report.by[1] = "seq_q", p.report.colour = true;
  p.row[0].seq_q = 1024; /* numbers come in their order */
  p.matches.unpaired_count = 0;
  expect_printed(bench_comparison_print, &p,
                 SIDES "all cases: dtype:f32/D:32\n" COLUMNS
                       "\033[31mSLOWER       0.8000 [0.7500, 0.8750]     2.000 us   2.500 us  flash_c          Sq:64  "
                       "(why)\033[0m\n"
                       "\033[2mINCONCLUSIVE 1.5000 [1.2500, 1.7500]     9.000 us   6.000 us  naive_c          Sq:128  "
                       "(why)\033[0m\n" MEAN
                       "\n"
                       "kernel            seq_q 128                   seq_q 1024                \n"
                       "flash_c                                       0.8000 [0.7842, 0.8162] - \n"
                       "naive_c           1.5000 [1.4703, 1.5303] +                             \n");
  p.matches.table.count = 0, p.matches.unpaired_count = 1;
  expect_printed(bench_comparison_print, &p,
                 SIDES
                 "\n"
                 "not compared: 1\n"
                 "  decode_c dtype:f32/Sq:1/D:32 (not in B)\n");
}

/* One row has no part of its own, two different ones have none in common. Without memory there is no mean. */
TEST(cases_without_parts_are_dashes) {
  printed p;
  fill_printed(&p);
  p.matches.table.count = 1, p.matches.unpaired_count = 0;
  p.matches.table.mean =
      (bench_comparison){.ratio = NAN, .ci_lo = NAN, .ci_hi = NAN, .verdict = BENCH_INCONCLUSIVE, .reason = "out of memory"};
  expect_printed(bench_comparison_print, &p,
                 SIDES "all cases: dtype:f32/Sq:64/D:32\n" COLUMNS
                       "SLOWER       0.8000 [0.7500, 0.8750]     2.000 us   2.500 us  flash_c          -  (why)\n"
                       "\n"
                       "geometric mean of 1: out of memory, INCONCLUSIVE (out of memory)\n"
                       "1 SLOWER, 0 INCONCLUSIVE, 0 SAME, 0 FASTER\n");
  snprintf(p.row[2].case_id, sizeof p.row[2].case_id, "B:1");
  p.matches.table.count = 2;
  expect_printed(
      bench_comparison_print, &p,
      SIDES "all cases: -\n" COLUMNS
            "SLOWER       0.8000 [0.7500, 0.8750]     2.000 us   2.500 us  flash_c          dtype:f32/Sq:64/D:32  (why)\n"
            "INCONCLUSIVE 1.5000 [1.2500, 1.7500]     9.000 us   6.000 us  naive_c          B:1  (why)\n"
            "\n"
            "geometric mean of 2: out of memory, INCONCLUSIVE (out of memory)\n"
            "1 SLOWER, 1 INCONCLUSIVE, 0 SAME, 0 FASTER\n");
}

TEST(axes_have_their_columns) {
  static const char *const pairs[][2] = {{"seq", "seq_q"},       {"head_dim", "dim_qk"}, {"heads", "heads_q"},
                                         {"dtype", "dtype_kv"},  {"tier", "isa"},        {"kernel", "kernel"},
                                         {"threads", "threads"}, {"layer", "layer"},     {"status", NULL},
                                         {"run_id", NULL},       {"case_id", NULL},      {"seqs", NULL}};
  for (size_t i = 0; i < COUNT(pairs); i++) {
    const char *column = bench_pivot_column(pairs[i][0]);
    assert_true(!column == !pairs[i][1]);
    if (column) assert_string_equal(column, pairs[i][1]);
  }
}
