/* SPDX-License-Identifier: MIT */
/* Feed-forward, additive attention and Synthesizer against their float64 oracles; formulas that are wrong in one place must
 * be rejected; bad arguments are refused. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/problem/convert.h"
#include "tests/support/nn_support.h"
#include "tests/support/pool.h"

/* ---- Feed-forward ---- */

typedef enum slip { NONE, OTHER_ACTIVATION, NO_BIAS, WEIGHT_OFF, NO_GATE } slip;

static attn_nn_field feed_forward_oracle(const attn_feed_forward_config *c, const float *x, int64_t rows, slip wrong) {
  attn_feed_forward_config config = *c;
  if (wrong == NO_BIAS) config.second.bias = NULL;
  if (wrong == OTHER_ACTIVATION) config.activation = c->activation == ATTN_RELU ? ATTN_GELU : ATTN_RELU;
  if (wrong == NO_GATE) config.gate.weight = NULL;
  if (wrong == WEIGHT_OFF) {
    float *moved = nn_random(c->width * c->hidden, 0);
    memcpy(moved, c->first.weight, (size_t)(c->width * c->hidden) * sizeof *moved);
    const int64_t count = c->width * c->hidden, step = c->gate.weight ? 2 : count; /* gates may close some */
    for (int64_t i = step == count ? count / 2 : 0; i < count; i += step)
      attn_store_f32(moved, c->dtype, i, attn_load_f32((attn_storage){moved, c->dtype}, i) + 0.02f);
    config.first.weight = moved;
  }
  attn_nn_field in = attn_nn_field_of(x, rows, c->width), y = attn_nn_oracle_feed_forward(&in, &config);
  attn_nn_field_destroy(&in);
  return y;
}

/* Rounds the weights to the type, in place. */
static void narrow(const attn_linear *map, int64_t count, attn_dtype dtype) {
  float *weights = (float *)(uintptr_t)map->weight;
  for (int64_t i = 0; i < count; i++) attn_store_f32(weights, dtype, i, weights[i]);
}

/* False: the product cannot run here. */
static bool feed_forward_by(const char *product, int64_t rows, int64_t width, int64_t hidden, attn_activation activation,
                            bool gated, int threads) {
  attn_feed_forward_config config = ATTN_STRUCT(attn_feed_forward_config, .width = width, .hidden = hidden,
                                                .activation = activation, .first = nn_random_linear(width, hidden, true, 1),
                                                .second = nn_random_linear(hidden, width, true, 2), .product = product);
  if (gated) config.gate = nn_random_linear(width, hidden, true, 3);
  config.dtype = (attn_dtype)(width % 3); /* float32, float16, bfloat16 */
  attn_linear *const maps[] = {&config.first, &config.second, &config.gate};
  for (int i = 0; i < 2 + gated; i++) narrow(maps[i], width * hidden, config.dtype);
  const attn_options options = ATTN_STRUCT(attn_options, .threads = threads);
  attn_feed_forward *layer;
  float *x = nn_random(rows * width, 5), *y = nn_random(rows * width, 6);
  for (int64_t i = 0; i < rows * width; i++) x[i] *= 4;
  const attn_status status = attn_feed_forward_create(&config, &options, &layer);
  if (product && (status == ATTN_UNKNOWN_KERNEL || status == ATTN_UNSUPPORTED)) return false;
  test_ok(status);
  const size_t bytes = attn_feed_forward_workspace(layer, rows);
  void *workspace = test_allocate(bytes);
  test_ok(attn_feed_forward_run(layer, rows, x, y, workspace, bytes));
  nn_passes(feed_forward_oracle(&config, x, rows, NONE), y);
  for (slip wrong = OTHER_ACTIVATION; wrong <= (gated ? NO_GATE : WEIGHT_OFF); wrong++)
    nn_rejected(feed_forward_oracle(&config, x, rows, wrong), y);
  test_ok(attn_feed_forward_run(layer, rows, x, x, workspace, bytes)); /* in place */
  assert_memory_equal(x, y, (size_t)(rows * width) * sizeof *x);
  free(workspace);
  attn_feed_forward_destroy(layer);
  return true;
}

static void feed_forward_of(int64_t rows, int64_t width, int64_t hidden, attn_activation activation, int threads) {
  for (int gated = 0; gated < 2; gated++) {
    assert_true(feed_forward_by(NULL, rows, width, hidden, activation, gated, threads));
    assert_true(feed_forward_by("product_c", rows, width, hidden, activation, gated, threads));
    (void)feed_forward_by("product_amx", rows, width, hidden, activation, gated, threads); /* in an order of its own */
  }
}

/* Rows that are rounded, and the same rows rounded before: the first map's and the gate's, not the second's. */
TEST(feed_forward_rounds_rows) {
  enum { ROWS = 5, WIDTH = 16, HIDDEN = 24 };
  attn_feed_forward_config config =
      ATTN_STRUCT(attn_feed_forward_config, .width = WIDTH, .hidden = HIDDEN, .dtype = ATTN_BF16,
                  .first = nn_random_linear(WIDTH, HIDDEN, true, 1), .second = nn_random_linear(HIDDEN, WIDTH, true, 2),
                  .gate = nn_random_linear(WIDTH, HIDDEN, true, 3));
  attn_linear *const maps[] = {&config.first, &config.second, &config.gate};
  for (int i = 0; i < 3; i++) narrow(maps[i], WIDTH * HIDDEN, ATTN_BF16);
  float *x = nn_random(ROWS * WIDTH, 5), y[4][ROWS * WIDTH]; /* rows as they are, rounded; bf16_rows false, true */
  float *rounded = nn_random(ROWS * WIDTH, 5);
  for (int i = 0; i < ROWS * WIDTH; i++) rounded[i] = attn_f32_of_bf16(attn_bf16_of_f32(x[i]));
  for (int i = 0; i < 4; i++) {
    attn_feed_forward *layer;
    config.bf16_rows = i & 1;
    test_ok(attn_feed_forward_create(&config, NULL, &layer));
    const size_t bytes = attn_feed_forward_workspace(layer, ROWS);
    void *workspace = test_allocate(bytes);
    test_ok(attn_feed_forward_run(layer, ROWS, i < 2 ? x : rounded, y[i], workspace, bytes));
    free(workspace);
    attn_feed_forward_destroy(layer);
  }
  assert_memory_equal(y[1], y[3], sizeof y[1]);
  assert_memory_not_equal(y[2], y[3], sizeof y[2]); /* the hidden rows are rounded too */
  assert_memory_not_equal(y[0], y[1], sizeof y[0]);
}

/* Rows of a map that int8_rows rounds. */
static void run_map(const attn_linear *map, int64_t in, int64_t out, attn_row_function after, bool int8, const float *x,
                    int64_t rows, float *y) {
  attn_product *product;
  test_ok(
      attn_product_create(&ATTN_STRUCT(attn_product_weights, .depth = in, .columns = out, .weight = map->weight,
                                       .stride_depth = map->transposed ? 1 : out, .stride_column = map->transposed ? in : 1,
                                       .bias = map->bias, .activate = after, .int8_weights = int8, .int8_rows = int8),
                          NULL, &product));
  const size_t bytes = attn_product_workspace(product, rows);
  void *workspace = aligned_alloc(64, bytes);
  test_ok(attn_product_run(product,
                           &ATTN_STRUCT(attn_product_args, .batch = 1, .rows = rows, .x = x, .x_stride = {.s = in, .d = 1},
                                        .y = y, .y_stride = {.s = out, .d = 1}),
                           workspace, bytes));
  free(workspace);
  attn_product_destroy(product);
}

/* All three maps do, if asked. */
TEST(feed_forward_rounds_rows_to_int8) {
  enum { ROWS = 5, WIDTH = 16, HIDDEN = 24 };
  attn_feed_forward_config config =
      ATTN_STRUCT(attn_feed_forward_config, .width = WIDTH, .hidden = HIDDEN, .int8_weights = true, .int8_rows = true,
                  .first = nn_random_linear(WIDTH, HIDDEN, true, 1), .second = nn_random_linear(HIDDEN, WIDTH, true, 2),
                  .gate = nn_random_linear(WIDTH, HIDDEN, true, 3));
  float *x = nn_random(ROWS * WIDTH, 5), gate[ROWS * HIDDEN], hidden[ROWS * HIDDEN], expected[ROWS * WIDTH];
  float y[ROWS * WIDTH];
  run_map(&config.gate, WIDTH, HIDDEN, attn_activation_function(ATTN_RELU, NULL), true, x, ROWS, gate);
  run_map(&config.first, WIDTH, HIDDEN, NULL, true, x, ROWS, hidden);
  for (int i = 0; i < ROWS * HIDDEN; i++) hidden[i] *= gate[i];
  run_map(&config.second, HIDDEN, WIDTH, NULL, true, hidden, ROWS, expected);
  for (int rounds = 1; rounds >= 0; rounds--) {
    attn_feed_forward *layer;
    config.int8_rows = rounds;
    test_ok(attn_feed_forward_create(&config, NULL, &layer));
    const size_t bytes = attn_feed_forward_workspace(layer, ROWS);
    void *workspace = test_allocate(bytes);
    test_ok(attn_feed_forward_run(layer, ROWS, x, y, workspace, bytes));
    free(workspace);
    attn_feed_forward_destroy(layer);
    assert_int_equal(memcmp(y, expected, sizeof y) == 0, rounds);
  }
}

/* Rows of 16 bits: what float32 maps give, rounded where rows are kept. */
TEST(feed_forward_of_rows_of_16_bits) {
  enum { ROWS = 5, WIDTH = 16, HIDDEN = 24 };
  static const attn_dtype types[] = {ATTN_F32, ATTN_BF16, ATTN_F16};
  for (int i = 0; i < 18; i++) {
    const attn_dtype in = types[i % 3], out = types[i / 3 % 3];
    const bool gated = i >= 9;
    attn_feed_forward_config config = ATTN_STRUCT(
        attn_feed_forward_config, .width = WIDTH, .hidden = HIDDEN, .activation = ATTN_SILU, .dtype_x = in, .dtype_y = out,
        .first = nn_random_linear(WIDTH, HIDDEN, true, 1), .second = nn_random_linear(HIDDEN, WIDTH, true, 2));
    if (gated) config.gate = nn_random_linear(WIDTH, HIDDEN, true, 3);
    float *x = nn_random(ROWS * WIDTH, 5);
    test_round(x, ROWS * WIDTH, in);
    void *given = test_narrow(x, ROWS * WIDTH, in), *y = test_allocate(ROWS * WIDTH * sizeof(float));
    attn_feed_forward *layer;
    test_ok(attn_feed_forward_create(&config, NULL, &layer));
    const size_t bytes = attn_feed_forward_workspace(layer, ROWS);
    void *workspace = test_allocate(bytes);
    test_ok(attn_feed_forward_run(layer, ROWS, given, y, workspace, bytes));
    const attn_row_function activation = attn_activation_function(ATTN_SILU, NULL);
    float hidden[ROWS * HIDDEN], gate[ROWS * HIDDEN], right[ROWS * WIDTH];
    run_map(&config.first, WIDTH, HIDDEN, gated ? NULL : activation, false, x, ROWS, hidden);
    test_round(hidden, ROWS * HIDDEN, in);
    if (gated) {
      run_map(&config.gate, WIDTH, HIDDEN, activation, false, x, ROWS, gate);
      test_round(gate, ROWS * HIDDEN, in);
      for (int n = 0; n < ROWS * HIDDEN; n++) hidden[n] *= gate[n];
      test_round(hidden, ROWS * HIDDEN, in);
    }
    run_map(&config.second, HIDDEN, WIDTH, NULL, false, hidden, ROWS, right);
    void *expected = test_narrow(right, ROWS * WIDTH, out);
    assert_memory_equal(y, expected, (size_t)attn_elements_bytes(out, ROWS * WIDTH));
    if (in == out) { /* in place */
      test_ok(attn_feed_forward_run(layer, ROWS, given, given, workspace, bytes));
      assert_memory_equal(given, expected, (size_t)attn_elements_bytes(out, ROWS * WIDTH));
    }
    void *const arrays[] = {given, y, workspace, expected};
    for (int n = 0; n < 4; n++) free(arrays[n]);
    attn_feed_forward_destroy(layer);
  }
}

/* Where the error may change the sign, a rectified value has the error of the other side. */
TEST(rectified_values_keep_their_error) {
  double value[] = {3, -3, 0.3, -0.3, 0}, error[] = {0.1, 0.1, 0.1, 0.1, 0};
  const double limit[] = {0.1, 0, 0.1, 0.1, 0};
  const attn_nn_field x = {1, COUNT(value), value, error};
  attn_nn_field y = attn_nn_oracle_relu(&x);
  for (size_t i = 0; i < COUNT(value); i++) {
    assert_true(y.value[i] == (value[i] > 0 ? value[i] : 0));
    assert_true(y.error[i] == limit[i]);
  }
  attn_nn_field_destroy(&y);
}

TEST(feed_forward_follows_the_formula) {
  for (int activation = ATTN_RELU; activation <= ATTN_GELU_TANH; activation++) {
    feed_forward_of(1, 8, 32, (attn_activation)activation, 1);
    feed_forward_of(9, 34, 50, (attn_activation)activation, 1);
    feed_forward_of(67, 24, 100, (attn_activation)activation, 1);
    feed_forward_of(130, 64, 256, (attn_activation)activation, 2);
  }
}

/* Every activation over its whole range, in every tier; that of each other one is rejected. */
static void activation_follows_the_formula(attn_activation activation, const char *tier) {
  enum { INPUTS = 40001 };
  static float x[INPUTS], y[INPUTS];
  const attn_row_function function = attn_activation_function(activation, &ATTN_STRUCT(attn_options, .max_isa = tier));
  assert_non_null(function);
  for (int i = 0; i < INPUTS; i++) x[i] = (float)(i - INPUTS / 2) / 200;
  for (int i = 0; i < 20000; i++) x[INPUTS / 2 - 10000 + i] = (float)(i - 10000) / 2500;
  x[0] = -1e30f, x[1] = 1e30f, x[2] = NAN;
  memcpy(y, x, sizeof y);
  function(y, INPUTS);
  assert_true(isnan(y[2]) && y[1] == 1e30f && fabsf(y[0]) < 1e24f);
  float ends[] = {INFINITY, 0.0f, -0.0f};
  function(ends, 3);
  assert_true(ends[0] == INFINITY && ends[1] == 0 && ends[2] == 0);
  for (int other = ATTN_RELU; other <= ATTN_GELU_TANH; other++) {
    attn_nn_field field = attn_nn_field_of(x + 3, INPUTS - 3, 1);
    attn_nn_field right = attn_nn_oracle_activation(&field, (attn_activation)other);
    if (other == (int)activation)
      nn_passes(right, y + 3);
    else
      nn_rejected(right, y + 3);
    attn_nn_field_destroy(&field);
  }
  float one = 0.75f, many[40];
  function(&one, 1);
  for (int i = 0; i < 40; i++) many[i] = 0.75f;
  function(many, 39);
  assert_true(many[0] == one && many[38] == one && many[39] == 0.75f); /* whole vectors and the rest */
}

TEST(activations_follow_their_formulas) {
  const char *const tiers[] = {"c", "avx2", "avx512", "neon"};
  for (size_t i = 0; i < COUNT(tiers); i++)
    for (int which = ATTN_RELU; which <= ATTN_GELU_TANH; which++)
      if (attn_activation_function((attn_activation)which, &ATTN_STRUCT(attn_options, .max_isa = tiers[i])))
        activation_follows_the_formula((attn_activation)which, tiers[i]);
  assert_null(attn_activation_function((attn_activation)(ATTN_GELU_TANH + 1), NULL));
  assert_null(attn_activation_function(ATTN_SILU, &ATTN_STRUCT(attn_options, .max_isa = "sse9")));
}

TEST(feed_forward_checks_arguments) {
  float w[6] = {0};
  const attn_feed_forward_config good =
      ATTN_STRUCT(attn_feed_forward_config, .width = 2, .hidden = 3, .first = {.weight = w}, .second = {.weight = w});
  attn_feed_forward *layer;
#define REFUSED(field, wrong, word)                                                                                    \
  TEST_REFUSES(attn_feed_forward_config, good, bad.field = wrong, attn_feed_forward_create(&bad, NULL, &layer), layer, \
               "attn_feed_forward_config." word)
  REFUSED(width, 0, "width is 0");
  REFUSED(hidden, -1, "hidden is -1");
  REFUSED(activation, (attn_activation)7, "activation is 7");
  REFUSED(dtype, ATTN_I8, "dtype is");
  REFUSED(dtype_x, ATTN_I8, "dtype_x is");
  REFUSED(dtype_y, (attn_dtype)-1, "dtype_y is -1");
  REFUSED(bf16_rows, true, "bf16_rows is true with dtype 0");
  REFUSED(bf16_rows, bad.int8_weights = true, "bf16_rows and .int8_weights are both true");
  REFUSED(int8_rows, true, "int8_rows is true and .int8_weights false");
  REFUSED(gate.bias, w, "gate.bias is given without gate.weight");
  REFUSED(first.weight, NULL, "first.weight is NULL; it must point to 2 x 3");
  REFUSED(second.weight, NULL, "second.weight is NULL; it must point to 3 x 2");
#undef REFUSED
  attn_feed_forward_config unknown = good;
  unknown.product = "product_mmx";
  test_refused(attn_feed_forward_create(&unknown, NULL, &layer), ATTN_UNKNOWN_KERNEL, "product_mmx");
  test_invalid(attn_feed_forward_create(NULL, NULL, &layer), "config is NULL");
  test_invalid(attn_feed_forward_create(&good, NULL, NULL), "layer is NULL");
  test_invalid(attn_feed_forward_create(&good, &ATTN_STRUCT(attn_options, .threads = -2), &layer), "threads is -2");
  test_ok(attn_feed_forward_create(&good, NULL, &layer));
  const size_t bytes = attn_feed_forward_workspace(layer, 5);
  char *workspace = test_allocate(bytes + 64);
  float x[10] = {0}, y[10];
  test_invalid(attn_feed_forward_run(NULL, 5, x, y, workspace, bytes), "layer is NULL");
  test_invalid(attn_feed_forward_run(layer, -1, x, y, workspace, bytes), "rows is -1");
  test_invalid(attn_feed_forward_run(layer, 5, NULL, y, workspace, bytes), "x is NULL");
  test_refused(attn_feed_forward_run(layer, 5, x, y, NULL, bytes), ATTN_WORKSPACE_TOO_SMALL, "workspace");
  test_refused(attn_feed_forward_run(layer, 5, x, y, workspace, bytes - 1), ATTN_WORKSPACE_TOO_SMALL,
               "attn_feed_forward needs");
  test_refused(attn_feed_forward_run(layer, 5, x, y, workspace + 4, bytes), ATTN_WORKSPACE_TOO_SMALL, "aligned to 64");
  test_ok(attn_feed_forward_run(layer, 0, NULL, NULL, NULL, 0));
  free(workspace);
  attn_feed_forward_destroy(layer);
  attn_feed_forward_destroy(NULL);
}

static void assert_profile(const attn_mha_profile *p) {
  assert_int_equal(p->runs, 1);
  test_times(p->total_ns, p->projections_ns, p->attention_ns);
}

/* ---- Additive attention ---- */

enum { AB = 2, AQ = 5, AK = 19, WQ = 24, WK = 18, AH = 32, AV = 11 };

static attn_additive_config additive_config(void) {
  return ATTN_STRUCT(attn_additive_config, .batch = AB, .seq_q = AQ, .seq_k = AK, .width_q = WQ, .width_k = WK, .hidden = AH,
                     .dim_v = AV, .use_kv_len = true, .query = nn_random_linear(WQ, AH, true, 1),
                     .key = nn_random_linear(WK, AH, false, 2), .score_weight = nn_random(AH, 3));
}

static attn_numerics numerics; /* the tested kernel's */

static attn_nn_field additive_oracle(const attn_additive_config *c, const attn_additive_args *a, attn_score score) {
  attn_nn_field q = nn_apply(attn_nn_field_of(a->q, AB * AQ, WQ), &c->query, AH);
  attn_nn_field k = nn_apply(attn_nn_field_of(a->k, AB * AK, WK), &c->key, AH);
  attn_nn_field v = attn_nn_field_of(a->v, AB * AK, AV);
  const attn_args args = {.kv_len = a->kv_len, .score_weight = c->score_weight};
  attn_nn_attention attention = {.args = &args, .numerics = numerics};
  attn_problem_init(&attention.problem, AB, 1, 1, AQ, AK, AH, AV);
  attention.problem.score = score;
  attention.problem.scale = 1;
  attention.problem.uses = ATTN_USE_KV_LEN | (score == ATTN_SCORE_ADDITIVE ? ATTN_USE_SCORE_WEIGHT : 0);
  attn_nn_field o = attn_nn_oracle_attention(&attention, &q, &k, &v);
  nn_destroy(&q, &k, &v);
  return o;
}

static void additive_in(const char *kernel) {
  const attn_additive_config config = additive_config();
  numerics = attn_kernel_find(kernel)->numerics;
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 2);
  const int32_t lengths[AB] = {AK, 7}, longer[AB] = {AK, 8};
  float *o = nn_random(AB * AQ * AV, 9), *again = nn_random(AB * AQ * AV, 10), *weights = nn_random(AB * AQ * AK, 11),
        *projected = nn_random(AB * AK * AH, 12);
  attn_mha_profile profile = {0};
  attn_additive_args args =
      ATTN_STRUCT(attn_additive_args, .q = nn_random(AB * AQ * WQ, 4), .k = nn_random(AB * AK * WK, 5),
                  .v = nn_random(AB * AK * AV, 6), .kv_len = lengths, .o = o, .weights = weights, .profile = &profile);
  attn_additive *layer;
  const attn_status status = attn_additive_create(&config, &options, &layer);
  if (status == ATTN_UNSUPPORTED) return; /* a kernel for dot scores only */
  test_ok(status);
  const size_t bytes = attn_additive_workspace(layer);
  void *workspace = test_allocate(bytes);
  test_ok(attn_additive_run(layer, &args, workspace, bytes));
  assert_string_equal(attn_additive_kernel(layer), kernel);
  assert_profile(&profile);
  nn_passes(additive_oracle(&config, &args, ATTN_SCORE_ADDITIVE), o);

  attn_additive_config no_bias = config, other_weight = config;
  no_bias.query.bias = NULL;
  other_weight.score_weight = nn_random(AH, 33);
  nn_rejected(additive_oracle(&no_bias, &args, ATTN_SCORE_ADDITIVE), o);
  nn_rejected(additive_oracle(&other_weight, &args, ATTN_SCORE_ADDITIVE), o);
  nn_rejected(additive_oracle(&config, &args, ATTN_SCORE_DOT), o);
  args.kv_len = longer;
  nn_rejected(additive_oracle(&config, &args, ATTN_SCORE_ADDITIVE), o);
  args.kv_len = lengths;

  for (int row = 0; row < AB * AQ; row++) { /* rows of weights sum to 1; the last key of the second batch is padding */
    double total = 0;
    for (int j = 0; j < AK; j++) total += (double)weights[row * AK + j];
    assert_true(fabs(total - 1) < 1e-5 && weights[row * AK + AK - 1] * (float)(row / AQ) == 0);
  }
  test_ok(attn_additive_project_keys(layer, args.k, projected, workspace, bytes)); /* in advance: the same bits */
  args.k = NULL;
  args.projected_k = projected;
  args.o = again;
  args.weights = NULL;
  test_ok(attn_additive_run(layer, &args, workspace, bytes));
  assert_memory_equal(again, o, AB * AQ * AV * sizeof *o);
  free(workspace);
  attn_additive_destroy(layer);
}

TEST(additive_in_every_kernel) { test_each_kernel(additive_in); }

/* The pool of the options also computes the weights. */
TEST(additive_weights_run_on_the_pool) {
  const attn_additive_config config = additive_config();
  const int32_t lengths[AB] = {AK, 7};
  float *weights[] = {NULL, nn_random(AB * AQ * AK, 11)};
  test_pool pools[2] = {{.calls = 0}};
  for (int i = 0; i < 2; i++) {
    attn_additive *layer;
    test_ok(attn_additive_create(
        &config, &ATTN_STRUCT(attn_options, .threads = 2, .parallel_for = test_parallel_for, .pool = &pools[i]), &layer));
    const attn_additive_args args = ATTN_STRUCT(attn_additive_args, .q = nn_random(AB * AQ * WQ, 4),
                                                .k = nn_random(AB * AK * WK, 5), .v = nn_random(AB * AK * AV, 6),
                                                .kv_len = lengths, .o = nn_random(AB * AQ * AV, 9), .weights = weights[i]);
    const size_t bytes = attn_additive_workspace(layer);
    void *workspace = test_allocate(bytes);
    test_ok(attn_additive_run(layer, &args, workspace, bytes));
    free(workspace);
    attn_additive_destroy(layer);
  }
  assert_true(pools[1].calls > pools[0].calls);
}

TEST(additive_checks_arguments) {
  attn_additive *layer;
  const attn_additive_config good = additive_config();
#define REFUSED(field, wrong, word)                                                                            \
  TEST_REFUSES(attn_additive_config, good, bad.field = wrong, attn_additive_create(&bad, NULL, &layer), layer, \
               "attn_additive_config." word)
  REFUSED(batch, -1, "batch is -1");
  REFUSED(seq_q, -1, "seq_q is -1");
  REFUSED(seq_k, -7, "seq_k is -7");
  REFUSED(width_q, 0, "width_q is 0");
  REFUSED(width_k, 0, "width_k is 0");
  REFUSED(hidden, 0, "hidden is 0");
  REFUSED(dim_v, 0, "dim_v is 0");
  REFUSED(query.weight, NULL, "query.weight is NULL");
  REFUSED(key.weight, NULL, "key.weight is NULL");
  REFUSED(score_weight, NULL, "score_weight is NULL");
#undef REFUSED
  test_invalid(attn_additive_create(NULL, NULL, &layer), "config is NULL");
  test_invalid(attn_additive_create(&good, NULL, NULL), "layer is NULL");
  test_ok(attn_additive_create(&good, NULL, &layer));
  const size_t bytes = attn_additive_workspace(layer);
  void *workspace = test_allocate(bytes);
  float *some = nn_random(AB * AK * AH, 1);
  const int32_t lengths[AB] = {1, 2}, too_long[AB] = {1, AK + 1};
  const attn_additive_args args =
      ATTN_STRUCT(attn_additive_args, .q = some, .k = some, .v = some, .o = nn_random(AB * AQ * AV, 2), .kv_len = lengths);
  attn_additive_args bad = args;
  attn_additive_config empty = good;
  empty.seq_q = 0;
  attn_additive *nothing;
  test_ok(attn_additive_create(&empty, NULL, &nothing));
  test_ok(attn_additive_run(nothing, &ATTN_STRUCT(attn_additive_args, .k = some, .v = some, .kv_len = lengths), workspace,
                            bytes));
  attn_additive_destroy(nothing);
  empty = good, empty.seq_k = 0, empty.use_kv_len = false;
  test_ok(attn_additive_create(&empty, NULL, &nothing));
  test_ok(attn_additive_run(nothing, &ATTN_STRUCT(attn_additive_args, .q = some, .o = args.o), workspace, bytes));
  for (int i = 0; i < AB * AQ * AV; i++) assert_true(args.o[i] == 0);
  attn_additive_destroy(nothing);
  bad.q = NULL;
  test_invalid(attn_additive_run(layer, &bad, workspace, bytes), "q is NULL");
  bad = args, bad.k = NULL;
  test_invalid(attn_additive_run(layer, &bad, workspace, bytes), "projected_k");
  bad = args, bad.v = NULL;
  test_invalid(attn_additive_run(layer, &bad, workspace, bytes), "v is NULL");
  bad = args, bad.kv_len = too_long;
  test_invalid(attn_additive_run(layer, &bad, workspace, bytes), "kv_len");
  test_refused(attn_additive_run(layer, &args, workspace, bytes - 64), ATTN_WORKSPACE_TOO_SMALL, "attn_additive needs");
  test_invalid(attn_additive_run(NULL, &args, workspace, bytes), "layer is NULL");
  test_invalid(attn_additive_run(layer, NULL, workspace, bytes), "args is NULL");
  test_invalid(attn_additive_project_keys(layer, some, NULL, workspace, bytes), "projected is NULL");
  test_ok(attn_additive_run(layer, &args, workspace, bytes));
  free(workspace);
  attn_additive_destroy(layer);
  attn_additive_destroy(NULL);
}

/* ---- Synthesizer ---- */

enum { SB = 2, SEQ = 13, WIDTH = 20, HEADS = 3, SV = 9, LENGTH = 17, HIDDEN = 12 };
static attn_linear first[HEADS], second[HEADS];

static attn_synthesizer_config synthesizer_config(attn_synthesizer_kind kind) {
  for (unsigned h = 0; h < HEADS; h++) {
    first[h] = nn_random_linear(WIDTH, HIDDEN, true, 10 + h);
    second[h] = nn_random_linear(HIDDEN, LENGTH, h != 1, 21 + h);
  }
  float *scores = nn_random(HEADS * LENGTH * LENGTH, 31);
  for (int i = 0; i < HEADS * LENGTH * LENGTH; i++) scores[i] *= 3;
  return ATTN_STRUCT(attn_synthesizer_config, .kind = kind, .batch = SB, .seq = SEQ, .width = WIDTH, .heads = HEADS,
                     .dim_v = SV, .length = LENGTH, .hidden = HIDDEN, .use_kv_len = true, .first = first, .second = second,
                     .scores = scores, .value = nn_random_linear(WIDTH, HEADS * SV, true, 40),
                     .output = nn_random_linear(HEADS * SV, WIDTH, true, 41));
}

/* scores[batch][heads][seq][length] of the config's kind. WEIGHT_OFF takes the weights of the next head, OTHER_ACTIVATION
 * takes GELU for ReLU. */
static attn_nn_field score_oracle(const attn_synthesizer_config *c, const float *x, slip wrong) {
  attn_nn_field scores = attn_nn_field_create(SB * HEADS * SEQ, LENGTH);
  for (int h = 0; h < HEADS; h++) {
    const int source = wrong == WEIGHT_OFF ? (h + 1) % HEADS : h;
    attn_nn_field inner = nn_apply(attn_nn_field_of(x, SB * SEQ, WIDTH), &c->first[source], HIDDEN);
    attn_nn_field active =
        wrong == OTHER_ACTIVATION ? attn_nn_oracle_activation(&inner, ATTN_GELU) : attn_nn_oracle_relu(&inner);
    attn_nn_field dense = nn_apply(active, &c->second[source], LENGTH);
    for (int64_t row = 0; row < SB * SEQ; row++)
      for (int64_t j = 0; j < LENGTH; j++) {
        const int64_t to = ((row / SEQ * HEADS + h) * SEQ + row % SEQ) * LENGTH + j;
        const bool random = c->kind == ATTN_SYNTHESIZER_RANDOM;
        scores.value[to] =
            random ? (double)c->scores[(source * LENGTH + row % SEQ) * LENGTH + j] : dense.value[row * LENGTH + j];
        scores.error[to] = random ? 0 : dense.error[row * LENGTH + j];
      }
    nn_destroy(&inner, &dense);
  }
  return scores;
}

static attn_nn_field synthesizer_oracle(const attn_synthesizer_config *c, const float *x, const int32_t *lengths,
                                        slip wrong) {
  attn_nn_field scores = score_oracle(c, x, wrong);
  attn_nn_field v = nn_apply(attn_nn_field_of(x, SB * SEQ, WIDTH), &c->value, HEADS * SV);
  attn_nn_attention attention = {.args = &(attn_args){.kv_len = lengths}, .numerics = numerics, .scores = &scores};
  attn_problem_init(&attention.problem, SB, HEADS, HEADS, SEQ, SEQ, SV, SV);
  if (c->causal) attn_problem_set_causal(&attention.problem, ATTN_ALIGN_TOP_LEFT);
  attention.problem.score = ATTN_SCORE_PRECOMPUTED;
  attention.problem.uses = ATTN_USE_KV_LEN;
  attn_nn_field o = attn_nn_oracle_attention(&attention, NULL, NULL, &v);
  attn_linear output = c->output;
  if (wrong == NO_BIAS) output.bias = NULL;
  nn_destroy(&scores, &v);
  return nn_apply(o, &output, WIDTH);
}

static void synthesizer_of(const char *kernel, attn_synthesizer_kind kind, bool causal) {
  attn_synthesizer_config config = synthesizer_config(kind);
  config.causal = causal;
  numerics = attn_kernel_find(kernel)->numerics;
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 2);
  const int32_t lengths[SB] = {SEQ, 5}, longer[SB] = {SEQ, 6};
  attn_mha_profile profile = {0};
  float *x = nn_random(SB * SEQ * WIDTH, 51), *y = nn_random(SB * SEQ * WIDTH, 52);
  attn_synthesizer *layer;
  const attn_status status = attn_synthesizer_create(&config, &options, &layer);
  if (status == ATTN_UNSUPPORTED) return; /* a kernel for dot scores only */
  test_ok(status);
  const size_t bytes = attn_synthesizer_workspace(layer);
  void *workspace = test_allocate(bytes);
  test_ok(attn_synthesizer_run(
      layer, &ATTN_STRUCT(attn_synthesizer_args, .x = x, .y = y, .kv_len = lengths, .profile = &profile), workspace, bytes));
  assert_string_equal(attn_synthesizer_kernel(layer), kernel);
  assert_profile(&profile);
  nn_passes(synthesizer_oracle(&config, x, lengths, NONE), y);
  nn_rejected(synthesizer_oracle(&config, x, longer, NONE), y);
  nn_rejected(synthesizer_oracle(&config, x, lengths, WEIGHT_OFF), y);
  nn_rejected(synthesizer_oracle(&config, x, lengths, NO_BIAS), y);
  if (kind == ATTN_SYNTHESIZER_DENSE) nn_rejected(synthesizer_oracle(&config, x, lengths, OTHER_ACTIVATION), y);
  config.causal = !causal;
  nn_rejected(synthesizer_oracle(&config, x, lengths, NONE), y);
  test_ok(attn_synthesizer_run(layer, &ATTN_STRUCT(attn_synthesizer_args, .x = x, .y = x, .kv_len = lengths), workspace,
                               bytes)); /* in place */
  assert_memory_equal(x, y, SB * SEQ * WIDTH * sizeof *x);
  free(workspace);
  attn_synthesizer_destroy(layer);
}

static void synthesizer_in(const char *kernel) {
  for (int kind = ATTN_SYNTHESIZER_DENSE; kind <= ATTN_SYNTHESIZER_RANDOM; kind++)
    for (int causal = 0; causal < 2; causal++) synthesizer_of(kernel, (attn_synthesizer_kind)kind, causal);
}

TEST(synthesizer_in_every_kernel) { test_each_kernel(synthesizer_in); }

TEST(synthesizer_checks_arguments) {
  attn_synthesizer *layer;
  const attn_synthesizer_config dense = synthesizer_config(ATTN_SYNTHESIZER_DENSE),
                                random = synthesizer_config(ATTN_SYNTHESIZER_RANDOM);
#define REFUSED(good, field, wrong, word)                                                                            \
  TEST_REFUSES(attn_synthesizer_config, good, bad.field = wrong, attn_synthesizer_create(&bad, NULL, &layer), layer, \
               "attn_synthesizer_config." word)
  REFUSED(dense, kind, (attn_synthesizer_kind)5, "kind is 5");
  REFUSED(dense, batch, -1, "batch is -1");
  REFUSED(dense, seq, LENGTH + 1, "seq is 18 with length 17");
  REFUSED(dense, width, 0, "width is 0");
  REFUSED(dense, heads, 0, "heads is 0");
  REFUSED(dense, dim_v, 0, "dim_v is 0");
  REFUSED(dense, length, 0, "length is 0");
  REFUSED(dense, hidden, 0, "hidden is 0");
  REFUSED(dense, first, NULL, "first is NULL");
  REFUSED(dense, second, NULL, "second is NULL");
  REFUSED(random, scores, NULL, "scores is NULL");
  REFUSED(random, value.weight, NULL, "value.weight is NULL");
  REFUSED(random, output.weight, NULL, "output.weight is NULL");
#undef REFUSED
  test_ok(attn_synthesizer_create(&random, NULL, &layer));
  const size_t bytes = attn_synthesizer_workspace(layer);
  void *workspace = test_allocate(bytes);
  float *x = nn_random(SB * SEQ * WIDTH, 1);
  test_invalid(attn_synthesizer_run(layer, &ATTN_STRUCT(attn_synthesizer_args, .y = x), workspace, bytes), "x is NULL");
  test_invalid(attn_synthesizer_run(layer, &ATTN_STRUCT(attn_synthesizer_args, .x = x, .y = x), workspace, bytes), "kv_len");
  test_refused(attn_synthesizer_run(layer, &ATTN_STRUCT(attn_synthesizer_args, .x = x, .y = x), workspace, 0),
               ATTN_WORKSPACE_TOO_SMALL, "attn_synthesizer needs");
  free(workspace);
  attn_synthesizer_destroy(layer);
  attn_synthesizer_destroy(NULL);
}

/* The tensors of these layers can still be addressed, their workspace cannot. */
TEST(workspaces_beyond_the_address_space_are_refused) {
  enum { LONG = 1 << 15 };
  const int64_t batch = (int64_t)3 << 28;
  const float *weight = nn_random(LONG, 1);
  const attn_linear map = {.weight = weight}; /* 1 x 1 or 1 x LONG */
  const attn_synthesizer_config scores =
      ATTN_STRUCT(attn_synthesizer_config, .batch = batch, .seq = LONG, .width = 1, .heads = 1, .dim_v = 1, .length = LONG,
                  .hidden = 1, .first = &map, .second = &map, .value = map, .output = map);
  const attn_additive_config queries =
      ATTN_STRUCT(attn_additive_config, .batch = batch, .seq_q = LONG, .seq_k = 1, .width_q = 1, .width_k = 1,
                  .hidden = LONG, .dim_v = 1, .query = map, .key = map, .score_weight = weight);
  attn_synthesizer *synthesizer;
  attn_additive *additive;
  test_refused(attn_synthesizer_create(&scores, NULL, &synthesizer), ATTN_UNSUPPORTED, "attn_synthesizer", "address space");
  test_refused(attn_additive_create(&queries, NULL, &additive), ATTN_UNSUPPORTED, "attn_additive", "address space");
  assert_true(!synthesizer && !additive);
}
