/* SPDX-License-Identifier: MIT */
/* Dropout by a counter (Salmon et al. 2011, https://doi.org/10.1145/2063384.2063405: Philox 4x32-10), so that an element is
 * dropped or kept by its place alone: in every kernel and thread, and again in the gradients.
 *
 * Elements of a row go in groups of PHILOX_GROUP, 16 calls of the generator each. Element j of a row, with r = j / 16 % 8,
 * has the half r % 2 (0 = lower) of word r / 2 of the call with
 *
 *     counter = {16 (j / 128) + j % 16, row, stream, lower half of offset},  key = {lower half of seed, upper half of seed ^
 *     upper half of offset}
 *
 * Neighbours are results of neighbouring calls, as vectors compute them (dropout.h). An element is kept
 * if its 16 bits are at or above round(65536 p), and then multiplied by 65536 / (65536 - that). */
#ifndef ATTN_COMMON_PHILOX_H
#define ATTN_COMMON_PHILOX_H

#include <stdint.h>

enum { PHILOX_CALLS = 16, PHILOX_GROUP = 8 * PHILOX_CALLS, PHILOX_ROUNDS = 10 };

#define PHILOX_A     0xD2511F53u
#define PHILOX_B     0xCD9E8D57u
#define PHILOX_KEY_A 0x9E3779B9u
#define PHILOX_KEY_B 0xBB67AE85u

typedef struct philox_dropout {
  uint64_t keys[PHILOX_ROUNDS][2]; /* one pair a round, as vectors of 64-bit integers want them: 32 bits each */
  uint32_t offset, threshold;
  float factor; /* kept elements are multiplied by it */
} philox_dropout;

/* For a probability in [0, 1): at most 65535 / 65536 counts. */
static inline philox_dropout philox_dropout_of(float p, uint64_t seed, uint64_t offset) {
  const float scaled = p * 65536.0f + 0.5f;
  const uint32_t threshold = scaled < 65535.0f ? (uint32_t)scaled : 65535u;
  const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32) ^ (uint32_t)(offset >> 32)};
  philox_dropout d = {.offset = (uint32_t)offset, .threshold = threshold, .factor = 65536.0f / (float)(65536u - threshold)};
  for (uint32_t round = 0; round < PHILOX_ROUNDS; round++) {
    d.keys[round][0] = key[0] + round * PHILOX_KEY_A;
    d.keys[round][1] = key[1] + round * PHILOX_KEY_B;
  }
  return d;
}

/* The four words of the call with counter {call, row, stream, offset}. */
static inline void philox_call(const philox_dropout *d, uint32_t call, uint32_t row, uint32_t stream, uint32_t words[4]) {
  uint32_t x[4] = {call, row, stream, d->offset};
  for (int round = 0; round < PHILOX_ROUNDS; round++) {
    const uint64_t a = (uint64_t)x[0] * PHILOX_A, b = (uint64_t)x[2] * PHILOX_B;
    x[0] = (uint32_t)(b >> 32 ^ d->keys[round][0]) ^ x[1];
    x[1] = (uint32_t)b;
    x[2] = (uint32_t)(a >> 32 ^ d->keys[round][1]) ^ x[3];
    x[3] = (uint32_t)a;
  }
  for (int w = 0; w < 4; w++) words[w] = x[w];
}

/* The factor of one element. */
static inline float philox_factor(const philox_dropout *d, uint32_t stream, uint32_t row, int64_t j) {
  const int64_t r = j / PHILOX_CALLS % 8;
  uint32_t words[4];
  philox_call(d, (uint32_t)(j / PHILOX_GROUP * PHILOX_CALLS + j % PHILOX_CALLS), row, stream, words);
  return (words[r / 2] >> (r % 2 ? 16 : 0) & 0xffffu) >= d->threshold ? d->factor : 0.0f;
}

#endif
