/* SPDX-License-Identifier: MIT */
/* Scores in plain C, one row against some keys: similarity, then softcap, bias, ALiBi and selection (docs/semantics.md).
 * What naive_c, blocked_c and flash_c share. */
#ifndef ATTN_REF_SCORES_C_H
#define ATTN_REF_SCORES_C_H

#include <math.h>

#include "kernels/common/problem/convert.h"
#include "kernels/common/problem/indexing.h"
#include "kernels/common/problem/unroll.h"

/* K, or a block of it, as float32: element (j, d) is at[j * key_step + d * dim_step]. */
typedef struct key_view {
  const float *at;
  int64_t key_step, dim_step;
} key_view;

/* One query head: where its inputs are, and its working memory. Scores need only the fields above `v`, and `query`. */
typedef struct query_head {
  const attn_problem *problem;
  const attn_args *args;
  attn_sequence seq;
  int64_t b, h;
  key_view k;     /* all keys of the sequence, or a block of them */
  const float *v; /* row j is v + j * v_step, dense in d */
  int64_t v_step;
  float *score;  /* [len_q][len_k]: S, then P */
  float *lse;    /* [len_q] */
  float *query;  /* [dim_qk] */
  float *output; /* [dim_v] */
} query_head;

static inline bool has_selection(const attn_problem *p) {
  return attn_uses(p, ATTN_USE_MASK | ATTN_USE_BIAS) || attn_lists_keys(p);
}

static inline bool selected(const query_head *head, int64_t i, int64_t j) {
  return attn_key_selected(head->problem, head->args, head->b, head->h, i, j);
}

/* The factor of a key's weight by dropout. */
static inline float kept(const query_head *head, int64_t i, int64_t j) {
  const attn_problem *p = head->problem;
  if (!(p->dropout > 0)) return 1.0f;
  const philox_dropout dropout = attn_dropout_of(p, head->args);
  return philox_factor(&dropout, attn_dropout_stream(p, head->b, head->h), (uint32_t)i, j);
}

/* y[i] += a x[i]: where the time goes. Inlined, its loop crossed a line of code or not as other code moved, which took a
 * fifth of naive_c's time; the tier's flags align it. */
static NO_INLINE void add_multiple(float *restrict y, float a, const float *restrict x, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] += a * x[i];
}

/* score[j] += one term of the sum over the head dimension, for `keys` keys of the view from `key` on. */
static inline void add_products(float *restrict score, float q, const float *restrict k, int64_t step, int64_t keys) {
  if (step == 1) {
    add_multiple(score, q, k, keys);
  } else {
    for (int64_t j = 0; j < keys; j++) score[j] += q * k[j * step];
  }
}

static inline void add_tanh(float *score, float weight, float q, const float *k, int64_t step, int64_t keys) {
  for (int64_t j = 0; j < keys; j++) score[j] += weight * tanhf(q + k[j * step]);
}

static inline void subtract_squares(float *score, float weight, float q, const float *k, int64_t step, int64_t keys) {
  for (int64_t j = 0; j < keys; j++) {
    const float distance = weight * (q - k[j * step]);
    score[j] -= 0.5f * distance * distance;
  }
}

static inline void add_dimension(const query_head *head, int64_t d, int64_t key, int64_t keys, float *score) {
  const attn_problem *p = head->problem;
  const float *k = head->k.at + key * head->k.key_step + d * head->k.dim_step, q = head->query[d];
  const bool weighted = attn_uses(p, ATTN_USE_SCORE_WEIGHT) && p->score != ATTN_SCORE_DOT;
  const float weight = weighted ? head->args->score_weight[head->h * p->score_weight_stride_h + d] : 1.0f;
  switch (p->score) {
    case ATTN_SCORE_DOT: add_products(score, q, k, head->k.key_step, keys); break;
    case ATTN_SCORE_ADDITIVE: add_tanh(score, weight, q, k, head->k.key_step, keys); break;
    case ATTN_SCORE_GAUSSIAN: subtract_squares(score, weight, q, k, head->k.key_step, keys); break;
    case ATTN_SCORE_PRECOMPUTED: break; /* has no sum */
  }
}

/* score[0] belongs to key keys.begin, here and below. */
static inline void given_scores(const query_head *head, int64_t i, attn_key_range keys, float *score) {
  const attn_score_strides *stride = &head->problem->scores_stride;
  for (int64_t j = keys.begin; j < keys.end; j++)
    score[j - keys.begin] = head->args->scores[attn_score_offset(stride, head->b, head->h, i, j)];
}

/* Applies to similarities, in this order: softcap, bias, ALiBi, masks. Masks select: a masked score becomes -inf even if it
 * was NaN. */
static inline void adjust_scores(const query_head *head, int64_t i, attn_key_range keys, float *score) {
  const attn_problem *p = head->problem;
  const int64_t position = i + head->seq.offset;
  if (p->softcap > 0)
    for (int64_t j = keys.begin; j < keys.end; j++)
      score[j - keys.begin] = p->softcap * tanhf(score[j - keys.begin] / p->softcap);
  if (attn_uses(p, ATTN_USE_BIAS))
    for (int64_t j = keys.begin; j < keys.end; j++)
      score[j - keys.begin] += head->args->bias[attn_score_offset(&p->bias_stride, head->b, head->h, i, j)];
  if (attn_uses(p, ATTN_USE_ALIBI))
    for (int64_t j = keys.begin; j < keys.end; j++)
      score[j - keys.begin] -= head->args->alibi_slopes[head->h] * fabsf((float)(position - j));
  if (has_selection(p))
    for (int64_t j = keys.begin; j < keys.end; j++)
      if (!selected(head, i, j)) score[j - keys.begin] = -INFINITY;
}

#endif
