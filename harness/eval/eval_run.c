/* SPDX-License-Identifier: MIT */
/* Runs kernels on the user's own tensors and checks them against the oracle and, where it is given, against someone else's
 * output. Real data does not have zero mean, so that only the proven limit applies. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/work.h"
#include "eval/eval_private.h"
#include "machine/affinity.h"
#include "timing/rounds.h"
#include "timing/setup.h"

/* One trial per kernel on the user's tensors. */
typedef struct eval_row {
  char name[80];
  bench_trial trial; /* kernel NULL: the row of the --expect files; plan NULL: not run; no samples: not timed */
} eval_row;

typedef struct eval_rows {
  const eval_task *task;
  eval_input *input;
  bench_expected *oracle, *expected;   /* expected: NULL without --expect */
  eval_row row[BENCH_MAX_KERNELS + 2]; /* the --expect files, the automatic choice and the kernels */
  int count;
  bool saved;
  int exit_code; /* of what failed beside the checks */
} eval_rows;

static eval_row *add_row(eval_rows *rows, const char *name) {
  eval_row *row = &rows->row[rows->count++];
  snprintf(row->name, sizeof row->name, "%s", name);
  return row;
}

/* ---- One kernel -------------------------------------------------------------------------------------------------- */

/* Makes the plan and the workspace. False: the verdict says why there are none. */
static bool prepare(const eval_rows *rows, bench_trial *t) {
  const attn_options options = {.kernel = t->automatic ? NULL : t->kernel->name, .threads = rows->task->threads};
  const attn_status status = attn_plan_create(&rows->input->tensors.problem, &options, &t->plan);
  if (status != ATTN_OK) {
    bench_conclude(t, status == ATTN_UNSUPPORTED ? BENCH_SKIP : BENCH_ERROR, "%s", attn_last_error());
    return false;
  }
  t->kernel = attn_kernel_find(attn_plan_kernel(t->plan));
  t->tensors = &rows->input->tensors;
  t->tensor_count = 1;
  t->workspace_bytes = attn_plan_workspace(t->plan);
  t->workspace = aligned_alloc(64, t->workspace_bytes + 64);
  if (!t->workspace) bench_conclude(t, BENCH_ERROR, "no memory for the workspace");
  return t->workspace;
}

/* A kernel that is right by the oracle must also agree with the --expect files. */
static void compare_with_files(const eval_rows *rows, bench_trial *t) {
  bench_verdict *verdict = &t->verdict;
  const bench_verdict given = bench_compare(rows->expected, &t->tensors->args, &t->kernel->numerics);
  if (given.status == BENCH_FAIL) {
    verdict->status = BENCH_FAIL;
    snprintf(verdict->reason, sizeof verdict->reason, "right by the oracle, but not as --expect has it: %.340s",
             given.reason);
  }
  if (!(given.max_err_ratio > verdict->max_err_ratio)) return;
  verdict->max_err_ratio = given.max_err_ratio;
  verdict->max_abs_err = given.max_abs_err;
  memcpy(verdict->err_index, given.err_index, sizeof given.err_index);
}

static void check(const eval_rows *rows, bench_trial *t) {
  const attn_numerics *numerics = &t->kernel->numerics;
  t->verdict = bench_check(t->plan, t->tensors, rows->oracle, numerics, t->workspace, t->workspace_bytes);
  const bool right = t->verdict.status == BENCH_PASS || t->verdict.status == BENCH_DEGENERATE;
  if (right && rows->expected) compare_with_files(rows, t);
}

/* Runs and checks one kernel, or the library's own choice. */
static void run_kernel(eval_rows *rows, const attn_kernel_info *kernel) {
  eval_row *row = add_row(rows, kernel->name);
  bench_trial *t = &row->trial;
  *t = (bench_trial){.kernel = kernel, .automatic = kernel == &bench_automatic};
  const char *refusal = t->automatic ? NULL : attn_kernel_rejects(kernel, &rows->input->tensors.problem);
  if (refusal) bench_conclude(t, BENCH_SKIP, "%s", refusal);
  if (refusal || !prepare(rows, t)) return;
  if (t->automatic) snprintf(row->name, sizeof row->name, "auto: %s", t->kernel->name);
  check(rows, t);
  if (t->verdict.status == BENCH_ERROR || rows->saved) return;
  rows->saved = true; /* of the first kernel */
  if (!eval_save(rows->input, rows->task)) rows->exit_code = BENCH_EXIT_INTERNAL;
}

/* ---- Answers and times ------------------------------------------------------------------------------------------- */

static bool prepare_answers(eval_rows *rows) {
  const eval_input *input = rows->input;
  const bool files = input->expect || input->expect_lse;
  rows->oracle = bench_expected_create(&input->tensors.problem, &input->tensors.args, 1, false);
  if (rows->oracle && files) rows->expected = eval_expect(rows->oracle, input);
  if (rows->oracle && (!files || rows->expected)) return true;
  fprintf(stderr, "attnbench eval: no memory for the oracle's answer\n");
  return false;
}

/* The trials that passed, each with the loop that runs beside it. */
static int choose_trials(eval_rows *rows, bench_trial **trials) {
  int count = 0;
  for (eval_row *row = rows->row; row < rows->row + rows->count; row++) {
    bench_trial *t = &row->trial;
    if (!t->plan || t->verdict.status != BENCH_PASS) continue;
    t->peak = bench_peak_of(t->kernel, bench_dtype_name(t->tensors->problem.dtype_kv));
    trials[count++] = t;
  }
  return count;
}

/* Times all rows that passed. */
static void time_rows(eval_rows *rows) {
  const bench_timing_options options = {.precision = 0.01,
                                        .min_rounds = 11,
                                        .max_rounds = 1000,
                                        .budget_s = rows->task->budget_s,
                                        .min_sample_s = 1e-3,
                                        .threads = rows->task->threads,
                                        .seed = 1};
  bench_trial *trials[BENCH_MAX_KERNELS + 1];
  bench_stop stop;
  const char *error;
  const int count = choose_trials(rows, trials);
  const bool held = bench_threads_hold(options.threads), timed = bench_time(trials, count, &options, &stop, &error);
  if (held) bench_threads_release();
  if (timed) return;
  fprintf(stderr, "attnbench eval: %s\n", error);
  rows->exit_code = BENCH_EXIT_INTERNAL;
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

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
  printf("%s%s\n", verdict->reason[0] ? "  " : "", verdict->reason);
}

static void print(const eval_rows *rows) {
  const bench_tensors *tensors = &rows->input->tensors;
  const double flops = bench_work_flops(&tensors->problem, bench_work_pairs(&tensors->problem, &tensors->args));
  int width = (int)strlen("kernel");
  for (int i = 0; i < rows->count; i++)
    if (strlen(rows->row[i].name) > (size_t)width) width = (int)strlen(rows->row[i].name);
  print_problem(rows);
  printf("%-*s  %-10s  %9s  %11s%s\n", width, "kernel", "status", "err/limit", "max abs err",
         rows->task->time ? "  median (us)  [95 % interval]  GFLOP/s   of peak" : "");
  for (int i = 0; i < rows->count; i++) print_row(rows, &rows->row[i], width, flops);
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

/* 0 only if something ran and all that ran is right. */
static int conclude(const eval_rows *rows) {
  int ran = 0, unusable = 0, kernels = 0, code = rows->exit_code;
  for (const eval_row *row = rows->row; row < rows->row + rows->count; row++) {
    const bench_trial *t = &row->trial;
    if (t->verdict.status == BENCH_FAIL) return BENCH_EXIT_FAILED;
    if (t->verdict.status == BENCH_ERROR) code = BENCH_EXIT_INTERNAL;
    ran += t->plan != NULL;
    kernels += t->kernel != NULL;
    unusable += t->kernel && !t->automatic && attn_kernel_unusable(t->kernel);
  }
  if (code || ran) return code;
  return unusable == kernels ? BENCH_EXIT_SKIPPED : BENCH_EXIT_NOTHING;
}

static int run(eval_rows *rows, const bench_selection *selection) {
  if (!prepare_answers(rows)) return BENCH_EXIT_INTERNAL;
  if (rows->expected) /* tells a wrong file, or another problem, from a wrong kernel */
    add_row(rows, "--expect")->trial.verdict = eval_check_expected(rows->oracle, rows->expected, rows->input);
  if (selection->automatic) run_kernel(rows, &bench_automatic);
  for (int i = 0; i < selection->count; i++) run_kernel(rows, selection->kernel[i]);
  if (rows->task->time) time_rows(rows);
  print(rows);
  return conclude(rows);
}

static void clear(eval_rows *rows) {
  for (eval_row *row = rows->row; row < rows->row + rows->count; row++) {
    bench_trial_clear(&row->trial);
    attn_plan_destroy(row->trial.plan);
    free(row->trial.workspace);
  }
  bench_expected_destroy(rows->oracle);
  eval_forget(rows->expected);
}

int eval_run(const eval_task *task, eval_input *input, const bench_selection *selection) {
  eval_rows *rows = calloc(1, sizeof *rows);
  if (!rows) {
    fprintf(stderr, "attnbench eval: out of memory for the rows\n");
    return BENCH_EXIT_INTERNAL;
  }
  rows->task = task;
  rows->input = input;
  const int code = run(rows, selection);
  clear(rows);
  free(rows);
  return code;
}
