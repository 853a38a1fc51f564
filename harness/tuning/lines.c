/* SPDX-License-Identifier: MIT */
/* The lines: every operation, type, mask and head_dim that was asked for. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases/cases.h"
#include "tuning/tuning.h"

static int refuse_axis(const char *assignment) {
  return cli_usage_error("tune", "-a %s: should be dtype, head_dim, causal or pass; tune takes all of the others",
                         assignment);
}

static int set_axis(bench_grid *grid, const char *assignment) {
  static const char *const allowed[] = {"dtype", "head_dim", "causal", "pass"};
  char error[400];
  const char *values;
  bool known = false;
  for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++) known |= bench_axis_is(assignment, allowed[i], &values);
  if (!known) return refuse_axis(assignment);
  return bench_grid_set(grid, assignment, error, sizeof error) ? 0 : cli_usage_error("tune", "%s", error);
}

static int set_axes(const cli_list *axes, bench_grid *grid) {
  static const char *const defaults[] = {"dtype=f32,bf16,f16,f32+e4m3,f32+e5m2,f32+i8,f32+q8_0,f32+q4_0",
                                         "head_dim=20,32,40,64,72,80,96,100,128,192,256", "causal=none,bottom-right",
                                         "pass=forward,backward"};
  int code = 0;
  for (size_t i = 0; i < sizeof defaults / sizeof *defaults && !code; i++) code = set_axis(grid, defaults[i]);
  for (int i = 0; i < axes->count && !code; i++) code = set_axis(grid, axes->item[i]);
  return code;
}

static int add_line(bench_tune_lines *lines, const bench_spec *spec) {
  attn_dtype q, o;
  bench_tune_line line = {.causal = !bench_spec_is(spec, AXIS_CAUSAL, "none"),
                          .backward = bench_spec_is(spec, AXIS_PASS, "backward"),
                          .dim = bench_spec_int(spec, AXIS_HEAD_DIM)};
  if (!bench_dtype_read(bench_spec_get(spec, AXIS_DTYPE), &q, &line.dtype, &o) || q != o ||
      q != bench_tune_queries(line.dtype))
    return cli_usage_error("tune", "-a dtype=%s: should be f32, f16, bf16, or f32+ and a type of K and V of 8 or 4 bits",
                           bench_spec_get(spec, AXIS_DTYPE));
  if (line.backward && !attn_dtype_is_float(line.dtype)) return 0; /* no gradients of types of 8 or 4 bits */
  const bench_tune_shape least = {
      .dim = line.dim, .group = 1, .heads_kv = 1, .seq_k = BENCH_REGRET_KEYS, .seq_q = 1, .backward = line.backward};
  if (bench_tune_work(&least) > BENCH_REGRET_WORK)
    return cli_usage_error("tune", "-a head_dim=%s: should be at most %.0f: the random problems that tune times are small",
                           bench_spec_get(spec, AXIS_HEAD_DIM),
                           floor(BENCH_REGRET_WORK * (double)line.dim / bench_tune_work(&least)));
  if (lines->count < TUNE_LINES) lines->item[lines->count++] = line;
  return 0;
}

int bench_tune_list(const cli_list *axes, bench_tune_lines *lines) {
  bench_grid grid = {.title = ""};
  int code = set_axes(axes, &grid), index[AXIS_COUNT] = {0};
  for (int d = 0; d < grid.axes[AXIS_HEAD_DIM].count && !code; d++)
    for (int t = 0; t < grid.axes[AXIS_DTYPE].count && !code; t++)
      for (int c = 0; c < grid.axes[AXIS_CAUSAL].count * grid.axes[AXIS_PASS].count && !code; c++) {
        index[AXIS_HEAD_DIM] = d, index[AXIS_DTYPE] = t;
        index[AXIS_CAUSAL] = c % grid.axes[AXIS_CAUSAL].count, index[AXIS_PASS] = c / grid.axes[AXIS_CAUSAL].count;
        const bench_spec spec = bench_grid_spec(&grid, index);
        code = add_line(lines, &spec);
      }
  bench_grid_clear(&grid);
  return code;
}
