/* SPDX-License-Identifier: MIT */
/* Norms of heads: rows of one head dimension, each by its own root mean square. Q and K are dense in every layer, whatever
 * the order of heads and tokens, so they are rows one behind the other. */
#include "src/layers/head_norm.h"

#include <stdlib.h>
#include <string.h>

#include "src/api/error.h"

static attn_status allocate(attn_head_norm *norm) {
  norm->gains = malloc((size_t)norm->dim * 2 * sizeof(float));
  return norm->gains ? ATTN_OK : attn_fail(ATTN_OUT_OF_MEMORY, "out of memory for the norms of a layer's heads");
}

attn_status attn_head_norm_create(const attn_mha_weights *weights, int64_t dim, const attn_options *options,
                                  attn_head_norm *norm) {
  *norm = (attn_head_norm){.dim = dim, .epsilon = weights->qk_norm_epsilon};
  if (!weights->qk_norm) return ATTN_OK;
  norm->function = attn_row_join_choose(options);
  if (!norm->function) return ATTN_INVALID_ARGUMENT;
  const attn_status status = allocate(norm);
  if (status != ATTN_OK) return status;
  const float *const gains[] = {weights->q_norm_gain, weights->k_norm_gain};
  for (int64_t i = 0; i < 2 * dim; i++) norm->gains[i] = gains[i / dim] ? gains[i / dim][i % dim] : 1;
  return ATTN_OK;
}

attn_status attn_head_norm_copy(const attn_head_norm *from, attn_head_norm *norm) {
  *norm = *from;
  if (!from->gains) return ATTN_OK;
  const attn_status status = allocate(norm);
  if (status == ATTN_OK) memcpy(norm->gains, from->gains, (size_t)from->dim * 2 * sizeof(float));
  return status;
}

void attn_head_norm_destroy(attn_head_norm *norm) { free(norm->gains); }

attn_status attn_head_norm_run(const attn_head_norm *norm, bool keys, const attn_head_rows *rows,
                               const attn_options *options) {
  if (!norm->gains) return ATTN_OK;
  const attn_row_join join = {.struct_size = sizeof join,
                              .rows = rows->count,
                              .width = norm->dim,
                              .norm_kind = ATTN_NORM_RMS,
                              .norm = {.gain = norm->gains + (keys ? norm->dim : 0), .epsilon = norm->epsilon},
                              .dtype_x = rows->dtype,
                              .dtype_y = rows->dtype,
                              .x = rows->data,
                              .y = rows->data,
                              .function = norm->function};
  return attn_row_join_run(&join, options);
}
