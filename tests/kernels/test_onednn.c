/* SPDX-License-Identifier: MIT */
/* Promises of the kernels on oneDNN beyond right answers: oneDNN starts no threads inside a task, the caller's OpenMP
 * setting is restored (onednn_mutants.c proves that these two tests can fail), and refusals name the reason and the library.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <oneapi/dnnl/dnnl_config.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/support.h"

static const char *const kernels[] = {"matmul_onednn", "graph_onednn"};
enum { KERNELS = COUNT(kernels) };

static attn_problem plain_problem(void) {
  attn_problem p;
  attn_problem_init(&p, 1, 2, 1, 37, 300, 24, 20);
  return p;
}

/* NULL where the kernel is not built or cannot run here. */
static const attn_kernel_info *usable(const char *name) {
  const attn_kernel_info *kernel = attn_kernel_find(name);
  if (!kernel) print_message("%s skipped: not built\n", name);
  const char *why_not = kernel ? attn_kernel_unusable(kernel) : NULL;
  if (why_not) print_message("%s skipped: %s\n", name, why_not);
  return why_not ? NULL : kernel;
}

/* A function of the process's OpenMP runtime, by name: this program may be built without OpenMP while oneDNN brings one. */
static void *openmp(const char *name) { return dlsym(RTLD_DEFAULT, name); }

static int threads_of_process(void) {
  DIR *tasks = opendir("/proc/self/task");
  int count = 0;
  if (!tasks) skip();
  for (const struct dirent *entry; (entry = readdir(tasks));) count += entry->d_name[0] != '.';
  closedir(tasks);
  return count;
}

/* OpenMP keeps the threads that it has started, so they can be counted afterwards. Skipped with other runtimes, which have
 * thread pools of their own (see attn_onednn_unusable). First of the tests: no other one has started threads yet. */
TEST(one_task_is_one_thread) {
  void (*set)(int);
  void *const set_address = openmp("omp_set_num_threads");
  memcpy(&set, &set_address, sizeof set);
  if (!set || DNNL_CPU_THREADING_RUNTIME != DNNL_RUNTIME_OMP) skip();
  set(5);
  attn_problem p;
  attn_problem_init(&p, 1, 1, 1, 96, 1024, 64, 64); /* enough for several threads */
  const int before = threads_of_process();
  for (int i = 0; i < KERNELS; i++) {
    if (!usable(kernels[i])) continue;
    test_data data = test_data_create(&p, 5);
    test_ok(test_run(&p, &data.args, &ATTN_STRUCT(attn_options, .kernel = kernels[i], .threads = 1)));
    assert_int_equal(threads_of_process(), before);
    test_data_destroy(&data);
  }
}

TEST(callers_threads_stay_what_they_were) {
  int (*get)(void);
  void (*set)(int);
  void *const get_address = openmp("omp_get_max_threads"), *const set_address = openmp("omp_set_num_threads");
  memcpy(&get, &get_address, sizeof get);
  memcpy(&set, &set_address, sizeof set);
  if (!get || !set) skip();
  const int before = get();
  const attn_problem p = plain_problem();
  for (int i = 0; i < KERNELS; i++) {
    if (!usable(kernels[i])) continue;
    test_data data = test_data_create(&p, 5);
    for (int threads = 1; threads <= 5; threads += 4) {
      set(threads);
      test_ok(test_run(&p, &data.args, &ATTN_STRUCT(attn_options, .kernel = kernels[i], .threads = 1)));
      assert_int_equal(get(), threads);
      test_ok(test_run(&p, &data.args, &ATTN_STRUCT(attn_options, .kernel = kernels[i], .threads = 3)));
      assert_int_equal(get(), threads);
    }
    test_data_destroy(&data);
  }
  set(before);
}

static void assert_rejects(const char *kernel, const attn_problem *p, const char *part) {
  if (usable(kernel)) test_contains(attn_kernel_rejects(attn_kernel_find(kernel), p), part);
}

TEST(refusals_say_what_is_missing) {
  attn_problem mixed = plain_problem(), gaussian = plain_problem(), causal = plain_problem(), lse = plain_problem();
  mixed.dtype_kv = ATTN_BF16;
  gaussian.score = ATTN_SCORE_GAUSSIAN;
  attn_problem_set_causal(&causal, ATTN_ALIGN_TOP_LEFT);
  lse.uses = ATTN_USE_LSE;
  assert_rejects("matmul_onednn", &mixed, "one type");
  assert_rejects("matmul_onednn", &gaussian, "gaussian");
  assert_rejects("graph_onednn", &causal, "masks");
  assert_rejects("graph_onednn", &lse, "LSE");
}

/* If oneDNN lacks products of a 16-bit type on this CPU, the refusal holds oneDNN's own status and its version. */
TEST(types_it_lacks_are_refused_in_its_words) {
  static const attn_dtype types[] = {ATTN_BF16, ATTN_F16};
  const attn_kernel_info *kernel = usable("matmul_onednn");
  for (size_t i = 0; kernel && i < COUNT(types); i++) {
    attn_problem p = plain_problem();
    p.dtype_q = p.dtype_kv = p.dtype_o = types[i];
    const char *reason = attn_kernel_rejects(kernel, &p);
    if (!reason) continue; /* the conformance suite runs it */
    test_contains(reason, kernel->library);
    test_contains(reason, "unimplemented");
  }
}

static size_t address_space(void) {
  unsigned long pages = 0;
  FILE *sizes = fopen("/proc/self/statm", "r");
  if (!sizes || fscanf(sizes, "%lu", &pages) != 1) fail();
  fclose(sizes);
  return pages * (size_t)sysconf(_SC_PAGESIZE);
}

enum { NO_LIMITS = 99 }; /* qemu-user ignores limits of memory */

/* Makes a plan with `left` more bytes of address space: in a child process, because the limit stays. Returns its status, or
 * NO_LIMITS. */
static int plan_with_little_memory(const char *kernel, size_t left) {
  attn_problem p = plain_problem();
  attn_plan *plan = NULL;
  const rlim_t bytes = address_space() + left;
  struct rlimit limit = {bytes, bytes};
  if (setrlimit(RLIMIT_AS, &limit)) return ATTN_INVALID_ARGUMENT;
  if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur != bytes) return NO_LIMITS;
  const attn_status status = attn_plan_create(&p, &ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1), &plan);
  attn_plan_destroy(plan);
  return (int)status;
}

/* Plans in a child. False if that did not end: a fork of a process with threads can leave a lock held in its emulator. */
static bool run_child(const char *kernel, size_t left, int *status) {
  enum { TURNS = 200, TURN_US = 100000 };
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) _exit(plan_with_little_memory(kernel, left));
  for (int turn = 0; turn < TURNS; turn++) {
    const pid_t ended = waitpid(child, status, WNOHANG);
    assert_true(ended == 0 || ended == child);
    if (ended == child) return true;
    usleep(turn < 100 ? TURN_US / 50 : TURN_US);
  }
  kill(child, SIGKILL);
  return (void)waitpid(child, status, 0), false;
}

/* oneDNN would end the process where memory is short. */
TEST(little_memory_is_an_error) {
  if (address_space() > (size_t)1 << 40) skip(); /* a sanitizer reserves address space all the time */
  for (int i = 0; i < KERNELS; i++)
    for (size_t left = 0; left <= 1 << 20 && usable(kernels[i]); left += 1 << 18) {
      int status = 0, tries = 3;
      while (!run_child(kernels[i], left, &status)) assert_true(--tries > 0);
      if (WIFEXITED(status) && WEXITSTATUS(status) == NO_LIMITS) skip();
      assert_true(WIFEXITED(status) && WEXITSTATUS(status) == ATTN_OUT_OF_MEMORY);
    }
}

int test_begin(char **arguments) {
  (void)arguments;
  for (int i = 0; i < KERNELS; i++)
    if (usable(kernels[i])) return 0;
  return puts("skipped: no kernel on oneDNN can run here"), 77;
}
