/* SPDX-License-Identifier: MIT */
/* attn_exact_row: two passes over the row's allowed keys, in double. The first finds the largest score and the sum of
 * exponentials, the second weighs V, a block of output columns at a time. */
#include "kernels/common/problem/exact_row.h"

#include <assert.h>
#include <math.h>

#include "kernels/common/problem/convert.h"
#include "kernels/common/problem/indexing.h"

enum { COLUMNS = 64 }; /* output columns per pass over the keys: they live on the stack */

typedef struct exact_row {
  const attn_problem *problem;
  const attn_args *args;
  attn_sequence seq;
  attn_key_range keys;
  int64_t b, h, i;
} exact_row;

static bool selected(const exact_row *row, int64_t j) {
  return attn_key_selected(row->problem, row->args, row->b, row->h, row->i, j) &&
         !attn_between_windows(row->problem, &row->seq, row->i, j);
}

static double weight_of(const exact_row *row, int64_t d) {
  if (!attn_uses(row->problem, ATTN_USE_SCORE_WEIGHT)) return 1.0;
  return row->args->score_weight[row->h * row->problem->score_weight_stride_h + d];
}

static attn_key_run run_at(const exact_row *row, int64_t j) {
  return attn_key_run_at(row->problem, row->args, &row->seq, row->h, j);
}

static attn_key_scales scales_at(const exact_row *row, int64_t j) {
  return attn_key_scales_at(row->problem, row->args, &row->seq, row->h, j);
}

/* Sum over the head dimension: <q, k>, or its counterpart for the other score functions. */
static double similarity(const exact_row *row, int64_t j) {
  const attn_problem *p = row->problem;
  if (p->score == ATTN_SCORE_PRECOMPUTED)
    return row->args->scores[attn_score_offset(&p->scores_stride, row->b, row->h, row->i, j)];
  const int64_t q_at = attn_q_offset(p, &row->seq, row->b, row->h, row->i);
  const int64_t k_at = run_at(row, j).k;
  const double scale = *scales_at(row, j).k;
  double sum = 0.0;
  for (int64_t d = 0; d < p->dim_qk; d++) {
    const double q = attn_load_f32(attn_q_storage(p, row->args), q_at + d * p->q_stride.d);
    const double k = scale * attn_load_f32(attn_k_storage(p, row->args), k_at + d * p->k_stride.d);
    if (p->score == ATTN_SCORE_DOT) {
      sum += q * k;
    } else if (p->score == ATTN_SCORE_ADDITIVE) {
      sum += weight_of(row, d) * tanh(q + k);
    } else {
      const double distance = weight_of(row, d) * (q - k);
      sum -= 0.5 * distance * distance;
    }
  }
  return p->score == ATTN_SCORE_DOT ? p->scale * sum : sum;
}

static double score_of(const exact_row *row, int64_t j) {
  const attn_problem *p = row->problem;
  double score = similarity(row, j);
  if (p->softcap > 0) score = p->softcap * tanh(score / p->softcap);
  if (attn_uses(p, ATTN_USE_BIAS)) score += row->args->bias[attn_score_offset(&p->bias_stride, row->b, row->h, row->i, j)];
  if (attn_uses(p, ATTN_USE_ALIBI)) {
    const int64_t position = attn_saturating_add(row->i, row->seq.offset);
    score -= row->args->alibi_slopes[row->h] * fabs((double)position - (double)j);
  }
  return score;
}

/* Results of a first pass over the scores, for the weights exp(score - shift) / sum and for LSE. */
typedef struct softmax {
  double shift; /* the largest score, or the sink where that is larger */
  double sum;   /* sum of exp(score - shift), sink included; undefined if shift is infinite */
  double lse;   /* without the sink */
  bool nan;     /* a score or the sink is NaN */
  bool empty;   /* no allowed key */
} softmax;

static softmax softmax_of(const exact_row *row) {
  softmax s = {.shift = -INFINITY, .lse = -INFINITY, .empty = true};
  double sum = 0.0; /* sum of exp(score - largest), rescaled whenever a larger score turns up */
  double largest = -INFINITY;
  for (int64_t j = row->keys.begin; j < row->keys.end; j++) {
    if (!selected(row, j)) continue;
    const double score = score_of(row, j);
    s.empty = false;
    s.nan = s.nan || isnan(score);
    if (score > largest) {
      sum = sum * exp(largest - score) + 1.0;
      largest = score;
    } else if (score > -INFINITY) {
      sum += exp(score - largest);
    }
  }
  const double sink = attn_uses(row->problem, ATTN_USE_SINKS) ? row->args->sinks[row->h] : -INFINITY;
  s.lse = s.nan ? NAN : isinf(largest) ? largest : largest + log(sum);
  s.shift = sink > largest ? sink : largest;
  s.nan = s.nan || isnan(sink);
  s.sum = (isinf(largest) ? 0.0 : sum * exp(largest - s.shift)) + exp(sink - s.shift);
  return s;
}

/* The shift is infinite: if a score is +inf, the weight of finite scores is 0, and its own is NaN. */
static double probability(const softmax *s, double score) {
  if (s->nan) return NAN;
  if (isfinite(s->shift)) return exp(score - s->shift) / s->sum;
  return s->shift > 0 && score < INFINITY ? 0.0 : NAN;
}

static void store_columns(const exact_row *row, const softmax *s, int64_t first, int64_t columns) {
  const attn_problem *p = row->problem;
  double sum[COLUMNS] = {0.0};
  for (int64_t j = row->keys.begin; j < row->keys.end; j++) {
    if (!selected(row, j)) continue;
    const double weight = probability(s, score_of(row, j));
    const int64_t v_at = run_at(row, j).v + first * p->v_stride.d;
    const double scale = *scales_at(row, j).v;
    for (int64_t c = 0; c < columns; c++)
      sum[c] += weight * (scale * attn_load_f32(attn_v_storage(p, row->args), v_at + c * p->v_stride.d));
  }
  const int64_t o_at = attn_o_offset(p, &row->seq, row->b, row->h, row->i) + first * p->o_stride.d;
  for (int64_t c = 0; c < columns; c++) attn_store_f32(row->args->o, p->dtype_o, o_at + c * p->o_stride.d, (float)sum[c]);
}

void attn_exact_row(const attn_problem *problem, const attn_args *args, int64_t b, int64_t h, int64_t i) {
  assert(h >= 0 && h < problem->heads_q && i >= 0);
  exact_row row = {.problem = problem, .args = args, .b = b, .h = h, .i = i};
  row.seq = attn_sequence_of(problem, args, b);
  row.keys = attn_allowed_keys(problem, args, &row.seq, b, i);
  const softmax s = softmax_of(&row);
  if (s.empty) row.keys.end = row.keys.begin; /* adds nothing: o = 0 */
  for (int64_t d = 0; d < problem->dim_v; d += COLUMNS)
    store_columns(&row, &s, d, problem->dim_v - d < COLUMNS ? problem->dim_v - d : COLUMNS);
  if (attn_uses(problem, ATTN_USE_LSE)) args->lse[attn_lse_offset(problem, &row.seq, b, h, i)] = (float)s.lse;
}
