/* SPDX-License-Identifier: MIT */
/* Tiles of bf16 values by BFMMLA. The instruction multiplies 2 x 4 by 4 x 2 values and adds the 2 x 2 results to float32
 * sums: four times the work of an FMLA.
 *
 * A tile is 8 query rows (4 pairs) against 12 keys (6 pairs): 24 registers of 2 x 2 sums. Operands are packed in the order
 * in which the instruction takes them. A register holds 8 values: of each of two rows (or keys, or columns) 4 neighbours
 * along the dimension that is summed.
 *
 *   Q   [tile][dim / 4][row pair][row][4]     K  [panel][dim / 4][key pair][key][4]
 *   P   [key / 4][row pair][row][4]           V  [column group][key / 4][column pair][column][4]
 *
 * Scores go through memory, where the algorithm masks and exponentiates them, as in every tier. P is rounded to bf16 for the
 * product with V and for its own sum, as numerics of kernels declare. V of a masked key is multiplied by a P of exactly 0.
 *
 * pairs_neonbf16.h, which says how P is rounded, stands before any header of kernels/common. */
#ifndef ATTN_TILES_NEONBF16_H
#define ATTN_TILES_NEONBF16_H

#include "kernels/common/tiles/two_phase.h"
#include "pairs_neonbf16.h"

enum {
  PAIRS = TILE_ROWS / 2, /* pairs of rows */
  COLUMNS = 12,          /* columns of a tile of O; a tile of S has as many keys */
  COLUMN_PAIRS = COLUMNS / 2,
  QUAD = 4,           /* values that one step sums over */
  STEP_A = PAIRS * 8, /* values of Q or P of one step */
  STEP_B = COLUMN_PAIRS * 8,
  TASK_KEYS = WHOLE_PANELS(1024),
  STRIP_KEYS = WHOLE_PANELS(256) /* the most keys that P is rounded of at a time */
};
_Static_assert((int)COLUMNS == (int)PANEL_KEYS, "a panel of K is as wide as a group of columns of V");

/* ---- Memory ---- */

static int64_t quads(int64_t n) { return ceil_div(n, QUAD); }
static int64_t groups_of(const attn_problem *p) { return ceil_div(p->dim_v, COLUMNS); }
static int64_t key_quads(const attn_problem *p) { return round_up(p->seq_k, PANEL_KEYS) / QUAD; }

/* Offsets in bytes: in a unit's memory, and in the end of a thread's scratch. */
typedef struct bf16_layout {
  int64_t k, v, unit_bytes;
  int64_t q, p, scratch_bytes;
} bf16_layout;

/* Plan data. */
typedef struct bf16_plan {
  tiled_layout tiled;
  bf16_layout packed;
} bf16_plan;
_Static_assert(sizeof(bf16_plan) <= ATTN_OWN_BYTES, "attn_schedule.own holds it");

/* The memory of tasks of `rows` rows. False if a size overflows. */
static bool bf16_layout_of(const attn_problem *p, int64_t rows, bf16_layout *at) {
  const int64_t value = sizeof(uint16_t);
  const memory_part unit[] = {{&at->k, key_quads(p) * QUAD, quads(p->dim_qk) * QUAD * value},
                              {&at->v, key_quads(p) * STEP_B, groups_of(p) * value}};
  const memory_part scratch[] = {{&at->q, round_up(rows, TILE_ROWS), quads(p->dim_qk) * QUAD * value},
                                 {&at->p, TILE_ROWS, STRIP_KEYS * value}};
  *at = (bf16_layout){0};
  return LAY_OUT(unit, &at->unit_bytes) && LAY_OUT(scratch, &at->scratch_bytes);
}

/* Adds packed K and V, and packed Q and P, to the memory of a plan. False if a size overflows. */
static bool plan_bf16(const attn_problem *p, attn_schedule *schedule) {
  bf16_layout *at = &((bf16_plan *)(void *)schedule->own)->packed;
  if (!bf16_layout_of(p, schedule->row_block, at)) return false;
  schedule->items[0] = ceil_div(p->seq_k, TASK_KEYS);
  schedule->unit_bytes = (size_t)at->unit_bytes;
  schedule->scratch_bytes += (size_t)at->scratch_bytes;
  return true;
}

static const bf16_layout *layout_in(const attn_schedule *schedule) {
  return &((const bf16_plan *)(const void *)schedule->own)->packed;
}

static uint16_t *values_at(void *memory, int64_t offset) { return (uint16_t *)(void *)floats_at(memory, offset); }

/* Packed operands of a task. */
typedef struct bf16_memory {
  const uint16_t *k, *v;
  uint16_t *q, *p; /* p: of one tile and STRIP_KEYS keys */
} bf16_memory;

/* block->q is the start of a thread's scratch. */
static bf16_memory memory_of(const attn_schedule *schedule, const row_block *block) {
  const bf16_layout *at = layout_in(schedule);
  void *unit = (void *)(uintptr_t)block->keys.k;
  void *end = (char *)block->q + ((int64_t)schedule->scratch_bytes - at->scratch_bytes);
  return (bf16_memory){
      .k = values_at(unit, at->k), .v = values_at(unit, at->v), .q = values_at(end, at->q), .p = values_at(end, at->p)};
}

/* ---- Packing: whole panels, with zeros for what is no key in use ---- */

static uint16_t value_at(const row_source *row, int64_t column) {
  return ((const uint16_t *)row->from.data)[row->offset + column * row->column_stride];
}

static void pack_key(const unit_keys *unit, int64_t key, uint16_t *k, uint16_t *v) {
  const attn_problem *p = unit->problem;
  const bool used = unit->used.begin <= key && key < unit->used.end;
  const attn_key_run run = used ? run_of_unit(unit, key) : (attn_key_run){0};
  const row_source k_from = k_rows(unit, run), v_from = v_rows(unit, run);
  const int64_t j = key % PANEL_KEYS, depth = quads(p->dim_qk) * QUAD;
  uint16_t *to = k + key / PANEL_KEYS * PANEL_KEYS * depth + j / 2 * 8 + j % 2 * QUAD;
  for (int64_t d = 0; d < depth; d++) to[d / QUAD * STEP_B + d % QUAD] = used && d < p->dim_qk ? value_at(&k_from, d) : 0;
  for (int64_t c = 0; c < groups_of(p) * COLUMNS; c++)
    v[(c / COLUMNS * key_quads(p) + key / QUAD) * STEP_B + c % COLUMNS / 2 * 8 + c % 2 * QUAD + key % QUAD] =
        used && c < p->dim_v ? value_at(&v_from, c) : 0;
}

static void pack_bf16(const attn_schedule *schedule, const attn_args *args, attn_task task, void *memory) {
  uint16_t *k = values_at(memory, 0), *v = values_at(memory, layout_in(schedule)->v);
  const unit_keys unit = keys_of_unit(&schedule->problem, args, task.unit);
  const attn_key_range keys = keys_of_item(&unit, task.item, TASK_KEYS);
  if (keys.begin >= keys.end) return;
  for (int64_t key = round_down(keys.begin, PANEL_KEYS); key < round_up(keys.end, PANEL_KEYS); key++)
    pack_key(&unit, key, k, v);
}

static void pack_queries(const row_block *block, int64_t capacity, uint16_t *to) {
  const attn_problem *p = block->problem;
  const uint16_t *from = block->args->q;
  const int64_t depth = quads(p->dim_qk) * QUAD;
  for (int64_t i = 0; i < capacity; i++) {
    const bool used = i < block->rows && block->range[i].begin < block->range[i].end;
    const problem_row at = problem_row_of(block, i);
    const int64_t offset = attn_q_offset(p, block->seq, block->b, at.head, at.query), r = i % TILE_ROWS;
    uint16_t *row = to + (i - r) * depth + r / 2 * 8 + r % 2 * QUAD;
    for (int64_t d = 0; d < depth; d++)
      row[d / QUAD * STEP_A + d % QUAD] = used && d < p->dim_qk ? from[offset + d * p->q_stride.d] : 0;
  }
}

/* ---- The register tile ---- */

static ALWAYS_INLINE bfloat16x8_t load_8(const uint16_t *p) {
  return vreinterpretq_bf16_f32(load_here((const float *)(const void *)p));
}

/* sum[i][c] += the 2 x 2 products of row pair i and column pair c, over `steps` quads. `pairs` is a constant. */
static ALWAYS_INLINE void multiply(vec sum[PAIRS][COLUMN_PAIRS], const uint16_t *a, const uint16_t *b, int64_t steps,
                                   const int pairs) {
  NO_UNROLL
  for (int64_t s = 0; s < steps; s++) {
    bfloat16x8_t rows[PAIRS];
    UNROLL
    for (int i = 0; i < PAIRS; i++) rows[i] = load_8(a + s * STEP_A + i * 8);
    UNROLL
    for (int c = 0; c < pairs; c++) {
      const bfloat16x8_t columns = load_8(b + s * STEP_B + c * 8);
      UNROLL
      for (int i = 0; i < PAIRS; i++) sum[i][c] = vbfmmlaq_f32(sum[i][c], rows[i], columns);
    }
  }
}

/* score[i][j] of one tile of Q and one panel of K, in log2 units. */
static NO_INLINE void score_panel_bf16(const row_block *block, const uint16_t *q, const uint16_t *k, float *score) {
  const attn_problem *p = block->problem;
  const vec factor = vec_set1(p->scale * LOG2_E);
  vec sum[PAIRS][COLUMN_PAIRS];
  UNROLL
  for (int i = 0; i < PAIRS; i++) {
    UNROLL
    for (int c = 0; c < COLUMN_PAIRS; c++) sum[i][c] = vec_zero();
  }
  multiply(sum, q, k, quads(p->dim_qk), COLUMN_PAIRS);
  UNROLL
  for (int i = 0; i < PAIRS; i++) {
    float *row = score + 2 * i * block->score_stride;
    UNROLL
    for (int v = 0; v < TILE_VECS; v++) {
      const float64x2_t left = vreinterpretq_f64_f32(sum[i][2 * v]), right = vreinterpretq_f64_f32(sum[i][2 * v + 1]);
      vec_store(row + v * VEC_LANES, vec_mul(vreinterpretq_f32_f64(vzip1q_f64(left, right)), factor));
      vec_store(row + block->score_stride + v * VEC_LANES, vec_mul(vreinterpretq_f32_f64(vzip2q_f64(left, right)), factor));
    }
  }
}

/* A tile's P against one group of columns. */
typedef struct group_work {
  float *acc;
  int64_t stride, columns; /* stride and columns of acc */
  const uint16_t *p;
  int64_t steps; /* quads of keys */
} group_work;

/* acc += P V for one group of columns. Stores the tile's row `only` alone, or all rows if it is negative. */
static ALWAYS_INLINE void accumulate_group(const group_work w, const uint16_t *v, int only, const int pairs) {
  float *acc = w.acc;
  const int64_t stride = w.stride;
  vec sum[PAIRS][COLUMN_PAIRS];
  UNROLL
  for (int i = 0; i < PAIRS; i++) {
    UNROLL
    for (int c = 0; c < pairs; c++)
      sum[i][c] = vcombine_f32(vld1_f32(acc + 2 * i * stride + 2 * c), vld1_f32(acc + (2 * i + 1) * stride + 2 * c));
  }
  multiply(sum, w.p, v, w.steps, pairs);
  UNROLL
  for (int i = 0; i < PAIRS; i++) {
    UNROLL
    for (int c = 0; c < pairs; c++) {
      if (only < 0 || only == 2 * i) vst1_f32(acc + 2 * i * stride + 2 * c, vget_low_f32(sum[i][c]));
      if (only < 0 || only == 2 * i + 1) vst1_f32(acc + (2 * i + 1) * stride + 2 * c, vget_high_f32(sum[i][c]));
    }
  }
}

static NO_INLINE void accumulate_columns_of(const group_work *w, const uint16_t *v, int only) {
  if (w->columns >= COLUMNS)
    accumulate_group(*w, v, only, COLUMN_PAIRS);
  else if (w->columns > QUAD)
    accumulate_group(*w, v, only, 4);
  else
    accumulate_group(*w, v, only, 2);
}

/* ---- O += P V ---- */

static void round_p(const row_block *block, const float *score, int64_t steps, uint16_t *p) {
  for (int64_t s = 0; s < steps; s++)
    for (int i = 0; i < PAIRS; i++) {
      const float *row = score + 2 * i * block->score_stride + s * QUAD;
      const vec values = narrow(vec_load(row), vec_load(row + block->score_stride));
      vst1q_u16(p + s * STEP_A + i * 8, vreinterpretq_u16_f32(values));
    }
}

/* A copy of a group's V with zeros for the keys that row i may not see. */
static void copy_allowed_v(const row_block *block, int64_t i, int64_t key, int64_t steps, const uint16_t *v,
                           uint16_t *copy) {
  memcpy(copy, v, (size_t)(steps * STEP_B) * sizeof *v);
  for (int64_t j = 0; j < steps * QUAD; j++) {
    if (row_sees(block, i, key + j)) continue;
    for (int c = 0; c < COLUMNS; c++) copy[j / QUAD * STEP_B + c / 2 * 8 + c % 2 * QUAD + j % QUAD] = 0;
  }
}

/* acc += P V for the tile at tile_row and `steps` quads of keys from `key` on, at most STRIP_KEYS keys. Their P are at
 * `score`. */
static void accumulate_bf16(const row_block *block, int64_t tile_row, int64_t key, int64_t steps, const float *score,
                            const bf16_memory *m) {
  const attn_problem *problem = block->problem;
  float *acc = block->acc + tile_row * block->acc_stride;
  assert(steps <= STRIP_KEYS / QUAD);
  round_p(block, score, steps, m->p);
  for (int64_t g = 0; g < groups_of(problem); g++) {
    const uint16_t *v = m->v + (g * key_quads(problem) + key / QUAD) * STEP_B;
    const group_work w = {acc + g * COLUMNS, block->acc_stride, block->acc_stride - g * COLUMNS, m->p, steps};
    if (!block->careful) {
      accumulate_columns_of(&w, v, -1);
      continue;
    }
    uint16_t copy[STRIP_KEYS * COLUMNS];
    for (int i = 0; i < TILE_ROWS && tile_row + i < block->rows; i++) {
      copy_allowed_v(block, tile_row + i, key, steps, v, copy);
      accumulate_columns_of(&w, copy, i);
    }
  }
}

/* ---- A task ---- */

/* The block that the tiles work on, and its packed operands. The reference has not been subtracted from the scores. */
static row_block start_tiles(const attn_schedule *schedule, const row_block *given, int64_t capacity, bf16_memory *memory) {
  row_block block = *given;
  block.adjusted = true;
  block.shifted = false;
  *memory = memory_of(schedule, &block);
  pack_queries(&block, capacity, memory->q);
  return block;
}

/* S of one panel of keys and the tile at tile_row. */
static void score_tile_panel(const row_block *block, int64_t tile_row, int64_t key, float *score, const bf16_memory *m) {
  const int64_t depth = quads(block->problem->dim_qk) * QUAD;
  score_panel_bf16(block, m->q + tile_row * depth, m->k + key * depth, score);
}

#endif
