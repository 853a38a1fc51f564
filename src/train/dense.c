/* SPDX-License-Identifier: MIT */
/* Dense layers that learn: y = x W + b and its gradients, each a product of libattn whose packed factor lives for one call,
 * because weights change in every step. The factor that is packed is the one whose rows are the depth: W, W^T, or d_y. */
#include <inttypes.h>

#include "kernels/common/memory/aligned.h"
#include "kernels/common/problem/convert.h"
#include "src/train/tasks.h"

static const attn_struct_layout layout = ATTN_LAYOUT(attn_dense, x);

/* out[rows][columns] = x[rows][depth] w[depth][columns] + bias, by any strides of x and w. */
typedef struct factor {
  const float *at;
  int64_t row, column; /* strides */
} factor;

typedef struct product {
  int64_t rows, depth, columns;
  factor x, w;
  const float *bias;
  bool accumulate; /* out += */
  float *out;
} product;

typedef struct narrowing {
  const float *from;
  uint16_t *to;
} narrowing;

static void narrow_part(void *context, int64_t first, int64_t count) {
  const narrowing *n = context;
  for (int64_t i = first; i < first + count; i++) n->to[i] = attn_bf16_of_f32(n->from[i]);
}

/* Packs w, with its values rounded to bf16 if `bf16`. */
static attn_status pack(const product *p, bool bf16, const attn_options *options, attn_product **packed) {
  attn_product_weights weights =
      ATTN_STRUCT(attn_product_weights, .depth = p->depth, .columns = p->columns, .weight = p->w.at,
                  .stride_depth = p->w.row, .stride_column = p->w.column, .bias = p->bias);
  if (!bf16) return attn_product_create(&weights, options, packed);
  const int64_t count = p->depth * p->columns;
  narrowing values = {p->w.at, attn_nn_allocate("values of bf16", (size_t)count * sizeof(uint16_t))};
  if (!values.to) return ATTN_OUT_OF_MEMORY;
  weights.weight = values.to;
  weights.dtype = ATTN_BF16;
  weights.bf16_rows = true;
  attn_status status = attn_train_parts(options, count, narrow_part, &values);
  if (status == ATTN_OK) status = attn_product_create(&weights, options, packed);
  attn_aligned_free(values.to);
  return status;
}

static attn_status multiply(const product *p, bool bf16, const attn_options *options) {
  attn_product *packed;
  attn_options named;
  attn_status status = attn_options_read(options, &named);
  if (status == ATTN_OK && named.threads == 0 && attn_parallel_pays_for_elements(p->depth * p->columns))
    named.threads = attn_parallel_default_threads(); /* they pack, too */
  if (status == ATTN_OK) status = pack(p, bf16, &named, &packed);
  if (status != ATTN_OK) return status;
  const size_t bytes = attn_product_workspace(packed, p->rows);
  void *workspace = attn_nn_allocate("the workspace", bytes);
  const attn_product_args args = ATTN_STRUCT(attn_product_args, .batch = 1, .rows = p->rows, .x = p->x.at,
                                             .x_stride = {.s = p->x.row, .d = p->x.column}, .y = p->out,
                                             .y_stride = {.s = p->columns, .d = 1}, .accumulate = p->accumulate);
  status = workspace ? attn_product_run(packed, &args, workspace, bytes) : ATTN_OUT_OF_MEMORY;
  attn_aligned_free(workspace);
  attn_product_destroy(packed);
  return status;
}

/* ---- Checks ---- */

static attn_status read_layer(const attn_dense *theirs, attn_dense *l) {
  attn_status status = attn_nn_read(&layout, "layer", theirs, l);
  if (status != ATTN_OK) return status;
  const attn_nn_size rows[] = {{"attn_dense.rows", l->rows, 0}, {"attn_dense.in", l->in, 1}};
  const attn_nn_size more[] = {{"attn_dense.rows", l->rows, 0}, {"attn_dense.out", l->out, 1}};
  const attn_nn_size weights[] = {{"attn_dense.in", l->in, 1}, {"attn_dense.out", l->out, 1}};
  status = attn_nn_check_sizes(rows, NN_COUNT(rows));
  if (status == ATTN_OK) status = attn_nn_check_sizes(more, NN_COUNT(more));
  return status == ATTN_OK ? attn_nn_check_sizes(weights, NN_COUNT(weights)) : status;
}

static factor weight_of(const attn_dense *l) {
  return l->map.transposed ? (factor){l->map.weight, 1, l->in} : (factor){l->map.weight, l->out, 1};
}

static factor flip(factor f) { return (factor){f.at, f.column, f.row}; }

/* ---- Forward ---- */

attn_status attn_dense_run(const attn_dense *layer, const attn_options *options) {
  attn_dense l;
  attn_status status = read_layer(layer, &l);
  if (status != ATTN_OK || l.rows == 0) return status;
  const attn_nn_pointer pointers[] = {{"attn_dense.map.weight", l.map.weight}, {"attn_dense.x", l.x}, {"attn_dense.y", l.y}};
  status = attn_nn_check_pointers(pointers, NN_COUNT(pointers));
  if (status != ATTN_OK) return status;
  return multiply(&(product){l.rows, l.in, l.out, {l.x, l.in, 1}, weight_of(&l), l.map.bias, false, l.y}, l.bf16_products,
                  options);
}

/* ---- Gradients ---- */

/* The gradient as W lies: x^T d_y, or d_y^T x. */
static attn_status grad_weight(const attn_dense *l, const attn_options *options) {
  const factor x = {l->x, l->in, 1}, d_y = {l->d_y, l->out, 1};
  const bool t = l->map.transposed;
  const product p = {t ? l->out : l->in, l->rows, t ? l->in : l->out, flip(t ? d_y : x),
                     t ? x : d_y,        NULL,    l->accumulate,      l->d_weight};
  return multiply(&p, l->bf16_products, options);
}

/* Sums over no rows, which products do not take. */
static void clear_no_rows(const attn_dense *l) {
  for (int64_t i = 0; l->d_weight && i < l->in * l->out; i++) l->d_weight[i] = 0;
  for (int64_t i = 0; l->d_bias && i < l->out; i++) l->d_bias[i] = 0;
}

attn_status attn_dense_grad(const attn_dense *layer, const attn_options *options) {
  attn_dense l;
  attn_status status = read_layer(layer, &l);
  if (status != ATTN_OK) return status;
  if (l.rows == 0) {
    if (!l.accumulate) clear_no_rows(&l);
    return ATTN_OK;
  }
  REQUIRE(l.d_y, "attn_dense.d_y is NULL; it must point to its elements");
  REQUIRE(!l.d_x || l.map.weight, "attn_dense.map.weight is NULL; d_x needs it");
  REQUIRE(!l.d_weight || l.x, "attn_dense.x is NULL; d_weight needs it");
  if (l.d_x)
    status = multiply(&(product){l.rows, l.out, l.in, {l.d_y, l.out, 1}, flip(weight_of(&l)), NULL, false, l.d_x},
                      l.bf16_products, options);
  if (status == ATTN_OK && l.d_weight) status = grad_weight(&l, options);
  if (status != ATTN_OK || !l.d_bias) return status;
  return attn_train_sum_columns(
      options,
      &(attn_train_columns){.rows = l.rows, .width = l.out, .x = l.d_y, .to = l.d_bias, .accumulate = l.accumulate});
}
