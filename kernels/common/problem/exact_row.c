/* SPDX-License-Identifier: MIT */
/* attn_exact_row: two passes over the row's allowed keys, in double. The first finds the largest score and the sum of
 * exponentials, the second weighs V, a block of output columns at a time. */
#include "kernels/common/problem/exact_row.h"

#include <assert.h>

#include "kernels/common/problem/exact_score.h"

enum { COLUMNS = 64 }; /* output columns per pass over the keys: they live on the stack */

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
  const int64_t scale_step = attn_v_channel_step(p);
  double sum[COLUMNS] = {0.0};
  for (int64_t j = row->keys.begin; j < row->keys.end; j++) {
    if (!selected(row, j)) continue;
    const double weight = probability(s, score_of(row, j)) * kept(row, j);
    const int64_t v_at = run_at(row, j).v + first * p->v_stride.d;
    const float *scale = scales_at(row, j).v + first * scale_step;
    for (int64_t c = 0; c < columns; c++)
      sum[c] +=
          weight * ((double)scale[c * scale_step] * attn_load_f32(attn_v_storage(p, row->args), v_at + c * p->v_stride.d));
  }
  const int64_t o_at = attn_o_offset(p, &row->seq, row->b, row->h, row->i) + first * p->o_stride.d;
  for (int64_t c = 0; c < columns; c++) attn_store_f32(row->args->o, p->dtype_o, o_at + c * p->o_stride.d, (float)sum[c]);
}

void attn_exact_row(const attn_problem *problem, const attn_args *args, int64_t b, int64_t h, int64_t i) {
  assert(h >= 0 && h < problem->heads_q && i >= 0);
  exact_row row = exact_row_of(problem, args, b, h, i);
  const softmax s = softmax_of(&row);
  if (s.empty) row.keys.end = row.keys.begin; /* adds nothing: o = 0 */
  for (int64_t d = 0; d < problem->dim_v; d += COLUMNS)
    store_columns(&row, &s, d, problem->dim_v - d < COLUMNS ? problem->dim_v - d : COLUMNS);
  if (attn_uses(problem, ATTN_USE_LSE)) args->lse[attn_lse_offset(problem, &row.seq, b, h, i)] = (float)s.lse;
}
