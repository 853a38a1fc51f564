/* SPDX-License-Identifier: MIT */
/* Dropout of attention: which elements go is a matter of seed, offset and place alone (docs/semantics.md), in every kernel
 * with dropout. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ref/oracle_f64.h"
#include "tests/support/support.h"

enum { BATCH = 2, HEADS = 4, HEADS_KV = 2, QUERIES = 37, KEYS = 150, DIM = 40 };

static attn_problem dropping(float dropout, int64_t dim_v) {
  attn_problem p;
  attn_problem_init(&p, BATCH, HEADS, HEADS_KV, QUERIES, KEYS, DIM, dim_v);
  p.uses |= ATTN_USE_LSE;
  p.dropout = dropout;
  return p;
}

static attn_options named(const char *kernel, int threads) {
  return ATTN_STRUCT(attn_options, .kernel = kernel, .threads = threads);
}

static bool takes_dropout(const char *kernel) {
  const attn_problem p = dropping(0.1f, DIM);
  return !attn_kernel_rejects(attn_kernel_find(kernel), &p);
}

/* o and lse of all rows against the oracle, which has a generator of its own. */
static void check_rows(const char *kernel, const attn_problem *p, const attn_args *args) {
  double o[DIM], m[DIM], w[DIM], scores[KEYS];
  for (int64_t n = 0; n < BATCH * HEADS * QUERIES; n++) {
    const attn_oracle_index at = {n / QUERIES / HEADS, n / QUERIES % HEADS, n % QUERIES};
    const attn_oracle_row row = attn_oracle_f64_row(p, args, at, &(attn_oracle_output){o, m, w, scores});
    if (fabs((double)args->lse[n] - row.lse) > 1e-5 * (1 + fabs(row.lse))) fail_msg("%s: lse of row %d", kernel, (int)n);
    for (int d = 0; d < DIM; d++) {
      const double got = (double)((const float *)args->o)[n * DIM + d];
      if (!(fabs(got - o[d]) <= 4e-6 * m[d])) fail_msg("%s: o[%d][%d] is %g, should be %g", kernel, (int)n, d, got, o[d]);
    }
  }
}

static void kernel_drops_what_the_oracle_drops(const char *kernel) {
  if (!takes_dropout(kernel)) return;
  for (int causal = 0; causal < 2; causal++) {
    attn_problem p = dropping(causal ? 0.5f : 0.1f, DIM);
    if (causal) attn_problem_set_causal(&p, ATTN_ALIGN_BOTTOM_RIGHT);
    test_data data = test_data_create(&p, 1);
    data.args.seed = 0xfedcba9876543210;
    data.args.offset = 0x1234567800000005;
    const attn_options options = named(kernel, 1);
    test_ok(test_run(&p, &data.args, &options));
    check_rows(kernel, &p, &data.args);
    test_data_destroy(&data);
  }
}

KERNEL_TEST(kernel_drops_what_the_oracle_drops)

static void bits_do_not_depend_on_threads_and_lse_not_on_dropout(const char *kernel) {
  if (!takes_dropout(kernel)) return;
  const attn_problem p = dropping(0.1f, DIM);
  attn_problem plain = p;
  plain.dropout = 0;
  test_data one = test_data_create(&p, 2), other = test_data_share_inputs(&p, &one);
  const attn_options serial = named(kernel, 1), parallel = named(kernel, 3);
  one.args.seed = other.args.seed = 9;
  test_ok(test_run(&p, &one.args, &serial));
  test_ok(test_run(&p, &other.args, &parallel));
  assert_memory_equal(one.args.o, other.args.o, one.o_bytes);
  test_ok(test_run(&plain, &other.args, &serial));
  assert_memory_equal(one.args.lse, other.args.lse, one.lse_bytes);
  assert_int_not_equal(memcmp(one.args.o, other.args.o, one.o_bytes), 0);
  test_data_destroy_outputs(&other);
  test_data_destroy(&one);
}

KERNEL_TEST(bits_do_not_depend_on_threads_and_lse_not_on_dropout)

/* ---- The mask ---- */

enum { MASK = BATCH * HEADS * QUERIES * KEYS };

static void draw(const attn_problem *p, uint64_t seed, uint64_t offset, uint8_t *mask) {
  memset(mask, 7, MASK);
  test_ok(attn_dropout_mask(p, seed, offset, mask));
}

/* With equal weights and V the unit matrix, o shows what is kept, and by what it is multiplied. */
TEST(the_mask_shows_what_a_call_keeps) {
  const attn_problem p = dropping(0.25f, KEYS);
  test_data data = test_data_create(&p, 3);
  float *q = (float *)(uintptr_t)data.args.q, *v = (float *)(uintptr_t)data.args.v;
  uint8_t *mask = test_allocate(MASK);
  memset(q, 0, (size_t)BATCH * HEADS * QUERIES * DIM * sizeof *q);
  for (int64_t n = 0; n < BATCH * HEADS_KV * KEYS * KEYS; n++) v[n] = n / KEYS % KEYS == n % KEYS ? 1.0f : 0.0f;
  data.args.seed = 5;
  data.args.offset = 6;
  test_ok(attn_sdpa(&p, &data.args));
  draw(&p, 5, 6, mask);
  for (int64_t n = 0; n < MASK; n++) {
    const double o = (double)((const float *)data.args.o)[n], kept = 1 / (0.75 * KEYS);
    assert_true(mask[n] == 0 || mask[n] == 1);
    assert_true(fabs(o - (mask[n] ? kept : 0)) < 1e-6 * kept);
  }
  test_data_destroy(&data);
  free(mask);
}

static double share_of(const uint8_t *mask) {
  double kept = 0;
  for (int64_t n = 0; n < MASK; n++) kept += mask[n];
  return kept / MASK;
}

TEST(shares_are_as_asked_for) {
  static const float dropouts[] = {0.0f, 0x1p-17f, 0.1f, 0.5f, 0.9f, 0.99999f};
  uint8_t *mask = test_allocate(MASK);
  for (size_t i = 0; i < COUNT(dropouts); i++) {
    const attn_problem p = dropping(dropouts[i], DIM);
    const double wanted = 1 - (double)dropouts[i], deviation = sqrt(wanted * (1 - wanted) / MASK);
    draw(&p, 1, 0, mask);
    assert_true(fabs(share_of(mask) - wanted) <= 5 * deviation + 0x1p-16);
  }
  free(mask);
}

TEST(every_bit_of_seed_and_offset_counts) {
  const attn_problem p = dropping(0.5f, DIM);
  uint8_t *mask = test_allocate(MASK), *other = test_allocate(MASK);
  draw(&p, 3, 4, mask);
  for (int bit = 0; bit < 128; bit++) {
    draw(&p, bit < 64 ? 3 ^ UINT64_C(1) << bit : 3, bit < 64 ? 4 : 4 ^ UINT64_C(1) << (bit - 64), other);
    double equal = 0;
    for (int64_t n = 0; n < MASK; n++) equal += mask[n] == other[n];
    assert_true(fabs(equal / MASK - 0.5) < 5 * 0.5 / sqrt(MASK));
  }
  free(mask);
  free(other);
}

/* ---- Refusals ---- */

TEST(odd_probabilities_are_refused) {
  static const float odd[] = {-0.1f, 1.0f, NAN};
  for (size_t i = 0; i < COUNT(odd); i++) {
    const attn_problem p = dropping(odd[i], DIM);
    test_invalid(attn_problem_validate(&p), "attn_problem.dropout is", "below 1");
  }
  attn_problem p = dropping(0.1f, DIM);
  p.uses |= ATTN_USE_STATE;
  test_invalid(attn_problem_validate(&p), "attn_problem.dropout is 0.1", "ATTN_USE_STATE");
  p = dropping(0.1f, DIM);
  test_invalid(attn_dropout_mask(&p, 0, 0, NULL), "mask is NULL");
}

static void kernel_says_why(const char *kernel) {
  const attn_problem p = dropping(0.1f, DIM);
  if (takes_dropout(kernel)) return;
  attn_problem plain = p;
  plain.dropout = 0;
  if (!attn_kernel_rejects(attn_kernel_find(kernel), &plain))
    test_contains(attn_kernel_rejects(attn_kernel_find(kernel), &p), "attn_problem.dropout must be 0");
}

KERNEL_TEST(kernel_says_why)
