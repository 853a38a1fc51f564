/* SPDX-License-Identifier: MIT */
/* The oracle's answer to one problem, and whether that problem can tell it from no answer at all. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "check/check_private.h"
#include "machine/affinity.h"

static const double WORTH_THREADS = 1e6; /* multiply-adds: a few milliseconds; waking threads for less costs more */

/* Computes row n. The oracle leaves p in the scratch of allowed keys and does not touch the others: a negative mark tells
 * them apart, for the mean of V over the allowed keys. */
static void compute_row(bench_expected *e, const attn_args *args, int64_t n, double *score) {
  const attn_problem *p = &e->problem;
  bench_expected_row *row = &e->row[n];
  double *mean = e->mean_v + n * p->dim_v;
  for (int64_t j = 0; j < p->seq_k; j++) score[j] = -1.0;
  attn_oracle_f64_row(p, args, row->b, row->h, row->i, &row->facts, e->o + n * p->dim_v, e->m + n * p->dim_v,
                      e->w + n * p->dim_v, score);
  bool varlen = p->uses & ATTN_USE_VARLEN;
  int64_t head = row->h / (p->heads_q / p->heads_kv);
  int64_t at = (varlen ? args->cu_seqlens_k[row->b] * p->v_stride.s : row->b * p->v_stride.b) + head * p->v_stride.h;
  for (int64_t d = 0; d < p->dim_v; d++) mean[d] = 0.0;
  for (int64_t j = 0; j < p->seq_k; j++)
    for (int64_t d = 0; d < p->dim_v && !(score[j] < 0.0); d++)
      mean[d] += attn_oracle_load(args->v, p->dtype_kv, at + j * p->v_stride.s + d * p->v_stride.d);
  for (int64_t d = 0; d < p->dim_v && row->facts.allowed > 0; d++) mean[d] /= (double)row->facts.allowed;
}

/* False if memory is short. */
static bool compute_rows(bench_expected *e, const attn_args *args) {
  const attn_problem *p = &e->problem;
  const double cost = (double)e->rows * (double)p->seq_k * (double)(p->dim_qk + p->dim_v);
  const bool threads = cost > WORTH_THREADS;
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
  static const attn_numerics exact = {0};
  bench_expected *e = calloc(1, sizeof *e);
  if (!e) return NULL;
  e->problem = *problem;
  e->zero_mean = zero_mean;
  if (!bench_expected_choose(e, args, seed) || !allocate_values(e) || !compute_rows(e, args)) {
    bench_expected_destroy(e);
    return NULL;
  }
  const char *null_answer = bench_null_answer(e, args, &exact);
  if (null_answer) snprintf(e->degenerate, sizeof e->degenerate, "%s would pass as well", null_answer);
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

const char *bench_expected_degenerate(const bench_expected *expected) {
  return expected->degenerate[0] ? expected->degenerate : NULL;
}
