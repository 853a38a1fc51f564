/* SPDX-License-Identifier: MIT */
/* The loop that runs a phase. Tasks are handed out one by one in their order, so that "longest first" balances the end. */
#include "src/plan/parallel.h"

#include <assert.h>
#include <stdatomic.h>

#include "attn/kernel.h"
#include "src/api/error.h"
#include "src/api/layouts.h"
#include "src/api/resources.h"
#include "src/plan/deal.h"
#include "src/plan/nodes.h"

enum { MOST_THREADS = 4096 };

static void run_serially(int64_t tasks, attn_task_fn task, void *context) {
  for (int64_t i = 0; i < tasks; i++) task(context, i, 0);
}

#if defined(ATTN_THREADS) /* the program brings all three: default_threads, available and this one */
static void run_threads(int threads, int64_t tasks, attn_task_fn task, void *context) {
  attn_threads_run(threads, tasks, task, context);
}
#elif defined(_OPENMP)
#include <omp.h>
#include <pthread.h>

int attn_parallel_default_threads(void) {
  const int threads = omp_get_max_threads();
  return threads < MOST_THREADS ? threads : MOST_THREADS;
}

/* ---- Which process this is: to ask the system for its number in every loop would be a system call ---- */

static atomic_uint forks; /* one more in a child of fork() than in its parent */
static bool forks_are_counted;

#ifdef _WIN32 /* it has no fork() */
static void start_counting(void) { forks_are_counted = true; }
#else
static void count_fork(void) { atomic_fetch_add(&forks, 1); }

/* The handler goes when the library is unloaded: the C library keeps with it whose it is. */
static void start_counting(void) { forks_are_counted = pthread_atfork(NULL, NULL, count_fork) == 0; }
#endif

/* The threads of the calling thread's last parallel loop, and the process that it ran in, as a number of forks. OpenMP keeps
 * the threads for the next loop of the same thread, unless loops are nested. */
typedef struct team {
  int threads;
  unsigned process;
} team;

static _Thread_local team last;

/* A child of fork() has none of the threads that OpenMP started for its parent, and would wait for them forever: in the
 * thread that forked, loops are serial. A team of one leaves the threads of the last team as they are. */
int attn_parallel_available(int wanted) {
  if (wanted <= 0) last = (team){0};
  if (wanted <= 1) return 1;
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, start_counting);
  const unsigned process = atomic_load_explicit(&forks, memory_order_relaxed);
  if (!forks_are_counted) return 1; /* for want of memory: a child could wait forever */
  if (last.threads > 1 && last.process != process) return 1;
  if (omp_get_thread_limit() < wanted) wanted = omp_get_thread_limit();
  if (omp_get_active_level() >= omp_get_max_active_levels()) return 1; /* like OpenMP */
  const bool nested = omp_get_level() > 0;
  const int there = !nested && last.threads > 1 ? last.threads : 1;
  /* Where a thread cannot be made, OpenMP runtimes end the process. */
  if (wanted > there) wanted = there + attn_startable_threads(wanted - there);
  if (!nested) last = (team){wanted, process};
  return wanted;
}

/* Starts all threads of the plan even if a phase has fewer tasks. libgomp ends the threads that a smaller team does not
 * need, and starting new ones in the next phase costs more than a few idle threads. */
static void run_threads(int threads, int64_t tasks, attn_task_fn task, void *context) {
  _Atomic int64_t next = 0;
  threads = attn_parallel_available(threads);
  if (threads == 1) {
    run_serially(tasks, task, context);
    return;
  }
#pragma omp parallel num_threads(threads)
  for (int64_t i; (i = atomic_fetch_add_explicit(&next, 1, memory_order_relaxed)) < tasks;)
    task(context, i, omp_get_thread_num());
}
#else
int attn_parallel_default_threads(void) { return 1; }

int attn_parallel_available(int wanted) {
  (void)wanted;
  return 1;
}

static void run_threads(int threads, int64_t tasks, attn_task_fn task, void *context) {
  (void)threads;
  run_serially(tasks, task, context);
}
#endif

/* The calling thread is bound to its place, which says nothing of the others. Threads that are bound close go to this place
 * and those behind it. */
uint64_t attn_parallel_places(int threads, uint64_t (*node_of)(int cpu)) {
  uint64_t nodes = 0;
#if defined(_OPENMP) && !defined(ATTN_THREADS)
  const int places = omp_get_num_places(), here = omp_get_place_num();
  const bool close = omp_get_proc_bind() != omp_proc_bind_spread && here >= 0;
  int cpus[ATTN_MOST_CPUS];
  for (int i = 0; i < places && !(close && i >= threads); i++) {
    const int place = close ? (here + i) % places : i, count = omp_get_place_num_procs(place);
    if (count > ATTN_MOST_CPUS) return 0;
    omp_get_place_proc_ids(place, cpus);
    for (int n = 0; n < count; n++) nodes |= node_of(cpus[n]);
  }
#else
  (void)threads, (void)node_of;
#endif
  return nodes;
}

attn_status attn_parallel_resolve(const attn_options *asked, attn_options *options) {
  const attn_status status = attn_options_read(asked, options);
  if (status != ATTN_OK) return status;
  options->kernel = options->max_isa = NULL;
  options->tuning = NULL;
  if (options->threads < 0 || options->threads > MOST_THREADS || (options->parallel_for && options->threads < 1))
    return attn_fail(ATTN_INVALID_ARGUMENT, "attn_options.threads is %d; it must be in %s", options->threads,
                     options->parallel_for ? "1..4096 with parallel_for" : "1..4096, or 0 for the default");
  if (options->threads == 0) options->threads = attn_parallel_default_threads();
  return ATTN_OK;
}

void attn_parallel_run(const attn_options *options, int64_t tasks, attn_task_fn task, void *context) {
  assert(tasks >= 0 && options->threads >= 1);
  if (tasks <= 1 || options->threads <= 1)
    run_serially(tasks, task, context);
  else if (options->parallel_for)
    options->parallel_for(options->pool, tasks, options->threads, task, context);
  else
    run_threads(options->threads, tasks, task, context);
}

/* ---- Near tasks ---- */

typedef struct near_run {
  attn_task_fn task;
  void *context;
  uint64_t nodes;
  attn_deal deal; /* a unit for each task */
} near_run;

static void run_share(void *context, int64_t i, int worker) {
  near_run *r = context;
  const int node = attn_nodes_here(r->nodes, worker);
  attn_dealt next;
  (void)i;
  while (attn_deal_take(&r->deal, worker, node, &next)) r->task(r->context, next.task.unit, worker);
}

void attn_parallel_run_near(const attn_options *options, int64_t tasks, attn_task_fn task, void *context) {
  if (tasks <= 1 || options->threads <= 1 || options->parallel_for) {
    attn_parallel_run(options, tasks, task, context);
    return;
  }
  const attn_schedule loop = {.units = tasks, .wave_units = tasks, .phases = 1, .items = {1}};
  near_run r = {.task = task, .context = context, .nodes = attn_parallel_nodes(options->threads)};
  attn_deal_start(&r.deal, &loop, tasks, options->threads, attn_nodes_count(r.nodes), NULL);
  attn_parallel_run(options, options->threads, run_share, &r);
}
