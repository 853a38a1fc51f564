/* SPDX-License-Identifier: MIT */
/* Four ways to pick a kernel: read the registry, let the library choose, name one, or time them all once.
 *
 * A program keeps the plan: it can be run any number of times, by any number of threads. */
#define _POSIX_C_SOURCE 200809L
#include <attn/attn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { HEADS = 4, SEQ = 256, DIM = 64, COUNT = HEADS * SEQ * DIM };

static float q[COUNT], k[COUNT], v[COUNT], o[COUNT];

static void fill(float *values, unsigned seed) {
  for (int i = 0; i < COUNT; i++) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = (float)(seed >> 8) * 0x1p-23f - 1.0f;
  }
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Best of a few runs with a plan of this kernel; negative if it fails. */
static double time_kernel(const char *name, const attn_problem *problem, const attn_args *args) {
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = name, .threads = 1);
  attn_plan *plan;
  if (attn_plan_create(problem, &options, &plan) != ATTN_OK) return -1;
  const size_t bytes = attn_plan_workspace(plan);
  void *workspace = bytes ? aligned_alloc(64, bytes) : NULL;
  double best = -1;
  for (int repeat = 0; repeat < 4 && (workspace || !bytes); repeat++) { /* the first one warms up */
    const double begin = seconds();
    if (attn_plan_run(plan, args, workspace, bytes) != ATTN_OK) break;
    const double time = seconds() - begin;
    if (repeat == 1 || (repeat > 1 && time < best)) best = time;
  }
  free(workspace);
  attn_plan_destroy(plan);
  return best;
}

/* Prints every kernel with its time, or why it cannot run here. Returns the fastest. */
static const char *pick_by_time(const attn_problem *problem, const attn_args *args) {
  const char *fastest = NULL;
  double least = 0;
  for (int i = 0; i < attn_kernel_count(); i++) {
    const attn_kernel_info *kernel = attn_kernel_get(i);
    const char *refusal = attn_kernel_rejects(kernel, problem);
    if (refusal) {
      printf("  %-16s refuses: %s\n", kernel->name, refusal);
      continue;
    }
    const double time = time_kernel(kernel->name, problem, args);
    if (time < 0) continue;
    printf("  %-16s %8.3f ms\n", kernel->name, 1e3 * time);
    if (!fastest || time < least) fastest = kernel->name, least = time;
  }
  return fastest;
}

int main(void) {
  fill(q, 1), fill(k, 2), fill(v, 3);
  attn_problem problem;
  attn_problem_init(&problem, 1, HEADS, HEADS, SEQ, SEQ, DIM, DIM);
  attn_problem_set_causal(&problem, ATTN_ALIGN_TOP_LEFT);
  const attn_args args = ATTN_STRUCT(attn_args, .q = q, .k = k, .v = v, .o = o);

  printf("this CPU allows: %s\n\nkernels, best first:\n", attn_cpu_tiers());
  const char *fastest = pick_by_time(&problem, &args);

  attn_plan *plan;
  if (attn_plan_create(&problem, NULL, &plan) != ATTN_OK) return puts(attn_last_error()), 1;
  printf("\nautomatic choice:\n%s", attn_plan_describe(plan));
  attn_plan_destroy(plan);

  const attn_options by_name = ATTN_STRUCT(attn_options, .kernel = fastest);
  if (!fastest || attn_plan_create(&problem, &by_name, &plan) != ATTN_OK) return puts(attn_last_error()), 1;
  printf("\nfastest here: %s\n", attn_plan_kernel(plan));
  attn_plan_destroy(plan);

  const attn_options mistaken = ATTN_STRUCT(attn_options, .kernel = "flash_mmx");
  const attn_status status = attn_plan_create(&problem, &mistaken, &plan); /* an error, never a silent replacement */
  printf("\na name that does not exist: %s\n  %s\n", attn_status_name(status), attn_last_error());
  return status == ATTN_UNKNOWN_KERNEL ? 0 : 1;
}
