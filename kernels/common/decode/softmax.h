/* SPDX-License-Identifier: MIT */
/* Softmax of a row's scores of a block of keys. Parameters: those of tiles.h. */
#ifndef ATTN_COMMON_DECODE_SOFTMAX_H
#define ATTN_COMMON_DECODE_SOFTMAX_H

#include "kernels/common/tiles/streaming_softmax.h"

/* The scores of row `row`, masked, to P; score[0] belongs to key `first`, the block holds `keys`. Like softmax_panel, for a
 * whole block at a time: one largest score, at most one rescaling. `plain`: nothing is added to scores, no key of the block
 * is masked. */
static void softmax_row(const row_block *block, int64_t row, int64_t first, attn_key_range keys, float *score, bool plain) {
  const attn_key_range range = {max64(block->range[row].begin, keys.begin), min64(block->range[row].end, keys.end)};
  const int64_t from = round_down(keys.begin - first, VEC_LANES), to = keys.end - first;
  vec best = vec_set1(-INFINITY), sum = vec_load(block->row_sum + row * VEC_LANES);
  const bool whole = plain && (keys.begin - first) % VEC_LANES == 0 && (keys.end - first) % VEC_LANES == 0;
  for (int64_t j = from; whole && j < to; j += VEC_LANES) best = vec_max(vec_load(score + j), best);
  for (int64_t j = from; !whole && j < to; j += VEC_LANES) {
    const vec x = select_allowed(range, first + j, adjust_scores(block, row, first + j, vec_load(score + j)));
    vec_store(score + j, x);
    best = vec_max(x, best);
  }
  const float step = vec_reduce_max(best) - reference_of(block, row);
  if (step > (block->row_max[row] == -INFINITY ? -INFINITY : RESCALE_AT)) {
    rescale_row(block, row, step, score, 0);
    sum = vec_load(block->row_sum + row * VEC_LANES);
  }
  const vec reference = vec_set1(reference_of(block, row));
  for (int64_t j = from; j < to; j += VEC_LANES) {
    const vec p = ROUND_P(vec_exp2(vec_sub(vec_load(score + j), reference)));
    vec_store(score + j, p);
    sum = vec_add(sum, p);
  }
  vec_store(block->row_sum + row * VEC_LANES, sum);
}

#endif
