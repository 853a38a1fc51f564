/* SPDX-License-Identifier: MIT */
/* Norms of the heads of Q and K between projection and attention (attn_mha_weights.qk_norm). */
#ifndef ATTN_HEAD_NORM_H
#define ATTN_HEAD_NORM_H

#include "attn/rows.h"

typedef struct attn_head_norm {
  float *gains; /* [2][dim]: of Q, and of K; NULL = no norms */
  attn_row_join_function function;
  int64_t dim;
  float epsilon;
} attn_head_norm;

/* Copies what the weights say, whose heads have dim elements. */
attn_status attn_head_norm_create(const attn_mha_weights *weights, int64_t dim, const attn_options *options,
                                  attn_head_norm *norm);

/* A copy for another layer. */
attn_status attn_head_norm_copy(const attn_head_norm *from, attn_head_norm *norm);

/* Heads of one dimension each, one behind the other. */
typedef struct attn_head_rows {
  void *data;
  attn_dtype dtype;
  int64_t count;
} attn_head_rows;

/* Norms rows of Q or of K where they are; nothing without norms. */
attn_status attn_head_norm_run(const attn_head_norm *norm, bool keys, const attn_head_rows *rows,
                               const attn_options *options);

void attn_head_norm_destroy(attn_head_norm *norm);

#endif
