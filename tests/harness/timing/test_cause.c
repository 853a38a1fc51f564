/* SPDX-License-Identifier: MIT */
/* Who is named where kernels spoil each other: scripted trials in a world of threads whose rules are known. */
#include "tests/harness/timing/simulated.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/memory/aligned.h"

enum { TRIALS = 3, MOST_THREADS = 40, WRITES = 4 /* after a call: as many as calls of a calibration */ };

/* A thread that a kernel starts does harm to the others: it writes into their outputs for a few calls, or as long as
 * its plan lives, or for ever; or it takes CPU time as long as its plan lives, or for ever. Or it is wrong itself. Or a
 * library's thread, which was there before, takes CPU time for a while. */
enum { WRITES_A_WHILE, WRITES_WHILE_PLANNED, WRITES_FOR_EVER, BUSY_WHILE_PLANNED, BUSY_FOR_EVER, OWN, SPINS_A_WHILE, HARMS };

static struct {
  int harm, disturber, bystander; /* bystander: leaves a thread that does nothing; -1: there is none */
  int64_t first, harmless_from;   /* the disturber's call, and the bystander's, that starts its thread */
  int64_t calls[TRIALS];
  int plans[TRIALS], threads, writes_left, spins_left; /* calls */
  int owner[MOST_THREADS];                             /* the trial that each thread belongs to */
  bool gone[MOST_THREADS];
} world;

static script kernels[TRIALS];

static int index_of(const void *kernel) {
  for (int i = 0; i < TRIALS; i++)
    if (kernel == &kernels[i].kernel) return i;
  fail_msg("no kernel of this test");
  return 0;
}

static bool ends_with_plan(void) { return world.harm == WRITES_WHILE_PLANNED || world.harm == BUSY_WHILE_PLANNED; }

static bool has_thread(int of) {
  for (int i = 0; i < world.threads; i++)
    if (world.owner[i] == of && !world.gone[i]) return true;
  return false;
}

static void start_thread(int of) {
  if (has_thread(of)) return;
  assert_true(world.threads < MOST_THREADS);
  world.owner[world.threads++] = of;
}

/* ---- Threads and plans of this world ---------------------------------------------------------------------------------- */

bench_tasks __wrap_bench_tasks_now(void);
bool __wrap_bench_tasks_grew(const bench_tasks *before, const void *owner);
const void *__wrap_bench_tasks_busiest_owner(double *share);

bench_tasks __wrap_bench_tasks_now(void) {
  bench_tasks now = {.count = 1};
  if (world.harm == SPINS_A_WHILE) now.number[now.count++] = MOST_THREADS + 1;
  for (int i = 0; i < world.threads; i++)
    if (!world.gone[i]) now.number[now.count++] = i + 1;
  return now;
}

bool __wrap_bench_tasks_grew(const bench_tasks *before, const void *owner) {
  const bench_tasks now = __wrap_bench_tasks_now();
  const int newest = now.number[now.count - 1];
  for (int i = 0; i < before->count; i++)
    if (before->number[i] == newest) return false;
  assert_int_equal(world.owner[newest - 1], index_of(owner));
  return true;
}

static bool takes_time(void) {
  if (world.harm == SPINS_A_WHILE) return world.spins_left > 0;
  return (world.harm == BUSY_WHILE_PLANNED || world.harm == BUSY_FOR_EVER) && has_thread(world.disturber);
}

/* While nothing runs, threads that write take a hundredth of a CPU, but those that a plan or a call wakes sleep. */
const void *__wrap_bench_tasks_busiest_owner(double *share) {
  *share = !has_thread(world.disturber) ? 0 : takes_time() ? 1 : world.harm == WRITES_FOR_EVER ? 0.01 : 0;
  return *share > 0 ? &kernels[world.disturber].kernel : NULL;
}

static const char *plan_kernel(const attn_plan *plan) { return kernels[*(const int *)(const void *)plan].kernel.name; }
static const char *last_error(void) { return "no plan"; }
static size_t plan_workspace(const attn_plan *plan) { return plan ? 64 : 0; }

static attn_status plan_create(const attn_problem *problem, const attn_options *options, attn_plan **plan) {
  int *made = malloc(sizeof *made), of = 0;
  (void)problem;
  while (strcmp(kernels[of].kernel.name, options->kernel) != 0) of++;
  assert_non_null(made);
  *made = of;
  world.plans[of]++;
  *plan = (attn_plan *)(void *)made;
  return ATTN_OK;
}

static void plan_destroy(attn_plan *plan) {
  if (!plan) return;
  const int of = *(const int *)(const void *)plan;
  const bool closed = !--world.plans[of];
  if (closed && world.spins_left > 1000) world.spins_left = 0; /* it ends now, by chance */
  if (closed && of == world.disturber && ends_with_plan())
    for (int i = 0; i < world.threads; i++) world.gone[i] |= world.owner[i] == of;
  free(plan);
}

static const bench_build scripted = {.last_error = last_error,
                                     .plan_create = plan_create,
                                     .plan_kernel = plan_kernel,
                                     .plan_workspace = plan_workspace,
                                     .plan_destroy = plan_destroy};

/* The effect of each call: whether its output becomes wrong. */
static int spoil(const bench_trial *trial) {
  if (!trial->plan) return FAILED;
  const int own = index_of(trial->kernel);
  const int64_t call = ++world.calls[own];
  if (takes_time()) sim.cpu.all_ns += kernels[own].call_ns[0];
  if (own == world.bystander && call >= world.harmless_from) start_thread(own);
  if (world.harm == SPINS_A_WHILE) return world.spins_left -= world.spins_left > 0, false;
  if (own == world.disturber) {
    if (call >= world.first && world.harm != OWN) start_thread(own), world.writes_left = WRITES;
    return call >= world.first && world.harm == OWN;
  }
  if (world.harm == WRITES_A_WHILE) return world.writes_left > 0 && world.writes_left--;
  return !takes_time() && world.harm != OWN && world.harm <= WRITES_FOR_EVER && has_thread(world.disturber);
}

/* ---- The tests -------------------------------------------------------------------------------------------------------- */

static void open_world(void) {
  const script *scripts[TRIALS];
  for (int i = 0; i < TRIALS; i++) {
    kernels[i] = steady((const char *const[]){"a_c", "b_c", "c_c"}[i], 800e3 + 50e3 * i);
    scripts[i] = &kernels[i];
  }
  open_setup(one_thread, &seven_rounds, scripts, TRIALS);
  sim.effect = spoil;
  for (int i = 0; i < TRIALS; i++) {
    bench_trial *trial = &setup.trials[i];
    trial->build = &scripted;
    test_ok(plan_create(NULL, &(attn_options){.kernel = kernels[i].kernel.name}, &trial->plan));
    trial->workspace = attn_aligned_alloc(64, trial->workspace_bytes = 64);
  }
}

static void close_world(void) {
  for (int i = 0; i < TRIALS; i++) bench_setup_close_plan(&setup.trials[i]);
  for (int i = 0; i < TRIALS; i++) assert_int_equal(world.plans[i], 0);
}

/* The disturber gets an error that names it. Where its thread ends with its plan, the others get their times; else they are
 * told that they did nothing wrong. A thread of no kernel costs none its times. */
static void expect_named(void) {
  const char *disturber = kernels[world.disturber].kernel.name;
  char named[40], no_fault[80];
  snprintf(named, sizeof named, "timing: %s: ", disturber);
  snprintf(no_fault, sizeof no_fault, "through no fault of its own: %s disturbs it", disturber);
  const bool for_ever = world.harm == WRITES_FOR_EVER || world.harm == BUSY_FOR_EVER;
  for (int i = 0; i < TRIALS; i++) {
    const bench_verdict *verdict = &rows[i].verdict;
    const bool timed = (i != world.disturber && !for_ever) || world.harm == SPINS_A_WHILE;
    if (verdict->status != (timed ? BENCH_PASS : BENCH_ERROR))
      fail_msg("harm %d of %s from call %d, beside %d: %s: %s", world.harm, disturber, (int)world.first, world.bystander,
               rows[i].kernel, verdict->reason);
    assert_int_equal(rows[i].time.n, timed ? 7 : 0);
    if (!timed) test_contains(verdict->reason, i == world.disturber ? named : no_fault);
    if (timed) assert_close(rows[i].time.median, kernels[i].call_ns[0]);
  }
  if (world.harm <= WRITES_FOR_EVER) test_contains(rows[world.disturber].verdict.reason, "disturbs other kernels: ");
}

/* Whichever kernel it is, whenever its thread begins, and whether or not another kernel left a harmless thread. Without one,
 * the thread that writes for a while is from an earlier case: nobody saw it begin. */
TEST(the_kernel_that_disturbs_is_named) {
  static const int64_t first[] = {1, 3, 5, 11, 23};
  for (int harm = 0; harm < HARMS; harm++)
    for (int n = 0; n < 2 * TRIALS * TRIALS * (int)COUNT(first); n++) {
      memset(&world, 0, sizeof world);
      world.harm = harm, world.disturber = n % TRIALS, world.first = first[n / TRIALS / TRIALS % (int)COUNT(first)];
      world.harmless_from = n / TRIALS / TRIALS < (int)COUNT(first) ? 1 : 60; /* in the check, or in a sample */
      world.bystander = n / TRIALS % TRIALS == world.disturber ? -1 : n / TRIALS % TRIALS;
      world.spins_left = n % 2 && world.bystander < 0 ? INT_MAX : 2 * n;
      if (harm == WRITES_A_WHILE && world.bystander < 0) start_thread(world.disturber);
      simulated_begin(NULL);
      open_world();
      bench_setup_time(&setup);
      bench_setup_rows(&setup, rows);
      expect_named();
      close_world();
    }
}
