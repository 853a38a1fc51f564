/* SPDX-License-Identifier: MIT */
/* The layer in float64, row by row, and its error limits: docs/numerics.md, "Layers", line by line. */
#include "layers/mha_oracle.h"

#include <math.h>
#include <stdlib.h>

#include "check/check.h"

static const double U = 0x1p-24;

/* A dense layer: weights [depth][columns] and bias, in float64. */
typedef struct dense {
  int64_t depth, columns;
  double *weight, *bias;
  bool has_bias;
} dense;

/* Numbers with three measures of the error of each: a proven limit, a sharp limit that holds for zero-mean data, and a
 * variance. proven NULL: they are exact. */
typedef struct numbers {
  double *value, *proven, *sharp, *variance;
} numbers;

typedef struct rows {
  int64_t columns;
  numbers all; /* [rows][columns] */
} rows;

struct mha_oracle {
  attn_mha_problem problem;
  attn_args args; /* lengths, masks and the like */
  dense q, k, v, o;
  rows x, memory;
  int64_t batch;                  /* whose keys and values are here; -1 = none */
  rows query, key, value;         /* one query; all keys of the batch, or with VARLEN of all tokens */
  rows out, y;                    /* one row: what attention gives, and the layer */
  double *m, *w;                  /* [heads_q dim_v]: of attn_oracle_f64_row */
  double *score, *score_variance; /* [seq_k] */
  double *owned[40];              /* every array above */
  int owned_count;
};

/* Zeros that live as long as the oracle; NULL, which stays in the list, if memory is short. */
static double *doubles(mha_oracle *r, int64_t count) {
  return r->owned[r->owned_count++] = calloc(count > 0 ? (size_t)count : 1, sizeof(double));
}

static rows make_rows(mha_oracle *r, int64_t count, int64_t columns) {
  const int64_t n = count * columns;
  return (rows){columns, {doubles(r, n), doubles(r, n), doubles(r, n), doubles(r, n)}};
}

static numbers row_at(const rows *of, int64_t row) {
  const int64_t at = row * of->columns;
  if (!of->all.proven) return (numbers){.value = of->all.value + at};
  return (numbers){of->all.value + at, of->all.proven + at, of->all.sharp + at, of->all.variance + at};
}

/* Columns [first, first + columns) of a matrix [depth][all]. */
typedef struct matrix {
  const void *weight;
  const float *bias;
  int64_t depth, columns, first, all;
} matrix;

static dense load_dense(mha_oracle *r, const attn_mha_weights *w, matrix m) {
  dense d = {m.depth, m.columns, doubles(r, m.depth * m.columns), doubles(r, m.columns), m.bias != NULL};
  if (!d.weight || !d.bias) return d;
  const bool in_out = w->layout == ATTN_IN_OUT;
  for (int64_t k = 0; k < m.depth; k++)
    for (int64_t c = 0; c < m.columns; c++) {
      const int64_t at = in_out ? k * m.all + m.first + c : (m.first + c) * m.depth + k;
      d.weight[k * m.columns + c] = attn_oracle_load(m.weight, w->dtype, at);
    }
  for (int64_t c = 0; m.bias && c < m.columns; c++) d.bias[c] = m.bias[m.first + c];
  return d;
}

static void load_weights(mha_oracle *r, const attn_mha_weights *w) {
  const attn_mha_problem *p = &r->problem;
  const attn_problem *a = &p->attention;
  const int64_t q = a->heads_q * a->dim_qk, k = a->heads_kv * a->dim_qk, v = a->heads_kv * a->dim_v, all = q + k + v;
  const int64_t inner = a->heads_q * a->dim_v, in = p->width, memory = p->width_memory;
  if (w->w_qkv) {
    r->q = load_dense(r, w, (matrix){w->w_qkv, w->b_qkv, in, q, 0, all});
    r->k = load_dense(r, w, (matrix){w->w_qkv, w->b_qkv, in, k, q, all});
    r->v = load_dense(r, w, (matrix){w->w_qkv, w->b_qkv, in, v, q + k, all});
  } else {
    r->q = load_dense(r, w, (matrix){w->w_q, w->b_q, in, q, 0, q});
    r->k = load_dense(r, w, (matrix){w->w_k, w->b_k, memory, k, 0, k});
    r->v = load_dense(r, w, (matrix){w->w_v, w->b_v, memory, v, 0, v});
  }
  r->o = load_dense(r, w, (matrix){w->w_o, w->b_o, inner, p->width_out, 0, p->width_out});
}

/* ---- Inputs ---- */

static bool is_packed(const mha_oracle *r) { return r->problem.attention.uses & ATTN_USE_VARLEN; }

/* Exact numbers: [batch][count][columns] by their strides, or with VARLEN `count` tokens. */
static rows gather(mha_oracle *r, const float *from, attn_strides stride, int64_t count, int64_t columns) {
  const int64_t batch = is_packed(r) ? 1 : r->problem.attention.batch;
  const rows x = {columns, {.value = doubles(r, batch * count * columns)}};
  for (int64_t row = 0; x.all.value && row < batch * count; row++)
    for (int64_t c = 0; c < columns; c++)
      x.all.value[row * columns + c] = (double)from[row / count * stride.b + row % count * stride.s + c * stride.d];
  return x;
}

/* The errors of a field are standard deviations: SIGMAS of them limit them. Later steps double the sharp limit. */
static rows rows_of_field(mha_oracle *r, const attn_nn_field *field) {
  const rows x = make_rows(r, field->rows, field->width);
  for (int64_t i = 0; x.all.variance && i < field->rows * field->width; i++) {
    x.all.value[i] = field->value[i];
    x.all.proven[i] = ATTN_NN_SIGMAS * field->error[i];
    x.all.sharp[i] = field->error[i];
    x.all.variance[i] = field->error[i] * field->error[i];
  }
  return x;
}

/* ---- Projections ---- */

/* Sums of the terms x_k W_kc and b_c, of their absolute values, and of their squares. */
static void add_terms(const dense *d, const double *x, numbers y) {
  for (int64_t c = 0; c < d->columns; c++) {
    y.value[c] = d->bias[c];
    y.proven[c] = fabs(d->bias[c]);
    y.sharp[c] = d->bias[c] * d->bias[c];
  }
  for (int64_t k = 0; k < d->depth; k++)
    for (int64_t c = 0; c < d->columns; c++) {
      const double term = x[k] * d->weight[k * d->columns + c];
      y.value[c] += term;
      y.proven[c] += fabs(term);
      y.sharp[c] += term * term;
    }
}

/* The variance of rounding in a sum of `terms` products: partial sums grow like a random walk, or steadily to `value`. */
static double own_variance(double terms, double squares, double value) { return U * U * terms * (squares + value * value); }

/* A chain of depth + 1 roundings, each of at most the sum of absolute terms; or, where terms have no mean, of about their
 * root sum of squares. To it comes what the errors of x move. */
static void project(const dense *d, numbers x, numbers y) {
  const double depth = (double)d->depth, underflow = depth * 0x1p-149;
  add_terms(d, x.value, y);
  for (int64_t c = 0; c < d->columns; c++) {
    double moved = 0, squares = 0, variance = 0;
    for (int64_t k = 0; x.proven && k < d->depth; k++) {
      const double weight = d->weight[k * d->columns + c], sharp = x.sharp[k] * weight;
      moved += x.proven[k] * fabs(weight);
      squares += sharp * sharp;
      variance += weight * weight * x.variance[k];
    }
    y.variance[c] = variance + own_variance(depth + d->has_bias, y.sharp[c], y.value[c]);
    y.proven[c] = moved + (depth + 2) * U * (y.proven[c] + moved) + underflow;
    y.sharp[c] = 2 * sqrt(squares) + (2 * sqrt(depth) + 4) * U * sqrt(y.sharp[c]) + underflow;
  }
}

/* All keys and values of a batch, or with VARLEN of all tokens. */
static void project_batch(mha_oracle *r, int64_t b) {
  const attn_problem *a = &r->problem.attention;
  const rows *memory = r->memory.columns ? &r->memory : &r->x;
  const int64_t batch = is_packed(r) ? 0 : b, count = is_packed(r) ? a->total_k : a->seq_k;
  if (r->batch == batch) return;
  for (int64_t j = 0; j < count; j++) {
    project(&r->k, row_at(memory, batch * count + j), row_at(&r->key, j));
    project(&r->v, row_at(memory, batch * count + j), row_at(&r->value, j));
  }
  r->batch = batch;
}

/* ---- Creating ---- */

/* An oracle without inputs; memory may have been short. */
static mha_oracle *create(const attn_mha_problem *problem, const attn_mha_weights *weights, const attn_args *args) {
  const attn_problem *a = &problem->attention;
  mha_oracle *r = calloc(1, sizeof *r);
  if (!r) return NULL;
  *r = (mha_oracle){.problem = *problem, .args = args ? *args : (attn_args){0}, .batch = -1};
  const int64_t keys = is_packed(r) ? a->total_k : a->seq_k;
  load_weights(r, weights);
  r->query = make_rows(r, 1, r->q.columns);
  r->key = make_rows(r, keys, r->k.columns);
  r->value = make_rows(r, keys, r->v.columns);
  r->out = make_rows(r, 1, r->o.depth);
  r->y = make_rows(r, 1, r->o.columns);
  r->m = doubles(r, r->o.depth);
  r->w = doubles(r, r->o.depth);
  r->score = doubles(r, a->seq_k);
  r->score_variance = doubles(r, a->seq_k);
  return r;
}

/* NULL instead of an oracle that lacks memory. */
static mha_oracle *complete(mha_oracle *r) {
  for (int i = 0; r && i < r->owned_count; i++)
    if (!r->owned[i]) return mha_oracle_destroy(r), NULL;
  return r;
}

mha_oracle *mha_oracle_create(const attn_mha_problem *p, const attn_mha_weights *weights, const attn_mha_args *args) {
  const attn_problem *a = &p->attention;
  mha_oracle *r = create(p, weights, args->attention);
  if (!r) return NULL;
  r->x = gather(r, args->x, p->x_stride, is_packed(r) ? a->total_q : a->seq_q, p->width);
  if (args->memory)
    r->memory = gather(r, args->memory, p->memory_stride, is_packed(r) ? a->total_k : a->seq_k, p->width_memory);
  return complete(r);
}

void mha_oracle_destroy(mha_oracle *r) {
  for (int i = 0; r && i < r->owned_count; i++) free(r->owned[i]);
  free(r);
}

/* ---- Attention ---- */

/* One head of one query row. */
typedef struct head_row {
  mha_oracle *oracle;
  int64_t b, i, h;
  int64_t kv_head, first_key, keys; /* the first key of the sequence among all rows of keys; how many follow */
  bool zero_mean;
  double score_proven, score_sharp; /* by how much the errors of q and k may move a score */
  double exp_variance;              /* of one weight, relative */
  bench_row_limits kernel;
} head_row;

/* How far the errors of q and k may move the score of key j. */
static void move_score(head_row *x, int64_t j) {
  const mha_oracle *r = x->oracle;
  const int64_t dim = r->problem.attention.dim_qk;
  const numbers query = row_at(&r->query, 0), key = row_at(&r->key, x->first_key + j);
  const double scale = fabs((double)r->problem.attention.scale);
  double proven = 0, both = 0, squares = 0, sum = 0, terms = 0, variance = 0;
  for (int64_t d = 0; d < dim; d++) {
    const int64_t a = x->h * dim + d, b = x->kv_head * dim + d;
    const double q = query.value[a], k = key.value[b], term = q * k;
    const double dq = query.proven[a], dk = key.proven[b], sq = query.sharp[a], sk = key.sharp[b];
    proven += dq * fabs(k) + fabs(q) * dk + dq * dk;
    squares += sq * sq * k * k + q * q * sk * sk;
    both += sq * sk;
    sum += term;
    terms += term * term;
    variance += q * q * key.variance[b] + k * k * query.variance[a];
  }
  x->score_proven = fmax(x->score_proven, scale * proven);
  x->score_sharp = fmax(x->score_sharp, scale * (sqrt(squares) + both));
  r->score_variance[j] = scale * scale * (variance + own_variance((double)dim, terms, sum));
}

/* The effect on column d of the output that errors of v have, and, as a variance, errors of the scores. */
typedef struct moved_value {
  double proven, squares, largest, variance;
} moved_value;

static moved_value move_value(const head_row *x, int64_t d) {
  const mha_oracle *r = x->oracle;
  const int64_t at = x->kv_head * r->problem.attention.dim_v + d;
  const double o = r->out.all.value[x->h * r->problem.attention.dim_v + d];
  moved_value moved = {.largest = x->kernel.max_v};
  double terms = 0, count = 0;
  for (int64_t j = 0; j < x->keys; j++) {
    if (isnan(r->score[j])) continue; /* not allowed */
    const numbers v = row_at(&r->value, x->first_key + j);
    const double p = r->score[j], term = p * v.value[at], lever = p * (v.value[at] - o);
    moved.proven += p * v.proven[at];
    moved.squares += p * p * v.sharp[at] * v.sharp[at];
    moved.largest = fmax(moved.largest, fabs(v.value[at]) + v.proven[at]);
    moved.variance += p * p * v.variance[at] + lever * lever * (r->score_variance[j] + x->exp_variance);
    terms += term * term;
    count += p > 0;
  }
  moved.variance += own_variance(count, terms, o);
  return moved;
}

/* Limits of column d of the head's output, from those of its scores, of v, and of the kernel; 0 for a row without keys. */
static void limit_output(const head_row *x, int64_t d) {
  const mha_oracle *r = x->oracle;
  const int64_t c = x->h * r->problem.attention.dim_v + d;
  const bench_row_limits *kernel = &x->kernel;
  const numbers out = r->out.all;
  const moved_value v = move_value(x, d);
  const double m = r->m[c], w = r->w[c], relative = 2 * (kernel->proven + x->score_proven), sharp = x->score_sharp;
  const double rest = kernel->lost + U * fabs(out.value[c]);
  const double moved = relative < 1 ? expm1(relative) * (m + v.proven) : 2 * (v.largest + fabs(out.value[c]));
  out.proven[c] = out.sharp[c] = out.variance[c] = 0;
  if (kernel->empty) return;
  out.proven[c] = moved + v.proven + rest;
  out.sharp[c] =
      2 * kernel->sharp * m + 6 * kernel->p_rounding * w + 2 * sharp * w + 2 * sharp * sharp * m + sqrt(v.squares) + rest;
  out.variance[c] = v.variance;
}

static void keep_weights(const head_row *x, const mha_oracle_row *row) {
  const double *score = x->oracle->score;
  const int64_t seq_k = x->oracle->problem.attention.seq_k;
  const double proven = x->kernel.proven + x->score_proven, sharp = x->kernel.sharp + x->score_sharp;
  const double relative = expm1(2 * (x->zero_mean ? fmin(proven, sharp) : proven));
  for (int64_t j = 0; j < seq_k; j++) {
    const bool allowed = j < x->keys && !isnan(score[j]);
    row->p[x->h * seq_k + j] = allowed ? score[j] : 0;
    row->p_limit[x->h * seq_k + j] = allowed ? relative * score[j] + x->kernel.lost + 0x1p-126 : 0;
  }
}

/* The attention oracle on one query row with the keys and values of the batch, all in float64. */
static attn_oracle_row run_head(const head_row *x) {
  mha_oracle *r = x->oracle;
  attn_problem p = r->problem.attention;
  attn_args args = r->args;
  p.dtype_q = p.dtype_kv = ATTN_ORACLE_F64;
  p.q_stride = (attn_strides){.h = p.dim_qk, .d = 1};
  p.k_stride = (attn_strides){.h = p.dim_qk, .s = r->k.columns, .d = 1};
  p.v_stride = (attn_strides){.h = p.dim_v, .s = r->v.columns, .d = 1};
  args.q = r->query.all.value;
  args.k = r->key.all.value;
  args.v = r->value.all.value;
  for (int64_t j = 0; j < p.seq_k; j++) r->score[j] = NAN;
  const int64_t c = x->h * p.dim_v;
  const attn_oracle_output out = {.o = r->out.all.value + c, .m = r->m + c, .w = r->w + c, .p = r->score};
  return attn_oracle_f64_row(&p, &args, (attn_oracle_index){x->b, x->h, x->i}, &out);
}

static void attend_head(head_row *x, const attn_numerics *numerics, const mha_oracle_row *row) {
  const attn_problem *p = &x->oracle->problem.attention;
  const attn_oracle_row facts = run_head(x);
  for (int64_t j = 0; j < x->keys; j++)
    if (!isnan(x->oracle->score[j])) move_score(x, j);
  x->kernel = bench_limits_of_row(p, numerics, &facts, x->zero_mean);
  for (int64_t d = 0; d < p->dim_v; d++) limit_output(x, d);
  if (row->p) keep_weights(x, row);
  if (!row->lse) return;
  row->lse[x->h] = facts.lse;
  row->lse_limit[x->h] = x->kernel.lse + (x->zero_mean ? fmin(x->score_proven, x->score_sharp) : x->score_proven);
}

/* The lowest of the limits that hold. Variances cover the roundings of scores that are products alone. */
static double least_limit(const attn_problem *p, double proven, double sharp, double variance) {
  const bool added = p->softcap != 0 || p->uses & (ATTN_USE_BIAS | ATTN_USE_ALIBI | ATTN_USE_SINKS);
  const double statistical = ATTN_NN_SIGMAS * sqrt(variance) + 0x1p-126, least = fmin(proven, sharp);
  return p->score == ATTN_SCORE_DOT && !added ? fmin(least, statistical) : least;
}

void mha_oracle_compute(mha_oracle *r, int64_t b, int64_t i, const attn_numerics *numerics, bool zero_mean,
                        const mha_oracle_row *row) {
  const attn_problem *p = &r->problem.attention;
  const int64_t first_key = is_packed(r) ? r->args.cu_seqlens_k[b] : 0;
  project_batch(r, b);
  project(&r->q, row_at(&r->x, (is_packed(r) ? r->args.cu_seqlens_q[b] : b * p->seq_q) + i), r->query.all);
  for (int64_t h = 0; h < p->heads_q; h++) {
    head_row x = {.oracle = r,
                  .b = b,
                  .i = i,
                  .h = h,
                  .kv_head = h / (p->heads_q / p->heads_kv),
                  .first_key = first_key,
                  .keys = is_packed(r) ? r->args.cu_seqlens_k[b + 1] - first_key : p->seq_k,
                  .zero_mean = zero_mean,
                  .exp_variance = 16 * U * U + numerics->exp_error * numerics->exp_error};
    attend_head(&x, numerics, row);
  }
  project(&r->o, r->out.all, r->y.all);
  for (int64_t n = 0; n < r->o.columns; n++) {
    const numbers y = row_at(&r->y, 0);
    row->y[n] = y.value[n];
    row->limit[n] = zero_mean ? least_limit(p, y.proven[n], y.sharp[n], y.variance[n]) : y.proven[n];
  }
}

attn_nn_field mha_oracle_field(const mha_oracle_call *call, const attn_nn_field *x, const attn_nn_field *memory) {
  const attn_problem *p = &call->problem->attention;
  const int64_t width = call->problem->width_out;
  mha_oracle *r = create(call->problem, call->weights, call->args);
  attn_nn_field y = attn_nn_field_create(p->batch * p->seq_q, width);
  if (r) r->x = rows_of_field(r, x);
  if (r && memory) r->memory = rows_of_field(r, memory);
  if (!(r = complete(r))) attn_nn_oracle_out_of_memory();
  for (int64_t at = 0; at < y.rows; at++) {
    const mha_oracle_row row = {.y = y.value + at * width, .limit = y.error + at * width};
    mha_oracle_compute(r, at / p->seq_q, at % p->seq_q, &call->numerics, true, &row);
  }
  for (int64_t n = 0; n < y.rows * width; n++) y.error[n] /= ATTN_NN_SIGMAS;
  mha_oracle_destroy(r);
  return y;
}
