/* SPDX-License-Identifier: MIT */
/* Factors of dropout (philox.h) in vectors: calls of the generator lie side by side. Parameters: those of register_tile.h,
 * and
 *   vec_longs, vec_multiply_halves(x, factor)  vectors of 64-bit integers, and products of their lower halves */
#ifndef ATTN_COMMON_DROPOUT_H
#define ATTN_COMMON_DROPOUT_H

#include <string.h>

#include "kernels/common/problem/philox.h"
#include "kernels/common/problem/unroll.h"

typedef uint32_t vec_words __attribute__((vector_size(VEC_LANES * sizeof(uint32_t))));

/* The words of half as many calls as a vector has lanes, in the lower halves of its integers; the upper halves may hold
 * anything. `call`: the first; each other one is two calls on. */
static ALWAYS_INLINE void philox_every_other(const philox_dropout *d, uint32_t call, uint32_t row, uint32_t stream,
                                             vec_longs words[4]) {
  const vec_longs zero = {0};
  vec_longs x0 = zero + call, x1 = zero + row, x2 = zero + stream, x3 = zero + d->offset;
  uint32_t key0 = d->key[0], key1 = d->key[1];
  UNROLL
  for (int n = 0; n < VEC_LANES / 2; n++) x0[n] += (uint32_t)(2 * n);
  UNROLL
  for (int round = 0; round < 10; round++) {
    const vec_longs a = vec_multiply_halves(x0, PHILOX_A), b = vec_multiply_halves(x2, PHILOX_B);
    x0 = (b >> 32) ^ x1 ^ (zero + key0);
    x1 = b;
    x2 = (a >> 32) ^ x3 ^ (zero + key1);
    x3 = a;
    key0 += PHILOX_KEY_A;
    key1 += PHILOX_KEY_B;
  }
  words[0] = x0, words[1] = x1, words[2] = x2, words[3] = x3;
}

/* Stores factor where the lane of `words` is at or above the threshold, else 0. */
static ALWAYS_INLINE void store_kept(vec_words words, const philox_dropout *d, float *factors) {
  const vec factor = vec_set1(d->factor);
  vec_words bits;
  memcpy(&bits, &factor, sizeof bits);
  bits &= (vec_words)(words >= d->threshold);
  memcpy(factors, &bits, sizeof bits);
}

/* VEC_LANES calls from `call` on: their factors are 8 vectors, PHILOX_CALLS floats apart. */
static ALWAYS_INLINE void philox_lanes(const philox_dropout *d, uint32_t call, uint32_t row, uint32_t stream,
                                       float *factors) {
  const vec_longs lower = (vec_longs){0} + 0xffffffffu;
  vec_longs even[4], odd[4];
  philox_every_other(d, call, row, stream, even);
  philox_every_other(d, call + 1, row, stream, odd);
  UNROLL
  for (int w = 0; w < 4; w++) {
    const vec_words words = (vec_words)((even[w] & lower) | odd[w] << 32);
    store_kept(words & 0xffffu, d, factors + (2 * w) * PHILOX_CALLS);
    store_kept(words >> 16, d, factors + (2 * w + 1) * PHILOX_CALLS);
  }
}

/* The factors of elements PHILOX_GROUP group .. of a row: 0 or d->factor. */
static NO_INLINE void philox_factors(const philox_dropout *d, uint32_t stream, uint32_t row, int64_t group,
                                     float factors[PHILOX_GROUP]) {
  for (int n = 0; n < PHILOX_CALLS; n += VEC_LANES)
    philox_lanes(d, (uint32_t)(group * PHILOX_CALLS) + (uint32_t)n, row, stream, factors + n);
}

#endif
