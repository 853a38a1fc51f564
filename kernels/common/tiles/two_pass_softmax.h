/* SPDX-License-Identifier: MIT */
/* Softmax in two passes over the scores of one row, which lie in memory, in log2 units. Parameters: those of tiles.h. */
#ifndef ATTN_COMMON_TWO_PASS_SOFTMAX_H
#define ATTN_COMMON_TWO_PASS_SOFTMAX_H

#include <assert.h>

#include "scores.h"

/* Adjusts the scores of keys [key, end), whole vectors, of row i if the problem has more than dot products, then masks them:
 * a masked score becomes -inf even if it was NaN. score[0] belongs to `key`. */
static inline void mask_row(const row_block *block, int64_t i, int64_t key, int64_t end, float *score) {
  assert((end - key) % VEC_LANES == 0);
  for (int64_t j = key; j < end; j += VEC_LANES) {
    vec x = vec_load(score + (j - key));
    if (block->adjusted) x = adjust_scores(block, i, j, x);
    vec_store(score + (j - key), select_allowed(block->range[i], j, x));
  }
}

static inline float largest(const float *score, int64_t count) {
  vec best = vec_set1(-INFINITY);
  for (int64_t j = 0; j < count; j += VEC_LANES) best = vec_max(vec_load(score + j), best);
  return vec_reduce_max(best);
}

/* Turns `count` scores, whole panels, into P relative to the largest; leaves row_max and row_sum. */
static inline void softmax_row(const row_block *block, int64_t i, int64_t count, float *score) {
  float *row_max = block->row_max + i;
  assert(count > 0 && count % PANEL_KEYS == 0);
  *row_max = largest(score, count);
  const vec shift = vec_set1(*row_max == -INFINITY ? 0.0f : *row_max);
  vec sum = vec_zero();
  for (int64_t j = 0; j < count; j += PANEL_KEYS) {
    vec p[TILE_VECS];
    UNROLL
    for (int v = 0; v < TILE_VECS; v++) p[v] = vec_sub(vec_load(score + j + v * VEC_LANES), shift);
    sum = exponentials(p, score + j, sum, TILE_VECS);
  }
  vec_store(block->row_sum + i * VEC_LANES, sum);
}

#endif
