/* SPDX-License-Identifier: MIT */
/* A tier's product (kernels/product.h) made from its register tile: rows of X against one packed panel of W.
 *
 * Parameters: those of register_tile.h, and PRODUCT_GROUPS, optional: pairs of bf16, or four of int8, take the place of
 * floats, which vec_fma_factor() multiplies; tested: avx512bf16, avx512vnni. PRODUCT_KERNEL(isa) defines the tier's
 * attn_product_<isa> of floats. */
#ifndef ATTN_COMMON_PRODUCT_PANEL_H
#define ATTN_COMMON_PRODUCT_PANEL_H

#include <assert.h>

#include "activations.h"
#include "kernels/common/memory/prefetch.h"
#include "kernels/common/problem/arithmetic.h"
#include "kernels/common/problem/convert.h"
#include "kernels/product.h"
#include "register_tile.h"

enum {
  PRODUCT_COLUMNS = TILE_VECS * VEC_LANES,
  LEVEL1_DEPTH = PRODUCT_COLUMNS <= 32 ? 256 : 128,           /* 12 to 32 KiB of panel in L1 beside the rows of X */
  PRODUCT_DEPTH = PRODUCT_COLUMNS <= 32 ? LEVEL1_DEPTH : 512, /* 128 KiB in L2; tested: 128, 256, 384 */
  AHEAD_STEPS = TILE_ROWS * TILE_VECS <= 16 ? 16 : 8,         /* depth from one prefetch to the next: some 200 products */
  SHORT_ROWS = TILE_ROWS > 4 ? 4 : TILE_ROWS                  /* rows of a tile where whole ones would share some */
};

/* Lines that the tiles of a block bring to level 2 on their way: so many bytes in AHEAD_STEPS steps. */
typedef struct lines_ahead {
  uintptr_t at; /* may end up beyond W: prefetches never fault */
  uintptr_t bytes;
} lines_ahead;

/* The next panel comes from level 3 or memory. */
static lines_ahead ahead_of(const attn_product_block *block) {
  const int64_t turns = ceil_div(block->rows, TILE_ROWS) * (block->depth / AHEAD_STEPS);
  if (!block->next_panel || turns == 0) return (lines_ahead){0, 0};
  return (lines_ahead){(uintptr_t)block->next_panel, (uintptr_t)round_up(ceil_div(block->next_bytes, turns), LINE_BYTES)};
}

/* Rows of a tile that are written and not read: they may be in memory, as Y. */
typedef struct written_rows {
  const float *at;
  int64_t stride;
  int lines; /* vectors of all rows, or 0 */
} written_rows;

static ALWAYS_INLINE void prefetch_line(uintptr_t at) { __builtin_prefetch((const void *)at, 0, 2); }

/* product_of() of a whole tile, or of SHORT_ROWS that are not transposed. */
static ALWAYS_INLINE void product_of_rows(vec sum[TILE_ROWS][TILE_VECS], float_rows x, const bool transposed,
                                          float_rows panel, int64_t depth, const int rows, const int vecs) {
  if (rows == TILE_ROWS) {
    product_of(sum, x, transposed, panel, depth, vecs);
    return;
  }
  UNROLL_4
  for (int64_t k = 0; k < depth; k++) {
    vec w[TILE_VECS];
    UNROLL
    for (int v = 0; v < vecs; v++) w[v] = vec_load(panel.at + k * panel.stride + v * VEC_LANES);
    UNROLL
    for (int i = 0; i < rows; i++) {
      const vec_factor factor = vec_factor_at(x.at + i * x.stride + k);
      UNROLL
      for (int v = 0; v < vecs; v++) sum[i][v] = vec_fma_factor(factor, w[v], sum[i][v]);
    }
  }
}

/* product_of_rows() with prefetches evenly between its steps. Many at once would hold up all loads behind them. Of a
 * transposed x the next lines of all rows are, because it may lie as the caller has it. */
static ALWAYS_INLINE void product_ahead(vec sum[TILE_ROWS][TILE_VECS], float_rows x, float_rows panel, int64_t depth,
                                        const bool transposed, const int rows, const int vecs, lines_ahead ahead,
                                        const written_rows out) {
  int64_t k = 0;
  int line = 0;
  NO_UNROLL
  for (; k + AHEAD_STEPS <= depth; k += AHEAD_STEPS) {
    const uintptr_t end = ahead.at + ahead.bytes;
    NO_UNROLL
    for (; ahead.at < end; ahead.at += LINE_BYTES) prefetch_line(ahead.at);
    UNROLL
    for (int j = 0; transposed && j < AHEAD_STEPS; j++) prefetch_line((uintptr_t)(x.at + j * x.stride) + LINE_BYTES);
    if (line < out.lines) __builtin_prefetch(out.at + line / vecs * out.stride + line % vecs * VEC_LANES, 1, 3);
    line++;
    product_of_rows(sum, x, transposed, panel, AHEAD_STEPS, rows, vecs);
    x.at += AHEAD_STEPS * (transposed ? x.stride : 1);
    panel.at += AHEAD_STEPS * panel.stride;
  }
  product_of_rows(sum, x, transposed, panel, depth - k, rows, vecs);
}

static ALWAYS_INLINE void scale_columns(vec sum[TILE_ROWS][TILE_VECS], const float *scale, const int rows, const int vecs) {
  UNROLL
  for (int v = 0; v < vecs; v++) {
    const vec x = vec_load(scale + v * VEC_LANES);
    UNROLL
    for (int i = 0; i < rows; i++) sum[i][v] = vec_mul(sum[i][v], x);
  }
}

static ALWAYS_INLINE void add_bias(vec sum[TILE_ROWS][TILE_VECS], const float *bias, const int rows, const int vecs) {
  UNROLL
  for (int v = 0; v < vecs; v++) {
    const vec x = vec_load(bias + v * VEC_LANES);
    UNROLL
    for (int i = 0; i < rows; i++) sum[i][v] = vec_add(sum[i][v], x);
  }
}

/* Rows `from` .. of a tile. */
static ALWAYS_INLINE void store_rows(vec sum[TILE_ROWS][TILE_VECS], float *at, int64_t stride, int from, const int rows,
                                     const int vecs) {
  UNROLL
  for (int i = 0; i < rows; i++) {
    if (i < from) continue;
    UNROLL
    for (int v = 0; v < vecs; v++) vec_store(at + i * stride + v * VEC_LANES, sum[i][v]);
  }
}

/* The tile of `rows` rows with row i. The last one may share rows with the one before, which it leaves as they are. */
static ALWAYS_INLINE void product_tile(const attn_product_block b, int64_t i, const int rows, const bool transposed,
                                       const lines_ahead ahead, const int vecs) {
  const int64_t first = min64(i, b.rows - rows);
  const float_rows x = {(const float *)b.x + first * (transposed ? 1 : b.x_stride), b.x_stride};
  const float_rows panel = {b.panel, PRODUCT_COLUMNS};
  const float *start = b.start + first * b.start_stride;
  float *out = b.out + first * b.out_stride;
  vec sum[TILE_ROWS][TILE_VECS];
  UNROLL
  for (int r = 0; r < rows; r++) {
    UNROLL
    for (int v = 0; v < vecs; v++) sum[r][v] = vec_load(start + r * b.start_stride + v * VEC_LANES);
  }
  const written_rows written = {out, b.out_stride, b.start == b.out ? 0 : rows * vecs};
  product_ahead(sum, x, panel, b.depth, transposed, rows, vecs, ahead, written);
  if (b.scale) scale_columns(sum, b.scale, rows, vecs);
  if (b.bias) add_bias(sum, b.bias, rows, vecs);
  if (first == i)
    store_rows(sum, out, b.out_stride, 0, rows, vecs);
  else
    store_rows(sum, out, b.out_stride, (int)(i - first), rows, vecs);
}

/* X transposed: a function of its own, so that its tiles do not compete with the others for registers. */
static NO_INLINE void product_panel_transposed(const attn_product_block *block, int64_t vecs, lines_ahead ahead) {
  const uintptr_t bytes = ahead.bytes * (uintptr_t)(block->depth / AHEAD_STEPS);
  for (int64_t i = 0; i < block->rows; i += TILE_ROWS, ahead.at += bytes) {
    WITH_CONSTANT_VECS(vecs, product_tile, *block, i, TILE_ROWS, true, ahead)
  }
}

/* The rows at the end that tiles of SHORT_ROWS take, so that no tile shares rows: 32 are 4 of 6 and 2 of 4. There are as
 * many tiles as without, or 0 rows where they do not come out even. */
static int64_t rows_of_short_tiles(int64_t rows) {
  const int64_t whole = TILE_ROWS, part = SHORT_ROWS;
  for (int64_t n = part; part < whole && n <= 2 * part && n <= rows; n += part)
    if ((rows - n) % whole == 0 && rows % whole != 0) return n;
  return 0;
}

static void product_panel(const attn_product_block *block) {
  const int64_t vecs = ceil_div(block->columns, VEC_LANES);
  assert(block->rows >= TILE_ROWS && block->columns >= 1 && block->columns <= PRODUCT_COLUMNS);
  assert(block->depth >= 0 && block->depth <= PRODUCT_DEPTH);
  lines_ahead ahead = ahead_of(block);
  if (block->x_transposed) {
    product_panel_transposed(block, vecs, ahead);
    return;
  }
  const uintptr_t bytes = ahead.bytes * (uintptr_t)(block->depth / AHEAD_STEPS);
  const int64_t whole = block->rows - rows_of_short_tiles(block->rows);
  int64_t i = 0;
  for (; i < whole; i += TILE_ROWS, ahead.at += bytes) {
    WITH_CONSTANT_VECS(vecs, product_tile, *block, i, TILE_ROWS, false, ahead)
  }
  for (; i < block->rows; i += SHORT_ROWS, ahead.at += bytes) {
    WITH_CONSTANT_VECS(vecs, product_tile, *block, i, SHORT_ROWS, false, ahead)
  }
}

/* A vector of weights; `type`, that of a float or int8, is a constant at every call. */
static ALWAYS_INLINE vec load_weights(const void *at, const attn_dtype type) {
  if (type == ATTN_F32) return vec_load(at);
  if (type == ATTN_F16) return vec_load_f16(at);
  return type == ATTN_BF16 ? vec_load_bf16(at) : vec_load_i8(at);
}

static ALWAYS_INLINE int64_t weight_bytes(const attn_dtype type) { return type == ATTN_F32 ? 4 : type == ATTN_I8 ? 1 : 2; }

/* The same of `vecs` vectors of a panel's line, from vector `first` on. */
static ALWAYS_INLINE void load_line(vec w[TILE_VECS], const char *line, const attn_dtype type, const int first,
                                    const int vecs) {
  const int64_t vector = VEC_LANES * weight_bytes(type);
#ifdef VEC_BF16_PAIRS
  assert(first % 2 == 0 && vecs % 2 == 0);
  UNROLL
  for (int v = 0; type == ATTN_BF16 && v < vecs; v += 2)
    vec_load_bf16_pairs((const uint16_t *)(const void *)(line + (first + v) * vector), w + v);
  if (type == ATTN_BF16) return;
#endif
  UNROLL
  for (int v = 0; v < vecs; v++) w[v] = load_weights(line + (first + v) * vector, type);
}

/* ---- Few rows ---- */

enum {
  FEW_TILE = 4,     /* rows that share a load of W */
  FEW_AHEAD = 32768 /* bytes; tested: 8 to 128 KiB */
};

/* Two tiles read a part of a panel in turns, and memory would rest while the second one does. So each prefetches half of the
 * lines that are FEW_AHEAD further; a single tile leaves that to the CPU. */
typedef enum few_turn { FEW_FIRST, FEW_SECOND, FEW_ALONE } few_turn;

/* Lines beside a step of `bytes` bytes, with the first half rounded up. They may be beyond W. */
static ALWAYS_INLINE void prefetch_few(const char *step, int64_t bytes, const few_turn turn) {
  const int64_t lines = turn == FEW_ALONE ? 0 : ceil_div(bytes, LINE_BYTES), half = ceil_div(lines, 2);
  const int64_t begin = turn == FEW_SECOND ? half : 0, end = turn == FEW_SECOND ? lines : half;
  for (int64_t i = begin; i < end; i++)
    __builtin_prefetch((const void *)((uintptr_t)step + FEW_AHEAD + (uintptr_t)i * LINE_BYTES), 0, 2);
}

/* The part of panels that a tile of few rows takes: the first ones, of a line `vecs` vectors from `first` on. Constants at
 * every call. */
typedef struct few_part {
  int panels, first, vecs;
} few_part;

static ALWAYS_INLINE void few_tile(const attn_product_block *b, const char *panel, int64_t panel_bytes, int64_t column,
                                   const attn_dtype type, const int rows, const few_part part, const few_turn turn) {
  const int64_t step = PRODUCT_COLUMNS * weight_bytes(type);
  vec sum[ATTN_PRODUCT_FEW_ROWS][TILE_VECS]; /* sum[i * panels + p]: row i, panel p */
  column += part.first * VEC_LANES;
  UNROLL
  for (int n = 0; n < rows * part.panels; n++) {
    const float *start = b->start + n / part.panels * b->start_stride;
    if (b->start == b->out) start += column + n % part.panels * PRODUCT_COLUMNS;
    UNROLL
    for (int v = 0; v < part.vecs; v++) sum[n][v] = vec_load(start + v * VEC_LANES);
  }
  UNROLL_4
  for (int64_t k = 0; k < b->depth; k++) {
    prefetch_few(panel + k * step, step, turn);
    UNROLL
    for (int p = 0; p < part.panels; p++) {
      vec w[TILE_VECS];
      load_line(w, panel + p * panel_bytes + k * step, type, part.first, part.vecs);
      UNROLL
      for (int i = 0; i < rows; i++) {
        const vec_factor x = vec_factor_at((const float *)b->x + i * b->x_stride + k);
        UNROLL
        for (int v = 0; v < part.vecs; v++)
          sum[i * part.panels + p][v] = vec_fma_factor(x, w[v], sum[i * part.panels + p][v]);
      }
    }
  }
  UNROLL
  for (int n = 0; n < rows * part.panels; n++) {
    float *out = b->out + n / part.panels * b->out_stride + column + n % part.panels * PRODUCT_COLUMNS;
    UNROLL
    for (int v = 0; v < part.vecs; v++) vec_store(out + v * VEC_LANES, sum[n][v]);
  }
}

/* FEW_TILE / rows panels at once, so that there are as many chains of sums for any number of rows: a single chain would wait
 * for each of its additions. */
static ALWAYS_INLINE void few_panels(const attn_product_block *b, int64_t panels, int64_t panel_bytes, const attn_dtype type,
                                     const int rows, const few_turn turn) {
  const few_part group = {FEW_TILE / rows, 0, TILE_VECS}, one = {1, 0, TILE_VECS};
  const char *panel = b->panel;
  int64_t p = 0;
  for (; p + group.panels <= panels; p += group.panels)
    few_tile(b, panel + p * panel_bytes, panel_bytes, p * PRODUCT_COLUMNS, type, rows, group, turn);
  for (; p < panels; p++) few_tile(b, panel + p * panel_bytes, panel_bytes, p * PRODUCT_COLUMNS, type, rows, one, turn);
}

static ALWAYS_INLINE void few_rows(const attn_product_block *b, int64_t panels, int64_t panel_bytes, const attn_dtype type,
                                   const few_turn turn) {
  assert(b->rows == 1 || b->rows == 2 || b->rows == FEW_TILE);
  if (b->rows == 1)
    few_panels(b, panels, panel_bytes, type, 1, turn);
  else if (b->rows == 2)
    few_panels(b, panels, panel_bytes, type, 2, turn);
  else
    few_panels(b, panels, panel_bytes, type, FEW_TILE, turn);
}

/* More than a tile, in weights that are widened: each vector once for all rows, half a line of a panel at a time. */
static ALWAYS_INLINE void few_halves(const attn_product_block *b, const attn_dtype type, const int rows) {
  const few_part left = {1, 0, (TILE_VECS + 1) / 2}, right = {1, (TILE_VECS + 1) / 2, TILE_VECS / 2};
  few_tile(b, b->panel, 0, 0, type, rows, left, FEW_FIRST);
  few_tile(b, b->panel, 0, 0, type, rows, right, FEW_SECOND);
}

static ALWAYS_INLINE void few_lines(const attn_product_block *b, const attn_dtype type) {
  assert(b->rows == 5 || b->rows == 6 || b->rows == ATTN_PRODUCT_FEW_ROWS);
  if (b->rows == 5)
    few_halves(b, type, 5);
  else if (b->rows == 6)
    few_halves(b, type, 6);
  else
    few_halves(b, type, ATTN_PRODUCT_FEW_ROWS);
}

/* More than a tile: in rows, the second of which finds each part of a panel in L1. */
static ALWAYS_INLINE void few_tiles(const attn_product_block *b, const attn_dtype type) {
  attn_product_block part = *b;
  part.rows = FEW_TILE;
  few_rows(&part, 1, 0, type, FEW_FIRST);
  part.rows = b->rows - FEW_TILE;
  part.x = (const float *)b->x + FEW_TILE * b->x_stride;
  part.start += FEW_TILE * b->start_stride;
  part.out += FEW_TILE * b->out_stride;
  few_rows(&part, 1, 0, type, FEW_SECOND);
}

/* Parts of panels, which are read twice: from L1 then. Halves of lines are for weights that are widened; half of a line of 2
 * vectors would leave one sum per row, too few to add to at the same time. */
static ALWAYS_INLINE void few_parts(const attn_product_block *b, int64_t panels, int64_t panel_bytes,
                                    const attn_dtype type) {
  const int64_t step = PRODUCT_COLUMNS * weight_bytes(type);
  for (int64_t p = 0; p < panels; p++)
    for (int64_t k = 0; k < b->depth; k += LEVEL1_DEPTH) {
      attn_product_block part = *b;
      part.depth = min64(b->depth - k, LEVEL1_DEPTH);
      part.x = (const float *)b->x + k;
      part.panel = (const char *)b->panel + p * panel_bytes + k * step;
      part.out += p * PRODUCT_COLUMNS;
      if (k > 0 || b->start == b->out) {
        part.start = part.out;
        part.start_stride = b->out_stride;
      }
      if (type == ATTN_F32 || TILE_VECS < 4)
        few_tiles(&part, type);
      else
        few_lines(&part, type);
    }
}

static ALWAYS_INLINE void few_of_type(const attn_product_block *b, int64_t panels, int64_t panel_bytes,
                                      const attn_dtype type) {
  if (b->rows <= FEW_TILE)
    few_rows(b, panels, panel_bytes, type, FEW_ALONE);
  else
    few_parts(b, panels, panel_bytes, type);
}

static void product_few(const attn_product_block *block, int64_t panels, int64_t panel_bytes) {
#ifdef PRODUCT_GROUPS
  few_of_type(block, panels, panel_bytes, ATTN_F32);
#else
  if (block->weights == ATTN_F32)
    few_of_type(block, panels, panel_bytes, ATTN_F32);
  else if (block->weights == ATTN_F16)
    few_of_type(block, panels, panel_bytes, ATTN_F16);
  else if (block->weights == ATTN_BF16)
    few_of_type(block, panels, panel_bytes, ATTN_BF16);
  else
    few_of_type(block, panels, panel_bytes, ATTN_I8);
#endif
}

#ifndef PRODUCT_GROUPS

/* ---- Weights of 16 and 8 bits ---- */

static ALWAYS_INLINE void widen(const char *from, int64_t count, float *to, const attn_dtype type) {
  for (int64_t i = 0; i < count; i += PRODUCT_COLUMNS) {
    vec w[TILE_VECS];
    load_line(w, from + i * weight_bytes(type), type, 0, TILE_VECS);
    UNROLL
    for (int v = 0; v < TILE_VECS; v++) vec_store(to + i + v * VEC_LANES, w[v]);
  }
}

/* Where an element of a line is kept: see load_line(). */
static int64_t place_in_line(attn_dtype weights, int64_t column) {
#ifdef VEC_BF16_PAIRS
  const int64_t within = column % (2 * VEC_LANES);
  if (weights == ATTN_BF16) return column - within + within % VEC_LANES * 2 + within / VEC_LANES;
#endif
  (void)weights;
  return column;
}

static void narrow_line(const float *line, attn_dtype weights, void *packed) {
  for (int64_t c = 0; c < PRODUCT_COLUMNS; c++) attn_store_f32(packed, weights, place_in_line(weights, c), line[c]);
}

static void widen_panel(const void *packed, attn_dtype weights, int64_t count, float *to) {
  if (weights == ATTN_F16)
    widen(packed, count, to, ATTN_F16);
  else if (weights == ATTN_BF16)
    widen(packed, count, to, ATTN_BF16);
  else
    widen(packed, count, to, ATTN_I8);
}

#define PRODUCT_KERNEL(tier)                                                         \
  const attn_product_kernel attn_product_##tier = {.name = "product_" #tier,         \
                                                   .isa = #tier,                     \
                                                   .tile_rows = TILE_ROWS,           \
                                                   .panel_columns = PRODUCT_COLUMNS, \
                                                   .depth_block = PRODUCT_DEPTH,     \
                                                   .run = product_panel,             \
                                                   .finishes = true,                 \
                                                   .run_few = product_few,           \
                                                   .narrow = narrow_line,            \
                                                   .widen = widen_panel,             \
                                                   .widened_depth = LEVEL1_DEPTH,    \
                                                   .activations = activation_rows}

#endif

#endif
