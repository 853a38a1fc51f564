/* SPDX-License-Identifier: MIT */
/* The shape of a multi-head attention layer, checked. */
#ifndef ATTN_MHA_PROBLEM_H
#define ATTN_MHA_PROBLEM_H

#include "attn/attn.h"

/* Rows of x and y, or of the memory: of all sequences; with VARLEN all tokens, as one sequence. */
typedef struct row_count {
  int64_t batch, rows;
} row_count;

row_count attn_mha_rows(const attn_mha_problem *problem, bool queries);

/* Copies and checks a problem, and gives q, k, v and o the strides that they have inside the layer. */
attn_status attn_mha_read_problem(const attn_mha_problem *theirs, attn_mha_problem *problem);

/* Checks that a problem has the widths, heads, head dimensions and dtypes of the layer's. */
attn_status attn_mha_check_same_weights(const attn_mha_problem *layer, const attn_mha_problem *problem);

#endif
