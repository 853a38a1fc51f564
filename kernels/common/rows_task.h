/* What the tiled algorithms share around their loops: which rows a task is about, how the thread's scratch is laid out,
 * and the run function with its two phases, pack and compute. */
#ifndef ATTN_COMMON_ROWS_TASK_H
#define ATTN_COMMON_ROWS_TASK_H

#include "pack.h"
#include "takes_everything.h"

/* rows x floats of a thread's scratch, and where they start. */
typedef struct scratch_part {
  int64_t *start, rows, floats;
} scratch_part;

/* Lays the parts out one behind the other, each on a cache line of its own. False if a size overflows. */
static bool lay_out_scratch(const scratch_part *parts, size_t count, int64_t *total) {
  *total = 0;
  for (size_t i = 0; i < count; i++) {
    int64_t floats;
    *parts[i].start = *total;
    if (__builtin_mul_overflow(parts[i].rows, parts[i].floats, &floats) || floats > INT64_MAX / 16) return false;
    if (__builtin_add_overflow(*total, round_up(floats, ATTN_MEMORY_ALIGN / 4), total)) return false;
  }
  return *total <= INT64_MAX / 8;
}

enum { RANGE_FLOATS = sizeof(attn_key_range) / sizeof(float) };

/* Floats of a thread's scratch, part by part. */
typedef struct scratch_layout {
  int64_t q, acc, row_max, row_sum, range, score, total;
} scratch_layout;

/* score_rows x score_stride floats of S. False if a size overflows. */
static inline bool scratch_layout_of(const attn_problem *p, int64_t capacity, int64_t score_rows, int64_t score_stride,
                                     scratch_layout *layout) {
  const scratch_part parts[] = {
      {&layout->q, capacity, p->dim_qk},        {&layout->acc, capacity, round_up(p->dim_v, VEC_LANES)},
      {&layout->row_max, capacity, 1},          {&layout->row_sum, capacity, VEC_LANES},
      {&layout->range, capacity, RANGE_FLOATS}, {&layout->score, score_rows, score_stride},
  };
  return lay_out_scratch(parts, sizeof parts / sizeof *parts, &layout->total);
}

/* Phases, tasks and memory of a tiled algorithm whose row block and scratch are given. */
static inline bool plan_phases(const attn_problem *p, int64_t row_block_rows, int64_t key_block, int64_t scratch_floats,
                               attn_schedule *schedule) {
  const int64_t group = p->heads_q / p->heads_kv, blocks = (p->seq_q + row_block_rows - 1) / row_block_rows;
  schedule->phases = 2;
  schedule->items[0] = (p->seq_k + PACK_KEYS - 1) / PACK_KEYS;
  schedule->items[1] = group * blocks;
  schedule->row_block = row_block_rows;
  schedule->key_block = key_block;
  schedule->scratch_bytes = (size_t)scratch_floats * sizeof(float);
  return packed_bytes(p, &schedule->unit_bytes);
}

/* Visits the tiles of one row block and leaves acc, row_max and row_sum behind. */
typedef void (*attend_fn)(const attn_schedule *schedule, const row_block *block, int64_t capacity);

/* Rows past the sequence's queries exist in o, but see nothing. */
static inline void compute_rows(const attn_schedule *schedule, const attn_args *args, attn_task task, float *unit_memory,
                                float *scratch, int64_t score_rows, int64_t score_stride, attend_fn attend) {
  const attn_problem *p = &schedule->problem;
  const int64_t group = p->heads_q / p->heads_kv, blocks = schedule->items[1] / group;
  const int64_t b = task.unit / p->heads_kv, head = task.unit % p->heads_kv * group + task.item % group;
  const attn_sequence seq = attn_sequence_of(p, args, b);
  const int64_t first_row = (blocks - 1 - task.item / group) * schedule->row_block; /* causal: the longest come first */
  const int64_t rows = min64(schedule->row_block, attn_rows(p, &seq) - first_row);
  if (rows <= 0) return;
  const int64_t capacity = round_up(rows, TILE_ROWS);
  scratch_layout at;
  scratch_layout_of(p, round_up(schedule->row_block, TILE_ROWS), score_rows, score_stride, &at);
  row_block block = {
      .problem = p,
      .args = args,
      .seq = &seq,
      .b = b,
      .head = head,
      .first_row = first_row,
      .rows = rows,
      .rows_per_head = rows,
      .keys = packed_keys_at(p, args, &seq, b, head, unit_memory),
      .q = scratch + at.q,
      .acc = scratch + at.acc,
      .row_max = scratch + at.row_max,
      .row_sum = scratch + at.row_sum,
      .range = (attn_key_range *)(void *)(scratch + at.range),
      .score = scratch + at.score,
      .q_stride = p->dim_qk,
      .acc_stride = round_up(p->dim_v, VEC_LANES),
      .score_stride = score_stride,
      .adjusted = scores_adjusted(p),
      .shifted = scores_shifted(p),
      .first_try = true,
  };
  start_rows(&block, capacity);
  attend(schedule, &block, capacity);
  if (finish_rows(&block)) return;
  block.first_try = false;
  block.careful = true;
  start_rows(&block, capacity);
  attend(schedule, &block, capacity);
  finish_rows(&block);
}

#endif
