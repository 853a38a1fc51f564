/* SPDX-License-Identifier: MIT */
/* Scores of one row in double precision, key by key: what exact_row.c and exact_gradients.c share. */
#ifndef ATTN_COMMON_EXACT_SCORE_H
#define ATTN_COMMON_EXACT_SCORE_H

#include <math.h>

#include "convert.h"
#include "indexing.h"

typedef struct exact_row {
  const attn_problem *problem;
  const attn_args *args;
  attn_sequence seq;
  attn_key_range keys;
  int64_t b, h, i;
  philox_dropout dropout;
} exact_row;

static inline exact_row exact_row_of(const attn_problem *problem, const attn_args *args, int64_t b, int64_t h, int64_t i) {
  exact_row row = {.problem = problem, .args = args, .b = b, .h = h, .i = i};
  if (problem->dropout > 0) row.dropout = attn_dropout_of(problem, args);
  row.seq = attn_sequence_of(problem, args, b);
  row.keys = attn_allowed_keys(problem, args, &row.seq, b, i);
  return row;
}

static inline bool selected(const exact_row *row, int64_t j) {
  return attn_key_selected(row->problem, row->args, row->b, row->h, row->i, j) &&
         !attn_between_windows(row->problem, &row->seq, row->i, j);
}

/* The factor of key j's weight by dropout. */
static inline double kept(const exact_row *row, int64_t j) {
  if (!(row->problem->dropout > 0)) return 1.0;
  return philox_factor(&row->dropout, attn_dropout_stream(row->problem, row->b, row->h), (uint32_t)row->i, j);
}

static inline double weight_of(const exact_row *row, int64_t d) {
  if (!attn_uses(row->problem, ATTN_USE_SCORE_WEIGHT)) return 1.0;
  return row->args->score_weight[row->h * row->problem->score_weight_stride_h + d];
}

static inline attn_key_run run_at(const exact_row *row, int64_t j) {
  return attn_key_run_at(row->problem, row->args, &row->seq, row->h, j);
}

static inline attn_key_scales scales_at(const exact_row *row, int64_t j) {
  return attn_key_scales_at(row->problem, row->args, &row->seq, row->h, j);
}

/* Sum over the head dimension: <q, k>, or its counterpart for the other score functions. */
static inline double similarity(const exact_row *row, int64_t j) {
  const attn_problem *p = row->problem;
  if (p->score == ATTN_SCORE_PRECOMPUTED)
    return row->args->scores[attn_score_offset(&p->scores_stride, row->b, row->h, row->i, j)];
  const int64_t q_at = attn_q_offset(p, &row->seq, row->b, row->h, row->i);
  const int64_t k_at = run_at(row, j).k;
  const int64_t scale_step = attn_k_channel_step(p);
  const float *scale = scales_at(row, j).k;
  double sum = 0.0;
  for (int64_t d = 0; d < p->dim_qk; d++) {
    const double q = attn_load_f32(attn_q_storage(p, row->args), q_at + d * p->q_stride.d);
    const double k = (double)scale[d * scale_step] * attn_load_f32(attn_k_storage(p, row->args), k_at + d * p->k_stride.d);
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

/* |i + offset - j| */
static inline double alibi_distance(const exact_row *row, int64_t j) {
  return fabs((double)attn_saturating_add(row->i, row->seq.offset) - (double)j);
}

/* The score from the sum over the head dimension. */
static inline double score_from(const exact_row *row, int64_t j, double score) {
  const attn_problem *p = row->problem;
  if (p->softcap > 0) score = p->softcap * tanh(score / p->softcap);
  if (attn_uses(p, ATTN_USE_BIAS)) score += row->args->bias[attn_score_offset(&p->bias_stride, row->b, row->h, row->i, j)];
  if (attn_uses(p, ATTN_USE_ALIBI)) score -= row->args->alibi_slopes[row->h] * alibi_distance(row, j);
  return score;
}

static inline double score_of(const exact_row *row, int64_t j) { return score_from(row, j, similarity(row, j)); }

#endif
