/* SPDX-License-Identifier: MIT */
/* decode's plan, its memory, and the rows of a task. Parameters: those of products.h. */
#ifndef ATTN_COMMON_DECODE_PLAN_H
#define ATTN_COMMON_DECODE_PLAN_H

#include "kernels/common/problem/rejects.h"
#include "split_keys.h"

#ifndef DECODE_PRODUCTS
#include "products.h"
#endif

static const char *decode_rejects(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  if (p->score != ATTN_SCORE_DOT) return "it computes dot scores only: other score functions gain nothing from few rows";
  if (p->k_stride.d != 1 || p->v_stride.d != 1)
    return "it reads K and V in place, so their head dimension must be dense (k_stride.d = v_stride.d = 1)";
  return too_many_rows(p, DECODE_ROWS, buffer, buffer_bytes);
}

/* The same for kernels whose products multiply bf16 values. */
static inline const char *decode_rejects_all_but_bf16(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  const char *reason = takes_bf16(p, buffer, buffer_bytes);
  return reason ? reason : decode_rejects(p, buffer, buffer_bytes);
}

/* ---- Memory: the state of every row, once per split ---- */

typedef struct split_layout {
  int64_t capacity;                     /* rows of a KV head, whole tiles */
  int64_t acc_stride;                   /* floats */
  int64_t acc, row_max, row_sum, total; /* offsets in bytes, and the size */
} split_layout;

/* False if a size overflows. */
static bool split_layout_of(const attn_problem *p, split_layout *at) {
  *at = (split_layout){.capacity = decode_capacity(rows_per_kv_head(p)), .acc_stride = decode_columns(p)};
  const memory_part parts[] = {{&at->acc, at->capacity, float_bytes(at->acc_stride)},
                               {&at->row_max, at->capacity, float_bytes(1)},
                               {&at->row_sum, at->capacity, float_bytes(VEC_LANES)}};
  return LAY_OUT(parts, &at->total);
}

/* Offsets in a thread's scratch, in bytes. */
typedef struct decode_scratch {
  int64_t q, range, score, own, total;
  products_layout products; /* from `own` on */
} decode_scratch;

static bool decode_scratch_of(const attn_problem *p, const attn_machine *machine, int64_t capacity, decode_scratch *at) {
  if (!products_layout_of(p, machine, capacity, &at->products)) return false;
  const memory_part parts[] = {
      {&at->q, FLOAT_QUERIES ? capacity : 0, float_bytes(round_up(p->dim_qk, VEC_LANES))},
      {&at->range, capacity, sizeof(attn_key_range)},
      {&at->score, DECODE_KNOBS.tile_rows, float_bytes(DECODE_SCORE_STRIDE)},
      {&at->own, 1, at->products.total},
  };
  at->total = 0;
  return LAY_OUT(parts, &at->total);
}

/* Plan data. */
typedef struct decode_layout {
  split_layout state;
  decode_scratch scratch;
} decode_layout;
_Static_assert(sizeof(decode_layout) <= ATTN_OWN_BYTES, "attn_schedule.own holds it");

/* Behind the states of the splits: the one that pieces of keys before have left. */
static int64_t carried_states(const attn_problem *p) { return attn_uses(p, ATTN_USE_STATE) ? 1 : 0; }

static bool decode_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  decode_layout *at = (void *)schedule->own;
  int64_t states, unit = 0;
  if (!split_layout_of(p, &at->state) || !decode_scratch_of(p, machine, at->state.capacity, &at->scratch)) return false;
  const memory_part parts[] = {{&states, split_count(p) + carried_states(p), at->state.total}};
  if (!LAY_OUT(parts, &unit)) return false;
  schedule->phases = 2;
  schedule->items[0] = split_count(p);
  schedule->items[1] = 1;
  schedule->row_block = at->state.capacity;
  schedule->key_block = SPLIT_KEYS;
  schedule->unit_bytes = (size_t)unit;
  schedule->scratch_bytes = (size_t)at->scratch.total;
  return true;
}

/* ---- The rows of a task ---- */

typedef struct decode_task {
  const attn_problem *problem;
  const attn_args *args;
  attn_sequence seq;
  int64_t head, splits; /* head: the first of the query heads that share the unit's KV head */
  void *unit_memory, *scratch;
  const split_layout *state;
  const decode_scratch *at;
} decode_task;

static decode_task decode_task_of(const attn_schedule *schedule, const attn_args *args, int64_t unit, void *unit_memory,
                                  void *scratch) {
  const attn_problem *p = &schedule->problem;
  const decode_layout *layout = (const void *)schedule->own;
  return (decode_task){.problem = p,
                       .args = args,
                       .seq = attn_sequence_of(p, args, attn_batch_of_unit(p, unit)),
                       .head = attn_head_of_unit(p, unit),
                       .splits = schedule->items[0],
                       .unit_memory = unit_memory,
                       .scratch = scratch,
                       .state = &layout->state,
                       .at = &layout->scratch};
}

/* The block of all rows that share the unit's KV head, with the state of one split. */
static row_block decode_rows(const decode_task *t, int64_t split) {
  const attn_problem *p = t->problem;
  void *state = (char *)t->unit_memory + split * t->state->total;
  return (row_block){
      .problem = p,
      .args = t->args,
      .seq = &t->seq,
      .b = t->seq.b,
      .head = t->head,
      .rows = attn_group(p) * t->seq.rows,
      .rows_per_head = t->seq.rows,
      .acc = floats_at(state, t->state->acc),
      .row_max = floats_at(state, t->state->row_max),
      .row_sum = floats_at(state, t->state->row_sum),
      .range = (attn_key_range *)(void *)floats_at(t->scratch, t->at->range),
      .q_stride = round_up(p->dim_qk, VEC_LANES),
      .acc_stride = t->state->acc_stride,
      .score_stride = DECODE_SCORE_STRIDE,
      .adjusted = true, /* the reference is not subtracted from scores yet */
      .first_try = true,
  };
}

#endif
