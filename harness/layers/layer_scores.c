/* SPDX-License-Identifier: MIT */
/* Attention with scores other than dot products as cases: additive attention, kernel regression, synthesizers. */
#include <math.h>
#include <stdlib.h>

#include "attn/extend.h"
#include "layers/layer.h"

/* The chosen queries in float64. The shape has one sequence. */
static attn_nn_attention chosen_attention(const bench_chosen *c, int64_t heads) {
  const attn_problem *p = &c->data->bench->problem;
  attn_nn_attention attention = {.numerics = *c->numerics, .row = c->row, .rows = c->count};
  attn_problem_init(&attention.problem, 1, heads, heads, p->seq_q, p->seq_k, p->dim_qk, p->dim_v);
  attention.problem.score = p->score;
  return attention;
}

/* One head with weights of the score. */
static attn_nn_field one_head(const bench_chosen *c, const float *weight, attn_nn_field *q, attn_nn_field *k,
                              attn_nn_field *v) {
  const attn_args args = {.score_weight = weight};
  attn_nn_attention attention = chosen_attention(c, 1);
  attention.args = &args;
  attention.problem.uses = ATTN_USE_SCORE_WEIGHT;
  return bench_attend(&attention, q, k, v);
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
  return ATTN_STRUCT(attn_additive_config, .batch = p->batch, .seq_q = p->seq_q, .seq_k = p->seq_k, .width_q = width,
                     .width_k = width, .hidden = hidden, .dim_v = p->dim_v, .query = bench_linear_at(data, 0, 0),
                     .key = bench_linear_at(data, width * hidden, hidden),
                     .score_weight = data->weights + 2 * width * hidden);
}

static attn_status additive_create(bench_layer_trial *trial) {
  attn_additive_config config = additive_config(trial->data);
  float *zeros = trial->wrong ? calloc((size_t)config.hidden, sizeof *zeros) : NULL;
  if (trial->wrong && !zeros) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory for %lld zeros", (long long)config.hidden);
  if (trial->wrong) config.score_weight = zeros;
  attn_additive *layer = NULL;
  const attn_status status = attn_additive_create(&config, &trial->options, &layer);
  free(zeros);
  return bench_layer_made(trial, status, layer, attn_additive_kernel(layer));
}

static void additive_destroy(void *layer) { attn_additive_destroy(layer); }
static size_t additive_workspace(const bench_layer_trial *trial) { return attn_additive_workspace(trial->layer); }

static attn_status additive_run(bench_layer_trial *trial, void *workspace, size_t bytes) {
  const bench_layer_data *data = trial->data;
  const attn_additive_args args =
      ATTN_STRUCT(attn_additive_args, .q = data->x, .k = data->x + keys_at(data->bench),
                  .v = data->x + additive_values_at(data->bench), .o = data->y, .profile = &trial->time);
  return attn_additive_run(trial->layer, &args, workspace, bytes);
}

static attn_nn_field additive_expect(const bench_chosen *c) {
  const bench_layer_data *data = c->data;
  const attn_problem *p = &data->bench->problem;
  const attn_additive_config config = additive_config(data);
  const bench_sequence keys = {data->x + keys_at(data->bench), ATTN_F32, p->seq_k, data->bench->width, c->batch};
  const bench_sequence values = {data->x + additive_values_at(data->bench), ATTN_F32, p->seq_k, p->dim_v, c->batch};
  attn_nn_field q = bench_chosen_x(c), k = bench_take(keys, NULL, p->seq_k), v = bench_take(values, NULL, p->seq_k);
  q = bench_then(bench_apply(&q, config.query, p->dim_qk), &q);
  k = bench_then(bench_apply(&k, config.key, p->dim_qk), &k);
  return one_head(c, config.score_weight, &q, &k, &v);
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
  const attn_regression regression =
      ATTN_STRUCT(attn_regression, .points = p->seq_k, .queries = p->seq_q, .dim_x = p->dim_qk, .dim_y = p->dim_v,
                  .query = data->x, .x = data->x + points_at(data->bench), .y = data->x + regression_values_at(data->bench),
                  .inverse_width = trial->wrong ? trial->layer : data->weights, .prediction = data->y);
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
  const bench_sequence queries = {data->x, ATTN_F32, p->seq_q, p->dim_qk, 0};
  const bench_sequence points = {data->x + points_at(data->bench), ATTN_F32, p->seq_k, p->dim_qk, 0};
  const bench_sequence values = {data->x + regression_values_at(data->bench), ATTN_F32, p->seq_k, p->dim_v, 0};
  attn_nn_field q = bench_take(queries, c->row, c->count), k = bench_take(points, NULL, p->seq_k),
                v = bench_take(values, NULL, p->seq_k);
  return one_head(c, data->weights, &q, &k, &v);
}

const bench_layer_functions bench_layer_regression = {.shape = regression_shape,
                                                      .prepare = prepare_regression,
                                                      .create = regression_create,
                                                      .destroy = free,
                                                      .run = regression_run,
                                                      .expect = regression_expect};

/* ---- Synthesizers ------------------------------------------------------------------------------------------------- */
/* Learnt for sequences of the case's own length. The hidden layer of the dense one is dim_qk wide. */

static bool is_dense(const bench_case *bench) { return bench_layer_of(bench)->id == LAYER_synthesizer_dense; }

/* Where each part of the weights and biases begins: dense has two matrices per head where random has its scores. */
typedef struct synthesizer_layout {
  int64_t second, value, output, weights;
  int64_t second_bias, value_bias, output_bias, biases;
} synthesizer_layout;

static synthesizer_layout lay_out(const bench_case *bench) {
  const attn_problem *p = &bench->problem;
  const bool dense = is_dense(bench);
  const int64_t heads = p->heads_q, hidden = p->dim_qk, length = p->seq_k, joined = heads * p->dim_v;
  synthesizer_layout l = {0};
  l.second = dense ? heads * bench->width * hidden : 0;
  l.value = dense ? l.second + heads * hidden * length : heads * length * length;
  l.output = l.value + bench->width * joined;
  l.weights = l.output + joined * bench->width;
  l.second_bias = dense ? heads * hidden : 0;
  l.value_bias = dense ? l.second_bias + heads * length : 0;
  l.output_bias = l.value_bias + joined;
  l.biases = l.output_bias + bench->width;
  return l;
}

static attn_linear first_of(const bench_layer_data *data, int64_t h) {
  const int64_t hidden = data->bench->problem.dim_qk;
  return bench_linear_at(data, h * data->bench->width * hidden, h * hidden);
}

static attn_linear second_of(const bench_layer_data *data, int64_t h) {
  const attn_problem *p = &data->bench->problem;
  const synthesizer_layout l = lay_out(data->bench);
  return bench_linear_at(data, l.second + h * p->dim_qk * p->seq_k, l.second_bias + h * p->seq_k);
}

static bench_layer_shape synthesizer_shape(const bench_case *bench) {
  const synthesizer_layout l = lay_out(bench);
  return bench_layer_rows_to_rows(bench, l.weights, l.biases);
}

/* Learnt scores are looked up, not multiplied. */
static double random_flops(const bench_case *bench) {
  const synthesizer_layout l = lay_out(bench);
  return bench_dense_flops(bench, l.weights - l.value);
}

/* Scores that differ by about one: the second matrices are `hidden` deep, and learnt scores are normal numbers
 * themselves. */
static void prepare_synthesizer(bench_layer_data *data) {
  const bench_case *bench = data->bench;
  const synthesizer_layout l = lay_out(bench);
  const float factor = sqrtf((float)bench->width / (is_dense(bench) ? (float)bench->problem.dim_qk : 1));
  for (int64_t i = l.second; i < l.value; i++) data->weights[i] *= factor;
}

/* The maps of each head, the first ones and then the second ones. Those of the wrong answer give all keys the same score. */
static void fill_maps(const bench_layer_trial *trial, attn_linear *maps, const float *zeros) {
  const int64_t heads = trial->data->bench->problem.heads_q;
  for (int64_t h = 0; h < heads && is_dense(trial->data->bench); h++) {
    maps[h] = first_of(trial->data, h);
    maps[heads + h] = trial->wrong ? (attn_linear){.weight = zeros} : second_of(trial->data, h);
  }
}

/* The layer copies the maps when it is created. */
static attn_status synthesizer_create(bench_layer_trial *trial) {
  const bench_layer_data *data = trial->data;
  const attn_problem *p = &data->bench->problem;
  const synthesizer_layout l = lay_out(data->bench);
  attn_linear *maps = calloc(2 * (size_t)p->heads_q, sizeof *maps);
  float *zeros = calloc((size_t)data->shape.weights + 1, sizeof *zeros); /* enough for the largest map or all scores */
  attn_synthesizer_config config = ATTN_STRUCT(
      attn_synthesizer_config, .kind = is_dense(data->bench) ? ATTN_SYNTHESIZER_DENSE : ATTN_SYNTHESIZER_RANDOM,
      .batch = p->batch, .seq = p->seq_q, .width = data->bench->width, .heads = p->heads_q, .dim_v = p->dim_v,
      .length = p->seq_k, .hidden = p->dim_qk, .causal = p->window_right == 0, .first = maps,
      .second = maps ? maps + p->heads_q : NULL, .scores = trial->wrong ? zeros : data->weights,
      .value = bench_linear_at(data, l.value, l.value_bias), .output = bench_linear_at(data, l.output, l.output_bias));
  attn_synthesizer *layer = NULL;
  attn_status status =
      maps && zeros ? ATTN_OK : attn_fail(ATTN_OUT_OF_MEMORY, "out of memory for the maps of a Synthesizer");
  if (status == ATTN_OK) fill_maps(trial, maps, zeros);
  if (status == ATTN_OK) status = attn_synthesizer_create(&config, &trial->options, &layer);
  free(maps);
  free(zeros);
  return bench_layer_made(trial, status, layer, attn_synthesizer_kernel(layer));
}

static void synthesizer_destroy(void *layer) { attn_synthesizer_destroy(layer); }
static size_t synthesizer_workspace(const bench_layer_trial *trial) { return attn_synthesizer_workspace(trial->layer); }

static attn_status synthesizer_run(bench_layer_trial *trial, void *workspace, size_t bytes) {
  const attn_synthesizer_args args =
      ATTN_STRUCT(attn_synthesizer_args, .x = trial->data->x, .y = trial->data->y, .profile = &trial->time);
  return attn_synthesizer_run(trial->layer, &args, workspace, bytes);
}

/* One head's scores of the chosen rows, into rows `at` .. of all. */
static void head_scores(const bench_chosen *c, const attn_nn_field *x, int64_t h, attn_nn_field *all) {
  const attn_problem *p = &c->data->bench->problem;
  const int64_t length = p->seq_k;
  attn_nn_field dense = {0};
  if (is_dense(c->data->bench)) {
    attn_nn_field inner = bench_apply(x, first_of(c->data, h), p->dim_qk);
    inner = bench_then(attn_nn_oracle_relu(&inner), &inner);
    dense = bench_then(bench_apply(&inner, second_of(c->data, h), length), &inner);
  }
  for (int64_t r = 0; r < c->count; r++)
    for (int64_t j = 0; j < length; j++) {
      const int64_t at = (h * c->count + r) * length + j;
      all->value[at] =
          dense.value ? dense.value[r * length + j] : (double)c->data->weights[(h * length + c->row[r]) * length + j];
      all->error[at] = dense.error ? dense.error[r * length + j] : 0;
    }
  attn_nn_field_destroy(&dense);
}

static attn_nn_field synthesizer_expect(const bench_chosen *c) {
  const attn_problem *p = &c->data->bench->problem;
  const synthesizer_layout l = lay_out(c->data->bench);
  attn_nn_field x = bench_chosen_x(c), v = bench_all_x(c);
  attn_nn_field scores = attn_nn_field_create(p->heads_q * c->count, p->seq_k);
  for (int64_t h = 0; h < p->heads_q; h++) head_scores(c, &x, h, &scores);
  v = bench_then(bench_apply(&v, bench_linear_at(c->data, l.value, l.value_bias), p->heads_q * p->dim_v), &v);
  attn_nn_attention attention = chosen_attention(c, p->heads_q);
  attention.problem.score = ATTN_SCORE_PRECOMPUTED;
  attention.problem.window_right = p->window_right;
  attention.scores = &scores;
  attn_nn_field o = bench_then(bench_attend(&attention, NULL, NULL, &v), &scores);
  attn_nn_field_destroy(&x);
  return bench_then(bench_apply(&o, bench_linear_at(c->data, l.output, l.output_bias), c->data->bench->width), &o);
}

#define SYNTHESIZER_FUNCTIONS                                                                                               \
  .shape = synthesizer_shape, .prepare = prepare_synthesizer, .create = synthesizer_create, .destroy = synthesizer_destroy, \
  .workspace = synthesizer_workspace, .run = synthesizer_run, .expect = synthesizer_expect

const bench_layer_functions bench_layer_synthesizer_dense = {SYNTHESIZER_FUNCTIONS};
const bench_layer_functions bench_layer_synthesizer_random = {SYNTHESIZER_FUNCTIONS, .flops = random_flops};
