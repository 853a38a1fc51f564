/* SPDX-License-Identifier: MIT */
/* Learnt maps, computed by attn_product, and workspaces. */
#include "src/nn/linear.h"

#include <inttypes.h>

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
                                        .dtype_x = map->types.dtype_x,
                                        .dtype_y = map->types.dtype_y,
                                        .bf16_rows = map->types.bf16_rows,
                                        .int8_weights = map->types.int8_weights,
                                        .int8_rows = map->types.int8_rows};
  return attn_product_create(&weights, options, map->product);
}

attn_status attn_nn_create_linears(const attn_nn_linear *maps, int count, const attn_options *options, const char *product) {
  attn_options plain;
  attn_status status = attn_options_read(options, &plain);
  plain.kernel = product; /* options->kernel names an attention kernel */
  for (int i = 0; i < count && status == ATTN_OK; i++) status = create_linear(&maps[i], &plain);
  return status;
}

attn_status attn_nn_linear_run(const attn_product *product, attn_nn_rows shape, const void *x, void *y, void *workspace,
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

attn_status attn_nn_choose_joins(const attn_options *options, attn_nn_joins *joins) {
  const attn_status status = attn_options_read(options, &joins->options);
  if (status != ATTN_OK) return status;
  joins->function = attn_row_join_choose(options);
  joins->options.kernel = joins->options.max_isa = NULL; /* the caller may free them */
  joins->options.tuning = NULL;
  return joins->function ? ATTN_OK : ATTN_INVALID_ARGUMENT;
}

attn_status attn_nn_join(const attn_nn_joins *joins, attn_row_join join) {
  join.struct_size = sizeof join;
  join.function = joins->function;
  return attn_row_join_run(&join, &joins->options);
}

attn_status attn_nn_check_fits(const char *layer, bool fits) {
  if (fits) return ATTN_OK;
  return attn_fail(ATTN_UNSUPPORTED, "the workspace of this %s exceeds the address space; take a smaller batch or seq",
                   layer);
}
