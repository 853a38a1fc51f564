/* SPDX-License-Identifier: MIT */
/* product_openblas: dense layers by OpenBLAS sgemm, on the blocks of rows and panels of W that the other products have. */
#include "openblas.h"

#include "kernels/product.h"

/* Blocks of rows are always full, because OpenBLAS sums in an order that depends on where a row stands in its block, and the depth is
 * never cut, so that it may block it as it likes. */
enum { ROWS = 96, COLUMNS = 256 };

static void run(const float *x, int64_t x_stride, int64_t rows, const float *panel, int64_t columns, int64_t depth,
                const float *start, int64_t start_stride, float *out, int64_t out_stride) {
  const library_product product = {.rows = rows,
                                   .columns = columns,
                                   .depth = depth,
                                   .a = x,
                                   .b = panel,
                                   .c = out,
                                   .a_stride = x_stride,
                                   .b_stride = COLUMNS,
                                   .c_stride = out_stride};
  (void)start; /* zeros: the whole depth is one call */
  (void)start_stride;
  attn_openblas_product(&product);
}

const attn_product_kernel attn_product_openblas = {
    .name = "product_openblas",
    .isa = "c", /* of its own code, as in gemm_openblas.c */
    .tile_rows = ROWS,
    .panel_columns = COLUMNS,
    .depth_block = INT64_MAX,
    .rows_by_place = true,
    .run = run,
    .unusable = attn_openblas_unusable,
    .most_threads = attn_openblas_most_threads,
    .begin_run = attn_openblas_hold,
    .end_run = attn_openblas_release,
};
