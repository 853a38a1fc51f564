/* SPDX-License-Identifier: MIT */
#include "tests/support/layer_support.h"

#include <stdio.h>
#include <stdlib.h>

bench_case case_of(const char *id) {
  bench_spec spec;
  bench_case bench;
  char error[300];
  if (!bench_spec_from_id(id, &spec, error, sizeof error)) fail_msg("%s", error);
  bench_case_build(&spec, 1, &bench);
  return bench;
}

bench_case valid_case(const char *id) {
  const bench_case bench = case_of(id);
  if (bench.invalid[0]) fail_msg("%s", bench.invalid);
  return bench;
}

bench_case_list conformance_cases(int grid, int64_t pick, double work, uint64_t seed) {
  static bench_grids grids;
  bench_case_list list = {.count = 0};
  char error[300];
  assert_true(bench_preset_read(bench_preset_find("conformance")->text, &grids, error, sizeof error));
  grids.grid[grid].pick = test_few() ? pick / 4 : pick;
  grids.grid[grid].work = work;
  assert_true(bench_cases_add(&list, &grids.grid[grid], seed, error, sizeof error));
  for (int i = 0; i < list.count; i++) assert_string_equal(list.item[i].invalid, "");
  bench_grids_clear(&grids);
  return list;
}

static void take_trial(layer_one *one) {
  static const attn_kernel_info none = {.name = ""};
  const attn_kernel_info *kernel = attn_kernel_find(one->trial->kernel);
  one->kernel = kernel ? kernel : &none;
  one->bytes = bench_layer_workspace(one->trial);
  one->workspace = test_allocate(one->bytes);
}

void open_layer(layer_one *one, const char *kind, const char *shape) {
  char id[200];
  snprintf(id, sizeof id, "layer:%s/%s", kind, shape);
  one->bench = valid_case(id);
  one->layer = bench_layer_open(&one->bench);
  assert_non_null(one->layer);
  test_ok(bench_layer_make(one->layer, NULL, false, &one->trial));
  take_trial(one);
}

static void drop_trial(layer_one *one) {
  bench_layer_unmake(one->trial);
  free(one->workspace);
  one->trial = NULL;
  one->workspace = NULL;
}

void close_layer(layer_one *one) {
  drop_trial(one);
  bench_layer_close(one->layer);
}

bool remake_layer(layer_one *one, const attn_kernel_info *kernel, bool wrong) {
  drop_trial(one);
  const attn_status status = bench_layer_make(one->layer, kernel, wrong, &one->trial);
  if (status == ATTN_UNSUPPORTED) return false;
  test_ok(status);
  take_trial(one);
  return true;
}

bench_verdict check_layer(const layer_one *one) {
  return bench_layer_check(one->trial, &one->kernel->numerics, one->workspace, one->bytes);
}
