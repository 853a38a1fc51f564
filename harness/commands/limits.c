/* SPDX-License-Identifier: MIT */
/* The steps of a session over goals. A goal is one case, or two cases that are timed together, with a floor and a goal
 * for the result. */
#include "commands/session.h"

#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "goals/goals.h"

/* ---- Opening -------------------------------------------------------------------------------------------------------- */

/* True if a list of presets ("limits" or "quick,limits") names the one with goals. */
static bool has_goals(const char *presets) {
  char name[64];
  while (cli_next_word(&presets, name, sizeof name))
    if (!strcmp(name, BENCH_GOALS)) return true;
  return false;
}

bool bench_limits_wanted(const bench_options *o) {
  for (int i = 0; i < o->presets.count; i++)
    if (has_goals(o->presets.item[i])) return true;
  return false;
}

static int check_options(const bench_options *o) {
  if (bench_options_have_axes(o) || o->presets.count > 1 || strcmp(o->presets.item[0], BENCH_GOALS) || o->case_ids.count ||
      o->threads || o->cases)
    return cli_usage_error(o->command,
                           "--preset limits has rows of its own: leave out -a, -t, --case, --cases and other presets "
                           "(attnbench list preset limits prints the rows)");
  if (o->resume) return cli_usage_error(o->command, "--resume: the rows of --preset limits belong to one process");
  if (o->rounds && o->rounds < BENCH_LEAST_GOAL_ROUNDS)
    return cli_usage_error(o->command, "--rounds %lld: a row of --preset limits needs at least %d", (long long)o->rounds,
                           BENCH_LEAST_GOAL_ROUNDS);
  return 0;
}

/* The most threads of a row that is run. */
static int most_threads(const bench_goal_table *table) {
  int most = 1;
  for (int i = 0; i < table->count; i++) {
    const int threads = table->row[i].bench.threads;
    if (table->row[i].goal->line->metric->value && threads > most && threads <= bench_usable_threads()) most = threads;
  }
  return most;
}

static int open_goals(bench_session *s, const bench_selection *selection) {
  const bench_options *o = s->options;
  char error[400];
  const int code = check_options(o);
  if (code) return code;
  bench_goal_table *table = s->own = calloc(1, sizeof *table);
  if (!table) return cli_fail(BENCH_EXIT_INTERNAL, o->command, "out of memory");
  if (!bench_goal_table_open(table, bench_limits, selection, (uint64_t)o->seed, error, sizeof error))
    return cli_fail(BENCH_EXIT_INTERNAL, o->command, "%s", error);
  if (table->count) return bench_refuse_threads(o->command, most_threads(table));
  bench_goals_print_absences(table, stderr);
  return cli_fail(table->absent[BENCH_NO_TIER] ? BENCH_EXIT_SKIPPED : BENCH_EXIT_NOTHING, o->command,
                  "no row of --preset limits can be measured here");
}

static void close_goals(bench_session *s) {
  if (s->own) bench_goal_table_clear(s->own);
  free(s->own);
}

static void print_extent(const bench_session *s, FILE *file) {
  const bench_goal_table *table = s->own;
  fprintf(file, "%d rows, %d rounds each", table->count, s->settings.rounds);
}

static double guess_all(const bench_session *s) {
  const bench_goal_table *table = s->own;
  double guess = 0;
  for (int i = 0; i < table->count; i++) guess += bench_goal_guess(&table->row[i], &s->settings);
  return guess;
}

static void list(const bench_session *s) {
  const bench_goal_table *table = s->own;
  for (int i = 0; i < table->count; i++) {
    const bench_goal_row *row = &table->row[i];
    printf("%7.1f s  %s: %s, %s %s\n%11s%s\n", bench_goal_guess(row, &s->settings), row->goal->section,
           row->goal->line->text, row->goal->line->metric->name, row->goal->kernel, "", row->bench.case_id);
    if (row->goal->line->metric->against) printf("%11sagainst %s %s\n", "", row->against_kernel->name, row->against.case_id);
  }
  bench_goals_print_absences(table, stdout);
  bench_goals_print_open(table, stdout);
}

/* ---- Running -------------------------------------------------------------------------------------------------------- */

/* True if the row is not tried; it holds the reason then. */
static bool is_skipped(const bench_session *s, bench_goal_row *row) {
  const int threads = row->bench.threads, cpus = bench_cpu_count();
  if (!row->goal->line->metric->value) return false; /* nothing runs */
  if (threads > cpus)
    snprintf(row->reason, sizeof row->reason, "needs %d CPUs; this process may use %d", threads, cpus);
  else if (threads > bench_usable_threads())
    snprintf(row->reason, sizeof row->reason, "needs %d threads; this build has no OpenMP", threads);
  else if (s->options->budget_s > 0 && bench_session_elapsed(s) > s->options->budget_s)
    snprintf(row->reason, sizeof row->reason, "--budget of %.0f s is used up", s->options->budget_s);
  else
    return false;
  row->status = BENCH_SKIP;
  row->done = true;
  return true;
}

/* Keeps the case of a goal for the other result files, where a case of several goals stands once. */
static void keep(bench_session *s, bench_row *row) {
  bool fresh = row->case_id[0];
  for (int i = 0; i < s->rows.count; i++)
    fresh = fresh && (strcmp(s->rows.item[i].case_id, row->case_id) || strcmp(s->rows.item[i].kernel, row->kernel));
  if (fresh) {
    bench_session_keep(s, row, true);
    bench_session_flush(s);
  }
  bench_row_clear(row);
}

/* False if the run was interrupted before the row was done. */
static bool run_row(bench_session *s, bench_goal_row *row) {
  bench_row rows[2];
  if (is_skipped(s, row)) return true;
  s->case_name = row->goal->line->text;
  const bool complete = bench_goal_measure(row, &s->settings, rows);
  for (int i = 0; complete && i < 2; i++) keep(s, &rows[i]);
  return complete;
}

static void run_goals(bench_session *s) {
  const bench_goal_table *table = s->own;
  bench_progress_start(&s->progress, table->count, guess_all(s), s->options->quiet);
  bench_goals_print_head(stdout);
  for (int i = 0; i < table->count && !*s->settings.stop && !s->io_failed; i++) {
    bench_goal_row *row = &table->row[i];
    if (!run_row(s, row)) break;
    bench_progress_wipe(&s->progress);
    bench_goals_print_row(row, i ? row - 1 : NULL, stdout);
    if (s->options->repro || row->status == BENCH_FAIL) bench_goals_print_repro(row, stdout);
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
  bench_goals_write_csv(s->own, s->run_id, file);
}

static void write_text(void *context, FILE *file) {
  const bench_session *s = context;
  const bench_goal_table *table = s->own;
  const bench_goal_row *before = NULL;
  bench_session_print_opening(s, file);
  bench_goals_print_head(file);
  for (const bench_goal_row *row = table->row; row < table->row + table->count; row++) {
    if (!row->done) continue;
    bench_goals_print_row(row, before, file);
    before = row;
  }
  bench_goals_print_summary(table, file);
  bench_goals_print_open(table, file);
}

/* limits.csv and limits.txt. */
static bool write_goals(const bench_session *s) {
  char csv[BENCH_PATH_BYTES], text[BENCH_PATH_BYTES];
  bench_session_path(s, "limits.csv", csv);
  bench_session_path(s, "limits.txt", text);
  return bench_file_write(csv, write_csv, (void *)s) && bench_file_write(text, write_text, (void *)s);
}

static int conclude_limits(const bench_session *s) {
  const bench_goal_counts counts = bench_goals_count(s->own);
  if (counts.failed || (s->options->gate && counts.marks[BENCH_SHORT])) return BENCH_EXIT_FAILED;
  return s->options->gate && !counts.decided ? BENCH_EXIT_UNFIT : BENCH_EXIT_OK;
}

const bench_session_steps bench_limits_steps = {.items = "rows",
                                                .goes_on = "",
                                                .rounds = BENCH_GOAL_ROUNDS,
                                                .gate = true,
                                                .open = open_goals,
                                                .close = close_goals,
                                                .list = list,
                                                .guess = guess_all,
                                                .print_extent = print_extent,
                                                .run = run_goals,
                                                .write = write_goals,
                                                .conclude = conclude_limits};
