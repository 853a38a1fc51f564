/* SPDX-License-Identifier: MIT */
/* Gradients of attention with its projections against central differences of a forward pass in obvious loops, for every
 * score function, with and without a memory. Bits do not depend on threads; packed sequences have those of separate ones. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn/train.h"
#include "tests/support/differences.h"
#include "tests/support/nn_support.h"

static const attn_options three = {.struct_size = sizeof three, .threads = 3};

/* ---- A layer in float64 ---- */

enum { BATCH = 2, MOST = 4000, DIM = 3, DIM_V = 2 };

typedef struct shape {
  const char *name;
  attn_score score;
  int heads, heads_kv, seq_q, seq_k, width, width_memory; /* width_memory 0: self-attention */
  bool causal, plain, out, own_scores; /* own_scores: of each sequence, as a dense Synthesizer makes them */
  int32_t kv_len[BATCH];               /* 0: not given */
  float dropout;
} shape;

static const shape shapes[] = {
    {"self", ATTN_SCORE_DOT, 4, 2, 5, 5, 7, 0, true, false, true, false, {0}, 0},
    {"self, dropout", ATTN_SCORE_DOT, 4, 2, 5, 5, 7, 0, true, false, true, false, {0}, 0.25f},
    {"cross", ATTN_SCORE_DOT, 4, 2, 5, 6, 7, 5, false, false, true, false, {4, 6}, 0},
    {"cross, dropout", ATTN_SCORE_DOT, 2, 2, 3, 6, 7, 5, false, false, true, false, {1, 5}, 0.25f},
    {"plain values", ATTN_SCORE_DOT, 2, 2, 5, 5, 4, 0, false, true, true, false, {0}, 0},
    {"additive", ATTN_SCORE_ADDITIVE, 1, 1, 3, 6, 7, DIM_V, false, true, false, false, {4, 6}, 0},
    {"additive, heads", ATTN_SCORE_ADDITIVE, 2, 1, 5, 5, 7, 0, true, false, true, false, {0}, 0.25f},
    {"gaussian", ATTN_SCORE_GAUSSIAN, 2, 1, 4, 6, 7, 5, false, false, true, false, {3, 6}, 0},
    {"random synthesizer", ATTN_SCORE_PRECOMPUTED, 2, 2, 5, 5, 7, 0, true, false, true, false, {5, 4}, 0},
    {"dense synthesizer", ATTN_SCORE_PRECOMPUTED, 2, 2, 5, 5, 7, 0, false, false, true, true, {5, 4}, 0},
};

/* Where parameters lie in one array: x, the memory, three maps with their biases, weights of scores, and scores. */
static shape s;
static int queries, keys, values, in_columns, memory_columns;
static int at_memory, at_in, at_in_memory, at_out, at_weight, at_scores, numbers;
static float d_y[MOST];
static uint8_t keeps[BATCH * 4 * 6 * 6];

static int place(int count) {
  numbers += count;
  return numbers - count;
}

static void place_all(const shape *which) {
  s = *which;
  const bool precomputed = s.score == ATTN_SCORE_PRECOMPUTED;
  queries = precomputed ? 0 : s.heads * DIM, keys = precomputed ? 0 : s.heads_kv * DIM;
  values = s.plain ? 0 : s.heads_kv * DIM_V;
  in_columns = queries + (s.width_memory ? 0 : keys + values), memory_columns = s.width_memory ? keys + values : 0;
  numbers = BATCH * s.seq_q * s.width;
  at_memory = place(BATCH * s.seq_k * s.width_memory);
  at_in = place((s.width + 1) * in_columns);
  at_in_memory = place((s.width_memory + 1) * memory_columns);
  at_out = place(s.out ? (s.heads * DIM_V + 1) * s.width : 0);
  at_weight = place(s.score == ATTN_SCORE_ADDITIVE || s.score == ATTN_SCORE_GAUSSIAN ? s.heads * DIM : 0);
  at_scores = place(precomputed ? (s.own_scores ? BATCH : 1) * s.heads * s.seq_q * s.seq_k : 0);
  assert_true(numbers <= MOST);
}

static int out_width(void) { return s.out ? s.width : s.heads * DIM_V; }

/* Column c of row W + b; b stands behind W. */
static double column(const double *row, int width, const double *w, int columns, int c) {
  double sum = w[width * columns + c];
  for (int i = 0; i < width; i++) sum += row[i] * w[i * columns + c];
  return sum;
}

static double query(const double *p, int row, int c) { return column(p + row * s.width, s.width, p + at_in, in_columns, c); }

/* Column c of those of K and V. */
static double of_key(const double *p, int row, int c) {
  if (!s.width_memory) return column(p + row * s.width, s.width, p + at_in, in_columns, queries + c);
  return column(p + at_memory + row * s.width_memory, s.width_memory, p + at_in_memory, memory_columns, c);
}

static double value(const double *p, int row, int c) {
  if (!s.plain) return of_key(p, row, keys + c);
  return s.width_memory ? p[at_memory + row * s.width_memory + c] : p[row * s.width + c];
}

static double score(const double *p, int b, int h, int i, int j) {
  if (s.score == ATTN_SCORE_PRECOMPUTED)
    return p[at_scores + (((s.own_scores ? b : 0) * s.heads + h) * s.seq_q + i) * s.seq_k + j];
  double sum = 0;
  for (int d = 0; d < DIM; d++) {
    const double q = query(p, b * s.seq_q + i, h * DIM + d);
    const double k = of_key(p, b * s.seq_k + j, h / (s.heads / s.heads_kv) * DIM + d);
    const double w = s.score == ATTN_SCORE_DOT ? 1 / sqrt(DIM) : p[at_weight + h * DIM + d];
    sum += s.score == ATTN_SCORE_DOT        ? w * q * k
           : s.score == ATTN_SCORE_ADDITIVE ? w * tanh(q + k)
                                            : -pow(w * (q - k), 2) / 2;
  }
  return sum;
}

static void attend(const double *p, int b, int h, int i, double *o) {
  const int end = s.causal ? i + 1 : s.seq_k, count = s.kv_len[b] && s.kv_len[b] < end ? s.kv_len[b] : end;
  double weights[6], total = 0;
  for (int j = 0; j < count; j++) total += weights[j] = exp(score(p, b, h, i, j));
  for (int j = 0; j < count; j++)
    for (int d = 0; d < DIM_V && keeps[((b * s.heads + h) * s.seq_q + i) * s.seq_k + j]; d++)
      o[d] +=
          weights[j] / total / (1 - (double)s.dropout) * value(p, b * s.seq_k + j, h / (s.heads / s.heads_kv) * DIM_V + d);
}

/* sum of d_y y */
static double attended(const double *p) {
  double sum = 0;
  for (int row = 0; row < BATCH * s.seq_q; row++) {
    double o[4 * DIM_V] = {0};
    for (int h = 0; h < s.heads; h++) attend(p, row / s.seq_q, h, row % s.seq_q, o + h * DIM_V);
    for (int c = 0; c < out_width(); c++)
      sum += (double)d_y[row * out_width() + c] * (s.out ? column(o, s.heads * DIM_V, p + at_out, s.width, c) : o[c]);
  }
  return sum;
}

/* ---- The library's ---- */

static float given[MOST], got[MOST], kept[MOST], made[MOST];
static attn_problem problem;
static attn_args arrays;

static attn_linear map_at(int first, int in, int out) {
  return (attn_linear){.weight = given + first, .bias = given + first + in * out};
}

static attn_linear_grad grad_at(int first, int in, int out) {
  return (attn_linear_grad){got + first, got + first + in * out};
}

static attn_multi_head layer_of_shape(void) {
  attn_problem_init(&problem, BATCH, s.heads, s.heads_kv, s.seq_q, s.seq_k, DIM, DIM_V);
  problem.dropout = s.dropout;
  test_ok(attn_dropout_mask(&problem, 9, 8, keeps));
  problem.score = s.score;
  if (!s.own_scores) problem.scores_stride.b = 0;
  problem.score_weight_stride_h = DIM;
  if (s.causal) attn_problem_set_causal(&problem, ATTN_ALIGN_TOP_LEFT);
  if (s.kv_len[0]) problem.uses |= ATTN_USE_KV_LEN;
  if (at_scores > at_weight) problem.uses |= ATTN_USE_SCORE_WEIGHT | ATTN_USE_D_SCORE_WEIGHT;
  arrays = ATTN_STRUCT(attn_args, .seed = 9, .offset = 8, .kv_len = s.kv_len[0] ? s.kv_len : NULL);
  if (at_scores > at_weight) arrays.score_weight = given + at_weight, arrays.d_score_weight = got + at_weight;
  if (numbers > at_scores) arrays.scores = given + at_scores, arrays.d_scores = got + at_scores;
  attn_multi_head l = ATTN_STRUCT(attn_multi_head, .attention = &problem, .arrays = &arrays, .width = s.width,
                                  .width_memory = s.width_memory, .in = map_at(at_in, s.width, in_columns),
                                  .d_in = grad_at(at_in, s.width, in_columns), .x = given, .y = made, .kept = kept,
                                  .d_y = d_y, .d_x = got, .plain_values = s.plain);
  if (s.width_memory) {
    l.memory = given + at_memory, l.d_memory = got + at_memory;
    l.in_memory = map_at(at_in_memory, s.width_memory, memory_columns);
    l.d_in_memory = grad_at(at_in_memory, s.width_memory, memory_columns);
  }
  if (s.out) l.out = map_at(at_out, s.heads * DIM_V, s.width), l.d_out = grad_at(at_out, s.heads * DIM_V, s.width);
  return l;
}

/* Each array of parameters is compared with its own largest gradient. Where scores alone depend on it, its gradients are
 * sums of P (dP - D), whose terms are as large as the gradients of the rows that values come from. */
static double worst_part(const double *slopes, const float *gradients) {
  const int borders[] = {0, at_memory, at_in, at_in_memory, at_out, at_weight, at_scores, numbers};
  const double size_of_values = s.width_memory ? largest(slopes + at_memory, at_in - at_memory) : largest(slopes, at_memory);
  double worst = 0;
  for (int i = 0; i < 7; i++) {
    const bool of_scores = i >= 5 || (s.width_memory && (i == 0 || i == 2));
    const double *part = slopes + borders[i];
    const int count = borders[i + 1] - borders[i];
    const double size = fmax(largest(part, count), of_scores ? size_of_values : 0);
    worst = fmax(worst, worst_of_size(part, gradients + borders[i], count, size));
  }
  return worst;
}

TEST(gradients_are_differences) {
  static double p[MOST], slopes[MOST];
  for (size_t which = 0; which < sizeof shapes / sizeof *shapes; which++) {
    place_all(&shapes[which]);
    fill_both(given, p, numbers, 50);
    test_fill(d_y, MOST, 51);
    const attn_multi_head l = layer_of_shape();
    assert_true(attn_multi_head_kept(&l) ==
                BATCH * (s.seq_q * (queries + s.heads * (s.out ? DIM_V + 1 : 1)) + s.seq_k * (keys + values)));
    test_ok(attn_multi_head_run(&l, NULL));
    double sum = 0, size = 0;
    for (int i = 0; i < BATCH * s.seq_q * out_width(); i++) {
      sum += (double)made[i] * (double)d_y[i];
      size += fabs((double)made[i] * (double)d_y[i]);
    }
    assert_true(fabs(sum - attended(p)) <= 16 * 0x1p-24 * size);
    test_ok(attn_multi_head_grad(&l, NULL));
    differences(attended, p, 0, numbers, slopes);
    const double worst = worst_part(slopes, got);
    if (!(worst <= 1)) fail_msg("%s: %.3g times the limit", s.name, worst);
    s.causal = !s.causal;
    differences(attended, p, 0, at_memory, slopes);
    assert_true(worst_of(slopes, got, at_memory) > 4);
  }
}

TEST(gradients_do_not_depend_on_threads_and_accumulate) {
  static float first[MOST], first_made[MOST];
  for (size_t which = 0; which < sizeof shapes / sizeof *shapes; which++) {
    place_all(&shapes[which]);
    test_fill(given, (size_t)numbers, 50);
    attn_multi_head l = layer_of_shape();
    test_ok(attn_multi_head_run(&l, NULL));
    test_ok(attn_multi_head_grad(&l, NULL));
    memcpy(first, got, sizeof got);
    memcpy(first_made, made, sizeof made);
    test_ok(attn_multi_head_run(&l, &three));
    test_ok(attn_multi_head_grad(&l, &three));
    assert_memory_equal(first, got, (size_t)numbers * sizeof *got);
    assert_memory_equal(first_made, made, (size_t)(BATCH * s.seq_q * out_width()) * sizeof *made);
    l.accumulate = true;
    test_ok(attn_multi_head_grad(&l, NULL));
    for (int i = 0; i < numbers; i++) { /* rows are written; two roundings of numbers within 4 units of the sum */
      const float sum = i < at_in ? first[i] : 2 * first[i];
      assert_true(fabsf(got[i] - sum) <= (i < at_in ? 0 : 4 * 0x1p-24f * (fabsf(sum) + 1)));
    }
  }
}

/* ---- Beside the layers that infer ---- */

TEST(additive_attention_is_that_of_inference) {
  float o[MOST];
  place_all(&shapes[5]);
  test_fill(given, (size_t)numbers, 50);
  for (int i = 0; i < queries; i++) given[at_in + s.width * queries + i] = 0; /* its maps may have a bias or none */
  const attn_multi_head l = layer_of_shape();
  test_ok(attn_multi_head_run(&l, NULL));
  const attn_additive_config config =
      ATTN_STRUCT(attn_additive_config, .batch = BATCH, .seq_q = s.seq_q, .seq_k = s.seq_k, .width_q = s.width,
                  .width_k = s.width_memory, .hidden = DIM, .dim_v = DIM_V, .use_kv_len = true, .query = l.in,
                  .key = l.in_memory, .score_weight = given + at_weight);
  attn_additive *layer;
  test_ok(attn_additive_create(&config, NULL, &layer));
  const attn_additive_args args = ATTN_STRUCT(attn_additive_args, .q = given, .k = given + at_memory, .v = given + at_memory,
                                              .kv_len = s.kv_len, .o = o);
  void *workspace = test_allocate(attn_additive_workspace(layer));
  test_ok(attn_additive_run(layer, &args, workspace, attn_additive_workspace(layer)));
  assert_memory_equal(o, made, (size_t)(BATCH * s.seq_q * DIM_V) * sizeof *o);
  free(workspace);
  attn_additive_destroy(layer);
}

/* ---- Packed sequences ---- */

TEST(packed_sequences_have_the_bits_of_separate_ones) {
  enum { LENGTHS = 3, TOTAL = 9 }; /* the last row belongs to no sequence */
  static const int32_t begins[LENGTHS + 1] = {0, 3, 3, 8};
  float packed_y[TOTAL * 7], packed_d[TOTAL * 7];
  place_all(&shapes[0]);
  test_fill(given, (size_t)numbers, 50);
  test_fill(d_y, MOST, 51);
  attn_multi_head l = layer_of_shape();
  problem.batch = LENGTHS;
  attn_problem_set_varlen(&problem, TOTAL, TOTAL);
  arrays.cu_seqlens_q = arrays.cu_seqlens_k = begins;
  l.y = packed_y, l.d_x = packed_d;
  test_ok(attn_multi_head_run(&l, NULL));
  test_ok(attn_multi_head_grad(&l, NULL));
  for (int c = 0; c < s.width; c++) {
    assert_true(packed_y[8 * s.width + c] == l.out.bias[c]);
    assert_true(packed_d[8 * s.width + c] == 0);
  }
  for (int i = 0; i < LENGTHS; i++) {
    const int32_t first = begins[i] * s.width, length = begins[i + 1] - begins[i];
    l = layer_of_shape();
    problem.batch = 1; /* padded to the longest: of one length the automatic choice is one kernel */
    problem.uses |= ATTN_USE_Q_LEN | ATTN_USE_KV_LEN;
    arrays.q_len = arrays.kv_len = &length;
    l.x = given + first, l.d_y = d_y + first;
    test_ok(attn_multi_head_run(&l, NULL));
    test_ok(attn_multi_head_grad(&l, NULL));
    assert_memory_equal(packed_y + first, made, (size_t)(length * s.width) * sizeof *made);
    assert_memory_equal(packed_d + first, got, (size_t)(length * s.width) * sizeof *got);
  }
}

/* ---- Nothing to do ---- */

TEST(no_queries_and_no_keys_leave_zeros) {
  place_all(&shapes[2]);
  test_fill(given, (size_t)numbers, 50);
  attn_multi_head l = layer_of_shape();
  const int count = (s.width_memory + 1) * memory_columns;
  problem.seq_q = 0;
  for (int i = 0; i < numbers; i++) got[i] = 1;
  test_ok(attn_multi_head_run(&l, NULL));
  test_ok(attn_multi_head_grad(&l, NULL));
  for (int i = at_memory; i < at_in; i++) assert_true(got[i] == 0);
  for (int i = 0; i < count; i++) assert_true(got[at_in_memory + i] == 0);
  l = layer_of_shape();
  problem.seq_k = 0;
  arrays.kv_len = (const int32_t[BATCH]){0};
  test_ok(attn_multi_head_run(&l, NULL));
  test_ok(attn_multi_head_grad(&l, NULL));
  for (int i = 0; i < BATCH * s.seq_q * s.width; i++) {
    assert_true(made[i] == l.out.bias[i % s.width]);
    assert_true(got[i] == 0);
  }
  problem.batch = 0;
  assert_true(attn_multi_head_kept(&l) == 0);
}

/* ---- Mistakes ---- */

/* A size of the problem. */
static void refuses(int64_t *size, int64_t value, attn_multi_head *l, const char *sentence) {
  const int64_t before = *size;
  *size = value;
  test_invalid(attn_multi_head_run(l, NULL), sentence);
  assert_true(attn_multi_head_kept(l) == -1);
  *size = before;
}

TEST(mistakes_are_sentences) {
  place_all(&shapes[0]);
  attn_multi_head l = layer_of_shape();
  refuses(&problem.heads_q, 0, &l, "attention.heads_q is 0");
  refuses(&problem.heads_kv, 0, &l, "attention.heads_kv is 0");
  refuses(&problem.dim_qk, 0, &l, "attention.dim_qk is 0");
  refuses(&problem.dim_v, 0, &l, "attention.dim_v is 0");
  refuses(&problem.seq_k, -1, &l, "attention.seq_k is -1");
  refuses(&l.width_memory, -1, &l, "attn_multi_head.width_memory is -1");
  l.x = NULL;
  test_invalid(attn_multi_head_run(&l, NULL), "attn_multi_head.x is NULL");
  l = layer_of_shape();
  l.y = NULL;
  test_invalid(attn_multi_head_run(&l, NULL), "attn_multi_head.y is NULL");
  l.out.weight = NULL;
  test_invalid(attn_multi_head_grad(&l, NULL), "attn_multi_head.y is NULL");
  l = layer_of_shape();
  test_invalid(attn_multi_head_run(&l, &(attn_options){.struct_size = 1}), "attn_options");
  l.width = 0;
  test_invalid(attn_multi_head_run(&l, NULL), "attn_multi_head.width is 0");
  l = layer_of_shape();
  l.kept = NULL;
  test_invalid(attn_multi_head_run(&l, NULL), "attn_multi_head.kept is NULL");
  l = layer_of_shape();
  l.width_memory = 5;
  test_invalid(attn_multi_head_run(&l, NULL), "attn_multi_head.memory is NULL");
  l = layer_of_shape();
  problem.seq_k = 6;
  test_invalid(attn_multi_head_run(&l, NULL), "without a memory they are equal");
  l = layer_of_shape();
  problem.uses |= ATTN_USE_STATE;
  test_invalid(attn_multi_head_run(&l, NULL), "does not take the bits 0x800");
  l = layer_of_shape();
  l.plain_values = true;
  test_invalid(attn_multi_head_run(&l, NULL), "with plain_values these are heads_kv dim_v, 4");
  problem.score = ATTN_SCORE_PRECOMPUTED;
  test_invalid(attn_multi_head_run(&l, NULL), "has plain_values with ATTN_SCORE_PRECOMPUTED");
  l = layer_of_shape();
  l.d_y = NULL;
  test_invalid(attn_multi_head_grad(&l, NULL), "attn_multi_head.d_y is NULL");
  l.attention = NULL;
  test_invalid(attn_multi_head_grad(&l, NULL), "attention is NULL");
  assert_true(attn_multi_head_kept(&l) == -1);
}
