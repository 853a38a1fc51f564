/* SPDX-License-Identifier: MIT */
/* The float64 oracle of gradients: docs/semantics.md turned into loops, one row of a gradient at a time, as a function of
 * q, k, v, o, lse, d_o and d_lse. Shares no code with the kernels. */
#ifndef ATTN_ORACLE_BACKWARD_F64_H
#define ATTN_ORACLE_BACKWARD_F64_H

#include "kernels/ref/oracle_f64.h"

/* Elements of a gradient, each with what the error bounds of docs/numerics.md need to know about it. An element is a sum of
 * weights, P or dS, times factors. */
typedef struct attn_oracle_gradient {
  double *value; /* [dim] */
  double *m, *w; /* [dim]: M = sum |weight factor|, W = root of the sum of its squares */
  double *proven,
      *sharp; /* [dim]: sum of the weights' errors times |factor|, but for those relative to P that are declared */
} attn_oracle_gradient;

/* What the bounds need to know of a row beside. */
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

/* dS of one score, and of its sum over the head dimension (before scale and softcap); 0 for a key that is not allowed. */
typedef struct attn_oracle_pair {
  double p, d_score, d_sum;
} attn_oracle_pair;

attn_oracle_pair attn_oracle_f64_pair(const attn_problem *problem, const attn_args *args, attn_oracle_index at, int64_t j);

#endif
