/* SPDX-License-Identifier: MIT */
/* Factors of keys and values (ATTN_USE_KV_SCALES): where they are powers of two, every kernel gives the bits of the call
 * over K and V that were multiplied before. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/problem/operation.h"
#include "tests/support/support.h"

enum { HEADS = 4, KV_HEADS = 2, DIM = 24, KEYS = 100, ROUNDS = 12, PAGE = 16, PAGES = 8 };

static uint32_t random_state;
static int64_t below(int64_t count) {
  random_state = random_state * 1664525u + 1013904223u;
  return (int64_t)(random_state >> 8) % count;
}

/* One factor, one a head, or one a token, for the layout of K and V. */
static void set_scales(attn_problem *p, int kind) {
  p->uses |= ATTN_USE_KV_SCALES;
  p->k_scale_stride = p->v_scale_stride = (attn_strides){.h = kind == 1};
  if (kind < 2) return;
  attn_operand_set_dense(p, ATTN_OPERAND_K_SCALE);
  attn_operand_set_dense(p, ATTN_OPERAND_V_SCALE);
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

/* Powers of two for every place of K or V. */
static float *powers(const attn_problem *p) {
  const bool paged = attn_uses(p, ATTN_USE_PAGES);
  const int64_t places = paged ? p->pages : p->batch, tokens = paged ? p->page_tokens : p->seq_k;
  float *scale = test_allocate((size_t)(places * KV_HEADS * tokens) * sizeof *scale);
  for (int64_t n = 0; n < places * KV_HEADS * tokens; n++) scale[n] = ldexpf(1, (int)below(5) - 2);
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
    for (int64_t d = 0; d < DIM; d++) y[at + d] = x[at + d] * scale[b * of_scale->b + h * of_scale->h + s * of_scale->s];
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
  set_scales(&scaled, round % 3);
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
