/* SPDX-License-Identifier: MIT */
/* Runs kernels on the user's own tensors and checks them against the oracle and, where it is given, against someone else's
 * output. Real data does not have zero mean, so that only the proven limit applies. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli.h"
#include "eval/eval_rows.h"
#include "machine/affinity.h"
#include "timing/rounds.h"

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

/* Writes the output of the first kernel to the files that were asked for. */
static void save(eval_rows *rows) {
  char error[600];
  const eval_task *task = rows->task;
  if (rows->saved) return;
  rows->saved = true;
  if ((task->save_o && eval_save_o(rows->input, task->save_o, error, sizeof error)) ||
      (task->save_lse && eval_save_lse(rows->input, task->save_lse, error, sizeof error))) {
    fprintf(stderr, "attnbench eval: %s\n", error);
    rows->exit_code = BENCH_EXIT_INTERNAL;
  }
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
  if (t->verdict.status != BENCH_ERROR) save(rows);
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

/* Checks the --expect files themselves: this tells a wrong file, or another problem, from a wrong kernel. */
static void check_files(eval_rows *rows) {
  add_row(rows, "--expect")->trial.verdict = eval_check_expected(rows->oracle, rows->expected, rows->input);
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

/* ---- All of it --------------------------------------------------------------------------------------------------- */

static bool is_unusable(const bench_trial *t) { return !t->automatic && attn_kernel_unusable(t->kernel); }

/* 0 only if something ran and all that ran is right. */
static int conclude(const eval_rows *rows) {
  int ran = 0, unusable = 0, kernels = 0, code = rows->exit_code;
  for (const eval_row *row = rows->row; row < rows->row + rows->count; row++) {
    const bench_trial *t = &row->trial;
    if (t->verdict.status == BENCH_FAIL) return BENCH_EXIT_FAILED;
    if (t->verdict.status == BENCH_ERROR) code = BENCH_EXIT_INTERNAL;
    ran += t->plan != NULL;
    kernels += t->kernel != NULL;
    unusable += t->kernel && is_unusable(t);
  }
  if (code || ran) return code;
  return unusable == kernels ? BENCH_EXIT_SKIPPED : BENCH_EXIT_NOTHING;
}

static int run(eval_rows *rows, const bench_selection *selection) {
  if (!prepare_answers(rows)) return BENCH_EXIT_INTERNAL;
  if (rows->expected) check_files(rows);
  if (selection->automatic) run_kernel(rows, &bench_automatic);
  for (int i = 0; i < selection->count; i++) run_kernel(rows, selection->kernel[i]);
  if (rows->task->time) time_rows(rows);
  eval_print(rows);
  return conclude(rows);
}

static void clear(eval_rows *rows) {
  for (eval_row *row = rows->row; row < rows->row + rows->count; row++) {
    bench_trial_clear(&row->trial);
    attn_plan_destroy(row->trial.plan);
    free(row->trial.workspace);
  }
  bench_expected_destroy(rows->oracle);
  bench_expected_destroy(rows->expected);
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
