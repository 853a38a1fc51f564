/* SPDX-License-Identifier: MIT */
/* Prefetches what the next tasks of flash begin with, while the products of this one leave memory idle: the queries
 * of the next task, this task's share of K and V of the next unit or what a window brings in, and the rows of O that this
 * task will write. Packing K, loading queries and storing O are short loops that would wait for every line.
 *
 * Only calls whose tensors do not fit level 2 together prefetch: in the others the lines are there already, and prefetches
 * would cost up to 2 %. Parameters: those of tiles.h. */
#ifndef ATTN_COMMON_COLD_LINES_H
#define ATTN_COMMON_COLD_LINES_H

#include "kernels/common/memory/prefetch.h"
#include "rows_io.h"

enum {
  PANEL_LINES =
      PANEL_KEYS < 16 ? 1 : PANEL_KEYS / 16 /* lines of each tensor for each panel of a tile: enough for 384 tokens */
};

/* Lines of rows, in the order in which they lie. */
typedef struct line_walk {
  uintptr_t next;
  int64_t rows, left, row; /* rows to come; lines left of this one, and of a whole one */
  uintptr_t gap;           /* bytes from the end of a row to the next one */
} line_walk;

typedef struct cold_lines {
  bool any;
  line_walk q, k, v, o;
} cold_lines;

static line_walk walk_of(const row_source *from, int64_t rows) {
  const attn_dtype dtype = from->from.dtype;
  const int64_t lines = ceil_div(attn_elements_bytes(dtype, from->columns), LINE_BYTES);
  return (line_walk){.next = (uintptr_t)attn_element_at(from->from.data, dtype, from->offset),
                     .rows = from->from.data && lines > 0 ? rows : 0,
                     .left = lines,
                     .row = lines,
                     .gap = (uintptr_t)(attn_elements_bytes(dtype, from->row_stride) - lines * LINE_BYTES)};
}

static inline void prefetch_walk(line_walk *walk) {
  for (int i = 0; i < PANEL_LINES && walk->rows > 0; i++) {
    __builtin_prefetch((const void *)walk->next, 0, 2);
    walk->next += LINE_BYTES;
    if (--walk->left > 0) continue;
    walk->left = walk->row;
    walk->next += walk->gap;
    walk->rows--;
  }
}

static inline void prefetch_cold_lines(cold_lines *cold) {
  if (!cold->any) return;
  prefetch_walk(&cold->q);
  prefetch_walk(&cold->k);
  prefetch_walk(&cold->v);
  prefetch_walk(&cold->o);
}

/* Whether the call's tensors, counted as floats, stay in three quarters of level 2 from task to task: a call in 16 bits
 * reads half as much, and packs the other half. */
static bool fits_level_2(const attn_problem *p, const attn_machine *machine) {
  const int64_t dims = p->dim_qk + p->dim_v, heads = p->heads_q * p->seq_q + p->heads_kv * p->seq_k;
  return p->batch * heads <= machine->caches().level2 / 4 * 3 / (int64_t)sizeof(float) / dims;
}

/* The compute task whose rows the block has, as task_rows_of counts. */
static attn_task task_of(const attn_schedule *schedule, const row_block *block) {
  const attn_problem *p = block->problem;
  const int64_t group = attn_group(p), blocks = schedule->items[1] / group, before = block->first_row / schedule->row_block;
  return (attn_task){.phase = 1,
                     .unit = block->b * p->heads_kv + attn_kv_head(p, block->head),
                     .item = (blocks - 1 - before) * group + block->head % group};
}

static void expect_queries(const attn_schedule *schedule, const row_block *block, attn_task next, cold_lines *cold) {
  const attn_problem *p = block->problem;
  const task_rows rows = task_rows_of(schedule, block->args, next);
  const row_source q = {.from = attn_q_storage(p, block->args),
                        .offset = attn_q_offset(p, &rows.seq, rows.b, rows.head, rows.first_row),
                        .row_stride = p->q_stride.s,
                        .columns = p->dim_qk};
  cold->q = walk_of(&q, rows.rows);
}

/* The share of the unit's keys that falls to task `item`. */
static void expect_keys(const attn_schedule *schedule, const row_block *block, int64_t unit, int64_t item,
                        cold_lines *cold) {
  const unit_keys keys = keys_of_unit(block->problem, block->args, unit);
  const int64_t share = ceil_div(max64(keys.used.end - keys.used.begin, 0), schedule->items[1]);
  const int64_t first = keys.used.begin + item * share, count = min64(share, keys.used.end - first);
  if (count <= 0) return;
  const attn_key_run run = run_of_unit(&keys, first);
  const row_source k = k_rows(&keys, run), v = v_rows(&keys, run);
  cold->k = walk_of(&k, min64(run.keys, count));
  cold->v = walk_of(&v, min64(run.keys, count));
}

/* With a window, where K is packed in panels: packed K, and V, of the keys that the next rows see and this block's do not.
 * Rows are taken from the last to the first (task_rows_of), so windows slide down. */
static void expect_window(const row_block *block, cold_lines *cold) {
  const attn_problem *p = block->problem;
  const packed_keys *keys = &block->keys;
  const int64_t end = keys_of_block(block).begin, begin = max64(end - block->rows, 0);
  const int64_t panel = round_down(begin, PANEL_KEYS), panels = round_up(end, PANEL_KEYS) - panel;
  const row_source k = {.from = {keys->k, ATTN_F32}, .offset = panel * p->dim_qk, .columns = panels * p->dim_qk};
  const row_source v = {
      .from = {keys->v, ATTN_F32}, .offset = begin * keys->v_stride, .row_stride = keys->v_stride, .columns = p->dim_v};
  cold->k = walk_of(&k, 1);
  cold->v = walk_of(&v, end - begin);
}

/* `any`: whether the call prefetches. */
static cold_lines cold_lines_of(const attn_schedule *schedule, const row_block *block, bool any) {
  const attn_problem *p = block->problem;
  cold_lines cold = {.any = any};
  if (!cold.any) return cold;
  const attn_task task = task_of(schedule, block);
  const int64_t next_unit = task.unit + schedule->wave_units;
  const bool last = task.item + 1 == schedule->items[1];
  const row_source o = {.from = {block->args->o, p->dtype_o},
                        .offset = attn_o_offset(p, block->seq, block->b, block->head, block->first_row),
                        .row_stride = p->o_stride.s,
                        .columns = p->dim_v};
  cold.o = walk_of(&o, block->rows);
  if (!last || next_unit < schedule->units)
    expect_queries(schedule, block, (attn_task){1, last ? next_unit : task.unit, last ? 0 : task.item + 1}, &cold);
  if (next_unit < schedule->units) expect_keys(schedule, block, next_unit, task.item, &cold);
  if (!last && p->window_left >= 0 && block->keys.k) expect_window(block, &cold);
  return cold;
}

#endif
