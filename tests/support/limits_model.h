/* SPDX-License-Identifier: MIT */
/* The formulas of docs/numerics.md, written once more. */
#ifndef TESTS_LIMITS_MODEL_H
#define TESTS_LIMITS_MODEL_H

#include <math.h>

#include "check/check.h"

typedef struct model {
  double proven, sharp, u_p, moved, lost, lse, lse_mean, store; /* two kernels that may both err: sums */
  double max_v;
} model;

static double u_p_of(const attn_problem *p, const attn_numerics *k) {
  return p->dtype_kv == ATTN_F32 ? 0 : fmin(k->p_rounding, p->dtype_kv == ATTN_F16 ? 0x1p-11 : 0x1p-8);
}

static void add_kernel(model *m, const attn_problem *p, const attn_numerics *k, const attn_oracle_row *f) {
  const double u = 0x1p-24, eps = k->exp_error, n = (double)f->allowed, rescales = 1 + floor(n / 16);
  const double terms = p->score == ATTN_SCORE_PRECOMPUTED ? 0 : (double)p->dim_qk, scale = fabs((double)p->scale);
  const double bend = ((p->score == ATTN_SCORE_ADDITIVE) + (p->softcap > 0)) * (2 * eps + 4 * u);
  const double flushed = k->input_flush > 0 ? k->input_flush * (f->max_q + f->max_k) : 0;
  const double vanish =
      p->score == ATTN_SCORE_DOT ? (double)p->dim_qk * (scale * flushed + 0x1p-126 * (scale + f->max_k)) : 0;
  const bool scaled = p->uses & ATTN_USE_KV_SCALES, of_channels = scaled && p->k_scale_stride.d != 0;
  double proven =
      (u * (terms + 16) + bend) * f->abs_sum + vanish + eps * (1 + rescales) + u_p_of(p, k) + u * (n + rescales + 4);
  const double factors = scaled ? u * (f->abs_sum + 1) : 0;
  const double denormal = of_channels && p->score == ATTN_SCORE_DOT ? (double)p->dim_qk * scale * 0x1p-150 * f->max_k : 0;
  double sharp = (u * (4 + sqrt(terms)) + bend) * f->abs_sum + vanish + eps + u * (sqrt(n + f->ties) + 4), moved = 0;
  proven += 2 * k->input_rounding * (f->abs_sum + 1) + factors + denormal;
  sharp += 2 * k->input_rounding * (f->abs_sum + 1) + factors + denormal;
  if (p->score == ATTN_SCORE_DOT && k->query_rounding > 0) {
    proven += k->query_rounding * scale * f->max_q * f->sum_k;
    moved = expm1(12 * k->query_rounding * scale * f->max_q * f->norm_k) / 2;
  }
  m->proven += proven, m->sharp += sharp, m->moved += moved;
  m->lse += proven + 4 * u * (1 + fabs(f->lse));
  m->lse_mean += fmin(proven, sharp + u_p_of(p, k) + moved) + 4 * u * (1 + fabs(f->lse)); /* zero-mean data */
  m->u_p += u_p_of(p, k);
  m->lost += n * 0x1p-125 * f->max_v +
             ((2 * n + 4) * (k->input_flush > 0 ? 0x1p-126 : 0x1p-149) + k->input_flush) * fmax(f->max_v_factor, 1);
  m->store += p->dtype_o == ATTN_F32 ? 0x1p-24 : p->dtype_o == ATTN_F16 ? 0x1p-11 : 0x1p-8;
  m->max_v = f->max_v;
}

/* How far an element may be from `right`. m and w: M and W of an output; an LSE does not use them. */
static double limit_of(const model *l, attn_dtype type, bool zero_mean, bool is_lse, double right, double m, double w) {
  const double step = type == ATTN_F32 ? 0x1p-149 : type == ATTN_F16 ? 0x1p-24 : 0x1p-133;
  if (is_lse) return zero_mean ? l->lse_mean : l->lse;
  double e = 2 * l->proven < 1 ? expm1(2 * l->proven) * m : 2 * (l->max_v + fabs(right));
  if (zero_mean) e = fmin(e, 2 * l->sharp * m + (6 * l->u_p + l->moved) * w);
  return e + l->lost + l->store * (fabs(right) + e + l->lost) + step / 2;
}

#endif
