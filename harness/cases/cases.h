/* SPDX-License-Identifier: MIT */
/* Lists of cases from grids. */
#ifndef BENCH_CASES_H
#define BENCH_CASES_H

#include "cases/case.h"
#include "cases/case_id.h"
#include "cases/grid.h"

typedef struct bench_case_list {
  bench_case *item;
  int count;
} bench_case_list;

/* Appends the cases of a grid, outermost axis first; a case that is in the list already is left out. False if memory is
 * short or the grid has far too many combinations; error then holds a sentence. */
bool bench_cases_add(bench_case_list *list, const bench_grid *grid, uint64_t seed, char *error, size_t error_bytes);
void bench_cases_clear(bench_case_list *list);

/* Appends a seeded selection of grid->pick combinations that covers as many pairs of values as it can (cover.c). */
bool bench_cases_cover(bench_case_list *list, const bench_grid *grid, uint64_t seed, char *error, size_t error_bytes);

/* Appends one case unless it is there already. */
bool bench_cases_append(bench_case_list *list, const bench_case *bench);

#endif
