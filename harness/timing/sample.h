/* SPDX-License-Identifier: MIT */
/* One sample of one trial: calls against the clock, with slices of a loop before and after them. */
#ifndef BENCH_SAMPLE_H
#define BENCH_SAMPLE_H

#include "base/clock.h"
#include "timing/trial.h"

/* Everything that timing asks of the world. Tests pass a meter with a simulated clock and scripted trials, and so know every
 * number that must come out. */
typedef struct bench_meter {
  double (*now_ns)(void);
  bench_cpu_time (*cpu_now)(void);
  double (*resolution_ns)(void); /* 0 if the clock stands still */
  bench_team (*team)(int threads);
  attn_status (*call)(const bench_trial *trial, int64_t turn);
  void (*renew)(const bench_trial *trial, int64_t turn, int threads);
  void (*poison)(const bench_trial *trial, int64_t turn);
  uint64_t (*output_hash)(const bench_trial *trial, int64_t turn);
  bench_peak_slice (*peak_prepare)(const attn_peak_loop *loop, int threads, double slice_ns);
  double (*peak_rate)(const bench_peak_slice *slice);
  double (*read_rate)(const bench_trial *trial, int64_t turn,
                      int threads);               /* one sample's worth of tensors, from `turn` on */
  double (*bandwidth)(size_t bytes, int threads); /* bandwidth.h */
} bench_meter;

extern const bench_meter bench_machine_meter; /* this machine's clock, calls and loops */

typedef struct bench_sampler {
  const bench_meter *meter;
  int threads;      /* of the case */
  double sample_ns; /* a sample lasts at least this long */
  char error[400];
} bench_sampler;

enum { BENCH_SLICES = 2 }; /* before a sample, and as many after it */

/* The rates of the slices that ran last. */
typedef struct bench_slices {
  const attn_peak_loop *loop; /* NULL: none, or those of the read loop, which serve no other trial */
  double rate[BENCH_SLICES];
} bench_slices;

/* Says what went wrong; returns false. */
bool bench_sampler_fail(bench_sampler *sampler, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Finds how many calls make a sample, which also warms up, and how long a slice of the peak loop is. Sets call_ns. False
 * with the sampler's error if a call failed. */
bool bench_sample_calibrate(bench_sampler *sampler, bench_trial *trial);

/* Appends a sample. *last holds the slices before it, if they are of the trial's loop, and then those after it. False
 * with the sampler's error if a call failed or the output differs from the one that passed the check. */
bool bench_sample_take(bench_sampler *sampler, bench_trial *trial, int position, bench_slices *last);

/* About how long bench_sample_take() takes. */
double bench_sample_guess_ns(const bench_trial *trial);

#endif
