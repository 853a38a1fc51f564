/* SPDX-License-Identifier: MIT */
/* How a time comes about: rounds in which every entrant of a case runs once, in changing order, with the peak loop beside
 * them. A time cannot be asked for without a passed check: the verdict is part of the entrant, and anything but PASS is
 * refused. */
#ifndef BENCH_TIMING_H
#define BENCH_TIMING_H

#include "check/check.h"
#include "kernels/peak.h"
#include "layers/layer.h"

typedef struct bench_timing_options {
  double precision;         /* stop when the 95 % interval of every median is within +-precision (0.01) */
  int min_rounds;           /* 11 */
  int max_rounds;           /* sample cap */
  double budget_s;          /* of one case */
  double min_sample_s;      /* a sample repeats the call until it lasts this long, and >= 1000 clock resolutions */
  int threads;              /* of the case: the peak loop runs on as many at once; 0 = 1 */
  uint64_t seed;            /* of the order */
  volatile const int *stop; /* set by Ctrl-C: finish the round and return */
} bench_timing_options;

/* One kernel of a case. plan, tensors and verdict belong together: the verdict was earned on this plan and these buffers. */
typedef struct bench_entrant {
  const attn_plan *plan;
  bench_tensors *tensors; /* rotations of the same values; several for cold caches */
  bench_layer_job *layer; /* a whole layer instead of plan and tensors; tensor_count is then 1 */
  int tensor_count;
  void *workspace;
  size_t workspace_bytes;
  bench_verdict verdict;
  const attn_peak_loop *peak; /* NULL: none for its tier */
  bool reads;                 /* a loop that only reads K and V stands beside the samples instead of a peak loop */
  bool control;               /* the A/A control: a second entry of the first kernel */
  /* filled in by bench_time */
  double *time_ns;    /* [rounds] per call; owned by the entrant, freed by bench_entrant_clear */
  double *peak_flops; /* [rounds] rate of the peak loop in the same round, flop/s, of one core while all threads run
                         it; with `reads` bytes/s of all threads together */
  int *position;      /* [rounds] place in the round's order */
  int64_t iterations; /* calls per sample */
  int rounds;
} bench_entrant;

/* One call on the tensors whose turn it is (any number >= 0), and their output before and after it. */
attn_status bench_entrant_call(const bench_entrant *entrant, int64_t turn);
void bench_entrant_poison(const bench_entrant *entrant, int64_t turn);
uint64_t bench_entrant_output_hash(const bench_entrant *entrant, int64_t turn);

typedef enum bench_stop { BENCH_STOP_PRECISION, BENCH_STOP_ROUNDS, BENCH_STOP_BUDGET, BENCH_STOP_INTERRUPT } bench_stop;
const char *bench_stop_name(bench_stop stop);

/* Times all entrants together: at most max_rounds samples of each, fewer of those too slow for their share of the budget;
 * sample n of any two entrants belongs to the same round. All tensors of an entrant hold the same values. Returns 0, or
 * -1 with *error set: an entrant without PASS, a clock that does not tick, a run that failed, an output that differs from
 * the checked one. */
int bench_time(bench_entrant *entrants, int count, const bench_timing_options *options, bench_stop *stop,
               const char **error);
void bench_entrant_clear(bench_entrant *entrant);

#endif
