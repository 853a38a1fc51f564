/* SPDX-License-Identifier: MIT */
/* blocked_c: tiled over queries in plain C. The scores of a row block are kept whole; softmax takes two passes, one for the
 * largest score and one for the exponentials. K and V are converted block by block and reused by all rows of the block. */
#include "tiles_c.h"

/* P = exp(S - row_max) over all keys of each row. */
static void softmax_rows(row_block *t) {
  for (int64_t i = 0; i < t->rows; i++) {
    const attn_key_range keys = t->range[i];
    if (keys.begin >= keys.end) continue;
    float *score = t->score + i * t->score_stride + keys.begin;
    t->row_max[i] = largest(score, keys.end - keys.begin, -INFINITY);
    t->row_sum[i] = exponentials(score, keys.end - keys.begin, t->row_max[i], 0.0f);
  }
}

static void blocked_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                        void *scratch) {
  (void)unit_memory;
  row_block t = tile_block(schedule, args, task, scratch, schedule->problem.seq_k);
  start_rows(&t);
  const attn_key_range used = keys_of_block(&t);
  for (int64_t key = used.begin / KEYS * KEYS; key < used.end; key += KEYS) {
    load_k(&t, used, key);
    score_tile(&t, key, t.score + key);
  }
  softmax_rows(&t);
  for (int64_t key = used.begin / KEYS * KEYS; key < used.end; key += KEYS) {
    load_v(&t, used, key);
    accumulate_tile(&t, key, t.score + key);
  }
  finish_rows(&t);
}

static bool blocked_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  (void)machine;
  return tile_plan(p, p->seq_k, schedule);
}

const attn_kernel attn_blocked_c = {
    .info = {.name = "blocked_c",
             .algorithm = "blocked",
             .isa = "c",
             .library = "",
             .summary = "row blocks with their scores kept, two-pass softmax; plain C",
             .numerics = {.exp_error = 0x1p-23}}, /* expf of the C library: at most 1 ulp in glibc */
    .key_blocks = true,
    .dropout = true,
    .rejects = takes_no_state,
    .plan = blocked_plan,
    .run = blocked_run,
};
