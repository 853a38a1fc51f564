/* SPDX-License-Identifier: MIT */
/* A seeded covering selection: few combinations of many axes in which as many pairs of values as possible meet.
 *
 * Most faults need one value or two that meet (a causal mask with a short last tile), rarely more, so covering pairs finds
 * nearly what the whole grid would (Kuhn, Wallace, Gallo 2004). Greedy: of several random combinations, take the one with
 * the most pairs not seen yet. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/cases.h"

enum { CANDIDATES = 24, TRIES = 400 };

typedef struct cover {
  const bench_grid *grid;
  int first[AXIS_COUNT]; /* index of the axis's first value among the values of all axes */
  int values;            /* of all axes */
  bool *seen;            /* [values][values]: pairs that have met */
  uint64_t random;
} cover;

static bool cover_open(cover *c, const bench_grid *grid, uint64_t seed) {
  *c = (cover){.grid = grid, .random = seed};
  for (int i = 0; i < AXIS_COUNT; i++) {
    c->first[i] = c->values;
    c->values += grid->axes[i].count;
  }
  c->seen = calloc((size_t)c->values * (size_t)c->values + 1, sizeof *c->seen);
  return c->seen;
}

static void draw(cover *c, int *index) {
  for (int i = 0; i < AXIS_COUNT; i++)
    if (c->grid->axes[i].count) index[i] = (int)(bench_random(&c->random) % (uint64_t)c->grid->axes[i].count);
}

/* Visits the pairs of a combination: returns how many are new, and marks them if asked to. */
static int new_pairs(cover *c, const int *index, bool mark) {
  int count = 0;
  for (int i = 0; i < AXIS_COUNT; i++)
    for (int j = 0; j < i; j++) {
      if (!c->grid->axes[i].count || !c->grid->axes[j].count) continue;
      bool *pair = &c->seen[(size_t)(c->first[i] + index[i]) * (size_t)c->values + (size_t)(c->first[j] + index[j])];
      count += !*pair;
      if (mark) *pair = true;
    }
  return count;
}

/* Multiply-adds of the unmasked case, what the oracle and the kernels have to do. */
static double work_of(const attn_problem *p) {
  return (double)p->batch * (double)p->heads_q * (double)p->seq_q * (double)p->seq_k * (double)(p->dim_qk + p->dim_v);
}

/* Draws until a combination is a valid problem within the work limit. */
static bool draw_valid(cover *c, uint64_t seed, int *index, bench_case *bench) {
  for (int try = 0; try < TRIES; try++) {
    draw(c, index);
    const bench_spec spec = bench_grid_spec(c->grid, index);
    bench_case_build(&spec, seed, bench);
    if (!bench->invalid[0] && !(c->grid->work > 0 && work_of(&bench->problem) > c->grid->work)) return true;
  }
  return false;
}

/* The best of several candidates by new pairs. */
static bool choose(cover *c, uint64_t seed, bench_case *best) {
  int best_index[AXIS_COUNT] = {0}, best_pairs = -1;
  for (int candidate = 0; candidate < CANDIDATES; candidate++) {
    int index[AXIS_COUNT] = {0};
    bench_case bench;
    if (!draw_valid(c, seed, index, &bench)) return false;
    const int pairs = new_pairs(c, index, false);
    if (pairs > best_pairs) {
      best_pairs = pairs;
      memcpy(best_index, index, sizeof index);
      *best = bench;
    }
  }
  (void)new_pairs(c, best_index, true);
  return true;
}

bool bench_cases_cover(bench_case_list *list, const bench_grid *grid, uint64_t seed, char *error, size_t error_bytes) {
  cover c;
  bench_case bench;
  if (!cover_open(&c, grid, seed)) {
    snprintf(error, error_bytes, "out of memory for the covering selection");
    return false;
  }
  bool fine = true;
  for (int64_t i = 0; i < grid->pick && fine; i++)
    if (!choose(&c, seed, &bench)) {
      snprintf(error, error_bytes, "grid '%s': no combination of its values is a valid problem within its work limit",
               grid->title);
      fine = false;
    } else if (!bench_cases_append(list, &bench)) {
      snprintf(error, error_bytes, "out of memory for the list of cases");
      fine = false;
    }
  free(c.seen);
  return fine;
}
