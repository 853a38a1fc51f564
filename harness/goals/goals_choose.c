/* SPDX-License-Identifier: MIT */
/* Which goals become rows on this CPU, in this build, with these kernels. */
#include <stdio.h>
#include <stdlib.h>

#include "base/files.h"
#include "cases/cases.h"
#include "goals/goal_rows.h"

static bool is_selected(const bench_selection *selection, const attn_kernel_info *kernel) {
  for (int i = 0; i < selection->count; i++)
    if (selection->kernel[i] == kernel) return true;
  return false;
}

/* Makes the row of a goal. Returns BENCH_HERE, or why there is no row. */
static bench_absence make_row(const bench_goal *goal, const bench_selection *selection, const char *vendor, uint64_t seed,
                              bench_goal_row *row) {
  *row = (bench_goal_row){.goal = goal, .kernel = attn_kernel_find(goal->kernel)};
  if (!bench_goal_applies(goal, vendor, attn_cpu_tiers())) return BENCH_OTHER_CPU;
  if (!row->kernel) return BENCH_NOT_BUILT;
  if (!is_selected(selection, row->kernel)) return BENCH_NOT_SELECTED;
  if (attn_kernel_unusable(row->kernel)) return BENCH_NO_TIER;
  bench_case_build(&goal->spec, seed, &row->bench);
  bench_case_build(&goal->against, seed, &row->against);
  if (attn_kernel_rejects(row->kernel, &row->bench.problem)) return BENCH_REFUSED;
  return attn_kernel_rejects(row->kernel, &row->against.problem) ? BENCH_REFUSED : BENCH_HERE;
}

static void choose_rows(bench_goal_table *table, const bench_selection *selection, uint64_t seed) {
  char vendor[64];
  bench_read_field("/proc/cpuinfo", "vendor_id", vendor, sizeof vendor);
  for (int i = 0; i < table->goals.count; i++) {
    const bench_absence absence = make_row(&table->goals.item[i], selection, vendor, seed, &table->row[table->count]);
    table->absent[absence]++;
    if (absence == BENCH_HERE) table->count++;
  }
}

bool bench_goal_table_open(bench_goal_table *table, const char *text, const bench_selection *selection, uint64_t seed,
                           char *error, size_t error_bytes) {
  *table = (bench_goal_table){.count = 0};
  if (!bench_goals_read(text, &table->goals, error, error_bytes)) return false;
  table->row = calloc((size_t)table->goals.count + 1, sizeof *table->row);
  if (table->row)
    choose_rows(table, selection, seed);
  else
    snprintf(error, error_bytes, "out of memory");
  return table->row;
}

void bench_goal_table_clear(bench_goal_table *table) {
  bench_goals_clear(&table->goals);
  free(table->row);
  *table = (bench_goal_table){.count = 0};
}
