/* SPDX-License-Identifier: MIT */
/* How a time comes about: rounds in which every trial of a case runs once, in changing order, with a loop beside it. A time
 * cannot be asked for without a passed check: the verdict is part of the trial, and anything but PASS is refused. */
#ifndef BENCH_ROUNDS_H
#define BENCH_ROUNDS_H

#include "timing/sample.h"

typedef struct bench_timing_options {
  double precision;         /* stop when the 95 % interval of every median is within +-precision (0.01) */
  int min_rounds;           /* 11 */
  int max_rounds;           /* sample cap */
  double budget_s;          /* of one case */
  double min_sample_s;      /* a sample repeats the call until it lasts this long, and >= 1000 clock resolutions */
  int threads;              /* of the case: the loop beside a trial runs on as many at once; 0 = 1 */
  uint64_t seed;            /* of the order */
  volatile const int *stop; /* set by Ctrl-C: finish the round and return; NULL = never */
  const bench_meter *meter; /* NULL = bench_machine_meter */
} bench_timing_options;

typedef enum bench_stop { BENCH_STOP_PRECISION, BENCH_STOP_ROUNDS, BENCH_STOP_BUDGET, BENCH_STOP_INTERRUPT } bench_stop;
const char *bench_stop_name(bench_stop stop);

/* Times all trials together: at most max_rounds samples of each, fewer of those too slow for their share of the budget;
 * sample n of any two trials belongs to the same round. *stop says why the last round was the last. False with a sentence
 * in *error: a trial without PASS, a clock that does not tick, a call that failed, an output that differs from the
 * checked one. */
bool bench_time(bench_trial *const *trials, int count, const bench_timing_options *options, bench_stop *stop,
                const char **error);

#endif
