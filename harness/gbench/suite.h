/* SPDX-License-Identifier: MIT */
/* Kernels on cases for Google Benchmark's timing loop. The cases, names and checks are those of `attnbench run`; so is
 * the rule that there is no time without a passed check. One trial is open at a time. Plain C, to be included by C++. */
#ifndef GBENCH_SUITE_H
#define GBENCH_SUITE_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gbench_suite gbench_suite;

/* Every selected kernel on every case that attnbench's own options ask for. Returns NULL with *exit_code set after --help
 * or a usage error, which has been said on stderr. */
gbench_suite *gbench_create(int argc, char **argv, int *exit_code);
void gbench_destroy(gbench_suite *suite);

/* How many trials there are. */
int gbench_count(const gbench_suite *suite);

/* The name of trial `index`, the same as in results.json: "attn/kernel:flash_c/dtype:f32/B:1/..."; valid until the next. */
const char *gbench_name(gbench_suite *suite, int index);

/* Makes the trial's tensors and plan, keeps its threads on their CPUs, and checks its output, unless all that is done
 * already. NULL, or why there must be no time: "FAIL: ..." , "SKIP: ...", "DEGENERATE: ...", "ERROR: ...". */
const char *gbench_open(gbench_suite *suite, int index);

/* Rates that gbench_end() computes from the calls since gbench_begin(). */
typedef struct gbench_rates {
  double gflops, gbs; /* 1e9 operations and bytes of Q, K, V and O per second, by the wall clock; 0: none is counted */
  double peak_gflops; /* rate of the tier's multiply-add loop on as many threads, beside the calls; 0: no loop */
  double peak_pct;    /* gflops / peak_gflops * 100 */
  double max_err_ratio;
} gbench_rates;

/* Runs the peak loop and one call to warm up, and starts the clock. */
void gbench_begin(gbench_suite *suite);

/* One call of the kernel. False if it failed. */
bool gbench_call(gbench_suite *suite);

/* Stops the clock and compares the last output. NULL, or why the time must not count. */
const char *gbench_end(gbench_suite *suite, gbench_rates *rates);

/* 1 if a check failed in any trial so far, else 0. */
int gbench_exit_code(const gbench_suite *suite);

#ifdef __cplusplus
}
#endif

#endif
