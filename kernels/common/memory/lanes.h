/* SPDX-License-Identifier: MIT */
/* Vectors from and to memory of any type: no operation is fused, so that all tiers give the same bits.
 *
 * Parameters: vec, the vec_ functions and VEC_LANES of vec_<isa>.h. */
#ifndef ATTN_COMMON_LANES_H
#define ATTN_COMMON_LANES_H

#include <stdint.h>
#include <string.h>

#include "kernels/common/problem/convert.h"
#include "kernels/common/problem/unroll.h"

typedef float lane_floats __attribute__((vector_size(VEC_LANES * 4)));
typedef uint32_t lane_bits __attribute__((vector_size(VEC_LANES * 4)));
typedef uint16_t lane_halves __attribute__((vector_size(VEC_LANES * 2)));
typedef uint8_t lane_bytes __attribute__((vector_size(VEC_LANES)));

/* VEC_LANES elements from `at` on, which lie side by side. */
static ALWAYS_INLINE vec load_lanes(const void *data, int64_t at, const attn_dtype dtype) {
  if (dtype == ATTN_F32) return vec_load((const float *)data + at);
  return dtype == ATTN_F16 ? vec_load_f16((const uint16_t *)data + at) : vec_load_bf16((const uint16_t *)data + at);
}

/* Like attn_f8_of_f32. Values below the normal ones are rounded by an addition, in whose result their unit is the last bit.
 */
static ALWAYS_INLINE void store_bytes(uint8_t *to, vec x, const int fraction, const int bias, const uint32_t largest,
                                      const uint32_t nan) {
  const uint32_t drops = 23u - (uint32_t)fraction, rebias = (127u - (uint32_t)bias) << 23;
  const uint32_t unit = ((uint32_t)(128 - bias) + drops) << 23; /* 2^23 of the smallest values */
  const vec shifted = vec_add(vec_abs(x), vec_set1(attn_f32_of_bits(unit)));
  lane_bits bits, small;
  memcpy(&bits, &x, sizeof bits);
  memcpy(&small, &shifted, sizeof small);
  const lane_bits magnitude = bits & 0x7fffffffu, sign = bits >> 24 & 0x80u;
  const lane_bits large = (magnitude + ((1u << (drops - 1)) - 1 - rebias) + (magnitude >> drops & 1u)) >> drops;
  const lane_bits is_small = (lane_bits)(magnitude < (uint32_t)(128 - bias) << 23);
  const lane_bits is_largest = (lane_bits)(magnitude >= (largest << drops) + rebias);
  const lane_bits is_nan = (lane_bits)(magnitude > 0x7f800000u);
  lane_bits code = (is_small & (small - unit)) | (~is_small & large);
  code = (is_largest & largest) | (~is_largest & code);
  code = (is_nan & nan) | (~is_nan & code);
  const lane_bytes bytes = __builtin_convertvector(code | sign, lane_bytes);
  memcpy(to, &bytes, sizeof bytes);
}

/* Like attn_i8_of_f32: beside 1.5 * 2^23 the unit is the last bit. */
static ALWAYS_INLINE void store_integers(int8_t *to, vec x) {
  const vec shifted = vec_add(vec_clamp(x, vec_set1(-128.0f), vec_set1(127.0f)), vec_set1(0x1.8p23f));
  lane_bits bits, code;
  memcpy(&bits, &x, sizeof bits);
  memcpy(&code, &shifted, sizeof code);
  const lane_bits is_nan = (lane_bits)((bits & 0x7fffffffu) > 0x7f800000u);
  const lane_bytes bytes = __builtin_convertvector(~is_nan & code, lane_bytes);
  memcpy(to, &bytes, sizeof bytes);
}

/* Like attn_bf16_of_f32 for numbers; what becomes of NaN does not matter. */
static ALWAYS_INLINE void store_numbers_bf16(uint16_t *to, vec x) {
  lane_bits bits;
  memcpy(&bits, &x, sizeof bits);
  const lane_halves halves = __builtin_convertvector((bits + (0x7fffu + (bits >> 16 & 1u))) >> 16, lane_halves);
  memcpy(to, &halves, sizeof halves);
}

static ALWAYS_INLINE void store_lanes(void *data, int64_t at, const attn_dtype dtype, vec x) {
  if (dtype == ATTN_F32) {
    vec_store((float *)data + at, x);
  } else if (dtype == ATTN_F16) {
    vec_store_f16((uint16_t *)data + at, x);
  } else if (dtype == ATTN_F8_E4M3) {
    store_bytes((uint8_t *)data + at, x, ATTN_E4M3_FORMAT);
  } else if (dtype == ATTN_F8_E5M2) {
    store_bytes((uint8_t *)data + at, x, ATTN_E5M2_FORMAT);
  } else if (dtype == ATTN_I8) {
    store_integers((int8_t *)data + at, x);
  } else { /* like attn_bf16_of_f32 */
    lane_floats floats;
    lane_bits bits;
    memcpy(&floats, &x, sizeof floats);
    memcpy(&bits, &x, sizeof bits);
    const lane_bits is_nan = (lane_bits)(floats != floats), quiet = bits >> 16 | 0x0040u;
    const lane_bits rounded = (bits + (0x7fffu + (bits >> 16 & 1u))) >> 16;
    const lane_halves halves = __builtin_convertvector((is_nan & quiet) | (~is_nan & rounded), lane_halves);
    memcpy((uint16_t *)data + at, &halves, sizeof halves);
  }
}

#endif
