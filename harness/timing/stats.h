/* SPDX-License-Identifier: MIT */
/* Order statistics, which assume no normality, and the order of trials in a round. NaN never enters. With n = 0 the
 * summary is bench_no_summary. */
#ifndef BENCH_STATS_H
#define BENCH_STATS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct bench_summary {
  double min, median, mad; /* mad: median absolute deviation, not scaled */
  double ci_lo, ci_hi;     /* 95 % interval of the median from order statistics (binomial); NaN if n < 6: there is none */
  int n;
} bench_summary;

extern const bench_summary bench_no_summary; /* NaN; n = 0 */

bench_summary bench_summarise(const double *values, int n);

/* Paired ratio a/b per round (all values > 0): exp of the median log-ratio, with its sign-test interval; mad is the relative
 * deviation, exp(mad of the logs) - 1. */
bench_summary bench_paired_ratio(const double *a, const double *b, int n);

double bench_median(const double *values, int n);

/* The same of values that a function computes. */
typedef double bench_value_fn(const void *context, int index);
double bench_median_of(bench_value_fn *get, const void *context, int n);

/* Sign test: the two-sided p-value of "a is above b as often as below". Equal pairs are left out; 1 if nothing is left. */
double bench_sign_test(const double *a, const double *b, int n);

/* Holm's adjustment (1979) of n p-values in place: to reject those that are then <= alpha keeps the chance of any false
 * rejection at alpha. False if memory is short. */
bool bench_holm(double *p, int n);

/* Student's t: the two-sided p-value of a statistic, and the statistic of a p-value in 0..1 (infinity for 0). */
double bench_student_p(double t, int degrees);
double bench_student_quantile(double p, int degrees);

/* The largest rank k (from 1) for which the k-th smallest and the k-th largest of n values hold the median with >= 95 %;
 * 0 if n < 6: not even the smallest and the largest do. */
int bench_median_rank(int n);

/* A randomised Latin square: the orders of one block of n rounds. Row r of square[n][n] is the order of round r; every trial
 * stands once in every place. Blocks are shuffled independently. False if memory is short. */
bool bench_latin_square(int *square, int n, uint64_t seed, int block);

#endif
