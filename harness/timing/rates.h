/* SPDX-License-Identifier: MIT */
/* Multiply-add loops (kernels/peak.h) against the clock, and the threads that run them. Loops that only read: reading.h. */
#ifndef BENCH_RATES_H
#define BENCH_RATES_H

#include "attn/attn.h"
#include "kernels/peak.h"

/* The highest tier whose loops this CPU and its operating system run. */
const char *bench_highest_tier(void);

/* Threads and CPUs that a parallel region really gets: OpenMP gives fewer threads where its settings limit them, and places
 * may put several on one CPU. */
typedef struct bench_team {
  int threads, cpus; /* cpus: that the threads together may use */
} bench_team;
bench_team bench_team_count(int threads);

/* Says in `text` that `given` of `wanted` threads run, and which settings of OpenMP may be the cause. */
void bench_team_explain(int given, int wanted, char *text, size_t bytes);

/* Ends the threads of larger teams before: they may still wait for work in a loop that takes CPU time. */
void bench_team_dismiss(void);

/* ---- Multiply-adds, in slices short enough to run before and after every sample ---- */

/* A loop with the number of iterations that fills one slice on this machine. */
typedef struct bench_peak_slice {
  const attn_peak_loop *loop;
  int threads;
  int64_t iterations;
} bench_peak_slice;

/* The loop that a kernel is measured against: that of its tier. Kernels of libraries choose their instructions
 * themselves: they get the loop of the highest tier, the bf16 one only if they round P to bf16, as otherwise they
 * multiply f32. */
const attn_peak_loop *bench_peak_of(const attn_kernel_info *kernel, const char *dtype);

/* The loop whose products the kernel may make float32 ones of, which may be quicker than its f32 loop; NULL = none. */
const attn_peak_loop *bench_parts_peak_of(const attn_kernel_info *kernel, const attn_peak_loop *loop);

/* Warms the loop up and finds the iterations for slices of about slice_ns. As many of `threads` as there really are run it
 * at once: slice.threads. */
bench_peak_slice bench_peak_prepare(const attn_peak_loop *loop, int threads, double slice_ns);

/* Flop/s of one core in one slice, the mean over the threads; slice->loop is not NULL. */
double bench_peak_rate(const bench_peak_slice *slice);

#endif
