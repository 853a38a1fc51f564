/* SPDX-License-Identifier: MIT */
/* Loops over threads: tasks are cut by sizes alone, never by the number of threads. */
#include "src/train/tasks.h"

#include "kernels/common/problem/arithmetic.h"
#include "src/api/float_mode.h"
#include "src/plan/parallel.h"

typedef struct wrapped {
  attn_task_fn task;
  void *context;
} wrapped;

static void run_task(void *context, int64_t i, int worker) {
  const wrapped *w = context;
  const uint64_t mode = attn_float_mode_enter();
  w->task(w->context, i, worker);
  attn_float_mode_leave(mode);
}

attn_status attn_train_tasks(const attn_options *options, int64_t elements, int64_t tasks, attn_task_fn task,
                             void *context) {
  attn_options wanted, resolved;
  attn_status status = attn_options_read(options, &wanted);
  if (status == ATTN_OK) status = attn_parallel_resolve(&wanted, &resolved);
  if (status != ATTN_OK || tasks == 0) return status;
  if (wanted.threads == 0 && !attn_parallel_pays_for_elements(elements)) resolved.threads = 1;
  wrapped w = {task, context};
  attn_parallel_run_near(&resolved, tasks, run_task, &w);
  return ATTN_OK;
}

/* ---- Parts of arrays ---- */

typedef struct parts {
  attn_train_part part;
  void *context;
  int64_t count;
} parts;

static void run_part(void *context, int64_t i, int worker) {
  const parts *p = context;
  (void)worker;
  p->part(p->context, i * TRAIN_BLOCK, min64(TRAIN_BLOCK, p->count - i * TRAIN_BLOCK));
}

attn_status attn_train_parts(const attn_options *options, int64_t count, attn_train_part part, void *context) {
  parts p = {part, context, count};
  return attn_train_tasks(options, 3 * count, ceil_div(count, TRAIN_BLOCK), run_part, &p);
}

/* ---- Sums over rows ---- */

typedef struct columns_run {
  const attn_train_columns *c;
  const attn_row_gradients *functions;
} columns_run;

static void sum_strip(void *context, int64_t strip, int worker) {
  const attn_train_columns *c = ((columns_run *)context)->c;
  (void)worker;
  double sums[TRAIN_STRIP];
  const int64_t first = strip * TRAIN_STRIP, count = min64(TRAIN_STRIP, c->width - first);
  ((columns_run *)context)->functions->sum_rows(c->x + first, c->width, c->rows, count, sums);
  for (int64_t i = 0; i < count; i++)
    c->to[first + i] = (float)(c->accumulate ? (double)c->to[first + i] + sums[i] : sums[i]);
}

attn_status attn_train_sum_columns(const attn_options *options, const attn_train_columns *columns) {
  columns_run r = {columns, attn_row_gradients_choose(options)};
  if (!r.functions) return ATTN_INVALID_ARGUMENT;
  return attn_train_tasks(options, columns->rows * columns->width, ceil_div(columns->width, TRAIN_STRIP), sum_strip, &r);
}
