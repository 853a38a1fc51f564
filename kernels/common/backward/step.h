/* SPDX-License-Identifier: MIT */
/* flash_backward: P and dS of a step, a block of queries against a block of keys, tile by tile.
 *
 * Parameters: those of tiles.h. */
#ifndef ATTN_COMMON_BACKWARD_STEP_H
#define ATTN_COMMON_BACKWARD_STEP_H

#ifdef PAIR_OPERANDS
#include "pair_operands.h"
#else
#include "float_operands.h"
#endif

static ALWAYS_INLINE void start_tile(vec sum[TILE_ROWS][TILE_VECS], const float *start, const int vecs) {
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    UNROLL
    for (int v = 0; v < vecs; v++) sum[i][v] = vec_set1(start[i]);
  }
}

/* Sums begin with -lse where K has the factor of scores already, else scores get both behind the product. */
static ALWAYS_INLINE void start_scores(const backward_step *s, int64_t tile_row, vec sum[TILE_ROWS][TILE_VECS],
                                       const int vecs) {
  static const float zeros[TILE_ROWS] = {0};
  start_tile(sum, K_HAS_FACTOR ? s->minus_lse + tile_row : zeros, vecs);
}

static ALWAYS_INLINE void finish_scores(const backward_step *s, int64_t row, vec *sum, const int vecs) {
  if (K_HAS_FACTOR) return;
  const vec factor = vec_set1(s->block.problem->scale * LOG2_E), minus_lse = vec_set1(s->minus_lse[row]);
  UNROLL
  for (int v = 0; v < vecs; v++) sum[v] = vec_fma(sum[v], factor, minus_lse);
}

/* P of a panel's first `vecs` vectors; `key` counts from the block's first. `edge`: not every row sees all of them. */
static ALWAYS_INLINE void p_tile(const backward_step *s, int64_t tile_row, int64_t key, const bool edge, const int vecs) {
  const int64_t depth = elements_of(s->block.problem->dim_qk);
  vec sum[TILE_ROWS][TILE_VECS];
  start_scores(s, tile_row, sum, vecs);
  product(sum, tile_of(&s->q.along, tile_row), (float_rows){s->k_panels + key * depth, PANEL_KEYS}, depth, vecs);
  float *p = s->p + scores_of_tile(tile_row) + key;
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    finish_scores(s, tile_row + i, sum[i], vecs);
    if (edge) select_allowed_vecs(s->block.range[tile_row + i], s->key + key, sum[i], vecs);
    UNROLL
    for (int v = 0; v < vecs; v++) vec_store(p + i * SCORE_STRIDE + v * VEC_LANES, vec_exp2(sum[i][v]));
  }
}

/* dS of the same. `edge`: P of masked keys is 0, whatever their V. */
static ALWAYS_INLINE void d_s_tile(const backward_step *s, int64_t tile_row, int64_t key, const bool edge, const int vecs) {
  const int64_t depth = elements_of(s->block.problem->dim_v);
  vec sum[TILE_ROWS][TILE_VECS];
  start_tile(sum, s->minus_delta + tile_row, vecs);
  product(sum, tile_of(&s->d_o.along, tile_row), (float_rows){s->v_panels + key * depth, PANEL_KEYS}, depth, vecs);
  const int64_t at = scores_of_tile(tile_row) + key;
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    UNROLL
    for (int v = 0; v < vecs; v++) {
      const int64_t place = at + i * SCORE_STRIDE + v * VEC_LANES;
      const vec p = vec_load(s->p + place), d_s = vec_mul(p, sum[i][v]);
      vec_store(s->d_s + place, edge ? vec_unless_zero(d_s, p) : d_s);
    }
  }
}

/* dS where P has dropout, which is a factor of dP here; P takes it for the product with dO. */
static ALWAYS_INLINE void dropped_tile(const backward_step *s, int64_t tile_row, int64_t key, const bool edge,
                                       const int vecs) {
  const int64_t depth = elements_of(s->block.problem->dim_v), at = scores_of_tile(tile_row) + key;
  const float *kept = s->kept + key, *minus_delta = s->minus_delta + tile_row;
  float *p = s->p + at, *d_s = s->d_s + at;
  vec sum[TILE_ROWS][TILE_VECS];
  start_tile(sum, (const float[TILE_ROWS]){0}, vecs);
  product(sum, tile_of(&s->d_o.along, tile_row), (float_rows){s->v_panels + key * depth, PANEL_KEYS}, depth, vecs);
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    UNROLL
    for (int v = 0; v < vecs; v++) {
      const int64_t place = i * SCORE_STRIDE + v * VEC_LANES;
      const vec weight = vec_load(p + place), factor = vec_load(kept + i * KEPT_STRIDE + v * VEC_LANES);
      const vec slope = vec_mul(weight, vec_fma(factor, sum[i][v], vec_set1(minus_delta[i])));
      vec_store(d_s + place, edge ? vec_unless_zero(slope, weight) : slope);
      vec_store(p + place, vec_mul(weight, factor));
    }
  }
}

static NO_INLINE void full_dropped_tile(const backward_step *s, int64_t tile_row, int64_t key) {
  dropped_tile(s, tile_row, key, false, TILE_VECS);
}

static NO_INLINE void edge_dropped_tile(const backward_step *s, int64_t tile_row, int64_t key, int64_t vecs) {
  WITH_CONSTANT_VECS(vecs, dropped_tile, s, tile_row, key, true)
}

/* The factors of dropout of a tile's rows for the keys [begin, end) of the block; zeros for rows behind the last. */
static void find_kept(const backward_step *s, int64_t tile_row, int64_t begin, int64_t end) {
  const uint32_t stream = attn_dropout_stream(s->block.problem, s->block.b, s->block.head);
  const int64_t rows = min64(TILE_ROWS, s->block.rows - tile_row);
  float *from = s->kept + round_down(begin, PHILOX_GROUP) - s->key;
  for (int64_t i = 0; i < rows; i++)
    philox_factors(&s->dropout, stream, (uint32_t)(s->block.first_row + tile_row + i), begin, end, from + i * KEPT_STRIDE);
  for (int64_t i = rows; i < TILE_ROWS; i++) memset(s->kept + i * KEPT_STRIDE, 0, (size_t)s->keys * sizeof *s->kept);
}

/* The usual cases are functions of their own, because in one all would compete for registers. */
static NO_INLINE void full_p_tile(const backward_step *s, int64_t tile_row, int64_t key) {
  p_tile(s, tile_row, key, false, TILE_VECS);
}

static NO_INLINE void full_d_s_tile(const backward_step *s, int64_t tile_row, int64_t key) {
  d_s_tile(s, tile_row, key, false, TILE_VECS);
}

static NO_INLINE void edge_p_tile(const backward_step *s, int64_t tile_row, int64_t key, int64_t vecs) {
  WITH_CONSTANT_VECS(vecs, p_tile, s, tile_row, key, true)
}

static NO_INLINE void edge_d_s_tile(const backward_step *s, int64_t tile_row, int64_t key, int64_t vecs) {
  WITH_CONSTANT_VECS(vecs, d_s_tile, s, tile_row, key, true)
}

/* Similarities in log2 units, stored where P will be. */
static void similarity_tile(const backward_step *s, int64_t tile_row, int64_t key) {
  const attn_problem *p = s->block.problem;
  row_block block = s->block;
  const int64_t depth = elements_of(p->dim_qk);
  const float *panel = s->k_panels + key * elements_of(k_dimensions(p));
  float *score = s->p + scores_of_tile(tile_row) + key;
  if (p->score == ATTN_SCORE_DOT) {
    vec sum[TILE_ROWS][TILE_VECS];
    for (int i = 0; i < TILE_ROWS; i++)
      for (int v = 0; v < TILE_VECS; v++) sum[i][v] = vec_zero();
    product(sum, tile_of(&s->q.along, tile_row), (float_rows){panel, PANEL_KEYS}, depth, TILE_VECS);
    const vec factor = vec_set1(p->scale * LOG2_E);
    for (int i = 0; !K_HAS_FACTOR && i < TILE_ROWS; i++)
      for (int v = 0; v < TILE_VECS; v++) sum[i][v] = vec_mul(sum[i][v], factor);
    store_tile(sum, score, SCORE_STRIDE, TILE_VECS);
    return;
  }
  block.keys.k = panel - (s->key + key) * k_dimensions(p); /* key 0: other_panel counts from there */
  block.score_stride = SCORE_STRIDE;
  if (k_dimensions(p)) { /* the last rows of a block are a copy: no row lies behind them */
    const float_rows q = tile_of(&s->q.along, tile_row);
    block.q = (float *)(uintptr_t)q.at - tile_row * q.stride;
    block.q_stride = q.stride;
  }
  other_panel(&block, tile_row, s->key + key, score);
}

/* P of a panel whose scores are more than dot products. */
static NO_INLINE void adjusted_p_tile(const backward_step *s, int64_t tile_row, int64_t key) {
  const attn_problem *p = s->block.problem;
  similarity_tile(s, tile_row, key);
  for (int i = 0; i < TILE_ROWS; i++)
    for (int v = 0; v < TILE_VECS; v++) {
      const int64_t row = tile_row + i, place = scores_of_tile(tile_row) + i * SCORE_STRIDE + key + v * VEC_LANES;
      const int64_t at = s->key + key + v * VEC_LANES;
      vec score = vec_load(s->p + place);
      if (p->softcap > 0) {
        const vec t = tanh_of_softcap(p, score);
        score = capped_scores(p, t);
        if (s->slope) vec_store(s->slope + place, vec_sub(vec_set1(1.0f), vec_mul(t, t)));
      }
      score = select_allowed(s->block.range[row], at, shift_scores(&s->block, row, at, score));
      vec_store(s->p + place, vec_exp2(vec_add(score, vec_set1(s->minus_lse[row]))));
    }
}

static void apply_slope(const backward_step *s, int64_t tile_row, int64_t key) {
  for (int i = 0; i < TILE_ROWS; i++)
    for (int v = 0; v < TILE_VECS; v++) {
      const int64_t place = scores_of_tile(tile_row) + i * SCORE_STRIDE + key + v * VEC_LANES;
      const vec d_s = vec_load(s->d_s + place);
      vec_store(s->d_s + place, vec_unless_zero(vec_mul(d_s, vec_load(s->slope + place)), d_s));
    }
}

/* P and dS of the tile's keys in the block. */
static void fill_tile(const backward_step *s, int64_t tile_row, tile_keys keys) {
  for (int64_t at = keys.first; at < keys.end; at += PANEL_KEYS) {
    const int64_t key = at - s->key;
    const bool full = !s->block.adjusted && keys.all_begin <= at && at + PANEL_KEYS <= min64(keys.all_end, s->key + s->keys);
    const int64_t vecs = s->block.adjusted ? TILE_VECS : ceil_div(min64(keys.end - at, PANEL_KEYS), VEC_LANES);
    if (full)
      full_p_tile(s, tile_row, key);
    else if (s->block.adjusted)
      adjusted_p_tile(s, tile_row, key);
    else
      edge_p_tile(s, tile_row, key, vecs);
    if (s->kept && full)
      full_dropped_tile(s, tile_row, key);
    else if (s->kept)
      edge_dropped_tile(s, tile_row, key, vecs);
    else if (full)
      full_d_s_tile(s, tile_row, key);
    else
      edge_d_s_tile(s, tile_row, key, vecs);
    if (s->slope) apply_slope(s, tile_row, key);
  }
}

/* Zeros in the columns [begin, end) of a tile of P and dS. */
static void clear_columns(const backward_step *s, int64_t tile_row, int64_t begin, int64_t end) {
  const int64_t first = scores_of_tile(tile_row);
  for (int64_t row = first; row < first + TILE_ROWS * SCORE_STRIDE; row += SCORE_STRIDE)
    for (int64_t at = row + begin; at < row + end; at += VEC_LANES) {
      vec_store(s->p + at, vec_zero());
      vec_store(s->d_s + at, vec_zero());
    }
}

/* Which tiles of rows see some of each TILE_ROWS keys. */
static void find_row_tiles(backward_step *s) {
  for (int64_t tile = 0; tile * TILE_ROWS < s->keys; tile++) s->row_tiles[tile] = (attn_key_range){0, 0};
  for (int64_t row = 0; row < s->block.rows; row += TILE_ROWS) {
    const attn_key_range seen = s->seen[row / TILE_ROWS];
    const attn_key_range here = {row / TILE_ROWS, row / TILE_ROWS + 1};
    for (int64_t tile = seen.begin / TILE_ROWS; tile * TILE_ROWS < seen.end; tile++)
      s->row_tiles[tile] = attn_join_keys(s->row_tiles[tile], here);
  }
}

/* P and dS of all tiles of rows, and which keys they see. Around those they are 0, for the tiles of keys that begin or end
 * there: next to them where ranges move with the row, else in all of the block, as tiles between others may see less. */
static void fill_scores(backward_step *s) {
  const attn_problem *p = s->block.problem;
  const int64_t columns = round_up(s->keys, max64(OPERAND_STEP, VEC_LANES));
  const bool in_order = !attn_uses(p, ATTN_USE_ROW_LEN) && !selects_keys(p);
  for (int64_t row = 0; row < s->block.rows; row += TILE_ROWS) {
    const tile_keys keys = keys_of_tile(&s->block, row, s->key, s->key + s->keys);
    attn_key_range *seen = &s->seen[row / TILE_ROWS], filled = {0, 0};
    *seen = filled;
    if (keys.class != TILE_SKIP) {
      const int64_t width = s->block.adjusted ? PANEL_KEYS : VEC_LANES;
      *seen = (attn_key_range){keys.begin - s->key, keys.end - s->key};
      filled = (attn_key_range){keys.first - s->key, keys.first - s->key + round_up(keys.end - keys.first, width)};
      if (s->kept) find_kept(s, row, keys.first, keys.end);
      fill_tile(s, row, keys);
    }
    const int64_t beside = in_order ? round_up(TILE_ROWS, VEC_LANES) : columns;
    if (keys.class == TILE_SKIP && in_order) continue;
    const attn_key_range kept_keys = {max64(0, filled.begin - beside), min64(columns, filled.end + beside)};
    clear_columns(s, row, kept_keys.begin, filled.begin);
    clear_columns(s, row, filled.end, kept_keys.end);
    keep_tile(s, row, kept_keys);
  }
  find_row_tiles(s);
}

#endif
