/* SPDX-License-Identifier: MIT */
/* attn_score_steps of every tier that this CPU has: masked and adjusted scores to probabilities, against double precision;
 * copies of rows; and the cap that chooses between tiers. The checks of whole library kernels use the best tier only. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/registry/cpu.h"
#include "src/registry/tier_parts.h"
#include "tests/support/support.h"

enum { ROWS = 9, KEYS = 150, STRIDE = 256, BEFORE = 3 };

static void each_tier(void (*check)(const attn_score_steps *steps)) {
  const attn_score_steps *best = NULL;
  for (int tier = 0; attn_tier_isa(tier); tier++) {
    const attn_score_steps *steps = attn_tier_parts_below(attn_tier_isa(tier)).score_steps;
    assert_true(attn_tier_find(steps->isa) <= tier);
    if (strcmp(steps->isa, attn_tier_isa(tier))) continue; /* there are none for this tier, or this CPU lacks it */
    check(steps);
    best = steps; /* tiers go from low to high */
  }
  assert_non_null(best);
  assert_ptr_equal(attn_tier_parts_below(NULL).score_steps, best);
}

/* ---- Softmax ---- */

typedef struct example {
  attn_problem problem;
  attn_args args;
  attn_sequence seq;
  row_block block;
  float raw[ROWS * KEYS], score[ROWS * STRIDE], bias[ROWS * KEYS], slope, row_max[ROWS], row_sum[ROWS * STEPS_LANES];
  uint8_t mask[ROWS * KEYS];
  attn_key_range range[ROWS];
} example;

static void set_up(example *e, uint32_t uses, float softcap) {
  memset(e, 0, sizeof *e);
  attn_problem_init(&e->problem, 1, 1, 1, ROWS, KEYS, 8, 8);
  e->problem.uses = uses;
  e->problem.softcap = softcap;
  test_fill(e->raw, ROWS * KEYS, 3);
  test_fill(e->bias, ROWS * KEYS, 4);
  e->slope = 0.03f;
  for (int n = 0; n < ROWS * KEYS; n++) {
    e->raw[n] *= 6;
    e->mask[n] = n * 7 % 5 != 0;
    if (n % 11 == 0) e->bias[n] = -INFINITY;
  }
  for (int i = 0; i < ROWS; i++) e->range[i] = (attn_key_range){BEFORE + 5 * i, KEYS - 9 * i};
  e->range[4] = (attn_key_range){0, 0};
  for (int n = 0; n < ROWS * STRIDE; n++) e->score[n] = NAN; /* stays in the keys that a row may not see */
  for (int i = 0; i < ROWS; i++)
    for (int64_t j = e->range[i].begin; j < e->range[i].end; j++) e->score[i * STRIDE + j] = e->raw[i * KEYS + j];
  e->args = ATTN_STRUCT(attn_args, .bias = e->bias, .mask = e->mask, .alibi_slopes = &e->slope);
  e->seq = (attn_sequence){.rows = ROWS, .len_q = ROWS, .len_k = KEYS, .offset = 7};
  e->block = (row_block){.problem = &e->problem,
                         .args = &e->args,
                         .seq = &e->seq,
                         .rows = ROWS,
                         .rows_per_head = ROWS,
                         .row_max = e->row_max,
                         .row_sum = e->row_sum,
                         .range = e->range,
                         .score = e->score,
                         .score_stride = STRIDE,
                         .adjusted = uses || softcap > 0};
}

/* The score of a key in natural units; -inf if the row may not see the key. */
static double expected_score(const example *e, int i, int64_t j) {
  const int n = (int)(i * KEYS + j);
  const uint32_t uses = e->problem.uses;
  if (j < e->range[i].begin || j >= e->range[i].end) return -INFINITY;
  if ((uses & ATTN_USE_MASK) && !e->mask[n]) return -INFINITY;
  double s = e->raw[n];
  if (e->problem.softcap > 0) s = e->problem.softcap * tanh(s / e->problem.softcap);
  if (uses & ATTN_USE_BIAS) s += e->bias[n];
  if (uses & ATTN_USE_ALIBI) s -= e->slope * fabs((double)(i + e->seq.offset - j));
  return s;
}

static double row_sum_of(const example *e, int i, int lanes) {
  double sum = 0;
  for (int lane = 0; lane < lanes; lane++) sum += e->row_sum[i * lanes + lane];
  return sum;
}

static void assert_probabilities(const attn_score_steps *steps, const example *e) {
  static const int lanes_of[] = {4, 8, 16};
  for (int i = 0; i < ROWS; i++) {
    const float *p = e->score + i * STRIDE;
    if (e->range[i].begin >= e->range[i].end) {
      for (int j = 0; j < KEYS; j++) assert_true(p[j] == 0.0f);
      continue;
    }
    double largest = -INFINITY, sum = 0, stored = 0;
    for (int j = 0; j < KEYS; j++) largest = fmax(largest, expected_score(e, i, j));
    for (int j = 0; j < KEYS; j++) {
      const double expected = exp(expected_score(e, i, j) - largest);
      if (!(fabs((double)p[j] - expected) <= 2e-5 * expected))
        fail_msg("%s: row %d, key %d: P is %.9g, not %.9g", steps->isa, i, j, (double)p[j], expected);
      sum += expected;
      stored += (double)p[j];
    }
    assert_true(fabs((double)e->row_max[i] * 0.6931471805599453 - largest) < 1e-4);
    bool found = false; /* row_sum holds one partial sum per lane of the tier */
    for (int n = 0; n < 3; n++) found |= fabs(row_sum_of(e, i, lanes_of[n]) - sum) < 1e-4 * sum;
    assert_true(i > 0 || found);
    assert_true(fabs(stored - sum) < 1e-4 * sum);
  }
}

static void softmax_is_right(const attn_score_steps *steps) {
  static const struct {
    uint32_t uses;
    float softcap;
  } kinds[] = {{0, 0},
               {ATTN_USE_MASK, 0},
               {ATTN_USE_BIAS, 0},
               {ATTN_USE_ALIBI, 0},
               {0, 3},
               {ATTN_USE_MASK | ATTN_USE_BIAS | ATTN_USE_ALIBI, 5}};
  static example e;
  for (size_t n = 0; n < COUNT(kinds); n++) {
    set_up(&e, kinds[n].uses, kinds[n].softcap);
    steps->softmax_rows(&e.block, (attn_key_range){0, KEYS}, LOG2_E);
    assert_probabilities(steps, &e);
  }
}

TEST(each_tiers_softmax_is_right) { each_tier(softmax_is_right); }

/* ---- Rows ---- */

static void rows_are_copied(const attn_score_steps *steps) {
  enum { COUNT = 5, COLUMNS = 19, TO = 32 };
  float rows[COUNT * COLUMNS * 2], copy[COUNT * TO];
  uint16_t bf16[COUNT * COLUMNS * 2];
  uint8_t finite[COUNT];
  test_fill(rows, COUNT * COLUMNS * 2, 9);
  for (int n = 0; n < COUNT * COLUMNS * 2; n++) {
    uint32_t bits;
    memcpy(&bits, &rows[n], sizeof bits);
    bf16[n] = (uint16_t)(bits >> 16);
    bits &= 0xffff0000u;
    memcpy(&rows[n], &bits, sizeof bits);
  }
  for (int column_stride = 1; column_stride <= 2; column_stride++)
    for (int half = 0; half < 2; half++) {
      const row_source from = {.from = {half ? (const void *)bf16 : rows, half ? ATTN_BF16 : ATTN_F32},
                               .row_stride = COLUMNS * 2,
                               .column_stride = column_stride,
                               .columns = COLUMNS};
      for (int n = 0; n < COUNT * TO; n++) copy[n] = NAN;
      steps->copy_rows(&from, COUNT, copy, TO, NULL);
      for (int i = 0; i < COUNT; i++)
        for (int d = 0; d < TO; d++) {
          const float expected = d < COLUMNS ? rows[i * COLUMNS * 2 + d * column_stride] : 0.0f;
          if (copy[i * TO + d] != expected) fail_msg("%s: row %d, column %d was copied wrong", steps->isa, i, d);
        }
    }
  const row_source from = {.from = {rows, ATTN_F32}, .row_stride = COLUMNS, .column_stride = 1, .columns = COLUMNS};
  rows[COLUMNS + COLUMNS - 1] = INFINITY;
  rows[3 * COLUMNS] = NAN;
  steps->copy_rows(&from, COUNT, copy, TO, finite);
  for (int i = 0; i < COUNT; i++) {
    assert_int_equal(finite[i], i != 1 && i != 3);
    if (!finite[i])
      for (int d = 0; d < TO; d++) assert_true(copy[i * TO + d] == 0.0f);
  }
}

TEST(each_tier_copies_rows) { each_tier(rows_are_copied); }
