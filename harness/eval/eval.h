/* SPDX-License-Identifier: MIT */
/* `attnbench eval`: one problem on the user's own tensors. eval_load.c turns options and .npy files into a problem with its
 * data, eval_run.c runs the kernels on it. */
#ifndef BENCH_EVAL_H
#define BENCH_EVAL_H

#include "base/select.h"
#include "check/check.h"
#include "data/npy.h"

/* Every file that eval reads. */
typedef enum eval_file {
  EVAL_Q,
  EVAL_K,
  EVAL_V,
  EVAL_BIAS,
  EVAL_MASK,
  EVAL_SCORES,
  EVAL_SCORE_WEIGHT,
  EVAL_KV_LEN,
  EVAL_Q_LEN,
  EVAL_CU_SEQLENS_Q,
  EVAL_CU_SEQLENS_K,
  EVAL_OFFSET,
  EVAL_ALIBI,
  EVAL_SINKS,
  EVAL_EXPECT,
  EVAL_EXPECT_LSE,
  EVAL_FILES
} eval_file;

typedef struct eval_options {
  const char *path[EVAL_FILES];      /* NULL = not given; that of EVAL_OFFSET may be a whole number */
  const char *layout;                /* "bhsd" or "bshd" */
  const char *dtype;                 /* NULL = the files' own, "f32", "f16", "bf16" */
  const char *causal;                /* "none", "top-left", "bottom-right", "offset" */
  const char *score;                 /* NULL = "precomputed" with EVAL_SCORES, else "dot" */
  double scale;                      /* NaN = the default */
  double softcap;                    /* 0 = off */
  int64_t window_left, window_right; /* -1 = open */
  bool lse;                          /* ask the kernels for it */
} eval_options;

/* A problem and its data. */
typedef struct eval_input {
  bench_tensors tensors;       /* holds the problem as well; outputs are not written yet */
  int rank;                    /* dimensions of q, and so of o: 2, 3 or 4 */
  bool sequence_first;         /* o is [..., seq, heads, dim] */
  double *expect, *expect_lse; /* in the order of o and lse; NULL = not given */
  int exit_code; /* of a failure: BENCH_EXIT_USAGE for what does not fit, BENCH_EXIT_INTERNAL for unreadable files */
  char error[800];
} eval_input;

/* False with exit_code and error set. Checks every length, so that kernels and oracle stay within the tensors. */
bool eval_load(const eval_options *options, eval_input *input);
void eval_unload(eval_input *input);

/* What is done with the input. */
typedef struct eval_task {
  const char *save_o, *save_lse; /* NULL = not saved */
  int threads;
  bool time;
  double budget_s; /* of the timing */
} eval_task;

/* Runs, checks and perhaps times the kernels, and prints one row for each. Returns the exit code. */
int eval_run(const eval_task *task, eval_input *input, const bench_selection *selection);

/* The oracle's rows and limits with the values of the --expect files, where there are any. NULL if memory is short. */
bench_expected *eval_expect(const bench_expected *oracle, const eval_input *input);

/* Checks the values of the --expect files against the oracle. Overwrites o and lse. */
bench_verdict eval_check_expected(const bench_expected *oracle, const bench_expected *expected, const eval_input *input);

/* Write o (or the LSE) as .npy in q's layout; bfloat16 as uint16. 0, or -1 with a sentence in error. */
int eval_save_o(const eval_input *input, const char *path, char *error, size_t error_bytes);
int eval_save_lse(const eval_input *input, const char *path, char *error, size_t error_bytes);

#endif
