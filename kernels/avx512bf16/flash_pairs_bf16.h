/* SPDX-License-Identifier: MIT */
/* P of flash_avx512bf16, in pairs of bf16 values. */
#ifndef ATTN_FLASH_PAIRS_BF16_H
#define ATTN_FLASH_PAIRS_BF16_H

#include "exp_bf16.h"
#include "pairs_avx512bf16.h"

#define REFERENCE_ABOVE(largest)            ceilf(largest)
#define RESCALE_PENDING(p, pending, factor) rescale_pairs(p, pending, factor)

/* Exact, because the factor is a power of 2; only values that become denormal count as 0 in the product. */
static inline void rescale_pairs(float *p, int64_t pending, vec factor) {
  for (int64_t j = 0; j < pending; j += ROW_VALUES, p += VEC_LANES) {
    const __m512i both = _mm512_castps_si512(vec_load(p)), high = _mm512_set1_epi32((int)0xffff0000);
    const vec even = vec_mul(_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)), factor);
    const vec odd = vec_mul(_mm512_castsi512_ps(_mm512_and_si512(both, high)), factor);
    const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even), 16);
    vec_store(p, _mm512_castsi512_ps(_mm512_or_si512(_mm512_and_si512(_mm512_castps_si512(odd), high), low)));
  }
}

/* P of VEC_LANES scores at s, as floats. Its constants come from memory each time: compilers would keep them in registers,
 * which the sums of a product need. */
static ALWAYS_INLINE vec weights_of(const float *s) {
  static const int high_words = (int)0xffff0000;
  const float *tables = exp_tables;
  const int *high = &high_words;
  __asm__ volatile("" : "+r"(tables), "+r"(high));
  const exp_lines lines = load_exp_lines(tables);
  const vec t = vec_load(s);
  const __m512i e = _mm512_castps_si512(_mm512_scalef_ps(exp_fraction(&lines, t), t));
  return _mm512_castsi512_ps(_mm512_and_si512(e, _mm512_set1_epi32(*high)));
}

#endif
