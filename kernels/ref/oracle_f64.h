/* SPDX-License-Identifier: MIT */
/* The float64 oracle: what attention is, in the most obvious loops we can write, with compensated sums, on inputs already
 * rounded to their storage type. Independent of every fast path; shares no code with the kernels. */
#ifndef ATTN_ORACLE_F64_H
#define ATTN_ORACLE_F64_H

#include "attn/attn.h"

/* One output row and what the error bound of docs/numerics.md needs to know about it. */
typedef struct attn_oracle_row {
  double lse;           /* log sum exp of the allowed scores without the sink; -inf for an empty row */
  double abs_sum;       /* S: over the allowed keys, the largest sum of absolute terms of a score (dot terms, bias, ALiBi) */
  int64_t allowed;      /* n: allowed keys */
  double ties;          /* pairs of allowed keys with the same weight, i and j as well as j and i; left to harness/check */
  double max_v;         /* largest |v| over allowed keys, all of dim_v */
  double max_q, max_k;  /* largest |q|, |k| the row reads; for the flush term */
  double sum_k, norm_k; /* largest sum of |k| of an allowed key, and root of its sum of squares; for rounded queries */
  bool exists;          /* false: i >= q_len, o must be 0 and lse -inf */
} attn_oracle_row;

/* An output row: batch, query head, query. With VARLEN, i counts from the start of sequence b. */
typedef struct attn_oracle_index {
  int64_t b, h, i;
} attn_oracle_index;

/* Where the oracle writes a row. */
typedef struct attn_oracle_output {
  double *o;     /* [dim_v]: the output */
  double *m, *w; /* [dim_v]: M = sum p |v| and W = sqrt(sum p^2 (v - o)^2), for the error bound */
  double *p;     /* [seq_k]: the probabilities of the allowed keys; other elements are not touched */
} attn_oracle_output;

/* Computes one output row. The problem is valid, and the args fit it. */
attn_oracle_row attn_oracle_f64_row(const attn_problem *problem, const attn_args *args, attn_oracle_index at,
                                    const attn_oracle_output *out);

/* Rows of sequence b: seq_q, or with VARLEN its own length. Rows beyond q_len count too; they must be zero. */
int64_t attn_oracle_f64_rows(const attn_problem *problem, const attn_args *args, int64_t b);

/* A type that only the oracle reads: float64. Layers use it, because the q, k and v that their float64 oracles project are
 * not rounded to a storage type. Scores are float64 where q is. */
#define ATTN_ORACLE_F64 ((attn_dtype)64)

/* Reads element `index` (in elements) of an array of the given type. */
double attn_oracle_load(const void *data, attn_dtype dtype, int64_t index);

#endif
