/* SPDX-License-Identifier: MIT */
/* Kernels on cases for a timing loop that is not ours. The cases, names and checks are those of `attnbench run`; so is the rule
 * that there is no time without a passed check. One trial is open at a time. Plain C, to be included by C++. */
#ifndef BENCH_GBENCH_TRIALS_H
#define BENCH_GBENCH_TRIALS_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bench_trials bench_trials;

/* Every selected kernel on every case that attnbench's own options ask for. Returns NULL with *exit_code set after --help or a
 * usage error, which has been said on stderr. */
bench_trials *bench_trials_create(int argc, char **argv, int *exit_code);
void bench_trials_destroy(bench_trials *trials);

int bench_trials_count(const bench_trials *trials);

/* The name of trial `index`, the same as in results.json: "attn/kernel:flash_c/dtype:f32/B:1/...". */
const char *bench_trial_name(const bench_trials *trials, int index);

/* Makes the trial's tensors and plan, keeps its threads on their CPUs, and checks its output, unless all that is done already.
 * NULL, or why there must be no time: "FAIL: ..." , "SKIP: ...", "DEGENERATE: ...", "ERROR: ...". */
const char *bench_trial_open(bench_trials *trials, int index);

/* What begin, any number of calls and end measure. */
typedef struct bench_trial_rates {
  double gflops, gbs; /* 1e9 operations and bytes of Q, K, V and O per second, by the wall clock; 0: none is counted */
  double peak_gflops; /* of the tier's multiply-add loop on as many threads, beside the calls; 0 if it has none */
  double peak_pct;    /* gflops / peak_gflops * 100 */
  double max_err_ratio;
} bench_trial_rates;

/* Runs the peak loop and one call to warm up, and starts the clock. */
void bench_trial_begin(bench_trials *trials);

/* One run of the plan. False if it failed. */
bool bench_trial_call(bench_trials *trials);

/* Stops the clock and judges the last output. NULL, or why the time must not count. */
const char *bench_trial_end(bench_trials *trials, bench_trial_rates *rates);

/* 1 if a check failed in any trial so far, else 0. */
int bench_trials_exit_code(const bench_trials *trials);

#ifdef __cplusplus
}
#endif

#endif
