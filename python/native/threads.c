/* SPDX-License-Identifier: MIT */
/* Threads for libattn inside a Python process (src/plan/parallel.c asks for them by ATTN_THREADS).
 *
 * A wheel cannot link an OpenMP runtime: the process often has one already, PyTorch's, and two would fight for the CPUs. So
 * this file looks for a runtime that is loaded, and otherwise keeps a small pool of its own:
 *
 *   - libgomp, and the runtimes of LLVM and Intel, which offer the same entry GOMP_parallel(). Its threads are those that
 *     PyTorch has just used, and its number of threads is what torch.set_num_threads() has set.
 *   - XLA's, in a call from one of its programs: it lends them for the time of the call.
 *   - Else, and in a child of fork(), which has none of its parent's threads, the pool: a thread per CPU that this process
 *     may use. They wait on a condition, so that an idle pool costs nothing. */
#define _GNU_SOURCE
#include "threads.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/plan/parallel.h"

enum { MOST_THREADS = 256 };

/* ---- The runtime that is there --------------------------------------------------------------------------------------- */

typedef struct runtime {
  char path[512];
  void (*parallel)(void (*body)(void *), void *data, unsigned threads, unsigned flags);
  int (*thread_num)(void);
  int (*max_threads)(void);
  int (*level)(void);
  int (*thread_limit)(void);
} runtime;

static runtime found;
static _Atomic(runtime *) openmp; /* NULL until one is there */
static atomic_ullong looked_at;   /* libraries that had been loaded at the last look */
static pthread_mutex_t look_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int forked;
static atomic_bool refused; /* libattn.set_thread_source("pool") */

static bool is_runtime(const char *path) {
  static const char *const names[] = {"libgomp", "libomp.", "libomp-", "libiomp5"};
  const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strncmp(name, names[i], strlen(names[i])) == 0) return true;
  return false;
}

static int see_library(struct dl_phdr_info *info, size_t size, void *path) {
  (void)size;
  if (!info->dlpi_name || !is_runtime(info->dlpi_name) || strlen(info->dlpi_name) >= sizeof found.path) return 0;
  strcpy(path, info->dlpi_name);
  return 1;
}

static int see_count(struct dl_phdr_info *info, size_t size, void *count) {
  (void)size;
  *(unsigned long long *)count = info->dlpi_adds;
  return 1;
}

/* A function of the library; object and function pointers have one representation where dlsym() exists. */
static bool bind(void *library, const char *name, void *function) {
  void *symbol = dlsym(library, name);
  memcpy(function, &symbol, sizeof symbol);
  return symbol;
}

static bool bind_all(runtime *r) {
  void *library = dlopen(r->path, RTLD_LAZY | RTLD_NOLOAD); /* kept: the runtime must not go while it is used */
  return library && bind(library, "GOMP_parallel", &r->parallel) && bind(library, "omp_get_thread_num", &r->thread_num) &&
         bind(library, "omp_get_max_threads", &r->max_threads) && bind(library, "omp_get_level", &r->level) &&
         bind(library, "omp_get_thread_limit", &r->thread_limit);
}

static void look(void) {
  unsigned long long loaded = 0;
  dl_iterate_phdr(see_count, &loaded);
  if (loaded == atomic_load(&looked_at)) return;
  pthread_mutex_lock(&look_lock);
  if (!atomic_load(&openmp) && dl_iterate_phdr(see_library, found.path) && bind_all(&found)) atomic_store(&openmp, &found);
  atomic_store(&looked_at, loaded);
  pthread_mutex_unlock(&look_lock);
}

static void count_fork(void);

static void start_counting(void) { pthread_atfork(NULL, NULL, count_fork); }

static void watch_forks(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, start_counting);
}

/* The runtime to use; NULL = the pool. */
static runtime *use_openmp(void) {
  watch_forks();
  if (atomic_load_explicit(&forked, memory_order_relaxed) || atomic_load_explicit(&refused, memory_order_relaxed))
    return NULL;
  runtime *r = atomic_load_explicit(&openmp, memory_order_acquire);
  if (r) return r;
  look();
  return atomic_load(&openmp);
}

/* ---- The pool -------------------------------------------------------------------------------------------------------- */

static struct {
  pthread_mutex_t lock;
  pthread_cond_t work, done;
  pthread_mutex_t user; /* one loop at a time */
  int threads;          /* threads that were started */
  uint64_t round;       /* loops so far */
  int wanted, running;  /* threads of this loop; those that are not done */
  void (*body)(void *context, int worker);
  void *context;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .work = PTHREAD_COND_INITIALIZER,
          .done = PTHREAD_COND_INITIALIZER,
          .user = PTHREAD_MUTEX_INITIALIZER};

/* The child of fork() has none of the threads. */
static void count_fork(void) {
  atomic_fetch_add(&forked, 1);
  pool.threads = 0;
  pool.round = 0;
  pthread_mutex_init(&pool.lock, NULL);
  pthread_mutex_init(&pool.user, NULL);
  pthread_mutex_init(&look_lock, NULL);
  pthread_cond_init(&pool.work, NULL);
  pthread_cond_init(&pool.done, NULL);
}

/* `number` is the worker's, and the round when it was made: it takes part in the next one. */
static void *serve(void *number) {
  const int worker = (int)((uintptr_t)number % MOST_THREADS);
  pthread_mutex_lock(&pool.lock);
  for (uint64_t seen = (uintptr_t)number / MOST_THREADS;;) {
    while (pool.round == seen || worker >= pool.wanted) {
      seen = pool.round;
      pthread_cond_wait(&pool.work, &pool.lock);
    }
    seen = pool.round;
    pthread_mutex_unlock(&pool.lock);
    pool.body(pool.context, worker);
    pthread_mutex_lock(&pool.lock);
    if (--pool.running == 0) pthread_cond_signal(&pool.done);
  }
  return NULL;
}

static bool start_worker(int worker) {
  const uintptr_t number = (uintptr_t)pool.round * MOST_THREADS + (uintptr_t)worker;
  pthread_t thread;
  pthread_attr_t detached;
  sigset_t all, before;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for Python's threads */
  const bool started = pthread_create(&thread, &detached, serve, (void *)number) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&detached);
  return started;
}

/* How many workers, the caller among them, the pool can have. Call with pool.user held. */
static int grow(int wanted) {
  if (wanted > MOST_THREADS) wanted = MOST_THREADS;
  while (pool.threads + 1 < wanted && start_worker(pool.threads + 1)) pool.threads++;
  return pool.threads + 1 < wanted ? pool.threads + 1 : wanted;
}

static void run_pool(int workers, void (*body)(void *context, int worker), void *context) {
  pthread_mutex_lock(&pool.lock);
  pool.body = body;
  pool.context = context;
  pool.wanted = workers;
  pool.running = workers - 1;
  pool.round++;
  pthread_cond_broadcast(&pool.work);
  pthread_mutex_unlock(&pool.lock);
  body(context, 0);
  pthread_mutex_lock(&pool.lock);
  while (pool.running > 0) pthread_cond_wait(&pool.done, &pool.lock);
  pthread_mutex_unlock(&pool.lock);
}

/* ---- Threads that are lent ------------------------------------------------------------------------------------------- */

static _Thread_local const lent_pool *lent;

void threads_lend(const lent_pool *from) { lent = from; }

/* A loop that helpers may join until it is closed. The last one who knows of it frees it. */
typedef struct open_loop {
  pthread_mutex_t lock;
  pthread_cond_t done;
  int holders, workers, running;
  bool closed;
  void (*body)(void *context, int worker);
  void *context;
} open_loop;

static void leave_loop(open_loop *l) {
  const bool last = --l->holders == 0;
  pthread_mutex_unlock(&l->lock);
  if (!last) return;
  pthread_cond_destroy(&l->done);
  pthread_mutex_destroy(&l->lock);
  free(l);
}

static void help(void *data) {
  open_loop *l = data;
  pthread_mutex_lock(&l->lock);
  if (!l->closed) {
    const int worker = ++l->workers;
    l->running++;
    pthread_mutex_unlock(&l->lock);
    l->body(l->context, worker);
    pthread_mutex_lock(&l->lock);
    if (--l->running == 0) pthread_cond_signal(&l->done);
  }
  leave_loop(l);
}

/* Helpers that do not come in time are not waited for: all of them may be at work for others, or wait as this thread does.
 */
static void run_lent(const lent_pool *from, int workers, void (*body)(void *context, int worker), void *context) {
  open_loop *l = malloc(sizeof *l);
  if (!l) {
    body(context, 0);
    return;
  }
  *l = (open_loop){.lock = PTHREAD_MUTEX_INITIALIZER,
                   .done = PTHREAD_COND_INITIALIZER,
                   .holders = workers,
                   .body = body,
                   .context = context};
  int missing = 0;
  for (int i = 1; i < workers; i++) missing += !from->schedule(from->pool, help, l);
  body(context, 0);
  pthread_mutex_lock(&l->lock);
  l->closed = true;
  l->holders -= missing;
  while (l->running > 0) pthread_cond_wait(&l->done, &l->lock);
  leave_loop(l);
}

/* ---- What src/plan/parallel.c asks for ------------------------------------------------------------------------------- */

/* CPUs that this process may use. */
static int cpus(void) {
  cpu_set_t set;
  const int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  return count < 1 ? 1 : count < MOST_THREADS ? count : MOST_THREADS;
}

static int asked_for(void) { /* OMP_NUM_THREADS, which everybody knows */
  const char *text = getenv("OMP_NUM_THREADS");
  const long number = text ? strtol(text, NULL, 10) : 0;
  return number > 0 && number < MOST_THREADS ? (int)number : 0;
}

int attn_parallel_default_threads(void) {
  if (lent) return lent->threads < MOST_THREADS ? lent->threads : MOST_THREADS;
  runtime *r = use_openmp();
  if (r) return r->max_threads() < MOST_THREADS ? r->max_threads() : MOST_THREADS;
  static atomic_int kept;
  int threads = atomic_load_explicit(&kept, memory_order_relaxed);
  if (threads == 0) {
    threads = asked_for() ? asked_for() : cpus();
    atomic_store(&kept, threads);
  }
  return threads;
}

int attn_parallel_available(int wanted) {
  if (lent) return wanted < lent->threads ? wanted : lent->threads;
  runtime *r = use_openmp();
  if (wanted <= 1 || (r && r->level() > 0)) return 1;
  const int most = r ? r->thread_limit() : MOST_THREADS;
  return wanted < most ? wanted : most;
}

typedef struct loop {
  _Atomic int64_t next;
  int64_t tasks;
  attn_task_fn task;
  void *context;
  runtime *openmp;
} loop;

static void take_tasks(void *pointer, int worker) {
  loop *l = pointer;
  for (int64_t i; (i = atomic_fetch_add_explicit(&l->next, 1, memory_order_relaxed)) < l->tasks;)
    l->task(l->context, i, worker);
}

static void take_tasks_openmp(void *pointer) {
  loop *l = pointer;
  take_tasks(l, l->openmp->thread_num());
}

void attn_threads_run(int threads, int64_t tasks, attn_task_fn task, void *context) {
  loop l = {.tasks = tasks, .task = task, .context = context, .openmp = lent ? NULL : use_openmp()};
  threads = attn_parallel_available(threads);
  if (threads > 1 && lent) {
    run_lent(lent, threads, take_tasks, &l);
  } else if (threads > 1 && l.openmp) {
    l.openmp->parallel(take_tasks_openmp, &l, (unsigned)threads, 0);
  } else if (threads > 1 && pthread_mutex_trylock(&pool.user) == 0) {
    run_pool(grow(threads), take_tasks, &l);
    pthread_mutex_unlock(&pool.user);
  } else { /* one thread, or the pool works for another caller */
    take_tasks(&l, 0);
  }
}

/* ---- For Python ------------------------------------------------------------------------------------------------------ */

const char *threads_source(void) {
  runtime *r = use_openmp();
  return r ? r->path : "pool";
}

void threads_refuse_openmp(bool refuse) { atomic_store(&refused, refuse); }
