/* SPDX-License-Identifier: MIT */
/* A block of query rows: its inputs, and its state between key blocks. Nothing here depends on a tier, because
 * library-backed kernels, compiled with baseline flags, pass blocks to a tier's code (kernels/library/score_steps.h). */
#ifndef ATTN_COMMON_ROW_BLOCK_H
#define ATTN_COMMON_ROW_BLOCK_H

#include <assert.h>

#include "attn/kernel.h"
#include "kernels/common/memory/memory.h"
#include "kernels/common/problem/convert.h"
#include "kernels/common/problem/indexing.h"

static const float LOG2_E = 0x1.715476p+0f; /* scores are kept in log2 units: exp(s) = 2^(s log2(e)) */

/* K and V of one KV head as the tiles read them. */
typedef struct packed_keys {
  const float *k;   /* [panel][dim_qk][PANEL_KEYS]: keys in lanes; keys beyond the sequence are 0 */
  const float *v;   /* row of key 0: dim_v floats, readable up to a multiple of VEC_LANES; NULL: in place, run by run */
  int64_t v_stride; /* floats from one key's row to the next's */
} packed_keys;

/* Query rows that are computed together, and their state: rows first_row .. of one head, or rows_per_head rows of each of
 * several heads that share a KV head. `capacity` is `rows` rounded up to TILE_ROWS. Rows beyond `rows` are computed like the
 * others, on zero queries, and never stored. */
typedef struct row_block {
  const attn_problem *problem;
  const attn_args *args;
  const attn_sequence *seq;
  int64_t b, head, first_row, rows, rows_per_head;
  packed_keys keys;

  float *q;              /* [capacity][q_stride], for dot scores times scale log2(e); 0 beyond dim_qk */
  float *acc;            /* [capacity][acc_stride]: O before division */
  float *row_max;        /* [capacity]: reference of the exponentials, log2 units */
  float *row_sum;        /* [capacity][VEC_LANES]: sum of P, one partial sum per lane */
  attn_key_range *range; /* [capacity]: keys that the row may see */
  float *score;          /* [rows of S kept][score_stride]: S, then P */
  uint8_t *listed;       /* with lists of key blocks, of each block of keys: whether its list has it (key_blocks.h) */
  int64_t q_stride, acc_stride, score_stride;
  const philox_dropout *dropout; /* P is dropped by it; NULL: none */
  bool adjusted;                 /* scores are more than dot products: scores.h has the rest */
  bool shifted;     /* flash: the additions are terms that sums can start from (shift_of), and masks (select_keys) */
  bool alike;       /* all rows have the same range */
  bool own_queries; /* the kernel loads Q itself, in a form of its own */
  bool direct;    /* flash: each tile sees all of its keys at once and goes straight to O, so that acc need not be cleared */
  bool first_try; /* finish_rows may ask for a second one */
  bool careful;   /* second try: do not read V of masked keys (accumulate_tile) */
} row_block;

/* The problem's row that row i of a block is. Rows beyond the last repeat the last. */
typedef struct problem_row {
  int64_t head, query;
} problem_row;

static inline problem_row problem_row_of(const row_block *block, int64_t i) {
  assert(i >= 0 && block->rows > 0 && block->rows_per_head > 0);
  i = min64(i, block->rows - 1);
  if (i < block->rows_per_head) return (problem_row){block->head, block->first_row + i};
  return (problem_row){block->head + i / block->rows_per_head, block->first_row + i % block->rows_per_head};
}

/* Whether row i may see the key. */
static inline bool row_sees(const row_block *block, int64_t i, int64_t key) {
  const problem_row at = problem_row_of(block, i);
  return block->range[i].begin <= key && key < block->range[i].end &&
         attn_key_selected(block->problem, block->args, block->b, at.head, at.query, key);
}

/* Whether certainly all rows may see the same keys. */
static inline bool rows_see_alike(const row_block *block) {
  return attn_rows_see_alike(block->problem) && block->first_row + block->rows_per_head <= block->seq->len_q;
}

/* One range that holds all keys that rows of the block may see. */
static inline attn_key_range keys_of_block(const row_block *block) {
  attn_key_range used = {0, 0};
  if (block->alike) return block->range[0];
  for (int64_t i = 0; i < block->rows; i++) used = attn_join_keys(used, block->range[i]);
  return used;
}

/* Scores are more than similarities: softcap, bias, ALiBi or a mask (scores.h). */
static inline bool similarities_adjusted(const attn_problem *p) { return p->softcap > 0 || attn_uses(p, SCORE_SHIFTS); }

/* ---- The keys of a pack task ---- */

/* Keys of one pack task: a multiple of every VEC_LANES, large enough to be worth a task, small enough that one head has
 * tasks for many threads. Two tasks may fill one panel. */
enum { PACK_KEYS = 256 };

/* The keys of a unit's KV head. */
typedef struct unit_keys {
  const attn_problem *problem;
  const attn_args *args;
  attn_sequence seq;
  int64_t b, head;     /* head: the first of the query heads that share the KV head */
  attn_key_range used; /* holds all keys that any row may see */
} unit_keys;

static inline unit_keys keys_of_unit(const attn_problem *p, const attn_args *args, int64_t unit) {
  assert(unit >= 0 && unit < p->batch * p->heads_kv);
  unit_keys keys = {.problem = p, .args = args, .b = attn_batch_of_unit(p, unit), .head = attn_head_of_unit(p, unit)};
  keys.seq = attn_sequence_of(p, args, keys.b);
  keys.used = attn_keys_of_sequence(p, args, &keys.seq, keys.b);
  return keys;
}

/* The keys in use among the `size` keys of an item. */
static inline attn_key_range keys_of_item(const unit_keys *keys, int64_t item, int64_t size) {
  return (attn_key_range){max64(keys->used.begin, item * size), min64(keys->used.end, (item + 1) * size)};
}

/* Rows of elements, row_stride apart from `offset` on; the elements of a row are column_stride apart. */
typedef struct row_source {
  attn_storage from;
  int64_t offset, row_stride, column_stride, columns;
  const float *scale; /* a factor of each row, scale_step apart; NULL: none */
  int64_t scale_step;
} row_source;

/* The run of the unit's keys from key `key` on. */
static inline attn_key_run run_of_unit(const unit_keys *keys, int64_t key) {
  return attn_key_run_at(keys->problem, keys->args, &keys->seq, keys->head, key);
}

/* K and V of its keys. */
static inline row_source k_rows(const unit_keys *keys, attn_key_run run) {
  const attn_problem *p = keys->problem;
  return (row_source){.from = attn_k_storage(p, keys->args),
                      .offset = run.k,
                      .row_stride = p->k_stride.s,
                      .column_stride = p->k_stride.d,
                      .columns = p->dim_qk};
}

static inline row_source v_rows(const unit_keys *keys, attn_key_run run) {
  const attn_problem *p = keys->problem;
  return (row_source){.from = attn_v_storage(p, keys->args),
                      .offset = run.v,
                      .row_stride = p->v_stride.s,
                      .column_stride = p->v_stride.d,
                      .columns = p->dim_v};
}

/* The factors of K and V of its keys from key `key` on. */
static inline attn_key_scales scales_of_unit(const unit_keys *keys, int64_t key) {
  return attn_key_scales_at(keys->problem, keys->args, &keys->seq, keys->head, key);
}

/* The same K or V as it is meant: times a factor of each key. */
static inline row_source scaled_rows(const unit_keys *keys, row_source rows, const float *scale, int64_t step) {
  if (!attn_uses(keys->problem, ATTN_USE_KV_SCALES)) return rows;
  rows.scale = scale;
  rows.scale_step = step;
  return rows;
}

/* ---- The block of a compute task, and its memory ---- */

/* Offsets in a thread's scratch, in bytes, and the strides of the rows there, in floats. */
typedef struct scratch_layout {
  int64_t q, acc, row_max, row_sum, range, score, listed, total;
  int64_t acc_stride, score_stride;
} scratch_layout;

/* Memory for `capacity` rows, with score_rows x score_stride scores, and vectors of `lanes` floats. False if a size
 * overflows. */
static inline bool scratch_layout_for(const attn_problem *p, int64_t capacity, int64_t score_rows, int64_t score_stride,
                                      int64_t lanes, scratch_layout *at) {
  *at = (scratch_layout){.acc_stride = round_up(p->dim_v, lanes), .score_stride = score_stride};
  const memory_part parts[] = {
      {&at->q, capacity, float_bytes(p->dim_qk)},
      {&at->acc, capacity, float_bytes(at->acc_stride)},
      {&at->row_max, capacity, float_bytes(1)},
      {&at->row_sum, capacity, float_bytes(lanes)},
      {&at->range, capacity, sizeof(attn_key_range)},
      {&at->score, score_rows, float_bytes(score_stride)},
      {&at->listed, attn_has_block_kinds(p) ? ceil_div(p->seq_k, attn_visited_keys(p)) : 0, 1},
  };
  return LAY_OUT(parts, &at->total);
}

/* The rows of a compute task: rows first_row .. of query head `head`. */
typedef struct task_rows {
  attn_sequence seq;
  int64_t b, head, first_row, rows; /* rows <= 0: the sequence ends before first_row */
} task_rows;

/* Items of the phase are query heads of the unit x row blocks. The last rows come first, because under a causal mask they
 * see most keys. Rows behind the sequence's queries exist in o but see nothing. */
static inline task_rows task_rows_of(const attn_schedule *schedule, const attn_args *args, attn_task task) {
  const attn_problem *p = &schedule->problem;
  const int64_t group = attn_group(p), blocks = schedule->items[task.phase] / group;
  assert(task.item >= 0 && task.item < schedule->items[task.phase]);
  task_rows at = {.b = attn_batch_of_unit(p, task.unit), .head = attn_head_of_unit(p, task.unit) + task.item % group};
  at.seq = attn_sequence_of(p, args, at.b);
  at.first_row = (blocks - 1 - task.item / group) * schedule->row_block;
  at.rows = min64(schedule->row_block, attn_rows(p, &at.seq) - at.first_row);
  return at;
}

/* The block of a task's rows, with its state in a thread's scratch. The caller fills in what reads K and V. */
static inline row_block block_of_task(const attn_problem *p, const attn_args *args, const task_rows *rows,
                                      const scratch_layout *at, void *scratch) {
  return (row_block){
      .problem = p,
      .args = args,
      .seq = &rows->seq,
      .b = rows->b,
      .head = rows->head,
      .first_row = rows->first_row,
      .rows = rows->rows,
      .rows_per_head = rows->rows,
      .q = floats_at(scratch, at->q),
      .acc = floats_at(scratch, at->acc),
      .row_max = floats_at(scratch, at->row_max),
      .row_sum = floats_at(scratch, at->row_sum),
      .range = (attn_key_range *)(void *)floats_at(scratch, at->range),
      .score = floats_at(scratch, at->score),
      .listed = (uint8_t *)(void *)floats_at(scratch, at->listed),
      .q_stride = p->dim_qk,
      .acc_stride = at->acc_stride,
      .score_stride = at->score_stride,
  };
}

#endif
