/* SPDX-License-Identifier: MIT */
/* attnbench compare: what became faster or slower between result files, or between two builds. */
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "commands/commands.h"
#include "commands/options.h"
#include "commands/session.h"
#include "compare/compare.h"
#include "machine/affinity.h"
#include "machine/environment.h"

typedef struct compare_options {
  bool across, paired;
  double margin;
  const char *by, *baseline, *save, *markdown, *csv, *json;
  cli_list fail_on, sides;
} compare_options;

static compare_options asked;
static bench_options chosen; /* with --paired */

static const cli_option options[] = {
    {CLI_FLAG, 0, "paired", NULL,
     "A and B are builds (a build folder, or a libattn.so) or plug-ins (files): loads both and times them side by side, in "
     "every round",
     &asked.paired},
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
    {CLI_FLAG, 'q', "quiet", NULL, "no progress on stderr", &chosen.quiet},
    CLI_HEADING("With --paired"),
    {CLI_INT, 0, "rounds", "N", "exactly so many rounds of each case and kernel (default 121, or what fits, but 21)",
     CLI_WITHIN(&chosen.rounds, BENCH_LEAST_ROUNDS, 100000)},
    {CLI_DURATION, 0, "case-budget", "TIME", "of the rounds of one case and kernel (default 5s)", &chosen.case_budget_s},
    {CLI_STRING, 0, "cpus", "LIST", BENCH_CPUS_HELP, &chosen.cpus},
    BENCH_CASE_OPTIONS(&chosen),
    BENCH_KERNEL_OPTIONS(&chosen),
    CLI_END,
};

static const cli_command command = {
    .name = "compare",
    .usage = "A B [C]... [options]  |  --paired BUILD_A BUILD_B [-k GLOB]... [-a AXIS=VALUES]...",
    .summary =
        "Compares result folders of `attnbench run -o` (or their results.csv), case by case: FASTER, SLOWER, SAME or "
        "INCONCLUSIVE, with the ratio of their times, its 95 % interval and the reason, worst first. A is the baseline. "
        "Several runs of one version are separated by commas: A1,A2,A3 B1,B2,B3, best run in turns. With --paired, A and B "
        "are builds, which are timed now.",
    .options = options,
    .epilogue =
        "Exit codes: 0, 1 what --fail-on names was found, 2 usage or results that need --across, 3 nothing in\n"
        "common, 5 a file cannot be read or written.\n",
    .positionals = &asked.sides};

/* ---- One comparison ------------------------------------------------------------------------------------------------- */

static bool is_stdout(const char *path) { return path && !strcmp(path, "-"); }

/* How many of the files are stdout, in place of the text. */
static int count_stdout(void) { return is_stdout(asked.markdown) + is_stdout(asked.csv) + is_stdout(asked.json); }

static void print_text(const bench_side *a, const bench_side *b, bench_comparison_report *report) {
  if (a->count) bench_side_describe(a, report->about_a, sizeof report->about_a);
  if (b->count) bench_side_describe(b, report->about_b, sizeof report->about_b);
  report->colour = bench_wants_colour(stdout);
  bench_comparison_print(report, stdout);
  bench_sides_advise(a, b, report->matches);
}

/* Prints and writes what was compared. Returns the exit code. */
static int report_matches(const bench_side *a, const bench_side *b, bench_comparison_report *report) {
  const bench_matches *m = report->matches;
  if (!count_stdout()) print_text(a, b, report);
  if (!bench_comparison_write(report, asked.markdown, asked.csv, asked.json)) return BENCH_EXIT_INTERNAL;
  if (m->table.count) return bench_failures_conclude(m, &asked.fail_on);
  return cli_fail(BENCH_EXIT_NOTHING, "compare", "%s and %s have no timed case and kernel in common", a->name, b->name);
}

static int compare_sides(const bench_side *a, const bench_side *b, const char *const by[2]) {
  bench_matches matches = {.unpaired = NULL};
  bench_comparison_report report = {.name_a = a->name, .name_b = b->name, .matches = &matches, .by = {by[0], by[1]}};
  int code = bench_sides_check(a, b, asked.across);
  if (code) return code;
  const bool fine = bench_match(a, b, asked.margin, asked.across, &matches);
  code = fine ? report_matches(a, b, &report) : cli_fail(BENCH_EXIT_INTERNAL, "compare", "out of memory");
  bench_matches_clear(&matches);
  return code;
}

/* ---- Two builds ----------------------------------------------------------------------------------------------------- */

/* Without -k: of plug-ins the kernels of the first plug-in; of builds all kernels but those of plug-ins, which are not
 * loaded. */
static bool takes(const bench_paired_job *job, const attn_kernel_info *kernel, bool all) {
  return job->sides[0].plugin ? bench_copies_kernel(&job->sides[0], kernel) != NULL : !all || !kernel->library[0];
}

static int choose_kernels(bench_paired_job *job) {
  bench_selection selection;
  const bool all = !chosen.filter.kernels.count;
  const int code = bench_options_kernels(&chosen, &selection);
  if (code) return code;
  if (selection.automatic && !job->sides[0].plugin) job->kernels[job->kernel_count++] = &bench_automatic;
  for (int i = 0; i < selection.count; i++)
    if (takes(job, selection.kernel[i], all)) job->kernels[job->kernel_count++] = selection.kernel[i];
  if (job->kernel_count) return 0;
  return cli_fail(BENCH_EXIT_NOTHING, "compare", "%s has no kernel that passes --kernel, --algo and --isa",
                  asked.sides.item[0]);
}

/* Options know a plug-in's kernels by these names, which are added. */
static int load_sides(bench_paired_job *job) {
  char error[1200], file[4200];
  for (int side = 0; side < 2; side++)
    if (!bench_copies_load(asked.sides.item[side], &job->sides[side], error, sizeof error))
      return cli_usage_error("compare", "--paired: %s", error);
  if (job->sides[0].plugin != job->sides[1].plugin)
    return cli_usage_error("compare", "--paired takes two builds or two plug-ins, not one of each");
  snprintf(file, sizeof file, "%s%s", strchr(asked.sides.item[0], '/') ? "" : "./", asked.sides.item[0]);
  if (job->sides[0].plugin && attn_load_kernels(file) != ATTN_OK)
    return cli_usage_error("compare", "--paired: %s", attn_last_error());
  return 0;
}

static int open_job(bench_paired_job *job) {
  int code = bench_check_overrides("compare");
  if (!code && chosen.cpus) code = bench_pin_cpus("compare", chosen.cpus);
  if (!code) code = load_sides(job);
  if (!code) code = choose_kernels(job);
  if (!code) code = bench_options_cases(&chosen, &job->cases);
  if (!code) code = bench_refuse_impossible(&chosen, &job->cases);
  job->progress.quiet = chosen.quiet;
  job->settings = (bench_case_settings){.timed = true,
                                        .case_budget_s = chosen.case_budget_s,
                                        .precision = chosen.precision,
                                        .rounds = (int)chosen.rounds,
                                        .seed = (uint64_t)chosen.seed,
                                        .stop = bench_interrupts_catch()};
  return code;
}

static int report_job(const bench_paired_job *job, bench_matches *m, const char *const by[2]) {
  const bench_side a = {.name = asked.sides.item[0]}, b = {.name = asked.sides.item[1]};
  bench_comparison_report report = {.name_a = a.name, .name_b = b.name, .matches = m, .by = {by[0], by[1]}};
  snprintf(report.about_a, sizeof report.about_a, " (libattn %s)", job->sides[0].build[0].version());
  snprintf(report.about_b, sizeof report.about_b, " (libattn %s)", job->sides[1].build[0].version());
  const int code = report_matches(&a, &b, &report);
  if (!*job->settings.stop) return code;
  fprintf(stderr, "interrupted after %d of %d cases: the table above holds what was done\n", job->progress.done,
          job->progress.cases);
  return BENCH_EXIT_INTERRUPTED;
}

static int compare_builds(const char *const by[2]) {
  static const char no_memory[] = "out of memory";
  bench_paired_job *job = calloc(1, sizeof *job);
  bench_matches matches = {.unpaired = NULL};
  int code = job ? open_job(job) : cli_fail(BENCH_EXIT_INTERNAL, "compare", no_memory);
  if (!code && bench_refuses_to_time("compare")) code = BENCH_EXIT_UNFIT;
  if (!code && !bench_paired_run(job, asked.margin, &matches)) code = cli_fail(BENCH_EXIT_INTERNAL, "compare", no_memory);
  if (!code) code = report_job(job, &matches, by);
  bench_matches_clear(&matches);
  if (job) bench_paired_clear(job);
  free(job);
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

/* Options that only one of both ways has. */
static int check_way(void) {
  const bool cases = bench_options_have_axes(&chosen) || chosen.presets.count || chosen.case_ids.count || chosen.threads;
  if (asked.paired && (asked.baseline || asked.save || asked.across || asked.sides.count != 2))
    return cli_usage_error("compare", "--paired takes two builds, and neither --baseline, --save nor --across");
  if (!asked.paired && (cases || chosen.filter.kernels.count || chosen.rounds || chosen.cpus))
    return cli_usage_error("compare", "results hold their cases: -a, -p, -k, --rounds and the like need --paired");
  return 0;
}

static int check_options(const char *by[2]) {
  const int sides = asked.sides.count + (asked.baseline != NULL);
  if (!bench_failures_known(&asked.fail_on)) return BENCH_EXIT_USAGE;
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

static int compare_path(const bench_side *a, const char *path, const char *const by[2]) {
  bench_side b;
  int code = read_side(&b, path);
  if (!code) code = compare_sides(a, &b, by);
  bench_side_clear(&b);
  return code;
}

/* The worst exit code of all comparisons with A. */
static int compare_with(const bench_side *a, int first, const char *const by[2]) {
  int code = BENCH_EXIT_OK;
  for (int i = first; i < asked.sides.count; i++) {
    if (i > first) putchar('\n');
    const int own = compare_path(a, asked.sides.item[i], by);
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
  chosen = bench_options_default("compare", "quick", argc, argv);
  chosen.timed = true;
  if (!cli_parse(&command, argc, argv, &code)) return code;
  code = check_options(by);
  if (!code) code = check_way();
  if (code) return code;
  return asked.paired ? compare_builds(by) : compare(by);
}
