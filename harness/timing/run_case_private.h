/* SPDX-License-Identifier: MIT */
/* What run_case.c (check) and time_case.c (time) share about the case that is running. */
#ifndef BENCH_RUN_CASE_PRIVATE_H
#define BENCH_RUN_CASE_PRIVATE_H

#include "base/select.h"
#include "timing/run_case.h"

enum {
  BENCH_MAX_ROTATIONS = 512,
  BENCH_FEW_ROUNDS = 4, /* a kernel that does not fit so often into the budget of its case is not timed */
};

/* A sample repeats the call until it lasts this long: long against a timer interrupt, short against a second. */
#define BENCH_MIN_SAMPLE_S 2e-3

/* One kernel of the case. */
typedef struct bench_job {
  bench_row *row;
  const attn_kernel_info *kernel; /* what runs; until it is known, bench_automatic */
  attn_plan *plan;
  bench_layer_job *layer; /* instead of the plan */
  void *workspace;
  size_t workspace_bytes;
  double plan_ns; /* what making the plan, or the layer, took */
  double call_s;  /* one call, roughly */
} bench_job;

/* Everything that the kernels of the case share. */
typedef struct bench_stage {
  const bench_case *bench;
  const bench_case_settings *settings;
  bench_job jobs[BENCH_MAX_KERNELS + 1];
  int count;
  bench_tensors tensors[BENCH_MAX_ROTATIONS];
  int rotations; /* tensors made so far */
  bench_expected *expected;
  bench_layer *layer;  /* instead of tensors and expected */
  double flops, bytes; /* of one call */
} bench_stage;

/* Gives the row its status and its reason. */
void bench_conclude(bench_row *row, bench_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Adds to the row's warnings. */
void bench_warn(bench_row *row, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Says what happens now. */
void bench_note(const bench_stage *stage, const char *what, const char *kernel);

/* Opens a case and checks it with every kernel: each row has its status and reason then. NULL if memory is short. */
bench_stage *bench_stage_open(const bench_case *bench, const attn_kernel_info *const *kernels, int count,
                              const bench_case_settings *settings, bench_row *rows);
void bench_stage_close(bench_stage *stage); /* NULL is fine */

/* Copies the tensors as often as the case's caches ask for. */
void bench_stage_rotate(bench_stage *stage);

/* One checked job of the stage for bench_time(), and its row after that: samples and places move there. `stop` is why its
 * last round was the last. */
bench_entrant bench_stage_entrant(bench_stage *stage, const bench_job *job);
void bench_stage_fill(const bench_stage *stage, const bench_job *job, bench_entrant *entrant, bench_stop stop);

/* Times the jobs that passed, in common rounds, and fills in their rows. An error of one spoils the times of all. */
void bench_time_jobs(bench_stage *stage);

#endif
