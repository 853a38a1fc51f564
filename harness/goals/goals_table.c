/* SPDX-License-Identifier: MIT */
/* Which goals become rows on this CPU, in this build, with these kernels; how one is measured; rows as text and as CSV. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "cases/case.h"
#include "cases/cases.h"
#include "goals/goals.h"
#include "machine/affinity.h"
#include "report/report.h"
#include "timing/setup.h"

/* ---- Choosing ---- */

static bool is_selected(const bench_selection *selection, const attn_kernel_info *kernel) {
  for (int i = 0; i < selection->count; i++)
    if (selection->kernel[i] == kernel) return true;
  return false;
}

/* Makes the row of a goal. Returns BENCH_HERE, or why there is no row. */
static bench_absence make_row(const bench_goal *goal, const bench_selection *selection, const char *vendor, uint64_t seed,
                              bench_goal_row *row) {
  *row = (bench_goal_row){.goal = goal, .kernel = attn_kernel_find(goal->kernel), .undisturbed = -1};
  row->against_kernel = *goal->line->against_kernel ? attn_kernel_find(goal->line->against_kernel) : row->kernel;
  if (!row->kernel || !row->against_kernel) return BENCH_NOT_BUILT;
  if (!is_selected(selection, row->kernel)) return BENCH_NOT_SELECTED;
  if (!bench_goal_applies(goal->line->cpu, vendor, attn_cpu_tiers())) return BENCH_OTHER_CPU;
  if (attn_kernel_unusable(row->kernel) || attn_kernel_unusable(row->against_kernel)) return BENCH_NO_TIER;
  bench_case_build(&goal->spec, seed, &row->bench);
  bench_case_build(&goal->against, seed, &row->against);
  if (attn_kernel_rejects(row->kernel, &row->bench.problem)) return BENCH_REFUSED;
  return attn_kernel_rejects(row->against_kernel, &row->against.problem) ? BENCH_REFUSED : BENCH_HERE;
}

static void choose_rows(bench_goal_table *table, const bench_selection *selection, uint64_t seed) {
  char vendor[64];
  bench_read_field("/proc/cpuinfo", "vendor_id", vendor, sizeof vendor);
  for (int i = 0; i < table->goals.count; i++) {
    bench_goal *goal = &table->goals.item[i];
    goal->absence = make_row(goal, selection, vendor, seed, &table->row[table->count]);
    table->absent[goal->absence]++;
    if (goal->absence == BENCH_HERE) table->count++;
  }
}

bool bench_goal_table_open(bench_goal_table *table, const bench_goal_line *lines, const bench_selection *selection,
                           uint64_t seed, char *error, size_t error_bytes) {
  *table = (bench_goal_table){.count = 0};
  if (!bench_goals_make(lines, &table->goals, error, error_bytes)) return false;
  table->row = calloc((size_t)table->goals.count + 1, sizeof *table->row);
  if (!table->row) return bench_say(error, error_bytes, "out of memory");
  choose_rows(table, selection, seed);
  return true;
}

void bench_goal_table_clear(bench_goal_table *table) {
  bench_goals_clear(&table->goals);
  free(table->row);
  *table = (bench_goal_table){.count = 0};
}

/* ---- Text ---- */

enum { NUMBER = 48 };

/* "-" where there is none. */
static void format_value(const bench_metric *metric, double value, char *text) {
  snprintf(text, NUMBER, "%.*f", metric->decimals, value);
  if (isnan(value)) snprintf(text, NUMBER, "-");
}

/* "goal", "short?": the question mark says that the interval holds the floor. */
static void format_mark(const bench_goal_row *row, char *text) {
  snprintf(text, NUMBER, "%s%s",
           row->status == BENCH_PASS ? bench_mark_name(row->verdict.mark) : bench_status_name(row->status),
           row->status == BENCH_PASS && row->verdict.open ? "?" : "");
}

void bench_goals_print_head(FILE *file) {
  fprintf(file, "%-44s %-14s %7s %7s %9s %-6s  %-17s %11s %s\n", "row", "kernel", "floor", "goal", "measured", "",
          "95 % interval", "undisturbed", "verdict");
}

/* "86.1 .. 88.0"; "" where there is no interval. */
static void format_interval(const bench_goal_row *row, char *text, size_t bytes) {
  char low[NUMBER], high[NUMBER];
  const bench_summary *measured = &row->measured;
  text[0] = 0;
  if (row->status != BENCH_PASS || measured->n < 2 || isnan(measured->ci_lo)) return;
  format_value(row->goal->line->metric, measured->ci_lo, low);
  format_value(row->goal->line->metric, measured->ci_hi, high);
  snprintf(text, bytes, "%s .. %s", low, high);
}

/* "15/21"; "-" where it is not known. */
static void format_undisturbed(const bench_goal_row *row, char *text) {
  snprintf(text, NUMBER, "%d/%d", row->undisturbed, row->rounds);
  if (row->status != BENCH_PASS || row->undisturbed < 0) snprintf(text, NUMBER, "-");
}

void bench_goals_print_row(const bench_goal_row *row, const bench_goal_row *before, FILE *file) {
  const bench_metric *metric = row->goal->line->metric;
  char floor[NUMBER], goal[NUMBER], measured[NUMBER] = "", interval[2 * NUMBER + 4], undisturbed[NUMBER], mark[NUMBER];
  format_value(metric, row->goal->line->floor, floor);
  format_value(metric, row->goal->line->goal, goal);
  if (row->status == BENCH_PASS) format_value(metric, row->measured.median, measured);
  format_interval(row, interval, sizeof interval);
  format_undisturbed(row, undisturbed);
  format_mark(row, mark);
  if (!before || strcmp(before->goal->section, row->goal->section)) fprintf(file, "%s\n", row->goal->section);
  fprintf(file, "  %-42s %-14s %7s %7s %9s %-6s  %-17s %11s %s\n", row->goal->line->text, row->goal->kernel, floor, goal,
          measured, measured[0] ? metric->unit : "", interval, undisturbed, mark);
  if (row->status == BENCH_PASS) return;
  fprintf(file, "      ");
  bench_print_wrapped(file, row->reason, 6);
}

void bench_goals_print_absences(const bench_goal_table *table, FILE *file) {
  static const struct {
    const char *one, *many;
  } reasons[BENCH_ABSENCES] = {
      [BENCH_OTHER_CPU] = {"row is for another CPU", "rows are for another CPU"},
      [BENCH_NOT_BUILT] = {"row needs a kernel that this build lacks", "rows need kernels that this build lacks"},
      [BENCH_NO_TIER] = {"row needs a tier that this CPU lacks, or ATTN_MAX_ISA forbids",
                         "rows need tiers that this CPU lacks, or ATTN_MAX_ISA forbids"},
      [BENCH_REFUSED] = {"row has a problem that the kernel does not take yet",
                         "rows have problems that the kernel does not take yet"},
      [BENCH_NOT_SELECTED] = {"row is of a kernel that was not asked for", "rows are of kernels that were not asked for"},
  };
  for (int i = BENCH_HERE + 1; i < BENCH_ABSENCES; i++)
    if (table->absent[i])
      fprintf(file, "%d %s\n", table->absent[i], table->absent[i] == 1 ? reasons[i].one : reasons[i].many);
}

/* The vendor or tiers of CPU that the goal is for, or the tier of its kernel that this CPU lacks. */
static const char *missing_of(const bench_goal *goal) {
  if (goal->absence == BENCH_OTHER_CPU) return goal->line->cpu;
  const attn_kernel_info *kernel = attn_kernel_find(goal->kernel);
  if (*goal->line->against_kernel && !attn_kernel_unusable(kernel)) kernel = attn_kernel_find(goal->line->against_kernel);
  return kernel->isa;
}

void bench_goals_print_open(const bench_goal_table *table, FILE *file) {
  const char *section = NULL; /* the row before's */
  for (const bench_goal *goal = table->goals.item; goal < table->goals.item + table->goals.count; goal++) {
    if (goal->absence != BENCH_OTHER_CPU && goal->absence != BENCH_NO_TIER) continue;
    if (!section) fprintf(file, "\nopen, for another CPU or tier:\n");
    if (!section || strcmp(section, goal->section)) fprintf(file, "%s\n", goal->section);
    section = goal->section;
    fprintf(file, "  %-42s %-17s %s\n", goal->line->text, goal->kernel, missing_of(goal));
  }
}

void bench_goals_print_repro(const bench_goal_row *row, FILE *file) {
  const bool against = row->against_failed;
  fprintf(file, "      attnbench run --kernel %s --case '%s'\n", (against ? row->against_kernel : row->kernel)->name,
          against ? row->against.case_id : row->bench.case_id);
}

static void count_row(bench_goal_counts *counts, const bench_goal_row *row) {
  if (!row->done) return;
  counts->done++;
  counts->failed += row->status == BENCH_FAIL || row->status == BENCH_ERROR || row->status == BENCH_DEGENERATE;
  if (row->status != BENCH_PASS) return;
  counts->marks[row->verdict.mark]++;
  counts->open += row->verdict.open;
  counts->decided += row->verdict.mark != BENCH_NO_FLOOR;
  if (row->undisturbed < 0) return;
  counts->undisturbed += row->undisturbed >= BENCH_LEAST_GOAL_ROUNDS;
  counts->disturbed += row->undisturbed < BENCH_LEAST_GOAL_ROUNDS;
}

bench_goal_counts bench_goals_count(const bench_goal_table *table) {
  bench_goal_counts counts = {0};
  for (int i = 0; i < table->count; i++) count_row(&counts, &table->row[i]);
  return counts;
}

void bench_goals_print_summary(const bench_goal_table *table, FILE *file) {
  const bench_goal_counts counts = bench_goals_count(table);
  fprintf(file, "\n%d of %d rows have a verdict: %d at their goal, %d more at their floor (ok), %d short of it",
          counts.decided, table->count, counts.marks[BENCH_GOAL], counts.marks[BENCH_FLOOR], counts.marks[BENCH_SHORT]);
  fprintf(file, counts.open ? "; ? = the interval holds the floor (%d)\n" : "\n", counts.open);
  if (counts.undisturbed + counts.disturbed)
    fprintf(file,
            "undisturbed: rounds without another program on the same cores; where a row has %d or more, these alone count\n",
            BENCH_LEAST_GOAL_ROUNDS);
  if (counts.disturbed)
    fprintf(file, "%d row%s fewer: take more --rounds\n", counts.disturbed, counts.disturbed == 1 ? " has" : "s have");
  if (counts.done < table->count) fprintf(file, "%d rows were not reached\n", table->count - counts.done);
  bench_goals_print_absences(table, file);
}

/* ---- CSV ------------------------------------------------------------------------------------------------------------ */

static void put_number(FILE *file, double value) {
  char text[NUMBER];
  bench_format_number(value, text);
  fprintf(file, ",%s", text);
}

static void put_text(FILE *file, const char *text) {
  fputc(',', file);
  bench_csv_field(file, text);
}

static void write_row(const bench_goal_row *row, const char *run_id, FILE *file) {
  const bool measured = row->status == BENCH_PASS;
  const bench_goal *goal = row->goal;
  const bench_summary *m = measured ? &row->measured : &bench_no_summary;
  const char *const texts[] = {goal->section,
                               goal->line->text,
                               goal->kernel,
                               goal->line->metric->name,
                               goal->line->metric->unit,
                               row->bench.case_id,
                               goal->line->metric->against ? row->against.case_id : "",
                               goal->line->against_kernel,
                               goal->line->cpu};
  const double numbers[] = {goal->line->floor, goal->line->goal, m->median, m->ci_lo, m->ci_hi};
  bench_csv_field(file, run_id);
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) put_text(file, texts[i]);
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) put_number(file, numbers[i]);
  fprintf(file, ",%d,", row->rounds);
  if (row->undisturbed >= 0) fprintf(file, "%d", row->undisturbed);
  put_text(file, bench_status_name(row->status));
  put_text(file, measured && row->verdict.mark != BENCH_NO_FLOOR ? bench_mark_name(row->verdict.mark) : "");
  put_text(file, measured && row->verdict.open ? "yes" : "no");
  put_text(file, row->reason);
  fputc('\n', file);
}

void bench_goals_write_csv(const bench_goal_table *table, const char *run_id, FILE *file) {
  fputs(
      "run_id,section,row,kernel,metric,unit,case_id,against_case_id,against_kernel,cpu,floor,goal,measured,ci_lo,ci_hi,"
      "rounds,undisturbed_rounds,status,verdict,interval_holds_floor,reason\n",
      file);
  for (int i = 0; i < table->count; i++)
    if (table->row[i].done) write_row(&table->row[i], run_id, file);
}

/* ---- Measuring a goal --------------------------------------------------------------------------------------------- */
/* The case and the case that it is compared with run in the same rounds, so that every value compares samples that were
 * taken one after the other. */

enum { MOST_CASES = 2 };

/* The cases of one row while they are measured; each has one trial. */
typedef struct pair {
  bench_goal_row *row;
  const bench_case_settings *settings;
  bench_setup *setup[MOST_CASES];
  bench_trial *trial[MOST_CASES];
  int count;
} pair;

/* False, so that whatever cannot be measured can return it. */
#define conclude(row, how, ...) ((row)->done = true, bench_set_reason(row, how, __VA_ARGS__))

static void conclude_measured(bench_goal_row *row, bench_summary measured) {
  row->measured = measured;
  row->verdict = bench_goal_verdict_of(row->goal->line, &row->measured);
  conclude(row, BENCH_PASS, "%s", "");
}

static void measure_workspace(bench_goal_row *row) {
  attn_plan *plan;
  const attn_options options =
      ATTN_STRUCT(attn_options, .kernel = row->kernel->name, .threads = row->bench.threads, .steady = row->bench.steady);
  if (attn_plan_create(&row->bench.problem, &options, &plan) != ATTN_OK) {
    conclude(row, BENCH_ERROR, "%s", attn_last_error());
    return;
  }
  const double kib = (double)attn_plan_workspace(plan) / 1024;
  attn_plan_destroy(plan);
  row->rounds = 1;
  conclude_measured(row, (bench_summary){.min = kib, .median = kib, .ci_lo = kib, .ci_hi = kib, .n = 1}); /* exact */
}

/* ---- In rounds ------------------------------------------------------------------------------------------------------ */

/* An output without elements cannot be wrong, so that DEGENERATE is no objection: the check has seen that nothing was
 * written. */
static void accept_empty_output(const bench_setup *setup, bench_trial *trial) {
  if (trial->verdict.status != BENCH_DEGENERATE || bench_tensors_output_bytes(&setup->tensors[0])) return;
  trial->verdict.status = BENCH_PASS;
  trial->verdict.reason[0] = 0;
}

/* Chooses the loop that runs beside the samples; false, with a verdict, if the metric's loop is missing. */
static bool choose_loop(bench_goal_row *row, const bench_setup *setup, bench_trial *trial) {
  const bench_metric *metric = row->goal->line->metric;
  if (!metric->peak) trial->peak = NULL;
  trial->reads = metric->reads;
  if (metric->peak && !trial->peak) return conclude(row, BENCH_ERROR, "tier %s has no peak loop", row->kernel->isa);
  if (metric->reads && !setup->layer && !bench_can_read(&setup->tensors[0]))
    return conclude(row, BENCH_ERROR,
                    "a loop that only reads needs the rows of a head without gaps; here the layout has some");
  return true;
}

/* Opens and checks the next case. False if it cannot be timed; the row says why. */
static bool open_trial(pair *p) {
  const int i = p->count;
  bench_goal_row *row = p->row;
  bench_setup *setup = i ? bench_setup_open(&row->against, &row->against_kernel, 1, p->settings)
                         : bench_setup_open(&row->bench, &row->kernel, 1, p->settings);
  if (!setup) return conclude(row, BENCH_ERROR, "out of memory");
  bench_trial *trial = &setup->trials[0];
  p->setup[i] = setup;
  p->trial[i] = trial;
  p->count++;
  (void)bench_setup_check(setup); /* an interrupted one has no PASS */
  if (setup->expected) accept_empty_output(setup, trial);
  row->against_failed = i && trial->verdict.status != BENCH_PASS;
  if (row->against_failed)
    return conclude(row, trial->verdict.status, "%s in the case of comparison: %.300s", row->against_kernel->name,
                    trial->verdict.reason);
  if (trial->verdict.status != BENCH_PASS) return conclude(row, trial->verdict.status, "%.300s", trial->verdict.reason);
  bench_setup_rotate(setup);
  if (trial->verdict.status != BENCH_PASS) return conclude(row, trial->verdict.status, "%.300s", trial->verdict.reason);
  bench_setup_prepare_trial(setup, trial);
  return choose_loop(row, setup, trial);
}

static bool take_rounds(pair *p, bench_stop *stop, const char **error) {
  const bench_timing_options options = {.min_rounds = p->settings->rounds,
                                        .max_rounds = p->settings->rounds,
                                        .budget_s = INFINITY,
                                        .min_sample_s = BENCH_MIN_SAMPLE_S,
                                        .seed = p->row->bench.seed,
                                        .stop = p->settings->stop,
                                        .meter = p->settings->meter};
  bench_note(p->setup[0], "timing", p->row->kernel->name);
  bench_trial *failed;
  return bench_time(p->trial, p->count, &options, stop, error, &failed);
}

static bench_goal_sample sample_of(const pair *p, int i, int round) {
  const bench_trial *t = p->trial[i];
  const bench_case *bench = p->setup[i]->bench;
  const double work = t->reads ? p->setup[i]->bytes : p->setup[i]->flops;
  const double limit = t->samples.loop_rate[round] * (t->reads ? 1 : bench->threads), time_ns = t->samples.time_ns[round];
  return (bench_goal_sample){.time_ns = time_ns, .peak_share = limit > 0 ? work / (1e-9 * time_ns) / limit : 0};
}

/* Whether all trials of that round had their core to themselves. */
static bool is_undisturbed(const pair *p, int round) {
  bool undisturbed = true;
  for (int i = 0; i < p->count; i++) undisturbed = undisturbed && bench_sample_is_undisturbed(p->trial[i], round);
  return undisturbed;
}

static int count_undisturbed(const pair *p, int rounds) {
  int undisturbed = 0;
  for (int i = 0; i < p->count; i++)
    if (!bench_knows_disturbance(p->trial[i])) return -1;
  for (int round = 0; round < rounds; round++) undisturbed += is_undisturbed(p, round);
  return undisturbed;
}

/* The value over the undisturbed rounds, or over all rounds where too few are undisturbed. */
static void summarise(pair *p, int rounds) {
  double *values = malloc(((size_t)rounds + 1) * sizeof *values);
  int count = 0;
  if (!values) conclude(p->row, BENCH_ERROR, "out of memory");
  p->row->rounds = rounds;
  p->row->undisturbed = count_undisturbed(p, rounds);
  for (int round = 0; values && round < rounds; round++) {
    if (p->row->undisturbed >= BENCH_LEAST_GOAL_ROUNDS && !is_undisturbed(p, round)) continue;
    const bench_goal_sample sample = sample_of(p, 0, round);
    const bench_goal_sample against = p->count > 1 ? sample_of(p, 1, round) : (bench_goal_sample){0};
    values[count++] = p->row->goal->line->metric->value(&sample, &against);
  }
  if (values) conclude_measured(p->row, bench_summarise(values, count));
  free(values);
}

static void spoil(pair *p, const char *error) {
  for (int i = 0; i < p->count; i++) {
    bench_conclude(p->trial[i], BENCH_ERROR, "timing: %s", error);
    bench_trial_clear(p->trial[i]);
  }
  conclude(p->row, BENCH_ERROR, "timing: %s", error);
}

/* False if it was interrupted before there were rounds enough. */
static bool measure_rounds(pair *p) {
  bench_stop stop;
  const char *error;
  if (!take_rounds(p, &stop, &error)) {
    spoil(p, error);
    return true;
  }
  for (int i = 0; i < p->count; i++) {
    bench_setup_check_time(p->setup[i], p->trial[i]);
    if (p->trial[i]->verdict.status == BENCH_PASS) continue;
    p->row->against_failed = i > 0;
    conclude(p->row, BENCH_ERROR, "%s", p->trial[i]->verdict.reason);
    return true;
  }
  const int rounds = p->trial[0]->samples.rounds; /* the same of both: a round is never cut short */
  if (stop == BENCH_STOP_INTERRUPT && rounds < BENCH_LEAST_GOAL_ROUNDS) return false;
  summarise(p, rounds);
  for (int i = 0; i < p->count; i++) p->setup[i]->stop = stop;
  return true;
}

static bool measure_pair(pair *p) {
  const int wanted = p->row->goal->line->metric->against ? 2 : 1;
  while (p->count < wanted) {
    if (!open_trial(p)) return !*p->settings->stop;
    if (*p->settings->stop) return false;
  }
  return measure_rounds(p);
}

bool bench_goal_measure(bench_goal_row *row, const bench_case_settings *settings, bench_row rows[2]) {
  pair p = {.row = row, .settings = settings};
  rows[0] = rows[1] = (bench_row){.case_id = ""};
  if (!row->goal->line->metric->value) {
    measure_workspace(row);
    return true;
  }
  const bool held = bench_threads_hold(row->bench.threads);
  const bool complete = measure_pair(&p);
  for (int i = 0; i < p.count; i++) {
    if (complete) rows[i] = bench_setup_row(p.setup[i], p.trial[i]);
    bench_setup_close(p.setup[i]);
  }
  if (held) bench_threads_release();
  row->done = row->done && complete;
  return complete;
}

double bench_goal_guess(const bench_goal_row *row, const bench_case_settings *settings) {
  if (!row->goal->line->metric->value) return 1e-4;
  const double one = bench_case_guess(&row->bench, &row->kernel, 1, settings);
  return row->goal->line->metric->against ? one + bench_case_guess(&row->against, &row->against_kernel, 1, settings) : one;
}
