/* SPDX-License-Identifier: MIT */
/* Decoding with a KV cache is causal attention step by step: for all sizes of steps the rows equal those of one pass over
 * the whole text. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn/nn.h"
#include "kernels/ref/nn_oracle_f64.h"
#include "tests/support/nn_support.h"

enum { B = 2, H = 4, KV = 2, D = 24, DV = 16, LONG = 50 };
static const attn_kv_cache_shape shape = {.struct_size = sizeof(attn_kv_cache_shape),
                                          .batch = B,
                                          .heads_q = H,
                                          .heads_kv = KV,
                                          .dim_qk = D,
                                          .dim_v = DV,
                                          .capacity = LONG};

/* The whole text: [batch][heads][LONG][dim]. */
static float q[B * H * LONG * D], k[B * KV * LONG * D], v[B * KV * LONG * DV];

static void fill(void) {
  test_fill(q, COUNT(q), 1);
  test_fill(k, COUNT(k), 2);
  test_fill(v, COUNT(v), 3);
}

/* Tokens first[b] .. first[b] + counts[b] of [batch][heads][LONG][dim] as [batch][heads][tokens][dim]; padding is NaN. */
static void cut(const float *from, int heads, int dim, const int32_t *first, const int32_t *counts, int tokens, float *to) {
  for (int b = 0; b < B; b++)
    for (int h = 0; h < heads; h++)
      for (int t = 0; t < tokens; t++)
        for (int d = 0; d < dim; d++)
          to[((b * heads + h) * tokens + t) * dim + d] =
              t < counts[b] ? from[((b * heads + h) * LONG + first[b] + t) * dim + d] : NAN;
}

static void step(attn_kv_cache *cache, int tokens, const int32_t *counts, const float *keys, float *o_whole) {
  static float sq[B * H * LONG * D], sk[B * KV * LONG * D], sv[B * KV * LONG * DV], so[B * H * LONG * DV];
  int32_t first[B], all[B];
  memcpy(first, attn_kv_cache_lengths(cache), sizeof first);
  for (int b = 0; b < B; b++) all[b] = counts ? counts[b] : tokens;
  cut(q, H, D, first, all, tokens, sq);
  cut(keys, KV, D, first, all, tokens, sk);
  cut(v, KV, DV, first, all, tokens, sv);
  test_ok(attn_kv_cache_step(cache, tokens, counts, sq, sk, sv, so));
  for (int b = 0; b < B; b++) {
    assert_int_equal(attn_kv_cache_lengths(cache)[b], first[b] + all[b]);
    for (int h = 0; h < H; h++)
      for (int t = 0; t < tokens; t++)
        for (int d = 0; d < DV; d++) {
          const float value = so[((b * H + h) * tokens + t) * DV + d];
          if (t < all[b])
            o_whole[((b * LONG + first[b] + t) * H + h) * DV + d] = value;
          else
            assert_true(value == 0); /* padding */
        }
  }
}

/* [batch][heads][seq][dim] as rows of tokens with heads side by side. */
static attn_nn_field rows_of(const float *data, int heads, int dim) {
  attn_nn_field field = attn_nn_field_create(B * LONG, heads * dim);
  for (int b = 0; b < B; b++)
    for (int h = 0; h < heads; h++)
      for (int t = 0; t < LONG; t++)
        for (int d = 0; d < dim; d++)
          field.value[((b * LONG + t) * heads + h) * dim + d] = (double)data[((b * heads + h) * LONG + t) * dim + d];
  return field;
}

static attn_numerics numerics; /* the tested kernel's */

/* bias: [H][LONG][LONG], or NULL. */
static double worst_with(bool causal, const float *bias, const float *keys, const float *o) {
  attn_nn_field fq = rows_of(q, H, D), fk = rows_of(keys, KV, D), fv = rows_of(v, KV, DV);
  attn_nn_attention attention = {.numerics = numerics, .args = &ATTN_STRUCT(attn_args, .bias = bias)};
  attn_problem_init(&attention.problem, B, H, KV, LONG, LONG, D, DV);
  if (causal) attn_problem_set_causal(&attention.problem, ATTN_ALIGN_TOP_LEFT);
  if (bias) attention.problem.uses |= ATTN_USE_BIAS;
  attention.problem.bias_stride.b = 0;
  attn_nn_field expected = attn_nn_oracle_attention(&attention, &fq, &fk, &fv);
  const double worst = attn_nn_field_worst(&expected, o);
  nn_destroy(&fq, &fk, &fv, &expected);
  return worst;
}

static double worst_against(bool causal, const float *keys, const float *o) { return worst_with(causal, NULL, keys, o); }

/* Keys are kept mixed; outputs are those of a cache that keeps them as they are. */
TEST(hadamard_changes_keys_and_no_output) {
  static float o[B * LONG * H * DV];
  attn_kv_cache_shape mixes = shape;
  attn_kv_cache *cache;
  fill();
  mixes.hadamard = true;
  test_ok(attn_kv_cache_create(&mixes, &ATTN_STRUCT(attn_options, .kernel = "naive_c"), &cache));
  numerics = attn_kernel_find("naive_c")->numerics;
  step(cache, 5, NULL, k, o);
  while (attn_kv_cache_lengths(cache)[0] < LONG) step(cache, 1, NULL, k, o);
  assert_true(worst_against(true, k, o) <= 2); /* products of mixed rows round otherwise */
  const float *kept =
      (const float *)attn_kv_pool_keys(attn_kv_cache_pool(cache), 0) + (int64_t)attn_kv_cache_pages(cache)[0] * KV * 64 * D;
  for (int d = 0; d < 8; d++) { /* the first key; 8 divides D */
    double exact = 0;
    for (int e = 0; e < 8; e++) exact += (__builtin_popcount((unsigned)(d & e)) % 2 ? -1 : 1) * (double)k[e] / sqrt(8.0);
    assert_true(fabs((double)kept[d] - exact) < 1e-6);
  }
  attn_kv_cache_destroy(cache);
}

static void steps_are_the_whole(const char *kernel) {
  static float o[B * LONG * H * DV], wrong[COUNT(k)];
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 2);
  attn_kv_cache *cache;
  attn_problem causal;
  attn_problem_init(&causal, B, H, KV, 1, LONG, D, DV);
  attn_problem_set_pages(&causal, 16, 8);
  attn_problem_set_causal(&causal, ATTN_ALIGN_BOTTOM_RIGHT);
  if (test_library_refuses(kernel, &causal)) return;
  if (test_fit_types(kernel, &causal)) { /* half_precision_is_kept() and `attnbench check` have bf16 */
    print_message("%s skipped: the cache of this test is float32\n", kernel);
    return;
  }
  fill();
  numerics = attn_kernel_find(kernel)->numerics;
  test_ok(attn_kv_cache_create(&shape, &options, &cache));
  assert_string_equal(attn_kv_cache_kernel(cache), kernel);
  const int32_t prompts[B] = {5, 3}, rest[B] = {1, 3}, nothing[B] = {1, 0}, behind[B] = {0, 1};
  step(cache, 5, prompts, k, o); /* prompts of different lengths */
  step(cache, 3, rest, k, o);    /* now both sequences have 6 tokens */
  step(cache, 1, nothing, k, o); /* a token for the first sequence alone */
  step(cache, 1, behind, k, o);  /* and for the second */
  while (attn_kv_cache_lengths(cache)[0] < LONG) step(cache, 1, NULL, k, o);
  assert_true(worst_against(true, k, o) <= 1);
  assert_true(worst_against(false, k, o) > 4);
  memcpy(wrong, k, sizeof k);
  for (int i = 0; i < D; i++) wrong[20 * D + i] += 0.01f; /* one key of one head */
  assert_true(worst_against(true, wrong, o) > 4);

  test_ok(attn_kv_cache_truncate(cache, 30)); /* go back and continue in larger steps */
  assert_int_equal(attn_kv_cache_lengths(cache)[1], 30);
  memset(o + 30 * H * DV, 0, 20 * H * DV * sizeof *o);
  step(cache, 4, NULL, k, o);
  step(cache, 8, NULL, k, o); /* 16 rows per KV head: as many as decode kernels take */
  step(cache, 8, NULL, k, o);
  assert_true(worst_against(true, k, o) <= 1);
  attn_kv_cache_destroy(cache);
}

TEST(steps_in_every_kernel) { test_each_kernel(steps_are_the_whole); }

enum { DISTANCES = 7 };

/* [H][LONG][LONG] of a table [H][DISTANCES]. `shift`: 1 = every key is one token too far. */
static void spread_bias(const float *table, int shift, float *bias) {
  for (int h = 0; h < H; h++)
    for (int i = 0; i < LONG; i++)
      for (int j = 0; j < LONG; j++) {
        const int distance = i - j + shift;
        bias[(h * LONG + i) * LONG + j] = table[h * DISTANCES + (distance < 0           ? 0
                                                                 : distance < DISTANCES ? distance
                                                                                        : DISTANCES - 1)];
      }
}

static void biased_steps_are_the_whole(const char *kernel) {
  static float o[B * LONG * H * DV], table[H * DISTANCES], bias[H * LONG * LONG];
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 2);
  attn_kv_cache_shape biased = shape;
  attn_kv_cache *cache;
  fill();
  test_fill(table, COUNT(table), 4);
  biased.bias_by_distance = table, biased.bias_distances = DISTANCES;
  if (attn_kv_cache_create(&biased, &options, &cache) == ATTN_UNSUPPORTED) { /* no pages, no bias, or another type */
    test_contains(attn_last_error(), kernel);
    return;
  }
  numerics = attn_kernel_find(attn_kv_cache_kernel(cache))->numerics;
  const int32_t prompts[B] = {9, 2}, rest[B] = {1, 8};
  step(cache, 10, prompts, k, o); /* with padding */
  step(cache, 8, rest, k, o);
  while (attn_kv_cache_lengths(cache)[0] < LONG / 2) step(cache, 1, NULL, k, o);
  while (attn_kv_cache_lengths(cache)[0] < LONG) step(cache, 5, NULL, k, o);
  spread_bias(table, 0, bias);
  assert_true(worst_with(true, bias, k, o) <= 1);
  attn_kv_cache_destroy(
      cache); /* and with no room from larger steps: the largest is beside a sequence that is almost full */
  memset(o, 0, sizeof o);
  test_ok(attn_kv_cache_create(&biased, &options, &cache));
  const int32_t one[B] = {8, 0}, last[B] = {2, 16}; /* 16 tokens: as many as decode kernels take */
  while (attn_kv_cache_lengths(cache)[0] < LONG - 2) step(cache, 8, one, k, o);
  step(cache, 16, last, k, o);
  while (attn_kv_cache_lengths(cache)[1] < LONG) step(cache, 1, (const int32_t[B]){0, 1}, k, o);
  assert_true(worst_with(true, bias, k, o) <= 1);
  spread_bias(table, 1, bias);
  assert_true(worst_with(true, bias, k, o) > 4);
  assert_true(worst_against(true, k, o) > 4);
  attn_kv_cache_destroy(cache);
}

TEST(biases_by_distance) {
  biased_steps_are_the_whole(NULL);
  test_each_kernel(biased_steps_are_the_whole);
}

/* A bf16 cache keeps values that bf16 holds exactly: it gives what a float32 cache gives. */
TEST(half_precision_is_kept) {
  static uint16_t hq[B * H * D], hk[B * KV * D], hv[B * KV * DV];
  static float o[B * H * DV], expected[B * H * DV], fq[B * H * D], fk[B * KV * D], fv[B * KV * DV];
  const struct {
    uint16_t *half;
    float *full;
    int count;
  } arrays[] = {{hq, fq, B * H * D}, {hk, fk, B * KV * D}, {hv, fv, B * KV * DV}};
  attn_kv_cache *half, *full;
  attn_kv_cache_shape bf16 = shape;
  bf16.dtype = ATTN_BF16;
  test_ok(attn_kv_cache_create(&bf16, NULL, &half));
  test_ok(attn_kv_cache_create(&shape, NULL, &full));
  const double rounding = attn_kernel_find(attn_kv_cache_kernel(half))->numerics.p_rounding;
  for (int i = 0; i < 9; i++) {
    for (int a = 0; a < 3; a++) {
      test_fill(arrays[a].full, (size_t)arrays[a].count, (unsigned)(10 * i + a));
      for (int e = 0; e < arrays[a].count; e++) { /* bf16: the upper half */
        uint32_t bits;
        memcpy(&bits, &arrays[a].full[e], sizeof bits);
        bits &= 0xffff0000u;
        memcpy(&arrays[a].full[e], &bits, sizeof bits);
        arrays[a].half[e] = (uint16_t)(bits >> 16);
      }
    }
    test_ok(attn_kv_cache_step(half, 1, NULL, hq, hk, hv, o));
    test_ok(attn_kv_cache_step(full, 1, NULL, fq, fk, fv, expected));
    for (int e = 0; e < B * H * DV; e++) assert_true(fabs((double)(o[e] - expected[e])) < 2e-6 + 2 * rounding);
  }
  attn_kv_cache_destroy(half);
  attn_kv_cache_destroy(full);
}

TEST(creation_checks_arguments) {
  attn_kv_cache *cache;
#define REFUSED(field, wrong, word)                                                                            \
  TEST_REFUSES(attn_kv_cache_shape, shape, bad.field = wrong, attn_kv_cache_create(&bad, NULL, &cache), cache, \
               "attn_kv_cache_shape." word)
  REFUSED(batch, 0, "batch is 0");
  REFUSED(heads_q, 3, "heads_q is 3 with heads_kv 2");
  REFUSED(heads_q, 0, "heads_q is 0");
  REFUSED(heads_kv, -1, "heads_kv is -1");
  REFUSED(heads_kv, 0, "heads_kv is 0");
  REFUSED(dim_qk, 0, "dim_qk is 0");
  REFUSED(dim_v, -4, "dim_v is -4");
  REFUSED(dim_v, 0, "dim_v is 0");
  REFUSED(capacity, 0, "capacity is 0");
  REFUSED(capacity, INT32_MAX, "capacity is 2147483647");
  REFUSED(dtype, (attn_dtype)9, "dtype is 9");
  TEST_REFUSES(attn_kv_cache_shape, shape, (bad.hadamard = true, bad.dim_qk = 23), attn_kv_cache_create(&bad, NULL, &cache),
               cache, "dim_qk is 23 with hadamard; it must be even");
  REFUSED(bias_distances, 1, "bias_distances is 1 without bias_by_distance");
  REFUSED(bias_by_distance, q, "bias_distances is 0");
  TEST_REFUSES(attn_kv_cache_shape, shape,
               (bad.bias_by_distance = q, bad.bias_distances = 1, bad.dtype = ATTN_I8,
                bad.float_tokens = bad.scales = bad.key_channels = true),
               attn_kv_cache_create(&bad, NULL, &cache), cache, "bias_by_distance is given with key_channels");
  test_invalid(attn_kv_cache_create(NULL, NULL, &cache), "shape is NULL");
  test_invalid(attn_kv_cache_create(&shape, NULL, NULL), "cache is NULL");
  const attn_options unknown = ATTN_STRUCT(attn_options, .kernel = "flash_mmx");
  test_refused(attn_kv_cache_create(&shape, &unknown, &cache), ATTN_UNKNOWN_KERNEL, "flash_mmx");
  attn_kv_cache_destroy(NULL);
}

/* The plan's run refuses the step when the step's rows are in the cache already. */
TEST(a_refused_step_appends_nothing) {
  static float a[B * H * D + 1], o[B * H * DV];
  attn_kv_cache *cache;
  test_ok(attn_kv_cache_create(&shape, NULL, &cache));
  test_ok(attn_kv_cache_step(cache, 1, NULL, a, a, a, o));
  test_invalid(attn_kv_cache_step(cache, 1, NULL, (const char *)a + 1, a, a, o), "attn_args.q");
  for (int b = 0; b < B; b++) assert_int_equal(attn_kv_cache_lengths(cache)[b], 1);
  attn_kv_cache_destroy(cache);
}

/* Steps of other sizes are planned later, when the caller's strings are gone. */
TEST(names_in_options_are_kept) {
  static float a[B * H * LONG * D], o[B * H * LONG * DV];
  char kernel[] = "flash_c", isa[] = "c";
  attn_kv_cache *cache;
  test_ok(attn_kv_cache_create(&shape, &ATTN_STRUCT(attn_options, .kernel = kernel, .max_isa = isa), &cache));
  kernel[0] = isa[0] = '?';
  test_ok(attn_kv_cache_step(cache, 2, NULL, a, a, a, o));
  assert_string_equal(attn_kv_cache_kernel(cache), "flash_c");
  attn_kv_cache_destroy(cache);
}

TEST(steps_check_arguments) {
  static float a[B * H * LONG * D], o[B * H * LONG * DV];
  attn_kv_cache *cache;
  test_ok(attn_kv_cache_create(&shape, NULL, &cache));
  const int32_t too_many[B] = {1, 4}, negative[B] = {-1, 1};
  test_invalid(attn_kv_cache_step(NULL, 1, NULL, a, a, a, o), "cache is NULL");
  test_invalid(attn_kv_cache_step(cache, -1, NULL, a, a, a, o), "tokens is -1");
  test_invalid(attn_kv_cache_step(cache, LONG + 1, NULL, a, a, a, o), "51");
  test_invalid(attn_kv_cache_step(cache, 3, too_many, a, a, a, o), "counts[1] is 4");
  test_invalid(attn_kv_cache_step(cache, 3, negative, a, a, a, o), "counts[0] is -1");
  test_invalid(attn_kv_cache_step(cache, 1, NULL, NULL, a, a, o), "q is NULL");
  test_invalid(attn_kv_cache_step(cache, 1, NULL, a, a, a, NULL), "o is NULL");
  assert_int_equal(attn_kv_cache_lengths(cache)[0], 0);
  test_ok(attn_kv_cache_step(cache, 0, NULL, NULL, NULL, NULL, NULL));
  test_ok(attn_kv_cache_step(cache, LONG - 1, NULL, a, a, a, o));
  test_invalid(attn_kv_cache_step(cache, 2, NULL, a, a, a, o), "sequence 0 holds 49 of 50 tokens; 2 more do not fit");
  assert_int_equal(attn_kv_cache_lengths(cache)[1], LONG - 1);
  assert_int_equal(attn_kv_cache_lengths(cache)[0], LONG - 1);
  test_ok(attn_kv_cache_truncate(cache, 0));
  test_ok(attn_kv_cache_step(cache, LONG, NULL, a, a, a, o)); /* all that it holds */
  test_invalid(attn_kv_cache_truncate(cache, -1), "length is -1");
  test_invalid(attn_kv_cache_truncate(NULL, 0), "cache is NULL");
  attn_kv_cache_destroy(cache);
}
