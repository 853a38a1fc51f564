/* SPDX-License-Identifier: MIT */
/* Multi-head attention with its four projections: self-attention and cross-attention. */
#include "layers/layer_functions.h"
#include "layers/mha_oracle.h"

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

attn_mha_weights bench_mha_weights_of(const bench_layer_data *data) {
  const int64_t columns = inner_columns(&data->bench->problem);
  return (attn_mha_weights){.layout = ATTN_IN_OUT,
                            .w_qkv = data->weights,
                            .w_o = data->weights + data->bench->width * columns,
                            .b_qkv = data->biases,
                            .b_o = data->biases + columns};
}

static attn_mha_problem problem_of(const bench_layer_data *data) {
  const attn_problem *p = &data->bench->problem;
  attn_mha_problem problem;
  attn_mha_problem_init(&problem, p->batch, p->heads_q, p->seq_q, p->seq_k, data->bench->width);
  problem.attention = *p;
  return problem;
}

/* ---- Running ---- */

static bool is_cross(const bench_layer_data *data) { return data->functions == &bench_layer_cross; }

static attn_status mha_create(bench_layer_trial *trial) {
  const bench_layer_data *data = trial->data;
  const attn_problem *p = &data->bench->problem;
  const attn_mha_weights weights = bench_mha_weights_of(data);
  const attn_mha_options options = {.attention = trial->options};
  attn_mha_problem problem = is_cross(data) ? bench_cross_problem(data, p->batch, p->seq_q) : problem_of(data);
  if (trial->wrong) problem.attention.scale = 0;
  attn_mha *mha = NULL;
  const attn_status status = attn_mha_create(&problem, &weights, &options, &mha);
  trial->layer = mha;
  bench_layer_name_kernel(trial, attn_mha_kernel(mha));
  return status;
}

static void mha_destroy(void *layer) { attn_mha_destroy(layer); }
static size_t mha_workspace(const bench_layer_trial *trial) { return attn_mha_workspace(trial->layer); }

static attn_status mha_run(bench_layer_trial *trial, void *workspace, size_t bytes) {
  const bench_layer_data *data = trial->data;
  attn_mha_profile profile = {0};
  const attn_mha_args args = {.x = data->x, .memory = is_cross(data) ? data->x : NULL, .y = data->y, .profile = &profile};
  const attn_status status = attn_mha_run(trial->layer, &args, workspace, bytes);
  bench_add_times(&trial->time, &profile);
  return status;
}

/* Self-attention and cross-attention differ in their expected answers only. */
#define MHA_FUNCTIONS \
  .shape = mha_shape, .create = mha_create, .destroy = mha_destroy, .workspace = mha_workspace, .run = mha_run

/* ---- Self-attention ---- */

mha_oracle *bench_mha_oracle_of(const bench_layer_data *data) {
  const attn_mha_problem problem = problem_of(data);
  const attn_mha_weights weights = bench_mha_weights_of(data);
  return mha_oracle_create(&problem, &weights, &(attn_mha_args){.x = data->x});
}

attn_nn_field bench_mha_expect(const bench_chosen *c) {
  attn_nn_field y = attn_nn_field_create(c->count, c->data->bench->width);
  for (int64_t r = 0; r < c->count; r++) {
    const mha_oracle_row row = {.y = y.value + r * y.width, .limit = y.error + r * y.width};
    mha_oracle_compute(c->data->oracle, c->batch, c->row[r], c->numerics, true, &row);
  }
  for (int64_t i = 0; i < y.rows * y.width; i++) y.error[i] /= ATTN_NN_SIGMAS;
  return y;
}

const bench_layer_functions bench_layer_mha = {MHA_FUNCTIONS, .expect = bench_mha_expect, .has_mha = true};

/* ---- Cross-attention: x is queries and memory ---- */

attn_mha_problem bench_cross_problem(const bench_layer_data *data, int64_t batch, int64_t seq_q) {
  const attn_problem *p = &data->bench->problem;
  attn_mha_problem problem;
  attn_cross_attention_init(&problem, batch, p->heads_q, seq_q, p->seq_k, data->bench->width, data->bench->width);
  attn_problem_init(&problem.attention, batch, p->heads_q, p->heads_kv, seq_q, p->seq_k, p->dim_qk, p->dim_v);
  problem.attention.scale = p->scale;
  return problem;
}

attn_nn_field bench_cross_expect(const bench_chosen *c, const attn_mha_weights *weights, const attn_nn_field *x) {
  const attn_mha_problem problem = bench_cross_problem(c->data, 1, c->count);
  const mha_oracle_call call = {.problem = &problem, .weights = weights, .numerics = *c->numerics};
  attn_nn_field memory = bench_all_x(c);
  return bench_then(mha_oracle_field(&call, x, &memory), &memory);
}

static attn_nn_field cross_expect(const bench_chosen *c) {
  const attn_mha_weights weights = bench_mha_weights_of(c->data);
  attn_nn_field x = bench_chosen_x(c);
  return bench_then(bench_cross_expect(c, &weights, &x), &x);
}

const bench_layer_functions bench_layer_cross = {MHA_FUNCTIONS, .expect = cross_expect};
