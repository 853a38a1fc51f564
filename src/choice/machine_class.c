/* SPDX-License-Identifier: MIT */
/* A CPU of which a class was made is found by its tiers and by what kernels take: some small problems are timed, and each
 * class says what they should take. The common factor does not count, so that a slow moment or a low clock does not decide,
 * and neither does the model number: virtual machines tell what they like. */
#include "src/choice/machine_class.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/memory/aligned.h"
#include "src/api/error.h"
#include "src/api/float_mode.h"
#include "src/api/text.h"
#include "src/api/wall_clock.h"
#include "src/choice/probe.h"
#include "src/registry/cpu.h"
#include "src/registry/registry.h"

/* kernels/machines/<class>.tuning, embedded by CMake; the last resort first. */
static const struct {
  const char *name, *text;
} files[] = {
#include "machine_classes.h"
};

enum { CLASSES = sizeof files / sizeof *files };
enum { LAST_RESORT }; /* generic.tuning, which has costs of all kernels that have terms */

/* ---- The probe ---- */

enum {
  TURNS = 3,
  CALLS = 2,               /* calls of a turn: the first one finds other data in the caches */
  MOST_ELEMENTS = 1 << 16, /* elements of Q, K, V and O each */
  MOST_BYTES = 1 << 18     /* most workspace of a unit and of a thread */
};

typedef struct probed {
  int64_t heads_q, heads_kv, queries, keys, dim;
} probed;

static const double MOST_NS = 2e4; /* longest time that a call of a kernel is expected to take */

/* One row and several, a few queries, many; K and V in level 1 and beyond. */
static const probed PROBLEMS[] = {
    {1, 1, 48, 128, 64}, {1, 1, 1, 128, 64}, {4, 1, 1, 384, 128}, {1, 1, 6, 256, 32}, {8, 1, 1, 512, 64}};

enum { PROBLEM_COUNT = sizeof PROBLEMS / sizeof *PROBLEMS, MOST_TIMES = PROBLEM_COUNT * ATTN_CLASS_LINES };

/* Memory that probed kernels read and write. It holds zeros, which take as long as other numbers. */
typedef struct probe_memory {
  float q[MOST_ELEMENTS], k[MOST_ELEMENTS], v[MOST_ELEMENTS], o[MOST_ELEMENTS];
  _Alignas(ATTN_MEMORY_ALIGN) char unit[MOST_BYTES], scratch[MOST_BYTES];
} probe_memory;

typedef struct probe {
  int count;
  attn_probe_time time[MOST_TIMES];
} probe;

static struct {
  pthread_mutex_t lock;
  _Atomic bool found;
  attn_tuning costs[CLASSES]; /* one for each class */
  attn_kernel_costs lines[CLASSES][ATTN_CLASS_LINES];
  probe probe;
  attn_class here;
  struct {
    attn_tuning costs;
    attn_kernel_costs lines[ATTN_CLASS_LINES];
  } adjusted[2]; /* the class here, and the nearest one that was asked for last */
} machine = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void run_once(attn_probe_time *t, attn_schedule *schedule, probe_memory *memory) {
  const attn_args args = ATTN_STRUCT(attn_args, .q = memory->q, .k = memory->k, .v = memory->v, .o = memory->o);
  const double start = attn_wall_clock_ns();
  for (int64_t unit = 0; unit < schedule->units; unit++)
    for (int phase = 0; phase < schedule->phases; phase++)
      for (int64_t item = 0; item < schedule->items[phase]; item++)
        t->kernel->run(schedule, &args, (attn_task){phase, unit, item}, memory->unit, memory->scratch);
  t->ns = fmin(t->ns, attn_wall_clock_ns() - start);
}

static bool fits(const attn_schedule *s) { return s->unit_bytes <= MOST_BYTES && s->scratch_bytes <= MOST_BYTES; }

static attn_prefetch prefetch_always(void) { return (attn_prefetch){0}; }

static attn_caches usual_caches(void) { return attn_tuning_caches(&machine.costs[LAST_RESORT]); }

static void time_one(attn_probe_time *t, probe_memory *memory) {
  attn_schedule schedule = {.problem = t->problem, .units = t->problem.heads_kv, .wave_units = 1};
  const attn_machine one_thread = {.threads = 1, .prefetch = prefetch_always, .caches = usual_caches};
  if (!t->kernel->plan(&t->problem, &one_thread, &schedule) || !fits(&schedule)) return;
  for (int call = 0; call < CALLS; call++) run_once(t, &schedule, memory);
}

static attn_problem problem_of(const probed *p, attn_dtype dtype) {
  attn_problem problem;
  attn_problem_init(&problem, 1, p->heads_q, p->heads_kv, p->queries, p->keys, p->dim, p->dim);
  problem.dtype_q = problem.dtype_kv = problem.dtype_o = dtype;
  return problem;
}

/* Whether the kernel can run here without a permission, and is expected to be quick. */
static bool is_probed(const attn_kernel *kernel, const attn_problem *problem) {
  char buffer[300];
  const int tier = attn_tier_find(kernel->info.isa);
  const attn_kernel_costs *c = attn_tuning_costs_of(&machine.costs[LAST_RESORT], kernel, problem);
  return c && !attn_tier_unusable(tier, NULL) && attn_tier_is_free(tier) &&
         !attn_kernel_refusal(kernel, problem, buffer, sizeof buffer) && attn_expected_ns(kernel, c->ns, problem) <= MOST_NS;
}

static void list_times(probe *p) {
  const attn_kernel *kernel;
  static const attn_dtype dtypes[] = {ATTN_F32, ATTN_BF16};
  for (int d = 0; d < 2; d++)
    for (int n = 0; n < PROBLEM_COUNT; n++)
      for (int i = 0; (kernel = attn_registry_get(i)); i++) {
        const attn_problem problem = problem_of(&PROBLEMS[n], dtypes[d]);
        if (is_probed(kernel, &problem)) /* one of ATTN_CLASS_LINES lines of the last resort */
          p->time[p->count++] = (attn_probe_time){.kernel = kernel, .problem = problem, .ns = INFINITY};
      }
}

static attn_status measure_probe(probe *p) {
  probe_memory *memory = attn_aligned_alloc(ATTN_MEMORY_ALIGN, sizeof *memory);
  if (!memory)
    return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: to find the class of this CPU takes %zu bytes", sizeof *memory);
  memset(memory, 0, sizeof *memory);
  list_times(p);
  for (int turn = 0; turn < TURNS; turn++) /* the best counts, so that a slow moment of one turn does not decide */
    for (int i = 0; i < p->count; i++) time_one(&p->time[i], memory);
  attn_aligned_free(memory);
  return ATTN_OK;
}

/* ---- Classes ---- */

static double distance_of(const attn_tuning *costs) {
  return attn_probe_distance(costs, machine.probe.time, machine.probe.count);
}

/* The highest tier here that the last resort knows: one whose kernels run by name alone has no costs anywhere. */
static const char *best_tier(void) {
  const char *best = attn_tier_isa(0);
  for (int i = 1; attn_tier_isa(i); i++)
    if (!attn_tier_unusable(i, NULL) && attn_has_word(attn_tuning_tiers(&machine.costs[LAST_RESORT]), attn_tier_isa(i)))
      best = attn_tier_isa(i);
  return best;
}

/* Costs with a factor for each tier, where these are much nearer. The class could be read before. */
static void adjust_tiers(int index, int slot, attn_class *class) {
  attn_tuning *costs = &machine.adjusted[slot].costs;
  attn_kernel_costs *lines = machine.adjusted[slot].lines;
  (void)attn_tuning_read_class(files[index].name, files[index].text, lines, ATTN_CLASS_LINES, costs);
  if (!attn_probe_adjust(costs, machine.probe.time, machine.probe.count, best_tier())) return;
  *class = (attn_class){.costs = costs, .distance = distance_of(costs), .adjusted = true};
}

/* Whether a class can say everything of this CPU: it knows its highest tier with costs. */
static bool is_eligible(int index, const char *without) {
  const attn_tuning *costs = &machine.costs[index];
  return index != LAST_RESORT && attn_has_word(attn_tuning_tiers(costs), best_tier()) &&
         !(without && strcmp(files[index].name, without) == 0);
}

static int count_eligible(void) {
  int count = 0;
  for (int i = 0; i < CLASSES; i++) count += is_eligible(i, NULL);
  return count;
}

static void find_nearest(const char *without, int slot, attn_class *found) {
  int nearest = LAST_RESORT;
  *found = (attn_class){.costs = &machine.costs[LAST_RESORT], .distance = INFINITY};
  for (int i = 0; i < CLASSES; i++) {
    if (!is_eligible(i, without)) continue;
    const double distance = distance_of(&machine.costs[i]);
    if (distance < found->distance) *found = (attn_class){.costs = &machine.costs[nearest = i], .distance = distance};
  }
  if (isinf(found->distance)) found->distance = distance_of(found->costs);
  adjust_tiers(nearest, slot, found);
}

/* The class that ATTN_MACHINE names; -1 without one. */
static attn_status read_name(int *index) {
  char names[400] = "";
  const char *name = getenv("ATTN_MACHINE");
  *index = -1;
  if (!name || !*name) return ATTN_OK;
  for (int i = 0; i < CLASSES; i++) {
    if (strcmp(files[i].name, name) == 0) return *index = i, ATTN_OK;
    attn_append(names, sizeof names, ", ", files[i].name);
  }
  return attn_fail(ATTN_INVALID_ARGUMENT, "ATTN_MACHINE is '%s'; it must be a class of CPUs: %s", name, names);
}

attn_status attn_class_check_name(void) {
  int index;
  return machine.found ? ATTN_OK : read_name(&index);
}

static attn_status read_classes(void) {
  attn_status status = ATTN_OK;
  for (int i = 0; i < CLASSES && status == ATTN_OK; i++)
    status = attn_tuning_read_class(files[i].name, files[i].text, machine.lines[i], ATTN_CLASS_LINES, &machine.costs[i]);
  return status;
}

static attn_status find_by_probe(void) {
  const uint64_t mode = attn_float_mode_enter();
  const attn_status status = count_eligible() > 1 ? measure_probe(&machine.probe) : ATTN_OK;
  if (status == ATTN_OK) find_nearest(NULL, 0, &machine.here);
  attn_float_mode_leave(mode);
  return status;
}

static attn_status find(void) {
  int named;
  attn_status status = read_name(&named);
  if (status == ATTN_OK) status = read_classes();
  if (status == ATTN_OK && named < 0) status = find_by_probe();
  if (status == ATTN_OK && named >= 0) machine.here = (attn_class){.costs = &machine.costs[named], .named = true};
  machine.found = status == ATTN_OK;
  return status;
}

/* Tried again by the next call where it failed. */
attn_status attn_class_here(const attn_class **found) {
  attn_status status = ATTN_OK;
  *found = &machine.here;
  if (machine.found) return ATTN_OK;
  pthread_mutex_lock(&machine.lock);
  if (!machine.found) status = find();
  pthread_mutex_unlock(&machine.lock);
  return status;
}

attn_prefetch attn_class_prefetch(void) {
  const attn_class *here;
  return attn_class_here(&here) == ATTN_OK ? attn_tuning_prefetch(here->costs) : prefetch_always();
}

attn_caches attn_class_caches(void) {
  const attn_class *here;
  return attn_class_here(&here) == ATTN_OK ? attn_tuning_caches(here->costs) : (attn_caches){0};
}

attn_status attn_class_nearest(const char *without, attn_class *found) {
  const attn_class *here;
  const attn_status status = attn_class_here(&here);
  if (status == ATTN_OK) find_nearest(without, 1, found);
  return status;
}
