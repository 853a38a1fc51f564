/* SPDX-License-Identifier: MIT */
/* Which output rows the oracle computes. Of small problems: all. Of larger ones: the rows where kernels change their path
 * (first and last row, borders of common tile heights, borders of masks and lengths), and seeded rows in between. Where
 * even these would take seconds, each head gets some of them. */
#include <math.h>
#include <stdlib.h>

#include "check/check_private.h"
#include "data/generate.h"
#include "kernels/common/indexing.h"

static const double ALL_ROWS_COST = 1e8; /* multiply-adds up to which every row is checked */
static const double MOST_COST = 4e8;     /* multiply-adds of the oracle for one problem: one or two seconds of one core */
static const double MOST_ELEMENTS = 2e6; /* outputs kept: 64 MB of doubles */

enum { SEEDED_ROWS = 64, MOST_CANDIDATES = 160 };

typedef struct candidates {
  int64_t row[MOST_CANDIDATES];
  int count;
  int64_t rows; /* of the sequence: candidates are in 0 .. rows - 1 */
} candidates;

static void consider(candidates *c, int64_t i) {
  if (i < 0 || i >= c->rows || c->count == MOST_CANDIDATES) return;
  for (int known = 0; known < c->count; known++)
    if (c->row[known] == i) return;
  c->row[c->count++] = i;
}

static void consider_border(candidates *c, int64_t i) {
  for (int step = -1; step <= 1; step++) consider(c, attn_saturating_add(i, step));
}

/* The rows at which one side of the window passes the first or the last key. */
static void consider_window(candidates *c, const attn_sequence *seq, int64_t window) {
  consider_border(c, attn_saturating_add(attn_saturating_add(0, -seq->offset), window));
  consider_border(c, attn_saturating_add(attn_saturating_add(seq->len_k, -seq->offset), window));
}

/* Rows around which the set of allowed keys starts, stops growing or ends; positions are i + offset. */
static void consider_mask_borders(candidates *c, const attn_problem *p, const attn_sequence *seq) {
  consider_border(c, seq->len_q);
  if (p->window_left >= 0) consider_window(c, seq, p->window_left);
  if (p->window_right >= 0) consider_window(c, seq, -p->window_right);
}

static void consider_tile_borders(candidates *c) {
  static const int64_t tile_heights[] = {6, 16, 64, 96, 128, 256};
  for (size_t t = 0; t < sizeof tile_heights / sizeof *tile_heights; t++) {
    consider_border(c, tile_heights[t]);
    consider_border(c, c->rows / tile_heights[t] * tile_heights[t]);
  }
}

static void consider_seeded_rows(candidates *c, uint64_t seed, int64_t head_of_batch) {
  for (int s = 0; s < SEEDED_ROWS; s++) {
    const uint64_t index = (uint64_t)(head_of_batch * SEEDED_ROWS + s);
    consider(c, bench_value_below(seed, BENCH_STREAM_CHECKED_ROWS, index, c->rows));
  }
}

static candidates candidates_of(const attn_problem *p, const attn_args *args, uint64_t seed, int64_t b, int64_t h) {
  const attn_sequence seq = attn_sequence_of(p, args, b);
  candidates c = {.rows = attn_oracle_f64_rows(p, args, b)};
  if (c.rows == 0) return c;
  consider(&c, c.rows - 1);
  consider(&c, 0);
  consider_tile_borders(&c);
  consider_mask_borders(&c, p, &seq);
  consider_seeded_rows(&c, seed, b * p->heads_q + h);
  return c;
}

/* Doubles the room for rows. */
static bool grow(bench_expected *expected, int64_t *capacity) {
  const int64_t more = *capacity * 2 + 64;
  bench_expected_row *row = realloc(expected->row, (size_t)more * sizeof *row);
  if (!row) return false;
  expected->row = row;
  *capacity = more;
  return true;
}

static bool append(bench_expected *expected, int64_t *capacity, int64_t b, int64_t h, int64_t i) {
  if (expected->rows == *capacity && !grow(expected, capacity)) return false;
  expected->row[expected->rows++] = (bench_expected_row){.b = b, .h = h, .i = i};
  return true;
}

static double row_cost(const attn_problem *p) { return (double)(p->seq_k + 1) * (double)(p->dim_qk + p->dim_v); }

static bool choose_all(bench_expected *expected, const attn_args *args) {
  const attn_problem *p = &expected->problem;
  int64_t capacity = 0;
  for (int64_t b = 0; b < p->batch; b++)
    for (int64_t h = 0; h < p->heads_q; h++)
      for (int64_t i = 0; i < attn_oracle_f64_rows(p, args, b); i++)
        if (!append(expected, &capacity, b, h, i)) return false;
  return true;
}

static double count_candidates(const attn_problem *p, const attn_args *args, uint64_t seed) {
  double count = 0.0;
  for (int64_t b = 0; b < p->batch; b++)
    for (int64_t h = 0; h < p->heads_q; h++) count += candidates_of(p, args, seed, b, h).count;
  return count;
}

/* Keeps one candidate in `share`. Each head starts at another place of its list, so that the heads together cover the
 * list. */
static bool choose_some(bench_expected *expected, const attn_args *args, uint64_t seed, int64_t share) {
  const attn_problem *p = &expected->problem;
  int64_t capacity = 0, turn = 0;
  for (int64_t b = 0; b < p->batch; b++)
    for (int64_t h = 0; h < p->heads_q; h++, turn++) {
      candidates c = candidates_of(p, args, seed, b, h);
      for (int64_t n = turn % share; n < c.count; n += share)
        if (!append(expected, &capacity, b, h, c.row[n])) return false;
    }
  return true;
}

bool bench_expected_choose(bench_expected *expected, const attn_args *args, uint64_t seed) {
  const attn_problem *p = &expected->problem;
  double rows = 0.0;
  for (int64_t b = 0; b < p->batch; b++) rows += (double)p->heads_q * (double)attn_oracle_f64_rows(p, args, b);
  if (rows * row_cost(p) <= ALL_ROWS_COST && rows * (double)p->dim_v <= MOST_ELEMENTS) return choose_all(expected, args);

  rows = count_candidates(p, args, seed);
  double by_cost = rows * row_cost(p) / MOST_COST, by_memory = rows * (double)p->dim_v / MOST_ELEMENTS;
  return choose_some(expected, args, seed, 1 + (int64_t)fmax(by_cost, by_memory));
}
