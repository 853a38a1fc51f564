/* SPDX-License-Identifier: MIT */
/* Which goals become rows here, and the loop over them. */
#include "goals/goals_session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/files.h"
#include "goals/goals_private.h"
#include "machine/environment_private.h"
#include "report/journal.h"

/* ---- Choosing ------------------------------------------------------------------------------------------------------- */

/* The goals that a list of presets ("limits" or "quick,limits") names, or NULL. */
static const char *goals_of(const char *presets) {
  char name[64];
  for (; *presets; presets += presets[0] == ',') {
    const size_t length = strcspn(presets, ",");
    snprintf(name, sizeof name, "%.*s", (int)length, presets);
    if (bench_goals_find(name)) return bench_goals_find(name);
    presets += length;
  }
  return NULL;
}

bool bench_goals_wanted(const bench_options *o) {
  for (int i = 0; i < o->presets.count; i++)
    if (o->timed && goals_of(o->presets.item[i])) return true;
  return false;
}

static bool has_other_cases(const bench_options *o) {
  const char *values;
  for (int i = 0; i < o->axes.count; i++)
    if (!bench_axis_is(o->axes.item[i], "kernel", &values)) return true;
  return o->presets.count > 1 || !bench_goals_find(o->presets.item[0]) || o->case_ids.count || o->threads || o->cases;
}

static int check_options(const bench_options *o) {
  if (has_other_cases(o))
    return cli_usage_error(o->command,
                           "--preset limits has rows of its own: leave out -a, -t, --case, --cases and other presets "
                           "(attnbench list preset limits prints the rows)");
  if (o->resume) return cli_usage_error(o->command, "--resume: the rows of --preset limits belong to one process");
  if (o->rounds && o->rounds < BENCH_LEAST_GOAL_ROUNDS)
    return cli_usage_error(o->command, "--rounds %lld: a row of --preset limits needs at least %d", (long long)o->rounds,
                           BENCH_LEAST_GOAL_ROUNDS);
  return 0;
}

static bool is_selected(const bench_selection *selection, const attn_kernel_info *kernel) {
  for (int i = 0; i < selection->count; i++)
    if (selection->kernel[i] == kernel) return true;
  return false;
}

/* Makes the row of a goal, or says why there is none. */
static bench_absence make_row(const bench_goal *goal, const bench_selection *selection, const char *vendor, uint64_t seed,
                              bench_goal_row *row) {
  *row = (bench_goal_row){.goal = goal, .kernel = attn_kernel_find(goal->kernel)};
  if (!bench_goal_applies(goal, vendor, attn_cpu_tiers())) return BENCH_OTHER_CPU;
  if (!row->kernel) return BENCH_NOT_BUILT;
  if (!is_selected(selection, row->kernel)) return BENCH_NOT_SELECTED;
  if (attn_kernel_unusable(row->kernel)) return BENCH_NO_TIER;
  bench_case_build(&goal->spec, seed, &row->bench);
  bench_case_build(&goal->against, seed, &row->against);
  if (attn_kernel_rejects(row->kernel, &row->bench.problem)) return BENCH_REFUSED;
  return attn_kernel_rejects(row->kernel, &row->against.problem) ? BENCH_REFUSED : BENCH_HERE;
}

static void choose_rows(bench_goal_table *table, const bench_selection *selection, uint64_t seed) {
  char vendor[64];
  bench_read_field("/proc/cpuinfo", "vendor_id", vendor, sizeof vendor);
  for (int i = 0; i < table->goals.count; i++) {
    const bench_absence absence = make_row(&table->goals.item[i], selection, vendor, seed, &table->row[table->count]);
    table->absent[absence]++;
    if (absence == BENCH_HERE) table->count++;
  }
}

static int refuse_empty(const bench_goal_table *table, const char *command) {
  bench_goals_print_absences(table, stderr);
  (void)cli_usage_error(command, "no row of --preset limits can be measured here");
  return table->absent[BENCH_NO_TIER] ? BENCH_EXIT_SKIPPED : BENCH_EXIT_NOTHING;
}

int bench_goals_open(bench_session *s, const bench_selection *selection) {
  const bench_options *o = s->options;
  char error[400];
  const int code = check_options(o);
  if (code) return code;
  bench_goal_table *table = s->goals = calloc(1, sizeof *table);
  if (!table) return BENCH_EXIT_INTERNAL;
  if (!bench_goals_read(bench_goals_find(o->presets.item[0]), &table->goals, error, sizeof error))
    return cli_usage_error(o->command, "goals of preset %s: %s", o->presets.item[0], error);
  table->row = calloc((size_t)table->goals.count + 1, sizeof *table->row);
  if (!table->row) return BENCH_EXIT_INTERNAL;
  choose_rows(table, selection, (uint64_t)o->seed);
  return table->count ? 0 : refuse_empty(table, o->command);
}

void bench_goals_close(bench_session *s) {
  if (!s->goals) return;
  bench_goals_clear(&s->goals->goals);
  free(s->goals->row);
  free(s->goals);
}

/* ---- Running -------------------------------------------------------------------------------------------------------- */

int bench_goals_dry_run(bench_session *s) {
  char clock[24];
  double total = 0;
  for (int i = 0; i < s->goals->count; i++) {
    const bench_goal_row *row = &s->goals->row[i];
    const double guess = bench_goal_guess(row, &s->settings);
    total += guess;
    printf("%7.1f s  %s: %s, %s %s\n%11s%s\n", guess, row->goal->section, row->goal->text, row->goal->metric->name,
           row->goal->kernel, "", row->bench.case_id);
    if (row->goal->metric->against) printf("%11sagainst %s\n", "", row->against.case_id);
  }
  bench_format_clock(total, clock, sizeof clock);
  printf("%d rows, about %s (a guess, to a factor of two or so)\n", s->goals->count, clock);
  bench_goals_print_absences(s->goals, stdout);
  return BENCH_EXIT_OK;
}

/* Why the row is not tried, or NULL. */
static const char *reason_to_skip(const bench_session *s, const bench_goal_row *row, char *reason, size_t bytes) {
  const int threads = row->bench.threads, cpus = bench_cpu_count();
  const double spent = 1e-9 * bench_now_ns() - s->started_s;
  if (!row->goal->metric->value) return NULL; /* nothing runs */
  if (threads > cpus)
    snprintf(reason, bytes, "needs %d CPUs; this process may use %d", threads, cpus);
  else if (s->options->budget_s > 0 && spent > s->options->budget_s)
    snprintf(reason, bytes, "--budget of %.0f s is used up", s->options->budget_s);
  else
    return NULL;
  return reason;
}

static bool is_recorded(const bench_rows *rows, const bench_row *row) {
  for (int i = 0; i < rows->count; i++)
    if (!strcmp(rows->item[i].case_id, row->case_id) && !strcmp(rows->item[i].kernel, row->kernel)) return true;
  return false;
}

/* The cases of a goal are rows of the other result files as well; one that serves several goals stands there once. */
static void record(bench_session *s, bench_row *row) {
  if (row->case_id[0] && !is_recorded(&s->rows, row)) {
    snprintf(row->run_id, sizeof row->run_id, "%s", s->run_id);
    if (s->journal && !(bench_journal_append(s->journal, row) && bench_journal_flush(s->journal))) s->io_failed = true;
    if (!bench_rows_append(&s->rows, row)) s->io_failed = true;
  }
  bench_row_clear(row);
}

/* False if the run was interrupted before the row was done. */
static bool run_row(bench_session *s, bench_goal_row *row) {
  bench_row rows[2] = {{.case_id = ""}, {.case_id = ""}};
  bool complete = true;
  if (reason_to_skip(s, row, row->reason, sizeof row->reason)) {
    row->status = BENCH_SKIP;
    row->done = true;
  } else {
    s->case_name = row->goal->text;
    complete = bench_goal_measure(row, &s->settings, rows);
  }
  for (int i = 0; complete && i < 2; i++) record(s, &rows[i]);
  return complete;
}

static void print_repro(const bench_goal_row *row) {
  printf("      attnbench run --kernel %s --case '%s'\n", row->goal->kernel, row->bench.case_id);
}

void bench_goals_run(bench_session *s) {
  bench_goal_table *table = s->goals;
  double guess = 0;
  for (int i = 0; i < table->count; i++) guess += bench_goal_guess(&table->row[i], &s->settings);
  bench_progress_start(&s->progress, table->count, guess, s->options->quiet);
  bench_goals_print_head(stdout);
  for (int i = 0; i < table->count && !*s->settings.stop && !s->io_failed; i++) {
    bench_goal_row *row = &table->row[i];
    if (!run_row(s, row)) break;
    bench_progress_wipe(&s->progress);
    bench_goals_print_row(row, i ? row - 1 : NULL, stdout);
    if (s->options->repro || row->status == BENCH_FAIL) print_repro(row);
    fflush(stdout);
    bench_progress_advance(&s->progress, bench_goal_guess(row, &s->settings), false);
  }
  bench_progress_wipe(&s->progress);
  bench_goals_print_summary(table, stdout);
  putchar('\n');
}

/* ---- The end -------------------------------------------------------------------------------------------------------- */

static void write_csv(void *context, FILE *file) {
  const bench_session *s = context;
  bench_goals_write_csv(s->goals, s->run_id, file);
}

static void write_text(void *context, FILE *file) {
  const bench_session *s = context;
  const bench_goal_row *before = NULL;
  bench_session_print_opening(s, file);
  bench_goals_print_head(file);
  for (const bench_goal_row *row = s->goals->row; row < s->goals->row + s->goals->count; row++) {
    if (!row->done) continue;
    bench_goals_print_row(row, before, file);
    before = row;
  }
  bench_goals_print_summary(s->goals, file);
}

bool bench_goals_write(bench_session *s) {
  char csv[BENCH_PATH_BYTES], text[BENCH_PATH_BYTES];
  bench_session_path(s, "limits.csv", csv);
  bench_session_path(s, "limits.txt", text);
  return bench_file_write(csv, write_csv, s) && bench_file_write(text, write_text, s);
}

int bench_goals_conclude(const bench_session *s) {
  int judged = 0, below = 0, failed = 0;
  for (int i = 0; i < s->goals->count; i++) {
    const bench_goal_row *row = &s->goals->row[i];
    failed += row->done && (row->status == BENCH_FAIL || row->status == BENCH_ERROR || row->status == BENCH_DEGENERATE);
    judged += row->done && row->status == BENCH_PASS && row->judgement.mark != BENCH_NO_FLOOR;
    below += row->done && row->status == BENCH_PASS && row->judgement.mark == BENCH_SHORT;
  }
  if (failed || (s->options->gate && below)) return BENCH_EXIT_FAILED;
  return s->options->gate && !judged ? BENCH_EXIT_UNFIT : BENCH_EXIT_OK;
}
