/* SPDX-License-Identifier: MIT */
/* The table of `eval`. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cases/axes.h"
#include "cases/work.h"
#include "eval/eval_rows.h"
#include "timing/setup.h"
#include "timing/stats.h"

static int64_t rows_checked(const eval_rows *rows) {
  int64_t most = 0;
  for (int i = 0; i < rows->count; i++)
    if (rows->row[i].trial.verdict.rows_checked > most) most = rows->row[i].trial.verdict.rows_checked;
  return most;
}

/* ", heads 12/4"; one number where both are equal. */
static void print_pair(const char *name, int64_t q, int64_t k) {
  printf(", %s %lld", name, (long long)q);
  if (q != k) printf("/%lld", (long long)k);
}

/* "batch 2, heads 12/4, seq 128/512, dim 64, f32, 1 thread; 192 rows checked" */
static void print_problem(const eval_rows *rows) {
  const attn_problem *p = &rows->input->tensors.problem;
  printf("batch %lld", (long long)p->batch);
  print_pair("heads", p->heads_q, p->heads_kv);
  print_pair("seq", p->seq_q, p->seq_k);
  print_pair("dim", p->dim_qk, p->dim_v);
  printf(", %s, %d thread%s; %lld rows checked\n", bench_dtype_name(p->dtype_kv), rows->task->threads,
         rows->task->threads == 1 ? "" : "s", (long long)rows_checked(rows));
}

static void print_time(const bench_trial *trial, double flops, int threads) {
  const bench_summary time = bench_summarise(trial->samples.time_ns, trial->samples.rounds);
  const double share = bench_peak_share(trial, flops, threads);
  printf("  %11.2f  ", time.median * 1e-3);
  if (!isnan(time.ci_lo)) printf("[%.2f, %.2f]", time.ci_lo * 1e-3, time.ci_hi * 1e-3);
  printf("  %8.2f", flops / time.median);
  if (share > 0) printf("  %5.1f %%", 100 * share);
}

static void print_row(const eval_rows *rows, const eval_row *row, int width, double flops) {
  const bench_verdict *verdict = &row->trial.verdict;
  printf("%-*s  %-10s", width, row->name, bench_status_name(verdict->status));
  if (verdict->status != BENCH_SKIP && verdict->status != BENCH_ERROR)
    printf("  %9.3g  %11.3g", verdict->max_err_ratio, verdict->max_abs_err);
  if (row->trial.samples.rounds) print_time(&row->trial, flops, rows->task->threads);
  if (verdict->reason[0]) printf("  %s", verdict->reason);
  printf("\n");
}

/* Of the first column. */
static int width_of(const eval_rows *rows) {
  size_t width = strlen("kernel");
  for (int i = 0; i < rows->count; i++)
    if (strlen(rows->row[i].name) > width) width = strlen(rows->row[i].name);
  return (int)width;
}

void eval_print(const eval_rows *rows) {
  const bench_tensors *tensors = &rows->input->tensors;
  const double flops = bench_work_flops(&tensors->problem, bench_work_pairs(&tensors->problem, &tensors->args));
  const int width = width_of(rows);
  print_problem(rows);
  printf("%-*s  %-10s  %9s  %11s%s\n", width, "kernel", "status", "err/limit", "max abs err",
         rows->task->time ? "  median (us)  [95 % interval]  GFLOP/s   of peak" : "");
  for (int i = 0; i < rows->count; i++) print_row(rows, &rows->row[i], width, flops);
}
