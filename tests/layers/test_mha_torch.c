/* SPDX-License-Identifier: MIT */
/* Our layer, and the float64 oracle of the other tests, give what PyTorch's MultiheadAttention gives for weights as PyTorch
 * stores them (tests/data/mha, made by scripts/make/mha_fixture.py). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/npy.h"
#include "data/tensors.h"
#include "kernels/ref/nn_oracle_f64.h"
#include "tests/support/support.h"

static npy_array load(const char *layer, const char *name) {
  char path[300], error[300];
  snprintf(path, sizeof path, "%s/tests/data/mha/%s%s.npy", TEST_SOURCE_DIR, layer, name);
  npy_array array;
  if (npy_read(path, &array, error, sizeof error) != 0) fail_msg("%s", error);
  return array;
}

typedef struct fixture {
  npy_array x, memory, w_qkv, w_q, w_k, w_v, b_qkv, w_o, b_o, kv_len, y, p;
  bool cross;
} fixture;

static fixture load_fixture(const char *layer, const char *which) {
  const bool cross = strcmp(layer, "cross_") == 0;
  char y[40], p[40];
  snprintf(y, sizeof y, "%s_y", which);
  snprintf(p, sizeof p, "%s_p", which);
  fixture f = {.x = load(layer, "x"),
               .b_qkv = load(layer, "b_qkv"),
               .w_o = load(layer, "w_o"),
               .b_o = load(layer, "b_o"),
               .kv_len = load("", "kv_len"),
               .y = load(layer, y),
               .p = load(layer, p),
               .cross = cross};
  if (cross) {
    f.memory = load(layer, "memory");
    f.w_q = load(layer, "w_q");
    f.w_k = load(layer, "w_k");
    f.w_v = load(layer, "w_v");
  } else {
    f.w_qkv = load(layer, "w_qkv");
  }
  return f;
}

static void free_fixture(fixture *f) {
  npy_array *const arrays[] = {&f->x,     &f->memory, &f->w_qkv, &f->w_q,    &f->w_k, &f->w_v,
                               &f->b_qkv, &f->w_o,    &f->b_o,   &f->kv_len, &f->y,   &f->p};
  for (size_t i = 0; i < COUNT(arrays); i++) npy_free(arrays[i]);
}

static attn_mha_problem problem_of(const fixture *f, const char *which) {
  const int64_t seq_q = f->x.shape[1], seq_k = f->p.shape[3], width = f->x.shape[2];
  attn_mha_problem p;
  attn_mha_problem_init(&p, f->x.shape[0], f->p.shape[1], seq_q, seq_k, width);
  if (f->cross) p.width_memory = f->memory.shape[2];
  p.memory_stride = (attn_strides){.b = seq_k * p.width_memory, .s = p.width_memory, .d = 1};
  if (strcmp(which, "causal") == 0) attn_problem_set_causal(&p.attention, ATTN_ALIGN_TOP_LEFT);
  if (strcmp(which, "padded") == 0) p.attention.uses |= ATTN_USE_KV_LEN;
  p.want_weights = true;
  return p;
}

static attn_mha_weights weights_of(const fixture *f) {
  const float *bias = f->b_qkv.data;
  attn_mha_weights w =
      ATTN_STRUCT(attn_mha_weights, .layout = ATTN_OUT_IN, .w_qkv = f->w_qkv.data, .w_o = f->w_o.data, .b_o = f->b_o.data);
  if (!f->cross) {
    w.b_qkv = bias;
    return w;
  }
  const int64_t width = f->x.shape[2];
  w.w_q = f->w_q.data;
  w.w_k = f->w_k.data;
  w.w_v = f->w_v.data;
  w.b_q = bias;
  w.b_k = bias + width;
  w.b_v = bias + 2 * width;
  return w;
}

/* Both sides are float64: a few units of 2^-53 on numbers of about 1. */
static const double ORACLE_LIMIT = 1e-13;

/* The oracle gives what PyTorch gives in float64, and the layer lies within the oracle's limits. */
static void check(const attn_nn_field *oracle, int64_t at, double torch, float got) {
  assert_true(fabs(oracle->value[at] - torch) <= ORACLE_LIMIT);
  assert_true(fabs((double)got - torch) <= attn_nn_limit(oracle->error[at]));
}

/* PyTorch has p[batch][heads][seq_q][seq_k], the oracle p[batch][seq_q][heads][seq_k]. */
static void check_p(const fixture *f, const attn_nn_field *oracle, const float *p) {
  const int64_t heads = f->p.shape[1], seq_q = f->p.shape[2], seq_k = f->p.shape[3];
  for (int64_t at = 0; at < f->p.count; at++) {
    const int64_t b = at / (heads * seq_q * seq_k), h = at / (seq_q * seq_k) % heads, i = at / seq_k % seq_q;
    check(oracle, ((b * seq_q + i) * heads + h) * seq_k + at % seq_k, ((const double *)f->p.data)[at], p[at]);
  }
}

static void check_case(const char *layer, const char *which) {
  fixture f = load_fixture(layer, which);
  const attn_mha_problem problem = problem_of(&f, which);
  const attn_mha_weights weights = weights_of(&f);
  float *y = test_allocate((size_t)f.y.count * sizeof *y), *p = test_allocate((size_t)f.p.count * sizeof *p);
  const attn_args attention = bench_used_args(&problem.attention, &ATTN_STRUCT(attn_args, .kv_len = f.kv_len.data));
  const attn_mha_args args =
      ATTN_STRUCT(attn_mha_args, .x = f.x.data, .memory = f.memory.data, .y = y, .attention = &attention);
  attn_mha *mha;
  test_ok(attn_mha_create(&problem, &weights, NULL, &mha));
  void *workspace = test_allocate(attn_mha_workspace(mha));
  test_ok(attn_mha_run(mha, &args, workspace, attn_mha_workspace(mha)));
  test_ok(attn_mha_attention_weights(mha, &args, p, workspace, attn_mha_workspace(mha)));

  attn_nn_field x = attn_nn_field_of(f.x.data, f.x.shape[0] * f.x.shape[1], problem.width), memory = {0}, oracle_p;
  if (f.cross) memory = attn_nn_field_of(f.memory.data, f.memory.shape[0] * f.memory.shape[1], problem.width_memory);
  const attn_numerics numerics = attn_kernel_find(attn_mha_kernel(mha))->numerics;
  const attn_nn_mha call = {&problem, &weights, {.args = &attention, .numerics = numerics, .p = &oracle_p}, NULL};
  attn_nn_field oracle_y = attn_nn_oracle_mha(&call, &x, f.cross ? &memory : NULL);
  for (int64_t at = 0; at < f.y.count; at++) check(&oracle_y, at, ((const double *)f.y.data)[at], y[at]);
  check_p(&f, &oracle_p, p);
  attn_nn_field *const fields[] = {&x, &memory, &oracle_y, &oracle_p};
  for (size_t i = 0; i < COUNT(fields); i++) attn_nn_field_destroy(fields[i]);
  attn_mha_destroy(mha);
  void *const arrays[] = {y, p, workspace};
  for (size_t i = 0; i < COUNT(arrays); i++) free(arrays[i]);
  free_fixture(&f);
}

#define CASE(layer, which) \
  TEST(test_##layer##_##which) { check_case(#layer "_", #which); }
CASE(self, plain)
CASE(self, causal)
CASE(self, padded)
CASE(cross, plain)
CASE(cross, causal)
CASE(cross, padded)
