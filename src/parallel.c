/* SPDX-License-Identifier: MIT */
/* The loop that runs a phase. Tasks are handed out one by one in their order, so that "longest first" balances the end. */
#include "parallel.h"

#include <assert.h>
#include <stdatomic.h>

#include "error.h"

#ifdef _OPENMP
#include <omp.h>

int attn_parallel_default_threads(void) { return omp_get_max_threads(); }

/* Starts all threads of the plan even if a phase has fewer tasks. libgomp ends the threads that a smaller team does not
 * need, and starting new ones in the next phase costs more than a few idle threads. */
static void run_threads(int threads, int64_t tasks, attn_task_fn task, void *context) {
  _Atomic int64_t next = 0;
#pragma omp parallel num_threads(threads)
  for (int64_t i; (i = atomic_fetch_add_explicit(&next, 1, memory_order_relaxed)) < tasks;)
    task(context, i, omp_get_thread_num());
}
#else
int attn_parallel_default_threads(void) { return 1; }

static void run_threads(int threads, int64_t tasks, attn_task_fn task, void *context) {
  (void)threads;
  for (int64_t i = 0; i < tasks; i++) task(context, i, 0);
}
#endif

attn_status attn_parallel_resolve(const attn_options *asked, attn_options *options) {
  *options = asked ? (attn_options){.threads = asked->threads, .parallel_for = asked->parallel_for, .pool = asked->pool}
                   : (attn_options){0};
  if (options->threads < 0 || options->threads > 4096 || (options->parallel_for && options->threads < 1))
    return attn_fail(ATTN_INVALID_ARGUMENT, "attn_options.threads is %d; it must be in %s", options->threads,
                     options->parallel_for ? "1..4096 with parallel_for" : "1..4096, or 0 for the default");
  if (options->threads == 0) options->threads = attn_parallel_default_threads();
  return ATTN_OK;
}

void attn_parallel_run(const attn_options *options, int64_t tasks, attn_task_fn task, void *context) {
  assert(tasks >= 0 && options->threads >= 1);
  if (tasks <= 1 || options->threads <= 1)
    for (int64_t i = 0; i < tasks; i++) task(context, i, 0);
  else if (options->parallel_for)
    options->parallel_for(options->pool, tasks, options->threads, task, context);
  else
    run_threads(options->threads, tasks, task, context);
}
