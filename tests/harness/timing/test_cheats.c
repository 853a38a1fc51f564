/* SPDX-License-Identifier: MIT */
/* Kernels that cheat. Each is flash_c with a trick around it. They run beside a kernel that does not cheat, through
 * all that `attnbench run` does with a case: plan, check, rounds, rows; and through `attnbench eval --time`. */
#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "attn/kernel.h"
#include "base/cli.h"
#include "base/handlers.h"
#include "cases/cases.h"
#include "commands/commands.h"
#include "data/npy.h"
#include "machine/environment.h"
#include "src/plan/plan.h"
#include "tests/support/support.h"
#include "timing/setup.h"

extern const attn_kernel attn_flash_c, attn_naive_c;

enum { DIM = 32, LONGEST = 192, MOST_UNITS = 16, CHECKED_CALLS = 8, MOST_WRITES = 1000000 };

/* The case: batch x heads units. */
typedef struct shape {
  int batch, heads, seq_q, seq_k;
} shape;
static const shape usual = {1, 1, LONGEST, LONGEST};
static const shape short_case = {1, 1, 16, 16}, decode = {1, 8, 1, 128}, batched = {4, 2, 24, 48};
static shape size = {1, 1, LONGEST, LONGEST};
static int outputs(void) { return size.seq_q * DIM; } /* elements of a unit's output */

/* One unit of a call of the cheat: it is one task. */
typedef struct work_call {
  attn_schedule schedule; /* with the tasks of flash_c */
  const attn_args *args;
  void *scratch;
  int64_t unit;
} work_call;

static int64_t tasks;                           /* tasks of flash_c */
static int calls;                               /* calls of the cheat so far; the first CHECKED_CALLS belong to the check */
static float known[MOST_UNITS * LONGEST * DIM]; /* an answer that the cheat keeps */
static const void *known_address;               /* the address of V at that time */
static float known_v[MOST_UNITS];               /* V's first number at that time */
static bool knows[MOST_UNITS];
static pthread_t helper; /* runs while `helping` is true */
static bool helping;
static sem_t help_now; /* posted where the helper need wait no longer */
static atomic_bool stop_writing;
static atomic_llong writes_left; /* the helper thread that writes again and again; 0 if there is none */
static attn_args helped_args;    /* from the last call */
static work_call helped;         /* the call for which the helper works */

static float *output_of(const work_call *c) { return (float *)c->args->o + c->unit * outputs(); }
static float *known_of(const work_call *c) { return known + c->unit * outputs(); }
static float first_v(const work_call *c) { return ((const float *)c->args->v)[c->unit * size.seq_k * DIM]; }

static void work(const work_call *c, int64_t first, int64_t end) {
  for (int64_t item = first; item < end; item++)
    attn_flash_c.run(&c->schedule, c->args, (attn_task){.unit = c->unit, .item = item}, NULL, c->scratch);
}

static void work_fully(const work_call *c) { work(c, 0, tasks); }

static void keep_answer(const work_call *c) {
  memcpy(known_of(c), output_of(c), (size_t)outputs() * sizeof *known);
  known_address = c->args->v;
  known_v[c->unit] = first_v(c);
  knows[c->unit] = true;
}

/* ---- The tricks ------------------------------------------------------------------------------------------------------ */

/* Right in the check, wrong in the timed calls. */
static void leave_out_rows(const work_call *c) { work(c, 0, calls > CHECKED_CALLS ? tasks - 1 : tasks); }

static void remember_by_address(const work_call *c) {
  if (known_address == c->args->v) {
    memcpy(c->args->o, known, (size_t)outputs() * sizeof *known);
    return;
  }
  work_fully(c);
  keep_answer(c);
}

/* Returns at once if inputs and output are those of the call before. */
static void skip_repeated_work(const work_call *c) {
  const float *o = output_of(c);
  if (known_address == c->args->v && known_v[0] == first_v(c) && !memcmp(o, known, 64)) return;
  work_fully(c);
  keep_answer(c);
}

static void compute_only_over_poison(const work_call *c) {
  const unsigned char *o = c->args->o;
  if ((o[0] == 0xff && o[1] == 0xff) || (o[0] == 0x7d && o[1] == 0x7d)) work_fully(c);
}

static void keep_first_answer(const work_call *c) {
  work_fully(c);
  if (calls == 1) keep_answer(c);
}

/* Copies the answer for one seed, multiplied as V was. */
static void know_one_seed(const work_call *c) {
  const float factor = first_v(c) / known_v[c->unit];
  for (int i = 0; i < outputs(); i++) output_of(c)[i] = factor * known_of(c)[i];
}

static void declare_two_per_cent(const work_call *c) {
  work_fully(c);
  for (int i = 0; i < outputs(); i++) output_of(c)[i] *= 1.019f;
}

static void leave_a_tile_wrong(const work_call *c) {
  work_fully(c);
  memset(output_of(c) + 41 * DIM, 0, 6 * DIM * sizeof(float));
}

static void *help(void *own_scratch) {
  helped.scratch = own_scratch;
  struct timespec until;
  (void)clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 1;
  (void)sem_timedwait(&help_now, &until);
  work(&helped, tasks / 2, tasks);
  free(own_scratch);
  return NULL;
}

/* The caller's arguments end with the call. */
static void keep_arguments(const work_call *c) {
  helped = *c;
  helped_args = *c->args;
  helped.args = &helped_args;
}

static void start_helper(const work_call *c, bool now) {
  keep_arguments(c);
  (void)sem_init(&help_now, 0, now);
  void *scratch = aligned_alloc(64, (c->schedule.scratch_bytes + 63) / 64 * 64);
  assert_non_null(scratch);
  helping = !pthread_create(&helper, NULL, help, scratch);
  assert_true(helping);
}

static void end_helper(void) {
  stop_writing = true;
  (void)sem_post(&help_now);
  if (helping) pthread_join(helper, NULL);
  helping = false;
}

static void work_on_two_threads(const work_call *c) {
  start_helper(c, true);
  work(c, 0, tasks / 2);
  end_helper();
}

/* Returns before a thread has written the second half of the output, which it does a second later or at the next call. */
static void write_late(const work_call *c) {
  end_helper();
  start_helper(c, false);
  work(c, 0, tasks / 2);
  if (calls <= CHECKED_CALLS) end_helper();
}

/* Writes its right answer again and again until its next call, so that the kernel that runs between looks wrong. */
static void *write_again(void *nothing) {
  for (; writes_left > 0 && !stop_writing; writes_left--) memcpy(helped.args->o, known, (size_t)outputs() * sizeof *known);
  writes_left = 0;
  return nothing;
}

static void keep_writing(const work_call *c) {
  end_helper();
  work_fully(c);
  if (calls <= CHECKED_CALLS) return;
  keep_answer(c);
  keep_arguments(c);
  stop_writing = false;
  writes_left = MOST_WRITES;
  helping = !pthread_create(&helper, NULL, write_again, NULL);
}

/* naive_c for keep_writing(). The helper is kept on the CPU of the thread that started it, so it might not get a turn in a
 * call as short as this one: the call waits for two writes, the second of which began after its work. */
static void run_interrupted(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit,
                            void *scratch) {
  attn_naive_c.run(schedule, args, task, unit, scratch);
  for (const long long before = writes_left; writes_left > 0 && writes_left > before - 2;) (void)sched_yield();
}

/* ---- Tricks that are right for V's factor, or whose answer is there already ------------------------------------------- */

static bool is_checked(void) { return calls > CHECKED_CALLS; }

/* Returns the answer that it remembers, multiplied as V was. */
static void scale_remembered(const work_call *c) {
  if (knows[c->unit]) {
    know_one_seed(c);
    return;
  }
  work_fully(c);
  keep_answer(c);
}

static void remember_every_second_unit(const work_call *c) {
  if (c->unit % 2)
    scale_remembered(c);
  else
    work_fully(c);
}

static void remember_every_third_unit(const work_call *c) {
  if (c->unit % 3 == 1)
    scale_remembered(c);
  else
    work_fully(c);
}

static void skip_three_of_four(const work_call *c) {
  if (!is_checked() || calls % 4 == 0) work_fully(c);
}

static void skip_every_second(const work_call *c) {
  if (!is_checked() || calls % 2 == 0) work_fully(c);
}

static void skip_half_of_the_units(const work_call *c) {
  if (!is_checked() || 2 * c->unit < size.batch * size.heads) work_fully(c);
}

/* Every second call of its own is answered by the answer of the call before. */
static void repeat_answer(const work_call *c) {
  if (is_checked() && calls % 2) {
    memcpy(output_of(c), known_of(c), (size_t)outputs() * sizeof *known);
    return;
  }
  work_fully(c);
  keep_answer(c);
}

static double read_system_clock(void) {
  struct timespec now;
  (void)syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
  return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}

/* Works in the first call after a pause only: between two others, somebody may look at the output. */
static void skip_without_pause(const work_call *c) {
  static double last_ns;
  if (!is_checked() || c->unit || read_system_clock() - last_ns > 800) work_fully(c);
  last_ns = read_system_clock();
}

/* Computes the tasks in whose output there is a NaN. */
static void compute_where_poison_is(const work_call *c) {
  const int64_t part = tasks > 0 ? (size.seq_q + tasks - 1) / tasks : size.seq_q;
  for (int64_t item = 0; item < tasks; item++) {
    bool poisoned = !is_checked();
    const int64_t end = (item + 1) * part < size.seq_q ? (item + 1) * part : size.seq_q;
    for (int64_t i = item * part * DIM; i < end * DIM && !poisoned; i++) poisoned = output_of(c)[i] != output_of(c)[i];
    if (poisoned) work(c, item, item + 1);
  }
}

/* Keeps K as it was first: a kernel could as well keep a packed or rounded copy. */
static void keep_k(const work_call *c) {
  static float kept[MOST_UNITS * LONGEST * DIM];
  const size_t bytes = (size_t)(size.batch * size.heads * size.seq_k * DIM) * sizeof *kept;
  if (calls == 1 && c->unit == 0) memcpy(kept, c->args->k, bytes);
  attn_args args = *c->args;
  if (is_checked()) args.k = kept;
  work_call changed = *c;
  changed.args = &args;
  work_fully(&changed);
}

static void leave_other_rounding(const work_call *c) {
  work_fully(c);
  if (is_checked()) (void)fesetround(FE_DOWNWARD);
}

static void end_of_pause(int number) { (void)number; }

/* The signal would come again and again, and its handler work between calls. */
static void set_handler(const work_call *c) {
  work_fully(c);
  if (is_checked()) (void)sigaction(SIGALRM, &(struct sigaction){.sa_handler = end_of_pause}, NULL);
}

/* All that runs afterwards has a lower priority, one CPU for two threads, less memory or another rounding; the cheat's own
 * calls could undo it for their time. */
static int settings_call;
static struct rlimit memory_limit;

static void change_settings(const work_call *c) {
  const int kind = settings_call % 5;
  cpu_set_t first;
  work_fully(c);
  if (calls < settings_call) return;
  if (kind == 0) (void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + 1);
  if (kind == 1) (void)prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  if (kind == 2) (void)setrlimit(RLIMIT_AS, &(struct rlimit){memory_limit.rlim_max / 2, memory_limit.rlim_max});
  if (kind == 3) (void)prctl(PR_SET_TIMERSLACK, 1000000, 0, 0, 0);
  CPU_ZERO(&first);
  CPU_SET(sched_getcpu() == 0, &first);
  if (kind == 4) (void)sched_setaffinity(0, sizeof first, &first);
}

static int rounding_call;

static void leave_other_rounding_once(const work_call *c) {
  work_fully(c);
  if (calls == rounding_call) (void)fesetround(FE_DOWNWARD);
}

/* ---- Tricks with clocks, processes and other kernels ------------------------------------------------------------------ */

static double stolen_ns; /* from the C library's clock */

int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now) {
  const int status = (int)syscall(SYS_clock_gettime, clock, now);
  const double ns = 1e9 * (double)now->tv_sec + (double)now->tv_nsec - stolen_ns;
  now->tv_sec = (time_t)(ns * 1e-9);
  now->tv_nsec = (long)fmax(0, fmin(999999999, ns - 1e9 * (double)now->tv_sec));
  return status;
}

static void stop_the_clock(const work_call *c) {
  const double start = read_system_clock();
  work_fully(c);
  if (is_checked()) stolen_ns += 0.3 * (read_system_clock() - start);
}

static bool detaches, adopts;

/* Like fork(); or the child is one of this process's parent. */
static pid_t make_process(void) { return adopts ? (pid_t)syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0) : fork(); }

/* Another process works, and hands the answer over; it works three times, as it has to make up for the fork. */
static void work_in_child(const work_call *c) {
  int ends[2];
  if (!is_checked()) {
    work_fully(c);
    return;
  }
  assert_false(pipe(ends));
  const pid_t child = make_process();
  if (!child && detaches && fork()) _exit(0);
  if (!child) {
    for (int i = 0; i < 20; i++) work_fully(c);
    const char *from = (const char *)output_of(c);
    for (size_t left = (size_t)outputs() * sizeof(float); left;) {
      const ssize_t sent = write(ends[1], from, left);
      if (sent > 0) from += sent, left -= (size_t)sent;
    }
    _exit(0);
  }
  close(ends[1]);
  char *to = (char *)output_of(c);
  for (ssize_t got; (got = read(ends[0], to, 65536)) > 0;) to += got;
  close(ends[0]);
  waitpid(child, NULL, 0);
}

static pid_t spinning; /* a process; 0: none */

/* Another process could work meanwhile, and nobody waits for it. */
static void leave_process(const work_call *c) {
  work_fully(c);
  if (!is_checked() || spinning) return;
  spinning = make_process();
  if (spinning) return;
  alarm(60);
  for (;;) __asm__ volatile("");
}

static void end_process(void) {
  if (spinning) (void)kill(spinning, SIGKILL);
  if (spinning) (void)waitpid(spinning, NULL, 0);
  spinning = 0;
}

static struct {
  char *from;
  size_t bytes; /* 0: nobody waits */
  void *scratch;
} unread; /* pages of an output that nobody has read yet */

static void work_at_last(int number) {
  if (!unread.bytes || mprotect(unread.from, unread.bytes, PROT_READ | PROT_WRITE)) _exit(number);
  unread.bytes = 0;
  helped.scratch = unread.scratch;
  work(&helped, tasks / 2, tasks);
}

/* Does half of its work, takes the output's pages away and returns. Their first reader gets a signal, whose handler does the
 * rest. */
static void work_when_read(const work_call *c) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  const uintptr_t begin = (uintptr_t)c->args->o / page * page,
                  end = (uintptr_t)c->args->o + (size_t)outputs() * sizeof(float);
  if (!is_checked()) {
    work_fully(c);
    return;
  }
  work(c, 0, tasks / 2);
  if (!unread.scratch) unread.scratch = aligned_alloc(64, (c->schedule.scratch_bytes + 63) / 64 * 64);
  assert_non_null(unread.scratch);
  keep_arguments(c);
  unread.from = (char *)begin;
  unread.bytes = (end - begin + page - 1) / page * page;
  assert_int_equal(mprotect(unread.from, unread.bytes, PROT_NONE), 0);
}

static atomic_bool stop_spoiling;
static pthread_t spoiler;
static bool spoils, outlives;
static int first_spoiling = CHECKED_CALLS + 1; /* the call that starts the thread */

/* Writes where others write, as long as the plan lives. */
static void *spoil_outputs(void *nothing) {
  while (!stop_spoiling) {
    for (int64_t i = 0; i < size.batch * size.heads * outputs(); i += 7) ((volatile float *)helped_args.o)[i] = 5;
    (void)nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
  }
  return nothing;
}

static void end_spoiler(void) {
  stop_spoiling = true;
  if (spoils) pthread_join(spoiler, NULL);
  spoils = false;
}

/* Its own calls are right: the thread does nothing meanwhile. */
static void spoil_others(const work_call *c) {
  if (spoils && !outlives) end_spoiler();
  work_fully(c);
  if (calls < first_spoiling || spoils) return;
  keep_arguments(c);
  stop_spoiling = false;
  spoils = !pthread_create(&spoiler, NULL, spoil_outputs, NULL);
}

static void spoil_inputs(const work_call *c) {
  work_fully(c);
  if (is_checked()) ((float *)(uintptr_t)c->args->v)[size.seq_k * DIM - 1] += 1;
}

/* ---- A cheat as a trial --------------------------------------------------------------------------------------------- */

static attn_kernel cheat;
static void (*trick_of_case)(const work_call *c);

static bool plan_one_task(const attn_problem *problem, const attn_machine *machine, attn_schedule *schedule) {
  if (!attn_flash_c.plan(problem, machine, schedule)) return false;
  tasks = schedule->items[0];
  schedule->items[0] = 1;
  return true;
}

static void run_trick(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit, void *scratch) {
  (void)unit;
  attn_schedule whole = *schedule;
  whole.items[0] = tasks;
  calls += task.unit == 0;
  trick_of_case(&(work_call){whole, args, scratch, task.unit});
}

static attn_status open_cheat(attn_schedule *schedule, char *reason, size_t bytes) {
  (void)schedule, (void)reason, (void)bytes;
  return ATTN_OK;
}

static void close_cheat(attn_schedule *schedule) {
  (void)schedule;
  end_helper();
  if (!outlives) end_spoiler();
}

static const attn_library_hooks ends_with_plan = {.open = open_cheat, .close = close_cheat};

attn_status __real_attn_plan_create(const attn_problem *problem, const attn_options *options, attn_plan **plan);
attn_status __wrap_attn_plan_create(const attn_problem *problem, const attn_options *options, attn_plan **plan);

static bool is_asked_for(const char *kernel, const attn_options *options) {
  return options->kernel && !strcmp(options->kernel, kernel);
}

/* Gives attnbench the cheat when it asks for flash_c. */
attn_status __wrap_attn_plan_create(const attn_problem *problem, const attn_options *options, attn_plan **plan) {
  static attn_kernel interrupted;
  interrupted = attn_naive_c;
  interrupted.run = run_interrupted;
  if (is_asked_for("flash_c", options)) return attn_plan_create_for_kernel(problem, &cheat, options, plan);
  if (is_asked_for("naive_c", options)) return attn_plan_create_for_kernel(problem, &interrupted, options, plan);
  return __real_attn_plan_create(problem, options, plan);
}

static void prepare_cheat(void (*trick)(const work_call *c)) {
  cheat = attn_flash_c;
  cheat.plan = plan_one_task;
  cheat.run = run_trick;
  cheat.library = &ends_with_plan;
  trick_of_case = trick;
  calls = 0;
  known_address = NULL;
  memset(knows, 0, sizeof knows);
  cheat.info.numerics.exp_error = trick == declare_two_per_cent ? 0.02 : attn_flash_c.info.numerics.exp_error;
}

/* Runs the case as `attnbench run` does, with naive_c as the kernel that does not cheat. */
static void run_case(void (*trick)(const work_call *c), uint64_t seed, bench_row rows[2]) {
  bench_spec spec;
  bench_case bench;
  char id[100], error[200];
  const attn_kernel_info *const kernels[] = {&cheat.info, attn_kernel_find("naive_c")};
  const bench_case_settings settings = {.timed = true, .case_budget_s = 10, .rounds = 7};
  prepare_cheat(trick);
  snprintf(id, sizeof id, "batch:%d/heads:%d/seq_q:%d/seq_k:%d/head_dim:%d", size.batch, size.heads, size.seq_q, size.seq_k,
           DIM);
  assert_true(bench_spec_from_id(id, &spec, error, sizeof error));
  bench_case_build(&spec, seed, &bench);
  assert_true(bench_run_case(&bench, kernels, 2, &settings, rows));
}

static void clear(bench_row rows[2]) {
  for (int i = 0; i < 2; i++) bench_row_clear(&rows[i]);
}

/* Fails unless the cheat's row has this status, one of the two sentences as its reason, and no time. Clears the rows. */
static void expect_verdict(bench_row rows[2], bench_status status, const char *sentence, const char *other) {
  print_message("  %s: %s\n", bench_status_name(rows[0].verdict.status), rows[0].verdict.reason);
  assert_int_equal(rows[0].verdict.status, status);
  assert_true(strstr(rows[0].verdict.reason, sentence) || (other && strstr(rows[0].verdict.reason, other)));
  assert_true(rows[0].time.n == 0 && !rows[0].samples_ns);
  clear(rows);
}

/* The cheat spoils no other time. */
static void expect_other_timed(const bench_row rows[2]) {
  assert_string_equal(rows[1].verdict.reason, "");
  assert_int_equal(rows[1].verdict.status, BENCH_PASS);
  assert_int_equal(rows[1].time.n, 7);
}

static const char NO_FAULT[] = "through no fault of its own: flash_c disturbs it";

static bool is_told(const bench_row rows[2], bench_status status, const char *sentence, const char *other,
                    const char *of_other) {
  const char *why = rows[0].verdict.reason;
  return rows[0].verdict.status == status && (strstr(why, sentence) || (other && strstr(why, other))) &&
         (*of_other ? strstr(rows[1].verdict.reason, of_other) != NULL : rows[1].time.n == 7);
}

/* Looks are at calls, rows and moments that are drawn, and a case has seven short rounds here: beside other programs it may
 * end before the cheat shows, or while its thread has no turn. Then it runs again. */
static void run_until_told(void (*trick)(const work_call *c), bench_status status, const char *sentence, const char *other,
                           const char *of_other, bench_row rows[2]) {
  enum { TRIES = 4 };
  for (int i = 0; i < TRIES; i++) {
    run_case(trick, 1, rows);
    if (i == TRIES - 1 || is_told(rows, status, sentence, other, of_other)) return;
    end_helper();
    end_spoiler();
    clear(rows);
  }
}

static void expect_caught(void (*trick)(const work_call *c), bench_status status, const char *sentence, const char *other) {
  bench_row rows[2];
  run_until_told(trick, status, sentence, other, "", rows);
  expect_other_timed(rows);
  expect_verdict(rows, status, sentence, other);
}

/* ---- Tests --------------------------------------------------------------------------------------------------------- */

static const char DIFFERS[] = "an output of the timed runs differs from the one that passed the check";

/* The code that all cheats share is no reason for a refusal. */
TEST(a_kernel_that_works_is_timed) {
  bench_row rows[2];
  run_case(work_fully, 1, rows);
  for (int i = 0; i < 2; i++) {
    assert_string_equal(rows[i].verdict.reason, "");
    assert_int_equal(rows[i].verdict.status, BENCH_PASS);
    assert_int_equal(rows[i].time.n, 7);
  }
  clear(rows);
}

TEST(wrong_when_timed) { expect_caught(leave_out_rows, BENCH_ERROR, DIFFERS, "skips work"); }

TEST(remembers_by_address) { expect_caught(remember_by_address, BENCH_ERROR, DIFFERS, "skips work"); }

/* The case is so short that a sample has several calls: a single one comes after a change, and its time is true. */
TEST(skips_repeated_work) {
  size = short_case;
  expect_caught(skip_repeated_work, BENCH_ERROR, DIFFERS, "skips work");
  size = usual;
}

TEST(computes_only_over_poison) { expect_caught(compute_only_over_poison, BENCH_ERROR, DIFFERS, "skips work"); }

/* With the known seed it is faster than the peak; with another seed it is wrong. */
TEST(knows_one_seed) {
  bench_row rows[2];
  run_case(keep_first_answer, 1, rows);
  clear(rows);
  expect_caught(know_one_seed, BENCH_ERROR, "skips work", NULL);
  run_case(know_one_seed, 2, rows);
  assert_int_equal(rows[0].verdict.status, BENCH_FAIL);
  clear(rows);
}

TEST(hides_a_thread) { expect_caught(work_on_two_threads, BENCH_ERROR, "threads were busy, but the case has 1", NULL); }

TEST(writes_late) {
#ifdef __has_feature
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif
#ifdef __SANITIZE_THREAD__
  skip(); /* the race is the trick */
#endif
  expect_caught(write_late, BENCH_ERROR, " output ", "flash_c: ");
}

/* The error names the cheat, not the kernel whose output it spoils. */
TEST(a_late_writer_is_named) {
#ifdef __SANITIZE_THREAD__
  skip();
#endif
  bench_row rows[2];
  run_until_told(keep_writing, BENCH_ERROR, "flash_c: ", NULL, "", rows);
  expect_other_timed(rows);
  expect_verdict(rows, BENCH_ERROR, "flash_c: ", NULL);
}

TEST(scales_by_its_declared_error) { expect_caught(declare_two_per_cent, BENCH_FAIL, "declares", NULL); }

TEST(leaves_a_tile_of_six_rows_wrong) {
  expect_caught(leave_a_tile_wrong, BENCH_FAIL, "192 values of 192 rows are beyond", NULL);
}

/* Each trick in a short case, a decoding step of several heads and a batch; the other kernel keeps its time. */
static void expect_caught_everywhere(void (*trick)(const work_call *c), const char *sentence) {
  const shape *const shapes[] = {&short_case, &decode, &batched};
  for (int i = 0; i < 3; i++) {
    bench_row rows[2];
    size = *shapes[i];
    if ((trick == remember_every_second_unit || trick == remember_every_third_unit || trick == skip_half_of_the_units) &&
        i == 0)
      continue;
    run_until_told(trick, BENCH_ERROR, sentence, DIFFERS, "", rows);
    size = usual;
    test_contains(rows[0].verdict.reason, "flash_c: ");
    expect_other_timed(rows);
    expect_verdict(rows, BENCH_ERROR, sentence, DIFFERS);
  }
}

TEST(scales_what_it_remembers) { expect_caught_everywhere(scale_remembered, "skips work"); }
TEST(remembers_every_second_unit) { expect_caught_everywhere(remember_every_second_unit, "skips work"); }
TEST(remembers_every_third_unit) { expect_caught_everywhere(remember_every_third_unit, "skips work"); }
TEST(skips_three_of_four_calls) { expect_caught_everywhere(skip_three_of_four, "skips work"); }
TEST(skips_every_second_call) { expect_caught_everywhere(skip_every_second, "skips work"); }
TEST(skips_half_of_the_units) { expect_caught_everywhere(skip_half_of_the_units, "skips work"); }
TEST(repeats_its_last_answer) { expect_caught_everywhere(repeat_answer, "skips work"); }
TEST(works_after_a_pause_only) {
  size = (shape){1, 1, 1, 4}; /* so short that several calls have two readings of the clock in common */
  expect_caught(skip_without_pause, BENCH_ERROR, "skips work", DIFFERS);
  size = usual;
}
TEST(computes_where_poison_is) { expect_caught(compute_where_poison_is, BENCH_ERROR, "skips work", DIFFERS); }
TEST(keeps_k) { expect_caught_everywhere(keep_k, "skips work"); }
TEST(leaves_other_rounding) { expect_caught_everywhere(leave_other_rounding, "other rounding"); }

TEST(sets_a_handler) {
  bench_handlers_note();
  expect_caught_everywhere(set_handler, "sets a handler of signal 14");
}

/* run_until_told(), until the case had so many calls: there are 47 or more on an idle machine, but beside a load it may end
 * earlier.
 */
static void run_until_called(void (*trick)(const work_call *c), int number, const char *sentence, bench_row rows[2]) {
  run_until_told(trick, BENCH_ERROR, sentence, NULL, "", rows);
  while (calls < number) {
    clear(rows);
    run_case(trick, 1, rows);
  }
}

/* In a call of the check, one that guesses the time, one of the calibration, and one before or between the timed ones. */
TEST(leaves_other_rounding_once) {
  static const int numbers[] = {1, 2, 3, 5, 9, 13, 20, 31, 40};
  for (size_t i = 0; i < COUNT(numbers); i++) {
    bench_row rows[2];
    rounding_call = numbers[i];
    run_until_called(leave_other_rounding_once, rounding_call, "other rounding", rows);
    assert_int_equal(fegetround(), FE_TONEAREST);
    test_contains(rows[0].verdict.reason, "leaves the thread with other rounding");
    expect_other_timed(rows);
    clear(rows);
  }
}

/* In the check, or when it is timed. */
TEST(changes_the_process) {
  bench_row rows[2];
  assert_int_equal(getrlimit(RLIMIT_AS, &memory_limit), 0);
  for (settings_call = 1; settings_call <= 20; settings_call++) {
    const bool moves = settings_call % 5 == 4; /* perhaps beside another program, for which its calls then wait */
    const char *told = moves ? "moves threads" : "changes the ";
    run_until_called(change_settings, settings_call, told, rows);
    expect_other_timed(rows);
    if (moves && strstr(rows[0].verdict.reason, "its calls wait")) told = "its calls wait";
    expect_verdict(rows, BENCH_ERROR, told, "threads were busy");
  }
}

TEST(stops_the_clock) {
  expect_caught_everywhere(stop_the_clock, "clocks disagree");
  stolen_ns = 0;
}

/* Half of the time is below every roof. */
TEST(works_when_its_output_is_read) {
  const struct sigaction late = {.sa_handler = work_at_last, .sa_flags = SA_NODEFER};
  struct sigaction before;
  assert_int_equal(sigaction(SIGSEGV, &late, &before), 0);
  bench_handlers_note(); /* a handler that was there before */
  expect_caught(work_when_read, BENCH_ERROR, "works late", NULL);
  assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
  free(unread.scratch);
}

TEST(works_in_another_process) {
  for (int i = 0; i < 3; i++) {
    detaches = i == 1, adopts = i == 2;
    expect_caught(work_in_child, BENCH_ERROR, adopts ? "its calls wait" : "threads were busy, but the case has 1", NULL);
  }
  adopts = false;
}

/* In the case that it began in, and in the next one. Beside a load the other kernel's samples may meet none of its work. */
TEST(leaves_a_process) {
  for (int i = 0; i < 4; i++) {
    bench_row rows[2];
    adopts = i >= 2;
    run_until_told(leave_process, BENCH_ERROR, "flash_c: ", NULL, NO_FAULT, rows);
    if (i % 2) end_process();
    assert_true(rows[1].time.n == 7 || strstr(rows[1].verdict.reason, NO_FAULT));
    expect_verdict(rows, BENCH_ERROR, " threads were busy, but the case has 1", NULL);
  }
  adopts = false;
}

TEST(spoils_the_work_of_others) {
#ifdef __SANITIZE_THREAD__
  skip();
#endif
  expect_caught_everywhere(spoil_others, "flash_c: ");
}

/* A kernel starts a thread that never ends: the other kernel gets no time, and a reason that names the cheating one, whether
 * the thread began in its own samples or in those of the control. */
TEST(spoils_the_work_of_others_for_ever) {
#ifdef __SANITIZE_THREAD__
  skip();
#endif
  static const int numbers[] = {9, 20, 30, 40};
  for (size_t i = 0; i < COUNT(numbers); i++) {
    bench_row rows[2];
    first_spoiling = numbers[i];
    outlives = true;
    run_until_told(spoil_others, BENCH_ERROR, "flash_c: ", NULL, NO_FAULT, rows);
    outlives = false;
    end_spoiler();
    first_spoiling = CHECKED_CALLS + 1;
    assert_true(rows[1].time.n == 7 || strstr(rows[1].verdict.reason, NO_FAULT));
    expect_verdict(rows, BENCH_ERROR, "flash_c: ", NULL);
  }
}

TEST(overwrites_inputs) {
  bench_row rows[2];
  run_until_told(spoil_inputs, BENCH_ERROR, "flash_c: ", NULL, NO_FAULT, rows);
  test_contains(rows[1].verdict.reason, NO_FAULT);
  expect_verdict(rows, BENCH_ERROR, "flash_c: ", NULL);
}

/* ---- attnbench eval --time ----------------------------------------------------------------------------------------- */

static char folder[] = "/tmp/cheats_XXXXXX";

static void write_tensor(void) {
  static float values[LONGEST * DIM];
  char path[sizeof folder + 10];
  test_fill(values, LONGEST * DIM, 3);
  snprintf(path, sizeof path, "%s/x.npy", folder);
  const npy_array array = {.type = NPY_F32, .dims = 2, .shape = {LONGEST, DIM}, .count = outputs(), .data = values};
  assert_true(npy_write(path, &array));
}

/* Runs eval on the cheat and returns what it prints; *code is its exit code. */
static const char *run_eval(void (*trick)(const work_call *c), int *code) {
  static char said[1 << 14], file[sizeof folder + 10];
  char *words[] = {"attnbench", "eval", "--q",     file,     "--k",      file,   "--v",
                   file,        "-k",   "flash_c", "--time", "--budget", "0.2s", NULL};
  FILE *to = tmpfile();
  const int kept = dup(STDOUT_FILENO);
  snprintf(file, sizeof file, "%s/x.npy", folder);
  prepare_cheat(trick);
  fflush(stdout);
  assert_true(to && dup2(fileno(to), STDOUT_FILENO) >= 0);
  *code = bench_main(13, words);
  fflush(stdout);
  const ssize_t bytes = pread(fileno(to), said, sizeof said - 1, 0);
  assert_true(dup2(kept, STDOUT_FILENO) >= 0 && !close(kept) && !fclose(to));
  said[bytes > 0 ? bytes : 0] = 0;
  return said;
}

/* The cheat is told by one of two sentences, as it fails in one look or another. */
static void expect_eval(void (*trick)(const work_call *c), int wanted, const char *sentence, const char *other) {
  enum { TRIES = 4 };
  int code = wanted + 1;
  const char *said = "";
  for (int i = 0; i < TRIES && !(code == wanted && (strstr(said, sentence) || strstr(said, other))); i++)
    said = run_eval(trick, &code);
  test_contains(said, strstr(said, other) ? other : sentence);
  assert_int_equal(code, wanted);
}

TEST(eval_times_no_cheat) {
  if (bench_emulation()) skip(); /* then it times nothing */
  assert_non_null(mkdtemp(folder));
  write_tensor();
  expect_eval(work_fully, BENCH_EXIT_OK, "PASS", "PASS");
  expect_eval(leave_out_rows, BENCH_EXIT_INTERNAL, "skips work", DIFFERS);
  expect_eval(scale_remembered, BENCH_EXIT_INTERNAL, "skips work", DIFFERS);
  expect_eval(skip_every_second, BENCH_EXIT_INTERNAL, "skips work", DIFFERS);
  expect_eval(work_on_two_threads, BENCH_EXIT_INTERNAL, "threads were busy, but the case has 1", "its calls wait");
  char path[sizeof folder + 10];
  snprintf(path, sizeof path, "%s/x.npy", folder);
  assert_true(!unlink(path) && !rmdir(folder));
}
