/* SPDX-License-Identifier: MIT */
/* Learnt maps, and the workspaces that layers divide among their steps. */
#ifndef ATTN_NN_LINEAR_H
#define ATTN_NN_LINEAR_H

#include "attn/product.h"
#include "check.h"

/* What a map applies to its output. */
typedef enum attn_nn_after { NN_NOTHING, NN_RELU, NN_GELU } attn_nn_after;

/* Packs W and b; `name` is the config's field, for errors. */
attn_status attn_nn_linear_create(const char *name, const attn_linear *linear, int64_t in, int64_t out, attn_nn_after after,
                                  const attn_options *options, attn_product **product);

/* y[rows][out] = x[rows][in] W + b, both dense unless a row stride is given (0: dense). */
typedef struct attn_nn_rows {
  int64_t rows, in, out;
  int64_t x_stride, y_stride;
} attn_nn_rows;
attn_status attn_nn_linear_run(const attn_product *product, attn_nn_rows shape, const float *x, float *y, void *workspace,
                               size_t bytes);

/* ---- Workspaces: consecutive regions, each 64-byte aligned ---- */

typedef struct attn_nn_layout {
  size_t bytes;
  bool overflow; /* a region, or all of them, is too large to address */
} attn_nn_layout;

/* Offset of a new region of `count` floats (or bytes). */
size_t attn_nn_place_floats(attn_nn_layout *layout, int64_t rows, int64_t width);
size_t attn_nn_place_bytes(attn_nn_layout *layout, size_t bytes);

/* Whether the whole workspace can be addressed. If not, the layer is refused when it is created. */
attn_status attn_nn_check_layout(const char *layer, attn_nn_layout layout);

/* Checks that the caller's workspace is not NULL, large enough and aligned. */
attn_status attn_nn_check_workspace(const char *layer, const void *workspace, size_t bytes, size_t needed);

/* Divides the rows of a layer into blocks and runs body(context, first row, rows) on the threads. */
typedef void (*attn_nn_rows_fn)(const void *context, int64_t first, int64_t rows);
void attn_nn_each_block(const attn_options *options, int64_t rows, attn_nn_rows_fn body, const void *context);

#endif
