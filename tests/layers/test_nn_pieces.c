/* SPDX-License-Identifier: MIT */
/* Positions, layer norm, attention weights and kernel regression against their float64 oracles; formulas that are wrong in
 * one place must be rejected; bad arguments are refused. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/nn_support.h"

/* ---- Positions ---- */

TEST(positions_follow_the_formula) {
  static float out[40 * 33 + 1];
  const int64_t widths[] = {1, 2, 32, 33}, firsts[] = {0, 7, 1000000, ((int64_t)1 << 31) - 40};
  for (int w = 0; w < 4; w++)
    for (int f = 0; f < 4; f++) {
      out[40 * widths[w]] = 7;
      test_ok(attn_sinusoidal_positions(firsts[f], 40, widths[w], out));
      assert_true(out[40 * widths[w]] == 7); /* the float behind the last row is unchanged */
      nn_passes(attn_nn_oracle_positions(firsts[f], 40, widths[w]), out);
      nn_rejected(attn_nn_oracle_positions(firsts[f] + 1, 40, widths[w]), out);
    }
  assert_true(out[0] != 0);
}

/* Section 3.5 of the paper: a rotation by an angle that does not depend on p turns the encoding of p into the encoding of p
 * + shift. */
TEST(positions_shift_by_rotation) {
  enum { ROWS = 64, WIDTH = 16, SHIFT = 5 };
  static float out[ROWS * WIDTH];
  test_ok(attn_sinusoidal_positions(0, ROWS, WIDTH, out));
  for (int p = 0; p + SHIFT < ROWS; p++)
    for (int i = 0; i < WIDTH; i += 2) {
      const double angle = SHIFT / pow(10000.0, (double)i / WIDTH), s = (double)out[p * WIDTH + i],
                   c = (double)out[p * WIDTH + i + 1];
      const float *shifted = out + (p + SHIFT) * WIDTH + i;
      assert_true(fabs((double)shifted[0] - (s * cos(angle) + c * sin(angle))) < 4e-7);
      assert_true(fabs((double)shifted[1] - (c * cos(angle) - s * sin(angle))) < 4e-7);
    }
}

TEST(positions_check_arguments) {
  float out[4];
  test_invalid(attn_sinusoidal_positions(-1, 1, 4, out), "first is -1");
  test_invalid(attn_sinusoidal_positions(0, -1, 4, out), "rows is -1");
  test_invalid(attn_sinusoidal_positions(0, 1, 0, out), "width is 0");
  test_invalid(attn_sinusoidal_positions(0, 1, 4, NULL), "out is NULL");
  test_invalid(attn_sinusoidal_positions((int64_t)1 << 31, 1, 4, out), "2^31");
  test_ok(attn_sinusoidal_positions(3, 0, 4, NULL));
  alarm(10); /* ends the test if the time of no rows depends on their width */
  test_ok(attn_sinusoidal_positions(0, 0, INT32_MAX, NULL));
  alarm(0);
}

/* ---- Add & layer norm ---- */

enum { NORM_ROWS = 9, NORM_MOST = 301 };
static float x[NORM_ROWS * NORM_MOST], r[NORM_ROWS * NORM_MOST], y[NORM_ROWS * NORM_MOST], s[NORM_ROWS * NORM_MOST];
static float gain[NORM_MOST], bias[NORM_MOST];

static attn_nn_field norm_oracle(int64_t width, bool residual, const attn_norm *norm) {
  attn_nn_field a = attn_nn_field_of(x, NORM_ROWS, width), b = attn_nn_field_of(r, NORM_ROWS, width);
  attn_nn_field added = attn_nn_oracle_add(&a, &b), result = attn_nn_oracle_layer_norm(residual ? &added : &a, norm);
  nn_destroy(&a, &b, &added);
  return result;
}

/* Rows of values around `centre`. */
static void fill_norm(float centre) {
  test_fill(x, NORM_ROWS * NORM_MOST, 11);
  test_fill(r, NORM_ROWS * NORM_MOST, 12);
  test_fill(gain, NORM_MOST, 13);
  test_fill(bias, NORM_MOST, 14);
  for (int i = 0; i < NORM_ROWS * NORM_MOST; i++) x[i] = x[i] * 3 + centre;
}

TEST(layer_norm_follows_the_formula) {
  const int64_t widths[] = {2, 3, 15, 16, 17, 64, 300, 301};
  const float centres[] = {0, 1000, -30000};
  for (int c = 0; c < 3; c++)
    for (int w = 0; w < 8; w++)
      for (int residual = 0; residual < 2; residual++) {
        fill_norm(centres[c]);
        const attn_norm norm = {gain, bias, 1e-5f}, wrong_epsilon = {gain, bias, 0.5f}, no_gain = {NULL, bias, 1e-5f},
                        no_bias = {gain, NULL, 1e-5f};
        test_ok(attn_add_layer_norm(NORM_ROWS, widths[w], x, residual ? r : NULL, &norm, NULL, y));
        nn_passes(norm_oracle(widths[w], residual, &norm), y);
        nn_rejected(norm_oracle(widths[w], residual, &wrong_epsilon), y);
        nn_rejected(norm_oracle(widths[w], residual, &no_gain), y);
        nn_rejected(norm_oracle(widths[w], residual, &no_bias), y);
        if (widths[w] > 2) nn_rejected(norm_oracle(widths[w], !residual, &norm), y);
      }
}

/* The variance divides by n, not by n - 1. */
TEST(variance_is_uncorrected) {
  const float row[2] = {1, 3};
  const attn_norm norm = {.epsilon = 0};
  float out[2];
  test_ok(attn_add_layer_norm(1, 2, row, NULL, &norm, NULL, out));
  assert_true(out[0] == -1 && out[1] == 1);
}

TEST(layer_norm_works_in_place) {
  static float expected[NORM_ROWS * 64], sum[NORM_ROWS * 64];
  const size_t bytes = sizeof expected;
  const attn_norm norm = {gain, bias, 1e-5f};
  fill_norm(1);
  test_ok(attn_add_layer_norm(NORM_ROWS, 64, x, r, &norm, s, expected));
  for (int i = 0; i < NORM_ROWS * 64; i++) assert_true(s[i] == x[i] + r[i]);
  memcpy(sum, s, bytes);
  memcpy(y, x, bytes);
  test_ok(attn_add_layer_norm(NORM_ROWS, 64, y, r, &norm, NULL, y)); /* y is x */
  assert_memory_equal(y, expected, bytes);
  memcpy(y, r, bytes);
  test_ok(attn_add_layer_norm(NORM_ROWS, 64, x, y, &norm, NULL, y)); /* y is residual */
  assert_memory_equal(y, expected, bytes);
  memcpy(s, x, bytes);
  test_ok(attn_add_layer_norm(NORM_ROWS, 64, s, r, &norm, s, y)); /* sum is x */
  assert_memory_equal(y, expected, bytes);
  assert_memory_equal(s, sum, bytes);
}

TEST(layer_norm_checks_arguments) {
  const attn_norm norm = {.epsilon = 1e-5f}, negative = {.epsilon = -1}, nan = {.epsilon = NAN};
  float a[4] = {1, 2, 3, 4}, b[4];
  const struct {
    int64_t rows, width;
    const float *x;
    const attn_norm *norm;
    float *sum, *y;
    const char *word;
  } bad[] = {{-1, 4, a, &norm, NULL, b, "rows is -1"},        {1, 0, a, &norm, NULL, b, "width is 0"},
             {1, 4, NULL, &norm, NULL, b, "x is NULL"},       {1, 4, a, NULL, NULL, b, "norm is NULL"},
             {1, 4, a, &norm, NULL, NULL, "y is NULL"},       {1, 4, a, &negative, NULL, b, "epsilon is -1"},
             {1, 4, a, &nan, NULL, b, "epsilon is nan"},      {1, 4, a, &norm, b, b, "sum and y"},
             {1, (int64_t)1 << 32, a, &norm, NULL, b, "2^31"}};
  for (size_t i = 0; i < COUNT(bad); i++)
    test_invalid(attn_add_layer_norm(bad[i].rows, bad[i].width, bad[i].x, NULL, bad[i].norm, bad[i].sum, bad[i].y),
                 bad[i].word);
  test_ok(attn_add_layer_norm(0, 4, NULL, NULL, &norm, NULL, NULL));
  const float constant[3] = {5, 5, 5};
  test_ok(attn_add_layer_norm(1, 3, constant, NULL, &norm, NULL, b));
  for (int i = 0; i < 3; i++) assert_true(b[i] == 0);
}

/* ---- Errors of the oracles ---- */

/* Fields of the steps: x, or q; k; v; and scores. */
enum { ROWS = 6, WIDE = 8, FIELDS = 4 };
static const int64_t rows_of[FIELDS] = {ROWS, ROWS, ROWS, 2 * ROWS};

static attn_nn_field map(const attn_nn_field *in) {
  static float w[WIDE * WIDE];
  test_fill(w, WIDE * WIDE, 5);
  return attn_nn_oracle_linear(in, &(attn_linear){.weight = w, .bias = w}, WIDE);
}
static attn_nn_field gelu(const attn_nn_field *in) { return attn_nn_oracle_activation(in, ATTN_GELU); }
static attn_nn_field add(const attn_nn_field *in) { return attn_nn_oracle_add(&in[0], &in[1]); }
static attn_nn_field normed(const attn_nn_field *in) {
  return attn_nn_oracle_layer_norm(in, &(attn_norm){.gain = gain, .epsilon = 1e-5f});
}
static attn_nn_field attend(const attn_nn_field *in, attn_score score) {
  static const float weight[] = {0.5f, -1, 2, 0.7f};
  const attn_args args = {.kv_len = (const int32_t[]){3, 2}, .score_weight = weight};
  attn_nn_attention attention = {.args = &args, .scores = score == ATTN_SCORE_PRECOMPUTED ? &in[3] : NULL};
  attn_problem_init(&attention.problem, 2, 2, 2, 3, 3, WIDE / 2, WIDE / 2);
  attn_problem_set_causal(&attention.problem, ATTN_ALIGN_BOTTOM_RIGHT);
  attention.problem.score = score;
  attention.problem.scale = 0.7f;
  attention.problem.uses = ATTN_USE_KV_LEN | (score == ATTN_SCORE_DOT ? 0 : ATTN_USE_SCORE_WEIGHT);
  return attn_nn_oracle_attention(&attention, &in[0], &in[1], &in[2]);
}
static attn_nn_field dot(const attn_nn_field *in) { return attend(in, ATTN_SCORE_DOT); }
static attn_nn_field additive(const attn_nn_field *in) { return attend(in, ATTN_SCORE_ADDITIVE); }
static attn_nn_field gaussian(const attn_nn_field *in) { return attend(in, ATTN_SCORE_GAUSSIAN); }
static attn_nn_field precomputed(const attn_nn_field *in) { return attend(in, ATTN_SCORE_PRECOMPUTED); }

static const double MOVES = 1e-3; /* large beside all roundings, small beside the values */

/* An input that errs gives every output as large an error as the output moves when the input does. */
static void check_error(attn_nn_field (*step)(const attn_nn_field *), attn_nn_field *in, int field, int64_t at,
                        int64_t but) {
  in[field].error[at] = MOVES;
  attn_nn_field told = step(in);
  in[field].error[at] = 0;
  in[field].value[at] += MOVES;
  attn_nn_field moved = step(in);
  in[field].value[at] -= MOVES;
  for (int64_t i = 0; i < told.rows * told.width; i++) {
    const double by = fabs(moved.value[i] - told.value[i]);
    if (i != but && !(fabs(told.error[i] - by) <= 0.02 * by + 3e-6))
      fail_msg("field %d, element %d: output %d has an error of %g, but moves by %g", field, (int)at, (int)i, told.error[i],
               by);
  }
  nn_destroy(&told, &moved);
}

/* Errors that are left out. A query's: it reaches the scores of all keys alike, and the oracle takes them as independent.
 * The own error of an element of a normed row: its part of the mean is left out. */
TEST(errors_are_carried_by_derivatives) {
  static const struct {
    attn_nn_field (*step)(const attn_nn_field *);
    int first, last; /* fields */
  } steps[] = {{map, 0, 0}, {gelu, 0, 0},     {add, 0, 1},      {normed, 0, 0},
               {dot, 1, 2}, {additive, 1, 2}, {gaussian, 1, 2}, {precomputed, 2, 3}};
  attn_nn_field in[FIELDS];
  test_fill(gain, WIDE, 13);
  for (int f = 0; f < FIELDS; f++) {
    test_fill(x, (size_t)rows_of[f] * WIDE, 30 + (unsigned)f);
    in[f] = attn_nn_field_of(x, rows_of[f], WIDE);
  }
  for (size_t n = 0; n < COUNT(steps); n++)
    for (int f = steps[n].first; f <= steps[n].last; f++)
      for (int64_t at = 0; at < rows_of[f] * WIDE; at++)
        check_error(steps[n].step, in, f, at, steps[n].step == normed ? at : -1);
  nn_destroy(&in[0], &in[1], &in[2], &in[3]);
}

/* ---- Attention weights ---- */

/* Rows sum to 1, masked keys weigh 0, and the weights are the kernel's own output for V = identity. */
static void weights_of(const char *kernel, attn_dtype dtype) {
  enum { B = 2, H = 4, KV = 2, N = 7, M = 37, D = 16 };
  static float q[B * H * N * D], k[B * KV * M * D], o[B * H * N * M], weights[B * H * N * M];
  static uint16_t half[2][B * H * N * D + B * KV * M * D];
  attn_problem p;
  attn_problem_init(&p, B, H, KV, N, M, D, D);
  attn_problem_set_causal(&p, ATTN_ALIGN_BOTTOM_RIGHT);
  p.uses = ATTN_USE_KV_LEN;
  p.dtype_q = p.dtype_kv = dtype;
  test_fill(q, B * H * N * D, 1);
  test_fill(k, B * KV * M * D, 2);
  for (size_t i = 0; i < B * H * N * D; i++) half[0][i] = (uint16_t)(0x3000u + 0x8000u * (i % 3 == 0) + i % 512);
  for (size_t i = 0; i < B * KV * M * D; i++) half[1][i] = (uint16_t)(0x3100 + 0x8000 * (i % 2) + i % 301);
  const int32_t lengths[B] = {M, 20};
  const attn_args args =
      ATTN_STRUCT(attn_args, .q = dtype ? (void *)half[0] : q, .k = dtype ? (void *)half[1] : k, .kv_len = lengths);
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel);
  const attn_kernel_info *info = attn_kernel_find(kernel);
  if (attn_kernel_rejects(info, &p)) return;
  test_ok(attn_weights(&p, &args, &options, weights));
  attn_problem values = p;
  static float identity[M * M];
  for (int j = 0; j < M; j++) identity[j * M + j] = 1;
  values.dim_v = M;
  values.v_stride = (attn_strides){.s = M, .d = 1};
  values.o_stride = (attn_strides){.b = H * N * M, .h = N * M, .s = M, .d = 1};
  if (!dtype) {
    attn_args with_v = args;
    with_v.v = identity;
    with_v.o = o;
    test_ok(test_run(&values, &with_v, &options));
    assert_memory_equal(o, weights, sizeof weights);
  }
  for (int row = 0; row < B * H * N; row++) {
    const int last = lengths[row / (H * N)] - N + row % N;
    double total = 0;
    for (int j = 0; j < M; j++) {
      total += (double)weights[row * M + j];
      assert_true(j <= last ? weights[row * M + j] > 0 : weights[row * M + j] == 0);
    }
    assert_true(fabs(total - 1) < (info->numerics.p_rounding > 0 ? 1e-2 : 1e-5));
  }
}

static void weights_of_every_dtype(const char *kernel) {
  for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++) weights_of(kernel, (attn_dtype)dtype);
}

TEST(weights_are_the_kernels_own) { test_each_kernel(weights_of_every_dtype); }

TEST(weights_check_arguments) {
  attn_problem p;
  float a[4] = {1, 2, 3, 4}, w[4];
  attn_problem_init(&p, 1, 1, 1, 2, 2, 2, 2);
  const attn_args args = ATTN_STRUCT(attn_args, .q = a, .k = a);
  test_invalid(attn_weights(NULL, &args, NULL, w), "problem is NULL");
  test_invalid(attn_weights(&p, NULL, NULL, w), "args is NULL");
  test_invalid(attn_weights(&p, &args, NULL, NULL), "weights is NULL");
  test_invalid(attn_weights(&p, &ATTN_STRUCT(attn_args, .q = a), NULL, w), "k is NULL");
  const attn_options unknown = ATTN_STRUCT(attn_options, .kernel = "flash_mmx");
  test_refused(attn_weights(&p, &args, &unknown, w), ATTN_UNKNOWN_KERNEL, "flash_mmx");
  attn_problem_set_varlen(&p, 2, 2);
  test_invalid(attn_weights(&p, &args, NULL, w), "VARLEN");
  attn_problem_init(&p, 1, 1, 1, 2, 0, 2, 2); /* without keys there are no weights */
  test_ok(attn_weights(&p, &args, NULL, NULL));
  attn_problem_init(&p, 0, 1, 1, 2, 2, 2, 2);
  test_ok(attn_weights(&p, &args, NULL, NULL));
}

/* ---- Kernel regression ---- */

enum { POINTS = 41, QUERIES = 23, DX = 3, DY = 2 };
static float points[POINTS * DX], values[POINTS * DY], queries[QUERIES * DX], predicted[QUERIES * DY];

static attn_numerics numerics; /* the tested kernel's */

static attn_nn_field regression_oracle(const float *inverse_width, const float *at) {
  attn_nn_field q = attn_nn_field_of(at, QUERIES, DX), k = attn_nn_field_of(points, POINTS, DX),
                v = attn_nn_field_of(values, POINTS, DY);
  const attn_args args = {.score_weight = inverse_width};
  attn_nn_attention attention = {.args = &args, .numerics = numerics};
  attn_problem_init(&attention.problem, 1, 1, 1, QUERIES, POINTS, DX, DY);
  attention.problem.score = ATTN_SCORE_GAUSSIAN;
  attention.problem.uses = inverse_width ? ATTN_USE_SCORE_WEIGHT : 0;
  attn_nn_field o = attn_nn_oracle_attention(&attention, &q, &k, &v);
  nn_destroy(&q, &k, &v);
  return o;
}

static void regression_follows_the_formula(const char *kernel) {
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel);
  numerics = attn_kernel_find(kernel)->numerics;
  static float weights[QUERIES * POINTS], moved[QUERIES * DX];
  const float inverse_width[DX] = {0.5f, 3, 1}, other[DX] = {0.5f, 3, 1.01f};
  test_fill(points, POINTS * DX, 21);
  test_fill(values, POINTS * DY, 22);
  test_fill(queries, QUERIES * DX, 23);
  for (int i = 0; i < QUERIES * DX; i++) moved[i] = queries[i] + 1e-3f;
  const attn_regression regression =
      ATTN_STRUCT(attn_regression, .points = POINTS, .queries = QUERIES, .dim_x = DX, .dim_y = DY, .x = points, .y = values,
                  .query = queries, .inverse_width = inverse_width, .prediction = predicted, .weights = weights);
  const attn_status status = attn_kernel_regression(&regression, &options);
  if (status == ATTN_UNSUPPORTED) return; /* a kernel for dot scores only */
  test_ok(status);
  nn_passes(regression_oracle(inverse_width, queries), predicted);
  nn_rejected(regression_oracle(NULL, queries), predicted);
  nn_rejected(regression_oracle(other, queries), predicted);
  nn_rejected(regression_oracle(inverse_width, moved), predicted);
  for (int i = 0; i < QUERIES; i++)
    for (int d = 0; d < DY; d++) { /* weights times values give the prediction */
      double sum = 0;
      for (int j = 0; j < POINTS; j++) sum += (double)weights[i * POINTS + j] * (double)values[j * DY + d];
      assert_true(fabs(sum - (double)predicted[i * DY + d]) < 1e-5);
    }
}

TEST(regression_in_every_kernel) { test_each_kernel(regression_follows_the_formula); }

/* Two keys at distances x and -x have equal scores, and o moves by half of the difference of their errors. A score of x^2 /
 * 2 moves by x times the error of x, which is the key's and one rounding. The square has two more roundings. */
TEST(errors_of_distances_double_in_their_squares) {
  const double of_key = 64, width = 0.5, distance = width * of_key, errors[] = {0, 3, 100};
  for (size_t i = 0; i < COUNT(errors); i++) {
    attn_nn_field q = attn_nn_field_create(1, 1), k = attn_nn_field_create(2, 1), v = attn_nn_field_create(2, 1);
    k.value[0] = of_key, k.value[1] = -of_key;
    k.error[0] = k.error[1] = errors[i] * 0x1p-24 * of_key;
    v.value[0] = 1, v.value[1] = -1;
    attn_nn_attention attention = {.args = &(attn_args){.score_weight = &(float){(float)width}}};
    attn_problem_init(&attention.problem, 1, 1, 1, 1, 2, 1, 1);
    attention.problem.score = ATTN_SCORE_GAUSSIAN;
    attention.problem.uses = ATTN_USE_SCORE_WEIGHT;
    attn_nn_field o = attn_nn_oracle_attention(&attention, &q, &k, &v);
    const double square = distance * distance, moved = square * 0x1p-24 * (errors[i] + 1),
                 rounded = square / 2 * 0x1p-24 * sqrt(2);
    assert_true(o.value[0] == 0);
    assert_true(fabs(o.error[0] / sqrt((moved * moved + rounded * rounded) / 2) - 1) < 1e-3);
    nn_destroy(&q, &k, &v, &o);
  }
}

TEST(regression_checks_arguments) {
  const attn_regression good = ATTN_STRUCT(attn_regression, .points = POINTS, .queries = QUERIES, .dim_x = DX, .dim_y = DY,
                                           .x = points, .y = values, .query = queries, .prediction = predicted);
  test_ok(attn_kernel_regression(&good, NULL));
  test_ok(attn_kernel_regression(&ATTN_STRUCT(attn_regression, .points = 1, .dim_x = 1, .dim_y = 1), NULL)); /* no queries */
  test_invalid(attn_kernel_regression(NULL, NULL), "regression is NULL");
#define REFUSED(field, wrong, word) \
  TEST_REFUSES(attn_regression, good, bad.field = wrong, attn_kernel_regression(&bad, NULL), NULL, "attn_regression." word)
  REFUSED(points, 0, "points is 0");
  REFUSED(queries, -1, "queries is -1");
  REFUSED(dim_x, 0, "dim_x is 0");
  REFUSED(dim_y, 0, "dim_y is 0");
  REFUSED(x, NULL, "x is NULL");
  REFUSED(y, NULL, "y is NULL");
  REFUSED(query, NULL, "query is NULL");
  REFUSED(prediction, NULL, "prediction is NULL");
  attn_regression large = good;
  large.points = (int64_t)1 << 31;
  large.dim_x = (int64_t)1 << 28;
  test_invalid(attn_kernel_regression(&large, NULL), "it must be at most 2^58 elements");
}
