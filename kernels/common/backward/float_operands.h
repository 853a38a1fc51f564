/* SPDX-License-Identifier: MIT */
/* flash_backward: operands of products as floats. pair_operands.h has the same names for pairs of bf16 values.
 *
 * Parameters: those of tiles.h. */
#ifndef ATTN_COMMON_BACKWARD_FLOAT_OPERANDS_H
#define ATTN_COMMON_BACKWARD_FLOAT_OPERANDS_H

#include "operands.h"

enum { K_HAS_FACTOR = true }; /* panels of K are multiplied by the factor of scores */

/* Rows of queries: in place where tiles can read them so, else copied. Rows without keys are zeros: they may hold anything.
 */
static step_operand load_operand(const row_source *from, int64_t rows, const float *minus_lse, operand_memory memory) {
  const bool in_place = from->from.dtype == ATTN_F32 && from->column_stride == 1 && from->columns % VEC_LANES == 0 &&
                        all_live(minus_lse, rows);
  const int64_t first = in_place ? round_down(rows, TILE_ROWS) : 0;
  for (int64_t i = first; i < round_up(rows, TILE_ROWS); i++) {
    float *row = memory.along + (i - first) * memory.floats;
    if (i < rows && minus_lse[i] != -INFINITY)
      copy_row(from, i, row, memory.floats);
    else
      memset(row, 0, (size_t)memory.floats * sizeof *row);
  }
  const float_rows copied = {memory.along, memory.floats};
  if (!in_place) return (step_operand){{.rows = copied, .last_row = -1}, copied};
  const float_rows rows_there = {(const float *)from->from.data + from->offset, from->row_stride};
  return (step_operand){{.rows = rows_there, .last = copied, .last_row = first < rows ? first : -1}, rows_there};
}

/* `keys` rows transposed into panels, times `factor`; those that are not used are zeros. */
static void pack_panels(const row_source *from, int64_t keys, attn_key_range used, float factor, float *panels) {
  const int64_t dim = from->columns;
  const attn_problem as_k = {
      .dim_qk = dim, .dtype_kv = from->from.dtype, .k_stride = {.s = from->row_stride, .d = from->column_stride}};
  const bool quick = LOADS_TRANSPOSED && from->from.dtype == ATTN_F32 && from->column_stride == 1 && dim % 4 == 0;
  for (int64_t key = 0; key < keys; key += VEC_LANES) {
    float *panel = panels + round_down(key, PANEL_KEYS) * dim + key % PANEL_KEYS;
    const int64_t offset = from->offset + key * from->row_stride;
    if (quick && used.begin <= key && key + VEC_LANES <= used.end) {
      (void)transpose_floats((const float *)from->from.data + offset, from->row_stride, dim, factor, panel);
      continue;
    }
    const int64_t count = min64(used.end - key, VEC_LANES), skip = min64(used.begin - key, VEC_LANES);
    pack_lanes(&as_k, from->from, offset, max64(count, 0), panel);
    for (int64_t d = 0; factor != 1.0f && d < dim; d++)
      vec_store(panel + d * PANEL_KEYS, vec_mul(vec_load(panel + d * PANEL_KEYS), vec_set1(factor)));
    for (int64_t d = 0; skip > 0 && d < dim; d++)
      for (int64_t i = 0; i < skip; i++) panel[d * PANEL_KEYS + i] = 0.0f;
  }
}

/* `keys` rows, in place or copied; those that are not used are zeros. */
static float_rows load_down(const row_source *from, int64_t keys, attn_key_range used, float *copy, int64_t floats) {
  const bool all_used = used.begin == 0 && used.end == keys;
  if (all_used && from->from.dtype == ATTN_F32 && from->column_stride == 1 && from->columns % VEC_LANES == 0)
    return (float_rows){(const float *)from->from.data + from->offset, from->row_stride};
  for (int64_t j = 0; j < keys; j++)
    if (j >= used.begin && j < used.end)
      copy_row(from, j, copy + j * floats, floats);
    else
      memset(copy + j * floats, 0, (size_t)floats * sizeof *copy);
  return (float_rows){copy, floats};
}

static inline void turn_rows(const row_source *from, int64_t rows, const float *minus_lse, int64_t floats, float *to,
                             int64_t to_stride) {
  (void)from, (void)rows, (void)minus_lse, (void)floats, (void)to, (void)to_stride; /* never called */
}

/* Makes of P and dS of a tile's rows, as floats, what products read. Nothing is to be done. */
static inline void keep_tile(const backward_step *s, int64_t tile_row, attn_key_range keys) {
  (void)s, (void)tile_row, (void)keys;
}

#endif
