/* SPDX-License-Identifier: MIT */
/* flash_backward: operands of products as pairs of bf16 values, which take the place of floats: two neighbours along the
 * dimension that a product sums over. float_operands.h has the same names for floats.
 *
 *   Q, dO   [row][dim / 2] along, and [row / 2][column] down: pairs of rows; with TURNED_SUMS [column][row / 2]
 *   K, V    [panel][dim / 2][PANEL_KEYS], and K [key / 2][column]: pairs of keys
 *   P, dS   [row / 2][key] down, for dV and dK, and dS [row][key / 2] along, for dQ
 *
 * P and dS are floats, of a tile of rows at a time, until both are rounded to bf16. Pairs begin at even rows and keys of the
 * sequence: no bit depends on how it is cut.
 *
 * Parameters: those of tiles.h, whose vec_fma_factor() multiplies pairs, too, those of decode/few_pairs.h, and
 *   vec join_lanes(vec even, vec odd)  lane by lane, the nearest bf16 values of both as a pair */
#ifndef ATTN_COMMON_BACKWARD_PAIR_OPERANDS_H
#define ATTN_COMMON_BACKWARD_PAIR_OPERANDS_H

#include "operands.h"

enum { K_HAS_FACTOR = false, PAIRED_VALUES = 2 * VEC_LANES }; /* K times a factor is no bf16 value */
_Static_assert(TILE_ROWS % 2 == 0 && BACKWARD_KEYS % PAIRED_VALUES == 0 && TASK_ROWS % PAIRED_VALUES == 0,
               "tiles, blocks and tasks are whole pairs");

/* PAIRED_VALUES values of row i from column d on, and zeros behind the last. */
static vec values_of(const row_source *from, int64_t i, int64_t d) {
  const uint16_t *at = (const uint16_t *)from->from.data + from->offset + i * from->row_stride;
  const int64_t n = min64(from->columns - d, PAIRED_VALUES);
  if (n <= 0) return vec_zero();
  if (from->column_stride == 1) return load_pairs(at + d, n);
  uint16_t values[PAIRED_VALUES] = {0};
  for (int64_t c = 0; c < n; c++) values[c] = at[(d + c) * from->column_stride];
  return load_pairs(values, PAIRED_VALUES);
}

/* Whether pairs along a row can be read where they lie. */
static bool pairs_in_place(const row_source *from) {
  return from->column_stride == 1 && from->columns % OPERAND_STEP == 0 && from->row_stride % 2 == 0 &&
         ((uintptr_t)from->from.data + (uintptr_t)from->offset * sizeof(uint16_t)) % sizeof(float) == 0;
}

/* Two rows as pairs, of the columns from c on. A row that is not `used` is zeros. */
static void join_columns(const row_source *from, int64_t i, const bool used[2], int64_t c, vec pairs[2]) {
  const vec even = used[0] ? values_of(from, i, c) : vec_zero(), odd = used[1] ? values_of(from, i + 1, c) : vec_zero();
  zip_pairs(even, odd, pairs);
  unzip_columns(pairs[0], pairs[1], pairs);
}

/* The same of all columns, to floats of whole vectors. */
static void join_rows(const row_source *from, int64_t i, const bool used[2], float *to, int64_t floats) {
  for (int64_t c = 0; c < floats; c += PAIRED_VALUES) {
    vec pairs[2];
    join_columns(from, i, used, c, pairs);
    vec_store(to + c, pairs[0]);
    if (c + VEC_LANES < floats) vec_store(to + c + VEC_LANES, pairs[1]);
  }
}

/* Which of the rows i and i + 1 are: those that have keys. */
static void find_used(const float *minus_lse, int64_t i, int64_t rows, bool used[2]) {
  for (int64_t n = 0; n < 2; n++) used[n] = i + n < rows && minus_lse[i + n] != -INFINITY;
}

/* Pairs of rows down, [column][row / 2], for `floats` columns. */
static void turn_rows(const row_source *from, int64_t rows, const float *minus_lse, int64_t floats, float *to,
                      int64_t to_stride) {
  for (int64_t row = 0; row < rows; row += PAIRED_VALUES)
    for (int64_t c = 0; c < floats; c += PAIRED_VALUES) {
      vec half[2][VEC_LANES];
      for (int64_t i = 0; i < VEC_LANES; i++) {
        bool used[2];
        vec pairs[2];
        find_used(minus_lse, row + 2 * i, rows, used);
        join_columns(from, row + 2 * i, used, c, pairs);
        half[0][i] = pairs[0], half[1][i] = pairs[1];
      }
      for (int64_t n = 0; n < 2; n++) {
        vec_transpose(half[n]);
        for (int64_t i = 0; i < VEC_LANES; i++) vec_store(to + (c + n * VEC_LANES + i) * to_stride + row / 2, half[n][i]);
      }
    }
}

static step_operand load_operand(const row_source *from, int64_t rows, const float *minus_lse, operand_memory memory) {
  const bool in_place = pairs_in_place(from) && all_live(minus_lse, rows);
  const int64_t first = in_place ? round_down(rows, TILE_ROWS) : 0, pairs = round_up(elements_of(from->columns), VEC_LANES);
  for (int64_t i = first; i < round_up(rows, TILE_ROWS); i++) {
    const bool used = i < rows && minus_lse[i] != -INFINITY;
    for (int64_t d = 0; d < pairs; d += VEC_LANES)
      vec_store(memory.along + (i - first) * pairs + d, used ? values_of(from, i, 2 * d) : vec_zero());
  }
  for (int64_t i = 0; !SUMS_ARE_TURNED && i < rows; i += 2) {
    bool used[2];
    find_used(minus_lse, i, rows, used);
    join_rows(from, i, used, memory.down + i / 2 * memory.floats, memory.floats);
  }
  const float_rows copied = {memory.along, pairs}, down = {memory.down, memory.floats};
  if (!in_place) return (step_operand){{.rows = copied, .last_row = -1}, down};
  const void *there = (const uint16_t *)from->from.data + from->offset;
  return (step_operand){{.rows = {there, from->row_stride / 2}, .last = copied, .last_row = first < rows ? first : -1},
                        down};
}

static bool is_used(attn_key_range used, int64_t key) { return used.begin <= key && key < used.end; }

/* `factor` is that of scores, which takes effect later. */
static void pack_panels(const row_source *from, int64_t keys, attn_key_range used, float factor, float *panels) {
  const int64_t depth = elements_of(from->columns);
  (void)factor;
  for (int64_t key = 0; key < keys; key += VEC_LANES)
    for (int64_t d = 0; d < depth; d += VEC_LANES) {
      float *panel = panels + round_down(key, PANEL_KEYS) * depth + key % PANEL_KEYS + d * PANEL_KEYS;
      vec r[VEC_LANES];
      for (int i = 0; i < VEC_LANES; i++) r[i] = is_used(used, key + i) ? values_of(from, key + i, 2 * d) : vec_zero();
      vec_transpose(r);
      for (int i = 0; i < VEC_LANES && d + i < depth; i++) vec_store(panel + i * PANEL_KEYS, r[i]);
    }
}

static float_rows load_down(const row_source *from, int64_t keys, attn_key_range used, float *copy, int64_t floats) {
  for (int64_t j = 0; j < round_up(keys, OPERAND_STEP); j += 2)
    join_rows(from, j, (const bool[2]){is_used(used, j), is_used(used, j + 1)}, copy + j / 2 * floats, floats);
  return (float_rows){copy, floats};
}

/* P and dS of a tile's rows for the keys [begin, end), which are whole vectors, as pairs. */
static void keep_tile(const backward_step *s, int64_t tile_row, attn_key_range keys) {
  float *p_down = (float *)(uintptr_t)s->p_down.at, *d_s_down = (float *)(uintptr_t)s->d_s_down.at;
  float *d_s_along = (float *)(uintptr_t)s->d_s_along.at + tile_row * KEY_PAIR_STRIDE;
  for (int64_t i = 0; i < TILE_ROWS; i += 2) {
    const float *p = s->p + i * SCORE_STRIDE, *d_s = s->d_s + i * SCORE_STRIDE;
    const int64_t down = (tile_row + i) / 2 * SCORE_STRIDE;
    for (int64_t at = keys.begin; at < keys.end; at += VEC_LANES) {
      vec_store(p_down + down + at, join_lanes(vec_load(p + at), vec_load(p + SCORE_STRIDE + at)));
      vec_store(d_s_down + down + at, join_lanes(vec_load(d_s + at), vec_load(d_s + SCORE_STRIDE + at)));
    }
  }
  for (int64_t i = 0; i < TILE_ROWS; i++)
    for (int64_t at = round_down(keys.begin, PAIRED_VALUES); at < keys.end; at += PAIRED_VALUES) {
      const float *d_s = s->d_s + i * SCORE_STRIDE + at;
      vec_store(d_s_along + i * KEY_PAIR_STRIDE + at / 2, narrow(vec_load(d_s), vec_load(d_s + VEC_LANES)));
    }
}

#endif
