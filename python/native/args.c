/* SPDX-License-Identifier: MIT */
#include "args.h"

#include <math.h>
#include <string.h>

int64_t args_longest(const int32_t *borders, int64_t sequences) {
  int64_t most = 0;
  for (int64_t i = 0; i < sequences; i++) {
    const int64_t tokens = (int64_t)borders[i + 1] - borders[i];
    most = tokens > most ? tokens : most;
  }
  return most;
}

static bool beyond(const int32_t *borders, int64_t sequences, int64_t tokens) {
  return borders && (borders[0] > 0 || borders[sequences] < tokens);
}

void args_clear_padding(const attn_problem *p, const attn_args *args, bool is_lse, void *out, int64_t elements, int size) {
  if (!beyond(args->cu_seqlens_q, p->batch, p->total_q) && !beyond(args->cu_seqlens_k, p->batch, p->total_k)) return;
  memset(out, 0, (size_t)(elements * size));
  for (int64_t i = 0; is_lse && i < elements; i++) ((float *)out)[i] = -INFINITY;
}

void args_complete_scales(const attn_problem *p, attn_args *args) {
  static const float one = 1;
  if (!(p->uses & ATTN_USE_KV_SCALES)) return;
  if (!args->v_scale) args->v_scale = &one;
  if (!args->k_scale && p->score != ATTN_SCORE_PRECOMPUTED) args->k_scale = &one;
}
