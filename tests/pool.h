/* SPDX-License-Identifier: MIT */
/* A small thread pool as a caller of the library might have one: for attn_options.parallel_for. */
#ifndef TESTS_POOL_H
#define TESTS_POOL_H

#include "attn/attn.h"

/* An attn_parallel_for; `pool` is a test_pool. Starts `workers` threads, each taking the next task until none is left. */
void test_parallel_for(void *pool, int64_t tasks, int workers, attn_task_fn task, void *context);

typedef struct test_pool {
  int64_t calls, tasks; /* what the library asked for, summed */
  bool backwards;       /* hand out the last task first */
} test_pool;

#endif
