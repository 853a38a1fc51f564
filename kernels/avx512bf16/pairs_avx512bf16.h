/* SPDX-License-Identifier: MIT */
/* Vectors of pairs of bf16 values, and their products by VDPBF16PS. A pair takes the place of a float of vec_avx512.h. */
#ifndef ATTN_PAIRS_AVX512BF16_H
#define ATTN_PAIRS_AVX512BF16_H

#include <string.h>

#include "kernels/avx512/vec_avx512.h"
#include "values_bf16.h"

/* The nearest bf16 values of `low`, then of `high`. */
static inline vec narrow(vec low, vec high) {
  const __m512bh values = _mm512_cvtne2ps_pbh(high, low);
  vec bits;
  memcpy(&bits, &values, sizeof bits);
  return bits;
}

static inline vec round_to_bf16(vec x) {
  const __m256i values = _mm512_castsi512_si256(_mm512_castps_si512(narrow(x, x)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}
#define ROUND_P(p) round_to_bf16(p)

static inline __m512bh pairs_in(vec x) {
  __m512bh values;
  memcpy(&values, &x, sizeof values);
  return values;
}

static inline vec dot_pairs(vec a, vec b, vec sum) { return _mm512_dpbf16_ps(sum, pairs_in(a), pairs_in(b)); }
#define vec_fma_factor dot_pairs /* for register_tile.h's product() */

/* The first n of adjacent values; zeros beyond. */
static inline vec load_pairs(const uint16_t *from, int64_t n) { return _mm512_castsi512_ps(load_values(from, 1, n)); }

/* Dimensions d and d + 1 of the first n keys of VEC_LANES that lie side by side, `step` from one dimension to the next;
 * zeros from dimension `dim` on and for other keys. */
static inline vec pairs_beside(const uint16_t *keys, int64_t d, int64_t step, int64_t dim, int64_t n) {
  const __mmask16 some = (__mmask16)(n >= VEC_LANES ? 0xffff : (1u << n) - 1);
  const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, keys + d * step));
  if (d + 1 >= dim) return _mm512_castsi512_ps(low);
  const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, keys + (d + 1) * step));
  return _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
}

/* Values of two keys to pairs: of columns 0 .. 3, then of 4 .. 7 of every 8. */
static inline void zip_pairs(vec even, vec odd, vec pairs[2]) {
  const __m512i first = _mm512_castps_si512(even), second = _mm512_castps_si512(odd);
  pairs[0] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(first, second));
  pairs[1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(first, second));
}

/* Floats that are bf16 values, to pairs lane by lane. */
static inline vec pair_lanes(vec even, vec odd) {
  const __m512i first = _mm512_srli_epi32(_mm512_castps_si512(even), 16);
  return _mm512_castsi512_ps(_mm512_or_si512(first, _mm512_castps_si512(odd)));
}

/* Lane by lane, the nearest bf16 values of both as a pair. */
static inline vec join_lanes(vec even, vec odd) {
  const __m512i low = _mm512_setr_epi32(0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005, 0x160006, 0x170007,
                                        0x180008, 0x190009, 0x1a000a, 0x1b000b, 0x1c000c, 0x1d000d, 0x1e000e, 0x1f000f);
  return _mm512_castsi512_ps(_mm512_permutexvar_epi16(low, _mm512_castps_si512(narrow(even, odd))));
}

/* P of rows side by side, key by key, rounded to bf16, to pairs of each row: of the keys of `low`, then of `high`. */
static inline vec pair_rows_of_2(vec low, vec high) {
  const __m512i first = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29);
  const __m512i second = _mm512_setr_epi32(2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
  return pair_lanes(_mm512_permutex2var_ps(low, first, high), _mm512_permutex2var_ps(low, second, high));
}
static inline vec pair_rows_of_4(vec low, vec high) {
  return pair_lanes(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
}
static inline vec pair_rows_of_8(vec low, vec high) {
  return pair_lanes(_mm512_shuffle_f32x4(low, high, 0x44), _mm512_shuffle_f32x4(low, high, 0xee));
}

/* Undoes the order of zip_pairs(): lanes in the order of the columns. */
static inline void unzip_columns(vec low, vec high, vec columns[2]) {
  const __m512i left = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i right = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  columns[0] = _mm512_permutex2var_ps(low, left, high);
  columns[1] = _mm512_permutex2var_ps(low, right, high);
}

/* The same pairs as by zip_pairs() and unzip_columns(). */
static inline void pair_columns(vec even, vec odd, vec columns[2]) {
  const __m512i left = _mm512_setr_epi32(0x200000, 0x210001, 0x220002, 0x230003, 0x240004, 0x250005, 0x260006, 0x270007,
                                         0x280008, 0x290009, 0x2a000a, 0x2b000b, 0x2c000c, 0x2d000d, 0x2e000e, 0x2f000f);
  const __m512i right = _mm512_setr_epi32(0x300010, 0x310011, 0x320012, 0x330013, 0x340014, 0x350015, 0x360016, 0x370017,
                                          0x380018, 0x390019, 0x3a001a, 0x3b001b, 0x3c001c, 0x3d001d, 0x3e001e, 0x3f001f);
  const __m512i first = _mm512_castps_si512(even), second = _mm512_castps_si512(odd);
  columns[0] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(first, left, second));
  columns[1] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(first, right, second));
}

#endif
