/* SPDX-License-Identifier: MIT */
/* Where threads run: the library leaves every thread's affinity alone and uses one team of threads; attnbench chooses CPUs
 * by the topology, holds threads on them while it times, and lets the threads touch their memory first. test_cpus.py tests
 * the syntax of --cpus. */
#include <fenv.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "base/float_mode.h"
#include "machine/affinity.h"
#include "machine/topology.h"
#include "src/plan/parallel.h"
#include "tests/support/support.h"

enum { MOST_THREADS = 8 };

/* Affinity mask and id of each thread of a team. */
typedef struct team {
  cpu_set_t mask[MOST_THREADS];
  long id[MOST_THREADS];
  int threads;
} team;

static team ask_team(int threads) {
  team t = {.threads = 1};
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
#endif
  {
    int i = 0;
#ifdef _OPENMP
    i = omp_get_thread_num();
#pragma omp single
    t.threads = omp_get_num_threads();
#endif
    (void)sched_getaffinity(0, sizeof t.mask[i], &t.mask[i]);
    t.id[i] = syscall(SYS_gettid);
  }
  (void)threads;
  return t;
}

static void assert_same_masks(const team *before, const team *after) {
  assert_int_equal(before->threads, after->threads);
  for (int i = 0; i < before->threads; i++) assert_true(CPU_EQUAL(&before->mask[i], &after->mask[i]));
}

/* ---- The library ----------------------------------------------------------------------------------------------------- */

static void run_unpinned(const char *kernel) {
  attn_problem problem;
  attn_problem_init(&problem, 2, 4, 2, 5, 65, 24, 20);
  test_data data = test_data_create(&problem, 1);
  const team before = ask_team(2);
  const attn_status status = test_run(&problem, &data.args, &ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 2));
  const team after = ask_team(2);
  if (status != ATTN_UNSUPPORTED) test_ok(status);
  assert_same_masks(&before, &after);
  test_data_destroy(&data);
}

TEST(test_library_never_pins) { test_each_kernel(run_unpinned); }

static void do_nothing(void *context, int64_t index, int worker) {
  (void)context;
  (void)index;
  (void)worker;
}

/* The same threads run phases with few tasks and phases with many. */
TEST(test_team_stays_together) {
  const attn_options options = ATTN_STRUCT(attn_options, .threads = 4);
  const team before = ask_team(4);
  for (int64_t tasks = 2; tasks < 9; tasks += 3) attn_parallel_run(&options, tasks, do_nothing, NULL);
  const team after = ask_team(4);
  for (int i = 0; i < before.threads; i++) assert_int_equal(before.id[i], after.id[i]);
}

/* ---- Places ---------------------------------------------------------------------------------------------------------- */

/* Two nodes with two cores each and two threads per core. Siblings are four CPUs apart, as Linux usually numbers them. */
static bench_topology make_topology(void) {
  bench_topology t = {.here = true, .cores = 4, .nodes = 2, .packages = 2};
  for (int core = 0; core < 4; core++)
    for (int sibling = 0; sibling < 2; sibling++) {
      const int cpu = core + 4 * sibling;
      t.in_order[t.count++] = cpu;
      t.core[cpu] = core;
      t.node[cpu] = t.package[cpu] = core / 2;
      bench_add_cpu(&t.cpus, cpu);
    }
  return t;
}

static void assert_places(const char *allowed, int first, int threads, const char *expected) {
  const bench_topology t = make_topology();
  int cpu[CPU_SETSIZE];
  char list[64];
  cpu_set_t set;
  assert_true(bench_cpu_list_read(allowed, &set));
  bench_cpu_sequence_write(cpu, bench_place_threads(&t, &set, first, cpu, threads), list, sizeof list);
  assert_string_equal(list, expected);
}

TEST(test_cores_come_before_siblings) {
  assert_places("0-7", -1, 4, "0-3");
  assert_places("0-7", -1, 8, "0-7");
  assert_places("0-7", 2, 3, "2-3,0");   /* the node of the first CPU comes first */
  assert_places("0-7", 6, 4, "6,3,0-1"); /* the first CPU is the second thread of core 2, so its sibling comes late */
  assert_places("0-7", 6, 8, "6,3,0-2,7,4-5");
  assert_places("1,4-6", -1, 4, "4,1,6,5"); /* core by core; 5 is the sibling of 1 */
  assert_places("4-7", -1, 2, "4-5");       /* only the second threads of the cores are allowed */
  assert_places("0-1", -1, 4, "0-1");       /* fewer CPUs than threads */
  assert_places("0-1", 7, 2, "0-1");        /* the first CPU is not allowed */
}

TEST(test_lists_of_cpus) {
  static const char *const wrong[] = {"", "a", "1-", "-1", "3-1", "1,,2", "1,", "0-3x", "99999", "1 2"};
  char text[64];
  cpu_set_t set;
  for (size_t i = 0; i < COUNT(wrong); i++) assert_false(bench_cpu_list_read(wrong[i], &set));
  assert_true(bench_cpu_list_read("8,0-3,2,10-11", &set));
  bench_cpu_list_write(&set, text, sizeof text);
  assert_string_equal(text, "0-3,8,10-11");
  bench_cpu_sequence_write((const int[]){0, 2, 4, 6, 1, 3, 9, 8}, 8, text, sizeof text);
  assert_string_equal(text, "0-6:2,1,3,9,8");
}

/* core:all is one CPU for each core that this process may use. Without hwloc there are no names of cores. */
TEST(test_cores_of_this_machine) {
  const bench_topology *t = bench_topology_here();
  char error[600];
  cpu_set_t allowed, set;
  if (!bench_topology_get()->here) skip(); /* hwloc imitates another machine */
  assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  const bool read = bench_cpus_read("core:all", t, &allowed, &set, error, sizeof error);
  if (!strstr(t->source, "hwloc")) {
    assert_false(read);
    test_contains(error, "libhwloc-dev");
    skip();
  }
  assert_true(read);
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!bench_has_cpu(&set, cpu)) continue;
    assert_true(bench_has_cpu(&allowed, cpu));
    for (int other = cpu + 1; other < CPU_SETSIZE; other++)
      if (bench_has_cpu(&set, other)) assert_int_not_equal(t->core[cpu], t->core[other]);
  }
}

TEST(test_cpus_of_others_are_refused) {
  const bench_topology *t = bench_topology_here();
  char error[600];
  cpu_set_t allowed, set, one;
  assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; !CPU_COUNT(&one); cpu++)
    if (bench_has_cpu(&allowed, cpu)) bench_add_cpu(&one, cpu);
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    char name[16];
    if (!bench_has_cpu(&t->cpus, cpu) || bench_has_cpu(&one, cpu)) continue;
    snprintf(name, sizeof name, "%d", cpu);
    assert_false(bench_cpus_read(name, t, &one, &set, error, sizeof error));
    test_contains(error, "not allowed");
  }
}

/* ---- Holding --------------------------------------------------------------------------------------------------------- */

static bool may_hold(int threads) {
  cpu_set_t allowed;
  return !sched_getaffinity(0, sizeof allowed, &allowed) && CPU_COUNT(&allowed) >= threads &&
         ask_team(threads).threads == threads;
}

static void assert_apart(const team *t) {
  for (int i = 0; i < t->threads; i++) {
    assert_int_equal(CPU_COUNT(&t->mask[i]), 1);
    for (int j = 0; j < i; j++) assert_false(CPU_EQUAL(&t->mask[i], &t->mask[j]));
  }
}

TEST(test_threads_are_held_apart_and_let_go) {
  const team before = ask_team(2);
  if (!may_hold(2) || !bench_threads_hold(2)) skip();
  assert_int_equal(bench_threads_held(), 2);
  assert_false(bench_threads_hold(2)); /* they are held already */
  const team held = ask_team(2);
  assert_apart(&held);
  (void)ask_team(4); /* starts new threads, which the next team ends */
  bench_team_settle(2);
  const team again = ask_team(2);
  assert_same_masks(&held, &again);
  bench_threads_release();
  const team after = ask_team(2);
  assert_same_masks(&before, &after);
  assert_int_equal(bench_threads_held(), 0);
}

#ifdef _OPENMP
/* A thread that moved to other CPUs, or rounds otherwise, is put back. */
TEST(test_moved_threads_are_put_back) {
  const uint64_t mode = bench_float_mode();
  if (!may_hold(2) || !bench_threads_hold(2)) skip();
  for (int n = 0; n < 6; n++) {
    assert_true(bench_team_stays(2, mode));
#pragma omp parallel num_threads(2)
    if (omp_get_thread_num() == n % 2) {
      cpu_set_t all;
      CPU_ZERO(&all);
      for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) CPU_SET((size_t)cpu, &all);
      if (n / 2 != 1) (void)sched_setaffinity(0, sizeof all, &all);
      if (n / 2 != 0) (void)fesetround(FE_UPWARD);
    }
    assert_false(bench_team_stays(2, mode));
    assert_int_equal(fegetround(), FE_TONEAREST);
  }
  assert_true(bench_team_stays(2, mode));
  bench_threads_release();
  assert_true(bench_team_stays(2, mode));
}
#endif

/* If there are more threads than CPUs, they stay free to move. */
TEST(test_too_many_threads_are_free) {
  cpu_set_t allowed;
  assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  if (CPU_COUNT(&allowed) >= MOST_THREADS || ask_team(MOST_THREADS).threads < MOST_THREADS) skip();
  if (!bench_threads_hold(MOST_THREADS)) skip();
  const team t = ask_team(MOST_THREADS);
  bench_threads_release();
  for (int i = 0; i < t.threads; i++) assert_true(CPU_EQUAL(&t.mask[i], &allowed));
}

#ifdef RUSAGE_THREAD
static long page_faults(void) {
  struct rusage usage;
  return getrusage(RUSAGE_THREAD, &usage) ? 0 : usage.ru_minflt;
}

/* The page faults so far of each thread of a team of two. */
static void ask_faults(long faults[2]) {
#ifdef _OPENMP
#pragma omp parallel num_threads(2)
  faults[omp_get_thread_num() % 2] = page_faults();
#else
  faults[0] = faults[1] = page_faults();
#endif
}

/* bench_pages_forget() makes all pages untouched again, and both threads touch their share in bench_pages_fill(), unless one
 * is to do it all. */
TEST(test_each_thread_touches_its_share) {
  enum { BYTES = 32 << 20, HUGE = 4 << 20 };
  long before[2], after[2];
  if (!may_hold(2) || !bench_threads_hold(2)) skip();
  unsigned char *memory = test_allocate(BYTES);
  memset(memory, 1, BYTES);
  bench_pages_forget(memory, BYTES);
  ask_faults(before);
  bench_pages_fill(memory, 7, BYTES, 2);
  ask_faults(after);
  for (size_t i = 0; i < BYTES; i++)
    if (memory[i] != 7) fail_msg("byte %zu is %d", i, memory[i]);
  for (int i = 0; i < 2; i++) assert_true(after[i] - before[i] >= BYTES / 2 / HUGE);
  bench_pages_forget(memory, BYTES);
  ask_faults(before);
  bench_pages_fill(memory, 8, BYTES, 1);
  ask_faults(after);
  assert_true(after[0] - before[0] >= BYTES / HUGE && after[1] - before[1] < BYTES / 2 / HUGE);
  bench_threads_release();
  free(memory);
}
#endif
