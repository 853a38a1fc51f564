/* SPDX-License-Identifier: MIT */
/* flash_neonbf16: flash attention on bf16 inputs by BFMMLA. The loop is kernels/common/tiles/flash.h's, the tiles, with
 * packing and rounding of their own, tiles_neonbf16.h. */
#include "pairs_neonbf16.h"

#include "kernels/common/tiles/flash.h"
#include "tiles_neonbf16.h"

static bool flash_neonbf16_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  return flash_plan(p, machine, schedule) && plan_bf16(p, schedule);
}

static void tile_bf16(const row_block *block, int64_t tile_row, int64_t begin, int64_t end, const bf16_memory *m) {
  const tile_keys keys = keys_of_tile(block, tile_row, begin, end);
  if (keys.class == TILE_SKIP) return;
  for (int64_t key = keys.first; key < keys.end; key += PANEL_KEYS) {
    float *score = block->score + (key - keys.first);
    score_tile_panel(block, tile_row, key, score, m);
    softmax_panel(block, tile_row, key, score, key - keys.first, TILE_VECS);
  }
  accumulate_bf16(block, tile_row, keys.first, (round_up(keys.end, PANEL_KEYS) - keys.first) / QUAD, block->score, m);
}

static bool attend(const attn_schedule *schedule, const row_block *given, int64_t capacity) {
  bf16_memory memory;
  const row_block block = start_tiles(schedule, given, capacity, &memory);
  const attn_key_range keys = keys_of_block(&block);
  for (int64_t key = keys.begin / schedule->key_block * schedule->key_block; key < keys.end; key += schedule->key_block)
    for (int64_t tile_row = 0; tile_row < capacity; tile_row += TILE_ROWS)
      tile_bf16(&block, tile_row, key, min64(key + schedule->key_block, keys.end), &memory);
  return finish_rows(&block);
}

static void flash_neonbf16_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                               void *scratch) {
  flash_run_by(schedule, args, task, unit_memory, scratch, pack_bf16, attend, false);
}

const attn_kernel attn_flash_neonbf16 = {
    .info = {.name = "flash_neonbf16",
             .algorithm = "flash",
             .isa = "neonbf16",
             .library = "",
             .summary = "flash attention on bf16 inputs, P rounded to bf16; tiles of 8 x 12 by BFMMLA",
             .numerics = {.exp_error = 0x1p-22, .p_rounding = 0x1p-8, .input_flush = 0x1p-126}},
    .steady = true,
    .rejects = takes_bf16,
    .plan = flash_neonbf16_plan,
    .terms = TILED_KERNEL_TERMS,
    .run = flash_neonbf16_run,
};
