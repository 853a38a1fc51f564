/* SPDX-License-Identifier: MIT */
/* A trial: one kernel, or one layer, on one case while it is checked and timed. */
#ifndef BENCH_TRIAL_H
#define BENCH_TRIAL_H

#include "check/check.h"
#include "layers/layer.h"
#include "timing/rates.h"

/* What the rounds measured. */
typedef struct bench_samples {
  double *time_ns;    /* [rounds] per call */
  double *loop_rate;  /* [rounds] of the loop beside it in the same round: flop/s of one core while all threads run the peak
                         loop; bytes/s of all threads together for the read loop; 0 without a loop */
  double *busy;       /* [rounds] threads that were busy, by their CPU time */
  double *first_ns;   /* [rounds] the first call of the sample, where inputs differ from those of all calls before */
  int *position;      /* [rounds] place in the order of the round */
  int64_t iterations; /* calls per sample */
  int rounds;
} bench_samples;

typedef struct bench_trial {
  const attn_kernel_info *kernel; /* what runs; bench_automatic until the library has chosen */
  bool automatic;                 /* the library was asked to choose */
  bool refused;                   /* the kernel cannot run the case: the verdict says why */

  /* What runs: a plan on tensors, or a layer, which has its own data. The verdict holds for these and no others. */
  attn_plan *plan;
  bench_layer_trial *layer;
  bench_tensors *tensors; /* [tensor_count] with the same values; more than one where caches are to be cold */
  int tensor_count;       /* 1 for a layer */
  void *workspace;
  size_t workspace_bytes;
  bench_verdict verdict;
  double plan_ns; /* to make the plan or the layer */
  double call_ns; /* one call: a guess from the check, then as calibrated */
  char warnings[200];

  /* The loop that runs beside the samples. */
  const attn_peak_loop *peak; /* of the kernel's tier; NULL = none */
  bool reads;                 /* a loop that only reads K and V, instead of the peak loop */

  bench_samples samples; /* owned: bench_trial_clear() frees them */

  /* State of bench_time(). */
  bench_peak_slice slice; /* loop NULL: no peak loop */
  int quota;              /* rounds that the trial takes part in */
  int64_t *turn;          /* of the next call: it picks the tensors; of all trials that share them. NULL for one tensor */
} bench_trial;

/* Stands for the library's own choice in a list of kernels: name "auto". */
extern const attn_kernel_info bench_automatic;

/* Gives the trial its status and its reason. */
void bench_conclude(bench_trial *trial, bench_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Adds to the trial's warnings. */
void bench_warn(bench_trial *trial, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* One call on the tensors of a turn (any number >= 0), and their output before and after it. bench_trial_renew() changes the
 * inputs; the hash of the right output stays what it is. The poison changes from round to round: NaN, or small numbers. */
attn_status bench_trial_call(const bench_trial *trial, int64_t turn);
void bench_trial_renew(const bench_trial *trial, int64_t turn, int threads);
void bench_trial_poison(const bench_trial *trial, int64_t turn);
uint64_t bench_trial_output_hash(const bench_trial *trial, int64_t turn);

/* Room for the samples of so many rounds. False if memory is short. */
bool bench_trial_allocate(bench_trial *trial, int rounds);
void bench_trial_clear(bench_trial *trial);

#endif
