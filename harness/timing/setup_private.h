/* SPDX-License-Identifier: MIT */
/* What the files of a setup share. */
#ifndef BENCH_SETUP_PRIVATE_H
#define BENCH_SETUP_PRIVATE_H

#include "timing/setup.h"

/* Of the memory that is available, for one case. */
#define BENCH_MEMORY_SHARE 0.8

/* Of all pairs, masked ones too. */
double bench_multiply_adds(const attn_problem *problem);

/* Gives up plan, layer, workspace and samples. */
void bench_trial_close(bench_trial *trial);

#endif
