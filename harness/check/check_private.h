/* SPDX-License-Identifier: MIT */
/* What expected.c prepares and compare.c compares with. */
#ifndef BENCH_CHECK_PRIVATE_H
#define BENCH_CHECK_PRIVATE_H

#include "check/check.h"
#include "kernels/ref/oracle_f64.h"

typedef struct bench_expected_row {
  int64_t b, h, i; /* with VARLEN, i counts from the start of sequence b */
  attn_oracle_row facts;
} bench_expected_row;

struct bench_expected {
  attn_problem problem;
  bool zero_mean;
  int64_t rows;
  bench_expected_row *row;
  double *o, *m, *w; /* [rows][dim_v]; M and W of docs/numerics.md */
  double *mean_v;    /* [rows][dim_v]: plain mean of V over the row's allowed keys, the answer of a kernel without softmax */
};

/* The rows to check, without their values: sets rows and row. False if memory is short. */
bool bench_expected_choose(bench_expected *expected, const attn_args *args, uint64_t seed);

/* The null answer that would pass under these numerics ("zeros", ...), or NULL. */
const char *bench_null_answer(const bench_expected *expected, const attn_args *args, const attn_numerics *numerics);

void bench_set_reason(bench_verdict *verdict, bench_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
