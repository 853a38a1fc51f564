/* SPDX-License-Identifier: MIT */
/* product_amx: dense layers in the tile unit. A float32 is the sum of three bf16 (parts_amx.h), and a product of two takes
 * six products of their parts; bf16 weights are one part, and take three. W is split when it is packed, X once for each
 * depth block:
 *
 *   X  [16 rows][step][part][16 rows][32 values]
 *   W  [panel of 64 columns][step][part][16 columns][16 pairs][16 columns][2 values]
 *
 * A step is 32 elements of depth, what one tile product sums over. The unit multiplies 32 rows x 32 columns at a time: each
 * tile that it loads takes part in two products. The sums of a depth block start from 0 in the unit; then the vectors add
 * those of the blocks before. Outputs that are not finite are computed once more by a chain of multiply-adds, because an
 * infinity has parts that are NaN: so they are as in the other tiers, and reach only their own rows and columns. */
#define PARTS 3
#include "parts_amx.h"

#include <assert.h>
#include <float.h>

#include "kernels/common/memory/memory.h"
#include "kernels/common/problem/arithmetic.h"
#include "kernels/common/tiles/activations.h"
#include "kernels/product.h"
#include "tiles_amx.h"

enum {
  SIDE = 16, /* rows, or columns, of a tile of sums */
  COLUMNS = 64,
  MOST_ROWS = 192, /* tested: 96 to 512 */
  DEPTH = 512,     /* each depth block reads and writes all sums; its parts of X and of a panel stay in level 2 */
  TILE_VALUES = SIDE * ROW_VALUES,
  X_STEP = PARTS * TILE_VALUES,
  PANEL_TILES = COLUMNS / SIDE
};

/* ---- Packing ---- */

static int parts_of(attn_dtype weights) { return weights == ATTN_BF16 ? 1 : PARTS; }

static int64_t step_bytes(attn_dtype weights) {
  return parts_of(weights) * PANEL_TILES * TILE_VALUES * (int64_t)sizeof(uint16_t);
}

/* The parts of a weight as bf16; an infinity or NaN has one. */
static void split_weight(float value, uint16_t part[PARTS]) {
  for (int i = 0; i < PARTS; i++) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const bool finite = (bits & 0x7fffffff) <= 0x7f7fffff, nan = (bits & 0x7fffffff) > 0x7f800000;
    part[i] = (uint16_t)(bits >> 16 | (nan ? 0x40 : 0)); /* a NaN whose upper half is that of an infinity stays a NaN */
    bits = finite ? bits & 0xffff0000 : bits;
    float high;
    memcpy(&high, &bits, sizeof high);
    value = finite ? value - high : 0;
  }
}

/* Where element k of a column of a step's part stands. */
static int64_t weight_at(int64_t k, int64_t column) {
  return column / SIDE * TILE_VALUES + k / 2 * ROW_VALUES + column % SIDE * 2 + k % 2;
}

static void pack_step(const float *step, attn_dtype weights, void *packed) {
  uint16_t *to = packed;
  for (int64_t k = 0; k < ROW_VALUES; k++)
    for (int64_t c = 0; c < COLUMNS; c++) {
      uint16_t part[PARTS];
      split_weight(step[k * COLUMNS + c], part);
      for (int i = 0; i < parts_of(weights); i++) to[i * PANEL_TILES * TILE_VALUES + weight_at(k, c)] = part[i];
    }
}

static int64_t sum_bytes(void) { return 4 * float_bytes(SIDE * SIDE); }

static int64_t memory_bytes(int64_t rows, int64_t depth) {
  return sum_bytes() + ceil_div(rows, SIDE) * ceil_div(depth, ROW_VALUES) * X_STEP * (int64_t)sizeof(uint16_t);
}

static uint16_t *packed_x(const attn_product_block *b) { return (uint16_t *)(void *)((char *)b->memory + sum_bytes()); }

/* A step of 16 rows. */
static void pack_rows(const attn_product_block *b, int64_t row, int64_t k, uint16_t *to) {
  for (int64_t i = 0; i < min64(SIDE, b->rows - row); i++) {
    __m512i part[PARTS];
    load_parts(b->x + (row + i) * b->x_stride + k, 1, b->depth - k, part);
    store_parts(part, to + i * ROW_VALUES, TILE_VALUES);
  }
}

static void pack_columns(const attn_product_block *b, int64_t row, int64_t k, uint16_t *to) {
  vec x[2][SIDE]; /* x[0][i]: element k + i of depth of the rows, then the row i's first half */
  for (int64_t i = 0; i < ROW_VALUES; i++)
    x[i / SIDE][i % SIDE] = load_floats(b->x + (k + i) * b->x_stride + row, 1, k + i < b->depth ? b->rows - row : 0);
  vec_transpose(x[0]);
  vec_transpose(x[1]);
  for (int64_t i = 0; i < SIDE; i++) {
    __m512i part[PARTS];
    split_row(x[0][i], x[1][i], part);
    store_parts(part, to + i * ROW_VALUES, TILE_VALUES);
  }
}

static void pack_x(const attn_product_block *b) {
  uint16_t *to = packed_x(b);
  for (int64_t row = 0; row < b->rows; row += SIDE)
    for (int64_t k = 0; k < b->depth; k += ROW_VALUES, to += X_STEP)
      (b->x_transposed ? pack_columns : pack_rows)(b, row, k, to);
}

/* ---- Sums ---- */

/* Up to 32 rows x 32 columns of the block. */
typedef struct tile_group {
  const attn_product_block *block;
  int64_t row, column;
  const uint16_t *x, *w;          /* the first step's */
  int64_t steps, x_below, w_part; /* values to the next 16 rows, to the next part */
} tile_group;

static float weight(const attn_product_block *b, int64_t k, int64_t column) {
  const int parts = parts_of(b->weights);
  const uint16_t *step = (const uint16_t *)b->panel + k / ROW_VALUES * parts * PANEL_TILES * TILE_VALUES;
  float sum = 0;
  for (int i = parts - 1; i >= 0; i--) {
    const uint32_t bits = (uint32_t)step[i * PANEL_TILES * TILE_VALUES + weight_at(k % ROW_VALUES, column)] << 16;
    float part;
    memcpy(&part, &bits, sizeof part);
    sum += part;
  }
  return sum;
}

static NO_INLINE float add_chain(const attn_product_block *b, int64_t row, int64_t column, float sum) {
  const int64_t x_row = b->x_transposed ? 1 : b->x_stride, x_step = b->x_transposed ? b->x_stride : 1;
  for (int64_t k = 0; k < b->depth; k++) sum = __builtin_fmaf(b->x[row * x_row + k * x_step], weight(b, k, column), sum);
  return sum;
}

static NO_INLINE void add_chains(const attn_product_block *b, int64_t row, int64_t column, vec start, __mmask16 lanes,
                                 vec *sum) {
  float from[VEC_LANES], to[VEC_LANES];
  vec_store(from, start);
  vec_store(to, *sum);
  for (int i = 0; i < VEC_LANES; i++)
    if (lanes >> i & 1) to[i] = add_chain(b, row, column + i, from[i]);
  *sum = vec_load(to);
}

/* out = start + the sums of a group. */
static void add_sums(const tile_group *g, const float *sums) {
  const attn_product_block *b = g->block;
  const int64_t rows = min64(2 * SIDE, b->rows - g->row);
  tiles_see_stores();
  for (int64_t i = 0; i < rows; i++) {
    const float *start = b->start + (g->row + i) * b->start_stride + g->column;
    float *out = b->out + (g->row + i) * b->out_stride + g->column;
    UNROLL
    for (int c = 0; c < 2 * SIDE; c += SIDE) {
      const vec from = vec_load(start + c);
      vec sum = vec_add(from, vec_load(sums + i * 2 * SIDE + c));
      const __mmask16 infinite = _mm512_cmp_ps_mask(vec_abs(sum), vec_set1(FLT_MAX), _CMP_NLE_UQ);
      if (__builtin_expect(infinite, 0)) add_chains(b, g->row + i, g->column + c, from, infinite, &sum);
      vec_store(out + c, sum);
    }
  }
}

/* ---- Products ---- */

/* Products of a step: all of PART_PRODUCTS or, for weights of one part, those with it. `two`: 32 rows, not 16. */
static ALWAYS_INLINE void multiply_step(const uint16_t *x, int64_t x_below, const uint16_t *w, const int w_parts,
                                        const bool two) {
  int left = -1, right = -1; /* the parts that are in the tiles */
  UNROLL
  for (int i = 0; i < PART_PRODUCTS; i++) {
    if (right_part[i] >= w_parts) continue;
    const uint16_t *from_x = x + left_part[i] * TILE_VALUES, *from_w = w + right_part[i] * PANEL_TILES * TILE_VALUES;
    const bool new_x = left_part[i] != left, new_w = right_part[i] != right;
    left = left_part[i], right = right_part[i];
    if (new_x) _tile_loadd(4, from_x, 64);
    if (new_w) _tile_loadd(6, from_w, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (new_w) _tile_loadd(7, from_w + TILE_VALUES, 64);
    _tile_dpbf16ps(1, 4, 7);
    if (two) {
      if (new_x) _tile_loadd(5, from_x + x_below, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
}

static ALWAYS_INLINE void multiply_group(const tile_group *g, const int w_parts, const bool two) {
  enum { ROW_BYTES = 2 * SIDE * sizeof(float) };
  float *sums = g->block->memory;
  const uint16_t *x = g->x, *w = g->w;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  tiles_see_stores();
  for (int64_t step = 0; step < g->steps; step++, x += X_STEP, w += w_parts * PANEL_TILES * TILE_VALUES)
    multiply_step(x, g->x_below, w, w_parts, two);
  _tile_stored(0, sums, ROW_BYTES);
  _tile_stored(1, sums + SIDE, ROW_BYTES);
  if (two) {
    _tile_stored(2, sums + SIDE * 2 * SIDE, ROW_BYTES);
    _tile_stored(3, sums + SIDE * 2 * SIDE + SIDE, ROW_BYTES);
  }
  add_sums(g, sums);
}

static NO_INLINE void multiply_one_part(const tile_group *g, bool two) {
  if (two)
    multiply_group(g, 1, true);
  else
    multiply_group(g, 1, false);
}

static NO_INLINE void multiply_parts(const tile_group *g, bool two) {
  if (two)
    multiply_group(g, PARTS, true);
  else
    multiply_group(g, PARTS, false);
}

static void product_amx_run(const attn_product_block *b) {
  const int64_t steps = ceil_div(b->depth, ROW_VALUES);
  _tile_loadconfig(&eight_tiles);
  for (int64_t column = 0; column < b->columns; column += 2 * SIDE)
    for (int64_t row = 0; row < b->rows; row += 2 * SIDE) {
      const tile_group group = {.block = b,
                                .row = row,
                                .column = column,
                                .x = packed_x(b) + row / SIDE * steps * X_STEP,
                                .w = (const uint16_t *)b->panel + column / SIDE * TILE_VALUES,
                                .steps = steps,
                                .x_below = steps * X_STEP};
      (parts_of(b->weights) == 1 ? multiply_one_part : multiply_parts)(&group, b->rows - row > SIDE);
    }
  _tile_release();
}

static const attn_product_form form = {MOST_ROWS, ROW_VALUES, step_bytes, pack_step, memory_bytes, pack_x};

const attn_product_kernel attn_product_amx = {.name = "product_amx",
                                              .isa = "amx",
                                              .tile_rows = 2 * SIDE,
                                              .panel_columns = COLUMNS,
                                              .depth_block = DEPTH,
                                              .form = &form,
                                              .run = product_amx_run,
                                              .activations = activation_rows};
