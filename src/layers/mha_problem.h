/* SPDX-License-Identifier: MIT */
/* The shape of a multi-head attention layer, checked, and the list of its projections. */
#ifndef ATTN_MHA_PROBLEM_H
#define ATTN_MHA_PROBLEM_H

#include "attn/attn.h"

enum { PROJECT_Q, PROJECT_K, PROJECT_V, PROJECT_OUT, PROJECTIONS };

/* Rows of x and y, or of the memory: of all sequences; with VARLEN all tokens, as one sequence. */
typedef struct row_count {
  int64_t batch, rows;
} row_count;

row_count attn_mha_rows(const attn_mha_problem *problem, bool queries);

/* One projection: which part of which array, depth x columns. */
typedef struct projection {
  const char *name;
  int64_t depth, columns;
  const void *weight;
  const float *bias;
  int64_t first, all; /* the array has `all` columns, this projection those from `first` on */
} projection;

void attn_mha_projections(const attn_mha_problem *problem, const attn_mha_weights *weights, projection list[PROJECTIONS]);

/* Copies and checks a problem, and gives q, k, v and o the strides that they have inside the layer. */
attn_status attn_mha_read_problem(const attn_mha_problem *theirs, attn_mha_problem *problem);

/* Copies and checks the weights for a problem. */
attn_status attn_mha_read_weights(const attn_mha_problem *problem, const attn_mha_weights *theirs,
                                  attn_mha_weights *weights);

/* Checks that a problem has the widths, heads and head dimensions of the layer's. */
attn_status attn_mha_check_same_weights(const attn_mha_problem *layer, const attn_mha_problem *problem);

#endif
