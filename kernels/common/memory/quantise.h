/* SPDX-License-Identifier: MIT */
/* Rows of floats into types of blocks (kernels/blocks.h), to the bit as ggml and its gguf.quants do. Plain loops without
 * branches, which compilers turn into the tier's vectors: largest values are found and clamped as integers, because a NaN is
 * then beyond infinity and every compiler knows the instruction.
 *
 * A block with a value that is not finite is NaN or infinite, and so is one whose factor leaves float16. Its integers are
 * arbitrary, but the same in every tier. */
#ifndef ATTN_COMMON_QUANTISE_H
#define ATTN_COMMON_QUANTISE_H

#include "kernels/common/problem/convert.h"

static inline uint32_t attn_magnitude_bits(float x) { return attn_bits_of_f32(x) & 0x7fffffffu; }

static inline uint32_t attn_largest_bits(const float x[ATTN_BLOCK_VALUES]) {
  uint32_t largest = 0;
  for (int i = 0; i < ATTN_BLOCK_VALUES; i++)
    largest = attn_magnitude_bits(x[i]) > largest ? attn_magnitude_bits(x[i]) : largest;
  return largest;
}

/* The magnitude of x, or `most` if that is less or x is NaN. */
static inline float attn_bounded(float x, float most) {
  const uint32_t bits = attn_magnitude_bits(x), most_bits = attn_bits_of_f32(most);
  return attn_f32_of_bits(bits < most_bits ? bits : most_bits);
}

static inline void attn_store_scale(float scale, uint8_t to[2]) {
  const uint16_t half = attn_f16_of_f32(scale);
  memcpy(to, &half, sizeof half);
}

/* 0 for a block of zeros. */
static inline float attn_inverse_of_scale(float scale) { return scale != 0 ? 1.0f / scale : 0.0f; }

/* The factor is a 127th of the largest magnitude. Halves are rounded away from 0: what is added is the number below 1/2,
 * because 1/2 itself would round up what is just below a half. */
static inline void attn_quantise_q8_0(const float x[ATTN_BLOCK_VALUES], attn_q8_0 *block) {
  const float scale = attn_f32_of_bits(attn_largest_bits(x)) / 127.0f, inverse = attn_inverse_of_scale(scale);
  int8_t n[ATTN_BLOCK_VALUES];
  for (int i = 0; i < ATTN_BLOCK_VALUES; i++) {
    const int size = (int)(attn_bounded(x[i] * inverse, 127.0f) + 0x1.fffffep-2f);
    n[i] = (int8_t)(attn_bits_of_f32(x[i]) >> 31 ? -size : size);
  }
  attn_store_scale(scale, block->scale);
  memcpy(block->values, n, sizeof n);
}

/* The factor makes -8 of the value that is farthest from 0, of two the first one. The products are within 8 and a rounding,
 * so that with 8.5 added only those that are not finite are below 0. The addition must not be fused. */
static inline void attn_quantise_q4_0(const float x[ATTN_BLOCK_VALUES], attn_q4_0 *block) {
  const uint32_t largest = attn_largest_bits(x);
  int first = ATTN_BLOCK_VALUES - 1;
  for (int i = 0; i < ATTN_BLOCK_VALUES; i++) {
    const int here = attn_magnitude_bits(x[i]) == largest ? i : ATTN_BLOCK_VALUES - 1;
    first = here < first ? here : first;
  }
  const float scale = x[first] / -8.0f, inverse = attn_inverse_of_scale(scale);
  int n[ATTN_BLOCK_VALUES];
  uint8_t pairs[ATTN_BLOCK_VALUES / 2];
  for (int i = 0; i < ATTN_BLOCK_VALUES; i++) n[i] = (int)attn_bounded(x[i] * inverse + 8.5f, 15.0f);
  for (int i = 0; i < ATTN_BLOCK_VALUES / 2; i++) pairs[i] = (uint8_t)(n[i] | n[i + ATTN_BLOCK_VALUES / 2] << 4);
  attn_store_scale(scale, block->scale);
  memcpy(block->values, pairs, sizeof pairs);
}

/* Stores a row's `count` values from element `index` on. What they leave of their last block becomes 0. */
static inline void attn_store_row(void *data, attn_dtype dtype, int64_t index, const float *row, int64_t count) {
  switch (dtype) {
#define DTYPE(constant, ...)                                                                      \
  case ATTN_##constant:                                                                           \
    for (int64_t i = 0; i < count; i++) attn_store_f32(data, ATTN_##constant, index + i, row[i]); \
    break;
#define BLOCK_DTYPE(constant, name, element, values, ...)                                     \
  case ATTN_##constant:                                                                       \
    for (int64_t i = 0; i < count; i += (values)) {                                           \
      float last[values] = {0};                                                               \
      const bool whole = count - i >= (values);                                               \
      if (!whole) memcpy(last, row + i, (size_t)(count - i) * sizeof *row);                   \
      attn_quantise_##name(whole ? row + i : last, (element *)data + (index + i) / (values)); \
    }                                                                                         \
    break;
#include "kernels/common/problem/dtypes.def"
#undef DTYPE
#undef BLOCK_DTYPE
  }
}

#endif
