/* SPDX-License-Identifier: MIT */
/* flash_backward: sizes of its blocks and ranges, and what lies where in the memory of a unit and of a thread.
 *
 * Parameters: those of tiles.h, and
 *   PAIR_OPERANDS  optional: operands are pairs of bf16 values, two neighbours along the sum (pair_operands.h), and not
 *                  floats (float_operands.h); tested: set (avx512bf16, neonbf16, amx), not set (the others)
 *   OPERAND_STEP   optional, with it: values that a product sums over at once; default: 2; tested: 2 (avx512bf16), 32 (amx)
 *   TURNED_SUMS    optional, with it: no left operand of a product is transposed, so dK and dV are summed transposed,
 *                  [column][key], until they are stored; tested: set (amx) */
#ifndef ATTN_COMMON_BACKWARD_LAYOUT_H
#define ATTN_COMMON_BACKWARD_LAYOUT_H

#include "kernels/common/tiles/pack.h"

enum {
  BACKWARD_KEYS = 192, /* whole panels and whole tiles of every tier; P and dS of a step are 2 x 160 KB */
  BACKWARD_ROWS = 192,
  BACKWARD_TILES = BACKWARD_ROWS / TILE_ROWS,
  SCORE_STRIDE = BACKWARD_KEYS + 16,              /* an odd number of lines: a column uses all sets of level 1 */
  TASK_ROWS = 256,                                /* terms are found, and dQ is added up, by tasks of so many rows */
  KEPT_STRIDE = BACKWARD_KEYS + 2 * PHILOX_GROUP, /* a block's keys and what their groups have beside */
  PAIR_KEYS = 128,                                /* two ranges from 4 times as many keys on, four from 16 times */
  MOST_RANGES = 8,                                /* so memory grows by the length, not its square */
  PART_ROWS = 1024,                               /* queries of a KV head are two parts from twice as many on, */
  MOST_PARTS = 4                                  /* and four from four times as many */
};
#ifdef PAIR_OPERANDS
enum { OPERAND_VALUES = 2, SCORE_ROWS = TILE_ROWS }; /* floats of P and dS are those of a tile of rows */
#ifndef OPERAND_STEP
#define OPERAND_STEP 2
#endif
#else
#define OPERAND_STEP 1
enum { OPERAND_VALUES = 1, SCORE_ROWS = BACKWARD_ROWS };
#endif
enum { KEY_PAIR_STRIDE = BACKWARD_KEYS / 2 + 16 };
#ifdef TURNED_SUMS
enum { SUMS_ARE_TURNED = true, FLOATS_STEP = TILE_ROWS };
#else
enum { SUMS_ARE_TURNED = false, FLOATS_STEP = VEC_LANES };
#endif
_Static_assert(BACKWARD_KEYS % OPERAND_STEP == 0 && TILE_ROWS % OPERAND_STEP == 0 && FLOATS_STEP % VEC_LANES == 0,
               "blocks are whole steps");
_Static_assert(BACKWARD_KEYS % PANEL_KEYS == 0 && (int)PHILOX_GROUP <= BACKWARD_KEYS && BACKWARD_KEYS % TILE_ROWS == 0 &&
                   BACKWARD_ROWS % TILE_ROWS == 0,
               "blocks are whole panels and tiles");

/* Offsets in the memory of a unit and of a thread, in bytes, and strides of rows, in floats: the plan data. */
typedef struct backward_layout {
  int64_t minus_lse, minus_delta, d_q, parts, turned_rows, unit_bytes; /* a unit */
  int64_t k_panels, v_panels, k_rows, q, d_o, p, d_s, slope, d_k, d_v, range, max, kept, sums, terms;
  int64_t q_pairs, d_o_pairs, p_pairs, d_s_pairs, d_s_key_pairs, turned, scratch_bytes; /* a thread */
  int64_t rows, qk_floats, v_floats;
} backward_layout;
_Static_assert(sizeof(backward_layout) <= ATTN_OWN_BYTES, "attn_schedule.own holds it");

static const backward_layout *backward_layout_in(const attn_schedule *schedule) { return (const void *)schedule->own; }

/* Elements of an operand that hold so many values, in whole steps. */
static int64_t elements_of(int64_t values) { return round_up(values, OPERAND_STEP) / OPERAND_VALUES; }

/* Floats from one column of turned rows to the next: an odd number of lines, mostly. */
static int64_t turned_stride(const attn_problem *p) {
  return SUMS_ARE_TURNED ? round_up(p->seq_q, OPERAND_STEP) / 2 + 16 : 0;
}

/* The fewest equal parts of at most `most` keys, in whole panels. */
static int64_t even_part(int64_t keys, int64_t most) { return round_up(ceil_div(keys, ceil_div(keys, most)), PANEL_KEYS); }

/* Keys of a range of a sequence of len_k keys. Ranges are a power of 2, because threads mostly are; their number grows by
 * the root of the length, because each has a dQ of its own, which takes memory and is added up. */
static int64_t range_keys(int64_t len_k) {
  int64_t ranges = 1;
  while (ranges < MOST_RANGES && 4 * ranges * ranges * PAIR_KEYS <= len_k) ranges *= 2;
  return even_part(max64(len_k, 1), ceil_div(max64(len_k, 1), ranges));
}

static int64_t range_count(int64_t len_k) { return max64(1, ceil_div(len_k, range_keys(len_k))); }

/* How the queries of a KV head are cut: blocks of `rows`, so many of each query head, and parts of so many blocks. */
typedef struct row_blocks {
  int64_t rows, of_head, of_part, parts;
} row_blocks;

/* The cut of `heads` heads with len_q queries each. More parts are more tasks, but each has a dK and a dV of its own, which
 * take memory and are added up: with PART_ROWS queries that is little beside their products. Parts are a power of 2, like
 * ranges, and blocks as even as whole tiles allow. */
static row_blocks cut_rows(int64_t heads, int64_t len_q) {
  int64_t parts = 1, blocks = ceil_div(len_q, BACKWARD_ROWS), rows = BACKWARD_ROWS;
  while (parts < MOST_PARTS && len_q >= ceil_div(2 * parts * PART_ROWS, heads)) parts *= 2;
  if (heads % parts != 0) blocks = round_up(blocks, parts);
  if (parts > 1) rows = round_up(ceil_div(len_q, blocks), TILE_ROWS);
  blocks = ceil_div(len_q, rows);
  return (row_blocks){.rows = rows, .of_head = blocks, .of_part = ceil_div(heads * blocks, parts), .parts = parts};
}

/* Gradients of what is added to scores, or of all scores: they take a phase of their own. */
static bool wants_score_gradients(const attn_problem *p) {
  return attn_uses(p, ATTN_USE_D_BIAS | ATTN_USE_D_ALIBI | ATTN_USE_D_SINKS | ATTN_USE_D_SCORE_WEIGHT) ||
         p->score == ATTN_SCORE_PRECOMPUTED;
}

static inline bool backward_layout_of(const attn_problem *p, backward_layout *at) {
  const int64_t dim_qk = k_dimensions(p), keys = BACKWARD_KEYS, rows = BACKWARD_ROWS, scores = SCORE_ROWS * SCORE_STRIDE;
  const int64_t row_pairs = OPERAND_VALUES == 2 ? rows / 2 : 0, down = SUMS_ARE_TURNED ? 0 : row_pairs;
  *at = (backward_layout){.rows = round_up(p->seq_q, TILE_ROWS),
                          .qk_floats = round_up(dim_qk, FLOATS_STEP),
                          .v_floats = round_up(p->dim_v, FLOATS_STEP)};
  const int64_t heads = attn_group(p), parts = cut_rows(heads, p->seq_q).parts;
  const memory_part unit[] = {{&at->minus_lse, heads * at->rows + TILE_ROWS, float_bytes(1)},
                              {&at->minus_delta, heads * at->rows + TILE_ROWS, float_bytes(1)},
                              {&at->d_q, range_count(p->seq_k) * heads * at->rows, float_bytes(at->qk_floats)},
                              {&at->parts, parts > 1 ? parts * p->seq_k : 0, float_bytes(at->qk_floats + at->v_floats)},
                              {&at->turned_rows, heads * (at->qk_floats + at->v_floats), float_bytes(turned_stride(p))}};
  const memory_part scratch[] = {{&at->k_panels, keys, float_bytes(elements_of(dim_qk))},
                                 {&at->v_panels, keys, float_bytes(elements_of(p->dim_v))},
                                 {&at->k_rows, elements_of(keys), float_bytes(at->qk_floats)},
                                 {&at->q, rows, float_bytes(at->qk_floats)},
                                 {&at->d_o, rows, float_bytes(at->v_floats)},
                                 {&at->p, scores, float_bytes(1)},
                                 {&at->d_s, scores, float_bytes(1)},
                                 {&at->slope, p->softcap > 0 ? scores : 0, float_bytes(1)},
                                 {&at->d_k, keys, float_bytes(at->qk_floats)},
                                 {&at->d_v, keys, float_bytes(at->v_floats)},
                                 {&at->q_pairs, down, float_bytes(at->qk_floats)},
                                 {&at->d_o_pairs, down, float_bytes(at->v_floats)},
                                 {&at->p_pairs, row_pairs, float_bytes(SCORE_STRIDE)},
                                 {&at->d_s_pairs, row_pairs, float_bytes(SCORE_STRIDE)},
                                 {&at->d_s_key_pairs, 2 * row_pairs, float_bytes(KEY_PAIR_STRIDE)},
                                 {&at->turned, SUMS_ARE_TURNED ? keys : 0, float_bytes(at->qk_floats + at->v_floats)},
                                 {&at->range, rows, sizeof(attn_key_range)},
                                 {&at->max, rows, float_bytes(1)},
                                 {&at->kept, p->dropout > 0 ? TILE_ROWS : 0, float_bytes(KEPT_STRIDE)},
                                 {&at->sums, wants_score_gradients(p) ? rows * SCORE_STRIDE : 0, float_bytes(1)},
                                 {&at->terms, wants_score_gradients(p) ? 2 * (rows + TILE_ROWS) : 0, float_bytes(1)}};
  return LAY_OUT(unit, &at->unit_bytes) && LAY_OUT(scratch, &at->scratch_bytes);
}

#endif
