/* SPDX-License-Identifier: MIT */
/* `rejects` of kernels whose products are of bfloat16: dot scores of bf16 queries and keys. */
#ifndef ATTN_COMMON_TAKES_BF16_H
#define ATTN_COMMON_TAKES_BF16_H

#include "kernels/kernel.h"

static inline const char *takes_bf16(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  (void)buffer, (void)buffer_bytes;
  if (p->score != ATTN_SCORE_DOT) return "it computes dot scores only: its products take bf16 values";
  if (p->dtype_q != ATTN_BF16) return "its dot product needs bf16 inputs: dtype_q must be ATTN_BF16";
  if (p->dtype_kv != ATTN_BF16) return "its dot product needs bf16 inputs: dtype_kv must be ATTN_BF16";
  return NULL;
}

#endif
