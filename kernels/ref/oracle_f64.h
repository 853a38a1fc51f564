/* SPDX-License-Identifier: MIT */
/* The float64 oracle: what attention is, in the most obvious loops we can write, with compensated sums, on inputs already
 * rounded to their storage type. Independent of every fast path; shares no code with the kernels. */
#ifndef ATTN_ORACLE_F64_H
#define ATTN_ORACLE_F64_H

#include "attn/attn.h"

/* One output row and what the error bound of docs/numerics.md needs to know about it. */
typedef struct attn_oracle_row {
  double lse;          /* log sum exp of the allowed scores without the sink; -inf for an empty row */
  double abs_sum;      /* S: over the allowed keys, the largest sum of absolute terms of a score (dot terms, bias, ALiBi) */
  int64_t allowed;     /* n: allowed keys */
  double max_v;        /* largest |v| over allowed keys, all of dim_v */
  double max_q, max_k; /* largest |q|, |k| the row reads; for the flush term */
  bool exists;         /* false: i >= q_len, o must be 0 and lse -inf */
} attn_oracle_row;

/* Computes output row (batch b, query head h, query i) into o[dim_v], M = sum p |v| into m[dim_v] and W = sqrt(sum p^2 (v -
 * o)^2) into w[dim_v]. `score` is scratch of seq_k doubles: p of the allowed keys is left there, the others are not touched.
 * The problem is valid, the args fit it. With VARLEN, i counts from the start of sequence b. */
void attn_oracle_f64_row(const attn_problem *problem, const attn_args *args, int64_t b, int64_t h, int64_t i,
                         attn_oracle_row *row, double *o, double *m, double *w, double *score);

/* Rows of sequence b: seq_q, or with VARLEN its own length (q_len rows and beyond both count: the latter must be zero). */
int64_t attn_oracle_f64_rows(const attn_problem *problem, const attn_args *args, int64_t b);

/* A type that only the oracle reads: float64, for q, k and v that no storage type has rounded (layers, whose projections are
 * float64 here as well). */
#define ATTN_ORACLE_F64 ((attn_dtype)64)

/* Reads element `index` (in elements) of an array of the given type. */
double attn_oracle_load(const void *data, attn_dtype dtype, int64_t index);

#endif
