/* SPDX-License-Identifier: MIT */
/* The lines that are walked: every type, mask and head_dim that was asked for, with groups of 1, 2, 4 and 8. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases/cases.h"
#include "tuning/tuning.h"

enum { GROUPS = 4 };

static int refuse_axis(const char *assignment) {
  return cli_usage_error("tune", "-a %s: should be dtype, head_dim or causal; tune walks the others itself", assignment);
}

static int set_axis(bench_grid *grid, const char *assignment) {
  static const char *const allowed[] = {"dtype", "head_dim", "causal"};
  char error[400];
  const char *values;
  bool known = false;
  for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++) known |= bench_axis_is(assignment, allowed[i], &values);
  if (!known) return refuse_axis(assignment);
  return bench_grid_set(grid, assignment, error, sizeof error) ? 0 : cli_usage_error("tune", "%s", error);
}

static int set_axes(const cli_list *axes, bench_grid *grid) {
  static const char *const defaults[] = {"dtype=f32,bf16,f16", "head_dim=64,128,32,80,256,40", "causal=none,bottom-right"};
  int code = 0;
  for (size_t i = 0; i < sizeof defaults / sizeof *defaults && !code; i++) code = set_axis(grid, defaults[i]);
  for (int i = 0; i < axes->count && !code; i++) code = set_axis(grid, axes->item[i]);
  return code;
}

static int64_t step_of(int64_t dim) { return (dim | 32) & -(dim | 32); }

/* From the middle (of logarithms) between a dimension and the next smaller one to that between it and the next larger, of
 * those with the same step. The ends are open, but not for steps below 32: their widths are too few to stand for all. */
static void set_dims(const bench_values *dims, bench_tune_line *line) {
  int64_t smaller = 0, larger = INT64_MAX;
  line->step = step_of(line->dim);
  for (int i = 0; i < dims->count; i++) {
    const int64_t d = strtoll(dims->value[i], NULL, 10);
    if (step_of(d) != line->step) continue;
    if (d < line->dim && d > smaller) smaller = d;
    if (d > line->dim && d < larger) larger = d;
  }
  if (!smaller && line->step < 32) smaller = line->dim / 2;
  if (larger == INT64_MAX && line->step < 32) larger = 2 * line->dim;
  line->dims[0] = smaller ? (int64_t)sqrt((double)smaller * (double)line->dim) + 1 : 1;
  line->dims[1] = larger < INT64_MAX ? (int64_t)sqrt((double)larger * (double)line->dim) : INT64_MAX;
}

static int add_line(bench_tune_lines *lines, const bench_spec *spec, const bench_values *dims) {
  static const int64_t groups[GROUPS][3] = {{1, 1, 1}, {2, 2, 2}, {4, 3, 5}, {8, 6, INT64_MAX}};
  attn_dtype kv, o;
  bench_tune_line line = {.causal = !bench_spec_is(spec, AXIS_CAUSAL, "none"), .dim = bench_spec_int(spec, AXIS_HEAD_DIM)};
  if (!bench_dtype_read(bench_spec_get(spec, AXIS_DTYPE), &line.dtype, &kv, &o) || kv != line.dtype)
    return cli_usage_error("tune", "-a dtype=%s: should be f32, f16 or bf16", bench_spec_get(spec, AXIS_DTYPE));
  set_dims(dims, &line);
  for (int g = 0; g < GROUPS && lines->count < TUNE_LINES; g++) {
    line.group = groups[g][0];
    memcpy(line.groups, &groups[g][1], sizeof line.groups);
    lines->item[lines->count++] = line;
  }
  return 0;
}

int bench_tune_list(const cli_list *axes, bench_tune_lines *lines) {
  bench_grid grid = {.title = ""};
  int code = set_axes(axes, &grid), index[AXIS_COUNT] = {0};
  for (int d = 0; d < grid.axes[AXIS_HEAD_DIM].count && !code; d++)
    for (int t = 0; t < grid.axes[AXIS_DTYPE].count && !code; t++)
      for (int c = 0; c < grid.axes[AXIS_CAUSAL].count && !code; c++) {
        index[AXIS_HEAD_DIM] = d, index[AXIS_DTYPE] = t, index[AXIS_CAUSAL] = c;
        const bench_spec spec = bench_grid_spec(&grid, index);
        code = add_line(lines, &spec, &grid.axes[AXIS_HEAD_DIM]);
      }
  bench_grid_clear(&grid);
  return code;
}
