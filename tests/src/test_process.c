/* SPDX-License-Identifier: MIT */
/* The library and its process: when it requests permission for AMX, what it does if no thread can be created, and after
 * fork(). Each test runs in a child process, because a permission or a thread team belongs to a whole process. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int prepare(void **state);
#define TEST_SETUP prepare
#include "base/cli.h"
#include "cases/case.h"
#include "commands/commands.h"
#include "machine/environment.h"
#include "src/api/resources.h"
#include "tests/support/support.h"
#include "timing/rates.h"

enum { SECONDS = 30, PLENTY = 1 << 20, SMALL_STACK = 8192 };

/* ---- Threads that cannot be created: every pthread_create() of the process comes here ---- */

static atomic_int threads_left = PLENTY;
static atomic_int reached; /* threads that a signal of the caller can reach */

typedef struct start {
  void *(*body)(void *);
  void *context;
} start;

static void *run_and_give_back(void *pointer) {
  const start s = *(start *)pointer;
  free(pointer);
  sigset_t blocked;
  if (!pthread_sigmask(SIG_SETMASK, NULL, &blocked) && !sigismember(&blocked, SIGUSR1)) atomic_fetch_add(&reached, 1);
  void *result = s.body(s.context);
  atomic_fetch_add(&threads_left, 1);
  return result;
}

__attribute__((visibility("default"))) int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                                          void *(*body)(void *), void *context) {
  int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  void *const found = dlsym(RTLD_NEXT, "pthread_create");
  memcpy(&create, &found, sizeof create);
  start *s = malloc(sizeof *s);
  if (!s || atomic_fetch_sub(&threads_left, 1) <= 0) {
    atomic_fetch_add(&threads_left, 1);
    free(s);
    return EAGAIN;
  }
  *s = (start){body, context};
  return create(thread, attributes, run_and_give_back, s);
}

/* ---- Children ---- */

/* The exit code of body(value) in a child process, which SIGALRM ends if it hangs. */
static int in_child(int (*body)(int), int value) {
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    alarm(SECONDS);
    _exit(body(value));
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- A problem that keeps several threads busy ---- */

enum { HEADS = 8, SEQ = 40, DIM = 16, ELEMENTS = HEADS * SEQ * DIM };

static float q[ELEMENTS], k[ELEMENTS], v[ELEMENTS], serial[ELEMENTS], o[ELEMENTS];

static bool attend(int threads, float *to) {
  attn_problem p;
  attn_problem_init(&p, 1, HEADS, HEADS, SEQ, SEQ, DIM, DIM);
  return test_run(&p, &ATTN_STRUCT(attn_args, .q = q, .k = k, .v = v, .o = to),
                  &ATTN_STRUCT(attn_options, .threads = threads)) == ATTN_OK;
}

static bool same_on_threads(int threads) {
  memset(o, 0xff, sizeof o);
  return attend(threads, o) && !memcmp(o, serial, sizeof o);
}

static int prepare(void **state) {
  (void)state;
  for (int i = 0; i < ELEMENTS; i++) q[i] = k[i] = v[i] = (float)(i * 37 % 101) / 101.0f - 0.5f;
  return !attend(1, serial);
}

/* ---- Permission for AMX ---- */

static bool small_stack_accepted(void) {
  static char memory[SMALL_STACK];
  return sigaltstack(&(stack_t){.ss_sp = memory, .ss_size = sizeof memory}, NULL) == 0;
}

/* Makes float32 plans, automatic and by name, and asks about kernels. None of these may request the permission for AMX. */
static int ask_about_float32(int unused) {
  (void)unused;
  attn_problem p;
  attn_problem_init(&p, 1, HEADS, HEADS, SEQ, SEQ, DIM, DIM);
  bool good = attn_cpu_tiers()[0] == 'c' && attend(1, o) && attend(2, o);
  static const char *const names[] = {"flash_amx", "flash_avx512", "flash_avx2", "flash_c", "flash_neonbf16"};
  for (size_t i = 0; i < COUNT(names); i++) {
    const attn_kernel_info *kernel = attn_kernel_find(names[i]);
    attn_plan *plan;
    if (!kernel) continue;
    /* A refusal would list the kernels that can run and so load oneDNN, which requests the permission itself. */
    if (attn_kernel_unusable(kernel) || attn_kernel_rejects(kernel, &p)) continue;
    if (attn_plan_create(&p, &ATTN_STRUCT(attn_options, .kernel = names[i], .threads = 1), &plan) == ATTN_OK)
      attn_plan_destroy(plan);
  }
  return good && small_stack_accepted() ? 0 : 1;
}

TEST(float32_plans_leave_small_signal_stacks_alone) { assert_int_equal(in_child(ask_about_float32, 0), 0); }

static attn_status plan_bf16(const char *kernel) {
  attn_problem p;
  attn_plan *plan;
  attn_problem_init(&p, 1, HEADS, HEADS, SEQ, SEQ, DIM, DIM);
  p.dtype_q = p.dtype_kv = ATTN_BF16;
  const attn_status status = attn_plan_create(&p, &ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1), &plan);
  attn_plan_destroy(plan);
  return status;
}

/* With a small signal stack Linux refuses the permission. Then flash_amx is refused with the reason, the automatic choice
 * takes another kernel, and flash_amx works once the stack is gone. */
static int use_amx_beside_a_small_stack(int unused) {
  (void)unused;
  if (!small_stack_accepted()) return 1;
  if (plan_bf16("flash_amx") != ATTN_UNSUPPORTED || !strstr(attn_last_error(), "sigaltstack")) return 2;
  if (plan_bf16(NULL) != ATTN_OK) return 3;
  if (sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL)) return 4;
  return plan_bf16("flash_amx") == ATTN_OK ? 0 : 5;
}

/* Returns 0 if this process needs the permission for AMX and gets it. Other CPUs and an emulated build do not need it. */
static int permission_needed(int unused) {
  uint64_t granted = 0;
  (void)unused;
#ifdef SYS_arch_prctl
  enum { ARCH_GET_XCOMP_PERM = 0x1022 };
  if (plan_bf16("flash_amx") == ATTN_OK) syscall(SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &granted);
#endif
  return granted >> 18 & 1 ? 0 : 1;
}

TEST(amx_is_asked_for_by_the_plan_that_uses_it) {
  if (in_child(permission_needed, 0)) skip();
  assert_int_equal(in_child(use_amx_beside_a_small_stack, 0), 0);
}

/* ---- Threads ---- */

/* Threads that only show how many can be made run no handler of the caller's, whose mask stays as it was. */
static int count_startable(int left) {
  sigset_t mask, after;
  sigemptyset(&mask);
  sigaddset(&mask, SIGUSR2);
  atomic_store(&threads_left, left);
  atomic_store(&reached, 0);
  if (pthread_sigmask(SIG_SETMASK, &mask, NULL) || attn_startable_threads(3) != (left < 3 ? left : 3)) return 2;
  if (pthread_sigmask(SIG_SETMASK, NULL, &after)) return 3;
  return reached == 0 && sigismember(&after, SIGUSR2) && !sigismember(&after, SIGUSR1) ? 0 : 4;
}

TEST(trial_threads_take_no_signals) {
  for (int left = 0; left <= 4; left++) assert_int_equal(in_child(count_startable, left), 0);
}

static int run_with_threads_left(int left) {
  atomic_store(&threads_left, left);
  return same_on_threads(4) && same_on_threads(2) && same_on_threads(4) ? 0 : 1;
}

TEST(missing_threads_make_a_loop_slower_and_nothing_else) {
  for (int left = 0; left <= 3; left++) assert_int_equal(in_child(run_with_threads_left, left), 0);
}

/* Threads that attnbench has ended are gone for the library, too: libgomp would end the process. The ended ones may be given
 * back late. */
static int run_after_the_team_is_dismissed(int unused) {
  (void)unused;
  if (!same_on_threads(4)) return 2;
  bench_team_dismiss();
  atomic_store(&threads_left, -3);
  return same_on_threads(4) ? 0 : 3;
}

TEST(a_dismissed_team_is_not_counted_on) { assert_int_equal(in_child(run_after_the_team_is_dismissed, 0), 0); }

/* attnbench where one thread and `left` more can be made and it is asked for more. Its exit code, or 100 if it failed
 * without a word about threads: OpenMP runtimes end the process with an exit code of their own. */
static int attnbench_with_threads_left(char *const *words, int left) {
  static char said[1 << 14];
  FILE *file = tmpfile();
  int argc = 0;
  while (words[argc]) argc++;
  if (!file || dup2(fileno(file), STDOUT_FILENO) < 0 || dup2(fileno(file), STDERR_FILENO) < 0) return 101;
  atomic_store(&threads_left, left);
  const int code = bench_main(argc, (char **)words);
  fflush(NULL);
  return code && (pread(fileno(file), said, sizeof said - 1, 0) <= 0 || !strstr(said, " threads run")) ? 100 : code;
}

static int check_with_threads_left(int left) {
  static char *const words[] = {"attnbench", "check", "-q",      "-t", "4",       "-k",
                                "naive_c",   "-a",    "seq=300", "-a", "heads=1", NULL};
  return attnbench_with_threads_left(words, left);
}

static int run_with_few_threads(int left) {
  static char *const words[] = {"attnbench", "run", "-q", "-t", "2", "-k", "naive_c", "--rounds", "2", "-a", "seq=64", NULL};
  return attnbench_with_threads_left(words, left);
}

TEST(attnbench_names_the_threads_that_cannot_be_made) {
  for (int left = 0; left <= 3; left++) {
    assert_int_equal(in_child(check_with_threads_left, left), 0);
    const bool lacks = left < 1 && bench_cpu_count() > 1; /* `run` takes no more threads than CPUs */
    if (lacks && !bench_emulation()) assert_int_equal(in_child(run_with_few_threads, left), BENCH_EXIT_USAGE);
  }
}

static int run_in_grandchild(int unused) {
  (void)unused;
  return same_on_threads(4) ? 0 : 1;
}

static int run_then_fork(int threads) {
  if (!same_on_threads(threads)) return 2;
  return in_child(run_in_grandchild, 0);
}

TEST(forked_children_run) {
  for (int threads = 1; threads <= 4; threads += 3) assert_int_equal(in_child(run_then_fork, threads), 0);
}
