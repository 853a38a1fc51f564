/* SPDX-License-Identifier: MIT */
/* The rows of `eval`: one trial per kernel on the user's tensors (eval_run.c), and how they are printed (eval_print.c). */
#ifndef BENCH_EVAL_ROWS_H
#define BENCH_EVAL_ROWS_H

#include "base/select.h"
#include "eval/eval.h"
#include "timing/trial.h"

typedef struct eval_row {
  char name[80];
  bench_trial trial; /* kernel NULL: the row of the --expect files; plan NULL: not run; no samples: not timed */
} eval_row;

typedef struct eval_rows {
  const eval_task *task;
  eval_input *input;
  bench_expected *oracle, *expected;   /* expected: NULL without --expect */
  eval_row row[BENCH_MAX_KERNELS + 2]; /* the --expect files, the automatic choice and the kernels */
  int count;
  bool saved;
  int exit_code; /* of what failed beside the checks */
} eval_rows;

/* The problem in one line, and the table. */
void eval_print(const eval_rows *rows);

#endif
