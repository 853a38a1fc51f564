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
  double max_v_factor;  /* largest |factor| of a channel of V, or 0: what is lost before grows by it */
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

/* ---- Gradients, one row at a time, as a function of q, k, v, o, lse, d_o and d_lse (oracle_backward_f64.c) ---- */

/* Elements of a gradient, each with what the error bounds of docs/numerics.md need to know about it. An element is a sum of
 * weights, P or dS, times factors. */
typedef struct attn_oracle_gradient {
  double *value; /* [dim] */
  double *m, *w; /* [dim]: M = sum |weight factor|, W = root of the sum of its squares */
  double *proven,
      *sharp; /* [dim]: sum of the weights' errors times |factor|, but for those relative to P that are declared */
} attn_oracle_gradient;

/* Facts of a row that the bounds need beside. */
typedef struct attn_oracle_gradient_facts {
  int64_t pairs;     /* summed over */
  double max_factor; /* largest |factor| */
} attn_oracle_gradient_facts;

/* d_q of query i of head h. */
attn_oracle_gradient_facts attn_oracle_f64_query_gradient(const attn_problem *problem, const attn_args *args,
                                                          attn_oracle_index at, const attn_oracle_gradient *d_q);

/* d_v, or d_k, of key j of a KV head. */
attn_oracle_gradient_facts attn_oracle_f64_key_gradient(const attn_problem *problem, const attn_args *args, int64_t b,
                                                        int64_t kv_head, int64_t j, bool of_v,
                                                        const attn_oracle_gradient *gradient);

/* Gradients that are sums over rows as well. */
typedef enum attn_oracle_sum {
  ATTN_ORACLE_D_BIAS,
  ATTN_ORACLE_D_SCORES,
  ATTN_ORACLE_D_SCORE_WEIGHT,
  ATTN_ORACLE_D_ALIBI_SLOPES,
  ATTN_ORACLE_D_SINKS,
} attn_oracle_sum;

/* Row (b, h, i) of d_bias or d_scores, [seq_k], or one element where the stride of keys is 0; row h of d_score_weight; or
 * element h of the others. What has a stride of 0 is summed over. */
attn_oracle_gradient_facts attn_oracle_f64_sum_gradient(const attn_problem *problem, const attn_args *args,
                                                        attn_oracle_sum of, attn_oracle_index at,
                                                        const attn_oracle_gradient *gradient);

/* dS of one score, and of its sum over the head dimension (before scale and softcap); 0 for a key that is not allowed. */
typedef struct attn_oracle_pair {
  double p, d_score, d_sum;
} attn_oracle_pair;

attn_oracle_pair attn_oracle_f64_pair(const attn_problem *problem, const attn_args *args, attn_oracle_index at, int64_t j);

#endif
