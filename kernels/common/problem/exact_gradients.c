/* SPDX-License-Identifier: MIT */
/* Gradients in double: every element is a sum over the pairs of a query and a key that it depends on, in their order. */
#include "kernels/common/problem/exact_row.h"

#include "kernels/common/problem/exact_score.h"

enum { COLUMNS = 64 }; /* columns of a row for each pass over its pairs: they live on the stack */

static double element(const void *data, attn_dtype dtype, int64_t index) {
  return attn_load_f32((attn_storage){data, dtype}, index);
}

/* ---- Rows and pairs ---- */

/* Element offset of row i in the array of a tensor of queries. */
static int64_t row_at(const attn_problem *p, const attn_strides *stride, const attn_sequence *seq, int64_t h, int64_t i) {
  return attn_row_offset(p, stride, seq->b, h, seq->first_q + i);
}

static int64_t key_at(const attn_problem *p, const attn_strides *stride, const attn_sequence *seq, int64_t kv_head,
                      int64_t j) {
  return attn_row_offset(p, stride, seq->b, kv_head, seq->first_k + j);
}

static double add_exponentials(double a, double b) {
  const double larger = a > b ? a : b, smaller = a > b ? b : a;
  return isinf(larger) ? larger : larger + log1p(exp(smaller - larger));
}

row_terms attn_row_terms(const attn_problem *p, const attn_args *args, const attn_sequence *seq, int64_t h, int64_t i) {
  const double lse = args->lse[row_at(p, &p->lse_stride, seq, h, i)];
  if (lse == -INFINITY) return (row_terms){lse, 0};
  row_terms terms = {.lse = attn_uses(p, ATTN_USE_SINKS) ? add_exponentials(lse, args->sinks[h]) : lse};
  const int64_t o = row_at(p, &p->o_stride, seq, h, i), d_o = row_at(p, &p->d_o_stride, seq, h, i);
  for (int64_t d = 0; d < p->dim_v; d++)
    terms.delta +=
        element(args->o, p->dtype_o, o + d * p->o_stride.d) * element(args->d_o, p->dtype_o, d_o + d * p->d_o_stride.d);
  if (attn_uses(p, ATTN_USE_D_LSE))
    terms.delta -= (double)args->d_lse[row_at(p, &p->d_lse_stride, seq, h, i)] * exp(terms.lse - lse);
  return terms;
}

/* A query and a key: P times what dropout makes of it, dS of the score, and dS of the sum over the head dimension, before
 * softcap and scale. */
typedef struct pair_terms {
  double p, d_score, d_sum;
} pair_terms;

static pair_terms pair_of(const exact_row *row, const row_terms *terms, int64_t j) {
  const attn_problem *p = row->problem;
  const double sum = similarity(row, j), capped = p->softcap > 0 ? tanh(sum / p->softcap) : 0;
  pair_terms result = {.p = exp(score_from(row, j, sum) - terms->lse)};
  const int64_t v = run_at(row, j).v, d_o = row_at(p, &p->d_o_stride, &row->seq, row->h, row->i);
  double d_p = 0;
  for (int64_t d = 0; d < p->dim_v; d++)
    d_p += element(row->args->d_o, p->dtype_o, d_o + d * p->d_o_stride.d) *
           element(row->args->v, p->dtype_kv, v + d * p->v_stride.d);
  result.d_score = result.p * (kept(row, j) * d_p - terms->delta);
  result.p *= kept(row, j);
  result.d_sum = result.d_score * (1 - capped * capped);
  return result;
}

static bool sees(const exact_row *row, const row_terms *terms, int64_t j) {
  return terms->lse != -INFINITY && j >= row->keys.begin && j < row->keys.end && selected(row, j);
}

/* The derivative of the sum over the head dimension by element d of the query, or of the key. */
static double slope_of(const exact_row *row, int64_t j, int64_t d, bool of_key) {
  const attn_problem *p = row->problem;
  const double q = element(row->args->q, p->dtype_q, row_at(p, &p->q_stride, &row->seq, row->h, row->i) + d * p->q_stride.d);
  const double k = element(row->args->k, p->dtype_kv, run_at(row, j).k + d * p->k_stride.d);
  const double w = weight_of(row, d);
  if (p->score == ATTN_SCORE_DOT) return (double)p->scale * (of_key ? q : k);
  if (p->score == ATTN_SCORE_GAUSSIAN) return w * w * (of_key ? q - k : k - q);
  const double t = tanh(q + k);
  return w * (1 - t * t);
}

/* ---- Queries and keys ---- */

void attn_exact_query_gradient(const attn_problem *p, const attn_args *args, int64_t b, int64_t h, int64_t i) {
  const exact_row row = exact_row_of(p, args, b, h, i);
  row_terms terms = {.lse = -INFINITY};
  if (i < row.seq.len_q) terms = attn_row_terms(p, args, &row.seq, h, i);
  const int64_t at = row_at(p, &p->d_q_stride, &row.seq, h, i);
  for (int64_t first = 0; args->d_q && first < p->dim_qk; first += COLUMNS) {
    const int64_t columns = min64(COLUMNS, p->dim_qk - first);
    double sum[COLUMNS] = {0};
    for (int64_t j = row.keys.begin; j < row.keys.end; j++) {
      if (!sees(&row, &terms, j)) continue;
      const pair_terms pair = pair_of(&row, &terms, j);
      for (int64_t c = 0; c < columns; c++) sum[c] += pair.d_sum * slope_of(&row, j, first + c, false);
    }
    for (int64_t c = 0; c < columns; c++)
      attn_put_gradient(p, args->d_q, p->dtype_q, at + (first + c) * p->d_q_stride.d, sum[c]);
  }
}

/* Columns of d_k, or of d_v, summed over all queries. */
static void key_columns(const attn_problem *p, const attn_args *args, int64_t b, int64_t kv_head, int64_t j, int64_t first,
                        int64_t columns, bool of_v, double *sum) {
  const int64_t group = attn_group(p);
  for (int64_t c = 0; c < columns; c++) sum[c] = 0;
  for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
    exact_row row = exact_row_of(p, args, b, h, 0);
    for (row.i = 0; row.i < row.seq.len_q; row.i++) {
      row.keys = attn_allowed_keys(p, args, &row.seq, b, row.i);
      if (j < row.keys.begin || j >= row.keys.end) continue;
      const row_terms terms = attn_row_terms(p, args, &row.seq, h, row.i);
      if (!sees(&row, &terms, j)) continue;
      const pair_terms pair = pair_of(&row, &terms, j);
      const int64_t d_o = row_at(p, &p->d_o_stride, &row.seq, h, row.i);
      for (int64_t c = 0; c < columns; c++)
        sum[c] += of_v ? pair.p * element(args->d_o, p->dtype_o, d_o + (first + c) * p->d_o_stride.d)
                       : pair.d_sum * slope_of(&row, j, first + c, true);
    }
  }
}

void attn_exact_key_gradient(const attn_problem *p, const attn_args *args, int64_t b, int64_t kv_head, int64_t j,
                             bool of_v) {
  const attn_sequence seq = attn_sequence_of(p, args, b);
  void *to = of_v ? args->d_v : args->d_k;
  const attn_strides *stride = of_v ? &p->d_v_stride : &p->d_k_stride;
  const int64_t dim = of_v ? p->dim_v : p->dim_qk, at = key_at(p, stride, &seq, kv_head, j);
  for (int64_t first = 0; to && first < dim; first += COLUMNS) {
    double sum[COLUMNS];
    const int64_t columns = min64(COLUMNS, dim - first);
    key_columns(p, args, b, kv_head, j, first, columns, of_v, sum);
    for (int64_t c = 0; c < columns; c++) attn_put_gradient(p, to, p->dtype_kv, at + (first + c) * stride->d, sum[c]);
  }
}

/* ---- Sums over pairs ---- */

attn_sum_range attn_sum_of(const attn_problem *p, int64_t stride_b, int64_t stride_h, int64_t b, int64_t h) {
  if ((!stride_b && b > 0) || (!stride_h && h > 0)) return (attn_sum_range){.batches = 0};
  return (attn_sum_range){
      .first_b = b, .batches = stride_b ? 1 : p->batch, .first_h = h, .heads = stride_h ? 1 : p->heads_q};
}

/* A gradient that sums over all pairs of a range; `pair` and `terms` are those of the row's key j. */
typedef void add_pair(void *context, const exact_row *row, const row_terms *terms, int64_t j);

/* Goes through them in the order of batch, head, query and key. */
static void each_pair(const attn_problem *p, const attn_args *args, attn_sum_range range, add_pair *add, void *context) {
  for (int64_t b = range.first_b; b < range.first_b + range.batches; b++)
    for (int64_t h = range.first_h; h < range.first_h + range.heads; h++) {
      exact_row row = exact_row_of(p, args, b, h, 0);
      for (row.i = 0; row.i < row.seq.len_q; row.i++) {
        const row_terms terms = attn_row_terms(p, args, &row.seq, h, row.i);
        row.keys = attn_allowed_keys(p, args, &row.seq, b, row.i);
        for (int64_t j = row.keys.begin; j < row.keys.end; j++)
          if (sees(&row, &terms, j)) add(context, &row, &terms, j);
      }
    }
}

/* An array [batch][heads][seq_q][seq_k] of gradients of scores. */
typedef struct score_array {
  float *to;
  const attn_score_strides *stride;
  bool of_sums; /* before softcap */
} score_array;

static void add_to_array(void *context, const exact_row *row, const row_terms *terms, int64_t j) {
  const score_array *array = context;
  const pair_terms pair = pair_of(row, terms, j);
  array->to[attn_score_offset(array->stride, row->b, row->h, row->i, j)] +=
      (float)(array->of_sums ? pair.d_sum : pair.d_score);
}

/* Zeros, unless the call adds to what is there. */
static void start_array(const attn_problem *p, const score_array *array, attn_sum_range range) {
  const attn_score_strides *s = array->stride;
  const int64_t rows = s->q ? p->seq_q : 1, columns = s->k ? p->seq_k : 1;
  if (attn_uses(p, ATTN_USE_ACCUMULATE) || range.batches == 0) return;
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) array->to[attn_score_offset(s, range.first_b, range.first_h, i, j)] = 0.0f;
}

static void array_gradient(const attn_problem *p, const attn_args *args, int64_t b, int64_t h, score_array array) {
  const attn_sum_range range = attn_sum_of(p, array.stride->b, array.stride->h, b, h);
  start_array(p, &array, range);
  if (p->seq_k > 0) each_pair(p, args, range, add_to_array, &array);
}

static void add_distance(void *context, const exact_row *row, const row_terms *terms, int64_t j) {
  *(double *)context -= pair_of(row, terms, j).d_score * alibi_distance(row, j);
}

/* The derivative of the sum over the head dimension by element d of its weights. */
typedef struct weight_gradient {
  double sum[COLUMNS];
  int64_t first, columns;
} weight_gradient;

static void add_weights(void *context, const exact_row *row, const row_terms *terms, int64_t j) {
  weight_gradient *g = context;
  const attn_problem *p = row->problem;
  const double d_sum = pair_of(row, terms, j).d_sum;
  const int64_t q_at = row_at(p, &p->q_stride, &row->seq, row->h, row->i), k_at = run_at(row, j).k;
  for (int64_t c = 0; c < g->columns; c++) {
    const int64_t d = g->first + c;
    const double q = element(row->args->q, p->dtype_q, q_at + d * p->q_stride.d);
    const double k = element(row->args->k, p->dtype_kv, k_at + d * p->k_stride.d);
    g->sum[c] += d_sum * (p->score == ATTN_SCORE_ADDITIVE ? tanh(q + k) : -weight_of(row, d) * (q - k) * (q - k));
  }
}

static void weight_gradients(const attn_problem *p, const attn_args *args, int64_t b, int64_t h) {
  const attn_sum_range range = attn_sum_of(p, 0, p->score_weight_stride_h, b, h);
  for (int64_t first = 0; range.batches > 0 && first < p->dim_qk; first += COLUMNS) {
    weight_gradient g = {.first = first, .columns = min64(COLUMNS, p->dim_qk - first)};
    if (p->score == ATTN_SCORE_ADDITIVE || p->score == ATTN_SCORE_GAUSSIAN) each_pair(p, args, range, add_weights, &g);
    for (int64_t c = 0; c < g.columns; c++)
      attn_put_gradient(p, args->d_score_weight, ATTN_F32, h * p->score_weight_stride_h + first + c, g.sum[c]);
  }
}

void attn_exact_sink_gradient(const attn_problem *p, const attn_args *args, int64_t b, int64_t h) {
  attn_problem plain = *p;
  double sum = 0;
  if (b > 0 || !args->d_sinks || !attn_uses(p, ATTN_USE_D_SINKS)) return;
  plain.uses &= ~(uint32_t)ATTN_USE_D_LSE; /* lse never includes the sink */
  for (int64_t n = 0; n < p->batch; n++) {
    const attn_sequence seq = attn_sequence_of(p, args, n);
    for (int64_t i = 0; i < seq.len_q; i++) {
      const row_terms terms = attn_row_terms(&plain, args, &seq, h, i);
      if (terms.lse != -INFINITY) sum -= exp((double)args->sinks[h] - terms.lse) * terms.delta;
    }
  }
  attn_put_gradient(p, args->d_sinks, ATTN_F32, h, sum);
}

void attn_exact_score_gradients(const attn_problem *p, const attn_args *args, int64_t b, int64_t h) {
  if (args->d_bias && attn_uses(p, ATTN_USE_D_BIAS))
    array_gradient(p, args, b, h, (score_array){args->d_bias, &p->d_bias_stride, false});
  if (args->d_scores && p->score == ATTN_SCORE_PRECOMPUTED)
    array_gradient(p, args, b, h, (score_array){args->d_scores, &p->d_scores_stride, true});
  if (args->d_score_weight && attn_uses(p, ATTN_USE_D_SCORE_WEIGHT)) weight_gradients(p, args, b, h);
  attn_exact_sink_gradient(p, args, b, h);
  if (b == 0 && args->d_alibi_slopes && attn_uses(p, ATTN_USE_D_ALIBI)) {
    double sum = 0;
    each_pair(p, args, attn_sum_of(p, 0, 1, b, h), add_distance, &sum);
    attn_put_gradient(p, args->d_alibi_slopes, ATTN_F32, h, sum);
  }
}
