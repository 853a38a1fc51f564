/* SPDX-License-Identifier: MIT */
#include "dense.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Loading ------------------------------------------------------------------------------------------------------- */

static double value_of_bits(unsigned bits, int fraction_bits, int exponent_bits) {
  const int fraction = (int)(bits & ((1u << fraction_bits) - 1));
  const int exponent = (int)(bits >> fraction_bits & ((1u << exponent_bits) - 1));
  const int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
  const double sign = bits >> (fraction_bits + exponent_bits) ? -1 : 1;
  if (exponent == top) return fraction ? NAN : sign * INFINITY;
  const double significand = ldexp(fraction, -fraction_bits) + (exponent > 0);
  return sign * ldexp(significand, (exponent > 0 ? exponent : 1) - bias);
}

static double load(const void *data, attn_dtype dtype, int64_t index) {
  float single;
  uint16_t half;
  if (dtype == ATTN_F32) {
    memcpy(&single, (const char *)data + 4 * index, sizeof single);
    return single;
  }
  if (dtype == ATTN_F8_E4M3 || dtype == ATTN_F8_E5M2) {
    const unsigned byte = ((const uint8_t *)data)[index];
    if (dtype == ATTN_F8_E5M2) return value_of_bits(byte, 2, 5);
    return (byte & 0x7f) == 0x7f ? NAN : value_of_bits((byte & 0x80) << 1 | (byte & 0x7f), 3, 5) * 0x1p8;
  }
  if (dtype == ATTN_I8) return ((const int8_t *)data)[index];
  if (dtype == ATTN_Q8_0 || dtype == ATTN_Q4_0) {
    const int64_t bytes = dtype == ATTN_Q8_0 ? 34 : 18, i = index & 31; /* rows may run backwards */
    const uint8_t *block = (const uint8_t *)data + (index - i) / 32 * bytes;
    const double scale = value_of_bits((unsigned)block[0] | (unsigned)block[1] << 8, 10, 5);
    if (dtype == ATTN_Q8_0) return scale * (int8_t)block[2 + i];
    return scale * ((i < 16 ? block[2 + i] & 15 : block[2 + i - 16] >> 4) - 8);
  }
  memcpy(&half, (const char *)data + 2 * index, sizeof half);
  return dtype == ATTN_F16 ? value_of_bits(half, 10, 5) : value_of_bits(half, 7, 8);
}

/* ---- One sequence of one head --------------------------------------------------------------------------------------- */

typedef struct head {
  const attn_problem *problem;
  const attn_args *args;
  int64_t b, h;
  int64_t queries, keys;     /* the lengths of the sequence */
  int64_t seq_q, seq_k;      /* rows and columns of the tables below */
  double *q, *k, *v;         /* [seq][dim] */
  double *score, *magnitude; /* [seq_q][seq_k]; magnitude: the sum of the absolute values of a score's terms */
  unsigned char *allowed;    /* [seq_q][seq_k] */
} head;

static double *copy_rows(const void *data, attn_dtype dtype, const attn_strides *stride, int64_t first, int64_t rows,
                         int64_t dim) {
  double *copy = calloc((size_t)(rows * dim) + 1, sizeof *copy);
  if (!copy) abort();
  for (int64_t s = 0; data && s < rows; s++)
    for (int64_t d = 0; d < dim; d++) copy[s * dim + d] = load(data, dtype, first + s * stride->s + d * stride->d);
  return copy;
}

static int64_t start_of(const attn_strides *stride, bool varlen, int64_t b, int64_t h, int64_t token) {
  return (varlen ? 0 : b * stride->b) + h * stride->h + token * stride->s;
}

/* The rows of a sequence's keys of KV head `kv`, from packed token `first` on, or from its pages. */
static double *copy_keys(const attn_problem *p, const attn_args *a, const void *data, attn_dtype dtype,
                         const attn_strides *stride, int64_t b, int64_t kv, int64_t first, int64_t rows, int64_t dim) {
  if (!(p->uses & ATTN_USE_PAGES))
    return copy_rows(data, dtype, stride, start_of(stride, p->uses & ATTN_USE_VARLEN, b, kv, first), rows, dim);
  double *copy = calloc((size_t)(rows * dim) + 1, sizeof *copy);
  if (!copy) abort();
  for (int64_t s = 0; data && s < rows; s++)
    for (int64_t d = 0; d < dim; d++) {
      const int64_t page = a->page_table[b * p->page_table_stride + s / p->page_tokens];
      const int64_t at = page * stride->b + kv * stride->h + s % p->page_tokens * stride->s;
      copy[s * dim + d] = load(data, dtype, at + d * stride->d);
    }
  return copy;
}

/* The first packed token of a sequence; sets the number of its tokens. */
static int64_t packed(const int32_t *starts, int64_t b, int64_t *count) {
  *count = starts[b + 1] - starts[b];
  return starts[b];
}

/* Multiplies K and V by their factors; those of K's channels count as factors of Q's. */
static void scale_keys(head *t, int64_t kv, int64_t first) {
  const attn_problem *p = t->problem;
  const attn_args *a = t->args;
  const bool of_q = p->score == ATTN_SCORE_DOT && p->k_scale_stride.d != 0, reads_k = p->score != ATTN_SCORE_PRECOMPUTED;
  double *of_k =
      copy_keys(p, a, reads_k ? a->k_scale : NULL, ATTN_F32, &p->k_scale_stride, t->b, kv, first, t->keys, p->dim_qk);
  double *of_v = copy_keys(p, a, a->v_scale, ATTN_F32, &p->v_scale_stride, t->b, kv, first, t->keys, p->dim_v);
  for (int64_t n = 0; n < t->queries * p->dim_qk && of_q && t->keys > 0; n++) t->q[n] *= of_k[n % p->dim_qk];
  for (int64_t n = 0; n < t->keys * p->dim_qk && !of_q; n++) t->k[n] *= of_k[n];
  for (int64_t n = 0; n < t->keys * p->dim_v; n++) t->v[n] *= of_v[n];
  free(of_k), free(of_v);
}

static head open_head(const attn_problem *p, const attn_args *a, int64_t b, int64_t h) {
  head t = {.problem = p, .args = a, .b = b, .h = h, .queries = p->seq_q, .keys = p->seq_k};
  const bool varlen = p->uses & ATTN_USE_VARLEN, reads_qk = p->score != ATTN_SCORE_PRECOMPUTED;
  const int64_t kv = h * p->heads_kv / p->heads_q;
  const int64_t first_q = varlen ? packed(a->cu_seqlens_q, b, &t.queries) : 0;
  const int64_t first_k = varlen && !(p->uses & ATTN_USE_PAGES) ? packed(a->cu_seqlens_k, b, &t.keys) : 0;
  t.seq_q = t.queries;
  t.seq_k = t.keys;
  if (p->uses & ATTN_USE_Q_LEN) t.queries = a->q_len[b];
  if (p->uses & ATTN_USE_KV_LEN) t.keys = a->kv_len[b];
  t.q = copy_rows(reads_qk ? a->q : NULL, p->dtype_q, &p->q_stride, start_of(&p->q_stride, varlen, b, h, first_q), t.queries,
                  p->dim_qk);
  t.k = copy_keys(p, a, reads_qk ? a->k : NULL, p->dtype_kv, &p->k_stride, b, kv, first_k, t.keys, p->dim_qk);
  t.v = copy_keys(p, a, a->v, p->dtype_kv, &p->v_stride, b, kv, first_k, t.keys, p->dim_v);
  if (p->uses & ATTN_USE_KV_SCALES) scale_keys(&t, kv, first_k);
  const size_t pairs = (size_t)(t.seq_q * t.seq_k) + 1;
  t.score = calloc(pairs, sizeof *t.score);
  t.magnitude = calloc(pairs, sizeof *t.magnitude);
  t.allowed = malloc(pairs);
  if (!t.score || !t.magnitude || !t.allowed) abort();
  memset(t.allowed, 1, pairs);
  return t;
}

static void close_head(head *t) {
  void *const blocks[] = {t->q, t->k, t->v, t->score, t->magnitude, t->allowed};
  for (int i = 0; i < 6; i++) free(blocks[i]);
}

/* ---- Masks: each rule removes allowed keys -------------------------------------------------------------------------- */

static int64_t position_of(const head *t, int64_t i) {
  if (t->problem->align == ATTN_ALIGN_BOTTOM_RIGHT) return i + t->keys - t->queries;
  return t->problem->align == ATTN_ALIGN_OFFSET ? i + t->args->offsets[t->b] : i;
}

static int64_t pair_at(const head *t, const attn_score_strides *stride, int64_t i, int64_t j) {
  return t->b * stride->b + t->h * stride->h + i * stride->q + j * stride->k;
}

static void mask_rectangle(head *t) {
  for (int64_t i = 0; i < t->seq_q; i++)
    for (int64_t j = 0; j < t->seq_k; j++)
      if (i >= t->queries || j >= t->keys) t->allowed[i * t->seq_k + j] = 0;
}

static void mask_window(head *t) {
  const int64_t left = t->problem->window_left, right = t->problem->window_right;
  for (int64_t i = 0; i < t->seq_q; i++)
    for (int64_t j = 0; j < t->seq_k; j++) {
      const int64_t ahead = j - position_of(t, i);
      const bool behind = left >= 0 && ahead < -left && j >= t->problem->window_first;
      const bool outside = j < t->problem->key_begin || (t->problem->key_end > 0 && j >= t->problem->key_end);
      if (behind || outside || (right >= 0 && ahead > right)) t->allowed[i * t->seq_k + j] = 0;
    }
}

/* Whether a list of the row's queries names the block of key j. */
static bool is_listed(const head *t, const int32_t *counts, const int32_t *entries, int64_t i, int64_t j) {
  const attn_problem *p = t->problem;
  const int64_t kv = t->h * p->heads_kv / p->heads_q, list = i / p->block_queries;
  if (!counts) return false;
  const int32_t count = counts[start_of(&p->kv_num_blocks_stride, false, t->b, kv, list)];
  for (int32_t n = 0; n < count; n++)
    if (entries[start_of(&p->kv_indices_stride, false, t->b, kv, list) + n * p->kv_indices_stride.d] == j / p->block_keys)
      return true;
  return false;
}

static void mask_data(head *t) {
  const attn_problem *p = t->problem;
  for (int64_t i = 0; i < t->seq_q; i++)
    for (int64_t j = 0; j < t->seq_k; j++) {
      unsigned char *allowed = &t->allowed[i * t->seq_k + j];
      if ((p->uses & ATTN_USE_ROW_LEN) && j >= t->args->row_len[t->b * p->seq_q + i]) *allowed = 0;
      const bool lists = *allowed && p->uses & (ATTN_USE_KEY_BLOCKS | ATTN_USE_FULL_KEY_BLOCKS);
      const bool full = lists && is_listed(t, t->args->full_kv_num_blocks, t->args->full_kv_indices, i, j);
      if (lists && !full && !is_listed(t, t->args->kv_num_blocks, t->args->kv_indices, i, j)) *allowed = 0;
      const int64_t column = p->mask_keys > 0 ? j - t->keys + p->mask_keys : j;
      const bool masked = (p->uses & ATTN_USE_MASK) && !full && column >= 0 && j < t->keys;
      if (masked && t->args->mask[pair_at(t, &p->mask_stride, i, column)] == 0) *allowed = 0;
      if ((p->uses & ATTN_USE_BIAS) && t->args->bias[pair_at(t, &p->bias_stride, i, j)] <= -INFINITY) *allowed = 0;
    }
}

/* ---- Scores --------------------------------------------------------------------------------------------------------- */

static double weight_at(const head *t, int64_t d) {
  if (!(t->problem->uses & ATTN_USE_SCORE_WEIGHT)) return 1;
  return t->args->score_weight[t->h * t->problem->score_weight_stride_h + d];
}

/* The sum over the head dimension; sets the sum of the absolute values. */
static double sum_of_terms(const head *t, int64_t i, int64_t j, double *magnitude) {
  const attn_problem *p = t->problem;
  const double *q = t->q + i * p->dim_qk, *k = t->k + j * p->dim_qk;
  double sum = 0;
  *magnitude = 0;
  for (int64_t d = 0; d < p->dim_qk; d++) {
    double term = q[d] * k[d];
    if (p->score == ATTN_SCORE_ADDITIVE) term = weight_at(t, d) * tanh(q[d] + k[d]);
    if (p->score == ATTN_SCORE_GAUSSIAN) term = -0.5 * pow(weight_at(t, d) * (q[d] - k[d]), 2);
    sum += term;
    *magnitude += fabs(term);
  }
  const double scale = p->score == ATTN_SCORE_DOT ? p->scale : 1;
  *magnitude *= fabs(scale);
  return scale * sum;
}

static void score_pair(head *t, int64_t i, int64_t j) {
  const attn_problem *p = t->problem;
  double *score = &t->score[i * t->seq_k + j], *magnitude = &t->magnitude[i * t->seq_k + j];
  if (p->score == ATTN_SCORE_PRECOMPUTED) {
    *score = t->args->scores[pair_at(t, &p->scores_stride, i, j)];
    *magnitude = fabs(*score);
  } else {
    *score = sum_of_terms(t, i, j, magnitude);
  }
  if (p->softcap > 0) *score = p->softcap * tanh(*score / p->softcap);
  const double bias = p->uses & ATTN_USE_BIAS ? t->args->bias[pair_at(t, &p->bias_stride, i, j)] : 0;
  const double distance = fabs((double)(position_of(t, i) - j));
  const double alibi = p->uses & ATTN_USE_ALIBI ? t->args->alibi_slopes[t->h] * distance : 0;
  *score += bias - alibi;
  *magnitude += fabs(bias) + fabs(alibi);
}

/* ---- Rows ----------------------------------------------------------------------------------------------------------- */

static void raise_to(double *largest, double value) {
  if (value > *largest) *largest = value;
}

/* Keys that a row has seen before, as one key: its score, and what its value is multiplied by. -inf: none. */
typedef struct seen_keys {
  double score, sum;
  const float *o;
} seen_keys;

static seen_keys seen_before(const head *t, int64_t i) {
  const attn_problem *p = t->problem;
  if (!(p->uses & ATTN_USE_STATE)) return (seen_keys){.score = -INFINITY};
  const bool packed = p->uses & ATTN_USE_VARLEN;
  const int64_t token = i + (packed ? t->args->cu_seqlens_q[t->b] : 0);
  const float *row = t->args->state + start_of(&p->state_stride, packed, t->b, t->h, token);
  const float *sums = row + p->dim_v, *reference = sums + ATTN_STATE_SUMS;
  if (reference[0] == -INFINITY) return (seen_keys){.score = -INFINITY};
  seen_keys seen = {.o = row};
  for (int part = 0; part < ATTN_STATE_SUMS; part++) seen.sum += (double)sums[part];
  seen.score = log(2) * ((double)reference[0] + (double)reference[1]) + log(seen.sum);
  return seen;
}

static void find_facts(const head *t, int64_t i, dense_row *row) {
  const attn_problem *p = t->problem;
  attn_oracle_row *facts = &row->facts;
  for (int64_t j = 0; j < t->seq_k; j++) {
    if (!t->allowed[i * t->seq_k + j]) continue;
    facts->allowed++;
    const double magnitude = t->magnitude[i * t->seq_k + j];
    raise_to(&facts->abs_sum, magnitude);
    if (isfinite(magnitude)) raise_to(&row->finite_sum, magnitude);
    double sum_k = 0, squares = 0;
    for (int64_t d = 0; d < p->dim_qk; d++) {
      const double k = fabs(t->k[j * p->dim_qk + d]);
      raise_to(&facts->max_k, k);
      sum_k += k, squares += k * k;
    }
    raise_to(&facts->sum_k, sum_k), raise_to(&facts->norm_k, sqrt(squares));
    for (int64_t d = 0; d < p->dim_v; d++) raise_to(&facts->max_v, fabs(t->v[j * p->dim_v + d]));
  }
  for (int64_t d = 0; d < p->dim_qk && facts->allowed; d++) raise_to(&facts->max_q, fabs(t->q[i * p->dim_qk + d]));
}

static void add_facts(const head *t, const seen_keys *seen, dense_row *row) {
  row->facts.allowed += isfinite(seen->sum) ? (int64_t)ceil(seen->sum) : 1; /* no key adds more than 1 */
  raise_to(&row->facts.abs_sum, fabs(seen->score));
  if (isfinite(seen->score)) raise_to(&row->finite_sum, fabs(seen->score));
  for (int64_t d = 0; d < t->problem->dim_v; d++) raise_to(&row->facts.max_v, fabs((double)seen->o[d] / seen->sum));
}

/* The largest score of a softmax and the sum of exp(score - largest). The difference of a score and the logarithm of the
 * whole sum would lose all digits where scores are near 1e20. */
typedef struct softmax {
  double largest, sum;
} softmax;

/* The softmax of the row's allowed scores, those seen before and `sink`; NaN if one of them is NaN. */
static softmax softmax_of(const head *t, int64_t i, double seen, double sink) {
  const double *score = t->score + i * t->seq_k;
  const unsigned char *allowed = t->allowed + i * t->seq_k;
  double largest = seen > sink || isnan(seen) ? seen : sink, sum = 0;
  for (int64_t j = 0; j < t->seq_k; j++) {
    if (!allowed[j]) continue;
    if (isnan(score[j])) return (softmax){NAN, 1};
    if (!(score[j] <= largest)) largest = score[j];
  }
  if (isnan(largest) || isinf(largest)) return (softmax){largest, 1};
  for (int64_t j = 0; j < t->seq_k; j++)
    if (allowed[j]) sum += exp(score[j] - largest);
  return (softmax){largest, sum + exp(seen - largest) + exp(sink - largest)};
}

static void add_value(dense_row *row, int pass, int64_t d, double p, double v) {
  if (pass == 0) row->o[d] += p * v, row->m[d] += p * fabs(v);
  if (pass == 1) row->w[d] += pow(p * (v - row->o[d]), 2);
}

static void add_values(const head *t, int64_t i, softmax all, dense_row *row) {
  const int64_t dim = t->problem->dim_v;
  const seen_keys seen = seen_before(t, i);
  for (int pass = 0; pass < 2; pass++) { /* the second needs o */
    for (int64_t j = 0; j < t->seq_k; j++) {
      if (!t->allowed[i * t->seq_k + j]) continue;
      const double p = exp(t->score[i * t->seq_k + j] - all.largest) / all.sum; /* inf - inf gives NaN, which is right */
      for (int64_t d = 0; d < dim; d++) add_value(row, pass, d, p, t->v[j * dim + d]);
    }
    for (int64_t d = 0; d < dim && seen.o; d++)
      add_value(row, pass, d, exp(seen.score - all.largest) / all.sum, (double)seen.o[d] / seen.sum);
  }
  for (int64_t d = 0; d < dim; d++) row->w[d] = sqrt(row->w[d]);
}

static void answer_row(const head *t, int64_t i, dense_row *row) {
  const bool has_sink = t->problem->uses & ATTN_USE_SINKS;
  const double sink = has_sink ? t->args->sinks[t->h] : -INFINITY;
  const seen_keys seen = seen_before(t, i);
  row->facts = (attn_oracle_row){.exists = i < t->queries, .lse = -INFINITY};
  find_facts(t, i, row);
  if (seen.o) add_facts(t, &seen, row);
  if (!row->facts.allowed) return;
  if (isfinite(sink)) {
    raise_to(&row->facts.abs_sum, fabs(sink));
    raise_to(&row->finite_sum, fabs(sink));
  }
  const softmax scores = softmax_of(t, i, seen.score, -INFINITY);
  row->facts.lse = scores.largest + log(scores.sum);
  add_values(t, i, softmax_of(t, i, seen.score, sink), row);
}

static dense_row *allocate_rows(const attn_problem *p) {
  const size_t rows = (size_t)(p->batch * p->heads_q * p->seq_q), dim = (size_t)p->dim_v;
  dense_row *row = calloc(1, rows * sizeof *row + 3 * rows * dim * sizeof(double) + 1);
  if (!row) abort();
  double *values = (double *)(void *)(row + rows);
  for (size_t n = 0; n < rows; n++) {
    row[n].o = values + 3 * n * dim;
    row[n].m = row[n].o + dim;
    row[n].w = row[n].m + dim;
  }
  return row;
}

dense_row *dense_answer(const attn_problem *p, const attn_args *args) {
  dense_row *rows = allocate_rows(p);
  for (int64_t n = 0; n < p->batch * p->heads_q; n++) {
    head t = open_head(p, args, n / p->heads_q, n % p->heads_q);
    mask_rectangle(&t);
    mask_window(&t);
    mask_data(&t);
    for (int64_t i = 0; i < t.queries; i++)
      for (int64_t j = 0; j < t.keys; j++)
        if (t.allowed[i * t.seq_k + j]) score_pair(&t, i, j);
    for (int64_t i = 0; i < t.seq_q; i++) answer_row(&t, i, &rows[n * p->seq_q + i]);
    close_head(&t);
  }
  return rows;
}
