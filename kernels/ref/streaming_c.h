/* SPDX-License-Identifier: MIT */
/* Streaming softmax in plain C: what flash_c and decode_c do with the scores of one key block. */
#ifndef ATTN_REF_STREAMING_C_H
#define ATTN_REF_STREAMING_C_H

#include "tiles_c.h"

/* Rescaling costs a pass over acc, so a row keeps an outdated reference until a block's score exceeds it by more than this,
 * in nats. P stays below exp(5.5) = 245, far from overflow in float32, and acc / row_sum is unchanged. */
static const float RESCALE_AT = 5.5f;

/* Moves row i to a new reference. Tested before any exp, so nothing can overflow. */
static inline void rescale_row(row_block *t, int64_t i, float new_max) {
  const float factor = expf(t->row_max[i] - new_max); /* first block: exp(-inf) = 0 clears nothing but zeros */
  t->row_sum[i] *= factor;
  for (int64_t c = 0; c < t->problem->dim_v; c++) t->acc[i * t->problem->dim_v + c] *= factor;
  t->row_max[i] = new_max;
}

/* P = exp(S - row_max), row_sum += P. */
static inline void softmax_tile(row_block *t, int64_t key) {
  for (int64_t i = 0; i < t->rows; i++) {
    const attn_key_range keys = allowed_in(t, i, key);
    if (keys.begin >= keys.end) continue;
    float *score = t->score + i * t->score_stride + (keys.begin - key);
    const float block_max = largest(score, keys.end - keys.begin, -INFINITY);
    if (block_max > t->row_max[i] + RESCALE_AT) rescale_row(t, i, block_max);
    t->row_sum[i] = exponentials(score, keys.end - keys.begin, t->row_max[i], t->row_sum[i]);
  }
}

#endif
