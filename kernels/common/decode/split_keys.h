/* SPDX-License-Identifier: MIT */
/* Splits over keys, the same for the decode kernels of all tiers. Borders are absolute key indices, so bits do not depend on
 * which thread computes which split. */
#ifndef ATTN_COMMON_DECODE_SPLIT_KEYS_H
#define ATTN_COMMON_DECODE_SPLIT_KEYS_H

#include <stdio.h>

#include "attn/kernel.h"
#include "kernels/common/problem/indexing.h"

enum {
  DECODE_ROWS = 32, /* most query rows of a KV head (docs/performance-details.md, "Which kernel when") */
  SPLIT_KEYS = 1024 /* keys of one task: long enough to hide its start, short enough to share 4096 keys among four threads */
};

/* Query rows that share a KV head. */
static inline int64_t rows_per_kv_head(const attn_problem *p) { return attn_group(p) * p->seq_q; }

/* NULL, or the reason in words. */
static inline const char *too_many_rows(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  if (rows_per_kv_head(p) <= DECODE_ROWS) return NULL;
  snprintf(buffer, buffer_bytes, "it takes at most %d query rows per KV head; here heads_q / heads_kv x seq_q is %lld",
           DECODE_ROWS, (long long)rows_per_kv_head(p));
  return buffer;
}

static inline int64_t split_count(const attn_problem *p) {
  return p->seq_k > SPLIT_KEYS ? (p->seq_k - 1) / SPLIT_KEYS + 1 : 1;
}

#endif
