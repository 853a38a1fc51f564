/* SPDX-License-Identifier: MIT */
/* The part that all sessions share: options, machine, journal, rows, exit code. */
#include "commands/session.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/handlers.h"
#include "machine/affinity.h"
#include "machine/resources.h"
#include "report/report.h"

enum { FULL_TABLE_CASES = 12 };

static volatile sig_atomic_t interrupted; /* sig_atomic_t is int on every system we build for */
_Static_assert(sizeof(sig_atomic_t) == sizeof(int), "bench_time() takes the address as that of an int");

static void interrupt(int number) {
  if (number == BENCH_CPU_SIGNAL) bench_resources_say_cpu_limit();
  interrupted = 1;
}

/* After the first signal the session ends and writes its files; the second signal kills it. */
volatile const int *bench_interrupts_catch(void) {
  struct sigaction action = {.sa_handler = interrupt, .sa_flags = (int)SA_RESETHAND};
  interrupted = 0;
  bench_handlers_set(SIGINT, &action);
  bench_handlers_set(SIGTERM, &action);
  if (BENCH_CPU_SIGNAL) bench_handlers_set(BENCH_CPU_SIGNAL, &action);
  return &interrupted;
}

/* ---- Opening -------------------------------------------------------------------------------------------------------- */

/* Chooses the cases or goals that are measured, and their kernels. Returns 0 or an exit code. */
static int open_steps(bench_session *s) {
  const bench_options *o = s->options;
  bench_selection selection;
  if (o->resume && !o->folder) return cli_usage_error(o->command, "--resume needs the folder to resume: -o DIR");
  if (o->resume && o->overwrite) return cli_usage_error(o->command, "--resume and --overwrite exclude each other");
  if (o->unmeasured && !o->folder) return cli_usage_error(o->command, "--unmeasured needs the folder to write: -o DIR");
  if ((o->shard || o->unmeasured) && s->steps != &bench_cases_steps)
    return cli_usage_error(o->command, "--%s; --preset limits measures goals",
                           o->shard ? "shard splits cases" : "unmeasured lists cases");
  if (o->gate && !s->steps->gate) return cli_usage_error(o->command, "--gate needs goals: --preset limits");
  if (o->case_budget_s <= 0) return cli_usage_error(o->command, "--case-budget: should be above 0");
  int code = bench_check_overrides(o->command);
  if (!code && o->cpus) code = bench_pin_cpus(o->command, o->cpus);
  if (!code) code = bench_options_kernels(s->options, &selection);
  if (!code) code = s->steps->open(s, &selection);
  if (code) return code;
  if (selection.automatic) s->kernels[s->kernel_count++] = &bench_automatic;
  for (int i = 0; i < selection.count; i++) s->kernels[s->kernel_count++] = selection.kernel[i];
  return 0;
}

static void note(void *context, const char *what, const char *kernel) {
  bench_session *s = context;
  char doing[96];
  snprintf(doing, sizeof doing, "%s %s", what, kernel);
  bench_progress_note(&s->progress, s->case_name, doing);
}

static void open_settings(bench_session *s) {
  const bench_options *o = s->options;
  s->settings = (bench_case_settings){.timed = o->timed,
                                      .structure = !o->timed,
                                      .case_budget_s = o->case_budget_s,
                                      .precision = o->precision,
                                      .rounds = o->rounds ? (int)o->rounds : s->steps->rounds,
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

double bench_session_elapsed(const bench_session *s) { return 1e-9 * bench_now_ns() - s->started_s; }

/* "2026-01-31T12:00:00+01:00", and an id that also differs between processes of the same second. */
static void name_run(bench_session *s) {
  const time_t now = time(NULL);
  struct tm local;
  char zone[8] = "";
  (void)localtime_r(&now, &local);
  (void)strftime(s->date, sizeof s->date, "%Y-%m-%dT%H:%M:%S", &local);
  (void)strftime(zone, sizeof zone, "%z", &local);
  if (strlen(zone) == 5) bench_append(s->date, sizeof s->date, "%.3s:%.2s", zone, zone + 3);
  (void)strftime(s->run_id, sizeof s->run_id, "%Y%m%dT%H%M%S", &local);
  bench_append(s->run_id, sizeof s->run_id, "-%ld", (long)getpid());
}

/* Warns of what disturbs measurements. Returns 0, or BENCH_EXIT_UNFIT if --strict-env forbids to go on. */
static int audit_environment(const bench_session *s) {
  for (int i = 0; s->options->timed && i < s->environment.count; i++) {
    const bench_fact *fact = &s->environment.facts[i];
    if (fact->grade != BENCH_BAD && fact->grade != BENCH_WARN) continue;
    fprintf(stderr, "%s: %s is %s%s%s\n", fact->grade == BENCH_BAD ? "bad for measuring" : "warning", fact->name,
            fact->value, fact->advice[0] ? "; " : "", fact->advice);
  }
  if (!s->options->strict_env || bench_environment_worst(&s->environment) != BENCH_BAD) return 0;
  return cli_fail(BENCH_EXIT_UNFIT, s->options->command,
                  "--strict-env: this machine is unfit to measure; see attnbench env");
}

/* Writes all that changes numbers: a run with another build, CPU or settings must not continue this one. */
static void describe_run(const bench_session *s, bench_journal_head *head) {
  static const char *const facts[] = {"cpu",       "cpu_family",     "cpu_model",        "cpu_stepping",
                                      "microcode", "tiers",          "affinity",         "libraries",
                                      "plugins",   "attn_variables", "thread_variables", "memory_variables"};
  const bench_options *o = s->options;
  char build[17];
  bench_file_hash("/proc/self/exe", build);
  bench_journal_describe(head, "command", "%s", o->command);
  bench_journal_describe(head, "version", "%s", attn_version());
  bench_journal_describe(head, "build", "%s", build);
  for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
    bench_journal_describe(head, facts[i], "%s", bench_environment_get(&s->environment, facts[i]));
  bench_journal_describe(head, "shard", "%s", o->shard ? o->shard : "all");
  bench_journal_describe(head, "seed", "%" PRId64, o->seed);
  bench_journal_describe(head, "rounds", "%" PRId64, o->rounds);
  bench_journal_describe(head, "precision", "%g", o->precision);
  bench_journal_describe(head, "case-budget", "%g s", o->case_budget_s);
}

/* The folder, locked, and its journal, new or resumed. Returns 0 or an exit code. */
static int open_journal(bench_session *s) {
  const bench_options *o = s->options;
  char path[BENCH_PATH_BYTES];
  bench_journal_head head = {.count = 0};
  if (!o->folder) return 0;
  if (!bench_folder_create(o->folder) || (s->lock = bench_folder_lock(o->folder)) < 0) return BENCH_EXIT_INTERNAL;
  describe_run(s, &head);
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

void bench_session_keep(bench_session *s, bench_row *row, bool durable) {
  if (!row->run_id[0]) snprintf(row->run_id, sizeof row->run_id, "%s", s->run_id);
  if (s->journal && durable) bench_journal_append(s->journal, row);
  if (bench_rows_append(&s->rows, row)) return;
  fprintf(stderr, "attnbench: out of memory for the results\n");
  s->io_failed = true;
  bench_row_clear(row);
}

void bench_session_flush(bench_session *s) {
  if (s->journal && !bench_journal_flush(s->journal)) s->io_failed = true;
}

/* ---- The end -------------------------------------------------------------------------------------------------------- */

/* The last line of an interrupted session: what is kept, and how to go on. */
static void explain_interrupt(const bench_session *s) {
  const bench_options *o = s->options;
  const bool kept = o->folder || o->csv || o->json || o->samples;
  fprintf(stderr, "interrupted after %d of %d %s: ", s->progress.done, s->progress.cases, s->steps->items);
  fputs(kept ? "the files hold what was done" : "no file was asked for, nothing is kept", stderr);
  fprintf(stderr, "%s\n", o->folder ? s->steps->goes_on : "");
}

static int conclude_session(const bench_session *s) {
  const char *tier = s->options->require;
  bool has_tier = !tier;
  for (int i = 0; i < s->kernel_count && !has_tier; i++) has_tier = !strcmp(s->kernels[i]->isa, tier);
  if (!has_tier) (void)cli_usage_error(s->options->command, "--require %s: this build has no kernel of that tier", tier);
  if (s->io_failed) return BENCH_EXIT_INTERNAL;
  if (interrupted) return BENCH_EXIT_INTERRUPTED;
  if (!has_tier || bench_count_status(&s->rows, BENCH_FAIL) + bench_count_status(&s->rows, BENCH_ERROR))
    return BENCH_EXIT_FAILED;
  return s->steps->conclude(s);
}

/* Reads the journal that --resume would continue, for a dry run. */
static bool read_journal(bench_session *s) {
  char path[BENCH_PATH_BYTES], *head = NULL;
  if (!s->options->resume) return true;
  bench_session_path(s, "journal.jsonl", path);
  const bool fine = !bench_file_exists(path) || bench_journal_read(path, &head, &s->old);
  free(head);
  return fine;
}

static int dry_run(bench_session *s) {
  char clock[24];
  if (!read_journal(s)) return BENCH_EXIT_INTERNAL;
  bench_format_clock(s->steps->guess(s), clock, sizeof clock);
  s->steps->list(s);
  s->steps->print_extent(s, stdout);
  printf(", about %s (a guess, to a factor of two or so)\n", clock);
  return BENCH_EXIT_OK;
}

static int run_session(bench_session *s) {
  int code = open_steps(s);
  if (code) return code;
  open_settings(s);
  if (s->options->dry_run) return dry_run(s);
  name_run(s);
  bench_environment_read(&s->environment, s->options->argc, s->options->argv, (unsigned long long)s->options->seed);
  if ((code = audit_environment(s)) != 0) return code;
  if (!bench_session_can_write(s)) return BENCH_EXIT_INTERNAL;
  if ((code = open_journal(s)) != 0) return code;
  bench_session_print_opening(s, stdout);
  (void)bench_interrupts_catch();
  s->steps->run(s);
  bench_session_print_structure(s, stdout);
  bench_table_summary(&s->table, &s->rows);
  fflush(stdout);
  bench_session_write(s);
  if (interrupted && !s->io_failed) explain_interrupt(s);
  return conclude_session(s);
}

int bench_session_run(bench_options *options, const bench_session_steps *steps) {
  bench_session *s = calloc(1, sizeof *s);
  if (!s) return cli_fail(BENCH_EXIT_INTERNAL, "", "out of memory");
  s->options = options;
  s->steps = steps;
  s->lock = -1;
  const int code = run_session(s);
  if (s->journal) (void)fclose(s->journal);
  if (s->lock >= 0) (void)close(s->lock);
  bench_rows_clear(&s->rows);
  bench_rows_clear(&s->old);
  bench_cases_clear(&s->cases);
  if (s->steps->close) s->steps->close(s);
  free(s);
  return code;
}

/* ---- What a session prints around its table, and the files it leaves ---------------------------------------------- */

void bench_session_print_opening(const bench_session *s, FILE *file) {
  static const char *const changing[] = {"ATTN_KERNEL",  "ATTN_MAX_ISA",    "ATTN_VERBOSE",  "ATTN_TUNING",
                                         "ATTN_MACHINE", "OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES"}; /* results */
  fprintf(file, "attnbench %s on %s; this CPU runs: %s\n", attn_version(), bench_environment_get(&s->environment, "cpu"),
          attn_cpu_tiers());
  s->steps->print_extent(s, file);
  fprintf(file, ", seed %" PRId64 "\n", s->options->seed);
  if (s->settings.timed) fprintf(file, "binding: %s\n", bench_environment_get(&s->environment, "binding"));
  for (size_t i = 0; i < sizeof changing / sizeof *changing; i++)
    if (getenv(changing[i])) fprintf(file, "in force: %s=%s\n", changing[i], getenv(changing[i]));
  fputc('\n', file);
}

/* The width of a structural test's column. */
static int width_of(int test) {
  const int length = (int)strlen(bench_structure_name((bench_structure_test)test));
  return length > 5 ? length : 5;
}

void bench_session_print_structure(const bench_session *s, FILE *file) {
  if (!s->settings.structure || s->options->unmeasured) return;
  fprintf(file, "structural tests, cases (of at most 1e8 multiply-adds) on which each ran:\n%-18s", "kernel");
  for (int test = 0; test < BENCH_STRUCTURE_TESTS; test++)
    fprintf(file, " %*s", width_of(test), bench_structure_name((bench_structure_test)test));
  for (int k = 0; k < s->kernel_count; k++) {
    fprintf(file, "\n%-18s", s->kernels[k]->name);
    for (int test = 0; test < BENCH_STRUCTURE_TESTS; test++)
      fprintf(file, " %*d", width_of(test), s->structure_runs[k][test]);
  }
  fputs("\n\n", file);
}

void bench_session_path(const bench_session *s, const char *name, char *path) {
  snprintf(path, BENCH_PATH_BYTES, "%s/%s", s->options->folder, name);
}

bool bench_session_can_write(const bench_session *s) {
  const char *const files[] = {s->options->csv, s->options->json, s->options->samples};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++)
    if (files[i] && !bench_file_writable(files[i])) return false;
  return true;
}

/* ---- Files ---------------------------------------------------------------------------------------------------------- */

/* table.txt: the same as on stdout, every row, without colour. */
static void write_table(void *context, FILE *file) {
  const bench_session *s = context;
  bench_table table = s->table;
  table.file = file;
  table.colour = table.only_bad = false;
  bench_session_print_opening(s, file);
  bench_table_cases(&table, &s->rows);
  bench_session_print_structure(s, file);
  bench_table_summary(&table, &s->rows);
}

static void write_environment(void *context, FILE *file) {
  bench_environment_write_json(&((const bench_session *)context)->environment, file);
}

static bool write_folder(bench_session *s, const bench_report *report) {
  const struct {
    const char *name;
    bench_write_fn write;
    void *context;
  } files[] = {{"results.csv", bench_write_csv, (void *)report},
               {"samples.csv", bench_write_samples, (void *)report},
               {"results.json", bench_write_json_medians, (void *)report},
               {"env.json", write_environment, s},
               {"table.txt", write_table, s}};
  char path[BENCH_PATH_BYTES];
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    bench_session_path(s, files[i].name, path);
    if (!bench_file_write(path, files[i].write, files[i].context)) return false;
  }
  return !s->steps->write || s->steps->write(s);
}

void bench_session_write(bench_session *s) {
  const bench_options *o = s->options;
  const bench_report report = {
      .rows = &s->rows, .run_id = s->run_id, .executable = "attnbench", .date = s->date, .environment = &s->environment};
  const struct {
    const char *path;
    bench_write_fn write;
  } files[] = {{o->csv, bench_write_csv}, {o->json, bench_write_json}, {o->samples, bench_write_samples}};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++)
    if (files[i].path && !bench_file_write(files[i].path, files[i].write, (void *)&report)) s->io_failed = true;
  if (o->folder && !write_folder(s, &report)) s->io_failed = true;
  if (s->io_failed) return;
  for (size_t i = 0; i < sizeof files / sizeof *files; i++)
    if (files[i].path) fprintf(stderr, "written: %s\n", files[i].path);
  if (o->folder) fprintf(stderr, "written: %s\n", o->folder);
}
