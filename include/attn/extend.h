/* SPDX-License-Identifier: MIT */
/** @file
 * What a library that builds on libattn needs beyond attn.h, so that its errors and its threads are libattn's. libattn_nn
 * (attn/nn.h) is such a library. Programs do not need this header. */
#ifndef ATTN_EXTEND_H
#define ATTN_EXTEND_H

#include "attn/attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Lets the compiler check a printf-like call: parameter `text` is the format, `first` the first value. */
#if defined(__GNUC__)
#define ATTN_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define ATTN_PRINTF(text, first)
#endif

/** Remembers the sentence for attn_last_error() of this thread and returns `status`, so that callers write
 * `return attn_fail(ATTN_INVALID_ARGUMENT, "batch is %lld, ...", ...)`. */
ATTN_API attn_status attn_fail(attn_status status, const char *format, ...) ATTN_PRINTF(2, 3);

/** A struct that begins with its size and that callers fill in: what it takes to read one that was compiled with an older or
 * newer header than this library. Structs only ever grow at their end, and 0 in a new field means "as before". */
typedef struct attn_struct_layout attn_struct_layout;

/** A struct of that kind inside another one. */
typedef struct attn_struct_part {
  size_t at;                        /**< Its offset. */
  const attn_struct_layout *layout; /**< NULL ends a list of parts. */
} attn_struct_part;

struct attn_struct_layout {
  const char *name;  /**< "attn_args" */
  const char *maker; /**< The macro that sets its size: "ATTN_STRUCT(attn_args, ...)". */
  size_t bytes;      /**< Its size here. */
  size_t least;      /**< No caller's is smaller. */
  size_t unsized;    /**< The size that struct_size 0 stands for (that of version 0.1); 0: struct_size 0 is refused. */
  const attn_struct_part *parts; /**< In the order of their offsets; NULL = none. */
};

/** Copies a caller's struct. What it is too short to have is 0; what it has beyond this library's must be 0. Returns ATTN_OK
 * or ATTN_INVALID_ARGUMENT. `theirs` is not NULL. */
ATTN_API attn_status attn_struct_read(const attn_struct_layout *layout, const void *theirs, void *ours);

/** Fills in a caller's struct, as far as its struct_size reaches. Writes nothing if that is no size. */
ATTN_API void attn_struct_write(const attn_struct_layout *layout, const void *ours, void *theirs);

/** The name of the kernel that the plan runs for packed sequences (VARLEN) of so many queries: the automatic choice may take
 * one for few queries and another for many. attn_plan_kernel() names that of the longest. Other plans have one kernel. */
ATTN_API const char *attn_plan_kernel_of(const attn_plan *plan, int64_t queries);

/** Threads to use when the caller names none: OpenMP's default, or 1. */
ATTN_API int attn_parallel_default_threads(void);

/** How many threads a parallel loop of the calling thread can have, at most `wanted`, and at least 1: fewer where OpenMP's
 * settings or the system allow no more, 1 without OpenMP. OpenMP runtimes end the process where a thread cannot be made, so
 * a program's own regions ask first, each: `#pragma omp parallel num_threads(attn_parallel_available(n))`. A program that
 * has ended OpenMP's threads, with omp_pause_resource_all(), says so by `wanted` = 0. */
ATTN_API int attn_parallel_available(int wanted);

/** The NUMA nodes on which `threads` threads of a parallel loop of the calling thread may run, by the places of OpenMP or
 * the CPUs that this thread may use: bit n for the system's node n. 1, node 0, where the system says nothing of nodes. */
ATTN_API uint64_t attn_parallel_nodes(int threads);

/** Whether several threads are faster than one for this number of items, each of which takes one thread item_ns nanoseconds.
 */
ATTN_API bool attn_parallel_pays(int64_t items, double item_ns);

/** The same for a loop in portable C that reads or writes that many floats, each as often as it is counted: by the time in
 * which the portable kernels read an element of K or V. */
ATTN_API bool attn_parallel_pays_for_elements(int64_t elements);

/** Checks the options and fills in the number of threads; kernel and max_isa are not copied. asked may be NULL. Returns
 * ATTN_OK or ATTN_INVALID_ARGUMENT. */
ATTN_API attn_status attn_parallel_resolve(const attn_options *asked, attn_options *options);

/** Calls task(context, i, worker) once for each i in 0..tasks-1. Workers take the tasks in order as they become free.
 * options->threads is at least 1. */
ATTN_API void attn_parallel_run(const attn_options *options, int64_t tasks, attn_task_fn task, void *context);

/** The same, but each worker begins with a share of consecutive tasks of its own, and only then takes those of others. Loops
 * over the same rows, one after the other, so find in its caches what they have written. A pool of the caller's
 * (options->parallel_for) gets the tasks as from attn_parallel_run(). */
ATTN_API void attn_parallel_run_near(const attn_options *options, int64_t tasks, attn_task_fn task, void *context);

#ifdef __cplusplus
}
#endif
#endif
