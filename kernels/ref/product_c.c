/* SPDX-License-Identifier: MIT */
/* product_c: dense layers in plain C, with the register tile of the vector tiers. It multiplies a few rows with a panel and
 * keeps the sums in registers: each step multiplies one row of the panel by one element of X per row. Vectors have four
 * floats, for which every CPU has registers. */
#include <string.h>

#include "kernels/common/problem/arithmetic.h"
#include "kernels/product.h"
#include "vec_c.h"

#include "kernels/common/tiles/activations.h"

typedef float four __attribute__((vector_size(16)));

enum { ROWS = 4, FOURS = 2, COLUMNS = 4 * FOURS, DEPTH = 256 };

/* sum += rows first .. of the block's X times its panel. */
static void product_tile(const attn_product_block *b, int64_t first, four sum[ROWS][FOURS]) {
  const int64_t x_row = b->x_transposed ? 1 : b->x_stride, x_step = b->x_transposed ? b->x_stride : 1;
  const float *x = (const float *)b->x + first * x_row;
  for (int64_t k = 0; k < b->depth; k++) {
    four row[FOURS];
    memcpy(row, (const float *)b->panel + k * COLUMNS, sizeof row);
    for (int i = 0; i < ROWS; i++)
      for (int v = 0; v < FOURS; v++) sum[i][v] += x[i * x_row + k * x_step] * row[v];
  }
}

/* All columns of the panel: those beyond the block's are 0. The last tile may share rows with the one before, which it
 * leaves as they are. */
static void product_panel(const attn_product_block *b) {
  for (int64_t at = 0; at < b->rows; at += ROWS) {
    const int64_t first = min64(at, b->rows - ROWS);
    four sum[ROWS][FOURS];
    for (int i = 0; i < ROWS; i++) memcpy(sum[i], b->start + (first + i) * b->start_stride, sizeof sum[i]);
    product_tile(b, first, sum);
    for (int64_t i = at - first; i < ROWS; i++) memcpy(b->out + (first + i) * b->out_stride, sum[i], sizeof sum[i]);
  }
}

const attn_product_kernel attn_product_c = {.name = "product_c",
                                            .isa = "c",
                                            .tile_rows = ROWS,
                                            .panel_columns = COLUMNS,
                                            .depth_block = DEPTH,
                                            .run = product_panel,
                                            .activations = activation_rows};
