/* SPDX-License-Identifier: MIT */
/* Builds lists of cases from grids. */
#include "cases/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_COMBINATIONS = 50000 };

bool bench_cases_append(bench_case_list *list, const bench_case *bench) {
  for (int i = 0; i < list->count; i++)
    if (list->item[i].seed == bench->seed && !strcmp(list->item[i].case_id, bench->case_id)) return true;
  if (!(list->count & (list->count - 1))) { /* grows at powers of two */
    void *grown = realloc(list->item, (list->count ? 2 * (size_t)list->count : 1) * sizeof *list->item);
    if (!grown) return false;
    list->item = grown;
  }
  list->item[list->count++] = *bench;
  return true;
}

void bench_cases_clear(bench_case_list *list) {
  free(list->item);
  *list = (bench_case_list){0};
}

/* Advances the odometer, innermost axis first; false when it has come round. */
static bool next_combination(const bench_grid *grid, int *index) {
  for (int i = AXIS_COUNT - 1; i >= 0; i--) {
    if (!grid->axes[i].count) continue;
    if (++index[i] < grid->axes[i].count) return true;
    index[i] = 0;
  }
  return false;
}

static bool has_too_many(const bench_grid *grid, char *error, size_t error_bytes) {
  double combinations = 1;
  for (int i = 0; i < AXIS_COUNT; i++) combinations *= grid->axes[i].count ? grid->axes[i].count : 1;
  if (combinations <= MOST_COMBINATIONS) return false;
  snprintf(error, error_bytes, "the axes have %.0f combinations, more than %d: give fewer values", combinations,
           MOST_COMBINATIONS);
  return true;
}

bool bench_cases_add(bench_case_list *list, const bench_grid *grid, uint64_t seed, char *error, size_t error_bytes) {
  if (grid->pick) return bench_cases_cover(list, grid, seed, error, error_bytes);
  if (has_too_many(grid, error, error_bytes)) return false;
  int index[AXIS_COUNT] = {0};
  do {
    const bench_spec spec = bench_grid_spec(grid, index);
    bench_case bench;
    bench_case_build(&spec, seed, &bench);
    if (!bench_cases_append(list, &bench)) {
      snprintf(error, error_bytes, "out of memory for the list of cases");
      return false;
    }
  } while (next_combination(grid, index));
  return true;
}
