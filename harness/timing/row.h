/* SPDX-License-Identifier: MIT */
/* A row: the results of one kernel on one case. It holds values; report/columns.def says how each is printed and read. A
 * row that is read from a journal prints the same as the row that was written there. */
#ifndef BENCH_ROW_H
#define BENCH_ROW_H

#include "cases/case.h"
#include "check/check.h"
#include "timing/stats.h"
#include "timing/trial.h"

/* Missing values: "" in texts, -1 in whole numbers, NaN in the others. */
typedef struct bench_row {
  char run_id[48];

  /* the case */
  char case_id[BENCH_NAME];
  char dtype_q[BENCH_WORD], dtype_kv[BENCH_WORD], dtype_o[BENCH_WORD];
  int64_t batch, heads_q, heads_kv, seq_q, seq_k, dim_qk, dim_v, threads;
  char score[BENCH_WORD], causal[BENCH_WORD], align[BENCH_WORD], window[64], mask[BENCH_WORD], bias[BENCH_WORD];
  char alibi[BENCH_WORD], sinks[BENCH_WORD], lengths[BENCH_WORD], layout[BENCH_WORD], cache[BENCH_WORD];
  double softcap;
  char layer[BENCH_WORD];
  int64_t width;        /* of a layer: d_model */
  char other_axes[128]; /* "magnitude:10/lse:on": not at their defaults, and without a member here */

  /* the kernel; where the library chose it, its name is "auto" */
  char kernel[64], algorithm[32], isa[32], library[128];

  /* the check; errors and rows_checked mean nothing after SKIP and ERROR */
  bench_verdict verdict;
  char product[64]; /* of a layer: the kernel of its dense layers */
  char warnings[200];

  /* the times; missing unless time.n > 0 */
  bench_summary time;                              /* ns per call */
  double *samples_ns;                              /* [time.n], in round order; owned */
  int *positions;                                  /* [time.n], place of each sample in its round; owned */
  int64_t iterations;                              /* calls per sample */
  double plan_ns, workspace_bytes;                 /* attn_plan_create, and what the plan asks for */
  double flops, bytes;                             /* of one call: allowed pairs only; Q, K, V and O once */
  double gflops, gbs;                              /* the same, 1e9 per second, by the median */
  double threads_counted;                          /* that were busy, by their CPU time; median over the rounds */
  double peak_gflops, peak_pct;                    /* of the tier's loop on all threads; median share over the rounds */
  double peak_gbs, bw_pct;                         /* of the loop that only reads, and gbs as a share of it */
  char baseline[64];                               /* the kernel that ratio compares with */
  bench_summary ratio;                             /* time of the baseline / this time: > 1 is faster */
  double ratio_best;                               /* time of the best kernel / this time */
  double noise;                                    /* A/A control of the case: |ratio - 1|; < 0 = no control */
  double projections_pct, attention_pct, rest_pct; /* of a layer: shares of its time */
  bench_stop stop;
} bench_row;

/* A row that says which case and kernel it is of (NULL: none yet), and nothing else. */
bench_row bench_row_create(const bench_case *bench, const attn_kernel_info *kernel);

/* Gives the row the algorithm, tier and library of a kernel, not its name. */
void bench_row_set_origin(bench_row *row, const attn_kernel_info *kernel);

/* Frees what the row owns, and empties it. */
void bench_row_clear(bench_row *row);

#endif
