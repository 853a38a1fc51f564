/* SPDX-License-Identifier: MIT */
/* naive_neonbf16: textbook on bf16 inputs by BFMMLA: the whole score matrix of a head, three passes. The softmax is
 * kernels/common/tiles/two_pass.h's, the tiles are tiles_neonbf16.h. */
#include "pairs_neonbf16.h"

#include "kernels/common/tiles/two_pass.h"
#include "tiles_neonbf16.h"

static bool naive_neonbf16_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  return naive_plan(p, machine, schedule) && plan_bf16(p, schedule);
}

static void score_tile_bf16(const row_block *block, int64_t tile_row, tile_keys keys, const bf16_memory *m) {
  for (int64_t key = keys.first; keys.class != TILE_SKIP && key < keys.end; key += PANEL_KEYS)
    score_tile_panel(block, tile_row, key, tile_scores(block, tile_row, key), m);
}

static void accumulate_tile_bf16(const row_block *block, int64_t tile_row, tile_keys keys, const bf16_memory *m) {
  const int64_t end = round_up(keys.end, PANEL_KEYS);
  for (int64_t key = keys.first; keys.class != TILE_SKIP && key < end; key += STRIP_KEYS)
    accumulate_bf16(block, tile_row, key, min64(end - key, STRIP_KEYS) / QUAD, tile_scores(block, tile_row, key), m);
}

static bool attend(const attn_schedule *schedule, const row_block *given, int64_t capacity) {
  bf16_memory memory;
  const row_block block = start_tiles(schedule, given, capacity, &memory);
  for (int64_t tile_row = 0; tile_row < capacity; tile_row += TILE_ROWS)
    score_tile_bf16(&block, tile_row, keys_of_tile(&block, tile_row, 0, block.seq->len_k), &memory);
  softmax_rows(&block, capacity);
  for (int64_t tile_row = 0; tile_row < capacity; tile_row += TILE_ROWS)
    accumulate_tile_bf16(&block, tile_row, keys_of_tile(&block, tile_row, 0, block.seq->len_k), &memory);
  return finish_rows(&block);
}

static void naive_neonbf16_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                               void *scratch) {
  two_pass_run_by(schedule, args, task, unit_memory, scratch, pack_bf16, attend);
}

const attn_kernel attn_naive_neonbf16 = {
    .info = {.name = "naive_neonbf16",
             .algorithm = "naive",
             .isa = "neonbf16",
             .library = "",
             .summary =
                 "textbook on bf16 inputs, P rounded to bf16: the whole score matrix of a head, three passes; tiles of "
                 "8 x 12 by BFMMLA",
             .numerics = {.exp_error = 0x1p-22, .p_rounding = 0x1p-8, .input_flush = 0x1p-126}},
    .rejects = takes_bf16_at_once,
    .plan = naive_neonbf16_plan,
    .terms = TILED_KERNEL_TERMS,
    .run = naive_neonbf16_run,
};
