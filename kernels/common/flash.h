/* flash: streaming softmax over key blocks (Milakov & Gimelshein 2018, https://arxiv.org/abs/1805.02867; Dao et al. 2022,
 * https://arxiv.org/abs/2205.14135). The score matrix never exists: one tile of S at a time, TILE_ROWS x key_block, stays in L1
 * from its product to its use.
 *
 * Loop order: a task holds up to FLASH_ROWS query rows; each key block is read from L2 by all their tiles before the next one. */
#ifndef ATTN_COMMON_FLASH_H
#define ATTN_COMMON_FLASH_H

#include "rows_task.h"

enum {
  FLASH_ROWS = 96,     /* 16 tiles reuse a key block: L2 traffic is 1/16 of a tile's; q and acc still fit L2 beside it */
  FLASH_SCORE_PAD = 16 /* floats between rows of S: breaks up powers of two, which would share L1 sets */
};

/* Fixed by the dimensions alone, because key borders decide when a row rescales: K and V of a block take at most half of a
 * 512 KiB L2, and a tile of S at most 8 KiB of L1. */
static int64_t flash_key_block(const attn_problem *p) {
  const int64_t dims = p->dim_qk + p->dim_v;
  return dims <= 256 ? 256 : dims <= 512 ? 128 : 64;
}

static bool flash_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  (void)machine;
  const int64_t key_block = flash_key_block(p), rows = min64(FLASH_ROWS, round_up(max64(p->seq_q, 1), TILE_ROWS));
  scratch_layout layout;
  return scratch_layout_of(p, rows, TILE_ROWS, key_block + FLASH_SCORE_PAD, &layout) &&
         plan_phases(p, rows, key_block, layout.total, schedule);
}

static void flash_tile(const row_block *block, int64_t tile_row, int64_t begin, int64_t end) {
  vec best[TILE_ROWS];
  const tile_keys keys = classify_tile(block, tile_row, begin, end);
  if (keys.class == TILE_SKIP) return;
  score_tile(block, tile_row, keys.first, keys.end, block->score, best);
  if (keys.class == TILE_EDGE) mask_tile(block, tile_row, keys, block->score, best);
  softmax_tile(block, tile_row, keys.end - keys.first, block->score, best, RESCALE_AT);
  accumulate_tile(block, tile_row, keys.begin, keys.end, block->score + (keys.begin - keys.first));
}

static void flash_attend(const attn_schedule *schedule, const row_block *block, int64_t capacity) {
  for (int64_t key = 0; key < block->seq->len_k; key += schedule->key_block)
    for (int64_t tile_row = 0; tile_row < capacity; tile_row += TILE_ROWS)
      flash_tile(block, tile_row, key, min64(key + schedule->key_block, block->seq->len_k));
}

static void flash_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                      void *scratch) {
  if (task.phase == 0)
    pack_unit(schedule, args, task, unit_memory);
  else
    compute_rows(schedule, args, task, unit_memory, scratch, TILE_ROWS, schedule->key_block + FLASH_SCORE_PAD, flash_attend);
}

#endif
