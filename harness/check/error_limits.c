/* SPDX-License-Identifier: MIT */
/* docs/numerics.md, "The formulas", line by line. */
#include "check/error_limits.h"

#include <math.h>

#include "kernels/common/dtypes.h"

/* The terms of the formulas for one row; u is the roundoff of float32. */
typedef struct row_terms {
  double u, u_p;         /* roundoff of float32; of p */
  double eps, f, tiny;   /* error of exp; inputs below f are flushed; the smallest result that is not */
  double n, terms;       /* allowed keys; terms of a score */
  double rescales, bend; /* how often the sum is rescaled; error of tanh */
  double vanish;         /* what flushed inputs and results may take from a score */
} row_terms;

static double flushed_scores(const attn_problem *problem, const attn_oracle_row *row, double f) {
  const double scale = fabs((double)problem->scale), flushed = f > 0 ? f * (row->max_q + row->max_k) : 0.0;
  if (problem->score != ATTN_SCORE_DOT) return 0.0;
  return (double)problem->dim_qk * (scale * flushed + 0x1p-126 * (scale + row->max_k));
}

static row_terms terms_of(const attn_problem *problem, const attn_numerics *numerics, const attn_oracle_row *row) {
  const double u = 0x1p-24, eps = numerics->exp_error, f = numerics->input_flush;
  const double tanhs = (problem->score == ATTN_SCORE_ADDITIVE) + (problem->softcap > 0);
  return (row_terms){.u = u,
                     .u_p = problem->dtype_kv == ATTN_F32 ? 0.0 : numerics->p_rounding,
                     .eps = eps,
                     .f = f,
                     .tiny = f > 0 ? 0x1p-126 : 0x1p-149,
                     .n = (double)row->allowed,
                     .terms = problem->score == ATTN_SCORE_PRECOMPUTED ? 0.0 : (double)problem->dim_qk,
                     .rescales = (double)(1 + row->allowed / 16),
                     .bend = tanhs * (2 * eps + 4 * u),
                     .vanish = flushed_scores(problem, row, f)};
}

static double proven_error(const row_terms *t, double abs_sum) {
  return (t->u * (t->terms + 16) + t->bend) * abs_sum + t->vanish + t->eps * (1 + t->rescales) + t->u_p +
         t->u * (t->n + t->rescales + 4);
}

static double sharp_error(const row_terms *t, double abs_sum) {
  return (t->u * (4 + sqrt(t->terms)) + t->bend) * abs_sum + t->vanish + t->eps + t->u * (sqrt(t->n) + 4);
}

bench_row_limits bench_limits_of_row(const attn_problem *problem, const attn_numerics *numerics, const attn_oracle_row *row,
                                     bool zero_mean) {
  const row_terms t = terms_of(problem, numerics, row);
  const double proven = proven_error(&t, row->abs_sum), sharp = sharp_error(&t, row->abs_sum);
  const double lse_rounding = 4 * t.u * (1 + fabs(row->lse));
  return (bench_row_limits){
      .proven = proven,
      .sharp = sharp,
      .lost = t.n * 0x1p-125 * row->max_v + (2 * t.n + 4) * t.tiny + t.f,
      .lse = (zero_mean ? fmin(proven, sharp + t.u_p) : proven) + lse_rounding,
      .max_v = row->max_v,
      .p_rounding = t.u_p,
      .store_error = attn_dtype_of(problem->dtype_o).roundoff,
      .dtype_o = problem->dtype_o,
      .both = zero_mean,
      .empty = row->allowed == 0,
  };
}

void bench_limits_add(bench_row_limits *limits, const bench_row_limits *other) {
  limits->proven += other->proven;
  limits->sharp += other->sharp;
  limits->lost += other->lost;
  limits->lse += other->lse;
  limits->p_rounding += other->p_rounding;
  limits->store_error += other->store_error;
}

const char *bench_beyond_cap(const attn_numerics *numerics) {
  if (!(numerics->exp_error <= 0x1p-8)) return "an exp error";
  if (!(numerics->p_rounding <= 0x1p-8)) return "a rounding of P";
  return numerics->input_flush <= 0x1p-126 ? NULL : "flushed inputs";
}

bool bench_is_approximate(const attn_problem *problem, const attn_numerics *numerics) {
  const double rounding = fmax(0x1p-21, attn_dtype_of(problem->dtype_kv).roundoff);
  return numerics->exp_error > rounding || (problem->dtype_kv != ATTN_F32 && numerics->p_rounding > rounding);
}

/* Comparisons are written so that a NaN anywhere fails. */
static double ratio_of(double error, double limit) {
  if (error <= limit) return limit < INFINITY ? error / limit : 0.0;
  double ratio = error / limit;
  return ratio > 1.0 && ratio < INFINITY ? ratio : INFINITY;
}

/* The largest error that a finite output may have before it is stored. */
static double error_limit(const bench_row_limits *limits, double o, double m, double w) {
  const double a = 2 * limits->proven;
  const double proven = (a < 1 ? expm1(a) * m : 2 * (limits->max_v + fabs(o))) + limits->lost;
  const double sharp = 2 * limits->sharp * m + 6 * limits->p_rounding * w + limits->lost;
  return limits->both && sharp < proven ? sharp : proven;
}

double bench_output_ratio(const bench_row_limits *limits, double o, double m, double w, double got) {
  if (limits->empty) return got == 0.0 && o == 0.0 ? 0.0 : INFINITY; /* o may come from a file */
  if (isnan(o)) return isnan(got) ? 0.0 : INFINITY;
  if (isinf(o)) return got == o ? 0.0 : INFINITY;
  const attn_dtype_info type = attn_dtype_of(limits->dtype_o);
  const double error = error_limit(limits, o, m, w);
  if (isinf(got) && fabs(o) + error >= type.overflow) return signbit(got) == signbit(o) ? 0.0 : INFINITY;
  return ratio_of(fabs(got - o), error + limits->store_error * (fabs(o) + error) + type.least / 2);
}

double bench_lse_ratio(const bench_row_limits *limits, double lse, double got) {
  if (isnan(lse)) return isnan(got) ? 0.0 : INFINITY;
  if (isinf(lse)) return got == lse ? 0.0 : INFINITY;
  return ratio_of(fabs(got - lse), limits->lse);
}
