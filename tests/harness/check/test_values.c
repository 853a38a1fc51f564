/* SPDX-License-Identifier: MIT */
/* From values to a verdict: which value is the worst, which sentence names it, and which answers without work would pass. */
#include <math.h>
#include <string.h>

#include "check/check.h"
#include "tests/support/support.h"

enum { KEYS = 3, DIM = 2, MOST = 256 };

/* Two batches of four query heads on two KV heads; every element of V differs, and nothing is dense. */
typedef struct small_case {
  bench_expected expected;
  bench_expected_row row[2];
  double o[4], m[4], w[4], mean_v[4];
  float v[MOST], out[MOST], lse[MOST];
  attn_args args;
} small_case;

static void open_case(small_case *c) {
  *c = (small_case){.row = {{.b = 1, .h = 3, .i = 4}, {.b = 0, .h = 2, .i = 1}}};
  attn_problem *p = &c->expected.problem;
  attn_problem_init(p, 2, 4, 2, 5, KEYS, 8, DIM);
  p->v_stride = (attn_strides){50, 20, 5, 2};
  p->o_stride = (attn_strides){100, 20, 4, 2};
  p->lse_stride = (attn_strides){60, 12, 2, 1};
  for (int i = 0; i < MOST; i++) c->v[i] = (float)(i * i % 97), c->out[i] = c->lse[i] = 99;
  for (int n = 0; n < 2; n++)
    c->row[n].facts =
        (attn_oracle_row){.lse = 2, .abs_sum = 1, .allowed = 3, .max_v = 1, .max_q = 1, .max_k = 1, .exists = true};
  for (int i = 0; i < 4; i++) c->o[i] = 0.5 + i, c->m[i] = 8, c->mean_v[i] = 77;
  c->expected.row = c->row;
  c->expected.rows = 2;
  c->expected.o = c->o, c->expected.m = c->m, c->expected.w = c->w, c->expected.mean_v = c->mean_v;
  c->args = ATTN_STRUCT(attn_args, .v = c->v, .o = c->out, .lse = c->lse);
}

static float *out_of(small_case *c, int n, int d) {
  const bench_expected_row *row = &c->row[n];
  return &c->out[100 * row->b + 20 * row->h + 4 * row->i + 2 * d];
}

static float *lse_of(small_case *c, int n) { return &c->lse[60 * c->row[n].b + 12 * c->row[n].h + 2 * c->row[n].i]; }

static void write_answer(small_case *c) {
  for (int n = 0; n < 2; n++) {
    for (int d = 0; d < DIM; d++) *out_of(c, n, d) = (float)c->o[n * DIM + d];
    *lse_of(c, n) = (float)c->row[n].facts.lse;
  }
}

/* Two rows with the right answer. */
static void open_right_case(small_case *c) {
  open_case(c);
  write_answer(c);
}

static bench_verdict verdict_on(const small_case *c, double store_error) {
  return bench_check_stored_values(&c->expected, &c->args, &(attn_numerics){.exp_error = 0x1p-22}, store_error);
}

static void expect_at(const bench_verdict *v, int64_t b, int64_t h, int64_t i, int64_t column) {
  assert_memory_equal(v->err_index, ((int64_t[4]){b, h, i, column}), sizeof v->err_index);
}

/* ---- The worst value ------------------------------------------------------------------------------------------------- */

/* The verdict names the error that is largest relative to its limit; the largest difference is another error's. */
TEST(the_worst_value_is_the_one_furthest_beyond_its_limit) {
  small_case c;
  open_right_case(&c);
  c.m[3] = 80; /* ten times the limit */
  *out_of(&c, 0, 1) += 0.25f;
  *out_of(&c, 1, 1) -= 0.5f;
  const bench_verdict v = verdict_on(&c, 0);
  assert_int_equal(v.status, BENCH_FAIL);
  expect_at(&v, 1, 3, 4, 1);
  assert_true(v.max_abs_err == 0.5);
  const bench_row_limits limits =
      bench_limits_of_row(&c.expected.problem, &(attn_numerics){.exp_error = 0x1p-22}, &c.row[0].facts, false);
  assert_true(v.max_err_ratio == bench_output_ratio(&limits, 1.5, 8, 0, 1.75));
  test_contains(v.reason, "o[batch 1, head 3, query 4, column 1] is 1.75, should be 1.5: ");
  test_contains(v.reason, " times the error limit; 2 values of 2 rows are beyond theirs");
}

TEST(errors_within_their_limits_are_counted_in_limits) {
  small_case c;
  open_right_case(&c);
  *out_of(&c, 1, 0) += 0x1p-20f;
  const bench_verdict v = verdict_on(&c, 0);
  assert_int_equal(v.status, BENCH_PASS);
  assert_true(v.max_err_ratio > 0 && v.max_err_ratio < 1 && v.max_abs_err == 0x1p-20);
  expect_at(&v, 0, 2, 1, 0);
}

TEST(the_lse_is_compared_where_it_is_asked_for) {
  small_case c;
  open_right_case(&c);
  *lse_of(&c, 1) = 3;
  assert_int_equal(verdict_on(&c, 0).status, BENCH_PASS);
  c.expected.problem.uses |= ATTN_USE_LSE;
  const bench_verdict v = verdict_on(&c, 0);
  assert_int_equal(v.status, BENCH_FAIL);
  expect_at(&v, 0, 2, 1, -1);
  assert_true(v.max_abs_err == 1);
  test_contains(v.reason, "lse[batch 0, head 2, query 1] is 3, should be 2: ");
}

/* The larger one of two errors of storing counts. */
TEST(coarse_stores_widen_the_limit) {
  small_case c;
  open_right_case(&c);
  *out_of(&c, 0, 1) += 0x1p-8f; /* the value is 1.5 */
  assert_int_equal(verdict_on(&c, 0x1p-7).status, BENCH_PASS);
  assert_int_equal(verdict_on(&c, 0x1p-9).status, BENCH_FAIL);
  c.expected.problem.dtype_o = ATTN_BF16;
  uint16_t *narrow = (uint16_t *)c.out;
  for (int n = 0; n < 2; n++)
    for (int d = 0; d < DIM; d++) narrow[100 * c.row[n].b + 20 * c.row[n].h + 4 * c.row[n].i + 2 * d] = 0x3f80; /* 1 */
  for (int i = 0; i < 4; i++) c.o[i] = 1 + 0x1p-9;
  assert_true(verdict_on(&c, 0x1p-20).max_err_ratio < 1);
}

/* ---- Answers without work -------------------------------------------------------------------------------------------- */

static void expect_mean_of_all_keys(small_case *c) {
  write_answer(c);
  const bench_verdict v = verdict_on(c, 0);
  assert_int_equal(v.status, BENCH_DEGENERATE);
  test_contains(v.reason, "the mean of V over all keys would pass as well");
}

/* The mean of each column of V for the row's KV head, by hand; keys that are no numbers do not count. Random cases meet the
 * other answers (test_every_element.c). */
TEST(the_mean_of_all_keys_is_no_answer) {
  static const int64_t first[] = {50 + 20, 20}; /* heads 2 and 3 use KV head 1 */
  small_case c;
  open_case(&c);
  for (int n = 0; n < 2; n++)
    for (int d = 0; d < DIM; d++) {
      double sum = 0;
      for (int j = 0; j < KEYS; j++) sum += (double)c.v[first[n] + 5 * j + 2 * d];
      c.o[n * DIM + d] = sum / KEYS;
      c.m[n * DIM + d] = 80;
    }
  expect_mean_of_all_keys(&c);
  c.v[20] = NAN;
  c.o[2] = ((double)c.v[25] + (double)c.v[30]) / 2;
  expect_mean_of_all_keys(&c);
  c.v[25] = c.v[30] = INFINITY;
  c.o[2] = 0;
  expect_mean_of_all_keys(&c);
  c.o[0] += 1;
  write_answer(&c);
  assert_int_equal(verdict_on(&c, 0).status, BENCH_PASS);
}
