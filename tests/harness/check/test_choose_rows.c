/* SPDX-License-Identifier: MIT */
/* Which rows the oracle computes: all of them up to a cost, else those where kernels change their path, and seeded ones. */
#include <stdlib.h>
#include <string.h>

#include "check/check.h"
#include "data/generate.h"
#include "tests/support/support.h"

enum { SEEDED = 64, MOST_ROWS = 4096, SEED = 3 };

static attn_problem problem_of(int64_t heads, int64_t seq_q, int64_t seq_k, int64_t dim) {
  attn_problem problem;
  attn_problem_init(&problem, 1, heads, heads, seq_q, seq_k, dim, dim);
  return problem;
}

static bench_expected chosen(const attn_problem *problem, const attn_args *args) {
  bench_expected expected = {.problem = *problem};
  assert_true(bench_expected_choose(&expected, args, SEED));
  return expected;
}

/* ---- All rows -------------------------------------------------------------------------------------------------------- */

TEST(no_rows_are_all_rows) {
  const attn_problem p = problem_of(1, 0, 5, 8);
  bench_expected e = chosen(&p, &(attn_args){0});
  assert_true(e.complete && e.rows == 0);
  free(e.row);
}

/* 1e8 multiply-adds, with one key more than there are; or 2e6 outputs. */
TEST(all_rows_are_chosen_up_to_a_cost) {
  for (int64_t more = 0; more < 2; more++) {
    const attn_problem costly = problem_of(1, 100 + more, 9999, 50);
    attn_problem large = problem_of(1, 2000 + more, 1, 1);
    large.dim_v = 1000;
    const attn_problem *const problems[] = {&costly, &large};
    for (int i = 0; i < 2; i++) {
      bench_expected e = chosen(problems[i], &(attn_args){0});
      assert_int_equal(e.complete, !more);
      if (!more) assert_int_equal(e.rows, problems[i]->seq_q);
      free(e.row);
    }
  }
}

/* ---- Some of them ---------------------------------------------------------------------------------------------------- */

/* The rows of one head that should be chosen. */
typedef struct rows {
  bool is[MOST_ROWS];
  int64_t count; /* among the problem's rows */
} rows;

static void mark(rows *r, int64_t i) {
  if (i >= 0 && i < r->count) r->is[i] = true;
}

static void mark_border(rows *r, int64_t i) {
  for (int64_t n = i - 1; n <= i + 1; n++) mark(r, n);
}

static void mark_seeded(rows *r, int64_t head) {
  for (int64_t n = 0; n < SEEDED; n++)
    mark(r, bench_value_below(SEED, BENCH_STREAM_CHECKED_ROWS, (uint64_t)(head * SEEDED + n), r->count));
}

static void mark_tiles(rows *r) {
  static const int64_t heights[] = {6, 16, 64, 96, 128, 256};
  mark(r, 0);
  mark(r, r->count - 1);
  for (size_t t = 0; t < sizeof heights / sizeof *heights; t++) {
    mark_border(r, heights[t]);
    mark_border(r, r->count - r->count % heights[t]);
  }
}

static rows rows_of_tiles(const attn_problem *p, int64_t head) {
  rows r = {.count = p->seq_q};
  mark_tiles(&r);
  mark_seeded(&r, head);
  return r;
}

static int64_t size_of(const rows *r) {
  int64_t size = 0;
  for (int64_t i = 0; i < r->count; i++) size += r->is[i];
  return size;
}

/* A choice of one head holds the rows in question and no others, none twice. */
static void expect_rows(const attn_problem *p, const attn_args *args, const rows *wanted) {
  bench_expected e = chosen(p, args);
  assert_false(e.complete);
  assert_int_equal(e.rows, size_of(wanted));
  for (int64_t n = 0; n < e.rows; n++) {
    assert_true(e.row[n].b == 0 && e.row[n].h == 0 && wanted->is[e.row[n].i]);
    for (int64_t other = 0; other < n; other++) assert_true(e.row[other].i != e.row[n].i);
  }
  free(e.row);
}

TEST(large_problems_have_the_borders_of_tiles_and_seeded_rows) {
  const attn_problem p = problem_of(1, 2999, 2999, 32);
  const rows r = rows_of_tiles(&p, 0);
  assert_true(size_of(&r) > 80 && size_of(&r) < 160);
  expect_rows(&p, &(attn_args){0}, &r);
}

/* Query 0 stands at key 400 of 2400. */
TEST(large_problems_have_the_borders_of_windows) {
  attn_problem p = problem_of(1, 2000, 2400, 32);
  p.align = ATTN_ALIGN_BOTTOM_RIGHT; /* offset 400 */
  p.window_left = 1000;
  rows r = rows_of_tiles(&p, 0);
  mark_border(&r, 2000);              /* the end of the queries */
  mark_border(&r, 1000 - 400);        /* position 1000 is the last that sees key 0 */
  mark_border(&r, 2400 - 400 + 1000); /* beyond the rows */
  expect_rows(&p, &(attn_args){0}, &r);
  p.window_right = 700;
  mark_border(&r, -400 - 700);       /* before the rows */
  mark_border(&r, 2400 - 400 - 700); /* position 1700 is the first that sees the last key */
  expect_rows(&p, &(attn_args){0}, &r);
  p.window_first = 500, p.key_begin = 100, p.key_end = 2300;
  mark_border(&r, 500 - 400 + 1000); /* the last that sees keys beside the first 500, that stay */
  mark_border(&r, 100 - 400 + 1000); /* the piece begins and ends */
  mark_border(&r, 2300 - 400 - 700);
  expect_rows(&p, &(attn_args){0}, &r);
  p.window_first = p.key_begin = p.key_end = 0;
  p.window_left = -1;
  p.window_right = 0;
  rows causal = rows_of_tiles(&p, 0);
  mark_border(&causal, 2000);
  expect_rows(&p, &(attn_args){0}, &causal);
}

TEST(large_problems_have_the_borders_of_lengths) {
  static const int32_t q_len[] = {1234}, kv_len[] = {1500}, offsets[] = {-300};
  attn_problem p = problem_of(1, 1997, 2400, 32);
  p.uses = ATTN_USE_Q_LEN | ATTN_USE_KV_LEN;
  p.align = ATTN_ALIGN_OFFSET;
  p.window_right = 0;
  rows r = rows_of_tiles(&p, 0);
  mark_border(&r, 1234);
  mark_border(&r, 300);        /* the first row that sees a key */
  mark_border(&r, 1500 + 300); /* the first that sees them all */
  expect_rows(&p, &ATTN_STRUCT(attn_args, .q_len = q_len, .kv_len = kv_len, .offsets = offsets), &r);
  p.window_left = 0; /* the other side of the diagonal has the same borders */
  p.window_right = -1;
  expect_rows(&p, &ATTN_STRUCT(attn_args, .q_len = q_len, .kv_len = kv_len, .offsets = offsets), &r);
}

/* The batch has sequences of 3000, 0, 1 and 2 tokens. */
TEST(short_sequences_beside_long_ones_have_all_their_rows) {
  static const int32_t cu[] = {0, 3000, 3000, 3001, 3003};
  static const int64_t wanted[] = {0, 1, 2};
  attn_problem p = problem_of(1, 3000, 3000, 64);
  p.batch = 4;
  p.uses = ATTN_USE_VARLEN;
  bench_expected e = chosen(&p, &ATTN_STRUCT(attn_args, .cu_seqlens_q = cu, .cu_seqlens_k = cu));
  assert_false(e.complete);
  for (int64_t b = 1; b < 4; b++) {
    int64_t found = 0;
    for (int64_t n = 0; n < e.rows; n++) found += e.row[n].b == b;
    assert_int_equal(found, wanted[b - 1]);
  }
  free(e.row);
}

/* The widest windows neither overflow nor add rows. */
TEST(the_widest_windows_have_no_borders) {
  attn_problem p = problem_of(1, 2999, 2999, 32);
  p.window_left = p.window_right = INT64_MAX;
  const rows r = rows_of_tiles(&p, 0);
  expect_rows(&p, &(attn_args){0}, &r);
}

/* ---- Where even these would take long ------------------------------------------------------------------------------- */

/* Each head has one candidate in `share`, beginning at another; all heads together have every border. */
static void expect_share(const attn_problem *p, int64_t share) {
  bench_expected e = chosen(p, &(attn_args){0});
  rows seen = {.count = p->seq_q}, borders = {.count = p->seq_q};
  int64_t total = 0, n = 0;
  for (int64_t head = 0; head < p->batch * p->heads_q; head++) {
    const rows r = rows_of_tiles(p, head);
    const int64_t size = size_of(&r), first = n;
    total += (size - head % share + share - 1) / share;
    for (; n < e.rows && e.row[n].b * p->heads_q + e.row[n].h == head; n++) {
      assert_true(r.is[e.row[n].i]);
      mark(&seen, e.row[n].i);
    }
    assert_int_equal(n - first, (size - head % share + share - 1) / share);
  }
  assert_int_equal(e.rows, total);
  assert_false(e.complete);
  mark_tiles(&borders);
  for (int64_t i = 0; i < p->seq_q; i++) assert_true(seen.is[i] || !borders.is[i]);
  free(e.row);
}

static int64_t candidates_of(const attn_problem *p) {
  int64_t candidates = 0;
  for (int64_t head = 0; head < p->batch * p->heads_q; head++) {
    const rows r = rows_of_tiles(p, head);
    candidates += size_of(&r);
  }
  return candidates;
}

/* 4e8 multiply-adds. */
TEST(heads_share_what_would_cost_too_much) {
  attn_problem p = problem_of(4, 3000, 99999, 10);
  p.batch = 2;
  const int64_t share = 1 + candidates_of(&p) * 100000 * 20 / 400000000;
  assert_true(share > 2 && share <= 8);
  expect_share(&p, share);
}

/* 2e6 outputs. */
TEST(heads_share_what_would_need_too_much_memory) {
  attn_problem p = problem_of(8, 3000, 1, 1);
  p.dim_v = 8000;
  const int64_t share = 1 + candidates_of(&p) * 8000 / 2000000;
  assert_true(share > 2 && share <= 8);
  expect_share(&p, share);
}
