/* SPDX-License-Identifier: MIT */
/* Add & norm of float32 rows, on one thread: attn_row_join_run() by other names. */
#include "src/nn/check.h"

static attn_status add_norm(attn_norm_kind kind, int64_t rows, int64_t width, const float *x, const float *residual,
                            const attn_norm *norm, float *sum, float *y) {
  REQUIRE(norm, "norm is NULL; it must point to an attn_norm");
  const attn_row_join join = ATTN_STRUCT(attn_row_join, .rows = rows, .width = width, .norm_kind = kind, .norm = *norm,
                                         .x = x, .other = residual, .sum = sum, .y = y);
  return attn_row_join_run(&join, &ATTN_STRUCT(attn_options, .threads = 1));
}

attn_status attn_add_layer_norm(int64_t rows, int64_t width, const float *x, const float *residual, const attn_norm *norm,
                                float *sum, float *y) {
  return add_norm(ATTN_NORM_LAYER, rows, width, x, residual, norm, sum, y);
}

attn_status attn_add_rms_norm(int64_t rows, int64_t width, const float *x, const float *residual, const attn_norm *norm,
                              float *sum, float *y) {
  return add_norm(ATTN_NORM_RMS, rows, width, x, residual, norm, sum, y);
}
