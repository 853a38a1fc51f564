/* SPDX-License-Identifier: MIT */
/* One row of results: a case x kernel, as table, CSV and JSON print it. */
#ifndef BENCH_RESULT_H
#define BENCH_RESULT_H

#include "cases/case.h"
#include "check/check.h"
#include "timing/stats.h"
#include "timing/timing.h"

typedef struct bench_result {
  const bench_case *bench;
  const attn_kernel_info *kernel; /* never NULL */
  bench_verdict verdict;          /* status, reason, rows_checked, errors */

  /* valid only if timed */
  bool timed;
  bench_summary time; /* ns per call */
  double plan_ns;     /* attn_plan_create */
  double workspace_bytes;
  double flops, bytes;      /* of one call, by docs/measuring: allowed pairs only; Q+K+V+O once */
  double peak_flops;        /* flop/s of the tier's loop x threads, median over the rounds; 0 = none */
  double peak_ratio;        /* median over rounds of (rate / peak of that round), 0..1; 0 = none */
  double read_bandwidth;    /* bytes/s of the read loop with that many threads; 0 = not measured */
  const char *baseline;     /* kernel that ratio compares with; "" if none */
  bench_summary ratio;      /* baseline time / this time: > 1 is faster */
  bench_summary ratio_best; /* best kernel's time / this time */
  bench_stop stop;
  const char *product; /* of a layer: what its projections are done by; NULL or "" = none */
  bench_shares shares; /* of a layer, in time */
  double noise;        /* A/A control: |ratio - 1| of a kernel against itself, same case; < 0 = no control */
  char warnings[200];

  double *samples_ns; /* [time.n], in round order; owned */
  int *positions;     /* [time.n]; owned */
  int64_t iterations;
} bench_result;

#endif
