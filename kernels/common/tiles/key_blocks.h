/* SPDX-License-Identifier: MIT */
/* Which keys a block of rows visits: all, or the blocks of keys that its list names (attn_problem.block_keys). The mask
 * counts in some of them: not in full blocks, nor before the newest keys, if it is of these alone (attn_problem.mask_keys).
 * All rows of a row block share one list.
 *
 * Blocks of keys that the list does not name are neither read nor computed. All else goes as with a mask that says the same,
 * so that bits are the same: keys stay in their panels and key blocks, and masked keys would add exact zeros. Where panels
 * do not divide blocks, the panels with keys of two kinds are visited with a mask of their own, which says what both kinds
 * say.
 *
 * Parameters: those of tiles.h. */
#ifndef ATTN_COMMON_KEY_BLOCKS_H
#define ATTN_COMMON_KEY_BLOCKS_H

#include "scores.h"

/* Kinds of blocks: without a visit, with args.mask, without it. Panels are of a kind, too; MIXED have keys of two. */
enum { BLOCK_UNLISTED, BLOCK_MASKED, BLOCK_FULL, BLOCK_MIXED };

/* Keys that are visited together, [begin, end); the next visit begins at `next` or later. */
typedef struct key_visit {
  int64_t begin, end, next;
  uint8_t kind;
} key_visit;

/* A key block of 256 has at most four of the smallest blocks, or parts of five and the four panels between them. Rows of a
 * task have one list: as many as PyTorch's block has, or as many as let mixed_mask lie on the stack. */
enum {
  PANELS_DIVIDE_BLOCKS = LEAST_BLOCK_KEYS % PANEL_KEYS == 0,
  MOST_VISITS = PANELS_DIVIDE_BLOCKS ? 4 : 9,
  MOST_LISTED_ROWS = PANELS_DIVIDE_BLOCKS ? 128 : 64,
  MIXED_ROWS = PANELS_DIVIDE_BLOCKS ? 1 : MOST_LISTED_ROWS,
  MIXED_KEYS = 256 /* at least those of a key block */
};

/* A row block as it meets keys of each kind. */
typedef struct key_visits {
  const row_block *masked;
  row_block full, mixed;
  attn_problem without_mask, with_mixed;
  attn_args mixed_args;
  uint8_t mixed_mask[MIXED_ROWS][MIXED_KEYS]; /* for a key block; the columns of mixed panels alone are filled in */
} key_visits;

/* The kind of the blocks that the lists for args.mask (`full` = false), or without it, name. */
static inline uint8_t kind_of_list(const attn_problem *p, bool full) {
  return attn_uses(p, ATTN_USE_MASK) && !full ? BLOCK_MASKED : BLOCK_FULL;
}

/* Whether keys are of several kinds: with lists, or a mask of the newest keys. Panels that blocks do not consist of can tell
 * keys apart by the mask alone. */
static inline bool visits_blocks(const attn_problem *p) {
  return attn_lists_keys(p) || (attn_masks_newest(p) && PANELS_DIVIDE_BLOCKS);
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

/* Whether the panel of a key has keys of two blocks. */
static inline bool panel_has_border(int64_t key, int64_t size) {
  if (PANELS_DIVIDE_BLOCKS) return false;
  const int64_t panel = round_down(key, PANEL_KEYS);
  return panel / size < (panel + PANEL_KEYS - 1) / size;
}

/* The kind of the key's block. Behind the last block is none. */
static inline uint8_t kind_of_key(const row_block *block, int64_t key) {
  const int64_t size = attn_visited_keys(block->problem), n = key / size;
  return n * size < block->problem->seq_k ? block->listed[n] : BLOCK_UNLISTED;
}

/* The kind of the keys from `key` on, and the end of those whose kind is found at once. */
static inline uint8_t kind_from(const row_block *block, int64_t key, int64_t *end) {
  const int64_t size = attn_visited_keys(block->problem), panel = round_down(key, PANEL_KEYS);
  if (panel_has_border(key, size)) {
    *end = panel + PANEL_KEYS;
    const uint8_t first = kind_of_key(block, panel), second = kind_of_key(block, *end - 1);
    return first == second ? first : BLOCK_MIXED;
  }
  *end = round_down(key, size) + size;
  if (!PANELS_DIVIDE_BLOCKS) *end = round_down(*end, PANEL_KEYS);
  return kind_of_key(block, key);
}

/* The listed keys of a mixed panel, from `key` on. */
static inline key_visit visit_of_mixed(const row_block *block, int64_t key, int64_t end) {
  const int64_t border = round_down(end - 1, attn_visited_keys(block->problem));
  key_visit visit = {key, end, end, BLOCK_MIXED};
  if (kind_of_key(block, border - 1) == BLOCK_UNLISTED) visit.begin = max64(key, border);
  if (kind_of_key(block, border) == BLOCK_UNLISTED) visit.end = border;
  return visit;
}

/* The first keys from `key` on that are visited together, before `end`; begin >= end where there are none. */
static inline key_visit next_visit(const key_visits *visits, int64_t key, int64_t end) {
  const row_block *block = visits->masked;
  if (!visits_blocks(block->problem)) return (key_visit){key, end, end, BLOCK_MASKED};
  key_visit visit = {.begin = key, .end = key};
  while (visit.begin < end && (visit.kind = kind_from(block, visit.begin, &visit.end)) == BLOCK_UNLISTED)
    visit.begin = visit.end;
  if (visit.begin >= end) return (key_visit){end, end, end, BLOCK_MASKED};
  if (visit.kind == BLOCK_MIXED) {
    visit = visit_of_mixed(block, visit.begin, visit.end);
    visit.end = min64(visit.end, end);
    return visit.begin < visit.end ? visit : next_visit(visits, visit.next, end);
  }
  for (int64_t more = visit.end; visit.end < end && kind_from(block, visit.end, &more) == visit.kind;) visit.end = more;
  visit.end = visit.next = min64(visit.end, end);
  return visit;
}

static inline const row_block *block_of_visit(const key_visits *visits, key_visit visit) {
  return visit.kind == BLOCK_MIXED ? &visits->mixed : visit.kind == BLOCK_FULL ? &visits->full : visits->masked;
}

/* The mask of a mixed panel, by the kinds of its keys' blocks. */
static inline void mix_panel(key_visits *visits, int64_t first, int64_t key, int64_t end) {
  const row_block *block = visits->masked;
  for (int64_t i = 0; i < block->rows; i++) {
    const problem_row at = problem_row_of(block, i);
    for (int64_t j = key; j < end; j++) {
      const uint8_t kind = kind_of_key(block, j);
      const bool hidden =
          kind == BLOCK_MASKED && attn_mask_hides(block->problem, block->args, block->b, at.head, at.query, j);
      visits->mixed_mask[i][j - first] = kind != BLOCK_UNLISTED && !hidden;
    }
  }
}

/* Before a row block visits the keys of the key block from `first` on, up to `end`. The mask of mixed panels is one of the
 * newest keys: those from `first` on. */
static inline void start_key_block(key_visits *visits, int64_t first, int64_t end) {
  const row_block *block = visits->masked;
  if (PANELS_DIVIDE_BLOCKS || !visits_blocks(block->problem)) return;
  assert(block->rows <= MIXED_ROWS && end - first <= MIXED_KEYS);
  visits->with_mixed = *block->problem;
  visits->with_mixed.uses |= ATTN_USE_MASK;
  visits->with_mixed.mask_keys = block->seq->len_k - first;
  attn_score_strides *stride = &visits->with_mixed.mask_stride;
  *stride = (attn_score_strides){.h = block->rows_per_head * MIXED_KEYS, .q = MIXED_KEYS, .k = 1};
  visits->mixed_args = *block->args; /* the mask's first element would stand before the array: no pointer to there */
  visits->mixed_args.mask =
      (const uint8_t *)((uintptr_t)visits->mixed_mask -
                        (uintptr_t)attn_score_offset(stride, block->b, block->head, block->first_row, 0));
  visits->mixed = *block;
  visits->mixed.problem = &visits->with_mixed;
  visits->mixed.args = &visits->mixed_args;
  visits->mixed.adjusted = scores_adjusted(&visits->with_mixed);
  visits->mixed.shifted = scores_shifted(&visits->with_mixed);
  for (int64_t key = first, next; key < end; key = next)
    if (kind_from(block, key, &next) == BLOCK_MIXED) mix_panel(visits, first, key, min64(next, end));
}

/* Keys that a tile of rows visits together. */
typedef struct tile_visit {
  const row_block *block;
  tile_keys keys;
  int64_t next; /* the visit's */
} tile_visit;

/* The first visit from `key` on, before `end`, in which the tile sees a key; false where there is none. */
static inline bool next_tile_visit(const key_visits *visits, int64_t tile_row, int64_t key, int64_t end, tile_visit *found) {
  for (key_visit visit = next_visit(visits, key, end); visit.begin < visit.end;
       visit = next_visit(visits, visit.next, end)) {
    const row_block *block = block_of_visit(visits, visit);
    const tile_keys keys = keys_of_tile(block, tile_row, round_down(visit.begin, PANEL_KEYS), visit.end);
    *found = (tile_visit){block, keys, visit.next};
    found->keys.begin = max64(keys.begin, visit.begin);
    if (keys.class != TILE_SKIP && found->keys.begin < keys.end) return true;
  }
  return false;
}

#endif
