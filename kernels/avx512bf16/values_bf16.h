/* SPDX-License-Identifier: MIT */
/* Rows of bf16 values in 512-bit registers; the tiers avx512bf16 and amx share it. */
#ifndef ATTN_VALUES_BF16_H
#define ATTN_VALUES_BF16_H

#include <immintrin.h>
#include <stdint.h>

enum { ROW_VALUES = 32 /* values of a register */ };

/* The first n of ROW_VALUES values that are `stride` apart; zeros beyond. */
static inline __m512i load_values(const uint16_t *from, int64_t stride, int64_t n) {
  if (stride == 1)
    return n >= ROW_VALUES ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi16(((__mmask32)1 << n) - 1, from);
  uint16_t values[ROW_VALUES] = {0};
  for (int64_t i = 0; i < (n < ROW_VALUES ? n : ROW_VALUES); i++) values[i] = from[i * stride];
  return _mm512_loadu_si512(values);
}

#endif
