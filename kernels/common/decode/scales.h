/* SPDX-License-Identifier: MIT */
/* Factors of the keys and values of a block. Scores take the factors of K, and P those of V once it is summed up: each
 * element of K and V is used as it is stored. Parameters: those of few_rows.h. */
#ifndef ATTN_COMMON_DECODE_SCALES_H
#define ATTN_COMMON_DECODE_SCALES_H

#include "kernels/common/tiles/streaming_softmax.h"

#ifndef DECODE_PRODUCTS
#include "few_rows.h"
#endif

typedef struct block_scales {
  const float *k, *v; /* where the factors of the block stand, or copies of them */
  float k_copy[DECODE_KEYS], v_copy[DECODE_KEYS];
} block_scales;

static NO_INLINE void copy_scales(const row_block *block, int64_t first, int64_t begin, int64_t end, block_scales *scales) {
  for (int64_t key = begin, next; key < end; key = next) {
    const attn_key_scales of = attn_key_scales_at(block->problem, block->args, block->seq, block->head, key);
    next = min64(key + attn_run_keys(block->problem, block->seq, key), end);
    for (int64_t j = key; j < next; j++) {
      scales->k_copy[j - first] = of.k[(j - key) * of.k_step];
      scales->v_copy[j - first] = of.v[(j - key) * of.v_step];
    }
  }
  scales->k = scales->k_copy;
  scales->v = scales->v_copy;
}

/* Finds those of the keys [begin, end), in the block that begins with key `first`. */
static ALWAYS_INLINE void find_scales(const row_block *block, int64_t first, int64_t begin, int64_t end,
                                      block_scales *scales) {
  const attn_key_scales of = attn_key_scales_at(block->problem, block->args, block->seq, block->head, begin);
  const bool whole = begin == first && end - begin == DECODE_KEYS && of.k_step == 1 && of.v_step == 1;
  if (!whole || attn_run_keys(block->problem, block->seq, begin) < DECODE_KEYS) {
    copy_scales(block, first, begin, end, scales);
    return;
  }
  scales->k = of.k;
  scales->v = of.v;
}

/* Scores or P of some keys of a block. P = 0 stays so: the row may not see the key, whose factor may be anything. */
static NO_INLINE void scale_row(float *row, const float *scale, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; j++) row[j] = row[j] == 0 ? 0 : row[j] * scale[j];
}

/* Those of all keys of a block, which the row sees. */
static ALWAYS_INLINE void scale_whole_row(float *row, const float *scale) {
  for (int j = 0; j < DECODE_KEYS; j += VEC_LANES) vec_store(row + j, vec_mul(vec_load(row + j), vec_load(scale + j)));
}

#endif
