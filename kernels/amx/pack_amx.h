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

static void load_k(const unit_keys *s, int64_t key, int64_t d, __m512i part[PARTS]) {
  const input_value *k = s->args->k;
  const bool used = s->used.begin <= key && key < s->used.end;
  load_parts(used ? k + run_of_unit(s, key).k + d * s->problem->k_stride.d : k, s->problem->k_stride.d,
             used ? s->problem->dim_qk - d : 0, part);
}

static void load_v(const unit_keys *s, int64_t key, int64_t d, __m512i part[PARTS]) {
  const input_value *v = s->args->v;
  const bool used = s->used.begin <= key && key < s->used.end;
  load_parts(used ? v + run_of_unit(s, key).v + d * s->problem->v_stride.d : v, s->problem->v_stride.d,
             used ? s->problem->dim_v - d : 0, part);
}

/* ---- Blocks ---- */

static void store_parts(const __m512i part[PARTS], uint16_t *to, int64_t distance) {
  UNROLL
  for (int i = 0; i < PARTS; i++) _mm512_storeu_si512(to + i * distance, part[i]);
}

static void pack_k_block(const unit_keys *s, int64_t key, uint16_t *to) {
  const int64_t distance = depth_of(s->problem->dim_qk) * STEP;
  for (int64_t group = key; group < key + KEY_BLOCK; group += 32, to += (PARTS - 1) * distance)
    for (int64_t d = 0; d < s->problem->dim_qk; d += DEPTH, to += STEP)
      for (int64_t i = 0; i < 32; i++) {
        __m512i part[PARTS];
        load_k(s, group + i, d, part);
        store_parts(part, to + i * DEPTH, distance);
      }
}

/* Eight values of each of four rows, `stride` bytes apart: by masked broadcasts, which need no shuffle. */
static inline __m512i load_quarters(const char *from, int64_t stride) {
  __m512i r = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(const void *)from));
  r = _mm512_mask_broadcast_i32x4(r, 0x00f0, _mm_loadu_si128((const __m128i *)(const void *)(from + stride)));
  r = _mm512_mask_broadcast_i32x4(r, 0x0f00, _mm_loadu_si128((const __m128i *)(const void *)(from + 2 * stride)));
  return _mm512_mask_broadcast_i32x4(r, 0xf000, _mm_loadu_si128((const __m128i *)(const void *)(from + 3 * stride)));
}

/* 32 keys of 32 dimensions, rows `stride` bytes apart, to 32 dimensions of 32 keys. */
static void transpose_values(const char *from, int64_t stride, uint16_t *to) {
  for (int part = 0; part < 4; part++, to += 8 * DEPTH) { /* dimensions 8 part .. 8 part + 7 */
    __m512i r[8], t[8];                                   /* quarter q holds keys 8 q .. 8 q + 7 */
    UNROLL
    for (int i = 0; i < 8; i++) r[i] = load_quarters(from + part * 16 + i * stride, 8 * stride);
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

static void pack_v_block(const unit_keys *s, int64_t key, uint16_t *to) {
  const attn_problem *p = s->problem;
  for (int64_t d = 0; d < p->dim_v; d += DEPTH, to += (PARTS - 1) * GROUPS * STEP)
    for (int64_t group = key; group < key + KEY_BLOCK; group += 32, to += STEP) {
      const bool whole = s->used.begin <= group && group + 32 <= s->used.end;
      const attn_key_run run = whole ? run_of_unit(s, group) : (attn_key_run){0};
      if (PARTS == 1 && p->v_stride.d == 1 && d + DEPTH <= p->dim_v && run.keys >= 32) {
        const uint16_t *v = (const uint16_t *)s->args->v + run.v + d;
        transpose_values((const char *)v, p->v_stride.s * (int64_t)sizeof *v, to);
        continue;
      }
      uint16_t copy[PARTS * STEP];
      for (int64_t i = 0; i < 32; i++) {
        __m512i part[PARTS];
        load_v(s, group + i, d, part);
        store_parts(part, copy + i * DEPTH, STEP);
      }
      for (int i = 0; i < PARTS; i++)
        transpose_values((const char *)(copy + i * STEP), DEPTH * sizeof *copy, to + i * GROUPS * STEP);
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
  const int64_t distance = depth_of(p->dim_qk) * STEP;
  const input_value *q =
      (const input_value *)block->args->q + attn_q_offset(p, block->seq, block->b, first.head, first.query);
  const input_value *from[TILE_QUERIES];
  for (int64_t i = 0; i < TILE_QUERIES; i++)
    from[i] = row + i < block->rows && range[i].begin < range[i].end ? q + i * p->q_stride.s : NULL;
  for (int64_t d = 0; d < p->dim_qk; d += DEPTH, to += STEP)
    for (int half = 0; half < 2; half++) {
      vec r[PARTS][HALF];
      UNROLL
      for (int i = 0; i < HALF; i++) {
        const input_value *at = from[half * HALF + i];
        __m512i part[PARTS];
        load_parts(at ? at + d * p->q_stride.d : q, p->q_stride.d, at ? p->dim_qk - d : 0, part);
        UNROLL
        for (int n = 0; n < PARTS; n++) r[n][i] = _mm512_castsi512_ps(part[n]);
      }
      UNROLL
      for (int n = 0; n < PARTS; n++) {
        vec_transpose(r[n]);
        UNROLL
        for (int i = 0; i < HALF; i++)
          vec_store((float *)(void *)(to + n * distance + i * 2 * DEPTH + half * DEPTH), r[n][i]);
      }
    }
}

#endif
