/* SPDX-License-Identifier: MIT */
/* Which keys a block of rows visits: all, or the blocks of keys that its list names (attn_problem.block_keys). The mask
 * counts in some of them: not in full blocks, nor before the newest keys, if it is of these alone (attn_problem.mask_keys).
 * All rows of a row block share one list.
 *
 * Blocks of keys that the list does not name are neither read nor computed. All else goes as with a mask that says the same,
 * so that bits are the same: keys stay in their panels and key blocks, and masked keys would add exact zeros.
 *
 * Parameters: those of tiles.h. */
#ifndef ATTN_COMMON_KEY_BLOCKS_H
#define ATTN_COMMON_KEY_BLOCKS_H

#include "scores.h"

/* Keys that are visited together, [begin, end). */
typedef struct key_visit {
  int64_t begin, end;
  bool full; /* args.mask does not count */
} key_visit;

enum { BLOCK_UNLISTED, BLOCK_MASKED, BLOCK_FULL };

enum { MOST_VISITS = 4 /* a key block of 256 has at most four of the smallest blocks */ };

/* A row block as it meets keys of both kinds. */
typedef struct key_visits {
  const row_block *masked;
  row_block full;
  attn_problem without_mask;
} key_visits;

/* The kind of the blocks that the lists for args.mask (`full` = false), or without it, name. */
static inline uint8_t kind_of_list(const attn_problem *p, bool full) {
  return attn_uses(p, ATTN_USE_MASK) && !full ? BLOCK_MASKED : BLOCK_FULL;
}

/* Whether keys are of several kinds: with lists, or a mask of the newest keys. Panels that blocks do not consist of can tell
 * keys apart by the mask alone. */
static inline bool visits_blocks(const attn_problem *p) {
  return attn_lists_keys(p) || (attn_masks_newest(p) && LEAST_BLOCK_KEYS % PANEL_KEYS == 0);
}

static inline void start_kinds(const row_block *block, key_visits *visits) {
  visits->masked = block;
  visits->without_mask = *block->problem;
  visits->without_mask.uses &= ~(uint32_t)ATTN_USE_MASK;
  visits->full = *block;
  visits->full.problem = &visits->without_mask;
}

static inline void mark_blocks(const row_block *block, bool full) {
  const attn_key_list list = attn_key_list_of(block->problem, block->args, full, block->b, block->head, block->first_row);
  for (int64_t n = 0; n < list.count; n++) block->listed[list.at[n * list.step]] = kind_of_list(block->problem, full);
}

/* Before a row block visits its keys. */
static inline void start_visits(const row_block *block, key_visits *visits) {
  const attn_problem *p = block->problem;
  const int64_t size = attn_visited_keys(p), blocks = ceil_div(p->seq_k, size);
  visits->masked = block;
  if (!visits_blocks(p)) return;
  assert(LEAST_BLOCK_KEYS % PANEL_KEYS == 0);
  memset(block->listed, attn_lists_keys(p) ? BLOCK_UNLISTED : BLOCK_MASKED, (size_t)blocks);
  if (attn_lists_keys(p) && block->first_row < block->seq->len_q && block->seq->len_k > 0) { /* else there may be no list */
    assert(block->first_row / p->block_queries == (block->first_row + block->rows_per_head - 1) / p->block_queries);
    mark_blocks(block, false);
    mark_blocks(block, true);
  }
  for (int64_t n = 0; (n + 1) * size <= attn_first_masked(p, block->seq->len_k); n++)
    if (block->listed[n] == BLOCK_MASKED) block->listed[n] = BLOCK_FULL;
  start_kinds(block, visits);
  visits->full.adjusted = scores_adjusted(&visits->without_mask);
  visits->full.shifted = scores_shifted(&visits->without_mask);
}

/* The first keys from `key` on that are visited together, before `end`; begin >= end where there are none. */
static inline key_visit next_visit(const key_visits *visits, int64_t key, int64_t end) {
  const row_block *block = visits->masked;
  if (!visits_blocks(block->problem)) return (key_visit){key, end, false};
  const int64_t size = attn_visited_keys(block->problem);
  while (key < end && block->listed[key / size] == BLOCK_UNLISTED) key = round_down(key, size) + size;
  if (key >= end) return (key_visit){end, end, false};
  const uint8_t kind = block->listed[key / size];
  key_visit visit = {key, key, kind == BLOCK_FULL};
  while (visit.end < end && block->listed[visit.end / size] == kind) visit.end = round_down(visit.end, size) + size;
  visit.end = min64(visit.end, end);
  return visit;
}

static inline const row_block *block_of_visit(const key_visits *visits, key_visit visit) {
  return visit.full ? &visits->full : visits->masked;
}

/* Keys that a tile of rows visits together. */
typedef struct tile_visit {
  const row_block *block;
  tile_keys keys;
  int64_t end; /* the visit's */
} tile_visit;

/* The first visit from `key` on, before `end`, in which the tile sees a key; false where there is none. */
static inline bool next_tile_visit(const key_visits *visits, int64_t tile_row, int64_t key, int64_t end, tile_visit *found) {
  for (key_visit visit = next_visit(visits, key, end); visit.begin < visit.end; visit = next_visit(visits, visit.end, end)) {
    const row_block *block = block_of_visit(visits, visit);
    *found = (tile_visit){block, keys_of_tile(block, tile_row, visit.begin, visit.end), visit.end};
    if (found->keys.class != TILE_SKIP) return true;
  }
  return false;
}

#endif
