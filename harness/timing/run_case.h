/* SPDX-License-Identifier: MIT */
/* One case from its description to its rows: make its tensors, ask the oracle, check every kernel, time those that passed
 * together. */
#ifndef BENCH_RUN_CASE_H
#define BENCH_RUN_CASE_H

#include "timing/setup.h"

/* Fills rows[count], one per kernel, whatever happens: what could not run is SKIP or ERROR with the reason. The caller
 * clears them. False if *settings->stop cut it short before the checks were done: the rows are then of no use. */
bool bench_run_case(const bench_case *bench, const attn_kernel_info *const *kernels, int count,
                    const bench_case_settings *settings, bench_row *rows);

/* A guess at the seconds that bench_run_case() takes. */
double bench_case_guess(const bench_case *bench, const attn_kernel_info *const *kernels, int count,
                        const bench_case_settings *settings);

#endif
