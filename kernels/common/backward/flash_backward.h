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
 * A task is a KV head times a range of keys times a part of the queries, at borders that the sequence's lengths and the
 * heads that share a KV head alone decide. Ranges have a dQ each and parts a dK and a dV, and a last phase adds those up in
 * order. Within a task every sum is one chain of multiply-adds in the order of queries or keys, so no bit depends on
 * threads, batch or the sizes of blocks.
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

/* ---- Sums of one task, and of all ---- */

static float *d_q_of(const backward_task *t, int64_t range, int64_t head, int64_t row) {
  const int64_t rows = (range * attn_group(t->p) + head) * t->at->rows + row;
  return floats_at(t->memory, t->at->d_q) + rows * t->at->qk_floats;
}

/* A part's dK and dV of all keys; behind those of all parts' dK. */
static float *d_k_of(const backward_task *t, int64_t part, int64_t key) {
  return floats_at(t->memory, t->at->parts) + (part * t->p->seq_k + key) * t->at->qk_floats;
}

static float *d_v_of(const backward_task *t, int64_t parts, int64_t part, int64_t key) {
  return d_k_of(t, parts, 0) + (part * t->p->seq_k + key) * t->at->v_floats;
}

/* The first of `count` sums, `stride` floats apart, += the others, in order. */
static void add_sums(float *first, int64_t count, int64_t stride, int64_t floats) {
  for (int64_t d = 0; d < floats; d += VEC_LANES) {
    vec sum = vec_load(first + d);
    for (int64_t i = 1; i < count; i++) sum = vec_add(sum, vec_load(first + i * stride + d));
    vec_store(first + d, sum);
  }
}

/* dQ of TASK_ROWS rows. */
static void finish_queries(const backward_task *t, int64_t item) {
  const attn_sequence *seq = &t->unit.seq;
  const int64_t group = attn_group(t->p), head = item % group, first = item / group * TASK_ROWS;
  const int64_t ranges = range_count(seq->len_k), floats = t->at->qk_floats;
  const int64_t end = min64(first + TASK_ROWS, attn_rows(t->p, seq)), full = seq->len_k > 0 ? min64(end, seq->len_q) : 0;
  float *sums = d_q_of(t, 0, head, first);
  if (first < full) add_sums(sums, ranges, group * t->at->rows * floats, (full - first) * floats);
  finish_query_rows(t, head, first, full, end, sums, floats_at(t->scratch, t->at->d_k));
}

/* dK and dV of TASK_ROWS keys, where parts of the queries have made some each. */
static void finish_parts(const backward_task *t, int64_t item) {
  const int64_t key = item * TASK_ROWS, keys = min64(TASK_ROWS, t->unit.seq.len_k - key);
  const int64_t parts = cut_rows(attn_group(t->p), t->unit.seq.len_q).parts;
  if (parts == 1 || keys <= 0) return;
  float *d_k = d_k_of(t, 0, key), *d_v = d_v_of(t, parts, 0, key);
  add_sums(d_k, parts, t->p->seq_k * t->at->qk_floats, keys * t->at->qk_floats);
  add_sums(d_v, parts, t->p->seq_k * t->at->v_floats, keys * t->at->v_floats);
  finish_keys(t, key, keys, d_k, d_v);
}

/* ---- Tasks ---- */

/* One range of keys and one part of the queries. */
typedef struct backward_area {
  int64_t range, part, first_key, end_key;
  row_blocks cut;
} backward_area;

/* The last queries come first: with causal masks they see the most keys. No part: that of a longer sequence. */
static backward_area area_of(const backward_task *t, int64_t item) {
  const int64_t len_k = t->unit.seq.len_k, size = range_keys(len_k), ranges = range_count(len_k), range = item % ranges;
  const row_blocks cut = cut_rows(attn_group(t->p), t->unit.seq.len_q);
  return (backward_area){.range = range,
                         .part = cut.parts - 1 - item / ranges,
                         .first_key = range * size,
                         .end_key = min64((range + 1) * size, len_k),
                         .cut = cut};
}

/* dK and dV of a block's keys, as floats: all of them, or those of a part of the queries. */
static void end_block(const backward_task *t, const backward_area *area, int64_t key, int64_t keys) {
  const backward_layout *at = t->at;
  float *turned = floats_at(t->scratch, at->turned);
  float *d_k = sums_by_key(floats_at(t->scratch, at->d_k), at->qk_floats, turned);
  float *d_v = sums_by_key(floats_at(t->scratch, at->d_v), at->v_floats, turned + BACKWARD_KEYS * at->qk_floats);
  if (area->cut.parts == 1) {
    finish_keys(t, key, keys, d_k, d_v);
    return;
  }
  memcpy(d_k_of(t, area->part, key), d_k, (size_t)(keys * at->qk_floats) * sizeof *d_k);
  memcpy(d_v_of(t, area->cut.parts, area->part, key), d_v, (size_t)(keys * at->v_floats) * sizeof *d_v);
}

/* The part's queries against one block of keys. */
static void differentiate_block(const backward_task *t, const backward_area *area, int64_t key, int64_t keys) {
  const attn_problem *p = t->p;
  const row_blocks *cut = &area->cut;
  float *d_k = floats_at(t->scratch, t->at->d_k), *d_v = floats_at(t->scratch, t->at->d_v);
  backward_step s = step_in(t);
  const bool dots = p->score == ATTN_SCORE_DOT, first = key == area->first_key;
  bool fresh = true;
  load_keys(t, key, keys, &s);
  if (!dots) memset(d_k, 0, (size_t)(BACKWARD_KEYS * t->at->qk_floats) * sizeof *d_k);
  const int64_t begin = area->part * cut->of_part, end = min64(begin + cut->of_part, attn_group(p) * cut->of_head);
  for (int64_t block = begin; block < end; block++) {
    const int64_t head = block / cut->of_head, row = block % cut->of_head * cut->rows;
    const int64_t rows = min64(cut->rows, t->unit.seq.len_q - row);
    float *d_q = d_q_of(t, area->range, head, row);
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
  end_block(t, area, key, keys);
}

/* Keys of a block of a range: groups of dropout that two blocks share would be computed twice. */
static int64_t block_keys(const attn_problem *p, int64_t range) {
  return even_part(range, p->dropout > 0 ? PHILOX_GROUP : BACKWARD_KEYS);
}

static void differentiate_area(const backward_task *t, int64_t item) {
  const backward_area area = area_of(t, item);
  const int64_t block = block_keys(t->p, range_keys(t->unit.seq.len_k));
  if (item == 0) finish_padding(t);
  if (area.part < 0) return;
  for (int64_t key = area.first_key; key < area.end_key; key += block)
    differentiate_block(t, &area, key, min64(block, area.end_key - key));
}

/* ---- The contract of kernel.h ------------------------------------------------------------------------------------- */

enum { TERMS_PHASE, AREA_PHASE, SUM_PHASE, SCORE_PHASE };

/* Tasks that finish dQ. */
static int64_t query_tasks(const attn_problem *p) { return k_dimensions(p) ? term_tasks(p) : 1; }

static inline bool backward_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  backward_layout *at = (void *)schedule->own;
  (void)machine;
  if (!backward_layout_of(p, at)) return false;
  schedule->phases = wants_score_gradients(p) ? 4 : 3;
  const int64_t parts = cut_rows(attn_group(p), p->seq_q).parts;
  schedule->items[TERMS_PHASE] = term_tasks(p);
  schedule->items[AREA_PHASE] = range_count(p->seq_k) * parts;
  schedule->items[SUM_PHASE] = query_tasks(p) + (parts > 1 ? ceil_div(p->seq_k, TASK_ROWS) : 0);
  schedule->items[SCORE_PHASE] = attn_group(p);
  schedule->row_block = BACKWARD_ROWS;
  schedule->key_block = BACKWARD_KEYS;
  schedule->unit_bytes = (size_t)at->unit_bytes;
  schedule->scratch_bytes = (size_t)at->scratch_bytes;
  return true;
}

static void sum_task(const backward_task *t, int64_t item) {
  const int64_t of_queries = query_tasks(t->p);
  if (item >= of_queries)
    finish_parts(t, item - of_queries);
  else if (k_dimensions(t->p))
    finish_queries(t, item);
}

static inline void backward_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                                void *scratch) {
  const backward_task t = task_of(schedule, args, task, unit_memory, scratch);
  switch (task.phase) {
    case TERMS_PHASE:
      query_terms(schedule, args, task, unit_memory, scratch);
      if (SUMS_ARE_TURNED) turn_task(&t, task.item);
      break;
    case AREA_PHASE: differentiate_area(&t, task.item); break;
    case SUM_PHASE: sum_task(&t, task.item); break;
    default: score_gradients(schedule, args, task, scratch);
  }
}

/* ---- Their time ---- */

static inline void backward_terms_of(const attn_problem *p, double *terms) {
  const int64_t range = range_keys(p->seq_k);
  const row_blocks cut = cut_rows(attn_group(p), p->seq_q);
  const backward_walk walk = {.lanes = VEC_LANES,
                              .tile_rows = TILE_ROWS,
                              .panel_keys = PANEL_KEYS,
                              .rows = cut.rows,
                              .keys = block_keys(p, range),
                              .ranges = (double)range_count(p->seq_k),
                              .parts = (double)cut.parts,
                              .in_tiles = true};
  attn_backward_terms(p, &walk, terms);
}

#define BACKWARD_KERNEL_TERMS \
  { BACKWARD_TERM_COUNT, attn_backward_term_names, backward_terms_of }

#endif
