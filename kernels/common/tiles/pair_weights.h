/* SPDX-License-Identifier: MIT */
/* P for products of pairs of bf16 values. Parameters: those of register_tile.h, and
 *   vec narrow(vec low, vec high)  floats to the nearest bf16 values: lanes of `low`, then of `high` */
#ifndef ATTN_COMMON_PAIR_WEIGHTS_H
#define ATTN_COMMON_PAIR_WEIGHTS_H

#include "kernels/common/problem/arithmetic.h"
#include "register_tile.h"

/* A row's P of `keys` keys become pairs, in place. Reads whole vectors. */
static inline void pair_weights(float *p, int64_t keys) {
  for (int64_t j = 0; j < keys; j += 2 * VEC_LANES) {
    const vec low = vec_load(p + j), high = j + VEC_LANES < keys ? vec_load(p + j + VEC_LANES) : vec_zero();
    vec_store(p + j / 2, narrow(low, high));
  }
}

#endif
