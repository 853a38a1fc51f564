/* SPDX-License-Identifier: MIT */
/* Kernels that attnbench must not believe. Each is flash_c with a lie around it. They run beside an honest kernel through
 * all that `attnbench run` does with a case: plan, check, rounds, rows; and through `attnbench eval --time`. */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "attn/kernel.h"
#include "base/cli.h"
#include "cases/cases.h"
#include "commands/commands.h"
#include "data/npy.h"
#include "machine/environment.h"
#include "plan.h"
#include "support.h"
#include "timing/setup.h"

extern const attn_kernel attn_flash_c, attn_naive_c;

enum { DIM = 32, LONGEST = 192, CHECKED_CALLS = 8, MOST_WRITES = 1000000 };
static int seq = LONGEST; /* of the case; it has one head */
static int outputs(void) { return seq * DIM; }

/* One call of a liar. The whole case is one task. */
typedef struct lie {
  attn_schedule schedule; /* with the tasks of flash_c */
  const attn_args *args;
  void *scratch;
} lie;

static int64_t tasks;              /* of flash_c */
static int calls;                  /* of the liar so far; the first CHECKED_CALLS belong to the check */
static float known[LONGEST * DIM]; /* an answer that the liar keeps */
static const void *known_address;  /* the address of V at that time */
static float known_v;              /* V's first number at that time */
static pthread_t helper;           /* runs while `helping` is true */
static bool helping;
static sem_t help_now; /* posted where the helper need wait no longer */
static atomic_bool stop_writing;
static atomic_llong writes_left; /* of the helper that writes again and again; 0 if there is none */
static attn_args helped_args;    /* of the last call */
static lie helped;               /* the call for which the helper works */

static float *output_of(const lie *l) { return l->args->o; }
static float first_v(const lie *l) { return *(const float *)l->args->v; }

static void work(const lie *l, int64_t first, int64_t end) {
  for (int64_t item = first; item < end; item++)
    attn_flash_c.run(&l->schedule, l->args, (attn_task){.item = item}, NULL, l->scratch);
}

static void work_honestly(const lie *l) { work(l, 0, tasks); }

static void keep_answer(const lie *l) {
  memcpy(known, l->args->o, (size_t)outputs() * sizeof *known);
  known_address = l->args->v;
  known_v = first_v(l);
}

/* ---- The lies ------------------------------------------------------------------------------------------------------ */

/* Right in the check, wrong in the timed calls. */
static void leave_out_rows(const lie *l) { work(l, 0, calls > CHECKED_CALLS ? tasks - 1 : tasks); }

static void remember_by_address(const lie *l) {
  if (known_address == l->args->v) {
    memcpy(l->args->o, known, (size_t)outputs() * sizeof *known);
    return;
  }
  work_honestly(l);
  keep_answer(l);
}

/* Returns at once if inputs and output are those of the call before. */
static void skip_repeated_work(const lie *l) {
  const float *o = output_of(l);
  if (known_address == l->args->v && known_v == first_v(l) && !memcmp(o, known, 64)) return;
  work_honestly(l);
  keep_answer(l);
}

static void compute_only_over_poison(const lie *l) {
  const unsigned char *o = l->args->o;
  if ((o[0] == 0xff && o[1] == 0xff) || (o[0] == 0x7d && o[1] == 0x7d)) work_honestly(l);
}

static void keep_first_answer(const lie *l) {
  work_honestly(l);
  if (calls == 1) keep_answer(l);
}

/* Copies the answer for one seed, multiplied as V was. */
static void know_one_seed(const lie *l) {
  const float factor = first_v(l) / known_v;
  for (int i = 0; i < outputs(); i++) output_of(l)[i] = factor * known[i];
}

static void declare_two_per_cent(const lie *l) {
  work_honestly(l);
  for (int i = 0; i < outputs(); i++) output_of(l)[i] *= 1.019f;
}

static void leave_a_tile_wrong(const lie *l) {
  work_honestly(l);
  memset(output_of(l) + 41 * DIM, 0, 6 * DIM * sizeof(float));
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
static void keep_arguments(const lie *l) {
  helped = *l;
  helped_args = *l->args;
  helped.args = &helped_args;
}

static void start_helper(const lie *l, bool now) {
  keep_arguments(l);
  (void)sem_init(&help_now, 0, now);
  void *scratch = aligned_alloc(64, (l->schedule.scratch_bytes + 63) / 64 * 64);
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

static void work_on_two_threads(const lie *l) {
  start_helper(l, true);
  work(l, 0, tasks / 2);
  end_helper();
}

/* Returns before a thread has written the second half of the output, which it does a second later or at the next call. */
static void write_late(const lie *l) {
  end_helper();
  start_helper(l, false);
  work(l, 0, tasks / 2);
  if (calls <= CHECKED_CALLS) end_helper();
}

/* Writes its right answer again and again until its next call, so that the kernel that runs between looks wrong. */
static void *write_again(void *nothing) {
  for (; writes_left > 0 && !stop_writing; writes_left--) memcpy(helped.args->o, known, (size_t)outputs() * sizeof *known);
  writes_left = 0;
  return nothing;
}

static void keep_writing(const lie *l) {
  end_helper();
  work_honestly(l);
  if (calls <= CHECKED_CALLS) return;
  keep_answer(l);
  keep_arguments(l);
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

/* ---- A liar as a trial --------------------------------------------------------------------------------------------- */

static attn_kernel liar;
static void (*lie_of_case)(const lie *l);

static bool plan_one_task(const attn_problem *problem, const attn_machine *machine, attn_schedule *schedule) {
  if (!attn_flash_c.plan(problem, machine, schedule)) return false;
  tasks = schedule->items[0];
  schedule->items[0] = 1;
  return true;
}

static void run_lie(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit, void *scratch) {
  (void)task, (void)unit;
  attn_schedule honest = *schedule;
  honest.items[0] = tasks;
  calls++;
  lie_of_case(&(lie){honest, args, scratch});
}

static attn_status open_liar(attn_schedule *schedule, char *reason, size_t bytes) {
  (void)schedule, (void)reason, (void)bytes;
  return ATTN_OK;
}

static void close_liar(attn_schedule *schedule) {
  (void)schedule;
  end_helper();
}

attn_status __real_attn_plan_create(const attn_problem *problem, const attn_options *options, attn_plan **plan);
attn_status __wrap_attn_plan_create(const attn_problem *problem, const attn_options *options, attn_plan **plan);

static bool is_asked_for(const char *kernel, const attn_options *options) {
  return options->kernel && !strcmp(options->kernel, kernel);
}

/* Gives attnbench the liar when it asks for flash_c. */
attn_status __wrap_attn_plan_create(const attn_problem *problem, const attn_options *options, attn_plan **plan) {
  static attn_kernel interrupted;
  interrupted = attn_naive_c;
  interrupted.run = run_interrupted;
  if (is_asked_for("flash_c", options)) return attn_plan_create_for_kernel(problem, &liar, options, plan);
  if (is_asked_for("naive_c", options)) return attn_plan_create_for_kernel(problem, &interrupted, options, plan);
  return __real_attn_plan_create(problem, options, plan);
}

static void prepare_liar(void (*lie_to_tell)(const lie *l)) {
  liar = attn_flash_c;
  liar.plan = plan_one_task;
  liar.run = run_lie;
  liar.open = open_liar;
  liar.close = close_liar;
  lie_of_case = lie_to_tell;
  calls = 0;
  known_address = NULL;
  liar.info.numerics.exp_error = lie_to_tell == declare_two_per_cent ? 0.02 : attn_flash_c.info.numerics.exp_error;
}

/* Runs the case as `attnbench run` does, with naive_c as the honest kernel. */
static void run_case(void (*lie_to_tell)(const lie *l), uint64_t seed, bench_row rows[2]) {
  bench_spec spec;
  bench_case bench;
  char id[60], error[200];
  const attn_kernel_info *const kernels[] = {&liar.info, attn_kernel_find("naive_c")};
  const bench_case_settings settings = {.timed = true, .case_budget_s = 10, .rounds = 7};
  prepare_liar(lie_to_tell);
  snprintf(id, sizeof id, "seq:%d/heads:1/head_dim:%d", seq, DIM);
  assert_true(bench_spec_from_id(id, &spec, error, sizeof error));
  bench_case_build(&spec, seed, &bench);
  assert_true(bench_run_case(&bench, kernels, 2, &settings, rows));
}

static void clear(bench_row rows[2]) {
  for (int i = 0; i < 2; i++) bench_row_clear(&rows[i]);
}

/* Fails unless the liar's row has this status, one of the two sentences as its reason, and no time. Clears the rows. */
static void expect_verdict(bench_row rows[2], bench_status status, const char *sentence, const char *other) {
  print_message("  %s: %s\n", bench_status_name(rows[0].verdict.status), rows[0].verdict.reason);
  assert_int_equal(rows[0].verdict.status, status);
  assert_true(strstr(rows[0].verdict.reason, sentence) || (other && strstr(rows[0].verdict.reason, other)));
  assert_true(rows[0].time.n == 0 && !rows[0].samples_ns);
  clear(rows);
}

static void expect_caught(void (*lie_to_tell)(const lie *l), bench_status status, const char *sentence, const char *other) {
  bench_row rows[2];
  run_case(lie_to_tell, 1, rows);
  expect_verdict(rows, status, sentence, other);
}

/* ---- Tests --------------------------------------------------------------------------------------------------------- */

static const char DIFFERS[] = "an output of the timed runs differs from the one that passed the check";

/* The code that all liars share is no reason for a refusal. */
TEST(an_honest_kernel_is_timed) {
  bench_row rows[2];
  run_case(work_honestly, 1, rows);
  for (int i = 0; i < 2; i++) {
    assert_string_equal(rows[i].verdict.reason, "");
    assert_int_equal(rows[i].verdict.status, BENCH_PASS);
    assert_int_equal(rows[i].time.n, 7);
  }
  clear(rows);
}

TEST(wrong_when_timed) { expect_caught(leave_out_rows, BENCH_ERROR, DIFFERS, NULL); }

TEST(remembers_by_address) { expect_caught(remember_by_address, BENCH_ERROR, DIFFERS, NULL); }

/* The case is so short that a sample has several calls even in a slow build: only repeated calls can skip work. Where other
 * processes disturb the first calls, a sample may have a single one; its time is true, and the case runs again. */
TEST(skips_repeated_work) {
  bench_row rows[2];
  seq = 32;
  run_case(skip_repeated_work, 1, rows);
  for (int tries = 1; tries < 5 && rows[0].verdict.status == BENCH_PASS; tries++) {
    clear(rows);
    run_case(skip_repeated_work, 1, rows);
  }
  seq = LONGEST;
  expect_verdict(rows, BENCH_ERROR, "it skips work", NULL);
}

TEST(computes_only_over_poison) { expect_caught(compute_only_over_poison, BENCH_ERROR, DIFFERS, NULL); }

/* With the known seed it is faster than the peak; with another seed it is wrong. */
TEST(knows_one_seed) {
  bench_row rows[2];
  run_case(keep_first_answer, 1, rows);
  clear(rows);
  expect_caught(know_one_seed, BENCH_ERROR, "of the peak loop", NULL);
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
  skip(); /* the race is the lie */
#endif
  expect_caught(write_late, BENCH_ERROR, " output ", "threads were busy, but the case has 1");
}

/* The error names the liar, not the kernel whose output it spoils. */
TEST(a_late_writer_is_named) {
#ifdef __SANITIZE_THREAD__
  skip();
#endif
  bench_row rows[2];
  run_case(keep_writing, 1, rows);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(rows[i].verdict.status, BENCH_ERROR);
    test_contains(rows[i].verdict.reason, "flash_c: writes to the output after its call has returned");
  }
  clear(rows);
}

TEST(scales_by_its_declared_error) { expect_caught(declare_two_per_cent, BENCH_FAIL, "declares", NULL); }

TEST(leaves_a_tile_of_six_rows_wrong) {
  expect_caught(leave_a_tile_wrong, BENCH_FAIL, "192 values of 192 rows are beyond", NULL);
}

/* ---- attnbench eval --time ----------------------------------------------------------------------------------------- */

static char folder[] = "/tmp/liars_XXXXXX";

static void write_tensor(void) {
  static float values[LONGEST * DIM];
  char path[sizeof folder + 10];
  test_fill(values, LONGEST * DIM, 3);
  snprintf(path, sizeof path, "%s/x.npy", folder);
  const npy_array array = {.type = NPY_F32, .dims = 2, .shape = {seq, DIM}, .count = outputs(), .data = values};
  assert_true(npy_write(path, &array));
}

/* Runs eval on the liar and returns what it prints; *code is its exit code. */
static const char *run_eval(void (*lie_to_tell)(const lie *l), int *code) {
  static char said[1 << 14], file[sizeof folder + 10];
  char *words[] = {"attnbench", "eval", "--q",     file,     "--k",      file,   "--v",
                   file,        "-k",   "flash_c", "--time", "--budget", "0.2s", NULL};
  FILE *to = tmpfile();
  const int kept = dup(STDOUT_FILENO);
  snprintf(file, sizeof file, "%s/x.npy", folder);
  prepare_liar(lie_to_tell);
  fflush(stdout);
  assert_true(to && dup2(fileno(to), STDOUT_FILENO) >= 0);
  *code = bench_main(13, words);
  fflush(stdout);
  const ssize_t bytes = pread(fileno(to), said, sizeof said - 1, 0);
  assert_true(dup2(kept, STDOUT_FILENO) >= 0 && !close(kept) && !fclose(to));
  said[bytes > 0 ? bytes : 0] = 0;
  return said;
}

static void expect_eval(void (*lie_to_tell)(const lie *l), int wanted, const char *sentence) {
  int code;
  const char *said = run_eval(lie_to_tell, &code);
  test_contains(said, sentence);
  assert_int_equal(code, wanted);
}

TEST(eval_times_no_liar) {
  if (bench_emulation()) skip(); /* then it times nothing */
  assert_non_null(mkdtemp(folder));
  write_tensor();
  expect_eval(work_honestly, BENCH_EXIT_OK, "PASS");
  expect_eval(leave_out_rows, BENCH_EXIT_INTERNAL, DIFFERS);
  expect_eval(remember_by_address, BENCH_EXIT_INTERNAL, DIFFERS);
  expect_eval(work_on_two_threads, BENCH_EXIT_INTERNAL, "threads were busy, but the case has 1");
  char path[sizeof folder + 10];
  snprintf(path, sizeof path, "%s/x.npy", folder);
  assert_true(!unlink(path) && !rmdir(folder));
}
