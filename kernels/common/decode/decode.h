/* SPDX-License-Identifier: MIT */
/* decode: few query rows against many keys, where the time goes into reading K and V.
 *
 * All query rows that share a KV head are one block, so K and V are read once per KV head. They are read in place, because a
 * packed panel would have to be written and read again. Keys are split at fixed borders into tasks of their own (Dao et al.
 * 2023, "Flash-Decoding"). Each task leaves (row_max, row_sum, acc) in the unit's memory, and the merge phase joins them in
 * the order of the keys. Borders are absolute key indices, so a row's bits do not depend on which thread computed what.
 *
 * A tier's file includes its vectors, defines its knobs (knobs.h), and includes the engines that it has before this header:
 * few_pairs.h if its lanes hold pairs, group_rows.h, one_row.h; or, as amx does, products of its own (products.h).
 * Parameters: those of products.h. */
#ifndef ATTN_COMMON_DECODE_DECODE_H
#define ATTN_COMMON_DECODE_DECODE_H

#include "merge.h"
#include "split.h"

/* Keys of a split that any row may see. */
static attn_key_range keys_of_split(const row_block *block, int64_t split) {
  const attn_key_range keys = keys_of_block(block);
  const int64_t first = (first_split(block->problem) + split) * SPLIT_KEYS;
  return (attn_key_range){max64(keys.begin, first), min64(keys.end, first + SPLIT_KEYS)};
}

/* The state of a split none of whose keys is listed. The merge reads O of the first one alone. */
static void leave_nothing(const row_block *block, int64_t split) {
  if (split == 0) memset(block->acc, 0, (size_t)(block->rows * block->acc_stride) * sizeof(float));
  memset(block->row_sum, 0, (size_t)(block->rows * VEC_LANES) * sizeof(float));
  for (int64_t i = 0; i < block->rows; i++) block->row_max[i] = -INFINITY;
}

static void decode_split(const decode_task *t, int64_t split, bool careful) {
  row_block block = decode_rows(t, split);
  const bool lists = attn_has_block_kinds(t->problem);
  listed_keys listed; /* not initialised before it is needed */
  if (block.rows == 0) return;
  block.careful = careful;
  block.q = FLOAT_QUERIES ? floats_at(t->scratch, t->at->q) : NULL;
  block.score = floats_at(t->scratch, t->at->score);
  if (lists) {
    start_ranges(&block, padded_rows(block.rows));
    if (!read_lists(&block, keys_of_split(&block, split), &listed)) {
      leave_nothing(&block, split);
      return;
    }
  }
  start_rows(&block, padded_rows(block.rows));
  products work = start_products(&block, &t->at->products, (char *)t->scratch + t->at->own);
  decode_visit visit = {.block = &block, .keys = keys_of_split(&block, split)};
  for (bool any = !lists || next_listed(&listed, &visit); any; any = lists && next_listed(&listed, &visit))
    attend_keys(&visit, &work);
  end_products(&work, &block);
}

static void decode_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                       void *scratch) {
  const decode_task t = decode_task_of(schedule, args, task.unit, unit_memory, scratch);
  if (task.phase == 0) {
    decode_split(&t, task.item, false);
  } else if (!merge_splits(&t, false)) {
    for (int64_t split = 0; split < t.splits; split++) decode_split(&t, split, true);
    merge_splits(&t, true);
  }
}

#endif
