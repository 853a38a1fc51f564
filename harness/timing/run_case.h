/* SPDX-License-Identifier: MIT */
/* One case: make its tensors, ask the oracle, check every kernel, time those that passed together. */
#ifndef BENCH_RUN_CASE_H
#define BENCH_RUN_CASE_H

#include "cases/cases.h"
#include "timing/row.h"

typedef struct bench_case_settings {
  bool timed;
  bool structure; /* also the structural tests, on what passed */
  double case_budget_s, precision;
  int rounds; /* exactly so many; 0 = until the interval is narrow enough */
  uint64_t seed;
  volatile const int *stop;                                          /* nonzero: finish the round */
  void (*note)(void *context, const char *what, const char *kernel); /* what happens now */
  void *note_context;
} bench_case_settings;

/* Stands for the library's own choice in a list of kernels: name "auto". */
extern const attn_kernel_info bench_automatic;

/* Fills rows[count], one per kernel, whatever happens: what could not run is SKIP or ERROR with the reason. The caller clears
 * them. False if *settings->stop cut it short before the checks were done: the rows are then of no use. */
bool bench_run_case(const bench_case *bench, const attn_kernel_info *const *kernels, int count,
                    const bench_case_settings *settings, bench_row *rows);

/* A guess at the seconds that bench_run_case() takes. */
double bench_case_guess(const bench_case *bench, const attn_kernel_info *const *kernels, int count,
                        const bench_case_settings *settings);

#endif
