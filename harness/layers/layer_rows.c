/* SPDX-License-Identifier: MIT */
/* Pieces at the ends of models, and what all dense layers are made of: one map with its bias, embeddings, pooling, and the
 * probabilities that a token is drawn by. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn/extend.h"
#include "attn/nn.h"
#include "base/clock.h"
#include "data/generate.h"
#include "kernels/common/problem/dtypes.h"
#include "layers/layer.h"

/* x, or for the wrong answer what begins a number later. */
static const void *x_of(const bench_layer_trial *trial) {
  return attn_element_at(trial->data->x, trial->data->shape.type_x, trial->wrong);
}

/* ---- A dense map of width x width, [out][in] as PyTorch keeps it: dtype=ROWS+WEIGHTS ---- */

static bool is_int8(const bench_case *bench) { return bench->problem.dtype_kv == ATTN_I8; }

/* Scales of int8 weights stand behind the bias. */
static bench_layer_shape linear_shape(const bench_case *bench) {
  const int64_t width = bench->width;
  bench_layer_shape shape = bench_layer_rows_to_rows(bench, width * width, is_int8(bench) ? 2 * width : width);
  shape.type_weights = bench->problem.dtype_kv;
  return shape;
}

/* Integers in the place of int8 weights: normal ones below 6 standard deviations are below 127. */
static void linear_prepare(bench_layer_data *data) {
  const int64_t width = data->bench->width;
  if (!is_int8(data->bench)) return;
  for (int64_t i = 0; i < data->shape.weights; i++)
    bench_store(data->weights, ATTN_I8, i,
                127.0 / 6 * bench_value_normal(data->bench->seed, BENCH_STREAM_LAYER, ((uint64_t)1 << 40) + (uint64_t)i));
  for (int64_t i = 0; i < width; i++)
    data->biases[width + i] = (float)(6.0 / 127 / sqrt((double)width) * (1 + (double)(i % 7) / 8));
}

static attn_product_weights linear_of(const bench_layer_data *data) {
  const int64_t width = data->bench->width;
  return ATTN_STRUCT(attn_product_weights, .depth = width, .columns = width, .weight = data->weights, .stride_depth = 1,
                     .stride_column = width, .bias = data->biases, .dtype = data->shape.type_weights,
                     .scale = is_int8(data->bench) ? data->biases + width : NULL, .dtype_x = data->shape.type_x,
                     .dtype_y = data->shape.type_y);
}

static attn_status linear_create(bench_layer_trial *trial) {
  const attn_product_weights weights = linear_of(trial->data);
  attn_options options = trial->options;
  attn_product *product = NULL;
  options.kernel = bench_product_to_name(trial);
  const attn_status status = attn_product_create(&weights, &options, &product);
  return bench_layer_made(trial, status, product, trial->kernel);
}

static void linear_destroy(void *layer) { attn_product_destroy(layer); }
static size_t linear_workspace(const bench_layer_trial *trial) {
  return attn_product_workspace(trial->layer, bench_layer_case_rows(trial->data->bench));
}

static attn_status linear_run(bench_layer_trial *trial, void *workspace, size_t bytes) {
  const int64_t width = trial->data->bench->width;
  const attn_strides stride = {.s = width, .d = 1};
  const attn_product_args args =
      ATTN_STRUCT(attn_product_args, .batch = 1, .rows = bench_layer_case_rows(trial->data->bench), .x = x_of(trial),
                  .x_stride = stride, .y = trial->data->y, .y_stride = stride);
  const double begin = bench_now_ns();
  return bench_dense_ran(trial, attn_product_run(trial->layer, &args, workspace, bytes), begin);
}

static attn_nn_field linear_expect(const bench_chosen *c) {
  const attn_product_weights weights = linear_of(c->data);
  attn_nn_field x = bench_chosen_x(c), y = bench_then(attn_nn_oracle_product(&x, &weights), &x);
  attn_nn_oracle_round(&y, c->data->shape.type_y);
  return y;
}

const bench_layer_functions bench_layer_linear = {.shape = linear_shape,
                                                  .prepare = linear_prepare,
                                                  .names_product = true,
                                                  .wrong = "rows that begin a number later",
                                                  .create = linear_create,
                                                  .destroy = linear_destroy,
                                                  .workspace = linear_workspace,
                                                  .run = linear_run,
                                                  .expect = linear_expect};

/* ---- Embeddings: x is the table, as many rows as tokens, which take them in another order ---- */

static const float FACTOR = 1.7f;

static bench_layer_shape embed_shape(const bench_case *bench) { return bench_layer_rows_to_rows(bench, 0, 0); }

static double each_number(const bench_case *bench) { return (double)(bench_layer_case_rows(bench) * bench->width); }

/* A stride that shares no factor with most numbers of rows. */
static int64_t token_at(const bench_case *bench, int64_t i) { return (i * 7919 + 3) % bench_layer_case_rows(bench); }

static attn_status embed_create(bench_layer_trial *trial) {
  const bench_case *bench = trial->data->bench;
  int32_t *tokens = malloc((size_t)bench_layer_case_rows(bench) * sizeof *tokens);
  for (int64_t i = 0; tokens && i < bench_layer_case_rows(bench); i++) tokens[i] = (int32_t)token_at(bench, i);
  return bench_layer_made(trial, tokens ? ATTN_OK : attn_fail(ATTN_OUT_OF_MEMORY, "out of memory for tokens"), tokens, "");
}

static attn_status embed_run(bench_layer_trial *trial, void *workspace, size_t bytes) {
  (void)workspace, (void)bytes;
  const bench_layer_data *data = trial->data;
  const int64_t rows = bench_layer_case_rows(data->bench);
  const attn_embedding embedding =
      ATTN_STRUCT(attn_embedding, .vocabulary = rows, .width = data->bench->width, .table = x_of(trial),
                  .dtype = data->shape.type_x, .factor = FACTOR, .dtype_rows = data->shape.type_y);
  return attn_embed(&embedding, rows, trial->layer, data->y);
}

static attn_nn_field embed_expect(const bench_chosen *c) {
  const bench_case *bench = c->data->bench;
  const bench_sequence table = {c->data->x, c->data->shape.type_x, 0, bench->width, 0};
  attn_nn_field y = attn_nn_field_create(c->count, bench->width);
  for (int64_t r = 0; r < c->count; r++) {
    const int64_t token = token_at(bench, c->batch * bench->problem.seq_q + c->row[r]);
    attn_nn_field one = bench_take(table, &token, 1);
    for (int64_t i = 0; i < bench->width; i++) {
      y.value[r * bench->width + i] = (double)FACTOR * one.value[i];
      y.error[r * bench->width + i] = 0x1p-24 * fabs((double)FACTOR * one.value[i]);
    }
    attn_nn_field_destroy(&one);
  }
  attn_nn_oracle_round(&y, c->data->shape.type_y);
  return y;
}

const bench_layer_functions bench_layer_embed = {.shape = embed_shape,
                                                 .flops = each_number,
                                                 .wrong = "rows that begin a number later",
                                                 .create = embed_create,
                                                 .destroy = free,
                                                 .run = embed_run,
                                                 .expect = embed_expect};

/* ---- Pooling: the mean of each sequence, scaled to length 1 ---- */

static bench_layer_shape pool_shape(const bench_case *bench) {
  bench_layer_shape shape = bench_layer_rows_to_rows(bench, 0, 0);
  shape.rows = 1;
  shape.type_y = ATTN_F32;
  return shape;
}

static attn_status pool_run(bench_layer_trial *trial, void *workspace, size_t bytes) {
  (void)workspace, (void)bytes;
  const bench_layer_data *data = trial->data;
  const attn_problem *p = &data->bench->problem;
  return attn_pool_rows(&ATTN_STRUCT(attn_pooling, .kind = ATTN_POOL_MEAN, .unit = !trial->wrong, .batch = p->batch,
                                     .seq = p->seq_q, .width = data->bench->width, .x = data->x, .y = data->y,
                                     .dtype = data->shape.type_x));
}

/* Sums are float64: each number is rounded once. */
static attn_nn_field pool_expect(const bench_chosen *c) {
  const int64_t width = c->data->bench->width;
  attn_nn_field x = bench_all_x(c), y = attn_nn_field_create(1, width);
  double squares = 0;
  for (int64_t i = 0; i < x.rows * width; i++) y.value[i % width] += x.value[i];
  for (int64_t i = 0; i < width; i++) squares += y.value[i] * y.value[i];
  for (int64_t i = 0; i < width; i++) {
    y.value[i] /= sqrt(squares);
    y.error[i] = 0x1p-24 * fabs(y.value[i]);
  }
  return bench_then(y, &x);
}

const bench_layer_functions bench_layer_pool = {
    .shape = pool_shape, .flops = each_number, .wrong = "means of another length", .run = pool_run, .expect = pool_expect};

/* ---- Sampling: each row is logits of as many tokens as it has numbers; y: their probabilities ---- */

enum { TOP_K = 40 };
static const float TEMPERATURE = 0.8f;

static attn_status sample_run(bench_layer_trial *trial, void *workspace, size_t bytes) {
  (void)workspace, (void)bytes;
  const bench_layer_data *data = trial->data;
  const int64_t vocabulary = data->bench->width, rows = bench_layer_case_rows(data->bench);
  const attn_sampling sampling = ATTN_STRUCT(attn_sampling, .temperature = trial->wrong ? 1 : TEMPERATURE, .top_k = TOP_K);
  attn_status status = ATTN_OK;
  uint64_t state = data->bench->seed;
  int32_t token;
  for (int64_t at = 0; at < rows * vocabulary && status == ATTN_OK; at += vocabulary)
    status = attn_sample_token(&sampling, vocabulary, data->x + at, &state, data->y + at, &token);
  return status;
}

static int descending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x < y) - (x > y);
}

/* The library computes in float64: each number is rounded once. */
static void probabilities_of(double *x, int64_t count, double *sorted, double *error) {
  memcpy(sorted, x, (size_t)count * sizeof *sorted);
  qsort(sorted, (size_t)count, sizeof *sorted, descending);
  const double least = sorted[count < TOP_K ? count - 1 : TOP_K - 1], most = sorted[0];
  double sum = 0;
  for (int64_t i = 0; i < count; i++) sum += x[i] < least ? 0 : exp((x[i] - most) / (double)TEMPERATURE);
  for (int64_t i = 0; i < count; i++) {
    x[i] = x[i] < least ? 0 : exp((x[i] - most) / (double)TEMPERATURE) / sum;
    error[i] = 0x1p-24 * x[i];
  }
}

static attn_nn_field sample_expect(const bench_chosen *c) {
  attn_nn_field y = bench_chosen_x(c), sorted = attn_nn_field_create(1, y.width);
  for (int64_t at = 0; at < y.rows * y.width; at += y.width)
    probabilities_of(y.value + at, y.width, sorted.value, y.error + at);
  return bench_then(y, &sorted);
}

const bench_layer_functions bench_layer_sample = {.shape = embed_shape,
                                                  .flops = each_number,
                                                  .wrong = "probabilities of another temperature",
                                                  .run = sample_run,
                                                  .expect = sample_expect};
