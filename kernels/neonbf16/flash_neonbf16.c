/* SPDX-License-Identifier: MIT */
/* flash_neonbf16: flash attention on bf16 inputs by BFMMLA. The loop is kernels/common/tiles/flash.h's, the tiles, with
 * packing and rounding of their own, tiles_neonbf16.h. */
#include "pairs_neonbf16.h"

#include "kernels/common/tiles/flash.h"
#include "tiles_neonbf16.h"

static bool flash_neonbf16_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  return flash_plan(p, machine, schedule) && plan_bf16(p, schedule);
}

/* P of the tile's keys, of which `pending` have P in the same key block already. Returns where P begins. */
static float *tile_weights(const row_block *block, int64_t tile_row, tile_keys keys, int64_t pending, const bf16_memory *m) {
  float *first = block->score + pending;
  for (int64_t key = keys.first; key < keys.end; key += PANEL_KEYS) {
    float *score = first + (key - keys.first);
    score_tile_panel(block, tile_row, key, score, m);
    softmax_panel(block, tile_row, key, score, pending + key - keys.first, TILE_VECS);
  }
  return first;
}

static void sum_tile(const row_block *block, int64_t tile_row, tile_keys keys, const float *p, const bf16_memory *m) {
  const int64_t begin = round_down(keys.begin, QUAD);
  accumulate_bf16(block, tile_row, begin, quads(keys.end - begin), p + (begin - keys.first), m);
}

static void tile_bf16(const row_block *block, int64_t tile_row, int64_t begin, int64_t end, const bf16_memory *m) {
  const tile_keys keys = keys_of_tile(block, tile_row, begin, end);
  if (keys.class == TILE_SKIP) return;
  sum_tile(block, tile_row, keys, tile_weights(block, tile_row, keys, 0, m), m);
}

/* The same for the keys of a key block that are visited; O takes in all of their P at once (flash_visited_tile()). */
static NO_INLINE void visited_tile_bf16(const key_visits *visits, int64_t tile_row, int64_t begin, int64_t end,
                                        const bf16_memory *m) {
  tile_visit scored[MOST_VISITS];
  const float *p[MOST_VISITS];
  int count = 0;
  int64_t pending = 0;
  for (tile_visit visit = {.next = begin}; next_tile_visit(visits, tile_row, visit.next, end, &visit);) {
    p[count] = tile_weights(visit.block, tile_row, visit.keys, pending, m);
    scored[count++] = visit;
    pending += round_up(visit.keys.end, PANEL_KEYS) - visit.keys.first;
  }
  for (int i = 0; i < count; i++) sum_tile(scored[i].block, tile_row, scored[i].keys, p[i], m);
}

/* Before the keys of a key block: scores of every kind come as start_tiles() says. */
static void start_key_block_bf16(key_visits *visits, int64_t key, int64_t end) {
  start_key_block(visits, key, end);
  visits->full.adjusted = visits->mixed.adjusted = true;
  visits->full.shifted = visits->mixed.shifted = false;
}

static bool attend(const attn_schedule *schedule, const row_block *given, int64_t capacity) {
  bf16_memory memory;
  const row_block block = start_tiles(schedule, given, capacity, &memory);
  const attn_key_range keys = keys_of_block(&block);
  const bool listed = visits_blocks(block.problem);
  key_visits visits;
  if (listed) start_visits(&block, &visits);
  for (int64_t key = keys.begin / schedule->key_block * schedule->key_block; key < keys.end; key += schedule->key_block) {
    const int64_t end = min64(key + schedule->key_block, keys.end);
    if (listed) start_key_block_bf16(&visits, key, end);
    for (int64_t tile_row = 0; tile_row < capacity; tile_row += TILE_ROWS)
      if (listed)
        visited_tile_bf16(&visits, tile_row, key, end, &memory);
      else
        tile_bf16(&block, tile_row, key, end, &memory);
  }
  return finish_rows(&block);
}

static void flash_neonbf16_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                               void *scratch) {
  const tiled_algorithm flash = {.attend = attend, .own_queries = true};
  run_phase(schedule, args, task, unit_memory, scratch, pack_bf16, &flash);
}

const attn_kernel attn_flash_neonbf16 = {
    .info = {.name = "flash_neonbf16",
             .algorithm = "flash",
             .isa = "neonbf16",
             .library = "",
             .summary = "flash attention on bf16 inputs, P rounded to bf16; tiles of 8 x 12 by BFMMLA",
             .numerics = {.exp_error = 0x1p-22, .p_rounding = 0x1p-8, .input_flush = 0x1p-126}},
    .steady = true,
    .key_blocks = true,
    .rejects = takes_bf16,
    .plan = flash_neonbf16_plan,
    .terms = TILED_KERNEL_TERMS,
    .run = flash_neonbf16_run,
};
