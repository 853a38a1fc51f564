/* SPDX-License-Identifier: MIT */
#include "timing/places.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/generate.h"
#include "kernels/common/memory/aligned.h"
#include "kernels/common/problem/arithmetic.h"
#include "kernels/common/problem/pieces.h"
#include "machine/affinity.h"
#include "machine/environment.h"

enum { PAGE = 4096, LINE = 64, MOST_GAP = 32 /* pages */, MOST_PLAN_GAP = 8192 };

static const double PLACES_BYTES = 268435456.0; /* bytes of all workspaces; more only for the least number of placements */
static const double PLACES_SHARE = 0.4;         /* share of the free memory */

bench_placing bench_placing_of(int rounds, int most) {
  return (bench_placing){.count = (int)min64(rounds, most), .length = (int)max64(rounds / most, 1)};
}

/* ---- How many ------------------------------------------------------------------------------------------------------- */

static int places_in(double bytes, double all_workspaces) { return (int)fmin(bytes / all_workspaces, BENCH_MOST_PLACES); }

static bench_placing choose_placing(bench_trial *const *trials, int count, int rounds) {
  double bytes = 0;
  for (int i = 0; i < count; i++) bytes += (double)trials[i]->workspace_bytes + PAGE;
  const int room = places_in(PLACES_SHARE * bench_memory_available(""), bytes), quick = places_in(PLACES_BYTES, bytes);
  const int64_t most = max64(min64(max64(quick, BENCH_LEAST_PLACES), room), 1);
  const bench_placing placing = bench_placing_of(rounds, (int)most);
  for (int i = 0; i < count && placing.count < min64(BENCH_LEAST_PLACES, rounds); i++)
    bench_warn(trials[i], "placement: memory has room for %d of %d", placing.count, BENCH_LEAST_PLACES);
  return placing;
}

/* ---- One placement -------------------------------------------------------------------------------------------------- */

/* Where numbers are drawn from. */
typedef struct source {
  uint64_t seed, index;
} source;

static size_t draw(source *from, size_t below) {
  return (size_t)bench_value_below(from->seed, BENCH_STREAM_PLACES, from->index++, (int64_t)below);
}

/* A workspace at any line of a page. What lies before and behind it moves its neighbours to other pages as well. */
static bool draw_workspace(bench_trial *t, bench_place *place, source *from) {
  const size_t before = LINE * draw(from, PAGE / LINE), gap = PAGE * draw(from, MOST_GAP);
  const size_t bytes = (before + t->workspace_bytes + gap) / PAGE * PAGE + PAGE;
  place->memory = attn_aligned_alloc(PAGE, bytes);
  place->workspace = place->memory ? (unsigned char *)place->memory + before : NULL;
  return place->memory;
}

/* The plan that was checked, made again by the place's build. By the kernel's name, because a copy may choose another one;
 * but the automatic choice may take several kernels for packed sequences, or for a prefix that they share. */
static bool draw_plan(const bench_trial *t, bench_place *place, const attn_plan *checked, const attn_problem *problem,
                      source *from, attn_plan **plan) {
  const bench_build *own = bench_trial_build(t);
  if (!checked) return true; /* a layer keeps its own */
  char name[BENCH_BUILD_KERNEL];
  bench_build_kernel(place->build, own, own->plan_kernel(checked), name);
  const bool by_name = !t->automatic || !(attn_shares_prefix(problem) || attn_uses(problem, ATTN_USE_VARLEN));
  const attn_options options =
      ATTN_STRUCT(attn_options, .kernel = by_name ? name : NULL, .threads = t->threads, .steady = t->steady);
  void *gap = malloc(LINE + draw(from, MOST_PLAN_GAP));
  const bool made = bench_build_plan(place->build, problem, &options, plan) == ATTN_OK;
  free(gap);
  return made && place->build->plan_workspace(*plan) <= t->workspace_bytes;
}

static bool draw_place(bench_trial *t, int index, const attn_problem *problem, source *from, char *error, size_t bytes) {
  bench_place *place = &t->places[index];
  const attn_problem before = bench_forward_of(problem);
  place->build = t->copies ? &t->copies->build[index % t->copies->count] : bench_trial_build(t);
  if (!draw_plan(t, place, t->plan, problem, from, &place->plan) ||
      !draw_plan(t, place, t->before, &before, from, &place->before))
    return bench_say(error, bytes, "%s: its plan cannot be made again: %s", t->kernel->name, place->build->last_error());
  return draw_workspace(t, place, from) || bench_say(error, bytes, "no memory for the placements");
}

/* ---- All ------------------------------------------------------------------------------------------------------------ */

/* Trials take turns, so that none has the memory that is handed out first. */
bool bench_places_draw(bench_trial *const *trials, int count, const attn_problem *problem, int rounds, uint64_t seed,
                       bench_placing *placing, char *error, size_t error_bytes) {
  source from = {.seed = seed};
  *placing = choose_placing(trials, count, rounds);
  for (int i = 0; i < count; i++) {
    trials[i]->placing = *placing;
    trials[i]->home = (bench_place){trials[i]->build, trials[i]->plan, trials[i]->before, trials[i]->workspace, NULL};
    trials[i]->places = calloc((size_t)placing->count, sizeof *trials[i]->places);
    if (!trials[i]->places) return bench_say(error, error_bytes, "no memory for the placements");
  }
  for (int index = 0; index < placing->count; index++) {
    const int first = (int)draw(&from, (size_t)count);
    for (int i = 0; i < count; i++)
      if (!draw_place(trials[(first + i) % count], index, problem, &from, error, error_bytes)) return false;
  }
  return true;
}

static void move_to(bench_trial *t, const bench_place *place) {
  t->build = place->build;
  t->plan = place->plan;
  t->before = place->before;
  t->workspace = place->workspace;
}

bool bench_place_take(bench_trial *t) {
  if (!t->places) return false;
  const bench_place *place = &t->places[t->samples.rounds / t->placing.length % t->placing.count];
  const bool moved = t->workspace != place->workspace;
  move_to(t, place);
  return moved;
}

void bench_places_return(bench_trial *const *trials, int count) {
  for (int i = 0; i < count; i++) {
    bench_trial *t = trials[i];
    if (!t->places) continue;
    for (int n = 0; n < t->placing.count; n++) {
      if (t->places[n].plan) t->places[n].build->plan_destroy(t->places[n].plan);
      if (t->places[n].before) t->places[n].build->plan_destroy(t->places[n].before);
      attn_aligned_free(t->places[n].memory);
    }
    free(t->places);
    t->places = NULL;
    move_to(t, &t->home);
  }
}
