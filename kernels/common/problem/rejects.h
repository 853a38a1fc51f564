/* SPDX-License-Identifier: MIT */
/* `rejects` functions (attn/kernel.h) that several kernels share. */
#ifndef ATTN_COMMON_REJECTS_H
#define ATTN_COMMON_REJECTS_H

#include "attn/kernel.h"

static inline const char *takes_everything(const attn_problem *problem, char *buffer, size_t buffer_bytes) {
  (void)problem, (void)buffer, (void)buffer_bytes;
  return NULL;
}

/* For kernels whose products multiply bfloat16 values: dot scores of bf16 queries and keys. */
static inline const char *takes_bf16(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  (void)buffer, (void)buffer_bytes;
  if (p->score != ATTN_SCORE_DOT) return "it computes dot scores only: its products take bf16 values";
  if (p->dtype_q != ATTN_BF16) return "its dot product needs bf16 inputs: dtype_q must be ATTN_BF16";
  if (p->dtype_kv != ATTN_BF16) return "its dot product needs bf16 inputs: dtype_kv must be ATTN_BF16";
  return NULL;
}

#endif
