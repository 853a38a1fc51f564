/* SPDX-License-Identifier: MIT */
/* Gradients of attention as the formulas stand, with the scores of a block of queries in memory and each product a call:
 *
 *     S = Q K^T,  P = exp(S - lse),  dP = dO V^T,  dS = P (dP - delta)
 *     dV += P^T dO,  dK += dS^T Q,  dQ = dS K
 *
 * naive_backward takes all queries of a head at once, and its products are tiles; kernels on a library take blocks and call
 * the library (kernels/library/composed.h). P and dS of a block against all keys are 8 bytes a pair.
 *
 * A task is a KV head: the heads that share it, and their blocks, add to dK and dV in order, so bits depend on no thread.
 * Gradients that are not finite are computed again as in flash_backward.h.
 *
 * Parameters: those of tiles.h. */
#ifndef ATTN_COMMON_UNFUSED_BACKWARD_H
#define ATTN_COMMON_UNFUSED_BACKWARD_H

#include "kernels/common/problem/rejects.h"
#include "kernels/common/tiles/scores.h"
#include "kernels/library/library_product.h"
#include "rows.h"
#include "terms.h"

enum { SPARE_FLOATS = 48 };
_Static_assert(SPARE_FLOATS >= TILE_ROWS + VEC_LANES, "tiles and vectors may go so far beyond the last key");

/* Floats from one row of P to the next: an odd number of lines, for the products that read columns. */
static int64_t unfused_stride(const attn_problem *p) { return round_up(p->seq_k, 32) + SPARE_FLOATS; }

/* The places of flash_backward's memory, with other sizes: v_panels holds rows of V, and `sums` dQ of a block. */
static bool unfused_layout_of(const attn_problem *p, int64_t block_rows, backward_layout *at) {
  const int64_t rows = round_up(block_rows, TILE_ROWS), keys = p->seq_k + TILE_ROWS, stride = unfused_stride(p);
  *at = (backward_layout){.rows = round_up(p->seq_q, TILE_ROWS),
                          .qk_floats = round_up(p->dim_qk, VEC_LANES),
                          .v_floats = round_up(p->dim_v, VEC_LANES)};
  const memory_part unit[] = {{&at->minus_lse, attn_group(p) * at->rows, float_bytes(1)},
                              {&at->minus_delta, attn_group(p) * at->rows, float_bytes(1)}};
  const memory_part scratch[] = {{&at->k_rows, keys, float_bytes(at->qk_floats)},
                                 {&at->v_panels, keys, float_bytes(at->v_floats)},
                                 {&at->q, rows, float_bytes(at->qk_floats)},
                                 {&at->d_o, max64(rows, 2), float_bytes(at->v_floats)},
                                 {&at->p, rows, float_bytes(stride)},
                                 {&at->d_s, rows, float_bytes(stride)},
                                 {&at->slope, p->softcap > 0 ? rows : 0, float_bytes(stride)},
                                 {&at->d_k, keys, float_bytes(at->qk_floats)},
                                 {&at->d_v, keys, float_bytes(at->v_floats)},
                                 {&at->range, rows, sizeof(attn_key_range)},
                                 {&at->max, rows, float_bytes(1)},
                                 {&at->kept, p->dropout > 0 ? p->seq_k + 2 * PHILOX_GROUP : 0, float_bytes(1)},
                                 {&at->sums, rows, float_bytes(at->qk_floats)}};
  return LAY_OUT(unit, &at->unit_bytes) && LAY_OUT(scratch, &at->scratch_bytes);
}

/* ---- A block of queries ---- */

typedef struct unfused_block {
  row_block rows; /* score: S, then P */
  attn_key_range keys;
  library_product_fn product;
  const float *k, *v, *q, *d_o, *minus_lse, *minus_delta;
  float *d_s, *slope, *kept; /* slope, kept: NULL: none */
  philox_dropout dropout;    /* its factors of a row stand in kept */
  int64_t qk_floats, v_floats;
} unfused_block;

/* Rows [begin, end) of `count`; the others are zeros. */
static void copy_some_rows(const row_source *from, int64_t count, attn_key_range some, float *to, int64_t to_floats) {
  for (int64_t i = 0; i < count; i++)
    if (i >= some.begin && i < some.end)
      copy_row(from, i, to + i * to_floats, to_floats);
    else
      memset(to + i * to_floats, 0, (size_t)to_floats * sizeof *to);
}

/* Rows of queries. Those without keys are zeros: they may hold anything. */
static void copy_live_rows(const row_source *from, const float *minus_lse, int64_t count, float *to, int64_t to_floats) {
  for (int64_t i = 0; i < count; i++) {
    const bool live = minus_lse[i] != -INFINITY;
    const row_source row = {.from = from->from,
                            .offset = from->offset + i * from->row_stride,
                            .column_stride = from->column_stride,
                            .columns = from->columns};
    copy_some_rows(&row, 1, (attn_key_range){0, live}, to + i * to_floats, to_floats);
  }
}

/* P of row i from its products with the keys. Tiles and vectors may read beyond the last key: P is 0 there. */
static void p_of_row(const unfused_block *b, int64_t i) {
  const row_block *rows = &b->rows;
  const attn_problem *p = rows->problem;
  const vec factor = vec_set1(p->scale * LOG2_E), minus_lse = vec_set1(b->minus_lse[i]);
  float *score = rows->score + i * rows->score_stride;
  for (int64_t j = b->keys.begin; j < b->keys.end + TILE_ROWS; j += VEC_LANES) {
    vec x = vec_mul(vec_load(score + j), factor);
    if (p->softcap > 0) {
      const vec t = tanh_of_softcap(p, x);
      x = capped_scores(p, t);
      vec_store(b->slope + i * rows->score_stride + j, vec_sub(vec_set1(1.0f), vec_mul(t, t)));
    }
    if (rows->adjusted) x = shift_scores(rows, i, j, x);
    vec_store(score + j, vec_exp2(vec_add(select_allowed(rows->range[i], j, x), minus_lse)));
  }
}

/* The factors of dropout of row i: element 0 is the first key's of its group. */
static void kept_of_row(const unfused_block *b, int64_t i) {
  const attn_problem *p = b->rows.problem;
  const uint32_t stream = attn_dropout_stream(p, b->rows.b, b->rows.head);
  philox_factors(&b->dropout, stream, (uint32_t)(b->rows.first_row + i), b->keys.begin, b->keys.end, b->kept);
}

/* dS of row i from dP. Dropout is a factor of dP, and of P from here on. P of masked keys is 0, whatever their V. */
static void d_s_of_row(const unfused_block *b, int64_t i) {
  const int64_t at = i * b->rows.score_stride, first = round_down(b->keys.begin, PHILOX_GROUP);
  const vec minus_delta = vec_set1(b->minus_delta[i]);
  if (b->kept) kept_of_row(b, i);
  for (int64_t j = b->keys.begin; j < b->keys.end + TILE_ROWS; j += VEC_LANES) {
    const vec p = vec_load(b->rows.score + at + j), d_p = vec_load(b->d_s + at + j);
    vec d_s = vec_add(d_p, minus_delta);
    if (b->kept) {
      const vec factor = vec_load(b->kept + (j - first));
      d_s = vec_fma(factor, d_p, minus_delta);
      vec_store(b->rows.score + at + j, vec_unless_zero(vec_mul(p, factor), p));
    }
    d_s = vec_unless_zero(vec_mul(p, d_s), p);
    if (b->slope) d_s = vec_unless_zero(vec_mul(d_s, vec_load(b->slope + at + j)), d_s);
    vec_store(b->d_s + at + j, d_s);
  }
}

/* to[row][key] = a b^T, for all queries and keys of the block. */
static void multiply_rows(const unfused_block *b, const float *a, const float *rows, int64_t floats, int64_t dim,
                          float *to) {
  b->product(&(library_product){.rows = b->rows.rows,
                                .columns = b->keys.end - b->keys.begin,
                                .depth = dim,
                                .a = a,
                                .a_stride = floats,
                                .b = rows + b->keys.begin * floats,
                                .b_stride = floats,
                                .b_transposed = true,
                                .c = to + b->keys.begin,
                                .c_stride = b->rows.score_stride});
}

/* to[key] += weights^T rows */
static void add_to_keys(const unfused_block *b, const float *weights, const float *rows, int64_t floats, float *to) {
  b->product(&(library_product){.rows = b->keys.end - b->keys.begin,
                                .columns = floats,
                                .depth = b->rows.rows,
                                .a = weights + b->keys.begin,
                                .a_stride = b->rows.score_stride,
                                .a_transposed = true,
                                .b = rows,
                                .b_stride = floats,
                                .c = to + b->keys.begin * floats,
                                .c_stride = floats,
                                .accumulate = true});
}

/* Adds what the block's queries give to dK and dV, and fills in their dQ. */
static void differentiate_rows(const unfused_block *b, float *d_q, float *d_k, float *d_v) {
  const attn_problem *p = b->rows.problem;
  multiply_rows(b, b->q, b->k, b->qk_floats, p->dim_qk, b->rows.score);
  for (int64_t i = 0; i < b->rows.rows; i++) p_of_row(b, i);
  multiply_rows(b, b->d_o, b->v, b->v_floats, p->dim_v, b->d_s);
  for (int64_t i = 0; i < b->rows.rows; i++) d_s_of_row(b, i);
  add_to_keys(b, b->rows.score, b->d_o, b->v_floats, d_v);
  add_to_keys(b, b->d_s, b->q, b->qk_floats, d_k);
  b->product(&(library_product){.rows = b->rows.rows,
                                .columns = b->qk_floats,
                                .depth = b->keys.end - b->keys.begin,
                                .a = b->d_s + b->keys.begin,
                                .a_stride = b->rows.score_stride,
                                .b = b->k + b->keys.begin * b->qk_floats,
                                .b_stride = b->qk_floats,
                                .c = d_q,
                                .c_stride = b->qk_floats});
}

/* ---- A KV head ---- */

static void load_unfused_rows(const backward_task *t, int64_t head, int64_t row, int64_t rows, unfused_block *b) {
  const attn_problem *p = t->p;
  const backward_layout *at = t->at;
  const int64_t h = t->unit.head + head;
  const row_source q = q_rows(t, h, row), d_o = d_o_rows(t, h, row);
  b->minus_lse = floats_at(t->memory, at->minus_lse) + head * at->rows + row;
  b->minus_delta = floats_at(t->memory, at->minus_delta) + head * at->rows + row;
  b->q = floats_at(t->scratch, at->q);
  b->d_o = floats_at(t->scratch, at->d_o);
  copy_live_rows(&q, b->minus_lse, rows, floats_at(t->scratch, at->q), at->qk_floats);
  copy_live_rows(&d_o, b->minus_lse, rows, floats_at(t->scratch, at->d_o), at->v_floats);
  b->rows = (row_block){.problem = p,
                        .args = t->args,
                        .seq = &t->unit.seq,
                        .b = t->unit.b,
                        .head = h,
                        .first_row = row,
                        .rows = rows,
                        .rows_per_head = rows,
                        .range = (attn_key_range *)(void *)floats_at(t->scratch, at->range),
                        .row_max = floats_at(t->scratch, at->max),
                        .score = floats_at(t->scratch, at->p),
                        .score_stride = unfused_stride(p),
                        .adjusted = similarities_adjusted(p)};
  b->rows.alike = rows_see_alike(&b->rows);
  start_ranges(&b->rows, rows);
  b->keys = keys_of_block(&b->rows);
}

static void unfused_head(const backward_task *t, int64_t block_rows, library_product_fn multiply) {
  const attn_problem *p = t->p;
  const backward_layout *at = t->at;
  const unit_keys *unit = &t->unit;
  const int64_t len_q = unit->seq.len_q, len_k = unit->seq.len_k, rows_out = attn_rows(p, &unit->seq);
  float *k = floats_at(t->scratch, at->k_rows), *v = floats_at(t->scratch, at->v_panels);
  float *d_k = floats_at(t->scratch, at->d_k), *d_v = floats_at(t->scratch, at->d_v), *d_q = floats_at(t->scratch, at->sums);
  unfused_block b = {.product = multiply,
                     .k = k,
                     .v = v,
                     .d_s = floats_at(t->scratch, at->d_s),
                     .slope = p->softcap > 0 ? floats_at(t->scratch, at->slope) : NULL,
                     .kept = p->dropout > 0 ? floats_at(t->scratch, at->kept) : NULL,
                     .qk_floats = at->qk_floats,
                     .v_floats = at->v_floats};
  if (b.kept) b.dropout = attn_dropout_of(p, t->args);
  finish_padding(t);
  if (len_k > 0) {
    const row_source from_k = k_rows(unit, run_of_unit(unit, 0)), from_v = v_rows(unit, run_of_unit(unit, 0));
    copy_some_rows(&from_k, len_k, unit->used, k, at->qk_floats);
    copy_some_rows(&from_v, len_k, unit->used, v, at->v_floats);
  }
  memset(d_k, 0, (size_t)(len_k * at->qk_floats) * sizeof *d_k);
  memset(d_v, 0, (size_t)(len_k * at->v_floats) * sizeof *d_v);
  for (int64_t head = 0; head < attn_group(p); head++) {
    for (int64_t row = 0; row < len_q; row += block_rows) {
      const int64_t rows = min64(block_rows, len_q - row);
      load_unfused_rows(t, head, row, rows, &b);
      const bool sees = b.keys.begin < b.keys.end;
      if (sees) differentiate_rows(&b, d_q, d_k, d_v);
      finish_query_rows(t, head, row, sees ? row + rows : row, row + rows, d_q, floats_at(t->scratch, at->q));
    }
    finish_query_rows(t, head, len_q, len_q, rows_out, NULL, d_q);
  }
  for (int64_t j = 0; j < len_k; j += block_rows)
    finish_keys(t, j, min64(block_rows, len_k - j), d_k + j * at->qk_floats, d_v + j * at->v_floats);
}

/* ---- The contract of kernel.h, for blocks of `rows` queries ---- */

static bool unfused_plan(const attn_problem *p, int64_t rows, attn_schedule *schedule) {
  backward_layout *at = (void *)schedule->own;
  if (!unfused_layout_of(p, rows, at)) return false;
  schedule->phases = 2;
  schedule->items[0] = term_tasks(p);
  schedule->items[1] = 1;
  schedule->row_block = rows;
  schedule->key_block = p->seq_k;
  schedule->unit_bytes = (size_t)at->unit_bytes;
  schedule->scratch_bytes = (size_t)at->scratch_bytes;
  return true;
}

static void unfused_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *memory, void *scratch,
                        library_product_fn multiply) {
  if (task.phase == 0) {
    query_terms(schedule, args, task, memory, scratch);
  } else {
    const backward_task t = task_of(schedule, args, task, memory, scratch);
    unfused_head(&t, schedule->row_block, multiply);
  }
}

#endif
