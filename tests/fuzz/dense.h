/* SPDX-License-Identifier: MIT */
/* A second oracle, made another way than kernels/ref: Q, K, V and every score become dense float64 arrays, masks are taken
 * off a table of allowed keys one rule after the other, and softmax goes over the scores twice. It keeps the semantics of
 * docs/semantics.md and shares no code with anything else. */
#ifndef TESTS_FUZZ_DENSE_H
#define TESTS_FUZZ_DENSE_H

#include "kernels/ref/oracle_f64.h"

/* One row: its facts, o[dim_v] and M = sum p |v|[dim_v]. */
typedef struct dense_row {
  attn_oracle_row facts; /* the struct alone is the oracle's */
  double *o, *m;
} dense_row;

/* Rows of all batches, query heads and queries in this order; with VARLEN, rows that a sequence does not have do not exist.
 * The caller frees rows (one block). */
dense_row *dense_answer(const attn_problem *problem, const attn_args *args);

#endif
