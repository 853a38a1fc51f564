/* SPDX-License-Identifier: MIT */
/* Multi-head attention with its four projections: self-attention and cross-attention. */
#include <stdlib.h>

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

static double mha_flops(const bench_case *bench) { return bench_dense_flops(bench, bench_mha_weights(bench)); }

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

/* ---- Self-attention ---- */

static attn_status create(bench_layer_trial *trial, attn_mha_problem problem) {
  const attn_mha_weights weights = bench_mha_weights_of(trial->data);
  const attn_mha_options options = {.attention = trial->options};
  if (trial->wrong) problem.attention.scale = 0;
  attn_mha *mha = NULL;
  const attn_status status = attn_mha_create(&problem, &weights, &options, &mha);
  trial->layer = mha;
  bench_layer_name_kernel(trial, attn_mha_kernel(mha));
  return status;
}

static attn_status mha_create(bench_layer_trial *trial) { return create(trial, problem_of(trial->data)); }
static void mha_destroy(void *layer) { attn_mha_destroy(layer); }
static size_t mha_workspace(const bench_layer_trial *trial) { return attn_mha_workspace(trial->layer); }

/* memory: NULL for self-attention. */
static attn_status run(bench_layer_trial *trial, const float *memory, void *workspace, size_t bytes) {
  attn_mha_profile profile = {0};
  const attn_mha_args args = {.x = trial->data->x, .memory = memory, .y = trial->data->y, .profile = &profile};
  const attn_status status = attn_mha_run(trial->layer, &args, workspace, bytes);
  bench_add_times(&trial->time, &profile);
  return status;
}

static attn_status mha_run(bench_layer_trial *trial, void *workspace, size_t bytes) {
  return run(trial, NULL, workspace, bytes);
}

const bench_layer_functions bench_layer_mha = {.shape = mha_shape,
                                               .flops = mha_flops,
                                               .wrong = "attention that looks at all keys alike",
                                               .create = mha_create,
                                               .destroy = mha_destroy,
                                               .workspace = mha_workspace,
                                               .run = mha_run,
                                               .after_mha = true};

/* ---- Expected self-attention ---- */

/* The oracle keeps pointers to these. */
typedef struct kept_oracle {
  attn_mha_problem problem;
  attn_mha_weights weights;
  attn_mha_args args;
  mha_oracle *oracle;
} kept_oracle;

static kept_oracle *oracle_of(bench_layer_data *data) {
  if (data->oracle) return data->oracle;
  kept_oracle *kept = calloc(1, sizeof *kept);
  if (!kept) return NULL;
  kept->problem = problem_of(data);
  kept->weights = bench_mha_weights_of(data);
  kept->args = (attn_mha_args){.x = data->x};
  kept->oracle = mha_oracle_create(&kept->problem, &kept->weights, &kept->args);
  if (kept->oracle) return data->oracle = kept;
  free(kept);
  return NULL;
}

bool bench_mha_expect(bench_layer_data *data, const attn_numerics *numerics, const bench_layer_rows *rows) {
  const kept_oracle *kept = oracle_of(data);
  const int64_t width = data->bench->width;
  for (int64_t r = 0; kept && r < rows->count; r++) {
    const mha_oracle_row row = {.y = rows->value + r * width, .limit = rows->limit + r * width};
    mha_oracle_compute(kept->oracle, rows->batch[r], rows->row[r], numerics, true, &row);
  }
  return kept;
}

void bench_mha_forget(bench_layer_data *data) {
  kept_oracle *kept = data->oracle;
  if (kept) mha_oracle_destroy(kept->oracle);
  free(kept);
  data->oracle = NULL;
}

/* ---- Cross-attention: x is queries and memory ---- */

attn_mha_problem bench_cross_problem(const bench_layer_data *data, int64_t batch, int64_t seq_q) {
  const attn_problem *p = &data->bench->problem;
  attn_mha_problem problem;
  attn_cross_attention_init(&problem, batch, p->heads_q, seq_q, p->seq_k, data->bench->width, data->bench->width);
  attn_problem_init(&problem.attention, batch, p->heads_q, p->heads_kv, seq_q, p->seq_k, p->dim_qk, p->dim_v);
  problem.attention.scale = p->scale;
  return problem;
}

static attn_status cross_create(bench_layer_trial *trial) {
  const attn_problem *p = &trial->data->bench->problem;
  return create(trial, bench_cross_problem(trial->data, p->batch, p->seq_q));
}

static attn_status cross_run(bench_layer_trial *trial, void *workspace, size_t bytes) {
  return run(trial, trial->data->x, workspace, bytes);
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

const bench_layer_functions bench_layer_cross = {.shape = mha_shape,
                                                 .flops = mha_flops,
                                                 .wrong = "attention that looks at all keys alike",
                                                 .create = cross_create,
                                                 .destroy = mha_destroy,
                                                 .workspace = mha_workspace,
                                                 .run = cross_run,
                                                 .expect = cross_expect};
