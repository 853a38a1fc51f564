/* SPDX-License-Identifier: MIT */
/* A libattn whose calls take a share longer: proof that `attnbench compare --paired` finds a planted slowdown. Passes all
 * calls on to the library that ATTN_TEST_LIBATTN names; attn_plan_run() then waits ATTN_TEST_SLOWDOWN (0.03: 3 %) of its
 * time. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "attn/attn.h"

static void *find(const char *name) {
  static void *library;
  const char *path = getenv("ATTN_TEST_LIBATTN");
  if (!library) library = dlopen(path ? path : "", RTLD_NOW | RTLD_LOCAL);
  void *function = library ? dlsym(library, name) : NULL;
  if (function) return function;
  fprintf(stderr, "ATTN_TEST_LIBATTN: %s\n", dlerror());
  abort();
}

/* REAL(attn_version): a pointer to the function of that name in the real library. */
#define REAL(name)                 \
  static __typeof__(&(name)) real; \
  if (!real) *(void **)(void *)&real = find(#name)

static double now_s(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

const char *attn_version(void) {
  REAL(attn_version);
  return real();
}

const char *attn_last_error(void) {
  REAL(attn_last_error);
  return real();
}

attn_status attn_plan_create(const attn_problem *problem, const attn_options *options, attn_plan **plan) {
  REAL(attn_plan_create);
  return real(problem, options, plan);
}

const char *attn_plan_kernel(const attn_plan *plan) {
  REAL(attn_plan_kernel);
  return real(plan);
}

size_t attn_plan_workspace(const attn_plan *plan) {
  REAL(attn_plan_workspace);
  return real(plan);
}

void attn_plan_destroy(attn_plan *plan) {
  REAL(attn_plan_destroy);
  real(plan);
}

attn_status attn_plan_run(const attn_plan *plan, const attn_args *args, void *workspace, size_t bytes) {
  REAL(attn_plan_run);
  static double slowdown = -1;
  if (slowdown < 0) {
    const char *share = getenv("ATTN_TEST_SLOWDOWN");
    slowdown = share ? atof(share) : 0;
  }
  if (slowdown == 0) return real(plan, args, workspace, bytes);  // reading the clock alone takes 1 % of a call of 30 us
  const double start = now_s();
  const attn_status status = real(plan, args, workspace, bytes);
  const double end = now_s(), until = end + slowdown * (end - start);
  while (now_s() < until) continue;
  return status;
}
