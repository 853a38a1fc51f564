/* SPDX-License-Identifier: MIT */
/* Attention with scores other than dot products as cases: additive attention and kernel regression. */
#include <math.h>
#include <stdlib.h>

#include "attn/extend.h"
#include "layers/layer_functions.h"

/* One head in float64, for the chosen queries. */
static attn_nn_attention one_head(const bench_chosen *c, const float *weight) {
  return (attn_nn_attention){.batch = 1,
                             .heads_q = 1,
                             .heads_kv = 1,
                             .seq_q = c->count,
                             .seq_k = c->data->bench->problem.seq_k,
                             .score = c->data->bench->problem.score,
                             .weight = weight,
                             .numerics = *c->numerics};
}

/* ---- Additive attention: x is queries, keys and values; hidden is dim_qk ---- */

static int64_t keys_at(const bench_case *bench) { return bench_layer_case_rows(bench) * bench->width; }
static int64_t additive_values_at(const bench_case *bench) {
  return keys_at(bench) + bench->problem.batch * bench->problem.seq_k * bench->width;
}

/* Both projections, then the weights of the score. */
static bench_layer_shape additive_shape(const bench_case *bench) {
  const attn_problem *p = &bench->problem;
  return (bench_layer_shape){.inputs = additive_values_at(bench) + p->batch * p->seq_k * p->dim_v,
                             .rows = p->seq_q,
                             .columns = p->dim_v,
                             .weights = (2 * bench->width + 1) * p->dim_qk,
                             .biases = 2 * p->dim_qk};
}

static double additive_flops(const bench_case *bench) {
  const attn_problem *p = &bench->problem;
  return 2.0 * (double)(p->batch * (p->seq_q + p->seq_k)) * (double)bench->width * (double)p->dim_qk;
}

static attn_additive_config additive_config(const bench_layer_data *data) {
  const attn_problem *p = &data->bench->problem;
  const int64_t width = data->bench->width, hidden = p->dim_qk;
  return (attn_additive_config){.batch = p->batch,
                                .seq_q = p->seq_q,
                                .seq_k = p->seq_k,
                                .width_q = width,
                                .width_k = width,
                                .hidden = hidden,
                                .dim_v = p->dim_v,
                                .query = bench_linear_at(data, 0, 0),
                                .key = bench_linear_at(data, width * hidden, hidden),
                                .score_weight = data->weights + 2 * width * hidden};
}

static attn_status additive_create(bench_layer_trial *trial) {
  attn_additive_config config = additive_config(trial->data);
  float *zeros = trial->wrong ? calloc((size_t)config.hidden, sizeof *zeros) : NULL;
  if (trial->wrong && !zeros) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory for %lld zeros", (long long)config.hidden);
  if (trial->wrong) config.score_weight = zeros;
  attn_additive *layer = NULL;
  const attn_status status = attn_additive_create(&config, &trial->options, &layer);
  free(zeros);
  trial->layer = layer;
  bench_layer_name_kernel(trial, attn_additive_kernel(layer));
  return status;
}

static void additive_destroy(void *layer) { attn_additive_destroy(layer); }
static size_t additive_workspace(const bench_layer_trial *trial) { return attn_additive_workspace(trial->layer); }

static attn_status additive_run(bench_layer_trial *trial, void *workspace, size_t bytes) {
  const bench_layer_data *data = trial->data;
  attn_mha_profile profile = {0};
  const attn_additive_args args = {.q = data->x,
                                   .k = data->x + keys_at(data->bench),
                                   .v = data->x + additive_values_at(data->bench),
                                   .o = data->y,
                                   .profile = &profile};
  const attn_status status = attn_additive_run(trial->layer, &args, workspace, bytes);
  bench_add_times(&trial->time, &profile);
  return status;
}

static attn_nn_field additive_expect(const bench_chosen *c) {
  const bench_layer_data *data = c->data;
  const attn_problem *p = &data->bench->problem;
  const attn_additive_config config = additive_config(data);
  const bench_sequence keys = {data->x + keys_at(data->bench), p->seq_k, data->bench->width, c->batch};
  const bench_sequence values = {data->x + additive_values_at(data->bench), p->seq_k, p->dim_v, c->batch};
  attn_nn_field q = bench_chosen_x(c), k = bench_take(keys, NULL, p->seq_k), v = bench_take(values, NULL, p->seq_k);
  q = bench_then(bench_apply(&q, config.query, p->dim_qk), &q);
  k = bench_then(bench_apply(&k, config.key, p->dim_qk), &k);
  const attn_nn_attention attention = one_head(c, config.score_weight);
  return bench_attend(&attention, &q, &k, &v);
}

const bench_layer_functions bench_layer_additive = {.shape = additive_shape,
                                                    .flops = additive_flops,
                                                    .create = additive_create,
                                                    .destroy = additive_destroy,
                                                    .workspace = additive_workspace,
                                                    .run = additive_run,
                                                    .expect = additive_expect};

/* ---- Kernel regression: x is the queries, the known points and their values; the weights are 1 / bandwidth ---- */

static int64_t points_at(const bench_case *bench) { return bench->problem.seq_q * bench->problem.dim_qk; }
static int64_t regression_values_at(const bench_case *bench) {
  return points_at(bench) + bench->problem.seq_k * bench->problem.dim_qk;
}

static bench_layer_shape regression_shape(const bench_case *bench) {
  const attn_problem *p = &bench->problem;
  return (bench_layer_shape){.inputs = regression_values_at(bench) + p->seq_k * p->dim_v,
                             .rows = p->seq_q,
                             .columns = p->dim_v,
                             .weights = p->dim_qk};
}

/* Two points lie sqrt(2 dim_x) apart on average. Bandwidths around sqrt(dim_x) give near points more weight than far
 * ones. */
static void prepare_regression(bench_layer_data *data) {
  const int64_t dim = data->bench->problem.dim_qk;
  for (int64_t i = 0; i < dim; i++) data->weights[i] = (0.5f + fabsf(data->weights[i])) / sqrtf((float)dim);
}

static attn_status regression_run(bench_layer_trial *trial, void *workspace, size_t bytes) {
  (void)workspace, (void)bytes;
  const bench_layer_data *data = trial->data;
  const attn_problem *p = &data->bench->problem;
  const attn_regression regression = {.points = p->seq_k,
                                      .queries = p->seq_q,
                                      .dim_x = p->dim_qk,
                                      .dim_y = p->dim_v,
                                      .query = data->x,
                                      .x = data->x + points_at(data->bench),
                                      .y = data->x + regression_values_at(data->bench),
                                      .inverse_width = trial->wrong ? trial->layer : data->weights,
                                      .prediction = data->y};
  return attn_kernel_regression(&regression, &trial->options);
}

/* The wrong answer has infinite bandwidths: all points get the same weight. */
static attn_status regression_create(bench_layer_trial *trial) {
  trial->layer = calloc((size_t)trial->data->shape.weights, sizeof(float));
  return trial->layer ? ATTN_OK : attn_fail(ATTN_OUT_OF_MEMORY, "out of memory for bandwidths");
}

static attn_nn_field regression_expect(const bench_chosen *c) {
  const bench_layer_data *data = c->data;
  const attn_problem *p = &data->bench->problem;
  const bench_sequence queries = {data->x, p->seq_q, p->dim_qk, 0};
  const bench_sequence points = {data->x + points_at(data->bench), p->seq_k, p->dim_qk, 0};
  const bench_sequence values = {data->x + regression_values_at(data->bench), p->seq_k, p->dim_v, 0};
  attn_nn_field q = bench_take(queries, c->row, c->count), k = bench_take(points, NULL, p->seq_k),
                v = bench_take(values, NULL, p->seq_k);
  const attn_nn_attention attention = one_head(c, data->weights);
  return bench_attend(&attention, &q, &k, &v);
}

const bench_layer_functions bench_layer_regression = {.shape = regression_shape,
                                                      .prepare = prepare_regression,
                                                      .create = regression_create,
                                                      .destroy = free,
                                                      .run = regression_run,
                                                      .expect = regression_expect};
