/* SPDX-License-Identifier: MIT */
/* oneDNN short of memory: its operator new, which this program defines, throws at the n-th call. A plan must fail in words
 * and a run must compute without oneDNN, for many n, each in a child process.
 *
 *     fault_throws path/to/libattn_onednn.so */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attn/attn.h"

enum { TOKENS = 70, DIM = 40, STEP = 23, MOST = 460, SKIPPED = 77, NEVER_THREW = 3 };

static long left; /* calls until the one that throws; 0: none does */
static void (*throw_bad_alloc)(void);

void *_Znwm(size_t bytes); /* operator new */
__attribute__((visibility("default"))) void *_Znwm(size_t bytes) {
  void *memory = left && --left == 0 ? NULL : malloc(bytes ? bytes : 1);
  if (!memory) throw_bad_alloc();
  return memory;
}

static bool find_throw(void) {
  void *const library = dlopen("libstdc++.so.6", RTLD_NOW);
  void *const found = library ? dlsym(library, "_ZSt17__throw_bad_allocv") : NULL;
  memcpy(&throw_bad_alloc, &found, sizeof found);
  return found;
}

/* The status of a plan, or of its run, whose n-th allocation fails. */
static attn_status attend(long n) {
  static float x[TOKENS * DIM], o[TOKENS * DIM];
  attn_problem p;
  attn_plan *plan;
  attn_problem_init(&p, 1, 1, 1, TOKENS, TOKENS, DIM, DIM);
  left = n;
  attn_status status = attn_plan_create(&p, &ATTN_STRUCT(attn_options, .kernel = "matmul_onednn", .threads = 1), &plan);
  if (status != ATTN_OK) return status;
  const size_t bytes = attn_plan_workspace(plan);
  void *workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
  status = attn_plan_run(plan, &ATTN_STRUCT(attn_args, .q = x, .k = x, .v = x, .o = o), workspace, bytes);
  if (!left) left = -1; /* it threw */
  attn_plan_destroy(plan);
  free(workspace);
  return status;
}

static int run_child(long n) {
  const attn_status status = attend(n);
  if (status == ATTN_OUT_OF_MEMORY) return strstr(attn_last_error(), "memory") ? 0 : 1;
  if (status != ATTN_OK) return 1;
  return left == -1 ? 0 : NEVER_THREW;
}

/* Exit code of the child, or 128 + its signal. */
static int try_in_child(long n) {
  int status;
  const pid_t child = fork();
  if (child == 0) _exit(run_child(n));
  if (child < 0 || waitpid(child, &status, 0) != child) exit(5);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv) {
  int tried = 0, wrong = 0, code = 0;
  if (argc != 2) return 2;
  if (!find_throw() || attn_load_kernels(argv[1]) != ATTN_OK) return puts("skipped: no plug-in, or no C++ library"), SKIPPED;
  const attn_kernel_info *kernel = attn_kernel_find("matmul_onednn");
  if (!kernel || attn_kernel_unusable(kernel)) return puts("skipped: matmul_onednn cannot run here"), SKIPPED;
  for (long n = 1; n < MOST && code != NEVER_THREW; n += STEP, tried++) {
    code = try_in_child(n);
    if (code && code != NEVER_THREW && ++wrong < 4) printf("WRONG: exception %ld: exit code %d\n", n, code);
  }
  printf("%d exceptions tried, %d wrong\n", tried, wrong);
  return wrong || tried < 10;
}
