/* SPDX-License-Identifier: MIT */
/* Multi-head attention layers against the float64 oracle: every option, every kernel, determinism, refusals. Layers that are
 * wrong on purpose must exceed the limits that right ones meet. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn/nn.h"
#include "data/tensors.h"
#include "kernels/common/problem/convert.h"
#include "kernels/ref/nn_oracle_f64.h"
#include "src/registry/registry.h"
#include "tests/support/failing_malloc.h"
#include "tests/support/pool.h"

/* ---- Layers ---- */

typedef struct shape {
  const char *name;
  int64_t batch, heads_q, heads_kv, seq_q, seq_k, dim_qk, dim_v, width, width_memory, width_out;
  bool cross, packed, bias;
  attn_weight_layout layout;
  bool side_by_side; /* packed: the key of each KV head, its value, and its queries stand side by side (head_columns) */
  attn_dtype dtype;
  bool causal;
  attn_align align;
  uint32_t uses;
  bool seq_first; /* x, memory and y are [seq][batch][width] */
  float softcap;
  bool qk_norm, gains;
} shape;

static const shape shapes[] = {
    {"self", 2, 4, 4, 19, 19, 8, 8, 32, 32, 32, .bias = true},
    {"packed, as PyTorch stores it", 2, 4, 4, 19, 19, 8, 8, 32, 32, 32, .packed = true, .bias = true, .layout = ATTN_OUT_IN,
     .uses = ATTN_USE_LSE},
    {"packed [in][out], no bias", 1, 2, 2, 40, 40, 16, 16, 32, 32, 32, .packed = true},
    {"cross", 2, 4, 4, 7, 33, 8, 8, 32, 20, 24, .cross = true, .bias = true, .uses = ATTN_USE_LSE},
    {"dim_qk is not dim_v", 2, 3, 3, 12, 12, 5, 11, 30, 30, 17, .bias = true, .layout = ATTN_OUT_IN},
    {"grouped queries", 2, 6, 2, 25, 25, 8, 12, 48, 48, 48, .bias = true, .packed = true},
    {"one KV head", 1, 8, 1, 9, 300, 16, 16, 64, 40, 64, .cross = true, .bias = true},
    {"causal", 2, 4, 4, 50, 50, 8, 8, 32, 32, 32, .causal = true, .bias = true, .uses = ATTN_USE_LSE},
    {"lengths per batch", 3, 2, 2, 20, 30, 8, 8, 16, 16, 16, .cross = true, .bias = true,
     .uses = ATTN_USE_LSE | ATTN_USE_KV_LEN | ATTN_USE_Q_LEN},
    {"lengths per query", 3, 2, 2, 20, 30, 8, 8, 16, 16, 16, .cross = true, .bias = true,
     .uses = ATTN_USE_LSE | ATTN_USE_ROW_LEN},
    {"causal, cached keys before", 2, 2, 2, 5, 30, 8, 8, 16, 16, 16, .cross = true, .causal = true,
     .align = ATTN_ALIGN_BOTTOM_RIGHT, .uses = ATTN_USE_KV_LEN},
    {"mask and bias", 2, 4, 2, 21, 37, 8, 8, 32, 32, 32, .cross = true, .bias = true, .uses = ATTN_USE_MASK | ATTN_USE_BIAS},
    {"ALiBi and sinks", 2, 4, 4, 21, 21, 8, 8, 32, 32, 32, .causal = true,
     .uses = ATTN_USE_ALIBI | ATTN_USE_SINKS | ATTN_USE_LSE},
    {"softcap", 2, 4, 2, 21, 21, 8, 8, 32, 32, 32, .causal = true, .bias = true, .uses = ATTN_USE_LSE, .softcap = 1.5f},
    {"packed sequences", 3, 2, 2, 20, 20, 8, 8, 16, 16, 16, .bias = true, .uses = ATTN_USE_VARLEN | ATTN_USE_LSE},
    {"bf16 weights", 1, 2, 2, 20, 20, 8, 8, 16, 16, 16, .bias = true, .dtype = ATTN_BF16, .layout = ATTN_OUT_IN},
    {"f16 packed weights", 1, 2, 2, 20, 20, 8, 8, 16, 16, 16, .packed = true, .bias = true, .dtype = ATTN_F16,
     .layout = ATTN_OUT_IN},
    {"sequence first", 3, 2, 2, 20, 14, 8, 8, 16, 16, 16, .cross = true, .bias = true, .seq_first = true},
    {"heads normed", 2, 4, 2, 19, 31, 10, 6, 40, 24, 32, .cross = true, .bias = true, .qk_norm = true, .gains = true},
    {"packed sequences, heads normed without gains", 3, 2, 2, 20, 20, 8, 8, 16, 16, 16, .packed = true,
     .uses = ATTN_USE_VARLEN | ATTN_USE_LSE, .qk_norm = true},
    {"no keys", 2, 2, 2, 4, 0, 8, 8, 16, 16, 16, .cross = true, .bias = true, .uses = ATTN_USE_LSE},
    {"one query, one key", 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, .bias = true},
    {"packed, heads side by side", 2, 6, 2, 19, 19, 8, 5, 32, 32, 32, .packed = true, .bias = true, .layout = ATTN_OUT_IN,
     .side_by_side = true},
    {"packed [in][out], heads side by side", 1, 2, 2, 19, 19, 8, 8, 16, 16, 16, .packed = true, .side_by_side = true},
    {"a matrix for each head", 2, 4, 2, 19, 33, 8, 5, 32, 20, 24, .cross = true, .bias = true, .layout = ATTN_HEADS_IN_OUT},
    {"packed, a matrix for each head", 1, 4, 2, 19, 19, 8, 5, 32, 32, 32, .packed = true, .bias = true,
     .layout = ATTN_HEADS_IN_OUT},
    {"packed, a matrix for each head, side by side, bf16", 1, 4, 2, 19, 19, 8, 5, 32, 32, 32, .packed = true, .bias = true,
     .layout = ATTN_HEADS_IN_OUT, .side_by_side = true, .dtype = ATTN_BF16},
    {"packed, one head", 1, 1, 1, 19, 19, 8, 5, 16, 16, 16, .packed = true, .bias = true, .layout = ATTN_HEADS_IN_OUT},
};
enum { SHAPES = COUNT(shapes) };

typedef struct layer {
  const shape *shape;
  attn_args attention; /* data of args_of() */
  attn_mha_problem problem;
  attn_mha_weights weights;
  attn_mha_args args;
  float *x, *memory, *y, *lse, *p, *mask_bias, *slopes, *sinks, *bias, *gains;
  char *matrices;
  uint8_t *mask;
  int32_t kv_len[4], q_len[4], cu[5], row_len[4 * 64];
  int64_t *head_columns;
  size_t y_floats, lse_floats, p_floats;
} layer;

static float *floats(size_t count, unsigned seed, float scale) {
  float *data = test_allocate((count + 1) * sizeof *data);
  test_fill(data, count, seed);
  for (size_t i = 0; i < count; i++) data[i] *= scale;
  return data;
}

static int64_t row_count(const attn_mha_problem *p, bool queries) {
  const attn_problem *a = &p->attention;
  if (a->uses & ATTN_USE_VARLEN) return queries ? a->total_q : a->total_k;
  return a->batch * (queries ? a->seq_q : a->seq_k);
}

static attn_mha_problem make_problem(const shape *s) {
  attn_mha_problem p;
  attn_mha_problem_init(&p, s->batch, s->heads_q, s->seq_q, s->seq_k, s->width);
  const attn_strides dense = {.b = s->seq_k * s->width, .s = s->width, .d = 1};
  assert_memory_equal(&p.memory_stride, &dense, sizeof dense);
  attn_problem_init(&p.attention, s->batch, s->heads_q, s->heads_kv, s->seq_q, s->seq_k, s->dim_qk, s->dim_v);
  p.weights_stride = p.attention.mask_stride;
  p.width_memory = s->width_memory;
  p.width_out = s->width_out;
  p.memory_stride = (attn_strides){.b = s->seq_k * s->width_memory, .s = s->width_memory, .d = 1};
  p.y_stride = (attn_strides){.b = s->seq_q * s->width_out, .s = s->width_out, .d = 1};
  if (s->seq_first) {
    p.x_stride = (attn_strides){.b = s->width, .s = s->batch * s->width, .d = 1};
    p.memory_stride = (attn_strides){.b = s->width_memory, .s = s->batch * s->width_memory, .d = 1};
    p.y_stride = (attn_strides){.b = s->width_out, .s = s->batch * s->width_out, .d = 1};
  }
  if (s->causal) attn_problem_set_causal(&p.attention, s->align);
  if (s->uses & ATTN_USE_VARLEN) attn_problem_set_varlen(&p.attention, s->batch * s->seq_q, s->batch * s->seq_k);
  p.attention.uses |= s->uses;
  p.attention.softcap = s->softcap;
  p.want_weights = !(s->uses & ATTN_USE_VARLEN);
  return p;
}

/* Where heads begin if each group has its key, its value, and its queries. */
static int64_t *side_by_side(const shape *s) {
  int64_t *begins = test_allocate((size_t)(s->heads_q + 2 * s->heads_kv) * sizeof *begins), column = 0;
  int64_t *k = begins + s->heads_q, *v = k + s->heads_kv;
  const int64_t group = s->heads_q / s->heads_kv;
  for (int64_t g = 0; g < s->heads_kv; g++) {
    k[g] = column;
    v[g] = column += s->dim_qk;
    column += s->dim_v;
    for (int64_t h = g * group; h < (g + 1) * group; h++, column += s->dim_qk) begins[h] = column;
  }
  return begins;
}

/* Matrices with a gain of about 1 and biases of about a tenth, stored one behind the other in the order q, k, v, o. */
static void make_weights(layer *l) {
  const shape *s = l->shape;
  const int64_t q = s->heads_q * s->dim_qk, k = s->heads_kv * s->dim_qk, v = s->heads_kv * s->dim_v,
                o = s->heads_q * s->dim_v;
  const int64_t count[] = {s->width * q, s->width_memory * k, s->width_memory * v, o * s->width_out};
  const int64_t columns[] = {q, k, v, s->width_out};
  const size_t element = (size_t)attn_elements_bytes(s->dtype, 1);
  int64_t all = 0, biases = 0;
  for (int i = 0; i < 4; i++) all += count[i];
  for (int i = 0; i < 4; i++) biases += columns[i];
  float *values = floats((size_t)all, 11, 1.7f / sqrtf((float)s->width));
  l->matrices = test_allocate((size_t)all * element);
  for (int64_t i = 0; i < all; i++) attn_store_f32(l->matrices, s->dtype, i, values[i]);
  free(values);
  l->bias = floats((size_t)biases, 12, 0.3f);
  const char *m[] = {l->matrices, l->matrices + (size_t)count[0] * element,
                     l->matrices + (size_t)(count[0] + count[1]) * element,
                     l->matrices + (size_t)(count[0] + count[1] + count[2]) * element};
  const float *b[] = {l->bias, l->bias + q, l->bias + q + k, l->bias + q + k + v};
  l->weights =
      ATTN_STRUCT(attn_mha_weights, .layout = s->layout, .dtype = s->dtype, .w_o = m[3], .b_o = s->bias ? b[3] : NULL);
  l->gains = floats((size_t)(2 * s->dim_qk), 13, 0.5f);
  for (int64_t i = 0; i < 2 * s->dim_qk; i++) l->gains[i] += 1;
  l->weights.qk_norm = s->qk_norm;
  l->weights.qk_norm_epsilon = 1e-3f;
  if (s->gains) l->weights.q_norm_gain = l->gains, l->weights.k_norm_gain = l->gains + s->dim_qk;
  if (s->side_by_side) l->weights.head_columns = l->head_columns = side_by_side(s);
  if (s->packed) {
    l->weights.w_qkv = m[0];
    l->weights.b_qkv = s->bias ? b[0] : NULL;
    return;
  }
  l->weights.w_q = m[0];
  l->weights.w_k = m[1];
  l->weights.w_v = m[2];
  if (!s->bias) return;
  l->weights.b_q = b[0];
  l->weights.b_k = b[1];
  l->weights.b_v = b[2];
}

static void make_lengths(layer *l) {
  const shape *s = l->shape;
  for (int b = 0; b < s->batch; b++) {
    l->kv_len[b] = (int32_t)(b == 0 ? s->seq_k : b == 1 ? s->seq_k / 3 : 0);
    l->q_len[b] = (int32_t)(b == 0 ? s->seq_q / 2 : s->seq_q);
    l->cu[b + 1] = l->cu[b] + (int32_t)(b == 1 ? 1 : s->seq_q - b);
  }
  for (int i = 0; i < s->batch * s->seq_q && i < 256; i++) l->row_len[i] = (int32_t)((i * 7) % (s->seq_k + 1));
}

static layer make_layer(const shape *s) {
  layer l = {.shape = s, .problem = make_problem(s)};
  const size_t pairs = (size_t)(s->batch * s->heads_q * s->seq_q * s->seq_k);
  l.x = floats((size_t)(row_count(&l.problem, true) * s->width), 1, 1.7f);
  l.memory = floats((size_t)(row_count(&l.problem, false) * s->width_memory), 2, 1.7f);
  l.y_floats = (size_t)(row_count(&l.problem, true) * s->width_out);
  l.lse_floats = (size_t)(s->batch * s->heads_q * s->seq_q);
  l.p_floats = pairs;
  l.y = floats(l.y_floats, 3, 1);
  l.lse = floats(l.lse_floats, 4, 1);
  l.p = floats(pairs, 5, 1);
  l.mask_bias = floats(pairs, 6, 2);
  l.slopes = floats((size_t)s->heads_q, 7, 0.5f);
  l.sinks = floats((size_t)s->heads_q, 8, 1);
  l.mask = test_allocate(pairs + 1);
  for (size_t i = 0; i < pairs; i++) l.mask[i] = (i * 2654435761u >> 7) % 3 != 0;
  make_lengths(&l);
  make_weights(&l);
  return l;
}

/* Arguments that point to the arrays of the layer. */
static attn_mha_args args_of(layer *l) {
  const attn_args all = ATTN_STRUCT(attn_args, .lse = l->lse, .bias = l->mask_bias, .mask = l->mask, .kv_len = l->kv_len,
                                    .q_len = l->q_len, .row_len = l->row_len, .cu_seqlens_q = l->cu, .cu_seqlens_k = l->cu,
                                    .alibi_slopes = l->slopes, .sinks = l->sinks);
  l->attention = bench_used_args(&l->problem.attention, &all);
  return ATTN_STRUCT(attn_mha_args, .x = l->x, .memory = l->shape->cross ? l->memory : NULL, .y = l->y,
                     .attention = &l->attention);
}

static void free_layer(layer *l) {
  void *const arrays[] = {l->x,     l->memory, l->y,        l->lse,  l->p,     l->mask_bias,   l->slopes,
                          l->sinks, l->mask,   l->matrices, l->bias, l->gains, l->head_columns};
  for (size_t i = 0; i < COUNT(arrays); i++) free(arrays[i]);
}

/* Makes a layer of these and runs it with a workspace full of NaN. */
static attn_status run_made(const attn_mha_problem *problem, const attn_mha_weights *weights, const attn_mha_args *args,
                            const attn_mha_options *options, float *p) {
  attn_mha *mha;
  attn_status status = attn_mha_create(problem, weights, options, &mha);
  if (status != ATTN_OK) return status;
  const size_t bytes = attn_mha_workspace(mha);
  assert_true(bytes % 64 == 0);
  void *workspace = bytes ? aligned_alloc(64, bytes) : NULL;
  if (bytes) memset(workspace, 0xff, bytes);
  status = attn_mha_run(mha, args, workspace, bytes);
  if (bytes) memset(workspace, 0xff, bytes);
  if (status == ATTN_OK && p) status = attn_mha_attention_weights(mha, args, p, workspace, bytes);
  free(workspace);
  attn_mha_destroy(mha);
  return status;
}

/* ---- Against the oracle ---- */

/* Error over limit. NaN gives infinity, so it fails. */
static double ratio_of(const attn_nn_field *expected, int64_t at, float got) {
  if (expected->value[at] == (double)got) return 0;
  const double ratio = fabs((double)got - expected->value[at]) / attn_nn_limit(expected->error[at]);
  return ratio < INFINITY ? ratio : INFINITY;
}

typedef struct worst_ratios {
  double y, lse, p;
} worst_ratios;

static int64_t rows_of_batch(const layer *l, int64_t b) {
  if (l->shape->uses & ATTN_USE_VARLEN) return l->cu[b + 1] - l->cu[b];
  return l->shape->seq_q;
}

/* The rows of x or of the memory, one sequence behind the other. */
static attn_nn_field field_of(const float *from, attn_strides stride, int64_t rows, int64_t seq, int64_t width) {
  attn_nn_field field = attn_nn_field_create(rows, width);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < width; c++)
      field.value[r * width + c] = (double)from[r / seq * stride.b + r % seq * stride.s + c * stride.d];
  return field;
}

/* y, lse and p in float64, for an attention kernel with these numerics. */
typedef struct expected_layer {
  attn_nn_field y, lse, p;
} expected_layer;

static expected_layer expect(layer *l, const attn_numerics *numerics) {
  const attn_mha_problem *m = &l->problem;
  const attn_mha_args args = args_of(l);
  const bool varlen = l->shape->uses & ATTN_USE_VARLEN;
  const int64_t rows = row_count(m, true), keys = row_count(m, false);
  attn_nn_field x = field_of(l->x, m->x_stride, rows, varlen ? rows : l->shape->seq_q, m->width);
  attn_nn_field memory = {0};
  if (args.memory) memory = field_of(l->memory, m->memory_stride, keys, l->shape->seq_k, m->width_memory);
  expected_layer e;
  const attn_nn_mha mha = {.problem = m,
                           .weights = &l->weights,
                           .attention = {.args = args.attention, .numerics = *numerics, .p = &e.p, .lse = &e.lse}};
  e.y = attn_nn_oracle_mha(&mha, &x, args.memory ? &memory : NULL);
  attn_nn_field_destroy(&x);
  attn_nn_field_destroy(&memory);
  return e;
}

/* The largest error over limit in the layer's y, lse and p, for an attention kernel with these numerics. */
static worst_ratios worst_ratios_of(layer *l, const attn_numerics *numerics) {
  const shape *s = l->shape;
  const attn_mha_problem *p = &l->problem;
  const attn_strides *y = &p->y_stride, *lse = &p->attention.lse_stride;
  const bool varlen = s->uses & ATTN_USE_VARLEN;
  expected_layer e = expect(l, numerics);
  worst_ratios worst = {0, 0, 0};
  for (int64_t b = 0; b < s->batch; b++)
    for (int64_t i = 0; i < rows_of_batch(l, b); i++) {
      const int64_t row = varlen ? l->cu[b] + i : b * s->seq_q + i, at = varlen ? row * y->s : b * y->b + i * y->s;
      for (int64_t c = 0; c < s->width_out; c++)
        worst.y = fmax(worst.y, ratio_of(&e.y, row * s->width_out + c, l->y[at + c * y->d]));
      for (int64_t h = 0; h < s->heads_q; h++) {
        const int64_t head = row * s->heads_q + h;
        const float got = l->lse[h * lse->h + (varlen ? row : b * lse->b + i * lse->s)];
        if (s->uses & ATTN_USE_LSE) worst.lse = fmax(worst.lse, ratio_of(&e.lse, head, got));
        for (int64_t j = 0; j < s->seq_k && p->want_weights; j++)
          worst.p =
              fmax(worst.p, ratio_of(&e.p, head * s->seq_k + j, l->p[((b * s->heads_q + h) * s->seq_q + i) * s->seq_k + j]));
      }
    }
  attn_nn_field_destroy(&e.y);
  attn_nn_field_destroy(&e.lse);
  attn_nn_field_destroy(&e.p);
  return worst;
}

static const attn_numerics *numerics_of(const char *kernel) { return &attn_kernel_find(kernel)->numerics; }

static const char *automatic_kernel(const layer *l) {
  attn_mha *mha;
  test_ok(attn_mha_create(&l->problem, &l->weights, NULL, &mha));
  const char *name = attn_mha_kernel(mha);
  attn_mha_destroy(mha);
  return name;
}

/* Packed tokens behind the last sequence see no keys, so their rows are the bias of the output. */
static void expect_bias_in_unowned_rows(const layer *l) {
  const int64_t rows = l->shape->uses & ATTN_USE_VARLEN ? l->problem.attention.total_q : 0;
  for (int64_t row = l->cu[l->shape->batch]; row < rows; row++)
    for (int64_t c = 0; c < l->shape->width_out; c++) {
      const float got = l->y[row * l->problem.y_stride.s + c * l->problem.y_stride.d];
      assert_true(got == (l->weights.b_o ? l->weights.b_o[c] : 0));
    }
}

static void expect_right(layer *l, const attn_mha_options *options, const char *kernel) {
  const attn_mha_args args = args_of(l);
  test_ok(run_made(&l->problem, &l->weights, &args, options, l->problem.want_weights ? l->p : NULL));
  expect_bias_in_unowned_rows(l);
  const worst_ratios worst = worst_ratios_of(l, numerics_of(kernel));
  if (!(worst.y <= 1 && worst.lse <= 1 && worst.p <= 1))
    fail_msg("%s with %s: error over limit is %g (y), %g (lse), %g (weights)", l->shape->name, kernel, worst.y, worst.lse,
             worst.p);
}

/* How many shapes a layer with this kernel takes; what they give is right. */
static int check_shapes(const char *kernel) {
  int taken = 0;
  const attn_mha_options options =
      ATTN_STRUCT(attn_mha_options, .attention = &ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1));
  for (int i = 0; i < SHAPES; i++) {
    layer l = make_layer(&shapes[i]);
    attn_mha *mha;
    const attn_status status = attn_mha_create(&l.problem, &l.weights, &options, &mha);
    if (status == ATTN_OK) {
      assert_string_equal(attn_mha_kernel(mha), kernel);
      expect_right(&l, &options, kernel);
    } else {
      assert_int_equal(status, ATTN_UNSUPPORTED);
      test_contains(attn_last_error(), kernel);
    }
    taken += status == ATTN_OK;
    attn_mha_destroy(mha);
    free_layer(&l);
  }
  return taken;
}

static void check_kernel(const char *kernel) { (void)check_shapes(kernel); }

TEST(test_every_kernel_inside) { test_each_kernel(check_kernel); }

/* ---- Heads and rows of 16 bits ---- */

enum { HEADS_Q = 4, HEADS_KV = 2, TOKENS = 37, DIM = 16, DIM_V = 8, BATCH = 2 };

/* The type that a head has is that of its projection's output; its norm rounds once more. */
static char *rounded_heads(const float *heads, int64_t count, attn_dtype dtype, const float *gain) {
  char *rounded = test_allocate((size_t)attn_elements_bytes(dtype, count));
  float normed[DIM];
  for (int64_t i = 0; i < count; i++) attn_store_f32(rounded, dtype, i, heads[i]);
  for (int64_t row = 0; gain && row < count / DIM; row++) {
    for (int64_t d = 0; d < DIM; d++) normed[d] = attn_load_f32((attn_storage){rounded, dtype}, row * DIM + d);
    test_ok(attn_add_rms_norm(1, DIM, normed, NULL, &(attn_norm){.gain = gain, .epsilon = 1e-3f}, NULL, normed));
    for (int64_t d = 0; d < DIM; d++) attn_store_f32(rounded, dtype, row * DIM + d, normed[d]);
  }
  return rounded;
}

/* Token by token, as attn_mha_project_rows() writes heads. */
static attn_strides by_tokens(int64_t heads, int64_t dim) {
  return (attn_strides){.b = TOKENS * heads * dim, .h = dim, .s = heads * dim, .d = 1};
}

/* The answer of a layer, from the projections of one that keeps float32 and has no norms. */
static void compute_by_parts(const layer *l, const char *kernel, float *y, float *p) {
  const attn_problem *inside = &l->problem.attention;
  attn_mha_problem floats_only = l->problem;
  attn_mha_weights plain = l->weights;
  attn_mha *mha;
  floats_only.attention.dtype_q = floats_only.attention.dtype_kv = floats_only.attention.dtype_o = ATTN_F32;
  floats_only.dtype_x = floats_only.dtype_y = ATTN_F32;
  plain.qk_norm = false, plain.q_norm_gain = plain.k_norm_gain = NULL;
  test_ok(attn_mha_create(&floats_only, &plain, NULL, &mha));
  static float q[BATCH * TOKENS * HEADS_Q * DIM], k[BATCH * TOKENS * HEADS_KV * DIM], v[BATCH * TOKENS * HEADS_KV * DIM_V];
  static float o[BATCH * TOKENS * HEADS_Q * DIM_V], given[BATCH * TOKENS * HEADS_Q * DIM_V];
  const size_t bytes = attn_mha_rows_workspace(mha, BATCH * TOKENS);
  void *workspace = test_allocate(bytes);
  test_ok(attn_mha_project_rows(mha, BATCH * TOKENS, l->x, q, k, v, workspace, bytes));
  const float *gain = l->weights.q_norm_gain;
  char *heads[] = {rounded_heads(q, COUNT(q), inside->dtype_q, gain),
                   rounded_heads(k, COUNT(k), inside->dtype_kv, gain ? l->weights.k_norm_gain : NULL),
                   rounded_heads(v, COUNT(v), inside->dtype_kv, NULL)};
  attn_problem problem = *inside;
  problem.q_stride = by_tokens(HEADS_Q, DIM);
  problem.k_stride = by_tokens(HEADS_KV, DIM);
  problem.v_stride = by_tokens(HEADS_KV, DIM_V);
  problem.o_stride = by_tokens(HEADS_Q, DIM_V);
  const attn_args args = ATTN_STRUCT(attn_args, .q = heads[0], .k = heads[1], .v = heads[2], .o = given);
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel);
  attn_plan *plan;
  test_ok(attn_plan_create(&problem, &options, &plan));
  void *memory = test_allocate(attn_plan_workspace(plan) + 64);
  test_ok(attn_plan_run(plan, &args, memory, attn_plan_workspace(plan)));
  test_widen(given, COUNT(o), inside->dtype_o, o);
  test_ok(attn_mha_project_output(mha, BATCH * TOKENS, o, y, workspace, bytes));
  test_round(y, l->y_floats, l->problem.dtype_y);
  test_ok(attn_weights(&problem, &args, &options, p));
  for (int i = 0; i < 3; i++) free(heads[i]);
  free(memory);
  free(workspace);
  attn_plan_destroy(plan);
  attn_mha_destroy(mha);
}

/* In every kernel that takes these types. */
static void check_16_bits(const char *kernel) {
  static const struct {
    attn_dtype q, kv, o, x, y;
  } types[] = {{ATTN_BF16, ATTN_BF16, ATTN_F32, ATTN_F32, ATTN_F32},    {ATTN_F16, ATTN_F16, ATTN_F32, ATTN_F32, ATTN_F32},
               {ATTN_F32, ATTN_BF16, ATTN_F32, ATTN_F32, ATTN_F32},     {ATTN_F32, ATTN_F16, ATTN_F32, ATTN_F32, ATTN_F32},
               {ATTN_BF16, ATTN_BF16, ATTN_BF16, ATTN_BF16, ATTN_BF16}, {ATTN_F16, ATTN_F16, ATTN_F16, ATTN_F16, ATTN_F16},
               {ATTN_BF16, ATTN_BF16, ATTN_F32, ATTN_BF16, ATTN_F32},   {ATTN_F32, ATTN_F32, ATTN_F32, ATTN_F16, ATTN_BF16}};
  const attn_mha_options options = ATTN_STRUCT(attn_mha_options, .attention = &ATTN_STRUCT(attn_options, .kernel = kernel));
  for (size_t i = 0; i < 2 * COUNT(types); i++) {
    const shape s = {"16 bits", BATCH, HEADS_Q, HEADS_KV,     TOKENS,         TOKENS,           DIM,           DIM_V,
                     32,        32,    32,      .bias = true, .causal = true, .qk_norm = i % 2, .gains = i % 2};
    layer l = make_layer(&s);
    attn_problem *a = &l.problem.attention;
    a->dtype_q = types[i / 2].q, a->dtype_kv = types[i / 2].kv, a->dtype_o = types[i / 2].o;
    l.problem.dtype_x = types[i / 2].x, l.problem.dtype_y = types[i / 2].y;
    test_round(l.x, BATCH * TOKENS * 32, l.problem.dtype_x);
    void *x = test_narrow(l.x, BATCH * TOKENS * 32, l.problem.dtype_x), *given = test_allocate(l.y_floats * sizeof(float));
    attn_mha_args args = args_of(&l);
    args.x = x, args.y = given;
    const attn_status status = run_made(&l.problem, &l.weights, &args, &options, l.p);
    if (status == ATTN_OK) {
      float *y = test_allocate(l.y_floats * sizeof *y), *p = test_allocate(l.p_floats * sizeof *p);
      compute_by_parts(&l, kernel, y, p);
      test_widen(given, l.y_floats, l.problem.dtype_y, l.y);
      assert_memory_equal(l.y, y, l.y_floats * sizeof *y);
      assert_memory_equal(l.p, p, l.p_floats * sizeof *p);
      free(y);
      free(p);
    } else {
      assert_int_equal(status, ATTN_UNSUPPORTED);
      test_contains(attn_last_error(), kernel);
    }
    free(x);
    free(given);
    free_layer(&l);
  }
}

TEST(test_heads_of_16_bits) { test_each_kernel(check_16_bits); }

/* ---- Kernels that refuse ---- */

/* The strides of the identity, whose products are the weights. */
static const char *refuse_backwards(const attn_problem *problem, char *buffer, size_t bytes) {
  (void)buffer, (void)bytes;
  return problem->v_stride.s < 0 ? "rows of V go backwards" : NULL;
}

/* Another kernel gives the weights then. */
TEST(test_kernels_may_refuse_to_give_weights) {
  static attn_kernel picky;
  static const attn_kernel *const kernels[] = {&picky};
  static const attn_plugin added = {.kernels = kernels, .kernel_count = 1};
  picky = *attn_registry_find("naive_c");
  picky.info.name = "picky";
  picky.rejects = refuse_backwards;
  assert_true(attn_registry_add(&added, "this program"));
  assert_int_equal(check_shapes("picky"), check_shapes("naive_c"));
}

/* ---- Layers that are wrong on purpose ---- */

typedef struct wrong_layer {
  attn_mha_problem problem;
  attn_mha_weights weights;
  attn_mha_args args;
  const shape *shape;
  char *matrix; /* the changed copy of one matrix; NULL if none is changed */
} wrong_layer;

static char *copy_of(const void *matrix, int64_t elements) {
  return memcpy(test_allocate((size_t)elements * sizeof(float)), matrix, (size_t)elements * sizeof(float));
}

/* w_o [heads * dim_v][width_out] with the heads in reverse order. */
static void reverse_heads(wrong_layer *w) {
  const shape *s = w->shape;
  const int64_t head = s->dim_v * s->width_out;
  w->matrix = copy_of(w->weights.w_o, s->heads_q * head);
  for (int64_t h = 0; h < s->heads_q; h++)
    memcpy(w->matrix + (size_t)(h * head) * sizeof(float), (const float *)w->weights.w_o + (s->heads_q - 1 - h) * head,
           (size_t)head * sizeof(float));
  w->weights.w_o = w->matrix;
}

/* The heads are concatenated element by element: element d of all heads stands side by side. */
static void interleave_heads(wrong_layer *w) {
  const shape *s = w->shape;
  w->matrix = copy_of(w->weights.w_o, s->heads_q * s->dim_v * s->width_out);
  for (int64_t h = 0; h < s->heads_q; h++)
    for (int64_t d = 0; d < s->dim_v; d++)
      memcpy(w->matrix + (size_t)((h * s->dim_v + d) * s->width_out) * sizeof(float),
             (const float *)w->weights.w_o + (d * s->heads_q + h) * s->width_out, (size_t)s->width_out * sizeof(float));
  w->weights.w_o = w->matrix;
}

static void change_one_weight(wrong_layer *w) {
  const shape *s = w->shape;
  w->matrix = copy_of(w->weights.w_v, s->width_memory * s->heads_kv * s->dim_v);
  ((float *)(void *)w->matrix)[5] += 0x1p-12f;
  w->weights.w_v = w->matrix;
}

static void leave_out_query_bias(wrong_layer *w) { w->weights.b_q = NULL; }
static void leave_out_value_bias(wrong_layer *w) { w->weights.b_v = NULL; }
static void leave_out_last_bias(wrong_layer *w) { w->weights.b_o = NULL; }
static void scale_by_width(wrong_layer *w) { w->problem.attention.scale = 1 / sqrtf((float)w->shape->width); }
static void forget_the_scale(wrong_layer *w) { w->problem.attention.scale = 1; }
static void see_one_key_too_many(wrong_layer *w) { w->problem.attention.window_right = 1; }
static void forget_the_mask(wrong_layer *w) { w->problem.attention.window_right = -1; }
static void transpose_weights(wrong_layer *w) { w->weights.layout = ATTN_OUT_IN; }
static void miss_the_first_key(wrong_layer *w) { w->problem.attention.window_left = w->shape->seq_q - 2; }

static void forget_the_norms(wrong_layer *w) {
  w->weights.qk_norm = false;
  w->weights.q_norm_gain = w->weights.k_norm_gain = NULL;
}
static void forget_a_gain(wrong_layer *w) { w->weights.k_norm_gain = NULL; }
static void forget_epsilon(wrong_layer *w) { w->weights.qk_norm_epsilon = 0; }

static void exchange_keys_and_values(wrong_layer *w) {
  const void *k = w->weights.w_k;
  w->weights.w_k = w->weights.w_v;
  w->weights.w_v = k;
}

/* The shape of all wrong layers. */
static const shape mutated = {
    "mutated", 1, 4, 4, 96, 96, 16, 16, 64, 64, 64, .bias = true, .causal = true, .qk_norm = true, .gains = true};

TEST(test_wrong_layers_are_told_from_right_ones) {
  static const struct {
    const char *name;
    void (*spoil)(wrong_layer *);
  } mutants[] = {
      {"heads in reverse order", reverse_heads},
      {"heads interleaved", interleave_heads},
      {"one weight off by 2^-12", change_one_weight},
      {"no bias of Q", leave_out_query_bias},
      {"no bias of V", leave_out_value_bias},
      {"no last bias", leave_out_last_bias},
      {"scale 1/sqrt(width)", scale_by_width},
      {"no scale", forget_the_scale},
      {"one key too many", see_one_key_too_many},
      {"no causal mask", forget_the_mask},
      {"weights transposed", transpose_weights},
      {"K and V exchanged", exchange_keys_and_values},
      {"heads not normed", forget_the_norms},
      {"no gain of K", forget_a_gain},
      {"no epsilon", forget_epsilon},
      {"one key dropped, last row", miss_the_first_key},
  };
  layer l = make_layer(&mutated);
  l.problem.want_weights = false;
  expect_right(&l, NULL, automatic_kernel(&l));
  for (size_t i = 0; i < COUNT(mutants); i++) {
    wrong_layer w = {.problem = l.problem, .weights = l.weights, .args = args_of(&l), .shape = &mutated};
    mutants[i].spoil(&w);
    test_ok(run_made(&w.problem, &w.weights, &w.args, NULL, NULL));
    const worst_ratios worst = worst_ratios_of(&l, numerics_of(automatic_kernel(&l)));
    if (!(worst.y > 1)) fail_msg("'%s' passes: error over limit is %g", mutants[i].name, worst.y);
    free(w.matrix);
  }
  free_layer(&l);
}

/* ---- Bits ---- */

/* Runs the layer with one thread; a copy of its y. */
static float *answer_of(layer *l) {
  const attn_mha_args args = args_of(l);
  test_ok(run_made(&l->problem, &l->weights, &args,
                   &ATTN_STRUCT(attn_mha_options, .attention = &ATTN_STRUCT(attn_options, .threads = 1)), NULL));
  return memcpy(test_allocate(l->y_floats * sizeof(float)), l->y, l->y_floats * sizeof(float));
}

/* Fails unless the layer with these weights and options gives exactly this y. */
static void expect_bits(layer *l, const attn_mha_weights *weights, const attn_mha_options *options, const float *expected) {
  const attn_mha_args args = args_of(l);
  memset(l->y, 0xff, l->y_floats * sizeof *l->y);
  test_ok(run_made(&l->problem, weights, &args, options, NULL));
  assert_memory_equal(l->y, expected, l->y_floats * sizeof *l->y);
}

static const shape for_bits = {
    "bits",       3, 4, 2, 70, 90, 16, 16, 64, 48, 40, .cross = true, .bias = true, .uses = ATTN_USE_KV_LEN, .qk_norm = true,
    .gains = true};

/* One thread, several threads and a pool give the same bits. */
TEST(test_bits_do_not_depend_on_threads) {
  layer l = make_layer(&for_bits);
  float *expected = answer_of(&l);
  test_pool pool = {.backwards = true};
  const attn_options many[] = {ATTN_STRUCT(attn_options, .threads = 2), ATTN_STRUCT(attn_options, .threads = 5),
                               ATTN_STRUCT(attn_options, .threads = 3, .parallel_for = test_parallel_for, .pool = &pool)};
  for (int i = 0; i < 3; i++) expect_bits(&l, &l.weights, &ATTN_STRUCT(attn_mha_options, .attention = &many[i]), expected);
  assert_true(pool.tasks > 0);
  free(expected);
  free_layer(&l);
}

/* Each batch entry alone gives the bits that it gives in the batch. */
TEST(test_bits_do_not_depend_on_the_batch) {
  layer l = make_layer(&for_bits);
  float *expected = answer_of(&l);
  attn_mha_problem alone = l.problem;
  alone.attention.batch = 1;
  for (int64_t b = 0; b < for_bits.batch; b++) {
    attn_mha_args one = args_of(&l);
    one.x = (const float *)one.x + b * l.problem.x_stride.b;
    one.memory = (const float *)one.memory + b * l.problem.memory_stride.b;
    one.y = (float *)one.y + b * l.problem.y_stride.b;
    l.attention.kv_len += b;
    memset(l.y, 0xff, l.y_floats * sizeof *l.y);
    test_ok(run_made(&alone, &l.weights, &one, NULL, NULL));
    assert_memory_equal(one.y, expected + b * l.problem.y_stride.b, (size_t)l.problem.y_stride.b * sizeof(float));
  }
  free(expected);
  free_layer(&l);
}

/* NaN in padded rows changes no bit. */
TEST(test_padding_does_not_matter) {
  layer l = make_layer(&for_bits);
  float *expected = answer_of(&l);
  for (int64_t b = 0; b < for_bits.batch; b++)
    for (int64_t j = l.kv_len[b]; j < for_bits.seq_k; j++)
      for (int64_t c = 0; c < for_bits.width_memory; c++)
        l.memory[b * l.problem.memory_stride.b + j * l.problem.memory_stride.s + c] = NAN;
  expect_bits(&l, &l.weights, NULL, expected);
  free(expected);
  free_layer(&l);
}

/* Packed [in][out] weights give the same bits as separate [out][in] ones. */
TEST(test_weight_layouts_agree) {
  layer l = make_layer(&shapes[2]); /* packed [in][out] */
  float *expected = answer_of(&l);
  const int64_t width = 32, columns = 32, all = 3 * columns;
  float *parts = test_allocate((size_t)(width * all + columns * width) * sizeof *parts), *out = parts + width * all;
  const float *packed = l.weights.w_qkv, *w_o = l.weights.w_o;
  for (int64_t k = 0; k < width; k++)
    for (int64_t c = 0; c < all; c++) parts[c * width + k] = packed[k * all + c]; /* [q | k | v][in] */
  for (int64_t k = 0; k < columns; k++)
    for (int64_t c = 0; c < width; c++) out[c * columns + k] = w_o[k * width + c];
  const attn_mha_weights separate =
      ATTN_STRUCT(attn_mha_weights, .layout = ATTN_OUT_IN, .w_q = parts, .w_k = parts + columns * width,
                  .w_v = parts + 2 * columns * width, .w_o = out);
  expect_bits(&l, &separate, NULL, expected);
  free(parts);
  free(expected);
  free_layer(&l);
}

/* All four projections round their rows, if asked. */
TEST(test_rows_rounded_to_bf16) {
  enum { ROWS = 6, WIDTH = 32 };
  uint16_t matrix[WIDTH * WIDTH];
  float x[ROWS * WIDTH], rounded[ROWS * WIDTH], y[4][ROWS * WIDTH];
  test_fill(x, COUNT(x), 3);
  for (size_t i = 0; i < COUNT(x); i++) rounded[i] = attn_f32_of_bf16(attn_bf16_of_f32(x[i]));
  for (int i = 0; i < WIDTH * WIDTH; i++) matrix[i] = attn_bf16_of_f32(x[i % (ROWS * WIDTH - 5)]);
  attn_mha_problem problem;
  attn_mha_problem_init(&problem, 1, 4, ROWS, ROWS, WIDTH);
  attn_mha_weights weights =
      ATTN_STRUCT(attn_mha_weights, .dtype = ATTN_BF16, .w_q = matrix, .w_k = matrix, .w_v = matrix, .w_o = matrix);
  for (int rounds = 0; rounds < 2; rounds++) {
    attn_mha *mha;
    weights.bf16_rows = rounds;
    test_ok(attn_mha_create(&problem, &weights, NULL, &mha));
    const size_t bytes = attn_mha_rows_workspace(mha, ROWS);
    void *workspace = test_allocate(bytes);
    for (int repeat = 0; repeat < 2; repeat++) { /* then of rows that are rounded already */
      float before[4][ROWS * WIDTH];
      memcpy(before, y, sizeof before);
      const float *rows = repeat ? rounded : x;
      test_ok(attn_mha_project_rows(mha, ROWS, rows, y[0], y[1], y[2], workspace, bytes));
      test_ok(attn_mha_project_output(mha, ROWS, rows, y[3], workspace, bytes));
      for (int i = 0; repeat && i < 4; i++) assert_int_equal(memcmp(before[i], y[i], sizeof before[i]) == 0, rounds);
    }
    free(workspace);
    attn_mha_destroy(mha);
  }
}

/* All four projections are the products of rounded rows, if asked. */
TEST(test_rows_rounded_to_int8) {
  enum { ROWS = 6, WIDTH = 32 };
  float x[ROWS * WIDTH], matrix[WIDTH * WIDTH], expected[ROWS * WIDTH], y[4][ROWS * WIDTH];
  test_fill(x, COUNT(x), 3);
  test_fill(matrix, COUNT(matrix), 4);
  attn_product *product;
  test_ok(
      attn_product_create(&ATTN_STRUCT(attn_product_weights, .depth = WIDTH, .columns = WIDTH, .weight = matrix,
                                       .stride_depth = WIDTH, .stride_column = 1, .int8_weights = true, .int8_rows = true),
                          NULL, &product));
  const size_t product_bytes = attn_product_workspace(product, ROWS);
  void *product_workspace = test_allocate(product_bytes);
  test_ok(attn_product_run(product,
                           &ATTN_STRUCT(attn_product_args, .batch = 1, .rows = ROWS, .x = x,
                                        .x_stride = {.s = WIDTH, .d = 1}, .y = expected, .y_stride = {.s = WIDTH, .d = 1}),
                           product_workspace, product_bytes));
  free(product_workspace);
  attn_product_destroy(product);
  attn_mha_problem problem;
  attn_mha_problem_init(&problem, 1, 1, ROWS, ROWS, WIDTH); /* a single head: rows of heads are rows of the product */
  attn_mha_weights weights =
      ATTN_STRUCT(attn_mha_weights, .w_q = matrix, .w_k = matrix, .w_v = matrix, .w_o = matrix, .int8_weights = true);
  for (int rounds = 0; rounds < 2; rounds++) {
    attn_mha *mha;
    weights.int8_rows = rounds;
    test_ok(attn_mha_create(&problem, &weights, NULL, &mha));
    const size_t bytes = attn_mha_rows_workspace(mha, ROWS);
    void *workspace = test_allocate(bytes);
    test_ok(attn_mha_project_rows(mha, ROWS, x, y[0], y[1], y[2], workspace, bytes));
    test_ok(attn_mha_project_output(mha, ROWS, x, y[3], workspace, bytes));
    for (int i = 0; i < 4; i++) assert_int_equal(memcmp(expected, y[i], sizeof expected) == 0, rounds);
    free(workspace);
    attn_mha_destroy(mha);
  }
}

/* Several threads run one layer, each with its own workspace and output. */
typedef struct concurrent {
  const attn_mha *mha;
  const attn_mha_args *args;
  float *y[8];
  attn_status status[8];
} concurrent;

static void run_one(void *pointer, int64_t task, int worker) {
  (void)worker;
  concurrent *c = pointer;
  attn_mha_args args = *c->args;
  args.y = c->y[task];
  const size_t bytes = attn_mha_workspace(c->mha);
  void *workspace = aligned_alloc(64, bytes);
  c->status[task] = attn_mha_run(c->mha, &args, workspace, bytes);
  free(workspace);
}

TEST(test_one_layer_runs_many_times_at_once) {
  layer l = make_layer(&for_bits);
  float *expected = answer_of(&l);
  const attn_mha_args args = args_of(&l);
  const attn_mha_options options = ATTN_STRUCT(attn_mha_options, .attention = &ATTN_STRUCT(attn_options, .threads = 1));
  attn_mha *mha;
  test_ok(attn_mha_create(&l.problem, &l.weights, &options, &mha));
  concurrent c = {.mha = mha, .args = &args};
  for (int i = 0; i < 8; i++) c.y[i] = test_allocate(l.y_floats * sizeof(float));
  test_pool pool = {0};
  test_parallel_for(&pool, 8, 4, run_one, &c);
  for (int i = 0; i < 8; i++) {
    test_ok(c.status[i]);
    assert_memory_equal(c.y[i], expected, l.y_floats * sizeof *l.y);
    free(c.y[i]);
  }
  free(expected);
  attn_mha_destroy(mha);
  free_layer(&l);
}

/* ---- The rest of the interface ---- */

TEST(test_profile_and_description) {
  layer l = make_layer(&for_bits);
  attn_mha *mha;
  test_ok(attn_mha_create(&l.problem, &l.weights, &ATTN_STRUCT(attn_mha_options, .product = "product_c"), &mha));
  assert_string_equal(attn_mha_product(mha), "product_c");
  test_contains(attn_mha_describe(mha), "product_c");
  test_contains(attn_mha_describe(mha), attn_mha_kernel(mha));
  attn_mha_profile profile = {0};
  attn_mha_args args = args_of(&l);
  args.profile = &profile;
  void *workspace = test_allocate(attn_mha_workspace(mha));
  for (int i = 0; i < 3; i++) test_ok(attn_mha_run(mha, &args, workspace, attn_mha_workspace(mha)));
  assert_int_equal(profile.runs, 3);
  test_times(profile.total_ns, profile.projections_ns, profile.attention_ns);
  free(workspace);
  attn_mha_destroy(mha);
  free_layer(&l);
}

static size_t workspace_of(const layer *l, bool want_weights) {
  attn_mha_problem problem = l->problem;
  attn_mha *mha;
  problem.want_weights = want_weights;
  test_ok(attn_mha_create(
      &problem, &l->weights,
      &ATTN_STRUCT(attn_mha_options, .attention = &ATTN_STRUCT(attn_options, .kernel = "flash_c", .threads = 1)), &mha));
  const size_t bytes = attn_mha_workspace(mha);
  attn_mha_destroy(mha);
  return bytes;
}

/* An identity matrix costs a row, and the plan for it a few columns. */
TEST(test_weights_cost_little_memory) {
  layer l = make_layer(&shapes[6]);
  assert_true(workspace_of(&l, true) < 3 * workspace_of(&l, false));
  free_layer(&l);
}

static void expect_refusal(const attn_mha_problem *problem, const attn_mha_weights *weights, const attn_mha_options *options,
                           const char *part) {
  attn_mha *mha = (attn_mha *)1;
  const attn_status status = attn_mha_create(problem, weights, options, &mha);
  assert_true(status != ATTN_OK);
  assert_null(mha);
  test_contains(attn_last_error(), part);
}

TEST(test_refuses_bad_problems) {
  layer l = make_layer(&shapes[0]);
#define REFUSES(change, part)                       \
  do {                                              \
    attn_mha_problem problem = l.problem;           \
    attn_mha_weights weights = l.weights;           \
    (void)weights;                                  \
    change;                                         \
    expect_refusal(&problem, &weights, NULL, part); \
  } while (0)
  REFUSES(problem.struct_size = 8, "attn_mha_problem.struct_size is 8");
  REFUSES(problem.width = 0, "attn_mha_problem.width is 0");
  REFUSES((attn_mha_problem_init(&problem, 1, 3, 5, 5, 64)), "attn_mha_problem.width is 64 with 3 heads");
  REFUSES(problem.attention.dim_qk = 0, "attn_problem.dim_qk is 0");
  REFUSES(problem.width_memory = -3, "attn_mha_problem.width_memory is -3");
  REFUSES(problem.width_out = (int64_t)1 << 40, "attn_mha_problem.width_out is 1099511627776");
  REFUSES(problem.attention.batch = -1, "attn_problem.batch is -1");
  REFUSES(problem.attention.heads_kv = 3, "attn_problem.heads_q is 4 with heads_kv 3");
  REFUSES(problem.attention.dtype_o = ATTN_I8, "(q, kv, o)");
  REFUSES(problem.dtype_x = ATTN_I8, "attn_mha_problem.dtype_x is");
  REFUSES(problem.dtype_y = (attn_dtype)-1, "attn_mha_problem.dtype_y is -1");
  REFUSES(problem.attention.dtype_q = ATTN_F16, "attn_problem.dtype_q is 1 with dtype_kv 0");
  REFUSES(problem.attention.dtype_o = ATTN_F16, "attn_problem.dtype_o is 1 with dtype_q 0");
  REFUSES(problem.attention.dtype_kv = ATTN_I8, "inside a layer each must be ATTN_F32");
  REFUSES(problem.attention.score = ATTN_SCORE_GAUSSIAN, "attn_mha_problem.attention.score is 2");
  REFUSES(problem.attention.uses |= ATTN_USE_PAGES, "uses has ATTN_USE_PAGES");
  REFUSES(problem.attention.uses |= ATTN_USE_KV_SCALES, "uses has ATTN_USE_KV_SCALES");
  REFUSES(problem.attention.uses |= ATTN_USE_STATE, "uses has ATTN_USE_STATE");
  REFUSES(problem.attention.uses = ATTN_USE_KEY_BLOCKS, "uses is 0x2000, with ATTN_USE_KEY_BLOCKS");
  REFUSES(problem.attention.uses = ATTN_USE_FULL_KEY_BLOCKS, "uses is 0x4000, with ATTN_USE_KEY_BLOCKS");
  REFUSES(problem.x_stride.s = INT64_MAX, "attn_mha_problem.x_stride");
  REFUSES(problem.memory_stride.b = INT64_MIN, "attn_mha_problem.memory_stride");
  REFUSES(problem.memory_stride.d = INT64_MAX / 2, "attn_mha_problem.memory_stride");
  REFUSES(problem.y_stride.s = 31, "attn_mha_problem.y_stride.s is 31; elements would overlap");
  REFUSES(problem.weights_stride.k = 0, "attn_mha_problem.weights_stride.k is 0");
  REFUSES(problem.attention.heads_q = problem.attention.heads_kv = (int64_t)1 << 30, "2^31 wide");
  REFUSES((attn_problem_set_varlen(&problem.attention, 10, 10)), "attn_mha_problem.want_weights");
  REFUSES(weights.layout = (attn_weight_layout)3, "attn_mha_weights.layout is 3");
  REFUSES(weights.dtype = (attn_dtype)7, "attn_mha_weights.dtype is 7");
  REFUSES(weights.w_v = NULL, "attn_mha_weights.w_v is NULL; it must point to 32 x 32 weights");
  REFUSES(weights.w_o = NULL, "attn_mha_weights.w_o is NULL");
  REFUSES((weights.w_qkv = l.matrices, weights.w_k = weights.w_v = NULL), "attn_mha_weights.w_qkv is given beside");
  REFUSES((weights.w_qkv = l.matrices, weights.w_q = weights.w_v = NULL), "attn_mha_weights.w_qkv is given beside");
  REFUSES((weights.w_qkv = l.matrices, weights.w_q = weights.w_k = NULL), "attn_mha_weights.w_qkv is given beside");
  REFUSES(weights.b_qkv = l.bias, "attn_mha_weights.b_qkv is given without w_qkv");
  REFUSES(weights.head_columns = (const int64_t[12]){0}, "attn_mha_weights.head_columns is given without w_qkv");
  REFUSES(weights.w_k = l.matrices + 1, "aligned to its element");
  REFUSES(weights.bf16_rows = true, "attn_mha_weights.bf16_rows is true with dtype 0");
  REFUSES(weights.bf16_rows = weights.int8_weights = true, "attn_mha_weights.bf16_rows and .int8_weights are both true");
  REFUSES(weights.int8_rows = true, "attn_mha_weights.int8_rows is true and .int8_weights false");
  REFUSES(weights.k_norm_gain = l.gains, "attn_mha_weights.k_norm_gain is given without qk_norm");
  REFUSES((weights.qk_norm = true, weights.qk_norm_epsilon = -1), "attn_mha_weights.qk_norm_epsilon is -1");
  REFUSES(weights.b_v = (const float *)(const void *)(l.matrices + 2), "the bias of w_v");
#undef REFUSES
  attn_mha_weights packed = ATTN_STRUCT(attn_mha_weights, .w_qkv = l.matrices, .w_o = l.matrices, .b_q = l.bias);
  expect_refusal(&l.problem, &packed, NULL, "the bias of packed weights is b_qkv");
  packed.b_q = NULL;
  int64_t columns[12] = {0};
  packed.head_columns = columns;
  columns[8] = -1;
  expect_refusal(&l.problem, &packed, NULL, "head_columns has -1 for head 0 of w_v; it must be in 0..88, w_qkv having 96");
  columns[8] = 0, columns[7] = 89;
  expect_refusal(&l.problem, &packed, NULL, "head_columns has 89 for head 3 of w_k");
  columns[7] = 88;
  attn_mha *all_alike; /* heads may share their columns */
  test_ok(attn_mha_create(&l.problem, &packed, NULL, &all_alike));
  attn_mha_destroy(all_alike);
  packed.head_columns = NULL;
  attn_mha_problem wider = l.problem;
  wider.width_memory = 33;
  expect_refusal(&wider, &packed, NULL, "width 32 and width_memory 33");
  expect_refusal(NULL, &l.weights, NULL, "problem is NULL");
  expect_refusal(&l.problem, NULL, NULL, "weights is NULL");
  expect_refusal(&l.problem, &l.weights, &ATTN_STRUCT(attn_mha_options, .product = "product_x"),
                 "no product is called 'product_x'");
  expect_refusal(&l.problem, &l.weights,
                 &ATTN_STRUCT(attn_mha_options, .attention = &ATTN_STRUCT(attn_options, .kernel = "flash_x")), "flash_x");
  expect_refusal(&l.problem, &l.weights,
                 &ATTN_STRUCT(attn_mha_options, .attention = &ATTN_STRUCT(attn_options, .threads = -2)),
                 "attn_options.threads is -2");
  assert_int_equal(attn_mha_create(&l.problem, &l.weights, NULL, NULL), ATTN_INVALID_ARGUMENT);
  free_layer(&l);
}

/* Rows that are read may lie in the same place, rows that are written may not. */
TEST(test_inputs_may_overlap) {
  layer l = make_layer(&shapes[0]);
  attn_mha *created;
  attn_mha_problem problem = l.problem;
  problem.x_stride.s = problem.memory_stride.s = 0;
  test_ok(attn_mha_create(&problem, &l.weights, NULL, &created));
  attn_mha_destroy(created);
  problem.y_stride.s = 0;
  expect_refusal(&problem, &l.weights, NULL, "attn_mha_problem.y_stride.s is 0; elements would overlap");
  free_layer(&l);
}

TEST(test_refuses_bad_arguments) {
  layer l = make_layer(&shapes[9]); /* cross, lengths per query */
  l.problem.want_weights = false;
  attn_mha *mha;
  test_ok(attn_mha_create(&l.problem, &l.weights, NULL, &mha));
  const size_t bytes = attn_mha_workspace(mha);
  char *workspace = test_allocate(bytes + 64);
#define REFUSES(change, part)                                                            \
  do {                                                                                   \
    attn_mha_args args = args_of(&l);                                                    \
    change;                                                                              \
    assert_int_equal(attn_mha_run(mha, &args, workspace, bytes), ATTN_INVALID_ARGUMENT); \
    test_contains(attn_last_error(), part);                                              \
  } while (0)
  REFUSES(args.x = NULL, "attn_mha_args.x is NULL");
  REFUSES(args.memory = NULL,
          "attn_mha_args.memory is NULL, which stands for x: but x has 20 rows of 16, and the memory 30");
  REFUSES(args.y = NULL, "attn_mha_args.y is NULL");
  REFUSES(args.x = (const float *)(const void *)((const char *)l.x + 1), "attn_mha_args.x is");
  REFUSES(l.attention.lse = NULL, "attn_args.lse is NULL");
  REFUSES(l.attention.row_len = NULL, "attn_args.row_len is NULL");
#undef REFUSES
  l.row_len[3] = 31;
  const attn_mha_args args = args_of(&l);
  assert_int_equal(attn_mha_run(mha, &args, workspace, bytes), ATTN_INVALID_ARGUMENT);
  test_contains(attn_last_error(), "attn_args.row_len[3] is 31");
  assert_int_equal(attn_mha_run(mha, &args, workspace, bytes - 64), ATTN_WORKSPACE_TOO_SMALL);
  assert_int_equal(attn_mha_run(mha, &args, workspace + 4, bytes), ATTN_WORKSPACE_TOO_SMALL);
  assert_int_equal(attn_mha_run(mha, &args, NULL, bytes), ATTN_WORKSPACE_TOO_SMALL);
  test_invalid(attn_mha_run(NULL, &args, workspace, bytes), "layer is NULL");
  test_invalid(attn_mha_run(mha, NULL, workspace, bytes), "args is NULL");
  assert_int_equal(attn_mha_attention_weights(mha, &args, l.p, workspace, bytes - 64), ATTN_WORKSPACE_TOO_SMALL);
  assert_int_equal(attn_mha_attention_weights(mha, &args, l.p, workspace, bytes), ATTN_INVALID_ARGUMENT);
  test_contains(attn_last_error(), "attn_mha_problem.want_weights was false");
  attn_mha_destroy(mha);
  attn_mha_destroy(NULL);
  assert_int_equal(attn_mha_workspace(NULL), 0);
  free(workspace);
  free_layer(&l);
}

/* Where memory is missing, x stands for it if it has as many rows; with no keys there is nothing to stand for. */
TEST(test_x_stands_for_a_memory_of_its_size) {
  for (int64_t keys = 0; keys < 4; keys++) {
    const shape few = {"few keys", 1, 2, 2, 2, keys, 8, 8, 16, 16, 16, .cross = true};
    layer l = make_layer(&few);
    attn_mha_args args = args_of(&l);
    args.memory = NULL;
    assert_int_equal(run_made(&l.problem, &l.weights, &args, NULL, l.p), keys % 2 ? ATTN_INVALID_ARGUMENT : ATTN_OK);
    free_layer(&l);
  }
}

/* Whatever strides the problem's attention has, a layer uses its own. */
TEST(test_strides_of_the_attention_are_the_layers) {
  layer l = make_layer(&shapes[0]);
  float *expected = answer_of(&l);
  attn_problem *a = &l.problem.attention;
  a->q_stride = a->k_stride = a->v_stride = a->o_stride = (attn_strides){7, 5, 3, 2};
  expect_bits(&l, &l.weights, NULL, expected);
  free(expected);
  free_layer(&l);
}

/* An empty batch is valid without any pointers. */
TEST(test_empty_batches) {
  layer l = make_layer(&shapes[0]);
  attn_mha_problem empty = l.problem;
  empty.attention.batch = 0;
  const attn_mha_args none = {.struct_size = sizeof(attn_mha_args)};
  test_ok(run_made(&empty, &l.weights, &none, NULL, l.p));
  free_layer(&l);
}
