/* SPDX-License-Identifier: MIT */
/* Rows between dense layers (attn/rows.h). float32 rows are compared with the float64 oracle; rows of every type, in every
 * tier, have the bits that float32 rows give, rounded once. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn/rows.h"
#include "kernels/common/problem/convert.h"
#include "tests/support/nn_support.h"

enum { ROWS = 3, LONGEST = 8229 }; /* beyond two chunks, and not whole vectors */
static const int64_t widths[] = {1, 3, 16, 33, 300, 4096, 4099, LONGEST};
static const attn_dtype types[] = {ATTN_F32, ATTN_BF16, ATTN_F16};

static float gain[LONGEST], bias[LONGEST];

/* ---- float32 against the oracle ---- */

static attn_nn_field oracle(const float *x, const float *other, int64_t width, attn_norm_kind kind, const attn_norm *norm) {
  attn_nn_field a = attn_nn_field_of(x, ROWS, width), b = attn_nn_field_of(other, ROWS, width);
  attn_nn_field sum = attn_nn_oracle_add(&a, &b);
  attn_nn_field y = kind == ATTN_NORM_RMS ? attn_nn_oracle_rms_norm(&sum, norm) : attn_nn_oracle_layer_norm(&sum, norm);
  nn_destroy(&a, &b, &sum);
  return y;
}

TEST(float_rows_follow_the_formulas) {
  test_fill(gain, LONGEST, 1);
  test_fill(bias, LONGEST, 2);
  const attn_norm norm = {gain, bias, 1e-5f}, no_bias = {gain, NULL, 1e-5f};
  for (size_t w = 0; w < COUNT(widths); w++)
    for (int kind = ATTN_NORM_LAYER; kind <= ATTN_NORM_RMS; kind++) {
      const int64_t width = widths[w], count = ROWS * width;
      float *x = nn_random(count, 3), *other = nn_random(count, 4), *y = nn_random(count, 5);
      for (int64_t i = 0; i < count; i++) x[i] += 100; /* far from 0 */
      test_ok(attn_row_join_run(&ATTN_STRUCT(attn_row_join, .rows = ROWS, .width = width, .norm_kind = (attn_norm_kind)kind,
                                             .norm = norm, .x = x, .other = other, .y = y),
                                NULL));
      nn_passes(oracle(x, other, width, (attn_norm_kind)kind, &norm), y);
      nn_rejected(oracle(x, other, width, (attn_norm_kind)kind, &no_bias), y);
      if (width > 1)
        nn_rejected(oracle(x, other, width, (attn_norm_kind)(ATTN_NORM_LAYER + ATTN_NORM_RMS - kind), &norm), y);
    }
}

TEST(products_are_exact) {
  float *x = nn_random(ROWS * 33, 3), *other = nn_random(ROWS * 33, 4), y[ROWS * 33];
  test_ok(attn_row_join_run(
      &ATTN_STRUCT(attn_row_join, .rows = ROWS, .width = 33, .kind = ATTN_JOIN_MULTIPLY, .x = x, .other = other, .y = y),
      NULL));
  for (int i = 0; i < ROWS * 33; i++) assert_true(y[i] == x[i] * other[i]);
}

/* ---- Every type in every tier ---- */

/* Arrays of one join: in float32, and in its types. */
typedef struct rows {
  float *floats;
  void *given;
  attn_dtype dtype;
} rows;

/* Values that the type has, so that both arrays hold the same. */
static rows make(attn_dtype dtype, int64_t count, unsigned seed) {
  rows r = {nn_random(count, seed), calloc((size_t)count, sizeof(float)), dtype};
  assert_non_null(r.given);
  for (int64_t i = 0; i < count; i++) {
    attn_store_f32(r.given, dtype, i, r.floats[i]);
    r.floats[i] = attn_load_f32((attn_storage){r.given, dtype}, i);
  }
  return r;
}

/* The given rows are the float ones, rounded. */
static void check_rounded(const char *what, const char *tier, const rows *r, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    float expected[1] = {0};
    attn_store_f32(expected, r->dtype, 0, r->floats[i]);
    if (memcmp(attn_element_at(r->given, r->dtype, i), expected, (size_t)attn_elements_bytes(r->dtype, 1)) != 0)
      fail_msg("%s of type %d in tier %s: element %lld is not %g, rounded", what, (int)r->dtype, tier, (long long)i,
               (double)r->floats[i]);
  }
}

/* in_place: y is x, and sum is other, where their types are the same. */
static void check_join(const char *tier, attn_row_join j, bool has_other, bool has_sum, bool in_place) {
  const int64_t count = j.rows * j.width;
  rows x = make(j.dtype_x, count, 6), other = make(j.dtype_other, count, 7);
  rows sum = make(j.dtype_sum, count, 8), y = make(j.dtype_y, count, 9);
  const bool y_is_x = in_place && j.dtype_y == j.dtype_x, sum_is_other = in_place && j.dtype_sum == j.dtype_other;
  attn_row_join plain = j;
  plain.dtype_x = plain.dtype_other = plain.dtype_sum = plain.dtype_y = ATTN_F32;
  plain.x = x.floats, plain.other = has_other ? other.floats : NULL, plain.sum = sum.floats, plain.y = y.floats;
  test_ok(attn_row_join_run(&plain, &ATTN_STRUCT(attn_options, .max_isa = "c", .threads = 1)));
  void *const y_at = y_is_x ? x.given : y.given, *const sum_at = sum_is_other ? other.given : sum.given;
  j.x = x.given, j.other = has_other ? other.given : NULL, j.sum = has_sum ? sum_at : NULL, j.y = y_at;
  test_ok(attn_row_join_run(&j, &ATTN_STRUCT(attn_options, .max_isa = tier, .threads = 2)));
  check_rounded("y", tier, &(rows){y.floats, y_at, j.dtype_y}, count);
  if (has_sum) check_rounded("sum", tier, &(rows){sum.floats, sum_at, j.dtype_sum}, count);
  void *const arrays[] = {x.given, other.given, sum.given, y.given};
  for (int i = 0; i < 4; i++) free(arrays[i]);
}

/* Every type of x with every norm, with and without a sum, another operand and places in common: each of these with each
 * other. The types of the other arrays go along. */
TEST(every_tier_rounds_the_same_floats) {
  char tiers[16][16];
  const int tier_count = test_tiers(tiers);
  test_fill(gain, LONGEST, 1);
  test_fill(bias, LONGEST, 2);
  for (size_t w = 0; w < COUNT(widths); w++)
    for (unsigned n = 0; n < 3 * 3 * 2 * 3 * 2; n++) {
      const unsigned norm = n / 3 % 3, sum = n / 9 % 2, other = n / 18 % 3, in_place = n / 54;
      attn_row_join j = {.struct_size = sizeof j, .rows = ROWS, .width = widths[w], .norm_kind = (attn_norm_kind)norm};
      j.norm = (attn_norm){(n + w) % 2 ? gain : NULL, (n + w) % 5 ? bias : NULL, 1e-5f};
      j.kind = other == 2 ? ATTN_JOIN_MULTIPLY : ATTN_JOIN_ADD;
      j.dtype_x = types[n % 3];
      j.dtype_other = types[(n + w + norm) % 3];
      j.dtype_sum = types[(n / 3 + w) % 3];
      j.dtype_y = types[(n / 9 + w + norm) % 3];
      for (int i = test_few() ? tier_count - 1 : 0; i < tier_count; i++) check_join(tiers[i], j, other, sum, in_place);
    }
}

/* A norm spreads a NaN over its whole row, but to no other; so does an infinity, but for root mean squares, which are then
 * infinite. */
TEST(what_is_not_finite_spoils_its_row) {
  enum { WIDTH = 100 };
  static const float values[] = {NAN, INFINITY, -INFINITY};
  char tiers[16][16];
  const int tier_count = test_tiers(tiers);
  for (int n = 0; n < tier_count * 6; n++) {
    float *x = nn_random(ROWS * WIDTH, 1), y[ROWS * WIDTH];
    const float value = values[n % 3];
    x[WIDTH + 37] = value;
    const attn_row_join j =
        ATTN_STRUCT(attn_row_join, .rows = ROWS, .width = WIDTH, .norm_kind = n / 3 % 2 ? ATTN_NORM_RMS : ATTN_NORM_LAYER,
                    .norm = {.epsilon = 1e-5f}, .x = x, .y = y);
    test_ok(attn_row_join_run(&j, &ATTN_STRUCT(attn_options, .max_isa = tiers[n / 6])));
    for (int i = 0; i < ROWS * WIDTH; i++) {
      const bool spoilt = i / WIDTH == 1 && (isnan(value) || j.norm_kind == ATTN_NORM_LAYER || i == WIDTH + 37);
      assert_int_equal(isnan(y[i]) != 0, spoilt);
    }
  }
}

/* Many rows over threads: each has the bits that it has alone. */
TEST(rows_are_shared_among_threads) {
  enum { MANY = 100, WIDTH = 700 };
  float *x = nn_random(MANY * WIDTH, 1), *alone = nn_random(MANY * WIDTH, 2), *y = nn_random(MANY * WIDTH, 3);
  const attn_options three = ATTN_STRUCT(attn_options, .threads = 3);
  attn_row_join j = ATTN_STRUCT(attn_row_join, .rows = MANY, .width = WIDTH, .norm_kind = ATTN_NORM_LAYER,
                                .norm = {.epsilon = 1e-5f}, .x = x, .y = y);
  test_ok(attn_row_join_run(&j, &three));
  for (int row = 0; row < MANY; row++) {
    attn_row_join one = j;
    one.rows = 1, one.x = x + row * WIDTH, one.y = alone + row * WIDTH;
    test_ok(attn_row_join_run(&one, NULL));
  }
  assert_memory_equal(y, alone, MANY * WIDTH * sizeof *y);
}

/* ---- Errors ---- */

#define REFUSED(change, part)                          \
  do {                                                 \
    attn_row_join bad = good;                          \
    bad.change;                                        \
    test_invalid(attn_row_join_run(&bad, NULL), part); \
  } while (0)

TEST(bad_joins_are_refused) {
  static float x[16], y[16], sum[16];
  const attn_row_join good =
      ATTN_STRUCT(attn_row_join, .rows = 2, .width = 4, .norm_kind = ATTN_NORM_RMS, .x = x, .other = x, .sum = sum, .y = y);
  test_ok(attn_row_join_run(&good, NULL));
  test_invalid(attn_row_join_run(NULL, NULL), "join is NULL");
  REFUSED(struct_size = 5, "struct_size");
  REFUSED(rows = -1, "rows is -1");
  REFUSED(rows = ((int64_t)1 << 56) + 1, "it must be in 0..72057594037927936, for 2^58 elements");
  REFUSED(width = 0, "width is 0");
  REFUSED(width = ((int64_t)1 << 31) + 1, "1..2^31");
  REFUSED(kind = (attn_join_kind)2, "kind is 2");
  REFUSED(norm_kind = (attn_norm_kind)3, "norm_kind is 3");
  REFUSED(norm.epsilon = -1, "epsilon is -1");
  REFUSED(norm.epsilon = NAN, "epsilon is nan");
  REFUSED(x = NULL, "x is NULL");
  REFUSED(y = NULL, "y is NULL");
  REFUSED(y = sum, "sum and y overlap");
  REFUSED(y = sum + 7, "sum and y overlap");
  REFUSED(y = x + 1, "attn_row_join.y is 0x");
  REFUSED(sum = x + 7, "they must not overlap unless they are the same array of one type");
  REFUSED(norm.gain = (float *)((char *)y + 1), "attn_norm.gain is 0x");
  REFUSED(norm.bias = (float *)((char *)y + 2), "attn_norm.bias is 0x");
  REFUSED(dtype_x = ATTN_I8, "dtype_x is");
  REFUSED(dtype_other = ATTN_F8_E4M3, "dtype_other is");
  REFUSED(dtype_sum = ATTN_I8, "dtype_sum is");
  REFUSED(dtype_y = (attn_dtype)-1, "dtype_y is -1");
  REFUSED(y = (char *)y + 2, "y is 0x");
  REFUSED(kind = ATTN_JOIN_MULTIPLY; bad.other = NULL, "other is NULL");
  REFUSED(dtype_y = ATTN_BF16; bad.y = x, "attn_row_join.y is 0x");
  REFUSED(dtype_sum = ATTN_BF16; bad.sum = x, "attn_row_join.sum is 0x");
  attn_row_join none = good;
  none.rows = 0, none.x = none.y = none.sum = NULL;
  test_ok(attn_row_join_run(&none, NULL));
  none.norm.epsilon = -1;
  none.norm_kind = ATTN_NORM_NONE; /* not read */
  test_ok(attn_row_join_run(&none, NULL));
  test_invalid(attn_row_join_run(&good, &ATTN_STRUCT(attn_options, .threads = -1)), "threads is -1");
  const attn_options no_tier = ATTN_STRUCT(attn_options, .max_isa = "sse9");
  test_invalid(attn_row_join_run(&good, &no_tier), "sse9");
  assert_true(!attn_row_join_choose(&no_tier));
  attn_row_join chosen = good; /* a function needs no tier any more */
  chosen.function = attn_row_join_choose(NULL);
  test_ok(attn_row_join_run(&chosen, &no_tier));
}
