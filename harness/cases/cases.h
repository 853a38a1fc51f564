/* SPDX-License-Identifier: MIT */
/* From specifications to cases: problems with strides, seeds and names, and lists of them from grids. */
#ifndef BENCH_CASES_H
#define BENCH_CASES_H

#include "cases/case.h"

typedef struct bench_case_list {
  bench_case *item;
  int count;
} bench_case_list;

/* Turns text into a case. `seed` is the run's; the case's own follows from it and the problem's name, so that thread counts
 * and cache modes share their data. */
void bench_case_build(const bench_spec *asked, uint64_t seed, bench_case *bench);

/* Appends the cases of a grid, outermost axis first; a case that is in the list already is left out. False if memory is
 * short or the grid has far too many combinations; error then holds a sentence. */
bool bench_cases_add(bench_case_list *list, const bench_grid *grid, uint64_t seed, char *error, size_t error_bytes);
void bench_cases_clear(bench_case_list *list);

/* Appends a seeded selection of grid->pick combinations that covers as many pairs of values as it can (cover.c). */
bool bench_cases_cover(bench_case_list *list, const bench_grid *grid, uint64_t seed, char *error, size_t error_bytes);

/* Appends one case unless it is there already. */
bool bench_cases_append(bench_case_list *list, const bench_case *bench);

/* The specification that a case_id stands for. False with a sentence in error. */
bool bench_spec_from_id(const char *case_id, bench_spec *spec, char *error, size_t error_bytes);

/* CPUs that this process may use. */
int bench_cpu_count(void);

/* splitmix64: one step of a generator, and a good mixer of 64 bits (Steele, Lea, Flood 2014). */
uint64_t bench_random(uint64_t *state);

#endif
