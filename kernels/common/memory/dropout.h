/* SPDX-License-Identifier: MIT */
/* Factors of dropout (philox.h) in vectors: calls of the generator lie side by side. Parameters: those of register_tile.h,
 * and
 *   vec_longs                        vectors of 64-bit integers
 *   vec_multiply_halves(x, factor)   products of their lower halves
 *   vec_upper_halves(x)              their upper halves in the lower ones; anything in the upper
 *   vec_join_halves(lower, upper)    the lower halves of two vectors, one in the upper halves of the other */
#ifndef ATTN_COMMON_DROPOUT_H
#define ATTN_COMMON_DROPOUT_H

#include <string.h>

#include "kernels/common/problem/philox.h"
#include "kernels/common/problem/unroll.h"

typedef uint32_t vec_words __attribute__((vector_size(VEC_LANES * sizeof(uint32_t))));

/* The words of VEC_LANES calls of one row, the even ones and the odd ones, in the lower halves; the upper halves may hold
 * anything. All calls have the same b in round 0 and the same a in round 1. Both vectors go side by side, because a round
 * waits for the one before. */
static ALWAYS_INLINE void philox_words(const philox_dropout *d, uint32_t call, uint32_t row, uint32_t stream,
                                       vec_longs words[4][2]) {
  static const uint64_t numbers[] = {0, 2, 4, 6, 8, 10, 12, 14};
  const vec_longs zero = {0};
  const uint64_t b0 = (uint64_t)stream * PHILOX_B;
  const uint64_t a1 = (uint64_t)((uint32_t)(b0 >> 32 ^ d->keys[0][0]) ^ row) * PHILOX_A;
  vec_longs calls, x[4][2];
  memcpy(&calls, numbers, sizeof calls);
  UNROLL
  for (int odd = 0; odd < 2; odd++) {
    const vec_longs a0 = vec_multiply_halves(calls + (call + (uint32_t)odd), PHILOX_A);
    const vec_longs b1 = vec_multiply_halves(vec_upper_halves(a0) ^ (zero + (d->keys[0][1] ^ d->offset)), PHILOX_B);
    x[0][odd] = vec_upper_halves(b1) ^ (zero + (b0 ^ d->keys[1][0])), x[1][odd] = b1;
    x[2][odd] = a0 ^ (zero + (a1 >> 32 ^ d->keys[1][1])), x[3][odd] = zero + a1;
  }
  UNROLL
  for (int round = 2; round < PHILOX_ROUNDS; round++) {
    UNROLL
    for (int odd = 0; odd < 2; odd++) {
      const vec_longs a = vec_multiply_halves(x[0][odd], PHILOX_A), b = vec_multiply_halves(x[2][odd], PHILOX_B);
      x[0][odd] = vec_upper_halves(b) ^ x[1][odd] ^ (zero + d->keys[round][0]), x[1][odd] = b;
      x[2][odd] = vec_upper_halves(a) ^ x[3][odd] ^ (zero + d->keys[round][1]), x[3][odd] = a;
    }
  }
  memcpy(words, x, sizeof x);
}

/* Stores factor where the lane of `words` is at or above the threshold, else 0. */
static ALWAYS_INLINE void store_kept(vec_words words, uint32_t threshold, float kept, float *factors) {
  const vec factor = vec_set1(kept);
  vec_words bits;
  memcpy(&bits, &factor, sizeof bits);
  bits &= (vec_words)(words >= threshold);
  memcpy(factors, &bits, sizeof bits);
}

/* VEC_LANES calls from `call` on: their factors are 8 vectors, PHILOX_CALLS floats apart. */
static ALWAYS_INLINE void philox_lanes(const philox_dropout *d, uint32_t call, uint32_t row, uint32_t stream,
                                       float *factors) {
  const uint32_t threshold = d->threshold << 16; /* the bits of the lower half do not decide about the upper one */
  vec_longs words[4][2];
  philox_words(d, call, row, stream, words);
  UNROLL
  for (int w = 0; w < 4; w++) {
    const vec_words word = (vec_words)vec_join_halves(words[w][0], words[w][1]);
    store_kept(word << 16, threshold, d->factor, factors + (2 * w) * PHILOX_CALLS);
    store_kept(word, threshold, d->factor, factors + (2 * w + 1) * PHILOX_CALLS);
  }
}

/* The factors of a row's elements [begin, end), 0 or d->factor: whole groups, from the one on that has `begin`. */
static NO_INLINE void philox_factors(const philox_dropout *d, uint32_t stream, uint32_t row, int64_t begin, int64_t end,
                                     float *factors) {
  for (int64_t group = begin / PHILOX_GROUP; group * PHILOX_GROUP < end; group++, factors += PHILOX_GROUP)
    for (int n = 0; n < PHILOX_CALLS; n += VEC_LANES)
      philox_lanes(d, (uint32_t)(group * PHILOX_CALLS + n), row, stream, factors + n);
}

#endif
