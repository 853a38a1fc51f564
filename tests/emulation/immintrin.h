/* SPDX-License-Identifier: MIT */
/* The AVX-512 instructions that our kernels use, as two 256-bit halves on AVX2, and the tile unit (tiles.h). An emulated
 * build (ATTN_EMULATE_AVX512=ON) puts this folder before the compiler's own headers. So the unchanged sources of the tiers
 * from avx512 on compile, and their results can be checked on a CPU that lacks AVX-512. Times mean nothing.
 *
 * Results have the bits of the real instructions (Intel SDM vol. 2), except for the payload of NaNs. A missing intrinsic is
 * a compile error: add it here. */
#ifndef ATTN_EMULATED_IMMINTRIN_H
#define ATTN_EMULATED_IMMINTRIN_H

#include_next <immintrin.h>

#include <stdint.h>
#include <string.h>

#include "tiles.h"

#pragma GCC diagnostic ignored "-Wpsabi" /* vectors of 64 bytes are no arguments of functions that stay */

#define EMULATED static inline __attribute__((always_inline, unused))

typedef struct emulated_ps {
  __m256 half[2];
} emulated_ps;
typedef struct emulated_pd {
  __m256d half[2];
} emulated_pd;
typedef struct emulated_si {
  __m256i half[2];
} emulated_si;

/* ---- One operation, half by half ---- */

#define EMULATE_BINARY(name, type, operation)                                          \
  EMULATED type emulated_##name(type a, type b) {                                      \
    return (type){{operation(a.half[0], b.half[0]), operation(a.half[1], b.half[1])}}; \
  }
EMULATE_BINARY(add_ps, emulated_ps, _mm256_add_ps)
EMULATE_BINARY(sub_ps, emulated_ps, _mm256_sub_ps)
EMULATE_BINARY(mul_ps, emulated_ps, _mm256_mul_ps)
EMULATE_BINARY(div_ps, emulated_ps, _mm256_div_ps)
EMULATE_BINARY(min_ps, emulated_ps, _mm256_min_ps)
EMULATE_BINARY(max_ps, emulated_ps, _mm256_max_ps)
EMULATE_BINARY(unpacklo_ps, emulated_ps, _mm256_unpacklo_ps)
EMULATE_BINARY(unpackhi_ps, emulated_ps, _mm256_unpackhi_ps)
EMULATE_BINARY(unpacklo_pd, emulated_pd, _mm256_unpacklo_pd)
EMULATE_BINARY(unpackhi_pd, emulated_pd, _mm256_unpackhi_pd)
EMULATE_BINARY(mullo_epi32, emulated_si, _mm256_mullo_epi32)
EMULATE_BINARY(max_epi32, emulated_si, _mm256_max_epi32)
EMULATE_BINARY(sub_epi32, emulated_si, _mm256_sub_epi32)
EMULATE_BINARY(xor_si512, emulated_si, _mm256_xor_si256)
EMULATE_BINARY(or_si512, emulated_si, _mm256_or_si256)
EMULATE_BINARY(and_si512, emulated_si, _mm256_and_si256)
EMULATE_BINARY(unpacklo_epi16, emulated_si, _mm256_unpacklo_epi16)
EMULATE_BINARY(unpackhi_epi16, emulated_si, _mm256_unpackhi_epi16)
EMULATE_BINARY(unpacklo_epi32, emulated_si, _mm256_unpacklo_epi32)
EMULATE_BINARY(unpackhi_epi32, emulated_si, _mm256_unpackhi_epi32)
EMULATE_BINARY(unpacklo_epi64, emulated_si, _mm256_unpacklo_epi64)
EMULATE_BINARY(unpackhi_epi64, emulated_si, _mm256_unpackhi_epi64)
#undef EMULATE_BINARY

EMULATED emulated_ps emulated_set1_ps(float x) { return (emulated_ps){{_mm256_set1_ps(x), _mm256_set1_ps(x)}}; }
EMULATED emulated_ps emulated_setzero_ps(void) { return emulated_set1_ps(0.0f); }
EMULATED emulated_si emulated_setzero_si512(void) { return (emulated_si){{_mm256_setzero_si256(), _mm256_setzero_si256()}}; }

EMULATED emulated_ps emulated_fmadd_ps(emulated_ps x, emulated_ps y, emulated_ps z) {
  return (emulated_ps){{_mm256_fmadd_ps(x.half[0], y.half[0], z.half[0]), _mm256_fmadd_ps(x.half[1], y.half[1], z.half[1])}};
}

EMULATED emulated_ps emulated_abs_ps(emulated_ps x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return (emulated_ps){{_mm256_andnot_ps(sign, x.half[0]), _mm256_andnot_ps(sign, x.half[1])}};
}

#define EMULATE_CAST(name, to, from, operation) \
  EMULATED to emulated_##name(from x) { return (to){{operation(x.half[0]), operation(x.half[1])}}; }
EMULATE_CAST(castpd_ps, emulated_ps, emulated_pd, _mm256_castpd_ps)
EMULATE_CAST(castps_pd, emulated_pd, emulated_ps, _mm256_castps_pd)
EMULATE_CAST(castsi512_ps, emulated_ps, emulated_si, _mm256_castsi256_ps)
EMULATE_CAST(castps_si512, emulated_si, emulated_ps, _mm256_castps_si256)
#undef EMULATE_CAST

EMULATED emulated_si emulated_castsi128_si512(__m128i x) {
  return (emulated_si){{_mm256_zextsi128_si256(x), _mm256_setzero_si256()}};
}

/* A quarter of x. */
EMULATED __m128 emulated_extractf32x4_ps(emulated_ps x, int quarter) {
  const __m256 half = x.half[quarter / 2];
  return quarter % 2 ? _mm256_extractf128_ps(half, 1) : _mm256_castps256_ps128(half);
}
EMULATED __m128 emulated_castps512_ps128(emulated_ps x) { return _mm256_castps256_ps128(x.half[0]); }

EMULATED emulated_ps emulated_cvtph_ps(__m256i x) {
  return (emulated_ps){{_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))}};
}
EMULATED __m256i emulated_cvtps_ph_nearest(emulated_ps x) {
  return _mm256_set_m128i(_mm256_cvtps_ph(x.half[1], _MM_FROUND_TO_NEAREST_INT),
                          _mm256_cvtps_ph(x.half[0], _MM_FROUND_TO_NEAREST_INT));
}
EMULATED emulated_si emulated_cvtepi8_epi32(__m128i x) {
  return (emulated_si){{_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))}};
}
EMULATED emulated_si emulated_cvtepu8_epi32(__m128i x) {
  return (emulated_si){{_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))}};
}
EMULATED emulated_ps emulated_cvtepi32_ps(emulated_si x) {
  return (emulated_ps){{_mm256_cvtepi32_ps(x.half[0]), _mm256_cvtepi32_ps(x.half[1])}};
}
EMULATED emulated_si emulated_cvtepu16_epi32(__m256i x) {
  return (emulated_si){
      {_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)), _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1))}};
}
EMULATED emulated_si emulated_slli_epi32(emulated_si x, int count) {
  return (emulated_si){{_mm256_slli_epi32(x.half[0], count), _mm256_slli_epi32(x.half[1], count)}};
}
EMULATED emulated_si emulated_srli_epi32(emulated_si x, unsigned count) {
  return (emulated_si){{_mm256_srli_epi32(x.half[0], (int)count), _mm256_srli_epi32(x.half[1], (int)count)}};
}
EMULATED emulated_si emulated_add_epi32(emulated_si a, emulated_si b) {
  return (emulated_si){{_mm256_add_epi32(a.half[0], b.half[0]), _mm256_add_epi32(a.half[1], b.half[1])}};
}
EMULATED emulated_si emulated_min_epu32(emulated_si a, emulated_si b) {
  return (emulated_si){{_mm256_min_epu32(a.half[0], b.half[0]), _mm256_min_epu32(a.half[1], b.half[1])}};
}
EMULATED emulated_si emulated_setr_epi32(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l,
                                         int m, int n, int o, int p) {
  return (emulated_si){{_mm256_setr_epi32(a, b, c, d, e, f, g, h), _mm256_setr_epi32(i, j, k, l, m, n, o, p)}};
}
EMULATED emulated_si emulated_set1_epi8(char x) { return (emulated_si){{_mm256_set1_epi8(x), _mm256_set1_epi8(x)}}; }
EMULATED emulated_si emulated_set1_epi32(int x) { return (emulated_si){{_mm256_set1_epi32(x), _mm256_set1_epi32(x)}}; }
EMULATED __m256i emulated_castsi512_si256(emulated_si x) { return x.half[0]; }
EMULATED __m256i emulated_extracti64x4_epi64(emulated_si x, int half) { return x.half[half]; }

/* ---- bfloat16 ---- */

/* VCVTNE2PS2BF16: to nearest, ties to even; denormals give 0, NaN stays NaN. `low` gives the lower 16 values. */
EMULATED emulated_si emulated_cvtne2ps_pbh(emulated_ps high, emulated_ps low) {
  uint32_t bits[32];
  uint16_t narrow[32];
  emulated_si result;
  memcpy(bits, &low, sizeof low);
  memcpy(bits + 16, &high, sizeof high);
  for (int i = 0; i < 32; i++) {
    const uint32_t size = bits[i] & 0x7fffffffu;
    const uint32_t x = size < 0x00800000u ? bits[i] & 0x80000000u : bits[i];
    narrow[i] = (uint16_t)(size > 0x7f800000u ? bits[i] >> 16 | 0x0040u : (x + 0x7fffu + (x >> 16 & 1u)) >> 16);
  }
  memcpy(&result, narrow, sizeof result);
  return result;
}

/* VDPBF16PS: the odd product is added first. Unlike the instruction it keeps denormals. */
EMULATED emulated_ps emulated_dpbf16_ps(emulated_ps sum, emulated_si a, emulated_si b) {
  for (int i = 0; i < 2; i++)
    for (int odd = 1; odd >= 0; odd--)
      sum.half[i] = _mm256_fmadd_ps(emulated_values(a.half[i], odd), emulated_values(b.half[i], odd), sum.half[i]);
  return sum;
}

/* ---- Memory ---- */

EMULATED emulated_ps emulated_loadu_ps(const float *p) {
  return (emulated_ps){{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}};
}
EMULATED void emulated_storeu_ps(float *p, emulated_ps x) {
  _mm256_storeu_ps(p, x.half[0]);
  _mm256_storeu_ps(p + 8, x.half[1]);
}
EMULATED emulated_ps emulated_setr_ps(float a, float b, float c, float d, float e, float f, float g, float h, float i,
                                      float j, float k, float l, float m, float n, float o, float p) {
  return (emulated_ps){{_mm256_setr_ps(a, b, c, d, e, f, g, h), _mm256_setr_ps(i, j, k, l, m, n, o, p)}};
}

/* ---- Masks: bit i of a __mmask16 belongs to lane i ---- */

/* All bits of each lane of a half whose mask bit is set. */
EMULATED __m256i emulated_lanes(unsigned mask) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)(mask & 255)), bit), bit);
}

EMULATED emulated_ps emulated_mask_mov_ps(emulated_ps otherwise, __mmask16 mask, emulated_ps x) {
  emulated_ps result;
  for (int h = 0; h < 2; h++)
    result.half[h] =
        _mm256_blendv_ps(otherwise.half[h], x.half[h], _mm256_castsi256_ps(emulated_lanes((unsigned)mask >> 8 * h)));
  return result;
}
EMULATED emulated_ps emulated_mask_add_ps(emulated_ps otherwise, __mmask16 mask, emulated_ps a, emulated_ps b) {
  return emulated_mask_mov_ps(otherwise, mask, emulated_add_ps(a, b));
}

EMULATED emulated_si emulated_loadu_si512(const void *p) {
  const __m256i *from = (const __m256i *)p;
  return (emulated_si){{_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)}};
}
EMULATED void emulated_storeu_si512(void *p, emulated_si x) {
  _mm256_storeu_si256((__m256i *)p, x.half[0]);
  _mm256_storeu_si256((__m256i *)p + 1, x.half[1]);
}
EMULATED emulated_si emulated_maskz_loadu_epi16(__mmask32 mask, const void *p) {
  uint16_t values[32] = {0};
  emulated_si result;
  for (int i = 0; i < 32; i++)
    if (mask >> i & 1) memcpy(&values[i], (const char *)p + 2 * i, 2);
  memcpy(&result, values, sizeof result);
  return result;
}
EMULATED __m256i emulated_maskz_loadu_epi16_256(__mmask16 mask, const void *p) {
  uint16_t lanes[16] = {0};
  for (int i = 0; i < 16; i++)
    if (mask >> i & 1) memcpy(&lanes[i], (const uint16_t *)p + i, sizeof lanes[i]);
  return _mm256_loadu_si256((const __m256i *)(const void *)lanes);
}
EMULATED void emulated_mask_storeu_epi16(void *p, __mmask32 mask, emulated_si x) {
  uint16_t values[32];
  memcpy(values, &x, sizeof x);
  for (int i = 0; i < 32; i++)
    if (mask >> i & 1) memcpy((char *)p + 2 * i, &values[i], 2);
}

/* The memory of lanes whose mask bit is clear is not accessed: it may lie beyond the last page. */
EMULATED emulated_ps emulated_maskz_loadu_ps(__mmask16 mask, const float *p) {
  return (emulated_ps){{_mm256_maskload_ps(p, emulated_lanes(mask)), _mm256_maskload_ps(p + 8, emulated_lanes(mask >> 8))}};
}
EMULATED void emulated_mask_storeu_ps(float *p, __mmask16 mask, emulated_ps x) {
  _mm256_maskstore_ps(p, emulated_lanes(mask), x.half[0]);
  _mm256_maskstore_ps(p + 8, emulated_lanes(mask >> 8), x.half[1]);
}
EMULATED __m128i emulated_maskz_loadu_epi8(__mmask16 mask, const void *p) {
  uint8_t bytes[16] = {0};
  for (int i = 0; i < 16; i++)
    if (mask >> i & 1) bytes[i] = ((const uint8_t *)p)[i];
  return _mm_loadu_si128((const __m128i *)(const void *)bytes);
}
EMULATED __m128i emulated_mask_loadu_epi8(__m128i x, __mmask16 mask, const void *p) {
  uint8_t bytes[16];
  _mm_storeu_si128((__m128i *)(void *)bytes, x);
  for (int i = 0; i < 16; i++)
    if (mask >> i & 1) bytes[i] = ((const uint8_t *)p)[i];
  return _mm_loadu_si128((const __m128i *)(const void *)bytes);
}
EMULATED emulated_ps emulated_permutexvar_ps(emulated_si index, emulated_ps x) {
  int from[16];
  float table[16], to[16];
  for (int i = 0; i < 2; i++) {
    _mm256_storeu_si256((__m256i *)(void *)(from + 8 * i), index.half[i]);
    _mm256_storeu_ps(table + 8 * i, x.half[i]);
  }
  for (int i = 0; i < 16; i++) to[i] = table[from[i] & 15];
  return (emulated_ps){{_mm256_loadu_ps(to), _mm256_loadu_ps(to + 8)}};
}
EMULATED __mmask16 emulated_test_epi8_mask(__m128i a, __m128i b) {
  return (__mmask16)~_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_and_si128(a, b), _mm_setzero_si128()));
}

EMULATED __mmask64 emulated_test_epi8_mask_512(emulated_si a, emulated_si b) {
  const emulated_si both = emulated_and_si512(a, b);
  const __m256i zero = _mm256_setzero_si256();
  const uint32_t low = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(both.half[0], zero));
  const uint32_t high = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(both.half[1], zero));
  return ~(low | (uint64_t)high << 32);
}
EMULATED __mmask16 emulated_test_epi32_mask(emulated_si a, emulated_si b) {
  uint32_t lanes[16];
  unsigned mask = 0;
  const emulated_si both = emulated_and_si512(a, b);
  memcpy(lanes, &both, sizeof both);
  for (int i = 0; i < 16; i++) mask |= (unsigned)(lanes[i] != 0) << i;
  return (__mmask16)mask;
}

/* A mask of the lanes of 32 bits where a > b. */
EMULATED unsigned emulated_greater(emulated_si a, emulated_si b) {
  const __m256i low = _mm256_cmpgt_epi32(a.half[0], b.half[0]), high = _mm256_cmpgt_epi32(a.half[1], b.half[1]);
  return (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(low)) | (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(high))
                                                                      << 8;
}
EMULATED __mmask16 emulated_cmpge_epi32_mask(emulated_si a, emulated_si b) { return (__mmask16)~emulated_greater(b, a); }
EMULATED __mmask16 emulated_mask_cmplt_epi32_mask(__mmask16 mask, emulated_si a, emulated_si b) {
  return (__mmask16)(mask & emulated_greater(b, a));
}

EMULATED __mmask8 emulated_test_epi64_mask(emulated_si a, emulated_si b) {
  const unsigned halves = emulated_test_epi32_mask(a, b);
  unsigned mask = 0;
  for (int i = 0; i < 8; i++) mask |= (unsigned)((halves >> 2 * i & 3) != 0) << i;
  return (__mmask8)mask;
}
EMULATED emulated_si emulated_srli_epi64(emulated_si a, unsigned count) {
  return (emulated_si){{_mm256_srli_epi64(a.half[0], (int)count), _mm256_srli_epi64(a.half[1], (int)count)}};
}
EMULATED __m256i emulated_cvtepi64_epi32(emulated_si a) {
  const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
  const __m256i low = _mm256_permutevar8x32_epi32(a.half[0], even), high = _mm256_permutevar8x32_epi32(a.half[1], even);
  return _mm256_blend_epi32(low, high, 0xf0);
}
EMULATED __m256i emulated_cvtepi32_epi16(emulated_si a) {
  uint32_t from[16];
  uint16_t to[16];
  memcpy(from, &a, sizeof a);
  for (int i = 0; i < 16; i++) to[i] = (uint16_t)from[i];
  return _mm256_loadu_si256((const __m256i *)(const void *)to);
}
EMULATED __m128i emulated_cvtepi32_epi8(emulated_si a) {
  uint32_t from[16];
  uint8_t to[16];
  memcpy(from, &a, sizeof a);
  for (int i = 0; i < 16; i++) to[i] = (uint8_t)from[i];
  return _mm_loadu_si128((const __m128i *)(const void *)to);
}
EMULATED emulated_si emulated_cvtps_epi32(emulated_ps a) {
  return (emulated_si){{_mm256_cvtps_epi32(a.half[0]), _mm256_cvtps_epi32(a.half[1])}};
}
EMULATED int emulated_reduce_max_epi32(emulated_si a) {
  int lanes[16], largest;
  memcpy(lanes, &a, sizeof a);
  largest = lanes[0];
  for (int i = 1; i < 16; i++) largest = lanes[i] > largest ? lanes[i] : largest;
  return largest;
}
EMULATED int emulated_reduce_add_epi32(emulated_si a) {
  unsigned lanes[16], sum = 0;
  memcpy(lanes, &a, sizeof a);
  for (int i = 0; i < 16; i++) sum += lanes[i];
  return (int)sum;
}
EMULATED emulated_si emulated_inserti32x4(emulated_si a, __m128i x, int quarter) {
  memcpy((char *)&a + quarter * (int)sizeof x, &x, sizeof x);
  return a;
}
EMULATED emulated_si emulated_i32gather_epi32(emulated_si index, const void *base, int scale) {
  int at[16], to[16];
  memcpy(at, &index, sizeof index);
  for (int i = 0; i < 16; i++) memcpy(&to[i], (const char *)base + (int64_t)at[i] * scale, sizeof to[i]);
  memcpy(&index, to, sizeof index);
  return index;
}
/* Sums of 4 products of a number without sign and one with. */
EMULATED emulated_si emulated_dpbusd_epi32(emulated_si sum, emulated_si a, emulated_si b) {
  uint32_t sums[16];
  uint8_t positive[64];
  int8_t signed_numbers[64];
  memcpy(sums, &sum, sizeof sum);
  memcpy(positive, &a, sizeof a);
  memcpy(signed_numbers, &b, sizeof b);
  for (int i = 0; i < 64; i++) sums[i / 4] += (uint32_t)(positive[i] * signed_numbers[i]);
  memcpy(&sum, sums, sizeof sum);
  return sum;
}
EMULATED emulated_si emulated_maskz_and_epi32(__mmask16 mask, emulated_si a, emulated_si b) {
  const emulated_si both = emulated_and_si512(a, b);
  return (emulated_si){{_mm256_and_si256(both.half[0], emulated_lanes(mask)),
                        _mm256_and_si256(both.half[1], emulated_lanes((unsigned)mask >> 8))}};
}

#define emulated_cmp_ps_mask(a, b, predicate)                                           \
  ((__mmask16)(_mm256_movemask_ps(_mm256_cmp_ps((a).half[0], (b).half[0], predicate)) | \
               _mm256_movemask_ps(_mm256_cmp_ps((a).half[1], (b).half[1], predicate)) << 8))

/* ---- Across lanes ---- */

/* Quarters of 128 bits: two of a, then two of b. */
EMULATED emulated_ps emulated_shuffle_f32x4(emulated_ps a, emulated_ps b, int which) {
  float from[2][4][4], to[4][4];
  emulated_storeu_ps(&from[0][0][0], a);
  emulated_storeu_ps(&from[1][0][0], b);
  for (int i = 0; i < 4; i++) memcpy(to[i], from[i / 2][which >> 2 * i & 3], sizeof to[i]);
  return emulated_loadu_ps(&to[0][0]);
}

/* x in the lanes whose mask bit is set. */
EMULATED emulated_si emulated_mask_broadcast_i32x4(emulated_si otherwise, __mmask16 mask, __m128i x) {
  const __m256 both = _mm256_castsi256_ps(_mm256_broadcastsi128_si256(x));
  emulated_si result;
  for (int h = 0; h < 2; h++)
    result.half[h] = _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(otherwise.half[h]), both,
                                                          _mm256_castsi256_ps(emulated_lanes((unsigned)mask >> 8 * h))));
  return result;
}

/* Shuffles bytes within each quarter. Bytes whose mask bit is clear come from `otherwise`. */
EMULATED emulated_si emulated_mask_shuffle_epi8(emulated_si otherwise, __mmask64 mask, emulated_si x, emulated_si which) {
  uint8_t to[64], from[64];
  emulated_si shuffled;
  for (int h = 0; h < 2; h++) shuffled.half[h] = _mm256_shuffle_epi8(x.half[h], which.half[h]);
  memcpy(to, &otherwise, sizeof to);
  memcpy(from, &shuffled, sizeof from);
  for (int i = 0; i < 64; i++)
    if (mask >> i & 1) to[i] = from[i];
  return emulated_loadu_si512(to);
}

EMULATED emulated_si emulated_permutexvar_epi16(emulated_si which, emulated_si x) {
  uint16_t index[32], from[32], to[32];
  memcpy(index, &which, sizeof which);
  memcpy(from, &x, sizeof x);
  for (int i = 0; i < 32; i++) to[i] = from[index[i] & 31];
  return emulated_loadu_si512(to);
}

/* 16 of the 32 floats of a and b. */
EMULATED emulated_si emulated_permutex2var_epi16(emulated_si a, emulated_si which, emulated_si b) {
  uint16_t index[32], from[64], to[32];
  memcpy(index, &which, sizeof index);
  memcpy(from, &a, sizeof a);
  memcpy(from + 32, &b, sizeof b);
  for (int i = 0; i < 32; i++) to[i] = from[index[i] & 63];
  return emulated_loadu_si512(to);
}
EMULATED emulated_ps emulated_permutex2var_ps(emulated_ps a, emulated_si which, emulated_ps b) {
  uint32_t index[16];
  float from[32], to[16];
  memcpy(index, &which, sizeof index);
  memcpy(from, &a, sizeof a);
  memcpy(from + 16, &b, sizeof b);
  for (int i = 0; i < 16; i++) to[i] = from[index[i] & 31];
  return emulated_loadu_ps(to);
}

/* The order of the compilers' headers: lower and upper half, then quarters, pairs and single lanes. */
#define EMULATE_REDUCE(name, operation256, operation128)                                   \
  EMULATED float emulated_##name(emulated_ps x) {                                          \
    const __m256 a = operation256(x.half[0], x.half[1]);                                   \
    const __m128 b = operation128(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1)); \
    const __m128 c = operation128(b, _mm_shuffle_ps(b, b, _MM_SHUFFLE(1, 0, 3, 2)));       \
    return _mm_cvtss_f32(operation128(c, _mm_shuffle_ps(c, c, _MM_SHUFFLE(2, 3, 0, 1))));  \
  }
EMULATE_REDUCE(reduce_add_ps, _mm256_add_ps, _mm_add_ps)
EMULATE_REDUCE(reduce_max_ps, _mm256_max_ps, _mm_max_ps)
#undef EMULATE_REDUCE

/* ---- Numbers ---- */

/* VREDUCEPS with rounding down to whole numbers or 1/32, the forms in use: x - floor(scale x) / scale; infinities give 0. */
EMULATED emulated_ps emulated_reduce_floor(emulated_ps x, float scale) {
  const __m256 infinity = _mm256_set1_ps(__builtin_inff()), up = _mm256_set1_ps(scale), down = _mm256_set1_ps(1 / scale);
  emulated_ps result;
  for (int h = 0; h < 2; h++) {
    const __m256 whole = _mm256_round_ps(_mm256_mul_ps(x.half[h], up), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x.half[h]);
    result.half[h] =
        _mm256_andnot_ps(_mm256_cmp_ps(size, infinity, _CMP_EQ_OQ), _mm256_sub_ps(x.half[h], _mm256_mul_ps(whole, down)));
  }
  return result;
}
#define emulated_reduce_ps(x, imm)                                                                       \
  __extension__({                                                                                        \
    _Static_assert((imm) == 0x09 || (imm) == 0x59, "only rounding down to wholes or 32nds is emulated"); \
    emulated_reduce_floor(x, (imm) == 0x09 ? 1 : 32);                                                    \
  })

/* VADDPS with rounding down, for x and y whose sum double holds exactly. */
EMULATED emulated_ps emulated_add_floor(emulated_ps x, emulated_ps y) {
  float a[16], b[16];
  memcpy(a, &x, sizeof a);
  memcpy(b, &y, sizeof b);
  for (int i = 0; i < 16; i++) {
    const double exact = (double)a[i] + (double)b[i];
    const float nearest = (float)exact;
    a[i] = (double)nearest > exact ? nextafterf(nearest, -__builtin_inff()) : nearest;
  }
  memcpy(&x, a, sizeof x);
  return x;
}
#define emulated_add_round_ps(x, y, rounding)                                                                        \
  __extension__({                                                                                                    \
    _Static_assert((rounding) == (_MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC), "only the rounding down is emulated"); \
    emulated_add_floor(x, y);                                                                                        \
  })

#define emulated_cvtps_ph(x, rounding)                                                                                \
  __extension__({                                                                                                     \
    _Static_assert((rounding) == (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), "only to the nearest is emulated"); \
    emulated_cvtps_ph_nearest(x);                                                                                     \
  })

#define emulated_roundscale_ps(x, imm)                                                   \
  __extension__({                                                                        \
    _Static_assert((imm) == 0x09 || (imm) == 0x0a, "only to whole numbers, down or up"); \
    (emulated_ps){{_mm256_round_ps((x).half[0], ((imm)&3) | _MM_FROUND_NO_EXC),          \
                   _mm256_round_ps((x).half[1], ((imm)&3) | _MM_FROUND_NO_EXC)}};        \
  })

/* x 2^floor(y), rounded once from the exact double; the exponent is limited to a range beyond which results are 0 or
 * infinite anyway. */
EMULATED __m128 emulated_scale_four(__m128 x, __m128 y) {
  const __m128 whole = _mm_round_ps(y, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  const __m128 within = _mm_min_ps(_mm_max_ps(whole, _mm_set1_ps(-700.0f)), _mm_set1_ps(700.0f));
  const __m256i exponent = _mm256_cvtepi32_epi64(_mm_cvtps_epi32(within));
  const __m256d power = _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_add_epi64(exponent, _mm256_set1_epi64x(1023)), 52));
  const __m128 scaled = _mm256_cvtpd_ps(_mm256_mul_pd(_mm256_cvtps_pd(x), power));
  return _mm_blendv_ps(scaled, y, _mm_cmpunord_ps(y, y));
}
EMULATED emulated_ps emulated_scalef_ps(emulated_ps x, emulated_ps y) {
  emulated_ps result;
  for (int h = 0; h < 2; h++) {
    const __m128 low = emulated_scale_four(_mm256_castps256_ps128(x.half[h]), _mm256_castps256_ps128(y.half[h]));
    const __m128 high = emulated_scale_four(_mm256_extractf128_ps(x.half[h], 1), _mm256_extractf128_ps(y.half[h], 1));
    result.half[h] = _mm256_set_m128(high, low);
  }
  return result;
}
EMULATED emulated_ps emulated_maskz_scalef_ps(__mmask16 mask, emulated_ps x, emulated_ps y) {
  return emulated_mask_mov_ps(emulated_setzero_ps(), mask, emulated_scalef_ps(x, y));
}

/* ---- The names that the kernels use ---- */

#define __m512        emulated_ps
#define __m512bh      emulated_si
#define __m512d       emulated_pd
#define __m512i       emulated_si
#define _mm512_abs_ps emulated_abs_ps
#define _mm512_add_ps emulated_add_ps
#undef _mm512_add_round_ps
#define _mm512_add_round_ps    emulated_add_round_ps
#define _mm512_add_epi32       emulated_add_epi32
#define _mm512_sub_epi32       emulated_sub_epi32
#define _mm512_and_si512       emulated_and_si512
#define _mm512_castpd_ps       emulated_castpd_ps
#define _mm512_castps512_ps128 emulated_castps512_ps128
#define _mm512_castps_pd       emulated_castps_pd
#define _mm512_castps_si512    emulated_castps_si512
#define _mm512_castsi128_si512 emulated_castsi128_si512
#define _mm512_castsi512_ps    emulated_castsi512_ps
#define _mm512_castsi512_si256 emulated_castsi512_si256
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask      emulated_cmp_ps_mask
#define _mm512_cmpge_epi32_mask emulated_cmpge_epi32_mask
#define _mm512_cvtepi32_ps      emulated_cvtepi32_ps
#define _mm512_cvtepi8_epi32    emulated_cvtepi8_epi32
#define _mm512_cvtepu8_epi32    emulated_cvtepu8_epi32
#define _mm512_cvtepu16_epi32   emulated_cvtepu16_epi32
#define _mm512_cvtepi64_epi32   emulated_cvtepi64_epi32
#define _mm512_cvtne2ps_pbh     emulated_cvtne2ps_pbh
#define _mm512_cvtph_ps         emulated_cvtph_ps
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph  emulated_cvtps_ph
#define _mm512_div_ps    emulated_div_ps
#define _mm512_dpbf16_ps emulated_dpbf16_ps
#undef _mm512_extractf32x4_ps
#define _mm512_extractf32x4_ps emulated_extractf32x4_ps
#undef _mm512_extracti64x4_epi64
#define _mm512_extracti64x4_epi64 emulated_extracti64x4_epi64
#define _mm512_fmadd_ps           emulated_fmadd_ps
#define _mm512_cvtepi32_epi16     emulated_cvtepi32_epi16
#define _mm512_cvtepi32_epi8      emulated_cvtepi32_epi8
#define _mm512_cvtps_epi32        emulated_cvtps_epi32
#define _mm512_dpbusd_epi32       emulated_dpbusd_epi32
#undef _mm512_i32gather_epi32
#define _mm512_i32gather_epi32 emulated_i32gather_epi32
#undef _mm512_inserti32x4
#define _mm512_inserti32x4           emulated_inserti32x4
#define _mm512_max_epi32             emulated_max_epi32
#define _mm512_mullo_epi32           emulated_mullo_epi32
#define _mm512_reduce_max_epi32      emulated_reduce_max_epi32
#define _mm512_reduce_add_epi32      emulated_reduce_add_epi32
#define _mm512_xor_si512             emulated_xor_si512
#define _mm512_loadu_ps              emulated_loadu_ps
#define _mm512_loadu_si512           emulated_loadu_si512
#define _mm512_mask_add_ps           emulated_mask_add_ps
#define _mm512_mask_broadcast_i32x4  emulated_mask_broadcast_i32x4
#define _mm512_mask_cmplt_epi32_mask emulated_mask_cmplt_epi32_mask
#define _mm512_mask_storeu_epi16     emulated_mask_storeu_epi16
#define _mm512_permutex2var_epi16    emulated_permutex2var_epi16
#define _mm512_permutex2var_ps       emulated_permutex2var_ps
#define _mm512_permutexvar_epi16     emulated_permutexvar_epi16
#define _mm512_mask_mov_ps           emulated_mask_mov_ps
#define _mm512_mask_shuffle_epi8     emulated_mask_shuffle_epi8
#define _mm512_mask_storeu_ps        emulated_mask_storeu_ps
#define _mm512_maskz_and_epi32       emulated_maskz_and_epi32
#define _mm512_maskz_loadu_epi16     emulated_maskz_loadu_epi16
#define _mm256_maskz_loadu_epi16     emulated_maskz_loadu_epi16_256
#define _mm512_maskz_loadu_ps        emulated_maskz_loadu_ps
#define _mm512_maskz_scalef_ps       emulated_maskz_scalef_ps
#define _mm512_max_ps                emulated_max_ps
#define _mm512_min_epu32             emulated_min_epu32
#define _mm512_min_ps                emulated_min_ps
#define _mm512_mul_ps                emulated_mul_ps
#define _mm512_or_si512              emulated_or_si512
#define _mm512_reduce_add_ps         emulated_reduce_add_ps
#define _mm512_reduce_max_ps         emulated_reduce_max_ps
#undef _mm512_reduce_ps
#define _mm512_reduce_ps emulated_reduce_ps
#undef _mm512_roundscale_ps
#define _mm512_roundscale_ps emulated_roundscale_ps
#define _mm512_scalef_ps     emulated_scalef_ps
#define _mm512_set1_epi32    emulated_set1_epi32
#define _mm512_set1_epi8     emulated_set1_epi8
#define _mm512_srli_epi64    emulated_srli_epi64
#define _mm512_set1_ps       emulated_set1_ps
#define _mm512_setr_epi32    emulated_setr_epi32
#define _mm512_setr_ps       emulated_setr_ps
#define _mm512_setzero_ps    emulated_setzero_ps
#define _mm512_setzero_si512 emulated_setzero_si512
#undef _mm512_shuffle_f32x4
#define _mm512_shuffle_f32x4  emulated_shuffle_f32x4
#define _mm512_permutexvar_ps emulated_permutexvar_ps
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 emulated_slli_epi32
#undef _mm512_srli_epi32
#define _mm512_srli_epi32      emulated_srli_epi32
#define _mm512_storeu_ps       emulated_storeu_ps
#define _mm512_storeu_si512    emulated_storeu_si512
#define _mm512_sub_ps          emulated_sub_ps
#define _mm512_test_epi32_mask emulated_test_epi32_mask
#define _mm512_test_epi64_mask emulated_test_epi64_mask
#define _mm512_test_epi8_mask  emulated_test_epi8_mask_512
#define _mm512_unpackhi_epi16  emulated_unpackhi_epi16
#define _mm512_unpackhi_epi32  emulated_unpackhi_epi32
#define _mm512_unpackhi_epi64  emulated_unpackhi_epi64
#define _mm512_unpackhi_pd     emulated_unpackhi_pd
#define _mm512_unpackhi_ps     emulated_unpackhi_ps
#define _mm512_unpacklo_epi16  emulated_unpacklo_epi16
#define _mm512_unpacklo_epi32  emulated_unpacklo_epi32
#define _mm512_unpacklo_epi64  emulated_unpacklo_epi64
#define _mm512_unpacklo_pd     emulated_unpacklo_pd
#define _mm512_unpacklo_ps     emulated_unpacklo_ps
#define _mm_mask_loadu_epi8    emulated_mask_loadu_epi8
#define _mm_maskz_loadu_epi8   emulated_maskz_loadu_epi8
#define _mm_test_epi8_mask     emulated_test_epi8_mask

#endif
