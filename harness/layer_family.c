/* More of libattn_nn as layers: every one maps rows of x to rows of y, so that they share all but their formula. Where a second
 * sequence is needed (memory, keys, known points), it is x itself. The kinds differ in four functions, listed at the end. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/nn.h"
#include "attn/product.h"
#include "clock.h"
#include "layer_kinds.h"
#include "src/nn/ref/nn_oracle_f64.h"

static const float EPSILON = 1e-5f;

typedef struct family family;

/* A layer that was made. */
typedef struct made_layer {
  const family *of;
  const bench_layer_data *data;
  void *layer;
  bool uniform;
  attn_options options;
  char kernel[64];       /* of layers without attention: the one that the case's attention would have run, as a label */
  attn_product *example; /* made as the layer makes its own: knows the name */
} made_layer;

/* The chosen rows of one batch, and all rows of it. */
typedef struct chosen {
  const bench_layer_data *data;
  const attn_numerics *numerics;
  int64_t batch, count;
  const int64_t *row;       /* within the batch */
  attn_nn_field x, all;     /* [count][width], [seq][width] */
  const attn_nn_field *mha; /* decoder: the self-attention of the chosen rows */
} chosen;

struct family {
  attn_status (*create)(made_layer *made);
  void (*destroy)(void *layer);
  size_t (*workspace)(const made_layer *made);
  attn_status (*run)(made_layer *made, void *workspace, size_t bytes, bench_layer_time *time);
  attn_nn_field (*expect)(const chosen *c);
  bool after_mha; /* expect wants the self-attention's rows */
};

static int64_t rows_of(const bench_layer_data *data) { return data->bench->problem.batch * data->bench->problem.seq_q; }

static void add_times(bench_layer_time *time, const attn_mha_profile *profile) {
  time->projections_ns += profile->projections_ns;
  time->attention_ns += profile->attention_ns;
  time->total_ns += profile->total_ns;
}

static attn_nn_field then(attn_nn_field next, attn_nn_field *used) {
  attn_nn_field_destroy(used);
  return next;
}

/* [in][out] at `at` of the weights, with the bias at `bias_at`. */
static attn_linear linear_at(const bench_layer_data *data, int64_t at, int64_t bias_at) {
  return (attn_linear){.weight = data->weights + at, .bias = data->biases + bias_at};
}

static attn_nn_field apply(const attn_nn_field *x, attn_linear linear, int64_t out) {
  const attn_nn_matrix matrix = {.w = linear.weight, .in_stride = out, .out_stride = 1, .b = linear.bias};
  return attn_nn_oracle_linear(x, &matrix, out);
}

/* ---- What all kinds do ---- */

static void unmake(void *pointer) {
  made_layer *made = pointer;
  if (!made) return;
  if (made->of->destroy) made->of->destroy(made->layer);
  attn_product_destroy(made->example);
  free(made);
}

static attn_status name_kernel(made_layer *made) {
  attn_plan *plan;
  const attn_status status = attn_plan_create(&made->data->bench->problem, &made->options, &plan);
  snprintf(made->kernel, sizeof made->kernel, "%s", attn_plan_kernel(plan));
  attn_plan_destroy(plan);
  return status;
}

static attn_status make(const family *of, const bench_layer_data *data, const attn_options *options, bool uniform,
                        void **result) {
  made_layer *made = calloc(1, sizeof *made);
  if (!made) return ATTN_OUT_OF_MEMORY;
  *made = (made_layer){.of = of, .data = data, .uniform = uniform, .options = *options};
  attn_options products = *options;
  products.kernel = NULL;
  const attn_product_weights one = {.depth = 1, .columns = 1, .weight = data->weights};
  attn_status status = attn_product_create(&one, &products, &made->example);
  if (status == ATTN_OK) status = name_kernel(made);
  if (status == ATTN_OK) status = of->create(made);
  if (status == ATTN_OK)
    *result = made;
  else
    unmake(made);
  return status;
}

static size_t workspace_of(const void *pointer) {
  const made_layer *made = pointer;
  return made->of->workspace ? made->of->workspace(made) : 0;
}
static const char *kernel_of(const void *made) { return ((const made_layer *)made)->kernel; }
static const char *product_of(const void *made) { return attn_product_name(((const made_layer *)made)->example); }

static attn_status run(const bench_layer_data *data, void *pointer, void *workspace, size_t bytes, bench_layer_time *time) {
  (void)data;
  made_layer *made = pointer;
  return made->of->run(made, workspace, bytes, time);
}

/* Rows `row` of the batch, from x; or all of it. */
static attn_nn_field take_rows(const bench_layer_data *data, int64_t batch, const int64_t *row, int64_t count) {
  const int64_t width = data->bench->width, seq = data->bench->problem.seq_q;
  attn_nn_field field = attn_nn_field_create(count, width);
  for (int64_t r = 0; r < count; r++)
    for (int64_t c = 0; c < width; c++)
      field.value[r * width + c] = (double)data->x[(batch * seq + (row ? row[r] : r)) * width + c];
  return field;
}

/* One batch at a time: its chosen rows stand side by side. */
static bool expect(const family *of, bench_layer_data *data, const attn_numerics *numerics, const bench_layer_rows *rows) {
  const int64_t width = data->bench->width;
  if (of->after_mha && !bench_mha_expect(data, numerics, rows)) return false;
  for (int64_t first = 0, next; first < rows->count; first = next) {
    for (next = first; next < rows->count && rows->batch[next] == rows->batch[first];) next++;
    chosen c = {
        .data = data, .numerics = numerics, .batch = rows->batch[first], .count = next - first, .row = rows->row + first};
    c.x = take_rows(data, c.batch, c.row, c.count);
    c.all = take_rows(data, c.batch, NULL, data->bench->problem.seq_q);
    attn_nn_field mha = attn_nn_field_create(c.count, width);
    for (int64_t i = 0; of->after_mha && i < c.count * width; i++) {
      mha.value[i] = rows->value[first * width + i];
      mha.error[i] = rows->limit[first * width + i] / ATTN_NN_SIGMAS;
    }
    c.mha = &mha;
    attn_nn_field y = of->expect(&c);
    for (int64_t i = 0; i < c.count * width; i++) {
      rows->value[first * width + i] = y.value[i];
      rows->limit[first * width + i] = ATTN_NN_SIGMAS * y.error[i] + 0x1p-126;
    }
    attn_nn_field *used[] = {&y, &mha, &c.x, &c.all};
    for (int i = 0; i < 4; i++) attn_nn_field_destroy(used[i]);
  }
  return true;
}

static void forget_nothing(bench_layer_data *data) { (void)data; }

static int64_t case_rows(const bench_case *bench) { return bench->problem.batch * bench->problem.seq_q; }

/* ---- Cross-attention ---- */

static attn_mha_problem cross_problem(const bench_layer_data *data, int64_t batch, int64_t seq_q) {
  const attn_problem *p = &data->bench->problem;
  attn_mha_problem problem;
  attn_cross_attention_init(&problem, batch, p->heads_q, seq_q, p->seq_k, data->bench->width, data->bench->width);
  attn_problem_init(&problem.attention, batch, p->heads_q, p->heads_kv, seq_q, p->seq_k, p->dim_qk, p->dim_v);
  problem.attention.scale = p->scale;
  return problem;
}

static attn_status cross_create(made_layer *made) {
  attn_mha_problem problem = cross_problem(made->data, made->data->bench->problem.batch, made->data->bench->problem.seq_q);
  if (made->uniform) problem.attention.scale = 0;
  const attn_mha_weights weights = bench_mha_weights_of(made->data);
  const attn_mha_options options = {.attention = made->options};
  attn_mha *mha = NULL;
  const attn_status status = attn_mha_create(&problem, &weights, &options, &mha);
  made->layer = mha;
  snprintf(made->kernel, sizeof made->kernel, "%s", attn_mha_kernel(mha));
  return status;
}

static void cross_destroy(void *layer) { attn_mha_destroy(layer); }
static size_t cross_workspace(const made_layer *made) { return attn_mha_workspace(made->layer); }

static attn_status cross_run(made_layer *made, void *workspace, size_t bytes, bench_layer_time *time) {
  attn_mha_profile profile = {0};
  const attn_mha_args args = {.x = made->data->x, .memory = made->data->x, .y = made->data->y, .profile = &profile};
  const attn_status status = attn_mha_run(made->layer, &args, workspace, bytes);
  add_times(time, &profile);
  return status;
}

static attn_nn_field cross_attend(const chosen *c, const bench_layer_data *weights_at, const attn_nn_field *x) {
  const attn_mha_problem problem = cross_problem(c->data, 1, c->count);
  const attn_mha_weights weights = bench_mha_weights_of(weights_at);
  return attn_nn_oracle_mha(&problem, &weights, &(attn_args){0}, c->numerics, x, &c->all);
}

static attn_nn_field cross_expect(const chosen *c) { return cross_attend(c, c->data, &c->x); }

static double cross_flops(const bench_case *bench) {
  return 2.0 * (double)case_rows(bench) * (double)bench_mha_weights(bench);
}

/* ---- Feed-forward, four times as wide inside ---- */

static int64_t feed_forward_weights(const bench_case *bench) { return 8 * bench->width * bench->width; }
static int64_t feed_forward_biases(const bench_case *bench) { return 5 * bench->width; }
static double feed_forward_flops(const bench_case *bench) {
  return 2.0 * (double)case_rows(bench) * (double)feed_forward_weights(bench);
}

static attn_feed_forward_config feed_forward_config(const bench_layer_data *data, int64_t at, int64_t bias_at) {
  const int64_t width = data->bench->width, hidden = 4 * width;
  return (attn_feed_forward_config){.width = width,
                                    .hidden = hidden,
                                    .first = linear_at(data, at, bias_at),
                                    .second = linear_at(data, at + width * hidden, bias_at + hidden)};
}

/* The wrong answer here is the other activation: there are no keys to look at. */
static attn_status feed_forward_create(made_layer *made) {
  attn_feed_forward_config config = feed_forward_config(made->data, 0, 0);
  if (made->uniform) config.activation = ATTN_GELU;
  attn_feed_forward *layer = NULL;
  const attn_status status = attn_feed_forward_create(&config, &made->options, &layer);
  made->layer = layer;
  return status;
}

static void feed_forward_destroy(void *layer) { attn_feed_forward_destroy(layer); }
static size_t feed_forward_workspace(const made_layer *made) {
  return attn_feed_forward_workspace(made->layer, rows_of(made->data));
}

static attn_status feed_forward_run(made_layer *made, void *workspace, size_t bytes, bench_layer_time *time) {
  const double begin = bench_now_ns();
  const attn_status status =
      attn_feed_forward_run(made->layer, rows_of(made->data), made->data->x, made->data->y, workspace, bytes);
  const double spent = bench_now_ns() - begin;
  time->projections_ns += spent;
  time->total_ns += spent;
  return status;
}

static attn_nn_field fed_forward(const attn_feed_forward_config *config, const attn_nn_field *x) {
  attn_nn_field inner = apply(x, config->first, config->hidden);
  inner = then(attn_nn_oracle_relu(&inner), &inner);
  return then(apply(&inner, config->second, config->width), &inner);
}

static attn_nn_field feed_forward_expect(const chosen *c) {
  const attn_feed_forward_config config = feed_forward_config(c->data, 0, 0);
  return fed_forward(&config, &c->x);
}

/* ---- Add & norm: the residual stands among the weights, gain and bias among the biases ---- */

static int64_t add_norm_weights(const bench_case *bench) { return case_rows(bench) * bench->width; }
static int64_t add_norm_biases(const bench_case *bench) { return 2 * bench->width; }
static double add_norm_flops(const bench_case *bench) { return 10.0 * (double)(case_rows(bench) * bench->width); }

static attn_norm norm_at(const bench_layer_data *data, int64_t bias_at) {
  return (attn_norm){data->biases + bias_at, data->biases + bias_at + data->bench->width, EPSILON};
}

static attn_status add_norm_create(made_layer *made) {
  (void)made;
  return ATTN_OK;
}

static attn_status add_norm_run(made_layer *made, void *workspace, size_t bytes, bench_layer_time *time) {
  (void)workspace, (void)bytes;
  const bench_layer_data *data = made->data;
  attn_norm norm = norm_at(data, 0);
  if (made->uniform) norm.epsilon = 0.1f; /* a wrong norm */
  const double begin = bench_now_ns();
  const attn_status status =
      attn_add_layer_norm(rows_of(data), data->bench->width, data->x, data->weights, &norm, NULL, data->y);
  time->total_ns += bench_now_ns() - begin;
  return status;
}

static attn_nn_field add_norm_expect(const chosen *c) {
  const int64_t width = c->x.width, seq = c->data->bench->problem.seq_q;
  attn_nn_field residual = attn_nn_field_create(c->count, width);
  for (int64_t r = 0; r < c->count; r++)
    for (int64_t i = 0; i < width; i++)
      residual.value[r * width + i] = (double)c->data->weights[(c->batch * seq + c->row[r]) * width + i];
  attn_nn_field sum = then(attn_nn_oracle_add(&c->x, &residual), &residual);
  const attn_norm norm = norm_at(c->data, 0);
  return then(attn_nn_oracle_layer_norm(&sum, &norm), &sum);
}

/* ---- Decoder block, post-norm: self-attention as the case masks it, cross-attention, feed-forward ---- */

static int64_t decoder_weights(const bench_case *bench) {
  return 2 * bench_mha_weights(bench) + feed_forward_weights(bench);
}
static int64_t decoder_biases(const bench_case *bench) {
  return 2 * bench_mha_biases(bench) + feed_forward_biases(bench) + 6 * bench->width;
}
static double decoder_flops(const bench_case *bench) {
  const attn_problem *p = &bench->problem; /* beside the self-attention */
  const double cross =
      2.0 * (double)(p->batch * p->heads_q) * (double)(p->seq_q * p->seq_k) * (double)(p->dim_qk + p->dim_v);
  return cross + 2.0 * (double)case_rows(bench) * (double)decoder_weights(bench);
}

/* Where the weights of the cross-attention begin. */
static bench_layer_data second_mha(const bench_layer_data *data) {
  bench_layer_data second = *data;
  second.weights += bench_mha_weights(data->bench);
  second.biases += bench_mha_biases(data->bench);
  return second;
}

static attn_block_config decoder_config(const bench_layer_data *data) {
  const bench_case *bench = data->bench;
  const attn_problem *p = &bench->problem;
  const bench_layer_data second = second_mha(data);
  const int64_t norms = 2 * bench_mha_biases(bench) + feed_forward_biases(bench);
  attn_block_config config;
  attn_decoder_block_init(&config, p->batch, p->heads_q, p->seq_q, p->seq_k, bench->width, bench->width, 4 * bench->width);
  config.self.attention = *p;
  config.cross = cross_problem(data, p->batch, p->seq_q);
  config.self_weights = bench_mha_weights_of(data);
  config.cross_weights = bench_mha_weights_of(&second);
  config.feed_forward = feed_forward_config(data, 2 * bench_mha_weights(bench), 2 * bench_mha_biases(bench));
  config.self_norm = norm_at(data, norms);
  config.cross_norm = norm_at(data, norms + 2 * bench->width);
  config.feed_forward_norm = norm_at(data, norms + 4 * bench->width);
  return config;
}

static attn_status decoder_create(made_layer *made) {
  attn_block_config config = decoder_config(made->data);
  if (made->uniform) config.cross.attention.scale = 0;
  attn_block *block = NULL;
  const attn_status status = attn_block_create(&config, &made->options, &block);
  made->layer = block;
  snprintf(made->kernel, sizeof made->kernel, "%s", attn_block_kernel(block));
  return status;
}

static void decoder_destroy(void *layer) { attn_block_destroy(layer); }
static size_t decoder_workspace(const made_layer *made) { return attn_block_workspace(made->layer); }

static attn_status decoder_run(made_layer *made, void *workspace, size_t bytes, bench_layer_time *time) {
  attn_block_profile profile = {0};
  const attn_block_args args = {.x = made->data->x, .memory = made->data->x, .y = made->data->y, .profile = &profile};
  const attn_status status = attn_block_run(made->layer, &args, workspace, bytes);
  time->projections_ns += profile.projections_ns + profile.feed_forward_ns;
  time->attention_ns += profile.attention_ns;
  time->total_ns += profile.total_ns;
  return status;
}

static attn_nn_field decoder_expect(const chosen *c) {
  const attn_block_config config = decoder_config(c->data);
  const bench_layer_data second = second_mha(c->data);
  attn_nn_field x = attn_nn_oracle_add(&c->x, c->mha);
  x = then(attn_nn_oracle_layer_norm(&x, &config.self_norm), &x);
  attn_nn_field out = cross_attend(c, &second, &x);
  x = then(then(attn_nn_oracle_add(&x, &out), &x), &out);
  x = then(attn_nn_oracle_layer_norm(&x, &config.cross_norm), &x);
  out = fed_forward(&config.feed_forward, &x);
  x = then(then(attn_nn_oracle_add(&x, &out), &x), &out);
  return then(attn_nn_oracle_layer_norm(&x, &config.feed_forward_norm), &x);
}

/* ---- The kinds ---- */

/* The entry of one kind; the rest of its members follow. */
#define KIND(name_, text, ...)                                                                                            \
  static attn_status name_##_make(const bench_layer_data *data, const attn_options *options, bool uniform, void **made) { \
    return make(&name_##_family, data, options, uniform, made);                                                           \
  }                                                                                                                       \
  static bool name_##_rows(bench_layer_data *data, const attn_numerics *numerics, const bench_layer_rows *rows) {         \
    return expect(&name_##_family, data, numerics, rows);                                                                 \
  }                                                                                                                       \
  const bench_layer_kind bench_layer_##name_ = {.name = text,                                                             \
                                                .make = name_##_make,                                                     \
                                                .unmake = unmake,                                                         \
                                                .run = run,                                                               \
                                                .workspace = workspace_of,                                                \
                                                .kernel = kernel_of,                                                      \
                                                .product = product_of,                                                    \
                                                .expect = name_##_rows,                                                   \
                                                __VA_ARGS__}

static const family cross_family = {.create = cross_create,
                                    .destroy = cross_destroy,
                                    .workspace = cross_workspace,
                                    .run = cross_run,
                                    .expect = cross_expect};
KIND(cross, "cross", .weights = bench_mha_weights, .biases = bench_mha_biases, .flops = cross_flops,
     .forget = forget_nothing);

static const family decoder_family = {.create = decoder_create,
                                      .destroy = decoder_destroy,
                                      .workspace = decoder_workspace,
                                      .run = decoder_run,
                                      .expect = decoder_expect,
                                      .after_mha = true};
KIND(decoder, "decoder", .weights = decoder_weights, .biases = decoder_biases, .flops = decoder_flops,
     .forget = bench_mha_forget, .masks = true);

static const family feed_forward_family = {.create = feed_forward_create,
                                           .destroy = feed_forward_destroy,
                                           .workspace = feed_forward_workspace,
                                           .run = feed_forward_run,
                                           .expect = feed_forward_expect};
KIND(feed_forward, "feed-forward", .weights = feed_forward_weights, .biases = feed_forward_biases,
     .flops = feed_forward_flops, .forget = forget_nothing, .no_attention = true);

static const family add_norm_family = {.create = add_norm_create, .run = add_norm_run, .expect = add_norm_expect};
KIND(add_norm, "add-norm", .weights = add_norm_weights, .biases = add_norm_biases, .flops = add_norm_flops,
     .forget = forget_nothing, .no_attention = true);
