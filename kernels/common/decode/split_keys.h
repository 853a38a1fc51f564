/* SPDX-License-Identifier: MIT */
/* Splits over keys, the same for the decode kernels of all tiers. Borders are absolute key indices, so bits do not depend on
 * which thread computes which split. */
#ifndef ATTN_COMMON_DECODE_SPLIT_KEYS_H
#define ATTN_COMMON_DECODE_SPLIT_KEYS_H

#include <stdio.h>

#include "attn/kernel.h"
#include "kernels/common/problem/indexing.h"

enum {
  DECODE_ROWS = 128,     /* most query rows of a KV head (docs/performance-details.md, "Which kernel when") */
  MOST_STREAM_ROWS = 32, /* rows that stream.h takes: more would need too much of the stack */
  SPLIT_KEYS = 1024 /* keys of one task: long enough to hide its start, short enough to share 4096 keys among four threads */
};

/* Query rows that share a KV head. */
static inline int64_t rows_per_kv_head(const attn_problem *p) { return attn_group(p) * p->seq_q; }

/* NULL, or the reason in words. */
static inline const char *too_many_rows(const attn_problem *p, int64_t most, char *buffer, size_t buffer_bytes) {
  if (rows_per_kv_head(p) <= most) return NULL;
  snprintf(buffer, buffer_bytes, "it takes at most %d query rows per KV head; here heads_q / heads_kv x seq_q is %lld",
           (int)most, (long long)rows_per_kv_head(p));
  return buffer;
}

/* Splits of the keys between key_begin and key_end, at least 1; the number of the first one. */
static inline int64_t first_split(const attn_problem *p) { return min64(p->key_begin, p->seq_k) / SPLIT_KEYS; }

static inline int64_t split_count(const attn_problem *p) {
  const int64_t end = p->key_end > 0 ? min64(p->key_end, p->seq_k) : p->seq_k;
  return max64(ceil_div(end, SPLIT_KEYS) - first_split(p), 1);
}

#endif
