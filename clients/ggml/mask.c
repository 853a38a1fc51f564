/* SPDX-License-Identifier: MIT */
#include "mask.h"

#include <math.h>
#include <string.h>

#include "kernels/common/problem/convert.h"

enum { ZERO = 0x0000, MINUS_INFINITY = 0xfc00 }; /* float16 */

/* Counts what differs between rows of a kind: without branches, so that compilers use vectors. */
static void count_row(const uint16_t *row, int64_t keys, int64_t *others, int64_t *seen) {
  int64_t masked = 0, zero = 0;
  for (int64_t at = 0; at < keys; at += 16384) { /* so many fit into the counters below */
    const int64_t end = keys - at < 16384 ? keys : at + 16384;
    uint16_t masked_here = 0, zero_here = 0;
    for (int64_t j = at; j < end; j++) {
      masked_here = (uint16_t)(masked_here + (row[j] == MINUS_INFINITY));
      zero_here = (uint16_t)(zero_here + ((row[j] & 0x7fff) == ZERO));
    }
    masked += masked_here;
    zero += zero_here;
  }
  *others = keys - masked - zero;
  *seen = keys - masked;
}

static int64_t length_of(const uint16_t *row, int64_t keys) {
  while (keys > 0 && row[keys - 1] == MINUS_INFINITY) keys--;
  return keys;
}

mask_kind mask_read(const mask *m, int32_t *lengths) {
  mask_kind kind = m->heads == 1 ? MASK_LENGTHS : MASK_BITS;
  const uint16_t *row = m->numbers;
  memset(lengths, 0, (size_t)(m->sequences * m->rows) * sizeof *lengths);
  for (int64_t b = 0; b < m->sequences; b++)
    for (int64_t h = 0; h < m->heads; h++)
      for (int64_t i = 0; i < m->rows; i++, row += m->keys) {
        int64_t others, seen;
        int32_t *length = &lengths[b * m->rows + i];
        const int64_t own = length_of(row, m->keys);
        count_row(row, own, &others, &seen);
        if (own > *length) *length = (int32_t)own;
        if (others > 0)
          kind = MASK_BIAS;
        else if (seen < own && kind == MASK_LENGTHS)
          kind = MASK_BITS;
      }
  return kind;
}

void mask_write_bits(const mask *m, uint8_t *bits) {
  const int64_t count = m->sequences * m->heads * m->rows * m->keys;
  for (int64_t i = 0; i < count; i++) bits[i] = m->numbers[i] != MINUS_INFINITY;
}

void mask_write_bias(const mask *m, const float *slopes, int64_t all_heads, float *bias) {
  const int64_t of_head = m->rows * m->keys, written = slopes ? all_heads : m->heads;
  for (int64_t b = 0; b < m->sequences; b++)
    for (int64_t h = 0; h < written; h++) {
      const uint16_t *from = m->numbers + (b * m->heads + h % m->heads) * of_head;
      float *to = bias + (b * written + h) * of_head;
      const float slope = slopes ? slopes[h] : 1;
      for (int64_t i = 0; i < of_head; i++) to[i] = slope * attn_f32_of_f16(from[i]);
    }
}

void mask_slopes(float max_bias, int64_t heads, float *slopes) {
  const int64_t power = (int64_t)1 << (int64_t)floor(log2((double)heads));
  const float first = powf(2, -max_bias / (float)power), second = powf(2, -max_bias / 2 / (float)power);
  for (int64_t h = 0; h < heads; h++)
    slopes[h] = h < power ? powf(first, (float)(h + 1)) : powf(second, (float)(2 * (h - power) + 1));
}
