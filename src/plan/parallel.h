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

/* The nodes of the places that OpenMP binds so many threads to, by node_of(CPU): a set of one node, or of none. 0: it binds
 * none. */
uint64_t attn_parallel_places(int threads, uint64_t (*node_of)(int cpu));

#endif
