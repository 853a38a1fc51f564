/* SPDX-License-Identifier: MIT */
/* Q, K and V as the tile unit takes them (shape_amx.h). K is read in place where its rows are whole steps of adjacent
 * values; then only its last block is copied, because rows beyond the sequence may not exist. */
#ifndef ATTN_PACK_AMX_H
#define ATTN_PACK_AMX_H

#include "body_amx.h"

/* ---- Memory of a unit: V^T, then K ---- */

/* Whole blocks of K lie at one stride, in steps of adjacent bfloat16 values. */
static bool k_in_place(const attn_problem *p) {
  const bool whole = !attn_uses(p, ATTN_USE_PAGES) || p->page_tokens % KEY_BLOCK == 0;
  return PARTS == 1 && whole && p->k_stride.d == 1 && p->dim_qk % DEPTH == 0;
}

static int64_t packed_values(const attn_problem *p) {
  const int64_t blocks = blocks_of(p->seq_k), k_blocks = k_in_place(p) ? blocks > 0 : blocks;
  return blocks * block_values(p->dim_v) + k_blocks * block_values(p->dim_qk);
}

static uint16_t *packed_v(const attn_problem *p, uint16_t *unit, int64_t block) {
  return unit + block * block_values(p->dim_v);
}

/* The packed block of K. If K is read in place, only its last block is packed. */
static uint16_t *packed_k(const attn_problem *p, uint16_t *unit, int64_t block) {
  return packed_v(p, unit, blocks_of(p->seq_k)) + (k_in_place(p) ? 0 : block) * block_values(p->dim_qk);
}

/* ---- Rows in ---- */

enum { GROUP_KEYS = 32 };

/* The row of a key of K, or of V. */
static const input_value *row_in_run(const unit_keys *s, bool of_v, attn_key_run run) {
  return of_v ? (const input_value *)s->args->v + run.v : (const input_value *)s->args->k + run.k;
}

/* The rows of 32 keys from `key` on; NULL for those that nobody uses. Returns whether all are used and lie in one run. */
static bool rows_of_keys(const unit_keys *s, int64_t key, bool of_v, const input_value *row[GROUP_KEYS]) {
  const int64_t stride = of_v ? s->problem->v_stride.s : s->problem->k_stride.s;
  if (s->used.begin <= key && key + GROUP_KEYS <= s->used.end) {
    const attn_key_run run = run_of_unit(s, key);
    if (run.keys >= GROUP_KEYS) {
      for (int64_t i = 0; i < GROUP_KEYS; i++) row[i] = row_in_run(s, of_v, run) + i * stride;
      return true;
    }
  }
  for (int64_t i = 0; i < GROUP_KEYS; i++) {
    const bool used = s->used.begin <= key + i && key + i < s->used.end;
    row[i] = used ? row_in_run(s, of_v, run_of_unit(s, key + i)) : NULL;
  }
  return false;
}

/* 32 x 32 values, rows `stride` values apart. */
typedef struct square {
  const input_value *at;
  int64_t stride;
} square;

/* Values d .. d + 31 of `dim` of 32 rows, with zeros where nothing is: in place if they are all there, adjacent, and rows
 * lie at one stride, `stride->s`; else in `copy`. */
static ALWAYS_INLINE square square_of(const input_value *const row[32], bool at_stride, const attn_strides *stride,
                                      int64_t d, int64_t dim, input_value copy[32][DEPTH]) {
  if (at_stride && stride->d == 1 && d + DEPTH <= dim) return (square){row[0] + d, stride->s};
  for (int i = 0; i < 32; i++)
    copy_values(row[i] ? row[i] + d * stride->d : copy[i], stride->d, row[i] ? dim - d : 0, copy[i]);
  return (square){copy[0], DEPTH};
}

static ALWAYS_INLINE int64_t bytes_of_row(const square *from) { return from->stride * (int64_t)sizeof(input_value); }

/* Four words of 4 bytes of each of 16 rows from row `row` and value `n` on: to 16 words of each column. */
static ALWAYS_INLINE void transpose_words(const square *from, int row, int n, __m512i column[4]) {
  vec r[4];
  vec_load_transposed(from->at + row * from->stride + n, bytes_of_row(from), r);
  UNROLL
  for (int i = 0; i < 4; i++) column[i] = _mm512_castps_si512(r[i]);
}

/* ---- Squares of 32 x 32 values; parts are `distance` values apart ---- */

#if PARTS == 1

/* to[column][row]. */
static void columns_of_square(const square *from, uint16_t *to, int64_t distance) {
  (void)distance;
  for (int n = 0; n < DEPTH; n += 8, to += 8 * DEPTH) { /* columns n .. n + 7 */
    __m512i r[8], t[8];                                 /* quarter q holds rows 8 q .. 8 q + 7 */
    UNROLL
    for (int i = 0; i < 8; i++) r[i] = load_quarters(from->at + i * from->stride + n, 8 * bytes_of_row(from));
    UNROLL
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm512_unpacklo_epi16(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_epi16(r[i], r[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 8; i += 4) {
      r[i] = _mm512_unpacklo_epi32(t[i], t[i + 2]);
      r[i + 1] = _mm512_unpackhi_epi32(t[i], t[i + 2]);
      r[i + 2] = _mm512_unpacklo_epi32(t[i + 1], t[i + 3]);
      r[i + 3] = _mm512_unpackhi_epi32(t[i + 1], t[i + 3]);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
      _mm512_storeu_si512(to + 2 * i * DEPTH, _mm512_unpacklo_epi64(r[i], r[i + 4]));
      _mm512_storeu_si512(to + (2 * i + 1) * DEPTH, _mm512_unpackhi_epi64(r[i], r[i + 4]));
    }
  }
}

/* to[pair of columns][row][2]. */
static void pairs_of_square(const square *from, uint16_t *to, int64_t distance) {
  (void)distance;
  for (int half = 0; half < 2; half++)
    for (int n = 0; n < HALF; n += 4) {
      __m512i pair[4];
      transpose_words(from, half * HALF, 2 * n, pair);
      UNROLL
      for (int i = 0; i < 4; i++) _mm512_storeu_si512(to + (n + i) * 2 * DEPTH + half * DEPTH, pair[i]);
    }
}

#else

static void columns_of_square(const square *from, uint16_t *to, int64_t distance) {
  for (int n = 0; n < DEPTH; n += 4) {
    __m512i low[4], high[4];
    transpose_words(from, 0, n, low);
    transpose_words(from, HALF, n, high);
    for (int i = 0; i < 4; i++) {
      __m512i part[PARTS];
      split_row(_mm512_castsi512_ps(low[i]), _mm512_castsi512_ps(high[i]), part);
      store_parts(part, to + (n + i) * DEPTH, distance);
    }
  }
}

static void pairs_of_square(const square *from, uint16_t *to, int64_t distance) {
  const __m512i odd = odd_words();
  for (int half = 0; half < 2; half++)
    for (int n = 0; n < DEPTH; n += 4) {
      __m512i column[4], part[4][PARTS];
      transpose_words(from, half * HALF, n, column);
      UNROLL
      for (int i = 0; i < 4; i++) split(_mm512_castsi512_ps(column[i]), part[i]);
      UNROLL
      for (int i = 0; i < 4; i += 2) {
        __m512i pair[PARTS];
        UNROLL
        for (int k = 0; k < PARTS; k++) pair[k] = pair_of(part[i][k], part[i + 1][k], odd);
        store_parts(pair, to + (n + i) * DEPTH + half * DEPTH, distance);
      }
    }
}

#endif

/* ---- Blocks ---- */

static void pack_k_block(const unit_keys *s, int64_t key, uint16_t *to) {
  const attn_problem *p = s->problem;
  const int64_t distance = depth_of(p->dim_qk) * STEP;
  for (int64_t group = key; group < key + KEY_BLOCK; group += GROUP_KEYS, to += (PARTS - 1) * distance) {
    const input_value *row[GROUP_KEYS], *k = s->args->k;
    rows_of_keys(s, group, false, row);
    for (int64_t d = 0; d < p->dim_qk; d += DEPTH, to += STEP)
      for (int64_t i = 0; i < GROUP_KEYS; i++) {
        __m512i part[PARTS];
        load_parts(row[i] ? row[i] + d * p->k_stride.d : k, p->k_stride.d, row[i] ? p->dim_qk - d : 0, part);
        store_parts(part, to + i * DEPTH, distance);
      }
  }
}

static void pack_v_block(const unit_keys *s, int64_t key, uint16_t *to) {
  const attn_problem *p = s->problem;
  const input_value *row[GROUPS][GROUP_KEYS];
  input_value copy[GROUP_KEYS][DEPTH];
  bool at_stride[GROUPS];
  for (int64_t group = 0; group < GROUPS; group++)
    at_stride[group] = rows_of_keys(s, key + group * GROUP_KEYS, true, row[group]);
  for (int64_t d = 0; d < p->dim_v; d += DEPTH, to += (PARTS - 1) * GROUPS * STEP)
    for (int64_t group = 0; group < GROUPS; group++, to += STEP) {
      const square v = square_of(row[group], at_stride[group], &p->v_stride, d, p->dim_v, copy);
      columns_of_square(&v, to, GROUPS * STEP);
    }
}

/* The blocks of one packing task. */
static void pack_keys(const attn_schedule *schedule, const attn_args *args, attn_task task, uint16_t *unit) {
  const attn_problem *p = &schedule->problem;
  const unit_keys s = keys_of_unit(p, args, task.unit);
  const attn_key_range item = keys_of_item(&s, task.item, PACK_KEYS);
  for (attn_key_range keys = next_to_pack(&s, item.begin, item.end); keys.begin < keys.end;
       keys = next_to_pack(&s, keys.end, item.end))
    for (int64_t key = round_down(keys.begin, KEY_BLOCK); key < keys.end; key += KEY_BLOCK) {
      pack_v_block(&s, key, packed_v(p, unit, key / KEY_BLOCK));
      if (!k_in_place(p) || key + KEY_BLOCK > s.seq.len_k) pack_k_block(&s, key, packed_k(p, unit, key / KEY_BLOCK));
    }
}

/* Up to 32 queries. Queries that see no key may hold anything and count as zeros. */
static void pack_queries(const row_block *block, int64_t row, const attn_key_range *range, uint16_t *to) {
  const attn_problem *p = block->problem;
  const problem_row first = problem_row_of(block, row);
  const input_value *q =
      (const input_value *)block->args->q + attn_q_offset(p, block->seq, block->b, first.head, first.query);
  const input_value *from[TILE_QUERIES];
  input_value copy[TILE_QUERIES][DEPTH];
  bool all = true;
  for (int64_t i = 0; i < TILE_QUERIES; i++) {
    from[i] = row + i < block->rows && range[i].begin < range[i].end ? q + i * p->q_stride.s : NULL;
    all = all && from[i];
  }
  for (int64_t d = 0; d < p->dim_qk; d += DEPTH, to += STEP) {
    const square values = square_of(from, all, &p->q_stride, d, p->dim_qk, copy);
    pairs_of_square(&values, to, depth_of(p->dim_qk) * STEP);
  }
}

#endif
