/* SPDX-License-Identifier: MIT */
/* The oracle's answer to one problem and its data, computed once and used for every kernel of the case. */
#ifndef BENCH_EXPECTED_H
#define BENCH_EXPECTED_H

#include "kernels/ref/oracle_f64.h"

typedef struct bench_expected_row {
  int64_t b, h, i; /* with VARLEN, i counts from the start of sequence b */
  attn_oracle_row facts;
} bench_expected_row;

/* Another kernel's answer, for the rows that the oracle does not compute: see reference.h. */
typedef struct bench_reference {
  const attn_kernel_info *kernel; /* NULL: none has run yet */
  uint64_t wrong;                 /* bit n: the oracle's rows refute kernel n */
  attn_problem problem;           /* the case's, with LSE and dense outputs in float32 */
  float *o, *lse;                 /* its answer */
  float *m;                       /* M of docs/numerics.md: its answer with |V| instead of V */

  /* Of the rows that the oracle has computed so far: the largest of each fact, and of W / M * sqrt(n). They stand for the
   * facts of the others. */
  attn_oracle_row largest;
  double spread;
} bench_reference;

typedef struct bench_expected {
  attn_problem problem;
  bool zero_mean; /* the sharp limit applies */
  bool complete;  /* `row` holds every row of the problem */
  int64_t rows;
  bench_expected_row *row;
  double *o, *m, *w; /* [rows][dim_v]; M and W of docs/numerics.md */
  double *mean_v;    /* [rows][dim_v]: plain mean of V over the row's allowed keys, the answer of a kernel without softmax */
  bench_reference *reference;
} bench_expected;

/* Rows: all of them up to 1e8 multiply-adds, beyond that the edge rows and 64 seeded ones per head; or one. NULL if memory
 * is short. */
bench_expected *bench_expected_create(const attn_problem *problem, const attn_args *args, uint64_t seed, bool zero_mean);
bench_expected *bench_expected_of_row(const attn_problem *problem, const attn_args *args, const bench_expected_row *row,
                                      bool zero_mean);
void bench_expected_destroy(bench_expected *expected);

/* The rows to check, without their values: sets rows, row and complete. False if memory is short. */
bool bench_expected_choose(bench_expected *expected, const attn_args *args, uint64_t seed);

/* Element offset of the row's first element in o or lse, which have these strides. */
int64_t bench_row_place(const attn_problem *problem, const attn_args *args, const attn_strides *stride,
                        const bench_expected_row *row);

#endif
