/* SPDX-License-Identifier: MIT */
/* product_avx512bf16: dense layers of bf16 rows and bf16 weights by VDPBF16PS, with the register tile of vec_avx512.h. A
 * pair of values takes the place of a float there: two neighbours of a row of X, and of a column of W. */
#include "pairs_avx512bf16.h"

#define PRODUCT_GROUPS
#include "kernels/common/memory/memory.h"
#include "kernels/common/tiles/product_panel.h"

static int64_t step_bytes(attn_dtype weights) {
  (void)weights;
  return float_bytes(PRODUCT_COLUMNS);
}

static void pack_step(const float *step, attn_dtype weights, void *packed) {
  (void)weights;
  for (int64_t c = 0; c < PRODUCT_COLUMNS; c += VEC_LANES) {
    const vec even = vec_load(step + c), odd = vec_load(step + PRODUCT_COLUMNS + c);
    vec_store((float *)packed + c, pair_lanes(even, odd));
  }
}

static attn_product_extent extent(attn_dtype x, int64_t depth) {
  enum { MOST_ROWS = 96 }; /* tested: 96 */
  (void)x, (void)depth;
  return (attn_product_extent){MOST_ROWS / TILE_ROWS * TILE_ROWS, 2 * PRODUCT_DEPTH};
}

/* The same block with pairs as elements. */
static attn_product_block in_pairs(const attn_product_block *values) {
  attn_product_block b = *values;
  b.depth = ceil_div(b.depth, 2);
  b.x_stride /= 2;
  b.weights = ATTN_F32;
  return b;
}

static void run(const attn_product_block *block) {
  const attn_product_block b = in_pairs(block);
  product_panel(&b);
}

static void run_few(const attn_product_block *block, int64_t panels, int64_t panel_bytes) {
  const attn_product_block b = in_pairs(block);
  product_few(&b, panels, panel_bytes);
}

static const attn_product_form form = {.extent = extent,
                                       .depth_step = 2,
                                       .takes_bf16 = true,
                                       .only_bf16 = true,
                                       .step_bytes = step_bytes,
                                       .pack_step = pack_step};

const attn_product_kernel attn_product_avx512bf16 = {.name = "product_avx512bf16",
                                                     .isa = "avx512bf16",
                                                     .tile_rows = TILE_ROWS,
                                                     .panel_columns = PRODUCT_COLUMNS,
                                                     .form = &form,
                                                     .run = run,
                                                     .run_few = run_few,
                                                     .activations = activation_rows};
