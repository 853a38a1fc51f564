/* SPDX-License-Identifier: MIT */
/* product_avx512vnni: dense layers of rows rounded to int8 and weights of int8 by VPDPBUSD, with the register tile of
 * vec_avx512.h. Four integers take the place of a float there: neighbours of a row of X, and of a column of W.
 *
 * The instruction multiplies bytes without a sign by bytes with one. W is stored with 128 added, so 128 times the sum of a
 * row's integers is taken off its sums again. These are exact, in any order. */
#include <math.h>
#include <string.h>

#include "kernels/avx512/vec_avx512.h"

static inline vec dot_quads(vec x, vec w, vec sum) {
  return _mm512_castsi512_ps(_mm512_dpbusd_epi32(_mm512_castps_si512(sum), _mm512_castps_si512(w), _mm512_castps_si512(x)));
}
#define vec_fma_factor dot_quads /* for register_tile.h's product() */

#define PRODUCT_GROUPS
#include "kernels/common/memory/int8_rows.h"
#include "kernels/common/memory/memory.h"
#include "kernels/common/tiles/product_panel.h"

enum {
  QUAD = 4,
  MOST_DEPTH = 1 << 16, /* 255 * 127 * MOST_DEPTH is below 2^31 */
  MOST_ROWS = 96,       /* tested: 96 to 384 */
  X_BYTES = 1 << 19,    /* packed X stays in level 2 while W is read once for its rows */
  X_PAD = 64            /* bytes that keep rows off each other's cache sets */
};

static int64_t step_bytes(attn_dtype weights) {
  (void)weights;
  return QUAD * PRODUCT_COLUMNS;
}

static void pack_step(const float *step, attn_dtype weights, void *packed) {
  (void)weights;
  for (int64_t c = 0; c < PRODUCT_COLUMNS; c++)
    for (int64_t i = 0; i < QUAD; i++) ((uint8_t *)packed)[c * QUAD + i] = (uint8_t)(step[i * PRODUCT_COLUMNS + c] + 128);
}

static attn_product_extent extent(attn_dtype x, int64_t depth) {
  (void)x;
  const int64_t rows = min64(max64(X_BYTES / depth, 4 * TILE_ROWS), MOST_ROWS);
  return (attn_product_extent){rows / TILE_ROWS * TILE_ROWS, MOST_DEPTH};
}

/* The few-rows loops take 1, 2, 4, 5, 6 or 8. */
static int64_t multiplied_rows(int64_t rows) { return rows + (rows <= ATTN_PRODUCT_FEW_ROWS && rows % 4 == 3); }

/* A thread's memory: [X as integers][their scales][128 times their sums][sums of a panel]. */
typedef struct packed_rows {
  int64_t x_at, scale_at, excess_at, sum_at, bytes;
  int64_t x_stride; /* bytes from row to row */
} packed_rows;

static packed_rows rows_of(int64_t rows, int64_t depth) {
  packed_rows at = {.x_stride = round_up(depth, VEC_LANES) + X_PAD};
  const int64_t all = multiplied_rows(rows);
  const memory_part parts[] = {{&at.x_at, all, at.x_stride},
                               {&at.scale_at, rows, sizeof(float)},
                               {&at.excess_at, rows, sizeof(int32_t)},
                               {&at.sum_at, all, float_bytes(PRODUCT_COLUMNS)}};
  const bool fits = LAY_OUT(parts, &at.bytes);
  assert(fits); /* blocks are small */
  (void)fits;
  return at;
}

static int64_t memory_bytes(attn_dtype x, int64_t rows, int64_t depth) {
  (void)x;
  return rows_of(round_up(rows, 2), depth).bytes; /* fewer rows never need more */
}

/* The magnitude of the largest element, which a NaN is. */
static float most_of(const float *x, int64_t count) {
  __m512i most = _mm512_setzero_si512();
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (int64_t k = 0; k < count; k += VEC_LANES) {
    const __m512i bits = _mm512_castps_si512(_mm512_maskz_loadu_ps(first_lanes(min64(count - k, VEC_LANES)), x + k));
    most = _mm512_max_epi32(most, _mm512_and_si512(bits, magnitude));
  }
  const int bits = _mm512_reduce_max_epi32(most);
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

/* Integers up to a whole vector; 0 behind the last. Returns 128 times their sum. */
static int32_t round_row(const float *x, int64_t count, vec steps, int8_t *to) {
  __m512i sum = _mm512_setzero_si512();
  for (int64_t k = 0; k < count; k += VEC_LANES) {
    const vec value = _mm512_maskz_loadu_ps(first_lanes(min64(count - k, VEC_LANES)), x + k);
    const __m512i integer = _mm512_cvtps_epi32(_mm512_mul_ps(value, steps));
    sum = _mm512_add_epi32(sum, integer);
    _mm_storeu_si128((__m128i *)(void *)(to + k), _mm512_cvtepi32_epi8(integer));
  }
  return _mm512_reduce_add_epi32(_mm512_slli_epi32(sum, 7));
}

static void pack_x(const attn_product_block *b) {
  const packed_rows at = rows_of(b->rows, b->depth);
  char *memory = b->memory;
  float *scale = floats_at(memory, at.scale_at);
  int32_t *excess = (int32_t *)(void *)(memory + at.excess_at);
  assert(!b->x_transposed);
  for (int64_t i = 0; i < b->rows; i++) {
    const float *x = (const float *)b->x + i * b->x_stride, most = most_of(x, b->depth);
    scale[i] = int8_scale(most);
    excess[i] = round_row(x, b->depth, vec_set1(int8_steps(most)), (int8_t *)memory + at.x_at + i * at.x_stride);
  }
  const int64_t left = multiplied_rows(b->rows) - b->rows;
  memset(memory + at.x_at + b->rows * at.x_stride, 0, (size_t)(left * at.x_stride));
}

/* Finished sums of a panel. */
static ALWAYS_INLINE void finish(const attn_product_block *b, const packed_rows *at, const int vecs) {
  const char *memory = b->memory;
  for (int64_t i = 0; i < b->rows; i++) {
    const vec scale = vec_set1(((const float *)(const void *)(memory + at->scale_at))[i]);
    const __m512i excess = _mm512_set1_epi32(((const int32_t *)(const void *)(memory + at->excess_at))[i]);
    const char *sum = memory + at->sum_at + i * float_bytes(PRODUCT_COLUMNS);
    UNROLL
    for (int v = 0; v < vecs; v++) {
      const __m512i exact = _mm512_sub_epi32(_mm512_loadu_si512(sum + v * float_bytes(VEC_LANES)), excess);
      vec y = _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(exact), scale), vec_load(b->scale + v * VEC_LANES));
      if (b->bias) y = vec_add(y, vec_load(b->bias + v * VEC_LANES));
      vec_store(b->out + i * b->out_stride + v * VEC_LANES, y);
    }
  }
}

static void run(const attn_product_block *block) {
  const packed_rows at = rows_of(block->rows, block->depth);
  const int64_t vecs = ceil_div(block->columns, VEC_LANES), quads = ceil_div(block->depth, QUAD);
  attn_product_block b = *block;
  b.rows = multiplied_rows(block->rows);
  b.x = (char *)block->memory + at.x_at;
  b.x_stride = at.x_stride / QUAD;
  b.out = floats_at(block->memory, at.sum_at);
  b.out_stride = PRODUCT_COLUMNS;
  b.weights = ATTN_F32;
  b.scale = b.bias = NULL; /* see finish() */
  if (b.rows <= ATTN_PRODUCT_FEW_ROWS) {
    b.depth = quads;
    product_few(&b, 1, 0);
  } else {
    for (int64_t k = 0; k < quads; k += b.depth) {
      b.depth = min64(quads - k, PRODUCT_DEPTH);
      const int64_t behind = quads - k - b.depth;
      const char *end = (const char *)b.panel + b.depth * step_bytes(ATTN_I8);
      b.next_panel = behind ? end : block->next_panel;
      b.next_bytes = min64(behind ? behind : quads, PRODUCT_DEPTH) * step_bytes(ATTN_I8);
      product_panel(&b);
      b.x = (const float *)b.x + b.depth;
      b.panel = end;
      b.start = b.out;
      b.start_stride = b.out_stride;
    }
  }
  WITH_CONSTANT_VECS(vecs, finish, block, &at)
}

static const attn_product_form form = {.extent = extent,
                                       .depth_step = QUAD,
                                       .only_int8 = true,
                                       .step_bytes = step_bytes,
                                       .pack_step = pack_step,
                                       .memory_bytes = memory_bytes,
                                       .pack_x = pack_x};

const attn_product_kernel attn_product_avx512vnni = {.name = "product_avx512vnni",
                                                     .isa = "avx512vnni",
                                                     .tile_rows = TILE_ROWS,
                                                     .panel_columns = PRODUCT_COLUMNS,
                                                     .form = &form,
                                                     .run = run,
                                                     .finishes = true,
                                                     .activations = activation_rows};
