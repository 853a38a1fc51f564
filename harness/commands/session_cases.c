/* SPDX-License-Identifier: MIT */
/* The steps of a session over cases: every case with every kernel, except the rows that a resumed journal holds. */
#include <math.h>
#include <string.h>

#include "commands/session.h"

static int open_cases(bench_session *s, const bench_selection *selection) {
  (void)selection;
  int code = bench_options_cases(s->options, &s->cases);
  if (!code && s->options->shard) code = bench_shard_keep(s->options, &s->cases);
  return code ? code : bench_refuse_impossible(s->options, &s->cases);
}

static void print_extent(const bench_session *s, FILE *file) {
  fprintf(file, "%d case%s x %d kernel%s", s->cases.count, s->cases.count == 1 ? "" : "s", s->kernel_count,
          s->kernel_count == 1 ? "" : "s");
}

/* The journal's row of a case and kernel, unless it has to be done again. */
static bench_row *find_old(const bench_session *s, const char *case_id, const char *kernel) {
  for (int i = 0; i < s->old.count; i++) {
    bench_row *r = &s->old.item[i];
    if (!strcmp(r->case_id, case_id) && !strcmp(r->kernel, kernel) && r->verdict.status != BENCH_ERROR) return r;
  }
  return NULL;
}

/* Keeps what the journal holds of a case (NULL: of any), except rows that were measured again. */
static void keep_old(bench_session *s, const char *case_id) {
  for (int i = 0; i < s->old.count; i++) {
    bench_row *old = &s->old.item[i];
    bool again = false;
    if (!old->case_id[0] || (case_id && strcmp(old->case_id, case_id))) continue;
    for (int k = 0; case_id && k < s->kernel_count; k++) again = again || !strcmp(s->kernels[k]->name, old->kernel);
    if (again)
      bench_row_clear(old);
    else
      bench_session_keep(s, old, false);
  }
}

/* Kernels of another operation have no row. */
static bool computes(const attn_kernel_info *kernel, const bench_case *bench) {
  return kernel == &bench_automatic || attn_kernel_operation(kernel) == bench->problem.operation;
}

/* A case, and what is to be done of it. */
typedef struct current {
  const bench_case *bench;
  const attn_kernel_info *kernels[BENCH_MAX_KERNELS + 1]; /* the kernels without a row */
  int count;
  double guess; /* seconds */
  bench_row *rows;
} current;

static current open_case(const bench_session *s, int index) {
  current c = {.bench = &s->cases.item[index]};
  for (int i = 0; i < s->kernel_count; i++)
    if (computes(s->kernels[i], c.bench) && !find_old(s, c.bench->case_id, s->kernels[i]->name))
      c.kernels[c.count++] = s->kernels[i];
  if (c.count) c.guess = bench_case_guess(c.bench, c.kernels, c.count, &s->settings);
  return c;
}

static double guess_all(const bench_session *s) {
  double guess = 0;
  for (int i = 0; i < s->cases.count; i++) guess += open_case(s, i).guess;
  return guess;
}

static void list(const bench_session *s) {
  for (int i = 0; i < s->cases.count; i++) {
    const current c = open_case(s, i);
    if (c.count) printf("%7.*f s  %s\n", c.guess < 0.95 ? 3 : 1, c.guess, c.bench->case_id);
  }
}

/* ---- Rows of one case ----------------------------------------------------------------------------------------------- */

/* Keeps a row, unless a resumed run has to measure it again. --require makes a skip of that tier a failure. */
static void keep_fresh(bench_session *s, bench_row *row, bool durable) {
  const char *tier = s->options->require;
  const bool whole = !row->time.n || row->stop != BENCH_STOP_INTERRUPT;
  if (tier && row->verdict.status == BENCH_SKIP && !strcmp(row->isa, tier)) {
    char reason[sizeof row->verdict.reason];
    snprintf(reason, sizeof reason, "--require %s: %.300s", tier, row->verdict.reason);
    row->verdict.status = BENCH_FAIL;
    memcpy(row->verdict.reason, reason, sizeof reason);
  }
  bench_session_keep(s, row, durable && whole);
}

/* Keeps the rows of one case, fresh and old ones, in the order of the kernels. */
static void keep_case(bench_session *s, const bench_case *bench, bench_row *fresh, bool durable) {
  const char *case_id = bench->case_id;
  for (int i = 0; i < s->kernel_count; i++) {
    bench_row *old = find_old(s, case_id, s->kernels[i]->name);
    if (old)
      bench_session_keep(s, old, false);
    else if (computes(s->kernels[i], bench))
      keep_fresh(s, fresh++, durable);
  }
  keep_old(s, case_id);
  bench_session_flush(s);
}

static void count_structure_runs_of(bench_session *s, const bench_row *row) {
  for (int k = 0; k < s->kernel_count; k++)
    for (int test = 0; test < BENCH_STRUCTURE_TESTS && !strcmp(s->kernels[k]->name, row->kernel); test++)
      s->structure_runs[k][test] += (int)(row->verdict.structure >> test & 1);
}

/* ---- Running -------------------------------------------------------------------------------------------------------- */

/* With --budget, the time of a case shrinks to twice its share of what is left. False if nothing is left. */
static bool set_case_budget(bench_session *s, double guess) {
  const double left = s->options->budget_s - bench_session_elapsed(s), most = s->options->case_budget_s;
  s->settings.case_budget_s = most;
  if (s->options->budget_s <= 0) return true;
  s->settings.case_budget_s = fmin(most, fmax(2 * left * guess / fmax(s->guess_left_s, 1e-9), 0.05));
  return left > 0;
}

/* Fills the rows of the kernels that are missing. *durable is set if they need not be done again by --resume. False if
 * the run was interrupted before they were complete. */
static bool run_missing(bench_session *s, current *c, bool *durable) {
  const bool unmeasured = s->options->unmeasured;
  bench_progress_note(&s->progress, s->case_name, "begins");
  *durable = !unmeasured && set_case_budget(s, c->guess);
  if (*durable && !bench_run_case(c->bench, c->kernels, c->count, &s->settings, c->rows)) return false;
  for (int i = 0; i < c->count && !*durable; i++) {
    bench_verdict *verdict = &c->rows[i].verdict;
    c->rows[i] = bench_row_create(c->bench, c->kernels[i]);
    verdict->status = BENCH_SKIP;
    if (unmeasured)
      snprintf(verdict->reason, sizeof verdict->reason, "not measured: --resume does it");
    else
      snprintf(verdict->reason, sizeof verdict->reason, "--budget of %.0f s is used up", s->options->budget_s);
  }
  for (int i = 0; i < c->count; i++) count_structure_runs_of(s, &c->rows[i]);
  return true;
}

/* One case; false if the run was interrupted before it was complete. */
static bool run_case(bench_session *s, int index) {
  current c = open_case(s, index);
  const int before = s->rows.count;
  bool durable = true;
  c.rows = s->fresh;
  s->case_name = c.bench->case_id;
  if (c.count && !run_missing(s, &c, &durable)) return false;
  keep_case(s, c.bench, c.rows, durable);
  bench_progress_wipe(&s->progress);
  if (s->rows.count > before) bench_table_case(&s->table, s->rows.item + before, s->rows.count - before);
  bench_progress_advance(&s->progress, c.guess, !c.count);
  s->guess_left_s -= c.guess;
  return true;
}

static void run_cases(bench_session *s) {
  s->guess_left_s = guess_all(s);
  bench_progress_start(&s->progress, s->cases.count, s->guess_left_s, s->options->quiet);
  for (int i = 0; i < s->cases.count && !*s->settings.stop && !s->io_failed; i++)
    if (!run_case(s, i)) break;
  keep_old(s, NULL);
  bench_progress_wipe(&s->progress);
}

static int conclude_cases(const bench_session *s) {
  bool usable = false; /* some kernel, on this CPU */
  if (s->options->unmeasured || bench_count_status(&s->rows, BENCH_SKIP) < s->rows.count) return BENCH_EXIT_OK;
  for (int i = 0; i < s->kernel_count; i++)
    usable = usable || s->kernels[i] == &bench_automatic || !attn_kernel_unusable(s->kernels[i]);
  if (!usable) return BENCH_EXIT_SKIPPED;
  return cli_fail(BENCH_EXIT_NOTHING, s->options->command, "nothing could run: every row was skipped");
}

const bench_session_steps bench_cases_steps = {.items = "cases",
                                               .goes_on = "; the same command with --resume goes on from there",
                                               .open = open_cases,
                                               .list = list,
                                               .guess = guess_all,
                                               .print_extent = print_extent,
                                               .run = run_cases,
                                               .conclude = conclude_cases};
