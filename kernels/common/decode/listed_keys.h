/* SPDX-License-Identifier: MIT */
/* Lists of key blocks in decode: which keys of a split its rows visit, and where the mask counts; a mask of the newest keys
 * alone goes the same way. Rows of a KV head may have several lists. Keys that none of them names are neither read nor
 * computed. Where another row visits a block that a row's list does not name, that row sees none of its keys and adds exact
 * zeros, as it would with a mask.
 *
 * Parameters: those of products.h. */
#ifndef ATTN_COMMON_DECODE_LISTED_KEYS_H
#define ATTN_COMMON_DECODE_LISTED_KEYS_H

#include "kernels/common/tiles/key_blocks.h"
#include "plan.h"

enum {
  LIST_KEYS = LEAST_BLOCK_KEYS, /* keys that lists tell apart */
  SPLIT_PARTS = SPLIT_KEYS / LIST_KEYS,
  LIST_PARTS = 2 * SPLIT_PARTS, /* those of the next split, too: they are prefetched behind this one's */
  MOST_LISTS = DECODE_ROWS / LEAST_BLOCK_QUERIES
};

/* The lists of a split's rows. */
typedef struct listed_keys {
  key_visits kinds;
  row_block some; /* a kind whose keys some rows do not see */
  attn_key_range range[DECODE_ROWS];
  attn_key_range keys;
  int64_t first, lists;
  uint8_t of_list[MOST_LISTS][LIST_PARTS]; /* BLOCK_UNLISTED ... */
  uint8_t of_all[LIST_PARTS];              /* bit n: some list has kind n */
  int64_t part;                            /* the next one to visit */
  uint8_t left;                            /* its kinds that are left */
} listed_keys;

/* Keys that a split's rows see next. */
typedef struct decode_visit {
  const row_block *block;
  attn_key_range keys;
  const listed_keys *lists; /* NULL: none */
  bool gaps;                /* only keys that all lists name without mask */
} decode_visit;

static int64_t key_of_part(const listed_keys *l, int64_t part) { return l->first + part * LIST_KEYS; }

static bool all_lists_full(const listed_keys *l, int64_t part) { return l->of_all[part] == 1 << BLOCK_FULL; }

/* Whether all lists name the key without mask. */
static inline bool all_rows_visit(const listed_keys *l, int64_t key) {
  return all_lists_full(l, (key - l->first) / LIST_KEYS);
}

/* The first key of the next block of DECODE_KEYS keys that some list names, or -1. */
static inline int64_t key_behind(const listed_keys *l, int64_t key) {
  for (key += DECODE_KEYS; key < l->first + LIST_PARTS * LIST_KEYS; key += DECODE_KEYS)
    if (l->of_all[(key - l->first) / LIST_KEYS] > 1 << BLOCK_UNLISTED) return key;
  return -1;
}

static void mark_list(const row_block *block, listed_keys *l, int64_t list, bool full) {
  const attn_problem *p = block->problem;
  const attn_key_list blocks = attn_key_list_of(p, block->args, full, block->b, block->head, list * p->block_queries);
  const int64_t size = p->block_keys / LIST_KEYS, first = l->first / LIST_KEYS;
  for (int64_t n = 0; n < blocks.count; n++) {
    const int64_t begin = blocks.at[n * blocks.step] * size - first;
    for (int64_t part = max64(begin, 0); part < min64(begin + size, LIST_PARTS); part++)
      l->of_list[list][part] = kind_of_list(p, full);
  }
}

/* Reads the lists before the rows are started; `keys`: those of the split that some row may see. False if they are in no
 * list. */
static NO_INLINE bool read_lists(const row_block *block, attn_key_range keys, listed_keys *l) {
  bool any = false;
  if (keys.begin >= keys.end) return false;
  start_kinds(block, &l->kinds);
  l->keys = keys;
  l->first = round_down(keys.begin, SPLIT_KEYS);
  const bool lists = attn_lists_keys(block->problem);
  const int64_t unmasked = attn_first_masked(block->problem, block->seq->len_k);
  l->lists = lists ? ceil_div(block->seq->len_q, block->problem->block_queries) : 1;
  assert(l->lists <= MOST_LISTS);
  memset(l->of_list, lists ? BLOCK_UNLISTED : BLOCK_MASKED, sizeof l->of_list);
  memset(l->of_all, 0, sizeof l->of_all);
  for (int64_t list = 0; list < l->lists; list++) {
    uint8_t *kind = l->of_list[list];
    if (lists) mark_list(block, l, list, false);
    if (lists) mark_list(block, l, list, true);
    for (int64_t part = 0; part < LIST_PARTS; part++) {
      if (kind[part] == BLOCK_MASKED && key_of_part(l, part + 1) <= unmasked) kind[part] = BLOCK_FULL;
      l->of_all[part] |= (uint8_t)(1 << kind[part]);
    }
  }
  for (int64_t part = 0; part < SPLIT_PARTS; part++) any |= l->of_all[part] > 1 << BLOCK_UNLISTED;
  l->part = (keys.begin - l->first) / LIST_KEYS;
  l->left = l->of_all[l->part];
  return any;
}

static void to_part(listed_keys *l, int64_t part) {
  l->part = part;
  l->left = part < SPLIT_PARTS ? l->of_all[part] : 0;
}

/* The rows whose list has this kind of the part see its keys, others none. */
static const row_block *rows_of_kind(listed_keys *l, int kind) {
  const row_block *block = kind == BLOCK_FULL ? &l->kinds.full : l->kinds.masked;
  if (l->of_all[l->part] == 1 << kind) return block;
  l->some = *block;
  l->some.range = l->range;
  for (int64_t i = 0; i < block->rows; i++) {
    const int64_t query = problem_row_of(block, i).query;
    const bool sees = query < block->seq->len_q && l->of_list[query / block->problem->block_queries][l->part] == kind;
    l->range[i] = sees ? block->range[i] : (attn_key_range){0, 0};
  }
  return &l->some;
}

/* The next keys in their order: parts that all lists name without mask, up to one of another kind, or a kind of one part.
 * False behind the last. */
static NO_INLINE bool next_listed(listed_keys *l, decode_visit *visit) {
  const int64_t parts = ceil_div(l->keys.end - l->first, LIST_KEYS);
  while (l->part < parts && l->left <= 1 << BLOCK_UNLISTED) to_part(l, l->part + 1);
  if (l->part >= parts) return false;
  int64_t end = l->part + 1;
  if (all_lists_full(l, l->part)) {
    while (end < parts && (all_lists_full(l, end) || l->of_all[end] == 1 << BLOCK_UNLISTED)) end++;
    *visit = (decode_visit){.block = &l->kinds.full, .lists = l, .gaps = true};
  } else {
    const int kind = l->left >> BLOCK_FULL & 1 ? BLOCK_FULL : BLOCK_MASKED;
    *visit = (decode_visit){.block = rows_of_kind(l, kind), .lists = l};
    l->left &= (uint8_t) ~(1 << kind);
  }
  visit->keys = (attn_key_range){max64(l->keys.begin, key_of_part(l, l->part)), min64(l->keys.end, key_of_part(l, end))};
  if (visit->gaps || l->left <= 1 << BLOCK_UNLISTED) to_part(l, end);
  return true;
}

#endif
