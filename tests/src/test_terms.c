/* SPDX-License-Identifier: MIT */
/* Terms of costs against loops that count: they go through random problems one key, row and tile at a time. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cases/case.h"
#include "kernels/common/problem/terms.h"
#include "tests/support/support.h"

static uint64_t seed;

static int64_t draw(int64_t below) { return (int64_t)(bench_random(&seed) % (uint64_t)below); }

/* Shapes, windows and pieces of keys; rows that see no key, too. */
static attn_problem random_problem(int64_t most_queries) {
  static const uint32_t uses[] = {0, 0, ATTN_USE_MASK, ATTN_USE_BIAS, ATTN_USE_ALIBI};
  attn_problem p;
  const int64_t heads = 1 + draw(3), keys = draw(9) ? draw(600) : 4000 + draw(9000), dim = 64 * (1 + draw(2));
  const bool odd = draw(3) > 0;
  attn_problem_init(&p, 1, heads * (1 + draw(3)), heads, draw(2) ? draw(9) : draw(most_queries + 1), keys,
                    odd ? 1 + draw(200) : dim, odd ? 1 + draw(200) : dim);
  p.dtype_kv = (attn_dtype)draw(3);
  p.uses = uses[draw(COUNT(uses))];
  p.align = draw(2) ? ATTN_ALIGN_BOTTOM_RIGHT : ATTN_ALIGN_TOP_LEFT;
  if (draw(2)) p.window_right = draw(3) ? 0 : draw(50);
  if (draw(2)) p.window_left = draw(draw(2) ? 20 : 400);
  if (p.window_left >= 0 && draw(3) == 0) p.window_first = draw(keys + 9);
  if (draw(4) == 0 && keys > 9) p.key_begin = 1 + draw(8), p.key_end = draw(2) ? 9 + draw(keys) : 0;
  if (draw(6) == 0) p.softcap = 20;
  if (draw(5) == 0) p.score = (attn_score)draw(ATTN_SCORE_PRECOMPUTED + 1);
  return p;
}

/* ---- What loops count ---- */

typedef struct counter {
  const char *const *names;
  int terms;
  double value[ATTN_MAX_TERMS];
} counter;

static void count(counter *c, const char *name, double times) {
  int at = 0;
  while (at < c->terms && strcmp(c->names[at], name) != 0) at++;
  assert_true(at < c->terms);
  c->value[at] += times;
}

static void clear(double terms[ATTN_MAX_TERMS]) {
  for (int i = 0; i < ATTN_MAX_TERMS; i++) terms[i] = -1;
}

/* The terms are what the loops counted, and nothing is written behind them. */
static void check(const counter *c, const double terms[ATTN_MAX_TERMS], const attn_problem *p) {
  for (int i = c->terms; i < ATTN_MAX_TERMS; i++) assert_true(terms[i] == -1);
  for (int i = 0; i < c->terms; i++)
    if (!(fabs(terms[i] - c->value[i]) <= 1e-9 * fabs(c->value[i])))
      fail_msg("%s is %g, counted %g: %d queries, %d keys, window %d..%d, first %d", c->names[i], terms[i], c->value[i],
               (int)p->seq_q, (int)p->seq_k, (int)p->window_left, (int)p->window_right, (int)p->window_first);
}

/* Window and causal mask; keys before `staying` stay where the window has left them behind. */
static bool sees(const attn_problem *p, int64_t row, int64_t key, int64_t staying) {
  const int64_t position = row + (p->align == ATTN_ALIGN_TOP_LEFT ? 0 : p->seq_k - p->seq_q);
  const bool left = p->window_left < 0 || key < staying || key >= position - p->window_left;
  return left && (p->window_right < 0 || key <= position + p->window_right);
}

/* Keys of the problem's piece end here. */
static int64_t last_key(const attn_problem *p) { return p->key_end > 0 && p->key_end < p->seq_k ? p->key_end : p->seq_k; }

static double seen_by_some(const attn_problem *p, int64_t first, int64_t rows) {
  const int64_t end = first + rows < p->seq_q ? first + rows : p->seq_q;
  double keys = 0;
  for (int64_t key = p->key_begin; key < last_key(p); key++) {
    bool some = false;
    for (int64_t row = first; row < end && !some; row++) some = sees(p, row, key, p->window_first);
    keys += some;
  }
  return keys;
}

static bool seen_by_all_rows(const attn_problem *p, int64_t key) {
  bool all = true;
  for (int64_t row = 0; row < p->seq_q && all; row++) all = sees(p, row, key, 0);
  return all;
}

static double seen_by_a_tile(const attn_problem *p, int64_t rows) {
  double keys = 0, tiles = 0;
  for (int64_t first = 0; first < p->seq_q; first += rows, tiles++) keys += seen_by_some(p, first, rows);
  return tiles > 0 ? keys / tiles : 0;
}

/* Groups of so many keys, of which some row sees one. */
static double seen_groups(const attn_problem *p, int64_t of) {
  double groups = 0;
  for (int64_t key = 0, last = -1; key < last_key(p); key++) {
    bool some = false;
    for (int64_t row = 0; row < p->seq_q && !some; row++) some = sees(p, row, key, p->window_first);
    if (key < p->key_begin || !some || key / of == last) continue;
    last = key / of, groups++;
  }
  return groups;
}

static double times_to(double size, int step) {
  double steps = 0;
  while (steps * step < size) steps++;
  return steps;
}

static double up_to(double size, int step) { return step * times_to(size, step); }

static double mean_dim(const attn_problem *p) { return (double)(p->dim_qk + p->dim_v) / 2; }
static double group_of(const attn_problem *p) { return (double)(p->heads_q / p->heads_kv); }
static bool is_ragged(const attn_problem *p) { return p->seq_q > 1 && (p->window_left >= 0 || p->window_right >= 0); }
static bool is_shifted(const attn_problem *p) { return p->uses & (ATTN_USE_MASK | ATTN_USE_BIAS | ATTN_USE_ALIBI); }

static double wide_of(const attn_problem *p, term_widths w) {
  return (up_to((double)p->dim_qk, w.values) + up_to((double)p->dim_v, w.lanes)) / 2;
}

static void count_scores(counter *c, const attn_problem *p, double vectors) {
  count(c, "masked", p->uses & ATTN_USE_MASK ? vectors : 0);
  count(c, "biased", p->uses & ATTN_USE_BIAS ? vectors : 0);
  count(c, "sloped", p->uses & ATTN_USE_ALIBI ? vectors : 0);
  count(c, "capped", p->softcap > 0 ? vectors : 0);
}

/* From a size on, more and more of the elements lie beyond a level: all at twice or four times the size. */
static void count_levels(counter *c, const attn_problem *p, double keys, double packed_bytes, const char *prefix) {
  static const struct {
    const char *name;
    double kib, all_kib;
    bool packed;
  } levels[] = {{"beyond_64k", 64, 256, false}, {"beyond_512k", 512, 2048, false}, {"beyond_8m", 8192, 32768, false},
                {"pass_512k", 512, 1024, true}, {"pass_1m", 1024, 2048, true},     {"pass_2m", 2048, 8192, true}};
  const double bytes = p->dtype_kv == ATTN_F32 ? 4 : 2, kv = (double)p->heads_kv * keys * 2 * mean_dim(p) * bytes;
  for (size_t i = 0; i < COUNT(levels); i++) {
    const double kib = (levels[i].packed ? kv + packed_bytes : kv) / 1024;
    const double share = kib <= levels[i].kib ? 0 : log(kib / levels[i].kib) / log(levels[i].all_kib / levels[i].kib);
    char name[32];
    snprintf(name, sizeof name, "%s%s", prefix, levels[i].name);
    if (!prefix[0] || i == 1 || i == 2) count(c, name, keys * mean_dim(p) * fmin(share, 1));
  }
}

/* ---- Flash ---- */

static void count_flash_tile(counter *c, const attn_problem *p, term_widths w, int panel, double seen, double keys) {
  const bool whole_panels = is_shifted(p) || p->softcap > 0, tail = wide_of(p, w) > mean_dim(p);
  const double wide = wide_of(p, w), blocks = times_to(seen, mean_dim(p) <= 128 ? 256 : 128);
  const double vectors = whole_panels              ? up_to(seen, panel)
                         : seen < (double)p->seq_k ? seen + w.lanes / 2.0
                                                   : up_to(seen, w.lanes);
  count(c, "tile", 1), count(c, "tile_width", wide), count(c, "tile_ragged", is_ragged(p));
  count(c, "tile_key_width", seen * wide), count(c, "tile_vector_width", vectors * wide);
  count(c, "tile_vector", vectors), count(c, "tile_panel", times_to(vectors, panel));
  count(c, "tile_block_width", blocks > 1 ? (blocks - 1) * wide : 0), count(c, "tile_tail", tail ? keys : 0);
  count(c, "shifted_edge", is_shifted(p) && up_to(seen, panel) > seen);
  count_scores(c, p, 6 * vectors / w.lanes);
}

static void count_flash_row(counter *c, const attn_problem *p, term_widths w, double seen, double keys) {
  const double tail = wide_of(p, w) > mean_dim(p);
  count(c, "row", 1), count(c, "row_width", wide_of(p, w)), count(c, "row_tail", tail),
      count(c, "row_key_tail", tail * keys);
  count(c, "additive", p->score == ATTN_SCORE_ADDITIVE ? seen * mean_dim(p) : 0);
  count(c, "gaussian", p->score == ATTN_SCORE_GAUSSIAN ? seen * mean_dim(p) : 0);
  count(c, "given", p->score == ATTN_SCORE_PRECOMPUTED ? seen : 0);
}

/* Up to 4 queries of up to 24 rows: walks over K and V for 4 rows or 3, for 2, and for 1. */
static void count_few_rows(counter *c, const attn_problem *p, term_widths w, int panel, double keys) {
  const double wide = wide_of(p, w), columns = up_to((double)p->dim_v, w.values);
  const double vectors = seen_groups(p, w.lanes), panels = seen_groups(p, panel), met = vectors * w.lanes;
  for (int64_t left = (int64_t)group_of(p) * p->seq_q; left > 0; left -= left > 3 ? 4 : left == 3 ? 3 : left) {
    count(c,
          left > 2    ? "few_4_width"
          : left == 2 ? "few_2_width"
                      : "few_1_width",
          (met * up_to((double)p->dim_qk, w.values) + keys * up_to((double)p->dim_v, w.lanes)) / 2);
    count(c, "few_tail", wide > mean_dim(p) ? keys : 0);
    const int most = (left == 1 ? 8 : (w.lanes == 16 ? 16 : 8) / (left == 2 ? 2 : 4)) * w.lanes;
    for (double done = 0, step; done < columns; done += step, count(c, "few_part", keys))
      step = done + most <= columns ? most : fmin(2 * w.lanes, columns - done);
  }
  for (int64_t row = 0; row < (int64_t)group_of(p) * p->seq_q; row++) {
    count(c, "few_row", 1), count(c, "few_row_width", wide);
    count(c, "few_row_vector", vectors), count(c, "few_row_panel", panels);
    count_scores(c, p, vectors);
  }
}

static bool has_few_rows(const attn_problem *p) {
  return p->score == ATTN_SCORE_DOT && p->seq_q <= 4 && group_of(p) * (double)p->seq_q <= 24;
}

static void count_flash_head(counter *c, const attn_problem *p, term_widths w, int panel, bool few) {
  const double keys = seen_by_some(p, 0, p->seq_q), seen = seen_by_a_tile(p, 6), packed = up_to(keys, w.lanes);
  if (few && has_few_rows(p)) {
    count(c, "head", 1), count_few_rows(c, p, w, panel, keys), count_levels(c, p, keys, 0, "few_");
    return;
  }
  count(c, "head", 1), count(c, "pack_key", packed), count(c, "pack_width", packed * wide_of(p, w));
  count(c, "pack_tail", wide_of(p, w) > mean_dim(p) ? packed : 0);
  for (int64_t g = 0; g < (int64_t)group_of(p); g++)
    for (int64_t row = 0; row < p->seq_q; row++) {
      if (row % 96 == 0) count(c, "task", 1);
      if (row % 6 == 0) count_flash_tile(c, p, w, panel, seen, keys);
      count_flash_row(c, p, w, seen, keys);
    }
  count_levels(c, p, keys, keys * mean_dim(p) * (p->dtype_kv == ATTN_F32 ? 4 : 8), ""); /* K, or K and V, as floats */
}

TEST(flash_is_counted) {
  seed = 3;
  for (int i = 0; i < 300; i++) {
    counter c = {.names = attn_flash_term_names, .terms = FLASH_TERM_COUNT};
    double terms[ATTN_MAX_TERMS];
    const bool few = draw(2);
    const attn_problem p = random_problem(few && draw(2) ? 5 : 96); /* up to 16 tiles: each is looked at */
    const int lanes = 4 << draw(3);
    const term_widths w = {.lanes = lanes, .values = draw(3) ? lanes : 2 * lanes};
    const int panel = w.lanes * (int)(1 + draw(4));
    for (int64_t head = 0; head < p.heads_kv; head++) count_flash_head(&c, &p, w, panel, few);
    count(&c, "call", 1);
    clear(terms);
    attn_flash_terms(&p, w, panel, few, terms);
    check(&c, terms, &p);
  }
}

/* 16 tiles at even distances stand for all. */
TEST(many_tiles_are_estimated) {
  seed = 4;
  for (int i = 0; i < 100; i++) {
    const attn_problem p = random_problem(400);
    const double exact = seen_by_a_tile(&p, 6), error = fabs(attn_tile_keys(&p, 6) - exact);
    if (error > 0.08 * exact + 1) fail_msg("%g of %g keys", attn_tile_keys(&p, 6), exact);
  }
}

/* ---- Decode ---- */

/* Parts of 8, 4, 2 and 1 rows, the largest first. A part may have a row of zeros. */
static double parts_of(int64_t rows, double part[4]) {
  double parts = 0;
  part[0] = part[1] = part[2] = part[3] = 0;
  for (int kind; rows > 0; parts++, part[kind]++) {
    kind = rows >= 7 ? 0 : rows >= 3 ? 1 : rows == 2 ? 2 : 3;
    rows -= 8 >> kind;
  }
  return parts;
}

/* Keys of whole blocks of 32 that all rows see. */
static double blocked_keys(const attn_problem *p, const decode_walk *walk, bool single) {
  const term_widths w = walk->widths;
  const bool usual = p->dim_qk == p->dim_v && (p->dim_v == 64 || p->dim_v == 128) && w.values == w.lanes;
  double keys = 0;
  if (is_shifted(p) || p->softcap > 0 || (single && !usual) || p->seq_q == 0) return 0;
  if (group_of(p) * (double)p->seq_q > (double)walk->block_rows) return 0;
  for (int64_t block = 0, in_row = 0; block + 32 <= last_key(p); block += 32, in_row = 0) {
    for (int64_t key = block; key < block + 32; key++) in_row += key >= p->key_begin && seen_by_all_rows(p, key);
    keys += in_row == 32 ? 32 : 0;
  }
  return keys;
}

static void count_decode_part(counter *c, const attn_problem *p, const decode_walk *walk, int part_rows, double blocks,
                              double rest) {
  const term_widths w = walk->widths;
  const double wide = wide_of(p, w), tail = wide > mean_dim(p);
  const int keys = w.lanes > part_rows ? w.lanes / part_rows : 1; /* in a vector of scores */
  char name[24];
  snprintf(name, sizeof name, "pass_%d", part_rows), count(c, name, 1);
  snprintf(name, sizeof name, "key_%d", part_rows), count(c, name, rest * wide);
  snprintf(name, sizeof name, "block_%d", part_rows), count(c, name, blocks * wide);
  snprintf(name, sizeof name, "block_%d_tail", part_rows);
  if (part_rows > 1) count(c, name, blocks * tail);
  count(c, "score", w.lanes * times_to(rest, keys) * wide), count(c, "key_tail", rest * tail);
  count(c, "row_key_tail", part_rows * rest * tail), count(c, "block_row_key", part_rows * blocks);
  int vecs = 1; /* vectors of O in registers, beside those of the other rows */
  while (2 * vecs * part_rows <= walk->sums) vecs *= 2;
  for (double left = up_to((double)p->dim_v, w.values) / w.lanes; left > 0; left -= vecs) {
    while (vecs > left) vecs /= 2;
    count(c, "key_part", rest), count(c, "block_part", blocks);
  }
  count(c, "block_key", blocks), count(c, "block_joins", blocks > 0 && rest > 0);
}

static void count_decode_head(counter *c, const attn_problem *p, const decode_walk *walk) {
  const term_widths w = walk->widths;
  const double keys = seen_by_some(p, 0, p->seq_q), wide = wide_of(p, w);
  const int64_t rows = (int64_t)group_of(p) * p->seq_q;
  double part[4];
  parts_of(rows, part);
  const double blocks = blocked_keys(p, walk, part[3] > 0), rest = keys - blocks;
  for (int kind = 0; kind < 4; kind++)
    for (int i = 0; i < (int)part[kind]; i++) count_decode_part(c, p, walk, 8 >> kind, blocks, rest);
  for (int64_t row = 0; row < rows; row++) {
    count(c, "row", 1), count(c, "row_width", wide), count(c, "row_tail", wide > mean_dim(p));
    count(c, "row_ragged", is_ragged(p)), count(c, "row_key", w.lanes * seen_groups(p, w.lanes) - blocks);
    count(c, "row_block", seen_groups(p, 32) - blocks / 32);
    for (double split = 1; split < walk->splits; split++) count(c, "split_row", 1), count(c, "split_width", wide);
    count_scores(c, p, times_to(keys, w.lanes));
  }
  count(c, "head", 1), count(c, "key", rest);
  count_levels(c, p, keys, 0, "");
}

TEST(decode_is_counted) {
  seed = 5;
  for (int i = 0; i < 400; i++) {
    counter c = {.names = attn_decode_term_names, .terms = DECODE_TERM_COUNT};
    double terms[ATTN_MAX_TERMS];
    const attn_problem p = random_problem(40);
    const int lanes = 4 << draw(3);
    const decode_walk walk = {{lanes, draw(3) ? lanes : 2 * lanes}, 8 << draw(2), (double)(1 + draw(4)), 8 << draw(4)};
    for (int64_t head = 0; head < p.heads_kv; head++) count_decode_head(&c, &p, &walk);
    count(&c, "call", 1);
    clear(terms);
    attn_decode_terms(&p, &walk, terms);
    check(&c, terms, &p);
  }
}

/* ---- Tiles ---- */

static void count_tiles_head(counter *c, const attn_problem *p, const tile_walk *walk) {
  const term_widths w = {.lanes = walk->width, .values = walk->width};
  const double keys = seen_by_some(p, 0, p->seq_q), wide = wide_of(p, w), met = up_to(walk->seen, walk->keys);
  count(c, "head", 1), count(c, "key", keys), count(c, "key_width", walk->copies ? up_to(keys, walk->keys) * wide : 0);
  for (double tile = 0; tile < walk->tiles; tile++) {
    count(c, "tile", 1), count(c, "tile_width", wide), count(c, "tile_key", met), count(c, "tile_key_width", met * wide);
    count(c, "tile_ragged", is_ragged(p));
  }
  for (int64_t row = 0; row < (int64_t)group_of(p) * p->seq_q; row++) {
    count(c, "row", 1), count(c, "row_width", wide), count(c, "row_tail", wide > mean_dim(p)), count(c, "row_key", met);
    count_scores(c, p, met);
  }
  count_levels(c, p, keys, walk->copies ? keys * mean_dim(p) * (p->dtype_kv == ATTN_F32 ? 4 : 2) : 0, "");
}

TEST(tiles_are_counted) {
  seed = 6;
  for (int i = 0; i < 200; i++) {
    counter c = {.names = attn_tile_term_names, .terms = TILE_TERM_COUNT};
    double terms[ATTN_MAX_TERMS];
    const attn_problem p = random_problem(96);
    const tile_walk walk = {16 << draw(2), 16 << draw(2), (double)draw(9), (double)draw(500) / 2, draw(2)};
    for (int64_t head = 0; head < p.heads_kv; head++) count_tiles_head(&c, &p, &walk);
    count(&c, "call", 1);
    clear(terms);
    attn_tile_terms(&p, &walk, terms);
    check(&c, terms, &p);
  }
}

/* ---- Gradients ---- */

static void count_backward_tile(counter *c, const attn_problem *p, const backward_walk *walk, double seen, double blocks) {
  const bool whole_panels = is_shifted(p) || p->softcap > 0 || p->score != ATTN_SCORE_DOT;
  const double wide_k = up_to((double)p->dim_qk, walk->lanes), wide_v = up_to((double)p->dim_v, walk->lanes);
  const double vectors = whole_panels              ? up_to(seen, walk->panel_keys)
                         : seen < (double)p->seq_k ? seen + walk->lanes / 2.0
                                                   : up_to(seen, walk->lanes);
  count(c, "tile", blocks), count(c, "tile_panel", times_to(vectors, walk->panel_keys)), count(c, "tile_vector", vectors);
  count(c, "tile_vector_width", vectors * mean_dim(p)), count(c, "tile_ragged", is_ragged(p));
  count(c, "tile_key_width", seen * (wide_k + wide_k + wide_v) / 3); /* dQ, dK and dV */
  count_scores(c, p, walk->tile_rows * vectors / walk->lanes);
  count(c, "dropped", p->dropout > 0 ? walk->tile_rows * vectors / walk->lanes : 0);
  if (p->uses & ATTN_USE_D_BIAS) count(c, "again", vectors * mean_dim(p));
  if (p->uses & ATTN_USE_D_ALIBI) count(c, "again", vectors * mean_dim(p));
  if (p->uses & ATTN_USE_D_SCORE_WEIGHT) count(c, "again", vectors * mean_dim(p));
  if (p->score == ATTN_SCORE_PRECOMPUTED) count(c, "again", vectors * mean_dim(p));
}

static void count_backward_row(counter *c, const attn_problem *p, const backward_walk *walk, double seen, double blocks) {
  const double wide_k = up_to((double)p->dim_qk, walk->lanes), wide = (wide_k + up_to((double)p->dim_v, walk->lanes)) / 2;
  const double kept = 8 * fmin((double)walk->rows, (double)p->seq_q) * fmin(seen, (double)walk->keys) / (1 << 19);
  count(c, "row", 1), count(c, "row_width", wide), count(c, "row_tail", wide > mean_dim(p));
  count(c, "range_width", (walk->ranges - 1) * wide_k);
  count(c, "block_row", blocks), count(c, "block_row_width", blocks * wide);
  count(c, "block_row_tail", wide > mean_dim(p) ? blocks : 0);
  count(c, "additive", p->score == ATTN_SCORE_ADDITIVE ? seen * mean_dim(p) : 0);
  count(c, "gaussian", p->score == ATTN_SCORE_GAUSSIAN ? seen * mean_dim(p) : 0);
  count(c, "given", p->score == ATTN_SCORE_PRECOMPUTED ? seen : 0);
  if (kept > 1) count(c, "kept_beyond_512k", seen * fmin(log2(kept) / 3, 1));   /* all beyond 4 MiB, */
  if (kept > 8) count(c, "kept_beyond_8m", seen * fmin(log2(kept / 8) / 3, 1)); /* and from there on beyond 32 MiB */
}

static void count_backward_head(counter *c, const attn_problem *p, const backward_walk *walk) {
  const double keys = seen_by_some(p, 0, p->seq_q), wide_k = up_to((double)p->dim_qk, walk->lanes);
  const double wide = (wide_k + up_to((double)p->dim_v, walk->lanes)) / 2;
  const double seen = seen_by_a_tile(p, walk->in_tiles ? walk->tile_rows : walk->rows < p->seq_q ? walk->rows : p->seq_q);
  const double blocks = seen > 0 ? times_to(seen, (int)walk->keys) : 1;
  count(c, "head", 1), count(c, "key", (double)p->seq_k), count(c, "key_width", wide * (double)p->seq_k);
  count(c, "key_tail", wide > mean_dim(p) ? (double)p->seq_k : 0);
  for (double part = 0; walk->parts > 1 && part < walk->parts; part++) count(c, "part_width", 2 * wide * (double)p->seq_k);
  for (int64_t g = 0; g < (int64_t)group_of(p); g++)
    for (int64_t row = 0; row < p->seq_q; row++) {
      if (row % walk->rows == 0) count(c, "block", blocks);
      if (row % walk->tile_rows == 0) count_backward_tile(c, p, walk, seen, blocks);
      count_backward_row(c, p, walk, seen, blocks);
    }
  count_levels(c, p, keys, group_of(p) * (double)p->seq_q * mean_dim(p) * 8, ""); /* Q and dO beside K and V */
}

TEST(gradients_are_counted) {
  static const uint32_t uses[] = {0, 0, ATTN_USE_D_BIAS, ATTN_USE_D_ALIBI, ATTN_USE_D_SCORE_WEIGHT};
  seed = 7;
  for (int i = 0; i < 200; i++) {
    counter c = {.names = attn_backward_term_names, .terms = BACKWARD_TERM_COUNT};
    double terms[ATTN_MAX_TERMS];
    attn_problem p = random_problem(96);
    p.uses |= uses[draw(COUNT(uses))];
    p.dropout = draw(3) ? 0 : 0.1f;
    const backward_walk walk = {.lanes = 4 << draw(3),
                                .tile_rows = 6 + 2 * (int)draw(2),
                                .panel_keys = 16 << draw(3),
                                .rows = draw(2) ? 192 : 48,
                                .keys = draw(2) ? 192 : 20000,
                                .ranges = (double)(1 + draw(4)),
                                .parts = (double)(1 << draw(3)),
                                .in_tiles = draw(2)};
    for (int64_t head = 0; head < p.heads_kv; head++) count_backward_head(&c, &p, &walk);
    count(&c, "call", 1);
    clear(terms);
    attn_backward_terms(&p, &walk, terms);
    check(&c, terms, &p);
  }
}
