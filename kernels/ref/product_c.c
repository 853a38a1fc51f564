/* SPDX-License-Identifier: MIT */
/* product_c: dense layers in plain C, with the register tile that the vector tiers have: a few rows times a panel, summed in
 * registers, one row of the panel times one element of X per row. Four floats side by side are what every CPU has. */
#include <string.h>

#include "kernels/product.h"
#include "vec_c.h"

#include "kernels/common/gelu.h"

typedef float four __attribute__((vector_size(16)));

enum { ROWS = 4, FOURS = 2, COLUMNS = 4 * FOURS, DEPTH = 256 };

static void product_tile(const float *x, int64_t x_stride, const float *panel, int64_t depth, four sum[ROWS][FOURS]) {
  for (int64_t k = 0; k < depth; k++) {
    four row[FOURS];
    memcpy(row, panel + k * COLUMNS, sizeof row);
    for (int i = 0; i < ROWS; i++)
      for (int v = 0; v < FOURS; v++) sum[i][v] += x[i * x_stride + k] * row[v];
  }
}

static void product_panel(const float *x, int64_t x_stride, int64_t rows, const float *panel, int64_t columns, int64_t depth,
                          const float *start, int64_t start_stride, float *out, int64_t out_stride) {
  (void)columns; /* the rest of the panel is 0 */
  for (int64_t first = 0; first < rows; first += ROWS) {
    four sum[ROWS][FOURS];
    for (int i = 0; i < ROWS; i++) memcpy(sum[i], start + (first + i) * start_stride, sizeof sum[i]);
    product_tile(x + first * x_stride, x_stride, panel, depth, sum);
    for (int i = 0; i < ROWS; i++) memcpy(out + (first + i) * out_stride, sum[i], sizeof sum[i]);
  }
}

const attn_product_kernel attn_product_c = {.name = "product_c",
                                            .isa = "c",
                                            .tile_rows = ROWS,
                                            .panel_columns = COLUMNS,
                                            .depth_block = DEPTH,
                                            .run = product_panel,
                                            .gelu = gelu_row};
