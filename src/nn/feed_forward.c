/* SPDX-License-Identifier: MIT */
/* Position-wise feed-forward: two products, or three with a gate. The activation is applied while rows are still in the
 * cache. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "kernels/common/problem/dtypes.h"
#include "src/api/error.h"
#include "src/nn/linear.h"

struct attn_feed_forward {
  atomic_int owners;
  int64_t width, hidden;
  attn_dtype dtype_x, dtype_y;
  attn_nn_joins joins;                 /* for the multiplication by the gate */
  attn_product *first, *second, *gate; /* gate: NULL without one */
};

static attn_status check_feed_forward(const attn_feed_forward_config *c) {
  const attn_nn_size sizes[] = {{"attn_feed_forward_config.width", c->width, 1},
                                {"attn_feed_forward_config.hidden", c->hidden, 1}};
  attn_status status = attn_nn_check_sizes(sizes, NN_COUNT(sizes));
  if (status != ATTN_OK) return status;
  REQUIRE((unsigned)c->activation <= ATTN_GELU_TANH,
          "attn_feed_forward_config.activation is %d; it must be ATTN_RELU, _GELU, _SILU or _GELU_TANH", (int)c->activation);
  REQUIRE(c->gate.weight || !c->gate.bias,
          "attn_feed_forward_config.gate.bias is given without gate.weight; it must be NULL without a gate");
  REQUIRE(attn_dtype_is_float(c->dtype), "attn_feed_forward_config.dtype is %d; it must be " ATTN_FLOAT_CONSTANTS,
          (int)c->dtype);
  REQUIRE(attn_dtype_is_float(c->dtype_x), "attn_feed_forward_config.dtype_x is %d; it must be " ATTN_FLOAT_CONSTANTS,
          (int)c->dtype_x);
  REQUIRE(attn_dtype_is_float(c->dtype_y), "attn_feed_forward_config.dtype_y is %d; it must be " ATTN_FLOAT_CONSTANTS,
          (int)c->dtype_y);
  REQUIRE(!c->bf16_rows || !c->int8_weights,
          "attn_feed_forward_config.bf16_rows and .int8_weights are both true; one of them must be false");
  REQUIRE(!c->bf16_rows || c->dtype == ATTN_BF16,
          "attn_feed_forward_config.bf16_rows is true with dtype %d; dtype must be ATTN_BF16, %d, or bf16_rows false",
          (int)c->dtype, (int)ATTN_BF16);
  REQUIRE(
      !c->int8_rows || c->int8_weights,
      "attn_feed_forward_config.int8_rows is true and .int8_weights false; rows are rounded to int8 for such weights only");
  return ATTN_OK;
}

static attn_status create(const attn_feed_forward_config *c, const attn_options *options, attn_feed_forward **result) {
  attn_feed_forward *layer = attn_nn_new("attn_feed_forward", sizeof *layer);
  if (!layer) return ATTN_OUT_OF_MEMORY;
  *layer =
      (attn_feed_forward){.owners = 1, .width = c->width, .hidden = c->hidden, .dtype_x = c->dtype_x, .dtype_y = c->dtype_y};
  const attn_row_function activation = attn_activation_function(c->activation, options);
  const attn_nn_types rows = {c->dtype_x, c->dtype_x, c->bf16_rows, c->int8_weights, c->int8_rows};
  attn_nn_types out = rows;
  out.dtype_y = c->dtype_y;
  const attn_nn_linear maps[] = {
      {"attn_feed_forward_config.first", &c->first, c->width, c->hidden, c->dtype, c->gate.weight ? NULL : activation,
       &layer->first, rows},
      {"attn_feed_forward_config.second", &c->second, c->hidden, c->width, c->dtype, NULL, &layer->second, out},
      {"attn_feed_forward_config.gate", &c->gate, c->width, c->hidden, c->dtype, activation, &layer->gate, rows}};
  attn_status status = attn_nn_choose_joins(options, &layer->joins);
  if (status == ATTN_OK) status = attn_nn_create_linears(maps, c->gate.weight ? 3 : 2, options, c->product);
  if (status != ATTN_OK) return attn_feed_forward_destroy(layer), status;
  *result = layer;
  return ATTN_OK;
}

attn_status attn_feed_forward_create(const attn_feed_forward_config *config, const attn_options *options,
                                     attn_feed_forward **result) {
  REQUIRE(result, "layer is NULL; it must point to where the layer's address goes");
  *result = NULL;
  attn_feed_forward_config c;
  attn_status status = attn_nn_read(&attn_feed_forward_layout, "config", config, &c);
  if (status == ATTN_OK) status = check_feed_forward(&c);
  return status == ATTN_OK ? create(&c, options, result) : status;
}

attn_feed_forward *attn_nn_share_feed_forward(attn_feed_forward *layer) {
  if (layer) atomic_fetch_add(&layer->owners, 1);
  return layer;
}

void attn_feed_forward_destroy(attn_feed_forward *layer) {
  if (!layer || atomic_fetch_sub(&layer->owners, 1) != 1) return;
  attn_product_destroy(layer->first);
  attn_product_destroy(layer->second);
  attn_product_destroy(layer->gate);
  free(layer);
}

/* [hidden rows] [those of the gate] [workspace of the products, which run one after the other] */
typedef struct layout {
  int64_t hidden, gate, product, bytes;
  size_t product_bytes;
  bool fits;
} layout;

static layout layout_of(const attn_feed_forward *layer, int64_t rows) {
  layout l = {0};
  const size_t first = attn_product_workspace(layer->first, rows), second = attn_product_workspace(layer->second, rows);
  l.product_bytes = first > second ? first : second;
  const memory_part parts[] = {{&l.hidden, rows, attn_elements_bytes(layer->dtype_x, layer->hidden)},
                               {&l.gate, layer->gate ? rows : 0, attn_elements_bytes(layer->dtype_x, layer->hidden)},
                               {&l.product, 1, (int64_t)l.product_bytes}};
  l.fits = LAY_OUT(parts, &l.bytes);
  return l;
}

size_t attn_feed_forward_workspace(const attn_feed_forward *layer, int64_t rows) {
  return layer && rows > 0 ? (size_t)layout_of(layer, rows).bytes : 0;
}

/* The hidden rows from x. */
static attn_status run_first(const attn_feed_forward *layer, int64_t rows, const void *x, const layout *l, char *memory) {
  const attn_nn_rows in = {.rows = rows, .in = layer->width, .out = layer->hidden};
  char *hidden = memory + l->hidden, *gate = memory + l->gate, *product = memory + l->product;
  attn_status status = attn_nn_linear_run(layer->first, in, x, hidden, product, l->product_bytes);
  if (status == ATTN_OK && layer->gate) status = attn_nn_linear_run(layer->gate, in, x, gate, product, l->product_bytes);
  if (status != ATTN_OK || !layer->gate) return status;
  return attn_nn_join(&layer->joins, (attn_row_join){.rows = rows,
                                                     .width = layer->hidden,
                                                     .kind = ATTN_JOIN_MULTIPLY,
                                                     .dtype_x = layer->dtype_x,
                                                     .dtype_other = layer->dtype_x,
                                                     .dtype_y = layer->dtype_x,
                                                     .x = hidden,
                                                     .other = gate,
                                                     .y = hidden});
}

attn_status attn_feed_forward_run(const attn_feed_forward *layer, int64_t rows, const void *x, void *y, void *workspace,
                                  size_t bytes) {
  REQUIRE(layer, "layer is NULL; it must come from attn_feed_forward_create");
  const attn_nn_size sizes[] = {{"rows", rows, 0}, {"hidden", layer->hidden, 1}};
  const attn_nn_pointer pointers[] = {{"x", x}, {"y", y}};
  attn_status status = attn_nn_check_sizes(sizes, NN_COUNT(sizes));
  if (status != ATTN_OK || rows == 0) return status;
  const layout l = layout_of(layer, rows);
  status = attn_nn_check_pointers(pointers, NN_COUNT(pointers));
  if (status == ATTN_OK) status = attn_nn_check_fits("attn_feed_forward", l.fits);
  if (status == ATTN_OK) status = attn_check_workspace("attn_feed_forward", workspace, bytes, (size_t)l.bytes);
  if (status != ATTN_OK) return status;
  const attn_nn_rows out = {.rows = rows, .in = layer->hidden, .out = layer->width};
  status = run_first(layer, rows, x, &l, workspace);
  if (status != ATTN_OK) return status;
  const char *hidden = (const char *)workspace + l.hidden;
  return attn_nn_linear_run(layer->second, out, hidden, y, (char *)workspace + l.product, l.product_bytes);
}
