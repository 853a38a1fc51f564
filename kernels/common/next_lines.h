/* SPDX-License-Identifier: MIT */
/* Asking memory for K and V ahead of their use.
 *
 * The loops use K and V in turns, block by block, and neither during softmax. Memory is faster if both are read side by side
 * all the time. So lines are asked for in an order of their own, while any lines are used: one of K, one of V, and so on, in
 * the order in which they lie. Measured orders: notebook/performance-log.md.
 *
 * Zen 5 drops hints that come faster than memory delivers (a quarter of them at full speed), and loads that wait for memory
 * are few beside the arithmetic of several rows. There lines are asked for twice (ask_twice), into level 1: V of a block
 * while its K is read, K of the next block while V is read. Where two blocks of K and V exceed level 1 of 48 KiB, a line
 * may be gone before its use if it is asked for a block ahead, so both times are nearer; blocks above 32 KiB lose by it. */
#ifndef ATTN_COMMON_NEXT_LINES_H
#define ATTN_COMMON_NEXT_LINES_H

#include <stdbool.h>
#include <stdint.h>

#include "arithmetic.h"
#include "unroll.h"

enum {
  LINE_BYTES = 64,
  PREFETCH_BYTES = 8192, /* the least distance from what is read to what is asked for, in K and in V */
  /* Other distances, of both times, where lines are asked for twice and K and V of a block have so many bytes. */
  FIRST_BYTES = 12288,
  AGAIN_BYTES = 8192,
  NEARER_ABOVE = 24 << 10,
  NEARER_UP_TO = 32 << 10
};

/* Rows of K or V: `bytes` each, `stride` bytes apart. */
typedef struct line_rows {
  const void *at;
  int64_t bytes, stride;
} line_rows;

/* The next line of K and of V to ask for. They may lie beyond the tensors: they are hints. */
typedef struct next_lines {
  uintptr_t k, v;
  int64_t left, row;          /* lines of either up to the ends of their rows; in a whole row */
  uintptr_t k_gap, v_gap;     /* bytes from the end of a row to the next row */
  uintptr_t k_again, v_again; /* for ask_twice(): what follows of the next block's K and this block's V */
  bool nearer;                /* ask_twice() asks for lines that are AGAIN_BYTES ahead instead */
} next_lines;

/* Lines of the keys that follow `keys` keys, or a multiple of that, PREFETCH_BYTES or more ahead; `twice`: for ask_twice. */
static inline next_lines next_lines_of(line_rows k, line_rows v, int64_t keys, bool twice) {
  const int64_t k_block = keys * k.stride, v_block = keys * v.stride;
  const bool nearer = twice && k_block + v_block > NEARER_ABOVE && k_block + v_block <= NEARER_UP_TO;
  next_lines next = {.left = INT64_MAX, .row = INT64_MAX, .nearer = nearer};
  next.k = (uintptr_t)k.at + (uintptr_t)(nearer ? FIRST_BYTES : k_block > 0 ? round_up(PREFETCH_BYTES, k_block) : 0);
  next.v = (uintptr_t)v.at + (uintptr_t)(nearer ? FIRST_BYTES : v_block > 0 ? round_up(PREFETCH_BYTES, v_block) : 0);
  next.k_again = (uintptr_t)k.at + (uintptr_t)k_block;
  next.v_again = (uintptr_t)v.at;
  if (k.stride == k.bytes && v.stride == v.bytes) return next; /* no gaps */
  next.left = next.row = (max64(k.bytes, v.bytes) + LINE_BYTES - 1) / LINE_BYTES;
  next.k_gap = (uintptr_t)(k.stride - next.row * LINE_BYTES);
  next.v_gap = (uintptr_t)(v.stride - next.row * LINE_BYTES);
  return next;
}

/* Asks for `pairs` lines of K and as many of V, into level 2; `pairs` is a constant. */
static ALWAYS_INLINE void fetch_pairs(next_lines *next, const int pairs) {
  if (__builtin_expect(next->left > pairs, 1)) {
    UNROLL
    for (int i = 0; i < pairs; i++) {
      __builtin_prefetch((const void *)(next->k + (uintptr_t)i * LINE_BYTES), 0, 2);
      __builtin_prefetch((const void *)(next->v + (uintptr_t)i * LINE_BYTES), 0, 2);
    }
    next->k += (uintptr_t)pairs * LINE_BYTES;
    next->v += (uintptr_t)pairs * LINE_BYTES;
    next->left -= pairs;
    return;
  }
  NO_UNROLL
  for (int i = 0; i < pairs; i++) { /* over the end of a row */
    __builtin_prefetch((const void *)next->k, 0, 2);
    __builtin_prefetch((const void *)next->v, 0, 2);
    next->k += LINE_BYTES;
    next->v += LINE_BYTES;
    if (--next->left > 0) continue;
    next->left = next->row;
    next->k += next->k_gap;
    next->v += next->v_gap;
  }
}

/* The same into level 1, for rows without gaps, and again for as many nearer ones: from *again on, or AGAIN_BYTES ahead. */
static ALWAYS_INLINE void ask_twice(next_lines *next, const int pairs, uintptr_t *again) {
  const uintptr_t bytes = (uintptr_t)(pairs * LINE_BYTES);
  const uintptr_t one = next->nearer ? next->k - (FIRST_BYTES - AGAIN_BYTES) : *again;
  const uintptr_t other = next->nearer ? next->v - (FIRST_BYTES - AGAIN_BYTES) : *again + bytes;
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
}

#endif
