/* SPDX-License-Identifier: MIT */
/* Transformer blocks, encoder and decoder, pre- and post-norm, against the float64 oracle and against PyTorch's layers
 * (tests/data/nn, scripts/make/nn_fixture.py); formulas that are wrong in one place must be rejected. */
#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/safetensors.h"
#include "kernels/common/problem/dtypes.h"
#include "tests/support/nn_support.h"

enum { BATCH = 2, SEQ = 7, MEMORY = 9, WIDTH = 24, HEADS = 4, HIDDEN = 40 }; /* see nn_fixture.py */

typedef struct fixture {
  safetensors file;
  attn_block_config config;
  attn_block_args args;
  attn_args masks; /* lengths for the attention that has them */
  int32_t lengths[BATCH];
  const float *expected;
} fixture;

static const float *tensor(const fixture *f, const char *name, int64_t rows, int64_t columns) {
  const float *data = safetensors_get(&f->file, name, rows, columns);
  assert_non_null(data);
  return data;
}

static attn_norm norm_of(const fixture *f, int number) {
  char name[2][32];
  snprintf(name[0], sizeof name[0], "norm%d.weight", number);
  snprintf(name[1], sizeof name[1], "norm%d.bias", number);
  return (attn_norm){tensor(f, name[0], 0, WIDTH), tensor(f, name[1], 0, WIDTH), 1e-5f};
}

static attn_mha_weights attention_of(const fixture *f, const char *name) {
  char names[4][64];
  const char *parts[] = {"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"};
  for (int i = 0; i < 4; i++) snprintf(names[i], sizeof names[i], "%s.%s", name, parts[i]);
  return ATTN_STRUCT(attn_mha_weights, .layout = ATTN_OUT_IN, .w_qkv = tensor(f, names[0], 3 * WIDTH, WIDTH),
                     .b_qkv = tensor(f, names[1], 0, 3 * WIDTH), .w_o = tensor(f, names[2], WIDTH, WIDTH),
                     .b_o = tensor(f, names[3], 0, WIDTH));
}

/* The fixture's weights and data, in a block for so many tokens of each sequence. */
static void load_for(fixture *f, bool decoder, bool pre_norm, int64_t seq) {
  char path[512];
  snprintf(path, sizeof path, "%s/tests/data/nn/%s_%s.safetensors", TEST_SOURCE_DIR, decoder ? "decoder" : "encoder",
           pre_norm ? "pre" : "post");
  memset(f, 0, sizeof *f);
  assert_int_equal(safetensors_read(path, &f->file), 0);
  attn_block_config *c = &f->config;
  if (decoder)
    attn_decoder_block_init(c, BATCH, HEADS, seq, MEMORY, WIDTH, WIDTH, HIDDEN);
  else
    attn_encoder_block_init(c, BATCH, HEADS, seq, WIDTH, HIDDEN);
  c->pre_norm = pre_norm;
  c->self_weights = attention_of(f, "self_attn");
  c->self_norm = norm_of(f, 1);
  c->feed_forward_norm = norm_of(f, decoder ? 3 : 2);
  c->feed_forward.activation = pre_norm ? ATTN_GELU : ATTN_RELU;
  c->feed_forward.first =
      (attn_linear){tensor(f, "linear1.weight", HIDDEN, WIDTH), tensor(f, "linear1.bias", 0, HIDDEN), true};
  c->feed_forward.second =
      (attn_linear){tensor(f, "linear2.weight", WIDTH, HIDDEN), tensor(f, "linear2.bias", 0, WIDTH), true};
  const float *lengths = tensor(f, "lengths", 0, BATCH);
  for (int b = 0; b < BATCH; b++) f->lengths[b] = (int32_t)lengths[b];
  f->args.struct_size = sizeof f->args;
  f->args.x = tensor(f, "x", BATCH * SEQ, WIDTH);
  f->expected = tensor(f, "y", BATCH * SEQ, WIDTH);
  (decoder ? &c->cross : &c->self)->attention.uses |= ATTN_USE_KV_LEN;
  f->masks = ATTN_STRUCT(attn_args, .kv_len = f->lengths);
  *(decoder ? &f->args.cross : &f->args.self) = &f->masks;
  if (!decoder) return;
  c->cross_weights = attention_of(f, "multihead_attn");
  c->cross_norm = norm_of(f, 2);
  f->args.memory = tensor(f, "memory", BATCH * MEMORY, WIDTH);
}

static void load(fixture *f, bool decoder, bool pre_norm) { load_for(f, decoder, pre_norm, SEQ); }

static void run(const attn_block_config *config, const attn_options *options, const attn_block_args *args) {
  attn_block *block;
  test_ok(attn_block_create(config, options, &block));
  if (options && options->kernel) assert_string_equal(attn_block_kernel(block), options->kernel);
  const size_t bytes = attn_block_workspace(block);
  void *workspace = test_allocate(bytes);
  memset(workspace, 0xff, bytes); /* NaN */
  test_ok(attn_block_run(block, args, workspace, bytes));
  free(workspace);
  attn_block_destroy(block);
}

/* ---- PyTorch ---- */

static void as_pytorch(const char *kernel) {
  for (int variant = 0; variant < 4; variant++) {
    fixture f;
    float y[BATCH * SEQ * WIDTH];
    load(&f, variant & 1, variant & 2);
    f.args.y = y;
    const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 2);
    attn_block *refused;
    if (attn_block_create(&f.config, &options, &refused) == ATTN_UNSUPPORTED) { /* a kernel for decoding: too many rows */
      test_contains(attn_last_error(), kernel);
      safetensors_free(&f.file);
      continue;
    }
    attn_block_destroy(refused);
    run(&f.config, &options, &f.args);
    attn_nn_field oracle = nn_block(&f.config, &f.args, &attn_kernel_find(kernel)->numerics);
    for (int i = 0; i < BATCH * SEQ * WIDTH; i++) { /* float32 rounds the fixture, the scale and epsilon */
      assert_true(fabs(oracle.value[i] - (double)f.expected[i]) <= 0x1p-23 * (fabs(oracle.value[i]) + 1));
      oracle.value[i] = (double)f.expected[i];
    }
    nn_passes(oracle, y);
    safetensors_free(&f.file);
  }
}

TEST(blocks_agree_with_pytorch) { test_each_kernel(as_pytorch); }

/* Root mean square norms and a gated network, against the oracle; layer norms and no gate are rejected. */
static void of_the_llama_kind(const char *kernel) {
  for (int variant = 0; variant < 4; variant++) {
    fixture f;
    float y[BATCH * SEQ * WIDTH];
    load(&f, variant & 1, variant & 2);
    f.args.y = y;
    f.config.rms_norm = true;
    f.config.feed_forward.activation = ATTN_SILU;
    f.config.feed_forward.gate = nn_random_linear(WIDTH, HIDDEN, true, 5);
    const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 2);
    attn_block *block;
    if (attn_block_create(&f.config, &options, &block) == ATTN_OK) {
      attn_block_destroy(block);
      run(&f.config, &options, &f.args);
      const attn_numerics *numerics = &attn_kernel_find(kernel)->numerics;
      nn_passes(nn_block(&f.config, &f.args, numerics), y);
      attn_block_config other = f.config;
      other.rms_norm = false;
      nn_rejected(nn_block(&other, &f.args, numerics), y);
      other = f.config;
      other.feed_forward.gate.weight = NULL;
      nn_rejected(nn_block(&other, &f.args, numerics), y);
    }
    safetensors_free(&f.file);
  }
}

TEST(blocks_of_the_llama_kind) { test_each_kernel(of_the_llama_kind); }

static attn_norm random_norm(unsigned seed) {
  return (attn_norm){.gain = nn_random(WIDTH, seed), .bias = nn_random(WIDTH, seed + 1), .epsilon = 1e-5f};
}

/* Norms after the sublayers, too (Gemma 2), in a pre-norm block. */
static void add_post_norms(attn_block_config *c) {
  c->post_norms = true;
  c->self_post_norm = random_norm(11);
  c->cross_post_norm = random_norm(13);
  c->feed_forward_post_norm = random_norm(15);
}

static void with_post_norms(const char *kernel) {
  for (int variant = 0; variant < 4; variant++) {
    const bool decoder = variant & 1;
    fixture f;
    float y[BATCH * SEQ * WIDTH];
    load(&f, decoder, true);
    f.args.y = y;
    f.config.rms_norm = variant & 2;
    add_post_norms(&f.config);
    const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 2);
    attn_block *block;
    const attn_status status = attn_block_create(&f.config, &options, &block);
    assert_true(status == ATTN_OK || status == ATTN_UNSUPPORTED);
    if (status == ATTN_OK) {
      attn_block_destroy(block);
      run(&f.config, &options, &f.args);
      const attn_numerics *numerics = &attn_kernel_find(kernel)->numerics;
      nn_passes(nn_block(&f.config, &f.args, numerics), y);
      attn_block_config other = f.config;
      other.post_norms = false;
      nn_rejected(nn_block(&other, &f.args, numerics), y);
      other = f.config;
      other.feed_forward_post_norm = f.config.self_post_norm;
      nn_rejected(nn_block(&other, &f.args, numerics), y);
      other = f.config;
      other.cross_post_norm = other.self_post_norm = f.config.feed_forward_post_norm;
      nn_rejected(nn_block(&other, &f.args, numerics), y);
    }
    safetensors_free(&f.file);
  }
}

/* ---- Rows of 16 bits: what the parts of a block give ---- */

/* One call's rows between the parts, as floats. */
typedef struct parts {
  const fixture *f;
  float memory[BATCH * MEMORY * WIDTH]; /* values that dtype_rows has */
} parts;

static void norm_rows(const parts *p, const attn_norm *norm, float *rows) {
  const bool rms = p->f->config.rms_norm;
  test_ok((rms ? attn_add_rms_norm : attn_add_layer_norm)(BATCH * SEQ, WIDTH, rows, NULL, norm, NULL, rows));
}

static void attend_part(const parts *p, bool cross, const void *x, float *out) {
  const attn_block_config *c = &p->f->config;
  attn_mha_problem problem = cross ? c->cross : c->self;
  problem.dtype_x = c->dtype_rows;
  attn_mha *mha;
  test_ok(attn_mha_create(&problem, cross ? &c->cross_weights : &c->self_weights, NULL, &mha));
  void *workspace = test_allocate(attn_mha_workspace(mha)),
       *memory = test_narrow(p->memory, COUNT(p->memory), c->dtype_rows);
  test_ok(attn_mha_run(mha,
                       &ATTN_STRUCT(attn_mha_args, .x = x, .memory = cross ? memory : NULL, .y = out,
                                    .attention = cross ? p->f->args.cross : p->f->args.self),
                       workspace, attn_mha_workspace(mha)));
  free(workspace);
  free(memory);
  attn_mha_destroy(mha);
}

static void feed_part(const parts *p, const void *x, float *out) {
  attn_feed_forward_config config = p->f->config.feed_forward;
  config.dtype_x = p->f->config.dtype_rows;
  attn_feed_forward *layer;
  test_ok(attn_feed_forward_create(&config, NULL, &layer));
  const size_t bytes = attn_feed_forward_workspace(layer, BATCH * SEQ);
  void *workspace = test_allocate(bytes);
  test_ok(attn_feed_forward_run(layer, BATCH * SEQ, x, out, workspace, bytes));
  free(workspace);
  attn_feed_forward_destroy(layer);
}

/* stream: x on entry, y at the end. */
static void by_parts(const parts *p, float *stream) {
  enum { COUNT_ALL = BATCH * SEQ * WIDTH };
  const attn_block_config *c = &p->f->config;
  const attn_norm *norms[] = {&c->self_norm, &c->cross_norm, &c->feed_forward_norm};
  const attn_norm *post[] = {&c->self_post_norm, &c->cross_post_norm, &c->feed_forward_post_norm};
  for (int i = 0; i < 3; i++) {
    float rows[COUNT_ALL], out[COUNT_ALL];
    if (i == 1 && !c->has_cross) continue;
    memcpy(rows, stream, sizeof rows);
    if (c->pre_norm) norm_rows(p, norms[i], rows);
    void *x = test_narrow(rows, COUNT_ALL, c->dtype_rows);
    if (i < 2)
      attend_part(p, i == 1, x, out);
    else
      feed_part(p, x, out);
    free(x);
    if (c->post_norms) norm_rows(p, post[i], out);
    for (int n = 0; n < COUNT_ALL; n++) stream[n] += out[n];
    if (c->pre_norm) continue;
    norm_rows(p, norms[i], stream);
    test_round(stream, COUNT_ALL, c->dtype_rows);
  }
  test_round(stream, COUNT_ALL, c->dtype_rows);
}

TEST(blocks_of_rows_of_16_bits) {
  static const attn_dtype types[] = {ATTN_BF16, ATTN_F16};
  for (int i = 0; i < 16; i++) {
    fixture f;
    load(&f, i & 1, i & 2);
    const attn_dtype dtype = f.config.dtype_rows = types[i / 4 % 2];
    if (i >= 8) f.config.rms_norm = true;
    if (i >= 8 && f.config.pre_norm) add_post_norms(&f.config);
    f.config.self.attention.dtype_q = f.config.self.attention.dtype_kv = f.config.self.attention.dtype_o = dtype;
    const float *x = f.args.x, *memory = f.args.memory;
    float y[BATCH * SEQ * WIDTH], expected[BATCH * SEQ * WIDTH];
    parts p = {.f = &f};
    if (memory) memcpy(p.memory, memory, sizeof p.memory);
    void *x_given = test_narrow(x, COUNT(y), dtype), *memory_given = test_narrow(p.memory, COUNT(p.memory), dtype);
    test_widen(x_given, COUNT(y), dtype, expected);
    by_parts(&p, expected);
    f.args.x = f.args.y = x_given;
    f.args.memory = memory ? memory_given : NULL;
    run(&f.config, NULL, &f.args);
    test_widen(x_given, COUNT(y), dtype, y);
    assert_memory_equal(y, expected, sizeof y);
    free(x_given);
    free(memory_given);
    safetensors_free(&f.file);
  }
}

/* Weights whose initialiser sets no size mean the fields of version 0.1, all of which count. */
TEST(weights_without_a_size) {
  fixture f;
  float y[2][BATCH * SEQ * WIDTH];
  load(&f, false, true);
  for (int i = 0; i < 2; i++) {
    if (i) f.config.self_weights.struct_size = 0;
    f.args.y = y[i];
    run(&f.config, NULL, &f.args);
  }
  assert_memory_equal(y[0], y[1], sizeof y[0]);
  safetensors_free(&f.file);
}

TEST(norms_after_sublayers_follow_the_formula) { test_each_kernel(with_post_norms); }

TEST(rms_norm_follows_the_formula) {
  enum { ROWS = 3, LONG = 1000 };
  float *x = nn_random(ROWS * LONG, 1), *residual = nn_random(ROWS * LONG, 2), *y = nn_random(ROWS * LONG, 3);
  const attn_norm norm = {.gain = nn_random(LONG, 4), .bias = nn_random(LONG, 5), .epsilon = 1e-6f};
  for (int i = 0; i < ROWS * LONG; i++) x[i] += 3;
  test_ok(attn_add_rms_norm(ROWS, LONG, x, residual, &norm, NULL, y));
  attn_nn_field fx = attn_nn_field_of(x, ROWS, LONG), fr = attn_nn_field_of(residual, ROWS, LONG);
  attn_nn_field sum = attn_nn_oracle_add(&fx, &fr);
  nn_passes(attn_nn_oracle_rms_norm(&sum, &norm), y);
  nn_rejected(attn_nn_oracle_layer_norm(&sum, &norm), y);
  nn_rejected(attn_nn_oracle_rms_norm(&fx, &norm), y);
  nn_destroy(&fx, &fr, &sum);
  test_invalid(attn_add_rms_norm(1, LONG, x, NULL, &(attn_norm){.epsilon = -1}, NULL, y), "attn_norm.epsilon is -1");
  test_invalid(attn_add_rms_norm(1, LONG, NULL, NULL, &norm, NULL, y), "x is NULL");
}

TEST(layer_norm_agrees_with_pytorch) {
  safetensors file;
  float y[SEQ * WIDTH];
  assert_int_equal(safetensors_read(TEST_SOURCE_DIR "/tests/data/nn/layer_norm.safetensors", &file), 0);
  const float *x = safetensors_get(&file, "x", SEQ, WIDTH), *residual = safetensors_get(&file, "residual", SEQ, WIDTH),
              *expected = safetensors_get(&file, "y", SEQ, WIDTH);
  const attn_norm norm = {safetensors_get(&file, "weight", 0, WIDTH), safetensors_get(&file, "bias", 0, WIDTH), 1e-5f};
  assert_true(x && residual && expected && norm.gain && norm.bias);
  test_ok(attn_add_layer_norm(SEQ, WIDTH, x, residual, &norm, NULL, y));
  attn_nn_field fx = attn_nn_field_of(x, SEQ, WIDTH), fr = attn_nn_field_of(residual, SEQ, WIDTH);
  attn_nn_field sum = attn_nn_oracle_add(&fx, &fr), oracle = attn_nn_oracle_layer_norm(&sum, &norm);
  for (int i = 0; i < SEQ * WIDTH; i++) oracle.value[i] = (double)expected[i];
  nn_passes(oracle, y);
  nn_destroy(&fx, &fr, &sum);
  safetensors_free(&file);
}

/* ---- Wrong formulas ---- */

TEST(wrong_blocks_are_told_apart) {
  for (int variant = 0; variant < 4; variant++) {
    fixture f;
    float y[BATCH * SEQ * WIDTH];
    const bool decoder = variant & 1;
    load(&f, decoder, variant & 2);
    f.args.y = y;
    run(&f.config, NULL, &f.args);
#define REJECTED(change)                                             \
  do {                                                               \
    attn_block_config c = f.config;                                  \
    attn_block_args a = f.args;                                      \
    const int32_t other[BATCH] = {f.lengths[0], f.lengths[1] - 1};   \
    const attn_args masks = ATTN_STRUCT(attn_args, .kv_len = other); \
    (void)masks;                                                     \
    change;                                                          \
    nn_rejected(nn_block(&c, &a, NULL), y);                          \
  } while (0)
    REJECTED(c.pre_norm = !c.pre_norm);
    REJECTED(c.self_norm.epsilon = 1e-2f);
    REJECTED(c.self_norm.bias = NULL);
    REJECTED(c.feed_forward_norm = c.self_norm);
    REJECTED(c.feed_forward.activation = c.feed_forward.activation == ATTN_RELU ? ATTN_GELU : ATTN_RELU);
    REJECTED(c.feed_forward.second.bias = NULL);
    REJECTED(c.self_weights.b_o = NULL);
    REJECTED(c.self.attention.scale *= 1.01f);
    REJECTED(c.self.attention.window_right = decoder ? -1 : 0);
    REJECTED(*(decoder ? &a.cross : &a.self) = &masks);
    if (decoder) {
      REJECTED(c.cross_norm.gain = NULL);
      REJECTED(c.cross_weights = c.self_weights);
      REJECTED(c.has_cross = false);
    }
    safetensors_free(&f.file);
  }
}

/* ---- More than the fixture has: GQA, another width of memory, many rows, in place, a profile ---- */

static attn_mha_weights random_attention(const attn_mha_problem *p, unsigned seed) {
  const attn_problem *a = &p->attention;
  const int64_t q = a->heads_q * a->dim_qk, k = a->heads_kv * a->dim_qk, v = a->heads_kv * a->dim_v;
  attn_mha_weights w = ATTN_STRUCT(attn_mha_weights, .layout = ATTN_IN_OUT); /* even seeds: [in][out] */
  w.w_q = nn_random_linear(p->width, q, false, 2 * seed).weight;
  w.w_k = nn_random_linear(p->width_memory, k, false, 2 * seed + 2).weight;
  w.w_v = nn_random_linear(p->width_memory, v, false, 2 * seed + 4).weight;
  w.w_o = nn_random_linear(a->heads_q * a->dim_v, p->width_out, false, 2 * seed + 6).weight;
  w.b_k = nn_random(k, seed);
  return w;
}

TEST(other_shapes_follow_the_formula) {
  enum { B = 3, N = 67, M = 50, W = 32, WM = 20, HID = 96 };
  const int32_t lengths[B] = {M, 1, 33};
  for (int pre = 0; pre < 2; pre++) {
    attn_block_config c;
    attn_decoder_block_init(&c, B, 4, N, M, W, WM, HID);
    attn_problem_init(&c.self.attention, B, 4, 2, N, N, 8, 8); /* two KV heads */
    attn_problem_set_causal(&c.self.attention, ATTN_ALIGN_TOP_LEFT);
    attn_problem_init(&c.cross.attention, B, 4, 1, N, M, 8, 12); /* one, wider */
    c.cross.attention.uses |= ATTN_USE_KV_LEN;
    c.pre_norm = pre;
    c.self_weights = random_attention(&c.self, 1);
    c.cross_weights = random_attention(&c.cross, 20);
    c.feed_forward.first = nn_random_linear(W, HID, true, 51);
    c.feed_forward.second = nn_random_linear(HID, W, true, 52);
    float *x = nn_random(B * N * W, 60), *y = nn_random(B * N * W, 61);
    attn_block_profile profile = {0};
    attn_block_args args = ATTN_STRUCT(attn_block_args, .x = x, .memory = nn_random(B * M * WM, 62), .y = y,
                                       .cross = &ATTN_STRUCT(attn_args, .kv_len = lengths), .profile = &profile);
    run(&c, &ATTN_STRUCT(attn_options, .threads = 2), &args);
    nn_passes(nn_block(&c, &args, NULL), y);
    assert_int_equal(profile.runs, 1);
    test_times(profile.total_ns, profile.projections_ns, profile.attention_ns, profile.feed_forward_ns, profile.norm_ns);
    args.y = x; /* in place, one thread: the same bits */
    args.profile = NULL;
    run(&c, &ATTN_STRUCT(attn_options, .threads = 1), &args);
    assert_memory_equal(x, y, B * N * W * sizeof *x);
  }
}

/* The caller's rounding mode changes no bits and is restored. */
TEST(rounding_of_the_caller_does_not_matter) {
  for (int variant = 0; variant < 4; variant++) {
    fixture f;
    static float usual[BATCH * SEQ * WIDTH], other[BATCH * SEQ * WIDTH];
    load(&f, variant & 1, variant & 2);
    f.args.y = usual;
    run(&f.config, &ATTN_STRUCT(attn_options, .threads = 1), &f.args);
    f.args.y = other;
    fesetround(FE_UPWARD);
    run(&f.config, &ATTN_STRUCT(attn_options, .threads = 1), &f.args);
    const int kept = fegetround();
    fesetround(FE_TONEAREST);
    assert_int_equal(kept, FE_UPWARD);
    assert_memory_equal(usual, other, sizeof usual);
    safetensors_free(&f.file);
  }
}

/* Causal and cross-attention by name. */
TEST(named_attentions_follow_the_formula) {
  enum { B = 2, N = 11, M = 6, W = 32, WM = 20 };
  for (int cross = 0; cross < 2; cross++) {
    attn_mha_problem p, other;
    attn_causal_self_attention_init(&p, B, 4, N, W);
    if (cross) attn_cross_attention_init(&p, B, 4, N, M, W, WM);
    const attn_mha_weights weights = random_attention(&p, 7);
    const float *x = nn_random(B * N * W, 1), *memory = nn_random(B * M * WM, 2);
    float *y = nn_random(B * N * W, 3);
    attn_mha *layer;
    test_ok(attn_mha_create(&p, &weights, NULL, &layer));
    void *workspace = test_allocate(attn_mha_workspace(layer));
    const attn_mha_args args = ATTN_STRUCT(attn_mha_args, .x = x, .memory = cross ? memory : NULL, .y = y);
    test_ok(attn_mha_run(layer, &args, workspace, attn_mha_workspace(layer)));
    attn_nn_field fx = attn_nn_field_of(x, B * N, W), fm = attn_nn_field_of(memory, B * M, WM);
    attn_nn_mha mha = {.problem = &p, .weights = &weights};
    nn_passes(attn_nn_oracle_mha(&mha, &fx, cross ? &fm : NULL), y);
    other = p;
    other.attention.window_right = cross ? 0 : -1;
    mha.problem = &other;
    nn_rejected(attn_nn_oracle_mha(&mha, &fx, cross ? &fm : NULL), y);
    nn_destroy(&fx, &fm);
    free(workspace);
    attn_mha_destroy(layer);
  }
}

/* ---- Arguments ---- */

/* One sequence has no next one. */
TEST(batch_strides_of_one_sequence_do_not_matter) {
  attn_block_config c;
  attn_block *block;
  attn_encoder_block_init(&c, 1, HEADS, SEQ, WIDTH, HIDDEN);
  c.self_weights = random_attention(&c.self, 1);
  c.feed_forward.first = nn_random_linear(WIDTH, HIDDEN, true, 51);
  c.feed_forward.second = nn_random_linear(HIDDEN, WIDTH, true, 52);
  c.self.x_stride.b = c.self.y_stride.b = 0;
  test_ok(attn_block_create(&c, NULL, &block));
  attn_block_destroy(block);
}

/* ---- Steps through a cache ---- */

enum { TEXT_STEPS = 3 };

/* The fixture's block with causal self-attention by a named kernel, and, where it is asked for, a cache that fits it. */
static attn_block *make_stepper(fixture *f, attn_kv_cache **cache) {
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = "flash_portable", .threads = 1);
  attn_block *block;
  f->config.self.attention.uses = 0;
  attn_problem_set_causal(&f->config.self.attention, ATTN_ALIGN_TOP_LEFT);
  test_ok(attn_block_create(&f->config, &options, &block));
  const attn_kv_cache_shape shape =
      ATTN_STRUCT(attn_kv_cache_shape, .batch = BATCH, .heads_q = HEADS, .heads_kv = HEADS, .dim_qk = WIDTH / HEADS,
                  .dim_v = WIDTH / HEADS, .capacity = SEQ, .dtype = f->config.self.attention.dtype_kv, .layers = 2);
  if (cache) test_ok(attn_kv_cache_create(&shape, &options, cache));
  return block;
}

/* The type of everything in a block but its weights, and x in it, freed by the caller. */
static void *take_type(fixture *f, attn_dtype dtype) {
  attn_problem *a = &f->config.self.attention, *c = &f->config.cross.attention;
  f->config.dtype_rows = a->dtype_q = a->dtype_kv = a->dtype_o = dtype;
  if (f->config.has_cross) c->dtype_q = c->dtype_kv = c->dtype_o = dtype;
  return test_narrow(f->args.x, BATCH * SEQ * WIDTH, dtype);
}

/* Tokens `first` to first + counts[b] - 1 of each sequence side by side, as steps have them. Returns their bytes. */
static size_t gather(const void *from, attn_dtype dtype, const int32_t *first, const int32_t *counts, void *rows) {
  const size_t row = (size_t)attn_elements_bytes(dtype, WIDTH);
  size_t at = 0;
  for (int b = 0; b < BATCH; at += (size_t)counts[b++] * row)
    memcpy((char *)rows + at, (const char *)from + (size_t)(b * SEQ + first[b]) * row, (size_t)counts[b] * row);
  return at;
}

/* A block without cross-attention takes any number of tokens of each sequence. */
TEST(steps_have_the_bits_of_one_run) {
  static const int32_t steps[TEXT_STEPS][BATCH] = {{4, 1}, {1, 0}, {2, 6}};
  for (int variant = 0; variant < 9; variant++) { /* post-norm, pre-norm, pre-norm with post_norms; in every type */
    const attn_dtype dtype = (const attn_dtype[]){ATTN_F32, ATTN_BF16, ATTN_F16}[variant / 3];
    fixture f;
    attn_kv_cache *cache;
    float whole[BATCH * SEQ * WIDTH], x[BATCH * SEQ * WIDTH], right[BATCH * SEQ * WIDTH];
    load(&f, false, variant % 3 > 0);
    if (variant % 3 == 2) add_post_norms(&f.config);
    void *text = take_type(&f, dtype);
    attn_block *block = make_stepper(&f, &cache);
    attn_block_args args = ATTN_STRUCT(attn_block_args, .x = text, .y = whole);
    void *workspace = test_allocate(attn_block_workspace(block));
    test_ok(attn_block_run(block, &args, workspace, attn_block_workspace(block)));
    free(workspace);
    args.x = args.y = x;
    attn_block_profile profile = {0};
    args.profile = &profile;
    for (int i = 0; i < TEXT_STEPS; i++) {
      int32_t first[BATCH];
      memcpy(first, attn_kv_cache_lengths(cache), sizeof first);
      test_ok(attn_kv_cache_begin(cache, steps[i]));
      const size_t bytes = gather(text, dtype, first, steps[i], x);
      test_ok(attn_block_step(block, cache, 1, &args));
      gather(whole, dtype, first, steps[i], right);
      assert_memory_equal(x, right, bytes);
    }
    assert_int_equal(profile.runs, TEXT_STEPS);
    test_times(profile.total_ns, profile.attention_ns, profile.feed_forward_ns);
    assert_true(profile.projections_ns == 0);
    free(text);
    attn_kv_cache_destroy(cache);
    attn_block_destroy(block);
    safetensors_free(&f.file);
  }
}

/* A decoder block was made for so many tokens of each sequence, and attends to a memory that is projected once. */
TEST(steps_of_decoder_blocks_have_the_bits_of_one_run) {
  for (int variant = 0; variant < 6; variant++) { /* post-norm, pre-norm; in every type */
    const attn_dtype dtype = (const attn_dtype[]){ATTN_F32, ATTN_BF16, ATTN_F16}[variant / 2];
    const bool pre_norm = variant % 2;
    fixture f, one;
    attn_kv_cache *cache;
    float whole[BATCH * SEQ * WIDTH], x[BATCH * WIDTH], y[BATCH * WIDTH], right[BATCH * WIDTH];
    static float keys[BATCH * MEMORY * WIDTH], values[BATCH * MEMORY * WIDTH];
    load(&f, true, pre_norm);
    load_for(&one, true, pre_norm, 1);
    void *text = take_type(&f, dtype), *memory = test_narrow(f.args.memory, BATCH * MEMORY * WIDTH, dtype);
    free(take_type(&one, dtype));
    attn_block *all = make_stepper(&f, NULL), *block = make_stepper(&one, &cache);
    const size_t bytes = attn_block_workspace(all);
    void *workspace = test_allocate(bytes);
    attn_block_args args = f.args;
    args.x = text, args.memory = memory, args.y = whole;
    test_ok(attn_block_run(all, &args, workspace, bytes));
    test_ok(attn_block_project_memory(block, &args, keys, values, workspace, bytes));
    args.x = x, args.y = y;
    for (int32_t i = 0; i < SEQ; i++) {
      const int32_t counts[BATCH] = {1, 1}, first[BATCH] = {i, i};
      if (i == 2) args.memory = NULL, args.projected_k = keys, args.projected_v = values;
      test_ok(attn_kv_cache_begin(cache, counts));
      const size_t row_bytes = gather(text, dtype, first, counts, x);
      test_ok(attn_block_step(block, cache, 0, &args));
      gather(whole, dtype, first, counts, right);
      assert_memory_equal(y, right, row_bytes);
    }
    test_ok(attn_kv_cache_truncate(cache, 3));
    test_ok(attn_kv_cache_begin(cache, (const int32_t[BATCH]){1, 0}));
    test_invalid(attn_block_step(block, cache, 0, &args), "sequence 1 has 0 new tokens", "it must have 1");
    test_ok(attn_kv_cache_begin(cache, (const int32_t[BATCH]){2, 0}));
    test_invalid(attn_block_step(block, cache, 0, &args), "sequence 0 has 2 new tokens");
    free(workspace);
    free(text);
    free(memory);
    attn_kv_cache_destroy(cache);
    attn_block_destroy(all);
    attn_block_destroy(block);
    safetensors_free(&f.file);
    safetensors_free(&one.file);
  }
}

TEST(steps_are_checked) {
  fixture f;
  attn_kv_cache *cache;
  float y[BATCH * WIDTH];
  load(&f, false, false);
  attn_block *block = make_stepper(&f, &cache);
  attn_block_args args = ATTN_STRUCT(attn_block_args, .x = f.args.x, .y = y);
  test_ok(attn_block_step(block, cache, 0, &args)); /* no step has begun: there is nothing to do */
  test_ok(attn_kv_cache_begin(cache, (const int32_t[BATCH]){1, 1}));
  test_invalid(attn_block_step(NULL, cache, 0, &args), "block is NULL");
  test_invalid(attn_block_step(block, NULL, 0, &args), "cache is NULL");
  test_invalid(attn_block_step(block, cache, 0, NULL), "args is NULL");
  test_invalid(attn_block_step(block, cache, 2, &args), "attn_kv_cache_args.layer is 2");
  attn_block_args bad = args;
  bad.x = NULL;
  test_invalid(attn_block_step(block, cache, 0, &bad), "attn_block_args.x is NULL");
  bad = args, bad.self = &f.masks;
  test_invalid(attn_block_step(block, cache, 0, &bad), "attn_block_args.self is given");
  test_invalid(attn_block_project_memory(block, &args, y, y, NULL, 0), "the block has no cross-attention");
  test_ok(attn_block_step(block, cache, 0, &args)); /* still begun */
  attn_kv_cache_destroy(cache);
  attn_block_destroy(block);
  safetensors_free(&f.file);
}

/* ---- Arguments ---- */

TEST(arguments_are_checked) {
  fixture f;
  attn_block *block;
  load(&f, true, false);
#define REFUSED(change, word) \
  TEST_REFUSES(attn_block_config, f.config, change, attn_block_create(&bad, NULL, &block), block, word)
  REFUSED(bad.self.width = 0, "width is 0");
  REFUSED(bad.self.width_out = 12, "attn_block_config.self has width 24 and width_out 12");
  REFUSED(bad.cross.width = 25, "attn_block_config.cross has width 25");
  REFUSED(bad.self.x_stride.s = 48, "attn_block_config.self.x_stride");
  REFUSED(bad.cross.y_stride.d = 2, "attn_block_config.cross.y_stride");
  REFUSED(bad.cross.attention.batch = 1, "attn_block_config.cross has 7 query rows");
  REFUSED(bad.feed_forward.width = 23, "attn_block_config.feed_forward.width is 23");
  REFUSED(bad.feed_forward.hidden = 0, "attn_feed_forward_config.hidden is 0");
  REFUSED(bad.cross_norm.epsilon = -1, "attn_block_config.cross_norm.epsilon is -1");
  REFUSED(bad.post_norms = true, "attn_block_config.post_norms is true without pre_norm");
  REFUSED(bad.dtype_rows = ATTN_I8, "attn_block_config.dtype_rows is");
  REFUSED(bad.self.dtype_x = ATTN_BF16, "attn_block_config.self has dtype_x 2 and dtype_y 0");
  REFUSED(bad.self.dtype_y = ATTN_BF16; bad.dtype_rows = ATTN_BF16, "attn_block_config.self has dtype_x 0 and dtype_y 2");
  REFUSED(bad.feed_forward.dtype_x = ATTN_F16, "attn_block_config.feed_forward has dtype_x 1");
  REFUSED(bad.feed_forward.dtype_y = ATTN_F16, "attn_block_config.feed_forward has dtype_x 0 and dtype_y 1");
  REFUSED((bad.pre_norm = bad.post_norms = true, bad.cross_post_norm.epsilon = -1),
          "attn_block_config.cross_post_norm.epsilon is -1");
  REFUSED(bad.self_weights.w_o = NULL, "w_o is NULL");
  REFUSED(bad.self.struct_size = 3, "struct_size is 3");
  REFUSED(bad.struct_size = sizeof bad / 2 - 4, "attn_block_config.struct_size is");
  test_invalid(attn_block_create(NULL, NULL, &block), "config is NULL");
  test_invalid(attn_block_create(&f.config, NULL, NULL), "block is NULL");
  const attn_options unknown = ATTN_STRUCT(attn_options, .kernel = "flash_mmx");
  test_refused(attn_block_create(&f.config, &unknown, &block), ATTN_UNKNOWN_KERNEL, "flash_mmx");
  attn_block_config named = f.config;
  named.feed_forward.product = "product_mmx";
  test_refused(attn_block_create(&named, NULL, &block), ATTN_UNKNOWN_KERNEL, "product_mmx");
  named.product = "product_c"; /* the same for all layers, whatever theirs say */
  test_ok(attn_block_create(&named, NULL, &block));
  attn_block_destroy(block);
  named.product = "product_sse", named.feed_forward.product = NULL;
  test_refused(attn_block_create(&named, NULL, &block), ATTN_UNKNOWN_KERNEL, "product_sse");

  float y[BATCH * SEQ * WIDTH];
  f.args.y = y;
  test_ok(attn_block_create(&f.config, NULL, &block));
  const size_t bytes = attn_block_workspace(block);
  char *workspace = test_allocate(bytes + 64);
  attn_block_args bad = f.args;
  bad.x = NULL;
  test_invalid(attn_block_run(block, &bad, workspace, bytes), "attn_block_args.x is NULL");
  bad = f.args, bad.y = NULL;
  test_invalid(attn_block_run(block, &bad, workspace, bytes), "attn_block_args.y is NULL");
  bad = f.args, bad.memory = NULL;
  test_invalid(attn_block_run(block, &bad, workspace, bytes), "attn_block_args.memory is NULL");
  bad = f.args, bad.cross = NULL;
  test_invalid(attn_block_run(block, &bad, workspace, bytes), "kv_len");
  test_invalid(attn_block_run(block, NULL, workspace, bytes), "args is NULL");
  test_invalid(attn_block_run(NULL, &f.args, workspace, bytes), "block is NULL");
  test_refused(attn_block_run(block, &f.args, workspace, bytes - 1), ATTN_WORKSPACE_TOO_SMALL, "attn_block needs");
  test_refused(attn_block_run(block, &f.args, workspace + 8, bytes), ATTN_WORKSPACE_TOO_SMALL, "aligned to 64");
  free(workspace);
  attn_block_destroy(block);
  attn_block_destroy(NULL);
  safetensors_free(&f.file);
}
