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

/* Which rounds share a placement: round r has number r / length % count. Zeros: every round has its own. */
typedef struct bench_placing {
  int count, length;
} bench_placing;

/* Times of two trials in the same n rounds (all > 0). ran: which part of its time each trial had its cores, or NULL. */
typedef struct bench_pairs {
  const double *a, *b, *ran_a, *ran_b;
  int n;
  bench_placing placing;
} bench_pairs;

/* The mean over the placements of log(a / b), a trimmed mean of their medians, with its standard error: both what rounds and
 * what placements differ by. Rounds in which another program had a core of a trial do not count. value NaN: memory is short,
 * or n = 0; error NaN: fewer than 6 rounds that count (the value is of all then), or 2 placements. */
typedef struct bench_estimate {
  double value, error;
  int degrees; /* degrees of freedom */
  int rounds;  /* rounds that count */
} bench_estimate;
bench_estimate bench_paired_estimate(const bench_pairs *pairs);

/* The two-sided p-value of an estimate: 1 without an error. */
double bench_estimate_p(bench_estimate estimate);

/* Paired ratio a/b: exp of that estimate, with its 95 % interval; min and mad are of the rounds, mad the relative deviation
 * from their median, exp(mad of the logs) - 1. */
bench_summary bench_paired_ratio(const bench_pairs *pairs);

double bench_median(const double *values, int n);

/* The value with number n / 4 of the ascending ones, from 0; NaN if n < 1. */
double bench_lower_quartile(const double *values, int n);

/* The median of values that a function computes. */
typedef double bench_value_fn(const void *context, int index);
double bench_median_of(bench_value_fn *get, const void *context, int n);

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
