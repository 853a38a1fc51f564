/* SPDX-License-Identifier: MIT */
/* attnbench list: kernels, presets, axes, cases. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cases/cases.h"
#include "commands/commands.h"
#include "commands/options.h"
#include "goals/goals.h"
#include "report/report.h"
#include "timing/setup.h"

static int list_kernels(const bench_options *options) {
  const int code = bench_plugins_load(&options->filter.load, options->command);
  if (code) return code;
  printf("%-25s %-14s %-11s %s\n", "kernel", "algorithm", "tier", "what it is, or why it cannot run here");
  for (int i = 0; i < attn_kernel_count(); i++) {
    const attn_kernel_info *kernel = attn_kernel_get(i);
    const char *reason = attn_kernel_unusable(kernel);
    printf("%-25s %-14s %-11s ", kernel->name, kernel->algorithm, kernel->isa);
    if (reason)
      printf("UNUSABLE: %s\n", reason);
    else
      bench_print_wrapped(stdout, kernel->summary, 53);
  }
  const char *name, *reason;
  for (int i = 0; (name = attn_kernel_not_built(i, &reason)); i++) {
    printf("%-52s NOT HERE: ", name);
    bench_print_wrapped(stdout, reason, 53);
  }
  printf("\nthis CPU and its system allow: %s\n", attn_cpu_tiers());
  return BENCH_EXIT_OK;
}

static int list_axes(const bench_options *options) {
  (void)options;
  printf("-a AXIS=VALUES: commas separate values; FIRST:LAST:+STEP and FIRST:LAST:*FACTOR are ranges.\n\n");
  printf("%-10s %-10s %s\n", "axis", "default", "values");
  for (int i = 0; i < AXIS_COUNT; i++) {
    const bench_axis_info *axis = bench_axis_get((bench_axis)i);
    printf("%-10s %-10s %s\n", axis->name, axis->fallback[0] ? axis->fallback : "-", axis->help);
    if (axis->kind != AXIS_IS_WORD) continue;
    printf("%-21s ", "");
    for (int w = 0; axis->words[w]; w++) printf("%s%s", w ? ", " : "", axis->words[w]);
    putchar('\n');
  }
  printf("%-10s %-10s %s\n", "kernel", "all", "the same as --kernel");
  return BENCH_EXIT_OK;
}

static int list_presets(const bench_options *options) {
  char summary[200], clock[24];
  for (const bench_preset *preset = bench_presets; preset->name; preset++) {
    bench_case_list cases = {0};
    const bench_options chosen = {
        .command = options->command, .seed = options->seed, .presets = {.item = {preset->name}, .count = 1}};
    const int code = bench_options_cases(&chosen, &cases);
    if (code) return code;
    bench_preset_summary(preset, summary, sizeof summary);
    const bool suite = !strncmp(summary, "Suite", 5); /* for `check`, which times nothing */
    bench_format_clock(bench_cases_guess(cases.item, cases.count, options->case_budget_s, !suite), clock, sizeof clock);
    const int column = printf("%-12s %5d cases %8s  ", preset->name, cases.count, clock);
    bench_print_wrapped(stdout, summary, column);
    bench_cases_clear(&cases);
  }
  printf(
      "\nTimes are guesses, to a factor of two or so, for all kernels of this CPU without plug-ins.\n"
      "attnbench list preset NAME prints its text; attnbench list cases --preset NAME its cases.\n");
  return BENCH_EXIT_OK;
}

static int list_cases(const bench_options *options) {
  bench_case_list cases = {0};
  const int code = bench_options_cases(options, &cases);
  for (int i = 0; i < cases.count && !code; i++)
    printf("%s%s%s\n", cases.item[i].case_id, cases.item[i].invalid[0] ? "  SKIP: " : "", cases.item[i].invalid);
  bench_cases_clear(&cases);
  return code;
}

static void print_goals(void) {
  fputs("\nmetric | kernels | case | against | CPU | floor | goal | row (nan = none)\n", stdout);
  for (const bench_goal_line *line = bench_limits; line->metric || line->section; line++)
    if (line->section)
      printf("[%s]\n", line->section);
    else
      printf("%s | %s | %s | %s%s%s | %s | %g | %g | %s\n", line->metric->name, line->kernels, line->axes, line->against,
             *line->against_kernel ? "kernel=" : "", line->against_kernel, line->cpu, line->floor, line->goal, line->text);
}

static int print_preset(const char *name) {
  const bench_preset *preset = bench_preset_named("list", name);
  if (!preset) return BENCH_EXIT_USAGE;
  fputs(preset->text, stdout);
  if (!strcmp(name, BENCH_GOALS)) print_goals();
  return BENCH_EXIT_OK;
}

static bench_options asked;
static cli_list words;

static const cli_option options[] = {BENCH_CASE_OPTIONS(&asked), CLI_HEADING("Kernels"),
                                     BENCH_LOAD_OPTION(&asked.filter.load), CLI_END};

static const cli_command command = {.name = "list",
                                    .usage = "kernels | presets | preset NAME | axes | cases [options]",
                                    .summary =
                                        "Prints what there is. The options matter to `cases`, which lists the case_ids that "
                                        "the same options would make `run` run; --load to `kernels`.",
                                    .options = options,
                                    .positionals = &words};

static int list(const char *subject) {
  static const struct {
    const char *name;
    int (*list)(const bench_options *);
  } subjects[] = {{"kernels", list_kernels}, {"presets", list_presets}, {"axes", list_axes}, {"cases", list_cases}};
  static const char *const names[] = {"kernels", "presets", "preset", "axes", "cases", NULL};
  for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++)
    if (!strcmp(subject, subjects[i].name)) return subjects[i].list(&asked);
  return cli_unknown("list", "subject", subject, names, "there are kernels, presets, preset NAME, axes, cases");
}

int bench_list_main(int argc, char **argv) {
  int code;
  asked = bench_options_default("list", "quick", argc, argv);
  words.count = 0;
  if (!cli_parse(&command, argc, argv, &code)) return code;
  if (words.count == 2 && !strcmp(words.item[0], "preset")) return print_preset(words.item[1]);
  if (words.count != 1) return cli_usage_error("list", "say what: kernels, presets, preset NAME, axes or cases");
  return list(words.item[0]);
}
