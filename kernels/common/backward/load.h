/* SPDX-License-Identifier: MIT */
/* flash_backward: how queries, keys and values get into a step.
 *
 * Parameters: those of tiles.h. */
#ifndef ATTN_COMMON_BACKWARD_LOAD_H
#define ATTN_COMMON_BACKWARD_LOAD_H

#include "rows.h"
#include "step.h"

static bool all_live(const float *minus_lse, int64_t rows) {
  for (int64_t i = 0; i < rows; i++)
    if (minus_lse[i] == -INFINITY) return false;
  return true;
}

/* Rows of queries: in place where tiles can read them so, else copied. Rows without keys are zeros: they may hold anything.
 */
static tile_source load_rows(attn_storage from, int64_t offset, int64_t row_stride, int64_t column_stride, int64_t columns,
                             int64_t rows, const float *minus_lse, float *copy, int64_t copy_floats) {
  const bool in_place =
      from.dtype == ATTN_F32 && column_stride == 1 && columns % VEC_LANES == 0 && all_live(minus_lse, rows);
  const row_source source = {
      .from = from, .offset = offset, .row_stride = row_stride, .column_stride = column_stride, .columns = columns};
  const int64_t first = in_place ? round_down(rows, TILE_ROWS) : 0;
  for (int64_t i = first; i < round_up(rows, TILE_ROWS); i++) {
    float *row = copy + (i - first) * copy_floats;
    if (i < rows && minus_lse[i] != -INFINITY)
      copy_row(&source, i, row, copy_floats);
    else
      memset(row, 0, (size_t)copy_floats * sizeof *row);
  }
  const float_rows copied = {copy, copy_floats};
  if (!in_place) return (tile_source){.rows = copied, .last_row = -1};
  return (tile_source){
      .rows = {(const float *)from.data + offset, row_stride}, .last = copied, .last_row = first < rows ? first : -1};
}

/* `keys` rows transposed into panels, times `factor`; those that are not used are zeros. */
static void pack_panels(const attn_problem *as_k, attn_storage from, int64_t offset, int64_t keys, attn_key_range used,
                        float factor, float *panels) {
  const int64_t dim = as_k->dim_qk;
  for (int64_t key = 0; key < keys; key += VEC_LANES) {
    float *panel = panels + round_down(key, PANEL_KEYS) * dim + key % PANEL_KEYS;
    const int64_t count = min64(used.end - key, VEC_LANES), skip = min64(used.begin - key, VEC_LANES);
    pack_lanes(as_k, from, offset + key * as_k->k_stride.s, max64(count, 0), panel);
    for (int64_t d = 0; factor != 1.0f && d < dim; d++)
      vec_store(panel + d * PANEL_KEYS, vec_mul(vec_load(panel + d * PANEL_KEYS), vec_set1(factor)));
    for (int64_t d = 0; skip > 0 && d < dim; d++)
      for (int64_t i = 0; i < skip; i++) panel[d * PANEL_KEYS + i] = 0.0f;
  }
}

/* Packs the block of keys from `key` on; keys that no row may see are zeros. */
static void load_keys(const backward_task *t, int64_t key, int64_t keys, backward_step *s) {
  const attn_problem *p = t->p;
  const attn_key_run run = run_of_unit(&t->unit, key);
  const attn_key_range used = {max64(t->unit.used.begin - key, 0), min64(t->unit.used.end - key, keys)};
  attn_problem v_as_k = *p;
  v_as_k.k_stride = p->v_stride;
  v_as_k.dim_qk = p->dim_v;
  s->key = key;
  s->keys = keys;
  s->k_panels = floats_at(t->scratch, t->at->k_panels);
  s->v_panels = floats_at(t->scratch, t->at->v_panels);
  pack_panels(&v_as_k, attn_v_storage(p, t->args), run.v, keys, used, 1.0f, floats_at(t->scratch, t->at->v_panels));
  if (!k_dimensions(p)) return;
  const float factor = p->score == ATTN_SCORE_DOT ? p->scale * LOG2_E : 1.0f;
  pack_panels(p, attn_k_storage(p, t->args), run.k, keys, used, factor, floats_at(t->scratch, t->at->k_panels));
  const row_source rows = k_rows(&t->unit, run);
  float *copy = floats_at(t->scratch, t->at->k_rows);
  s->k = (float_rows){copy, t->at->qk_floats};
  if (p->dtype_kv == ATTN_F32 && p->k_stride.d == 1 && p->dim_qk % VEC_LANES == 0 && used.begin == 0 && used.end == keys) {
    s->k = (float_rows){(const float *)t->args->k + run.k, p->k_stride.s};
    return;
  }
  for (int64_t j = 0; j < keys; j++)
    if (j >= used.begin && j < used.end)
      copy_row(&rows, j, copy + j * t->at->qk_floats, t->at->qk_floats);
    else
      memset(copy + j * t->at->qk_floats, 0, (size_t)t->at->qk_floats * sizeof *copy);
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
  if (k_dimensions(p))
    s->q = load_rows(attn_q_storage(p, t->args), attn_row_offset(p, &p->q_stride, t->unit.b, h, token), p->q_stride.s,
                     p->q_stride.d, p->dim_qk, rows, s->minus_lse, floats_at(t->scratch, at->q), at->qk_floats);
  s->d_o = load_rows((attn_storage){t->args->d_o, p->dtype_o}, attn_row_offset(p, &p->d_o_stride, t->unit.b, h, token),
                     p->d_o_stride.s, p->d_o_stride.d, p->dim_v, rows, s->minus_lse, floats_at(t->scratch, at->d_o),
                     at->v_floats);
  s->block = (row_block){.problem = p,
                         .args = t->args,
                         .seq = &t->unit.seq,
                         .b = t->unit.b,
                         .head = h,
                         .first_row = row,
                         .rows = rows,
                         .rows_per_head = rows,
                         .q = (float *)(uintptr_t)s->q.rows.at,
                         .q_stride = s->q.rows.stride,
                         .range = (attn_key_range *)(void *)floats_at(t->scratch, at->range),
                         .row_max = floats_at(t->scratch, at->max),
                         .adjusted = scores_adjusted(p)};
  s->block.alike = rows_see_alike(&s->block);
  start_ranges(&s->block, round_up(rows, TILE_ROWS));
}

#endif
