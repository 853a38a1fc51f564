/* SPDX-License-Identifier: MIT */
/* Turns options into cases and kernels. */
#include "commands/options.h"

#include <stdio.h>
#include <stdlib.h>

#include "cases/cases.h"
#include "timing/rates.h"

enum { SENTENCE = 400, WORD = 64 };

bench_options bench_options_default(const char *command, const char *preset, int argc, char **argv) {
  return (bench_options){.command = command,
                         .seed = 1,
                         .case_budget_s = 5,
                         .precision = 0.01,
                         .default_preset = preset,
                         .argc = argc,
                         .argv = argv};
}

/* ---- Cases --------------------------------------------------------------------------------------------------------- */

static int add_preset(const char *command, const char *name, bench_grids *grids) {
  char error[SENTENCE];
  const bench_preset *preset = bench_preset_named(command, name);
  if (!preset) return BENCH_EXIT_USAGE;
  if (bench_preset_read(preset->text, grids, error, sizeof error)) return 0;
  return cli_usage_error(command, "preset %s: %s", name, error);
}

/* Options replace the axes of every grid. */
static int set_axes(const bench_options *options, bench_grids *grids) {
  char error[SENTENCE], threads[WORD];
  const char *values;
  for (int g = 0; g < grids->count; g++) {
    for (int i = 0; i < options->axes.count; i++)
      if (!bench_axis_is(options->axes.item[i], "kernel", &values) &&
          !bench_grid_set(&grids->grid[g], options->axes.item[i], error, sizeof error))
        return cli_usage_error(options->command, "%s", error);
    snprintf(threads, sizeof threads, "threads=%s", options->threads ? options->threads : "");
    if (options->threads && !bench_grid_set(&grids->grid[g], threads, error, sizeof error))
      return cli_usage_error(options->command, "%s", error);
  }
  return 0;
}

bool bench_options_have_axes(const bench_options *options) {
  const char *values;
  for (int i = 0; i < options->axes.count; i++)
    if (!bench_axis_is(options->axes.item[i], "kernel", &values)) return true;
  return false;
}

static int make_grids(const bench_options *options, bench_grids *grids) {
  char name[WORD];
  int code = 0;
  for (int i = 0; i < options->presets.count; i++)
    for (const char *text = options->presets.item[i]; !code && cli_next_word(&text, name, sizeof name);)
      code = add_preset(options->command, name, grids);
  if (code) return code;
  const bool nothing_asked = !grids->count && !bench_options_have_axes(options);
  if (nothing_asked && options->default_preset)
    code = add_preset(options->command, options->default_preset, grids);
  else if (!grids->count)
    grids->grid[grids->count++] = (bench_grid){0};
  return code ? code : set_axes(options, grids);
}

static int add_case_ids(const bench_options *options, bench_case_list *list) {
  char error[SENTENCE];
  bench_spec spec;
  bench_case bench;
  for (int i = 0; i < options->case_ids.count; i++) {
    if (!bench_spec_from_id(options->case_ids.item[i], &spec, error, sizeof error))
      return cli_usage_error(options->command, "--case '%s': %s", options->case_ids.item[i], error);
    bench_case_build(&spec, (uint64_t)options->seed, &bench);
    if (!bench_cases_append(list, &bench)) return BENCH_EXIT_INTERNAL;
  }
  return 0;
}

/* Keeps a seeded selection of `most` cases in their order. */
static void thin_out(bench_case_list *list, int64_t most, uint64_t seed) {
  int kept = 0;
  for (int i = 0; i < list->count; i++) {
    const uint64_t left = (uint64_t)(list->count - i), wanted = (uint64_t)(most - kept);
    if (bench_random(&seed) % left < wanted) list->item[kept++] = list->item[i];
  }
  list->count = kept;
}

int bench_options_cases(const bench_options *options, bench_case_list *list) {
  char error[SENTENCE];
  bench_grids grids = {.count = 0};
  const bool exact = options->case_ids.count > 0;
  int code = exact ? add_case_ids(options, list) : make_grids(options, &grids);
  for (int g = 0; g < grids.count && !code; g++)
    if (!bench_cases_add(list, &grids.grid[g], (uint64_t)options->seed, error, sizeof error))
      code = cli_usage_error(options->command, "%s", error);
  bench_grids_clear(&grids);
  if (!code && !exact && options->cases && options->cases < list->count)
    thin_out(list, options->cases, (uint64_t)options->seed);
  return code;
}

int bench_refuse_threads(const char *command, int threads) {
  const int cpus = bench_cpu_count();
  char why[300];
  if (threads > cpus)
    return cli_usage_error(command, "threads=%d: this process may use %d CPU%s, and threads that share one cannot be timed",
                           threads, cpus, cpus == 1 ? "" : "s");
  const int given = threads > 1 ? bench_team_count(threads).threads : 1;
  if (given >= threads) return 0;
  bench_team_explain(given, threads, why, sizeof why);
  return cli_usage_error(command, "threads=%d: %s", threads, why);
}

int bench_refuse_impossible(const bench_options *options, const bench_case_list *list) {
  const bench_case *first = NULL;
  int impossible = 0, threads = 1;
  for (const bench_case *bench = list->item; bench < list->item + list->count; bench++) {
    if (bench->invalid[0] && !impossible++) first = bench;
    if (bench->threads > threads) threads = bench->threads;
  }
  if (impossible && impossible == list->count)
    return cli_usage_error(options->command, "no case is possible: %s", first->invalid);
  if (impossible)
    return cli_usage_error(options->command, "%d of %d cases are not possible, first %s: %s", impossible, list->count,
                           first->case_id, first->invalid);
  return options->timed ? bench_refuse_threads(options->command, threads) : 0;
}

/* ---- Kernels ------------------------------------------------------------------------------------------------------- */

/* Returns 0 if the value is a tier, or NULL. */
static int check_tier(const char *command, const char *what, const char *value) {
  char tiers[200] = "";
  if (!value || cli_index_of(value, bench_tier_names) >= 0) return 0;
  const char *near = cli_nearest(value, bench_tier_names);
  for (int i = 0; bench_tier_names[i]; i++) bench_append(tiers, sizeof tiers, "%s%s", i ? ", " : "", bench_tier_names[i]);
  return cli_usage_error(command, "%s '%s' should be one of %s%s%s", what, value, tiers, near ? "; did you mean " : "",
                         near ? near : "");
}

int bench_check_overrides(const char *command) {
  const char *cap = getenv("ATTN_MAX_ISA");
  return check_tier(command, "the environment's ATTN_MAX_ISA", cap && *cap ? cap : NULL);
}

int bench_options_kernels(bench_options *options, bench_selection *selection) {
  const char *values;
  for (int i = 0; i < options->axes.count; i++)
    if (bench_axis_is(options->axes.item[i], "kernel", &values) && options->filter.kernels.count < CLI_LIST_MAX)
      options->filter.kernels.item[options->filter.kernels.count++] = values;
  const int code = check_tier(options->command, "--require", options->require);
  return code ? code : bench_select(&options->filter, options->command, selection);
}
