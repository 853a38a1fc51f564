/* SPDX-License-Identifier: MIT */
/* Transformer blocks, post-norm: every sub-layer has a residual connection and a layer norm behind it. The encoder block has
 * self-attention and a feed-forward network; the decoder block has cross-attention between them. */
#include "attn/nn.h"
#include "layers/layer_functions.h"

/* ---- Weights and biases: those of each sub-layer in order, then gain and bias of the norms in the same order ---- */

static int64_t block_weights(const bench_case *bench, int attentions) {
  return attentions * bench_mha_weights(bench) + bench_feed_forward_weights(bench);
}

static int64_t norms_at(const bench_case *bench, int attentions) {
  return attentions * bench_mha_biases(bench) + bench_feed_forward_biases(bench);
}

static bench_layer_shape block_shape(const bench_case *bench, int attentions) {
  return bench_layer_rows_to_rows(bench, block_weights(bench, attentions),
                                  norms_at(bench, attentions) + 2 * (attentions + 1) * bench->width);
}

/* Those of the cross-attention. */
static attn_mha_weights cross_weights(const bench_layer_data *data) {
  bench_layer_data second = *data;
  second.weights += bench_mha_weights(data->bench);
  second.biases += bench_mha_biases(data->bench);
  return bench_mha_weights_of(&second);
}

/* What both blocks have in common. */
static void configure(const bench_layer_data *data, int attentions, attn_block_config *config) {
  const bench_case *bench = data->bench;
  const int64_t norms = norms_at(bench, attentions);
  config->self.attention = bench->problem;
  config->self_weights = bench_mha_weights_of(data);
  config->feed_forward =
      bench_feed_forward_at(data, attentions * bench_mha_weights(bench), attentions * bench_mha_biases(bench));
  config->self_norm = bench_norm_at(data, norms);
  config->feed_forward_norm = bench_norm_at(data, norms + 2 * attentions * bench->width);
}

static attn_block_config encoder_config(const bench_layer_data *data) {
  const attn_problem *p = &data->bench->problem;
  const int64_t width = data->bench->width;
  attn_block_config config;
  attn_encoder_block_init(&config, p->batch, p->heads_q, p->seq_q, width, 4 * width);
  configure(data, 1, &config);
  return config;
}

static attn_block_config decoder_config(const bench_layer_data *data) {
  const attn_problem *p = &data->bench->problem;
  const int64_t width = data->bench->width;
  attn_block_config config;
  attn_decoder_block_init(&config, p->batch, p->heads_q, p->seq_q, p->seq_k, width, width, 4 * width);
  configure(data, 2, &config);
  config.cross = bench_cross_problem(data, p->batch, p->seq_q);
  config.cross_weights = cross_weights(data);
  config.cross_norm = bench_norm_at(data, norms_at(data->bench, 2) + 2 * width);
  return config;
}

/* ---- Running ---- */

static attn_status create(bench_layer_trial *trial, const attn_block_config *config) {
  attn_block *block = NULL;
  const attn_status status = attn_block_create(config, &trial->options, &block);
  trial->layer = block;
  bench_layer_name_kernel(trial, attn_block_kernel(block));
  return status;
}

static void block_destroy(void *layer) { attn_block_destroy(layer); }
static size_t block_workspace(const bench_layer_trial *trial) { return attn_block_workspace(trial->layer); }

static attn_status run(bench_layer_trial *trial, const float *memory, void *workspace, size_t bytes) {
  attn_block_profile profile = {0};
  const attn_block_args args = {.x = trial->data->x, .memory = memory, .y = trial->data->y, .profile = &profile};
  const attn_status status = attn_block_run(trial->layer, &args, workspace, bytes);
  trial->time.projections_ns += profile.projections_ns + profile.feed_forward_ns;
  trial->time.attention_ns += profile.attention_ns;
  trial->time.total_ns += profile.total_ns;
  return status;
}

/* ---- Expected answer: after self-attention rows do not depend on each other, so only the chosen ones are computed ---- */

/* norm(x + out); gives up both. */
static attn_nn_field add_and_norm(attn_nn_field x, attn_nn_field out, const attn_norm *norm) {
  attn_nn_field sum = bench_then(bench_then(attn_nn_oracle_add(&x, &out), &x), &out);
  return bench_then(attn_nn_oracle_layer_norm(&sum, norm), &sum);
}

static attn_nn_field after_self_attention(const bench_chosen *c, const attn_block_config *config) {
  attn_nn_field x = bench_chosen_x(c);
  x = bench_then(attn_nn_oracle_add(&x, &c->mha), &x);
  return bench_then(attn_nn_oracle_layer_norm(&x, &config->self_norm), &x);
}

static attn_nn_field after_feed_forward(attn_nn_field x, const attn_block_config *config) {
  return add_and_norm(x, bench_feed_forward_expect(&config->feed_forward, &x), &config->feed_forward_norm);
}

/* ---- Encoder block ---- */

static bench_layer_shape encoder_shape(const bench_case *bench) { return block_shape(bench, 1); }
static double encoder_flops(const bench_case *bench) { return bench_dense_flops(bench, block_weights(bench, 1)); }

static attn_status encoder_create(bench_layer_trial *trial) {
  attn_block_config config = encoder_config(trial->data);
  if (trial->wrong) config.self.attention.scale = 0;
  return create(trial, &config);
}

static attn_status encoder_run(bench_layer_trial *trial, void *workspace, size_t bytes) {
  return run(trial, NULL, workspace, bytes);
}

static attn_nn_field encoder_expect(const bench_chosen *c) {
  const attn_block_config config = encoder_config(c->data);
  return after_feed_forward(after_self_attention(c, &config), &config);
}

const bench_layer_functions bench_layer_block = {.shape = encoder_shape,
                                                 .flops = encoder_flops,
                                                 .wrong = "attention that looks at all keys alike",
                                                 .create = encoder_create,
                                                 .destroy = block_destroy,
                                                 .workspace = block_workspace,
                                                 .run = encoder_run,
                                                 .expect = encoder_expect,
                                                 .after_mha = true};

/* ---- Decoder block: x is also the memory; the case masks the self-attention ---- */

static bench_layer_shape decoder_shape(const bench_case *bench) { return block_shape(bench, 2); }

static double decoder_flops(const bench_case *bench) {
  const attn_problem *p = &bench->problem;
  const double cross =
      2.0 * (double)(p->batch * p->heads_q) * (double)(p->seq_q * p->seq_k) * (double)(p->dim_qk + p->dim_v);
  return cross + bench_dense_flops(bench, block_weights(bench, 2));
}

static attn_status decoder_create(bench_layer_trial *trial) {
  attn_block_config config = decoder_config(trial->data);
  if (trial->wrong) config.cross.attention.scale = 0;
  return create(trial, &config);
}

static attn_status decoder_run(bench_layer_trial *trial, void *workspace, size_t bytes) {
  return run(trial, trial->data->x, workspace, bytes);
}

static attn_nn_field decoder_expect(const bench_chosen *c) {
  const attn_block_config config = decoder_config(c->data);
  attn_nn_field x = after_self_attention(c, &config);
  x = add_and_norm(x, bench_cross_expect(c, &config.cross_weights, &x), &config.cross_norm);
  return after_feed_forward(x, &config);
}

const bench_layer_functions bench_layer_decoder = {.shape = decoder_shape,
                                                   .flops = decoder_flops,
                                                   .wrong = "attention to the memory that looks at all its rows alike",
                                                   .create = decoder_create,
                                                   .destroy = block_destroy,
                                                   .workspace = block_workspace,
                                                   .run = decoder_run,
                                                   .expect = decoder_expect,
                                                   .after_mha = true};
