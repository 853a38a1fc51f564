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
  bool has_bias;
} dense;

/* Rows of a projection: values, and three measures of the rounding error of each: a proven limit, a sharp limit that holds
 * for zero-mean data, and a variance. */
typedef struct rows {
  int64_t columns;
  double *value, *proven, *sharp, *variance; /* [rows][columns] */
} rows;

enum { ARRAYS = 29 };

struct mha_oracle {
  const attn_mha_problem *problem;
  const attn_mha_args *args;
  const attn_nn_field *x, *memory; /* instead of args->x and args->memory where not NULL */
  dense q, k, v, o;
  int64_t batch; /* whose keys and values are here; -1 = none */
  rows query, key, value;
  double *input;                                               /* one row of x or memory */
  double *score, *score_variance;                              /* [seq_k] */
  double *out, *m, *w, *out_proven, *out_sharp, *out_variance; /* [heads_q dim_v] */
  double *owned[ARRAYS];                                       /* every array above */
  int owned_count;
};

/* Zeros that live as long as the oracle; NULL, which stays in the list, if memory is short. */
static double *doubles(mha_oracle *r, int64_t count) {
  return r->owned[r->owned_count++] = calloc(count > 0 ? (size_t)count : 1, sizeof(double));
}

/* ---- Weights ---- */

/* A depth x all matrix, of which columns [first, first + columns) are wanted. */
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
  const attn_mha_problem *p = r->problem;
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

static bool uses(const mha_oracle *r, uint32_t use) { return (r->problem->attention.uses & use) != 0; }

/* One row of an input; error NULL: it is exact. */
typedef struct input_row {
  const double *value, *error;
} input_row;

static input_row exact_row(const mha_oracle *r, const float *from, int64_t step, int64_t width) {
  for (int64_t c = 0; c < width; c++) r->input[c] = (double)from[c * step];
  return (input_row){r->input, NULL};
}

static input_row field_row(const attn_nn_field *field, int64_t row) {
  return (input_row){field->value + row * field->width, field->error + row * field->width};
}

/* Row i of batch b; with VARLEN of all tokens. */
static input_row x_row(const mha_oracle *r, int64_t b, int64_t i) {
  const attn_mha_problem *p = r->problem;
  const int64_t batch = uses(r, ATTN_USE_VARLEN) ? 0 : b;
  if (r->x) return field_row(r->x, batch * p->attention.seq_q + i);
  return exact_row(r, r->args->x + batch * p->x_stride.b + i * p->x_stride.s, p->x_stride.d, p->width);
}

static input_row memory_row(const mha_oracle *r, int64_t b, int64_t j) {
  const attn_mha_problem *p = r->problem;
  if (r->memory) return field_row(r->memory, b * p->attention.seq_k + j);
  if (r->x || !r->args->memory) return x_row(r, b, j);
  const int64_t batch = uses(r, ATTN_USE_VARLEN) ? 0 : b;
  const float *from = r->args->memory + batch * p->memory_stride.b + j * p->memory_stride.s;
  return exact_row(r, from, p->memory_stride.d, p->width_memory);
}

/* ---- Projections ---- */

/* One row of a projection. */
typedef struct output_row {
  double *value, *proven, *sharp, *variance;
} output_row;

static output_row row_at(const rows *all, int64_t row) {
  const int64_t at = row * all->columns;
  return (output_row){all->value + at, all->proven + at, all->sharp + at, all->variance + at};
}

/* Sums of the terms x_k W_kc and b_c, of their absolute values, and of their squares. */
static void add_terms(const dense *d, const double *x, output_row y) {
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

/* Adds the errors of an input, which are standard deviations: SIGMAS of them to the proven limit, two to the sharp one,
 * which later steps double twice. */
static void carry_errors(const dense *d, const double *error, output_row y) {
  for (int64_t c = 0; c < d->columns; c++) {
    double sum = 0, squares = 0;
    for (int64_t k = 0; k < d->depth; k++) {
      const double moved = error[k] * d->weight[k * d->columns + c];
      sum += fabs(moved);
      squares += moved * moved;
    }
    y.proven[c] += ATTN_NN_SIGMAS * sum;
    y.sharp[c] = sqrt(y.sharp[c] * y.sharp[c] + 4 * squares);
    y.variance[c] += squares;
  }
}

/* The variance of rounding in a sum of `terms` products: partial sums grow like a random walk, or steadily to `value`. */
static double own_variance(double terms, double squares, double value) { return U * U * terms * (squares + value * value); }

/* A chain of depth + 1 roundings, each of at most the sum of absolute terms; or, where terms have no mean, of about their
 * root sum of squares. */
static void project(const dense *d, input_row x, output_row y) {
  const double depth = (double)d->depth, underflow = depth * 0x1p-149;
  add_terms(d, x.value, y);
  for (int64_t c = 0; c < d->columns; c++) {
    y.variance[c] = own_variance(depth + d->has_bias, y.sharp[c], y.value[c]);
    y.proven[c] = (depth + 2) * U * y.proven[c] + underflow;
    y.sharp[c] = (2 * sqrt(depth) + 4) * U * sqrt(y.sharp[c]) + underflow;
  }
  if (x.error) carry_errors(d, x.error, y);
}

/* All keys and values of a batch, or with VARLEN of all tokens. */
static void project_batch(mha_oracle *r, int64_t b) {
  const bool varlen = uses(r, ATTN_USE_VARLEN);
  const int64_t batch = varlen ? 0 : b, count = varlen ? r->problem->attention.total_k : r->problem->attention.seq_k;
  if (r->batch == batch) return;
  for (int64_t j = 0; j < count; j++) {
    const input_row row = memory_row(r, batch, j);
    project(&r->k, row, row_at(&r->key, j));
    project(&r->v, row, row_at(&r->value, j));
  }
  r->batch = batch;
}

/* ---- Creating ---- */

static rows make_rows(mha_oracle *r, int64_t count, int64_t columns) {
  return (rows){columns, doubles(r, count * columns), doubles(r, count * columns), doubles(r, count * columns),
                doubles(r, count * columns)};
}

static void allocate(mha_oracle *r) {
  const attn_mha_problem *p = r->problem;
  const attn_problem *a = &p->attention;
  const int64_t keys = uses(r, ATTN_USE_VARLEN) ? a->total_k : a->seq_k;
  r->query = make_rows(r, 1, r->q.columns);
  r->key = make_rows(r, keys, r->k.columns);
  r->value = make_rows(r, keys, r->v.columns);
  r->input = doubles(r, p->width > p->width_memory ? p->width : p->width_memory);
  r->score = doubles(r, a->seq_k);
  r->score_variance = doubles(r, a->seq_k);
  double **const rest[] = {&r->out, &r->m, &r->w, &r->out_proven, &r->out_sharp, &r->out_variance};
  for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) *rest[i] = doubles(r, r->o.depth);
}

mha_oracle *mha_oracle_create(const attn_mha_problem *problem, const attn_mha_weights *weights, const attn_mha_args *args) {
  mha_oracle *r = calloc(1, sizeof *r);
  if (!r) return NULL;
  *r = (mha_oracle){.problem = problem, .args = args, .batch = -1};
  load_weights(r, weights);
  allocate(r);
  for (int i = 0; i < r->owned_count; i++)
    if (!r->owned[i]) return mha_oracle_destroy(r), NULL;
  return r;
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

/* The oracle's view of the layer: one query row, the batch's keys and values, all float64. */
static attn_problem inner_problem(const mha_oracle *r) {
  attn_problem p = r->problem->attention;
  p.dtype_q = p.dtype_kv = ATTN_ORACLE_F64;
  p.q_stride = (attn_strides){.h = p.dim_qk, .d = 1};
  p.k_stride = (attn_strides){.h = p.dim_qk, .s = r->k.columns, .d = 1};
  p.v_stride = (attn_strides){.h = p.dim_v, .s = r->v.columns, .d = 1};
  return p;
}

/* How far the errors of q and k may move the score of key j. */
static void move_score(head_row *x, int64_t j) {
  const mha_oracle *r = x->oracle;
  const int64_t dim = r->problem->attention.dim_qk;
  const output_row query = row_at(&r->query, 0), key = row_at(&r->key, x->first_key + j);
  const double scale = fabs((double)r->problem->attention.scale);
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

/* What the errors of v, and as variances those of the scores, do to column d of the output. */
typedef struct moved_value {
  double proven, squares, largest, variance;
} moved_value;

static moved_value move_value(const head_row *x, int64_t d) {
  const mha_oracle *r = x->oracle;
  const int64_t at = x->kv_head * r->problem->attention.dim_v + d;
  const double o = r->out[x->h * r->problem->attention.dim_v + d];
  moved_value moved = {.largest = x->kernel.max_v};
  double terms = 0, count = 0;
  for (int64_t j = 0; j < x->keys; j++) {
    if (isnan(r->score[j])) continue; /* not allowed */
    const output_row v = row_at(&r->value, x->first_key + j);
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

/* Limits of column d of the head's output, from those of its scores, of v, and of the kernel. */
static void limit_output(const head_row *x, int64_t d) {
  const mha_oracle *r = x->oracle;
  const int64_t c = x->h * r->problem->attention.dim_v + d;
  const bench_row_limits *kernel = &x->kernel;
  const moved_value v = move_value(x, d);
  const double relative = 2 * (kernel->proven + x->score_proven), sharp = x->score_sharp;
  const double rest = kernel->lost + U * fabs(r->out[c]);
  const double proven = relative < 1 ? expm1(relative) * (r->m[c] + v.proven) : 2 * (v.largest + fabs(r->out[c]));
  r->out_proven[c] = kernel->empty ? 0 : proven + v.proven + rest;
  r->out_sharp[c] = kernel->empty ? 0
                                  : 2 * kernel->sharp * r->m[c] + 6 * kernel->p_rounding * r->w[c] + 2 * sharp * r->w[c] +
                                        2 * sharp * sharp * r->m[c] + sqrt(v.squares) + rest;
  r->out_variance[c] = kernel->empty ? 0 : v.variance;
}

static void keep_weights(const head_row *x, const mha_oracle_row *row) {
  const double *score = x->oracle->score;
  const int64_t seq_k = x->oracle->problem->attention.seq_k;
  const double proven = expm1(2 * (x->kernel.proven + x->score_proven));
  const double sharp = expm1(2 * (x->kernel.sharp + x->score_sharp));
  for (int64_t j = 0; j < seq_k; j++) {
    const bool allowed = j < x->keys && !isnan(score[j]);
    row->p[x->h * seq_k + j] = allowed ? score[j] : 0;
    row->p_limit[x->h * seq_k + j] =
        allowed ? (x->zero_mean ? fmin(proven, sharp) : proven) * score[j] + x->kernel.lost + 0x1p-126 : 0;
  }
}

static attn_oracle_row run_head(const head_row *x) {
  mha_oracle *r = x->oracle;
  const attn_problem p = inner_problem(r);
  const int64_t c = x->h * p.dim_v;
  attn_args args = r->args->attention;
  args.q = r->query.value;
  args.k = r->key.value;
  args.v = r->value.value;
  for (int64_t j = 0; j < p.seq_k; j++) r->score[j] = NAN;
  return attn_oracle_f64_row(&p, &args, (attn_oracle_index){x->b, x->h, x->i},
                             &(attn_oracle_output){.o = r->out + c, .m = r->m + c, .w = r->w + c, .p = r->score});
}

static void attend_head(head_row *x, const attn_numerics *numerics, const mha_oracle_row *row) {
  const attn_problem *p = &x->oracle->problem->attention;
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

/* ---- Output ---- */

/* Variances cover the roundings of scores that are products alone. */
static bool has_plain_scores(const attn_problem *p) {
  const uint32_t added = ATTN_USE_BIAS | ATTN_USE_ALIBI | ATTN_USE_SINKS;
  return p->score == ATTN_SCORE_DOT && p->softcap == 0 && !(p->uses & added);
}

/* The lowest of the limits that hold. */
static double least_limit(const mha_oracle *r, double proven, double sharp, double variance) {
  const double statistical =
      has_plain_scores(&r->problem->attention) ? ATTN_NN_SIGMAS * sqrt(variance) + 0x1p-126 : INFINITY;
  return fmin(proven, fmin(sharp, statistical));
}

static void project_out(const mha_oracle *r, int64_t n, bool zero_mean, const mha_oracle_row *row) {
  const dense *d = &r->o;
  const double depth = (double)d->depth, underflow = depth * 0x1p-149;
  double sum = d->bias[n], terms = fabs(sum), squares = sum * sum, moved = 0, moved_squares = 0, variance = 0;
  for (int64_t c = 0; c < d->depth; c++) {
    const double weight = d->weight[c * d->columns + n], term = r->out[c] * weight, sharp = r->out_sharp[c] * weight;
    sum += term;
    terms += fabs(term) + r->out_proven[c] * fabs(weight);
    squares += term * term;
    moved += r->out_proven[c] * fabs(weight);
    moved_squares += sharp * sharp;
    variance += weight * weight * r->out_variance[c];
  }
  const double proven = moved + (depth + 2) * U * terms + underflow;
  const double sharp = 2 * sqrt(moved_squares) + (2 * sqrt(depth) + 4) * U * sqrt(squares) + underflow;
  variance += own_variance(depth + d->has_bias, squares, sum);
  row->y[n] = sum;
  row->limit[n] = zero_mean ? least_limit(r, proven, sharp, variance) : proven;
}

void mha_oracle_compute(mha_oracle *r, int64_t b, int64_t i, const attn_numerics *numerics, bool zero_mean,
                        const mha_oracle_row *row) {
  const attn_problem *p = &r->problem->attention;
  const attn_args *args = &r->args->attention;
  const bool varlen = uses(r, ATTN_USE_VARLEN);
  const int64_t first_key = varlen ? args->cu_seqlens_k[b] : 0;
  project_batch(r, b);
  project(&r->q, x_row(r, b, varlen ? args->cu_seqlens_q[b] + i : i), row_at(&r->query, 0));
  for (int64_t h = 0; h < p->heads_q; h++) {
    head_row x = {.oracle = r,
                  .b = b,
                  .i = i,
                  .h = h,
                  .kv_head = h / (p->heads_q / p->heads_kv),
                  .first_key = first_key,
                  .keys = varlen ? args->cu_seqlens_k[b + 1] - first_key : p->seq_k,
                  .zero_mean = zero_mean,
                  .exp_variance = 16 * U * U + numerics->exp_error * numerics->exp_error};
    attend_head(&x, numerics, row);
  }
  for (int64_t n = 0; n < r->o.columns; n++) project_out(r, n, zero_mean, row);
}

/* ---- Whole fields ---- */

attn_nn_field mha_oracle_field(const mha_oracle_call *call, const attn_nn_field *x, const attn_nn_field *memory) {
  const attn_problem *p = &call->problem->attention;
  const int64_t width = call->problem->width_out;
  const attn_mha_args args = {.attention = call->args ? *call->args : (attn_args){0}};
  mha_oracle *r = mha_oracle_create(call->problem, call->weights, &args);
  attn_nn_field y = attn_nn_field_create(p->batch * p->seq_q, width);
  if (!r) abort();
  r->x = x;
  r->memory = memory;
  for (int64_t at = 0; at < y.rows; at++) {
    const mha_oracle_row row = {.y = y.value + at * width, .limit = y.error + at * width};
    mha_oracle_compute(r, at / p->seq_q, at % p->seq_q, &call->numerics, true, &row);
  }
  for (int64_t n = 0; n < y.rows * width; n++) y.error[n] /= ATTN_NN_SIGMAS;
  mha_oracle_destroy(r);
  return y;
}
