/* SPDX-License-Identifier: MIT */
/* Gradients of layers against float64: products by the oracle of dense layers, everything else by central differences of a
 * forward pass in obvious loops. Optimisers against their formulas. Bits do not depend on threads. */
#include "attn/train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/problem/convert.h"
#include "kernels/common/problem/philox.h"
#include "src/train/tasks.h"
#include "tests/support/differences.h"
#include "tests/support/nn_support.h"

static const attn_options three = {.struct_size = sizeof three, .threads = 3};

/* ---- Dense layers ---- */

enum { IN = 37, OUT = TRAIN_STRIP + 9, ROWS = 83 };
static float x[ROWS * IN], y[ROWS * OUT], d_y[ROWS * OUT], weight[IN * OUT], bias[OUT], d_x[ROWS * IN], d_w[IN * OUT],
    d_b[OUT];

static attn_dense dense_of(bool transposed) {
  test_fill(x, ROWS * IN, 1);
  test_fill(d_y, ROWS * OUT, 2);
  test_fill(weight, IN * OUT, 3);
  test_fill(bias, OUT, 4);
  return ATTN_STRUCT(attn_dense, .rows = ROWS, .in = IN, .out = OUT,
                     .map = {.weight = weight, .bias = bias, .transposed = transposed}, .x = x, .y = y, .d_y = d_y,
                     .d_x = d_x, .d_weight = d_w, .d_bias = d_b);
}

/* [columns][rows] of [rows][columns] */
static void transpose(const float *from, int64_t rows, int64_t columns, float *to) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < columns; c++) to[c * rows + r] = from[r * columns + c];
}

static attn_nn_field apply(const float *rows, int64_t count, int64_t in, attn_linear map, int64_t out) {
  return nn_apply(attn_nn_field_of(rows, count, in), &map, out);
}

TEST(dense_layers_follow_the_formulas) {
  static float x_t[ROWS * IN], ones[ROWS], turned[IN * OUT];
  for (int i = 0; i < ROWS; i++) ones[i] = 1;
  for (int t = 0; t < 2; t++) {
    const attn_dense l = dense_of(t);
    transpose(x, ROWS, IN, x_t);
    test_ok(attn_dense_run(&l, NULL));
    nn_passes(apply(x, ROWS, IN, l.map, OUT), y);
    test_ok(attn_dense_grad(&l, NULL));
    nn_passes(apply(d_y, ROWS, OUT, (attn_linear){.weight = weight, .transposed = !t}, IN), d_x);
    nn_rejected(apply(d_y, ROWS, OUT, (attn_linear){.weight = weight, .transposed = t}, IN), d_x);
    nn_passes(apply(ones, 1, ROWS, (attn_linear){.weight = d_y}, OUT), d_b);
    if (t) {
      transpose(d_w, OUT, IN, turned);
      memcpy(d_w, turned, sizeof d_w);
    }
    nn_passes(apply(x_t, IN, ROWS, (attn_linear){.weight = d_y}, OUT), d_w);
    nn_rejected(apply(x_t, IN, ROWS - 1, (attn_linear){.weight = d_y}, OUT), d_w);
  }
}

TEST(dense_gradients_accumulate_and_do_not_depend_on_threads) {
  enum { PART = 40 };
  static float first_x[ROWS * IN], first_w[IN * OUT], first_b[OUT];
  attn_dense l = dense_of(false);
  test_ok(attn_dense_grad(&l, NULL));
  memcpy(first_x, d_x, sizeof d_x);
  memcpy(first_w, d_w, sizeof d_w);
  memcpy(first_b, d_b, sizeof d_b);
  test_ok(attn_dense_grad(&l, &three));
  assert_memory_equal(first_x, d_x, sizeof d_x);
  assert_memory_equal(first_w, d_w, sizeof d_w);
  assert_memory_equal(first_b, d_b, sizeof d_b);
  l.rows = PART; /* two parts of the batch */
  test_ok(attn_dense_grad(&l, NULL));
  assert_true(d_w[3] != first_w[3]);
  l.rows = ROWS - PART, l.x = x + PART * IN, l.d_y = d_y + PART * OUT, l.d_x = d_x + PART * IN, l.accumulate = true;
  test_ok(attn_dense_grad(&l, NULL));
  assert_memory_equal(first_x, d_x, sizeof d_x);
  assert_memory_equal(first_w, d_w, sizeof d_w);
  for (int i = 0; i < OUT; i++) assert_true(fabsf(d_b[i] - first_b[i]) <= 1e-6f);
  l.rows = 0;
  test_ok(attn_dense_grad(&l, NULL)); /* adds nothing */
  assert_true(d_w[3] == first_w[3]);
  l.accumulate = false;
  test_ok(attn_dense_grad(&l, NULL));
  assert_true(d_w[3] == 0 && d_b[3] == 0);
}

static void round_all(float *values, int64_t count) {
  for (int64_t i = 0; i < count; i++) values[i] = attn_f32_of_bf16(attn_bf16_of_f32(values[i]));
}

TEST(products_of_bf16_round_their_factors) {
  static float x_t[ROWS * IN], exact_x[ROWS * IN], exact_y[ROWS * OUT], exact_weight[IN * OUT];
  attn_dense l = dense_of(false);
  l.bf16_products = true;
  test_ok(attn_dense_run(&l, NULL));
  test_ok(attn_dense_grad(&l, NULL));
  memcpy(exact_x, x, sizeof x), memcpy(exact_y, d_y, sizeof d_y), memcpy(exact_weight, weight, sizeof weight);
  round_all(x, ROWS * IN), round_all(d_y, ROWS * OUT), round_all(weight, IN * OUT);
  transpose(x, ROWS, IN, x_t);
  nn_passes(apply(x, ROWS, IN, l.map, OUT), y);
  nn_passes(apply(d_y, ROWS, OUT, (attn_linear){.weight = weight, .transposed = true}, IN), d_x);
  nn_passes(apply(x_t, IN, ROWS, (attn_linear){.weight = d_y}, OUT), d_w);
  nn_rejected(apply(exact_x, ROWS, IN, l.map, OUT), y);
  nn_rejected(apply(exact_y, ROWS, OUT, (attn_linear){.weight = weight, .transposed = true}, IN), d_x);
  nn_rejected(apply(x_t, IN, ROWS, (attn_linear){.weight = exact_y}, OUT), d_w);
  nn_rejected(apply(x, ROWS, IN, (attn_linear){.weight = exact_weight, .bias = bias}, OUT), y);
}

/* ---- Norms ---- */

enum { NORM_ROWS = 35, NORM_WIDTH = 37, NORM_COUNT = NORM_ROWS * NORM_WIDTH };
static attn_norm_kind norm_kind;
static float s[NORM_COUNT], gain[NORM_WIDTH], d_normed[NORM_COUNT], d_sum[NORM_COUNT];

/* sum of d_y y + d_sum s; p: s, gain, bias. */
static double normed(const double *p) {
  double sum = 0;
  for (int r = 0; r < NORM_ROWS; r++) {
    double mean = 0, square = 0;
    for (int i = 0; i < NORM_WIDTH; i++) mean += norm_kind == ATTN_NORM_LAYER ? p[r * NORM_WIDTH + i] / NORM_WIDTH : 0;
    for (int i = 0; i < NORM_WIDTH; i++) {
      const double centred = p[r * NORM_WIDTH + i] - mean;
      square += centred * centred / NORM_WIDTH;
    }
    for (int i = 0; i < NORM_WIDTH; i++) {
      const double n = (p[r * NORM_WIDTH + i] - mean) / sqrt(square + (double)1e-5f);
      sum += (double)d_normed[r * NORM_WIDTH + i] * (n * p[NORM_COUNT + i] + p[NORM_COUNT + NORM_WIDTH + i]);
      sum += (double)d_sum[r * NORM_WIDTH + i] * p[r * NORM_WIDTH + i];
    }
  }
  return sum;
}

TEST(norm_gradients_are_differences) {
  static double p[NORM_COUNT + 2 * NORM_WIDTH], slopes[NORM_COUNT];
  static float d_s[NORM_COUNT], more[NORM_COUNT];
  float d_gain[NORM_WIDTH], d_bias[NORM_WIDTH], more_gain[NORM_WIDTH], scales[3 * NORM_ROWS];
  char tiers[16][16];
  const int tier_count = test_tiers(tiers);
  test_fill(d_normed, NORM_COUNT, 5);
  test_fill(d_sum, NORM_COUNT, 6);
  for (norm_kind = ATTN_NORM_LAYER; norm_kind <= ATTN_NORM_RMS; norm_kind++) {
    fill_both(s, p, NORM_COUNT, 7);
    fill_both(gain, p + NORM_COUNT, NORM_WIDTH, 8);
    attn_norm_grad g = ATTN_STRUCT(attn_norm_grad, .rows = NORM_ROWS, .width = NORM_WIDTH, .kind = norm_kind,
                                   .norm = {.gain = gain, .epsilon = 1e-5f}, .s = s, .d_y = d_normed, .d_sum = d_sum,
                                   .d_s = d_s, .d_gain = d_gain, .d_bias = d_bias);
    test_ok(attn_norm_grad_run(&g, NULL));
    differences(normed, p, 0, NORM_COUNT, slopes);
    passes(slopes, d_s, NORM_COUNT);
    differences(normed, p, NORM_COUNT, NORM_WIDTH, slopes);
    passes(slopes, d_gain, NORM_WIDTH);
    differences(normed, p, NORM_COUNT + NORM_WIDTH, NORM_WIDTH, slopes);
    passes(slopes, d_bias, NORM_WIDTH);
    assert_true(worst_of(slopes, d_gain, NORM_WIDTH) > 4);
    g.d_s = more;
    g.d_gain = more_gain;
    test_ok(attn_norm_grad_run(&g, &three));
    assert_memory_equal(more, d_s, sizeof more);
    assert_memory_equal(more_gain, d_gain, sizeof more_gain);
    memcpy(more, d_normed, sizeof more); /* in place */
    g.d_y = more;
    test_ok(attn_norm_grad_run(&g, NULL));
    assert_memory_equal(more, d_s, sizeof more);
    g.d_y = d_normed;
    test_ok(attn_row_join_run(&ATTN_STRUCT(attn_row_join, .rows = NORM_ROWS, .width = NORM_WIDTH, .norm_kind = norm_kind,
                                           .norm = g.norm, .x = s, .y = more, .scales = scales),
                              &three));
    g.scales = scales;
    test_ok(attn_norm_grad_run(&g, NULL));
    assert_memory_equal(more, d_s, sizeof more);
    assert_memory_equal(more_gain, d_gain, sizeof more_gain);
    scales[NORM_ROWS] *= 2; /* they are read */
    test_ok(attn_norm_grad_run(&g, NULL));
    assert_true(memcmp(more, d_s, sizeof more) != 0);
    g.scales = NULL;
    for (int i = 0; i < tier_count; i++) {
      test_ok(attn_norm_grad_run(&g, &ATTN_STRUCT(attn_options, .max_isa = tiers[i])));
      assert_memory_equal(more, d_s, sizeof more);
      assert_memory_equal(more_gain, d_gain, sizeof more_gain);
    }
    g.kind = norm_kind == ATTN_NORM_LAYER ? ATTN_NORM_RMS : ATTN_NORM_LAYER;
    test_ok(attn_norm_grad_run(&g, NULL));
    differences(normed, p, 0, NORM_COUNT, slopes);
    assert_true(worst_of(slopes, more, NORM_COUNT) > 4);
  }
}

/* ---- Activations ---- */

static double activated(attn_activation kind, double at) {
  switch (kind) {
    case ATTN_RELU: return at > 0 ? at : 0;
    case ATTN_GELU: return at * erfc(-at / sqrt(2)) / 2;
    case ATTN_SILU: return at / (1 + exp(-at));
    default: return at * (1 + tanh(sqrt(2 / acos(-1)) * (at + 0.044715 * at * at * at))) / 2;
  }
}

TEST(activation_gradients_are_differences) {
  enum { COUNT_X = 2 * TRAIN_BLOCK + 9 };
  static float in[COUNT_X], made[COUNT_X], ones[COUNT_X], got[COUNT_X];
  char tiers[16][16];
  const int tier_count = test_tiers(tiers);
  for (int n = 0; n < 4 * tier_count; n++) {
    const attn_activation kind = (attn_activation)(n % 4);
    const attn_options options = ATTN_STRUCT(attn_options, .max_isa = tiers[n / 4]);
    for (int i = 0; i < COUNT_X; i++) {
      in[i] = (float)(i - COUNT_X / 2) * (25.0f / (COUNT_X / 2));
      ones[i] = i % 2 ? 1 : -2;
    }
    test_ok(attn_activation_run(kind, COUNT_X, in, made, &options));
    test_ok(attn_activation_grad(kind, COUNT_X, in, ones, got, &options));
    for (int i = 0; i < COUNT_X; i++) {
      const double at = (double)in[i], h = 1e-4;
      const double slope = (activated(kind, at + h) - activated(kind, at - h)) / (2 * h);
      assert_true(fabs((double)made[i] - activated(kind, at)) <= 1e-6 * fmax(1, fabs(at)));
      if (kind != ATTN_RELU || at != 0)
        assert_true(fabs((double)got[i] - (double)ones[i] * slope) <= 1e-6 * fabs((double)ones[i]));
    }
    assert_true(kind != ATTN_RELU || got[COUNT_X / 2] == 0);
    attn_options threaded = options;
    threaded.threads = 3;
    test_ok(attn_activation_grad(kind, COUNT_X, in, ones, in, &threaded));
    assert_memory_equal(in, got, sizeof got); /* in place of x */
    const float far[] = {-1e30f, 1e30f}, one[] = {1, 1};
    float slopes[2];
    test_ok(attn_activation_grad(kind, 2, far, one, slopes, &options));
    assert_true(slopes[0] == 0 && slopes[1] == 1);
  }
}

/* ---- Dropout ---- */

TEST(dropout_follows_its_rule) {
  enum { DROP_ROWS = 70, DROP_WIDTH = 300, DROP_COUNT = DROP_ROWS * DROP_WIDTH };
  static float in[DROP_COUNT], out[DROP_COUNT], more[DROP_COUNT];
  const attn_dropout d = ATTN_STRUCT(attn_dropout, .probability = 0.2f, .seed = 77, .offset = 5, .stream = 3);
  const philox_dropout rule = philox_dropout_of(0.2f, 77, 5);
  char tiers[16][16];
  const int tier_count = test_tiers(tiers);
  for (int i = 0; i < DROP_COUNT; i++) in[i] = 3;
  test_ok(attn_dropout_rows(&d, DROP_ROWS, DROP_WIDTH, in, out, NULL));
  int dropped = 0;
  for (int r = 0; r < DROP_ROWS; r++)
    for (int c = 0; c < DROP_WIDTH; c++) {
      assert_true(out[r * DROP_WIDTH + c] == 3 * philox_factor(&rule, 3, (uint32_t)r, c));
      dropped += out[r * DROP_WIDTH + c] == 0;
    }
  assert_true(abs(dropped - DROP_COUNT / 5) < 5 * (int)sqrt(DROP_COUNT * 0.16)); /* five deviations */
  memcpy(more, in, sizeof in);
  test_ok(attn_dropout_rows(&d, DROP_ROWS, DROP_WIDTH, more, more, &three)); /* in place */
  assert_memory_equal(more, out, sizeof out);
  for (int i = 0; i < tier_count; i++) {
    test_ok(attn_dropout_rows(&d, DROP_ROWS, DROP_WIDTH, in, more, &ATTN_STRUCT(attn_options, .max_isa = tiers[i])));
    assert_memory_equal(more, out, sizeof out);
  }
  const attn_dropout none = ATTN_STRUCT(attn_dropout, .seed = 77);
  test_ok(attn_dropout_rows(&none, DROP_ROWS, DROP_WIDTH, in, out, NULL));
  assert_memory_equal(in, out, sizeof out);
}

/* ---- Tokens ---- */

TEST(embedding_gradients_are_added_in_order) {
  enum { TABLE_ROWS = 5, WIDE = 70, TOKENS = 40 };
  static float rows[TOKENS * WIDE], table[TABLE_ROWS * WIDE], expected[TABLE_ROWS * WIDE];
  int32_t tokens[TOKENS];
  test_fill(rows, TOKENS * WIDE, 9);
  for (int i = 0; i < TABLE_ROWS * WIDE; i++) table[i] = expected[i] = 1;
  for (int i = 0; i < TOKENS; i++) {
    tokens[i] = i * i % TABLE_ROWS;
    for (int c = 0; c < WIDE; c++) expected[tokens[i] * WIDE + c] += 2 * rows[i * WIDE + c];
  }
  const attn_embedding e = ATTN_STRUCT(attn_embedding, .vocabulary = TABLE_ROWS, .width = WIDE, .factor = 2);
  test_ok(attn_embed_grad(&e, TOKENS, tokens, rows, table, &three));
  assert_memory_equal(table, expected, sizeof table);
  tokens[7] = TABLE_ROWS;
  test_invalid(attn_embed_grad(&e, TOKENS, tokens, rows, table, NULL), "tokens[7] is 5");
}

enum { CE_ROWS = 6, CLASSES = 301 };
static int32_t targets[CE_ROWS] = {0, 300, -100, 17, 17, 150};
static double smoothing;
static bool adds;

static double entropy(const double *p) {
  double sum = 0;
  for (int r = 0; r < CE_ROWS; r++) {
    if (targets[r] < 0) continue;
    double total = 0, mean = 0;
    for (int c = 0; c < CLASSES; c++) total += exp(p[r * CLASSES + c]);
    for (int c = 0; c < CLASSES; c++) mean += (log(total) - p[r * CLASSES + c]) / CLASSES;
    sum += (1 - smoothing) * (log(total) - p[r * CLASSES + targets[r]]) + smoothing * mean;
  }
  return adds ? sum : sum / (CE_ROWS - 1);
}

TEST(cross_entropy_follows_the_formula) {
  static float logits[CE_ROWS * CLASSES], got[CE_ROWS * CLASSES], more[CE_ROWS * CLASSES];
  static double p[CE_ROWS * CLASSES], slopes[CE_ROWS * CLASSES];
  for (int variant = 0; variant < 4; variant++) {
    smoothing = variant % 2 ? (double)0.1f : 0;
    adds = variant / 2;
    test_fill(logits, CE_ROWS * CLASSES, 10);
    for (int i = 0; i < CE_ROWS * CLASSES; i++) p[i] = (double)(logits[i] *= 8);
    attn_cross_entropy e = ATTN_STRUCT(attn_cross_entropy, .rows = CE_ROWS, .classes = CLASSES, .logits = logits,
                                       .targets = targets, .smoothing = (float)smoothing, .sum = adds, .d_logits = got);
    double loss, again;
    test_ok(attn_cross_entropy_run(&e, NULL, &loss));
    assert_true(fabs(loss - entropy(p)) <= 1e-6 * fabs(loss));
    differences(entropy, p, 0, CE_ROWS * CLASSES, slopes);
    passes(slopes, got, CE_ROWS * CLASSES);
    for (int c = 0; c < CLASSES; c++) assert_true(got[2 * CLASSES + c] == 0);
    memcpy(more, logits, sizeof more); /* in place, threads */
    e.logits = e.d_logits = more;
    test_ok(attn_cross_entropy_run(&e, &three, &again));
    assert_memory_equal(more, got, sizeof more);
    assert_true(again == loss);
    e.logits = logits;
    e.d_logits = NULL;
    test_ok(attn_cross_entropy_run(&e, NULL, &again));
    assert_true(again == loss);
  }
  const float extreme[] = {-INFINITY, 3e38f, -3e38f};
  const int32_t second = 1;
  float d[3];
  double loss;
  test_ok(attn_cross_entropy_run(
      &ATTN_STRUCT(attn_cross_entropy, .rows = 1, .classes = 3, .logits = extreme, .targets = &second, .d_logits = d), NULL,
      &loss));
  assert_true(loss == 0 && d[0] == 0 && d[1] == 0 && d[2] == 0);
  const int32_t beyond = 3;
  test_invalid(
      attn_cross_entropy_run(
          &ATTN_STRUCT(attn_cross_entropy, .rows = 1, .classes = 3, .logits = extreme, .targets = &beyond), NULL, &loss),
      "targets[0] is 3");
}

/* ---- Tasks ---- */

enum { LONG_ROW = TRAIN_BLOCK + 9, MANY = 3 * LONG_ROW };
static float many_s[MANY], many_y[MANY];
static int32_t many_targets[MANY];

/* Results of a row have the bits of a call on that row alone; sums over rows are added. */
static void check_tasks(int rows, int width) {
  static float whole[MANY], single[MANY], sums[2][2 * LONG_ROW];
  const size_t bytes = (size_t)(rows * width) * sizeof *whole;
  double loss, part, losses = 0;
  test_fill(many_s, MANY, 60);
  test_fill(many_y, MANY, 61);
  for (int i = 0; i < rows; i++) many_targets[i] = i * i % width;
  attn_norm_grad g =
      ATTN_STRUCT(attn_norm_grad, .rows = rows, .width = width, .kind = ATTN_NORM_LAYER, .norm = {.epsilon = 1e-5f},
                  .s = many_s, .d_y = many_y, .d_s = whole, .d_gain = sums[0], .d_bias = sums[0] + width);
  attn_cross_entropy e = ATTN_STRUCT(attn_cross_entropy, .rows = rows, .classes = width, .logits = many_s,
                                     .targets = many_targets, .sum = true, .d_logits = many_y);
  test_ok(attn_norm_grad_run(&g, NULL));
  g.rows = 1, g.d_gain = sums[1], g.d_bias = sums[1] + width;
  for (int i = 0; i < rows; i++, g.s += width, g.d_y += width) {
    g.accumulate = i > 0, g.d_s = single + i * width;
    test_ok(attn_norm_grad_run(&g, NULL));
  }
  assert_memory_equal(whole, single, bytes);
  for (int i = 0; i < 2 * width; i++) assert_true(fabsf(sums[0][i] - sums[1][i]) <= 1e-4f);
  test_ok(attn_cross_entropy_run(&e, &three, &loss));
  e.rows = 1;
  for (int i = 0; i < rows; i++, e.logits += width, e.targets++, losses += part) {
    e.d_logits = single + i * width;
    test_ok(attn_cross_entropy_run(&e, NULL, &part));
  }
  assert_memory_equal(many_y, single, bytes);
  assert_true(fabs(loss - losses) <= 1e-9 * losses);
  const attn_dropout half = ATTN_STRUCT(attn_dropout, .probability = 0.5f);
  test_ok(attn_dropout_rows(&half, rows, width, many_s, whole, NULL));
  test_ok(attn_dropout_rows(&half, 1, width, many_s, single, &three));
  assert_memory_equal(whole, single, (size_t)width * sizeof *whole);
}

TEST(rows_do_not_depend_on_their_tasks) {
  check_tasks(MANY / NORM_WIDTH, NORM_WIDTH); /* three tasks of rows */
  check_tasks(3, LONG_ROW);                   /* rows longer than a task */
}

/* ---- Optimisers ---- */

enum { STEPS = 20, PARAMETERS = TRAIN_BLOCK + 904 };

TEST(optimisers_follow_their_formulas) {
  static float w[PARAMETERS], g[PARAMETERS], m[PARAMETERS], v[PARAMETERS], b[PARAMETERS], w2[PARAMETERS];
  static double wd[PARAMETERS], md[PARAMETERS], vd[PARAMETERS], bd[PARAMETERS], w2d[PARAMETERS];
  fill_both(w, wd, PARAMETERS, 20);
  fill_both(w2, w2d, PARAMETERS, 20);
  for (int step = 1; step <= STEPS; step++) {
    test_fill(g, PARAMETERS, 20 + (unsigned)step);
    test_ok(attn_adamw_step(
        &ATTN_STRUCT(attn_adamw, .rate = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .decay = 0.1f), step,
        PARAMETERS, w, g, m, v, step % 2 ? NULL : &three));
    test_ok(
        attn_sgd_step(&ATTN_STRUCT(attn_sgd, .rate = 0.01f, .momentum = 0.9f, .decay = 0.1f), PARAMETERS, w2, g, b, NULL));
    for (int i = 0; i < PARAMETERS; i++) {
      wd[i] -= 0.01 * 0.1 * wd[i];
      md[i] = 0.9 * md[i] + 0.1 * (double)g[i];
      vd[i] = 0.95 * vd[i] + 0.05 * (double)g[i] * (double)g[i];
      wd[i] -= 0.01 * (md[i] / (1 - pow(0.9, step))) / (sqrt(vd[i] / (1 - pow(0.95, step))) + 1e-8);
      bd[i] = 0.9 * bd[i] + (double)g[i] + 0.1 * w2d[i];
      w2d[i] -= 0.01 * bd[i];
    }
  }
  for (int i = 0; i < PARAMETERS; i++) {
    assert_true(fabs((double)w[i] - wd[i]) <= 3e-6);
    assert_true(fabs((double)w2[i] - w2d[i]) <= 3e-6);
  }
}

TEST(gradients_are_clipped_to_a_norm) {
  static float g[PARAMETERS], before[PARAMETERS], more[PARAMETERS];
  double norm, exact = 0;
  test_fill(g, PARAMETERS, 40);
  memcpy(before, g, sizeof g);
  memcpy(more, g, sizeof g);
  for (int i = 0; i < PARAMETERS; i++) exact += (double)g[i] * (double)g[i];
  test_ok(attn_clip_grads(PARAMETERS, g, INFINITY, &norm, NULL));
  assert_memory_equal(g, before, sizeof g);
  assert_true(fabs(norm - sqrt(exact)) <= 1e-12 * norm);
  test_ok(attn_clip_grads(PARAMETERS, g, 1, &norm, NULL));
  test_ok(attn_clip_grads(PARAMETERS, more, 1, NULL, &three));
  assert_memory_equal(g, more, sizeof g);
  for (int i = 0; i < PARAMETERS; i++) assert_true(fabs((double)g[i] - (double)before[i] / norm) <= 1e-8);
  g[5] = NAN;
  test_ok(attn_clip_grads(PARAMETERS, g, 1, &norm, NULL));
  assert_true(isnan(norm));
}

TEST(rates_rise_and_fall) {
  assert_true(attn_warmup_rate(2, 4, 0, 0) == 0 && attn_warmup_rate(2, 4, 0, 1) == 0.5);
  assert_true(attn_warmup_rate(2, 4, 0, 4) == 2 && attn_warmup_rate(2, 4, 0, 16) == 1);
  assert_true(attn_warmup_rate(2, 4, 12, 4) == 2 && fabs(attn_warmup_rate(2, 4, 12, 8) - 1) < 1e-15);
  assert_true(attn_warmup_rate(2, 4, 12, 12) == 0);
}

TEST(weights_begin_with_their_moments) {
  enum { WIDE = 200, HIGH = 300 };
  static float w[WIDE * HIGH], again[WIDE * HIGH];
  const double deviations[] = {0.02, 0.02 * sqrt(2.0 / (WIDE + HIGH)), 0.02 * sqrt(2.0 / WIDE)};
  for (attn_init kind = ATTN_INIT_NORMAL; kind <= ATTN_INIT_KAIMING; kind++) {
    double sum = 0, squares = 0;
    test_ok(attn_init_weights(kind, 0.02f, WIDE, HIGH, 1, 2, w));
    test_ok(attn_init_weights(kind, 0.02f, WIDE, HIGH, 1, 2, again));
    assert_memory_equal(w, again, sizeof w);
    test_ok(attn_init_weights(kind, 0.02f, WIDE, HIGH, 1, 3, again));
    assert_true(memcmp(w, again, sizeof w) != 0);
    for (int i = 0; i < WIDE * HIGH; i++) {
      sum += (double)w[i];
      squares += (double)w[i] * (double)w[i];
    }
    const double deviation = sqrt(squares / (WIDE * HIGH));
    assert_true(fabs(deviation / deviations[kind] - 1) < 0.02);
    assert_true(fabs(sum / (WIDE * HIGH)) < 5 * deviation / sqrt(WIDE * HIGH));
  }
}

/* ---- Mistakes ---- */

/* Calls on `count` elements or rows. Pointers of `missing` are NULL: bit n is the one with the n-th name. */
typedef attn_status (*call)(unsigned missing, int64_t count);
#define GIVE(n, pointer) (missing >> (n)&1 ? NULL : (pointer))
#define CALL(name, expression) \
  static attn_status name(unsigned missing, int64_t count) { return expression; }

static double a_loss;
static const int32_t zeros[1];
CALL(dense_run, attn_dense_run(&ATTN_STRUCT(attn_dense, .rows = count, .in = IN, .out = OUT, .x = GIVE(0, x),
                                            .y = GIVE(1, y), .map.weight = GIVE(2, weight)),
                               NULL))
CALL(dense_grad, attn_dense_grad(&ATTN_STRUCT(attn_dense, .rows = count, .in = IN, .out = OUT, .d_y = GIVE(0, d_y),
                                              .x = GIVE(1, x), .map.weight = GIVE(2, weight), .d_x = d_x, .d_weight = d_w),
                                 NULL))
CALL(activation_run, attn_activation_run(ATTN_SILU, count, GIVE(0, x), GIVE(1, y), NULL))
CALL(activation_grad, attn_activation_grad(ATTN_SILU, count, GIVE(0, x), GIVE(1, d_y), GIVE(2, d_x), NULL))
CALL(dropout_rows, attn_dropout_rows(&ATTN_STRUCT(attn_dropout, .probability = 0), count, 1, GIVE(0, x), GIVE(1, y), NULL))
CALL(norm_grad, attn_norm_grad_run(&ATTN_STRUCT(attn_norm_grad, .rows = count, .width = 1, .kind = ATTN_NORM_RMS,
                                                .s = GIVE(0, x), .d_y = GIVE(1, d_y), .d_s = d_x),
                                   NULL))
CALL(embed_grad, attn_embed_grad(&ATTN_STRUCT(attn_embedding, .vocabulary = 1, .width = 1), count, GIVE(0, zeros),
                                 GIVE(1, d_y), GIVE(2, d_x), NULL))
CALL(cross_entropy, attn_cross_entropy_run(&ATTN_STRUCT(attn_cross_entropy, .rows = count, .classes = 3,
                                                        .logits = GIVE(0, x), .targets = GIVE(1, zeros)),
                                           NULL, &a_loss))
CALL(adamw_step, attn_adamw_step(&ATTN_STRUCT(attn_adamw, .epsilon = 1), 1, count, GIVE(0, x), GIVE(1, y), GIVE(2, d_x),
                                 GIVE(3, d_y), NULL))
CALL(sgd_step, attn_sgd_step(&ATTN_STRUCT(attn_sgd, .momentum = 0.5f), count, GIVE(0, x), GIVE(1, y), GIVE(2, d_x), NULL))
CALL(clip_grads, attn_clip_grads(count, GIVE(0, x), 1, NULL, NULL))
CALL(init_weights, attn_init_weights(ATTN_INIT_NORMAL, 1, count, 1, 0, 0, GIVE(0, x)))

TEST(pointers_are_needed_where_there_are_elements) {
  static const struct {
    call call;
    const char *names[4], *size;
  } calls[] = {{dense_run, {"attn_dense.x", "attn_dense.y", "attn_dense.map.weight"}, "attn_dense.rows"},
               {dense_grad, {"attn_dense.d_y", "attn_dense.x", "attn_dense.map.weight"}, "attn_dense.rows"},
               {activation_run, {"x", "y"}, "count"},
               {activation_grad, {"x", "d_y", "d_x"}, "count"},
               {dropout_rows, {"x", "y"}, "rows"},
               {norm_grad, {"attn_norm_grad.s", "attn_norm_grad.d_y"}, "attn_norm_grad.rows"},
               {embed_grad, {"tokens", "d_rows", "d_table"}, "count"},
               {cross_entropy, {"attn_cross_entropy.logits", "attn_cross_entropy.targets"}, "attn_cross_entropy.rows"},
               {adamw_step, {"weights", "grads", "m", "v"}, "count"},
               {sgd_step, {"weights", "grads", "momenta"}, "count"},
               {clip_grads, {"grads"}, "count"},
               {init_weights, {"weights"}, "in"}};
  for (size_t i = 0; i < COUNT(calls); i++) {
    unsigned all = 0;
    char sentence[80];
    for (int n = 0; n < 4 && calls[i].names[n]; n++) {
      all |= 1u << n;
      snprintf(sentence, sizeof sentence, "%s is NULL", calls[i].names[n]);
      test_invalid(calls[i].call(1u << n, 1), sentence);
    }
    test_ok(calls[i].call(0, 1));
    test_ok(calls[i].call(all, 0));
    snprintf(sentence, sizeof sentence, "%s is -1", calls[i].size);
    test_invalid(calls[i].call(0, -1), sentence);
  }
}

TEST(mistakes_are_sentences) {
  double loss;
  attn_dense l = dense_of(false);
  test_invalid(attn_dense_run(NULL, NULL), "layer is NULL");
  l.in = 0;
  test_invalid(attn_dense_run(&l, NULL), "attn_dense.in is 0");
  test_invalid(attn_norm_grad_run(&ATTN_STRUCT(attn_norm_grad, .width = 1), NULL), "attn_norm_grad.kind is 0");
  test_invalid(attn_activation_run((attn_activation)4, 1, x, y, NULL), "activation is 4");
  test_invalid(attn_dropout_rows(&ATTN_STRUCT(attn_dropout, .probability = 1), 1, 1, x, y, NULL), "probability is 1");
  test_invalid(attn_cross_entropy_run(&ATTN_STRUCT(attn_cross_entropy, .classes = 1), NULL, NULL), "loss is NULL");
  test_invalid(attn_cross_entropy_run(&ATTN_STRUCT(attn_cross_entropy, .classes = 1, .smoothing = 2), NULL, &loss),
               "smoothing is 2");
  test_invalid(attn_adamw_step(&ATTN_STRUCT(attn_adamw, .beta1 = 1), 1, 1, x, y, d_x, d_y, NULL), "beta1 is 1");
  test_invalid(attn_adamw_step(&ATTN_STRUCT(attn_adamw, .rate = 1), 0, 1, x, y, d_x, d_y, NULL), "step is 0");
  test_invalid(attn_clip_grads(1, x, 0, NULL, NULL), "most is 0");
  test_invalid(attn_init_weights((attn_init)3, 1, 1, 1, 0, 0, x), "kind is 3");
}
