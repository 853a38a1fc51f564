/* SPDX-License-Identifier: MIT */
/* Multi-head self-attention with its four projections. */
#include <stdlib.h>

#include "layers/layer_kinds.h"
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

/* A multiplication and an addition per weight and row. */
static double projection_flops(const bench_case *bench) {
  const attn_problem *p = &bench->problem;
  return 2.0 * (double)(p->batch * p->seq_q) * (double)bench_mha_weights(bench);
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

/* ---- The layer ---- */

static attn_status make(const bench_layer_data *data, const attn_options *options, bool wrong, void **made) {
  attn_mha_problem problem = problem_of(data);
  const attn_mha_weights weights = bench_mha_weights_of(data);
  const attn_mha_options all = {.attention = *options};
  if (wrong) problem.attention.scale = 0;
  attn_mha *mha;
  const attn_status status = attn_mha_create(&problem, &weights, &all, &mha);
  *made = mha;
  return status;
}

static void unmake(void *made) { attn_mha_destroy(made); }
static size_t workspace_of(const void *made) { return attn_mha_workspace(made); }
static const char *kernel_of(const void *made) { return attn_mha_kernel(made); }
static const char *product_of(const void *made) { return attn_mha_product(made); }

static attn_status run(const bench_layer_data *data, void *made, void *workspace, size_t bytes, bench_layer_time *time) {
  attn_mha_profile profile = {0};
  const attn_mha_args args = {.x = data->x, .y = data->y, .profile = &profile};
  const attn_status status = attn_mha_run(made, &args, workspace, bytes);
  time->projections_ns += profile.projections_ns;
  time->attention_ns += profile.attention_ns;
  time->total_ns += profile.total_ns;
  return status;
}

/* ---- What is right ---- */

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

static bench_layer_shape shape_of(const bench_case *bench) {
  return bench_layer_rows_to_rows(bench, bench_mha_weights(bench), bench_mha_biases(bench));
}

const bench_layer_kind bench_layer_mha = {
    .name = "mha",
    .has = BENCH_HAS_WIDTH | BENCH_HAS_HEADS | BENCH_HAS_GROUPS | BENCH_HAS_MASKS | BENCH_HAS_SCALE | BENCH_HAS_ATTENTION |
           BENCH_HAS_DENSE,
    .shape = shape_of,
    .flops = projection_flops,
    .wrong = "attention that looks at all keys alike",
    .make = make,
    .unmake = unmake,
    .workspace = workspace_of,
    .run = run,
    .kernel = kernel_of,
    .product = product_of,
    .expect = bench_mha_expect,
    .forget = bench_mha_forget,
};
