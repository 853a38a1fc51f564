/* SPDX-License-Identifier: MIT */
/* Lays out the parts of a block of memory (a unit's, a thread's scratch): the one place that adds sizes up and checks for
 * overflow. */
#ifndef ATTN_COMMON_MEMORY_H
#define ATTN_COMMON_MEMORY_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>

#include "attn/kernel.h"
#include "kernels/common/problem/arithmetic.h"

typedef struct memory_part {
  int64_t *start;       /* receives the part's offset in bytes, a multiple of ATTN_MEMORY_ALIGN */
  int64_t count, bytes; /* elements, and the bytes of each */
} memory_part;

/* Appends the parts to what ends at *end and moves *end behind them. False if a size overflows. */
static inline bool lay_out(const memory_part *parts, size_t count, int64_t *end) {
  for (size_t i = 0; i < count; i++) {
    int64_t bytes;
    assert(parts[i].count >= 0 && parts[i].bytes >= 0 && *end % ATTN_MEMORY_ALIGN == 0);
    *parts[i].start = *end;
    if (__builtin_mul_overflow(parts[i].count, parts[i].bytes, &bytes) || bytes > INT64_MAX / 16) return false;
    *end += round_up(bytes, ATTN_MEMORY_ALIGN);
    if (*end > INT64_MAX / 16) return false;
  }
  return true;
}

#define LAY_OUT(parts, end) lay_out(parts, sizeof(parts) / sizeof *(parts), end)

static inline int64_t float_bytes(int64_t floats) { return floats * (int64_t)sizeof(float); }

static inline float *floats_at(void *memory, int64_t offset) {
  assert(offset % ATTN_MEMORY_ALIGN == 0);
  return (float *)(void *)((char *)memory + offset);
}

#endif
