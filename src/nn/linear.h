/* SPDX-License-Identifier: MIT */
/* Learnt maps, and the workspaces that layers divide among their steps. */
#ifndef ATTN_NN_LINEAR_H
#define ATTN_NN_LINEAR_H

#include "attn/product.h"
#include "kernels/common/memory/memory.h"
#include "src/nn/check.h"

/* For the reader of the config, and of the configs that hold one. */
static const attn_struct_layout attn_feed_forward_layout = ATTN_LAYOUT_GROWN(attn_feed_forward_config, second, product);

/* Gives a network to one more owner, each of whom destroys it. */
attn_feed_forward *attn_nn_share_feed_forward(attn_feed_forward *layer);

/* The fields of attn_product_weights that have these names. */
typedef struct attn_nn_types {
  attn_dtype dtype_x, dtype_y;
  bool bf16_rows, int8_weights, int8_rows;
} attn_nn_types;

/* One map of a layer. */
typedef struct attn_nn_linear {
  const char *name; /* the config's field, for errors */
  const attn_linear *given;
  int64_t in, out;
  attn_dtype dtype;        /* type of its weights */
  attn_row_function after; /* applied to its output; NULL = nothing */
  attn_product **product;  /* receives the map, its W and b packed */
  attn_nn_types types;
} attn_nn_linear;

/* product: the kernel's name; NULL = automatic. */
attn_status attn_nn_create_linears(const attn_nn_linear *maps, int count, const attn_options *options, const char *product);

/* y[rows][out] = x[rows][in] W + b, both dense unless a row stride is given (0: dense). */
typedef struct attn_nn_rows {
  int64_t rows, in, out;
  int64_t x_stride, y_stride;
} attn_nn_rows;
attn_status attn_nn_linear_run(const attn_product *product, attn_nn_rows shape, const void *x, void *y, void *workspace,
                               size_t bytes);

/* The caller's options of row joins, and the function of their tier. */
typedef struct attn_nn_joins {
  attn_options options;
  attn_row_join_function function;
} attn_nn_joins;

attn_status attn_nn_choose_joins(const attn_options *options, attn_nn_joins *joins);

/* Runs the join with them. */
attn_status attn_nn_join(const attn_nn_joins *joins, attn_row_join join);

/* ---- Workspaces, which layers divide by LAY_OUT (kernels/common/memory/memory.h) ---- */

/* An error if LAY_OUT found a workspace too large to address. */
attn_status attn_nn_check_fits(const char *layer, bool fits);

#endif
