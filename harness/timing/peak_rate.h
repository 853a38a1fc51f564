/* SPDX-License-Identifier: MIT */
/* Timing of peak loops (kernels/peak.h), in slices short enough to run before and after every sample. */
#ifndef BENCH_PEAK_RATE_H
#define BENCH_PEAK_RATE_H

#include <stdbool.h>

#include "attn/attn.h"
#include "kernels/peak.h"

/* A loop with the number of iterations that fills one slice on this machine. */
typedef struct bench_peak_slice {
  const attn_peak_loop *loop;
  int threads;
  int64_t iterations;
} bench_peak_slice;

/* Whether this CPU and its operating system run the loops of a tier. */
bool bench_tier_usable(const char *isa);

/* The loop that a kernel is measured against: that of its tier. Kernels of libraries choose their instructions
 * themselves: they get the loop of the highest tier, the bf16 one only if they round P to bf16, as otherwise they
 * multiply f32. */
const attn_peak_loop *bench_peak_of(const attn_kernel_info *kernel, const char *dtype);

/* Warms the loop up and finds the iterations for slices of about slice_ns. `threads` run it at once (one without OpenMP). */
bench_peak_slice bench_peak_prepare(const attn_peak_loop *loop, int threads, double slice_ns);

/* Flop/s of one core in one slice, the mean over the threads; slice->loop is not NULL. */
double bench_peak_rate(const bench_peak_slice *slice);

#endif
