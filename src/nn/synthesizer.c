/* SPDX-License-Identifier: MIT */
/* Synthesizer. Scores come from a small network that sees one row at a time (dense), or are learnt directly (random).
 * Attention then takes them as precomputed scores. Heads lie side by side in every row and are addressed by strides. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/api/error.h"
#include "src/nn/linear.h"
#include "src/plan/own_options.h"

struct attn_synthesizer {
  attn_synthesizer_config config; /* a copy; its pointers may no longer be valid */
  attn_options options;
  attn_option_names names;
  attn_product **first, **second; /* [heads]: DENSE */
  float *scores;                  /* [heads][length][length]: RANDOM */
  attn_product *value, *output;
  attn_plan *plan;
};

static const attn_struct_layout config_layout = ATTN_LAYOUT(attn_synthesizer_config, output);
static const attn_struct_layout args_layout = ATTN_LAYOUT(attn_synthesizer_args, profile);

static attn_status check_shape(const attn_synthesizer_config *c) {
  const attn_nn_size rows[] = {{"attn_synthesizer_config.batch", c->batch, 0},
                               {"attn_synthesizer_config.seq", c->seq, 0},
                               {"attn_synthesizer_config.width", c->width, 1}};
  const attn_nn_size scores[] = {{"attn_synthesizer_config.heads", c->heads, 1},
                                 {"attn_synthesizer_config.length", c->length, 1},
                                 {"attn_synthesizer_config.length", c->length, 1}};
  const attn_nn_size values[] = {{"attn_synthesizer_config.heads", c->heads, 1},
                                 {"attn_synthesizer_config.dim_v", c->dim_v, 1},
                                 {"attn_synthesizer_config.batch", c->batch, 0}};
  const attn_nn_size hidden[] = {{"attn_synthesizer_config.hidden", c->hidden, 1}};
  REQUIRE(c->kind == ATTN_SYNTHESIZER_DENSE || c->kind == ATTN_SYNTHESIZER_RANDOM,
          "attn_synthesizer_config.kind is %d; it must be ATTN_SYNTHESIZER_DENSE or _RANDOM", (int)c->kind);
  attn_status status = attn_nn_check_sizes(rows, NN_COUNT(rows));
  if (status == ATTN_OK) status = attn_nn_check_sizes(scores, NN_COUNT(scores));
  if (status == ATTN_OK) status = attn_nn_check_sizes(values, NN_COUNT(values));
  if (status == ATTN_OK && c->kind == ATTN_SYNTHESIZER_DENSE) status = attn_nn_check_sizes(hidden, NN_COUNT(hidden));
  if (status != ATTN_OK) return status;
  REQUIRE(c->seq <= c->length,
          "attn_synthesizer_config.seq is %" PRId64 " with length %" PRId64 "; scores were learnt for no more than that",
          c->seq, c->length);
  return ATTN_OK;
}

static attn_status check_synthesizer(const attn_synthesizer_config *c) {
  const attn_status status = check_shape(c);
  if (status != ATTN_OK) return status;
  const bool dense = c->kind == ATTN_SYNTHESIZER_DENSE;
  REQUIRE(dense || c->scores, "attn_synthesizer_config.scores is NULL; ATTN_SYNTHESIZER_RANDOM needs them");
  REQUIRE(!dense || (c->first && c->second), "attn_synthesizer_config.%s is NULL; ATTN_SYNTHESIZER_DENSE needs one per head",
          c->first ? "second" : "first");
  return ATTN_OK;
}

/* Room for the networks of all heads. */
static attn_status allocate_networks(attn_synthesizer *layer) {
  const size_t heads = (size_t)layer->config.heads;
  layer->first = calloc(heads, sizeof *layer->first);
  layer->second = calloc(heads, sizeof *layer->second);
  return layer->first && layer->second ? ATTN_OK : attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: %zu heads", heads);
}

static attn_status pack_scores(attn_synthesizer *layer, const attn_synthesizer_config *c, const attn_options *options) {
  if (c->kind == ATTN_SYNTHESIZER_RANDOM) {
    const size_t bytes = (size_t)(c->heads * c->length * c->length) * sizeof(float);
    layer->scores = attn_nn_allocate_shared("the learnt scores", bytes);
    if (!layer->scores) return ATTN_OUT_OF_MEMORY;
    memcpy(layer->scores, c->scores, bytes);
    return ATTN_OK;
  }
  attn_status status = allocate_networks(layer);
  for (int64_t h = 0; status == ATTN_OK && h < c->heads; h++) {
    const attn_nn_linear maps[] = {{.name = "attn_synthesizer_config.first",
                                    .given = &c->first[h],
                                    .in = c->width,
                                    .out = c->hidden,
                                    .after = attn_activation_function(ATTN_RELU, options),
                                    .product = &layer->first[h]},
                                   {.name = "attn_synthesizer_config.second",
                                    .given = &c->second[h],
                                    .in = c->hidden,
                                    .out = c->length,
                                    .product = &layer->second[h]}};
    status = attn_nn_create_linears(maps, NN_COUNT(maps), options, NULL);
  }
  return status;
}

static attn_status pack_weights(attn_synthesizer *layer, const attn_synthesizer_config *c, const attn_options *options) {
  const int64_t joined = c->heads * c->dim_v;
  const attn_status status = pack_scores(layer, c, options);
  const attn_nn_linear maps[] = {
      {.name = "attn_synthesizer_config.value", .given = &c->value, .in = c->width, .out = joined, .product = &layer->value},
      {.name = "attn_synthesizer_config.output",
       .given = &c->output,
       .in = joined,
       .out = c->width,
       .product = &layer->output}};
  return status == ATTN_OK ? attn_nn_create_linears(maps, NN_COUNT(maps), options, NULL) : status;
}

static attn_status plan_attention(attn_synthesizer *layer) {
  const attn_synthesizer_config *c = &layer->config;
  attn_problem p;
  attn_problem_init(&p, c->batch, c->heads, c->heads, c->seq, c->seq, 1, c->dim_v);
  attn_problem_set_bshd(&p);
  p.score = ATTN_SCORE_PRECOMPUTED;
  if (c->causal) attn_problem_set_causal(&p, ATTN_ALIGN_TOP_LEFT);
  if (c->use_kv_len) p.uses |= ATTN_USE_KV_LEN;
  const int64_t score_rows = c->kind == ATTN_SYNTHESIZER_DENSE ? c->seq : c->length;
  p.scores_stride = (attn_score_strides){.h = score_rows * c->length, .q = c->length, .k = 1};
  if (c->kind == ATTN_SYNTHESIZER_DENSE) p.scores_stride.b = c->heads * p.scores_stride.h; /* learnt scores have no batch */
  return attn_plan_create(&p, &layer->options, &layer->plan);
}

/* [values, heads side by side] [outputs, likewise] [hidden rows of one head] [scores] [workspace of one step at a time] */
typedef struct layout {
  int64_t v, o, hidden, scores, step, bytes;
  size_t step_bytes;
  bool fits;
} layout;

static layout layout_of(const attn_synthesizer *layer) {
  const attn_synthesizer_config *c = &layer->config;
  const int64_t rows = c->batch * c->seq, joined = c->heads * c->dim_v;
  const bool dense = c->kind == ATTN_SYNTHESIZER_DENSE;
  layout l = {0};
  const attn_product *products[] = {layer->value, layer->output, dense ? layer->first[0] : NULL,
                                    dense ? layer->second[0] : NULL};
  l.step_bytes = attn_plan_workspace(layer->plan);
  for (int i = 0; i < NN_COUNT(products); i++) {
    const size_t bytes = products[i] ? attn_product_workspace(products[i], rows) : 0;
    l.step_bytes = bytes > l.step_bytes ? bytes : l.step_bytes;
  }
  const memory_part parts[] = {{&l.v, rows, float_bytes(joined)},
                               {&l.o, rows, float_bytes(joined)},
                               {&l.hidden, rows, float_bytes(dense ? c->hidden : 0)},
                               {&l.scores, dense ? rows * c->heads : 0, float_bytes(c->length)},
                               {&l.step, 1, (int64_t)l.step_bytes}};
  l.fits = LAY_OUT(parts, &l.bytes);
  return l;
}

/* A layer that has a config and options only. NULL, with the sentence set, if there is no memory. */
static attn_synthesizer *new_layer(const attn_synthesizer_config *c, const attn_options *options) {
  attn_synthesizer *layer = attn_nn_new("attn_synthesizer", sizeof *layer);
  if (!layer) return NULL;
  layer->config = *c;
  layer->options = *options;
  attn_own_options(&layer->options, &layer->names);
  return layer;
}

/* Once it has its weights. Frees it on failure. */
static attn_status finish_layer(attn_synthesizer *layer, attn_status status, attn_synthesizer **result) {
  if (status == ATTN_OK) status = plan_attention(layer);
  if (status == ATTN_OK) status = attn_nn_check_fits("attn_synthesizer", layout_of(layer).fits);
  if (status != ATTN_OK) return attn_synthesizer_destroy(layer), status;
  *result = layer;
  return ATTN_OK;
}

attn_status attn_synthesizer_create(const attn_synthesizer_config *config, const attn_options *options,
                                    attn_synthesizer **result) {
  REQUIRE(result, "layer is NULL; it must point to where the layer's address goes");
  *result = NULL;
  attn_synthesizer_config c;
  attn_options wanted;
  attn_status status = attn_nn_read(&config_layout, "config", config, &c);
  if (status == ATTN_OK) status = check_synthesizer(&c);
  if (status == ATTN_OK) status = attn_options_read(options, &wanted);
  if (status != ATTN_OK) return status;
  attn_synthesizer *layer = new_layer(&c, &wanted);
  return layer ? finish_layer(layer, pack_weights(layer, &c, options), result) : ATTN_OUT_OF_MEMORY;
}

attn_status attn_synthesizer_reshape(const attn_synthesizer *layer, int64_t batch, int64_t seq,
                                     attn_synthesizer **reshaped) {
  REQUIRE(reshaped, "reshaped is NULL; it must point to where the layer's address goes");
  *reshaped = NULL;
  REQUIRE(layer, "layer is NULL; it must come from attn_synthesizer_create");
  attn_synthesizer_config c = layer->config;
  c.batch = batch;
  c.seq = seq;
  attn_status status = check_shape(&c);
  if (status != ATTN_OK) return status;
  attn_synthesizer *made = new_layer(&c, &layer->options);
  if (!made) return ATTN_OUT_OF_MEMORY;
  made->value = attn_product_share(layer->value);
  made->output = attn_product_share(layer->output);
  made->scores = attn_nn_share(layer->scores);
  if (layer->first) status = allocate_networks(made);
  for (int64_t h = 0; status == ATTN_OK && layer->first && h < c.heads; h++) {
    made->first[h] = attn_product_share(layer->first[h]);
    made->second[h] = attn_product_share(layer->second[h]);
  }
  return finish_layer(made, status, reshaped);
}

void attn_synthesizer_destroy(attn_synthesizer *layer) {
  if (!layer) return;
  for (int64_t h = 0; h < layer->config.heads; h++) {
    if (layer->first) attn_product_destroy(layer->first[h]);
    if (layer->second) attn_product_destroy(layer->second[h]);
  }
  free(layer->first);
  free(layer->second);
  attn_nn_unshare(layer->scores);
  attn_product_destroy(layer->value);
  attn_product_destroy(layer->output);
  attn_plan_destroy(layer->plan);
  free(layer);
}

size_t attn_synthesizer_workspace(const attn_synthesizer *layer) { return layer ? (size_t)layout_of(layer).bytes : 0; }

/* scores[batch][heads][seq][length] */
static attn_status make_scores(const attn_synthesizer *layer, const float *x, const layout *l, char *memory) {
  const attn_synthesizer_config *c = &layer->config;
  float *hidden = floats_at(memory, l->hidden), *scores = floats_at(memory, l->scores);
  const attn_nn_rows first = {.rows = c->batch * c->seq, .in = c->width, .out = c->hidden};
  attn_status status = ATTN_OK;
  for (int64_t h = 0; status == ATTN_OK && h < c->heads; h++) {
    status = attn_nn_linear_run(layer->first[h], first, x, hidden, memory + l->step, l->step_bytes);
    if (status != ATTN_OK) break;
    const attn_product_args args = {.struct_size = sizeof args,
                                    .batch = c->batch,
                                    .rows = c->seq,
                                    .x = hidden,
                                    .x_stride = {.b = c->seq * c->hidden, .s = c->hidden, .d = 1},
                                    .y = scores + h * c->seq * c->length,
                                    .y_stride = {.b = c->heads * c->seq * c->length, .s = c->length, .d = 1}};
    status = attn_product_run(layer->second[h], &args, memory + l->step, l->step_bytes);
  }
  return status;
}

const char *attn_synthesizer_kernel(const attn_synthesizer *layer) { return layer ? attn_plan_kernel(layer->plan) : ""; }

static attn_status run_synthesizer(const attn_synthesizer *layer, const attn_synthesizer_args *args, void *workspace,
                                   size_t bytes) {
  const attn_synthesizer_config *c = &layer->config;
  const attn_nn_rows values = {.rows = c->batch * c->seq, .in = c->width, .out = c->heads * c->dim_v};
  const attn_nn_rows outputs = {.rows = c->batch * c->seq, .in = c->heads * c->dim_v, .out = c->width};
  if (values.rows == 0) return ATTN_OK;
  const attn_nn_pointer pointers[] = {{"attn_synthesizer_args.x", args->x}, {"attn_synthesizer_args.y", args->y}};
  const layout l = layout_of(layer);
  attn_status status = attn_nn_check_pointers(pointers, NN_COUNT(pointers));
  if (status == ATTN_OK) status = attn_check_workspace("attn_synthesizer", workspace, bytes, (size_t)l.bytes);
  if (status != ATTN_OK) return status;
  const double begin = attn_nn_now_ns(args->profile);
  char *memory = workspace;
  float *v = floats_at(memory, l.v), *o = floats_at(memory, l.o);
  const bool dense = c->kind == ATTN_SYNTHESIZER_DENSE;
  if (dense) status = make_scores(layer, args->x, &l, memory);
  if (status == ATTN_OK) status = attn_nn_linear_run(layer->value, values, args->x, v, memory + l.step, l.step_bytes);
  if (status != ATTN_OK) return status;
  const attn_args inner = {.struct_size = sizeof inner,
                           .v = v,
                           .o = o,
                           .scores = dense ? floats_at(memory, l.scores) : layer->scores,
                           .kv_len = args->kv_len};
  const double projected = attn_nn_now_ns(args->profile);
  status = attn_plan_run(layer->plan, &inner, memory + l.step, l.step_bytes);
  const double attended = attn_nn_now_ns(args->profile);
  if (status == ATTN_OK) status = attn_nn_linear_run(layer->output, outputs, o, args->y, memory + l.step, l.step_bytes);
  if (status == ATTN_OK)
    attn_nn_add_times(args->profile, &(attn_nn_times){begin, projected, attended, attn_nn_now_ns(args->profile)});
  return status;
}

attn_status attn_synthesizer_run(const attn_synthesizer *layer, const attn_synthesizer_args *args, void *workspace,
                                 size_t bytes) {
  REQUIRE(layer, "layer is NULL; it must come from attn_synthesizer_create");
  attn_synthesizer_args own;
  const attn_status status = attn_nn_read(&args_layout, "args", args, &own);
  return status == ATTN_OK ? run_synthesizer(layer, &own, workspace, bytes) : status;
}
