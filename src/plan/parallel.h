/* SPDX-License-Identifier: MIT */
/* One parallel loop: the caller's pool, OpenMP where built in, else a plain loop. */
#ifndef ATTN_PARALLEL_H
#define ATTN_PARALLEL_H

#include "attn/extend.h" /* attn_parallel_run, _resolve and _default_threads */

/* With ATTN_THREADS the program that libattn is linked into brings its own threads in place of OpenMP's: it defines
 * attn_parallel_default_threads(), attn_parallel_available() and this function (python/native/threads.c). */
#ifdef ATTN_THREADS
void attn_threads_run(int threads, int64_t tasks, attn_task_fn task, void *context);
#endif

#endif
