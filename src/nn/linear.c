/* SPDX-License-Identifier: MIT */
/* Learnt maps, computed by attn_product, and workspaces. */
#include "linear.h"

#include <inttypes.h>

#include "float_mode.h"

attn_status attn_nn_linear_create(const char *name, const attn_linear *linear, int64_t in, int64_t out, attn_nn_after after,
                                  const attn_options *options, attn_product **product) {
  NN_REQUIRE(linear->weight, "%s.weight is NULL; it must point to %" PRId64 " x %" PRId64 " floats", name,
             linear->transposed ? out : in, linear->transposed ? in : out);
  const attn_product_weights weights = {.depth = in,
                                        .columns = out,
                                        .weight = linear->weight,
                                        .stride_depth = linear->transposed ? 1 : out,
                                        .stride_column = linear->transposed ? in : 1,
                                        .bias = linear->bias,
                                        .relu = after == NN_RELU,
                                        .gelu = after == NN_GELU};
  attn_options plain = options ? *options : (attn_options){0};
  plain.kernel = NULL; /* it is the name of an attention kernel, not of a product */
  return attn_product_create(&weights, &plain, product);
}

attn_status attn_nn_linear_run(const attn_product *product, attn_nn_rows shape, const float *x, float *y, void *workspace,
                               size_t bytes) {
  const attn_product_args args = {.batch = 1,
                                  .rows = shape.rows,
                                  .x = x,
                                  .x_stride = {.s = shape.x_stride ? shape.x_stride : shape.in, .d = 1},
                                  .y = y,
                                  .y_stride = {.s = shape.y_stride ? shape.y_stride : shape.out, .d = 1}};
  return attn_product_run(product, &args, workspace, bytes);
}

size_t attn_nn_place_bytes(attn_nn_layout *layout, size_t bytes) {
  const size_t at = layout->bytes, line = 64;
  if (bytes > SIZE_MAX / 4 || at > SIZE_MAX / 4)
    layout->overflow = true;
  else
    layout->bytes = at + (bytes + line - 1) / line * line;
  return at;
}

size_t attn_nn_place_floats(attn_nn_layout *layout, int64_t rows, int64_t width) {
  int64_t count;
  if (__builtin_mul_overflow(rows, width, &count) || count > INT64_MAX / 16) layout->overflow = true, count = 0;
  return attn_nn_place_bytes(layout, (size_t)count * sizeof(float));
}

attn_status attn_nn_check_layout(const char *layer, attn_nn_layout layout) {
  if (!layout.overflow) return ATTN_OK;
  return attn_fail(ATTN_UNSUPPORTED, "the workspace of this %s exceeds the address space; take a smaller batch or seq",
                   layer);
}

attn_status attn_nn_check_workspace(const char *layer, const void *workspace, size_t bytes, size_t needed) {
  if (needed == 0) return ATTN_OK;
  if (!workspace || bytes < needed)
    return attn_fail(ATTN_WORKSPACE_TOO_SMALL, "workspace is %p with %zu bytes; %s needs %zu (%s_workspace)", workspace,
                     workspace ? bytes : 0, layer, needed, layer);
  if ((uintptr_t)workspace % 64)
    return attn_fail(ATTN_WORKSPACE_TOO_SMALL, "workspace is %p; it must be aligned to 64 bytes", workspace);
  return ATTN_OK;
}

/* ---- Rows over threads ---- */

enum { BLOCK_ROWS = 32 };

typedef struct block_context {
  attn_nn_rows_fn body;
  const void *context;
  int64_t rows;
} block_context;

static void run_block(void *pointer, int64_t block, int worker) {
  (void)worker;
  const block_context *c = pointer;
  const int64_t first = block * BLOCK_ROWS, rest = c->rows - first;
  const uint64_t mode = attn_float_mode_enter();
  c->body(c->context, first, rest < BLOCK_ROWS ? rest : BLOCK_ROWS);
  attn_float_mode_leave(mode);
}

void attn_nn_each_block(const attn_options *options, int64_t rows, attn_nn_rows_fn body, const void *context) {
  block_context c = {body, context, rows};
  attn_parallel_run(options, (rows + BLOCK_ROWS - 1) / BLOCK_ROWS, run_block, &c);
}
