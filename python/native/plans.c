/* SPDX-License-Identifier: MIT */
#include "plans.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "attn/extend.h"

struct planned {
  request wanted;
  uint64_t hash;
  attn_plan *plan;
  size_t workspace_bytes;
  _Atomic(void *) workspace; /* NULL while somebody is in there */
  atomic_int holders;
};

const request *planned_request(const planned *plan) { return &plan->wanted; }
const attn_plan *planned_plan(const planned *plan) { return plan->plan; }

/* ---- Making and running ---------------------------------------------------------------------------------------------- */

static void *new_workspace(size_t bytes) { return bytes ? aligned_alloc(64, bytes) : NULL; }

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
  plan->workspace_bytes = attn_plan_workspace(plan->plan);
  atomic_init(&plan->workspace, NULL);
  atomic_init(&plan->holders, 1);
  return plan;
}

void planned_release(planned *plan) {
  if (!plan || atomic_fetch_sub(&plan->holders, 1) != 1) return;
  free(atomic_load(&plan->workspace));
  attn_plan_destroy(plan->plan);
  free(plan);
}

/* The first call makes the workspace, and so do calls that find it taken. Who leaves keeps it for the next one. */
attn_status planned_run(planned *plan, const attn_args *args) {
  void *workspace = atomic_exchange(&plan->workspace, NULL);
  if (!workspace && plan->workspace_bytes) {
    workspace = new_workspace(plan->workspace_bytes);
    if (!workspace)
      return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: the workspace of %s needs %zu bytes",
                       attn_plan_kernel(plan->plan), plan->workspace_bytes);
  }
  const attn_status status = attn_plan_run(plan->plan, args, workspace, plan->workspace_bytes);
  free(atomic_exchange(&plan->workspace, workspace));
  return status;
}

/* ---- The cache: places by hash, the last one made stays -------------------------------------------------------------- */

enum { PLACES = 128 }; /* shapes that a process repeats; a decoder that grows by one key a step gets a new plan each step */
static const size_t MOST_KEPT = 64 << 20; /* bytes of one plan's workspace: larger ones are freed after the call */

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

planned *planned_get(const request *wanted, attn_status *status) {
  const uint64_t hash = hash_request(wanted);
  planned *plan = look_up(wanted, hash);
  *status = ATTN_OK;
  if (plan) return plan;
  plan = planned_create(wanted, status);
  if (!plan) return NULL;
  plan->hash = hash;
  if (plan->workspace_bytes <= MOST_KEPT) keep(plan);
  return plan;
}

void planned_forget(void) {
  planned *old[PLACES];
  pthread_mutex_lock(&lock);
  memcpy(old, places, sizeof old);
  memset(places, 0, sizeof places);
  made_count = found_count = 0;
  pthread_mutex_unlock(&lock);
  for (int i = 0; i < PLACES; i++) planned_release(old[i]);
}

void planned_count(int64_t *made, int64_t *found) {
  pthread_mutex_lock(&lock);
  *made = made_count;
  *found = found_count;
  pthread_mutex_unlock(&lock);
}
