/* SPDX-License-Identifier: MIT */
/* A setup (one case and what all its trials share), and the rows that come out of it. */
#ifndef BENCH_SETUP_H
#define BENCH_SETUP_H

#include "base/select.h"
#include "cases/case.h"
#include "check/check.h"
#include "timing/stats.h"
#include "timing/trial.h"

/* Missing values: "" in texts, -1 in whole numbers, NaN in the others. */
typedef struct bench_row {
  char run_id[48];

  /* the case */
  char case_id[BENCH_NAME];
  char dtype_q[BENCH_WORD], dtype_kv[BENCH_WORD], dtype_o[BENCH_WORD];
  int64_t batch, heads_q, heads_kv, seq_q, seq_k, dim_qk, dim_v, threads;
  char score[BENCH_WORD], causal[BENCH_WORD], align[BENCH_WORD], window[64], mask[BENCH_WORD], bias[BENCH_WORD];
  char alibi[BENCH_WORD], sinks[BENCH_WORD], lengths[BENCH_WORD], layout[BENCH_WORD], cache[BENCH_WORD];
  double softcap;
  char layer[BENCH_WORD];
  int64_t width;        /* a layer's d_model */
  char other_axes[128]; /* "magnitude:10/lse:on": not at their defaults, and without a member here */

  /* the kernel; where the library chose it, its name is "auto" */
  char kernel[64], algorithm[32], isa[32], library[128];

  /* the check; errors and rows_checked mean nothing after SKIP and ERROR */
  bench_verdict verdict;
  char product[64]; /* kernel of a layer's dense layers */
  char warnings[200];

  /* the times; missing unless time.n > 0 */
  bench_summary time;              /* ns per call */
  double *samples_ns;              /* [time.n], in round order; owned */
  int *positions;                  /* [time.n], place of each sample in its round; owned */
  double *peaks;                   /* [time.n], flop/s of all threads in the loop beside; 0: none; owned */
  int64_t iterations;              /* calls per sample */
  double plan_ns, workspace_bytes; /* attn_plan_create, and what the plan asks for */
  double flops, bytes;             /* for one call: allowed pairs only; Q, K, V and O once */
  double gflops, gbs;              /* the same, 1e9 per second, by the median */
  double threads_counted;          /* busy threads by their CPU time; median over the rounds */
  double undisturbed_pct;          /* samples that are undisturbed (bench_sample_is_undisturbed()) */
  double peak_gflops, peak_pct;    /* rate of the tier's loop on all threads; median share over the rounds */
  double peak_gbs, bw_pct;         /* rate of the loop that reads the same bytes in place, and the share reached */
  char level[8];                   /* cache level in which these bytes lie: "L1" ... "memory" */
  char baseline[64];               /* the kernel that ratio compares with */
  bench_summary ratio;             /* time of the baseline / this time: > 1 is faster */
  double ratio_best;               /* time of the best kernel / this time */
  double noise;                    /* A/A control of the case: |ratio - 1| */
  double projections_pct, attention_pct, rest_pct; /* shares of a layer's time */
  bench_stop stop;
} bench_row;

/* A row that says which case and kernel it is of (NULL: none yet), and nothing else. */
bench_row bench_row_create(const bench_case *bench, const attn_kernel_info *kernel);

/* Gives the row the algorithm, tier and library of a kernel, not its name. */
void bench_row_set_origin(bench_row *row, const attn_kernel_info *kernel);

/* Frees what the row owns, and empties it. */
void bench_row_clear(bench_row *row);

/* ---- Setups ------------------------------------------------------------------------------------------------------- */

enum {
  BENCH_MAX_ROTATIONS = 512,
  BENCH_FEW_ROUNDS = 4, /* a kernel that does not fit so often into the budget of its case is not timed */
};

#define BENCH_ROOF 1.05 /* share of the peak or read loop: a faster time is an error */

#define BENCH_MEMORY_SHARE 0.8 /* share of the free memory, for one case */

/* A sample repeats the call until it lasts this long: much longer than a timer interrupt, much shorter than a second. */
#define BENCH_MIN_SAMPLE_S 2e-3

typedef struct bench_case_settings {
  bool timed;
  bool structure; /* also the structural tests, on what passed */
  double case_budget_s, precision;
  int rounds; /* exactly so many; 0 = until the interval is narrow enough */
  uint64_t seed;
  volatile const int *stop;                                          /* nonzero: finish the round */
  void (*note)(void *context, const char *what, const char *kernel); /* tells what happens now */
  void *note_context;
  const bench_meter *meter; /* NULL = bench_machine_meter */
} bench_case_settings;

typedef struct bench_setup {
  const bench_case *bench;
  const bench_case_settings *settings;
  bench_trial trials[BENCH_MAX_KERNELS + 1]; /* one per kernel that was asked for */
  int count;
  bench_tensors tensors[BENCH_MAX_ROTATIONS];
  int rotations; /* tensors made so far */
  int64_t
      turn; /* place in the rotation: the trials use one copy after the other, so that each is cold when it is used again */
  bench_expected *expected;
  uint64_t expected_of; /* the rewritten inputs that it is of */
  bench_layer *layer;   /* instead of tensors and expected */
  double flops, bytes;  /* for one call */
  uint64_t input_hash;  /* hash of tensors[0] before anything was timed */
  bool inputs_lost;     /* a kernel has overwritten them */

  /* Set by bench_setup_time(). */
  bench_trial control;           /* the A/A control: the quickest trial once more */
  const bench_trial *controlled; /* the trial that the control repeats; NULL: nothing was timed */
  bench_placing placing;         /* which rounds shared a placement */
  double *read_rates;            /* [read_rounds] bytes/s of the read loop; NULL: none can read what the case reads. Owned */
  int read_rounds;
  char level[8];   /* cache level that holds what a call reads, or all rotations; "" = not known */
  bench_stop stop; /* why the last round was the last */
} bench_setup;

/* Why a case cannot run with kernels[index], or NULL. */
const char *bench_refusal(const bench_case *bench, const attn_kernel_info *const *kernels, int count, int index);

/* Opens a case: its tensors, the oracle's answer and one trial per kernel, not checked yet. Where data cannot be made, all
 * trials say why. NULL if memory is short. */
bench_setup *bench_setup_open(const bench_case *bench, const attn_kernel_info *const *kernels, int count,
                              const bench_case_settings *settings);
void bench_setup_close(bench_setup *setup); /* NULL is fine */

/* Lets the oracle answer to tensors[0]. False, with verdicts, if memory is short. */
bool bench_setup_ask_oracle(bench_setup *setup);

/* The clock and counters that measure the case. */
const bench_meter *bench_setup_meter(const bench_setup *setup);

/* Median over the rounds of the share of the read loop that ran beside each sample; NaN without one. */
double bench_read_share(const bench_setup *setup, const bench_trial *trial);

/* Bytes of the last-level cache; a usual size where the system does not say. */
double bench_last_cache_bytes(void);

/* The smallest level of cache that holds so many bytes of each of `threads` cores: "L1", "L2", "L3", or "memory"; "" where
 * the system does not say how large its caches are. */
const char *bench_level_of(double bytes, int threads);

/* Makes and checks the trials one after the other: each has its verdict then. False if *settings->stop cut it short. */
bool bench_setup_check(bench_setup *setup);

/* Copies the tensors as often as the case's caches ask for, gives them to the trials, and prepares them for inputs that no
 * call has seen. Warm: one copy for each call of a group (bench_trial.group), as long as all are in the level of cache that
 * holds one; where they would not be, they share all inputs but q. Trials become ERROR if memory is short. */
void bench_setup_rotate(bench_setup *setup);

/* Frees the plan and workspace of a trial; and makes them again. */
void bench_setup_close_plan(bench_trial *trial);
void bench_setup_reopen_plan(bench_setup *setup, bench_trial *trial);

/* Chooses the peak loop that runs beside a checked trial, and resets the times of its layer's parts. */
void bench_setup_prepare_trial(const bench_setup *setup, bench_trial *trial);

/* Times the trials that passed, in common rounds. One that cheats or fails becomes ERROR, and the others are timed again
 * without it. */
void bench_setup_time(bench_setup *setup);

/* The trial to blame for what is wrong with a failed one: that one, or another that disturbs it. NULL: nothing is wrong any
 * more. */
bench_trial *bench_setup_find_cause(bench_setup *setup, bench_trial *failed);

/* Whether more threads were busy than the trial has, its calls waited, or it worked when its output was read: says so. */
bool bench_trial_works_aside(const bench_trial *trial, char *sentence, size_t bytes);

/* Gives a trial with an impossible time ERROR and a sentence, and drops its samples: it was faster than the peak loop, or
 * than the loop that only reads, or kept more threads busy than the case has. If it kept fewer busy, it gets a warning. To
 * be called after bench_time(); setup->read_rates, if they are set, are the limit of reading. */
void bench_setup_check_time(bench_setup *setup, bench_trial *trial);

/* Median over the rounds of the share of the peak that ran beside each sample; NaN without a peak loop. */
double bench_peak_share(const bench_trial *trial, double flops, int threads);

/* The row of one trial, without comparisons. The trial's samples move there. */
bench_row bench_setup_row(const bench_setup *setup, bench_trial *trial);

/* Compares the times of two trials in the rounds that both have; and the A/A control's with its kernel's, if anything was
 * timed. */
bench_pairs bench_setup_pairs(const bench_setup *setup, const bench_trial *a, const bench_row *row_a, const bench_trial *b,
                              const bench_row *row_b);
bench_pairs bench_setup_control(const bench_setup *setup, const bench_row *rows);

/* The rows of all trials. */
void bench_setup_rows(bench_setup *setup, bench_row *rows);

/* Says what happens now. */
void bench_note(const bench_setup *setup, const char *what, const char *kernel);

/* One case from its description to its rows. Fills rows[count], one per kernel, whatever happens: what could not run is SKIP
 * or ERROR with the reason. The caller clears them. False if *settings->stop cut it short before the checks were done: the
 * rows are then of no use. */
bool bench_run_case(const bench_case *bench, const attn_kernel_info *const *kernels, int count,
                    const bench_case_settings *settings, bench_row *rows);

/* A guess at the seconds that bench_run_case() takes. */
double bench_cases_guess(const bench_case *cases, int count, double case_budget_s, bool timed); /* all kernels of this CPU */
double bench_case_guess(const bench_case *bench, const attn_kernel_info *const *kernels, int count,
                        const bench_case_settings *settings);

#endif
