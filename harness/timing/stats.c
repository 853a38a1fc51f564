/* SPDX-License-Identifier: MIT */
/* Medians, their distribution-free intervals, paired ratios, and the order of trials. */
#include "timing/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/generate.h"

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* NULL if memory is short. */
static double *sorted_copy(const double *values, int n) {
  double *copy = malloc((size_t)n * sizeof *copy);
  if (!copy) return NULL;
  memcpy(copy, values, (size_t)n * sizeof *copy);
  qsort(copy, (size_t)n, sizeof *copy, compare_doubles);
  return copy;
}

static double sorted_median(const double *sorted, int n) {
  return n % 2 ? sorted[n / 2] : 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]);
}

/* P(X = i) for X ~ Binomial(n, 1/2); by logarithms, as 2^-n underflows for large n. */
static double binomial_half(int n, int i) {
  return exp(lgamma(n + 1.0) - lgamma(i + 1.0) - lgamma(n - i + 1.0) - n * log(2.0));
}

/* The interval [x(k), x(n+1-k)] of the sorted values holds the median of any continuous distribution with probability
 * 1 - 2 P(X < k), X ~ Binomial(n, 1/2) counting the values below it. Takes the largest k that keeps 95 %. */
int bench_median_rank(int n) {
  double below = 0.0;
  int k = 0;
  while (k < n / 2 && (below += binomial_half(n, k)) <= 0.025) k++;
  return k;
}

const bench_summary bench_no_summary = {.min = NAN, .median = NAN, .mad = NAN, .ci_lo = NAN, .ci_hi = NAN};

bench_summary bench_summarise(const double *values, int n) {
  bench_summary s = {.n = n};
  double *sorted = n > 0 ? sorted_copy(values, n) : NULL;
  if (!sorted) return bench_no_summary;
  const int rank = bench_median_rank(n);
  s.min = sorted[0];
  s.median = sorted_median(sorted, n);
  s.ci_lo = rank ? sorted[rank - 1] : NAN;
  s.ci_hi = rank ? sorted[n - rank] : NAN;
  for (int i = 0; i < n; i++) sorted[i] = fabs(sorted[i] - s.median);
  qsort(sorted, (size_t)n, sizeof *sorted, compare_doubles);
  s.mad = sorted_median(sorted, n);
  free(sorted);
  return s;
}

/* The interval holds the median log-ratios that the sign test does not reject. */
bench_summary bench_paired_ratio(const double *a, const double *b, int n) {
  double *log_ratio = n > 0 ? malloc((size_t)n * sizeof *log_ratio) : NULL;
  if (!log_ratio) return bench_no_summary;
  for (int i = 0; i < n; i++) log_ratio[i] = log(a[i] / b[i]);
  bench_summary s = bench_summarise(log_ratio, n);
  free(log_ratio);
  return (bench_summary){.min = exp(s.min),
                         .median = exp(s.median),
                         .mad = expm1(s.mad),
                         .ci_lo = exp(s.ci_lo),
                         .ci_hi = exp(s.ci_hi),
                         .n = s.n};
}

double bench_median(const double *values, int n) { return bench_summarise(values, n).median; }

/* ---- Tests ---------------------------------------------------------------------------------------------------------- */

double bench_sign_test(const double *a, const double *b, int n) {
  int above = 0, below = 0;
  for (int i = 0; i < n; i++) {
    above += a[i] > b[i];
    below += a[i] < b[i];
  }
  const int pairs = above + below, fewer = above < below ? above : below;
  double tail = 0.0;
  for (int i = 0; i <= fewer; i++) tail += binomial_half(pairs, i);
  return fmin(1.0, 2 * tail);
}

static int compare_pointees(const void *a, const void *b) {
  return compare_doubles(*(const double *const *)a, *(const double *const *)b);
}

/* Multiplies the smallest of n p-values by n, the next by n - 1, and so on; none may become less than a smaller one. */
bool bench_holm(double *p, int n) {
  double **order = malloc((size_t)(n + 1) * sizeof *order), least = 0.0;
  if (!order) return false;
  for (int i = 0; i < n; i++) order[i] = &p[i];
  qsort(order, (size_t)n, sizeof *order, compare_pointees);
  for (int i = 0; i < n; i++) *order[i] = least = fmax(least, fmin(1.0, *order[i] * (n - i)));
  free(order);
  return true;
}

/* ---- Order of the trials ------------------------------------------------------------------------------------------- */

static void shuffle(int *items, int count, uint64_t seed, uint64_t index) {
  for (int i = 0; i < count; i++) items[i] = i;
  for (int i = count - 1; i > 0; i--) {
    const int j = (int)bench_value_below(seed, BENCH_STREAM_ORDER, index + (uint64_t)i, i + 1), item = items[i];
    items[i] = items[j];
    items[j] = item;
  }
}

/* 0, 1, n-1, 2, n-2, ... */
static int zigzag(int place, int n) { return place % 2 ? (place + 1) / 2 : (n - place / 2) % n; }

/* Row r, place p holds name[(zigzag(p) + shift[r]) mod n] (Williams 1949): a Latin square for any n. For even n every trial
 * also follows every other equally often. */
bool bench_latin_square(int *square, int n, uint64_t seed, int block) {
  int *name = malloc(2 * (size_t)n * sizeof *name);
  if (!name) return false;
  int *shift = name + n;
  shuffle(name, n, seed, (uint64_t)block * 2 * (uint64_t)n);
  shuffle(shift, n, seed, ((uint64_t)block * 2 + 1) * (uint64_t)n);
  for (int row = 0; row < n; row++)
    for (int place = 0; place < n; place++) square[row * n + place] = name[(zigzag(place, n) + shift[row]) % n];
  free(name);
  return true;
}
