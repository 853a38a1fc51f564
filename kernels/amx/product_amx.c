/* SPDX-License-Identifier: MIT */
/* product_amx: dense layers in the tile unit. A float32 is the sum of three bf16 (parts_amx.h), and a product of two takes
 * six products of their parts; bf16 weights are one part, and take three; rows of bf16 by weights of bf16 take one. W is
 * split when it is packed, X once for each depth block:
 *
 *   X  [16 rows][step][part][16 rows][32 values]
 *   W  [panel of 64 columns][step][part][16 columns][16 pairs][16 columns][2 values]
 *
 * A step is 32 elements of depth, what one tile product sums over. The unit multiplies 32 rows x 32 columns at a time: each
 * tile that it loads takes part in two products. Tiles have as many rows as there are: the unit then takes as long as W
 * takes to come.
 *
 * Where there are parts, the sums of a depth block start from 0 in the unit; then the vectors add those of the blocks
 * before. Outputs that are not finite are computed once more by a chain of multiply-adds, because an infinity has parts that
 * are NaN: so they are as in the other tiers, and reach only their own rows and columns. Rows of bf16 have no parts, and
 * their sums stay in the unit. */
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
  MOST_ROWS = 192,   /* tested: 96 to 512 */
  DEPTH = 512,       /* each depth block reads and writes all sums; its parts of X and of a panel stay in level 2 */
  BF16_DEPTH = 2048, /* one block, in most layers: X is packed once */
  BF16_MOST_ROWS = 512,
  BF16_VALUES = 1 << 19, /* X packed takes half of level 2. W is read once for these rows */
  TILE_VALUES = SIDE * ROW_VALUES,
  PANEL_TILES = COLUMNS / SIDE
};

/* ---- Packing ---- */

/* The parts of W, or of X. */
static int parts_of(attn_dtype dtype) { return dtype == ATTN_BF16 ? 1 : PARTS; }
static int64_t x_step(attn_dtype x) { return parts_of(x) * TILE_VALUES; }

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

enum { GROUP_SUMS = 4 * SIDE * SIDE };

static int64_t sum_bytes(void) { return 2 * float_bytes(GROUP_SUMS); } /* two groups */

static int64_t memory_bytes(attn_dtype x, int64_t rows, int64_t depth) {
  return sum_bytes() + ceil_div(rows, SIDE) * ceil_div(depth, ROW_VALUES) * x_step(x) * (int64_t)sizeof(uint16_t);
}

static attn_product_extent extent(attn_dtype x, int64_t depth) {
  if (x != ATTN_BF16) return (attn_product_extent){MOST_ROWS, DEPTH};
  const int64_t rows = BF16_VALUES / min64(round_up(depth, ROW_VALUES), BF16_DEPTH);
  return (attn_product_extent){min64(rows, BF16_MOST_ROWS) / (2 * SIDE) * (2 * SIDE), BF16_DEPTH};
}

static uint16_t *packed_x(const attn_product_block *b) { return (uint16_t *)(void *)((char *)b->memory + sum_bytes()); }

/* A step of 16 rows. */
static void pack_rows(const attn_product_block *b, int64_t row, int64_t k, uint16_t *to) {
  for (int64_t i = 0; i < min64(SIDE, b->rows - row); i++) {
    __m512i part[PARTS];
    load_parts((const float *)b->x + (row + i) * b->x_stride + k, 1, b->depth - k, part);
    store_parts(part, to + i * ROW_VALUES, TILE_VALUES);
  }
}

/* All steps of 16 rows, row by row. */
static void pack_bf16_rows(const attn_product_block *b, int64_t row, uint16_t *to) {
  for (int64_t i = 0; i < min64(SIDE, b->rows - row); i++) {
    const uint16_t *x = (const uint16_t *)b->x + (row + i) * b->x_stride;
    for (int64_t k = 0; k < b->depth; k += ROW_VALUES)
      _mm512_storeu_si512(to + k * SIDE + i * ROW_VALUES, load_values(x + k, 1, b->depth - k));
  }
}

static void pack_bf16_columns(const attn_product_block *b, int64_t row, int64_t k, uint16_t *to) {
  for (int64_t j = 0; j < ROW_VALUES; j++)
    for (int64_t i = 0; i < min64(SIDE, b->rows - row); i++)
      to[i * ROW_VALUES + j] = k + j < b->depth ? ((const uint16_t *)b->x)[(k + j) * b->x_stride + row + i] : 0;
}

static void pack_columns(const attn_product_block *b, int64_t row, int64_t k, uint16_t *to) {
  vec x[2][SIDE]; /* x[0][i]: element k + i of depth of the rows, then the row i's first half */
  for (int64_t i = 0; i < ROW_VALUES; i++)
    x[i / SIDE][i % SIDE] =
        load_floats((const float *)b->x + (k + i) * b->x_stride + row, 1, k + i < b->depth ? b->rows - row : 0);
  vec_transpose(x[0]);
  vec_transpose(x[1]);
  for (int64_t i = 0; i < SIDE; i++) {
    __m512i part[PARTS];
    split_row(x[0][i], x[1][i], part);
    store_parts(part, to + i * ROW_VALUES, TILE_VALUES);
  }
}

static void pack_x(const attn_product_block *b) {
  const bool bf16 = b->x_dtype == ATTN_BF16;
  void (*const columns)(const attn_product_block *, int64_t, int64_t, uint16_t *) = bf16 ? pack_bf16_columns : pack_columns;
  const int64_t step = x_step(b->x_dtype), below = ceil_div(b->depth, ROW_VALUES) * step;
  uint16_t *to = packed_x(b);
  for (int64_t row = 0; row < b->rows; row += SIDE, to += below) {
    if (bf16 && !b->x_transposed)
      pack_bf16_rows(b, row, to);
    else
      for (int64_t k = 0; k < b->depth; k += ROW_VALUES)
        (b->x_transposed ? columns : pack_rows)(b, row, k, to + k / ROW_VALUES * step);
  }
}

/* ---- Sums ---- */

/* Up to 32 rows x 32 columns of the block. */
typedef struct tile_group {
  const attn_product_block *block;
  int64_t row, column;
  const uint16_t *x, *w;  /* the first step's */
  int64_t steps, x_below; /* values to the next 16 rows of x */
  bool begins, ends;      /* sums start from the block's start, not from out; sums are finished */
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
  const int64_t x_row = b->x_transposed ? 1 : b->x_stride, x_column = b->x_transposed ? b->x_stride : 1;
  const float *x = b->x;
  for (int64_t k = 0; k < b->depth; k++) sum = __builtin_fmaf(x[row * x_row + k * x_column], weight(b, k, column), sum);
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

/* Products of a step: those of PART_PRODUCTS whose parts there are. `two`: more than 16 rows. */
static ALWAYS_INLINE void multiply_step(const uint16_t *x, int64_t x_below, const uint16_t *w, const int x_parts,
                                        const int w_parts, const bool two) {
  int left = -1, right = -1; /* the parts that are in the tiles */
  UNROLL
  for (int i = 0; i < PART_PRODUCTS; i++) {
    if (left_part[i] >= x_parts || right_part[i] >= w_parts) continue;
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

static ALWAYS_INLINE void store_sums(float *to, int64_t stride, const bool two) {
  const int64_t bytes = stride * (int64_t)sizeof(float);
  _tile_stored(0, to, bytes);
  _tile_stored(1, to + SIDE, bytes);
  if (two) {
    _tile_stored(2, to + SIDE * stride, bytes);
    _tile_stored(3, to + SIDE * stride + SIDE, bytes);
  }
}

/* Finished sums of a group, of which rows from `row` on are not in Y yet. */
typedef struct finished_sums {
  const attn_product_block *block; /* NULL: none */
  float *sums;                     /* [32][32] */
  int64_t row, rows, first_row, column;
} finished_sums;

/* Some more rows to Y. */
static ALWAYS_INLINE void store_rows(finished_sums *f, int64_t count) {
  const attn_product_y *y = f->block->y;
  const int64_t columns = min64(2 * SIDE, f->block->columns - f->column), end = min64(f->row + count, f->rows);
  const __mmask32 there = (__mmask32)(((uint64_t)1 << columns) - 1);
  const vec nothing = vec_set1(-0.0f); /* to which a sum keeps the sign of 0 */
  const vec low = y->bias ? load_floats(y->bias + f->column, 1, columns) : nothing;
  const vec high = y->bias ? load_floats(y->bias + f->column + VEC_LANES, 1, columns - VEC_LANES) : nothing;
  for (; f->row < end; f->row++) {
    float *row = f->sums + f->row * 2 * SIDE;
    vec first = vec_add(vec_load(row), low), second = vec_add(vec_load(row + VEC_LANES), high);
    if (y->activate) {
      vec_store(row, first);
      vec_store(row + VEC_LANES, second);
      y->activate(row, 2 * SIDE);
      first = vec_load(row);
      second = vec_load(row + VEC_LANES);
    }
    const __m512bh values = _mm512_cvtne2ps_pbh(second, first);
    __m512i bits;
    memcpy(&bits, &values, sizeof bits);
    _mm512_mask_storeu_epi16(y->at + (f->first_row + f->row) * y->stride + f->column, there, bits);
  }
}

static NO_INLINE void finish(finished_sums *f) {
  if (f->row < f->rows) store_rows(f, f->rows);
}

/* The vectors store the sums of the group before, if there are such, while the unit multiplies. */
static ALWAYS_INLINE void multiply_steps(const tile_group *g, finished_sums *before, const int x_parts, const int w_parts,
                                         const bool two) {
  const uint16_t *x = g->x, *w = g->w;
  const int64_t rows = ceil_div(2 * SIDE, g->steps);
  for (int64_t step = 0; step < g->steps; step++, x += x_parts * TILE_VALUES, w += w_parts * PANEL_TILES * TILE_VALUES) {
    multiply_step(x, g->x_below, w, x_parts, w_parts, two);
    if (before && before->row < before->rows) store_rows(before, rows);
  }
}

static ALWAYS_INLINE void multiply_parts(const tile_group *g, const int w_parts, const bool two) {
  float *sums = g->block->memory;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  tiles_see_stores();
  multiply_steps(g, NULL, PARTS, w_parts, two);
  store_sums(sums, 2 * SIDE, two);
  add_sums(g, sums);
}

static ALWAYS_INLINE void multiply_bf16(const tile_group *g, finished_sums *before, const bool two) {
  const attn_product_block *b = g->block;
  const int64_t stride = g->begins ? b->start_stride : b->out_stride;
  const float *start = (g->begins ? b->start : b->out) + g->row * stride + g->column;
  const int64_t below = SIDE * stride, bytes = stride * (int64_t)sizeof(float);
  tiles_see_stores();
  _tile_loadd(0, start, bytes);
  _tile_loadd(1, start + SIDE, bytes);
  if (two) {
    _tile_loadd(2, start + below, bytes);
    _tile_loadd(3, start + below + SIDE, bytes);
  }
  multiply_steps(g, before, 1, 1, two);
  if (b->y && g->ends) {
    float *sums = (float *)b->memory + (before->sums == b->memory ? GROUP_SUMS : 0);
    store_sums(sums, 2 * SIDE, two);
    *before = (finished_sums){b, sums, 0, min64(2 * SIDE, b->rows - g->row), g->row, g->column};
  } else {
    store_sums(b->out + g->row * b->out_stride + g->column, b->out_stride, two);
  }
  tiles_see_stores();
}

static NO_INLINE void multiply_group(const tile_group *g, finished_sums *before, bool two) {
  const int w_parts = parts_of(g->block->weights);
  if (g->block->x_dtype == ATTN_BF16)
    two ? multiply_bf16(g, before, true) : multiply_bf16(g, before, false);
  else if (w_parts == 1)
    two ? multiply_parts(g, 1, true) : multiply_parts(g, 1, false);
  else
    two ? multiply_parts(g, PARTS, true) : multiply_parts(g, PARTS, false);
}

/* Tiles 0, 1 and 4 hold the first 16 of the rows, 2, 3 and 5 the others. */
static void configure(int64_t rows) {
  const uint8_t first = (uint8_t)min64(rows, SIDE), second = (uint8_t)max64(rows - SIDE, 1);
  tile_config config = eight_tiles;
  config.rows[0] = config.rows[1] = config.rows[4] = first;
  config.rows[2] = config.rows[3] = config.rows[5] = second;
  __asm__ volatile("" : : "r"(&config) : "memory"); /* see eight_tiles */
  _tile_loadconfig(&config);
}

/* Rows first .. end, 32 at a time or all of them. */
static void multiply_rows(const attn_product_block *b, int64_t first, int64_t end, finished_sums *before) {
  const int64_t steps = ceil_div(b->depth, ROW_VALUES), x_below = steps * x_step(b->x_dtype);
  const int64_t w_step = step_bytes(b->weights) / (int64_t)sizeof(uint16_t);
  if (first == end) return;
  configure(min64(end - first, 2 * SIDE));
  const int64_t chunk = DEPTH / ROW_VALUES; /* its sums leave the unit, so that W of the columns stays in L1 */
  for (int64_t column = 0; column < b->columns; column += 2 * SIDE)
    for (int64_t step = 0; step < steps; step += chunk)
      for (int64_t row = first; row < end; row += 2 * SIDE) {
        const tile_group group = {.block = b,
                                  .row = row,
                                  .column = column,
                                  .x = packed_x(b) + row / SIDE * x_below + step * x_step(b->x_dtype),
                                  .w = (const uint16_t *)b->panel + step * w_step + column / SIDE * TILE_VALUES,
                                  .steps = min64(steps - step, chunk),
                                  .x_below = x_below,
                                  .begins = step == 0,
                                  .ends = step + chunk >= steps};
        multiply_group(&group, before, end - row > SIDE);
      }
}

static void product_amx_run(const attn_product_block *b) {
  const int64_t whole = b->rows / (2 * SIDE) * (2 * SIDE);
  finished_sums before = {0};
  multiply_rows(b, 0, whole, &before);
  multiply_rows(b, whole, b->rows, &before);
  finish(&before);
  _tile_release();
}

static const attn_product_form form = {.extent = extent,
                                       .depth_step = ROW_VALUES,
                                       .takes_bf16 = true,
                                       .step_bytes = step_bytes,
                                       .pack_step = pack_step,
                                       .memory_bytes = memory_bytes,
                                       .pack_x = pack_x};

const attn_product_kernel attn_product_amx = {.name = "product_amx",
                                              .isa = "amx",
                                              .tile_rows = 2 * SIDE,
                                              .panel_columns = COLUMNS,
                                              .form = &form,
                                              .run = product_amx_run,
                                              .activations = activation_rows};
