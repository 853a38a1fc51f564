/* SPDX-License-Identifier: MIT */
/* The readers of presets and case ids. The first byte chooses one. Commands' functions then use the cases read. */
#include <stdio.h>
#include <string.h>

#include "cases/case.h"
#include "cases/cases.h"
#include "data/tensors.h"
#include "fuzz.h"

enum { MOST_CASES = 300 }; /* most cases of a grid; larger grids are not expanded, because they would only take time */

static void use_case(const bench_case *bench) {
  if (bench->invalid[0]) return;
  if (attn_problem_validate(&bench->problem) != ATTN_OK) fuzz_fail("%s: %s", bench->case_id, attn_last_error());
  (void)bench_tensors_size(bench);
  (void)bench_work_guess(&bench->problem, attn_kernel_get(0), bench->threads);
}

static double combinations_of(const bench_grid *grid) {
  double product = 1;
  for (int i = 0; i < AXIS_COUNT; i++) product *= grid->axes[i].count ? grid->axes[i].count : 1;
  return product;
}

static void use_grid(const bench_grid *grid) {
  bench_case_list list = {0};
  char error[400];
  if (combinations_of(grid) > MOST_CASES || grid->pick > MOST_CASES) return;
  if (bench_cases_add(&list, grid, 1, error, sizeof error))
    for (int i = 0; i < list.count; i++) use_case(&list.item[i]);
  bench_cases_clear(&list);
}

static void read_preset(const char *text) {
  static bench_grids grids;
  char error[400] = "";
  grids.count = 0;
  const bool fine = bench_preset_read(text, &grids, error, sizeof error);
  if (!fine && !error[0]) fuzz_fail("refused without a word");
  for (int i = 0; fine && i < grids.count; i++) use_grid(&grids.grid[i]);
  bench_grids_clear(&grids);
}

/* Compares all fields, but not the padding of the struct. */
static bool is_same(const attn_problem *a, const attn_problem *b) {
  const size_t sizes = offsetof(attn_problem, dtype_q) - offsetof(attn_problem, batch);
  const size_t strides = offsetof(attn_problem, score) - offsetof(attn_problem, q_stride);
  return !memcmp(&a->batch, &b->batch, sizes) && !memcmp(&a->q_stride, &b->q_stride, strides) && a->dtype_q == b->dtype_q &&
         a->dtype_kv == b->dtype_kv && a->dtype_o == b->dtype_o && a->score == b->score && a->scale == b->scale &&
         a->softcap == b->softcap && a->align == b->align && a->window_left == b->window_left &&
         a->window_right == b->window_right && a->uses == b->uses && a->operation == b->operation &&
         a->dropout == b->dropout;
}

/* A case read from an id has an id of its own. Reading that one must give the same case. */
static void read_id(const char *text) {
  static bench_case bench, again;
  bench_spec spec;
  char error[400] = "";
  if (!bench_spec_from_id(text, &spec, error, sizeof error)) {
    if (!error[0]) fuzz_fail("refused without a word");
    return;
  }
  bench_case_build(&spec, 1, &bench);
  if (bench.invalid[0]) return;
  if (!bench_spec_from_id(bench.case_id, &spec, error, sizeof error)) fuzz_fail("%s: %s", bench.case_id, error);
  bench_case_build(&spec, 1, &again);
  if (strcmp(bench.case_id, again.case_id) != 0 || bench.seed != again.seed)
    fuzz_fail("%s is read as %s", bench.case_id, again.case_id);
  if (!is_same(&bench.problem, &again.problem)) fuzz_fail("%s: read from its id, the problem is another one", bench.case_id);
  use_case(&bench);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static void (*const readers[])(const char *) = {read_preset, read_id};
  fuzz_bytes bytes = {data, data + size};
  const uint8_t which = fuzz_byte(&bytes);
  readers[which % (sizeof readers / sizeof *readers)](fuzz_text(bytes));
  return 0;
}
