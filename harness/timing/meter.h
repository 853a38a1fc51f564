/* SPDX-License-Identifier: MIT */
/* Everything that timing asks of the world. Tests pass a meter with a simulated clock and scripted trials, and so know every
 * number that must come out. */
#ifndef BENCH_METER_H
#define BENCH_METER_H

#include "timing/trial.h"

typedef struct bench_meter {
  double (*now_ns)(void);
  double (*resolution_ns)(void); /* 0 if the clock stands still */
  attn_status (*call)(const bench_trial *trial, int64_t turn);
  void (*poison)(const bench_trial *trial, int64_t turn);
  uint64_t (*output_hash)(const bench_trial *trial, int64_t turn);
  bench_peak_slice (*peak_prepare)(const attn_peak_loop *loop, int threads, double slice_ns);
  double (*peak_rate)(const bench_peak_slice *slice);
  double (*read_rate)(const bench_trial *trial, int64_t turn,
                      int threads);               /* one sample's worth of tensors, from `turn` on */
  double (*bandwidth)(size_t bytes, int threads); /* bandwidth.h */
} bench_meter;

extern const bench_meter bench_machine_meter; /* this machine's clock, calls and loops */

#endif
