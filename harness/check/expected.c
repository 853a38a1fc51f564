/* SPDX-License-Identifier: MIT */
/* The oracle's answer to one problem. */
#include <math.h>
#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "check/check_private.h"
#include "machine/affinity.h"

static const double WORTH_THREADS = 1e6; /* multiply-adds: a few milliseconds; waking threads for less costs more */

/* Adds the values of one key to a mean of V. */
static void add_value(const attn_problem *p, const attn_args *args, int64_t at, double *mean) {
  for (int64_t d = 0; d < p->dim_v; d++) mean[d] += attn_oracle_load(args->v, p->dtype_kv, at + d * p->v_stride.d);
}

/* The mean of V over the allowed keys of row n: those whose score is not negative. */
static void compute_mean(bench_expected *e, const attn_args *args, int64_t n, const double *score) {
  const attn_problem *p = &e->problem;
  const bench_expected_row *row = &e->row[n];
  const int64_t batch = p->uses & ATTN_USE_VARLEN ? args->cu_seqlens_k[row->b] * p->v_stride.s : row->b * p->v_stride.b;
  const int64_t at = batch + row->h / (p->heads_q / p->heads_kv) * p->v_stride.h;
  double *mean = e->mean_v + n * p->dim_v;
  for (int64_t d = 0; d < p->dim_v; d++) mean[d] = 0.0;
  for (int64_t j = 0; j < p->seq_k; j++)
    if (!(score[j] < 0.0)) add_value(p, args, at + j * p->v_stride.s, mean);
  for (int64_t d = 0; d < p->dim_v && row->facts.allowed > 0; d++) mean[d] /= (double)row->facts.allowed;
}

/* Computes row n. The oracle leaves p in the scratch of allowed keys and does not touch the others: a negative mark tells
 * them apart, for the mean of V over the allowed keys. */
static void compute_row(bench_expected *e, const attn_args *args, int64_t n, double *score) {
  const attn_problem *p = &e->problem;
  bench_expected_row *row = &e->row[n];
  const int64_t at = n * p->dim_v;
  for (int64_t j = 0; j < p->seq_k; j++) score[j] = -1.0;
  attn_oracle_f64_row(p, args, row->b, row->h, row->i, &row->facts, e->o + at, e->m + at, e->w + at, score);
  compute_mean(e, args, n, score);
}

static bool is_worth_threads(const bench_expected *e) {
  const attn_problem *p = &e->problem;
  return (double)e->rows * (double)p->seq_k * (double)(p->dim_qk + p->dim_v) > WORTH_THREADS;
}

/* False if memory is short. */
static bool compute_rows(bench_expected *e, const attn_args *args) {
  const attn_problem *p = &e->problem;
  const bool threads = is_worth_threads(e);
  bool enough = true;
  (void)threads; /* not used without OpenMP */
#ifdef _OPENMP
#pragma omp parallel if (threads) reduction(&& : enough)
#endif
  {
#ifdef _OPENMP
    bench_thread_settle(omp_get_thread_num(), omp_get_num_threads());
#endif
    double *score = malloc((size_t)(p->seq_k + 1) * sizeof *score);
    if (!score) enough = false;
#ifdef _OPENMP
#pragma omp for schedule(dynamic)
#endif
    for (int64_t n = 0; n < e->rows; n++)
      if (score) compute_row(e, args, n, score);
    free(score);
  }
  return enough;
}

static bool allocate_values(bench_expected *e) {
  size_t bytes = (size_t)(e->rows * e->problem.dim_v + 1) * sizeof(double);
  e->o = malloc(bytes);
  e->m = malloc(bytes);
  e->w = malloc(bytes);
  e->mean_v = malloc(bytes);
  return e->o && e->m && e->w && e->mean_v;
}

bench_expected *bench_expected_create(const attn_problem *problem, const attn_args *args, uint64_t seed, bool zero_mean) {
  bench_expected *e = calloc(1, sizeof *e);
  if (!e) return NULL;
  e->problem = *problem;
  e->zero_mean = zero_mean;
  if (!bench_expected_choose(e, args, seed) || !allocate_values(e) || !compute_rows(e, args)) {
    bench_expected_destroy(e);
    return NULL;
  }
  return e;
}

void bench_expected_destroy(bench_expected *expected) {
  if (!expected) return;
  free(expected->row);
  free(expected->o);
  free(expected->m);
  free(expected->w);
  free(expected->mean_v);
  free(expected);
}
