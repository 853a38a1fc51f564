/* SPDX-License-Identifier: MIT */
/* attnbench compare: what became faster or slower between result files, or between two builds. */
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "commands/commands.h"
#include "commands/options.h"
#include "compare/compare.h"

typedef struct compare_options {
  bool across;
  double margin;
  const char *by, *baseline, *save, *markdown, *csv, *json;
  cli_list fail_on, sides;
} compare_options;

static compare_options asked;

static const cli_option options[] = {
    {CLI_STRING, 0, "baseline", "NAME", "A is the result that --save put away under this name", &asked.baseline},
    {CLI_STRING, 0, "save", "NAME", "puts A away under this name, for --baseline", &asked.save},
    {CLI_FLAG, 0, "across", NULL, "compare also results of other CPUs, tiers, compilers, libraries and thread counts",
     &asked.across},
    {CLI_PERCENT, 0, "margin", "SHARE", "differences below it are none: SAME, never FASTER or SLOWER (default 1%)",
     &asked.margin},
    {CLI_LIST, 0, "fail-on", "WHAT",
     "repeatable: exit with 1 on slower, faster, inconclusive or missing rows; slower=3% only on rows that take at least "
     "3 % longer",
     &asked.fail_on},
    CLI_HEADING("Output"),
    {CLI_STRING, 0, "by", "ROWS[,COLUMNS]", "also a table of means by one or two axes: --by kernel,seq_k", &asked.by},
    {CLI_STRING, 0, "markdown", "FILE", "write the comparison as Markdown; - is stdout, in place of the text",
     &asked.markdown},
    {CLI_STRING, 0, "csv", "FILE", "likewise as CSV", &asked.csv},
    {CLI_STRING, 0, "json", "FILE", "likewise as JSON", &asked.json},
    CLI_END,
};

static const cli_command command = {
    .name = "compare",
    .usage = "A B [C]... [options]",
    .summary =
        "Compares result folders of `attnbench run -o` (or their results.csv), case by case: FASTER, SLOWER, SAME or "
        "INCONCLUSIVE, with the ratio of their times, its 95 % interval and the reason, worst first. A is the baseline. "
        "Several runs of one version are separated by commas: A1,A2,A3 B1,B2,B3, best run in turns.",
    .options = options,
    .epilogue =
        "Exit codes: 0, 1 what --fail-on names was found, 2 usage or results that need --across, 3 nothing in\n"
        "common, 5 a file cannot be read or written.\n",
    .positionals = &asked.sides};

/* ---- One comparison ------------------------------------------------------------------------------------------------- */

static bool is_stdout(const char *path) { return path && !strcmp(path, "-"); }

/* How many of the files are stdout, in place of the text. */
static int count_stdout(void) { return is_stdout(asked.markdown) + is_stdout(asked.csv) + is_stdout(asked.json); }

static bool write_files(bench_comparison_report *report) {
  const struct {
    const char *path;
    bench_write_fn write;
  } files[] = {{asked.markdown, bench_comparison_write_markdown},
               {asked.csv, bench_comparison_write_csv},
               {asked.json, bench_comparison_write_json}};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++)
    if (files[i].path && !bench_file_write(files[i].path, files[i].write, report)) return false;
  return true;
}

static void print_text(const bench_side *a, const bench_side *b, bench_comparison_report *report) {
  bench_side_describe(a, report->about_a, sizeof report->about_a);
  bench_side_describe(b, report->about_b, sizeof report->about_b);
  report->colour = bench_wants_colour(stdout);
  bench_comparison_print(report, stdout);
  bench_sides_advise(a, b, report->matches);
}

static int conclude(const bench_matches *m) {
  int code = BENCH_EXIT_OK;
  for (int i = 0; i < asked.fail_on.count; i++) {
    const int count = bench_failures_count(m, asked.fail_on.item[i]);
    if (count) code = cli_fail(BENCH_EXIT_FAILED, "compare", "--fail-on %s: %d", asked.fail_on.item[i], count);
  }
  return code;
}

static int compare_sides(const bench_side *a, const bench_side *b, const char *const by[2]) {
  bench_matches matches = {.unpaired = NULL};
  bench_comparison_report report = {.name_a = a->name, .name_b = b->name, .matches = &matches, .by = {by[0], by[1]}};
  int code = bench_sides_check(a, b, asked.across);
  if (code) return code;
  if (!bench_match(a, b, asked.margin, asked.across, &matches)) {
    code = cli_fail(BENCH_EXIT_INTERNAL, "compare", "out of memory");
  } else {
    if (!count_stdout()) print_text(a, b, &report);
    code = write_files(&report) ? conclude(&matches) : BENCH_EXIT_INTERNAL;
    if (!matches.table.count)
      code = cli_fail(BENCH_EXIT_NOTHING, "compare", "%s and %s have no timed case and kernel in common", a->name, b->name);
  }
  bench_matches_clear(&matches);
  return code;
}

/* ---- Options -------------------------------------------------------------------------------------------------------- */

/* "kernel,seq_k". Returns 0 or an exit code. */
static int read_by(const char *by[2]) {
  const char *text = asked.by;
  char word[64];
  for (int i = 0; cli_next_word(&text, word, sizeof word); i++) {
    if (i == 2) return cli_usage_error("compare", "--by '%s': at most two axes", asked.by);
    by[i] = bench_pivot_column(word);
    if (!by[i])
      return cli_usage_error("compare", "--by '%s': no axis or column of that name; see attnbench list axes", word);
  }
  return 0;
}

static int check_options(const char *by[2]) {
  const int sides = asked.sides.count + (asked.baseline != NULL);
  double least;
  for (int i = 0; i < asked.fail_on.count; i++)
    if (bench_failure_read(asked.fail_on.item[i], &least) < 0) return BENCH_EXIT_USAGE;
  if (sides < 2 && !(asked.save && sides == 1))
    return cli_usage_error("compare", "give two results or more: attnbench compare A B, or --baseline NAME B");
  if (count_stdout() > 1) return cli_usage_error("compare", "only one of --markdown, --csv and --json can be stdout (-)");
  return read_by(by);
}

/* ---- All of them ---------------------------------------------------------------------------------------------------- */

static int read_side(bench_side *side, const char *paths) {
  char error[5000];
  if (bench_side_read(side, paths, error, sizeof error)) return 0;
  bench_side_clear(side);
  return cli_fail(BENCH_EXIT_INTERNAL, "compare", "%s", error);
}

/* The worst exit code of all comparisons with A. */
static int compare_with(const bench_side *a, int first, const char *const by[2]) {
  int code = BENCH_EXIT_OK;
  for (int i = first; i < asked.sides.count; i++) {
    bench_side b;
    int own = read_side(&b, asked.sides.item[i]);
    if (!own) own = compare_sides(a, &b, by);
    bench_side_clear(&b);
    if (i > first) putchar('\n');
    if (own > code) code = own;
  }
  return code;
}

static int compare(const char *const by[2]) {
  static char baseline[BENCH_BASELINE_PATH];
  bench_side a = {.name = NULL};
  const char *paths = asked.baseline ? baseline : asked.sides.item[0];
  int code = asked.baseline ? bench_baseline_path(asked.baseline, "--baseline", baseline) : 0;
  if (!code) code = read_side(&a, paths);
  if (!code && asked.save) code = bench_baseline_save(&a, asked.save);
  if (!code) code = compare_with(&a, asked.baseline ? 0 : 1, by);
  bench_side_clear(&a);
  return code;
}

int bench_compare_main(int argc, char **argv) {
  const char *by[2] = {NULL, NULL};
  int code;
  asked = (compare_options){.margin = 0.01};
  if (!cli_parse(&command, argc, argv, &code)) return code;
  code = check_options(by);
  return code ? code : compare(by);
}
