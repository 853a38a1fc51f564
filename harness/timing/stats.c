/* SPDX-License-Identifier: MIT */
/* Medians, their distribution-free intervals, paired ratios and their errors, and the order of trials. */
#include "timing/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/generate.h"
#include "kernels/common/problem/arithmetic.h"

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Maps doubles to whole numbers of the same order: their bits, turned round for negative numbers. */
static uint64_t place_of(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits >> 63 ? ~bits : bits | 1ULL << 63;
}

static double value_at(uint64_t place) {
  const uint64_t bits = place >> 63 ? place & ~(1ULL << 63) : ~place;
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* Values by their number; with `from`, their distances from it. */
typedef struct values {
  bench_value_fn *get;
  const void *context;
  int n;
  const double *from;
} values;

/* The k-th smallest (from 0). Halves the range where it lies, so that nothing is sorted and no memory is needed. */
static double kth(const values *v, int k) {
  uint64_t least = 0, most = UINT64_MAX;
  while (least < most) {
    const uint64_t middle = least + (most - least) / 2;
    int count = 0;
    for (int i = 0; i < v->n; i++) {
      const double value = v->get(v->context, i);
      count += place_of(v->from ? fabs(value - *v->from) : value) <= middle;
    }
    if (count > k)
      most = middle;
    else
      least = middle + 1;
  }
  return value_at(least);
}

static double median_of(const values *v) {
  return v->n % 2 ? kth(v, v->n / 2) : 0.5 * (kth(v, v->n / 2 - 1) + kth(v, v->n / 2));
}

double bench_median_of(bench_value_fn *get, const void *context, int n) {
  return median_of(&(values){.get = get, .context = context, .n = n});
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

static bench_summary summarise(values *v) {
  bench_summary s = {.n = v->n};
  if (v->n < 1) return bench_no_summary;
  const int rank = bench_median_rank(v->n);
  s.min = kth(v, 0);
  s.median = median_of(v);
  s.ci_lo = rank ? kth(v, rank - 1) : NAN;
  s.ci_hi = rank ? kth(v, v->n - rank) : NAN;
  v->from = &s.median;
  s.mad = median_of(v);
  return s;
}

static double get_value(const void *context, int i) { return ((const double *)context)[i]; }

bench_summary bench_summarise(const double *value, int n) {
  return summarise(&(values){.get = get_value, .context = value, .n = n});
}

static double get_log_ratio(const void *context, int i) {
  const bench_pairs *pairs = context;
  return log(pairs->a[i] / pairs->b[i]);
}

double bench_lower_quartile(const double *value, int n) {
  return n < 1 ? NAN : kth(&(values){.get = get_value, .context = value, .n = n}, n / 4);
}

double bench_median(const double *value, int n) { return n < 1 ? NAN : bench_median_of(get_value, value, n); }

/* ---- Tests ---------------------------------------------------------------------------------------------------------- */

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

/* The continued fraction of the incomplete beta function (DLMF 8.17.22), by Lentz's method. It converges quickly for
 * x < (a + 1) / (a + b + 2), where no denominator is 0. */
static double beta_fraction(double a, double b, double x) {
  double d = 1 / (1 - (a + b) * x / (a + 1)), c = 1, value = d;
  for (int m = 1; m < 400; m++) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    d = 1 / (1 + even * d);
    c = 1 + even / c;
    value *= d * c;
    d = 1 / (1 + odd * d);
    c = 1 + odd / c;
    value *= d * c;
    if (fabs(d * c - 1) < 1e-14) break;
  }
  return value;
}

/* The regularised incomplete beta function I_x(a, b), for x in 0..1. */
static double beta_share(double a, double b, double x) {
  const double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x));
  if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(a, b, x) / a;
  return 1 - front * beta_fraction(b, a, 1 - x) / b;
}

double bench_student_p(double t, int degrees) { return beta_share(0.5 * degrees, 0.5, degrees / (degrees + t * t)); }

double bench_student_quantile(double p, int degrees) {
  double low = 0, high = 1;
  if (p <= 0) return INFINITY;
  while (bench_student_p(high, degrees) > p && high < 1e300) high *= 2;
  for (int i = 0; i < 100; i++) {
    const double middle = 0.5 * (low + high);
    if (bench_student_p(middle, degrees) > p)
      low = middle;
    else
      high = middle;
  }
  return high;
}

/* ---- Paired ratios ------------------------------------------------------------------------------------------------- */

enum { LEAST_ROUNDS = 6, TRIMMED = 5 /* a fifth of the placements is left out at each end */ };
static const double LEAST_ERROR = 1e-9; /* error of times that are all equal */
static const double WHOLE = 0.98;       /* share of the most time that a trial had its cores: no other program took them */

static double largest(const double *items, int n) {
  double most = -INFINITY;
  for (int i = 0; items && i < n; i++) most = fmax(most, items[i]);
  return most;
}

/* Marks the rounds that count, all if they are too few, and returns how many do. `marks` has n bytes. */
static int choose_rounds(const bench_pairs *p, bool *marks) {
  const double least_a = WHOLE * largest(p->ran_a, p->n), least_b = WHOLE * largest(p->ran_b, p->n);
  int whole = 0;
  for (int i = 0; i < p->n; i++)
    whole += marks[i] = !(p->ran_a && p->ran_a[i] < least_a) && !(p->ran_b && p->ran_b[i] < least_b);
  for (int i = 0; i < p->n && whole < LEAST_ROUNDS; i++) marks[i] = true;
  return whole;
}

/* The medians of the placements' log-ratios. `room` has n values. Returns how many placements have rounds that count. */
static int measure_places(const bench_pairs *p, const bool *marks, double *medians, double *room) {
  const int length = p->placing.count ? p->placing.length : 1, count = p->placing.count ? p->placing.count : p->n;
  int places = 0;
  for (int place = 0; place < count; place++) {
    int rounds = 0;
    for (int r = place * length; r < p->n; r++)
      if (marks[r] && r / length % count == place) room[rounds++] = get_log_ratio(p, r);
    if (rounds) medians[places++] = bench_median(room, rounds);
  }
  return places;
}

/* The trimmed mean of n sorted values, without the `trimmed` smallest and largest, and its standard error. The error comes
 * from the sum of squares of all values, where each trimmed one counts as the nearest one that stays (Yuen 1974). */
static bench_estimate trim(const double *sorted, int n, int trimmed) {
  const int left = n - 2 * trimmed;
  double mean = 0, winsorised = 0, squares = 0;
  for (int i = trimmed; i < n - trimmed; i++) mean += sorted[i] / left;
  winsorised = (left * mean + trimmed * (sorted[trimmed] + sorted[n - trimmed - 1])) / n;
  for (int i = 0; i < n; i++) {
    const double away = sorted[max64(trimmed, min64(i, n - trimmed - 1))] - winsorised;
    squares += away * away;
  }
  return (bench_estimate){.value = mean, .error = left > 1 ? sqrt(squares / left / (left - 1)) : NAN, .degrees = left - 1};
}

bench_estimate bench_paired_estimate(const bench_pairs *p) {
  double *medians = p->n < 1 ? NULL : malloc((size_t)p->n * (2 * sizeof *medians + sizeof(bool)));
  if (!medians) return (bench_estimate){.value = NAN, .error = NAN};
  double *const room = medians + p->n;
  bool *const marks = (bool *)(room + p->n);
  const int rounds = choose_rounds(p, marks);
  const int places = measure_places(p, marks, medians, room);
  qsort(medians, (size_t)places, sizeof *medians, compare_doubles);
  bench_estimate estimate = trim(medians, places, (places - 1) / (rounds < LEAST_ROUNDS ? 2 : TRIMMED)); /* 2: the median */
  if (rounds < LEAST_ROUNDS) estimate.error = NAN;
  estimate.rounds = rounds;
  free(medians);
  return estimate;
}

double bench_estimate_p(bench_estimate e) {
  return isnan(e.error) ? 1 : bench_student_p(e.value / fmax(e.error, LEAST_ERROR), e.degrees);
}

bench_summary bench_paired_ratio(const bench_pairs *p) {
  const bench_estimate e = bench_paired_estimate(p);
  const bench_summary s = summarise(&(values){.get = get_log_ratio, .context = p, .n = p->n});
  const double half = isnan(e.error) ? NAN : e.error * bench_student_quantile(0.05, e.degrees);
  if (!s.n || isnan(e.value)) return bench_no_summary;
  return (bench_summary){.min = exp(s.min),
                         .median = exp(e.value),
                         .mad = expm1(s.mad),
                         .ci_lo = exp(e.value - half),
                         .ci_hi = exp(e.value + half),
                         .n = s.n};
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
