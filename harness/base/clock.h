/* SPDX-License-Identifier: MIT */
/* The clocks of the harness, in nanoseconds: CLOCK_MONOTONIC, and CPU time. */
#ifndef BENCH_CLOCK_H
#define BENCH_CLOCK_H

double bench_now_ns(void);

/* CPU time of all threads of this process, and of the calling thread. */
typedef struct bench_cpu_time {
  double all_ns, own_ns;
} bench_cpu_time;
bench_cpu_time bench_cpu_now(void);

/* The larger of what the system claims and the smallest step seen; 0 if the clock stands still. */
double bench_clock_resolution_ns(void);

#endif
