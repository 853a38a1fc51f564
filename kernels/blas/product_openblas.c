/* SPDX-License-Identifier: MIT */
/* product_openblas: dense layers by OpenBLAS sgemm, on the blocks of rows and panels of W that the other products have. */
#include "openblas.h"

#include "kernels/product.h"

/* Blocks of rows are always full, because the order in which OpenBLAS sums a row depends on the row's place in its block.
 * The depth is never cut: OpenBLAS chooses its own blocks of it. */
enum { ROWS = 96, COLUMNS = 256 };

/* The block's depth is the whole depth, so it starts from zeros or from what stands in Y. */
static void product_openblas_run(const attn_product_block *block) {
  attn_openblas_product(&(library_product){.rows = block->rows,
                                           .columns = block->columns,
                                           .depth = block->depth,
                                           .a = block->x,
                                           .b = block->panel,
                                           .c = block->out,
                                           .a_stride = block->x_stride,
                                           .b_stride = COLUMNS,
                                           .c_stride = block->out_stride,
                                           .accumulate = block->start == block->out});
}

const attn_product_kernel attn_product_openblas = {
    .name = "product_openblas",
    .isa = "c", /* tier of our code, as in gemm_openblas.c */
    .tile_rows = ROWS,
    .panel_columns = COLUMNS,
    .depth_block = INT64_MAX,
    .rows_by_place = true,
    .run = product_openblas_run,
    .unusable = attn_openblas_unusable,
    .most_threads = attn_openblas_most_threads,
    .begin_run = attn_openblas_hold,
    .end_run = attn_openblas_release,
};
