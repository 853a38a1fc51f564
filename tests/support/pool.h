/* SPDX-License-Identifier: MIT */
/* A small thread pool such as a caller of the library may have: for attn_options.parallel_for. */
#ifndef TESTS_POOL_H
#define TESTS_POOL_H

#include "attn/attn.h"

/* An attn_parallel_for; `pool` is a test_pool. Starts `workers` threads; each takes the next task until none is left. */
void test_parallel_for(void *pool, int64_t tasks, int workers, attn_task_fn task, void *context);

typedef struct test_pool {
  int64_t calls, tasks; /* sums over all calls of the library */
  bool backwards;       /* hand out the last task first */
} test_pool;

#endif
