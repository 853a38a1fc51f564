/* SPDX-License-Identifier: MIT */
/* Where the threads come from (threads.c). src/plan/parallel.c declares the functions that it takes from there. */
#ifndef LIBATTN_THREADS_H
#define LIBATTN_THREADS_H

#include <stdbool.h>

/* The file of the OpenMP runtime whose threads are used, or "pool". */
const char *threads_source(void);

/* Threads of a program that calls this library, for the calls of the calling thread. `schedule` hands a task to one of them
 * at some time; false: it does not. No order is needed, and a task may also come when the call has long ended. */
typedef struct lent_pool {
  int threads;
  bool (*schedule)(const void *pool, void (*task)(void *data), void *data);
  const void *pool;
} lent_pool;

/* NULL: no more. */
void threads_lend(const lent_pool *from);

/* Use the pool even where a runtime is there. */
void threads_refuse_openmp(bool refuse);

#endif
