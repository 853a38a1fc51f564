/* SPDX-License-Identifier: MIT */
/* A second oracle for the semantics of docs/semantics.md, which works differently from the one in kernels/ref and shares no
 * code with it: Q, K, V and all scores become dense float64 arrays, every mask removes keys from a table of allowed keys,
 * and softmax reads the scores twice. */
#ifndef TESTS_FUZZ_DENSE_H
#define TESTS_FUZZ_DENSE_H

#include "kernels/ref/oracle_f64.h"

/* One row: its facts, o[dim_v], M[dim_v] = sum p |v| and W[dim_v] = sqrt(sum p^2 (v - o)^2). */
typedef struct dense_row {
  attn_oracle_row facts; /* only the type is that of the other oracle */
  double finite_sum;     /* like facts.abs_sum, without keys whose sum is infinite */
  double *o, *m, *w;
} dense_row;

/* The rows over the problem's keys and, with ATTN_USE_STATE, those that args->state has seen: of all batches, query heads
 * and queries, in this order. Rows beyond the end of a packed sequence have facts.exists = false. The caller frees the
 * result, which is one block. */
dense_row *dense_answer(const attn_problem *problem, const attn_args *args);

#endif
