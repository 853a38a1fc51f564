/* SPDX-License-Identifier: MIT */
/* `attnbench eval`: one problem on the user's own tensors. eval_load.c turns options and .npy files into a problem with its
 * data, eval_run.c runs the kernels on it. */
#ifndef BENCH_EVAL_H
#define BENCH_EVAL_H

#include "base/select.h"
#include "check/check.h"
#include "data/npy.h"

/* Every file that eval reads: constant, option, the tensor that it fills. */
#define EVAL_FILE_LIST(FILE)                               \
  FILE(Q, "--q", BENCH_Q)                                  \
  FILE(K, "--k", BENCH_K)                                  \
  FILE(V, "--v", BENCH_V)                                  \
  FILE(BIAS, "--bias", BENCH_BIAS)                         \
  FILE(MASK, "--mask", BENCH_MASK)                         \
  FILE(SCORES, "--scores", BENCH_SCORES)                   \
  FILE(SCORE_WEIGHT, "--score-weight", BENCH_SCORE_WEIGHT) \
  FILE(KV_LEN, "--kv-len", BENCH_KV_LEN)                   \
  FILE(Q_LEN, "--q-len", BENCH_Q_LEN)                      \
  FILE(CU_SEQLENS_Q, "--cu-seqlens-q", BENCH_CU_SEQLENS_Q) \
  FILE(CU_SEQLENS_K, "--cu-seqlens-k", BENCH_CU_SEQLENS_K) \
  FILE(OFFSET, "--offset", BENCH_OFFSETS)                  \
  FILE(ALIBI, "--alibi", BENCH_ALIBI_SLOPES)               \
  FILE(SINKS, "--sinks", BENCH_SINKS)                      \
  FILE(EXPECT, "--expect", BENCH_TENSORS)                  \
  FILE(EXPECT_LSE, "--expect-lse", BENCH_TENSORS)

typedef enum eval_file {
#define FILE_CONSTANT(constant, ...) EVAL_##constant,
  EVAL_FILE_LIST(FILE_CONSTANT)
#undef FILE_CONSTANT
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

/* 0, or an exit code after a sentence on stderr: an output that is also an input or the other output, or that cannot be
 * written. Reads and writes nothing, so ask before eval_load(). */
int eval_check_outputs(const eval_options *options, const eval_task *task);

/* Runs, checks and perhaps times the kernels, and prints one row for each. Returns the exit code. */
int eval_run(const eval_task *task, eval_input *input, const bench_selection *selection);

#endif
