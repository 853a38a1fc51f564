/* SPDX-License-Identifier: MIT */
/* Loops over threads, and sums over the rows of a matrix, for all of training. */
#ifndef ATTN_TRAIN_TASKS_H
#define ATTN_TRAIN_TASKS_H

#include "attn/train.h"
#include "src/nn/check.h"

enum {
  TRAIN_BLOCK = 4096, /* elements of a task */
  TRAIN_STRIP = 64    /* columns of a task that goes down all rows: four lines, and sums on the stack */
};

/* task(context, i, worker) for each i below `tasks`, in the default floating-point mode. `elements` are read or written in
 * all: few take one thread, unless the caller has named a number. */
attn_status attn_train_tasks(const attn_options *options, int64_t elements, int64_t tasks, attn_task_fn task, void *context);

/* The same for parts of `count` elements: part(context, first, elements). */
typedef void (*attn_train_part)(void *context, int64_t first, int64_t count);
attn_status attn_train_parts(const attn_options *options, int64_t count, attn_train_part part, void *context);

/* to[c] = the sum over rows of x[r][c], in float64, row by row; `accumulate` adds it to what stands there. */
typedef struct attn_train_columns {
  int64_t rows, width;
  const float *x;
  float *to;
  bool accumulate;
} attn_train_columns;
attn_status attn_train_sum_columns(const attn_options *options, const attn_train_columns *columns);

#endif
