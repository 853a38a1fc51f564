/* SPDX-License-Identifier: MIT */
/* One query as the float64 oracles see it: where its elements are, which keys it sees, and its scores. Every function
 * follows docs/semantics.md in the most obvious loops. Oracles alone include this file. */
#ifndef ATTN_ORACLE_QUERY_F64_H
#define ATTN_ORACLE_QUERY_F64_H

#include <math.h>
#include <string.h>

#include "kernels/ref/oracle_f64.h"

typedef struct compensated {
  double sum, error;
} compensated;

static inline void add(compensated *total, double x) {
  const double sum = total->sum + x, x_part = sum - total->sum;
  total->error += (total->sum - (sum - x_part)) + (x - x_part);
  total->sum = sum;
}

/* Once the sum is infinite or NaN, the error term is noise. */
static inline double value_of(const compensated *total) {
  return isfinite(total->sum) ? total->sum + total->error : total->sum;
}

static inline double square(double x) { return x * x; }

/* Passes over NaN. */
static inline double larger(double a, double b) { return b > a ? b : a; }

/* ---- Where things are -------------------------------------------------------------------------------------------- */

/* One output row: its indices, its sequence and the first elements that belong to it. */
typedef struct query {
  const attn_problem *problem;
  const attn_args *args;
  int64_t b, h, i;
  int64_t len_q, len_k; /* the sequence's, after q_len, kv_len or cu_seqlens */
  int64_t position;     /* place of the query among the keys: i + offset */
  int64_t q_at;         /* element offset of q[b][h][i] */
  int64_t kv_head;
  int64_t first_k; /* with VARLEN: where the sequence begins among the packed keys */
} query;

static inline query locate(const attn_problem *p, const attn_args *args, attn_oracle_index at) {
  const int64_t b = at.b, h = at.h, i = at.i;
  const bool varlen = p->uses & ATTN_USE_VARLEN;
  const bool packed_keys = varlen && !(p->uses & ATTN_USE_PAGES);
  const int64_t first_q = varlen ? args->cu_seqlens_q[b] : 0, first_k = packed_keys ? args->cu_seqlens_k[b] : 0;
  query r = {.problem = p, .args = args, .b = b, .h = h, .i = i, .len_q = p->seq_q, .len_k = p->seq_k};
  if (varlen) r.len_q = args->cu_seqlens_q[b + 1] - first_q;
  if (packed_keys) r.len_k = args->cu_seqlens_k[b + 1] - first_k;
  if (!varlen && (p->uses & ATTN_USE_Q_LEN)) r.len_q = args->q_len[b];
  if (p->uses & ATTN_USE_KV_LEN) r.len_k = args->kv_len[b];
  switch (p->align) {
    case ATTN_ALIGN_TOP_LEFT: r.position = i; break;
    case ATTN_ALIGN_BOTTOM_RIGHT: r.position = i + (r.len_k - r.len_q); break;
    case ATTN_ALIGN_OFFSET: r.position = i + args->offsets[b]; break;
  }
  r.q_at = (varlen ? 0 : b * p->q_stride.b) + h * p->q_stride.h + (first_q + i) * p->q_stride.s;
  r.kv_head = h / (p->heads_q / p->heads_kv);
  r.first_k = first_k;
  return r;
}

static inline int64_t score_at(const query *r, const attn_score_strides *stride, int64_t j) {
  return r->b * stride->b + r->h * stride->h + r->i * stride->q + j * stride->k;
}

/* The element offset of key or value j of the sequence's KV head. */
static inline int64_t key_at(const query *r, const attn_strides *stride, int64_t j) {
  const attn_problem *p = r->problem;
  const int64_t head = r->kv_head * stride->h;
  if (p->uses & ATTN_USE_PAGES) {
    const int64_t page = r->args->page_table[r->b * p->page_table_stride + j / p->page_tokens];
    return page * stride->b + head + j % p->page_tokens * stride->s;
  }
  return (p->uses & ATTN_USE_VARLEN ? 0 : r->b * stride->b) + head + (r->first_k + j) * stride->s;
}

enum { COLUMNS = 16 }; /* columns of a row at a time, so that its reads stay together */

/* `count` elements, `step` apart. */
static inline void load(const void *data, attn_dtype dtype, int64_t at, int64_t step, int64_t count, double *to) {
  if (dtype == ATTN_F32)
    for (int64_t c = 0; c < count; c++) to[c] = ((const float *)data)[at + c * step];
  else
    for (int64_t c = 0; c < count; c++) to[c] = attn_oracle_load(data, dtype, at + c * step);
}

static inline int64_t block_of(int64_t first, int64_t dim) { return dim - first < COLUMNS ? dim - first : COLUMNS; }

/* Factors of `count` columns from column `first` on: those at `at`, and the next ones, or one for all where stride->d is 0.
 */
static inline void multiply(const float *factor, const attn_strides *stride, int64_t at, int64_t first, int64_t count,
                            double *to) {
  for (int64_t c = 0; c < count; c++) to[c] *= (double)factor[at + (first + c) * stride->d];
}

/* Whether each channel of K has a factor. It counts as one of the query's channel: s is the same, and what the error bound
 * needs is of the numbers that kernels multiply. */
static inline bool scales_q(const attn_problem *p) {
  return (p->uses & ATTN_USE_KV_SCALES) && p->score == ATTN_SCORE_DOT && p->k_scale_stride.d != 0;
}

/* Columns of the query, of a key and of a value, from column `first` on. */
static inline void load_q(const query *r, int64_t first, int64_t count, double *to) {
  const int64_t step = r->problem->q_stride.d;
  const attn_strides *stride = &r->problem->k_scale_stride;
  load(r->args->q, r->problem->dtype_q, r->q_at + first * step, step, count, to);
  if (scales_q(r->problem)) multiply(r->args->k_scale, stride, key_at(r, stride, 0), first, count, to);
}

static inline void load_k(const query *r, int64_t j, int64_t first, int64_t count, double *to) {
  const attn_strides *stride = &r->problem->k_stride;
  load(r->args->k, r->problem->dtype_kv, key_at(r, stride, j) + first * stride->d, stride->d, count, to);
  const attn_strides *of = &r->problem->k_scale_stride;
  if ((r->problem->uses & ATTN_USE_KV_SCALES) && !scales_q(r->problem))
    multiply(r->args->k_scale, &(attn_strides){0}, key_at(r, of, j), first, count, to);
}

static inline void load_v(const query *r, int64_t j, int64_t first, int64_t count, double *to) {
  const attn_strides *stride = &r->problem->v_stride;
  load(r->args->v, r->problem->dtype_kv, key_at(r, stride, j) + first * stride->d, stride->d, count, to);
  const attn_strides *of = &r->problem->v_scale_stride;
  if (r->problem->uses & ATTN_USE_KV_SCALES) multiply(r->args->v_scale, of, key_at(r, of, j), first, count, to);
}

/* ---- Which keys -------------------------------------------------------------------------------------------------- */

/* Whether one of the two lists of the row's queries names the block of key j. */
static inline bool is_listed(const query *r, const int32_t *num_blocks, const int32_t *indices, int64_t j) {
  const attn_problem *p = r->problem;
  const attn_strides *n = &p->kv_num_blocks_stride, *entry = &p->kv_indices_stride;
  const int64_t list = r->i / p->block_queries, head = r->h / (p->heads_q / p->heads_kv);
  if (!num_blocks) return false;
  const int32_t *at = indices + r->b * entry->b + head * entry->h + list * entry->s;
  for (int64_t left = num_blocks[r->b * n->b + head * n->h + list * n->s]; left > 0; left--, at += entry->d)
    if (j >= *at * p->block_keys && j < (*at + 1) * p->block_keys) return true;
  return false;
}

static inline bool is_allowed(const query *r, int64_t j) {
  const attn_problem *p = r->problem;
  const int64_t behind = r->position - j; /* how far the key lies before the query's position */
  if (j >= r->len_k) return false;
  if ((p->uses & ATTN_USE_ROW_LEN) && j >= r->args->row_len[r->b * p->seq_q + r->i]) return false;
  if (j < p->key_begin || (p->key_end > 0 && j >= p->key_end)) return false;
  if (p->window_left >= 0 && behind > p->window_left && j >= p->window_first) return false;
  if (p->window_right >= 0 && -behind > p->window_right) return false;
  const bool lists = p->uses & (ATTN_USE_KEY_BLOCKS | ATTN_USE_FULL_KEY_BLOCKS);
  const bool full = lists && is_listed(r, r->args->full_kv_num_blocks, r->args->full_kv_indices, j);
  if (lists && !full && !is_listed(r, r->args->kv_num_blocks, r->args->kv_indices, j)) return false;
  const int64_t column = p->mask_keys > 0 ? j - (r->len_k - p->mask_keys) : j;
  if ((p->uses & ATTN_USE_MASK) && !full && column >= 0 && !r->args->mask[score_at(r, &p->mask_stride, column)])
    return false;
  if ((p->uses & ATTN_USE_BIAS) && r->args->bias[score_at(r, &p->bias_stride, j)] == -INFINITY) return false;
  return true;
}

/* ---- Dropout ---- */

/* The factor of element j of the row: docs/semantics.md, by Philox 4x32-10 (Salmon et al. 2011). */
static inline double dropout_factor(const query *r, int64_t j) {
  const double p = r->problem->dropout;
  if (p == 0) return 1;
  const uint32_t threshold = (uint32_t)fmin(floor(65536 * p + 0.5), 65535);
  const int64_t group = j / 128, place = j % 128;
  uint32_t key[2] = {(uint32_t)r->args->seed, (uint32_t)(r->args->seed >> 32) ^ (uint32_t)(r->args->offset >> 32)};
  uint32_t counter[4] = {(uint32_t)(16 * group + place % 16), (uint32_t)r->i, (uint32_t)(r->b * r->problem->heads_q + r->h),
                         (uint32_t)r->args->offset};
  for (int round = 0; round < 10; round++) {
    const uint64_t first = (uint64_t)0xD2511F53 * counter[0], second = (uint64_t)0xCD9E8D57 * counter[2];
    const uint32_t next[4] = {(uint32_t)(second >> 32) ^ counter[1] ^ key[0], (uint32_t)second,
                              (uint32_t)(first >> 32) ^ counter[3] ^ key[1], (uint32_t)first};
    memcpy(counter, next, sizeof counter);
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  const uint32_t bits = counter[place / 32] >> (place / 16 % 2 * 16) & 0xffff;
  return bits >= threshold ? 65536.0 / (65536.0 - threshold) : 0;
}

/* ---- Scores ------------------------------------------------------------------------------------------------------ */

static inline double score_weight(const query *r, int64_t d) {
  if (!(r->problem->uses & ATTN_USE_SCORE_WEIGHT)) return 1;
  return r->args->score_weight[r->h * r->problem->score_weight_stride_h + d];
}

/* One term of the sum over the head dimension. */
static inline double score_term(const query *r, int64_t d, double q, double k) {
  if (r->problem->score == ATTN_SCORE_ADDITIVE) return score_weight(r, d) * tanh(q + k);
  if (r->problem->score == ATTN_SCORE_GAUSSIAN) return -0.5 * square(score_weight(r, d) * (q - k));
  return q * k;
}

/* The sum over the head dimension, and of its terms' absolute values; the row's max_k, sum_k and norm_k grow. */
static inline double sum_terms(const query *r, int64_t j, attn_oracle_row *row, double *terms) {
  const int64_t dim = r->problem->dim_qk;
  compensated sum = {0, 0};
  double sum_k = 0, squares = 0;
  for (int64_t first = 0; first < dim; first += COLUMNS) {
    const int64_t count = block_of(first, dim);
    double q[COLUMNS], k[COLUMNS];
    load_q(r, first, count, q);
    load_k(r, j, first, count, k);
    for (int64_t c = 0; c < count; c++) {
      const double term = score_term(r, first + c, q[c], k[c]);
      add(&sum, term);
      *terms += fabs(term);
      row->max_k = larger(row->max_k, fabs(k[c]));
      sum_k += fabs(k[c]);
      squares += square(k[c]);
    }
  }
  row->sum_k = larger(row->sum_k, sum_k);
  row->norm_k = larger(row->norm_k, sqrt(squares));
  return value_of(&sum);
}

/* The sum over the head dimension, scaled; or the score that is given. *magnitude: of the absolute values. */
static inline double similarity_of(const query *r, int64_t j, attn_oracle_row *row, double *magnitude) {
  const attn_problem *p = r->problem;
  double score;
  if (p->score == ATTN_SCORE_PRECOMPUTED) {
    const attn_dtype dtype = p->dtype_q == ATTN_ORACLE_F64 ? ATTN_ORACLE_F64 : ATTN_F32;
    score = attn_oracle_load(r->args->scores, dtype, score_at(r, &p->scores_stride, j));
    *magnitude = fabs(score);
  } else {
    const double scale = p->score == ATTN_SCORE_DOT ? p->scale : 1;
    double terms = 0;
    score = scale * sum_terms(r, j, row, &terms);
    *magnitude = fabs(scale) * terms;
  }
  return score;
}

/* The score from that of one allowed key; *magnitude grows by the absolute values of all that is added up. */
static inline double score_from(const query *r, int64_t j, double score, double *magnitude) {
  const attn_problem *p = r->problem;
  if (p->softcap > 0) score = p->softcap * tanh(score / p->softcap);
  if (p->uses & ATTN_USE_BIAS) {
    const double bias = r->args->bias[score_at(r, &p->bias_stride, j)];
    score += bias;
    *magnitude += fabs(bias);
  }
  if (p->uses & ATTN_USE_ALIBI) {
    const double penalty = r->args->alibi_slopes[r->h] * fabs((double)(r->position - j));
    score -= penalty;
    *magnitude += fabs(penalty);
  }
  return score;
}

static inline double score_of(const query *r, int64_t j, attn_oracle_row *row, double *magnitude) {
  const double similarity = similarity_of(r, j, row, magnitude);
  return score_from(r, j, similarity, magnitude);
}

#endif
