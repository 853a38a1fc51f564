/* SPDX-License-Identifier: MIT */
/* Prefetches K and V ahead of their use.
 *
 * The loops use K and V in turns, block by block, and neither during softmax. Memory is faster if both are read side by side
 * all the time. So lines are prefetched in an order of their own, while any lines are used: one of K, one of V, and so on,
 * in the order in which they lie. Measured orders: notebook/performance-log.md.
 *
 * Some CPUs drop prefetches that come faster than memory delivers, and loads that wait for memory are few beside the
 * arithmetic of several rows. There lines are prefetched twice (prefetch_twice), into level 1: V of a block while its K is
 * read, K of the next block while V is read. Where two blocks of K and V exceed level 1, a line may be gone before its use
 * if it is prefetched a block ahead, so both times are nearer; blocks above two thirds of level 1 lose by it. */
#ifndef ATTN_COMMON_PREFETCH_H
#define ATTN_COMMON_PREFETCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/common/problem/arithmetic.h"
#include "kernels/common/problem/unroll.h"

enum {
  LINE_BYTES = 64,
  LEAST_DISTANCE = 8192, /* from what is read, in K and in V; tested: 4 to 32 KiB are no better (Zen, Granite Rapids) */
  /* Those of the first and the second time, where both are nearer; tested: 8 to 16 and 6 to 10 KiB are no better (Zen 5). */
  FIRST_DISTANCE = 12288,
  SECOND_DISTANCE = 8192
};

/* None: other rows have just read K and V, or the CPU fetches them by itself. Any: one piece of code for all policies,
 * whatever prefetch_lines says. Near: once, but into level 1, for loops that take a part of each key's row at a time:
 * they do not read lines in the order of memory. */
typedef enum prefetch_policy { PREFETCH_NONE, PREFETCH_ONCE, PREFETCH_TWICE, PREFETCH_ANY, PREFETCH_NEAR } prefetch_policy;

/* Rows of K or V: `bytes` each, `stride` bytes apart. `step`: bytes from one line that is prefetched once to the
 * next; for blocks, whose loops take a few more or fewer bytes as a line, these. */
typedef struct line_rows {
  const void *at;
  int64_t bytes, stride, step;
} line_rows;

/* The next line of K and of V to prefetch. They may lie beyond the tensors: prefetches never fault. */
typedef struct prefetch_lines {
  prefetch_policy policy;
  uintptr_t k, v;
  int64_t left, row;      /* once: lines of either up to the ends of their rows, else 0; in a whole row */
  uintptr_t k_gap, v_gap; /* bytes from the end of a row, or twice: of a key run, to what follows */
  /* Twice: */
  int64_t until_gap;          /* lines of either up to the end of a key run */
  uintptr_t again_gap;        /* bytes of that gap for the next two */
  uintptr_t k_again, v_again; /* the next lines of the next block's K and of this block's V, for the second time */
  bool nearer;                /* instead, lines of both that are SECOND_DISTANCE ahead; in pages: */
  uintptr_t k_nearer, v_nearer;
} prefetch_lines;

/* The distance between the lines that are read and those that are prefetched. `block`: bytes from one block of keys to the
 * next. */
static inline uintptr_t prefetch_distance(int64_t block, bool nearer) {
  return (uintptr_t)(nearer ? FIRST_DISTANCE : block > 0 ? round_up(LEAST_DISTANCE, block) : 0);
}

/* Lines ahead of blocks of `keys` keys. `nearer`: only if lines are prefetched twice. */
static inline prefetch_lines prefetch_of(line_rows k, line_rows v, int64_t keys, prefetch_policy policy, bool nearer) {
  if (policy == PREFETCH_NONE) return (prefetch_lines){.policy = policy};
  const int64_t k_block = keys * k.stride, v_block = keys * v.stride;
  prefetch_lines next = {.policy = policy,
                         .left = policy != PREFETCH_TWICE ? INT64_MAX : 0,
                         .row = INT64_MAX,
                         .until_gap = INT64_MAX,
                         .nearer = nearer};
  next.k = (uintptr_t)k.at + prefetch_distance(k_block, nearer);
  next.v = (uintptr_t)v.at + prefetch_distance(v_block, nearer);
  next.v_again = (uintptr_t)v.at;
  next.k_again = (uintptr_t)k.at + (uintptr_t)k_block;
  if (policy == PREFETCH_TWICE || (k.stride == k.bytes && v.stride == v.bytes)) return next; /* no gaps */
  next.left = next.row = ceil_div(max64(k.bytes, v.bytes), k.step);
  next.k_gap = (uintptr_t)(k.stride - next.row * k.step);
  next.v_gap = (uintptr_t)(v.stride - next.row * v.step);
  return next;
}

/* Prefetches one line of K and of V, into level 2 or 1. */
static ALWAYS_INLINE void prefetch_pair(uintptr_t k, uintptr_t v, const bool near) {
  if (near) { /* NOLINT(bugprone-branch-clone): how near is a constant, whose difference it does not see */
    __builtin_prefetch((const void *)k, 0, 3);
    __builtin_prefetch((const void *)v, 0, 3);
  } else {
    __builtin_prefetch((const void *)k, 0, 2);
    __builtin_prefetch((const void *)v, 0, 2);
  }
}

/* Prefetches `pairs` lines of K and as many of V. None of them is the last of a row. */
static ALWAYS_INLINE void prefetch_inside(prefetch_lines *next, const int pairs, const uintptr_t step, const bool near) {
  UNROLL
  for (int i = 0; i < pairs; i++) prefetch_pair(next->k + (uintptr_t)i * step, next->v + (uintptr_t)i * step, near);
  next->k += (uintptr_t)pairs * step;
  next->v += (uintptr_t)pairs * step;
  next->left -= pairs;
}

/* The same over the end of a row. */
static ALWAYS_INLINE void prefetch_across(prefetch_lines *next, const int pairs, const uintptr_t step, const bool near) {
  NO_UNROLL
  for (int i = 0; i < pairs; i++) {
    prefetch_pair(next->k, next->v, near);
    next->k += step;
    next->v += step;
    if (--next->left > 0) continue;
    next->left = next->row;
    next->k += next->k_gap;
    next->v += next->v_gap;
  }
}

/* The same into level 1, for rows without gaps, and again for as many lines closer to their use: those from *again on, or
 * one of K and one of V. `paged`: key runs have gaps between them. */
static ALWAYS_INLINE void prefetch_twice(prefetch_lines *next, const int pairs, const bool paged, uintptr_t *again) {
  const uintptr_t bytes = (uintptr_t)(pairs * LINE_BYTES), between = FIRST_DISTANCE - SECOND_DISTANCE;
  const uintptr_t one = !next->nearer ? *again : paged ? next->k_nearer : next->k - between;
  const uintptr_t other = !next->nearer ? one + bytes : paged ? next->v_nearer : next->v - between;
  UNROLL
  for (uintptr_t i = 0; i < bytes; i += LINE_BYTES) {
    __builtin_prefetch((const void *)(next->k + i), 0, 3);
    __builtin_prefetch((const void *)(next->v + i), 0, 3);
  }
  UNROLL
  for (uintptr_t i = 0; i < bytes; i += LINE_BYTES) {
    __builtin_prefetch((const void *)(one + i), 0, 3);
    __builtin_prefetch((const void *)(other + i), 0, 3);
  }
  next->k += bytes;
  next->v += bytes;
  *again += 2 * bytes;
  if (!paged) return;
  next->k_nearer += bytes;
  next->v_nearer += bytes;
  next->until_gap -= pairs;
  if (__builtin_expect(next->until_gap != 0, 1)) return;
  next->k += next->k_gap;
  next->v += next->v_gap;
  *again += next->again_gap;
}

/* `pairs` lines of K and V each, by `policy`, and `step` as in line_rows; all constants. `again`: as for prefetch_twice().
 * Where any policy is possible, the test for the end of a row tells them apart: lines that are prefetched once then cost no
 * more than without a choice. */
static ALWAYS_INLINE void prefetch_ahead(prefetch_lines *next, const prefetch_policy policy, const bool paged,
                                         const int pairs, const int step, uintptr_t *again) {
  if (policy == PREFETCH_NONE) return;
  if (policy == PREFETCH_TWICE) { /* NOLINT(bugprone-branch-clone): the same as the last branch, but known without a test */
    prefetch_twice(next, pairs, paged, again);
  } else if (__builtin_expect(next->left > pairs, 1)) {
    prefetch_inside(next, pairs, (uintptr_t)step, policy == PREFETCH_NEAR);
  } else if (next->left > 0) {
    prefetch_across(next, pairs, (uintptr_t)step, policy == PREFETCH_NEAR);
  } else if (policy == PREFETCH_ANY && next->policy == PREFETCH_TWICE) {
    prefetch_twice(next, pairs, paged, again);
  }
}

/* The same, once. */
static ALWAYS_INLINE void prefetch_once(prefetch_lines *next, const int pairs) {
  prefetch_ahead(next, PREFETCH_ONCE, false, pairs, LINE_BYTES, NULL);
}

#endif
