/* SPDX-License-Identifier: MIT */
/* flash_c: streaming softmax in plain C, the flash algorithm to be read first.
 *
 * It takes the keys block by block and keeps for every query row the largest score so far (row_max), the sum of exponentials
 * relative to it (row_sum) and the output before division (acc). The score matrix never exists: memory is one tile for any
 * sequence length (Milakov & Gimelshein 2018, https://arxiv.org/abs/1805.02867; Dao et al. 2022,
 * https://arxiv.org/abs/2205.14135). */
#include "streaming_c.h"

static void flash_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                      void *scratch) {
  (void)unit_memory;
  row_block t = tile_block(schedule, args, task, scratch, KEYS);
  start_rows(&t);
  load_states(&t);
  const attn_key_range used = keys_of_block(&t);
  for (int64_t key = used.begin / KEYS * KEYS; key < used.end; key += KEYS) {
    if (!keys_listed(&t, key)) continue;
    load_k(&t, used, key);
    score_tile(&t, key, t.score);
    softmax_tile(&t, key);
    load_v(&t, used, key);
    accumulate_tile(&t, key, t.score);
  }
  finish_rows(&t);
}

static bool flash_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  (void)machine;
  return tile_plan(p, KEYS, schedule);
}

const attn_kernel attn_flash_c = {
    .info = {.name = "flash_c",
             .algorithm = "flash",
             .isa = "c",
             .library = "",
             .summary = "flash attention: streaming softmax over key blocks, no score matrix; plain C",
             .numerics = {.exp_error = 0x1p-23}}, /* expf of the C library: at most 1 ulp in glibc */
    .steady = true,
    .key_blocks = true,
    .dropout = true,
    .rejects = takes_everything,
    .plan = flash_plan,
    .run = flash_run,
};
