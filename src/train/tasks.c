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
  attn_parallel_run(&resolved, tasks, run_task, &w);
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

static void sum_strip(void *context, int64_t strip, int worker) {
  const attn_train_columns *c = context;
  (void)worker;
  double sums[TRAIN_STRIP] = {0};
  const int64_t first = strip * TRAIN_STRIP, count = min64(TRAIN_STRIP, c->width - first);
  for (int64_t r = 0; r < c->rows; r++) {
    const float *a = c->a + r * c->width + first;
    if (c->s) {
      const float *s = c->s + r * c->width + first;
      const float shift = c->moments[2 * r], scale = c->moments[2 * r + 1];
      for (int64_t i = 0; i < count; i++) sums[i] += (double)(a[i] * ((s[i] - shift) * scale));
    } else {
      for (int64_t i = 0; i < count; i++) sums[i] += (double)a[i];
    }
  }
  float *to = c->sums + first;
  for (int64_t i = 0; i < count; i++) to[i] = (float)(c->accumulate ? (double)to[i] + sums[i] : sums[i]);
}

attn_status attn_train_sum_columns(const attn_options *options, const attn_train_columns *columns) {
  attn_train_columns c = *columns;
  return attn_train_tasks(options, c.rows * c.width * (c.s ? 2 : 1), ceil_div(c.width, TRAIN_STRIP), sum_strip, &c);
}
