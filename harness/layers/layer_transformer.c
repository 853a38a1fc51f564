/* SPDX-License-Identifier: MIT */
/* The layers of a transformer: multi-head attention with its four projections, feed-forward, add & norm, and blocks. */
#include "attn/nn.h"
#include "base/clock.h"
#include "kernels/common/problem/dtypes.h"
#include "layers/layer.h"

/* Columns of Q, K and V side by side. */
static int64_t inner_columns(const attn_problem *p) {
  return p->heads_q * p->dim_qk + p->heads_kv * p->dim_qk + p->heads_kv * p->dim_v;
}

int64_t bench_mha_weights(const bench_case *bench) {
  const attn_problem *p = &bench->problem;
  return bench->width * (inner_columns(p) + p->heads_q * p->dim_v);
}

int64_t bench_mha_biases(const bench_case *bench) { return inner_columns(&bench->problem) + bench->width; }

static bench_layer_shape mha_shape(const bench_case *bench) {
  return bench_layer_rows_to_rows(bench, bench_mha_weights(bench), bench_mha_biases(bench));
}

attn_mha_weights bench_mha_weights_at(const bench_layer_data *data, int64_t at, int64_t bias_at) {
  const int64_t columns = inner_columns(&data->bench->problem);
  return ATTN_STRUCT(attn_mha_weights, .layout = ATTN_IN_OUT, .dtype = data->shape.type_weights,
                     .w_qkv = bench_weights_at(data, at), .w_o = bench_weights_at(data, at + data->bench->width * columns),
                     .b_qkv = data->biases + bias_at, .b_o = data->biases + bias_at + columns);
}

static attn_mha_problem problem_of(const bench_layer_data *data) {
  const attn_problem *p = &data->bench->problem;
  attn_mha_problem problem;
  attn_mha_problem_init(&problem, p->batch, p->heads_q, p->seq_q, p->seq_k, data->bench->width);
  problem.attention = *p;
  problem.dtype_x = problem.dtype_y = p->dtype_q;
  return problem;
}

/* ---- Running ---- */

static bool is_cross(const bench_layer_data *data) { return data->functions == &bench_layer_cross; }

/* The shape of one row that attends to one. */
static void become_row(attn_mha_problem *problem) {
  attn_problem *a = &problem->attention;
  a->batch = a->seq_q = a->seq_k = 1;
}

static attn_status mha_create(bench_layer_trial *trial) {
  const bench_layer_data *data = trial->data;
  const attn_problem *p = &data->bench->problem;
  const attn_mha_weights weights = bench_mha_weights_at(data, 0, 0);
  const attn_mha_options options =
      ATTN_STRUCT(attn_mha_options, .attention = &trial->options, .product = bench_product_to_name(trial));
  attn_mha_problem problem = is_cross(data) ? bench_cross_problem(data, p->batch, p->seq_q) : problem_of(data);
  if (trial->wrong) problem.attention.scale = 0;
  attn_mha_problem first = problem;
  if (data->bench->made_for_row) become_row(&first);
  attn_mha *mha = NULL;
  attn_status status = attn_mha_create(&first, &weights, &options, &mha);
  if (status == ATTN_OK && data->bench->made_for_row) {
    attn_mha *made = mha;
    status = attn_mha_reshape(made, &problem, &mha);
    attn_mha_destroy(made);
  }
  return bench_layer_made(trial, status, mha, attn_mha_kernel(mha));
}

static void mha_destroy(void *layer) { attn_mha_destroy(layer); }
static size_t mha_workspace(const bench_layer_trial *trial) { return attn_mha_workspace(trial->layer); }

static attn_status mha_run(bench_layer_trial *trial, void *workspace, size_t bytes) {
  const bench_layer_data *data = trial->data;
  const attn_mha_args args = ATTN_STRUCT(attn_mha_args, .x = data->x, .memory = is_cross(data) ? data->x : NULL,
                                         .y = data->y, .profile = &trial->time);
  return attn_mha_run(trial->layer, &args, workspace, bytes);
}

/* Self-attention and cross-attention differ in their expected answers only. */
#define MHA_FUNCTIONS                                                                                                  \
  .shape = mha_shape, .names_product = true, .create = mha_create, .destroy = mha_destroy, .workspace = mha_workspace, \
  .run = mha_run

attn_nn_field bench_mha_expect(const bench_chosen *c, attn_dtype dtype_y) {
  attn_mha_problem problem = problem_of(c->data);
  problem.dtype_y = dtype_y;
  const attn_mha_weights weights = bench_mha_weights_at(c->data, 0, 0);
  bench_kept *kept = c->data->kept;
  if (kept->batch != c->batch) bench_forget(kept);
  kept->batch = c->batch;
  problem.attention.batch = 1;
  const attn_nn_mha mha = {
      &problem, &weights, {.numerics = *c->numerics, .row = c->row, .rows = c->count}, .kept = kept->kv};
  attn_nn_field x = bench_chosen_x(c), memory = bench_all_x(c);
  return bench_then(bench_then(attn_nn_oracle_mha(&mha, &x, &memory), &x), &memory);
}

static attn_nn_field mha_expect(const bench_chosen *c) { return bench_mha_expect(c, c->data->shape.type_y); }

const bench_layer_functions bench_layer_mha = {MHA_FUNCTIONS, .expect = mha_expect};

/* ---- Cross-attention: x is queries and memory ---- */

attn_mha_problem bench_cross_problem(const bench_layer_data *data, int64_t batch, int64_t seq_q) {
  const attn_problem *p = &data->bench->problem;
  attn_mha_problem problem;
  attn_cross_attention_init(&problem, batch, p->heads_q, seq_q, p->seq_k, data->bench->width, data->bench->width);
  attn_problem_init(&problem.attention, batch, p->heads_q, p->heads_kv, seq_q, p->seq_k, p->dim_qk, p->dim_v);
  problem.attention.scale = p->scale;
  problem.attention.dtype_q = problem.attention.dtype_kv = problem.attention.dtype_o = p->dtype_q;
  problem.dtype_x = problem.dtype_y = p->dtype_q;
  return problem;
}

attn_nn_field bench_cross_expect(const bench_chosen *c, const attn_mha_weights *weights, const attn_nn_field *x,
                                 attn_dtype dtype_y) {
  attn_mha_problem problem = bench_cross_problem(c->data, 1, c->count);
  problem.dtype_y = dtype_y;
  const attn_nn_mha mha = {&problem, weights, {.numerics = *c->numerics}, NULL};
  attn_nn_field memory = bench_all_x(c);
  return bench_then(attn_nn_oracle_mha(&mha, x, &memory), &memory);
}

static attn_nn_field cross_expect(const bench_chosen *c) {
  const attn_mha_weights weights = bench_mha_weights_at(c->data, 0, 0);
  attn_nn_field x = bench_chosen_x(c);
  return bench_then(bench_cross_expect(c, &weights, &x, c->data->shape.type_y), &x);
}

const bench_layer_functions bench_layer_cross = {MHA_FUNCTIONS, .expect = cross_expect};

static const float EPSILON = 1e-5f;

/* ---- Feed-forward, four times as wide inside ---- */

int64_t bench_feed_forward_weights(const bench_case *bench) { return 8 * bench->width * bench->width; }
int64_t bench_feed_forward_biases(const bench_case *bench) { return 5 * bench->width; }

attn_feed_forward_config bench_feed_forward_at(const bench_layer_data *data, int64_t at, int64_t bias_at) {
  const int64_t width = data->bench->width, hidden = 4 * width;
  return ATTN_STRUCT(attn_feed_forward_config, .width = width, .hidden = hidden, .dtype = data->shape.type_weights,
                     .dtype_x = data->shape.type_x, .dtype_y = data->shape.type_y,
                     .first = bench_linear_at(data, at, bias_at),
                     .second = bench_linear_at(data, at + width * hidden, bias_at + hidden));
}

static bool is_gated(const bench_layer_functions *f) { return f == &bench_layer_swiglu || f == &bench_layer_geglu; }

/* The gate's weights and biases come last. */
static attn_feed_forward_config network_of(const bench_layer_data *data) {
  const bench_case *bench = data->bench;
  attn_feed_forward_config config = bench_feed_forward_at(data, 0, 0);
  if (!is_gated(data->functions)) return config;
  config.activation = data->functions == &bench_layer_swiglu ? ATTN_SILU : ATTN_GELU_TANH;
  config.gate = bench_linear_at(data, bench_feed_forward_weights(bench), bench_feed_forward_biases(bench));
  return config;
}

/* The wrong answer has another activation. */
static attn_status feed_forward_create(bench_layer_trial *trial) {
  attn_feed_forward_config config = network_of(trial->data);
  config.product = bench_product_to_name(trial);
  if (trial->wrong) config.activation = config.activation == ATTN_RELU ? ATTN_GELU : ATTN_RELU;
  attn_feed_forward *layer = NULL;
  const attn_status status = attn_feed_forward_create(&config, &trial->options, &layer);
  return bench_layer_made(trial, status, layer, trial->kernel);
}

static void feed_forward_destroy(void *layer) { attn_feed_forward_destroy(layer); }
static size_t feed_forward_workspace(const bench_layer_trial *trial) {
  return attn_feed_forward_workspace(trial->layer, bench_layer_case_rows(trial->data->bench));
}

attn_status bench_dense_ran(bench_layer_trial *trial, attn_status status, double begin_ns) {
  const double spent = bench_now_ns() - begin_ns;
  trial->time.projections_ns += spent;
  trial->time.total_ns += spent;
  return status;
}

static attn_status feed_forward_run(bench_layer_trial *trial, void *workspace, size_t bytes) {
  const double begin = bench_now_ns();
  return bench_dense_ran(trial,
                         attn_feed_forward_run(trial->layer, bench_layer_case_rows(trial->data->bench), trial->data->x,
                                               trial->data->y, workspace, bytes),
                         begin);
}

static attn_nn_field feed_forward_expect(const bench_chosen *c) {
  const attn_feed_forward_config config = network_of(c->data);
  attn_nn_field x = bench_chosen_x(c);
  return bench_then(attn_nn_oracle_feed_forward(&x, &config), &x);
}

static bench_layer_shape feed_forward_shape(const bench_case *bench) {
  return bench_layer_rows_to_rows(bench, bench_feed_forward_weights(bench), bench_feed_forward_biases(bench));
}

static bench_layer_shape gated_shape(const bench_case *bench) {
  const int64_t hidden = 4 * bench->width;
  return bench_layer_rows_to_rows(bench, bench_feed_forward_weights(bench) + bench->width * hidden,
                                  bench_feed_forward_biases(bench) + hidden);
}

#define NETWORK_FUNCTIONS                                                                                               \
  .names_product = true, .wrong = "another activation", .create = feed_forward_create, .destroy = feed_forward_destroy, \
  .workspace = feed_forward_workspace, .run = feed_forward_run, .expect = feed_forward_expect

const bench_layer_functions bench_layer_feed_forward = {NETWORK_FUNCTIONS, .shape = feed_forward_shape};
const bench_layer_functions bench_layer_swiglu = {NETWORK_FUNCTIONS, .shape = gated_shape};
const bench_layer_functions bench_layer_geglu = {NETWORK_FUNCTIONS, .shape = gated_shape};

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

/* The same without mean and deviation. */
static double add_rms_norm_flops(const bench_case *bench) { return 0.7 * add_norm_flops(bench); }

static const void *residual_of(const bench_layer_data *data) {
  return attn_element_at(data->x, data->shape.type_x, bench_layer_case_rows(data->bench) * data->bench->width);
}

static bool is_rms(const bench_layer_data *data) { return data->functions == &bench_layer_add_rms_norm; }

static attn_status add_norm_run(bench_layer_trial *trial, void *workspace, size_t bytes) {
  (void)workspace, (void)bytes;
  const bench_layer_data *data = trial->data;
  const attn_dtype dtype = data->shape.type_x;
  attn_row_join join = ATTN_STRUCT(attn_row_join, .rows = bench_layer_case_rows(data->bench), .width = data->bench->width,
                                   .norm_kind = is_rms(data) ? ATTN_NORM_RMS : ATTN_NORM_LAYER,
                                   .norm = bench_norm_at(data, 0), .dtype_x = dtype, .dtype_other = dtype, .dtype_y = dtype,
                                   .x = data->x, .other = residual_of(data), .y = data->y);
  if (trial->wrong) join.norm.epsilon = 0.1f;
  return attn_row_join_run(&join, &trial->options);
}

static attn_nn_field add_norm_expect(const bench_chosen *c) {
  const bench_case *bench = c->data->bench;
  const bench_sequence residuals = {residual_of(c->data), c->data->shape.type_x, bench->problem.seq_q, bench->width,
                                    c->batch};
  attn_nn_field x = bench_chosen_x(c), residual = bench_take(residuals, c->row, c->count);
  attn_nn_field sum = bench_then(bench_then(attn_nn_oracle_add(&x, &residual), &x), &residual);
  const attn_norm norm = bench_norm_at(c->data, 0);
  attn_nn_field y = is_rms(c->data) ? attn_nn_oracle_rms_norm(&sum, &norm) : attn_nn_oracle_layer_norm(&sum, &norm);
  attn_nn_field_destroy(&sum);
  attn_nn_oracle_round(&y, c->data->shape.type_y);
  return y;
}

#define NORM_FUNCTIONS \
  .shape = add_norm_shape, .wrong = "a norm of another epsilon", .run = add_norm_run, .expect = add_norm_expect

const bench_layer_functions bench_layer_add_norm = {NORM_FUNCTIONS, .flops = add_norm_flops};
const bench_layer_functions bench_layer_add_rms_norm = {NORM_FUNCTIONS, .flops = add_rms_norm_flops};

/* ---- Blocks, post-norm -------------------------------------------------------------------------------------------- */
/* Every sub-layer has a residual connection and a layer norm behind it. The encoder block has self-attention and a
 * feed-forward network; the decoder block has cross-attention between them. */

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
    attn_decoder_block_init(&config, p->batch, p->heads_q, p->seq_q, p->seq_k, width, width, 4 * width);
    config.cross = bench_cross_problem(data, p->batch, p->seq_q);
    config.cross.dtype_y = ATTN_F32; /* the block's own choice */
    config.cross_weights = bench_mha_weights_at(data, bench_mha_weights(bench), bench_mha_biases(bench));
    config.cross_norm = bench_norm_at(data, norms + 2 * width);
  }
  config.self.attention = *p;
  config.self_weights = bench_mha_weights_at(data, 0, 0);
  config.feed_forward =
      bench_feed_forward_at(data, attentions * bench_mha_weights(bench), attentions * bench_mha_biases(bench));
  config.feed_forward.dtype_y = ATTN_F32;
  config.dtype_rows = p->dtype_q;
  config.self_norm = bench_norm_at(data, norms);
  config.feed_forward_norm = bench_norm_at(data, norms + 2 * attentions * width);
  return config;
}

/* ---- Running ---- */

/* The wrong layer sees all keys in the last attention. */
static attn_status block_create(bench_layer_trial *trial) {
  attn_block_config config = config_of(trial->data);
  config.product = bench_product_to_name(trial);
  if (trial->wrong) (attentions_of(trial->data->bench) == 2 ? &config.cross : &config.self)->attention.scale = 0;
  attn_block_config first = config;
  const bool reshapes = trial->data->bench->made_for_row;
  if (reshapes) become_row(&first.self);
  if (reshapes && config.has_cross) become_row(&first.cross);
  attn_block *block = NULL;
  attn_status status = attn_block_create(&first, &trial->options, &block);
  if (status == ATTN_OK && reshapes) {
    attn_block *made = block;
    status = attn_block_reshape(made, &config.self, config.has_cross ? &config.cross : NULL, &block);
    attn_block_destroy(made);
  }
  return bench_layer_made(trial, status, block, attn_block_kernel(block));
}

static void block_destroy(void *layer) { attn_block_destroy(layer); }
static size_t block_workspace(const bench_layer_trial *trial) { return attn_block_workspace(trial->layer); }

/* In the decoder block x is the memory, too. */
static attn_status block_run(bench_layer_trial *trial, void *workspace, size_t bytes) {
  const bench_layer_data *data = trial->data;
  attn_block_profile profile = {0};
  const attn_block_args args =
      ATTN_STRUCT(attn_block_args, .x = data->x, .memory = attentions_of(data->bench) == 2 ? data->x : NULL, .y = data->y,
                  .profile = &profile);
  const attn_status status = attn_block_run(trial->layer, &args, workspace, bytes);
  trial->time.projections_ns += profile.projections_ns + profile.feed_forward_ns;
  trial->time.attention_ns += profile.attention_ns;
  trial->time.total_ns += profile.total_ns;
  return status;
}

/* ---- Expected answer: after self-attention rows do not depend on each other, so only the chosen ones are computed ---- */

/* norm(x + out), as rows are kept; frees both. */
static attn_nn_field add_and_norm(const bench_chosen *c, attn_nn_field x, attn_nn_field out, const attn_norm *norm) {
  attn_nn_field sum = bench_then(bench_then(attn_nn_oracle_add(&x, &out), &x), &out);
  attn_nn_field y = bench_then(attn_nn_oracle_layer_norm(&sum, norm), &sum);
  attn_nn_oracle_round(&y, c->data->shape.type_y);
  return y;
}

static attn_nn_field block_expect(const bench_chosen *c) {
  const attn_block_config config = config_of(c->data);
  attn_nn_field x = add_and_norm(c, bench_chosen_x(c), bench_mha_expect(c, ATTN_F32), &config.self_norm);
  if (attentions_of(c->data->bench) == 2)
    x = add_and_norm(c, x, bench_cross_expect(c, &config.cross_weights, &x, ATTN_F32), &config.cross_norm);
  return add_and_norm(c, x, attn_nn_oracle_feed_forward(&x, &config.feed_forward), &config.feed_forward_norm);
}

#define BLOCK_FUNCTIONS                                                                          \
  .shape = block_shape, .names_product = true, .create = block_create, .destroy = block_destroy, \
  .workspace = block_workspace, .run = block_run, .expect = block_expect

const bench_layer_functions bench_layer_block = {BLOCK_FUNCTIONS};

/* Beside its dense layers: the attention to the memory, which no mask shortens. */
static double decoder_flops(const bench_case *bench) {
  const attn_problem *p = &bench->problem;
  const double pairs = (double)p->batch * (double)p->heads_q * (double)p->seq_q * (double)p->seq_k;
  return 2 * pairs * (double)(p->dim_qk + p->dim_v) + bench_dense_flops(bench, block_shape(bench).weights);
}

const bench_layer_functions bench_layer_decoder = {BLOCK_FUNCTIONS, .flops = decoder_flops,
                                                   .wrong = "attention to the memory that looks at all its rows alike"};
