/* SPDX-License-Identifier: MIT */
/* docs/numerics.md, "The formulas", line by line. */
#include "check/error_limits.h"

#include <math.h>

#include "kernels/common/dtypes.h"

bench_row_limits bench_limits_of_row(const attn_problem *problem, const attn_numerics *numerics, const attn_oracle_row *row,
                                     bool zero_mean) {
  const double u = 0x1p-24, eps = numerics->exp_error, f = numerics->input_flush;
  const double u_p = problem->dtype_kv == ATTN_F32 ? 0.0 : numerics->p_rounding;
  const double tiny = f > 0 ? 0x1p-126 : 0x1p-149, n = (double)row->allowed, scale = fabs((double)problem->scale);
  const double terms = problem->score == ATTN_SCORE_PRECOMPUTED ? 0.0 : (double)problem->dim_qk;
  const double tanhs = (problem->score == ATTN_SCORE_ADDITIVE) + (problem->softcap > 0);

  const double rescales = (double)(1 + row->allowed / 16);
  const double bend = tanhs * (2 * eps + 4 * u);
  const double flushed = f > 0 ? f * (row->max_q + row->max_k) : 0.0;
  const double vanish =
      problem->score != ATTN_SCORE_DOT ? 0.0 : (double)problem->dim_qk * (scale * flushed + 0x1p-126 * (scale + row->max_k));
  const double proven =
      (u * (terms + 16) + bend) * row->abs_sum + vanish + eps * (1 + rescales) + u_p + u * (n + rescales + 4);
  const double sharp = (u * (4 + sqrt(terms)) + bend) * row->abs_sum + vanish + eps + u * (sqrt(n) + 4);
  const double lse_rounding = 4 * u * (1 + fabs(row->lse));
  return (bench_row_limits){
      .proven = proven,
      .sharp = sharp,
      .lost = n * 0x1p-125 * row->max_v + (2 * n + 4) * tiny + f,
      .lse = (zero_mean ? fmin(proven, sharp + u_p) : proven) + lse_rounding,
      .max_v = row->max_v,
      .p_rounding = u_p,
      .store_error = attn_dtype_of(problem->dtype_o).roundoff,
      .dtype_o = problem->dtype_o,
      .both = zero_mean,
      .empty = row->allowed == 0,
  };
}

/* Comparisons are written so that a NaN anywhere fails. */
static double ratio_of(double error, double limit) {
  if (error <= limit) return limit < INFINITY ? error / limit : 0.0;
  double ratio = error / limit;
  return ratio > 1.0 && ratio < INFINITY ? ratio : INFINITY;
}

double bench_output_ratio(const bench_row_limits *limits, double o, double m, double w, double got) {
  if (limits->empty) return got == 0.0 && o == 0.0 ? 0.0 : INFINITY; /* o may be someone else's answer */
  if (isnan(o)) return isnan(got) ? 0.0 : INFINITY;
  if (isinf(o)) return got == o ? 0.0 : INFINITY;

  const attn_dtype_info type = attn_dtype_of(limits->dtype_o);
  const double a = 2 * limits->proven;
  double error = (a < 1 ? expm1(a) * m : 2 * (limits->max_v + fabs(o))) + limits->lost;
  const double sharp = 2 * limits->sharp * m + 6 * limits->p_rounding * w + limits->lost;
  if (limits->both && sharp < error) error = sharp;
  if (isinf(got) && fabs(o) + error >= type.overflow) return signbit(got) == signbit(o) ? 0.0 : INFINITY;
  return ratio_of(fabs(got - o), error + limits->store_error * (fabs(o) + error) + type.least / 2);
}

double bench_lse_ratio(const bench_row_limits *limits, double lse, double got) {
  if (isnan(lse)) return isnan(got) ? 0.0 : INFINITY;
  if (isinf(lse)) return got == lse ? 0.0 : INFINITY;
  return ratio_of(fabs(got - lse), limits->lse);
}
