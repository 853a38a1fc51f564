/* SPDX-License-Identifier: MIT */
/* `rejects` functions (attn/kernel.h) that several kernels share. */
#ifndef ATTN_COMMON_REJECTS_H
#define ATTN_COMMON_REJECTS_H

#include "attn/kernel.h"
#include "indexing.h"

static inline const char *takes_everything(const attn_problem *problem, char *buffer, size_t buffer_bytes) {
  (void)problem, (void)buffer, (void)buffer_bytes;
  return NULL;
}

/* For kernels that need all scores of a row at once. */
static inline const char *takes_no_state(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  (void)buffer, (void)buffer_bytes;
  if (!attn_uses(p, ATTN_USE_STATE)) return NULL;
  return "it needs the largest of all scores of a row first, so keys cannot come in pieces: ATTN_USE_STATE must not be set";
}

/* For kernels of gradients that keep no sums over queries or keys. */
static inline const char *takes_rows_of_gradients(const attn_problem *p) {
  if (!attn_uses(p, ATTN_USE_D_BIAS | ATTN_USE_D_ALIBI | ATTN_USE_D_SINKS | ATTN_USE_D_SCORE_WEIGHT)) return NULL;
  return "it has no gradients of what is added to scores: only d_q, d_k and d_v";
}

/* For kernels of gradients whose products are those of whole matrices. */
static inline const char *takes_dot_gradients(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  (void)buffer, (void)buffer_bytes;
  if (p->score != ATTN_SCORE_DOT) return "it computes gradients of dot scores only: others are no matrix products";
  return takes_rows_of_gradients(p);
}

/* For kernels whose products multiply bfloat16 values: dot scores of bf16 queries and keys. */
static inline const char *takes_bf16(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  (void)buffer, (void)buffer_bytes;
  if (p->score != ATTN_SCORE_DOT) return "it computes dot scores only: its products take bf16 values";
  if (attn_uses(p, ATTN_USE_KV_SCALES))
    return "its products take bf16 values as they are stored, without ATTN_USE_KV_SCALES";
  if (p->dtype_q != ATTN_BF16) return "its dot product needs bf16 inputs: dtype_q must be ATTN_BF16";
  if (p->dtype_kv != ATTN_BF16) return "its dot product needs bf16 inputs: dtype_kv must be ATTN_BF16";
  return NULL;
}

/* Gradients by such products, without those of what is added to scores. */
static inline const char *backward_takes_bf16(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  if (p->dtype_o != ATTN_BF16) return "its products need bf16 values of d_o: dtype_o must be ATTN_BF16";
  const char *reason = takes_rows_of_gradients(p);
  return reason ? reason : takes_bf16(p, buffer, buffer_bytes);
}

static inline const char *takes_bf16_at_once(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  const char *reason = takes_bf16(p, buffer, buffer_bytes);
  return reason ? reason : takes_no_state(p, buffer, buffer_bytes);
}

#endif
