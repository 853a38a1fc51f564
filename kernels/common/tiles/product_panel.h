/* SPDX-License-Identifier: MIT */
/* A tier's product (kernels/product.h) made from its register tile: rows of X against one packed panel of W.
 *
 * Parameters: those of register_tile.h. PRODUCT_KERNEL(isa) defines the tier's attn_product_<isa>. */
#ifndef ATTN_COMMON_PRODUCT_PANEL_H
#define ATTN_COMMON_PRODUCT_PANEL_H

#include <assert.h>

#include "gelu.h"
#include "kernels/common/problem/arithmetic.h"
#include "kernels/product.h"
#include "register_tile.h"

enum {
  PRODUCT_COLUMNS = TILE_VECS * VEC_LANES,
  PRODUCT_DEPTH = PRODUCT_COLUMNS <= 32 ? 256 : 128 /* 12 to 32 KiB of panel in L1 beside the rows of X */
};

/* Rows first .. of the block. */
static ALWAYS_INLINE void product_tile(const attn_product_block b, int64_t first, const bool transposed, const int vecs) {
  const float_rows x = {b.x + first * (transposed ? 1 : b.x_stride), b.x_stride}, panel = {b.panel, PRODUCT_COLUMNS};
  const float *start = b.start + first * b.start_stride;
  vec sum[TILE_ROWS][TILE_VECS];
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    UNROLL
    for (int v = 0; v < vecs; v++) sum[i][v] = vec_load(start + i * b.start_stride + v * VEC_LANES);
  }
  if (transposed)
    product_transposed(sum, x, panel, b.depth, vecs);
  else
    product(sum, x, panel, b.depth, vecs);
  store_tile(sum, b.out + first * b.out_stride, b.out_stride, vecs);
}

/* X transposed: a function of its own, so that its tiles do not compete with the others for registers. */
static NO_INLINE void product_panel_transposed(const attn_product_block *block, int64_t vecs) {
  for (int64_t i = 0; i < block->rows; i += TILE_ROWS) {
    WITH_CONSTANT_VECS(vecs, product_tile, *block, i, true)
  }
}

static void product_panel(const attn_product_block *block) {
  const int64_t vecs = ceil_div(block->columns, VEC_LANES);
  assert(block->rows % TILE_ROWS == 0 && block->columns >= 1 && block->columns <= PRODUCT_COLUMNS);
  assert(block->depth >= 0 && block->depth <= PRODUCT_DEPTH);
  if (block->x_transposed) {
    product_panel_transposed(block, vecs);
    return;
  }
  for (int64_t i = 0; i < block->rows; i += TILE_ROWS) {
    WITH_CONSTANT_VECS(vecs, product_tile, *block, i, false)
  }
}

static void widen_panel(const void *packed, attn_dtype weights, int64_t count, float *to) {
  const uint16_t *from = packed;
  if (weights == ATTN_F16)
    for (int64_t i = 0; i < count; i += VEC_LANES) vec_store(to + i, vec_load_f16(from + i));
  else
    for (int64_t i = 0; i < count; i += VEC_LANES) vec_store(to + i, vec_load_bf16(from + i));
}

#define PRODUCT_KERNEL(tier)                                                         \
  const attn_product_kernel attn_product_##tier = {.name = "product_" #tier,         \
                                                   .isa = #tier,                     \
                                                   .tile_rows = TILE_ROWS,           \
                                                   .panel_columns = PRODUCT_COLUMNS, \
                                                   .depth_block = PRODUCT_DEPTH,     \
                                                   .run = product_panel,             \
                                                   .widen = widen_panel,             \
                                                   .gelu = gelu_row}

#endif
