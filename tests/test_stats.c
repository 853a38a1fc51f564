/* SPDX-License-Identifier: MIT */
/* The order statistics of the harness against values calculated by hand and intervals from a table. */
#include <math.h>

#include "support.h"
#include "timing/stats.h"

static void assert_close(double a, double b) {
  if (!(fabs(a - b) <= 1e-12 * (1 + fabs(b)))) fail_msg("%.17g instead of %.17g", a, b);
}

TEST(median_of_odd_and_even_counts) {
  const double one[] = {3}, odd[] = {5, -1, 3}, even[] = {4, 1, 3, 2};
  assert_close(bench_median(one, 1), 3);
  assert_close(bench_median(odd, 3), 3);
  assert_close(bench_median(even, 4), 2.5);
  assert_close(odd[0], 5); /* the input is not sorted */
  assert_close(even[0], 4);
}

TEST(a_few_values_have_no_interval) {
  const double values[] = {10, 14, 11, 30, 12};
  const bench_summary s = bench_summarise(values, 5);
  assert_int_equal(s.n, 5);
  assert_close(s.min, 10);
  assert_close(s.median, 12);
  assert_close(s.mad, 2);                        /* |x - 12| = 2 2 1 18 0 */
  assert_true(isnan(s.ci_lo) && isnan(s.ci_hi)); /* even the whole range of 5 values covers the median in 94 % only */
  const bench_summary ratio = bench_paired_ratio(values, values, 5);
  assert_close(ratio.median, 1);
  assert_true(isnan(ratio.ci_lo) && isnan(ratio.ci_hi));
}

/* The 95 % interval of a median from order statistics: the 1-based ranks l..n+1-l cover it with 1 - 2 P(B < l), where B is
 * binomial(n, 1/2); l is the largest rank that covers 95 %. The values are 1..n in mixed order, so a value is its rank. */
TEST(interval_has_the_tabulated_ranks) {
  static const struct {
    int n, lo, hi;
  } table[] = {{6, 1, 6}, {8, 1, 8}, {9, 2, 8}, {11, 2, 10}, {15, 4, 12}, {21, 6, 16}, {31, 10, 22}, {51, 19, 33}};
  double values[51];
  for (size_t row = 0; row < COUNT(table); row++) {
    const int n = table[row].n;
    for (int i = 0; i < n; i++) values[i] = i % 2 ? n - i / 2 : 1 + i / 2;
    const bench_summary s = bench_summarise(values, n);
    print_message("  n = %d: %g..%g\n", n, s.ci_lo, s.ci_hi);
    assert_close(s.median, (n + 1) / 2.0);
    assert_close(s.ci_lo, table[row].lo);
    assert_close(s.ci_hi, table[row].hi);
  }
}

TEST(paired_ratio_is_per_round) {
  double a[21], b[21];
  for (int i = 0; i < 21; i++) {
    b[i] = 100 * pow(1.5, i % 4); /* rounds differ much more than a and b */
    a[i] = b[i] * (i % 3 == 0 ? 1.9 : i % 3 == 1 ? 2.0 : 2.1);
  }
  const bench_summary s = bench_paired_ratio(a, b, 21);
  assert_int_equal(s.n, 21);
  assert_close(s.median, 2.0);
  assert_close(s.min, 1.9);
  assert_true(s.ci_lo >= 1.9 - 1e-9 && s.ci_lo <= 2.0 + 1e-9);
  assert_true(s.ci_hi >= 2.0 - 1e-9 && s.ci_hi <= 2.1 + 1e-9);
  const bench_summary inverse = bench_paired_ratio(b, a, 21);
  assert_close(inverse.median, 0.5);
  assert_close(inverse.ci_lo, 1 / s.ci_hi);
  assert_close(inverse.ci_hi, 1 / s.ci_lo);
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

/* Binomial tails by hand: 6 of 6 pairs above, then 3 of 4. */
TEST(sign_test_counts_pairs) {
  const double ones[] = {1, 1, 1, 1, 1, 1}, twos[] = {2, 2, 2, 2, 2, 2}, mixed[] = {2, 2, 2, 0, 1, 1};
  assert_close(bench_sign_test(twos, ones, 6), 2.0 / 64);
  assert_close(bench_sign_test(ones, twos, 6), 2.0 / 64);
  assert_close(bench_sign_test(mixed, ones, 6), 2.0 * (1 + 4) / 16); /* the two equal pairs are left out */
  assert_close(bench_sign_test(mixed + 2, ones, 2), 1);              /* one above, one below */
  assert_close(bench_sign_test(ones, ones, 6), 1);
}

/* The sorted p-values are multiplied by 4, 3, 2 and 1; the results never fall and are at most 1. */
TEST(holm_adjusts_in_place) {
  double p[] = {0.01, 0.04, 0.03, 0.005}, large[] = {0.6, 0.7};
  const double adjusted[] = {0.03, 0.06, 0.06, 0.02};
  assert_true(bench_holm(p, 4) && bench_holm(large, 2) && bench_holm(large, 0));
  for (int i = 0; i < 4; i++) assert_close(p[i], adjusted[i]);
  assert_close(large[0], 1);
  assert_close(large[1], 1);
}
