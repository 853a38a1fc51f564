/* SPDX-License-Identifier: MIT */
/* The right values and error limits of each operation's outputs. */
#include <math.h>

#include "check/check.h"
#include "check/structure.h"
#include "kernels/common/problem/pieces.h"

/* ---- Attention ------------------------------------------------------------------------------------------------------- */

static bench_right right_o(const bench_expected *e, int64_t n, int64_t d) {
  const int64_t k = n * e->problem.dim_v + d;
  return (bench_right){.value = e->o[k], .m = e->m[k], .w = e->w[k]};
}

static double ratio_o(const bench_row_limits *limits, bench_right right, double got) {
  return bench_output_ratio(limits, right.value, right.m, right.w, got);
}

/* Mean of the finite values of one column of V over all keys of the row's sequence; padding holds NaN, and in pages it may
 * not even exist. */
static double mean_of_column(const attn_problem *p, const attn_args *args, const bench_expected_row *row, int64_t d) {
  int64_t count = 0;
  double sum = 0.0;
  const attn_sequence seq = attn_sequence_of(p, args, row->b);
  attn_needed_keys keys = {.of = {[LATER_KEYS] = {0, seq.len_k}}};
  if (attn_uses(p, ATTN_USE_PAGES)) keys = attn_keys_needed(p, args, &seq, row->b);
  for (int i = 0; i < KEY_PIECES; i++)
    for (int64_t j = keys.of[i].begin; j < keys.of[i].end; j++) {
      const int64_t at = bench_key_place(p, args, &p->v_stride, row, j) + d * p->v_stride.d;
      const double v = bench_v_scale(p, args, row, j, d) * attn_oracle_load(args->v, p->dtype_kv, at);
      if (!isfinite(v)) continue;
      sum += v;
      count++;
    }
  return count ? sum / (double)count : 0.0;
}

static double mean_of_v(const bench_expected *e, const attn_args *args, int64_t n, int64_t d, bool all) {
  return all ? mean_of_column(&e->problem, args, &e->row[n], d) : e->mean_v[n * e->problem.dim_v + d];
}

static bench_right right_lse(const bench_expected *e, int64_t n, int64_t d) {
  (void)d;
  return (bench_right){.value = e->row[n].facts.lse};
}

static double ratio_lse(const bench_row_limits *limits, bench_right right, double got) {
  return bench_lse_ratio(limits, right.value, got);
}

static const bench_output forward[] = {
    {BENCH_O, right_o, ratio_o, mean_of_v}, {BENCH_LSE, right_lse, ratio_lse, NULL}, {.right = NULL}};

/* ---- Gradients ------------------------------------------------------------------------------------------------------- */

static bench_right right_gradient(const bench_expected *e, int64_t n, int64_t d) {
  const int64_t k = e->row[n].at + d;
  return (bench_right){e->o[k], e->m[k], e->w[k], e->proven[k], e->sharp[k]};
}

#define GRADIENT(tensor) \
  { BENCH_##tensor, right_gradient, bench_gradient_ratio, NULL }
static const bench_output backward[] = {GRADIENT(D_V),
                                        GRADIENT(D_Q),
                                        GRADIENT(D_K),
                                        GRADIENT(D_BIAS),
                                        GRADIENT(D_SCORES),
                                        GRADIENT(D_SCORE_WEIGHT),
                                        GRADIENT(D_ALIBI_SLOPES),
                                        GRADIENT(D_SINKS),
                                        {.right = NULL}};

/* ---- All ------------------------------------------------------------------------------------------------------------- */

const bench_answer bench_answers[] = {
    [ATTN_FORWARD] = {.outputs = forward, .compute_row = bench_expected_attend, .absolute_v = true, .structure = ~0u},
    [ATTN_BACKWARD] = {.outputs = backward,
                       .compute_row = bench_expected_differentiate,
                       .by_output = true,
                       .structure = 1u << BENCH_STRUCTURE_threads},
};
