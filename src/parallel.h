/* One parallel loop: the caller's pool, OpenMP where built in, else a plain loop. */
#ifndef ATTN_PARALLEL_H
#define ATTN_PARALLEL_H

#include "attn/attn.h"

/* Threads to use when the caller names none: OpenMP's default, or 1. */
int attn_parallel_default_threads(void);

/* Calls task(context, i, worker) once for each i in 0..tasks-1; workers take the tasks in order as they become free. */
void attn_parallel_run(const attn_options *options, int64_t tasks, attn_task_fn task, void *context);

#endif
