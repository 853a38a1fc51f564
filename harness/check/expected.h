/* SPDX-License-Identifier: MIT */
/* The oracle's answer to one problem and its data, computed once and used for every kernel of the case. */
#ifndef BENCH_EXPECTED_H
#define BENCH_EXPECTED_H

#include "kernels/ref/oracle_f64.h"

typedef struct bench_expected_row {
  int64_t b, h, i; /* with VARLEN, i counts from the start of sequence b */
  attn_oracle_row facts;
} bench_expected_row;

typedef struct bench_expected {
  attn_problem problem;
  bool zero_mean; /* the sharp limit applies */
  int64_t rows;
  bench_expected_row *row;
  double *o, *m, *w; /* [rows][dim_v]; M and W of docs/numerics.md */
  double *mean_v;    /* [rows][dim_v]: plain mean of V over the row's allowed keys, the answer of a kernel without softmax */
} bench_expected;

/* Rows: all of them up to 1e8 multiply-adds, beyond that the edge rows and 64 seeded ones per head. NULL if memory is
 * short. */
bench_expected *bench_expected_create(const attn_problem *problem, const attn_args *args, uint64_t seed, bool zero_mean);
void bench_expected_destroy(bench_expected *expected);

/* The rows to check, without their values: sets rows and row. False if memory is short. */
bool bench_expected_choose(bench_expected *expected, const attn_args *args, uint64_t seed);

/* Element offset of the row's first element in o or lse, which have these strides. */
int64_t bench_row_place(const attn_problem *problem, const attn_args *args, const attn_strides *stride,
                        const bench_expected_row *row);

#endif
