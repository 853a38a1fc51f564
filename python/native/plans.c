/* SPDX-License-Identifier: MIT */
#include "plans.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "attn/extend.h"
#include "src/api/problem.h"
#include "src/plan/plan.h"

struct planned {
  request wanted;
  uint64_t hash;
  attn_plan *plan;
  atomic_int holders;
};

const request *planned_request(const planned *plan) { return &plan->wanted; }
const attn_plan *planned_plan(const planned *plan) { return plan->plan; }

/* ---- Making and running ---------------------------------------------------------------------------------------------- */

attn_problem planned_problem(const request *wanted) {
  attn_problem problem = wanted->problem, usual;
  if (!wanted->default_scale) return problem;
  attn_problem_init(&usual, 1, 1, 1, 1, 1, problem.dim_qk, problem.dim_v);
  problem.scale = usual.scale;
  return problem;
}

static attn_status make(planned *plan) {
  const request *wanted = &plan->wanted;
  const attn_problem problem = planned_problem(wanted);
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = wanted->kernel, .max_isa = wanted->max_isa,
                                           .threads = wanted->threads, .steady = wanted->steady);
  return attn_plan_create(&problem, &options, &plan->plan);
}

planned *planned_create(const request *wanted, attn_status *status) {
  planned *plan = calloc(1, sizeof *plan);
  if (!plan) {
    *status = attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: a plan needs %zu bytes", sizeof *plan);
    return NULL;
  }
  memcpy(&plan->wanted, wanted, sizeof *wanted);
  *status = make(plan);
  if (*status != ATTN_OK) {
    free(plan);
    return NULL;
  }
  atomic_init(&plan->holders, 1);
  return plan;
}

void planned_release(planned *plan) {
  if (!plan || atomic_fetch_sub(&plan->holders, 1) != 1) return;
  attn_plan_destroy(plan->plan);
  free(plan);
}

attn_status planned_run(const planned *plan, const attn_problem *problem, const attn_args *args) {
  attn_args own;
  const attn_status status = attn_args_read(problem, args, &own);
  if (status != ATTN_OK) return status;
  const size_t bytes = attn_plan_workspace(plan->plan);
  void *workspace = bytes ? planned_take_memory(bytes) : NULL;
  if (bytes && !workspace)
    return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: the workspace of %s needs %zu bytes", attn_plan_kernel(plan->plan),
                     bytes);
  attn_plan_run_read(plan->plan, &own, workspace);
  planned_give_memory(workspace);
  return ATTN_OK;
}

/* Up to four binary digits: by an eighth at most. */
static int64_t round_up(int64_t number) {
  int64_t step = 1;
  while (number / step > 15) step *= 2;
  return (number + step - 1) / step * step;
}

/* ---- Memory, shared by all plans: every new one would bring new pages otherwise -------------------------------------- */

enum { MEMORY_ALIGN = 64, SPARES = 8 /* threads that call at the same time */ };
static const size_t MOST_SPARE = 64 << 20; /* bytes: larger ones are freed after the call */

/* Stands before the memory of a call, in a line of its own. */
typedef struct spare {
  size_t bytes;
} spare;

static _Atomic(spare *) spares[SPARES];

static spare *first_spare(void) {
  spare *found = NULL;
  for (int i = 0; i < SPARES && !found; i++) found = atomic_exchange(&spares[i], NULL);
  return found;
}

/* More than is needed, so that calls that grow from step to step find enough. */
void *planned_take_memory(size_t bytes) {
  spare *found = first_spare();
  if (found && found->bytes >= bytes) return (char *)found + MEMORY_ALIGN;
  free(found);
  if (bytes > SIZE_MAX / 4) return NULL;
  bytes = (size_t)round_up((int64_t)(bytes / MEMORY_ALIGN + 1)) * MEMORY_ALIGN;
  found = aligned_alloc(MEMORY_ALIGN, MEMORY_ALIGN + bytes);
  if (!found) return NULL;
  found->bytes = bytes;
  return (char *)found + MEMORY_ALIGN;
}

void planned_give_memory(void *memory) {
  spare *given = memory ? (spare *)(void *)((char *)memory - MEMORY_ALIGN) : NULL;
  for (int i = 0; i < SPARES && given && given->bytes <= MOST_SPARE; i++) {
    spare *none = NULL;
    if (atomic_compare_exchange_strong(&spares[i], &none, given)) return;
  }
  free(given);
}

/* ---- The cache: places by hash, the last one made stays -------------------------------------------------------------- */

enum { PLACES = 128 }; /* shapes that a process repeats; a decoder that grows by one key a step gets a new plan each step */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static planned *places[PLACES];
static int64_t made_count, found_count;

/* FNV-1a by words (http://www.isthe.com/chongo/tech/comp/fnv/), folded: a request has a few distinct small numbers. */
static uint64_t hash_request(const request *wanted) {
  uint64_t hash = 0xcbf29ce484222325u;
  const char *bytes = (const char *)wanted;
  for (size_t at = 0; at + 8 <= sizeof *wanted; at += 8) {
    uint64_t word;
    memcpy(&word, bytes + at, 8);
    hash = (hash ^ word) * 0x100000001b3u;
    hash ^= hash >> 29;
  }
  return hash;
}

static planned *look_up(const request *wanted, uint64_t hash) {
  pthread_mutex_lock(&lock);
  planned *plan = places[hash % PLACES];
  if (plan && (plan->hash != hash || memcmp(&plan->wanted, wanted, sizeof *wanted) != 0)) plan = NULL;
  if (plan) {
    atomic_fetch_add(&plan->holders, 1);
    found_count++;
  }
  pthread_mutex_unlock(&lock);
  return plan;
}

static void keep(planned *plan) {
  pthread_mutex_lock(&lock);
  planned *before = places[plan->hash % PLACES];
  places[plan->hash % PLACES] = plan;
  atomic_fetch_add(&plan->holders, 1);
  made_count++;
  pthread_mutex_unlock(&lock);
  planned_release(before);
}

static planned *look_up_or_make(const request *wanted, attn_status *status) {
  const uint64_t hash = hash_request(wanted);
  planned *plan = look_up(wanted, hash);
  *status = ATTN_OK;
  if (plan) return plan;
  plan = planned_create(wanted, status);
  if (!plan) return NULL;
  plan->hash = hash;
  keep(plan);
  return plan;
}

/* Whether a plan for more tokens computes these as well: no array is as long as a sequence is, and outputs of more tokens
 * would not overlap themselves. */
static bool may_be_longer(const attn_problem *p) {
  enum { OTHERS = ATTN_USE_PAGES | ATTN_USE_KV_LEN | ATTN_USE_ALIBI | ATTN_USE_SINKS | ATTN_USE_KV_SCALES };
  return p->operation == ATTN_FORWARD && p->dropout == 0 && (p->uses | OTHERS) == (ATTN_USE_VARLEN | OTHERS) &&
         p->o_stride.s >= p->o_stride.h;
}

static request round_lengths(const request *wanted) {
  request rounded;
  memcpy(&rounded, wanted, sizeof rounded); /* its bytes are compared */
  attn_problem *p = &rounded.problem;
  p->seq_q = round_up(p->seq_q);
  p->total_q = round_up(p->total_q);
  if (p->uses & ATTN_USE_PAGES) return rounded;
  p->seq_k = round_up(p->seq_k);
  p->total_k = round_up(p->total_k);
  return rounded;
}

planned *planned_get(const request *wanted, attn_status *status) {
  if (may_be_longer(&wanted->problem)) {
    const request rounded = round_lengths(wanted);
    planned *plan = look_up_or_make(&rounded, status);
    if (plan) return plan;
  }
  return look_up_or_make(wanted, status);
}

attn_status planned_compute(const request *wanted, const attn_args *args) {
  attn_status status;
  planned *plan = planned_get(wanted, &status);
  if (plan) status = planned_run(plan, &wanted->problem, args);
  planned_release(plan);
  return status;
}

void planned_forget(void) {
  planned *old[PLACES];
  pthread_mutex_lock(&lock);
  memcpy(old, places, sizeof old);
  memset(places, 0, sizeof places);
  made_count = found_count = 0;
  pthread_mutex_unlock(&lock);
  for (int i = 0; i < PLACES; i++) planned_release(old[i]);
  for (int i = 0; i < SPARES; i++) free(atomic_exchange(&spares[i], NULL));
}

void planned_count(int64_t *made, int64_t *found) {
  pthread_mutex_lock(&lock);
  *made = made_count;
  *found = found_count;
  pthread_mutex_unlock(&lock);
}
