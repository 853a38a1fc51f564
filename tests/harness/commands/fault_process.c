/* SPDX-License-Identifier: MIT */
/* Runs every kernel in a thread with a small stack, or opens and closes the shared library again and again, with a fork()
 * after each time:
 *
 *     fault_process stacks | dlopen path/to/libattn.so */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attn/attn.h"

enum { HEADS = 4, TOKENS = 65, DIM = 40, VALUES = HEADS * TOKENS * DIM };

static float x[VALUES], expected[VALUES];

static attn_problem small_problem(void) {
  attn_problem problem;
  attn_problem_init(&problem, 1, HEADS, HEADS, TOKENS, TOKENS, DIM, DIM);
  return problem;
}

/* ---- stacks: every kernel in a thread of 64 KiB -------------------------------------------------------------------- */

enum { SMALL_STACK = 64 << 10, LONG = 300, WIDE = 256 };

static attn_problem large_problem(attn_dtype dtype, int64_t seq_q) {
  attn_problem p;
  attn_problem_init(&p, 1, 2, 1, seq_q, LONG, WIDE, WIDE);
  p.dtype_q = p.dtype_kv = p.dtype_o = dtype;
  p.softcap = 5;
  p.uses = ATTN_USE_ALIBI | ATTN_USE_LSE;
  attn_problem_set_causal(&p, ATTN_ALIGN_BOTTOM_RIGHT);
  return p;
}

static void *run_every_kernel(void *nothing) {
  static float in[2 * LONG * WIDE], out[2 * LONG * WIDE], lse[2 * LONG];
  static const float slopes[] = {0.5f, 0.25f};
  int *runs = nothing;
  for (int i = 0; i < attn_kernel_count(); i++)
    for (int variant = 0; variant < 6; variant++) {
      const attn_problem p = large_problem((attn_dtype)(variant / 2), variant % 2 ? 1 : LONG);
      attn_plan *plan;
      if (attn_plan_create(&p, &ATTN_STRUCT(attn_options, .kernel = attn_kernel_get(i)->name, .threads = 1), &plan) !=
          ATTN_OK)
        continue;
      const size_t bytes = attn_plan_workspace(plan);
      void *workspace = bytes ? aligned_alloc(64, bytes) : NULL;
      const attn_args args = ATTN_STRUCT(attn_args, .q = in, .k = in, .v = in, .o = out, .lse = lse, .alibi_slopes = slopes);
      *runs += attn_plan_run(plan, &args, workspace, bytes) == ATTN_OK;
      free(workspace);
      attn_plan_destroy(plan);
    }
  return NULL;
}

/* glibc keeps the thread-local variables of all libraries on a thread's stack. OpenBLAS alone has 60 KiB of them. */
static size_t local_bytes(const pthread_attr_t *attributes) {
  size_t (*least)(const pthread_attr_t *);
  *(void **)&least = dlsym(RTLD_DEFAULT, "__pthread_get_minstack");
  return least ? least(attributes) : SMALL_STACK;
}

static bool check_stacks(void) {
  pthread_attr_t attributes;
  pthread_t thread;
  int runs = 0;
  if (pthread_attr_init(&attributes)) return false;
  if (pthread_attr_setstacksize(&attributes, SMALL_STACK + local_bytes(&attributes))) return false;
  if (pthread_create(&thread, &attributes, run_every_kernel, &runs) || pthread_join(thread, NULL)) return false;
  printf("%d runs in a thread of %d bytes\n", runs, SMALL_STACK);
  return runs > 0;
}

/* ---- dlopen -------------------------------------------------------------------------------------------------------- */

static long resident_pages(void) {
  long size = 0, resident = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%ld %ld", &size, &resident) != 2) return -1;
  (void)fclose(file);
  return resident;
}

static bool use_library(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    printf("%s\n", dlerror());
    return false;
  }
  attn_status (*sdpa)(const attn_problem *, const attn_args *);
  *(void **)&sdpa = dlsym(library, "attn_sdpa");
  float y[VALUES];
  const attn_problem problem = small_problem();
  const attn_args args = ATTN_STRUCT(attn_args, .q = x, .k = x, .v = x, .o = y);
  const bool fine = sdpa && sdpa(&problem, &args) == ATTN_OK && !memcmp(y, expected, sizeof y);
  return dlclose(library) == 0 && fine;
}

/* A handler that the library registered for children of fork() must be gone once the library is closed. */
static bool can_fork(void) {
  int status = 0;
  const pid_t child = fork();
  if (child == 0) _exit(0);
  if (child > 0 && waitpid(child, &status, 0) == child && status == 0) return true;
  printf("a child of fork() ends with the status %d after the library was closed\n", status);
  return false;
}

static bool check_dlopen(const char *path) {
  enum { WARM = 15, TIMES = 50, MOST_PAGES = 256 };
  long before = 0;
  for (int i = 0; i < TIMES; i++) {
    if (i == WARM) before = resident_pages();
    if (!use_library(path) || !can_fork()) return false;
  }
  const long grown = resident_pages() - before;
  printf("opened %d times, grown by %ld pages\n", TIMES, grown);
  return grown < MOST_PAGES;
}

int main(int argc, char **argv) {
  const attn_problem problem = small_problem();
  for (int i = 0; i < VALUES; i++) x[i] = (float)(i * 37 % 101) / 50 - 1;
  const char *what = argc > 1 ? argv[1] : "";
  if (strcmp(what, "stacks") == 0) return check_stacks() ? 0 : 1;
  if (attn_sdpa(&problem, &ATTN_STRUCT(attn_args, .q = x, .k = x, .v = x, .o = expected)) != ATTN_OK) return 5;
  if (strcmp(what, "dlopen") == 0 && argc > 2) return check_dlopen(argv[2]) ? 0 : 1;
  return 2;
}
