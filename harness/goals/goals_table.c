/* SPDX-License-Identifier: MIT */
/* Which goals become rows on this CPU, in this build, with these kernels; rows as text and as CSV. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "cases/cases.h"
#include "goals/goals.h"
#include "report/table.h"
#include "report/writers.h"

/* ---- Choosing ---- */

static bool is_selected(const bench_selection *selection, const attn_kernel_info *kernel) {
  for (int i = 0; i < selection->count; i++)
    if (selection->kernel[i] == kernel) return true;
  return false;
}

/* Makes the row of a goal. Returns BENCH_HERE, or why there is no row. */
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

bool bench_goal_table_open(bench_goal_table *table, const char *text, const bench_selection *selection, uint64_t seed,
                           char *error, size_t error_bytes) {
  *table = (bench_goal_table){.count = 0};
  if (!bench_goals_read(text, &table->goals, error, error_bytes)) return false;
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
  fprintf(file, "%-44s %-14s %7s %7s %9s %-6s  %-17s %s\n", "row", "kernel", "floor", "goal", "measured", "",
          "95 % interval", "verdict");
}

/* "86.1 .. 88.0"; "" where there is no interval. */
static void format_interval(const bench_goal_row *row, char *text, size_t bytes) {
  char low[NUMBER], high[NUMBER];
  const bench_summary *measured = &row->measured;
  text[0] = 0;
  if (row->status != BENCH_PASS || measured->n < 2 || isnan(measured->ci_lo)) return;
  format_value(row->goal->metric, measured->ci_lo, low);
  format_value(row->goal->metric, measured->ci_hi, high);
  snprintf(text, bytes, "%s .. %s", low, high);
}

void bench_goals_print_row(const bench_goal_row *row, const bench_goal_row *before, FILE *file) {
  const bench_metric *metric = row->goal->metric;
  char floor[NUMBER], goal[NUMBER], measured[NUMBER] = "", interval[2 * NUMBER + 4], mark[NUMBER];
  format_value(metric, row->goal->floor, floor);
  format_value(metric, row->goal->goal, goal);
  if (row->status == BENCH_PASS) format_value(metric, row->measured.median, measured);
  format_interval(row, interval, sizeof interval);
  format_mark(row, mark);
  if (!before || strcmp(before->goal->section, row->goal->section)) fprintf(file, "%s\n", row->goal->section);
  fprintf(file, "  %-42s %-14s %7s %7s %9s %-6s  %-17s %s\n", row->goal->text, row->goal->kernel, floor, goal, measured,
          measured[0] ? metric->unit : "", interval, mark);
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

static void count_row(bench_goal_counts *counts, const bench_goal_row *row) {
  if (!row->done) return;
  counts->done++;
  counts->failed += row->status == BENCH_FAIL || row->status == BENCH_ERROR || row->status == BENCH_DEGENERATE;
  if (row->status != BENCH_PASS) return;
  counts->marks[row->verdict.mark]++;
  counts->open += row->verdict.open;
  counts->decided += row->verdict.mark != BENCH_NO_FLOOR;
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
  bench_csv_field(file, run_id);
  put_text(file, goal->section);
  put_text(file, goal->text);
  put_text(file, goal->kernel);
  put_text(file, goal->metric->name);
  put_text(file, goal->metric->unit);
  put_text(file, row->bench.case_id);
  put_text(file, goal->metric->against ? row->against.case_id : "");
  put_text(file, goal->cpu);
  put_number(file, goal->floor);
  put_number(file, goal->goal);
  put_number(file, measured ? row->measured.median : NAN);
  put_number(file, measured ? row->measured.ci_lo : NAN);
  put_number(file, measured ? row->measured.ci_hi : NAN);
  fprintf(file, ",%d", measured ? row->measured.n : 0);
  put_text(file, bench_status_name(row->status));
  put_text(file, measured && row->verdict.mark != BENCH_NO_FLOOR ? bench_mark_name(row->verdict.mark) : "");
  put_text(file, measured && row->verdict.open ? "yes" : "no");
  put_text(file, row->reason);
  fputc('\n', file);
}

void bench_goals_write_csv(const bench_goal_table *table, const char *run_id, FILE *file) {
  fputs(
      "run_id,section,row,kernel,metric,unit,case_id,against_case_id,cpu,floor,goal,measured,ci_lo,ci_hi,rounds,status,"
      "verdict,"
      "interval_holds_floor,reason\n",
      file);
  for (int i = 0; i < table->count; i++)
    if (table->row[i].done) write_row(&table->row[i], run_id, file);
}
