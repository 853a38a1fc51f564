/* SPDX-License-Identifier: MIT */
/* Our layer, and the float64 oracle of the other tests, give what PyTorch's MultiheadAttention gives for weights as PyTorch
 * stores them (tests/data/mha, made by scripts/make/mha_fixture.py). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/npy.h"
#include "data/tensors.h"
#include "layers/mha_oracle.h"
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

static void check_row(const fixture *f, const mha_oracle_row *row, int64_t b, int64_t i, const float *y, const float *p) {
  const int64_t seq_q = f->x.shape[1], seq_k = f->p.shape[3], width = f->x.shape[2], heads = f->p.shape[1];
  const double *torch_y = f->y.data, *torch_p = f->p.data;
  for (int64_t c = 0; c < width; c++) {
    const int64_t at = (b * seq_q + i) * width + c;
    assert_true(fabs(row->y[c] - torch_y[at]) <= ORACLE_LIMIT);
    assert_true(fabs((double)y[at] - torch_y[at]) <= row->limit[c]);
  }
  for (int64_t h = 0; h < heads; h++)
    for (int64_t j = 0; j < seq_k; j++) {
      const int64_t at = ((b * heads + h) * seq_q + i) * seq_k + j;
      assert_true(fabs(row->p[h * seq_k + j] - torch_p[at]) <= ORACLE_LIMIT);
      assert_true(fabs((double)p[at] - torch_p[at]) <= row->p_limit[h * seq_k + j]);
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

  mha_oracle *oracle = mha_oracle_create(&problem, &weights, &args);
  const int64_t width = problem.width_out, keys = problem.attention.heads_q * problem.attention.seq_k;
  double *row_y = test_allocate((size_t)width * 2 * sizeof *row_y), *row_p = test_allocate((size_t)keys * 2 * sizeof *row_p);
  const mha_oracle_row row = {.y = row_y, .limit = row_y + width, .p = row_p, .p_limit = row_p + keys};
  for (int64_t b = 0; b < problem.attention.batch; b++)
    for (int64_t i = 0; i < problem.attention.seq_q; i++) {
      mha_oracle_compute(oracle, b, i, &attn_kernel_find(attn_mha_kernel(mha))->numerics, true, &row);
      check_row(&f, &row, b, i, y, p);
    }
  mha_oracle_destroy(oracle);
  attn_mha_destroy(mha);
  void *const memory[] = {y, p, workspace, row_y, row_p};
  for (int i = 0; i < 5; i++) free(memory[i]);
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
