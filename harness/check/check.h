/* SPDX-License-Identifier: MIT */
/* Is this output right? The oracle's answer, the error limits of docs/numerics.md, and the verdict that timing asks for. */
#ifndef BENCH_CHECK_H
#define BENCH_CHECK_H

#include "check/expected.h"
#include "data/tensors.h"

typedef enum bench_status {
  BENCH_PASS,
  BENCH_FAIL,
  BENCH_SKIP,       /* not run: the reason says why */
  BENCH_DEGENERATE, /* right, but an answer without work would pass as well (zeros, ...): never timed */
  BENCH_ERROR,      /* the library returned an error, or memory ran out */
} bench_status;

/* "PASS" ... */
const char *bench_status_name(bench_status status);

typedef struct bench_verdict {
  bench_status status;
  int64_t rows_checked;
  double max_err_ratio; /* largest error / limit over all checked outputs and LSEs; > 1 fails; INFINITY where only one of
                           output and answer is finite, or NaN */
  double max_abs_err;
  int64_t err_index[4]; /* batch, head, query, column of max_err_ratio; column -1 is the LSE */
  uint64_t output_hash; /* bench_check: of the output that was checked; timing compares every later output with it */
  bool approximate;     /* the kernel declares larger errors than rounding: see bench_is_approximate */
  unsigned structure;   /* structural tests that ran on the case: bit n is test n of structure.h */
  char reason[400];     /* one sentence; "" on PASS */
} bench_verdict;

/* Gives the verdict its status and its reason. */
void bench_set_reason(bench_verdict *verdict, bench_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Compares o (and lse) in args with the expected rows under the kernel's declared numerics. Never SKIP. */
bench_verdict bench_compare(const bench_expected *expected, const attn_args *args, const attn_numerics *numerics);

/* The same for an implementation that stores outputs with the relative error store_error, if that is larger than the
 * error of rounding to nearest. */
bench_verdict bench_compare_stored(const bench_expected *expected, const attn_args *args, const attn_numerics *numerics,
                                   double store_error);

/* Runs the plan on poisoned output and checks it: error limits, guard zones, elements that nobody wrote, inputs, a second
 * run. `workspace` fits the plan. */
bench_verdict bench_check(const attn_plan *plan, bench_tensors *tensors, const bench_expected *expected,
                          const attn_numerics *numerics, void *workspace, size_t workspace_bytes);

#endif
