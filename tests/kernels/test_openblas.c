/* SPDX-License-Identifier: MIT */
/* The kernels on OpenBLAS hold its number of threads at one while they run, with several plans at once too, and restore it.
 * They name the version and the core type of the library.
 *
 * OpenBLAS chooses its code by the CPU when it is loaded. If that code is above the cap of the tests, libattn refuses these
 * kernels; so test_begin() starts the program again with a core type that the cap allows. A core type that is already set
 * stays: then the tests that would run kernels check the refusal instead. */
#include <cblas.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "tests/support/support.h"

#define PASTE_NAMES(prefix, symbol) prefix##symbol
#define PASTE(prefix, symbol)       PASTE_NAMES(prefix, symbol)
#define BLAS(symbol)                PASTE(ATTN_OPENBLAS_PREFIX, symbol)

enum { THREADS = 3 };

static const char *const kernels[] = {"gemm_openblas", "naive_openblas"};

static attn_problem some_heads(void) {
  attn_problem problem;
  attn_problem_init(&problem, 2, 4, 2, 70, 90, 16, 24);
  attn_problem_set_causal(&problem, ATTN_ALIGN_BOTTOM_RIGHT);
  problem.uses = ATTN_USE_LSE;
  return problem;
}

/* A caller's pool that runs all tasks in one thread and asks OpenBLAS for its number of threads. */
typedef struct watcher {
  _Atomic int tasks, held; /* held: tasks that saw one thread */
  int set_to;              /* the first task sets the number of threads to this; 0 = it does not */
} watcher;

static void watch(void *pool, int64_t tasks, int workers, attn_task_fn task, void *context) {
  watcher *w = pool;
  (void)workers;
  for (int64_t i = 0; i < tasks; i++) {
    w->held += BLAS(openblas_get_num_threads)() == 1;
    task(context, i, 0);
    if (w->set_to && w->tasks == 0) BLAS(openblas_set_num_threads)(w->set_to);
    w->tasks++;
  }
}

/* False if the kernels run. Otherwise checks that the refusal names the core type, the cap or the CPU, and the remedy. */
static bool refused_by_tier(void) {
  const attn_problem problem = some_heads();
  const char *cap = getenv("ATTN_MAX_ISA");
  const char *reason = attn_kernel_rejects(attn_kernel_find(kernels[0]), &problem);
  attn_plan *plan;
  if (!reason) return false;
  const char *core = BLAS(openblas_get_corename)();
  const bool capped = cap && strstr(reason, "cap");
  test_refused(attn_plan_create(&problem, &ATTN_STRUCT(attn_options, .kernel = kernels[0]), &plan), ATTN_UNSUPPORTED,
               kernels[0], capped ? core : "OPENBLAS_CORETYPE", capped ? cap : core,
               capped ? "OPENBLAS_CORETYPE" : "this CPU cannot");
  return true;
}

static void set_three_threads_or_skip(void) {
  if (refused_by_tier()) skip();
  BLAS(openblas_set_num_threads)(THREADS);
  if (BLAS(openblas_get_num_threads)() != THREADS) skip(); /* this OpenBLAS is built without threads */
}

TEST(threads_are_held_and_put_back) {
  set_three_threads_or_skip();
  const attn_problem problem = some_heads();
  test_data data = test_data_create(&problem, 1);
  for (int i = 0; i < 2; i++) {
    watcher w = {.set_to = 0};
    test_ok(test_run(&problem, &data.args,
                     &ATTN_STRUCT(attn_options, .kernel = kernels[i], .threads = 2, .parallel_for = watch, .pool = &w)));
    assert_true(w.tasks > 2);
    assert_int_equal(w.held, w.tasks);
    assert_int_equal(BLAS(openblas_get_num_threads)(), THREADS);
    test_ok(test_run(&problem, &data.args, &ATTN_STRUCT(attn_options, .kernel = kernels[i], .threads = 4)));
    assert_int_equal(BLAS(openblas_get_num_threads)(), THREADS);
  }
  test_data_destroy(&data);
}

TEST(a_number_that_others_set_meanwhile_stays) {
  set_three_threads_or_skip();
  const attn_problem problem = some_heads();
  test_data data = test_data_create(&problem, 1);
  watcher w = {.set_to = 2};
  test_ok(test_run(&problem, &data.args,
                   &ATTN_STRUCT(attn_options, .kernel = kernels[0], .threads = 2, .parallel_for = watch, .pool = &w)));
  assert_int_equal(BLAS(openblas_get_num_threads)(), 2);
  test_data_destroy(&data);
}

/* ---- Several plans at once ---- */

typedef struct runner {
  pthread_t thread;
  attn_plan *plan;
  test_data data;
  attn_status status;
} runner;

static void *run_often(void *pointer) {
  runner *r = pointer;
  const size_t bytes = attn_plan_workspace(r->plan);
  void *workspace = aligned_alloc(64, bytes);
  r->status = workspace ? ATTN_OK : ATTN_OUT_OF_MEMORY;
  for (int i = 0; i < 40 && r->status == ATTN_OK; i++) r->status = attn_plan_run(r->plan, &r->data.args, workspace, bytes);
  free(workspace);
  return NULL;
}

TEST(plans_at_once_hold_together) {
  enum { RUNNERS = 6 };
  set_three_threads_or_skip();
  const attn_problem problem = some_heads();
  test_data alone[2];
  runner runners[RUNNERS];
  watcher seen[RUNNERS] = {{.set_to = 0}};
  for (int k = 0; k < 2; k++) {
    alone[k] = test_data_create(&problem, 5);
    test_ok(test_run(&problem, &alone[k].args, &ATTN_STRUCT(attn_options, .kernel = kernels[k], .threads = 1)));
  }
  for (int i = 0; i < RUNNERS; i++) {
    runners[i] = (runner){.data = test_data_share_inputs(&problem, &alone[i % 2])};
    const attn_options options =
        ATTN_STRUCT(attn_options, .kernel = kernels[i % 2], .threads = 2, .parallel_for = watch, .pool = &seen[i]);
    test_ok(attn_plan_create(&problem, &options, &runners[i].plan));
  }
  for (int i = 0; i < RUNNERS; i++) assert_int_equal(pthread_create(&runners[i].thread, NULL, run_often, &runners[i]), 0);
  for (int i = 0; i < RUNNERS; i++) {
    assert_int_equal(pthread_join(runners[i].thread, NULL), 0);
    test_ok(runners[i].status);
    assert_int_equal(seen[i].held, seen[i].tasks); /* one thread in every task, while other plans began and ended */
    assert_memory_equal(runners[i].data.args.o, alone[i % 2].args.o, alone[i % 2].o_bytes);
    test_data_destroy_outputs(&runners[i].data);
    attn_plan_destroy(runners[i].plan);
  }
  assert_int_equal(BLAS(openblas_get_num_threads)(), THREADS);
  for (int k = 0; k < 2; k++) test_data_destroy(&alone[k]);
}

/* ---- Names and refusals ---- */

TEST(library_names_version_and_core) {
  for (int i = 0; i < 2; i++) {
    const char *library = attn_kernel_find(kernels[i])->library;
    test_contains(library, "OpenBLAS ");
    test_contains(library, BLAS(openblas_get_corename)());
    test_contains(BLAS(openblas_get_config)(), "OpenBLAS");
  }
}

TEST(scores_that_are_no_product_are_refused) {
  attn_problem problem = some_heads();
  attn_plan *plan;
  if (refused_by_tier()) return; /* the cap is named first */
  problem.score = ATTN_SCORE_ADDITIVE;
  problem.uses |= ATTN_USE_SCORE_WEIGHT;
  test_refused(attn_plan_create(&problem, &ATTN_STRUCT(attn_options, .kernel = kernels[0]), &plan), ATTN_UNSUPPORTED,
               "gemm_openblas", "additive", "no matrix product");
  problem.score = ATTN_SCORE_GAUSSIAN;
  test_refused(attn_plan_create(&problem, &ATTN_STRUCT(attn_options, .kernel = kernels[1]), &plan), ATTN_UNSUPPORTED,
               "naive_openblas", "gaussian", "no matrix product");
}

/* A core type above the cap is refused with the reason; a core type below it runs. */
TEST(cap_is_kept_or_refused_in_words) {
  const attn_problem problem = some_heads();
  const char *core = BLAS(openblas_get_corename)();
  const bool baseline = !strcasecmp(core, "Nehalem") || !strcasecmp(core, "Prescott");
  attn_plan *plan;
  const attn_status status =
      attn_plan_create(&problem, &ATTN_STRUCT(attn_options, .kernel = kernels[0], .max_isa = "c"), &plan);
  if (baseline) test_ok(status);
  if (!strcasecmp(core, "Haswell") || !strcasecmp(core, "Zen") || !strcasecmp(core, "SkylakeX"))
    test_refused(status, ATTN_UNSUPPORTED, "gemm_openblas", core, "cap 'c'", "OPENBLAS_CORETYPE");
  attn_plan_destroy(plan);
}

/* The core type to set for a cap; NULL = OpenBLAS may choose. */
static const char *core_under(const char *cap) {
#ifdef __x86_64__
  if (cap && !strcmp(cap, "c")) return "Prescott";
  if (cap && !strcmp(cap, "avx2")) return "Haswell";
#else
  (void)cap;
#endif
  return NULL;
}

int test_begin(char **arguments) {
  const char *core = core_under(getenv("ATTN_MAX_ISA"));
  if (!core || getenv("OPENBLAS_CORETYPE")) return 0;
  setenv("OPENBLAS_CORETYPE", core, 1);
  execv("/proc/self/exe", arguments);
  perror("execv /proc/self/exe");
  return 1;
}
