/* Order statistics: no normality assumed. All functions sort copies; NaN never enters. */
#ifndef BENCH_STATS_H
#define BENCH_STATS_H

typedef struct bench_summary {
  double min, median, mad;  /* mad: median absolute deviation, not scaled */
  double ci_lo, ci_hi;      /* 95 % interval of the median from order statistics (binomial); the range if n < 6 */
  int n;
} bench_summary;

bench_summary bench_summarise(const double *values, int n);

/* Paired ratio a/b per round: exp of the median log-ratio, with its sign-test interval. */
bench_summary bench_paired_ratio(const double *a, const double *b, int n);

double bench_median(const double *values, int n);

#endif
