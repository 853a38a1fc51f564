/* SPDX-License-Identifier: MIT */
/* The layer in float64, row by row, and its error limits: docs/numerics.md, "Layers", line by line. */
#include "layers/mha_oracle.h"

#include <math.h>
#include <stdlib.h>

#include "check/error_limits.h"

static const double U = 0x1p-24;

/* A dense layer: weights [depth][columns] and bias, in float64. */
typedef struct dense {
  int64_t depth, columns;
  double *weight, *bias;
} dense;

/* Rows of a projection: values, and what rounding may have done to each of them. */
typedef struct rows {
  int64_t columns;
  double *value, *proven, *sharp; /* [rows][columns] */
} rows;

struct mha_oracle {
  const attn_mha_problem *problem;
  const attn_mha_args *args;
  dense q, k, v, o;
  int64_t batch; /* whose keys and values are here; -1 = none */
  rows query, key, value;
  double *score, *out, *m, *w, *out_proven, *out_sharp; /* [seq_k]; [heads_q dim_v] */
};

static double *doubles(int64_t count) { return calloc(count > 0 ? (size_t)count : 1, sizeof(double)); }

/* ---- Weights ---- */

/* Columns [first, first + columns) of a depth x all matrix. */
static dense dense_of(const attn_mha_weights *w, const void *weight, const float *bias, int64_t depth, int64_t columns,
                      int64_t first, int64_t all) {
  dense d = {depth, columns, doubles(depth * columns), doubles(columns)};
  if (!d.weight || !d.bias) return d;
  for (int64_t k = 0; k < depth; k++)
    for (int64_t c = 0; c < columns; c++)
      d.weight[k * columns + c] =
          attn_oracle_load(weight, w->dtype, w->layout == ATTN_IN_OUT ? k * all + first + c : (first + c) * depth + k);
  for (int64_t c = 0; bias && c < columns; c++) d.bias[c] = bias[first + c];
  return d;
}

static void load_weights(mha_oracle *r, const attn_mha_weights *w) {
  const attn_mha_problem *p = r->problem;
  const attn_problem *a = &p->attention;
  const int64_t q = a->heads_q * a->dim_qk, k = a->heads_kv * a->dim_qk, v = a->heads_kv * a->dim_v, all = q + k + v;
  const bool packed = w->w_qkv;
  r->q = packed ? dense_of(w, w->w_qkv, w->b_qkv, p->width, q, 0, all) : dense_of(w, w->w_q, w->b_q, p->width, q, 0, q);
  r->k =
      packed ? dense_of(w, w->w_qkv, w->b_qkv, p->width, k, q, all) : dense_of(w, w->w_k, w->b_k, p->width_memory, k, 0, k);
  r->v = packed ? dense_of(w, w->w_qkv, w->b_qkv, p->width, v, q + k, all)
                : dense_of(w, w->w_v, w->b_v, p->width_memory, v, 0, v);
  r->o = dense_of(w, w->w_o, w->b_o, a->heads_q * a->dim_v, p->width_out, 0, p->width_out);
}

/* ---- Projections ---- */

/* value[c] = sum_k x_k W_kc + b_c, and its limits: a chain of depth + 1 roundings, each of at most the sum of absolute terms; or, where
 * terms have no mean, of about their root sum of squares. */
static void project(const dense *d, const float *x, int64_t step, double *value, double *proven, double *sharp) {
  for (int64_t c = 0; c < d->columns; c++) {
    value[c] = d->bias[c];
    proven[c] = fabs(d->bias[c]);
    sharp[c] = d->bias[c] * d->bias[c];
  }
  for (int64_t k = 0; k < d->depth; k++) {
    const double factor = (double)x[k * step];
    const double *weight = d->weight + k * d->columns;
    for (int64_t c = 0; c < d->columns; c++) {
      const double term = factor * weight[c];
      value[c] += term;
      proven[c] += fabs(term);
      sharp[c] += term * term;
    }
  }
  const double depth = (double)d->depth, underflow = depth * 0x1p-149;
  for (int64_t c = 0; c < d->columns; c++) {
    proven[c] = (depth + 2) * U * proven[c] + underflow;
    sharp[c] = (2 * sqrt(depth) + 4) * U * sqrt(sharp[c]) + underflow;
  }
}

static bool uses(const mha_oracle *r, uint32_t use) { return (r->problem->attention.uses & use) != 0; }

/* All keys and values of a batch, or with VARLEN of all tokens. */
static void project_batch(mha_oracle *r, int64_t b) {
  const attn_mha_problem *p = r->problem;
  const bool varlen = uses(r, ATTN_USE_VARLEN), self = !r->args->memory;
  const attn_strides stride = self ? p->x_stride : p->memory_stride;
  const float *memory = (self ? r->args->x : r->args->memory) + (varlen ? 0 : b * stride.b);
  const int64_t count = varlen ? p->attention.total_k : p->attention.seq_k;
  for (int64_t j = 0; j < count; j++) {
    const float *row = memory + j * stride.s;
    const int64_t k = j * r->k.columns, v = j * r->v.columns;
    project(&r->k, row, stride.d, r->key.value + k, r->key.proven + k, r->key.sharp + k);
    project(&r->v, row, stride.d, r->value.value + v, r->value.proven + v, r->value.sharp + v);
  }
  r->batch = varlen ? 0 : b;
}

/* ---- Creating ---- */

static rows make_rows(int64_t count, int64_t columns) {
  return (rows){columns, doubles(count * columns), doubles(count * columns), doubles(count * columns)};
}

mha_oracle *mha_oracle_create(const attn_mha_problem *problem, const attn_mha_weights *weights, const attn_mha_args *args) {
  mha_oracle *r = calloc(1, sizeof *r);
  if (!r) return NULL;
  const attn_problem *a = &problem->attention;
  const int64_t keys = problem->attention.uses & ATTN_USE_VARLEN ? a->total_k : a->seq_k;
  r->problem = problem;
  r->args = args;
  r->batch = -1;
  load_weights(r, weights);
  r->query = make_rows(1, r->q.columns);
  r->key = make_rows(keys, r->k.columns);
  r->value = make_rows(keys, r->v.columns);
  double **const arrays[] = {&r->out, &r->m, &r->w, &r->out_proven, &r->out_sharp};
  r->score = doubles(a->seq_k);
  bool complete = r->score && r->q.weight && r->q.bias && r->k.weight && r->k.bias && r->v.weight && r->v.bias &&
                  r->o.weight && r->o.bias && r->query.value && r->query.proven && r->query.sharp && r->key.value &&
                  r->key.proven && r->key.sharp && r->value.value && r->value.proven && r->value.sharp;
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) complete = (*arrays[i] = doubles(r->o.depth)) && complete;
  if (complete) return r;
  mha_oracle_destroy(r);
  return NULL;
}

void mha_oracle_destroy(mha_oracle *r) {
  if (!r) return;
  double *const arrays[] = {r->q.weight,   r->q.bias,    r->k.weight,    r->k.bias,       r->v.weight,    r->v.bias,
                            r->o.weight,   r->o.bias,    r->query.value, r->query.proven, r->query.sharp, r->key.value,
                            r->key.proven, r->key.sharp, r->value.value, r->value.proven, r->value.sharp, r->score,
                            r->out,        r->m,         r->w,           r->out_proven,   r->out_sharp};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]);
  free(r);
}

/* ---- Attention ---- */

/* The oracle's view of the layer: one query row, the batch's keys and values, all float64. */
static attn_problem inner_problem(const mha_oracle *r) {
  attn_problem p = r->problem->attention;
  p.dtype_q = p.dtype_kv = ATTN_ORACLE_F64;
  p.q_stride = (attn_strides){.h = p.dim_qk, .d = 1};
  p.k_stride = (attn_strides){.h = p.dim_qk, .s = r->k.columns, .d = 1};
  p.v_stride = (attn_strides){.h = p.dim_v, .s = r->v.columns, .d = 1};
  return p;
}

/* By how much the errors of q and k may move a score of head h: the largest over the allowed keys. */
typedef struct score_error {
  double proven, sharp;
} score_error;

static score_error score_error_of(const mha_oracle *r, int64_t h, int64_t first_key, int64_t keys) {
  const attn_problem *a = &r->problem->attention;
  const int64_t kv_head = h / (a->heads_q / a->heads_kv), dim = a->dim_qk;
  const double scale = fabs((double)a->scale);
  score_error worst = {0, 0};
  for (int64_t j = 0; j < keys; j++) {
    if (isnan(r->score[j])) continue; /* not allowed */
    const int64_t at = (first_key + j) * r->k.columns + kv_head * dim;
    double proven = 0, both = 0, squares = 0;
    for (int64_t d = 0; d < dim; d++) {
      const double q = fabs(r->query.value[h * dim + d]), k = fabs(r->key.value[at + d]);
      const double dq = r->query.proven[h * dim + d], dk = r->key.proven[at + d];
      const double sq = r->query.sharp[h * dim + d], sk = r->key.sharp[at + d];
      proven += dq * k + q * dk + dq * dk;
      squares += sq * sq * k * k + q * q * sk * sk;
      both += sq * sk;
    }
    worst.proven = fmax(worst.proven, scale * proven);
    worst.sharp = fmax(worst.sharp, scale * (sqrt(squares) + both));
  }
  return worst;
}

/* Limits of one head's output, from those of its scores, of v, and of the kernel. */
static void limit_outputs(const mha_oracle *r, int64_t h, int64_t first_key, int64_t keys, score_error scores,
                          const bench_row_limits *kernel) {
  const attn_problem *a = &r->problem->attention;
  const int64_t kv_head = h / (a->heads_q / a->heads_kv);
  for (int64_t d = 0; d < a->dim_v; d++) {
    const int64_t c = h * a->dim_v + d;
    double moved = 0, squares = 0, largest = kernel->max_v;
    for (int64_t j = 0; j < keys; j++) {
      if (isnan(r->score[j])) continue;
      const int64_t at = (first_key + j) * r->v.columns + kv_head * a->dim_v + d;
      const double p = r->score[j], sharp = r->value.sharp[at];
      moved += p * r->value.proven[at];
      squares += p * p * sharp * sharp;
      largest = fmax(largest, fabs(r->value.value[at]) + r->value.proven[at]);
    }
    const double relative = 2 * (kernel->proven + scores.proven);
    const double proven = relative < 1 ? expm1(relative) * (r->m[c] + moved) : 2 * (largest + fabs(r->out[c]));
    r->out_proven[c] = kernel->empty ? 0 : proven + moved + kernel->lost + U * fabs(r->out[c]);
    r->out_sharp[c] = kernel->empty ? 0
                                    : 2 * kernel->sharp * r->m[c] + 6 * kernel->p_rounding * r->w[c] +
                                          2 * scores.sharp * r->w[c] + 2 * scores.sharp * scores.sharp * r->m[c] +
                                          sqrt(squares) + kernel->lost + U * fabs(r->out[c]);
  }
}

static void keep_weights(const mha_oracle *r, int64_t h, int64_t keys, score_error scores, const bench_row_limits *kernel,
                         bool zero_mean, const mha_oracle_row *row) {
  const int64_t seq_k = r->problem->attention.seq_k;
  const double proven = expm1(2 * (kernel->proven + scores.proven)), sharp = expm1(2 * (kernel->sharp + scores.sharp));
  for (int64_t j = 0; j < seq_k; j++) {
    const bool allowed = j < keys && !isnan(r->score[j]);
    row->p[h * seq_k + j] = allowed ? r->score[j] : 0;
    row->p_limit[h * seq_k + j] =
        allowed ? (zero_mean ? fmin(proven, sharp) : proven) * r->score[j] + kernel->lost + 0x1p-126 : 0;
  }
}

static void attend_head(mha_oracle *r, int64_t b, int64_t h, int64_t i, const attn_numerics *numerics, bool zero_mean,
                        const mha_oracle_row *row) {
  const attn_problem p = inner_problem(r);
  const bool varlen = uses(r, ATTN_USE_VARLEN);
  const int64_t first_key = varlen ? r->args->attention.cu_seqlens_k[b] : 0;
  const int64_t keys = varlen ? r->args->attention.cu_seqlens_k[b + 1] - first_key : p.seq_k;
  attn_args args = r->args->attention;
  args.q = r->query.value;
  args.k = r->key.value;
  args.v = r->value.value;
  for (int64_t j = 0; j < p.seq_k; j++) r->score[j] = NAN;
  attn_oracle_row facts;
  const int64_t c = h * p.dim_v;
  attn_oracle_f64_row(&p, &args, b, h, i, &facts, r->out + c, r->m + c, r->w + c, r->score);
  const score_error scores = score_error_of(r, h, first_key, keys);
  const bench_row_limits kernel = bench_limits_of_row(&r->problem->attention, numerics, &facts, zero_mean);
  limit_outputs(r, h, first_key, keys, scores, &kernel);
  if (row->p) keep_weights(r, h, keys, scores, &kernel, zero_mean, row);
  if (row->lse) row->lse[h] = facts.lse;
  if (row->lse) row->lse_limit[h] = kernel.lse + (zero_mean ? fmin(scores.proven, scores.sharp) : scores.proven);
}

/* ---- Output ---- */

static void project_out(const mha_oracle *r, bool zero_mean, const mha_oracle_row *row) {
  const dense *d = &r->o;
  const double depth = (double)d->depth;
  for (int64_t n = 0; n < d->columns; n++) {
    double sum = d->bias[n], terms = fabs(sum), squares = sum * sum, moved = 0, moved_squares = 0;
    for (int64_t c = 0; c < d->depth; c++) {
      const double weight = d->weight[c * d->columns + n], term = r->out[c] * weight;
      const double sharp = r->out_sharp[c] * weight;
      sum += term;
      terms += fabs(term) + r->out_proven[c] * fabs(weight);
      squares += term * term;
      moved += r->out_proven[c] * fabs(weight);
      moved_squares += sharp * sharp;
    }
    const double proven = moved + (depth + 2) * U * terms;
    const double sharp = 2 * sqrt(moved_squares) + (2 * sqrt(depth) + 4) * U * sqrt(squares);
    row->y[n] = sum;
    row->limit[n] = (zero_mean ? fmin(proven, sharp) : proven) + depth * 0x1p-149;
  }
}

void mha_oracle_compute(mha_oracle *r, int64_t b, int64_t i, const attn_numerics *numerics, bool zero_mean,
                        const mha_oracle_row *row) {
  const attn_mha_problem *p = r->problem;
  const bool varlen = uses(r, ATTN_USE_VARLEN);
  if (r->batch != (varlen ? 0 : b)) project_batch(r, b);
  const int64_t token = varlen ? r->args->attention.cu_seqlens_q[b] + i : i;
  const float *x = r->args->x + (varlen ? 0 : b * p->x_stride.b) + token * p->x_stride.s;
  project(&r->q, x, p->x_stride.d, r->query.value, r->query.proven, r->query.sharp);
  for (int64_t h = 0; h < p->attention.heads_q; h++) attend_head(r, b, h, i, numerics, zero_mean, row);
  project_out(r, zero_mean, row);
}
