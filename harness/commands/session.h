/* SPDX-License-Identifier: MIT */
/* A whole run or check: all cases with all kernels, to table and files. */
#ifndef BENCH_SESSION_H
#define BENCH_SESSION_H

#include "commands/options.h"

/* Runs what the options ask for and returns the exit code. */
int bench_session_run(bench_options *options);

#endif
