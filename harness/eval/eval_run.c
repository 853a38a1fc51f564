/* SPDX-License-Identifier: MIT */
/* Runs kernels on the user's own tensors and checks them against the oracle and, where it is given, against someone else's
 * output. Real data does not have zero mean, so that only the proven limit applies. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/files.h"
#include "cases/case.h"
#include "check/check.h"
#include "data/generate.h"
#include "eval/eval.h"
#include "kernels/common/memory/aligned.h"
#include "machine/affinity.h"
#include "timing/setup.h"
#include "timing/trial.h"

/* One trial per kernel on the user's tensors. */
typedef struct eval_row {
  char name[80];
  bench_trial trial; /* kernel NULL: the row of the --expect files; plan NULL: not run; no samples: not timed */
} eval_row;

typedef struct eval_rows {
  const eval_task *task;
  eval_input *input;
  bench_expected *oracle;
  bench_expected given;                /* the same with the values of the --expect files; given.given: NULL without any */
  eval_row row[BENCH_MAX_KERNELS + 2]; /* the --expect files, the automatic choice and the kernels */
  int count;
  double flops; /* one call's */
  bool saved;
  int exit_code; /* after a failure of anything but a check */
} eval_rows;

static eval_row *add_row(eval_rows *rows, const char *name) {
  eval_row *row = &rows->row[rows->count++];
  snprintf(row->name, sizeof row->name, "%s", name);
  return row;
}

/* ---- One kernel -------------------------------------------------------------------------------------------------- */

/* Makes the plan and the workspace. False: the verdict says why there are none. */
static bool prepare(const eval_rows *rows, bench_trial *t) {
  const attn_options options =
      ATTN_STRUCT(attn_options, .kernel = t->automatic ? NULL : t->kernel->name, .threads = rows->task->threads);
  const attn_status status = attn_plan_create(&rows->input->tensors.problem, &options, &t->plan);
  if (status != ATTN_OK)
    return bench_conclude(t, status == ATTN_UNSUPPORTED ? BENCH_SKIP : BENCH_ERROR, "%s", attn_last_error());
  t->kernel = attn_kernel_find(attn_plan_kernel(t->plan));
  t->tensors = &rows->input->tensors;
  t->tensor_count = 1;
  bench_trial_declare(t);
  t->workspace_bytes = attn_plan_workspace(t->plan);
  t->workspace = attn_aligned_alloc(64, t->workspace_bytes + 64);
  return t->workspace || bench_conclude(t, BENCH_ERROR, "no memory for the workspace");
}

/* A kernel that is right by the oracle must also agree with the --expect files. */
static void compare_with_files(const eval_rows *rows, bench_trial *t) {
  bench_verdict *verdict = &t->verdict;
  const bench_verdict given = bench_check_values(&rows->given, &t->tensors->args, &t->numerics);
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

static void check_eval(const eval_rows *rows, bench_trial *t) {
  t->verdict = bench_check(t->plan, t->tensors, rows->oracle, &t->numerics, t->workspace, t->workspace_bytes);
  const bool right = t->verdict.status == BENCH_PASS || t->verdict.status == BENCH_DEGENERATE;
  if (right && rows->given.given) compare_with_files(rows, t);
}

/* Runs and checks one kernel, or the library's own choice. */
static void run_kernel(eval_rows *rows, const attn_kernel_info *kernel) {
  eval_row *row = add_row(rows, kernel->name);
  bench_trial *t = &row->trial;
  *t = (bench_trial){.kernel = kernel, .automatic = kernel == &bench_automatic, .threads = rows->task->threads};
  const char *refusal = t->automatic ? NULL : attn_kernel_rejects(kernel, &rows->input->tensors.problem);
  if (refusal) bench_conclude(t, BENCH_SKIP, "%s", refusal);
  if (refusal || !prepare(rows, t)) return;
  if (t->automatic) snprintf(row->name, sizeof row->name, "auto: %s", t->kernel->name);
  check_eval(rows, t);
  if (t->verdict.status == BENCH_ERROR || rows->saved) return;
  rows->saved = true; /* the first kernel's */
  if (!eval_save(rows->input, rows->task)) rows->exit_code = BENCH_EXIT_INTERNAL;
}

/* ---- Answers and times ------------------------------------------------------------------------------------------- */

static bench_expected given_of(const bench_expected *oracle, const eval_input *input) {
  bench_expected given = *oracle;
  for (int i = 0; i < BENCH_TENSORS; i++)
    if (input->given[i]) given.given = input->given;
  return given;
}

static bool prepare_answers(eval_rows *rows) {
  const eval_input *input = rows->input;
  rows->flops = bench_work_flops(&input->tensors.problem, bench_work_pairs(&input->tensors.problem, &input->tensors.args));
  rows->oracle = bench_expected_create(&input->tensors.problem, &input->tensors.args, 1, false);
  if (rows->oracle) rows->given = given_of(rows->oracle, input);
  return rows->oracle;
}

/* Times the kernels that passed, as `attnbench run` does with a case. */
static void time_rows(eval_rows *rows) {
  const bench_tensors *tensors = &rows->input->tensors;
  const bench_case bench = {.problem = tensors->problem, .threads = rows->task->threads, .cache = BENCH_WARM, .seed = 1};
  const bench_case_settings settings = {.timed = true, .case_budget_s = rows->task->budget_s, .precision = 0.01};
  bench_setup *s = calloc(1, sizeof *s);
  for (int i = 0; i < rows->count; i++) {
    bench_trial *t = &rows->row[i].trial;
    if (!s && t->plan) bench_conclude(t, BENCH_ERROR, "timing: out of memory");
    if (!s || !t->plan) continue;
    t->tensors = s->tensors;
    s->trials[s->count++] = *t;
  }
  if (!s) return;
  s->bench = &bench;
  s->settings = &settings;
  s->tensors[0] = *tensors;
  s->rotations = 1;
  s->flops = rows->flops;
  s->bytes = bench_work_bytes(&tensors->problem, &tensors->args);
  const bool held = bench_threads_hold(bench.threads);
  bench_setup_time(s);
  if (held) bench_threads_release();
  for (int i = rows->count; i-- > 0;)
    if (rows->row[i].trial.plan) rows->row[i].trial = s->trials[--s->count];
  bench_tensors_forget_fresh(&s->tensors[0]);
  for (int i = 1; i < s->rotations; i++) bench_tensors_destroy(&s->tensors[i]);
  bench_trial_clear(&s->control);
  free(s);
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

static void print_row(const eval_rows *rows, const eval_row *row, int width) {
  const bench_verdict *verdict = &row->trial.verdict;
  printf("%-*s  %-10s", width, row->name, bench_status_name(verdict->status));
  if (verdict->status != BENCH_SKIP && verdict->status != BENCH_ERROR)
    printf("  %9.3g  %11.3g", verdict->max_err_ratio, verdict->max_abs_err);
  if (row->trial.samples.rounds) print_time(&row->trial, rows->flops, rows->task->threads);
  printf("%s%s", verdict->reason[0] ? "  " : "", verdict->reason);
  printf("%s%s\n", row->trial.warnings[0] ? "  " : "", row->trial.warnings);
}

static void print_eval(const eval_rows *rows) {
  int width = (int)strlen("kernel");
  for (int i = 0; i < rows->count; i++)
    if (strlen(rows->row[i].name) > (size_t)width) width = (int)strlen(rows->row[i].name);
  print_problem(rows);
  printf("%-*s  %-10s  %9s  %11s%s\n", width, "kernel", "status", "err/limit", "max abs err",
         rows->task->time ? "  median (us)  [95 % interval]  GFLOP/s   of peak" : "");
  for (int i = 0; i < rows->count; i++) print_row(rows, &rows->row[i], width);
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

/* 0 only if something ran and all that ran is right. */
static int conclude_eval(const eval_rows *rows) {
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

static int run_eval(eval_rows *rows, const bench_selection *selection) {
  if (!prepare_answers(rows)) return cli_fail(BENCH_EXIT_INTERNAL, "eval", "no memory for the oracle's answer");
  if (rows->given.given) /* tells a wrong file, or another problem, from a wrong kernel */
    add_row(rows, "--expect")->trial.verdict = eval_check_given(rows->oracle, &rows->given, rows->input);
  if (selection->automatic) run_kernel(rows, &bench_automatic);
  for (int i = 0; i < selection->count; i++) run_kernel(rows, selection->kernel[i]);
  if (rows->task->time) time_rows(rows);
  print_eval(rows);
  return conclude_eval(rows);
}

static void clear(eval_rows *rows) {
  for (eval_row *row = rows->row; row < rows->row + rows->count; row++) {
    bench_trial_clear(&row->trial);
    attn_plan_destroy(row->trial.plan);
    attn_aligned_free(row->trial.workspace);
  }
  bench_expected_destroy(rows->oracle);
}

int eval_run(const eval_task *task, eval_input *input, const bench_selection *selection) {
  eval_rows *rows = calloc(1, sizeof *rows);
  if (!rows) return cli_fail(BENCH_EXIT_INTERNAL, "eval", "out of memory for the rows");
  rows->task = task;
  rows->input = input;
  const int code = run_eval(rows, selection);
  clear(rows);
  free(rows);
  return code;
}

/* ---- Outputs ----------------------------------------------------------------------------------------------------- */

const eval_output eval_outputs[EVAL_OUTPUTS] = {{BENCH_O, EVAL_EXPECT, "--save-o", 0, 0.0},
                                                {BENCH_LSE, EVAL_EXPECT_LSE, "--save-lse", ATTN_USE_LSE, -INFINITY}};

int eval_output_shape(const eval_input *input, const attn_operand *output, int64_t shape[NPY_MAX_DIMS]) {
  const bool sequence_first = !output->single && input->sequence_first;
  int dims = 0;
  if (input->rank == 4) shape[dims++] = input->tensors.problem.batch;
  if (input->rank > 2 && !sequence_first) shape[dims++] = output->extent[1];
  shape[dims++] = output->extent[2];
  if (input->rank > 2 && sequence_first) shape[dims++] = output->extent[1];
  if (!output->single) shape[dims++] = output->extent[3];
  return dims;
}

/* Writes the values of the files to an output, in its type. */
static void store_given(const bench_expected *given, const bench_output *output, const attn_args *args) {
  const attn_problem *p = &given->problem;
  const attn_operand operand = attn_operand_of(p, (attn_operand_id)output->tensor);
  for (int64_t n = 0; operand.present && n < given->rows; n++)
    for (int64_t d = 0; d < operand.extent[3]; d++)
      bench_store(attn_operand_at(&operand, args), operand.dtype, bench_output_place(p, args, &operand, &given->row[n], d),
                  bench_right_of(given, args, output, &operand, n, d).value);
}

bench_verdict eval_check_given(const bench_expected *oracle, const bench_expected *given, const eval_input *input) {
  static const attn_numerics exact = {0};
  const bench_output *output = bench_outputs_of(&given->problem);
  for (; output->right; output++) store_given(given, output, &input->tensors.args);
  return bench_check_values(oracle, &input->tensors.args, &exact);
}

static void fill_unused_tokens(const eval_input *input, const attn_operand *output, double value, void *data) {
  const attn_problem *p = &input->tensors.problem;
  const int32_t *cu = input->tensors.args.cu_seqlens_q;
  for (int64_t t = 0; (p->uses & ATTN_USE_VARLEN) && t < p->total_q; t++)
    for (int64_t h = 0; (t < cu[0] || t >= cu[p->batch]) && h < output->extent[1]; h++)
      for (int64_t d = 0; d < output->extent[3]; d++)
        bench_store(data, output->dtype, t * output->stride[2] + h * output->stride[1] + d, value);
}

/* Saves a copy, because later checks need the output as the kernel wrote it. */
static bool save(const eval_input *input, const eval_output *output, const char *path) {
  const attn_operand operand = attn_operand_of(&input->tensors.problem, (attn_operand_id)output->tensor);
  npy_array array = {.type = npy_type_of(operand.dtype), .count = 1};
  if (!path || !operand.present) return true;
  array.dims = eval_output_shape(input, &operand, array.shape);
  for (int d = 0; d < array.dims; d++) array.count *= array.shape[d];
  const size_t bytes = (size_t)attn_elements_bytes(operand.dtype, array.count);
  array.data = malloc(bytes + 1);
  if (!array.data) return fprintf(stderr, "attnbench eval: %s: no memory for a copy of the output\n", path), false;
  if (bytes) memcpy(array.data, attn_operand_at(&operand, &input->tensors.args), bytes);
  fill_unused_tokens(input, &operand, output->unused, array.data);
  const bool saved = npy_write(path, &array);
  npy_free(&array);
  return saved;
}

bool eval_save(const eval_input *input, const eval_task *task) {
  bool saved = true;
  for (int i = 0; saved && i < EVAL_OUTPUTS; i++) saved = save(input, &eval_outputs[i], task->save[i]);
  return saved;
}

/* ---- Before anything is read ------------------------------------------------------------------------------------- */

static bool is_same_file(const char *a, const char *b) {
  struct stat x, y;
  if (!strcmp(a, b)) return true;
  return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static int check_output(const eval_options *options, const eval_task *task, int n) {
  const char *name = eval_outputs[n].save, *path = task->save[n], *other = NULL;
  for (int i = 0; path && !other && i < n; i++)
    if (task->save[i] && is_same_file(path, task->save[i])) other = eval_outputs[i].save;
  for (eval_file which = 0; path && !other && which < EVAL_FILES; which++)
    if (options->path[which] && is_same_file(path, options->path[which])) other = eval_option(which);
  if (other) return cli_usage_error("eval", "%s %s is also %s; outputs go to files of their own", name, path, other);
  return path && !bench_file_writable(path) ? BENCH_EXIT_INTERNAL : 0;
}

int eval_check_outputs(const eval_options *options, const eval_task *task) {
  int code = 0;
  for (int n = 0; !code && n < EVAL_OUTPUTS; n++) code = check_output(options, task, n);
  return code;
}
