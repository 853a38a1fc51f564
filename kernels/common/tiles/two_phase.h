/* SPDX-License-Identifier: MIT */
/* The frame that tiled algorithms share around their loops: the plan and the two phases, pack and compute. Parameters: those
 * of tiles.h. */
#ifndef ATTN_COMMON_TWO_PHASE_H
#define ATTN_COMMON_TWO_PHASE_H

#include <assert.h>

#include "kernels/common/problem/rejects.h"
#include "kernels/common/problem/terms.h"
#include "pack.h"

/* Plan data of kernels that pack by pack_unit(). Plan data of kernels with packing of their own begins with it. */
typedef struct tiled_layout {
  packed_layout unit;
  scratch_layout scratch;
  bool cold; /* flash: the call prefetches for the next tasks (cold_lines.h) */
} tiled_layout;
_Static_assert(sizeof(tiled_layout) <= ATTN_OWN_BYTES, "attn_schedule.own holds it");

static inline const tiled_layout *tiled_layout_in(const attn_schedule *schedule) { return (const void *)schedule->own; }

/* Phases, tasks and memory. */
static inline void plan_phases(const attn_problem *p, int64_t row_block_rows, int64_t key_block, int64_t unit_bytes,
                               int64_t scratch_bytes, attn_schedule *schedule) {
  schedule->phases = 2;
  schedule->items[0] = ceil_div(p->seq_k, PACK_KEYS);
  schedule->items[1] = attn_group(p) * ceil_div(p->seq_q, row_block_rows);
  schedule->row_block = row_block_rows;
  schedule->key_block = key_block;
  schedule->unit_bytes = (size_t)unit_bytes;
  schedule->scratch_bytes = (size_t)scratch_bytes;
}

/* The plan of a tiled algorithm that keeps score_rows x score_stride scores of a row block. False if a size overflows. */
static inline bool plan_tiles(const attn_problem *p, int64_t row_block_rows, int64_t key_block, int64_t score_rows,
                              int64_t score_stride, attn_schedule *schedule) {
  tiled_layout *at = (void *)schedule->own;
  const int64_t capacity = round_up(row_block_rows, TILE_ROWS);
  if (!packed_layout_of(p, key_block, &at->unit) ||
      !scratch_layout_for(p, capacity, score_rows, score_stride, VEC_LANES, &at->scratch))
    return false;
  plan_phases(p, row_block_rows, key_block, at->unit.bytes, at->scratch.total, schedule);
  return true;
}

/* Visits the tiles of a row block and finishes its rows; false as finish_row. */
typedef bool attend_function(const attn_schedule *schedule, const row_block *block, int64_t capacity);

/* The parts of the compute phase in which tiled algorithms differ. */
typedef struct tiled_algorithm {
  attend_function *attend;
  bool direct, own_queries; /* see row_block; direct on the first try alone */
} tiled_algorithm;

static inline void compute_rows(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                                void *scratch, const tiled_algorithm *algorithm) {
  const attn_problem *p = &schedule->problem;
  const task_rows rows = task_rows_of(schedule, args, task);
  assert(task.phase == 1);
  if (rows.rows <= 0) return;
  const int64_t capacity = round_up(rows.rows, TILE_ROWS);
  row_block block = block_of_task(p, args, &rows, &tiled_layout_in(schedule)->scratch, scratch);
  block.keys = packed_keys_at(schedule, args, &rows, unit_memory);
  block.adjusted = scores_adjusted(p);
  block.shifted = scores_shifted(p);
  block.alike = rows_see_alike(&block);
  block.first_try = true;
  block.direct = algorithm->direct;
  block.own_queries = algorithm->own_queries;
  const philox_dropout dropout = attn_dropout_of(p, args);
  if (p->dropout > 0) block.dropout = &dropout;
  start_rows(&block, capacity);
  load_states(&block);
  if (algorithm->attend(schedule, &block, capacity)) return;
  block.first_try = block.direct = false;
  block.careful = true;
  start_rows(&block, capacity);
  load_states(&block);
  algorithm->attend(schedule, &block, capacity);
}

typedef void pack_function(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory);

/* A task of either phase. */
static inline void run_phase(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                             void *scratch, pack_function *pack, const tiled_algorithm *algorithm) {
  if (task.phase == 0)
    pack(schedule, args, task, unit_memory);
  else
    compute_rows(schedule, args, task, unit_memory, scratch, algorithm);
}

/* ---- Their time ---- */

static inline void tiled_terms_of(const attn_problem *p, double *terms) {
  attn_flash_terms(p, (term_widths){.lanes = VEC_LANES, .values = VEC_LANES}, PANEL_KEYS, false, terms);
}

#define TILED_KERNEL_TERMS \
  { FLASH_TERM_COUNT, attn_flash_term_names, tiled_terms_of }

/* Those of kernels that compute few rows without packing (flash_few_plan.h). */
static inline void any_rows_terms_of(const attn_problem *p, double *terms) {
  attn_flash_terms(p, (term_widths){.lanes = VEC_LANES, .values = VEC_LANES}, PANEL_KEYS, true, terms);
}

#define ANY_ROWS_KERNEL_TERMS \
  { FLASH_TERM_COUNT, attn_flash_term_names, any_rows_terms_of }

#endif
