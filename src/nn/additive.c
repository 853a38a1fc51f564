/* SPDX-License-Identifier: MIT */
/* Additive attention: two products, then the additive score of libattn. Keys can be projected once for many queries. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/api/error.h"
#include "src/nn/linear.h"
#include "src/plan/own_options.h"

struct attn_additive {
  attn_additive_config config; /* a copy; its pointers may no longer be valid */
  attn_options options;
  attn_option_names names;
  attn_product *query, *key;
  float *score_weight;
  attn_problem problem;
  attn_plan *plan;
};

static const attn_struct_layout config_layout = ATTN_LAYOUT(attn_additive_config, score_weight);
static const attn_struct_layout args_layout = ATTN_LAYOUT(attn_additive_args, weights);

static attn_status check_shape(const attn_additive_config *c) {
  const attn_nn_size queries[] = {{"attn_additive_config.batch", c->batch, 0},
                                  {"attn_additive_config.seq_q", c->seq_q, 0},
                                  {"attn_additive_config.width_q", c->width_q, 1}};
  const attn_nn_size keys[] = {{"attn_additive_config.batch", c->batch, 0},
                               {"attn_additive_config.seq_k", c->seq_k, 0},
                               {"attn_additive_config.width_k", c->width_k, 1}};
  const attn_nn_size inner[] = {{"attn_additive_config.hidden", c->hidden, 1}};
  const attn_nn_size values[] = {{"attn_additive_config.dim_v", c->dim_v, 1}};
  attn_status status = attn_nn_check_sizes(queries, NN_COUNT(queries));
  if (status == ATTN_OK) status = attn_nn_check_sizes(keys, NN_COUNT(keys));
  if (status == ATTN_OK) status = attn_nn_check_sizes(inner, NN_COUNT(inner));
  if (status == ATTN_OK) status = attn_nn_check_sizes(values, NN_COUNT(values));
  return status;
}

static attn_status check_additive(const attn_additive_config *c) {
  const attn_status status = check_shape(c);
  if (status != ATTN_OK) return status;
  REQUIRE(c->score_weight, "attn_additive_config.score_weight is NULL; it must point to hidden floats");
  return ATTN_OK;
}

static attn_status pack_weights(attn_additive *layer, const attn_additive_config *c, const attn_options *options) {
  const attn_nn_linear maps[] = {
      {.name = "attn_additive_config.query",
       .given = &c->query,
       .in = c->width_q,
       .out = c->hidden,
       .product = &layer->query},
      {.name = "attn_additive_config.key", .given = &c->key, .in = c->width_k, .out = c->hidden, .product = &layer->key}};
  const attn_status status = attn_nn_create_linears(maps, NN_COUNT(maps), options, NULL);
  if (status != ATTN_OK) return status;
  layer->score_weight = attn_nn_allocate_shared("score_weight", (size_t)c->hidden * sizeof(float));
  if (!layer->score_weight) return ATTN_OUT_OF_MEMORY;
  memcpy(layer->score_weight, c->score_weight, (size_t)c->hidden * sizeof(float));
  return ATTN_OK;
}

static attn_status plan_attention(attn_additive *layer) {
  const attn_additive_config *c = &layer->config;
  attn_problem_init(&layer->problem, c->batch, 1, 1, c->seq_q, c->seq_k, c->hidden, c->dim_v);
  layer->problem.score = ATTN_SCORE_ADDITIVE;
  layer->problem.uses = ATTN_USE_SCORE_WEIGHT | (c->use_kv_len ? ATTN_USE_KV_LEN : 0);
  return attn_plan_create(&layer->problem, &layer->options, &layer->plan);
}

/* [projected queries] [projected keys] [workspace of one product or of the attention, in turn] */
typedef struct layout {
  int64_t q, k, step, bytes;
  size_t step_bytes;
  bool fits;
} layout;

static size_t most(size_t a, size_t b) { return a > b ? a : b; }

static layout layout_of(const attn_additive *layer) {
  const attn_additive_config *c = &layer->config;
  layout l = {0};
  l.step_bytes = most(attn_plan_workspace(layer->plan), most(attn_product_workspace(layer->query, c->batch * c->seq_q),
                                                             attn_product_workspace(layer->key, c->batch * c->seq_k)));
  const memory_part parts[] = {{&l.q, c->batch * c->seq_q, float_bytes(c->hidden)},
                               {&l.k, c->batch * c->seq_k, float_bytes(c->hidden)},
                               {&l.step, 1, (int64_t)l.step_bytes}};
  l.fits = LAY_OUT(parts, &l.bytes);
  return l;
}

/* A layer that has a config and options only. NULL, with the sentence set, if there is no memory. */
static attn_additive *new_layer(const attn_additive_config *c, const attn_options *options) {
  attn_additive *layer = attn_nn_new("attn_additive", sizeof *layer);
  if (!layer) return NULL;
  layer->config = *c;
  layer->options = *options;
  attn_own_options(&layer->options, &layer->names);
  return layer;
}

/* Once it has its weights. Frees it on failure. */
static attn_status finish_layer(attn_additive *layer, attn_status status, attn_additive **result) {
  if (status == ATTN_OK) status = plan_attention(layer);
  if (status == ATTN_OK) status = attn_nn_check_fits("attn_additive", layout_of(layer).fits);
  if (status != ATTN_OK) return attn_additive_destroy(layer), status;
  *result = layer;
  return ATTN_OK;
}

attn_status attn_additive_create(const attn_additive_config *config, const attn_options *options, attn_additive **result) {
  REQUIRE(result, "layer is NULL; it must point to where the layer's address goes");
  *result = NULL;
  attn_additive_config c;
  attn_options wanted;
  attn_status status = attn_nn_read(&config_layout, "config", config, &c);
  if (status == ATTN_OK) status = check_additive(&c);
  if (status == ATTN_OK) status = attn_options_read(options, &wanted);
  if (status != ATTN_OK) return status;
  attn_additive *layer = new_layer(&c, &wanted);
  return layer ? finish_layer(layer, pack_weights(layer, &c, options), result) : ATTN_OUT_OF_MEMORY;
}

attn_status attn_additive_reshape(const attn_additive *layer, int64_t batch, int64_t seq_q, int64_t seq_k,
                                  attn_additive **reshaped) {
  REQUIRE(reshaped, "reshaped is NULL; it must point to where the layer's address goes");
  *reshaped = NULL;
  REQUIRE(layer, "layer is NULL; it must come from attn_additive_create");
  attn_additive_config c = layer->config;
  c.batch = batch;
  c.seq_q = seq_q;
  c.seq_k = seq_k;
  const attn_status status = check_shape(&c);
  if (status != ATTN_OK) return status;
  attn_additive *made = new_layer(&c, &layer->options);
  if (!made) return ATTN_OUT_OF_MEMORY;
  made->query = attn_product_share(layer->query);
  made->key = attn_product_share(layer->key);
  made->score_weight = attn_nn_share(layer->score_weight);
  return finish_layer(made, ATTN_OK, reshaped);
}

void attn_additive_destroy(attn_additive *layer) {
  if (!layer) return;
  attn_product_destroy(layer->query);
  attn_product_destroy(layer->key);
  attn_plan_destroy(layer->plan);
  attn_nn_unshare(layer->score_weight);
  free(layer);
}

const char *attn_additive_kernel(const attn_additive *layer) { return layer ? attn_plan_kernel(layer->plan) : ""; }

size_t attn_additive_workspace(const attn_additive *layer) { return layer ? (size_t)layout_of(layer).bytes : 0; }

attn_status attn_additive_project_keys(const attn_additive *layer, const float *k, float *projected, void *workspace,
                                       size_t bytes) {
  REQUIRE(layer, "layer is NULL; it must come from attn_additive_create");
  const attn_additive_config *c = &layer->config;
  const attn_nn_pointer pointers[] = {{"k", k}, {"projected", projected}};
  const attn_nn_rows shape = {.rows = c->batch * c->seq_k, .in = c->width_k, .out = c->hidden};
  if (shape.rows == 0) return ATTN_OK;
  const layout l = layout_of(layer);
  attn_status status = attn_nn_check_pointers(pointers, NN_COUNT(pointers));
  if (status == ATTN_OK) status = attn_check_workspace("attn_additive", workspace, bytes, (size_t)l.bytes);
  return status == ATTN_OK ? attn_nn_linear_run(layer->key, shape, k, projected, (char *)workspace + l.step, l.step_bytes)
                           : status;
}

static attn_status read_args(const attn_additive *layer, const attn_additive_args *theirs, attn_additive_args *args) {
  REQUIRE(layer, "layer is NULL; it must come from attn_additive_create");
  const attn_status status = attn_nn_read(&args_layout, "args", theirs, args);
  if (status != ATTN_OK) return status;
  const attn_additive_config *c = &layer->config;
  REQUIRE(args->q || c->batch * c->seq_q == 0, "attn_additive_args.q is NULL; it must point to its elements");
  REQUIRE(args->k || args->projected_k || c->batch * c->seq_k == 0,
          "attn_additive_args.k and projected_k are NULL; one must point to its elements");
  return ATTN_OK; /* attn_plan_run checks v, o and kv_len */
}

static attn_status run_additive(const attn_additive *layer, const attn_additive_args *args, void *workspace, size_t bytes) {
  const layout l = layout_of(layer);
  attn_status status = attn_check_workspace("attn_additive", workspace, bytes, (size_t)l.bytes);
  if (status != ATTN_OK) return status;
  const attn_additive_config *c = &layer->config;
  char *memory = workspace;
  float *q = floats_at(memory, l.q), *k = floats_at(memory, l.k);
  const double begin = attn_nn_now_ns(args->profile);
  const attn_nn_rows queries = {.rows = c->batch * c->seq_q, .in = c->width_q, .out = c->hidden};
  if (queries.rows > 0) status = attn_nn_linear_run(layer->query, queries, args->q, q, memory + l.step, l.step_bytes);
  if (status == ATTN_OK && !args->projected_k) status = attn_additive_project_keys(layer, args->k, k, workspace, bytes);
  if (status != ATTN_OK) return status;
  const attn_args inner = {.struct_size = sizeof inner,
                           .q = q,
                           .k = args->projected_k ? args->projected_k : k,
                           .v = args->v,
                           .o = args->o,
                           .kv_len = args->kv_len,
                           .score_weight = layer->score_weight};
  const double projected = attn_nn_now_ns(args->profile);
  status = attn_plan_run(layer->plan, &inner, memory + l.step, l.step_bytes);
  const double end = attn_nn_now_ns(args->profile);
  if (status == ATTN_OK) attn_nn_add_times(args->profile, &(attn_nn_times){begin, projected, end, end});
  if (status != ATTN_OK || !args->weights) return status;
  attn_options options = layer->options;
  options.kernel = attn_plan_kernel(layer->plan);
  return attn_weights(&layer->problem, &inner, &options, args->weights);
}

attn_status attn_additive_run(const attn_additive *layer, const attn_additive_args *args, void *workspace, size_t bytes) {
  attn_additive_args own;
  const attn_status status = read_args(layer, args, &own);
  return status == ATTN_OK ? run_additive(layer, &own, workspace, bytes) : status;
}
