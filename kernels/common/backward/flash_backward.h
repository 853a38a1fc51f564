/* SPDX-License-Identifier: MIT */
/* flash_backward: the gradients of attention without a score matrix in memory: P is computed again from the LSE (Dao et al.
 * 2022, https://arxiv.org/abs/2205.14135, section B.2).
 *
 *     P = exp(Q K^T - lse),  dS = P (dO V^T - delta)     delta = rowsum(dO O), and more where lse has a gradient
 *     dV = P^T dO,  dK = dS^T Q,  dQ = dS K
 *
 * Blocks of BACKWARD_KEYS keys outside, blocks of BACKWARD_ROWS queries inside: K and V are packed once, dK and dV of a
 * block stay in level 2 until they are done, and dQ is read and written once for each block of keys. A step is one pair of
 * blocks. It makes P and dS tile by tile, keeps both, and multiplies them three times. All five products are the register
 * tile.
 *
 * A task is a KV head times a range of keys at borders that the sequence's length alone decides. The ranges have a dQ each,
 * and a last phase adds those up in order. Every sum is one chain of multiply-adds in the order of queries or keys, so no
 * bit depends on threads, batch or the sizes of blocks.
 *
 * Rows and keys whose gradients are not finite are computed again in double precision, from allowed pairs alone
 * (exact_row.h): a masked element that a product of whole tiles read cannot reach them.
 *
 * Parameters: those of tiles.h. */
#ifndef ATTN_COMMON_FLASH_BACKWARD_H
#define ATTN_COMMON_FLASH_BACKWARD_H

#include "kernels/common/problem/rejects.h"
#include "kernels/common/problem/terms.h"
#include "products.h"
#include "score_gradients.h"

/* ---- Tasks ---- */

static float *d_q_of(const backward_task *t, int64_t range, int64_t head, int64_t row) {
  const int64_t rows = (range * attn_group(t->p) + head) * t->at->rows + row;
  return floats_at(t->memory, t->at->d_q) + rows * t->at->qk_floats;
}

/* All queries of the heads that share the KV head, against one block of keys. */
static void differentiate_block(const backward_task *t, int64_t range, int64_t key, int64_t keys, bool first) {
  const attn_problem *p = t->p;
  float *d_k = floats_at(t->scratch, t->at->d_k), *d_v = floats_at(t->scratch, t->at->d_v);
  backward_step s = step_in(t);
  const bool dots = p->score == ATTN_SCORE_DOT;
  bool fresh = true;
  load_keys(t, key, keys, &s);
  if (!dots) memset(d_k, 0, (size_t)(BACKWARD_KEYS * t->at->qk_floats) * sizeof *d_k);
  for (int64_t head = 0; head < attn_group(p); head++)
    for (int64_t row = 0; row < t->unit.seq.len_q; row += BACKWARD_ROWS) {
      const int64_t rows = min64(BACKWARD_ROWS, t->unit.seq.len_q - row);
      float *d_q = d_q_of(t, range, head, row);
      const size_t d_q_bytes = (size_t)(round_up(rows, TILE_ROWS) * t->at->qk_floats) * sizeof *d_q;
      const bool skip = sees_none(t, row, rows, &s);
      if (first && (skip || !dots)) memset(d_q, 0, d_q_bytes);
      if (skip) continue;
      s.minus_lse = floats_at(t->memory, t->at->minus_lse) + head * t->at->rows + row;
      s.minus_delta = floats_at(t->memory, t->at->minus_delta) + head * t->at->rows + row;
      load_step(t, t->unit.head + head, row, rows, &s);
      fill_scores(&s);
      key_gradient(&s, &s.p_down, &s.d_o.down, d_v, t->at->v_floats, fresh);
      if (dots) {
        key_gradient(&s, &s.d_s_down, &s.q.down, d_k, t->at->qk_floats, fresh);
        query_gradient(&s, d_q, t->at->qk_floats, first);
      } else if (k_dimensions(p)) {
        other_gradients(&s, d_q, d_k, t->at->qk_floats);
      }
      fresh = false;
    }
  if (fresh) {
    memset(d_k, 0, (size_t)(BACKWARD_KEYS * t->at->qk_floats) * sizeof *d_k);
    memset(d_v, 0, (size_t)(BACKWARD_KEYS * t->at->v_floats) * sizeof *d_v);
  }
  float *turned = floats_at(t->scratch, t->at->turned);
  finish_keys(t, key, keys, sums_by_key(d_k, t->at->qk_floats, turned),
              sums_by_key(d_v, t->at->v_floats, turned + BACKWARD_KEYS * t->at->qk_floats));
}

/* Keys of a block of a range: groups of dropout that two blocks share would be computed twice. */
static int64_t block_keys(const attn_problem *p, int64_t range) {
  return even_part(range, p->dropout > 0 ? PHILOX_GROUP : BACKWARD_KEYS);
}

/* Task `item`: one range of keys. */
static void differentiate_range(const attn_schedule *schedule, const attn_args *args, attn_task task, void *memory,
                                void *scratch) {
  const backward_task t = task_of(schedule, args, task, memory, scratch);
  const int64_t len_k = t.unit.seq.len_k, size = range_keys(len_k), begin = task.item * size;
  const int64_t end = min64(begin + size, len_k), block = block_keys(t.p, size);
  if (task.item == 0) finish_padding(&t);
  for (int64_t key = begin; key < end; key += block)
    differentiate_block(&t, task.item, key, min64(block, end - key), key == begin);
}

/* rows[0] += the same rows of the other ranges, in order. */
static void add_ranges(const backward_task *t, int64_t ranges, int64_t head, int64_t row, int64_t rows) {
  const int64_t floats = rows * t->at->qk_floats;
  float *sum = d_q_of(t, 0, head, row);
  for (int64_t range = 1; range < ranges; range++) {
    const float *other = d_q_of(t, range, head, row);
    for (int64_t d = 0; d < floats; d += VEC_LANES) vec_store(sum + d, vec_add(vec_load(sum + d), vec_load(other + d)));
  }
}

/* dQ of TASK_ROWS rows. */
static void finish_queries(const attn_schedule *schedule, const attn_args *args, attn_task task, void *memory,
                           void *scratch) {
  const backward_task t = task_of(schedule, args, task, memory, scratch);
  const attn_sequence *seq = &t.unit.seq;
  const int64_t group = attn_group(t.p), head = task.item % group, first = task.item / group * TASK_ROWS;
  const int64_t ranges = ceil_div(seq->len_k, range_keys(seq->len_k));
  const int64_t end = min64(first + TASK_ROWS, attn_rows(t.p, seq)), full = ranges > 0 ? min64(end, seq->len_q) : 0;
  if (first < full) add_ranges(&t, ranges, head, first, full - first);
  finish_query_rows(&t, head, first, full, end, d_q_of(&t, 0, head, first), floats_at(scratch, t.at->d_k));
}

static void turn_queries(const attn_schedule *schedule, const attn_args *args, attn_task task, void *memory, void *scratch) {
  const backward_task t = task_of(schedule, args, task, memory, scratch);
  turn_task(&t, task.item);
}

/* ---- The contract of kernel.h ------------------------------------------------------------------------------------- */

enum { TERMS_PHASE, RANGE_PHASE, QUERY_PHASE, SCORE_PHASE };

static inline bool backward_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  backward_layout *at = (void *)schedule->own;
  (void)machine;
  if (!backward_layout_of(p, at)) return false;
  schedule->phases = wants_score_gradients(p) ? 4 : 3;
  const int64_t row_tasks = term_tasks(p);
  schedule->items[TERMS_PHASE] = row_tasks;
  schedule->items[RANGE_PHASE] = at->ranges;
  schedule->items[QUERY_PHASE] = k_dimensions(p) ? row_tasks : 1;
  schedule->items[SCORE_PHASE] = attn_group(p);
  schedule->row_block = BACKWARD_ROWS;
  schedule->key_block = BACKWARD_KEYS;
  schedule->unit_bytes = (size_t)at->unit_bytes;
  schedule->scratch_bytes = (size_t)at->scratch_bytes;
  return true;
}

static inline void backward_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                                void *scratch) {
  const attn_problem *p = &schedule->problem;
  switch (task.phase) {
    case TERMS_PHASE:
      query_terms(schedule, args, task, unit_memory, scratch);
      if (SUMS_ARE_TURNED) turn_queries(schedule, args, task, unit_memory, scratch);
      break;
    case RANGE_PHASE: differentiate_range(schedule, args, task, unit_memory, scratch); break;
    case QUERY_PHASE:
      if (k_dimensions(p)) finish_queries(schedule, args, task, unit_memory, scratch);
      break;
    default: score_gradients(schedule, args, task, scratch);
  }
}

/* ---- Their time ---- */

static inline void backward_terms_of(const attn_problem *p, double *terms) {
  const int64_t range = range_keys(p->seq_k);
  const backward_walk walk = {.lanes = VEC_LANES,
                              .tile_rows = TILE_ROWS,
                              .panel_keys = PANEL_KEYS,
                              .rows = BACKWARD_ROWS,
                              .keys = block_keys(p, range),
                              .ranges = (double)max64(1, ceil_div(p->seq_k, range)),
                              .in_tiles = true};
  attn_backward_terms(p, &walk, terms);
}

#define BACKWARD_KERNEL_TERMS \
  { BACKWARD_TERM_COUNT, attn_backward_term_names, backward_terms_of }

#endif
