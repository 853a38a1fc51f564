/* SPDX-License-Identifier: MIT */
/* Transformer blocks, post-norm: every sub-layer has a residual connection and a layer norm behind it. The encoder block has
 * self-attention and a feed-forward network; the decoder block has cross-attention between them. */
#include "attn/nn.h"
#include "layers/layer_functions.h"

/* How many the block has. */
static int attentions_of(const bench_case *bench) { return bench_layer_of(bench)->id == LAYER_decoder ? 2 : 1; }

/* ---- Weights and biases: those of each sub-layer in order, then gain and bias of the norms in the same order ---- */

static int64_t norms_at(const bench_case *bench) {
  return attentions_of(bench) * bench_mha_biases(bench) + bench_feed_forward_biases(bench);
}

static bench_layer_shape block_shape(const bench_case *bench) {
  const int attentions = attentions_of(bench);
  return bench_layer_rows_to_rows(bench, attentions * bench_mha_weights(bench) + bench_feed_forward_weights(bench),
                                  norms_at(bench) + 2 * (attentions + 1) * bench->width);
}

static attn_block_config config_of(const bench_layer_data *data) {
  const bench_case *bench = data->bench;
  const attn_problem *p = &bench->problem;
  const int64_t width = bench->width, norms = norms_at(bench);
  const int attentions = attentions_of(bench);
  attn_block_config config;
  if (attentions == 1) {
    attn_encoder_block_init(&config, p->batch, p->heads_q, p->seq_q, width, 4 * width);
  } else {
    bench_layer_data second = *data;
    second.weights += bench_mha_weights(bench);
    second.biases += bench_mha_biases(bench);
    attn_decoder_block_init(&config, p->batch, p->heads_q, p->seq_q, p->seq_k, width, width, 4 * width);
    config.cross = bench_cross_problem(data, p->batch, p->seq_q);
    config.cross_weights = bench_mha_weights_of(&second);
    config.cross_norm = bench_norm_at(data, norms + 2 * width);
  }
  config.self.attention = *p;
  config.self_weights = bench_mha_weights_of(data);
  config.feed_forward =
      bench_feed_forward_at(data, attentions * bench_mha_weights(bench), attentions * bench_mha_biases(bench));
  config.self_norm = bench_norm_at(data, norms);
  config.feed_forward_norm = bench_norm_at(data, norms + 2 * attentions * width);
  return config;
}

/* ---- Running ---- */

/* The wrong answer looks at all keys alike in the last attention. */
static attn_status block_create(bench_layer_trial *trial) {
  attn_block_config config = config_of(trial->data);
  if (trial->wrong) (attentions_of(trial->data->bench) == 2 ? &config.cross : &config.self)->attention.scale = 0;
  attn_block *block = NULL;
  const attn_status status = attn_block_create(&config, &trial->options, &block);
  trial->layer = block;
  bench_layer_name_kernel(trial, attn_block_kernel(block));
  return status;
}

static void block_destroy(void *layer) { attn_block_destroy(layer); }
static size_t block_workspace(const bench_layer_trial *trial) { return attn_block_workspace(trial->layer); }

/* In the decoder block x is the memory, too. */
static attn_status block_run(bench_layer_trial *trial, void *workspace, size_t bytes) {
  const bench_layer_data *data = trial->data;
  attn_block_profile profile = {0};
  const attn_block_args args = {
      .x = data->x, .memory = attentions_of(data->bench) == 2 ? data->x : NULL, .y = data->y, .profile = &profile};
  const attn_status status = attn_block_run(trial->layer, &args, workspace, bytes);
  trial->time.projections_ns += profile.projections_ns + profile.feed_forward_ns;
  trial->time.attention_ns += profile.attention_ns;
  trial->time.total_ns += profile.total_ns;
  return status;
}

/* ---- Expected answer: after self-attention rows do not depend on each other, so only the chosen ones are computed ---- */

/* norm(x + out); frees both. */
static attn_nn_field add_and_norm(attn_nn_field x, attn_nn_field out, const attn_norm *norm) {
  attn_nn_field sum = bench_then(bench_then(attn_nn_oracle_add(&x, &out), &x), &out);
  return bench_then(attn_nn_oracle_layer_norm(&sum, norm), &sum);
}

static attn_nn_field block_expect(const bench_chosen *c) {
  const attn_block_config config = config_of(c->data);
  attn_nn_field x = add_and_norm(bench_chosen_x(c), bench_mha_expect(c), &config.self_norm);
  if (attentions_of(c->data->bench) == 2)
    x = add_and_norm(x, bench_cross_expect(c, &config.cross_weights, &x), &config.cross_norm);
  return add_and_norm(x, bench_feed_forward_expect(&config.feed_forward, &x), &config.feed_forward_norm);
}

/* ---- Both ---- */

#define BLOCK_FUNCTIONS                                                                                                   \
  .shape = block_shape, .create = block_create, .destroy = block_destroy, .workspace = block_workspace, .run = block_run, \
  .expect = block_expect, .has_mha = true

const bench_layer_functions bench_layer_block = {BLOCK_FUNCTIONS};

/* Beside its dense layers: the attention to the memory, which no mask shortens. */
static double decoder_flops(const bench_case *bench) {
  const attn_problem *p = &bench->problem;
  const double pairs = (double)p->batch * (double)p->heads_q * (double)p->seq_q * (double)p->seq_k;
  return 2 * pairs * (double)(p->dim_qk + p->dim_v) + bench_dense_flops(bench, block_shape(bench).weights);
}

const bench_layer_functions bench_layer_decoder = {BLOCK_FUNCTIONS, .flops = decoder_flops,
                                                   .wrong = "attention to the memory that looks at all its rows alike"};
