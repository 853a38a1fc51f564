/* SPDX-License-Identifier: MIT */
/* The order statistics of the harness against values calculated by hand and intervals from a table. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/support.h"
#include "timing/stats.h"

static void assert_close(double a, double b) {
  if (!(fabs(a - b) <= 1e-12 * (1 + fabs(b)))) fail_msg("%.17g instead of %.17g", a, b);
}

TEST(a_few_values_have_no_interval) {
  const double values[] = {10, 14, 11, 30, 12};
  const bench_summary s = bench_summarise(values, 5);
  assert_int_equal(s.n, 5);
  assert_close(s.min, 10);
  assert_close(s.median, 12);
  assert_close(s.mad, 2);                        /* |x - 12| = 2 2 1 18 0 */
  assert_true(isnan(s.ci_lo) && isnan(s.ci_hi)); /* even the whole range of 5 values covers the median in 94 % only */
  for (int n = 1; n <= 5; n++) {
    const bench_summary ratio = bench_paired_ratio(&(bench_pairs){.a = values, .b = values, .n = n});
    assert_close(ratio.median, 1);
    assert_true(isnan(ratio.ci_lo) && isnan(ratio.ci_hi));
  }
}

TEST(paired_ratio_is_per_round) {
  double a[21], b[21];
  for (int i = 0; i < 21; i++) {
    b[i] = 100 * pow(1.5, i % 4); /* rounds differ much more than a and b */
    a[i] = b[i] * (i % 3 == 0 ? 1.9 : i % 3 == 1 ? 2.0 : 2.1);
  }
  const bench_summary s = bench_paired_ratio(&(bench_pairs){.a = a, .b = b, .n = 21});
  assert_int_equal(s.n, 21);
  assert_close(s.min, 1.9);
  assert_close(s.median, exp((3 * log(1.9) + 7 * log(2.0) + 3 * log(2.1)) / 13)); /* four of 21 are left out at each end */
  assert_true(s.ci_lo >= 1.9 - 1e-9 && s.ci_lo <= 2.0 + 1e-9);
  assert_true(s.ci_hi >= 2.0 - 1e-9 && s.ci_hi <= 2.1 + 1e-9);
  const bench_summary inverse = bench_paired_ratio(&(bench_pairs){.a = b, .b = a, .n = 21});
  assert_close(inverse.median, 1 / s.median);
  assert_close(inverse.ci_lo, 1 / s.ci_hi);
  assert_close(inverse.ci_hi, 1 / s.ci_lo);
}

/* Log-ratios of six placements, two rounds each: medians 0 1 2 3 4 100. Without the ends the mean is 2.5; with them as
 * their neighbours 1 1 2 3 4 4 the squares are 9.5, so that the error is sqrt(9.5 / 4 / 3) with 3 degrees of freedom. */
TEST(placements_count_once_each) {
  static const double medians[] = {2, 100, 0, 3, 1, 4};
  double a[13], b[13];
  for (int i = 0; i < 13; i++) b[i] = 1 + i, a[i] = b[i] * exp(medians[i / 2 % 6] + (i % 2 ? 0.1 : -0.1));
  a[12] = b[12] * exp(medians[0] - 0.1); /* the first placement again: its median is that of three rounds */
  bench_estimate e = bench_paired_estimate(&(bench_pairs){.a = a, .b = b, .n = 12, .placing = {.count = 6, .length = 2}});
  assert_close(e.value, 2.5);
  assert_close(e.error, sqrt(9.5 / 12));
  assert_int_equal(e.degrees, 3);
  assert_close(bench_estimate_p(e), bench_student_p(2.5 / sqrt(9.5 / 12), 3));
  const bench_summary s = bench_paired_ratio(&(bench_pairs){.a = a, .b = b, .n = 12, .placing = {.count = 6, .length = 2}});
  assert_close(s.ci_lo, exp(2.5 - bench_student_quantile(0.05, 3) * sqrt(9.5 / 12)));
  e = bench_paired_estimate(&(bench_pairs){.a = a, .b = b, .n = 13, .placing = {.count = 6, .length = 2}});
  assert_close(e.value, (1 + 1.9 + 3 + 4) / 4);
  e = bench_paired_estimate(
      &(bench_pairs){.a = a, .b = b, .n = 12, .placing = {.count = 3, .length = 2}}); /* 2.5, 52, 0.5 */
  assert_int_equal(e.degrees, 2);
  e = bench_paired_estimate(&(bench_pairs){
      .a = a, .b = b, .n = 12, .placing = {.count = 1, .length = 12}}); /* one placement says nothing of others */
  assert_true(isnan(e.error) && bench_estimate_p(e) == 1);
}

/* Every second round lost its cores for a while in one trial or in the other. Without them the ratio is 2; a trial whose
 * threads sleep in every round has lost nothing. Five rounds that are left have no interval. */
TEST(rounds_that_lost_their_cores_do_not_count) {
  double a[24], b[24], ran_a[24], ran_b[24];
  for (int i = 0; i < 24; i++) {
    const bool lost = i % 2;
    b[i] = 10 + i, a[i] = b[i] * (lost ? 3 : 2);
    ran_a[i] = lost && i % 4 == 1 ? 0.9 : 1 - 1e-3 * (i % 3);
    ran_b[i] = lost && i % 4 == 3 ? 0.4 : 0.5 - 1e-3 * (i % 3);
  }
  bench_pairs pairs = {.a = a, .b = b, .ran_a = ran_a, .ran_b = ran_b, .n = 24};
  assert_close(bench_paired_estimate(&pairs).value, log(2));
  assert_int_equal(bench_paired_estimate(&pairs).degrees, 12 - 2 * 2 - 1);
  assert_int_equal(bench_paired_estimate(&pairs).rounds, 12);
  pairs.n = 12;
  assert_close(bench_paired_estimate(&pairs).error, 0);
  assert_int_equal(bench_paired_estimate(&pairs).rounds, 6);
  pairs.n = 10;
  assert_true(isnan(bench_paired_estimate(&pairs).error) && bench_paired_estimate(&pairs).value > log(2.1));
  pairs.n = 24, pairs.ran_b = NULL;
  assert_true(bench_paired_estimate(&pairs).value > log(2) && bench_paired_estimate(&pairs).degrees == 18 - 2 * 3 - 1);
}

/* Over many seeded samples the interval must hold the true median in about 95 % of them, and not in many more. */
TEST(interval_covers_as_often_as_it_says) {
  enum { TRIALS = 4000, N = 21 };
  int covered = 0;
  float uniform[N];
  double values[N];
  for (int trial = 0; trial < TRIALS; trial++) {
    test_fill(uniform, N, (unsigned)trial);
    for (int i = 0; i < N; i++) values[i] = exp((double)(3 * uniform[i])); /* skewed, like times; median 1 */
    const bench_summary s = bench_summarise(values, N);
    covered += s.ci_lo <= 1 && 1 <= s.ci_hi;
  }
  const double share = (double)covered / TRIALS; /* the exact value is 0.9734 */
  print_message("  covered %.4f\n", share);
  assert_true(share > 0.965 && share < 0.981);
}

/* ---- Random values, and the same by sorting and counting ------------------------------------------------------------- */

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double middle(double *sorted, int n) {
  qsort(sorted, (size_t)n, sizeof *sorted, compare);
  return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

/* P(X <= k) of n coins, by Pascal's triangle. */
static double tail_of_coins(int n, int k) {
  double p[64] = {1};
  for (int i = 0; i < n; i++)
    for (int j = i + 1; j >= 0; j--) p[j] = 0.5 * (p[j] + (j ? p[j - 1] : 0));
  double sum = 0;
  for (int i = 0; i <= k; i++) sum += p[i];
  return sum;
}

/* Whole numbers, so that some are equal. */
static void draw(double *values, int n, unsigned seed) {
  float uniform[64];
  test_fill(uniform, (size_t)n, seed);
  for (int i = 0; i < n; i++) values[i] = floor((double)(uniform[i] * (float)(seed % 3 ? 30 : 3)));
}

TEST(summaries_are_those_of_sorted_values) {
  for (unsigned seed = 1; seed < 300; seed++) {
    const int n = 1 + (int)(seed % 60);
    double values[64], sorted[64], apart[64], ratios[64];
    int rank = 0;
    draw(values, n, seed);
    memcpy(sorted, values, sizeof sorted);
    const double median = middle(sorted, n);
    for (int i = 0; i < n; i++) apart[i] = fabs(values[i] - median), ratios[i] = exp(values[i] / 10);
    while (2 * tail_of_coins(n, rank) <= 0.05) rank++;
    const bench_summary s = bench_summarise(values, n), r = bench_paired_ratio(&(bench_pairs){.a = ratios, .b = ratios});
    assert_true(s.n == n && s.min == sorted[0] && r.n == 0 && isnan(r.median));
    assert_close(s.median, median);
    assert_close(s.mad, middle(apart, n));
    assert_int_equal(bench_median_rank(n), rank);
    assert_true(rank ? s.ci_lo == sorted[rank - 1] && s.ci_hi == sorted[n - rank] : isnan(s.ci_lo) && isnan(s.ci_hi));
    assert_close(bench_median(values, n), median);
    assert_true(bench_lower_quartile(values, n) == sorted[n / 4]);
  }
}

/* Each p-value times the number of those that are not smaller, the largest of it and of all smaller ones. */
TEST(holm_adjusts_in_any_order) {
  for (unsigned seed = 1; seed < 200; seed++) {
    const int n = 1 + (int)(seed % 20);
    double p[64], got[64];
    draw(p, n, seed);
    for (int i = 0; i < n; i++) got[i] = p[i] = fabs(p[i]) / 100;
    assert_true(bench_holm(got, n));
    for (int i = 0; i < n; i++) {
      double most = 0;
      for (int j = 0; j < n; j++) {
        int others = 0;
        for (int k = 0; k < n; k++) others += p[k] >= p[j];
        if (p[j] <= p[i]) most = fmax(most, fmin(1, p[j] * others));
      }
      assert_close(got[i], most);
    }
  }
}

/* The area of both tails, by Simpson's rule over t = tan(x). */
static double area_beyond(double t, int degrees) {
  enum { STEPS = 4000 };
  const double from = atan(t), step = (acos(0.0) - from) / STEPS;
  const double scale = exp(lgamma(0.5 * (degrees + 1)) - lgamma(0.5 * degrees)) / sqrt(2 * acos(0.0) * degrees);
  double sum = 0;
  for (int i = 0; i < STEPS; i++) { /* the density is 0 at the end */
    const double x = tan(from + i * step), density = scale * pow(1 + x * x / degrees, -0.5 * (degrees + 1)) * (1 + x * x);
    sum += density * (i == 0 ? 1 : i % 2 ? 4 : 2);
  }
  return 2 * sum * step / 3 + (degrees == 1 ? 2 * scale * step / 3 : 0);
}

TEST(students_tails_are_areas) {
  for (int degrees = 1; degrees < 60; degrees += 1 + degrees / 4)
    for (double t = 0; t < 12; t += 0.37) {
      const double p = bench_student_p(t, degrees);
      if (!(fabs(p - area_beyond(t, degrees)) < 1e-9)) fail_msg("t %g, %d: %.12g", t, degrees, p);
      if (p < 1) assert_true(fabs(bench_student_quantile(p, degrees) / t - 1) < 1e-9);
      assert_true(bench_student_p(-t, degrees) == p);
    }
  assert_true(bench_student_p(INFINITY, 5) == 0 && isinf(bench_student_quantile(0, 5)) &&
              bench_student_quantile(1, 5) < 1e-9);
}

/* ---- Orders ---------------------------------------------------------------------------------------------------------- */

/* Every trial stands once in every row and place; of an even number, each follows each other once. Blocks differ. A seed
 * always gives the same squares, so that published orders can be made again. */
TEST(orders_are_latin_squares_of_their_seed) {
  uint64_t hash = 0xcbf29ce484222325u;
  int first[6] = {0};
  for (int n = 1; n <= 8; n++)
    for (int block = 0; block < 240; block++) {
      int square[64], rows[64] = {0}, places[64] = {0}, pairs[64] = {0};
      assert_true(bench_latin_square(square, n, 9, block));
      for (int i = 0; i < n * n; i++) {
        hash = (hash ^ (uint64_t)square[i]) * 0x100000001b3u;
        assert_int_equal(rows[i / n * n + square[i]]++, 0);
        assert_int_equal(places[i % n * n + square[i]]++, 0);
        if (i % n && n % 2 == 0) assert_int_equal(pairs[square[i - 1] * n + square[i]]++, 0);
      }
      if (n == 3) first[2 * square[0] + (square[1] > square[2])]++;
    }
  for (int i = 0; i < 6; i++) assert_true(first[i] > 20 && first[i] < 60); /* each order of three: 40 of 240 */
  assert_int_equal(hash, 0x49779657cdd18621u);
}
