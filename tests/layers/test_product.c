/* SPDX-License-Identifier: MIT */
/* Dense layers against float64 sums, for every product that runs here; determinism; refusals. */
#include <fenv.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn/product.h"
#include "kernels/common/problem/convert.h"
#include "tests/support/failing_malloc.h"
#include "tests/support/pool.h"

static const char *const names[] = {"product_c",    "product_avx2",     "product_avx512",     "product_amx",
                                    "product_neon", "product_openblas", "product_avx512bf16", "product_avx512vnni"};
enum { NAMES = COUNT(names) };

static const attn_dtype weight_types[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_I8};
enum { TYPES = COUNT(weight_types) };

/* ---- One layer ---- */

typedef struct shape {
  int64_t batch, rows, depth, columns;
  bool transposed, bias, relu, gelu; /* weight [out][in] */
  attn_dtype dtype;
  int64_t x_heads, y_heads; /* 0 = rows are not split into heads */
  int64_t x_step;           /* stride.d of x and y; 0: x is transposed, its rows lie side by side */
  attn_dtype dtype_x, dtype_y;
  bool int8_rows;
} shape;

typedef struct layer {
  shape shape;
  float *x, *y, *scale, *bias;
  const float *start; /* y before, with `accumulate`; or NULL */
  void *weight;
  int64_t y_floats;
  attn_product_weights weights;
  attn_product_args args;
} layer;

static float *random_floats(int64_t count, unsigned seed) {
  float *data = test_allocate((size_t)count * sizeof *data);
  test_fill(data, (size_t)count, seed);
  return data;
}

static void *random_elements(attn_dtype dtype, int64_t count, unsigned seed) {
  float *data = random_floats(count, seed);
  const float most = dtype == ATTN_I8 ? 127 : 1;
  for (int64_t i = 0; i < count; i++) attn_store_f32(data, dtype, i, most * data[i]); /* narrower: in place */
  return data;
}

/* Rows with a gap behind them or, if there are heads, [batch][heads][rows][dim]. */
static attn_strides strides_of(int64_t rows, int64_t columns, int64_t heads, int64_t step) {
  if (step == 0) { /* columns one behind the other, those of all heads */
    const int64_t column = rows + 3;
    return (attn_strides){.b = columns * column, .h = heads ? columns / heads * column : 0, .s = 1, .d = column};
  }
  if (heads == 0) return (attn_strides){.b = rows * (columns * step + 3), .s = columns * step + 3, .d = step};
  const int64_t dim = columns / heads * step;
  return (attn_strides){.b = heads * rows * dim, .h = rows * dim, .s = dim, .d = step};
}

static layer make_layer(shape s) {
  layer l = {.shape = s};
  const attn_strides x = strides_of(s.rows, s.depth, s.x_heads, s.x_step),
                     y = strides_of(s.rows, s.columns, s.y_heads, s.x_step ? s.x_step : 1);
  l.y_floats = s.batch * y.b + 1;
  l.x = random_elements(s.dtype_x, s.batch * x.b + 1, 1);
  l.y = random_floats(l.y_floats, 2);
  l.bias = random_floats(s.columns, 3);
  l.scale = random_floats(s.columns, 4);
  l.weight = random_elements(s.dtype, s.depth * s.columns, 7);
  l.weights =
      ATTN_STRUCT(attn_product_weights, .depth = s.depth, .columns = s.columns, .weight = l.weight,
                  .stride_depth = s.transposed ? 1 : s.columns, .stride_column = s.transposed ? s.depth : 1,
                  .dtype = s.dtype, .dtype_x = s.dtype_x, .dtype_y = s.dtype_y, .bias = s.bias ? l.bias : NULL,
                  .relu = s.relu, .gelu = s.gelu, .scale = s.dtype == ATTN_I8 ? l.scale : NULL, .int8_rows = s.int8_rows);
  l.args = ATTN_STRUCT(attn_product_args, .batch = s.batch, .rows = s.rows, .x = l.x, .x_stride = x,
                       .x_head_dim = s.x_heads ? s.depth / s.x_heads : 0, .y = l.y, .y_stride = y,
                       .y_head_dim = s.y_heads ? s.columns / s.y_heads : 0);
  return l;
}

static void free_layer(layer *l) {
  free(l->x);
  free(l->y);
  free(l->scale);
  free(l->bias);
  free(l->weight);
}

static attn_product *create(const layer *l, const attn_options *options) {
  attn_product *product;
  test_ok(attn_product_create(&l->weights, options, &product));
  return product;
}

static void run(const attn_product *product, const attn_product_args *args) {
  const size_t bytes = attn_product_workspace(product, args->batch * args->rows);
  void *workspace = bytes ? aligned_alloc(64, bytes) : NULL;
  if (bytes) memset(workspace, 0xff, bytes); /* NaN */
  test_ok(attn_product_run(product, args, workspace, bytes));
  free(workspace);
}

/* ---- Against float64 ---- */

static int64_t offset_of(const attn_strides *stride, int64_t head_dim, int64_t b, int64_t row, int64_t column) {
  if (!head_dim) return b * stride->b + row * stride->s + column * stride->d;
  return b * stride->b + row * stride->s + column / head_dim * stride->h + column % head_dim * stride->d;
}

static float x_at(const layer *l, int64_t b, int64_t row, int64_t k) {
  return attn_load_f32((attn_storage){l->x, l->shape.dtype_x}, offset_of(&l->args.x_stride, l->args.x_head_dim, b, row, k));
}

/* The largest magnitude of a row, which becomes 127 in int8. */
static float most_of_row(const layer *l, int64_t b, int64_t row) {
  float most = 0;
  for (int64_t k = 0; k < l->shape.depth; k++) most = fmaxf(most, fabsf(x_at(l, b, row, k)));
  return most;
}

/* Error over limit; the limit is depth + 2 roundings of the sum of absolute terms, one for the scale, and three for rows of
 * int8. Leaves out term number `skip`, to imitate a wrong product. */
static double error_ratio(const layer *l, int64_t b, int64_t row, int64_t column, int64_t skip) {
  const shape *s = &l->shape;
  const double scale = l->weights.scale ? (double)l->scale[column] : 1;
  const float most = s->int8_rows ? most_of_row(l, b, row) : 0;
  const int roundings = 2 + (l->weights.scale != NULL) + (s->int8_rows ? 3 : 0);
  double sum = 0, terms = 0;
  for (int64_t k = 0; k < s->depth; k++) {
    double x = (double)x_at(l, b, row, k);
    if (s->int8_rows) x = (double)nearbyintf((float)x * (127 / most)) * (double)most / 127;
    const int64_t at = k * l->weights.stride_depth + column * l->weights.stride_column;
    const double term = k == skip ? 0 : x * (double)attn_load_f32((attn_storage){l->weight, s->dtype}, at) * scale;
    sum += term;
    terms += fabs(term);
  }
  const int64_t to = offset_of(&l->args.y_stride, l->args.y_head_dim, b, row, column);
  if (l->start) sum += (double)l->start[to];
  if (s->bias) sum += (double)l->bias[column];
  if (s->relu && sum < 0) sum = 0;
  double limit = ((double)s->depth + roundings) * 0x1p-24 * (terms + 1) + 0x1p-149;
  if (s->gelu) { /* its slope is below 1.13; erf, to which 1 is added, errs by 6 units of 1 (scripts/make/derive_erf.py) */
    limit = 1.13 * limit + 8 * 0x1p-24 * fabs(sum);
    sum *= 0.5 * erfc(-sum * sqrt(0.5));
  }
  if (s->dtype_y == ATTN_BF16) limit += 0x1p-8 * fabs(sum);
  if (s->dtype_y == ATTN_F16) limit += 0x1p-11 * fabs(sum) + 0x1p-25;
  return fabs((double)attn_load_f32((attn_storage){l->y, s->dtype_y}, to) - sum) / limit;
}

static double worst_ratio(const layer *l, int64_t skip) {
  double worst = 0;
  for (int64_t b = 0; b < l->shape.batch; b++)
    for (int64_t row = 0; row < l->shape.rows; row++)
      for (int64_t column = 0; column < l->shape.columns; column++)
        worst = fmax(worst, error_ratio(l, b, row, column, skip));
  return worst;
}

static const shape shapes[] = {
    {.batch = 1, .rows = 1, .depth = 1, .columns = 1, .x_step = 1},
    {.batch = 1, .rows = 7, .depth = 33, .columns = 17, .bias = true, .x_step = 1},
    {.batch = 3, .rows = 5, .depth = 64, .columns = 48, .transposed = true, .relu = true, .x_step = 1},
    {.batch = 2, .rows = 70, .depth = 300, .columns = 40, .bias = true, .relu = true, .x_step = 1},
    {.batch = 2, .rows = 70, .depth = 30, .columns = 45, .bias = true, .gelu = true, .x_step = 1},
    {.batch = 1, .rows = 7, .depth = 300, .columns = 600, .gelu = true, .x_step = 1},
    {.batch = 2, .rows = 9, .depth = 60, .columns = 96, .x_heads = 5, .y_heads = 8, .bias = true, .x_step = 1},
    {.batch = 2, .rows = 9, .depth = 60, .columns = 96, .x_heads = 4, .y_heads = 3, .transposed = true, .x_step = 2},
    {.batch = 1, .rows = 9, .depth = 60, .columns = 128, .y_heads = 2, .x_step = 2},
    {.batch = 1, .rows = 3, .depth = 20, .columns = 700, .dtype = ATTN_BF16, .bias = true, .x_step = 1},
    {.batch = 1, .rows = 200, .depth = 520, .columns = 9, .dtype = ATTN_F16, .transposed = true, .x_step = 3},
    {.batch = 1, .rows = 200, .depth = 520, .columns = 70, .bias = true},
    {.batch = 2, .rows = 33, .depth = 530, .columns = 130, .dtype = ATTN_BF16, .gelu = true},
    {.batch = 3, .rows = 1, .depth = 65, .columns = 128, .y_heads = 2, .bias = true, .x_step = 1},
    {.batch = 3, .rows = 37, .depth = 60, .columns = 96, .x_heads = 5, .y_heads = 8},
    {.batch = 1, .rows = 44, .depth = 300, .columns = 40, .bias = true, .x_step = 1}, /* rows in place: short tiles */
    {.batch = 1, .rows = 76, .depth = 531, .columns = 130, .dtype = ATTN_I8, .gelu = true, .x_step = 1},
#define BF16 .dtype = ATTN_BF16, .dtype_x = ATTN_BF16
    {.batch = 1, .rows = 5, .depth = 33, .columns = 45, .bias = true, .x_step = 1, BF16},
    {.batch = 2, .rows = 70, .depth = 300, .columns = 40, .relu = true, .x_step = 1, BF16, .dtype_y = ATTN_BF16},
    {.batch = 1, .rows = 77, .depth = 531, .columns = 130, .bias = true, .x_step = 1, BF16, .dtype_y = ATTN_BF16},
    {.batch = 1, .rows = 40, .depth = 2060, .columns = 70, .bias = true, .x_step = 1, BF16, .dtype_y = ATTN_BF16},
    {.batch = 2, .rows = 33, .depth = 60, .columns = 96, .x_heads = 5, .y_heads = 8, .x_step = 2, BF16, .gelu = true},
    {.batch = 2, .rows = 33, .depth = 61, .columns = 130, .bias = true, BF16, .dtype_y = ATTN_F16},
    {.batch = 1, .rows = 7, .depth = 300, .columns = 40, .x_step = 1, .dtype_x = ATTN_F16, .dtype_y = ATTN_BF16},
    {.batch = 2, .rows = 70, .depth = 30, .columns = 45, .x_step = 1, .dtype = ATTN_F16, .dtype_x = ATTN_BF16},
    {.batch = 1, .rows = 70, .depth = 300, .columns = 45, .dtype_x = ATTN_BF16, .dtype_y = ATTN_F16},
    {.batch = 1, .rows = 1, .depth = 30, .columns = 140, .x_step = 1, .dtype = ATTN_I8},
    {.batch = 1, .rows = 6, .depth = 300, .columns = 45, .x_step = 1, .dtype = ATTN_I8, .bias = true, .gelu = true},
    {.batch = 2, .rows = 70, .depth = 300, .columns = 128, .x_step = 1, .dtype = ATTN_I8, .bias = true, .transposed = true},
    {.batch = 1, .rows = 70, .depth = 40, .columns = 64, .dtype = ATTN_I8, .dtype_x = ATTN_BF16, .dtype_y = ATTN_BF16},
#define INT8 .dtype = ATTN_I8, .int8_rows = true
    {.batch = 1, .rows = 1, .depth = 30, .columns = 140, .x_step = 1, INT8},
    {.batch = 1, .rows = 7, .depth = 301, .columns = 45, .x_step = 1, INT8, .bias = true, .gelu = true},
    {.batch = 2, .rows = 70, .depth = 301, .columns = 128, .x_step = 1, INT8, .bias = true, .transposed = true},
    {.batch = 1, .rows = 13, .depth = 2060, .columns = 70, .x_step = 1, INT8, .relu = true}, /* two parts of depth */
    {.batch = 1, .rows = 210, .depth = 42, .columns = 64, INT8, .bias = true},
    {.batch = 2, .rows = 33, .depth = 60, .columns = 96, .x_heads = 5, .y_heads = 8, .x_step = 2, INT8},
    {.batch = 1, .rows = 70, .depth = 40, .columns = 64, .x_step = 1, INT8, .dtype_x = ATTN_BF16, .dtype_y = ATTN_BF16},
    {.batch = 1, .rows = 100, .depth = 300, .columns = 192, .x_step = 1, .bias = true}, /* whole panels, no whole tiles */
    {.batch = 1, .rows = 400, .depth = 70, .columns = 64, .x_step = 1},                 /* more than a block has */
};
enum { SHAPES = COUNT(shapes) };

/* Sums begin with what stands in y: numbers of at most 1, which the limit has room for. */
static void check_accumulating(layer *l, const attn_product *product) {
  float *start = random_floats(l->y_floats, 9);
  l->args.accumulate = true;
  if (l->shape.dtype == ATTN_I8 || l->shape.dtype_y != ATTN_F32) {
    test_invalid(attn_product_run(product, &l->args, NULL, 0), "accumulate is true");
  } else {
    memcpy(l->y, start, (size_t)l->y_floats * sizeof *start);
    run(product, &l->args);
    assert_true(worst_ratio(l, -1) > 1);
    l->start = start;
    assert_true(worst_ratio(l, -1) <= 1);
    l->start = NULL;
  }
  free(start);
}

TEST(test_meets_the_limit) {
  int ran = 0;
  for (int n = 0; n < NAMES; n++) {
    const attn_options options = ATTN_STRUCT(attn_options, .kernel = names[n], .threads = 1);
    for (int i = 0; i < SHAPES; i++) {
      layer l = make_layer(shapes[i]);
      attn_product *product;
      const attn_status status = attn_product_create(&l.weights, &options, &product);
      if (status == ATTN_OK) {
        run(product, &l.args);
        assert_string_equal(attn_product_name(product), names[n]);
        assert_true(worst_ratio(&l, -1) <= 1);
        assert_true(worst_ratio(&l, 0) > 1); /* a missing term exceeds the limit */
        check_accumulating(&l, product);
        attn_product_destroy(product);
        ran++;
      } else {
        assert_true(status == ATTN_UNSUPPORTED || status == ATTN_UNKNOWN_KERNEL);
        assert_null(product);
      }
      free_layer(&l);
    }
  }
  assert_true(ran >= SHAPES); /* the c tier runs everywhere */
}

/* The gaps between the elements of Y are not written. */
TEST(test_writes_only_its_elements) {
  for (int i = 0; i < SHAPES; i++) {
    layer l = make_layer(shapes[i]);
    float *before = test_allocate((size_t)l.y_floats * sizeof *before);
    bool *written = test_allocate((size_t)l.y_floats * sizeof *written);
    memcpy(before, l.y, (size_t)l.y_floats * sizeof *before);
    attn_product *product = create(&l, NULL);
    run(product, &l.args);
    for (int64_t b = 0; b < l.shape.batch; b++)
      for (int64_t row = 0; row < l.shape.rows; row++)
        for (int64_t c = 0; c < l.shape.columns; c++)
          written[offset_of(&l.args.y_stride, l.args.y_head_dim, b, row, c)] = true;
    const size_t element = attn_dtype_of(l.shape.dtype_y).bytes;
    for (size_t at = 0; at < (size_t)l.y_floats; at++)
      if (!written[at]) assert_memory_equal((char *)l.y + at * element, (char *)before + at * element, element);
    attn_product_destroy(product);
    free(written);
    free(before);
    free_layer(&l);
  }
}

/* ---- Bits ---- */

/* X has the same product wherever it lies, to the bit. */
TEST(test_transposed_x_has_the_same_bits) {
  enum { ROWS = 130, DEPTH = 300, COLUMNS = 70 };
  layer l = make_layer((shape){.batch = 1, .rows = ROWS, .depth = DEPTH, .columns = COLUMNS, .x_step = 1});
  layer turned = make_layer((shape){.batch = 1, .rows = ROWS, .depth = DEPTH, .columns = COLUMNS});
  for (int64_t i = 0; i < ROWS * DEPTH; i++)
    turned.x[i / DEPTH + i % DEPTH * turned.args.x_stride.d] = l.x[i / DEPTH * l.args.x_stride.s + i % DEPTH];
  for (int n = 0; n < NAMES; n++) {
    attn_product *product;
    if (attn_product_create(&l.weights, &ATTN_STRUCT(attn_options, .kernel = names[n]), &product) != ATTN_OK) continue;
    run(product, &l.args);
    run(product, &turned.args);
    assert_memory_equal(l.y, turned.y, (size_t)l.y_floats * sizeof *l.y);
    attn_product_destroy(product);
  }
  free_layer(&l);
  free_layer(&turned);
}

enum { ANY_DEPTH = 70, ANY_COLUMNS = 45 };

/* Runs the layer with weights in `memory` at these strides, from the lowest address on, and with the same ones as dense
 * rows.
 */
static void check_strides(layer *l, const char *name, const char *memory, int64_t down, int64_t across) {
  const size_t element = attn_dtype_of(l->shape.dtype).bytes, bytes = (size_t)l->y_floats * sizeof *l->y;
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = name);
  attn_product_weights spread = l->weights;
  attn_product *product;
  spread.stride_depth = down, spread.stride_column = across;
  spread.weight =
      memory + element * (size_t)((down < 0 ? -down * (ANY_DEPTH - 1) : 0) + (across < 0 ? -across * (ANY_COLUMNS - 1) : 0));
  for (int64_t k = 0; k < ANY_DEPTH; k++)
    for (int64_t c = 0; c < ANY_COLUMNS; c++)
      memcpy((char *)l->weight + (size_t)(k * ANY_COLUMNS + c) * element,
             (const char *)spread.weight + (k * down + c * across) * (int64_t)element, element);
  if (attn_product_create(&l->weights, &options, &product) != ATTN_OK) return;
  run(product, &l->args);
  float *expected = memcpy(test_allocate(bytes), l->y, bytes);
  attn_product_destroy(product);
  test_ok(attn_product_create(&spread, &options, &product));
  run(product, &l->args);
  assert_memory_equal(l->y, expected, bytes);
  attn_product_destroy(product);
  free(expected);
}

/* So have weights, whatever strides they have: both ways apart, backwards, a row for all. */
TEST(test_weights_of_any_strides_have_the_same_bits) {
  static const int64_t strides[][2] = {{1, ANY_DEPTH},
                                       {2 * ANY_COLUMNS + 3, 2},
                                       {3, 3 * ANY_DEPTH + 1},
                                       {-ANY_COLUMNS, 1},
                                       {1, -ANY_DEPTH},
                                       {-3, -3 * ANY_DEPTH},
                                       {0, 1},
                                       {0, 0}};
  for (int n = 0; n < NAMES; n++)
    for (int w = 0; w < TYPES; w++) {
      void *memory = random_elements(weight_types[w], 4 * ANY_DEPTH * ANY_COLUMNS, 8);
      layer l = make_layer(
          (shape){.batch = 1, .rows = 9, .depth = ANY_DEPTH, .columns = ANY_COLUMNS, .x_step = 1, .dtype = weight_types[w]});
      for (size_t i = 0; i < COUNT(strides); i++) check_strides(&l, names[n], memory, strides[i][0], strides[i][1]);
      free_layer(&l);
      free(memory);
    }
}

/* A caller's function may run products itself: no kernel has tiles in use then. */
static attn_product *inner_product;
static void run_inner(float *x, int64_t count) {
  static const uint16_t zeros[8];
  float y[8];
  const size_t bytes = attn_product_workspace(inner_product, 1);
  void *workspace = aligned_alloc(64, bytes);
  assert_true(count <= 40); /* columns of Y */
  test_ok(attn_product_run(inner_product,
                           &ATTN_STRUCT(attn_product_args, .batch = 1, .rows = 1, .x = zeros, .x_stride = {.s = 8, .d = 1},
                                        .y = y, .y_stride = {.s = 8, .d = 1}),
                           workspace, bytes));
  for (int64_t i = 0; i < count; i++) x[i] += y[0];
  free(workspace);
}

TEST(test_functions_that_run_products) {
  const shape s = {.batch = 1, .rows = 64, .depth = 96, .columns = 40, .x_step = 1, BF16, .dtype_y = ATTN_BF16};
  layer l = make_layer(s), inner = make_layer((shape){.batch = 1, .rows = 1, .depth = 8, .columns = 8, .x_step = 1, BF16});
  const attn_options one = ATTN_STRUCT(attn_options, .threads = 1);
  inner_product = create(&inner, &one);
  l.weights.activate = run_inner;
  attn_product *product = create(&l, &one);
  run(product, &l.args);
  assert_true(worst_ratio(&l, -1) <= 1); /* the inner rows are 0 */
  attn_product_destroy(product);
  attn_product_destroy(inner_product);
  free_layer(&inner);
  free_layer(&l);
}

/* Rows that are to be rounded have the bits of rows that were, and not those of the others. */
static void check_rounded_rows(const char *name, bool transposed) {
  enum { ROWS = 40, DEPTH = 300, COLUMNS = 70 };
  layer l = make_layer((shape){
      .batch = 1, .rows = ROWS, .depth = DEPTH, .columns = COLUMNS, .dtype = ATTN_BF16, .x_step = transposed ? 0 : 1});
  const int64_t x_count = l.args.x_stride.b;
  uint16_t *rounded = test_allocate((size_t)x_count * sizeof *rounded);
  for (int64_t i = 0; i < x_count; i++) rounded[i] = attn_bf16_of_f32(l.x[i]);
  float *unrounded = test_allocate((size_t)l.y_floats * sizeof *unrounded);
  float *expected = test_allocate((size_t)l.y_floats * sizeof *expected);
  const struct {
    attn_dtype x;
    bool bf16_rows;
    float *y;
  } ways[] = {{ATTN_F32, false, unrounded}, {ATTN_BF16, false, expected}, {ATTN_F32, true, l.y}};
  for (int64_t rows = 3; rows <= ROWS; rows += ROWS - 3) { /* few and many */
    for (int i = 0; i < 3; i++) {
      l.weights.dtype_x = ways[i].x;
      l.weights.bf16_rows = ways[i].bf16_rows;
      attn_product *product;
      if (attn_product_create(&l.weights, &ATTN_STRUCT(attn_options, .kernel = name), &product) != ATTN_OK) continue;
      attn_product_args args = l.args;
      args.rows = rows;
      args.x = ways[i].x == ATTN_BF16 ? (void *)rounded : l.x;
      args.y = ways[i].y;
      run(product, &args);
      attn_product_destroy(product);
      for (int64_t row = 0; i == 2 && row < rows; row++) {
        const int64_t at = row * args.y_stride.s;
        assert_memory_equal(l.y + at, expected + at, COLUMNS * sizeof(float));
        assert_memory_not_equal(l.y + at, unrounded + at, COLUMNS * sizeof(float));
      }
    }
  }
  free(expected);
  free(unrounded);
  free(rounded);
  free_layer(&l);
}

TEST(test_rows_rounded_to_bf16) {
  for (int n = 0; n < NAMES; n++) {
    check_rounded_rows(names[n], false);
    check_rounded_rows(names[n], true);
  }
}

/* Weights that are rounded when they are packed have the bits of those that the caller rounds to nearest. */
TEST(test_weights_rounded_to_int8) {
  enum { DEPTH = 70, COLUMNS = 150, ZERO = 3, INFINITE = 65, NOT_A_NUMBER = 149 };
  layer l = make_layer((shape){.batch = 1, .rows = 9, .depth = DEPTH, .columns = COLUMNS, .bias = true, .x_step = 1});
  float *weight = l.weight, *expected = test_allocate((size_t)l.y_floats * sizeof *expected);
  int8_t *integers = test_allocate(DEPTH * COLUMNS);
  for (int c = 0; c < COLUMNS; c++) {
    float most = 0;
    for (int k = 0; k < DEPTH; k++) weight[k * COLUMNS + c] *= c == ZERO ? 0 : (float)(c + 1);
    for (int k = 0; k < DEPTH; k++) most = fmaxf(most, fabsf(weight[k * COLUMNS + c]));
    l.scale[c] = most / 127;
    for (int k = 0; k < DEPTH && c != ZERO; k++)
      integers[k * COLUMNS + c] = (int8_t)nearbyintf(weight[k * COLUMNS + c] / l.scale[c]);
  }
  weight[5 * COLUMNS + INFINITE] = -INFINITY;
  weight[NOT_A_NUMBER] = NAN;
  attn_product_weights rounded = l.weights, given = l.weights;
  rounded.int8_weights = true;
  given.dtype = ATTN_I8;
  given.weight = integers;
  given.scale = l.scale;
  for (int n = 0; n < NAMES; n++) {
    const attn_options options = ATTN_STRUCT(attn_options, .kernel = names[n]);
    attn_product *product;
    if (attn_product_create(&given, &options, &product) != ATTN_OK) continue;
    run(product, &l.args);
    attn_product_destroy(product);
    memcpy(expected, l.y, (size_t)l.y_floats * sizeof *expected);
    fesetround(FE_UPWARD); /* the caller's */
    test_ok(attn_product_create(&rounded, &options, &product));
    fesetround(FE_TONEAREST);
    run(product, &l.args);
    attn_product_destroy(product);
    for (int64_t i = 0; i < 9 * COLUMNS; i++) {
      const int64_t c = i % COLUMNS, at = i / COLUMNS * l.args.y_stride.s + c;
      if (c == INFINITE || c == NOT_A_NUMBER)
        assert_true(isnan(l.y[at]));
      else
        assert_memory_equal(&l.y[at], &expected[at], sizeof(float));
    }
  }
  free(integers);
  free(expected);
  free_layer(&l);
}

static attn_product *named_product(const layer *l, const char *name) {
  attn_product *product;
  (void)attn_product_create(&l->weights, &ATTN_STRUCT(attn_options, .kernel = name), &product);
  return product;
}

/* Rows that int8 cannot have: a NaN or an infinity makes all of Y NaN, but in no other row, and what is below 2^-120 is 0.
 */
TEST(test_rows_without_int8_values) {
  enum { ROWS = 30, DEPTH = 70, COLUMNS = 90 };
  layer l = make_layer((shape){.batch = 1, .rows = ROWS, .depth = DEPTH, .columns = COLUMNS, .x_step = 1, INT8});
  float *x = l.x;
  const int64_t stride = l.args.x_stride.s;
  x[3 * stride + 5] = NAN;
  x[4 * stride + 69] = -INFINITY;
  for (int64_t k = 0; k < DEPTH; k++) x[6 * stride + k] *= 0x1p-122f, x[7 * stride + k] *= 0x1p-110f;
  for (int n = 0; n < NAMES; n++) {
    attn_product *product = named_product(&l, names[n]);
    if (!product) continue;
    for (int64_t rows = 8; rows <= ROWS; rows += ROWS - 8) { /* few and many */
      attn_product_args args = l.args;
      args.rows = rows;
      run(product, &args);
      for (int64_t row = 0; row < rows; row++)
        for (int64_t c = 0; c < COLUMNS; c++) {
          const float y = l.y[row * args.y_stride.s + c];
          assert_int_equal(isnan(y) != 0, row == 3 || row == 4);
          if (row == 6) assert_true(y == 0);
          if (row != 3 && row != 4 && row != 6) assert_true(y != 0 && error_ratio(&l, 0, row, c, -1) <= 1);
        }
    }
    attn_product_destroy(product);
  }
  free_layer(&l);
}

/* Sums of integers do not overflow in the largest depth that a product takes, and a larger one takes another product. */
TEST(test_depth_of_int8_rows) {
  enum { MOST = 1 << 16 };
  for (int64_t depth = MOST; depth <= MOST + 1; depth++) {
    layer l = make_layer((shape){.batch = 1, .rows = 9, .depth = depth, .columns = 2, .x_step = 1, INT8});
    for (int64_t i = 0; i < depth; i++) ((int8_t *)l.weight)[2 * i] = 127, ((int8_t *)l.weight)[2 * i + 1] = -127;
    for (int64_t i = 0; i < 9 * l.args.x_stride.s; i++) l.x[i] = i / l.args.x_stride.s % 2 ? -1 : 1;
    attn_product *named = named_product(&l, "product_avx512vnni"), *product = create(&l, NULL);
    assert_true(depth <= MOST || !named);
    run(product, &l.args);
    assert_true(worst_ratio(&l, -1) <= 1);
    assert_int_equal(strcmp(attn_product_name(product), "product_avx512vnni") == 0, named != NULL);
    attn_product_destroy(product);
    attn_product_destroy(named);
    free_layer(&l);
  }
}

/* Y has the bits of a run before in these rows, one sequence behind the other. */
static void check_rows(const layer *l, const void *expected, int64_t first, int64_t rows) {
  for (int64_t row = first; row < first + rows; row++) {
    const int64_t at = attn_elements_bytes(l->shape.dtype_y, row * l->args.y_stride.s);
    assert_memory_equal((char *)l->y + at, (const char *)expected + at,
                        (size_t)attn_elements_bytes(l->shape.dtype_y, l->shape.columns));
  }
}

/* Runs the layer. Returns a copy of Y. */
static void *run_expected(const attn_product *product, const layer *l) {
  run(product, &l->args);
  void *expected = test_allocate((size_t)l->y_floats * sizeof *l->y);
  return memcpy(expected, l->y, (size_t)l->y_floats * sizeof *l->y);
}

/* Types of weights, rows and outputs. */
typedef struct types {
  attn_dtype dtype, x, y;
  bool int8_rows;
} types;

/* A row has the same bits alone and among others, with one thread and with several, by OpenMP and by a pool. */
static void check_bits_of_rows(const char *name, types t) {
  layer l = make_layer((shape){.batch = 1,
                               .rows = 230,
                               .depth = t.y == ATTN_F32 ? 300 : 600, /* sums of several blocks */
                               .columns = 130,
                               .dtype = t.dtype,
                               .dtype_x = t.x,
                               .dtype_y = t.y,
                               .int8_rows = t.int8_rows,
                               .bias = true,
                               .x_step = 1});
  attn_product *alone;
  if (attn_product_create(&l.weights, &ATTN_STRUCT(attn_options, .kernel = name, .threads = 1), &alone) != ATTN_OK) {
    free_layer(&l);
    return;
  }
  void *expected = run_expected(alone, &l);
  test_pool pool = {.backwards = true};
  const attn_options many[] = {
      ATTN_STRUCT(attn_options, .kernel = name, .threads = 2), ATTN_STRUCT(attn_options, .kernel = name, .threads = 5),
      ATTN_STRUCT(attn_options, .kernel = name, .threads = 3, .parallel_for = test_parallel_for, .pool = &pool)};
  for (int i = 0; i < 3; i++) {
    attn_product *product = create(&l, &many[i]);
    pool.tasks = 0; /* those of packing */
    memset(l.y, 0xff, (size_t)l.y_floats * sizeof *l.y);
    run(product, &l.args);
    check_rows(&l, expected, 0, 230);
    attn_product_destroy(product);
  }
  assert_true(pool.tasks > 0 && pool.tasks <= 12); /* large blocks, although three threads share them */
  const int64_t parts[] = {1, 6, 13, 97, 229};
  for (int i = 0; i < 5; i++) {
    attn_product_args args = l.args;
    args.rows = parts[i];
    args.x = (char *)l.x + attn_elements_bytes(t.x, args.x_stride.s); /* from row 1 on */
    args.y = (char *)l.y + attn_elements_bytes(t.y, args.y_stride.s);
    memset(l.y, 0xff, (size_t)l.y_floats * sizeof *l.y);
    run(alone, &args);
    check_rows(&l, expected, 1, parts[i]);
  }
  attn_product_destroy(alone);
  free(expected);
  free_layer(&l);
}

/* Few rows are computed in another order of panels: alone, in two sequences, deeper than what is gathered at once. */
static void check_few_rows(const char *name, types t) {
  layer l = make_layer((shape){.batch = 1,
                               .rows = 20,
                               .depth = 4200,
                               .columns = 333,
                               .dtype = t.dtype,
                               .dtype_x = t.x,
                               .dtype_y = t.y,
                               .int8_rows = t.int8_rows,
                               .bias = true});
  attn_product *product;
  if (attn_product_create(&l.weights, &ATTN_STRUCT(attn_options, .kernel = name), &product) != ATTN_OK) {
    free_layer(&l);
    return;
  }
  void *expected = run_expected(product, &l);
  for (int64_t batch = 1; batch <= 2; batch++)
    for (int64_t rows = 1; rows * batch <= 10; rows++) {
      attn_product_args args = l.args;
      args.batch = batch;
      args.rows = rows;
      args.x_stride.b = rows * args.x_stride.s;
      args.y_stride.b = rows * args.y_stride.s;
      memset(l.y, 0xff, (size_t)l.y_floats * sizeof *l.y);
      run(product, &args);
      check_rows(&l, expected, 0, batch * rows);
    }
  attn_product_destroy(product);
  free(expected);
  free_layer(&l);
}

/* Every kernel but OpenBLAS's, whose bits depend on a row's place, with every weight type, and rows of float32 and bfloat16;
 * where rows have the weights' type, with every type of outputs. */
static void check_all_types(void (*check)(const char *name, types t)) {
  for (int n = 0; n < NAMES; n++)
    for (int w = 0; w < TYPES && strcmp(names[n], "product_openblas") != 0; w++)
      for (int x = ATTN_F32; x <= ATTN_BF16; x += ATTN_BF16)
        for (int y = ATTN_F32; y <= (weight_types[w] == (attn_dtype)x ? ATTN_BF16 : ATTN_F32); y++)
          for (int rounded = 0; rounded <= (weight_types[w] == ATTN_I8); rounded++)
            check(names[n], (types){weight_types[w], (attn_dtype)x, (attn_dtype)y, rounded});
}

TEST(test_few_rows_have_the_bits_of_many) { check_all_types(check_few_rows); }

TEST(test_bits_depend_on_the_row_alone) { check_all_types(check_bits_of_rows); }

/* Weights take the bytes of their type where the tier's vectors read them. */
TEST(test_memory_of_narrow_weights) {
  enum { SIZE = 256 };
  int checked = 0;
  for (int n = 0; n < NAMES; n++)
    for (int t = 0; t < TYPES; t++) {
      const attn_dtype dtype = weight_types[t];
      layer l = make_layer((shape){.batch = 1, .rows = 1, .depth = SIZE, .columns = SIZE, .dtype = dtype});
      attn_product *product = NULL;
      if (attn_product_create(&l.weights, &ATTN_STRUCT(attn_options, .kernel = names[n]), &product) == ATTN_OK) {
        const bool vectors = strcmp(names[n], "product_avx2") == 0 || strcmp(names[n], "product_avx512") == 0 ||
                             strcmp(names[n], "product_neon") == 0;
        if (vectors) {
          const size_t bytes = SIZE * SIZE * attn_dtype_of(dtype).bytes;
          assert_true(last_aligned_bytes >= bytes && last_aligned_bytes < bytes + bytes / 10);
          checked++;
        }
      }
      attn_product_destroy(product);
      free_layer(&l);
    }
  const attn_kernel_info *avx2 = attn_kernel_find("flash_avx2"); /* NULL on other CPUs than x86 */
  const bool has_vectors = avx2 && !attn_kernel_unusable(avx2);
  assert_true(checked % TYPES == 0 && (checked > 0 || !has_vectors));
}

/* OpenBLAS sums in an order that depends on a row's place in its block. A whole sequence still has the same bits alone and
 * among others, with any number of threads. */
TEST(test_sequences_keep_their_bits_in_a_library) {
  layer l = make_layer((shape){.batch = 5, .rows = 130, .depth = 70, .columns = 300, .bias = true, .x_step = 1});
  attn_product *product;
  attn_options options = ATTN_STRUCT(attn_options, .kernel = "product_openblas", .threads = 1);
  if (attn_product_create(&l.weights, &options, &product) != ATTN_OK) {
    test_contains(attn_last_error(), "product_openblas");
    free_layer(&l);
    skip(); /* not built, or not for this CPU */
  }
  run(product, &l.args);
  float *expected = test_allocate((size_t)l.y_floats * sizeof *expected);
  memcpy(expected, l.y, (size_t)l.y_floats * sizeof *expected);
  attn_product_destroy(product);
  options.threads = 3;
  test_ok(attn_product_create(&l.weights, &options, &product));
  for (int64_t b = 0; b < 5; b++) {
    attn_product_args alone = l.args;
    alone.batch = b == 0 ? 5 : 1; /* first all sequences, by several threads */
    alone.x = l.x + b * l.args.x_stride.b;
    alone.y = l.y + b * l.args.y_stride.b;
    memset(l.y, 0xff, (size_t)l.y_floats * sizeof *l.y);
    run(product, &alone);
    for (int64_t n = 0; n < alone.batch; n++)
      for (int64_t row = 0; row < 130; row++) {
        const int64_t at = (b + n) * l.args.y_stride.b + row * l.args.y_stride.s;
        assert_memory_equal(l.y + at, expected + at, 300 * sizeof(float));
      }
  }
  attn_product_destroy(product);
  free(expected);
  free_layer(&l);
}

/* A single panel is cut by its rows. */
TEST(test_narrow_layers_use_their_threads) {
  layer l = make_layer((shape){.batch = 1, .rows = 200, .depth = 70, .columns = 4, .x_step = 1});
  test_pool pool = {.backwards = true};
  attn_product *product =
      create(&l, &ATTN_STRUCT(attn_options, .threads = 3, .parallel_for = test_parallel_for, .pool = &pool));
  pool.tasks = 0; /* those of packing */
  run(product, &l.args);
  assert_int_equal(pool.tasks, 3); /* 67 rows each */
  assert_true(worst_ratio(&l, -1) <= 1);
  attn_product_destroy(product);
  free_layer(&l);
}

TEST(test_workspace_never_shrinks) {
  layer l = make_layer((shape){.batch = 1, .rows = 1, .depth = 300, .columns = 1000, .x_step = 1});
  for (int threads = 1; threads <= 4; threads++) {
    attn_product *product = create(&l, &ATTN_STRUCT(attn_options, .threads = threads));
    size_t last = 0;
    for (int64_t rows = 0; rows < 400; rows++) {
      const size_t bytes = attn_product_workspace(product, rows);
      assert_true(bytes >= last && bytes % 64 == 0 && (bytes > 0) == (rows > 0));
      last = bytes;
    }
    attn_product_destroy(product);
  }
  free_layer(&l);
}

/* The activations propagate NaN, and a NaN in one row of X changes no other row. */
TEST(test_nan_stays_in_its_row) {
  for (int gelu = 0; gelu < 2; gelu++) {
    layer l = make_layer(
        (shape){.batch = 1, .rows = 8, .depth = 40, .columns = 20, .relu = !gelu, .gelu = gelu, .bias = true, .x_step = 1});
    l.x[3 * l.args.x_stride.s + 5] = NAN;
    attn_product *product = create(&l, NULL);
    run(product, &l.args);
    for (int64_t row = 0; row < 8; row++)
      for (int64_t c = 0; c < 20; c++) assert_int_equal(isnan(l.y[row * l.args.y_stride.s + c]) != 0, row == 3);
    attn_product_destroy(product);
    free_layer(&l);
  }
}

static bool same_kind(float a, float b) {
  if (isnan(a) || isnan(b)) return isnan(a) && isnan(b);
  return isfinite(a) ? isfinite(b) : a == b;
}

/* Infinities, NaN and sums beyond the largest float reach the outputs that they reach in plain C, and no others. */
TEST(test_outputs_that_are_not_finite) {
  enum { ROWS = 70, DEPTH = 530, COLUMNS = 100 };
  layer l = make_layer((shape){.batch = 1, .rows = ROWS, .depth = DEPTH, .columns = COLUMNS, .x_step = 1});
  const uint32_t low_nan = 0x7f800001; /* its upper half is that of an infinity */
  float *weight = l.weight, *expected = test_allocate((size_t)l.y_floats * sizeof *expected);
  l.x[3 * l.args.x_stride.s + 5] = INFINITY;
  l.x[40 * l.args.x_stride.s + 520] = -INFINITY;
  l.x[66 * l.args.x_stride.s] = NAN;
  l.x[67 * l.args.x_stride.s + 1] = FLT_MAX;
  weight[COLUMNS + 50] = 3; /* 3 FLT_MAX */
  weight[9 * COLUMNS + 7] = INFINITY;
  memcpy(&weight[9 * COLUMNS + 99], &low_nan, sizeof low_nan);
  for (int n = 0; n < NAMES; n++) {
    attn_product *product;
    if (attn_product_create(&l.weights, &ATTN_STRUCT(attn_options, .kernel = names[n]), &product) != ATTN_OK) continue;
    run(product, &l.args);
    if (n == 0) memcpy(expected, l.y, (size_t)l.y_floats * sizeof *expected);
    for (int64_t i = 0; i < ROWS * COLUMNS; i++) {
      const int64_t at = i / COLUMNS * l.args.y_stride.s + i % COLUMNS;
      assert_true(same_kind(l.y[at], expected[at]));
    }
    attn_product_destroy(product);
  }
  assert_true(isinf(expected[67 * l.args.y_stride.s + 50]) && isfinite(expected[65 * l.args.y_stride.s]));
  assert_true(isnan(expected[99]) && isinf(expected[7]));
  free(expected);
  free_layer(&l);
}

/* Without a name, W never takes more bytes than float32. */
TEST(test_choice_by_type_of_the_weights) {
  layer l = make_layer((shape){.batch = 1, .rows = 1, .depth = 8, .columns = 8, .dtype = ATTN_F32, .x_step = 1});
  for (int t = 0; t < TYPES; t++) {
    attn_product *product, *named;
    const attn_dtype dtype = l.weights.dtype = weight_types[t];
    l.weights.scale = dtype == ATTN_I8 ? l.scale : NULL;
    const bool has_tiles =
        attn_product_create(&l.weights, &ATTN_STRUCT(attn_options, .kernel = "product_amx"), &named) == ATTN_OK;
    test_ok(attn_product_create(&l.weights, NULL, &product));
    assert_int_equal(strcmp(attn_product_name(product), "product_amx") == 0, has_tiles && dtype == ATTN_BF16);
    attn_product_destroy(product);
    attn_product_destroy(named);
  }
  free_layer(&l);
}

/* ---- Bad input ---- */

TEST(test_refuses_bad_weights) {
  layer l = make_layer((shape){.batch = 1, .rows = 2, .depth = 4, .columns = 4, .x_step = 1});
  attn_product *product, *const never_made = (attn_product *)1;
#define REFUSED(change, part)                                                       \
  TEST_REFUSES(attn_product_weights, l.weights, (bad.change, product = never_made), \
               attn_product_create(&bad, NULL, &product), product, "attn_product_weights." part)
  REFUSED(depth = 0, "depth is 0");
  REFUSED(relu = bad.gelu = true, "relu and .gelu are both true");
  REFUSED(gelu = (bad.activate = run_inner), "activate is given beside .gelu");
  REFUSED(columns = (int64_t)1 << 40, "columns is 1099511627776");
  REFUSED(weight = NULL, "weight is");
  REFUSED(dtype = (attn_dtype)9, "dtype is 9");
  REFUSED(dtype = ATTN_Q8_0, "dtype is 6");
  REFUSED(dtype = ATTN_I8, "scale is");
  REFUSED(scale = l.scale, "scale is");
  REFUSED(dtype_x = ATTN_I8, "dtype_x is");
  REFUSED(bf16_rows = true, "bf16_rows is true with dtype 0");
  REFUSED(bf16_rows = bad.int8_weights = true, "int8_weights is true with bf16_rows");
  REFUSED(int8_weights = (bad.dtype = ATTN_I8), "int8_weights is true with dtype ATTN_I8");
  REFUSED(int8_rows = true, "int8_rows is true with dtype 0");
  REFUSED(dtype_y = (attn_dtype)-1, "dtype_y is -1");
  REFUSED(bias = (const float *)(const void *)((const char *)l.x + 2), "bias is");
  REFUSED(stride_depth = INT64_MAX, "stride");
#define REFUSED_OPTIONS(status, part, ...)                                                                        \
  product = never_made;                                                                                           \
  test_refused(attn_product_create(&l.weights, &ATTN_STRUCT(attn_options, __VA_ARGS__), &product), status, part); \
  assert_null(product)
  REFUSED_OPTIONS(ATTN_UNKNOWN_KERNEL, "product_c", .kernel = "product_avx3");
  REFUSED_OPTIONS(ATTN_UNSUPPORTED, "product_avx2", .kernel = "product_avx2", .max_isa = "c");
  REFUSED_OPTIONS(ATTN_INVALID_ARGUMENT, "avx3", .max_isa = "avx3");
  REFUSED_OPTIONS(ATTN_INVALID_ARGUMENT, "attn_options.threads is -1", .threads = -1);
  test_invalid(attn_product_create(&l.weights, NULL, NULL), "product is NULL");
  test_invalid(attn_product_create(NULL, NULL, &product), "weights is NULL");
  free_layer(&l);
}

TEST(test_refuses_bad_arguments) {
  layer l = make_layer((shape){.batch = 2, .rows = 2, .depth = 4, .columns = 6, .x_step = 1});
  attn_product *product = create(&l, &ATTN_STRUCT(attn_options, .threads = 1));
  enum { SIZE = sizeof(attn_product_args) };
  const struct {
    attn_product_args args;
    const char *fragment;
  } bad[] = {
      {{.struct_size = SIZE, .batch = -1, .rows = 2}, "attn_product_args.batch is -1"},
      {{.struct_size = SIZE, .batch = 2, .rows = 2, .y = l.y}, "attn_product_args.x is"},
      {{.struct_size = SIZE, .batch = 2, .rows = 2, .x = l.x, .x_stride = l.args.x_stride}, "attn_product_args.y is"},
      {{.struct_size = SIZE, .batch = 2, .rows = 2, .x = l.x, .x_head_dim = 3}, "attn_product_args.x_head_dim is 3"},
      {{.struct_size = SIZE, .batch = 2, .rows = 2, .x = l.x, .x_stride = {.s = INT64_MAX}}, "attn_product_args.x_stride"},
      {{.struct_size = SIZE,
        .batch = 2,
        .rows = 2,
        .x = l.x,
        .x_stride = l.args.x_stride,
        .y = l.y,
        .y_stride = {.b = 12, .s = 5, .d = 1}},
       "attn_product_args.y_stride.s is 5"},
  };
  char workspace[64];
  for (size_t i = 0; i < COUNT(bad); i++) {
    assert_int_equal(attn_product_run(product, &bad[i].args, workspace, 0), ATTN_INVALID_ARGUMENT);
    test_contains(attn_last_error(), bad[i].fragment);
  }
  assert_int_equal(attn_product_run(product, &l.args, workspace, 1), ATTN_WORKSPACE_TOO_SMALL);
  test_ok(attn_product_run(product, &ATTN_STRUCT(attn_product_args, .batch = 0, .rows = 5), NULL, 0));
  test_invalid(attn_product_run(NULL, &l.args, workspace, 64), "product is NULL");
  test_invalid(attn_product_run(product, NULL, workspace, 64), "args is NULL");
  attn_product_destroy(product);
  free_layer(&l);
}
