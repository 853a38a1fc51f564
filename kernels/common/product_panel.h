/* SPDX-License-Identifier: MIT */
/* A tier's product (kernels/product.h) from its register tile: X rows against one packed panel of W. */
#ifndef ATTN_COMMON_PRODUCT_PANEL_H
#define ATTN_COMMON_PRODUCT_PANEL_H

#include "gelu.h"
#include "kernels/product.h"
#include "register_tile.h"

enum {
  PRODUCT_COLUMNS = TILE_VECS * VEC_LANES,
  PRODUCT_DEPTH = PRODUCT_COLUMNS <= 32 ? 256 : 128 /* 12 to 32 KiB of panel in L1 beside the rows of X */
};

static ALWAYS_INLINE void product_tile(const float *x, int64_t x_stride, const float *panel, int64_t depth,
                                       const float *start, int64_t start_stride, float *out, int64_t out_stride,
                                       const int vecs) {
  vec sum[TILE_ROWS][TILE_VECS];
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    UNROLL
    for (int v = 0; v < vecs; v++) sum[i][v] = vec_load(start + i * start_stride + v * VEC_LANES);
  }
  product(sum, x, x_stride, panel, PRODUCT_COLUMNS, depth, vecs);
  store_tile(sum, out, out_stride, vecs);
}

static void product_panel(const float *x, int64_t x_stride, int64_t rows, const float *panel, int64_t columns, int64_t depth,
                          const float *start, int64_t start_stride, float *out, int64_t out_stride) {
  const int64_t vecs = (columns + VEC_LANES - 1) / VEC_LANES;
  for (int64_t i = 0; i < rows; i += TILE_ROWS) {
    WITH_CONSTANT_VECS(vecs, product_tile, x + i * x_stride, x_stride, panel, depth, start + i * start_stride, start_stride,
                       out + i * out_stride, out_stride)
  }
}

#define PRODUCT_KERNEL(tier)                                                         \
  const attn_product_kernel attn_product_##tier = {.name = "product_" #tier,         \
                                                   .isa = #tier,                     \
                                                   .tile_rows = TILE_ROWS,           \
                                                   .panel_columns = PRODUCT_COLUMNS, \
                                                   .depth_block = PRODUCT_DEPTH,     \
                                                   .run = product_panel,             \
                                                   .gelu = gelu_row}

#endif
