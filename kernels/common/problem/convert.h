/* SPDX-License-Identifier: MIT */
/* float32 from and to the 16-bit and 8-bit storage types, in portable C: rounding to nearest, ties to even; overflow goes to
 * infinity in 16 bits and to the largest value in 8; denormals and NaN stay what they are, but NaN becomes 0 as an integer.
 * Integer arithmetic only (but for one exact product), so the results do not depend on the rounding mode or on a caller that
 * flushes denormals to zero. */
#ifndef ATTN_COMMON_CONVERT_H
#define ATTN_COMMON_CONVERT_H

#include <string.h>

#include "attn/attn.h"
#include "dtypes.h"

/* Elements in memory, with all that it takes to load them. */
typedef struct attn_storage {
  const void *data;
  attn_dtype dtype;
} attn_storage;

static inline attn_storage attn_q_storage(const attn_problem *problem, const attn_args *args) {
  return (attn_storage){args->q, problem->dtype_q};
}

static inline attn_storage attn_k_storage(const attn_problem *problem, const attn_args *args) {
  return (attn_storage){args->k, problem->dtype_kv};
}

static inline attn_storage attn_v_storage(const attn_problem *problem, const attn_args *args) {
  return (attn_storage){args->v, problem->dtype_kv};
}

/* The same elements in code for one type. */
static inline attn_storage attn_storage_as(attn_storage elements, attn_dtype dtype) {
  elements.dtype = dtype;
  return elements;
}

static inline uint32_t attn_bits_of_f32(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float attn_f32_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline float attn_f32_of_bf16(uint16_t half) { return attn_f32_of_bits((uint32_t)half << 16); }

static inline uint16_t attn_bf16_of_f32(float value) {
  const uint32_t bits = attn_bits_of_f32(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x0040u); /* quiet NaN, not rounded to infinity */
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline float attn_f32_of_f16(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 0x1fu, mantissa = half & 0x3ffu;
  if (exponent == 0x1f) return attn_f32_of_bits(sign | 0x7f800000u | mantissa << 13);
  if (exponent == 0) return attn_f32_of_bits(sign | attn_bits_of_f32((float)mantissa * 0x1p-24f));
  return attn_f32_of_bits(sign | (exponent + (127 - 15)) << 23 | mantissa << 13);
}

static inline uint16_t attn_f16_of_f32(float value) {
  const uint32_t bits = attn_bits_of_f32(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* >= 65520: half a step beyond the largest f16 */
  if (magnitude >= 0x38800000u) {                                  /* >= 2^-14: normal */
    const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | (rounded - ((127u - 15u) << 23)) >> 13);
  }
  if (magnitude <= 0x33000000u) return (uint16_t)sign; /* <= 2^-25: half the smallest denormal goes to even, 0 */
  const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t shift = 126u - (magnitude >> 23); /* counts the smallest denormals, 2^-24: mantissa >> shift */
  const uint32_t count = mantissa >> shift, rest = mantissa & ((1u << shift) - 1u), tie = 1u << (shift - 1u);
  return (uint16_t)(sign | (count + (rest > tie || (rest == tie && (count & 1u)))));
}

static inline float attn_f32_of_e4m3(uint8_t value) {
  const uint32_t sign = (uint32_t)(value & 0x80u) << 24, magnitude = value & 0x7fu;
  if (magnitude == 0x7f) return attn_f32_of_bits(sign | 0x7fc00000u);
  if (magnitude < 8) return attn_f32_of_bits(sign | attn_bits_of_f32((float)magnitude * 0x1p-9f));
  return attn_f32_of_bits(sign | ((magnitude << 20) + ((127u - 7u) << 23)));
}

static inline float attn_f32_of_e5m2(uint8_t value) { return attn_f32_of_f16((uint16_t)(value << 8)); }

/* Types of 8 bits: bits of fraction, bias of the exponent, and the codes of the largest value and of NaN. */
#define ATTN_E4M3_FORMAT 3, 7, 0x7e, 0x7f
#define ATTN_E5M2_FORMAT 2, 15, 0x7b, 0x7e

static inline uint8_t attn_f8_of_f32(float value, int fraction, int bias, uint32_t largest, uint32_t nan) {
  const uint32_t bits = attn_bits_of_f32(value), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (uint8_t)(sign | nan);
  const uint32_t drops = 23u - (uint32_t)fraction, least = (uint32_t)(128 - bias) << 23; /* least: of normal values */
  if (magnitude >= least) {
    const uint32_t rounded =
        (magnitude + (1u << (drops - 1)) - 1 + (magnitude >> drops & 1u)) - ((127u - (uint32_t)bias) << 23);
    return (uint8_t)(sign | (rounded >> drops < largest ? rounded >> drops : largest));
  }
  const uint32_t exponent = magnitude >> 23, shift = (uint32_t)(128 - bias) + drops - exponent;
  if (shift > 24) return (uint8_t)sign; /* less than half of the smallest value */
  const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u, count = mantissa >> shift;
  const uint32_t rest = mantissa & ((1u << shift) - 1u), tie = 1u << (shift - 1u);
  return (uint8_t)(sign | (count + (rest > tie || (rest == tie && (count & 1u)))));
}

static inline uint8_t attn_e4m3_of_f32(float value) { return attn_f8_of_f32(value, ATTN_E4M3_FORMAT); }
static inline uint8_t attn_e5m2_of_f32(float value) { return attn_f8_of_f32(value, ATTN_E5M2_FORMAT); }

static inline float attn_f32_of_i8(int8_t value) { return (float)value; }

static inline int8_t attn_i8_of_f32(float value) {
  const uint32_t bits = attn_bits_of_f32(value), magnitude = bits & 0x7fffffffu;
  const bool negative = bits >> 31;
  if (magnitude > 0x7f800000u || magnitude < 0x3f000000u) return 0; /* NaN, or less than half */
  if (magnitude >= 0x43000000u) return negative ? -128 : 127;       /* >= 128 */
  const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u, shift = 150u - (magnitude >> 23);
  const uint32_t count = mantissa >> shift, rest = mantissa & ((1u << shift) - 1u), tie = 1u << (shift - 1u);
  const int rounded = (int)(count + (rest > tie || (rest == tie && (count & 1u))));
  return (int8_t)(negative ? -rounded : rounded < 128 ? rounded : 127);
}

static inline float attn_f32_of_f32(float value) { return value; }

/* ---- Elements in blocks ---- */

static inline float attn_scale_of_block(const uint8_t scale[2]) {
  uint16_t half;
  memcpy(&half, scale, sizeof half);
  return attn_f32_of_f16(half);
}

static inline float attn_f32_in_q8_0(const attn_q8_0 *block, int i) {
  return attn_scale_of_block(block->scale) * (float)block->values[i];
}

static inline float attn_f32_in_q4_0(const attn_q4_0 *block, int i) {
  const int half = ATTN_BLOCK_VALUES / 2, pair = block->values[i % half];
  return attn_scale_of_block(block->scale) * (float)((i < half ? pair & 15 : pair >> 4) - 8);
}

/* ---- Elements of any type ---- */

static inline float attn_load_f32(attn_storage from, int64_t index) {
  switch (from.dtype) {
#define BLOCK_DTYPE(constant, name, element, values, ...) \
  case ATTN_##constant:                                   \
    return attn_f32_in_##name((const element *)from.data + (index >> __builtin_ctz(values)), (int)(index & (values - 1)));
#define DTYPE(constant, name, element, ...) \
  case ATTN_##constant:                     \
    return attn_f32_of_##name(((const element *)from.data)[index]);
#include "dtypes.def"
#undef DTYPE
#undef BLOCK_DTYPE
  }
  return 0.0f; /* not reached */
}

/* Not for types that store blocks, which need all values of one: attn_store_row() of quantise.h. */
static inline void attn_store_f32(void *data, attn_dtype dtype, int64_t index, float value) {
  switch (dtype) {
#define BLOCK_DTYPE(...)
#define DTYPE(constant, name, element, ...)                 \
  case ATTN_##constant:                                     \
    ((element *)data)[index] = attn_##name##_of_f32(value); \
    break;
#include "dtypes.def"
#undef DTYPE
#undef BLOCK_DTYPE
    default: break;
  }
}

#endif
