/* SPDX-License-Identifier: MIT */
/* A transformer encoder block: multi-head self-attention and a feed-forward network four times as wide inside, each with a residual
 * connection and a layer norm behind it (post-norm). */
#include <stdlib.h>
#include <string.h>

#include "attn/nn.h"
#include "attn/product.h"
#include "layers/layer_kinds.h"
#include "src/nn/ref/nn_oracle_f64.h"

static const float EPSILON = 1e-5f;

static int64_t hidden_of(const bench_case *bench) { return 4 * bench->width; }

/* mha's, then both matrices of the feed-forward. */
static int64_t weights_of(const bench_case *bench) { return bench_mha_weights(bench) + 2 * bench->width * hidden_of(bench); }

/* mha's, then those of the feed-forward, then gain and bias of two norms. */
static int64_t biases_of(const bench_case *bench) { return bench_mha_biases(bench) + hidden_of(bench) + 5 * bench->width; }

static double product_flops(const bench_case *bench) {
  return 2.0 * (double)(bench->problem.batch * bench->problem.seq_q) * (double)weights_of(bench);
}

static attn_block_config config_of(const bench_layer_data *data) {
  const bench_case *bench = data->bench;
  const attn_problem *p = &bench->problem;
  const int64_t width = bench->width, hidden = hidden_of(bench);
  const float *matrices = data->weights + bench_mha_weights(bench), *biases = data->biases + bench_mha_biases(bench);
  const float *norms = biases + hidden + width;
  attn_block_config config;
  attn_encoder_block_init(&config, p->batch, p->heads_q, p->seq_q, width, hidden);
  config.self.attention = *p;
  config.self_weights = bench_mha_weights_of(data);
  config.feed_forward.first = (attn_linear){.weight = matrices, .bias = biases};
  config.feed_forward.second = (attn_linear){.weight = matrices + width * hidden, .bias = biases + hidden};
  config.self_norm = (attn_norm){norms, norms + width, EPSILON};
  config.feed_forward_norm = (attn_norm){norms + 2 * width, norms + 3 * width, EPSILON};
  return config;
}

/* ---- The layer ---- */

typedef struct made_block {
  attn_block *block;
  attn_product *example; /* made as the block makes its own: knows the name */
} made_block;

static void unmake(void *pointer) {
  made_block *made = pointer;
  if (!made) return;
  attn_block_destroy(made->block);
  attn_product_destroy(made->example);
  free(made);
}

static attn_status make(const bench_layer_data *data, const attn_options *options, bool wrong, void **result) {
  attn_block_config config = config_of(data);
  if (wrong) config.self.attention.scale = 0;
  attn_options products = *options;
  products.kernel = NULL;
  const attn_product_weights one = {.depth = 1, .columns = 1, .weight = data->weights};
  made_block *made = calloc(1, sizeof *made);
  attn_status status = made ? attn_product_create(&one, &products, &made->example) : ATTN_OUT_OF_MEMORY;
  if (status == ATTN_OK) status = attn_block_create(&config, options, &made->block);
  if (status == ATTN_OK) {
    *result = made;
    return ATTN_OK;
  }
  unmake(made);
  return status;
}

static size_t workspace_of(const void *made) { return attn_block_workspace(((const made_block *)made)->block); }
static const char *kernel_of(const void *made) { return attn_block_kernel(((const made_block *)made)->block); }
static const char *product_of(const void *made) { return attn_product_name(((const made_block *)made)->example); }

static attn_status run(const bench_layer_data *data, void *made, void *workspace, size_t bytes, bench_layer_time *time) {
  attn_block_profile profile = {0};
  const attn_block_args args = {.x = data->x, .y = data->y, .profile = &profile};
  const attn_status status = attn_block_run(((made_block *)made)->block, &args, workspace, bytes);
  time->projections_ns += profile.projections_ns + profile.feed_forward_ns;
  time->attention_ns += profile.attention_ns;
  time->total_ns += profile.total_ns;
  return status;
}

/* ---- What is right ---- */

static attn_nn_matrix matrix_of(const attn_linear *linear, int64_t out) {
  return (attn_nn_matrix){.w = linear->weight, .in_stride = out, .out_stride = 1, .b = linear->bias};
}

static attn_nn_field then(attn_nn_field next, attn_nn_field *used) {
  attn_nn_field_destroy(used);
  return next;
}

/* The chosen rows of x + attention(x), with the limits that the layer oracle gives attention. */
static attn_nn_field attended(const bench_layer_data *data, const bench_layer_rows *rows) {
  const int64_t width = data->bench->width, seq = data->bench->problem.seq_q;
  attn_nn_field x = attn_nn_field_create(rows->count, width), a = attn_nn_field_create(rows->count, width);
  for (int64_t r = 0; r < rows->count; r++)
    for (int64_t c = 0; c < width; c++) {
      x.value[r * width + c] = (double)data->x[(rows->batch[r] * seq + rows->row[r]) * width + c];
      a.value[r * width + c] = rows->value[r * width + c];
      a.error[r * width + c] = rows->limit[r * width + c] / ATTN_NN_SIGMAS;
    }
  return then(then(attn_nn_oracle_add(&x, &a), &x), &a);
}

static attn_nn_field fed_forward(const attn_block_config *config, const attn_nn_field *x) {
  const attn_nn_matrix first = matrix_of(&config->feed_forward.first, config->feed_forward.hidden);
  const attn_nn_matrix second = matrix_of(&config->feed_forward.second, config->feed_forward.width);
  attn_nn_field inner = attn_nn_oracle_linear(x, &first, config->feed_forward.hidden);
  inner = then(attn_nn_oracle_relu(&inner), &inner);
  return then(attn_nn_oracle_linear(&inner, &second, config->feed_forward.width), &inner);
}

/* Behind attention, every row is on its own: so only the chosen ones are computed. */
static bool expect(bench_layer_data *data, const attn_numerics *numerics, const bench_layer_rows *rows) {
  const attn_block_config config = config_of(data);
  if (!bench_mha_expect(data, numerics, rows)) return false;
  attn_nn_field x = attended(data, rows);
  x = then(attn_nn_oracle_layer_norm(&x, &config.self_norm), &x);
  attn_nn_field added = fed_forward(&config, &x);
  x = then(then(attn_nn_oracle_add(&x, &added), &x), &added);
  x = then(attn_nn_oracle_layer_norm(&x, &config.feed_forward_norm), &x);
  for (int64_t i = 0; i < rows->count * data->bench->width; i++) {
    rows->value[i] = x.value[i];
    rows->limit[i] = ATTN_NN_SIGMAS * x.error[i] + 0x1p-126;
  }
  attn_nn_field_destroy(&x);
  return true;
}

static bench_layer_shape shape_of(const bench_case *bench) {
  return bench_layer_rows_to_rows(bench, weights_of(bench), biases_of(bench));
}

const bench_layer_kind bench_layer_block = {
    .name = "block",
    .has = BENCH_HAS_WIDTH | BENCH_HAS_HEADS | BENCH_HAS_GROUPS | BENCH_HAS_MASKS | BENCH_HAS_SCALE | BENCH_HAS_ATTENTION |
           BENCH_HAS_DENSE,
    .shape = shape_of,
    .flops = product_flops,
    .wrong = "attention that looks at all keys alike",
    .make = make,
    .unmake = unmake,
    .workspace = workspace_of,
    .run = run,
    .kernel = kernel_of,
    .product = product_of,
    .expect = expect,
    .forget = bench_mha_forget,
};
