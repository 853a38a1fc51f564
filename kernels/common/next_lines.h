/* SPDX-License-Identifier: MIT */
/* Asking memory for K and V ahead of their use.
 *
 * The loops use K and V in turns, block by block, and neither during softmax. Memory is faster if both are read side by side
 * all the time. So lines are asked for in an order of their own, while any lines are used: one of K, one of V, and so on, in
 * the order in which they lie. Measured orders: docs/performance-log.md. */
#ifndef ATTN_COMMON_NEXT_LINES_H
#define ATTN_COMMON_NEXT_LINES_H

#include <stdint.h>

#include "arithmetic.h"
#include "unroll.h"

enum {
  LINE_BYTES = 64,
  PREFETCH_BYTES = 8192 /* the least distance from what is read to what is asked for, in K and in V */
};

/* Rows of K or V: `bytes` each, `stride` bytes apart. */
typedef struct line_rows {
  const void *at;
  int64_t bytes, stride;
} line_rows;

/* The next line to ask for, and the one after it, of the other tensor. They may lie beyond the tensors: they are hints. */
typedef struct next_lines {
  uintptr_t at, then;
  int64_t left, row;          /* lines of both tensors up to the ends of their rows; in a whole row */
  uintptr_t at_gap, then_gap; /* bytes from the end of a row to the next row */
} next_lines;

/* Lines of the keys that follow `keys` keys, or a multiple of that, PREFETCH_BYTES or more ahead. */
static inline next_lines next_lines_of(line_rows k, line_rows v, int64_t keys) {
  const int64_t k_block = keys * k.stride, v_block = keys * v.stride;
  next_lines next = {.at = (uintptr_t)k.at, .then = (uintptr_t)v.at, .left = INT64_MAX, .row = INT64_MAX};
  next.at += (uintptr_t)(k_block > 0 ? round_up(PREFETCH_BYTES, k_block) : 0);
  next.then += (uintptr_t)(v_block > 0 ? round_up(PREFETCH_BYTES, v_block) : 0);
  if (k.stride == k.bytes && v.stride == v.bytes) return next;
  const int64_t lines = (max64(k.bytes, v.bytes) + LINE_BYTES - 1) / LINE_BYTES;
  next.left = next.row = 2 * lines;
  next.at_gap = (uintptr_t)(k.stride - lines * LINE_BYTES);
  next.then_gap = (uintptr_t)(v.stride - lines * LINE_BYTES);
  return next;
}

/* `lines` lines have been asked for. */
static ALWAYS_INLINE void pass_lines(next_lines *next, const int lines) {
  next->left -= lines;
  if (next->left > 0) return;
  next->left = next->row;
  next->at += next->at_gap;
  next->then += next->then_gap;
}

/* Asks for one line, into level 2. */
static ALWAYS_INLINE void fetch_line(next_lines *next) {
  const uintptr_t at = next->at;
  __builtin_prefetch((const void *)at, 0, 2);
  next->at = next->then;
  next->then = at + LINE_BYTES;
  pass_lines(next, 1);
}

/* Asks for `lines` lines, a constant. */
static ALWAYS_INLINE void fetch_lines(next_lines *next, const int lines) {
  UNROLL
  for (int i = 0; i + 1 < lines; i += 2) {
    __builtin_prefetch((const void *)next->at, 0, 2);
    __builtin_prefetch((const void *)next->then, 0, 2);
    next->at += LINE_BYTES;
    next->then += LINE_BYTES;
    pass_lines(next, 2);
  }
  if (lines % 2) fetch_line(next);
}

#endif
