/* SPDX-License-Identifier: MIT */
/* The oracle's answer to one problem. */
#include <math.h>
#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "attn/extend.h"
#include "check/expected.h"
#include "machine/affinity.h"

static const double WORTH_THREADS = 1e6; /* multiply-adds: a few milliseconds; waking threads for less costs more */

int64_t bench_row_place(const attn_problem *p, const attn_args *args, const attn_strides *stride,
                        const bench_expected_row *row) {
  const bool varlen = p->uses & ATTN_USE_VARLEN;
  const int64_t start = varlen ? args->cu_seqlens_q[row->b] * stride->s : row->b * stride->b;
  return start + row->h * stride->h + row->i * stride->s;
}

/* The mean of V over the allowed keys of row n: those whose score is not negative. */
static void compute_mean(bench_expected *e, const attn_args *args, int64_t n, const double *score) {
  const attn_problem *p = &e->problem;
  const bench_expected_row *row = &e->row[n];
  const int64_t batch = p->uses & ATTN_USE_VARLEN ? args->cu_seqlens_k[row->b] * p->v_stride.s : row->b * p->v_stride.b;
  const int64_t head = batch + row->h / (p->heads_q / p->heads_kv) * p->v_stride.h;
  const double share = 1.0 / (double)row->facts.allowed;
  double *mean = e->mean_v + n * p->dim_v;
  for (int64_t d = 0; d < p->dim_v; d++) mean[d] = 0.0;
  for (int64_t j = 0; j < p->seq_k; j++) {
    const int64_t at = head + j * p->v_stride.s;
    if (score[j] < 0.0) continue;
    for (int64_t d = 0; d < p->dim_v; d++) mean[d] += share * attn_oracle_load(args->v, p->dtype_kv, at + d * p->v_stride.d);
  }
}

/* Computes row n. The oracle leaves p in the scratch of allowed keys and does not touch the others: a negative mark tells
 * them apart, for the mean of V over the allowed keys. */
static void compute_row(bench_expected *e, const attn_args *args, int64_t n, double *score) {
  const attn_problem *p = &e->problem;
  bench_expected_row *row = &e->row[n];
  const attn_oracle_output out = {e->o + n * p->dim_v, e->m + n * p->dim_v, e->w + n * p->dim_v, score};
  for (int64_t j = 0; j < p->seq_k; j++) score[j] = -1.0;
  row->facts = attn_oracle_f64_row(p, args, (attn_oracle_index){row->b, row->h, row->i}, &out);
  compute_mean(e, args, n, score);
}

/* False if memory is short. */
static bool compute_rows(bench_expected *e, const attn_args *args) {
  const attn_problem *p = &e->problem;
  const bool large = (double)e->rows * (double)p->seq_k * (double)(p->dim_qk + p->dim_v) > WORTH_THREADS;
  const int threads = large ? attn_parallel_default_threads() : 1;
  bool enough = true;
  (void)threads; /* not used without OpenMP */
#ifdef _OPENMP
#pragma omp parallel num_threads(attn_parallel_available(threads)) reduction(&& : enough)
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

/* Takes over e, whose rows are chosen. NULL if memory is short. */
static bench_expected *compute(bench_expected *e, const attn_args *args) {
  bool enough = e->row;
  double **const values[] = {&e->o, &e->m, &e->w, &e->mean_v};
  for (int i = 0; i < 4; i++) {
    *values[i] = malloc((size_t)(e->rows * e->problem.dim_v + 1) * sizeof(double));
    enough = enough && *values[i];
  }
  if (enough && compute_rows(e, args)) return e;
  bench_expected_destroy(e);
  return NULL;
}

bench_expected *bench_expected_create(const attn_problem *problem, const attn_args *args, uint64_t seed, bool zero_mean) {
  bench_expected *e = calloc(1, sizeof *e);
  if (!e) return NULL;
  e->problem = *problem;
  e->zero_mean = zero_mean;
  e->reference = calloc(1, sizeof *e->reference);
  if (e->reference && bench_expected_choose(e, args, seed)) return compute(e, args);
  bench_expected_destroy(e);
  return NULL;
}

bench_expected *bench_expected_of_row(const attn_problem *problem, const attn_args *args, const bench_expected_row *row,
                                      bool zero_mean) {
  bench_expected *e = calloc(1, sizeof *e);
  if (!e) return NULL;
  *e = (bench_expected){.problem = *problem, .zero_mean = zero_mean, .rows = 1, .row = malloc(sizeof *e->row)};
  if (e->row) *e->row = *row;
  return compute(e, args);
}

static void destroy_reference(bench_reference *r) {
  if (!r) return;
  free(r->o);
  free(r->lse);
  free(r->m);
  free(r);
}

void bench_expected_destroy(bench_expected *expected) {
  if (!expected) return;
  destroy_reference(expected->reference);
  free(expected->row);
  free(expected->o);
  free(expected->m);
  free(expected->w);
  free(expected->mean_v);
  free(expected);
}
