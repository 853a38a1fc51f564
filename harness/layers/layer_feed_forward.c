/* SPDX-License-Identifier: MIT */
/* The row-wise layers of a transformer: feed-forward, and add & norm. */
#include "base/clock.h"
#include "layers/layer_functions.h"

static const float EPSILON = 1e-5f;

/* ---- Feed-forward, four times as wide inside ---- */

int64_t bench_feed_forward_weights(const bench_case *bench) { return 8 * bench->width * bench->width; }
int64_t bench_feed_forward_biases(const bench_case *bench) { return 5 * bench->width; }

attn_feed_forward_config bench_feed_forward_at(const bench_layer_data *data, int64_t at, int64_t bias_at) {
  const int64_t width = data->bench->width, hidden = 4 * width;
  return (attn_feed_forward_config){.width = width,
                                    .hidden = hidden,
                                    .first = bench_linear_at(data, at, bias_at),
                                    .second = bench_linear_at(data, at + width * hidden, bias_at + hidden)};
}

/* The wrong answer has the other activation. */
static attn_status feed_forward_create(bench_layer_trial *trial) {
  attn_feed_forward_config config = bench_feed_forward_at(trial->data, 0, 0);
  if (trial->wrong) config.activation = ATTN_GELU;
  attn_feed_forward *layer = NULL;
  const attn_status status = attn_feed_forward_create(&config, &trial->options, &layer);
  trial->layer = layer;
  return status;
}

static void feed_forward_destroy(void *layer) { attn_feed_forward_destroy(layer); }
static size_t feed_forward_workspace(const bench_layer_trial *trial) {
  return attn_feed_forward_workspace(trial->layer, bench_layer_case_rows(trial->data->bench));
}

static attn_status feed_forward_run(bench_layer_trial *trial, void *workspace, size_t bytes) {
  const double begin = bench_now_ns();
  const attn_status status = attn_feed_forward_run(trial->layer, bench_layer_case_rows(trial->data->bench), trial->data->x,
                                                   trial->data->y, workspace, bytes);
  const double spent = bench_now_ns() - begin;
  trial->time.projections_ns += spent;
  trial->time.total_ns += spent;
  return status;
}

attn_nn_field bench_feed_forward_expect(const attn_feed_forward_config *config, const attn_nn_field *x) {
  attn_nn_field inner = bench_apply(x, config->first, config->hidden);
  inner = bench_then(attn_nn_oracle_relu(&inner), &inner);
  return bench_then(bench_apply(&inner, config->second, config->width), &inner);
}

static attn_nn_field feed_forward_expect(const bench_chosen *c) {
  const attn_feed_forward_config config = bench_feed_forward_at(c->data, 0, 0);
  attn_nn_field x = bench_chosen_x(c);
  return bench_then(bench_feed_forward_expect(&config, &x), &x);
}

static bench_layer_shape feed_forward_shape(const bench_case *bench) {
  return bench_layer_rows_to_rows(bench, bench_feed_forward_weights(bench), bench_feed_forward_biases(bench));
}

const bench_layer_functions bench_layer_feed_forward = {.shape = feed_forward_shape,
                                                        .wrong = "the other activation",
                                                        .create = feed_forward_create,
                                                        .destroy = feed_forward_destroy,
                                                        .workspace = feed_forward_workspace,
                                                        .run = feed_forward_run,
                                                        .expect = feed_forward_expect};

/* ---- Add & norm: x, then the residual; gain and bias stand among the biases ---- */

attn_norm bench_norm_at(const bench_layer_data *data, int64_t bias_at) {
  return (attn_norm){data->biases + bias_at, data->biases + bias_at + data->bench->width, EPSILON};
}

static bench_layer_shape add_norm_shape(const bench_case *bench) {
  bench_layer_shape shape = bench_layer_rows_to_rows(bench, 0, 2 * bench->width);
  shape.inputs *= 2;
  return shape;
}

/* Per number: the sum, the mean, deviation, square and its mean, normalising, gain and bias. */
static double add_norm_flops(const bench_case *bench) {
  return 10.0 * (double)(bench_layer_case_rows(bench) * bench->width);
}

static const float *residual_of(const bench_layer_data *data) {
  return data->x + bench_layer_case_rows(data->bench) * data->bench->width;
}

static attn_status add_norm_run(bench_layer_trial *trial, void *workspace, size_t bytes) {
  (void)workspace, (void)bytes;
  const bench_layer_data *data = trial->data;
  attn_norm norm = bench_norm_at(data, 0);
  if (trial->wrong) norm.epsilon = 0.1f;
  return attn_add_layer_norm(bench_layer_case_rows(data->bench), data->bench->width, data->x, residual_of(data), &norm, NULL,
                             data->y);
}

static attn_nn_field add_norm_expect(const bench_chosen *c) {
  const bench_case *bench = c->data->bench;
  const bench_sequence residuals = {residual_of(c->data), bench->problem.seq_q, bench->width, c->batch};
  attn_nn_field x = bench_chosen_x(c), residual = bench_take(residuals, c->row, c->count);
  attn_nn_field sum = bench_then(bench_then(attn_nn_oracle_add(&x, &residual), &x), &residual);
  const attn_norm norm = bench_norm_at(c->data, 0);
  return bench_then(attn_nn_oracle_layer_norm(&sum, &norm), &sum);
}

const bench_layer_functions bench_layer_add_norm = {.shape = add_norm_shape,
                                                    .flops = add_norm_flops,
                                                    .wrong = "a norm of another epsilon",
                                                    .run = add_norm_run,
                                                    .expect = add_norm_expect};
