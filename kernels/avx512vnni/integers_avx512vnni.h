/* SPDX-License-Identifier: MIT */
/* Parts that both of decode's products with integers use: the block of keys at work, and its bytes as they lie. */
#ifndef ATTN_INTEGERS_AVX512VNNI_H
#define ATTN_INTEGERS_AVX512VNNI_H

#include <float.h>
#include <stddef.h>
#include <stdlib.h>

#include "kernels/avx512/vec_avx512.h"

#define DECODE_KNOBS avx512vnni_knobs
#include "kernels/common/decode/knobs.h"
#include "kernels/common/memory/prefetch.h"
#include "kernels/common/tiles/streaming_softmax.h"

enum {
  GROUP_KEYS = VEC_LANES,
  GROUPS = 4,
  DECODE_KEYS = GROUPS * GROUP_KEYS,
  DECODE_SCORE_STRIDE = DECODE_KEYS + 16,
  FLOAT_QUERIES = true,
  BLOCK_VALUES = ATTN_BLOCK_VALUES, /* columns that are scored, or summed, at a time */
  BLOCK_WORDS = BLOCK_VALUES / 4,   /* 4 integers a word */
  HALF_VALUES = BLOCK_VALUES / 2,   /* a vector of columns */
  MOST_INTEGER = 127                /* largest integer of Q */
};

static const decode_knobs avx512vnni_knobs = {.tile_rows = MOST_TILE_ROWS};

/* Rows of K or V, `stride` bytes apart. */
typedef struct byte_rows {
  const char *at;
  int64_t stride;
} byte_rows;

/* A thread's memory for products, and the block of keys at work. */
typedef struct products {
  int32_t *q_words;   /* rows that a call works on side by side: 4 integers, by word and row */
  int32_t *q_offsets; /* sums to start from, by block and row; int8 has one for all dimensions */
  float *q_factors;   /* one a row */
  char *k_copy, *v_copy;
  byte_rows k[GROUPS], v[GROUPS];
  prefetch_lines next;
  int64_t first, begin, end; /* first: of the 64 keys */
  int64_t behind;            /* the next 64 keys, maybe beyond the last, or -1 */
  int from, to;              /* the groups that have keys */
  bool picks;                /* V of a key is read only for rows that may see it */
} products;

static void aim_behind(products *work, const row_block *block, int64_t run); /* split.h; a block has four runs */

/* Constants at every call. */
typedef struct few_kind {
  int rows;
  attn_dtype dtype;
} few_kind;

/* Where the integers of a block begin, behind its factor. */
static ALWAYS_INLINE int integers_at(attn_dtype dtype) { return dtype == ATTN_I8 ? 0 : (int)offsetof(attn_q8_0, values); }
_Static_assert(offsetof(attn_q8_0, values) == offsetof(attn_q4_0, values), "integers follow the factor");

/* Bytes of a block, also of 32 single integers. */
static ALWAYS_INLINE int block_bytes(attn_dtype dtype) { return (int)attn_elements_bytes(dtype, BLOCK_VALUES); }

/* Bytes from one line that is prefetched to the next: blocks take a few more than a line. */
static ALWAYS_INLINE int line_step(attn_dtype dtype) {
  return (int)attn_elements_bytes(dtype, dtype == ATTN_Q4_0 ? 4 * BLOCK_VALUES : 2 * BLOCK_VALUES);
}

/* Pairs of lines to prefetch beside a block of 16 keys in scores, and beside one in sums. */
static ALWAYS_INLINE int line_pairs(attn_dtype dtype) { return GROUP_KEYS * block_bytes(dtype) / line_step(dtype) / 2; }

/* n <= 16 bytes, a constant if it is 16, and 0 behind them. */
static ALWAYS_INLINE __m128i load_bytes(const char *from, int64_t n) {
  if (n == 16) return _mm_loadu_si128((const __m128i *)(const void *)from);
  return _mm_maskz_loadu_epi8(first_lanes(n), from);
}

/* Where the rows of 16 keys lie, in bytes: places of 32 bits. */
static bool has_places(attn_dtype dtype, int64_t stride) {
  return llabs(attn_elements_bytes(dtype, stride)) <= INT32_MAX / GROUP_KEYS;
}
static ALWAYS_INLINE __m512i places_of_keys(int64_t stride) {
  const __m512i keys = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_mullo_epi32(keys, _mm512_set1_epi32((int)stride));
}

/* The factors of a block of 16 keys. */
static ALWAYS_INLINE vec factors_of_keys(const char *block, __m512i places) {
  return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_i32gather_epi32(places, (const int *)(const void *)block, 1)));
}

#endif
