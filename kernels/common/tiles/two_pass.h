/* SPDX-License-Identifier: MIT */
/* blocked and naive: the scores of a row block are kept whole between the passes S = Q K^T, P = softmax(S), O = P V.
 *
 * blocked takes as many rows as keep S in L2 and visits K and V in key blocks that stay there too. naive is the textbook:
 * all rows of a head, the whole score matrix in memory, each pass from end to end. Both use flash's tiles and exponentials,
 * so a comparison with flash shows what the loop order is worth and nothing else.
 *
 * Parameters: those of tiles.h. */
#ifndef ATTN_COMMON_TWO_PASS_H
#define ATTN_COMMON_TWO_PASS_H

#include "two_pass_softmax.h"
#include "two_phase.h"

/* ---- Tiles ---- */

/* S of keys [begin, end) for the tile's rows; begin is a multiple of PANEL_KEYS. score[i][j - begin]; what lies between
 * `end` and the end of its vector is written too; what lies beyond that vector only where scores are adjusted. */
static void score_tile(const row_block *block, int64_t tile_row, int64_t begin, int64_t end, float *score) {
  for (int64_t key = begin; key < end; key += PANEL_KEYS) {
    const int64_t vecs = (min64(end - key, PANEL_KEYS) + VEC_LANES - 1) / VEC_LANES;
    if (block->problem->score == ATTN_SCORE_DOT) {
      WITH_CONSTANT_VECS(vecs, score_panel, block, tile_row, key, score + (key - begin))
    } else {
      other_panel(block, tile_row, key, score + (key - begin));
    }
  }
}

/* Edge tiles and adjusted scores only. */
static void mask_tile(const row_block *block, int64_t tile_row, tile_keys keys, float *score) {
  for (int i = 0; i < TILE_ROWS; i++)
    mask_row(block, tile_row + i, keys.first, round_up(keys.end, PANEL_KEYS), score + i * block->score_stride);
}

static void softmax_tile(const row_block *block, int64_t tile_row, int64_t count, float *score) {
  for (int i = 0; i < TILE_ROWS; i++) softmax_row(block, tile_row + i, count, score + i * block->score_stride);
}

/* ---- Loops ---- */

enum {
  BLOCKED_ROWS = 96, /* like flash's: more rows would not save more L2 traffic */
  BLOCKED_KEYS = WHOLE_PANELS(256),
  TWO_PASS_SCORE_PAD = 16
};

static int64_t two_pass_score_stride(const attn_problem *p) { return round_up(p->seq_k, PANEL_KEYS) + TWO_PASS_SCORE_PAD; }

static bool two_pass_plan(const attn_problem *p, int64_t rows, int64_t key_block, attn_schedule *schedule) {
  rows = min64(round_up(rows, TILE_ROWS), round_up(max64(p->seq_q, 1), TILE_ROWS));
  return plan_tiles(p, rows, key_block, rows, two_pass_score_stride(p), schedule);
}

static inline bool blocked_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  const int64_t score_bytes = machine->caches().level2 / 8 * 3; /* leave room for blocks of K and V in level 2 */
  const int64_t fitting = score_bytes / (two_pass_score_stride(p) * (int64_t)sizeof(float));
  return two_pass_plan(p, min64(BLOCKED_ROWS, max64(fitting, TILE_ROWS)), BLOCKED_KEYS, schedule);
}

static inline bool naive_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  (void)machine;
  return two_pass_plan(p, max64(p->seq_q, 1), round_up(max64(p->seq_k, 1), PANEL_KEYS), schedule);
}

static float *tile_scores(const row_block *block, int64_t tile_row, int64_t key) {
  return block->score + tile_row * block->score_stride + key;
}

static void score_rows(const attn_schedule *schedule, const row_block *block, int64_t capacity) {
  const attn_key_range used = keys_of_block(block);
  for (int64_t key = used.begin / schedule->key_block * schedule->key_block; key < used.end; key += schedule->key_block)
    for (int64_t tile_row = 0; tile_row < capacity; tile_row += TILE_ROWS) {
      const tile_keys keys = keys_of_tile(block, tile_row, 0, block->seq->len_k);
      const int64_t begin = max64(keys.first, key), end = min64(keys.end, key + schedule->key_block);
      if (begin < end) score_tile(block, tile_row, begin, end, tile_scores(block, tile_row, begin));
    }
}

static void softmax_rows(const row_block *block, int64_t capacity) {
  for (int64_t tile_row = 0; tile_row < capacity; tile_row += TILE_ROWS) {
    const tile_keys keys = keys_of_tile(block, tile_row, 0, block->seq->len_k);
    if (keys.class == TILE_SKIP) continue;
    float *score = tile_scores(block, tile_row, keys.first);
    if (keys.class == TILE_EDGE || block->adjusted) mask_tile(block, tile_row, keys, score);
    softmax_tile(block, tile_row, round_up(keys.end, PANEL_KEYS) - keys.first, score);
  }
}

static void accumulate_rows(const attn_schedule *schedule, const row_block *block, int64_t capacity) {
  const attn_key_range used = keys_of_block(block);
  for (int64_t key = used.begin / schedule->key_block * schedule->key_block; key < used.end; key += schedule->key_block)
    for (int64_t tile_row = 0; tile_row < capacity; tile_row += TILE_ROWS) {
      const tile_keys keys = keys_of_tile(block, tile_row, 0, block->seq->len_k);
      const int64_t begin = max64(keys.begin, key), end = min64(keys.end, key + schedule->key_block);
      if (begin >= end) continue;
      if (block->dropout) drop_tile(block, tile_row, begin, end, tile_scores(block, tile_row, begin));
      accumulate_tile(block, tile_row, begin, end, tile_scores(block, tile_row, begin));
    }
}

static bool two_pass_attend(const attn_schedule *schedule, const row_block *block, int64_t capacity) {
  score_rows(schedule, block, capacity);
  softmax_rows(block, capacity);
  accumulate_rows(schedule, block, capacity);
  return finish_rows(block);
}

/* A task of a kernel that has packing and tiles of its own. */
static inline void two_pass_run_by(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                                   void *scratch, pack_function *pack, attend_function *attend) {
  run_phase(schedule, args, task, unit_memory, scratch, pack, &(tiled_algorithm){.attend = attend});
}

static inline void two_pass_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                                void *scratch) {
  two_pass_run_by(schedule, args, task, unit_memory, scratch, pack_unit, two_pass_attend);
}

#endif
