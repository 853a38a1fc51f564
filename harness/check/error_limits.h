/* SPDX-License-Identifier: MIT */
/* The error limits of docs/numerics.md, for one row and one of its outputs. */
#ifndef BENCH_LIMITS_H
#define BENCH_LIMITS_H

#include "kernels/ref/oracle_f64.h"

/* What a row's limits share; see docs/numerics.md for the meaning of every term. */
typedef struct bench_row_limits {
  double proven, sharp; /* a_proven, a_sharp: relative error of the row's p */
  double lost, lse;     /* underflow; limit of the LSE's error */
  double max_v, p_rounding;
  double store_error; /* relative error of storing an output: u_o unless the caller raises it */
  attn_dtype dtype_o;
  bool both;  /* generated zero-mean data must meet the sharp limit as well */
  bool empty; /* no allowed key: o = 0 and lse = -inf exactly */
} bench_row_limits;

bench_row_limits bench_limits_of_row(const attn_problem *problem, const attn_numerics *numerics, const attn_oracle_row *row,
                                     bool zero_mean);

/* The limits of the difference between two answers, each with its own limits. */
void bench_limits_add(bench_row_limits *limits, const bench_row_limits *other);

/* What a kernel declares may widen its limits only so far: an exp error or a rounding of P of more than bf16's roundoff, or
 * flushing beyond denormals, is no attention. NULL, or which of them it is ("an exp error"). */
const char *bench_beyond_cap(const attn_numerics *numerics);

/* Does the kernel declare larger errors than the rounding of K and V, or than 8 roundoffs of float32 where that is more? */
bool bench_is_approximate(const attn_problem *problem, const attn_numerics *numerics);

/* error / limit of one output, with o, M and W of the oracle: <= 1 passes; INFINITY where only one of the two is finite,
 * or NaN. */
double bench_output_ratio(const bench_row_limits *limits, double o, double m, double w, double got);
double bench_lse_ratio(const bench_row_limits *limits, double lse, double got);

#endif
