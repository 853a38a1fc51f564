/* SPDX-License-Identifier: MIT */
/* Plans and the memory that they run in. Needs nothing of Python: no function here may be called with an exception set or
 * calls back. All may be called by any number of threads. */
#ifndef LIBATTN_PLANS_H
#define LIBATTN_PLANS_H

#include <stdbool.h>

#include "attn/attn.h"

/* All that a plan is made of, comparable byte by byte: zeroed before it is filled in. */
typedef struct request {
  attn_problem problem;
  bool default_scale; /* 1/sqrt(dim_qk), whatever problem.scale is */
  int threads;        /* 0 = the library's choice */
  int default_threads;
  const char *kernel;  /* a name of the registry's own, or NULL */
  const char *max_isa; /* a constant, or NULL */
  int steady;
} request;

/* The problem with its scale. */
attn_problem planned_problem(const request *wanted);

/* A plan with a count of its holders. */
typedef struct planned planned;

/* A new plan with one holder; NULL with the status, and attn_last_error() says why. */
planned *planned_create(const request *wanted, attn_status *status);

/* The same from the cache of the process, where it is made if it is not there. Plans of packed sequences are made for sums
 * and lengths that are rounded up, so that the next batch finds one. */
planned *planned_get(const request *wanted, attn_status *status);

/* One holder less; the last one frees it. NULL is fine. */
void planned_release(planned *plan);

const request *planned_request(const planned *plan);
const attn_plan *planned_plan(const planned *plan);

/* Runs a plan. The arguments are checked against the problem of the call: the plan may be for longer sequences. */
attn_status planned_run(const planned *plan, const attn_problem *problem, const attn_args *args);

/* Gets a plan from the cache and runs it. */
attn_status planned_compute(const request *wanted, const attn_args *args);

/* Memory that calls work in, aligned to 64 bytes, and kept for later calls. NULL if there is not so much. */
void *planned_take_memory(size_t bytes);
void planned_give_memory(void *memory); /* NULL is fine */

/* Empties the cache, and frees the memory that is kept. */
void planned_forget(void);

/* Plans made for the cache, and calls that found theirs there. */
void planned_count(int64_t *made, int64_t *found);

#endif
