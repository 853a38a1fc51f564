/* SPDX-License-Identifier: MIT */
/* Random problems, and what their times say of costs. */
#include <math.h>
#include <string.h>

#include "tuning/tuning.h"

static const double POINT_S = 0.016; /* long enough for the quick kernels of the longest call to be timed three times */
static const double CLEARLY = 1.03;  /* times as long takes the next kernel */
enum {
  FEWEST_POINTS = 200, /* of the whole, where time is short */
  FEWEST_ROUNDS = 3    /* that a time of costs comes from */
};

/* A shape of the regret's distribution, but of the line. */
static bench_tune_shape random_shape(const bench_tune_line *line, uint64_t *seed) {
  bench_tune_shape s;
  do {
    s = bench_regret_shape(seed);
    s.dtype = line->dtype, s.causal = line->causal, s.dim = line->dim;
    if (s.causal && s.seq_q > s.seq_k) s.seq_q = s.seq_k;
  } while (bench_tune_work(&s) > BENCH_REGRET_WORK);
  return s;
}

int bench_tune_kernel(const char *kernel) {
  for (int i = 0; i < TUNE_KERNELS && attn_kernel_get(i); i++)
    if (strcmp(attn_kernel_get(i)->name, kernel) == 0) return i;
  return -1;
}

static void add_times(const bench_tune_shape *shape, const attn_tune_report *report, bench_tune_result *result) {
  const attn_tune_entry *e = report->entry;
  for (int i = 0; i < report->timed; i++) {
    const int kernel = bench_tune_kernel(e[i].kernel);
    if (kernel < 0 || e[i].rounds < FEWEST_ROUNDS) continue;
    bench_tune_cost *cost = &result->costs[kernel][shape->dtype];
    bench_tune_cost_add(cost, attn_kernel_get(kernel), shape, e[i].time_ns, e[0].time_ns);
    cost->leads += i == 0 && (report->timed == 1 || e[1].ratio > CLEARLY);
  }
  result->points[shape->dtype]++;
}

void bench_tune_sample(const bench_tune_source *source, const bench_tune_lines *lines, double seconds,
                       bench_tune_result *result) {
  const double end = source->now_s(source->context) + seconds, point_s = fmin(POINT_S, seconds / FEWEST_POINTS);
  uint64_t seed = 0x74756e65; /* --check takes small ones */
  for (int i = 0; source->now_s(source->context) < end; i++) {
    const bench_tune_shape shape = random_shape(&lines->item[i % lines->count], &seed);
    attn_tune_report report;
    if (source->measure(source->context, &shape, point_s, &report)) add_times(&shape, &report, result);
  }
}
