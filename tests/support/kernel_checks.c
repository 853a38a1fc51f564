/* SPDX-License-Identifier: MIT */
#include "tests/support/kernel_checks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/cases.h"
#include "src/plan/plan.h"

enum { SEED = 20240229 };

static void give_up(const char *what) {
  fprintf(stderr, "checks: %s\n", what);
  exit(5);
}

bench_case_list checks_cases(const char *text) {
  static bench_grids grids;
  char error[400] = "out of memory";
  bench_case_list all = {0}, list = {0};
  if (!bench_preset_read(text, &grids, error, sizeof error)) give_up(error);
  for (int i = 0; i < grids.count; i++)
    if (!bench_cases_add(&all, &grids.grid[i], SEED, error, sizeof error)) give_up(error);
  for (int i = 0; i < all.count; i++)
    if (!all.item[i].invalid[0] && !bench_cases_append(&list, &all.item[i])) give_up(error);
  bench_cases_clear(&all);
  bench_grids_clear(&grids);
  if (!list.count) give_up("no case");
  return list;
}

bench_case_list checks_suite(const char *name) {
  const bench_preset *preset = bench_preset_find(name);
  if (!preset) give_up("no such suite");
  return checks_cases(preset->text);
}

bench_expected *checks_expected(const bench_case *bench, const bench_tensors *tensors) {
  bench_expected *expected = bench_expected_create(&bench->problem, &tensors->args, bench->seed,
                                                   !bench_spec_is(&bench->spec, AXIS_VALUES, "positive"));
  if (!expected) give_up("no memory for the oracle's answer");
  return expected;
}

static bench_verdict refused(bench_status status) {
  bench_verdict verdict = {.status = status};
  snprintf(verdict.reason, sizeof verdict.reason, "%.390s", attn_last_error());
  return verdict;
}

bench_verdict checks_kernel(const attn_kernel *kernel, int threads, bench_tensors *tensors, const bench_expected *expected) {
  attn_plan *plan;
  const attn_options options = ATTN_STRUCT(attn_options, .threads = threads);
  const attn_status status = attn_plan_create_for_kernel(&tensors->problem, kernel, &options, &plan);
  if (status != ATTN_OK) return refused(status == ATTN_UNSUPPORTED ? BENCH_SKIP : BENCH_ERROR);
  const size_t bytes = attn_plan_workspace(plan);
  void *workspace = aligned_alloc(64, bytes ? bytes : 64);
  if (!workspace) give_up("no memory for the workspace");
  memset(workspace, 0xff, bytes);
  const bench_verdict verdict = bench_check(plan, tensors, expected, &kernel->info.numerics, workspace, bytes);
  free(workspace);
  attn_plan_destroy(plan);
  return verdict;
}

static attn_status create_plan(const void *kernel, const attn_problem *problem, const attn_options *options,
                               attn_plan **plan) {
  return attn_plan_create_for_kernel(problem, kernel, options, plan);
}

bench_verdict checks_structure(const attn_kernel *kernel, bench_structure_test test, const bench_case *bench,
                               bench_tensors *tensors, const bench_expected *expected) {
  unsigned ran;
  const bench_verdict values =
      checks_kernel(kernel, 1, tensors, expected); /* the structural test compares with its output */
  if (values.status == BENCH_SKIP || values.status == BENCH_ERROR) return values;
  const bench_subject subject = {
      .create_plan = create_plan, .context = kernel, .numerics = &kernel->info.numerics, .rows_stand_alone = true};
  bench_verdict verdict = bench_structure_check(&subject, tensors, expected, bench->seed, 1u << test, &ran);
  if (!ran) verdict.status = BENCH_DEGENERATE;
  return verdict;
}
