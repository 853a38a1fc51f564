/* SPDX-License-Identifier: MIT */
/* Goals: the meaning of lines, the errors of wrong lines, and verdicts with their intervals. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli.h"
#include "base/files.h"
#include "cases/cases.h"
#include "goals/goals.h"
#include "support.h"

/* The rows of a text. Fails the test if it cannot be read. */
static bench_goal_list read_goals(const char *text) {
  bench_goal_list list = {0};
  char error[400] = "";
  if (!bench_goals_read(text, &list, error, sizeof error)) fail_msg("%s", error);
  return list;
}

/* A goal of one metric, with the texts of its floor and goal as in a file. */
static bench_goal goal_of(const char *metric, const char *against, const char *floor, const char *goal) {
  char line[200];
  snprintf(line, sizeof line, "%s | flash_c | seq=64 | %s | any | %s | %s | row", metric, against, floor, goal);
  bench_goal_list list = read_goals(line);
  assert_int_equal(list.count, 1);
  bench_goal result = list.item[0];
  bench_goals_clear(&list);
  return result;
}

/* ---- Verdicts ------------------------------------------------------------------------------------------------------- */

TEST(test_verdicts) {
  static const struct {
    const char *metric, *floor, *goal;
    double lo, median, hi;
    bench_mark mark;
    bool open;
  } cases[] = {
      {"peak", "80", "90", 70, 75, 79, BENCH_SHORT, false},
      {"peak", "80", "90", 70, 79, 81, BENCH_SHORT, true},
      {"peak", "80", "90", 79, 81, 85, BENCH_FLOOR, true},
      {"peak", "80", "90", 81, 82, 95, BENCH_FLOOR, false},
      {"peak", "80", "90", 85, 90, 91, BENCH_GOAL, false},
      {"peak", "80", "90", 60, 92, 99, BENCH_GOAL, true},
      {"peak", "80", "90", 80, 80, 80, BENCH_FLOOR, false}, /* a floor that is met exactly is reached */
      {"peak", "80", "-", 95, 96, 97, BENCH_FLOOR, false},  /* there is no goal */
      {"peak", "-", "-", 10, 20, 30, BENCH_NO_FLOOR, false},
      {"points", "-3", "-1", -4, -3.5, -3.1, BENCH_SHORT, false},
      {"points", "-3", "-1", -4, -2, -1, BENCH_FLOOR, true},
      {"points", "-3", "-1", 1, 2, 3, BENCH_GOAL, false},
      {"ns", "300", "100", 310, 320, 400, BENCH_SHORT, false}, /* from here on less is better */
      {"ns", "300", "100", 290, 320, 400, BENCH_SHORT, true},
      {"ns", "300", "100", 200, 250, 310, BENCH_FLOOR, true},
      {"ns", "300", "100", 200, 250, 300, BENCH_FLOOR, false},
      {"ns", "300", "100", 80, 100, 120, BENCH_GOAL, false},
      {"workspace", "8704", "-", 8704, 8704, 8704, BENCH_FLOOR, false},
      {"workspace", "8704", "-", 8704.0625, 8704.0625, 8704.0625, BENCH_SHORT, false},
  };
  for (size_t i = 0; i < COUNT(cases); i++) {
    const bench_goal goal = goal_of(cases[i].metric, "", cases[i].floor, cases[i].goal);
    const bench_summary measured = {
        .min = cases[i].lo, .median = cases[i].median, .ci_lo = cases[i].lo, .ci_hi = cases[i].hi, .n = 21};
    const bench_goal_verdict verdict = bench_goal_verdict_of(&goal, &measured);
    if (verdict.mark != cases[i].mark || verdict.open != cases[i].open)
      fail_msg("case %zu (%s, median %g): %s, open %d", i, cases[i].metric, cases[i].median, bench_mark_name(verdict.mark),
               verdict.open);
  }
}

TEST(test_values) {
  static const bench_goal_sample sample = {.time_ns = 400, .peak_share = 0.6},
                                 against = {.time_ns = 1000, .peak_share = 0.8};
  static const struct {
    const char *metric;
    double value;
  } cases[] = {
      {"peak", 60}, {"points", -20}, {"ratio", 0.75}, {"cost", 4.0 / 3}, {"time", 0.4}, {"speedup", 2.5}, {"ns", 400},
  };
  for (size_t i = 0; i < COUNT(cases); i++) {
    const bench_goal goal = goal_of(cases[i].metric, "", "-", "-");
    if (fabs(goal.metric->value(&sample, &against) - cases[i].value) > 1e-12)
      fail_msg("%s is %g, should be %g", cases[i].metric, goal.metric->value(&sample, &against), cases[i].value);
  }
  assert_null(goal_of("workspace", "", "-", "-").metric->value);
}

/* What each metric is printed with, and what it needs. */
TEST(test_metrics) {
  static const bench_metric wanted[] = {
      {.name = "peak", .unit = "%", .decimals = 1, .peak = true},
      {.name = "reads", .unit = "%", .decimals = 1, .reads = true},
      {.name = "points", .unit = "points", .decimals = 1, .against = true, .peak = true},
      {.name = "ratio", .unit = "x", .decimals = 3, .against = true, .peak = true},
      {.name = "cost", .unit = "x", .decimals = 3, .against = true, .peak = true, .lower = true},
      {.name = "time", .unit = "x", .decimals = 3, .against = true, .lower = true},
      {.name = "speedup", .unit = "x", .decimals = 3, .against = true},
      {.name = "ns", .unit = "ns", .lower = true},
      {.name = "workspace", .unit = "KiB", .lower = true}};
  for (size_t i = 0; i < COUNT(wanted); i++) {
    const bench_metric *w = &wanted[i], *got = goal_of(w->name, "", "-", "-").metric;
    assert_string_equal(got->name, w->name);
    assert_string_equal(got->unit, w->unit);
    assert_int_equal(got->decimals, w->decimals);
    assert_true(got->against == w->against && got->peak == w->peak && got->reads == w->reads && got->lower == w->lower);
  }
}

/* ---- Lines ---------------------------------------------------------------------------------------------------------- */

TEST(test_a_line_is_a_row_per_kernel) {
  bench_goal_list list = read_goals(
      "# comment\n\n[section one]\n"
      "ratio | flash_avx512, flash_avx2 | heads=1 seq=2048 head_dim=64 causal=bottom-right | causal=none | AMD avx2 | 0.9 | "
      "- | a row\n"
      "[two]\nns | naive_c | seq_q=0 | | any | 300 | 100 |");
  assert_int_equal(list.count, 3);
  const bench_goal *row = &list.item[1];
  assert_string_equal(list.item[0].kernel, "flash_avx512");
  assert_string_equal(row->kernel, "flash_avx2");
  assert_string_equal(row->section, "section one");
  assert_string_equal(row->text, "a row");
  assert_string_equal(row->metric->name, "ratio");
  assert_true(row->floor == 0.9 && isnan(row->goal));
  assert_string_equal(bench_spec_get(&row->spec, AXIS_CAUSAL), "bottom-right");
  assert_string_equal(bench_spec_get(&row->against, AXIS_CAUSAL), "none");
  assert_string_equal(bench_spec_get(&row->against, AXIS_SEQ), "2048");
  assert_string_equal(list.item[2].section, "two");
  assert_string_equal(list.item[2].text, "");
  assert_string_equal(bench_spec_get(&list.item[2].spec, AXIS_HEADS), "8");
  bench_goals_clear(&list);
}

/* kernel=NAME is no axis: it is cut out of `against`, whose axes remain. */
TEST(test_another_kernel_to_compare_with) {
  bench_goal_list list = read_goals(
      "speedup | flash_c | seq=64 | kernel=naive_c | any | 2 | - | first\n"
      "time | flash_c | seq=64 | seq=32\tkernel=naive_c\tcausal=bottom-right | any | - | - | second\n"
      "time | flash_c | seq=64 | seq=32 | any | - | - | third\n");
  assert_int_equal(list.count, 3);
  assert_string_equal(list.item[0].against_kernel, "naive_c");
  assert_string_equal(bench_spec_get(&list.item[0].against, AXIS_SEQ), "64");
  assert_string_equal(list.item[1].kernel, "flash_c");
  assert_string_equal(list.item[1].against_kernel, "naive_c");
  assert_string_equal(bench_spec_get(&list.item[1].against, AXIS_SEQ), "32");
  assert_string_equal(bench_spec_get(&list.item[1].against, AXIS_CAUSAL), "bottom-right");
  assert_string_equal(list.item[2].against_kernel, "");
  bench_goals_clear(&list);
}

TEST(test_wrong_lines_are_explained) {
  static const struct {
    const char *text, *parts[3];
  } cases[] = {
      {"[s]\npeek | flash_c | seq=1 | | any | 1 | 2 | row", {"line 2", "'peek'", "peak"}},
      {"peak | flash_c | seq=1 | any | 1 | 2 | row", {"line 1", "7 fields", "should be 8"}},
      {"peak | flash_c | sek=1 | | any | 1 | 2 | row", {"'sek'", "seq", "line 1"}},
      {"peak | flash_c | seq=1,2 | | any | 1 | 2 | row", {"seq", "2 values", "one case"}},
      {"peak | flash_c | seq=1 | seq=2 | any | 1 | 2 | row", {"peak", "compares with nothing", "empty"}},
      {"ratio | flash_c | threads=2 | threads=1 | any | 1 | 2 | row", {"ratio", "2 threads", "comparison"}},
      {"time | flash_c | seq=1 | kernel=nave_c | any | 1 | - | row", {"'nave_c'", "against", "no kernel"}},
      {"time | flash_c | seq=1 | kernel= seq=2 | any | 1 | - | row", {"''", "against", "no kernel"}},
      {"peak | flash_c, flsh_c | seq=1 | | any | 1 | - | row", {"'flsh_c'", "kernels", "no kernel"}},
      {"peak |  | seq=1 | | any | 1 | - | row", {"''", "kernels", "no kernel"}},
      {"time | flash_c | seq=1 | seq=2\tkernel=nave_c | any | 1 | - | row", {"'nave_c'", "against", "no kernel"}},
      {"time | flash_c | seq=1 | mykernel=naive_c | any | 1 | - | row", {"'mykernel'", "line 1", ""}},
      {"ratio | flash_c | seq=1 | kernel=naive_c | any | 1 | - | row", {"ratio", "one peak", "time or speedup"}},
      {"peak | flash_c | seq=1 | kernel=naive_c | any | 1 | - | row", {"peak", "compares with nothing", "empty"}},
      {"peak | flash_c | seq=1 | | Intell | 1 | 2 | row", {"'Intell'", "AMD, Intel", "tier"}},
      {"peak | flash_c | seq=1 | | | 1 | 2 | row", {"CPU", "empty", "any"}},
      {"peak | flash_c | seq=1 | | any | one | 2 | row", {"'one'", "number", "-"}},
      {"peak | flash_c | seq=1 | | any | 90 | 80 | row", {"80", "easier", "90"}},
      {"ns | flash_c | seq=1 | | any | 100 | 300 | row", {"300", "easier", "100"}},
  };
  for (size_t i = 0; i < COUNT(cases); i++) {
    bench_goal_list list = {0};
    char error[400] = "";
    assert_false(bench_goals_read(cases[i].text, &list, error, sizeof error));
    for (int part = 0; part < 3; part++) test_contains(error, cases[i].parts[part]);
    bench_goals_clear(&list);
  }
}

TEST(test_cpu_conditions) {
  static const struct {
    const char *cpu, *vendor, *tiers;
    bool applies;
  } cases[] = {
      {"any", "", "c", true},
      {"AMD", "AuthenticAMD", "c avx2", true},
      {"AMD", "GenuineIntel", "c avx2", false},
      {"Intel", "", "c avx2", false},
      {"Intel amx", "GenuineIntel", "c avx2 avx512 amx", true},
      {"Intel amx", "GenuineIntel", "c avx2 avx512", false},
      {"avx512", "GenuineIntel", "c avx2 avx512bf16", false}, /* part of a word is no tier */
      {"avx512", "GenuineIntel", "c avx512 avx512bf16", true},
      {"avx512", "GenuineIntel", "c avx512bf16 xavx512 avx512", true},
      {"c", "", "c", true},
      {"c", "", "c2 2c", false},
  };
  for (size_t i = 0; i < COUNT(cases); i++) {
    bench_goal goal = {.kernel = ""};
    snprintf(goal.cpu, sizeof goal.cpu, "%s", cases[i].cpu);
    if (bench_goal_applies(&goal, cases[i].vendor, cases[i].tiers) != cases[i].applies)
      fail_msg("case %zu: %s on %s with %s", i, cases[i].cpu, cases[i].vendor, cases[i].tiers);
  }
}

/* ---- The embedded file ---------------------------------------------------------------------------------------------- */

/* Both vendors have a whole table: the same number of float32 rows. */
TEST(test_embedded_limits) {
  int amd = 0, intel = 0;
  assert_null(bench_goals_find("limit"));
  assert_non_null(bench_goals_find("limits"));
  bench_goal_list list = read_goals(bench_goals_find("limits"));
  for (int i = 0; i < list.count; i++) {
    const bench_goal *row = &list.item[i];
    assert_true(row->text[0] && row->section[0]);
    if (strcmp(bench_spec_get(&row->spec, AXIS_DTYPE), "f32") != 0) continue;
    amd += bench_goal_applies(row, "AuthenticAMD", "c avx2 avx512");
    intel += bench_goal_applies(row, "GenuineIntel", "c avx2 avx512");
  }
  assert_true(amd > 0);
  assert_int_equal(amd, intel);
  bench_goals_clear(&list);
}

/* ---- Tables ---------------------------------------------------------------------------------------------------------- */

/* Rows of three goals: measured, measured without an interval or a floor, and failed. */
typedef struct three_rows {
  bench_goal_row row[3];
  bench_goal_table table;
} three_rows;

static void fill_rows(three_rows *t) {
  *t = (three_rows){.table = {.absent = {[BENCH_OTHER_CPU] = 1, [BENCH_NOT_BUILT] = 2}}};
  t->table.goals = read_goals(
      "[one]\npeak | flash_c | seq=64 | | any | 80 | 90 | first\n"
      "[two]\nns | naive_c | seq=8 | | any | - | - | second, \"quoted\"\n"
      "ratio | naive_c | seq=9 | seq=10 | AMD | 0.5 | - | third\n");
  for (int i = 0; i < 3; i++) t->row[i] = (bench_goal_row){.goal = &t->table.goals.item[i], .done = true};
  snprintf(t->row[2].against.case_id, sizeof t->row[2].against.case_id, "against");
  t->table.row = t->row;
  t->table.count = 3;
}

typedef void printer(const three_rows *t, FILE *file);

static void expect_text(printer *print, const three_rows *t, const char *wanted) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *file = open_memstream(&text, &bytes);
  assert_non_null(file);
  print(t, file);
  (void)fclose(file);
  assert_string_equal(text, wanted);
  free(text);
}

static void print_rows(const three_rows *t, FILE *file) {
  const bench_goal_row *row = t->table.row;
  for (int i = 0; i < t->table.count; i++) bench_goals_print_row(&row[i], i ? &row[i - 1] : NULL, file);
}

static void print_summary(const three_rows *t, FILE *file) { bench_goals_print_summary(&t->table, file); }

static void print_csv(const three_rows *t, FILE *file) { bench_goals_write_csv(&t->table, "run", file); }

static void print_open(const three_rows *t, FILE *file) { bench_goals_print_open(&t->table, file); }

/* Goals that this CPU cannot measure are named; those that miss a kernel for another reason are not. */
TEST(test_goals_of_other_cpus_are_named) {
  three_rows t;
  fill_rows(&t);
  expect_text(print_open, &t, "");
  t.table.goals.item[0].absence = BENCH_NO_TIER;
  t.table.goals.item[1].absence = BENCH_NOT_BUILT;
  t.table.goals.item[2].absence = BENCH_OTHER_CPU;
  expect_text(print_open, &t,
              "\nopen, for another CPU or tier:\n"
              "one\n  first                                      flash_c           c\n"
              "two\n  third                                      naive_c           AMD\n");
  bench_goals_clear(&t.table.goals);
}

/* The command runs the kernel and case that failed. */
static void print_repro(const three_rows *t, FILE *file) { bench_goals_print_repro(&t->row[2], file); }

TEST(test_the_case_that_failed_can_be_run_again) {
  three_rows t;
  fill_rows(&t);
  t.row[2].kernel = attn_kernel_find("naive_c");
  t.row[2].against_kernel = attn_kernel_find("flash_c");
  snprintf(t.row[2].bench.case_id, sizeof t.row[2].bench.case_id, "case three");
  expect_text(print_repro, &t, "      attnbench run --kernel naive_c --case 'case three'\n");
  t.row[2].against_failed = true;
  expect_text(print_repro, &t, "      attnbench run --kernel flash_c --case 'against'\n");
  bench_goals_clear(&t.table.goals);
}

/* ---- Random rows -------------------------------------------------------------------------------------------------------
 */

enum { RANDOM_ROWS = 9, TEXT = 8000 };

static int draw(uint64_t *state, int below) { return (int)(bench_random(state) % (uint64_t)below); }

/* A row of any status, with or without an interval, about its floor and goal. */
static bench_goal_row random_row(const bench_goal *goal, uint64_t *state) {
  const double medians[] = {goal->floor, goal->goal, 82.25, 0.125}, median = medians[draw(state, 4)];
  const double half = draw(state, 3) ? draw(state, 99) / 8.0 : NAN;
  bench_goal_row row = {.goal = goal, .rounds = 1 + draw(state, 15), .done = draw(state, 8) > 0};
  row.status = draw(state, 2) ? BENCH_PASS : (bench_status)draw(state, BENCH_ERROR + 1);
  row.calm = draw(state, row.rounds + 2) - 1;
  row.measured = (bench_summary){.n = 1 + draw(state, row.rounds), .median = isnan(median) ? 7 : median};
  row.measured.ci_lo = row.measured.median - half, row.measured.ci_hi = row.measured.median + half;
  row.verdict = bench_goal_verdict_of(goal, &row.measured);
  if (row.status != BENCH_PASS) snprintf(row.reason, sizeof row.reason, "because, \"so\"");
  snprintf(row.bench.case_id, sizeof row.bench.case_id, "case %d", draw(state, 9));
  snprintf(row.against.case_id, sizeof row.against.case_id, "other");
  return row;
}

static void add_value(char *line, const char *format, int digits, double value) {
  char text[40] = "-";
  if (!isnan(value)) snprintf(text, sizeof text, "%.*f", digits, value);
  bench_append(line, TEXT, format, text);
}

/* Sections stand above their first row; a value has the decimals of its metric; "?" says that the interval holds the floor.
 */
static void expect_row(const bench_goal_row *row, const bench_goal_row *before, char *text) {
  const bench_goal *goal = row->goal;
  const int digits = goal->metric->decimals;
  const bool passed = row->status == BENCH_PASS, interval = passed && row->measured.n > 1 && !isnan(row->measured.ci_lo);
  char between[60] = "", calm[60] = "-";
  if (!before || strcmp(before->goal->section, goal->section)) bench_append(text, TEXT, "%s\n", goal->section);
  bench_append(text, TEXT, "  %-42s %-14s ", goal->text, goal->kernel);
  add_value(text, "%7s ", digits, goal->floor);
  add_value(text, "%7s ", digits, goal->goal);
  if (passed) add_value(text, "%9s ", digits, row->measured.median);
  if (interval) snprintf(between, sizeof between, "%.*f .. %.*f", digits, row->measured.ci_lo, digits, row->measured.ci_hi);
  if (passed && row->calm >= 0) snprintf(calm, sizeof calm, "%d/%d", row->calm, row->rounds);
  bench_append(text, TEXT, passed ? "%-6s  %-17s %6s " : "%16s  %-17s %6s ", passed ? goal->metric->unit : "", between,
               calm);
  bench_append(text, TEXT, "%s%s\n", passed ? bench_mark_name(row->verdict.mark) : bench_status_name(row->status),
               passed && row->verdict.open ? "?" : "");
  if (!passed) bench_append(text, TEXT, "      %s\n", row->reason);
}

static void expect_csv(const bench_goal_row *row, char *text) {
  const bench_goal *goal = row->goal;
  const bool passed = row->status == BENCH_PASS, has_mark = passed && row->verdict.mark != BENCH_NO_FLOOR;
  const double numbers[] = {goal->floor, goal->goal, row->measured.median, row->measured.ci_lo, row->measured.ci_hi};
  bench_append(text, TEXT, "run,%s,\"%.3s, \"\"%s\"\"\",%s,%s,%s,%s,%s,%s,%s", goal->section, goal->text, "q", goal->kernel,
               goal->metric->name, goal->metric->unit, row->bench.case_id, goal->metric->against ? "other" : "",
               goal->against_kernel, goal->cpu);
  for (int i = 0; i < 5; i++) bench_append(text, TEXT, isnan(numbers[i]) || (i > 1 && !passed) ? "," : ",%.9g", numbers[i]);
  bench_append(text, TEXT, row->calm < 0 ? ",%d," : ",%d,%d", row->rounds, row->calm);
  bench_append(text, TEXT, ",%s,%s,%s,%s\n", bench_status_name(row->status),
               has_mark ? bench_mark_name(row->verdict.mark) : "", passed && row->verdict.open ? "yes" : "no",
               passed ? "" : "\"because, \"\"so\"\"\"");
}

static void expect_counts(const bench_goal_table *table, char *text) {
  int marks[4] = {0}, open = 0, few = 0, many = 0, done = 0, failed = 0;
  for (const bench_goal_row *row = table->row; row < table->row + table->count; row++) {
    if (!row->done) continue;
    done++;
    failed += row->status != BENCH_PASS && row->status != BENCH_SKIP;
    if (row->status != BENCH_PASS) continue;
    marks[row->verdict.mark]++;
    open += row->verdict.open;
    many += row->calm >= 11;
    few += row->calm >= 0 && row->calm < 11;
  }
  bench_append(text, TEXT, "\n%d of %d rows have a verdict: %d at their goal, %d more at their floor (ok), %d short of it",
               marks[BENCH_GOAL] + marks[BENCH_FLOOR] + marks[BENCH_SHORT], table->count, marks[BENCH_GOAL],
               marks[BENCH_FLOOR], marks[BENCH_SHORT]);
  bench_append(text, TEXT, open ? "; ? = the interval holds the floor (%d)\n" : "\n", open);
  if (few + many)
    bench_append(text, TEXT,
                 "calm: rounds without another program on the same cores; where a row has 11 or more, these alone count\n");
  if (few) bench_append(text, TEXT, "%d row%s fewer: take more --rounds\n", few, few == 1 ? " has" : "s have");
  if (done < table->count) bench_append(text, TEXT, "%d rows were not reached\n", table->count - done);
  bench_append(text, TEXT, "1 row is for another CPU\n2 rows need kernels that this build lacks\n");
  assert_int_equal(bench_goals_count(table).failed, failed);
}

TEST(test_random_rows_are_printed_counted_and_written) {
  static const char head[] =
      "run_id,section,row,kernel,metric,unit,case_id,against_case_id,against_kernel,cpu,floor,goal,measured,ci_lo,ci_hi,"
      "rounds,calm_rounds,status,verdict,interval_holds_floor,reason\n";
  static bench_goal_row row[RANDOM_ROWS];
  three_rows t = {.table = {.row = row, .absent = {[BENCH_OTHER_CPU] = 1, [BENCH_NOT_BUILT] = 2}}};
  t.table.goals = read_goals(
      "[one]\npeak | flash_c | seq=64 | | any | 80 | 90 | 1st, \"q\"\npoints | flash_c | seq=9 | seq=8 | AMD | -3 | -1 | "
      "2nd, "
      "\"q\"\n[two]\nns | naive_c | seq=8 | | any | - | - | 3rd, \"q\"\nratio | naive_c | seq=9 | seq=10 | any | 0.5 | - | "
      "4th, "
      "\"q\"\ntime | flash_c | seq=9 | kernel=naive_c | any | 9 | 8 | 5th, \"q\"\n");
  for (uint64_t seed = 1; seed <= 200; seed++) {
    uint64_t chance = seed;
    char lines[TEXT] = "", csv[TEXT], counts[TEXT] = "";
    t.table.count = draw(&chance, RANDOM_ROWS + 1);
    snprintf(csv, sizeof csv, "%s", head);
    for (int i = 0; i < t.table.count; i++) {
      row[i] = random_row(&t.table.goals.item[draw(&chance, t.table.goals.count)], &chance);
      expect_row(&row[i], i ? &row[i - 1] : NULL, lines);
      if (row[i].done) expect_csv(&row[i], csv);
    }
    expect_counts(&t.table, counts);
    expect_text(print_rows, &t, lines);
    expect_text(print_csv, &t, csv);
    expect_text(print_summary, &t, counts);
  }
  bench_goals_clear(&t.table.goals);
}

/* ---- Which goals become rows ------------------------------------------------------------------------------------------ */

/* One goal per reason to be absent, and the case that each row is compared with. */
TEST(test_goals_of_other_machines_and_kernels_are_absent) {
  const char *reason;
  char text[1200];
  snprintf(text, sizeof text,
           "ratio | naive_c | heads=1 seq=64 | seq=32 | any | - | - | here\n"
           "ns | naive_c | heads=1 seq=64 |  | AMD | - | - | one vendor\n"
           "ns | naive_c | heads=1 seq=64 |  | Intel | - | - | another\n"
           "ns | %s | heads=1 seq=64 |  | any | - | - | not built\n"
           "ns | flash_c | heads=1 seq=64 |  | any | - | - | not selected\n"
           "ns | flash_c | heads=1 seq=64 |  | AMD | - | - | not selected either\n"
           "ns | flash_c | heads=1 seq=64 |  | Intel | - | - | nor this one\n"
           "ns | naive_c | heads=3 heads_kv=2 |  | any | - | - | refused\n"
           "ratio | naive_c | heads=2 heads_kv=2 | heads_kv=3 | any | - | - | refused as well\n"
           "time | naive_c | heads=1 seq_q=64 | kernel=decode_c | any | - | - | refused by the other kernel\n"
           "time | naive_c | heads=1 seq=64 | kernel=flash_c | any | - | - | beside another kernel\n",
           attn_kernel_not_built(0, &reason));
  const bench_selection selection = {.kernel = {attn_kernel_find("naive_c")}, .count = 1};
  bench_goal_table table;
  char error[300] = "";
  if (!bench_goal_table_open(&table, text, &selection, 7, error, sizeof error)) fail_msg("%s", error);
  char vendor[64];
  bench_read_field("/proc/cpuinfo", "vendor_id", vendor, sizeof vendor);
  const int others = strcmp(vendor, "AuthenticAMD") && strcmp(vendor, "GenuineIntel") ? 2 : 1;
  assert_int_equal(table.absent[BENCH_OTHER_CPU], others);
  assert_int_equal(table.count, 4 - others);
  assert_true(table.absent[BENCH_HERE] == table.count && table.absent[BENCH_NOT_BUILT] == 1);
  assert_true(table.absent[BENCH_NOT_SELECTED] == 3 && table.absent[BENCH_NO_TIER] == 0 && table.absent[BENCH_REFUSED] == 3);
  const bench_goal_row *row = &table.row[0];
  assert_string_equal(row->goal->text, "here");
  assert_ptr_equal(row->kernel, selection.kernel[0]);
  assert_ptr_equal(row->against_kernel, row->kernel);
  const bench_goal_row *last = &table.row[table.count - 1];
  assert_ptr_equal(last->kernel, row->kernel);
  assert_ptr_equal(last->against_kernel, attn_kernel_find("flash_c")); /* selected or not */
  assert_true(row->bench.problem.seq_q == 64 && row->against.problem.seq_q == 32);
  bench_case same;
  bench_case_build(&row->goal->against, 7, &same);
  assert_true(row->against.seed == same.seed && row->bench.seed != 0 && !row->done);
  bench_goal_table_clear(&table);
  assert_true(table.count == 0 && !table.row && table.goals.count == 0 && !table.goals.item);
  assert_false(bench_goal_table_open(&table, "nonsense", &selection, 7, error, sizeof error));
  test_contains(error, "line 1");
  bench_goal_table_clear(&table);
}
