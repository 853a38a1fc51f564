/* SPDX-License-Identifier: MIT */
/* The oracles of layers: every value in double, with the error that float32 is expected to make. Attention itself is the
 * oracle of oracle_f64.c. */
#include "kernels/ref/nn_oracle_f64.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/ref/oracle_f64.h"

static const double unit = 0x1p-24; /* unit of float32 rounding */

static double square(double x) { return x * x; }

/* ---- Fields ---- */

_Noreturn static void out_of_memory(void) {
  fputs("out of memory for the float64 answer of a layer\n", stderr);
  exit(5);
}

static void *zeros(int64_t count, size_t size) {
  void *memory = calloc((size_t)count + 1, size);
  if (!memory) out_of_memory();
  return memory;
}

attn_nn_field attn_nn_field_create(int64_t rows, int64_t width) {
  return (attn_nn_field){rows, width, zeros(rows * width, sizeof(double)), zeros(rows * width, sizeof(double))};
}

attn_nn_field attn_nn_field_of(const float *data, int64_t rows, int64_t width) {
  attn_nn_field field = attn_nn_field_create(rows, width);
  for (int64_t i = 0; i < rows * width; i++) field.value[i] = (double)data[i];
  return field;
}

void attn_nn_field_destroy(attn_nn_field *field) {
  free(field->value);
  free(field->error);
  field->value = field->error = NULL;
}

double attn_nn_field_worst(const attn_nn_field *field, const float *got) {
  double worst = 0;
  for (int64_t i = 0; i < field->rows * field->width; i++) {
    const double off = fabs((double)got[i] - field->value[i]) / attn_nn_limit(field->error[i]);
    if (!(off <= worst)) worst = isnan(off) ? INFINITY : off;
  }
  return worst;
}

/* Half a step between values: relative to normal ones, and of the others; 0 for float32, whose roundings each step counts.
 */
static double type_unit(attn_dtype dtype) { return dtype == ATTN_BF16 ? 0x1p-8 : dtype == ATTN_F16 ? 0x1p-11 : 0; }
static double least_unit(attn_dtype dtype) { return dtype == ATTN_F16 ? 0x1p-25 : 0; }

void attn_nn_oracle_round(attn_nn_field *x, attn_dtype dtype) {
  for (int64_t i = 0; i < x->rows * x->width; i++)
    x->error[i] = sqrt(square(x->error[i]) + square(type_unit(dtype) * x->value[i]) + square(least_unit(dtype)));
}

/* ---- Dense layers ---- */

/* Weights in a larger matrix. */
typedef struct matrix {
  const void *weight;
  attn_dtype dtype;
  int64_t in_stride, out_stride;
  const float *bias;          /* [out], or NULL */
  const float *scale;         /* likewise: multiplies columns */
  const int64_t *head_starts; /* the first element of each head of `dim` columns; NULL = 0, one head */
  int64_t dim;
} matrix;

enum { COLUMNS = 32 };

/* Columns from `first` on of a row. A sum of n products other than 0 has n rounded partial sums, in any order, each as large
 * as a random walk, or as a steady climb to the result, would make it. */
static void multiply_row(const attn_nn_field *x, int64_t row, const double (*w)[COLUMNS], const matrix *m, int64_t first,
                         attn_nn_field *y) {
  const float *bias = m->bias;
  const double *in = x->value + row * x->width, *error = x->error + row * x->width;
  const int64_t columns = y->width - first < COLUMNS ? y->width - first : COLUMNS, at = row * y->width + first;
  int64_t terms = (bias != NULL) + (m->scale != NULL);
  for (int64_t i = 0; i < x->width; i++) terms += in[i] != 0;
  const double rounding = square(unit) * (double)terms;
  double value[COLUMNS], variance[COLUMNS];
  for (int64_t c = 0; c < COLUMNS; c++) {
    value[c] = bias && c < columns ? (double)bias[first + c] : 0;
    variance[c] = rounding * square(value[c]);
  }
  for (int64_t i = 0; i < x->width; i++)
    for (int64_t c = 0; c < COLUMNS; c++) {
      value[c] += in[i] * w[i][c];
      variance[c] += square(error[i] * w[i][c]) + rounding * square(in[i] * w[i][c]);
    }
  for (int64_t c = 0; c < columns; c++) {
    y->value[at + c] = value[c];
    y->error[at + c] = sqrt(variance[c] + rounding * square(value[c]));
  }
}

static double weight_at(const matrix *m, int64_t in, int64_t out) {
  const int64_t head = m->head_starts ? m->head_starts[out / m->dim] : 0, column = m->head_starts ? out % m->dim : out;
  const double scale = m->scale ? (double)m->scale[out] : 1;
  return scale * attn_oracle_load(m->weight, m->dtype, head + in * m->in_stride + column * m->out_stride);
}

static attn_nn_field multiply(const attn_nn_field *x, matrix m, int64_t out) {
  attn_nn_field y = attn_nn_field_create(x->rows, out), block = attn_nn_field_create(x->width, COLUMNS);
  double(*w)[COLUMNS] = (double(*)[COLUMNS])block.value;
  for (int64_t first = 0; first < out; first += COLUMNS) {
    for (int64_t i = 0; i < x->width; i++)
      for (int64_t c = 0; c < COLUMNS && first + c < out; c++) w[i][c] = weight_at(&m, i, first + c);
    for (int64_t row = 0; row < x->rows; row++) multiply_row(x, row, w, &m, first, &y);
  }
  attn_nn_field_destroy(&block);
  return y;
}

static attn_nn_field apply_linear(const attn_nn_field *x, const attn_linear *linear, attn_dtype dtype, int64_t out) {
  const bool transposed = linear->transposed;
  return multiply(x,
                  (matrix){.weight = linear->weight,
                           .dtype = dtype,
                           .in_stride = transposed ? 1 : out,
                           .out_stride = transposed ? x->width : 1,
                           .bias = linear->bias},
                  out);
}

attn_nn_field attn_nn_oracle_linear(const attn_nn_field *x, const attn_linear *linear, int64_t out) {
  return apply_linear(x, linear, ATTN_F32, out);
}

attn_nn_field attn_nn_oracle_product(const attn_nn_field *x, const attn_product_weights *w) {
  return multiply(x,
                  (matrix){.weight = w->weight,
                           .dtype = w->dtype,
                           .in_stride = w->stride_depth,
                           .out_stride = w->stride_column,
                           .bias = w->bias,
                           .scale = w->scale},
                  w->columns);
}

/* ---- Row-wise steps ---- */

attn_nn_field attn_nn_oracle_relu(const attn_nn_field *x) {
  attn_nn_field y = attn_nn_field_create(x->rows, x->width);
  for (int64_t i = 0; i < x->rows * x->width; i++) {
    const bool passes = x->value[i] > 0;
    const bool undecided = fabs(x->value[i]) <= (double)ATTN_NN_SIGMAS * x->error[i];
    y.value[i] = passes ? x->value[i] : 0;
    y.error[i] = passes || undecided ? x->error[i] : 0;
  }
  return y;
}

/* v sigmoid(z) with z = v (a + b v^2). float32 rounds z some times, and its e^-z, 1 + e^-z, and the quotient err by some u;
 * the sigmoid's relative error is that of e^-z times 1 - sigmoid. */
static attn_nn_field times_sigmoid(const attn_nn_field *x, double a, double b, double roundings) {
  attn_nn_field y = attn_nn_field_create(x->rows, x->width);
  for (int64_t i = 0; i < x->rows * x->width; i++) {
    const double v = x->value[i], z = v * (a + b * v * v), share = 1 / (1 + exp(-z));
    const double slope = share + v * share * (1 - share) * (a + 3 * b * v * v);
    y.value[i] = v * share;
    const double own = square(unit * y.value[i]) * (square(4) + 3 + roundings * square(z * (1 - share))) +
                       square(v * 0x1p-126); /* smaller exponentials are 0 */
    y.error[i] = sqrt((x->error[i] > 0 ? square(slope * x->error[i]) : 0) + own);
  }
  return y;
}

static attn_nn_field exact_gelu(const attn_nn_field *x) {
  const double half_root = 0.70710678118654752440, density_at_0 = 0.39894228040143267794;
  attn_nn_field y = attn_nn_field_create(x->rows, x->width);
  for (int64_t i = 0; i < x->rows * x->width; i++) {
    const double v = x->value[i], share = 0.5 * erfc(-v * half_root);
    const double slope = share + v * density_at_0 * exp(-0.5 * v * v);
    y.value[i] = v * share;
    /* float32 erf errs by about 2 u of 1, also near -1 */
    y.error[i] = sqrt(square(slope * x->error[i]) + square(unit * v * (share + 1)));
  }
  return y;
}

attn_nn_field attn_nn_oracle_activation(const attn_nn_field *x, attn_activation activation) {
  const double root = 1.59576912160573071176; /* 2 sqrt(2 / pi) */
  if (activation == ATTN_RELU) return attn_nn_oracle_relu(x);
  if (activation == ATTN_GELU) return exact_gelu(x);
  return activation == ATTN_SILU ? times_sigmoid(x, 1, 0, 2) : times_sigmoid(x, root, root * 0.044715, 7);
}

attn_nn_field attn_nn_oracle_multiply(const attn_nn_field *a, const attn_nn_field *b) {
  attn_nn_field y = attn_nn_field_create(a->rows, a->width);
  for (int64_t i = 0; i < a->rows * a->width; i++) {
    y.value[i] = a->value[i] * b->value[i];
    y.error[i] = sqrt(square(a->error[i] * b->value[i]) + square(a->value[i] * b->error[i]) + square(unit * y.value[i]));
  }
  return y;
}

attn_nn_field attn_nn_oracle_add(const attn_nn_field *a, const attn_nn_field *b) {
  attn_nn_field y = attn_nn_field_create(a->rows, a->width);
  for (int64_t i = 0; i < a->rows * a->width; i++) {
    y.value[i] = a->value[i] + b->value[i];
    y.error[i] = sqrt(square(a->error[i]) + square(b->error[i]) + square(unit * y.value[i]));
  }
  return y;
}

static void norm_row(const double *x, const double *error, int64_t n, const attn_norm *norm, double *y, double *y_error) {
  double mean = 0, variance = 0;
  for (int64_t i = 0; i < n; i++) mean += x[i] / (double)n;
  for (int64_t i = 0; i < n; i++) variance += square(x[i] - mean) / (double)n;
  const double scale = 1 / sqrt(variance + (double)norm->epsilon);
  double e2 = 0, e2h = 0, e2hh = 0; /* sums of e^2, e^2 h, e^2 h^2, h being the normalised row */
  for (int64_t i = 0; i < n; i++) {
    const double h = (x[i] - mean) * scale;
    e2 += square(error[i]);
    e2h += square(error[i]) * h;
    e2hh += square(error[i] * h);
  }
  for (int64_t i = 0; i < n; i++) {
    const double gain = norm->gain ? (double)norm->gain[i] : 1, bias = norm->bias ? (double)norm->bias[i] : 0;
    const double h = (x[i] - mean) * scale;
    /* dh_i = scale (dx_i - mean(dx) - h_i mean(h dx)) */
    const double shared = (e2 + 2 * h * e2h + h * h * e2hh) / square((double)n);
    y[i] = gain * h + bias;
    /* the scale errs by a few u, the mean by about u of the spread */
    const double own = square(unit * gain) * (square(4 * h) + 1) + square(unit * y[i]);
    y_error[i] = sqrt(square(gain * scale) * (square(error[i]) + shared) + own);
  }
}

/* dh_i = scale (dx_i - h_i mean(h dx)) */
static void rms_norm_row(const double *x, const double *error, int64_t n, const attn_norm *norm, double *y,
                         double *y_error) {
  double squares = 0, shared = 0;
  for (int64_t i = 0; i < n; i++) squares += square(x[i]) / (double)n;
  const double scale = 1 / sqrt(squares + (double)norm->epsilon);
  for (int64_t i = 0; i < n; i++) shared += square(error[i] * x[i] * scale / (double)n);
  for (int64_t i = 0; i < n; i++) {
    const double gain = norm->gain ? (double)norm->gain[i] : 1, bias = norm->bias ? (double)norm->bias[i] : 0;
    const double h = x[i] * scale;
    y[i] = gain * h + bias;
    y_error[i] = sqrt(square(gain * scale) * (square(error[i]) + square(h) * shared) + square(4 * unit * gain * h) +
                      square(unit * y[i]));
  }
}

typedef void norm_row_fn(const double *x, const double *error, int64_t n, const attn_norm *norm, double *y, double *y_error);

static attn_nn_field each_row(const attn_nn_field *x, const attn_norm *norm, norm_row_fn *norm_one) {
  attn_nn_field y = attn_nn_field_create(x->rows, x->width);
  for (int64_t at = 0; at < x->rows * x->width; at += x->width)
    norm_one(x->value + at, x->error + at, x->width, norm, y.value + at, y.error + at);
  return y;
}

attn_nn_field attn_nn_oracle_layer_norm(const attn_nn_field *x, const attn_norm *norm) {
  return each_row(x, norm, norm_row);
}

attn_nn_field attn_nn_oracle_rms_norm(const attn_nn_field *x, const attn_norm *norm) {
  return each_row(x, norm, rms_norm_row);
}

attn_nn_field attn_nn_oracle_feed_forward(const attn_nn_field *x, const attn_feed_forward_config *config) {
  const bool gated = config->gate.weight;
  attn_nn_field inner = apply_linear(x, gated ? &config->gate : &config->first, config->dtype, config->hidden);
  attn_nn_field active = attn_nn_oracle_activation(&inner, config->activation);
  attn_nn_oracle_round(&active, config->dtype_x);
  if (gated) {
    attn_nn_field open = apply_linear(x, &config->first, config->dtype, config->hidden), gate = active;
    attn_nn_oracle_round(&open, config->dtype_x);
    active = attn_nn_oracle_multiply(&open, &gate);
    attn_nn_oracle_round(&active, config->dtype_x);
    attn_nn_field_destroy(&open);
    attn_nn_field_destroy(&gate);
  }
  attn_nn_field y = apply_linear(&active, &config->second, config->dtype, config->width);
  attn_nn_oracle_round(&y, config->dtype_y);
  attn_nn_field_destroy(&inner);
  attn_nn_field_destroy(&active);
  return y;
}

attn_nn_field attn_nn_oracle_positions(int64_t first, int64_t rows, int64_t width) {
  attn_nn_field y = attn_nn_field_create(rows, width);
  for (int64_t p = 0; p < rows; p++)
    for (int64_t i = 0; 2 * i < width; i++) {
      const double angle = (double)(first + p) / exp(log(10000.0) * (2 * (double)i) / (double)width);
      const double angle_error = 0x1p-50 * angle; /* the angle itself is a rounded double */
      y.value[p * width + 2 * i] = sin(angle);
      if (2 * i + 1 < width) y.value[p * width + 2 * i + 1] = cos(angle);
      for (int64_t c = 2 * i; c < 2 * i + 2 && c < width; c++)
        y.error[p * width + c] = unit / 2 * fabs(y.value[p * width + c]) + angle_error;
    }
  return y;
}

/* ---- Attention ---- */

/* A sum of products, whose errors are those of multiply_row(). */
typedef struct sum {
  double value, squares, carried; /* carried: variance of the inputs' errors */
  int64_t terms;
} sum;

static void add_product(sum *s, double a, double a_error, double b, double b_error) {
  s->value += a * b;
  s->squares += square(a * b);
  s->carried += square(a * b_error) + square(b * a_error);
  s->terms++;
}

static double variance_of(const sum *s, double value) {
  return s->carried + square(unit) * (double)s->terms * (s->squares + square(value));
}

/* One head of one query. */
typedef struct head {
  const attn_nn_attention *a;
  attn_args args;
  const attn_nn_field *q, *k, *v;
  attn_oracle_index at;
  int64_t q_at, kv_head, first_key; /* the first element of q or scores; the head and first row of k and v */
  double *p, *variance;             /* [seq_k]: probabilities, 0 where not allowed; variances of the scores */
  double exp_variance;              /* variance of the relative error of one weight */
  double weight_unit;               /* unit of a weight's rounding before it multiplies its value; 0 = float32's */
} head;

/* variance_of() a sum whose products may round both factors (attn_numerics.input_rounding). */
static double product_variance(const head *c, const sum *s, double value) {
  return variance_of(s, value) + 2 * square(c->a->numerics.input_rounding) * s->squares;
}

static double score_variance(const head *c, int64_t j) {
  const attn_problem *p = &c->a->problem;
  if (p->score == ATTN_SCORE_PRECOMPUTED) return square(c->a->scores->error[c->q_at + j]);
  const int64_t k_at = (c->first_key + j) * c->k->width + c->kv_head * p->dim_qk;
  const float *weight = p->uses & ATTN_USE_SCORE_WEIGHT ? c->args.score_weight + c->at.h * p->score_weight_stride_h : NULL;
  sum s = {0};
  for (int64_t d = 0; d < p->dim_qk; d++) {
    const double q = c->q->value[c->q_at + d], q_error = c->q->error[c->q_at + d];
    const double k = c->k->value[k_at + d], k_error = c->k->error[k_at + d];
    const double w = weight ? (double)weight[d] : 1, together = sqrt(square(q_error) + square(k_error));
    const double difference = w * (q - k);
    if (p->score == ATTN_SCORE_DOT) {
      add_product(&s, q, q_error, k, k_error);
    } else if (p->score == ATTN_SCORE_ADDITIVE) { /* tanh errs by a few u of 1 */
      const double t = tanh(q + k);
      add_product(&s, w, 0, t, sqrt(square((1 - t * t) * (together + unit * fabs(q + k))) + square(4 * unit)));
    } else { /* a square: both factors have the same error */
      add_product(&s, -0.5 * difference, 0, difference, 2 * (w * together + unit * fabs(difference)));
    }
  }
  return square(p->score == ATTN_SCORE_DOT ? (double)p->scale : 1) * product_variance(c, &s, s.value);
}

/* Variance that softcap, bias and ALiBi add: none of their results exceeds `magnitude`, and none amplifies an error. */
static double added_variance(const head *c, double magnitude) {
  const attn_problem *p = &c->a->problem;
  const bool caps = p->softcap > 0, biases = p->uses & ATTN_USE_BIAS, slopes = p->uses & ATTN_USE_ALIBI;
  const double tanhs = caps * square(4 * unit + 2 * c->a->numerics.exp_error);
  return (tanhs + square(unit) * (2 * caps + biases + 2 * slopes)) * square(magnitude);
}

/* do = sum of p (v - o) ds, the sink included, whose v is 0. */
static double output_error(const head *c, int64_t d, double o) {
  const attn_problem *p = &c->a->problem;
  sum s = {0};
  double moved = 0, rest = 1;
  for (int64_t j = 0; j < p->seq_k; j++)
    if (c->p[j] > 0) {
      const int64_t at = (c->first_key + j) * c->v->width + c->kv_head * p->dim_v + d;
      add_product(&s, c->p[j], 0, c->v->value[at], c->v->error[at]);
      moved += square(c->p[j] * (c->v->value[at] - o)) * (c->variance[j] + c->exp_variance);
      rest -= c->p[j];
    }
  if (p->uses & ATTN_USE_SINKS) moved += square(rest * o) * c->exp_variance;
  return sqrt(product_variance(c, &s, o) + square(c->weight_unit) * s.squares + moved);
}

/* The relative error of the sum of all weights. Errors of scores may be one and the same, such as that of q, so they count
 * as the sum of p times the size of ds. */
static double total_variance(const head *c) {
  double keys = 0, total = 0, squares = 0, moved = 0;
  for (int64_t j = 0; j < c->a->problem.seq_k; j++)
    if (c->p[j] > 0) {
      keys++;
      total += c->p[j]; /* less than 1 beside a sink */
      squares += square(c->p[j]);
      moved += c->p[j] * sqrt(c->variance[j]);
    }
  if (keys == 0) return 0;
  squares /= square(total);
  return square(moved / total) + squares * c->exp_variance + square(unit) * keys * (squares + 1);
}

/* Fills in row `query` of o, and of what else is wanted. */
static void attend(const head *c, int64_t query, attn_nn_field *o, attn_nn_field *unused) {
  const attn_nn_attention *a = c->a;
  const attn_problem *p = &a->problem;
  const int64_t at = query * o->width + c->at.h * p->dim_v, row = query * p->heads_q + c->at.h;
  for (int64_t j = 0; j < p->seq_k; j++) c->p[j] = 0;
  const attn_oracle_row facts =
      attn_oracle_f64_row(p, &c->args, c->at, &(attn_oracle_output){o->value + at, unused->value, unused->error, c->p});
  for (int64_t j = 0; j < p->seq_k; j++)
    if (c->p[j] > 0) c->variance[j] = score_variance(c, j) + added_variance(c, facts.abs_sum);
  for (int64_t d = 0; d < p->dim_v; d++) o->error[at + d] = output_error(c, d, o->value[at + d]);
  const double total = total_variance(c);
  if (a->lse) a->lse->value[row] = facts.lse;
  if (a->lse && facts.allowed) a->lse->error[row] = sqrt(total + 2 * square(unit * (1 + fabs(facts.lse))));
  for (int64_t j = 0; a->p && j < p->seq_k; j++) {
    a->p->value[row * p->seq_k + j] = c->p[j];
    a->p->error[row * p->seq_k + j] = c->p[j] * sqrt(c->variance[j] + c->exp_variance + total);
  }
}

/* All heads of the queries of sequence b. */
static void attend_sequence(head *c, int64_t b, attn_nn_field *o, attn_nn_field *unused) {
  const attn_nn_attention *a = c->a;
  const attn_problem *p = &a->problem;
  const bool packed = p->uses & ATTN_USE_VARLEN;
  const int64_t rows = a->row ? a->rows : attn_oracle_f64_rows(p, &c->args, b);
  const int64_t first = packed ? c->args.cu_seqlens_q[b] : b * p->seq_q;
  c->first_key = packed ? c->args.cu_seqlens_k[b] : b * p->seq_k;
  for (int64_t n = 0; n < rows; n++)
    for (int64_t h = 0; h < p->heads_q; h++) {
      c->at = (attn_oracle_index){b, h, a->row ? a->row[n] : n};
      c->kv_head = h / (p->heads_q / p->heads_kv);
      if (a->scores) {
        c->q_at = ((b * p->heads_q + h) * rows + n) * a->scores->width;
        c->args.scores = (const float *)(const void *)(a->scores->value + c->q_at);
      } else {
        c->q_at = (first + n) * c->q->width + h * p->dim_qk;
        c->args.q = c->q->value + c->q_at;
      }
      attend(c, first + n, o, unused);
    }
}

attn_nn_field attn_nn_oracle_attention(const attn_nn_attention *attention, const attn_nn_field *q, const attn_nn_field *k,
                                       const attn_nn_field *v) {
  attn_nn_attention a = *attention;
  attn_problem *p = &a.problem;
  const double weight_unit = fmin(type_unit(p->dtype_kv), (double)a.numerics.p_rounding);
  const int64_t queries = a.scores ? a.scores->rows / p->heads_q : q->rows, width = k ? k->width : 0;
  p->dtype_q = p->dtype_kv = ATTN_ORACLE_F64;
  p->q_stride = (attn_strides){.d = 1}; /* args.q is one head of one query */
  p->scores_stride = (attn_score_strides){.k = 1};
  p->k_stride = (attn_strides){.b = p->seq_k * width, .h = p->dim_qk, .s = width, .d = 1};
  p->v_stride = (attn_strides){.b = p->seq_k * v->width, .h = p->dim_v, .s = v->width, .d = 1};
  attn_nn_field o = attn_nn_field_create(queries, p->heads_q * p->dim_v), unused = attn_nn_field_create(1, p->dim_v);
  attn_nn_field keys = attn_nn_field_create(1, p->seq_k);
  if (a.p) *a.p = attn_nn_field_create(queries * p->heads_q, p->seq_k);
  if (a.lse) *a.lse = attn_nn_field_create(queries, p->heads_q);
  head c = {.a = &a, .q = q, .k = k, .v = v, .p = keys.value, .variance = keys.error, .weight_unit = weight_unit};
  if (a.args) c.args = *a.args;
  c.args.k = k ? k->value : NULL;
  c.args.v = v->value;
  c.exp_variance = square(fmax(4 * unit, a.numerics.exp_error));
  for (int64_t b = 0; b < p->batch; b++) attend_sequence(&c, b, &o, &unused);
  attn_nn_field_destroy(&unused);
  attn_nn_field_destroy(&keys);
  return o;
}

/* ---- Multi-head attention ---- */

typedef enum part { Q, K, V, O } part;

/* Heads are looked up one by one, in any layout. */
static attn_nn_field project(const attn_nn_mha *m, part which, const attn_nn_field *x) {
  const attn_mha_weights *w = m->weights;
  const attn_problem *a = &m->problem->attention;
  const int64_t heads[] = {a->heads_q, a->heads_kv, a->heads_kv, 1};
  const int64_t dims[] = {a->dim_qk, a->dim_qk, a->dim_v, m->problem->width_out};
  const void *const weights[] = {w->w_q, w->w_k, w->w_v, w->w_o};
  const float *const biases[] = {w->b_q, w->b_k, w->b_v, w->b_o};
  const bool fused = w->w_qkv && which != O;
  const float *bias = fused ? w->b_qkv : biases[which];
  const int64_t count = heads[which], dim = dims[which];
  int64_t all = count * dim, before = 0, column = 0; /* heads and columns of the parts before this one */
  if (fused) all = a->heads_q * a->dim_qk + a->heads_kv * (a->dim_qk + a->dim_v);
  for (int i = Q; fused && i < (int)which; i++) before += heads[i], column += heads[i] * dims[i];
  int64_t *starts = zeros(count, sizeof *starts);
  float *moved = zeros(count * dim, sizeof *moved); /* the bias */
  const int64_t of_column = w->layout == ATTN_IN_OUT ? 1 : x->width;
  for (int64_t h = 0; h < count; h++) {
    const int64_t begin = fused && w->head_columns ? w->head_columns[before + h] : column + h * dim;
    starts[h] = begin * of_column;
    for (int64_t d = 0; bias && d < dim; d++) moved[h * dim + d] = bias[begin + d];
  }
  const matrix in_array = {.weight = fused ? w->w_qkv : weights[which],
                           .dtype = w->dtype,
                           .in_stride = w->layout == ATTN_IN_OUT         ? all
                                        : w->layout == ATTN_HEADS_IN_OUT ? dim
                                                                         : 1,
                           .out_stride = w->layout == ATTN_OUT_IN ? x->width : 1,
                           .bias = bias ? moved : NULL,
                           .head_starts = starts,
                           .dim = dim};
  const attn_nn_field y = multiply(x, in_array, count * dim);
  free(starts);
  free(moved);
  return y;
}

/* The heads that a projection gives, as they are kept; Q and K by their root mean squares, if the layer norms them. */
static attn_nn_field make_heads(const attn_nn_mha *m, part which, const attn_nn_field *x) {
  const attn_mha_weights *w = m->weights;
  const attn_problem *a = &m->problem->attention;
  const attn_dtype dtype = which == Q ? a->dtype_q : a->dtype_kv;
  attn_nn_field given = project(m, which, x);
  attn_nn_oracle_round(&given, dtype);
  if (!w->qk_norm || which == V) return given;
  const attn_norm norm = {.gain = which == Q ? w->q_norm_gain : w->k_norm_gain, .epsilon = w->qk_norm_epsilon};
  const attn_nn_field heads = {given.rows * (given.width / a->dim_qk), a->dim_qk, given.value, given.error};
  attn_nn_field y = attn_nn_oracle_rms_norm(&heads, &norm);
  y.rows = given.rows, y.width = given.width;
  attn_nn_oracle_round(&y, dtype);
  attn_nn_field_destroy(&given);
  return y;
}

attn_nn_field attn_nn_oracle_mha(const attn_nn_mha *m, const attn_nn_field *x, const attn_nn_field *memory) {
  attn_nn_field own[2] = {{0}}, *kv = m->kept ? m->kept : own, q = make_heads(m, Q, x);
  if (!kv[0].value) kv[0] = make_heads(m, K, memory ? memory : x);
  if (!kv[1].value) kv[1] = make_heads(m, V, memory ? memory : x);
  attn_nn_attention attention = m->attention;
  attention.problem = m->problem->attention;
  attn_nn_field o = attn_nn_oracle_attention(&attention, &q, &kv[0], &kv[1]);
  attn_nn_oracle_round(&o, m->problem->attention.dtype_o);
  attn_nn_field y = project(m, O, &o);
  attn_nn_oracle_round(&y, m->problem->dtype_y);
  attn_nn_field *const used[] = {&q, &o, &own[0], &own[1]};
  for (int i = 0; i < 4; i++) attn_nn_field_destroy(used[i]);
  return y;
}
