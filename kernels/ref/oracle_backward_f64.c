/* SPDX-License-Identifier: MIT */
/* The float64 oracle of gradients. Every element is the sum over its pairs of a query and a key, in the most obvious loops.
 * Beside it stand the errors that float32 arithmetic may make on the way (docs/numerics.md, "Gradients"). */
#include "kernels/ref/oracle_query_f64.h"

static const double U = 0x1p-24; /* unit roundoff of float32 */

/* ---- A query ----------------------------------------------------------------------------------------------------- */

typedef struct differentiated {
  query r;
  bool empty;         /* no keys, or no such row */
  double lse;         /* keys and sink */
  double delta, size; /* rowsum(d_o o) - d_lse exp(sink's share), and the sum of absolute values */
} differentiated;

static int64_t row_at(const query *r, const attn_strides *stride) {
  const bool varlen = r->problem->uses & ATTN_USE_VARLEN;
  const int64_t token = varlen ? r->args->cu_seqlens_q[r->b] + r->i : r->i;
  return (varlen ? 0 : r->b * stride->b) + r->h * stride->h + token * stride->s;
}

static double row_element(const query *r, const void *data, attn_dtype dtype, const attn_strides *stride, int64_t d) {
  return attn_oracle_load(data, dtype, row_at(r, stride) + d * stride->d);
}

static double d_o_of(const query *r, int64_t d) {
  return row_element(r, r->args->d_o, r->problem->dtype_o, &r->problem->d_o_stride, d);
}

static differentiated differentiate(const attn_problem *p, const attn_args *args, attn_oracle_index at) {
  differentiated q = {.r = locate(p, args, at)};
  q.empty = at.i >= q.r.len_q;
  if (q.empty) return q;
  const double lse = args->lse[row_at(&q.r, &p->lse_stride)];
  q.empty = lse == -INFINITY;
  if (q.empty) return q;
  q.lse = lse;
  if (p->uses & ATTN_USE_SINKS) {
    const double sink = args->sinks[at.h], larger_one = larger(lse, sink);
    q.lse = isfinite(larger_one) ? larger_one + log(exp(lse - larger_one) + exp(sink - larger_one)) : larger_one;
  }
  compensated sum = {0, 0};
  for (int64_t d = 0; d < p->dim_v; d++) {
    const double term = d_o_of(&q.r, d) * row_element(&q.r, args->o, p->dtype_o, &p->o_stride, d);
    add(&sum, term);
    q.size += fabs(term);
  }
  if (p->uses & ATTN_USE_D_LSE) {
    const double term = args->d_lse[row_at(&q.r, &p->d_lse_stride)] * exp(q.lse - lse);
    add(&sum, -term);
    q.size += fabs(term) * (1 + fabs(q.lse) + fabs(lse)); /* its exponent is a float, too */
  }
  q.delta = value_of(&sum);
  return q;
}

/* ---- A pair ------------------------------------------------------------------------------------------------------ */

/* P and dS, with the errors of float32: those of the exponent, relative to P; and those of dS that come from dP and D. */
typedef struct weight {
  attn_oracle_pair pair;
  double p_proven, p_sharp; /* relative */
  double s_proven, s_sharp; /* errors of d_sum, beside the relative error of P */
  double score_error;       /* the same of d_score, in both cases */
} weight;

static weight weigh(const differentiated *q, int64_t j) {
  const query *r = &q->r;
  const attn_problem *p = r->problem;
  attn_oracle_row unused = {0};
  double magnitude = 0, dot_size = 0, size = 0;
  const double sum = similarity_of(r, j, &unused, &magnitude);
  dot_size = magnitude;
  const double score = score_from(r, j, sum, &magnitude), steps = p->score == ATTN_SCORE_PRECOMPUTED ? 0 : (double)p->dim_qk;
  const double capped = p->softcap > 0 ? tanh(sum / p->softcap) : 0, slope = 1 - capped * capped;
  weight w = {.pair = {.p = exp(score - q->lse)}};
  magnitude += fabs(q->lse);
  const double tanhs = (p->score == ATTN_SCORE_ADDITIVE) + (p->softcap > 0); /* each errs by up to 8 u */
  w.p_proven = U * ((steps + 4 + 8 * tanhs) * magnitude + 4);
  w.p_sharp = U * ((sqrt(steps) + 4 + 8 * tanhs) * magnitude + 4);

  compensated d_p = {0, 0};
  double v[COLUMNS];
  for (int64_t first = 0; first < p->dim_v; first += COLUMNS) {
    load_v(r, j, first, block_of(first, p->dim_v), v);
    for (int64_t c = 0; c < block_of(first, p->dim_v); c++) {
      const double term = d_o_of(r, first + c) * v[c];
      add(&d_p, term);
      size += fabs(term);
    }
  }
  const double kept = dropout_factor(r, j);
  w.pair.d_score = w.pair.p * (kept * value_of(&d_p) - q->delta);
  w.pair.d_sum = w.pair.d_score * slope;
  /* The sums of dP and D, their difference, and the slope of a softcap, 1 - tanh^2, whose tanh errs by up to 8 u. */
  const double both = w.pair.p * slope * (kept * size + q->size), bend = fabs(w.pair.d_score) * 2 * fabs(capped);
  const double argument = p->softcap > 0 ? slope * dot_size / p->softcap : 0;
  w.s_proven = U * (((double)p->dim_v + 4) * both + 4 * fabs(w.pair.d_sum) + bend * ((steps + 4) * argument + 8));
  w.s_sharp = U * (4 * both + 4 * fabs(w.pair.d_sum) + bend * (4 * argument + 8));
  w.score_error = U * (((double)p->dim_v + 4) * w.pair.p * (kept * size + q->size) + 4 * fabs(w.pair.d_score));
  /* Where the slope is 0, the error of dS times that of the slope is left. */
  const double both_errors = p->softcap > 0 ? w.score_error * 2 * fabs(capped) * U * ((steps + 4) * argument + 8) : 0;
  w.s_proven += both_errors;
  w.s_sharp += both_errors;
  /* A weight below the normal numbers may be 0. */
  const double lost = 0x1p-126 * (kept * size + q->size);
  w.s_proven += lost * slope;
  w.s_sharp += lost * slope;
  w.score_error += lost;
  w.pair.p *= kept;
  return w;
}

attn_oracle_pair attn_oracle_f64_pair(const attn_problem *problem, const attn_args *args, attn_oracle_index at, int64_t j) {
  const differentiated q = differentiate(problem, args, at);
  return q.empty || !is_allowed(&q.r, j) ? (attn_oracle_pair){0, 0, 0} : weigh(&q, j).pair;
}

/* ---- Sums -------------------------------------------------------------------------------------------------------- */

static void start(const attn_oracle_gradient *g, int64_t dim) {
  for (int64_t d = 0; d < dim; d++) g->value[d] = g->m[d] = g->w[d] = g->proven[d] = g->sharp[d] = 0;
}

/* `proven`, `sharp`: errors of the weight. The factor of a score that is no dot product has an error of its own: up to 16 u
 * factor_size. */
static void add_term(const attn_oracle_gradient *g, int64_t d, double value, double factor, double factor_size,
                     double proven, double sharp, attn_oracle_gradient_facts *facts) {
  const double term = value * factor, own = (fabs(value) + proven) * 16 * U * factor_size;
  g->value[d] += term;
  g->m[d] += fabs(term);
  g->w[d] += square(term);
  g->proven[d] += proven * fabs(factor) + own;
  g->sharp[d] += sharp * fabs(factor) + own;
  facts->max_factor = larger(facts->max_factor, fabs(factor));
}

static void finish(const attn_oracle_gradient *g, int64_t dim) {
  for (int64_t d = 0; d < dim; d++) g->w[d] = sqrt(g->w[d]);
}

/* The derivative of the sum over the head dimension by element d of the query, or of the key; *size: of what is subtracted.
 */
static double slope_at(const query *r, int64_t d, double q, double k, bool of_key, double *size) {
  const attn_problem *p = r->problem;
  const double w = score_weight(r, d);
  *size = 0;
  if (p->score == ATTN_SCORE_DOT) return (double)p->scale * (of_key ? q : k);
  if (p->score == ATTN_SCORE_GAUSSIAN) {
    *size = w * w * (fabs(q) + fabs(k)) / 8;
    return w * w * (of_key ? q - k : k - q);
  }
  *size = fabs(w);
  return w * (1 - square(tanh(q + k)));
}

static void add_pair(const differentiated *q, int64_t j, bool of_key, const attn_oracle_gradient *g,
                     attn_oracle_gradient_facts *facts) {
  const weight w = weigh(q, j);
  const double size = fabs(w.pair.d_sum);
  double q_row[COLUMNS], k_row[COLUMNS];
  for (int64_t first = 0; first < q->r.problem->dim_qk; first += COLUMNS) {
    const int64_t count = block_of(first, q->r.problem->dim_qk);
    load_q(&q->r, first, count, q_row);
    load_k(&q->r, j, first, count, k_row);
    for (int64_t c = 0; c < count; c++) {
      double factor_size;
      const double factor = slope_at(&q->r, first + c, q_row[c], k_row[c], of_key, &factor_size);
      add_term(g, first + c, w.pair.d_sum, factor, factor_size, w.s_proven + size * w.p_proven, w.s_sharp + size * w.p_sharp,
               facts);
    }
  }
  facts->pairs++;
}

attn_oracle_gradient_facts attn_oracle_f64_query_gradient(const attn_problem *problem, const attn_args *args,
                                                          attn_oracle_index at, const attn_oracle_gradient *d_q) {
  const differentiated q = differentiate(problem, args, at);
  attn_oracle_gradient_facts facts = {0};
  start(d_q, problem->dim_qk);
  for (int64_t j = 0; !q.empty && j < q.r.len_k; j++)
    if (is_allowed(&q.r, j)) add_pair(&q, j, false, d_q, &facts);
  finish(d_q, problem->dim_qk);
  return facts;
}

attn_oracle_gradient_facts attn_oracle_f64_key_gradient(const attn_problem *problem, const attn_args *args, int64_t b,
                                                        int64_t kv_head, int64_t j, bool of_v,
                                                        const attn_oracle_gradient *gradient) {
  const int64_t group = problem->heads_q / problem->heads_kv, dim = of_v ? problem->dim_v : problem->dim_qk;
  attn_oracle_gradient_facts facts = {0};
  start(gradient, dim);
  for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++)
    for (int64_t i = 0; i < attn_oracle_f64_rows(problem, args, b); i++) {
      const query r = locate(problem, args, (attn_oracle_index){b, h, i});
      if (i >= r.len_q || !is_allowed(&r, j)) continue;
      const differentiated q = differentiate(problem, args, (attn_oracle_index){b, h, i});
      if (q.empty) continue;
      if (!of_v) {
        add_pair(&q, j, true, gradient, &facts);
        continue;
      }
      const weight w = weigh(&q, j);
      for (int64_t d = 0; d < dim; d++)
        add_term(gradient, d, w.pair.p, d_o_of(&q.r, d), 0, w.pair.p * w.p_proven, w.pair.p * w.p_sharp, &facts);
      facts.pairs++;
    }
  finish(gradient, dim);
  return facts;
}

/* ---- Gradients that are summed over rows as well ------------------------------------------------------------------- */

/* The part of one row in a gradient: `columns` of it, or its sum where there is one column. */
typedef struct sum_row {
  attn_oracle_sum of;
  const attn_oracle_gradient *to;
  int64_t columns;
  attn_oracle_gradient_facts facts;
} sum_row;

/* The derivative of the sum over the head dimension by weight d. */
static double weight_slope(const query *r, int64_t d, double q, double k) {
  if (r->problem->score == ATTN_SCORE_ADDITIVE) return tanh(q + k);
  return -score_weight(r, d) * square(q - k);
}

static void add_weights(const differentiated *q, const weight *w, int64_t j, sum_row *row) {
  const double size = fabs(w->pair.d_sum);
  double q_row[COLUMNS], k_row[COLUMNS];
  for (int64_t first = 0; first < row->columns; first += COLUMNS) {
    const int64_t count = block_of(first, row->columns);
    load_q(&q->r, first, count, q_row);
    load_k(&q->r, j, first, count, k_row);
    for (int64_t c = 0; c < count; c++) {
      const double factor = weight_slope(&q->r, first + c, q_row[c], k_row[c]);
      const double cancels = q->r.problem->score == ATTN_SCORE_GAUSSIAN
                                 ? fabs(score_weight(&q->r, first + c)) * square(fabs(q_row[c]) + fabs(k_row[c]))
                                 : fabs(factor);
      add_term(row->to, first + c, w->pair.d_sum, factor, cancels / 4, w->s_proven + size * w->p_proven,
               w->s_sharp + size * w->p_sharp, &row->facts);
    }
  }
}

static void add_to_sum(const differentiated *q, int64_t j, sum_row *row) {
  const weight w = weigh(q, j);
  const double size = fabs(w.pair.d_score);
  double factor = 1;
  if (row->of == ATTN_ORACLE_D_SCORE_WEIGHT) {
    add_weights(q, &w, j, row);
  } else if (row->of == ATTN_ORACLE_D_SCORES) {
    add_term(row->to, row->columns > 1 ? j : 0, w.pair.d_sum, 1, 0, w.s_proven + fabs(w.pair.d_sum) * w.p_proven,
             w.s_sharp + fabs(w.pair.d_sum) * w.p_sharp, &row->facts);
  } else {
    if (row->of == ATTN_ORACLE_D_ALIBI_SLOPES) factor = -fabs((double)(q->r.position - j));
    add_term(row->to, row->columns > 1 ? j : 0, w.pair.d_score, factor, 0, w.score_error + size * w.p_proven,
             w.score_error + size * w.p_sharp, &row->facts);
  }
}

/* A sink takes its share of the denominator from all values: -exp(sink - lse) rowsum(d_o o). */
static void add_sink(const differentiated *q, sum_row *row) {
  const attn_problem *p = q->r.problem;
  const double sink = q->r.args->sinks[q->r.h], share = exp(sink - q->lse);
  const double error = U * (4 * (fabs(sink) + fabs(q->lse)) + 8);
  add_term(row->to, 0, -share, q->delta, 0, share * error, share * error, &row->facts);
  row->to->proven[0] += share * U * ((double)p->dim_v + 4) * q->size;
  row->to->sharp[0] += share * U * 4 * q->size;
}

static void add_row(const attn_problem *problem, const attn_args *args, attn_oracle_index at, sum_row *row) {
  attn_problem plain = *problem;
  if (row->of == ATTN_ORACLE_D_SINKS) plain.uses &= ~(uint32_t)ATTN_USE_D_LSE; /* no LSE includes the sink */
  const differentiated q = differentiate(&plain, args, at);
  if (q.empty) return;
  if (row->of == ATTN_ORACLE_D_SINKS) {
    add_sink(&q, row);
    row->facts.pairs++;
    return;
  }
  for (int64_t j = 0; j < q.r.len_k; j++)
    if (is_allowed(&q.r, j)) add_to_sum(&q, j, row);
  row->facts.pairs += row->columns > 1 && row->of != ATTN_ORACLE_D_SCORE_WEIGHT ? 1 : q.r.len_k;
}

attn_oracle_gradient_facts attn_oracle_f64_sum_gradient(const attn_problem *problem, const attn_args *args,
                                                        attn_oracle_sum of, attn_oracle_index at,
                                                        const attn_oracle_gradient *gradient) {
  const attn_score_strides none = {0, problem->score_weight_stride_h, 0, 0}, head = {0, 1, 0, 0};
  const attn_score_strides by = of == ATTN_ORACLE_D_BIAS           ? problem->d_bias_stride
                                : of == ATTN_ORACLE_D_SCORES       ? problem->d_scores_stride
                                : of == ATTN_ORACLE_D_SCORE_WEIGHT ? none
                                                                   : head;
  sum_row row = {.of = of, .to = gradient, .columns = by.k ? problem->seq_k : 1};
  if (of == ATTN_ORACLE_D_SCORE_WEIGHT) row.columns = problem->dim_qk;
  start(gradient, row.columns);
  for (int64_t b = by.b ? at.b : 0; b < (by.b ? at.b + 1 : problem->batch); b++)
    for (int64_t h = by.h ? at.h : 0; h < (by.h ? at.h + 1 : problem->heads_q); h++)
      for (int64_t i = by.q ? at.i : 0; i < (by.q ? at.i + 1 : attn_oracle_f64_rows(problem, args, b)); i++)
        if (i < attn_oracle_f64_rows(problem, args, b)) add_row(problem, args, (attn_oracle_index){b, h, i}, &row);
  finish(gradient, row.columns);
  return row.facts;
}
