/* SPDX-License-Identifier: MIT */
/* Layers of the transformer as cases: cross-attention, feed-forward, add & norm, and the decoder block of all of them. */
#include <stdio.h>

#include "base/clock.h"
#include "layers/layer_family.h"

static const float EPSILON = 1e-5f;

/* ---- Cross-attention ---- */

static attn_mha_problem cross_problem(const bench_layer_data *data, int64_t batch, int64_t seq_q) {
  const attn_problem *p = &data->bench->problem;
  attn_mha_problem problem;
  attn_cross_attention_init(&problem, batch, p->heads_q, seq_q, p->seq_k, data->bench->width, data->bench->width);
  attn_problem_init(&problem.attention, batch, p->heads_q, p->heads_kv, seq_q, p->seq_k, p->dim_qk, p->dim_v);
  problem.attention.scale = p->scale;
  return problem;
}

static attn_status cross_create(bench_made *made) {
  attn_mha_problem problem = cross_problem(made->data, made->data->bench->problem.batch, made->data->bench->problem.seq_q);
  if (made->wrong) problem.attention.scale = 0;
  const attn_mha_weights weights = bench_mha_weights_of(made->data);
  const attn_mha_options options = {.attention = made->options};
  attn_mha *mha = NULL;
  const attn_status status = attn_mha_create(&problem, &weights, &options, &mha);
  made->layer = mha;
  snprintf(made->kernel, sizeof made->kernel, "%s", attn_mha_kernel(mha));
  return status;
}

static void cross_destroy(void *layer) { attn_mha_destroy(layer); }
static size_t cross_workspace(const bench_made *made) { return attn_mha_workspace(made->layer); }

static attn_status cross_run(bench_made *made, void *workspace, size_t bytes, bench_layer_time *time) {
  attn_mha_profile profile = {0};
  const attn_mha_args args = {.x = made->data->x, .memory = made->data->x, .y = made->data->y, .profile = &profile};
  const attn_status status = attn_mha_run(made->layer, &args, workspace, bytes);
  bench_add_times(time, &profile);
  return status;
}

static attn_nn_field cross_attend(const bench_chosen *c, const bench_layer_data *weights_at, const attn_nn_field *x) {
  const attn_mha_problem problem = cross_problem(c->data, 1, c->count);
  const attn_mha_weights weights = bench_mha_weights_of(weights_at);
  attn_nn_field memory = bench_all_x(c);
  return bench_then(attn_nn_oracle_mha(&problem, &weights, &(attn_args){0}, c->numerics, x, &memory), &memory);
}

static attn_nn_field cross_expect(const bench_chosen *c) {
  attn_nn_field x = bench_chosen_x(c);
  return bench_then(cross_attend(c, c->data, &x), &x);
}

static bench_layer_shape cross_shape(const bench_case *bench) {
  return bench_layer_rows_to_rows(bench, bench_mha_weights(bench), bench_mha_biases(bench));
}

static double cross_flops(const bench_case *bench) {
  return 2.0 * (double)bench_layer_case_rows(bench) * (double)bench_mha_weights(bench);
}

static const bench_family cross_family = {.create = cross_create,
                                          .destroy = cross_destroy,
                                          .workspace = cross_workspace,
                                          .run = cross_run,
                                          .expect = cross_expect};
const bench_layer_kind bench_layer_cross = {
    .name = "cross",
    .has = BENCH_HAS_WIDTH | BENCH_HAS_HEADS | BENCH_HAS_GROUPS | BENCH_HAS_SCALE | BENCH_HAS_ATTENTION | BENCH_HAS_DENSE,
    .shape = cross_shape,
    .flops = cross_flops,
    .wrong = "attention that looks at all keys alike",
    .family = &cross_family,
    BENCH_FAMILY_MEMBERS};

/* ---- Feed-forward, four times as wide inside ---- */

static int64_t feed_forward_weights(const bench_case *bench) { return 8 * bench->width * bench->width; }
static int64_t feed_forward_biases(const bench_case *bench) { return 5 * bench->width; }
static double feed_forward_flops(const bench_case *bench) {
  return 2.0 * (double)bench_layer_case_rows(bench) * (double)feed_forward_weights(bench);
}

static attn_feed_forward_config feed_forward_config(const bench_layer_data *data, int64_t at, int64_t bias_at) {
  const int64_t width = data->bench->width, hidden = 4 * width;
  return (attn_feed_forward_config){.width = width,
                                    .hidden = hidden,
                                    .first = bench_linear_at(data, at, bias_at),
                                    .second = bench_linear_at(data, at + width * hidden, bias_at + hidden)};
}

/* The wrong answer here is the other activation: there are no keys to look at. */
static attn_status feed_forward_create(bench_made *made) {
  attn_feed_forward_config config = feed_forward_config(made->data, 0, 0);
  if (made->wrong) config.activation = ATTN_GELU;
  attn_feed_forward *layer = NULL;
  const attn_status status = attn_feed_forward_create(&config, &made->options, &layer);
  made->layer = layer;
  return status;
}

static void feed_forward_destroy(void *layer) { attn_feed_forward_destroy(layer); }
static size_t feed_forward_workspace(const bench_made *made) {
  return attn_feed_forward_workspace(made->layer, bench_layer_case_rows(made->data->bench));
}

static attn_status feed_forward_run(bench_made *made, void *workspace, size_t bytes, bench_layer_time *time) {
  const double begin = bench_now_ns();
  const attn_status status = attn_feed_forward_run(made->layer, bench_layer_case_rows(made->data->bench), made->data->x,
                                                   made->data->y, workspace, bytes);
  const double spent = bench_now_ns() - begin;
  time->projections_ns += spent;
  time->total_ns += spent;
  return status;
}

static attn_nn_field fed_forward(const attn_feed_forward_config *config, const attn_nn_field *x) {
  attn_nn_field inner = bench_apply(x, config->first, config->hidden);
  inner = bench_then(attn_nn_oracle_relu(&inner), &inner);
  return bench_then(bench_apply(&inner, config->second, config->width), &inner);
}

static attn_nn_field feed_forward_expect(const bench_chosen *c) {
  const attn_feed_forward_config config = feed_forward_config(c->data, 0, 0);
  attn_nn_field x = bench_chosen_x(c);
  return bench_then(fed_forward(&config, &x), &x);
}

static bench_layer_shape feed_forward_shape(const bench_case *bench) {
  return bench_layer_rows_to_rows(bench, feed_forward_weights(bench), feed_forward_biases(bench));
}

static const bench_family feed_forward_family = {.create = feed_forward_create,
                                                 .destroy = feed_forward_destroy,
                                                 .workspace = feed_forward_workspace,
                                                 .run = feed_forward_run,
                                                 .expect = feed_forward_expect};
const bench_layer_kind bench_layer_feed_forward = {.name = "feed-forward",
                                                   .has = BENCH_HAS_WIDTH | BENCH_HAS_DENSE,
                                                   .shape = feed_forward_shape,
                                                   .flops = feed_forward_flops,
                                                   .wrong = "the other activation",
                                                   .family = &feed_forward_family,
                                                   BENCH_FAMILY_MEMBERS};

/* ---- Add & norm: x, then the residual; gain and bias stand among the biases ---- */

static attn_norm norm_at(const bench_layer_data *data, int64_t bias_at) {
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

static attn_status add_norm_run(bench_made *made, void *workspace, size_t bytes, bench_layer_time *time) {
  (void)workspace, (void)bytes, (void)time;
  const bench_layer_data *data = made->data;
  attn_norm norm = norm_at(data, 0);
  if (made->wrong) norm.epsilon = 0.1f;
  return attn_add_layer_norm(bench_layer_case_rows(data->bench), data->bench->width, data->x, residual_of(data), &norm, NULL,
                             data->y);
}

static attn_nn_field add_norm_expect(const bench_chosen *c) {
  const bench_case *bench = c->data->bench;
  const bench_sequence residuals = {residual_of(c->data), bench->problem.seq_q, bench->width, c->batch};
  attn_nn_field x = bench_chosen_x(c), residual = bench_take(residuals, c->row, c->count);
  attn_nn_field sum = bench_then(bench_then(attn_nn_oracle_add(&x, &residual), &x), &residual);
  const attn_norm norm = norm_at(c->data, 0);
  return bench_then(attn_nn_oracle_layer_norm(&sum, &norm), &sum);
}

static const bench_family add_norm_family = {.run = add_norm_run, .expect = add_norm_expect};
const bench_layer_kind bench_layer_add_norm = {.name = "add-norm",
                                               .has = BENCH_HAS_WIDTH,
                                               .axes = {{AXIS_THREADS, "1", true}},
                                               .shape = add_norm_shape,
                                               .flops = add_norm_flops,
                                               .wrong = "a norm of another epsilon",
                                               .family = &add_norm_family,
                                               BENCH_FAMILY_MEMBERS};

/* ---- Decoder block, post-norm: self-attention as the case masks it, cross-attention, feed-forward ---- */

static int64_t decoder_weights(const bench_case *bench) {
  return 2 * bench_mha_weights(bench) + feed_forward_weights(bench);
}
static int64_t decoder_biases(const bench_case *bench) {
  return 2 * bench_mha_biases(bench) + feed_forward_biases(bench) + 6 * bench->width;
}
static double decoder_flops(const bench_case *bench) {
  const attn_problem *p = &bench->problem; /* beside the self-attention */
  const double cross =
      2.0 * (double)(p->batch * p->heads_q) * (double)(p->seq_q * p->seq_k) * (double)(p->dim_qk + p->dim_v);
  return cross + 2.0 * (double)bench_layer_case_rows(bench) * (double)decoder_weights(bench);
}

/* Where the weights of the cross-attention begin. */
static bench_layer_data second_mha(const bench_layer_data *data) {
  bench_layer_data second = *data;
  second.weights += bench_mha_weights(data->bench);
  second.biases += bench_mha_biases(data->bench);
  return second;
}

static attn_block_config decoder_config(const bench_layer_data *data) {
  const bench_case *bench = data->bench;
  const attn_problem *p = &bench->problem;
  const bench_layer_data second = second_mha(data);
  const int64_t norms = 2 * bench_mha_biases(bench) + feed_forward_biases(bench);
  attn_block_config config;
  attn_decoder_block_init(&config, p->batch, p->heads_q, p->seq_q, p->seq_k, bench->width, bench->width, 4 * bench->width);
  config.self.attention = *p;
  config.cross = cross_problem(data, p->batch, p->seq_q);
  config.self_weights = bench_mha_weights_of(data);
  config.cross_weights = bench_mha_weights_of(&second);
  config.feed_forward = feed_forward_config(data, 2 * bench_mha_weights(bench), 2 * bench_mha_biases(bench));
  config.self_norm = norm_at(data, norms);
  config.cross_norm = norm_at(data, norms + 2 * bench->width);
  config.feed_forward_norm = norm_at(data, norms + 4 * bench->width);
  return config;
}

static attn_status decoder_create(bench_made *made) {
  attn_block_config config = decoder_config(made->data);
  if (made->wrong) config.cross.attention.scale = 0;
  attn_block *block = NULL;
  const attn_status status = attn_block_create(&config, &made->options, &block);
  made->layer = block;
  snprintf(made->kernel, sizeof made->kernel, "%s", attn_block_kernel(block));
  return status;
}

static void decoder_destroy(void *layer) { attn_block_destroy(layer); }
static size_t decoder_workspace(const bench_made *made) { return attn_block_workspace(made->layer); }

static attn_status decoder_run(bench_made *made, void *workspace, size_t bytes, bench_layer_time *time) {
  attn_block_profile profile = {0};
  const attn_block_args args = {.x = made->data->x, .memory = made->data->x, .y = made->data->y, .profile = &profile};
  const attn_status status = attn_block_run(made->layer, &args, workspace, bytes);
  time->projections_ns += profile.projections_ns + profile.feed_forward_ns;
  time->attention_ns += profile.attention_ns;
  time->total_ns += profile.total_ns;
  return status;
}

static attn_nn_field decoder_expect(const bench_chosen *c) {
  const attn_block_config config = decoder_config(c->data);
  const bench_layer_data second = second_mha(c->data);
  attn_nn_field x = bench_chosen_x(c);
  x = bench_then(attn_nn_oracle_add(&x, &c->mha), &x);
  x = bench_then(attn_nn_oracle_layer_norm(&x, &config.self_norm), &x);
  attn_nn_field out = cross_attend(c, &second, &x);
  x = bench_then(bench_then(attn_nn_oracle_add(&x, &out), &x), &out);
  x = bench_then(attn_nn_oracle_layer_norm(&x, &config.cross_norm), &x);
  out = fed_forward(&config.feed_forward, &x);
  x = bench_then(bench_then(attn_nn_oracle_add(&x, &out), &x), &out);
  return bench_then(attn_nn_oracle_layer_norm(&x, &config.feed_forward_norm), &x);
}

static bench_layer_shape decoder_shape(const bench_case *bench) {
  return bench_layer_rows_to_rows(bench, decoder_weights(bench), decoder_biases(bench));
}

static const bench_family decoder_family = {.create = decoder_create,
                                            .destroy = decoder_destroy,
                                            .workspace = decoder_workspace,
                                            .run = decoder_run,
                                            .expect = decoder_expect,
                                            .after_mha = true};
const bench_layer_kind bench_layer_decoder = {.name = "decoder",
                                              .has = BENCH_HAS_WIDTH | BENCH_HAS_HEADS | BENCH_HAS_GROUPS | BENCH_HAS_MASKS |
                                                     BENCH_HAS_SCALE | BENCH_HAS_ATTENTION | BENCH_HAS_DENSE,
                                              .shape = decoder_shape,
                                              .flops = decoder_flops,
                                              .wrong = "attention to the memory that looks at all its rows alike",
                                              .forget = bench_mha_forget,
                                              .family = &decoder_family,
                                              BENCH_FAMILY_MEMBERS};
