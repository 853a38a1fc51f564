/* SPDX-License-Identifier: MIT */
/* Goals: the table, and verdicts with their intervals. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli.h"
#include "base/files.h"
#include "cases/cases.h"
#include "goals/goals.h"
#include "tests/support/support.h"

/* The goals of a table. Fails the test if it cannot be made. */
static bench_goal_list make_goals(const bench_goal_line *lines) {
  bench_goal_list list = {0};
  char error[400] = "";
  if (!bench_goals_make(lines, &list, error, sizeof error)) fail_msg("%s", error);
  return list;
}

// clang-format off
#define END {.section = NULL}
#define ROW(what, names, given, difference, other, words, least, best, row)                                              \
  {.metric = &bench_metrics[what], .kernels = (names), .axes = (given), .against = (difference), .against_kernel = (other), \
   .cpu = (words), .floor = (least), .goal = (best), .text = (row)}
// clang-format on

/* ---- Verdicts ------------------------------------------------------------------------------------------------------- */

TEST(test_verdicts) {
  static const struct {
    int metric;
    double floor, goal, lo, median, hi;
    bench_mark mark;
    bool open;
  } cases[] = {
      {BENCH_PEAK, 80, 90, 70, 75, 79, BENCH_SHORT, false},
      {BENCH_PEAK, 80, 90, 70, 79, 81, BENCH_SHORT, true},
      {BENCH_PEAK, 80, 90, 79, 81, 85, BENCH_FLOOR, true},
      {BENCH_PEAK, 80, 90, 81, 82, 95, BENCH_FLOOR, false},
      {BENCH_PEAK, 80, 90, 85, 90, 91, BENCH_GOAL, false},
      {BENCH_PEAK, 80, 90, 60, 92, 99, BENCH_GOAL, true},
      {BENCH_PEAK, 80, 90, 80, 80, 80, BENCH_FLOOR, false},  /* a floor that is met exactly is reached */
      {BENCH_PEAK, 80, NAN, 95, 96, 97, BENCH_FLOOR, false}, /* there is no goal */
      {BENCH_PEAK, NAN, NAN, 10, 20, 30, BENCH_NO_FLOOR, false},
      {BENCH_POINTS, -3, -1, -4, -3.5, -3.1, BENCH_SHORT, false},
      {BENCH_POINTS, -3, -1, -4, -2, -1, BENCH_FLOOR, true},
      {BENCH_POINTS, -3, -1, 1, 2, 3, BENCH_GOAL, false},
      {BENCH_NS, 300, 100, 310, 320, 400, BENCH_SHORT, false}, /* from here on less is better */
      {BENCH_NS, 300, 100, 290, 320, 400, BENCH_SHORT, true},
      {BENCH_NS, 300, 100, 200, 250, 310, BENCH_FLOOR, true},
      {BENCH_NS, 300, 100, 200, 250, 300, BENCH_FLOOR, false},
      {BENCH_NS, 300, 100, 80, 100, 120, BENCH_GOAL, false},
      {BENCH_WORKSPACE, 8704, NAN, 8704, 8704, 8704, BENCH_FLOOR, false},
      {BENCH_WORKSPACE, 8704, NAN, 8704.0625, 8704.0625, 8704.0625, BENCH_SHORT, false},
  };
  for (size_t i = 0; i < COUNT(cases); i++) {
    const bench_goal_line goal = {.metric = &bench_metrics[cases[i].metric], .floor = cases[i].floor, .goal = cases[i].goal};
    const bench_summary measured = {
        .min = cases[i].lo, .median = cases[i].median, .ci_lo = cases[i].lo, .ci_hi = cases[i].hi, .n = 21};
    const bench_goal_verdict verdict = bench_goal_verdict_of(&goal, &measured);
    if (verdict.mark != cases[i].mark || verdict.open != cases[i].open)
      fail_msg("case %zu (%s, median %g): %s, open %d", i, goal.metric->name, cases[i].median, bench_mark_name(verdict.mark),
               verdict.open);
  }
}

TEST(test_values) {
  static const bench_goal_sample sample = {.time_ns = 400, .peak_share = 0.6},
                                 against = {.time_ns = 1000, .peak_share = 0.8};
  static const struct {
    int metric;
    double value;
  } cases[] = {
      {BENCH_PEAK, 60},  {BENCH_POINTS, -20},  {BENCH_RATIO, 0.75}, {BENCH_COST, 4.0 / 3},
      {BENCH_TIME, 0.4}, {BENCH_SPEEDUP, 2.5}, {BENCH_NS, 400},
  };
  for (size_t i = 0; i < COUNT(cases); i++) {
    const bench_metric *metric = &bench_metrics[cases[i].metric];
    if (fabs(metric->value(&sample, &against) - cases[i].value) > 1e-12)
      fail_msg("%s is %g, should be %g", metric->name, metric->value(&sample, &against), cases[i].value);
  }
  assert_null(bench_metrics[BENCH_WORKSPACE].value);
}

/* A metric's flags are what its values depend on. */
TEST(metrics_have_the_flags_of_their_values) {
  static const bench_goal_sample sample = {.time_ns = 400, .peak_share = 0.6}, slow = {.time_ns = 800, .peak_share = 0.3},
                                 far = {.time_ns = 400, .peak_share = 0.3};
  for (int i = 0; i <= BENCH_WORKSPACE; i++) {
    const bench_metric *m = &bench_metrics[i];
    assert_true(!(m->peak && m->reads) && m->lower + m->against + m->peak + m->reads > 0);
    if (!m->value) continue;
    const double value = m->value(&sample, &sample);
    assert_int_equal(m->against, m->value(&sample, &slow) != value);
    assert_int_equal(m->lower, m->value(&slow, &sample) > value);
    assert_int_equal(m->peak || m->reads, m->value(&far, &sample) != value);
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
    if (bench_goal_applies(cases[i].cpu, cases[i].vendor, cases[i].tiers) != cases[i].applies)
      fail_msg("case %zu: %s on %s with %s", i, cases[i].cpu, cases[i].vendor, cases[i].tiers);
  }
}

/* ---- limits.def ------------------------------------------------------------------------------------------------------ */

/* Whether the source has a kernel of this name. */
static bool is_kernel(const char *name) {
  const char *other, *reason;
  for (int i = 0; (other = attn_kernel_not_built(i, &reason)); i++)
    if (!strcmp(name, other)) return true;
  return attn_kernel_find(name) != NULL;
}

/* Checks a line of the table for faults that no compiler sees. A metric of shares takes both from one peak loop: that of one
 * kernel's tier, on one number of threads. */
static void check_line(const bench_goal *goal) {
  const bench_goal_line *line = goal->line;
  const bench_metric *metric = line->metric;
  const char *threads = bench_spec_get(&goal->spec, AXIS_THREADS);
  assert_true(goal->section[0] && line->text[0] && is_kernel(goal->kernel));
  assert_true(metric->against || (!*line->against && !*line->against_kernel));
  assert_true(!*line->against_kernel || (is_kernel(line->against_kernel) && !metric->peak));
  assert_true(!metric->peak || !metric->against || !strcmp(threads, bench_spec_get(&goal->against, AXIS_THREADS)));
  assert_false(metric->lower ? line->goal > line->floor : line->goal < line->floor);
  assert_true(strlen(line->axes) < 200 && !strchr(line->axes, ',') && !strchr(line->axes, ':'));
  assert_true(bench_goal_applies(line->cpu, "AuthenticAMD", "c avx2 avx512 avx512vnni avx512bf16 amx") ||
              bench_goal_applies(line->cpu, "GenuineIntel", "c avx2 avx512 avx512vnni avx512bf16 amx"));
}

/* Both vendors have a whole table: the same number of float32 rows. */
TEST(test_embedded_limits) {
  int amd = 0, intel = 0;
  bench_goal_list list = make_goals(bench_limits);
  for (int i = 0; i < list.count; i++) {
    const bench_goal *row = &list.item[i];
    check_line(row);
    if (strcmp(bench_spec_get(&row->spec, AXIS_DTYPE), "f32") != 0) continue;
    amd += bench_goal_applies(row->line->cpu, "AuthenticAMD", "c avx2 avx512");
    intel += bench_goal_applies(row->line->cpu, "GenuineIntel", "c avx2 avx512");
  }
  assert_true(amd > 0);
  assert_int_equal(amd, intel);
  bench_goals_clear(&list);
}

/* A goal per kernel; `against` changes some axes of the case. */
TEST(test_a_line_is_a_goal_per_kernel) {
  static const bench_goal_line lines[] = {{.section = "one"},
                                          ROW(BENCH_RATIO, "flash_avx512,flash_avx2", "heads=1 seq=2048 causal=bottom-right",
                                              "causal=none", "", "any", NAN, NAN, ""),
                                          {.section = "two"},
                                          ROW(BENCH_NS, "naive_c", "seq_q=0", "", "", "any", NAN, NAN, ""),
                                          END};
  bench_goal_list list = make_goals(lines);
  assert_int_equal(list.count, 3);
  assert_string_equal(list.item[0].kernel, "flash_avx512");
  assert_string_equal(list.item[1].kernel, "flash_avx2");
  assert_string_equal(list.item[1].section, "one");
  assert_string_equal(list.item[2].section, "two");
  assert_string_equal(bench_spec_get(&list.item[1].spec, AXIS_CAUSAL), "bottom-right");
  assert_string_equal(bench_spec_get(&list.item[1].against, AXIS_CAUSAL), "none");
  assert_string_equal(bench_spec_get(&list.item[1].against, AXIS_SEQ), "2048");
  assert_string_equal(bench_spec_get(&list.item[2].spec, AXIS_HEADS), "8");
  bench_goals_clear(&list);
}

/* ---- Tables ---------------------------------------------------------------------------------------------------------- */

/* Rows of three goals: measured, measured without an interval or a floor, and failed. */
typedef struct three_rows {
  bench_goal_row row[3];
  bench_goal_table table;
} three_rows;

static const bench_goal_line three_lines[] = {
    {.section = "one"},
    ROW(BENCH_PEAK, "flash_c", "seq=64", "", "", "any", 80, 90, "first"),
    {.section = "two"},
    ROW(BENCH_NS, "naive_c", "seq=8", "", "", "any", NAN, NAN, "second, \"quoted\""),
    ROW(BENCH_RATIO, "naive_c", "seq=9", "seq=10", "", "AMD", 0.5, NAN, "third"),
    END};

static void fill_rows(three_rows *t) {
  *t = (three_rows){.table = {.absent = {[BENCH_OTHER_CPU] = 1, [BENCH_NOT_BUILT] = 2}}};
  t->table.goals = make_goals(three_lines);
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
  const double medians[] = {goal->line->floor, goal->line->goal, 82.25, 0.125}, median = medians[draw(state, 4)];
  const double half = draw(state, 3) ? draw(state, 99) / 8.0 : NAN;
  bench_goal_row row = {.goal = goal, .rounds = 1 + draw(state, 15), .done = draw(state, 8) > 0};
  row.status = draw(state, 2) ? BENCH_PASS : (bench_status)draw(state, BENCH_ERROR + 1);
  row.undisturbed = draw(state, row.rounds + 2) - 1;
  row.measured = (bench_summary){.n = 1 + draw(state, row.rounds), .median = isnan(median) ? 7 : median};
  row.measured.ci_lo = row.measured.median - half, row.measured.ci_hi = row.measured.median + half;
  row.verdict = bench_goal_verdict_of(goal->line, &row.measured);
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
  const int digits = goal->line->metric->decimals;
  const bool passed = row->status == BENCH_PASS, interval = passed && row->measured.n > 1 && !isnan(row->measured.ci_lo);
  char between[60] = "", undisturbed[60] = "-";
  if (!before || strcmp(before->goal->section, goal->section)) bench_append(text, TEXT, "%s\n", goal->section);
  bench_append(text, TEXT, "  %-42s %-14s ", goal->line->text, goal->kernel);
  add_value(text, "%7s ", digits, goal->line->floor);
  add_value(text, "%7s ", digits, goal->line->goal);
  if (passed) add_value(text, "%9s ", digits, row->measured.median);
  if (interval) snprintf(between, sizeof between, "%.*f .. %.*f", digits, row->measured.ci_lo, digits, row->measured.ci_hi);
  if (passed && row->undisturbed >= 0) snprintf(undisturbed, sizeof undisturbed, "%d/%d", row->undisturbed, row->rounds);
  bench_append(text, TEXT, passed ? "%-6s  %-17s %11s " : "%16s  %-17s %11s ", passed ? goal->line->metric->unit : "",
               between, undisturbed);
  bench_append(text, TEXT, "%s%s\n", passed ? bench_mark_name(row->verdict.mark) : bench_status_name(row->status),
               passed && row->verdict.open ? "?" : "");
  if (!passed) bench_append(text, TEXT, "      %s\n", row->reason);
}

static void expect_csv(const bench_goal_row *row, char *text) {
  const bench_goal *goal = row->goal;
  const bool passed = row->status == BENCH_PASS, has_mark = passed && row->verdict.mark != BENCH_NO_FLOOR;
  const double numbers[] = {goal->line->floor, goal->line->goal, row->measured.median, row->measured.ci_lo,
                            row->measured.ci_hi};
  bench_append(text, TEXT, "run,%s,\"%.3s, \"\"%s\"\"\",%s,%s,%s,%s,%s,%s,%s", goal->section, goal->line->text, "q",
               goal->kernel, goal->line->metric->name, goal->line->metric->unit, row->bench.case_id,
               goal->line->metric->against ? "other" : "", goal->line->against_kernel, goal->line->cpu);
  for (int i = 0; i < 5; i++) bench_append(text, TEXT, isnan(numbers[i]) || (i > 1 && !passed) ? "," : ",%.9g", numbers[i]);
  bench_append(text, TEXT, row->undisturbed < 0 ? ",%d," : ",%d,%d", row->rounds, row->undisturbed);
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
    many += row->undisturbed >= 11;
    few += row->undisturbed >= 0 && row->undisturbed < 11;
  }
  bench_append(text, TEXT, "\n%d of %d rows have a verdict: %d at their goal, %d more at their floor (ok), %d short of it",
               marks[BENCH_GOAL] + marks[BENCH_FLOOR] + marks[BENCH_SHORT], table->count, marks[BENCH_GOAL],
               marks[BENCH_FLOOR], marks[BENCH_SHORT]);
  bench_append(text, TEXT, open ? "; ? = the interval holds the floor (%d)\n" : "\n", open);
  if (few + many)
    bench_append(
        text, TEXT,
        "undisturbed: rounds without another program on the same cores; where a row has 11 or more, these alone count\n");
  if (few) bench_append(text, TEXT, "%d row%s fewer: take more --rounds\n", few, few == 1 ? " has" : "s have");
  if (done < table->count) bench_append(text, TEXT, "%d rows were not reached\n", table->count - done);
  bench_append(text, TEXT, "1 row is for another CPU\n2 rows need kernels that this build lacks\n");
  assert_int_equal(bench_goals_count(table).failed, failed);
}

static const bench_goal_line five_lines[] = {
    {.section = "one"},
    ROW(BENCH_PEAK, "flash_c", "seq=64", "", "", "any", 80, 90, "1st, \"q\""),
    ROW(BENCH_POINTS, "flash_c", "seq=9", "seq=8", "", "AMD", -3, -1, "2nd, \"q\""),
    {.section = "two"},
    ROW(BENCH_NS, "naive_c", "seq=8", "", "", "any", NAN, NAN, "3rd, \"q\""),
    ROW(BENCH_RATIO, "naive_c", "seq=9", "seq=10", "", "any", 0.5, NAN, "4th, \"q\""),
    ROW(BENCH_TIME, "flash_c", "seq=9", "", "naive_c", "any", 9, 8, "5th, \"q\""),
    END};

TEST(test_random_rows_are_printed_counted_and_written) {
  static const char head[] =
      "run_id,section,row,kernel,metric,unit,case_id,against_case_id,against_kernel,cpu,floor,goal,measured,ci_lo,ci_hi,"
      "rounds,undisturbed_rounds,status,verdict,interval_holds_floor,reason\n";
  static bench_goal_row row[RANDOM_ROWS];
  three_rows t = {.table = {.row = row, .absent = {[BENCH_OTHER_CPU] = 1, [BENCH_NOT_BUILT] = 2}}};
  t.table.goals = make_goals(five_lines);
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
  const bench_goal_line lines[] = {
      ROW(BENCH_RATIO, "naive_c", "heads=1 seq=64", "seq=32", "", "any", NAN, NAN, "here"),
      ROW(BENCH_NS, "naive_c", "heads=1 seq=64", "", "", "AMD", NAN, NAN, "one vendor"),
      ROW(BENCH_NS, "naive_c", "heads=1 seq=64", "", "", "Intel", NAN, NAN, "another"),
      ROW(BENCH_NS, attn_kernel_not_built(0, &reason), "heads=1 seq=64", "", "", "any", NAN, NAN, "not built"),
      ROW(BENCH_NS, "flash_c", "heads=1 seq=64", "", "", "any", NAN, NAN, "not selected"),
      ROW(BENCH_NS, "flash_c", "heads=1 seq=64", "", "", "AMD", NAN, NAN, "not selected either"),
      ROW(BENCH_NS, "flash_c", "heads=1 seq=64", "", "", "Intel", NAN, NAN, "nor this one"),
      ROW(BENCH_NS, "naive_c", "heads=3 heads_kv=2", "", "", "any", NAN, NAN, "refused"),
      ROW(BENCH_RATIO, "naive_c", "heads=2 heads_kv=2", "heads_kv=3", "", "any", NAN, NAN, "refused as well"),
      ROW(BENCH_TIME, "naive_c", "heads=1 seq_q=64", "", "decode_c", "any", NAN, NAN, "refused by the other kernel"),
      ROW(BENCH_TIME, "naive_c", "heads=1 seq=64", "", "flash_c", "any", NAN, NAN, "beside another kernel"),
      ROW(BENCH_TIME, "naive_c", "heads=1 seq=64", "", "flash_portable", "any", NAN, NAN, "beside one above the cap"),
      END};
  const bench_selection selection = {.kernel = {attn_kernel_find("naive_c")}, .count = 1};
  bench_goal_table table;
  char error[300] = "";
  setenv("ATTN_MAX_ISA", "c", 1);
  if (!bench_goal_table_open(&table, lines, &selection, 7, error, sizeof error)) fail_msg("%s", error);
  unsetenv("ATTN_MAX_ISA");
  char vendor[64];
  bench_read_field("/proc/cpuinfo", "vendor_id", vendor, sizeof vendor);
  const int others = strcmp(vendor, "AuthenticAMD") && strcmp(vendor, "GenuineIntel") ? 2 : 1;
  assert_int_equal(table.absent[BENCH_OTHER_CPU], others);
  assert_int_equal(table.count, 4 - others);
  assert_true(table.absent[BENCH_HERE] == table.count && table.absent[BENCH_NOT_BUILT] == 1);
  assert_true(table.absent[BENCH_NOT_SELECTED] == 3 && table.absent[BENCH_NO_TIER] == 1 && table.absent[BENCH_REFUSED] == 3);
  const bench_goal_row *row = &table.row[0];
  assert_string_equal(row->goal->line->text, "here");
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
  const bench_goal_line nonsense[] = {ROW(BENCH_NS, "naive_c", "sek=1", "", "", "any", NAN, NAN, ""), END};
  assert_false(bench_goal_table_open(&table, nonsense, &selection, 7, error, sizeof error));
  test_contains(error, "'sek'");
  bench_goal_table_clear(&table);
}
