/* SPDX-License-Identifier: MIT */
/* The vectors of the avx2 tier: 8 floats in a register, 16 registers. The names are those of vec_avx512.h. */
#ifndef ATTN_VEC_AVX2_H
#define ATTN_VEC_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef __m256 vec;

/* 6 rows x 2 vectors keep 12 sums, 2 registers for the streamed operand and 1-2 for broadcasts: all 16. */
enum { VEC_LANES = 8, TILE_ROWS = 6, TILE_VECS = 2 };

static inline vec vec_zero(void) { return _mm256_setzero_ps(); }
static inline vec vec_set1(float x) { return _mm256_set1_ps(x); }
static inline vec vec_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void vec_store(float *p, vec x) { _mm256_storeu_ps(p, x); }
static inline vec vec_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline vec vec_mul(vec a, vec b) { return _mm256_mul_ps(a, b); }
static inline vec vec_add(vec a, vec b) { return _mm256_add_ps(a, b); }
static inline vec vec_sub(vec a, vec b) { return _mm256_sub_ps(a, b); }
static inline vec vec_div(vec a, vec b) { return _mm256_div_ps(a, b); }
static inline vec vec_abs(vec x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
static inline vec vec_lane_numbers(void) { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }
/* b where a is NaN; b never is. */
static inline vec vec_max(vec a, vec b) { return _mm256_max_ps(a, b); }
/* x between low and high; NaN stays NaN. */
static inline vec vec_clamp(vec x, vec low, vec high) { return _mm256_min_ps(high, _mm256_max_ps(low, x)); }

/* One factor for all lanes, and its multiply-add. */
typedef vec vec_factor;
static inline vec_factor vec_factor_at(const float *p) { return vec_set1(*p); }
static inline vec vec_fma_factor(vec_factor a, vec b, vec c) { return vec_fma(a, b, c); }

/* x, but in a register: gcc would load it from memory for each of its uses. */
static inline vec vec_in_register(vec x) {
  __asm__("" : "+x"(x));
  return x;
}

static inline float vec_reduce_max(vec x) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

/* Always the same tree: halves, quarters, ... */
static inline float vec_reduce_add(vec x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static inline __m256i lane_numbers(void) { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
static inline __m256i first_lanes(int64_t n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane_numbers()); }

#define VEC_LOADS_FLOAT_PARTS

/* The first n lanes, 0 <= n <= 8; nothing is read or written beyond them. Loaded lanes beyond n are 0. */
static inline vec vec_load_first(const float *p, int64_t n) { return _mm256_maskload_ps(p, first_lanes(n)); }
static inline void vec_store_first(float *p, vec x, int64_t n) { _mm256_maskstore_ps(p, first_lanes(n), x); }

/* 8 float16 or bfloat16 values as floats. */
static inline vec vec_load_f16(const uint16_t *p) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
static inline vec vec_load_bf16(const uint16_t *p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
/* Two vectors whose values alternate. */
#define VEC_BF16_PAIRS
static inline void vec_load_bf16_pairs(const uint16_t *p, vec x[2]) {
  const __m256i pairs = _mm256_loadu_si256((const __m256i *)(const void *)p);
  x[0] = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
  x[1] = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000)));
}

/* 8 values of 8 bits as floats, by the float16 that holds each. e5m2 is its upper half. e4m3 has one bit of exponent less,
 * and its bias is smaller by 8; its NaN is the number above its largest one. */
static inline vec vec_load_e5m2(const uint8_t *p) {
  return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)p)), 8));
}
static inline vec vec_load_e4m3(const uint8_t *p) {
  const __m128i nan = _mm_set1_epi16(0x3f80), wide = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)p));
  const __m128i halves = _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16((short)0xbf80));
  const __m128i is_nan = _mm_cmpeq_epi16(_mm_and_si128(halves, nan), nan);
  return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(halves, is_nan)), _mm256_set1_ps(0x1p8f));
}

/* 8 integers of 8 bits as floats. */
static inline vec vec_load_i8(const int8_t *p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

/* The float16 at p, which need not be aligned, in all lanes. */
static inline vec vec_spread_f16(const uint8_t *p) {
  uint16_t half;
  memcpy(&half, p, sizeof half);
  return _mm256_cvtph_ps(_mm_set1_epi16((short)half));
}

/* scale * (n - 8), where n is 4 bits of each of 8 bytes from bit `shift` on, 0 or 4. Products and difference are exact. */
static inline vec vec_load_nibbles(const uint8_t *p, int shift, vec scale) {
  const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
  const __m256i n = _mm256_and_si256(_mm256_srli_epi32(bytes, shift), _mm256_set1_epi32(15));
  return _mm256_fmsub_ps(scale, _mm256_cvtepi32_ps(n), vec_mul(scale, vec_set1(8)));
}

/* 8 floats as float16 values, rounded to nearest. */
static inline void vec_store_f16(uint16_t *p, vec x) {
  _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* Integers of 64 bits and their halves: kernels/common/memory/dropout.h. */
typedef uint64_t vec_longs __attribute__((vector_size(VEC_LANES * sizeof(float))));
static inline vec_longs vec_multiply_halves(vec_longs x, uint32_t factor) {
  return (vec_longs)_mm256_mul_epu32((__m256i)x, _mm256_set1_epi64x(factor));
}
static inline vec_longs vec_upper_halves(vec_longs x) { /* shifts would take the ports that products take */
  return (vec_longs)_mm256_shuffle_epi32((__m256i)x, 0xf5);
}
static inline vec_longs vec_join_halves(vec_longs lower, vec_longs upper) {
  return (vec_longs)_mm256_blend_epi32((__m256i)lower, _mm256_slli_epi64((__m256i)upper, 32), 0xaa);
}

/* x where begin <= lane < end, -inf elsewhere; x[0] is in lane `lane`. */
static inline vec vec_select_range(vec x, int64_t lane, int64_t begin, int64_t end) {
  const __m256i lanes = _mm256_add_epi32(_mm256_set1_epi32((int)lane), lane_numbers());
  __m256i keep = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)end), lanes);
  if (!__builtin_constant_p(begin <= lane) || begin > lane)
    keep = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)begin), lanes), keep);
  return _mm256_blendv_ps(_mm256_set1_ps(-__builtin_inff()), x, _mm256_castsi256_ps(keep));
}

/* x where the byte is not 0, -inf elsewhere; of the first n lanes, -inf beyond. Reads n bytes. */
static inline vec vec_select_bytes(vec x, const uint8_t *bytes, int64_t n) {
  uint64_t loaded = 0;
  memcpy(&loaded, bytes, (size_t)n);
  const __m256i wide = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)loaded));
  const __m256 zero = _mm256_castsi256_ps(_mm256_cmpeq_epi32(wide, _mm256_setzero_si256()));
  return _mm256_blendv_ps(x, _mm256_set1_ps(-__builtin_inff()), zero);
}

/* x, but -inf wherever bias is -inf, even if x is NaN. */
static inline vec vec_unless_masked(vec x, vec bias) {
  const vec lowest = _mm256_set1_ps(-__builtin_inff());
  return _mm256_blendv_ps(x, lowest, _mm256_cmp_ps(bias, lowest, _CMP_EQ_OQ));
}

/* x + bias, but -inf wherever bias is -inf, even if x is NaN. */
static inline vec vec_add_bias(vec x, vec bias) {
  const __m256 off = _mm256_cmp_ps(bias, _mm256_set1_ps(-__builtin_inff()), _CMP_EQ_OQ);
  return _mm256_blendv_ps(_mm256_add_ps(x, bias), bias, off);
}

/* x, but 0 wherever p is 0, even if x is NaN. */
static inline vec vec_unless_zero(vec x, vec p) {
  return _mm256_and_ps(x, _mm256_cmp_ps(p, _mm256_setzero_ps(), _CMP_NEQ_UQ));
}

static inline int vec_any_above(vec x, float limit) {
  return _mm256_movemask_ps(_mm256_cmp_ps(x, vec_set1(limit), _CMP_GT_OQ)) != 0;
}
static inline int vec_any_nan(vec x) { return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0; }

/* 2^t for t <= 127; relative error below 1.6e-7 (scripts/make/derive_exp2.py, tests/kernels/exp_every_float.c) down to t =
 * -126; below, an error of at most 2^-126 (the bound's n 2^-126 term), and 0 from -127 on and for -inf; NaN stays NaN. n +
 * 127 = t
 * + 127 rounded to nearest by adding 1.5 2^23 + 127 ("magic number"); its low bits become the exponent of a factor, which is
 * 0 at n = -127. A sum of exponents instead of a product would make numbers of NaNs whose lowest bits are not 0. */
static inline vec vec_exp2(vec t) {
  const vec lowest = vec_set1(-127.0f), magic = vec_set1(0x1.8p23f + 127);
  vec clamped = _mm256_max_ps(lowest, t); /* this order keeps NaN */
  vec shifted = vec_add(clamped, magic);
  vec f = vec_sub(clamped, vec_sub(shifted, magic));
  vec p = vec_fma(f, vec_set1(0x1.5bda58p-10f), vec_set1(0x1.3ce8aep-7f));
  p = vec_fma(p, f, vec_set1(0x1.c6b6d8p-5f));
  p = vec_fma(p, f, vec_set1(0x1.ebf9c2p-3f));
  p = vec_fma(p, f, vec_set1(0x1.62e42ap-1f));
  p = vec_fma(p, f, vec_set1(1.0f));
  return vec_mul(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(shifted), 23)));
}

/* Lane i of the result is the sum of x[i]'s lanes: a tree of additions that transposes on its way. */
static inline __attribute__((always_inline)) vec vec_sum_each(const vec x[8]) {
  vec fours[2];
  for (int i = 0; i < 2; i++) { /* each half: partial sums of x[4i], x[4i + 1], x[4i + 2], x[4i + 3] */
    const vec low = _mm256_hadd_ps(x[4 * i], x[4 * i + 1]), high = _mm256_hadd_ps(x[4 * i + 2], x[4 * i + 3]);
    fours[i] = _mm256_hadd_ps(low, high);
  }
  return _mm256_add_ps(_mm256_permute2f128_ps(fours[0], fours[1], 0x20), _mm256_permute2f128_ps(fours[0], fours[1], 0x31));
}

/* r[i] lane j <-> r[j] lane i. */
static inline __attribute__((always_inline)) void vec_transpose(vec r[8]) {
  vec t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; j++) {
      __m256d low = _mm256_castps_pd(t[i + j]), high = _mm256_castps_pd(t[i + 2 + j]);
      r[i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(low, high));
      r[i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low, high));
    }
  for (int i = 0; i < 4; i++) {
    t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
    t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
  }
  for (int i = 0; i < 8; i++) r[i] = t[i];
}

#endif
