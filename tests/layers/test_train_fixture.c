/* SPDX-License-Identifier: MIT */
/* Layers that learn, losses and optimisers against PyTorch's float64 values (tests/data/nn/gradients.safetensors, by
 * scripts/make/train_fixture.py). Each case is also computed with a fault, which must be rejected. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "attn/train.h"
#include "examples/safetensors.h"
#include "tests/support/differences.h"

enum { BATCH = 2, SEQ = 5, MEMORY = 6, WIDTH = 12, HEADS = 3, HIDDEN = 7, STEPS = 5, MOST = 512 }; /* see the script */

static safetensors file;
static const char *which; /* the case */

static const safetensor *tensor(const char *name) {
  char whole[SAFETENSORS_MAX_NAME];
  snprintf(whole, sizeof whole, "%s.%s", which, name);
  const safetensor *found = safetensors_find(&file, whole);
  if (!found) fail_msg("the fixture has no %s", whole);
  return found;
}

static const float *in(const char *name) { return tensor(name)->data; }

static int64_t count_of(const char *name) {
  int64_t count = 1;
  for (int d = 0; d < tensor(name)->dims; d++) count *= tensor(name)->shape[d];
  return count;
}

/* Elements of the last dimension, and of all others. */
static int64_t columns_of(const char *name) { return tensor(name)->shape[tensor(name)->dims - 1]; }
static int64_t rows_of(const char *name) { return count_of(name) / columns_of(name); }

static const int32_t *integers(const char *name) {
  static int32_t values[MOST];
  for (int64_t i = 0; i < count_of(name); i++) values[i] = (int32_t)in(name)[i];
  return values;
}

/* Largest miss over limit, of the size of the named gradients or of others that they are summed from, if these are larger.
 */
static double miss_beside(const char *name, const float *got, const char *other) {
  static double exact[MOST], more[MOST];
  const int64_t count = count_of(name), others = other ? count_of(other) : 0;
  assert_true(count <= MOST && others <= MOST);
  for (int64_t i = 0; i < count; i++) exact[i] = (double)in(name)[i];
  for (int64_t i = 0; i < others; i++) more[i] = (double)in(other)[i];
  return worst_of_size(exact, got, count, fmax(largest(exact, count), largest(more, others)));
}

static double miss(const char *name, const float *got) { return miss_beside(name, got, NULL); }

static double largest_of(int count, const double *misses) {
  double most = 0;
  for (int i = 0; i < count; i++) most = fmax(most, misses[i]);
  return most;
}
#define LARGEST(...) largest_of((int)(sizeof(double[]){__VA_ARGS__} / sizeof(double)), (double[]){__VA_ARGS__})

/* ---- Dense layers, norms, activations ---- */

static attn_linear map_of(const char *weight, const char *bias) {
  return (attn_linear){.weight = in(weight), .bias = bias ? in(bias) : NULL, .transposed = true};
}

static double dense(bool wrong) {
  float y[MOST], d_x[MOST], d_weight[MOST], d_bias[MOST];
  attn_dense l = ATTN_STRUCT(attn_dense, .rows = rows_of("x"), .in = columns_of("x"), .out = columns_of("y"),
                             .map = map_of("weight", wrong ? NULL : "bias"), .x = in("x"), .y = y, .d_y = in("d_y"),
                             .d_x = d_x, .d_weight = d_weight, .d_bias = d_bias);
  test_ok(attn_dense_run(&l, NULL));
  test_ok(attn_dense_grad(&l, NULL));
  return LARGEST(miss("y", y), miss("d_x", d_x), miss("d_weight", d_weight), miss("d_bias", d_bias));
}

static double norm(attn_norm_kind kind, float epsilon) {
  float y[MOST], d_x[MOST], d_gain[MOST], d_bias[MOST];
  const bool bias = kind == ATTN_NORM_LAYER;
  const attn_norm parameters = {in("gain"), bias ? in("bias") : NULL, epsilon};
  test_ok(attn_row_join_run(&ATTN_STRUCT(attn_row_join, .rows = rows_of("x"), .width = WIDTH, .norm_kind = kind,
                                         .norm = parameters, .x = in("x"), .y = y),
                            NULL));
  test_ok(attn_norm_grad_run(
      &ATTN_STRUCT(attn_norm_grad, .rows = rows_of("x"), .width = WIDTH, .kind = kind, .norm = parameters, .s = in("x"),
                   .d_y = in("d_y"), .d_s = d_x, .d_gain = d_gain, .d_bias = bias ? d_bias : NULL),
      NULL));
  return LARGEST(miss("y", y), miss("d_x", d_x), miss("d_gain", d_gain), bias ? miss("d_bias", d_bias) : 0);
}

static double layer_norm(bool wrong) { return norm(ATTN_NORM_LAYER, wrong ? 1e-3f : 1e-5f); }
static double rms_norm(bool wrong) { return norm(ATTN_NORM_RMS, wrong ? 1e-3f : 1e-5f); }

static double activate(attn_activation kind) {
  float y[MOST], d_x[MOST];
  test_ok(attn_activation_run(kind, count_of("x"), in("x"), y, NULL));
  test_ok(attn_activation_grad(kind, count_of("x"), in("x"), in("d_y"), d_x, NULL));
  return LARGEST(miss("y", y), miss("d_x", d_x));
}

static double relu(bool wrong) { return activate(wrong ? ATTN_SILU : ATTN_RELU); }
static double gelu(bool wrong) { return activate(wrong ? ATTN_GELU_TANH : ATTN_GELU); }
static double silu(bool wrong) { return activate(wrong ? ATTN_GELU : ATTN_SILU); }
static double gelu_tanh(bool wrong) { return activate(wrong ? ATTN_GELU : ATTN_GELU_TANH); }

/* ---- Tokens ---- */

static double embedding(bool wrong) {
  float d_table[MOST] = {0};
  const attn_embedding e = ATTN_STRUCT(attn_embedding, .vocabulary = rows_of("d_table"), .width = WIDTH);
  test_ok(attn_embed_grad(&e, count_of("tokens") - wrong, integers("tokens"), in("d_y"), d_table, NULL));
  return miss("d_table", d_table);
}

static double cross_entropy(float smoothing, bool sum) {
  float d_logits[MOST];
  double loss;
  test_ok(attn_cross_entropy_run(
      &ATTN_STRUCT(attn_cross_entropy, .rows = rows_of("logits"), .classes = columns_of("logits"), .logits = in("logits"),
                   .targets = integers("targets"), .smoothing = smoothing, .sum = sum, .d_logits = d_logits),
      NULL, &loss));
  return LARGEST(miss("loss", &(float){(float)loss}), miss("d_logits", d_logits));
}

static double entropy(bool wrong) { return cross_entropy(0, wrong); }
static double entropy_smooth(bool wrong) { return cross_entropy(wrong ? 0.12f : 0.125f, false); }
static double entropy_sum(bool wrong) { return cross_entropy(0.125f, !wrong); }

/* ---- Attention ---- */

static float y[MOST], d_x[MOST], d_memory[MOST], d_in[MOST], d_in_bias[MOST], d_of_memory[MOST], d_of_memory_bias[MOST],
    d_out[MOST], d_out_bias[MOST], d_scores[MOST], kept[4 * MOST];
static attn_problem problem;
static attn_args arrays;

/* A layer of one head's width, of which more is to be set. */
static attn_multi_head attention(int heads, int64_t seq_k, int64_t dim_qk, int64_t dim_v, bool biases) {
  attn_problem_init(&problem, BATCH, heads, heads, SEQ, seq_k, dim_qk, dim_v);
  arrays = ATTN_STRUCT(attn_args, .q = NULL);
  return ATTN_STRUCT(attn_multi_head, .attention = &problem, .arrays = &arrays, .width = WIDTH,
                     .in = map_of("in_weight", biases ? "in_bias" : NULL), .d_in = {d_in, biases ? d_in_bias : NULL},
                     .x = in("x"), .y = y, .kept = kept, .d_y = in("d_y"), .d_x = d_x);
}

static void project_out(attn_multi_head *l, bool biases) {
  l->out = map_of("out_weight", biases ? "out_bias" : NULL);
  l->d_out = (attn_linear_grad){d_out, biases ? d_out_bias : NULL};
}

static void attend_memory(attn_multi_head *l, const int32_t lengths[BATCH], bool biases) {
  problem.uses |= ATTN_USE_KV_LEN;
  arrays.kv_len = lengths;
  l->memory = in("memory"), l->width_memory = columns_of("memory"), l->d_memory = d_memory;
  l->in_memory = map_of("memory_weight", biases ? "memory_bias" : NULL);
  l->d_in_memory = (attn_linear_grad){d_of_memory, biases ? d_of_memory_bias : NULL};
}

static void run(const attn_multi_head *l) {
  assert_true(attn_multi_head_kept(l) <= 4 * MOST);
  test_ok(attn_multi_head_run(l, NULL));
  test_ok(attn_multi_head_grad(l, NULL));
}

static double self_attention(bool wrong) {
  attn_multi_head l = attention(HEADS, SEQ, WIDTH / HEADS, WIDTH / HEADS, true);
  project_out(&l, true);
  if (!wrong) attn_problem_set_causal(&problem, ATTN_ALIGN_TOP_LEFT);
  run(&l);
  return LARGEST(miss("y", y), miss("d_x", d_x), miss("d_in_weight", d_in), miss("d_in_bias", d_in_bias),
                 miss("d_out_weight", d_out), miss("d_out_bias", d_out_bias));
}

/* Gradients of scores are sums of P (dP - D), whose terms are as large as the gradients of values. */
static double cross_attention(bool wrong) {
  const int32_t lengths[BATCH] = {4, wrong ? 5 : 6};
  attn_multi_head l = attention(HEADS, MEMORY, WIDTH / HEADS, WIDTH / HEADS, true);
  project_out(&l, true);
  attend_memory(&l, lengths, true);
  run(&l);
  return LARGEST(miss("y", y), miss_beside("d_x", d_x, "d_memory"), miss("d_memory", d_memory),
                 miss_beside("d_in_weight", d_in, "d_memory_weight"), miss_beside("d_in_bias", d_in_bias, "d_memory_bias"),
                 miss("d_memory_weight", d_of_memory), miss("d_memory_bias", d_of_memory_bias), miss("d_out_weight", d_out),
                 miss("d_out_bias", d_out_bias));
}

static double additive_attention(bool wrong) {
  const int32_t lengths[BATCH] = {4, wrong ? 5 : 6};
  attn_multi_head l = attention(1, MEMORY, HIDDEN, columns_of("memory"), false);
  attend_memory(&l, lengths, false);
  l.plain_values = true;
  problem.score = ATTN_SCORE_ADDITIVE;
  problem.uses |= ATTN_USE_SCORE_WEIGHT | ATTN_USE_D_SCORE_WEIGHT;
  arrays.score_weight = in("score"), arrays.d_score_weight = d_scores;
  run(&l);
  return LARGEST(miss("y", y), miss_beside("d_x", d_x, "d_memory"), miss("d_memory", d_memory),
                 miss_beside("d_in_weight", d_in, "d_memory"), miss_beside("d_memory_weight", d_of_memory, "d_memory"),
                 miss_beside("d_score", d_scores, "d_memory"));
}

static attn_multi_head synthesizer(const float *scores) {
  attn_multi_head l = attention(HEADS, SEQ, WIDTH / HEADS, WIDTH / HEADS, false);
  project_out(&l, false);
  problem.score = ATTN_SCORE_PRECOMPUTED;
  arrays.scores = scores, arrays.d_scores = d_scores;
  return l;
}

static double random_synthesizer(bool wrong) {
  attn_multi_head l = synthesizer(in("scores"));
  problem.scores_stride.b = 0;
  if (wrong) attn_problem_set_causal(&problem, ATTN_ALIGN_TOP_LEFT);
  run(&l);
  return LARGEST(miss("y", y), miss("d_x", d_x), miss("d_in_weight", d_in), miss("d_out_weight", d_out),
                 miss_beside("d_scores", d_scores, "d_x"));
}

/* Scores of a head: a dense layer of x, ReLU and a dense layer. */
static attn_dense first_layer(int head, float *wide) {
  return ATTN_STRUCT(attn_dense, .rows = BATCH * SEQ, .in = WIDTH, .out = HIDDEN,
                     .map = {.weight = in("first") + head * HIDDEN * WIDTH, .transposed = true}, .x = in("x"), .y = wide,
                     .d_y = wide);
}

static attn_dense second_layer(int head, const float *act, float *scores) {
  return ATTN_STRUCT(attn_dense, .rows = BATCH * SEQ, .in = HIDDEN, .out = SEQ,
                     .map = {.weight = in("second") + head * SEQ * HIDDEN, .transposed = true}, .x = act,
                     .y = scores + head * BATCH * SEQ * SEQ, .d_y = d_scores + head * BATCH * SEQ * SEQ);
}

static double dense_synthesizer(bool wrong) {
  enum { WIDE = BATCH * SEQ * HIDDEN };
  static float wide[HEADS][WIDE], act[HEADS][WIDE], scores[MOST], more[MOST], d_first[MOST], d_second[MOST], d_act[WIDE];
  for (int h = 0; h < HEADS; h++) {
    const attn_dense first = first_layer(h, wide[h]), second = second_layer(h, act[h], scores);
    test_ok(attn_dense_run(&first, NULL));
    test_ok(attn_activation_run(ATTN_RELU, WIDE, wide[h], act[h], NULL));
    test_ok(attn_dense_run(&second, NULL));
  }
  const attn_multi_head l = synthesizer(scores);
  problem.scores_stride.b = SEQ * SEQ, problem.scores_stride.h = BATCH * SEQ * SEQ;
  run(&l);
  for (int h = 0; h < HEADS; h++) {
    attn_dense first = first_layer(h, wide[h]), second = second_layer(h, act[h], scores);
    second.d_x = d_act, second.d_weight = d_second + h * SEQ * HIDDEN;
    test_ok(attn_dense_grad(&second, NULL));
    test_ok(attn_activation_grad(wrong ? ATTN_GELU : ATTN_RELU, WIDE, wide[h], d_act, d_act, NULL));
    first.d_y = d_act, first.d_x = more, first.d_weight = d_first + h * HIDDEN * WIDTH;
    test_ok(attn_dense_grad(&first, NULL));
    for (int i = 0; i < BATCH * SEQ * WIDTH; i++) d_x[i] += more[i];
  }
  return LARGEST(miss("y", y), miss("d_x", d_x), miss("d_in_weight", d_in), miss("d_out_weight", d_out),
                 miss_beside("d_first", d_first, "d_x"), miss_beside("d_second", d_second, "d_x"));
}

/* ---- Optimisers: a step rounds a weight twice, and what it moves it by, a dozenth of it, a few times ---- */

static double adamw(bool wrong) {
  float w[MOST], m[MOST] = {0}, v[MOST] = {0};
  const int64_t count = count_of("begin");
  const attn_adamw a = ATTN_STRUCT(attn_adamw, .rate = 0.125f, .beta1 = 0.875f,
                                   .beta2 = wrong ? 0.9375f + 0x1p-12f : 0.9375f, .epsilon = 1e-6f, .decay = 0.25f);
  memcpy(w, in("begin"), (size_t)count * sizeof *w);
  for (int s = 0; s < STEPS; s++) test_ok(attn_adamw_step(&a, s + 1, count, w, in("grads") + s * count, m, v, NULL));
  return miss("end", w);
}

static double sgd(bool wrong) {
  float w[MOST], momenta[MOST] = {0};
  const int64_t count = count_of("begin");
  const attn_sgd a = ATTN_STRUCT(attn_sgd, .rate = 0.125f, .momentum = wrong ? 0.875f + 0x1p-12f : 0.875f, .decay = 0.25f);
  memcpy(w, in("begin"), (size_t)count * sizeof *w);
  for (int s = 0; s < STEPS; s++) test_ok(attn_sgd_step(&a, count, w, in("grads") + s * count, momenta, NULL));
  return miss("end", w);
}

static double clipping(bool wrong) {
  float g[MOST];
  double norm;
  const int64_t count = count_of("grads");
  memcpy(g, in("grads"), (size_t)count * sizeof *g);
  test_ok(attn_clip_grads(count, g, wrong ? 2 + 0x1p-12f : 2, &norm, NULL));
  return LARGEST(miss("norm", &(float){(float)norm}), miss("clipped", g));
}

/* ---- All ---- */

TEST(values_and_gradients_are_those_of_pytorch) {
  static const struct {
    const char *name;
    double (*run)(bool wrong);
  } cases[] = {{"dense", dense},
               {"layer_norm", layer_norm},
               {"rms_norm", rms_norm},
               {"relu", relu},
               {"gelu", gelu},
               {"silu", silu},
               {"gelu_tanh", gelu_tanh},
               {"embedding", embedding},
               {"entropy", entropy},
               {"entropy_smooth", entropy_smooth},
               {"entropy_sum", entropy_sum},
               {"self", self_attention},
               {"cross", cross_attention},
               {"additive", additive_attention},
               {"random", random_synthesizer},
               {"dense_scores", dense_synthesizer},
               {"adamw", adamw},
               {"sgd", sgd},
               {"clip", clipping}};
  assert_int_equal(safetensors_read(TEST_SOURCE_DIR "/tests/data/nn/gradients.safetensors", &file), 0);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    which = cases[i].name;
    const double right = cases[i].run(false), wrong = cases[i].run(true);
    if (!(right <= 1)) fail_msg("%s: %.3g times the limit", which, right);
    if (!(wrong > 4)) fail_msg("%s: a fault is only %.3g times the limit", which, wrong);
  }
  safetensors_free(&file);
}
