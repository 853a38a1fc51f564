/* SPDX-License-Identifier: MIT */
/* The vector vocabulary in C, for any CPU: 4 floats side by side, which every baseline has registers for (SSE2, Advanced
 * SIMD), in the vector types of gcc and clang. The words of vec_avx2.h that score_steps_tier.h needs; vec_portable.h adds
 * those of the tile engine, and a tile of its own (VEC_C_TILE_ROWS, VEC_C_TILE_VECS). */
#ifndef ATTN_VEC_C_H
#define ATTN_VEC_C_H

#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "kernels/common/problem/convert.h"
#include "kernels/common/problem/unroll.h"

typedef float vec __attribute__((vector_size(16)));
typedef uint32_t vec_bits __attribute__((vector_size(16)));

#ifndef VEC_C_TILE_ROWS
#define VEC_C_TILE_ROWS 4
#define VEC_C_TILE_VECS 4
#endif
enum { VEC_LANES = 4, TILE_ROWS = VEC_C_TILE_ROWS, TILE_VECS = VEC_C_TILE_VECS };

static inline vec vec_zero(void) { return (vec){0}; }
static inline vec vec_set1(float x) { return (vec){x, x, x, x}; }
static inline vec vec_load(const float *p) {
  vec x;
  memcpy(&x, p, sizeof x);
  return x;
}
static inline void vec_store(float *p, vec x) { memcpy(p, &x, sizeof x); }
static inline vec vec_fma(vec a, vec b, vec c) {
  return a * b + c;
} /* rounds twice: there may be no instruction that fuses */
/* One factor for all lanes, and its multiply-add. */
typedef vec vec_factor;
static inline vec_factor vec_factor_at(const float *p) { return vec_set1(*p); }
static inline vec vec_fma_factor(vec_factor a, vec b, vec c) { return vec_fma(a, b, c); }

static inline vec vec_mul(vec a, vec b) { return a * b; }
static inline vec vec_add(vec a, vec b) { return a + b; }
static inline vec vec_sub(vec a, vec b) { return a - b; }
static inline vec vec_div(vec a, vec b) { return a / b; }
static inline vec vec_lane_numbers(void) { return (vec){0, 1, 2, 3}; }

/* a in lanes whose bits are all set, b where none is. */
static inline vec vec_choose(vec_bits lanes, vec a, vec b) { return (vec)((lanes & (vec_bits)a) | (~lanes & (vec_bits)b)); }

/* a if it is larger, else b. So it is b if a is NaN, and NaN if b is. SSE has an instruction for this, which gcc does not
 * find. */
static inline vec vec_max(vec a, vec b) {
#ifdef __SSE2__
  return _mm_max_ps(a, b);
#else
  return vec_choose((vec_bits)(a > b), a, b);
#endif
}
/* x between low and high; NaN stays NaN. */
static inline vec vec_clamp(vec x, vec low, vec high) {
  const vec raised = vec_max(low, x);
  return vec_choose((vec_bits)(high < raised), high, raised);
}
static inline vec vec_abs(vec x) { return (vec)((vec_bits)x & 0x7fffffffu); }

static inline float vec_reduce_max(vec x) {
  float largest = x[0];
  for (int i = 1; i < VEC_LANES; i++) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

/* Always the same tree: halves, quarters. */
static inline float vec_reduce_add(vec x) { return (x[0] + x[2]) + (x[1] + x[3]); }

/* The first n lanes, 0 <= n <= 4; nothing is read or written beyond them. Loaded lanes beyond n are 0. */
static inline vec vec_load_first(const float *p, int64_t n) {
  vec x = vec_zero();
  memcpy(&x, p, (size_t)n * sizeof *p);
  return x;
}
static inline void vec_store_first(float *p, vec x, int64_t n) { memcpy(p, &x, (size_t)n * sizeof *p); }

/* 4 float16 or bfloat16 values, each in the upper half of an integer. */
static inline vec_bits vec_load_halves(const uint16_t *p) {
#ifdef __SSE2__ /* two instructions instead of gcc's seven */
  return (vec_bits)_mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64((const __m128i *)(const void *)p));
#else
  typedef uint16_t halves __attribute__((vector_size(8)));
  halves x;
  memcpy(&x, p, sizeof x);
  return __builtin_convertvector(x, vec_bits) << 16;
#endif
}
static inline vec vec_load_bf16(const uint16_t *p) { return (vec)vec_load_halves(p); }
/* Exponents grow by 224, so that 31, that of infinity and NaN, becomes float32's highest; a product takes back what is too
 * much. A denormal, m units of 2^-24, is then 2^97 + m 2^87, below all others: it is doubled, and 2^98 comes off. All are
 * exact, and normal numbers, so a caller that flushes denormals does not matter. */
static inline vec vec_load_f16(const uint16_t *p) {
  const vec_bits x = vec_load_halves(p), magnitude = x & 0x7fffffffu;
  const vec large = (vec)((magnitude >> 3) + (224u << 23));
  const vec exact = large - vec_max(vec_set1(0x1p98f) - large, vec_zero());
  return (vec)((vec_bits)(exact * 0x1p-112f) | (x ^ magnitude));
}

/* 4 values of 8 bits. As for float16, exponents grow, and a denormal, m units of the smallest value, is doubled before its
 * own exponent comes off. e4m3 has no infinity, and its NaN is the number above its largest one. */
static inline vec vec_load_e5m2(const uint8_t *p) {
  const uint16_t halves[4] = {(uint16_t)(p[0] << 8), (uint16_t)(p[1] << 8), (uint16_t)(p[2] << 8), (uint16_t)(p[3] << 8)};
  return vec_load_f16(halves);
}
static inline vec vec_load_e4m3(const uint8_t *p) {
  const vec_bits x = {p[0], p[1], p[2], p[3]}, magnitude = x & 0x7fu;
  const vec large = (vec)((magnitude << 20) + (120u << 23));
  const vec exact = large - vec_max(vec_set1(0x1p-6f) - large, vec_zero());
  const vec_bits is_nan = (vec_bits)(magnitude == 0x7fu) & 0x7fc00000u;
  return (vec)((vec_bits)exact | (x & 0x80u) << 24 | is_nan);
}

/* 4 integers of 8 bits as floats. */
static inline vec vec_load_i8(const int8_t *p) { return (vec){(float)p[0], (float)p[1], (float)p[2], (float)p[3]}; }

/* The float16 at p, which need not be aligned, in all lanes. */
static inline vec vec_spread_f16(const uint8_t *p) {
  uint16_t half;
  memcpy(&half, p, sizeof half);
  return vec_load_f16((const uint16_t[4]){half, half, half, half});
}

/* scale * (n - 8), where n is 4 bits of each of 4 bytes from bit `shift` on, 0 or 4. */
static inline vec vec_load_nibbles(const uint8_t *p, int shift, vec scale) {
  typedef int32_t integers __attribute__((vector_size(16)));
  const integers bytes = {p[0], p[1], p[2], p[3]};
  return scale * __builtin_convertvector((bytes >> shift & 15) - 8, vec);
}

/* 4 floats as float16 values, rounded to nearest. */
static inline void vec_store_f16(uint16_t *p, vec x) {
  for (int i = 0; i < VEC_LANES; i++) p[i] = attn_f16_of_f32(x[i]);
}

/* x where begin <= lane < end, -inf elsewhere; x[0] is in lane `lane`. */
static inline vec vec_select_range(vec x, int64_t lane, int64_t begin, int64_t end) {
  const vec lanes = vec_lane_numbers() + vec_set1((float)lane);
  const vec_bits keep = (vec_bits)(lanes >= vec_set1((float)begin)) & (vec_bits)(lanes < vec_set1((float)end));
  return vec_choose(keep, x, vec_set1(-__builtin_inff()));
}

/* x where the byte is not 0, -inf elsewhere; of the first n lanes, -inf beyond. Reads n bytes. */
static inline vec vec_select_bytes(vec x, const uint8_t *bytes, int64_t n) {
  for (int64_t i = 0; i < VEC_LANES; i++)
    if (i >= n || !bytes[i]) x[i] = -__builtin_inff();
  return x;
}

/* x, but -inf wherever bias is -inf, even if x is NaN. */
static inline vec vec_unless_masked(vec x, vec bias) {
  const vec lowest = vec_set1(-__builtin_inff());
  return vec_choose((vec_bits)(bias == lowest), lowest, x);
}

/* x + bias, but -inf wherever bias is -inf, even if x is NaN. */
static inline vec vec_add_bias(vec x, vec bias) { return vec_unless_masked(x + bias, bias); }

/* x, but 0 wherever p is 0, even if x is NaN. */
static inline vec vec_unless_zero(vec x, vec p) { return vec_choose((vec_bits)(p == vec_zero()), vec_zero(), x); }

/* Integers of 64 bits and their halves: kernels/common/memory/dropout.h. */
typedef uint64_t vec_longs __attribute__((vector_size(VEC_LANES * sizeof(float))));
static inline vec_longs vec_multiply_halves(vec_longs x, uint32_t factor) {
  for (int n = 0; n < VEC_LANES / 2; n++) x[n] = (uint64_t)(uint32_t)x[n] * factor;
  return x;
}
static inline vec_longs vec_upper_halves(vec_longs x) { return x >> 32; }
static inline vec_longs vec_join_halves(vec_longs lower, vec_longs upper) { return (lower & UINT32_MAX) | upper << 32; }

static inline int any_lane(vec_bits lanes) {
#ifdef __SSE2__
  return _mm_movemask_ps((vec)lanes) != 0;
#else
  return (lanes[0] | lanes[1] | lanes[2] | lanes[3]) != 0;
#endif
}
static inline int vec_any_above(vec x, float limit) { return any_lane((vec_bits)(x > vec_set1(limit))); }
static inline int vec_any_nan(vec x) { return any_lane((vec_bits)(x != x)); }

/* vec_avx2.h's polynomial, whose sums round twice here: relative error below 1.9e-7 (tests/kernels/exp_every_float.c). */
static inline vec vec_exp2(vec t) {
  const vec lowest = vec_set1(-127.0f), magic = vec_set1(0x1.8p23f + 127);
  const vec clamped = vec_max(lowest, t); /* this order keeps NaN */
  const vec shifted = clamped + magic, f = clamped - (shifted - magic);
  vec p = f * 0x1.5bda58p-10f + 0x1.3ce8aep-7f;
  p = p * f + 0x1.c6b6d8p-5f;
  p = p * f + 0x1.ebf9c2p-3f;
  p = p * f + 0x1.62e42ap-1f;
  p = p * f + 1.0f;
  return p * (vec)((vec_bits)shifted << 23);
}

/* Elements i, j, k, l of the 8 of a and b. */
#ifdef __clang__
#define SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, (vec_bits){i, j, k, l})
#endif

/* r[i] lane j <-> r[j] lane i. */
static ALWAYS_INLINE void vec_transpose(vec r[4]) {
  const vec low[2] = {SHUFFLE(r[0], r[1], 0, 4, 1, 5), SHUFFLE(r[2], r[3], 0, 4, 1, 5)};
  const vec high[2] = {SHUFFLE(r[0], r[1], 2, 6, 3, 7), SHUFFLE(r[2], r[3], 2, 6, 3, 7)};
  r[0] = SHUFFLE(low[0], low[1], 0, 1, 4, 5);
  r[1] = SHUFFLE(low[0], low[1], 2, 3, 6, 7);
  r[2] = SHUFFLE(high[0], high[1], 0, 1, 4, 5);
  r[3] = SHUFFLE(high[0], high[1], 2, 3, 6, 7);
}

/* Lane i of the result is the sum of x[i]'s lanes. */
static ALWAYS_INLINE vec vec_sum_each(const vec x[4]) {
  vec r[4] = {x[0], x[1], x[2], x[3]};
  vec_transpose(r);
  return (r[0] + r[2]) + (r[1] + r[3]);
}

#endif
