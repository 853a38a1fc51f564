/* SPDX-License-Identifier: MIT */
/* Layers without weights that depend on the order of tokens: sinusoidal positions, and a decoding step with a KV cache. */
#include <stdlib.h>
#include <string.h>

#include "attn/extend.h"
#include "layers/layer.h"

/* ---- Sinusoidal positions: rows 0 .. seq - 1 ---- */

static bench_layer_shape positions_shape(const bench_case *bench) {
  return (bench_layer_shape){.rows = bench->problem.seq_q, .columns = bench->width};
}

/* The wrong answer has frequencies of base 100 instead of 10000. They are the first half of those for twice the width. */
static attn_status run_base_100(const bench_layer_data *data) {
  const int64_t width = data->bench->width;
  float *twice = malloc(2 * (size_t)width * sizeof *twice);
  if (!twice) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory for a row of positions");
  attn_status status = ATTN_OK;
  for (int64_t row = 0; row < data->bench->problem.seq_q && status == ATTN_OK; row++) {
    status = attn_sinusoidal_positions(row, 1, 2 * width, twice);
    if (status == ATTN_OK) memcpy(data->y + row * width, twice, (size_t)width * sizeof *twice);
  }
  free(twice);
  return status;
}

static attn_status positions_run(bench_layer_trial *trial, void *workspace, size_t bytes) {
  (void)workspace, (void)bytes;
  const bench_layer_data *data = trial->data;
  if (trial->wrong) return run_base_100(data);
  return attn_sinusoidal_positions(0, data->bench->problem.seq_q, data->bench->width, data->y);
}

static attn_nn_field positions_expect(const bench_chosen *c) {
  const int64_t width = c->data->bench->width;
  attn_nn_field chosen = attn_nn_field_create(c->count, width);
  for (int64_t r = 0; r < c->count; r++) {
    attn_nn_field one = attn_nn_oracle_positions(c->row[r], 1, width);
    memcpy(chosen.value + r * width, one.value, (size_t)width * sizeof *one.value);
    memcpy(chosen.error + r * width, one.error, (size_t)width * sizeof *one.error);
    attn_nn_field_destroy(&one);
  }
  return chosen;
}

const bench_layer_functions bench_layer_positions = {
    .shape = positions_shape, .wrong = "frequencies of another base", .run = positions_run, .expect = positions_expect};

/* ---- A decoding step: seq_q new tokens per sequence behind seq_k - seq_q that the cache holds ---- */

/* x: queries of the step, its keys and values, then those already cached; each [batch][heads][tokens][dim]. */
typedef struct step_layout {
  int64_t tokens, cached;
  int64_t k, v, cached_k, cached_v, inputs; /* where each begins */
} step_layout;

static step_layout lay_out(const bench_case *bench) {
  const attn_problem *p = &bench->problem;
  const int64_t shared = p->batch * p->heads_kv;
  step_layout l = {.tokens = p->seq_q, .cached = p->seq_k - p->seq_q};
  l.k = p->batch * p->heads_q * l.tokens * p->dim_qk;
  l.v = l.k + shared * l.tokens * p->dim_qk;
  l.cached_k = l.v + shared * l.tokens * p->dim_v;
  l.cached_v = l.cached_k + shared * l.cached * p->dim_qk;
  l.inputs = l.cached_v + shared * l.cached * p->dim_v;
  return l;
}

/* A row of y is one head's output for one token, as attn_kv_cache_step gives them. */
static bench_layer_shape step_shape(const bench_case *bench) {
  const attn_problem *p = &bench->problem;
  return (bench_layer_shape){.inputs = lay_out(bench).inputs,
                             .inputs_read = lay_out(bench).cached_k,
                             .rows = p->heads_q * p->seq_q,
                             .columns = p->dim_v};
}

static void step_destroy(void *layer) { attn_kv_cache_destroy(layer); }

/* A first step on the empty cache makes the plan, which names the kernel. */
static attn_status step_create(bench_layer_trial *trial) {
  const bench_layer_data *data = trial->data;
  const attn_problem *p = &data->bench->problem;
  const step_layout l = lay_out(data->bench);
  const attn_kv_cache_shape shape =
      ATTN_STRUCT(attn_kv_cache_shape, .batch = p->batch, .heads_q = p->heads_q, .heads_kv = p->heads_kv,
                  .dim_qk = p->dim_qk, .dim_v = p->dim_v, .capacity = p->seq_k, .dtype = ATTN_F32);
  attn_kv_cache *cache = NULL;
  attn_status status = attn_kv_cache_create(&shape, &trial->options, &cache);
  if (status == ATTN_OK) status = attn_kv_cache_step(cache, l.tokens, NULL, data->x, data->x + l.k, data->x + l.v, data->y);
  if (status == ATTN_OK) status = attn_kv_cache_truncate(cache, 0);
  return bench_layer_made(trial, status, cache, status == ATTN_OK ? attn_kv_cache_kernel(cache) : "");
}

/* ---- The cache before the step ---- */

/* Copies the tokens from `first` on of [heads][cached][dim]; returns the place behind the copy. */
static float *cut(const float *from, int64_t heads, int64_t cached, int64_t dim, int64_t first, int64_t tokens, float *to) {
  for (int64_t h = 0; h < heads; h++, to += tokens * dim)
    memcpy(to, from + (h * cached + first) * dim, (size_t)(tokens * dim) * sizeof *to);
  return to;
}

/* Some tokens of the prompt. Their queries, which are 0, and their outputs do not matter. */
static attn_status append(const bench_layer_data *data, attn_kv_cache *cache, int64_t first, int64_t tokens) {
  const attn_problem *p = &data->bench->problem;
  const step_layout l = lay_out(data->bench);
  const int64_t shared = p->batch * p->heads_kv, queries = p->batch * p->heads_q * tokens * p->dim_qk;
  const int64_t rows = p->batch * (p->heads_q + p->heads_kv) * tokens;
  float *q = calloc((size_t)(rows * (p->dim_qk + p->dim_v)), sizeof *q);
  if (!q) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory for a prompt");
  float *k = q + queries;
  float *v = cut(data->x + l.cached_k, shared, l.cached, p->dim_qk, first, tokens, k);
  float *o = cut(data->x + l.cached_v, shared, l.cached, p->dim_v, first, tokens, v);
  const attn_status status = attn_kv_cache_step(cache, tokens, NULL, q, k, v, o);
  free(q);
  return status;
}

/* In steps as long as the kernel allows: decode kernels take few rows. */
static attn_status fill(const bench_layer_data *data, attn_kv_cache *cache) {
  const int64_t cached = lay_out(data->bench).cached;
  attn_status status = ATTN_OK;
  for (int64_t first = 0, tokens = cached; first < cached && status == ATTN_OK; first += tokens) {
    if (tokens > cached - first) tokens = cached - first;
    while ((status = append(data, cache, first, tokens)) == ATTN_UNSUPPORTED && tokens > 1) tokens /= 2;
  }
  return status;
}

/* The first call, which is the check's, fills the cache. Queries of the wrong answer are 0. */
static attn_status step_run(bench_layer_trial *trial, void *workspace, size_t bytes) {
  (void)workspace, (void)bytes;
  const bench_layer_data *data = trial->data;
  const step_layout l = lay_out(data->bench);
  attn_status status = ATTN_OK;
  if (attn_kv_cache_lengths(trial->layer)[0] < l.cached) status = fill(data, trial->layer);
  if (status == ATTN_OK) status = attn_kv_cache_truncate(trial->layer, l.cached);
  if (status != ATTN_OK) return status;
  float *zeros = trial->wrong ? calloc((size_t)l.k + 1, sizeof *zeros) : NULL;
  if (trial->wrong && !zeros) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory for queries of 0");
  const float *q = zeros ? zeros : data->x;
  status = attn_kv_cache_step(trial->layer, l.tokens, NULL, q, data->x + l.k, data->x + l.v, data->y);
  free(zeros);
  return status;
}

/* ---- Expected answer ---- */

/* Copies one sequence from base[batch][heads][tokens][dim] into rows `at` .. of a field with heads side by side. */
static void take_heads(const float *base, int64_t batch, int64_t heads, int64_t tokens, int64_t at, attn_nn_field *field) {
  const int64_t dim = field->width / heads;
  for (int64_t h = 0; h < heads; h++)
    for (int64_t t = 0; t < tokens; t++)
      for (int64_t d = 0; d < dim; d++)
        field->value[(at + t) * field->width + h * dim + d] = (double)base[((batch * heads + h) * tokens + t) * dim + d];
}

/* The right answer for all rows of a step of the KV cache. */
static attn_nn_field step_oracle(const bench_chosen *c) {
  const float *x = c->data->x;
  const attn_problem *p = &c->data->bench->problem;
  const step_layout l = lay_out(c->data->bench);
  attn_nn_field q = attn_nn_field_create(l.tokens, p->heads_q * p->dim_qk);
  attn_nn_field k = attn_nn_field_create(p->seq_k, p->heads_kv * p->dim_qk);
  attn_nn_field v = attn_nn_field_create(p->seq_k, p->heads_kv * p->dim_v);
  take_heads(x, c->batch, p->heads_q, l.tokens, 0, &q);
  take_heads(x + l.cached_k, c->batch, p->heads_kv, l.cached, 0, &k);
  take_heads(x + l.k, c->batch, p->heads_kv, l.tokens, l.cached, &k);
  take_heads(x + l.cached_v, c->batch, p->heads_kv, l.cached, 0, &v);
  take_heads(x + l.v, c->batch, p->heads_kv, l.tokens, l.cached, &v);
  attn_nn_attention attention = {.numerics = *c->numerics};
  attn_problem_init(&attention.problem, 1, p->heads_q, p->heads_kv, l.tokens, p->seq_k, p->dim_qk, p->dim_v);
  attn_problem_set_causal(&attention.problem, ATTN_ALIGN_BOTTOM_RIGHT);
  attention.problem.scale = p->scale;
  return bench_attend(&attention, &q, &k, &v);
}

static attn_nn_field step_expect(const bench_chosen *c) {
  const attn_problem *p = &c->data->bench->problem;
  attn_nn_field o = step_oracle(c), chosen = attn_nn_field_create(c->count, p->dim_v);
  for (int64_t r = 0; r < c->count; r++) {
    const int64_t h = c->row[r] / p->seq_q, t = c->row[r] % p->seq_q, at = t * o.width + h * p->dim_v;
    memcpy(chosen.value + r * p->dim_v, o.value + at, (size_t)p->dim_v * sizeof *o.value);
    memcpy(chosen.error + r * p->dim_v, o.error + at, (size_t)p->dim_v * sizeof *o.error);
  }
  return bench_then(chosen, &o);
}

const bench_layer_functions bench_layer_decode_step = {
    .shape = step_shape, .create = step_create, .destroy = step_destroy, .run = step_run, .expect = step_expect};
