/* SPDX-License-Identifier: MIT */
/* The vectors of the avx512 tier: 16 floats in a register, 32 registers. kernels/common/ uses these names; every tier
 * defines the same ones. */
#ifndef ATTN_VEC_AVX512_H
#define ATTN_VEC_AVX512_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef __m512 vec;

/* A product tile of 6 rows x 4 vectors keeps 24 sums in registers, with 4 for the streamed operand and 1-4 for broadcasts:
 * the largest shape that fits 32. Each broadcast is used 4 times, so loads (10 per 24 FMA) stay below FMA throughput. A
 * tier with products of its own sets another number of rows. */
#ifndef AVX512_TILE_ROWS
#define AVX512_TILE_ROWS 6
#endif
enum { VEC_LANES = 16, TILE_ROWS = AVX512_TILE_ROWS, TILE_VECS = 4 };

static inline vec vec_zero(void) { return _mm512_setzero_ps(); }
static inline vec vec_set1(float x) { return _mm512_set1_ps(x); }
static inline vec vec_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vec_store(float *p, vec x) { _mm512_storeu_ps(p, x); }
static inline vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline vec vec_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
static inline vec vec_add(vec a, vec b) { return _mm512_add_ps(a, b); }
static inline vec vec_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
static inline vec vec_div(vec a, vec b) { return _mm512_div_ps(a, b); }
static inline vec vec_abs(vec x) { return _mm512_abs_ps(x); }
static inline vec vec_lane_numbers(void) { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
/* b where a is NaN; b never is. */
static inline vec vec_max(vec a, vec b) { return _mm512_max_ps(a, b); }
/* x between low and high; NaN stays NaN. */
static inline vec vec_clamp(vec x, vec low, vec high) { return _mm512_min_ps(high, _mm512_max_ps(low, x)); }

/* One factor for all lanes, and its multiply-add. */
typedef vec vec_factor;
static inline vec_factor vec_factor_at(const float *p) { return vec_set1(*p); }
static inline vec vec_fma_factor(vec_factor a, vec b, vec c) { return vec_fma(a, b, c); }

/* x, but in a register: gcc would load it from memory for each of its uses. */
static inline vec vec_in_register(vec x) {
#ifndef ATTN_EMULATE_AVX512 /* whose vectors are pairs, which no register holds */
  __asm__("" : "+v"(x));
#endif
  return x;
}

static inline float vec_reduce_max(vec x) { return _mm512_reduce_max_ps(x); }

/* Always the same tree: halves, quarters, ... */
static inline float vec_reduce_add(vec x) { return _mm512_reduce_add_ps(x); }

static inline __mmask16 first_lanes(int64_t n) { return (__mmask16)((1u << n) - 1); }

/* The first n lanes, 0 <= n <= 16; nothing is read or written beyond them. Loaded lanes beyond n are 0. */
static inline vec vec_load_first(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
static inline void vec_store_first(float *p, vec x, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), x); }

/* 16 float16 or bfloat16 values as floats. */
static inline vec vec_load_f16(const uint16_t *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
static inline vec vec_load_bf16(const uint16_t *p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
/* Two vectors whose values alternate. */
#define VEC_BF16_PAIRS
static inline void vec_load_bf16_pairs(const uint16_t *p, vec x[2]) {
  const __m512i pairs = _mm512_loadu_si512(p);
  x[0] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
  x[1] = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
}

/* 16 values of 8 bits as floats, by the float16 that holds each. e5m2 is its upper half. e4m3 has one bit of exponent less,
 * and its bias is smaller by 8; its NaN is the number above its largest one. */
static inline vec floats_of_e5m2(__m128i bytes) {
  return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8));
}
static inline vec floats_of_e4m3(__m128i bytes) {
  const __m256i nan = _mm256_set1_epi16(0x3f80);
  const __m256i halves =
      _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7), _mm256_set1_epi16((short)0xbf80));
  const __m256i is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(halves, nan), nan);
  return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(halves, is_nan)), _mm512_set1_ps(0x1p8f));
}
static inline vec vec_load_e5m2(const uint8_t *p) {
  return floats_of_e5m2(_mm_loadu_si128((const __m128i *)(const void *)p));
}
static inline vec vec_load_e4m3(const uint8_t *p) {
  return floats_of_e4m3(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* 16 integers of 8 bits as floats. */
static inline vec floats_of_i8(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)); }
static inline vec vec_load_i8(const int8_t *p) { return floats_of_i8(_mm_loadu_si128((const __m128i *)(const void *)p)); }

/* The float16 at p, which need not be aligned, in all lanes. */
static inline vec vec_spread_f16(const uint8_t *p) {
  uint16_t half;
  memcpy(&half, p, sizeof half);
  return _mm512_cvtph_ps(_mm256_set1_epi16((short)half));
}

/* scale * (n - 8), where n is 4 bits of each of 16 bytes from bit `shift` on, 0 or 4: a table of all 16 numbers. */
static inline vec nibbles_of(__m128i bytes, int shift, vec scale) {
  const vec table = _mm512_mul_ps(scale, _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7));
  return _mm512_permutexvar_ps(_mm512_srli_epi32(_mm512_cvtepu8_epi32(bytes), (unsigned)shift), table);
}
static inline vec vec_load_nibbles(const uint8_t *p, int shift, vec scale) {
  return nibbles_of(_mm_loadu_si128((const __m128i *)(const void *)p), shift, scale);
}

/* 16 floats as float16 values, rounded to nearest. */
static inline void vec_store_f16(uint16_t *p, vec x) {
  _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* The first n lanes of the loads above, and 0 in the others; nothing is read behind n. */
#define VEC_LOADS_PARTS
static inline vec vec_load_first_f16(const uint16_t *p, int64_t n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}
static inline vec vec_load_first_bf16(const uint16_t *p, int64_t n) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(n), p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
static inline vec vec_load_first_e5m2(const uint8_t *p, int64_t n) {
  return floats_of_e5m2(_mm_maskz_loadu_epi8(first_lanes(n), p));
}
static inline vec vec_load_first_e4m3(const uint8_t *p, int64_t n) {
  return floats_of_e4m3(_mm_maskz_loadu_epi8(first_lanes(n), p));
}
static inline vec vec_load_first_i8(const int8_t *p, int64_t n) {
  return floats_of_i8(_mm_maskz_loadu_epi8(first_lanes(n), p));
}
static inline vec vec_load_first_nibbles(const uint8_t *p, int64_t n, int shift, vec scale) {
  return nibbles_of(_mm_mask_loadu_epi8(_mm_set1_epi8((char)0x88), first_lanes(n), p), shift, scale);
}

/* Integers of 64 bits and their halves: kernels/common/memory/dropout.h. */
typedef uint64_t vec_longs __attribute__((vector_size(VEC_LANES * sizeof(float))));
static inline __attribute__((always_inline)) vec_longs vec_multiply_halves(vec_longs x, uint32_t factor) {
#ifdef ATTN_EMULATED_IMMINTRIN_H /* its vectors are structs, which have no casts */
  for (int n = 0; n < VEC_LANES / 2; n++) x[n] = (uint64_t)(uint32_t)x[n] * factor;
  return x;
#else
  return (vec_longs)_mm512_mul_epu32((__m512i)x, _mm512_set1_epi64(factor));
#endif
}
static inline __attribute__((always_inline)) vec_longs vec_upper_halves(vec_longs x) {
#ifdef ATTN_EMULATED_IMMINTRIN_H
  return x >> 32;
#else /* shifts would take the port that products take */
  return (vec_longs)_mm512_shuffle_epi32((__m512i)x, _MM_PERM_DDBB);
#endif
}
static inline __attribute__((always_inline)) vec_longs vec_join_halves(vec_longs lower, vec_longs upper) {
#ifdef ATTN_EMULATED_IMMINTRIN_H
  return (lower & UINT32_MAX) | upper << 32;
#else
  return (vec_longs)_mm512_mask_shuffle_epi32((__m512i)lower, 0xaaaa, (__m512i)upper, _MM_PERM_CCAA);
#endif
}

/* The first n of 64 bits, 0 <= n <= 64. */
static inline uint64_t first_bits(int64_t n) { return n < 64 ? ((uint64_t)1 << n) - 1 : UINT64_MAX; }

/* x where begin <= lane < end <= 64, -inf elsewhere; x[0] is in lane `lane`. Bits of integer registers cost nothing beside
 * products, comparisons of vectors do. gcc would shift them in mask registers. */
static inline vec vec_select_range(vec x, int64_t lane, int64_t begin, int64_t end) {
  uint64_t keep = first_bits(end) & ~first_bits(begin);
  __asm__("" : "+r"(keep));
  return _mm512_mask_mov_ps(_mm512_set1_ps(-__builtin_inff()), (__mmask16)(keep >> lane), x);
}

/* x where the byte is not 0, -inf elsewhere; of the first n lanes, -inf beyond. Reads n bytes. */
static inline vec vec_select_bytes(vec x, const uint8_t *bytes, int64_t n) {
  const __m128i loaded = _mm_maskz_loadu_epi8(first_lanes(n), bytes);
  return _mm512_mask_mov_ps(_mm512_set1_ps(-__builtin_inff()), _mm_test_epi8_mask(loaded, loaded), x);
}

/* x, but -inf wherever bias is -inf, even if x is NaN. */
static inline vec vec_unless_masked(vec x, vec bias) {
  const vec lowest = _mm512_set1_ps(-__builtin_inff());
  return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(bias, lowest, _CMP_EQ_OQ), lowest);
}

/* x + bias, but -inf wherever bias is -inf, even if x is NaN. */
static inline vec vec_add_bias(vec x, vec bias) {
  const __mmask16 keep = _mm512_cmp_ps_mask(bias, _mm512_set1_ps(-__builtin_inff()), _CMP_NEQ_UQ);
  return _mm512_mask_add_ps(bias, keep, x, bias);
}

/* x, but 0 wherever p is 0, even if x is NaN. */
static inline vec vec_unless_zero(vec x, vec p) {
  return _mm512_mask_mov_ps(_mm512_setzero_ps(), _mm512_cmp_ps_mask(p, _mm512_setzero_ps(), _CMP_NEQ_UQ), x);
}

static inline int vec_any_above(vec x, float limit) { return _mm512_cmp_ps_mask(x, vec_set1(limit), _CMP_GT_OQ) != 0; }
static inline int vec_any_nan(vec x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0; }

/* 2^t for t <= 127; relative error below 1.8e-7 (scripts/make/derive_exp2.py, tests/kernels/exp_every_float.c), 0 for t <
 * -126, where it would be denormal and slow to multiply; NaN stays NaN. f = t - floor(t) in [0, 1), degree-5 minimax in
 * Horner form, scaled by 2^floor(t). */
static inline vec vec_exp2(vec t) {
  vec f = _mm512_reduce_ps(t, 0x09); /* t - floor(t), no exceptions */
  vec p = vec_fma(f, vec_set1(0x1.e96910p-10f), vec_set1(0x1.277c1cp-7f));
  p = vec_fma(p, f, vec_set1(0x1.c91c10p-5f));
  p = vec_fma(p, f, vec_set1(0x1.ebdb6ap-3f));
  p = vec_fma(p, f, vec_set1(0x1.62e4bap-1f));
  p = vec_fma(p, f, vec_set1(1.0f));
  const __mmask16 normal = _mm512_cmp_ps_mask(t, vec_set1(-126.0f), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(normal, p, t);
}

/* Lane i of the result is the sum of x[i]'s lanes: a tree of additions that transposes on its way (45 instructions for 16
 * sums). */
static inline __attribute__((always_inline)) vec vec_sum_each(const vec x[16]) {
  vec pairs[8], fours[4], quarters[2];
  for (int i = 0; i < 8; i++) /* lanes of x[2i] and x[2i + 1] alternate */
    pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]), _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]));
  for (int i = 0; i < 4; i++) { /* each 128-bit quarter: x[4i], x[4i + 1], x[4i + 2], x[4i + 3] */
    const __m512d low = _mm512_castps_pd(pairs[2 * i]), high = _mm512_castps_pd(pairs[2 * i + 1]);
    fours[i] =
        _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)), _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
  }
  for (int i = 0; i < 2; i++) { /* add quarters 0 + 1 and 2 + 3 of each, side by side */
    quarters[i] = _mm512_add_ps(_mm512_shuffle_f32x4(fours[2 * i], fours[2 * i + 1], 0x88),
                                _mm512_shuffle_f32x4(fours[2 * i], fours[2 * i + 1], 0xdd));
  }
  return _mm512_add_ps(_mm512_shuffle_f32x4(quarters[0], quarters[1], 0x88),
                       _mm512_shuffle_f32x4(quarters[0], quarters[1], 0xdd));
}

/* r[i] lane j <-> r[j] lane i: pairs of floats, then of pairs, then of 128-bit quarters (4 x 16 shuffles). */
static inline __attribute__((always_inline)) void vec_transpose(vec r[16]) {
  vec t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; j++) {
      __m512d low = _mm512_castps_pd(t[i + j]), high = _mm512_castps_pd(t[i + 2 + j]);
      r[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
      r[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
    }
  for (int i = 0; i < 4; i++) { /* rows i, i+4, i+8, i+12 hold columns i, 4+i, 8+i, 12+i in their quarters */
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 8] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; i++) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88);
    r[i + 4] = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xdd);
    r[i + 12] = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xdd);
  }
}

/* 16 bytes from each of four rows, which are `stride` bytes apart: by masked broadcasts, which need no shuffle. */
static inline __attribute__((always_inline)) __m512i load_quarters(const void *from, int64_t stride) {
  const char *row = from;
  __m512i r = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(const void *)row));
  r = _mm512_mask_broadcast_i32x4(r, 0x00f0, _mm_loadu_si128((const __m128i *)(const void *)(row + stride)));
  r = _mm512_mask_broadcast_i32x4(r, 0x0f00, _mm_loadu_si128((const __m128i *)(const void *)(row + 2 * stride)));
  return _mm512_mask_broadcast_i32x4(r, 0xf000, _mm_loadu_si128((const __m128i *)(const void *)(row + 3 * stride)));
}

/* r[e] lane i is float e < 4 of row i of 16, `stride` bytes apart. Rows that are 4 apart share a vector, so that transposing
 * 4 x 4 inside its quarters is all that is left: 2 shuffles a vector, where vec_transpose() takes 4. */
#define VEC_LOADS_TRANSPOSED
static inline __attribute__((always_inline)) void vec_load_transposed(const void *from, int64_t stride, vec r[4]) {
  __m512i low[2], high[2];
  for (int i = 0; i < 2; i++) {
    const __m512i even = load_quarters((const char *)from + 2 * i * stride, 4 * stride);
    const __m512i odd = load_quarters((const char *)from + (2 * i + 1) * stride, 4 * stride);
    low[i] = _mm512_unpacklo_epi32(even, odd);
    high[i] = _mm512_unpackhi_epi32(even, odd);
  }
  r[0] = _mm512_castsi512_ps(_mm512_unpacklo_epi64(low[0], low[1]));
  r[1] = _mm512_castsi512_ps(_mm512_unpackhi_epi64(low[0], low[1]));
  r[2] = _mm512_castsi512_ps(_mm512_unpacklo_epi64(high[0], high[1]));
  r[3] = _mm512_castsi512_ps(_mm512_unpackhi_epi64(high[0], high[1]));
}

#endif
