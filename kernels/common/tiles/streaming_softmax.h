/* SPDX-License-Identifier: MIT */
/* Streaming softmax: what a row keeps between key blocks, and how it takes in the scores of one more panel (Milakov &
 * Gimelshein 2018, https://arxiv.org/abs/1805.02867). flash.h and decode.h share it. Parameters: those of tiles.h, and
 *   REFERENCE_ABOVE(largest)             optional: the reference for a row whose largest score is this; default: that score;
 *                                        tested: rounded up to a whole number (flash_avx512bf16)
 *   RESCALE_PENDING(p, pending, factor)  optional: multiplies the row's P of `pending` keys, which begin at p; default:
 *                                        floats in memory; tested: pairs of bf16 values (flash_avx512bf16) */
#ifndef ATTN_COMMON_STREAMING_SOFTMAX_H
#define ATTN_COMMON_STREAMING_SOFTMAX_H

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "kernels/common/memory/lanes.h"
#include "scores.h"

/* Rescaling costs a pass over acc, so a row keeps an outdated reference until a panel's score exceeds it by more than this,
 * in log2 units. P stays below 2^8, far from overflow in float32, and acc / row_sum is unchanged. */
static const float RESCALE_AT = 8.0f;

#ifndef REFERENCE_ABOVE
#define REFERENCE_ABOVE(largest) (largest)
#endif

#ifndef RESCALE_PENDING
#define RESCALE_PENDING(p, pending, factor) rescale_pending(p, pending, factor)
/* A product that is no normal number becomes 0, as in vec_exp2: on some CPUs a denormal P makes its products with V a
 * hundred times as slow. */
static inline void rescale_pending(float *p, int64_t pending, vec factor) {
  for (int64_t j = 0; j < pending; j += VEC_LANES) {
    const vec scaled = vec_mul(vec_load(p + j), factor);
    lane_bits bits;
    memcpy(&bits, &scaled, sizeof bits);
    bits &= (lane_bits)(bits >= 0x00800000u);
    memcpy(p + j, &bits, sizeof bits);
  }
}
#endif

/* The score that a row's exponentials are relative to. Before its first allowed key the value does not matter. */
static inline float reference_of(const row_block *block, int64_t i) {
  return block->row_max[i] == -INFINITY ? 0.0f : block->row_max[i];
}

/* Raises row i's reference by `step`, or sets it to `step` if the row has seen no allowed key yet. Rescales everything that
 * is relative to the old reference: row_sum, acc, and the `pending` values of P that begin at `p` and that acc does not hold
 * yet. Returns the step to subtract from the current scores. Callers test before any exp, so nothing can overflow. */
static float rescale_row(const row_block *block, int64_t i, float step, float *p, int64_t pending) {
  if (block->row_max[i] == -INFINITY) {
    block->row_max[i] = step;
    return step;
  }
  assert(step > 0 && pending % VEC_LANES == 0);
  const float before = block->row_max[i];
  block->row_max[i] = before + step;
  step = block->row_max[i] - before; /* the step that the reference really took, after rounding */
  const vec factor = vec_exp2(vec_set1(-step));
  float *acc = block->acc + i * block->acc_stride, *sum = block->row_sum + i * VEC_LANES;
  vec_store(sum, vec_mul(vec_load(sum), factor));
  for (int64_t c = 0; c < block->acc_stride; c += VEC_LANES) vec_store(acc + c, vec_mul(vec_load(acc + c), factor));
  RESCALE_PENDING(p, pending, factor);
  return step;
}

/* x = the first `vecs` vectors of the row's scores s of a panel, which are in memory, relative to its reference, and -inf
 * beyond. Masks the keys [key, key + PANEL_KEYS) that it may not see (whatever stood there, NaN included, becomes -inf), and
 * moves the reference where needed. p: its P of `pending` keys before `key`. */
static inline void relative_row(const row_block *block, int64_t row, int64_t key, const float *s, float *p, int64_t pending,
                                int64_t vecs, vec x[TILE_VECS]) {
  vec best = vec_set1(-INFINITY);
  for (int v = 0; v < TILE_VECS; v++) {
    x[v] = vec_set1(-INFINITY);
    if (v >= vecs) continue;
    x[v] = vec_load(s + v * VEC_LANES);
    if (block->adjusted && !block->shifted)
      x[v] = vec_sub(adjust_scores(block, row, key + v * VEC_LANES, x[v]), vec_set1(reference_of(block, row)));
    x[v] = select_allowed(block->range[row], key + v * VEC_LANES, x[v]);
    best = vec_max(x[v], best);
  }
  const float largest = vec_reduce_max(best);
  if (largest > (block->row_max[row] == -INFINITY ? -INFINITY : RESCALE_AT)) {
    const vec step = vec_set1(rescale_row(block, row, REFERENCE_ABOVE(largest), p, pending));
    for (int v = 0; v < TILE_VECS; v++) x[v] = vec_sub(x[v], step);
  }
}

/* Softmax of a panel whose scores are in memory: P, in their place, and row_sum for the rows of the tile. P of `pending`
 * keys stands before them. Only the panel's first `vecs` vectors hold scores. */
static inline void softmax_panel(const row_block *block, int64_t tile_row, int64_t key, float *score, int64_t pending,
                                 int64_t vecs) {
  assert(vecs >= 1 && vecs <= TILE_VECS && key % VEC_LANES == 0);
  for (int64_t i = 0; i < TILE_ROWS; i++) {
    float *s = score + i * block->score_stride, *sum = block->row_sum + (tile_row + i) * VEC_LANES;
    vec p[TILE_VECS];
    relative_row(block, tile_row + i, key, s, s - pending, pending, vecs, p);
    vec_store(sum, exponentials(p, s, vec_load(sum), vecs));
  }
}

#endif
