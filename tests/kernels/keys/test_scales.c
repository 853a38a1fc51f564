/* SPDX-License-Identifier: MIT */
/* Factors of keys and values (ATTN_USE_KV_SCALES): where they are powers of two, every kernel gives the bits of the call
 * over K and V that were multiplied before. Those of channels go beyond the kernels: overflows, states, threads. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/problem/operation.h"
#include "tests/support/support.h"

enum { HEADS = 4, KV_HEADS = 2, DIM = 24, KEYS = 100, ROUNDS = 30, KINDS = 5, PAGE = 16, PAGES = 8 };

static uint32_t random_state;
static int64_t below(int64_t count) {
  random_state = random_state * 1664525u + 1013904223u;
  return (int64_t)(random_state >> 8) % count;
}

/* One factor, one a head, or one a token, for the layout of K and V; one a channel of K, and one a token or channel of V;
 * one a channel of V alone. */
static void set_scales(attn_problem *p, int kind) {
  const attn_strides channels = {.b = attn_uses(p, ATTN_USE_PAGES) ? 0 : KV_HEADS * DIM, .h = DIM, .d = 1};
  p->uses |= ATTN_USE_KV_SCALES;
  p->k_scale_stride = p->v_scale_stride = (attn_strides){.h = kind == 1};
  if (kind == 2) (void)attn_operand_set_dense(p, ATTN_OPERAND_K_SCALE);
  if (kind == 2 || kind == 3) (void)attn_operand_set_dense(p, ATTN_OPERAND_V_SCALE);
  if (kind == 3 || kind == 4) p->k_scale_stride = channels;
  if (kind > 3) p->v_scale_stride = channels;
}

static attn_problem random_problem(int round) {
  static const int64_t queries[] = {1, 2, 7, 30};
  attn_problem p;
  attn_problem_init(&p, 1 + below(2), HEADS, KV_HEADS, queries[below(4)], 1 + below(KEYS), DIM, DIM);
  p.uses |= ATTN_USE_LSE;
  if (below(2)) attn_problem_set_causal(&p, ATTN_ALIGN_BOTTOM_RIGHT);
  if (below(2)) p.softcap = 5;
  if (round % 2) {
    attn_problem_set_pages(&p, PAGE, PAGES * p.batch);
    p.k_stride = p.v_stride = (attn_strides){KV_HEADS * PAGE * DIM, PAGE * DIM, DIM, 1};
  }
  return p;
}

/* Powers of two for every place of K or V, or every channel. */
static float *powers(const attn_problem *p) {
  const bool paged = attn_uses(p, ATTN_USE_PAGES);
  const int64_t places = paged ? p->pages : p->batch, tokens = paged ? p->page_tokens : p->seq_k;
  const int64_t count = places * KV_HEADS * (tokens > DIM ? tokens : DIM);
  float *scale = test_allocate((size_t)count * sizeof *scale);
  for (int64_t n = 0; n < count; n++) scale[n] = ldexpf(1, (int)below(5) - 2);
  return scale;
}

/* A dense copy of K or V, times its factors. */
static float *multiplied(const attn_problem *p, const float *x, const attn_strides *stride, const float *scale,
                         const attn_strides *of_scale) {
  const bool paged = attn_uses(p, ATTN_USE_PAGES);
  const int64_t places = paged ? p->pages : p->batch, tokens = paged ? p->page_tokens : p->seq_k;
  float *y = test_allocate((size_t)(places * KV_HEADS * tokens * DIM) * sizeof *y);
  for (int64_t n = 0; n < places * KV_HEADS * tokens; n++) {
    const int64_t b = n / (KV_HEADS * tokens), h = n / tokens % KV_HEADS, s = n % tokens;
    const int64_t at = b * stride->b + h * stride->h + s * stride->s;
    for (int64_t d = 0; d < DIM; d++)
      y[at + d] = x[at + d] * scale[b * of_scale->b + h * of_scale->h + s * of_scale->s + d * of_scale->d];
  }
  return y;
}

static float *filled(int64_t count, unsigned seed) {
  float *x = test_allocate((size_t)count * sizeof *x);
  test_fill(x, (size_t)count, seed);
  return x;
}

/* The outputs of a call: O, then LSE. Returns false if the kernel refuses the problem. */
static bool outputs_of(const attn_problem *p, attn_args args, const char *kernel, float *to) {
  const int64_t rows = p->batch * HEADS * p->seq_q;
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1);
  args.o = to;
  args.lse = to + rows * DIM;
  const attn_status status = test_run(p, &args, &options);
  if (status == ATTN_UNSUPPORTED) return false;
  test_ok(status);
  return true;
}

static void compare_round(const char *kernel, int round) {
  random_state = (uint32_t)round + 1;
  attn_problem scaled = random_problem(round), plain = scaled;
  set_scales(&scaled, round % KINDS);
  const int64_t rows = scaled.batch * HEADS * scaled.seq_q, most = 2 * PAGES * PAGE * KV_HEADS * DIM;
  float *q = filled(rows * DIM, 1), *k = filled(most, 2), *v = filled(most, 3);
  float *k_scale = powers(&scaled), *v_scale = powers(&scaled);
  float *k_times = multiplied(&scaled, k, &scaled.k_stride, k_scale, &scaled.k_scale_stride);
  float *v_times = multiplied(&scaled, v, &scaled.v_stride, v_scale, &scaled.v_scale_stride);
  float *right = filled(rows * (DIM + 1), 4), *got = filled(rows * (DIM + 1), 5);
  int32_t kv_len[2] = {(int32_t)scaled.seq_k, (int32_t)(scaled.seq_k / 2)}, table[2 * PAGES];
  for (int i = 0; i < 2 * PAGES; i++) table[i] = i * 5 % (PAGES * (int)scaled.batch); /* 5 and 8 have no common factor */
  attn_args args = ATTN_STRUCT(attn_args, .q = q, .k = k_times, .v = v_times);
  if (attn_uses(&scaled, ATTN_USE_PAGES)) args.kv_len = kv_len, args.page_table = table;
  if (outputs_of(&plain, args, kernel, right)) {
    args.k = k, args.v = v, args.k_scale = k_scale, args.v_scale = v_scale;
    assert_true(outputs_of(&scaled, args, kernel, got));
    assert_memory_equal(got, right, (size_t)(rows * (DIM + 1)) * sizeof *got);
  }
  void *const blocks[] = {q, k, v, k_scale, v_scale, k_times, v_times, right, got};
  for (size_t i = 0; i < COUNT(blocks); i++) free(blocks[i]);
}

static void powers_of_two_give_the_bits_of_multiplied_keys(const char *kernel) {
  attn_problem p;
  attn_problem_init(&p, 1, HEADS, KV_HEADS, 1, 1, DIM, DIM);
  p.uses |= ATTN_USE_KV_SCALES;
  attn_plan *plan = NULL;
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel);
  if (attn_plan_create(&p, &options, &plan) != ATTN_OK) {
    test_contains(attn_last_error(), kernel);
    return;
  }
  attn_plan_destroy(plan);
  for (int round = 0; round < ROUNDS; round++) compare_round(kernel, round);
}
KERNEL_TEST(powers_of_two_give_the_bits_of_multiplied_keys)

TEST(other_scores_refuse_factors) {
  attn_problem p;
  attn_problem_init(&p, 1, HEADS, KV_HEADS, 1, 1, DIM, DIM);
  p.uses |= ATTN_USE_KV_SCALES;
  p.score = ATTN_SCORE_GAUSSIAN;
  test_invalid(attn_problem_validate(&p), "ATTN_USE_KV_SCALES", "score 2", "ATTN_SCORE_DOT");
}

/* ---- Factors of channels --------------------------------------------------------------------------------------------- */

enum { FEW = 3 };

/* One head of FEW queries and keys of two channels. */
static attn_problem two_channels(void) {
  attn_problem p;
  attn_problem_init(&p, 1, 1, 1, FEW, FEW, 2, 2);
  p.uses |= ATTN_USE_KV_SCALES | ATTN_USE_LSE;
  p.k_scale_stride.d = p.v_scale_stride.d = 1;
  return p;
}

/* Query 1 times its factor is beyond float32, its score is not; the other rows stay as they are. */
static void check_overflow(int64_t v_step) {
  attn_problem p = two_channels();
  p.v_scale_stride.d = v_step;
  const float q[FEW * 2] = {1, 2, 1e30f, 3, -1, 1}, k[FEW * 2] = {1e-40f, 1, 2e-40f, 1, -1e-40f, -1};
  const float v[FEW * 2] = {1, 2, 3, 4, 5, 6}, k_scale[] = {1e10f, 0.5f}, v_scale[] = {2, -3};
  float o[FEW * 2], lse[FEW];
  test_ok(attn_sdpa(
      &p, &ATTN_STRUCT(attn_args, .q = q, .k = k, .v = v, .o = o, .lse = lse, .k_scale = k_scale, .v_scale = v_scale)));
  for (int i = 0; i < FEW; i++) {
    double score[FEW], sum = 0, right[2] = {0, 0};
    for (int j = 0; j < FEW; j++) {
      score[j] = 0;
      for (int d = 0; d < 2; d++) score[j] += (double)q[2 * i + d] * (double)k_scale[d] * (double)k[2 * j + d] * sqrt(0.5);
      sum += exp(score[j]);
    }
    for (int j = 0; j < FEW; j++)
      for (int d = 0; d < 2; d++) right[d] += exp(score[j]) / sum * (double)v[2 * j + d] * (double)v_scale[d * v_step];
    for (int d = 0; d < 2; d++) assert_true(fabs((double)o[2 * i + d] - right[d]) < 1e-5);
    assert_true(fabs((double)lse[i] - log(sum)) < 1e-4);
  }
}

TEST(queries_that_overflow_are_computed_again) {
  check_overflow(1);
  check_overflow(0); /* o needs no factors of channels */
}

/* Only its own channel is lost to an infinite factor of V, also where no value is left; a row without keys has zeros. */
TEST(factors_that_are_not_finite_stay_in_their_channel) {
  attn_problem p = two_channels();
  attn_problem_set_causal(&p, ATTN_ALIGN_OFFSET);
  const float q[FEW * 2] = {0}, k[FEW * 2] = {1, 2, 3, 4, 5, 6}, v[FEW * 2] = {1, 1, -1, 1, 2, 1}, ones[] = {1, 1};
  const float v_scale[] = {INFINITY, -1};
  const int32_t before = -1; /* query 0 sees none, query 1 one key, query 2 two that cancel */
  float o[FEW * 2], lse[FEW];
  test_ok(attn_sdpa(&p, &ATTN_STRUCT(attn_args, .q = q, .k = k, .v = v, .o = o, .lse = lse, .k_scale = ones,
                                     .v_scale = v_scale, .offsets = &before)));
  const float zeros[2] = {0};
  assert_memory_equal(o, zeros, sizeof zeros);
  assert_true(o[2] == INFINITY && isnan(o[4]) && o[3] == -1 && o[5] == -1 && lse[0] == -INFINITY);
}

/* Queries and outputs of 16 bits: as float32 queries, and outputs that are rounded once. Threads leave the bits alone. */
static void halves_keep_the_bits(attn_dtype dtype, int kind) {
  enum { QUERIES = 40, ELEMENTS = 2 * HEADS * QUERIES * DIM, KV = 2 * KV_HEADS * KEYS * DIM };
  static float q[ELEMENTS], o[3][ELEMENTS];
  static int8_t kv[KV];
  attn_problem whole;
  attn_problem_init(&whole, 2, HEADS, KV_HEADS, QUERIES, KEYS, DIM, DIM);
  whole.dtype_kv = ATTN_I8;
  set_scales(&whole, kind);
  attn_problem half = whole;
  half.dtype_q = half.dtype_o = dtype;
  random_state = 1;
  for (int n = 0; n < KV; n++) kv[n] = (int8_t)(below(255) - 127);
  test_fill(q, ELEMENTS, 1);
  test_round(q, ELEMENTS, dtype);
  void *narrow = test_narrow(q, ELEMENTS, dtype);
  float *factors = filled(KV / DIM, 3);
  for (int i = 0; i < 3; i++) {
    const attn_args args =
        ATTN_STRUCT(attn_args, .q = i < 2 ? narrow : q, .k = kv, .v = kv, .o = o[i], .k_scale = factors, .v_scale = factors);
    memset(o[i], 0xff, sizeof o[i]);
    test_ok(test_run(i < 2 ? &half : &whole, &args, &ATTN_STRUCT(attn_options, .kernel = "flash_c", .threads = 1 + i % 2)));
  }
  void *rounded = test_narrow(o[2], ELEMENTS, dtype);
  assert_memory_equal(o[0], rounded, ELEMENTS * sizeof(uint16_t));
  assert_memory_equal(o[1], rounded, ELEMENTS * sizeof(uint16_t));
  free(narrow), free(rounded), free(factors);
}

TEST(halves_and_threads_keep_the_bits) {
  for (int kind = 3; kind <= 5; kind++) {
    halves_keep_the_bits(ATTN_BF16, kind);
    halves_keep_the_bits(ATTN_F16, kind);
  }
}

TEST(plans_say_which_factors_there_are) {
  attn_problem p = two_channels();
  attn_plan *plan;
  test_ok(attn_plan_create(&p, NULL, &plan));
  test_contains(attn_plan_describe(plan), "channels   factors of K and V, which q and o take. Workspace: ");
  test_contains(attn_plan_describe(plan), "kernel     ");
  attn_plan_destroy(plan);
  p.v_scale_stride.d = 0;
  p.uses |= ATTN_USE_STATE;
  p.align = ATTN_ALIGN_OFFSET;
  test_ok(attn_plan_create(&p, NULL, &plan));
  test_contains(attn_plan_describe(plan), "factors of K, which q takes");
  assert_true(attn_plan_piece_keys(plan) > 0);
  attn_plan_destroy(plan);
}
