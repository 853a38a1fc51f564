/* SPDX-License-Identifier: MIT */
/* Which output rows the oracle computes. Of small problems: all. Of larger ones: the rows where kernels change their path
 * (first and last row, borders of common tile heights, borders of masks and lengths), and seeded rows in between. Where
 * even these would take seconds, each head gets some of them. */
#include <math.h>
#include <stdlib.h>

#include "check/expected.h"
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

static void consider_all(candidates *c, const attn_problem *p, const attn_args *args, uint64_t seed, int64_t b, int64_t h) {
  const attn_sequence seq = attn_sequence_of(p, args, b);
  if (c->rows == 0) return;
  consider(c, c->rows - 1);
  consider(c, 0);
  consider_tile_borders(c);
  consider_mask_borders(c, p, &seq);
  consider_seeded_rows(c, seed, b * p->heads_q + h);
}

static double row_cost(const attn_problem *p) { return (double)(p->seq_k + 1) * (double)(p->dim_qk + p->dim_v); }

/* Goes through the rows to check, stores them where expected->row has room, and returns how many there are. share 0: all
 * rows. Else one candidate in `share`; each head starts at another place of its list, so that the heads together cover the
 * list. */
static int64_t choose(bench_expected *expected, const attn_args *args, uint64_t seed, int64_t share) {
  const attn_problem *p = &expected->problem;
  int64_t rows = 0;
  for (int64_t head = 0; head < p->batch * p->heads_q; head++) {
    const int64_t b = head / p->heads_q, h = head % p->heads_q;
    candidates c = {.rows = attn_oracle_f64_rows(p, args, b)};
    if (share) consider_all(&c, p, args, seed, b, h);
    for (int64_t n = share ? head % share : 0; n < (share ? c.count : c.rows); n += share ? share : 1, rows++)
      if (expected->row) expected->row[rows] = (bench_expected_row){.b = b, .h = h, .i = share ? c.row[n] : n};
  }
  return rows;
}

/* 0: all rows may be checked. */
static int64_t choose_share(bench_expected *expected, const attn_args *args, uint64_t seed) {
  const attn_problem *p = &expected->problem;
  double rows = (double)choose(expected, args, seed, 0);
  if (rows * row_cost(p) <= ALL_ROWS_COST && rows * (double)p->dim_v <= MOST_ELEMENTS) return 0;
  rows = (double)choose(expected, args, seed, 1);
  const double by_cost = rows * row_cost(p) / MOST_COST, by_memory = rows * (double)p->dim_v / MOST_ELEMENTS;
  return 1 + (int64_t)fmax(by_cost, by_memory);
}

bool bench_expected_choose(bench_expected *expected, const attn_args *args, uint64_t seed) {
  const int64_t share = choose_share(expected, args, seed), rows = choose(expected, args, seed, share);
  expected->complete = !share;
  expected->row = malloc((size_t)rows * sizeof *expected->row + 1);
  if (expected->row) expected->rows = choose(expected, args, seed, share);
  return expected->row;
}
