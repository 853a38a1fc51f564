/* SPDX-License-Identifier: MIT */
#include "tests/support/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

typedef struct loop {
  _Atomic int64_t next;
  int64_t tasks;
  bool backwards;
  attn_task_fn task;
  void *context;
} loop;

typedef struct worker {
  loop *loop;
  int index;
  pthread_t thread;
} worker;

static void *work(void *pointer) {
  const worker *w = pointer;
  loop *l = w->loop;
  for (int64_t i; (i = atomic_fetch_add(&l->next, 1)) < l->tasks;)
    l->task(l->context, l->backwards ? l->tasks - 1 - i : i, w->index);
  return NULL;
}

void test_parallel_for(void *pool, int64_t tasks, int workers, attn_task_fn task, void *context) {
  test_pool *p = pool;
  p->calls++;
  p->tasks += tasks;
  loop l = {.tasks = tasks, .backwards = p->backwards, .task = task, .context = context};
  worker *all = calloc((size_t)workers, sizeof *all);
  if (!all) abort();
  for (int i = 0; i < workers; i++) {
    all[i] = (worker){.loop = &l, .index = i};
    if (pthread_create(&all[i].thread, NULL, work, &all[i])) abort();
  }
  for (int i = 0; i < workers; i++) pthread_join(all[i].thread, NULL);
  free(all);
}
