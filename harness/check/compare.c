/* SPDX-License-Identifier: MIT */
/* The verdict on an output: every checked value against the oracle under the limits of docs/numerics.md, and whether a null
 * answer would pass as well. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "check/check_private.h"
#include "check/error_limits.h"

enum { LSE_COLUMN = -1 };

const char *bench_status_name(bench_status status) {
  static const char *const names[] = {"PASS", "FAIL", "SKIP", "DEGENERATE", "ERROR"};
  return names[status];
}

void bench_set_reason(bench_verdict *verdict, bench_status status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  verdict->status = status;
  vsnprintf(verdict->reason, sizeof verdict->reason, format, arguments);
  va_end(arguments);
}

/* ---- Comparison --------------------------------------------------------------------------------------------------- */

/* Element offset of the row's first output. */
static int64_t place(const attn_problem *p, const attn_args *args, const attn_strides *stride,
                     const bench_expected_row *row) {
  bool varlen = p->uses & ATTN_USE_VARLEN;
  int64_t start = varlen ? args->cu_seqlens_q[row->b] * stride->s : row->b * stride->b;
  return start + row->h * stride->h + row->i * stride->s;
}

/* The worst value so far, and how many were beyond their limit. */
typedef struct judgement {
  bench_verdict verdict;
  double worst_got, worst_expected;
  int64_t beyond;
} judgement;

static void judge(judgement *j, const bench_expected_row *row, int64_t column, double ratio, double got, double expected) {
  double error = fabs(got - expected);
  if (error > j->verdict.max_abs_err && error < INFINITY) j->verdict.max_abs_err = error;
  if (ratio > 1.0) j->beyond++;
  if (!(ratio > j->verdict.max_err_ratio)) return;
  j->verdict.max_err_ratio = ratio;
  memcpy(j->verdict.err_index, (int64_t[4]){row->b, row->h, row->i, column}, sizeof j->verdict.err_index);
  j->worst_got = got;
  j->worst_expected = expected;
}

static void judge_row(judgement *j, const bench_expected *e, int64_t n, const attn_args *args, const attn_numerics *numerics,
                      double store_error) {
  const attn_problem *p = &e->problem;
  const bench_expected_row *row = &e->row[n];
  const double *o = e->o + n * p->dim_v, *m = e->m + n * p->dim_v, *w = e->w + n * p->dim_v;
  bench_row_limits limits = bench_limits_of_row(p, numerics, &row->facts, e->zero_mean);
  limits.store_error = fmax(limits.store_error, store_error);
  int64_t at = place(p, args, &p->o_stride, row);
  for (int64_t d = 0; d < p->dim_v; d++) {
    double got = attn_oracle_load(args->o, p->dtype_o, at + d * p->o_stride.d);
    judge(j, row, d, bench_output_ratio(&limits, o[d], m[d], w[d], got), got, o[d]);
  }
  if (!(p->uses & ATTN_USE_LSE)) return;
  double got = (double)args->lse[place(p, args, &p->lse_stride, row)];
  judge(j, row, LSE_COLUMN, bench_lse_ratio(&limits, row->facts.lse, got), got, row->facts.lse);
}

static void explain_failure(judgement *j, int64_t rows) {
  const int64_t *at = j->verdict.err_index;
  char where[120], how[80];
  int used = snprintf(where, sizeof where, "%s[batch %lld, head %lld, query %lld", at[3] == LSE_COLUMN ? "lse" : "o",
                      (long long)at[0], (long long)at[1], (long long)at[2]);
  if (at[3] != LSE_COLUMN) snprintf(where + used, sizeof where - (size_t)used, ", column %lld", (long long)at[3]);
  if (isfinite(j->verdict.max_err_ratio))
    snprintf(how, sizeof how, "%.3g times the error limit", j->verdict.max_err_ratio);
  else
    snprintf(how, sizeof how, "which no error limit allows");
  bench_set_reason(&j->verdict, BENCH_FAIL, "%s] is %.9g, should be %.9g: %s; %lld values of %lld rows are beyond theirs",
                   where, j->worst_got, j->worst_expected, how, (long long)j->beyond, (long long)rows);
}

bench_verdict bench_compare_stored(const bench_expected *expected, const attn_args *args, const attn_numerics *numerics,
                                   double store_error) {
  judgement j = {.verdict = {.status = BENCH_PASS, .rows_checked = expected->rows}};
  for (int64_t n = 0; n < expected->rows; n++) judge_row(&j, expected, n, args, numerics, store_error);
  const char *null_answer = j.beyond ? NULL : bench_null_answer(expected, args, numerics);
  if (j.beyond) explain_failure(&j, expected->rows);
  if (null_answer) bench_set_reason(&j.verdict, BENCH_DEGENERATE, "right, but %s would pass as well", null_answer);
  return j.verdict;
}

bench_verdict bench_compare(const bench_expected *expected, const attn_args *args, const attn_numerics *numerics) {
  return bench_compare_stored(expected, args, numerics, 0.0);
}

/* ---- Null answers --------------------------------------------------------------------------------------------------- */

typedef enum null_answer { NULL_UNTOUCHED, NULL_ZEROS, NULL_MEAN_ALLOWED, NULL_MEAN_ALL, NULL_ANSWERS } null_answer;

/* Mean of the finite values of one column of V over all keys of the row's sequence; padding holds NaN. */
static double mean_of_column(const attn_problem *p, const attn_args *args, const bench_expected_row *row, int64_t d) {
  bool varlen = p->uses & ATTN_USE_VARLEN;
  const attn_strides *stride = &p->v_stride;
  int64_t first = varlen ? args->cu_seqlens_k[row->b] : 0, keys = varlen ? args->cu_seqlens_k[row->b + 1] - first : p->seq_k;
  int64_t head = row->h / (p->heads_q / p->heads_kv), count = 0;
  int64_t at = (varlen ? 0 : row->b * stride->b) + head * stride->h + first * stride->s + d * stride->d;
  double sum = 0.0;
  for (int64_t j = 0; j < keys; j++) {
    double v = attn_oracle_load(args->v, p->dtype_kv, at + j * stride->s);
    if (!isfinite(v)) continue;
    sum += v;
    count++;
  }
  return count ? sum / (double)count : 0.0;
}

static double null_value(const bench_expected *e, const attn_args *args, null_answer answer, int64_t n, int64_t d) {
  switch (answer) {
    case NULL_ZEROS: return 0.0;
    case NULL_MEAN_ALLOWED: return e->mean_v[n * e->problem.dim_v + d];
    case NULL_MEAN_ALL: return mean_of_column(&e->problem, args, &e->row[n], d);
    default: return NAN; /* untouched output: the first poison */
  }
}

/* True if the answer passes at every output of every checked row: stops at the first that rejects it. */
static bool null_passes(const bench_expected *e, const attn_args *args, const attn_numerics *numerics, null_answer answer) {
  const attn_problem *p = &e->problem;
  for (int64_t n = 0; n < e->rows; n++) {
    bench_row_limits limits = bench_limits_of_row(p, numerics, &e->row[n].facts, e->zero_mean);
    for (int64_t d = 0; d < p->dim_v; d++) {
      int64_t at = n * p->dim_v + d;
      double ratio = bench_output_ratio(&limits, e->o[at], e->m[at], e->w[at], null_value(e, args, answer, n, d));
      if (ratio > 1.0) return false;
    }
  }
  return true;
}

const char *bench_null_answer(const bench_expected *expected, const attn_args *args, const attn_numerics *numerics) {
  static const char *const names[NULL_ANSWERS] = {
      [NULL_UNTOUCHED] = "output that nobody wrote",
      [NULL_ZEROS] = "all zeros",
      [NULL_MEAN_ALLOWED] = "the mean of V over the allowed keys",
      [NULL_MEAN_ALL] = "the mean of V over all keys",
  };
  for (int answer = 0; answer < NULL_ANSWERS; answer++)
    if (null_passes(expected, args, numerics, (null_answer)answer)) return names[answer];
  return NULL;
}
