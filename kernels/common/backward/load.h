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

/* Loads the rows of query head h; their terms are in s already. */
static void load_step(const backward_task *t, int64_t h, int64_t row, int64_t rows, backward_step *s) {
  const attn_problem *p = t->p;
  const backward_layout *at = t->at;
  const int64_t token = t->unit.seq.first_q + row;
  const row_source q = {.from = attn_q_storage(p, t->args),
                        .offset = attn_row_offset(p, &p->q_stride, t->unit.b, h, token),
                        .row_stride = p->q_stride.s,
                        .column_stride = p->q_stride.d,
                        .columns = p->dim_qk};
  const row_source d_o = {.from = {t->args->d_o, p->dtype_o},
                          .offset = attn_row_offset(p, &p->d_o_stride, t->unit.b, h, token),
                          .row_stride = p->d_o_stride.s,
                          .column_stride = p->d_o_stride.d,
                          .columns = p->dim_v};
  const operand_memory for_q = {floats_at(t->scratch, at->q), floats_at(t->scratch, at->q_pairs), at->qk_floats};
  const operand_memory for_d_o = {floats_at(t->scratch, at->d_o), floats_at(t->scratch, at->d_o_pairs), at->v_floats};
  if (k_dimensions(p)) s->q = load_operand(&q, rows, s->minus_lse, for_q);
  s->d_o = load_operand(&d_o, rows, s->minus_lse, for_d_o);
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
