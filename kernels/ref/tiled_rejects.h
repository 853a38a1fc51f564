/* What the blocked and flash kernels of every tier refuse, in words. */
#ifndef ATTN_COMMON_TILED_REJECTS_H
#define ATTN_COMMON_TILED_REJECTS_H

#include <stdio.h>

#include "kernels/common/rows.h"

/* The tiled kernels take every shape, stride, dtype, length and interval mask; what changes single scores is still refused. */
static inline const char *tiled_rejects(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  static const char *const scores[] = {"dot", "additive", "gaussian", "precomputed"};
  static const struct {
    uint32_t use;
    const char *name;
  } refused[] = {{ATTN_USE_BIAS, "an additive bias"}, {ATTN_USE_MASK, "a boolean mask"}, {ATTN_USE_ALIBI, "ALiBi slopes"}};
  if (p->score != ATTN_SCORE_DOT) {
    snprintf(buffer, buffer_bytes, "it computes dot scores only, not %s ones", scores[p->score]);
    return buffer;
  }
  if (p->softcap > 0) return "it has no softcap";
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    if (!attn_uses(p, refused[i].use)) continue;
    snprintf(buffer, buffer_bytes, "it does not take %s", refused[i].name);
    return buffer;
  }
  return NULL;
}

#endif
