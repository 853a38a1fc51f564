/* SPDX-License-Identifier: MIT */
/* The verdict on an output: every checked value against the oracle under the limits of docs/numerics.md, and whether a null
 * answer would pass as well. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "check/check.h"
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

/* ---- Null answers --------------------------------------------------------------------------------------------------- */

typedef enum null_answer { NULL_UNTOUCHED, NULL_ZEROS, NULL_MEAN_ALLOWED, NULL_MEAN_ALL, NULL_ANSWERS } null_answer;

/* Mean of the finite values of one column of V over all keys of the row's sequence; padding holds NaN. */
static double mean_of_column(const attn_problem *p, const attn_args *args, const bench_expected_row *row, int64_t d) {
  const bool varlen = p->uses & ATTN_USE_VARLEN;
  const int64_t first = varlen ? args->cu_seqlens_k[row->b] : 0, end = varlen ? args->cu_seqlens_k[row->b + 1] : p->seq_k;
  const int64_t at = (varlen ? 0 : row->b * p->v_stride.b) + row->h / (p->heads_q / p->heads_kv) * p->v_stride.h;
  int64_t count = 0;
  double sum = 0.0;
  for (int64_t j = first; j < end; j++) {
    const double v = attn_oracle_load(args->v, p->dtype_kv, at + d * p->v_stride.d + j * p->v_stride.s);
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
  const int64_t dim_v = e->problem.dim_v;
  for (int64_t n = 0; n < e->rows; n++) {
    const bench_row_limits limits = bench_limits_of_row(&e->problem, numerics, &e->row[n].facts, e->zero_mean);
    for (int64_t d = 0, k = n * dim_v; d < dim_v; d++, k++)
      if (bench_output_ratio(&limits, e->o[k], e->m[k], e->w[k], null_value(e, args, answer, n, d)) > 1.0) return false;
  }
  return true;
}

/* The null answer that would pass under these numerics, or NULL. */
static const char *find_null_answer(const bench_expected *expected, const attn_args *args, const attn_numerics *numerics) {
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

/* ---- Comparison --------------------------------------------------------------------------------------------------- */

typedef struct comparison {
  const bench_expected *expected;
  const attn_args *args;
  const attn_numerics *numerics;
  double store_error;
  bench_verdict verdict; /* of the values so far */
  double worst_got, worst_expected;
  int64_t beyond; /* how many values were beyond their limit */
} comparison;

static void compare_value(comparison *c, const bench_expected_row *row, int64_t column, double got, double expected,
                          double ratio) {
  const double error = fabs(got - expected);
  if (error > c->verdict.max_abs_err && error < INFINITY) c->verdict.max_abs_err = error;
  if (ratio > 1.0) c->beyond++;
  if (!(ratio > c->verdict.max_err_ratio)) return;
  c->verdict.max_err_ratio = ratio;
  memcpy(c->verdict.err_index, (int64_t[4]){row->b, row->h, row->i, column}, sizeof c->verdict.err_index);
  c->worst_got = got;
  c->worst_expected = expected;
}

static void compare_lse(comparison *c, const bench_expected_row *row, const bench_row_limits *limits) {
  const attn_problem *p = &c->expected->problem;
  const double lse = row->facts.lse, got = (double)c->args->lse[bench_row_place(p, c->args, &p->lse_stride, row)];
  compare_value(c, row, LSE_COLUMN, got, lse, bench_lse_ratio(limits, lse, got));
}

static void compare_row(comparison *c, int64_t n) {
  const bench_expected *e = c->expected;
  const attn_problem *p = &e->problem;
  const bench_expected_row *row = &e->row[n];
  const int64_t first = bench_row_place(p, c->args, &p->o_stride, row);
  bench_row_limits limits = bench_limits_of_row(p, c->numerics, &row->facts, e->zero_mean);
  limits.store_error = fmax(limits.store_error, c->store_error);
  for (int64_t d = 0, k = n * p->dim_v; d < p->dim_v; d++, k++) {
    const double got = attn_oracle_load(c->args->o, p->dtype_o, first + d * p->o_stride.d);
    compare_value(c, row, d, got, e->o[k], bench_output_ratio(&limits, e->o[k], e->m[k], e->w[k], got));
  }
  if (p->uses & ATTN_USE_LSE) compare_lse(c, row, &limits);
}

static void explain_failure(comparison *c) {
  const int64_t *at = c->verdict.err_index;
  char column[40] = "", how[80] = "which no error limit allows";
  if (at[3] != LSE_COLUMN) snprintf(column, sizeof column, ", column %lld", (long long)at[3]);
  if (isfinite(c->verdict.max_err_ratio)) snprintf(how, sizeof how, "%.3g times the error limit", c->verdict.max_err_ratio);
  bench_set_reason(
      &c->verdict, BENCH_FAIL,
      "%s[batch %lld, head %lld, query %lld%s] is %.9g, should be %.9g: %s; %lld values of %lld rows are beyond "
      "theirs",
      at[3] == LSE_COLUMN ? "lse" : "o", (long long)at[0], (long long)at[1], (long long)at[2], column, c->worst_got,
      c->worst_expected, how, (long long)c->beyond, (long long)c->expected->rows);
}

bench_verdict bench_compare_stored(const bench_expected *expected, const attn_args *args, const attn_numerics *numerics,
                                   double store_error) {
  comparison c = {.expected = expected, .args = args, .numerics = numerics, .store_error = store_error};
  c.verdict.rows_checked = expected->rows;
  for (int64_t n = 0; n < expected->rows; n++) compare_row(&c, n);
  const char *null = c.beyond ? NULL : find_null_answer(expected, args, numerics);
  if (c.beyond) explain_failure(&c);
  if (null) bench_set_reason(&c.verdict, BENCH_DEGENERATE, "right, but %s would pass as well", null);
  return c.verdict;
}

bench_verdict bench_compare(const bench_expected *expected, const attn_args *args, const attn_numerics *numerics) {
  return bench_compare_stored(expected, args, numerics, 0.0);
}
