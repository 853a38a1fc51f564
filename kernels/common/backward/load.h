/* SPDX-License-Identifier: MIT */
/* flash_backward: how queries, keys and values get into a step.
 *
 * Parameters: those of tiles.h. */
#ifndef ATTN_COMMON_BACKWARD_LOAD_H
#define ATTN_COMMON_BACKWARD_LOAD_H

#include "rows.h"
#include "step.h"

/* A step of the task: where its P and dS stand. */
static backward_step step_in(const backward_task *t) {
  const backward_layout *at = t->at;
  backward_step s = {.p = floats_at(t->scratch, at->p),
                     .d_s = floats_at(t->scratch, at->d_s),
                     .slope = t->p->softcap > 0 ? floats_at(t->scratch, at->slope) : NULL};
  s.p_down = (float_rows){s.p, SCORE_STRIDE};
  s.d_s_down = s.d_s_along = (float_rows){s.d_s, SCORE_STRIDE};
  if (t->p->dropout > 0) s.dropout = attn_dropout_of(t->p, t->args);
  if (OPERAND_VALUES == 1) return s;
  s.p_down.at = floats_at(t->scratch, at->p_pairs);
  s.d_s_down.at = floats_at(t->scratch, at->d_s_pairs);
  s.d_s_along = (float_rows){floats_at(t->scratch, at->d_s_key_pairs), KEY_PAIR_STRIDE};
  return s;
}

/* Packs the block of keys from `key` on; keys that no row may see are zeros. */
static void load_keys(const backward_task *t, int64_t key, int64_t keys, backward_step *s) {
  const attn_problem *p = t->p;
  const attn_key_run run = run_of_unit(&t->unit, key);
  const attn_key_range used = {max64(t->unit.used.begin - key, 0), min64(t->unit.used.end - key, keys)};
  const row_source v = v_rows(&t->unit, run), k = k_rows(&t->unit, run);
  s->key = key;
  s->keys = keys;
  s->kept = p->dropout > 0 ? floats_at(t->scratch, t->at->kept) + key % PHILOX_GROUP : NULL;
  s->k_panels = floats_at(t->scratch, t->at->k_panels);
  s->v_panels = floats_at(t->scratch, t->at->v_panels);
  pack_panels(&v, keys, used, 1.0f, floats_at(t->scratch, t->at->v_panels));
  if (!k_dimensions(p)) return;
  pack_panels(&k, keys, used, p->score == ATTN_SCORE_DOT ? p->scale * LOG2_E : 1.0f, floats_at(t->scratch, t->at->k_panels));
  s->k = load_down(&k, keys, used, floats_at(t->scratch, t->at->k_rows), t->at->qk_floats);
}

/* Whether certainly none of the rows sees a key of the block, by the ranges of the first and the last. */
static bool sees_none(const backward_task *t, int64_t row, int64_t rows, const backward_step *s) {
  if (attn_uses(t->p, ATTN_USE_ROW_LEN)) return false;
  const attn_key_range first = attn_allowed_keys(t->p, t->args, &t->unit.seq, t->unit.b, row);
  const attn_key_range last = attn_allowed_keys(t->p, t->args, &t->unit.seq, t->unit.b, row + rows - 1);
  return (first.begin < first.end && first.begin >= s->key + s->keys) || (last.begin < last.end && last.end <= s->key);
}

/* Turned rows of query head h from `row` on, which begins a step of products: those of q, and behind them those of d_o. */
static float_rows turned_from(const backward_task *t, bool of_d_o, int64_t h, int64_t row) {
  const backward_layout *at = t->at;
  const int64_t columns = (h - t->unit.head) * (at->qk_floats + at->v_floats) + (of_d_o ? at->qk_floats : 0);
  const int64_t stride = turned_stride(t->p);
  return (float_rows){floats_at(t->memory, at->turned_rows) + columns * stride + row / 2, stride};
}

/* Turns rows of the terms' task `item`: all blocks of keys read them. */
static void turn_task(const backward_task *t, int64_t item) {
  const backward_layout *at = t->at;
  const int64_t head = item % attn_group(t->p), row = item / attn_group(t->p) * TASK_ROWS, h = t->unit.head + head;
  const int64_t rows = min64(TASK_ROWS, t->unit.seq.len_q - row);
  const float *minus_lse = floats_at(t->memory, at->minus_lse) + head * at->rows + row;
  const row_source q = q_rows(t, h, row), d_o = d_o_rows(t, h, row);
  const float_rows to_q = turned_from(t, false, h, row), to_d_o = turned_from(t, true, h, row);
  turn_rows(&q, rows, minus_lse, at->qk_floats, (float *)(uintptr_t)to_q.at, to_q.stride);
  turn_rows(&d_o, rows, minus_lse, at->v_floats, (float *)(uintptr_t)to_d_o.at, to_d_o.stride);
}

/* Loads the rows of query head h; their terms are in s already. */
static void load_step(const backward_task *t, int64_t h, int64_t row, int64_t rows, backward_step *s) {
  const attn_problem *p = t->p;
  const backward_layout *at = t->at;
  const row_source q = q_rows(t, h, row), d_o = d_o_rows(t, h, row);
  const operand_memory for_q = {floats_at(t->scratch, at->q), floats_at(t->scratch, at->q_pairs), at->qk_floats};
  const operand_memory for_d_o = {floats_at(t->scratch, at->d_o), floats_at(t->scratch, at->d_o_pairs), at->v_floats};
  if (k_dimensions(p)) s->q = load_operand(&q, rows, s->minus_lse, for_q);
  s->d_o = load_operand(&d_o, rows, s->minus_lse, for_d_o);
  if (SUMS_ARE_TURNED) {
    s->q.down = turned_from(t, false, h, row);
    s->d_o.down = turned_from(t, true, h, row);
  }
  s->block = (row_block){.problem = p,
                         .args = t->args,
                         .seq = &t->unit.seq,
                         .b = t->unit.b,
                         .head = h,
                         .first_row = row,
                         .rows = rows,
                         .rows_per_head = rows,
                         .q = (float *)(uintptr_t)s->q.along.rows.at,
                         .q_stride = s->q.along.rows.stride,
                         .range = (attn_key_range *)(void *)floats_at(t->scratch, at->range),
                         .row_max = floats_at(t->scratch, at->max),
                         .adjusted = scores_adjusted(p)};
  s->block.alike = rows_see_alike(&s->block);
  start_ranges(&s->block, round_up(rows, TILE_ROWS));
}

#endif
