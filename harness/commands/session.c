/* SPDX-License-Identifier: MIT */
/* The loop over the cases: resume, run, record, print, write. */
#include "commands/session.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "commands/session_private.h"
#include "goals/goals_session.h"
#include "machine/affinity.h"
#include "report/journal.h"

enum { FULL_TABLE_CASES = 12 };

/* ---- Ctrl-C --------------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t interrupted; /* sig_atomic_t is int on every system we build for */
_Static_assert(sizeof(sig_atomic_t) == sizeof(int), "bench_time() is handed the address as an int's");

static void interrupt(int number) {
  (void)number;
  interrupted = 1;
}

/* The first signal ends the run in good order, the second at once. */
static void catch_interrupts(void) {
  struct sigaction action = {.sa_handler = interrupt, .sa_flags = (int)SA_RESETHAND};
  interrupted = 0;
  (void)sigaction(SIGINT, &action, NULL);
  (void)sigaction(SIGTERM, &action, NULL);
}

/* ---- Opening -------------------------------------------------------------------------------------------------------- */

static void name_run(bench_session *s) {
  const time_t now = time(NULL);
  struct tm local;
  char zone[8] = "";
  (void)localtime_r(&now, &local);
  (void)strftime(s->date, sizeof s->date, "%Y-%m-%dT%H:%M:%S", &local);
  (void)strftime(zone, sizeof zone, "%z", &local);
  if (strlen(zone) == 5) snprintf(s->date + strlen(s->date), sizeof "+00:00", "%.3s:%.2s", zone, zone + 3);
  (void)strftime(s->run_id, sizeof s->run_id, "%Y%m%dT%H%M%S", &local);
  snprintf(s->run_id + strlen(s->run_id), 16, "-%ld", (long)getpid());
}

static void note(void *context, const char *what, const char *kernel) {
  bench_session *s = context;
  char doing[96];
  snprintf(doing, sizeof doing, "%s %s", what, kernel);
  bench_progress_note(&s->progress, s->case_name, doing);
}

/* The folder's journal, new or resumed. Returns 0 or an exit code. */
static int open_journal(bench_session *s) {
  const bench_options *o = s->options;
  char path[BENCH_PATH_BYTES];
  const bench_journal_head head = {.command = o->command,
                                   .version = attn_version(),
                                   .cpu = bench_environment_get(&s->environment, "cpu"),
                                   .seed = (uint64_t)o->seed};
  if (!o->folder) return 0;
  if (!bench_folder_create(o->folder)) return BENCH_EXIT_INTERNAL;
  bench_session_path(s, "journal.jsonl", path);
  if (o->resume && bench_file_exists(path))
    s->journal = bench_journal_resume(path, &head, &s->old);
  else if (!o->overwrite && bench_file_exists(path))
    return cli_usage_error(o->command, "%s holds results: --resume adds what is missing, --overwrite starts again",
                           o->folder);
  else
    s->journal = bench_journal_create(path, &head);
  return s->journal ? 0 : BENCH_EXIT_INTERNAL;
}

static void set_kernels(bench_session *s, const bench_selection *selection) {
  if (selection->automatic) s->kernels[s->kernel_count++] = &bench_automatic;
  for (int i = 0; i < selection->count; i++) s->kernels[s->kernel_count++] = selection->kernel[i];
}

static int check_options(const bench_options *o) {
  if (o->resume && !o->folder) return cli_usage_error(o->command, "--resume needs the folder to resume: -o DIR");
  if (o->resume && o->overwrite) return cli_usage_error(o->command, "--resume and --overwrite exclude each other");
  if (o->seed < 0) return cli_usage_error(o->command, "--seed %" PRId64 ": should be at least 0", o->seed);
  if (o->rounds < 0 || o->rounds > 100000)
    return cli_usage_error(o->command, "--rounds %" PRId64 ": should be 1 to 100000", o->rounds);
  if (o->gate && !bench_goals_wanted(o)) return cli_usage_error(o->command, "--gate needs goals: --preset limits");
  if (o->case_budget_s <= 0) return cli_usage_error(o->command, "--case-budget: should be above 0");
  return 0;
}

static int open_cases(bench_session *s) {
  bench_selection selection;
  int code = check_options(s->options);
  if (!code) code = bench_check_overrides(s->options->command);
  if (!code && s->options->cpus) code = bench_pin_cpus(s->options->command, s->options->cpus);
  if (!code) code = bench_options_kernels(s->options, &selection);
  if (!code)
    code = bench_goals_wanted(s->options) ? bench_goals_open(s, &selection) : bench_options_cases(s->options, &s->cases);
  if (code) return code;
  set_kernels(s, &selection);
  if (s->cases.count || s->goals) return 0;
  (void)cli_usage_error(s->options->command, "no cases are left");
  return BENCH_EXIT_NOTHING;
}

static void open_settings(bench_session *s) {
  const bench_options *o = s->options;
  s->settings = (bench_case_settings){.timed = o->timed,
                                      .structure = !o->timed,
                                      .case_budget_s = o->case_budget_s,
                                      .precision = o->precision,
                                      .rounds = s->goals && !o->rounds ? BENCH_GOAL_ROUNDS : (int)o->rounds,
                                      .seed = (uint64_t)o->seed,
                                      .stop = &interrupted,
                                      .note = note,
                                      .note_context = s};
  s->table = (bench_table){.file = stdout,
                           .colour = bench_wants_colour(stdout),
                           .timed = o->timed,
                           .repro = o->repro,
                           .only_bad = !o->timed && s->cases.count > FULL_TABLE_CASES && !o->verbose,
                           .command = o->command,
                           .seed = (uint64_t)o->seed};
  s->started_s = 1e-9 * bench_now_ns();
}

static double guess_case(const bench_session *s, int index) {
  return bench_case_guess(&s->cases.item[index], s->kernels, s->kernel_count, &s->settings);
}

/* What the audit of the machine found, on stderr. Returns BENCH_EXIT_UNFIT if the user wants to hear no excuses. */
static int audit_environment(const bench_session *s) {
  const bench_environment *e = &s->environment;
  for (int i = 0; s->options->timed && i < e->count; i++)
    if (e->facts[i].grade == BENCH_BAD || e->facts[i].grade == BENCH_WARN)
      fprintf(stderr, "%s: %s is %s%s%s\n", e->facts[i].grade == BENCH_BAD ? "bad for measuring" : "warning",
              e->facts[i].name, e->facts[i].value, e->facts[i].advice[0] ? "; " : "", e->facts[i].advice);
  if (!s->options->strict_env || bench_environment_worst(e) != BENCH_BAD) return 0;
  fprintf(stderr, "attnbench %s: --strict-env: this machine is unfit to measure; see attnbench env\n", s->options->command);
  return BENCH_EXIT_UNFIT;
}

static int dry_run(const bench_session *s) {
  char clock[24];
  double total = 0;
  for (int i = 0; i < s->cases.count; i++) {
    const double guess = guess_case(s, i);
    total += guess;
    printf("%7.1f s  %s%s%s\n", guess, s->cases.item[i].case_id, s->cases.item[i].invalid[0] ? "  SKIP: " : "",
           s->cases.item[i].invalid);
  }
  bench_format_clock(total, clock, sizeof clock);
  printf("%d cases x %d kernels, about %s (a guess, to a factor of two or so)\n", s->cases.count, s->kernel_count, clock);
  return BENCH_EXIT_OK;
}

/* ---- Cases ---------------------------------------------------------------------------------------------------------- */

/* The journal's row of a case and kernel, unless it has to be done again. */
static bench_row *find_old(bench_session *s, const char *case_id, const char *kernel) {
  for (int i = 0; i < s->old.count; i++) {
    bench_row *r = &s->old.item[i];
    if (!strcmp(r->case_id, case_id) && !strcmp(r->kernel, kernel) && r->verdict.status != BENCH_ERROR) return r;
  }
  return NULL;
}

static bool is_skip_of_tier(const bench_row *row, const char *tier) {
  return tier && row->verdict.status == BENCH_SKIP && !strcmp(row->isa, tier);
}

/* --require: a skip of that tier is a failure. */
static void apply_requirement(const bench_session *s, bench_row *row) {
  char reason[sizeof row->verdict.reason];
  if (!is_skip_of_tier(row, s->options->require)) return;
  snprintf(reason, sizeof reason, "--require %s: %.300s", s->options->require, row->verdict.reason);
  row->verdict.status = BENCH_FAIL;
  memcpy(row->verdict.reason, reason, sizeof reason);
}

static void skip_for_budget(const bench_session *s, bench_row *rows, const bench_case *bench,
                            const attn_kernel_info *const *kernels, int count) {
  for (int i = 0; i < count; i++) {
    rows[i] = bench_row_create(bench, kernels[i]);
    rows[i].verdict.status = BENCH_SKIP;
    snprintf(rows[i].verdict.reason, sizeof rows[i].verdict.reason, "--budget of %.0f s is used up", s->options->budget_s);
  }
}

/* With --budget, the time of a case shrinks to twice its share of what is left. False if nothing is left. */
static bool set_case_budget(bench_session *s, double guess) {
  const double left = s->options->budget_s - (1e-9 * bench_now_ns() - s->started_s);
  s->settings.case_budget_s = s->options->case_budget_s;
  if (s->options->budget_s <= 0) return true;
  if (left <= 0) return false;
  const double share = 2 * left * guess / fmax(s->guess_left_s, 1e-9);
  s->settings.case_budget_s = fmin(s->options->case_budget_s, fmax(share, 0.05));
  return true;
}

/* Moves a row to the results, and to the journal if it is to be `durable`. */
static void append(bench_session *s, bench_row *row, bool durable) {
  if (s->journal && durable && !bench_journal_append(s->journal, row)) s->io_failed = true;
  if (bench_rows_append(&s->rows, row)) return;
  fprintf(stderr, "attnbench: out of memory for the results\n");
  s->io_failed = true;
  bench_row_clear(row);
}

static bool is_selected(const bench_session *s, const char *kernel) {
  for (int i = 0; i < s->kernel_count; i++)
    if (!strcmp(s->kernels[i]->name, kernel)) return true;
  return false;
}

/* Moves what the journal holds of a case (NULL: of any) to the results; nothing of the kernels that were run again. */
static void keep_old(bench_session *s, const char *case_id) {
  for (int i = 0; i < s->old.count; i++) {
    bench_row *old = &s->old.item[i];
    if (!old->case_id[0] || (case_id && strcmp(old->case_id, case_id))) continue;
    if (case_id && is_selected(s, old->kernel))
      bench_row_clear(old);
    else
      append(s, old, false);
  }
}

static void record(bench_session *s, bench_row *row, bool durable) {
  const bool whole = !row->time.n || row->stop != BENCH_STOP_INTERRUPT;
  snprintf(row->run_id, sizeof row->run_id, "%s", s->run_id);
  apply_requirement(s, row);
  append(s, row, durable && whole);
}

/* Moves the fresh rows of one case to the results, old ones in their places. */
static void record_case(bench_session *s, const char *case_id, bench_row *fresh, bool durable) {
  for (int i = 0; i < s->kernel_count; i++) {
    bench_row *old = find_old(s, case_id, s->kernels[i]->name);
    if (old)
      append(s, old, false);
    else
      record(s, fresh++, durable);
  }
  keep_old(s, case_id);
  if (s->journal && !bench_journal_flush(s->journal)) s->io_failed = true;
}

/* The kernels whose rows the journal does not hold. */
static int missing_kernels(bench_session *s, const bench_case *bench, const attn_kernel_info **missing) {
  int count = 0;
  for (int i = 0; i < s->kernel_count; i++)
    if (!find_old(s, bench->case_id, s->kernels[i]->name)) missing[count++] = s->kernels[i];
  return count;
}

static void count_structure_runs(bench_session *s, const bench_row *rows, int count) {
  for (int i = 0; i < count; i++)
    for (int k = 0; k < s->kernel_count; k++)
      for (int test = 0; test < BENCH_STRUCTURE_TESTS && !strcmp(s->kernels[k]->name, rows[i].kernel); test++)
        s->structure_runs[k][test] += (int)(rows[i].verdict.structure >> test & 1);
}

/* One case; false if the run was interrupted before it was complete. */
static bool run_case(bench_session *s, int index) {
  const bench_case *bench = &s->cases.item[index];
  const attn_kernel_info *missing[BENCH_MAX_KERNELS + 1];
  bench_row rows[BENCH_MAX_KERNELS + 1];
  const double guess = guess_case(s, index);
  const int count = missing_kernels(s, bench, missing), before = s->rows.count;
  bool affordable = true;
  s->case_name = bench->case_id;
  if (count) {
    bench_progress_note(&s->progress, s->case_name, "begins");
    affordable = set_case_budget(s, guess);
    if (!affordable)
      skip_for_budget(s, rows, bench, missing, count);
    else if (!bench_run_case(bench, missing, count, &s->settings, rows))
      return false;
    count_structure_runs(s, rows, count);
  }
  record_case(s, bench->case_id, rows, affordable);
  bench_progress_wipe(&s->progress);
  bench_table_case(&s->table, s->rows.item + before, s->rows.count - before);
  bench_progress_advance(&s->progress, guess, !count);
  s->guess_left_s -= guess;
  return true;
}

static void run_cases(bench_session *s) {
  s->guess_left_s = 0;
  for (int i = 0; i < s->cases.count; i++) s->guess_left_s += guess_case(s, i);
  bench_progress_start(&s->progress, s->cases.count, s->guess_left_s, s->options->quiet);
  for (int i = 0; i < s->cases.count && !interrupted && !s->io_failed; i++)
    if (!run_case(s, i)) break;
  keep_old(s, NULL);
  bench_progress_wipe(&s->progress);
  if (interrupted)
    fprintf(stderr, "interrupted after %d of %d cases%s\n", s->progress.done, s->cases.count,
            s->options->folder ? "; --resume goes on from there" : "");
}

/* ---- The end -------------------------------------------------------------------------------------------------------- */

/* True if every row was skipped because this CPU cannot run its kernel. */
static bool only_unusable(const bench_session *s) {
  for (int i = 0; i < s->kernel_count; i++)
    if (s->kernels[i] == &bench_automatic || !attn_kernel_unusable(s->kernels[i])) return false;
  return true;
}

static bool requirement_met(const bench_session *s) {
  const char *tier = s->options->require;
  for (int i = 0; i < s->kernel_count; i++)
    if (tier && !strcmp(s->kernels[i]->isa, tier)) return true;
  if (tier)
    fprintf(stderr, "attnbench %s: --require %s: this build has no kernel of that tier\n", s->options->command, tier);
  return !tier;
}

static int conclude(const bench_session *s) {
  if (s->io_failed) return BENCH_EXIT_INTERNAL;
  if (interrupted) return BENCH_EXIT_INTERRUPTED;
  if (!requirement_met(s)) return BENCH_EXIT_FAILED;
  if (bench_count_status(&s->rows, BENCH_FAIL) + bench_count_status(&s->rows, BENCH_ERROR)) return BENCH_EXIT_FAILED;
  if (s->goals) return bench_goals_conclude(s);
  if (bench_count_status(&s->rows, BENCH_SKIP) < s->rows.count) return BENCH_EXIT_OK;
  if (only_unusable(s)) return BENCH_EXIT_SKIPPED;
  fprintf(stderr, "attnbench %s: nothing could run: every row was skipped\n", s->options->command);
  return BENCH_EXIT_NOTHING;
}

static void close_session(bench_session *s) {
  if (s->journal) (void)fclose(s->journal);
  bench_rows_clear(&s->rows);
  bench_rows_clear(&s->old);
  bench_cases_clear(&s->cases);
  bench_goals_close(s);
  free(s);
}

static int run_to_the_end(bench_session *s) {
  int code = open_cases(s);
  if (code) return code;
  open_settings(s);
  if (s->options->dry_run) return s->goals ? bench_goals_dry_run(s) : dry_run(s);
  name_run(s);
  bench_environment_read(&s->environment, s->options->argc, s->options->argv, (unsigned long long)s->options->seed);
  code = audit_environment(s);
  if (!code && !bench_session_can_write(s)) code = BENCH_EXIT_INTERNAL;
  if (!code) code = open_journal(s);
  if (code) return code;
  bench_session_print_opening(s, stdout);
  catch_interrupts();
  if (s->goals)
    bench_goals_run(s);
  else
    run_cases(s);
  bench_session_print_structure(s, stdout);
  bench_table_summary(&s->table, &s->rows);
  fflush(stdout);
  bench_session_write(s);
  return conclude(s);
}

int bench_session_run(bench_options *options) {
  bench_session *s = calloc(1, sizeof *s);
  if (!s) {
    fprintf(stderr, "attnbench: out of memory\n");
    return BENCH_EXIT_INTERNAL;
  }
  s->options = options;
  const int code = run_to_the_end(s);
  close_session(s);
  return code;
}
