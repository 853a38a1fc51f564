/* SPDX-License-Identifier: MIT */
/* Learnt maps, computed by attn_product, and workspaces. */
#include "src/nn/linear.h"

#include <inttypes.h>

#include "src/api/float_mode.h"

static attn_status create_linear(const attn_nn_linear *map, const attn_options *options) {
  const attn_linear *given = map->given;
  REQUIRE(given->weight, "%s.weight is NULL; it must point to %" PRId64 " x %" PRId64 " weights", map->name,
          given->transposed ? map->out : map->in, given->transposed ? map->in : map->out);
  const attn_product_weights weights = {.struct_size = sizeof weights,
                                        .depth = map->in,
                                        .columns = map->out,
                                        .weight = given->weight,
                                        .stride_depth = given->transposed ? 1 : map->out,
                                        .stride_column = given->transposed ? map->in : 1,
                                        .dtype = map->dtype,
                                        .bias = given->bias,
                                        .activate = map->after,
                                        .bf16_rows = map->bf16_rows,
                                        .int8_weights = map->int8_weights};
  return attn_product_create(&weights, options, map->product);
}

attn_status attn_nn_create_linears(const attn_nn_linear *maps, int count, const attn_options *options, const char *product) {
  attn_options plain;
  attn_status status = attn_options_read(options, &plain);
  plain.kernel = product; /* options->kernel names an attention kernel */
  for (int i = 0; i < count && status == ATTN_OK; i++) status = create_linear(&maps[i], &plain);
  return status;
}

attn_status attn_nn_linear_run(const attn_product *product, attn_nn_rows shape, const float *x, float *y, void *workspace,
                               size_t bytes) {
  const attn_product_args args = {.struct_size = sizeof args,
                                  .batch = 1,
                                  .rows = shape.rows,
                                  .x = x,
                                  .x_stride = {.s = shape.x_stride ? shape.x_stride : shape.in, .d = 1},
                                  .y = y,
                                  .y_stride = {.s = shape.y_stride ? shape.y_stride : shape.out, .d = 1}};
  return attn_product_run(product, &args, workspace, bytes);
}

attn_status attn_nn_check_fits(const char *layer, bool fits) {
  if (fits) return ATTN_OK;
  return attn_fail(ATTN_UNSUPPORTED, "the workspace of this %s exceeds the address space; take a smaller batch or seq",
                   layer);
}

/* ---- Rows over threads ---- */

enum { BLOCK_ROWS = 32 }; /* or fewer, for equal blocks */

typedef struct block_context {
  attn_nn_rows_fn body;
  const void *context;
  int64_t rows, blocks;
} block_context;

static void run_block(void *pointer, int64_t block, int worker) {
  (void)worker;
  const block_context *c = pointer;
  const int64_t first = block * c->rows / c->blocks, end = (block + 1) * c->rows / c->blocks;
  const uint64_t mode = attn_float_mode_enter();
  c->body(c->context, first, end - first);
  attn_float_mode_leave(mode);
}

attn_status attn_nn_keep_options(const attn_options *asked, attn_options *kept) {
  attn_options wanted;
  attn_status status = attn_options_read(asked, &wanted);
  if (status == ATTN_OK) status = attn_parallel_resolve(&wanted, kept);
  if (status == ATTN_OK) kept->threads = wanted.threads;
  return status;
}

void attn_nn_each_block(const attn_options *options, int64_t rows, int64_t floats_per_row, attn_nn_rows_fn body,
                        const void *context) {
  block_context c = {body, context, rows, (rows + BLOCK_ROWS - 1) / BLOCK_ROWS};
  attn_options now = *options;
  if (now.threads == 0)
    now.threads = attn_parallel_pays_for_elements(rows * floats_per_row) ? attn_parallel_default_threads() : 1;
  attn_parallel_run(&now, c.blocks, run_block, &c);
}
