/* SPDX-License-Identifier: MIT */
/* A block of query rows of one head: its inputs, and its state between key blocks. Nothing here depends on a tier: files without
 * one share blocks with those that have one (score_steps.h). */
#ifndef ATTN_COMMON_ROW_BLOCK_H
#define ATTN_COMMON_ROW_BLOCK_H

#include "indexing.h"
#include "kernels/kernel.h"

static const float LOG2_E = 0x1.715476p+0f; /* scores are kept in log2 units: exp(s) = 2^(s log2(e)) */

static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }
static inline int64_t round_down(int64_t x, int64_t multiple) { return x / multiple * multiple; }

/* K and V of one KV head as the tiles read them. */
typedef struct packed_keys {
  const float *k;   /* [panel][dim_qk][PANEL_KEYS]: keys in lanes; keys beyond the sequence are 0 */
  const float *v;   /* row of key 0: dim_v floats, readable up to a multiple of VEC_LANES */
  int64_t v_stride; /* floats from one key's row to the next's */
} packed_keys;

/* Query rows that are worked on together, and their state: rows first_row .. of one head, or the rows of several heads that share a KV
 * head, rows_per_head of each. `capacity` = rows rounded up to TILE_ROWS; the rows beyond `rows` are computed like the others, on
 * zero queries, and never stored. */
typedef struct row_block {
  const attn_problem *problem;
  const attn_args *args;
  const attn_sequence *seq;
  int64_t b, head, first_row, rows, rows_per_head;
  packed_keys keys;

  float *q;              /* [capacity][q_stride], those of dot scores times scale log2(e), 0 beyond dim_qk */
  float *acc;            /* [capacity][acc_stride]: O before division */
  float *row_max;        /* [capacity]: reference of the exponentials, log2 units */
  float *row_sum;        /* [capacity][VEC_LANES]: sum of P, one partial sum per lane */
  attn_key_range *range; /* [capacity]: keys that the row may see */
  float *score;          /* [rows of S kept][score_stride]: S, then P */
  int64_t q_stride, acc_stride, score_stride;
  bool adjusted;  /* scores are more than dot products: scores.h has the rest */
  bool shifted;   /* flash: what they are more is added or selected, so sums start from it (shift_of, select_keys) */
  bool first_try; /* finish_rows may ask for a second one */
  bool careful;   /* second try: leave V of masked keys alone, whatever stands there (accumulate_tile) */
} row_block;

/* Which row of the problem row i of a block is; those beyond the last repeat it. */
typedef struct problem_row {
  int64_t head, query;
} problem_row;

static inline problem_row problem_row_of(const row_block *block, int64_t i) {
  i = min64(i, block->rows - 1);
  if (i < block->rows_per_head) return (problem_row){block->head, block->first_row + i};
  return (problem_row){block->head + i / block->rows_per_head, block->first_row + i % block->rows_per_head};
}

/* Keys that at least one row of the sequence may see, as one interval. */
static inline attn_key_range keys_in_use(const attn_problem *p, const attn_args *args, const attn_sequence *seq, int64_t b) {
  if (seq->len_q <= 0) return (attn_key_range){0, 0};
  const attn_key_range all = {0, seq->len_k};
  if (attn_uses(p, ATTN_USE_ROW_LEN)) {
    attn_key_range used = {INT64_MAX, 0};
    for (int64_t i = 0; i < seq->len_q; i++) {
      const attn_key_range row = attn_allowed_keys(p, args, seq, b, i);
      if (row.begin >= row.end) continue;
      used.begin = min64(used.begin, row.begin);
      used.end = max64(used.end, row.end);
    }
    return used.begin < used.end ? used : (attn_key_range){0, 0};
  }
  /* Without per-row lengths ranges move right with the row, so the first and the last row that see any key bound them all; a row
   * that sees none says nothing, and the bound stays open on its side. */
  const attn_key_range first = attn_allowed_keys(p, args, seq, b, 0),
                       last = attn_allowed_keys(p, args, seq, b, seq->len_q - 1);
  return (attn_key_range){first.begin < first.end ? first.begin : all.begin, last.begin < last.end ? last.end : all.end};
}

/* Keys that at least one row of the block may see, as one interval. */
static inline attn_key_range keys_of_block(const row_block *block) {
  attn_key_range used = {INT64_MAX, 0};
  for (int64_t i = 0; i < block->rows; i++) {
    if (block->range[i].begin >= block->range[i].end) continue;
    used.begin = min64(used.begin, block->range[i].begin);
    used.end = max64(used.end, block->range[i].end);
  }
  return used.begin < used.end ? used : (attn_key_range){0, 0};
}

/* Scores are more than similarities: softcap, bias, ALiBi or a mask (scores.h). */
static inline bool similarities_adjusted(const attn_problem *p) {
  return p->softcap > 0 || attn_uses(p, ATTN_USE_MASK | ATTN_USE_BIAS | ATTN_USE_ALIBI);
}

/* ---- Memory and tasks ---- */

/* Keys of one pack task: a multiple of every VEC_LANES, large enough to be worth a task; a panel may have keys of two. */
enum { PACK_KEYS = 1024 };

/* rows x floats of a thread's scratch, and where they start. */
typedef struct scratch_part {
  int64_t *start, rows, floats;
} scratch_part;

/* Lays the parts out one behind the other, each on a cache line of its own. False if a size overflows. */
static inline bool lay_out_scratch(const scratch_part *parts, size_t count, int64_t *total) {
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

/* score_rows x score_stride floats of S, vectors of `lanes` floats. False if a size overflows. */
static inline bool scratch_layout_for(const attn_problem *p, int64_t capacity, int64_t score_rows, int64_t score_stride,
                                      int64_t lanes, scratch_layout *layout) {
  const scratch_part parts[] = {
      {&layout->q, capacity, p->dim_qk},        {&layout->acc, capacity, round_up(p->dim_v, lanes)},
      {&layout->row_max, capacity, 1},          {&layout->row_sum, capacity, lanes},
      {&layout->range, capacity, RANGE_FLOATS}, {&layout->score, score_rows, score_stride},
  };
  return lay_out_scratch(parts, sizeof parts / sizeof *parts, &layout->total);
}

/* What a compute task is about: rows first_row .. of query head `head`. */
typedef struct task_rows {
  attn_sequence seq;
  int64_t b, head, first_row, rows; /* rows <= 0: the sequence ends before */
} task_rows;

/* Items of the phase are group x row blocks, the last rows first: under a causal mask they see most keys. Rows past the
 * sequence's queries exist in o, but see nothing. */
static inline task_rows task_rows_of(const attn_schedule *schedule, const attn_args *args, attn_task task) {
  const attn_problem *p = &schedule->problem;
  const int64_t group = p->heads_q / p->heads_kv, blocks = schedule->items[task.phase] / group;
  task_rows at = {.b = task.unit / p->heads_kv, .head = task.unit % p->heads_kv * group + task.item % group};
  at.seq = attn_sequence_of(p, args, at.b);
  at.first_row = (blocks - 1 - task.item / group) * schedule->row_block;
  at.rows = min64(schedule->row_block, attn_rows(p, &at.seq) - at.first_row);
  return at;
}

/* The block of a task's rows, its state in a thread's scratch; what reads K and V is left to fill in. */
static inline row_block block_of_task(const attn_problem *p, const attn_args *args, const task_rows *rows,
                                      const scratch_layout *at, float *scratch, int64_t lanes, int64_t score_stride) {
  return (row_block){
      .problem = p,
      .args = args,
      .seq = &rows->seq,
      .b = rows->b,
      .head = rows->head,
      .first_row = rows->first_row,
      .rows = rows->rows,
      .rows_per_head = rows->rows,
      .q = scratch + at->q,
      .acc = scratch + at->acc,
      .row_max = scratch + at->row_max,
      .row_sum = scratch + at->row_sum,
      .range = (attn_key_range *)(void *)(scratch + at->range),
      .score = scratch + at->score,
      .q_stride = p->dim_qk,
      .acc_stride = round_up(p->dim_v, lanes),
      .score_stride = score_stride,
  };
}

#endif
