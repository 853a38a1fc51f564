/* SPDX-License-Identifier: MIT */
/* The oracles of libattn_nn: every value in double, with the error that float32 is expected to make. */
#include "src/nn/ref/nn_oracle_f64.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const double unit = 0x1p-24; /* of float32 rounding */

static double square(double x) { return x * x; }

/* ---- Fields ---- */

void attn_nn_oracle_out_of_memory(void) {
  fputs("out of memory for the float64 answer of a layer\n", stderr);
  exit(5);
}

attn_nn_field attn_nn_field_create(int64_t rows, int64_t width) {
  const size_t count = (size_t)(rows * width) + 1;
  attn_nn_field field = {rows, width, calloc(count, sizeof(double)), calloc(count, sizeof(double))};
  if (field.value && field.error) return field;
  attn_nn_field_destroy(&field);
  attn_nn_oracle_out_of_memory();
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
    const double off = fabs((double)got[i] - field->value[i]) / ((double)ATTN_NN_SIGMAS * field->error[i] + 0x1p-126);
    if (!(off <= worst)) worst = isnan(off) ? INFINITY : off;
  }
  return worst;
}

/* ---- Sums ---- */

/* A sum of products as float32 computes it: n rounded partial sums in any order. A partial sum is as large as a random
 * walk, or as a steady climb to the result, would make it. */
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

static double variance_of(const sum *s) {
  return s->carried + unit * unit * (double)s->terms * (s->squares + square(s->value));
}

/* ---- Row-wise steps ---- */

attn_nn_field attn_nn_oracle_linear(const attn_nn_field *x, const attn_nn_matrix *m, int64_t out) {
  attn_nn_field y = attn_nn_field_create(x->rows, out);
  for (int64_t row = 0; row < x->rows; row++)
    for (int64_t column = 0; column < out; column++) {
      sum s = {0};
      for (int64_t i = 0; i < x->width; i++) {
        const int64_t at = row * x->width + i;
        add_product(&s, x->value[at], x->error[at], (double)m->w[i * m->in_stride + column * m->out_stride], 0);
      }
      if (m->b) add_product(&s, 1, 0, (double)m->b[column], 0);
      y.value[row * out + column] = s.value;
      y.error[row * out + column] = sqrt(variance_of(&s));
    }
  return y;
}

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

attn_nn_field attn_nn_oracle_gelu(const attn_nn_field *x) {
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

attn_nn_field attn_nn_oracle_layer_norm(const attn_nn_field *x, const attn_norm *norm) {
  attn_nn_field y = attn_nn_field_create(x->rows, x->width);
  for (int64_t row = 0; row < x->rows; row++) {
    const int64_t at = row * x->width;
    norm_row(x->value + at, x->error + at, x->width, norm, y.value + at, y.error + at);
  }
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
        y.error[p * width + c] = unit / 4 * fabs(y.value[p * width + c]) + angle_error;
    }
  return y;
}

/* ---- Attention ---- */

typedef struct head {
  const attn_nn_attention *a;
  const attn_nn_field *q, *k, *v;
  int64_t b, h, dim, dim_v;
} head;

static int64_t key_row(const head *c, int64_t j) { return c->b * c->a->seq_k + j; }
static int64_t kv_head(const head *c) { return c->h / (c->a->heads_q / c->a->heads_kv); }

static bool allowed(const head *c, int64_t i, int64_t j) {
  const int64_t length = c->a->kv_len ? c->a->kv_len[c->b] : c->a->seq_k;
  const int64_t offset = c->a->bottom_right ? length - c->a->seq_q : 0;
  return j < length && (!c->a->causal || j <= i + offset);
}

static double score_of(const head *c, int64_t i, int64_t j, double *variance) {
  const attn_nn_attention *a = c->a;
  if (a->score == ATTN_SCORE_PRECOMPUTED) {
    const int64_t at = ((c->b * a->heads_q + c->h) * a->seq_q + i) * a->scores->width + j;
    *variance = square(a->scores->error[at]);
    return a->scores->value[at];
  }
  const int64_t q_at = (c->b * a->seq_q + i) * c->q->width + c->h * c->dim;
  const int64_t k_at = key_row(c, j) * c->k->width + kv_head(c) * c->dim;
  sum s = {0};
  for (int64_t d = 0; d < c->dim; d++) {
    const double q = c->q->value[q_at + d], q_error = c->q->error[q_at + d];
    const double k = c->k->value[k_at + d], k_error = c->k->error[k_at + d];
    const double w = a->weight ? (double)a->weight[d] : 1, together = sqrt(square(q_error) + square(k_error));
    const double difference = w * (q - k), t = tanh(q + k);
    if (a->score == ATTN_SCORE_DOT)
      add_product(&s, q, q_error, k, k_error);
    else if (a->score == ATTN_SCORE_ADDITIVE) /* tanh errs by a few u of 1 */
      add_product(&s, w, 0, t, sqrt(square((1 - t * t) * (together + unit * fabs(q + k))) + square(4 * unit)));
    else /* a square, whose two factors err alike */
      add_product(&s, -0.5 * difference, 0, difference, 2 * (w * together + unit * fabs(difference)));
  }
  const double scale = a->score == ATTN_SCORE_DOT ? (double)a->scale : 1;
  *variance = square(scale) * variance_of(&s);
  return scale * s.value;
}

/* Relative error of one weight: that of exp, about 4 u in float32 or as the kernel declares. With float32 values P is not
 * rounded. */
static double own_variance(const attn_numerics *n) { return square(4 * unit) + square(n->exp_error); }

static void attend_row(const head *c, int64_t i, double *p, double *p_variance, attn_nn_field *o) {
  const int64_t keys = c->a->seq_k;
  double largest = -INFINITY, total = 0;
  for (int64_t j = 0; j < keys; j++) {
    p[j] = allowed(c, i, j) ? score_of(c, i, j, &p_variance[j]) : -INFINITY;
    if (p[j] > largest) largest = p[j];
  }
  if (largest == -INFINITY) return; /* no key: o stays 0 */
  for (int64_t j = 0; j < keys; j++) total += p[j] = exp(p[j] - largest);
  for (int64_t d = 0; d < c->dim_v; d++) {
    sum s = {0};
    double from_scores = 0;
    for (int64_t j = 0; j < keys; j++)
      if (p[j] > 0) {
        const int64_t at = key_row(c, j) * c->v->width + kv_head(c) * c->dim_v + d;
        add_product(&s, p[j] / total, 0, c->v->value[at], c->v->error[at]);
      }
    for (int64_t j = 0; j < keys; j++)
      if (p[j] > 0) { /* do = sum of p (v - o) ds */
        const int64_t at = key_row(c, j) * c->v->width + kv_head(c) * c->dim_v + d;
        from_scores += square(p[j] / total * (c->v->value[at] - s.value)) * (p_variance[j] + own_variance(&c->a->numerics));
      }
    const int64_t at = (c->b * c->a->seq_q + i) * o->width + c->h * c->dim_v + d;
    o->value[at] = s.value;
    o->error[at] = sqrt(variance_of(&s) + from_scores);
  }
}

attn_nn_field attn_nn_oracle_attention(const attn_nn_attention *a, const attn_nn_field *q, const attn_nn_field *k,
                                       const attn_nn_field *v) {
  const int64_t dim_v = v->width / a->heads_kv, dim = q ? q->width / a->heads_q : 0;
  attn_nn_field o = attn_nn_field_create(a->batch * a->seq_q, a->heads_q * dim_v);
  attn_nn_field p = attn_nn_field_create(1, a->seq_k);
  for (int64_t b = 0; b < a->batch; b++)
    for (int64_t h = 0; h < a->heads_q; h++) {
      const head c = {a, q, k, v, b, h, dim, dim_v};
      for (int64_t i = 0; i < a->seq_q; i++) attend_row(&c, i, p.value, p.error, &o);
    }
  attn_nn_field_destroy(&p);
  return o;
}
