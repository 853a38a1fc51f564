/* SPDX-License-Identifier: MIT */
/* `attnbench eval`: kernels on the user's own tensors, judged by the oracle and, where there is one, by someone else's
 * output. Real data is not zero-mean, so that only the proven limit applies. */
#include "eval/eval.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli.h"
#include "base/select.h"
#include "cases/cases.h"
#include "cases/work.h"
#include "commands/commands.h"
#include "machine/affinity.h"
#include "machine/emulation.h"
#include "timing/peak_rate.h"
#include "timing/rounds.h"
#include "timing/stats.h"

enum { ROW_NAME = 80 };

typedef struct eval_command {
  eval_options options;
  const char *save_o, *save_lse;
  cli_list kernels;
  const char *threads_text, *cpus;
  int64_t threads;
  double budget_s;
  bool time;
} eval_command;

/* One line of the table. */
typedef struct eval_row {
  char name[ROW_NAME];
  bench_verdict verdict;
  bool unusable;   /* SKIP because of this CPU, not of the problem */
  attn_plan *plan; /* NULL: not run */
  void *workspace;
  size_t workspace_bytes;
  bench_trial trial; /* with samples where it was timed */
} eval_row;

/* What all rows share. */
typedef struct eval_state {
  const eval_command *command;
  eval_input input;
  bench_expected *oracle, *expected;   /* expected: NULL without --expect */
  eval_row row[BENCH_MAX_KERNELS + 2]; /* the kernels, the automatic choice and the --expect files */
  int rows;
  bool saved;
  int exit_code;
} eval_state;

/* ---- Options ----------------------------------------------------------------------------------------------------- */

static bool parse(int argc, char **argv, eval_command *c, int *exit_code) {
  const char **path = c->options.path;
  const cli_option options[] = {
      CLI_HEADING("Tensors (.npy files)"),
      {CLI_STRING, 0, "q", "FILE", "queries [batch, heads, seq, dim]; [heads, seq, dim] and [seq, dim] will do",
       &path[EVAL_Q]},
      {CLI_STRING, 0, "k", "FILE", "keys [batch, heads_kv, seq, dim]; heads_kv divides heads", &path[EVAL_K]},
      {CLI_STRING, 0, "v", "FILE", "values [batch, heads_kv, seq, dim_v]", &path[EVAL_V]},
      {CLI_STRING, 0, "layout", "WORD", "bhsd, or bshd for [batch, seq, heads, dim] (default bhsd)", &c->options.layout},
      {CLI_STRING, 0, "dtype", "TYPE",
       "what the kernels get of q, k, v and give as o: f32, f16 or bf16; uint16 files hold bf16 (default: the files' own; "
       "f64 "
       "becomes f32, uint16 needs this option)",
       &c->options.dtype},
      CLI_HEADING("Scores"),
      {CLI_STRING, 0, "score", "WORD", "dot, additive, gaussian or precomputed (default dot; precomputed with --scores)",
       &c->options.score},
      {CLI_REAL, 0, "scale", "X", "factor of dot scores (default 1/sqrt(dim))", &c->options.scale},
      {CLI_REAL, 0, "softcap", "X", "scores become X tanh(score / X); 0 = off (default 0)", &c->options.softcap},
      {CLI_STRING, 0, "scores", "FILE", "precomputed scores, broadcast like --bias; --q and --k are not needed",
       &path[EVAL_SCORES]},
      {CLI_STRING, 0, "score-weight", "FILE", "[dim] or [heads, dim], of additive and gaussian scores",
       &path[EVAL_SCORE_WEIGHT]},
      {CLI_STRING, 0, "bias", "FILE",
       "added to the scores; broadcasts to [batch, heads, seq_q, seq_k] as in NumPy; -inf masks", &path[EVAL_BIAS]},
      {CLI_STRING, 0, "alibi", "FILE", "[heads] slopes: minus slope times distance is added to the scores",
       &path[EVAL_ALIBI]},
      {CLI_STRING, 0, "sinks", "FILE", "[heads] one more logit in each row's denominator", &path[EVAL_SINKS]},
      CLI_HEADING("Which keys a query sees"),
      {CLI_STRING, 0, "mask", "FILE", "bool or uint8, 1 = seen; broadcasts like --bias", &path[EVAL_MASK]},
      {CLI_STRING, 0, "kv-len", "FILE", "[batch] keys of each sequence, or [batch, seq_q] of each query; int32 or int64",
       &path[EVAL_KV_LEN]},
      {CLI_STRING, 0, "q-len", "FILE", "[batch] queries of each sequence; rows beyond give 0", &path[EVAL_Q_LEN]},
      {CLI_STRING, 0, "causal", "WORD", "none, top-left, bottom-right or offset (default none)", &c->options.causal},
      {CLI_STRING, 0, "offset", "N|FILE",
       "key position of query 0, for causal, windows and ALiBi; FILE is [batch] (default 0)", &path[EVAL_OFFSET]},
      {CLI_INT, 0, "window-left", "N", "keys seen to the left of a query's own; -1 = all (default -1)",
       &c->options.window_left},
      {CLI_INT, 0, "window-right", "N", "keys seen to the right; -1 = all (default -1)", &c->options.window_right},
      {CLI_STRING, 0, "cu-seqlens-q", "FILE", "[batch + 1] where sequences begin; then q is packed: [tokens, heads, dim]",
       &path[EVAL_CU_SEQLENS_Q]},
      {CLI_STRING, 0, "cu-seqlens-k", "FILE", "likewise for k and v", &path[EVAL_CU_SEQLENS_K]},
      CLI_HEADING("What to run"),
      {CLI_LIST, 'k', "kernel", "NAME", "a kernel, a glob, !GLOB to leave out, auto, or all; repeatable (default all)",
       &c->kernels},
      {CLI_STRING, 't', "threads", "N", "threads of the kernels; all = every CPU allowed (default 1)", &c->threads_text},
      {CLI_STRING, 0, "cpus", "LIST", BENCH_CPUS_HELP, &c->cpus},
      {CLI_FLAG, 0, "time", NULL, "time every kernel that passes", &c->time},
      {CLI_DURATION, 0, "budget", "TIME", "of the timing: 10s, 2m (default 10s)", &c->budget_s},
      CLI_HEADING("Output"),
      {CLI_STRING, 0, "expect", "FILE", "someone else's o: must be within the same error limits; f64 is best",
       &path[EVAL_EXPECT]},
      {CLI_STRING, 0, "expect-lse", "FILE", "someone else's log-sum-exp [batch, heads, seq]", &path[EVAL_EXPECT_LSE]},
      {CLI_STRING, 0, "save-o", "FILE", "o of the first kernel that ran, laid out like q", &c->save_o},
      {CLI_STRING, 0, "save-lse", "FILE", "its log-sum-exp [batch, heads, seq], float32", &c->save_lse},
      CLI_END,
  };
  const cli_command command = {
      .name = "eval",
      .usage = "--q FILE --k FILE --v FILE [options]",
      .summary =
          "Runs attention on tensors from .npy files and checks every kernel against a float64 oracle: one row per kernel. "
          "Exit code 0 only if all pass.",
      .options = options,
      .epilogue =
          "Example:\n"
          "  numpy.save(\"q.npy\", q.numpy())   # k and v likewise; float32, float16 or float64\n"
          "  attnbench eval --q q.npy --k k.npy --v v.npy --causal top-left --time\n"};
  return cli_parse(&command, argc, argv, exit_code);
}

static bool read_threads(eval_command *c) {
  if (strcmp(c->threads_text, "all") == 0)
    c->threads = bench_cpu_count();
  else if (!cli_read_int(c->threads_text, &c->threads) || c->threads < 1 || c->threads > 4096)
    return cli_usage_error("eval", "--threads %s: 1 to 4096, or all, would do", c->threads_text) == 0;
  return true;
}

/* "all" is the glob of all names. */
static int select_kernels(const cli_list *kernels, bench_selection *selection) {
  bench_filter filter = {.kernels = *kernels};
  for (int i = 0; i < filter.kernels.count; i++)
    if (strcmp(filter.kernels.item[i], "all") == 0) filter.kernels.item[i] = "*";
  return bench_select(&filter, "eval", selection);
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

static void set_verdict(eval_row *row, bench_status status, const char *reason) {
  row->verdict.status = status;
  snprintf(row->verdict.reason, sizeof row->verdict.reason, "%s", reason);
}

/* Plan and workspace. False: the verdict says why there are none. */
static bool prepare(const eval_state *state, const char *kernel, eval_row *row) {
  const attn_options options = {.kernel = kernel, .threads = (int)state->command->threads};
  const attn_status status = attn_plan_create(&state->input.tensors.problem, &options, &row->plan);
  if (status != ATTN_OK) {
    set_verdict(row, status == ATTN_UNSUPPORTED ? BENCH_SKIP : BENCH_ERROR, attn_last_error());
    return false;
  }
  row->workspace_bytes = attn_plan_workspace(row->plan);
  row->workspace = aligned_alloc(64, row->workspace_bytes + 64);
  if (!row->workspace) set_verdict(row, BENCH_ERROR, "no memory for the workspace");
  return row->workspace != NULL;
}

/* A kernel that is right by the oracle must be as near to the files as well. */
static void judge_by_files(const eval_state *state, const attn_numerics *numerics, bench_verdict *verdict) {
  const bench_verdict given = bench_compare(state->expected, &state->input.tensors.args, numerics);
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

/* Files of the first kernel's output. */
static void save(eval_state *state) {
  char error[600];
  const eval_command *c = state->command;
  if (state->saved) return;
  state->saved = true;
  if ((c->save_o && eval_save_o(&state->input, c->save_o, error, sizeof error)) ||
      (c->save_lse && eval_save_lse(&state->input, c->save_lse, error, sizeof error))) {
    fprintf(stderr, "attnbench eval: %s\n", error);
    state->exit_code = BENCH_EXIT_INTERNAL;
  }
}

/* Runs one kernel, or the library's own choice (NULL), and judges it. */
static void run_row(eval_state *state, const attn_kernel_info *kernel) {
  eval_row *row = &state->row[state->rows++];
  snprintf(row->name, sizeof row->name, "%s", kernel ? kernel->name : "auto");
  const char *refusal = kernel ? attn_kernel_rejects(kernel, &state->input.tensors.problem) : NULL;
  if (refusal) set_verdict(row, BENCH_SKIP, refusal);
  row->unusable = refusal && attn_kernel_unusable(kernel);
  if (refusal || !prepare(state, kernel ? kernel->name : NULL, row)) return;
  if (!kernel) snprintf(row->name, sizeof row->name, "auto: %s", attn_plan_kernel(row->plan));
  const attn_numerics *numerics = &attn_kernel_find(attn_plan_kernel(row->plan))->numerics;
  row->verdict =
      bench_check(row->plan, &state->input.tensors, state->oracle, numerics, row->workspace, row->workspace_bytes);
  const bool right = row->verdict.status == BENCH_PASS || row->verdict.status == BENCH_DEGENERATE;
  if (right && state->expected) judge_by_files(state, numerics, &row->verdict);
  if (row->verdict.status != BENCH_ERROR) save(state);
}

/* The files themselves, by the oracle: tells a wrong file, or a problem put differently, from a wrong kernel. */
static void run_expect_row(eval_state *state) {
  eval_row *row = &state->row[state->rows++];
  snprintf(row->name, sizeof row->name, "--expect");
  row->verdict = eval_judge(state->oracle, state->expected, &state->input);
}

static bool prepare_answers(eval_state *state) {
  const bool files = state->input.expect || state->input.expect_lse;
  state->oracle = bench_expected_create(&state->input.tensors.problem, &state->input.tensors.args, 1, false);
  if (state->oracle && files) state->expected = eval_expect(state->oracle, &state->input);
  if (state->oracle && (!files || state->expected)) return true;
  fprintf(stderr, "attnbench eval: no memory for the oracle's answer\n");
  return false;
}

static void clear(eval_state *state) {
  for (int i = 0; i < state->rows; i++) {
    attn_plan_destroy(state->row[i].plan);
    free(state->row[i].workspace);
  }
  bench_expected_destroy(state->oracle);
  bench_expected_destroy(state->expected);
  eval_unload(&state->input);
}

/* ---- Times ------------------------------------------------------------------------------------------------------- */

static bench_trial *prepare_trial(eval_row *row, bench_tensors *tensors) {
  const attn_kernel_info *kernel = attn_kernel_find(attn_plan_kernel(row->plan));
  row->trial = (bench_trial){.kernel = kernel,
                             .plan = row->plan,
                             .tensors = tensors,
                             .tensor_count = 1,
                             .workspace = row->workspace,
                             .workspace_bytes = row->workspace_bytes,
                             .verdict = row->verdict,
                             .peak = bench_peak_of(kernel, bench_dtype_name(tensors->problem.dtype_kv))};
  return &row->trial;
}

/* Times all rows that passed. False after an error, said on stderr. */
static bool time_rows(eval_state *state) {
  const eval_command *c = state->command;
  const bench_timing_options options = {.precision = 0.01,
                                        .min_rounds = 11,
                                        .max_rounds = 1000,
                                        .budget_s = c->budget_s,
                                        .min_sample_s = 1e-3,
                                        .threads = (int)c->threads,
                                        .seed = 1};
  bench_trial *trials[BENCH_MAX_KERNELS + 1];
  int count = 0;
  for (int i = 0; i < state->rows; i++)
    if (state->row[i].plan && state->row[i].verdict.status == BENCH_PASS)
      trials[count++] = prepare_trial(&state->row[i], &state->input.tensors);
  bench_stop stop;
  const char *error;
  const bool held = bench_threads_hold((int)c->threads);
  const bool timed = bench_time(trials, count, &options, &stop, &error);
  if (held) bench_threads_release();
  if (timed) return true;
  fprintf(stderr, "attnbench eval: %s\n", error);
  return false;
}

/* Share of the peak that ran beside each sample, the median over the rounds; 0 = no peak loop. */
static double peak_share(const bench_trial *trial, double flops, int64_t threads) {
  const bench_samples *samples = &trial->samples;
  double *share = malloc((size_t)samples->rounds * sizeof *share + 1);
  double median = 0.0;
  for (int r = 0; share && r < samples->rounds; r++)
    share[r] = flops / (samples->time_ns[r] * 1e-9) / (samples->loop_rate[r] * (double)threads);
  if (share && trial->peak) median = bench_median(share, samples->rounds);
  free(share);
  return median;
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

/* "batch 2, heads 12/4, seq 128/512, dim 64, f32": a pair where the two differ. */
static void print_problem(const eval_state *state) {
  const attn_problem *p = &state->input.tensors.problem;
  const int64_t threads = state->command->threads;
  int64_t checked = 0;

  const struct {
    const char *name;
    int64_t q, k;
  } sizes[] = {{"heads", p->heads_q, p->heads_kv}, {"seq", p->seq_q, p->seq_k}, {"dim", p->dim_qk, p->dim_v}};
  printf("batch %lld", (long long)p->batch);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    printf(", %s %lld", sizes[i].name, (long long)sizes[i].q);
    if (sizes[i].q != sizes[i].k) printf("/%lld", (long long)sizes[i].k);
  }
  for (int i = 0; i < state->rows; i++)
    if (state->row[i].verdict.rows_checked > checked) checked = state->row[i].verdict.rows_checked;
  printf(", %s, %lld thread%s; %lld rows checked\n", bench_dtype_name(p->dtype_kv), (long long)threads,
         threads == 1 ? "" : "s", (long long)checked);
}

static void print_time(const bench_trial *trial, double flops, int64_t threads) {
  const bench_summary time = bench_summarise(trial->samples.time_ns, trial->samples.rounds);
  const double share = peak_share(trial, flops, threads);
  printf("  %11.2f  [%.2f, %.2f]  %8.2f", time.median * 1e-3, time.ci_lo * 1e-3, time.ci_hi * 1e-3, flops / time.median);
  if (share > 0) printf("  %5.1f %%", 100 * share);
}

static void print_rows(const eval_state *state, double flops) {
  int width = (int)strlen("kernel");
  for (int i = 0; i < state->rows; i++)
    if ((int)strlen(state->row[i].name) > width) width = (int)strlen(state->row[i].name);
  printf("%-*s  %-10s  %9s  %11s%s\n", width, "kernel", "status", "err/limit", "max abs err",
         state->command->time ? "  median (us)  [95 % interval]  GFLOP/s   of peak" : "");
  for (int i = 0; i < state->rows; i++) {
    const eval_row *row = &state->row[i];
    const bool judged = row->verdict.status != BENCH_SKIP && row->verdict.status != BENCH_ERROR;
    printf("%-*s  %-10s", width, row->name, bench_status_name(row->verdict.status));
    if (judged) printf("  %9.3g  %11.3g", row->verdict.max_err_ratio, row->verdict.max_abs_err);
    if (row->trial.samples.rounds) print_time(&row->trial, flops, state->command->threads);
    if (row->verdict.reason[0]) printf("  %s", row->verdict.reason);
    printf("\n");
  }
}

/* 0 only if something ran and all that ran is right. */
static int exit_code_of(const eval_state *state) {
  int ran = 0, unusable = 0, kernels = 0, code = state->exit_code;
  for (int i = 0; i < state->rows; i++) {
    const eval_row *row = &state->row[i];
    const bench_status status = row->verdict.status;
    if (status == BENCH_FAIL) return BENCH_EXIT_FAILED;
    if (status == BENCH_ERROR) code = BENCH_EXIT_INTERNAL;
    ran += row->plan != NULL;
    unusable += row->unusable;
    kernels += strcmp(row->name, "--expect") != 0;
  }
  if (code || ran) return code;
  return unusable == kernels ? BENCH_EXIT_SKIPPED : BENCH_EXIT_NOTHING;
}

/* ---- The command ------------------------------------------------------------------------------------------------- */

static int run(eval_state *state, const bench_selection *selection) {
  const attn_problem *problem = &state->input.tensors.problem;
  if (!prepare_answers(state)) return BENCH_EXIT_INTERNAL;
  if (state->expected) run_expect_row(state);
  if (selection->automatic) run_row(state, NULL);
  for (int i = 0; i < selection->count; i++) run_row(state, selection->kernel[i]);
  if (state->command->time && !time_rows(state)) state->exit_code = BENCH_EXIT_INTERNAL;
  print_problem(state);
  print_rows(state, bench_work_flops(problem, bench_work_pairs(problem, &state->input.tensors.args)));
  for (int i = 0; i < state->rows; i++) bench_trial_clear(&state->row[i].trial);
  return exit_code_of(state);
}

int bench_eval_main(int argc, char **argv) {
  eval_command command = {
      .options = {.layout = "bhsd", .causal = "none", .scale = NAN, .window_left = -1, .window_right = -1},
      .threads_text = "1",
      .budget_s = 10,
  };
  bench_selection selection;
  int exit_code;
  if (!parse(argc, argv, &command, &exit_code)) return exit_code;
  if ((exit_code = select_kernels(&command.kernels, &selection)) != 0) return exit_code;
  if (command.cpus && (exit_code = bench_pin_cpus("eval", command.cpus)) != 0) return exit_code;
  if (!read_threads(&command)) return BENCH_EXIT_USAGE;
  if (command.time && bench_refuses_to_time("eval --time")) return BENCH_EXIT_UNFIT;
  command.options.lse = command.save_lse != NULL;

  eval_state *state = calloc(1, sizeof *state);
  if (!state) return BENCH_EXIT_INTERNAL;
  state->command = &command;
  if (eval_load(&command.options, &state->input)) {
    exit_code = run(state, &selection);
  } else {
    fprintf(stderr, "attnbench eval: %s\n", state->input.error);
    exit_code = state->input.exit_code;
  }
  clear(state);
  free(state);
  return exit_code;
}
