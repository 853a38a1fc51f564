/* SPDX-License-Identifier: MIT */
/* Pairs of bf16 values in the lanes of flash_few.h: two neighbours of Q or K, and P and V of two keys.
 * kernels/common/tiles/few_lanes.h has the same names for single floats. */
#ifndef ATTN_FEW_LANES_BF16_H
#define ATTN_FEW_LANES_BF16_H

#include "flash_pairs_bf16.h"
#include "kernels/common/tiles/streaming_softmax.h"

enum { FEW_VALUES = 2, FEW_BORDER = PANEL_KEYS };
#define FEW_DTYPES "kernels/common/problem/bf16.def"

static ALWAYS_INLINE vec few_values(attn_storage from, int64_t at, int64_t d, int64_t n) {
  return load_pairs((const uint16_t *)from.data + (at + d), n);
}

static ALWAYS_INLINE vec few_values_beside(attn_storage from, int64_t at, int64_t i, int64_t step, int64_t dim, int64_t n) {
  return pairs_beside((const uint16_t *)from.data + at, 2 * i, step, dim, n);
}

static ALWAYS_INLINE void few_values_of_keys(vec x[FEW_VALUES], attn_storage from, const int64_t at[FEW_VALUES], int64_t c,
                                             const int64_t n[FEW_VALUES]) {
  zip_pairs(few_values(from, at[0], c, n[0]), few_values(from, at[1], c, n[1]), x);
}

/* Q times the scale is no bf16 value, so products are multiplied by it. */
static void few_queries(const row_block *block, int64_t capacity) {
  const attn_problem *p = block->problem;
  for (int64_t i = 0; i < capacity; i++) {
    float *q = block->q + i * block->q_stride;
    memset(q, 0, (size_t)block->q_stride * sizeof(float));
    if (i >= block->rows || block->range[i].begin >= block->range[i].end) continue; /* it may hold anything */
    const problem_row at = problem_row_of(block, i);
    const uint16_t *from = (const uint16_t *)block->args->q + attn_q_offset(p, block->seq, block->b, at.head, at.query);
    for (int64_t d = 0; d < p->dim_qk; d += ROW_VALUES)
      vec_store_first(q + d / 2, _mm512_castsi512_ps(load_values(from + d * p->q_stride.d, p->q_stride.d, p->dim_qk - d)),
                      min64(ceil_div(p->dim_qk - d, 2), VEC_LANES));
  }
}

static ALWAYS_INLINE vec few_start(vec added) {
  (void)added;
  return vec_zero();
}
static ALWAYS_INLINE vec few_score(const row_block *block, vec sum, vec added) {
  return vec_fma(sum, vec_set1(block->problem->scale * LOG2_E), added);
}

/* P of a panel is half as long as its scores, and ends before those of the next. */
static ALWAYS_INLINE vec few_weights(vec x[TILE_VECS], float *p, int64_t pending, vec sum, int64_t vecs) {
  float *s = p + pending;
  vec added = vec_zero();
  for (int64_t v = 0; v < vecs; v++) vec_store(s + v * VEC_LANES, x[v]);
  for (int64_t v = 0; v < vecs; v += 2) {
    const vec low = weights_of(s + v * VEC_LANES), high = v + 1 < vecs ? weights_of(s + (v + 1) * VEC_LANES) : vec_zero();
    vec_store(p + (pending / 2 + v / 2 * VEC_LANES), narrow(low, high));
    added = v == 0 ? vec_add(low, high) : vec_add(added, vec_add(low, high));
  }
  return vec_add(sum, added);
}

static void few_zip(float *acc) {
  const vec first = vec_load(acc), second = vec_load(acc + VEC_LANES);
  vec_store(acc, _mm512_shuffle_f32x4(first, second, 0x88));
  vec_store(acc + VEC_LANES, _mm512_shuffle_f32x4(first, second, 0xdd));
}
static void few_unzip(float *acc) {
  vec columns[2];
  unzip_columns(vec_load(acc), vec_load(acc + VEC_LANES), columns);
  vec_store(acc, columns[0]);
  vec_store(acc + VEC_LANES, columns[1]);
}

#endif
