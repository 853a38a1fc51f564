/* SPDX-License-Identifier: MIT */
/* The one clock of the harness: CLOCK_MONOTONIC, in nanoseconds. */
#ifndef BENCH_CLOCK_H
#define BENCH_CLOCK_H

double bench_now_ns(void);

/* The larger of what the system claims and the smallest step seen; 0 if the clock stands still. */
double bench_clock_resolution_ns(void);

#endif
