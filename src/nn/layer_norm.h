/* SPDX-License-Identifier: MIT */
/* Add & norm without checks, for blocks, which have checked when they were created. */
#ifndef ATTN_NN_LAYER_NORM_H
#define ATTN_NN_LAYER_NORM_H

#include "src/nn/check.h"

/* y = norm(x + residual), or y = x + residual without a norm. Also stores the sum if `sum` is not NULL. With a norm the
 * residual may be NULL. All are dense [rows][width]. */
typedef struct attn_nn_join {
  int64_t width;
  const float *x, *residual;
  const attn_norm *norm;
  float *sum, *y;
  bool rms; /* the norm is that of attn_add_rms_norm() */
} attn_nn_join;

/* How many floats it reads and writes per row, in all its passes. */
int64_t attn_nn_join_floats(const attn_nn_join *join);

/* Joins `rows` rows from `first` on. The join must be valid. */
void attn_nn_join_rows(const void *join, int64_t first, int64_t rows);

attn_status attn_nn_check_norm(const attn_norm *norm);

#endif
