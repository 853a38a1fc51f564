/* SPDX-License-Identifier: MIT */
/* Multi-head layers token by token: through a cache the rows have the bits of one run over the whole text, and a memory that
 * was projected once gives what a run makes of the memory itself. */
#include <stdlib.h>
#include <string.h>

#include "attn/nn.h"
#include "kernels/common/problem/convert.h"
#include "tests/support/failing_malloc.h"

enum { BATCH = 3, HEADS = 4, HEADS_KV = 2, DIM = 10, DIM_V = 6, TEXT = 40, WIDTH = 32, LAYERS = 2, DISTANCES = 6 };
enum { MOST = HEADS * DIM * WIDTH }; /* weights of a map */

static float weights[LAYERS][4 * MOST], biases[2 * HEADS * DIM], x[BATCH * TEXT * WIDTH], whole[BATCH * TEXT * WIDTH];

static attn_mha *make(const attn_mha_problem *problem, int layer, const char *kernel) {
  attn_mha *mha;
  const attn_mha_weights w =
      ATTN_STRUCT(attn_mha_weights, .w_q = weights[layer], .w_k = weights[layer] + MOST, .w_v = weights[layer] + 2 * MOST,
                  .b_q = biases, .b_v = biases + HEADS * DIM, .w_o = weights[layer] + 3 * MOST, .qk_norm = layer == 0,
                  .q_norm_gain = layer == 0 ? biases : NULL, .qk_norm_epsilon = 1e-6f);
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1);
  test_ok(attn_mha_create(problem, &w, &ATTN_STRUCT(attn_mha_options, .attention = &options), &mha));
  return mha;
}

static void run(const attn_mha *mha, const attn_mha_args *args) {
  void *workspace = test_allocate(attn_mha_workspace(mha));
  test_ok(attn_mha_run(mha, args, workspace, attn_mha_workspace(mha)));
  free(workspace);
}

static void fill(void) {
  for (int i = 0; i < LAYERS; i++) test_fill(weights[i], COUNT(weights[i]), 1 + (unsigned)i);
  for (int i = 0; i < LAYERS; i++)
    for (size_t n = 0; n < COUNT(weights[i]); n++) weights[i][n] *= 0.2f;
  test_fill(biases, COUNT(biases), 7);
  test_fill(x, COUNT(x), 8);
}

/* biased: by the distance of query and key, which one run over the text has as a bias of its own. dtype_x is the type of x,
 * y and the heads' outputs. */
static void steps_have_the_bits(bool biased, attn_dtype dtype, attn_dtype dtype_x) {
  static float table[HEADS * DISTANCES], bias[HEADS * TEXT * TEXT], text[COUNT(x)];
  const size_t row_bytes = (size_t)attn_elements_bytes(dtype_x, WIDTH);
  attn_mha_problem problem;
  attn_mha *mha[LAYERS];
  attn_kv_cache *cache;
  fill();
  attn_mha_problem_init(&problem, BATCH, HEADS, TEXT, TEXT, WIDTH);
  problem.attention.heads_kv = HEADS_KV, problem.attention.dim_qk = DIM, problem.attention.dim_v = DIM_V;
  problem.attention.dtype_q = problem.attention.dtype_kv = dtype;
  problem.attention.dtype_o = problem.dtype_x = problem.dtype_y = dtype_x;
  attn_problem_set_causal(&problem.attention, ATTN_ALIGN_TOP_LEFT);
  test_fill(table, COUNT(table), 9);
  for (int64_t h = 0, at = 0; h < HEADS; h++)
    for (int64_t i = 0; i < TEXT; i++)
      for (int64_t j = 0; j < TEXT; j++, at++)
        bias[at] = j > i ? 0 : table[h * DISTANCES + (i - j < DISTANCES ? i - j : DISTANCES - 1)];
  problem.attention.uses |= biased ? ATTN_USE_BIAS : 0u;
  problem.attention.bias_stride.b = 0;
  const attn_args attention = ATTN_STRUCT(attn_args, .bias = biased ? bias : NULL);
  for (size_t i = 0; i < COUNT(x); i++) attn_store_f32(text, dtype_x, (int64_t)i, x[i]);
  for (int i = 0; i < LAYERS; i++) {
    static float between[COUNT(x)];
    mha[i] = make(&problem, i, "flash_portable");
    run(mha[i], &ATTN_STRUCT(attn_mha_args, .x = i ? between : text, .y = whole, .attention = &attention));
    memcpy(between, whole, sizeof between);
  }
  const attn_kv_cache_shape shape =
      ATTN_STRUCT(attn_kv_cache_shape, .batch = BATCH, .heads_q = HEADS, .heads_kv = HEADS_KV, .dim_qk = DIM, .dim_v = DIM_V,
                  .scale = problem.attention.scale, .capacity = TEXT, .dtype = dtype, .layers = LAYERS, .page_tokens = 16,
                  .bias_by_distance = biased ? table : NULL, .bias_distances = biased ? DISTANCES : 0);
  test_ok(attn_kv_cache_create(&shape, &ATTN_STRUCT(attn_options, .kernel = "flash_portable", .threads = 1), &cache));
  const int32_t *lengths = attn_kv_cache_lengths(cache);
  for (int step = 0; lengths[0] < TEXT || lengths[1] < TEXT || lengths[2] < TEXT; step++) {
    static float rows[COUNT(x)], y[COUNT(x)];
    int32_t counts[BATCH];
    int at = 0;
    for (int b = 0; b < BATCH; b++) {
      counts[b] = (step * 5 + b * 3) % 8;
      if (counts[b] > TEXT - lengths[b]) counts[b] = TEXT - lengths[b];
      memcpy((char *)rows + (size_t)at * row_bytes, (char *)text + (size_t)(b * TEXT + lengths[b]) * row_bytes,
             (size_t)counts[b] * row_bytes);
      at += counts[b];
    }
    test_ok(attn_kv_cache_begin(cache, counts));
    for (int i = 0; i < LAYERS; i++) test_ok(attn_mha_step(mha[i], cache, i, i ? y : rows, y));
    at = 0;
    for (int b = 0; b < BATCH; at += counts[b++])
      assert_memory_equal((char *)y + (size_t)at * row_bytes,
                          (char *)whole + (size_t)(b * TEXT + lengths[b] - counts[b]) * row_bytes,
                          (size_t)counts[b] * row_bytes);
  }
  test_invalid(attn_mha_step(NULL, cache, 0, x, whole), "layer is NULL");
  test_invalid(attn_mha_step(mha[0], NULL, 0, x, whole), "cache is NULL");
  test_ok(attn_kv_cache_truncate(cache, 0));
  test_ok(attn_kv_cache_begin(cache, (const int32_t[BATCH]){1, 0, 0}));
  test_invalid(attn_mha_step(mha[0], cache, 2, x, whole), "attn_kv_cache_args.layer is 2");
  test_invalid(attn_mha_step(mha[0], cache, 0, NULL, whole), "x is NULL");
  attn_kv_cache_destroy(cache);
  attn_kv_cache_shape other = shape;
  other.heads_q = 2 * HEADS;
  other.bias_by_distance = NULL, other.bias_distances = 0; /* the table has HEADS rows */
  test_ok(attn_kv_cache_create(&other, NULL, &cache));
  test_invalid(attn_mha_step(mha[0], cache, 0, x, whole), "the layer's heads_q is 4; it must be 8");
  attn_kv_cache_destroy(cache);
  other = shape;
  other.dtype = dtype == ATTN_F32 ? ATTN_BF16 : ATTN_F32;
  test_ok(attn_kv_cache_create(&other, NULL, &cache));
  test_invalid(attn_mha_step(mha[0], cache, 0, x, whole), "the type of tokens that the cache takes");
  attn_kv_cache_destroy(cache);
  for (int i = 0; i < LAYERS; i++) attn_mha_destroy(mha[i]);
}

TEST(steps_have_the_bits_of_one_run) {
  static const attn_dtype types[] = {ATTN_F32, ATTN_BF16, ATTN_F16};
  for (size_t i = 0; i < COUNT(types); i++) steps_have_the_bits(false, types[i], ATTN_F32);
  for (size_t i = 1; i < COUNT(types); i++) steps_have_the_bits(false, types[i], types[i]);
}

TEST(biased_steps_have_the_bits_of_one_run) { steps_have_the_bits(true, ATTN_F32, ATTN_F32); }

TEST(a_memory_is_projected_once) {
  enum { QUERIES = 3 };
  static float keys[COUNT(x)], values[COUNT(x)], y[BATCH * QUERIES * WIDTH], again[BATCH * QUERIES * WIDTH];
  attn_mha_problem problem;
  fill();
  attn_mha_problem_init(&problem, BATCH, HEADS, QUERIES, TEXT, WIDTH);
  attn_mha *mha = make(&problem, 0, NULL);
  const size_t bytes = attn_mha_workspace(mha);
  void *workspace = test_allocate(bytes);
  attn_mha_args args = ATTN_STRUCT(attn_mha_args, .x = x, .memory = x, .y = y);
  test_ok(attn_mha_project_memory(mha, &args, keys, values, workspace, bytes));
  run(mha, &args);
  args.projected_k = keys, args.projected_v = values, args.y = again;
  test_invalid(attn_mha_run(mha, &args, workspace, bytes), "memory is given beside projected_k");
  args.memory = NULL;
  run(mha, &args);
  assert_memory_equal(y, again, sizeof y);
  values[0] += 1;
  run(mha, &args);
  assert_memory_not_equal(y, again, sizeof y);
  test_invalid(attn_mha_project_memory(mha, &args, keys, values, workspace, bytes), "projected_k is given");
  args.projected_v = NULL;
  test_invalid(attn_mha_run(mha, &args, workspace, bytes), "projected_v is NULL");
  args.projected_k = NULL, args.memory = x;
  test_invalid(attn_mha_project_memory(mha, &args, NULL, values, workspace, bytes), "k is ");
  test_invalid(attn_mha_project_memory(mha, &args, keys, NULL, workspace, bytes), "v is ");
  test_refused(attn_mha_project_memory(mha, &args, keys, values, workspace, 0), ATTN_WORKSPACE_TOO_SMALL, "workspace is");
  test_invalid(attn_mha_project_rows(mha, -1, x, y, NULL, NULL, workspace, bytes), "rows is -1");
  attn_mha_destroy(mha);
  problem.want_weights = true, problem.width_memory = WIDTH / 2;
  mha = make(&problem, 0, NULL);
  free(workspace);
  workspace = test_allocate(attn_mha_workspace(mha));
  test_invalid(attn_mha_attention_weights(mha, &args, NULL, workspace, attn_mha_workspace(mha)), "weights is");
  test_invalid(attn_mha_project_rows(mha, 1, x, NULL, keys, NULL, workspace, bytes), "k or v is given with width");
  attn_mha_destroy(mha);
  free(workspace);
}
