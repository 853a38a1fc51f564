/* SPDX-License-Identifier: MIT */
/* Scores that are more than scaled dot products: another similarity, then softcap, bias, ALiBi and selection by a mask, in
 * this order (docs/semantics.md). All are in log2 units, like the dot scores of tiles.h.
 *
 * Problems that use none of these never call this code: their tiles keep P in registers throughout.
 *
 * Parameters: those of tiles.h. */
#ifndef ATTN_COMMON_SCORES_H
#define ATTN_COMMON_SCORES_H

#include "tiles.h"

static inline bool selects_keys(const attn_problem *p) { return attn_uses(p, ATTN_USE_MASK | ATTN_USE_BIAS); }

static inline bool scores_adjusted(const attn_problem *p) { return p->score != ATTN_SCORE_DOT || similarities_adjusted(p); }

/* Dot products with a bias, ALiBi or a mask and nothing else: sums can start from these terms. */
static inline bool scores_shifted(const attn_problem *p) {
  return scores_adjusted(p) && p->score == ATTN_SCORE_DOT && !(p->softcap > 0);
}

/* tanh(x) = x P(x^2) / Q(x^2) up to |x| = 9, where it is 1 to within float32; relative error below 3.2e-7
 * (scripts/make/derive_tanh.py). NaN stays NaN. */
static inline vec vec_tanh(vec x) {
  const vec limited = vec_clamp(x, vec_set1(-9.0f), vec_set1(9.0f));
  const vec y = vec_mul(limited, limited);
  vec p = vec_fma(y, vec_set1(0x1.cadbfap-27f), vec_set1(0x1.59c314p-16f));
  vec q = vec_fma(y, vec_set1(0x1.a17fb2p-21f), vec_set1(0x1.5885f2p-12f));
  p = vec_fma(p, y, vec_set1(0x1.ca2c60p-9f));
  q = vec_fma(q, y, vec_set1(0x1.a7f7e4p-6f));
  p = vec_fma(p, y, vec_set1(0x1.120b1ap-3f));
  q = vec_fma(q, y, vec_set1(0x1.de5ad6p-2f));
  p = vec_fma(p, y, vec_set1(1.0f));
  q = vec_fma(q, y, vec_set1(1.0f));
  return vec_div(vec_mul(limited, p), q);
}

/* `count` <= VEC_LANES floats of a bias or of given scores from key `key` on, at any stride; 0 in the other lanes. */
static inline vec load_keys_f32(const row_block *block, const float *data, const attn_score_strides *stride, int64_t i,
                                int64_t key, int64_t count) {
  const problem_row row = problem_row_of(block, i);
  const float *at = data + attn_score_offset(stride, block->b, row.head, row.query, key);
  if (stride->k == 1) return count == VEC_LANES ? vec_load(at) : vec_load_first(at, count);
  float lanes[VEC_LANES] = {0};
  for (int64_t j = 0; j < count; j++) lanes[j] = at[j * stride->k];
  return vec_load(lanes);
}

static inline vec select_by_mask(const row_block *block, int64_t i, int64_t key, int64_t count, vec score) {
  const attn_score_strides *stride = &block->problem->mask_stride;
  const problem_row row = problem_row_of(block, i);
  const int64_t column = key - attn_first_masked(block->problem, block->seq->len_k), open = min64(max64(-column, 0), count);
  const uint8_t *at = block->args->mask + attn_score_offset(stride, block->b, row.head, row.query, max64(column, 0));
  if (stride->k == 1 && open == 0) return vec_select_bytes(score, at, count);
  uint8_t bytes[VEC_LANES] = {0};
  for (int64_t j = 0; j < VEC_LANES; j++) bytes[j] = j < open ? 1 : j < count ? at[(j - open) * stride->k] : 0;
  return vec_select_bytes(score, bytes, VEC_LANES);
}

/* How many keys of the vector at `key` exist. */
static inline int64_t keys_in_vector(const row_block *block, int64_t key) {
  return min64(block->seq->len_k - key, VEC_LANES);
}

/* x if mask and bias allow the key for row i, else -inf, even if x is NaN. */
static inline vec select_keys(const row_block *block, int64_t i, int64_t key, vec x) {
  const attn_problem *p = block->problem;
  const int64_t count = keys_in_vector(block, key);
  if (count <= 0) return x; /* beyond the sequence: never allowed */
  if (attn_uses(p, ATTN_USE_BIAS))
    x = vec_unless_masked(x, load_keys_f32(block, block->args->bias, &p->bias_stride, i, key, count));
  return attn_uses(p, ATTN_USE_MASK) ? select_by_mask(block, i, key, count, x) : x;
}

/* slope |i + offset - j| of row i for VEC_LANES keys j from `key` on. */
static inline vec alibi_of(const row_block *block, int64_t i, int64_t key) {
  const problem_row row = problem_row_of(block, i);
  const float slope = block->args->alibi_slopes[row.head] * LOG2_E;
  const float distance = (float)(row.query + block->seq->offset - key);
  return vec_mul(vec_set1(slope), vec_abs(vec_sub(vec_set1(distance), vec_lane_numbers())));
}

/* Bias and ALiBi of row i for VEC_LANES keys from `key` on. */
static inline vec shift_of(const row_block *block, int64_t i, int64_t key) {
  const attn_problem *p = block->problem;
  const int64_t count = keys_in_vector(block, key);
  vec s = vec_zero();
  if (count > 0 && attn_uses(p, ATTN_USE_BIAS))
    s = vec_mul(vec_set1(LOG2_E), load_keys_f32(block, block->args->bias, &p->bias_stride, i, key, count));
  return attn_uses(p, ATTN_USE_ALIBI) ? vec_sub(s, alibi_of(block, i, key)) : s;
}

/* Where bias and mask of one row for one panel are, and whether they can be read vector by vector (dense). */
typedef struct shift_row {
  bool dense;
  const float *bias;   /* NULL if there is none */
  const uint8_t *mask; /* NULL if there is none */
} shift_row;

/* Whether keys of one row's bias and mask lie side by side. */
static inline bool shifts_side_by_side(const attn_problem *p) {
  return (!attn_uses(p, ATTN_USE_BIAS) || p->bias_stride.k == 1) && (!attn_uses(p, ATTN_USE_MASK) || p->mask_stride.k == 1);
}

/* `uses`: the problem's, or a constant where a panel is compiled for it. */
static ALWAYS_INLINE shift_row shift_row_of(const row_block *block, const uint32_t uses, int64_t i, int64_t key) {
  const attn_problem *p = block->problem;
  const problem_row at = problem_row_of(block, i);
  const int64_t column = key - (uses & ATTN_USE_MASK ? attn_first_masked(p, block->seq->len_k) : 0);
  shift_row row = {.dense = key + PANEL_KEYS <= block->seq->len_k && shifts_side_by_side(p) && column >= 0};
  if (uses & ATTN_USE_BIAS)
    row.bias = block->args->bias + attn_score_offset(&p->bias_stride, block->b, at.head, at.query, key);
  if (uses & ATTN_USE_MASK)
    row.mask = block->args->mask + attn_score_offset(&p->mask_stride, block->b, at.head, at.query, max64(column, 0));
  return row;
}

/* shift_of and select_keys for vector v of the row's panel at `key`. */
static ALWAYS_INLINE vec shift_at(const row_block *block, const uint32_t uses, const shift_row *row, int64_t i, int64_t key,
                                  int v) {
  if (!row->dense) return shift_of(block, i, key + v * VEC_LANES);
  vec s = uses & ATTN_USE_BIAS ? vec_mul(vec_set1(LOG2_E), vec_load(row->bias + v * VEC_LANES)) : vec_zero();
  return uses & ATTN_USE_ALIBI ? vec_sub(s, alibi_of(block, i, key + v * VEC_LANES)) : s;
}

static ALWAYS_INLINE vec select_at(const row_block *block, const uint32_t uses, const shift_row *row, int64_t i, int64_t key,
                                   int v, vec x) {
  if (!row->dense) return select_keys(block, i, key + v * VEC_LANES, x);
  if (uses & ATTN_USE_BIAS) x = vec_unless_masked(x, vec_load(row->bias + v * VEC_LANES));
  return uses & ATTN_USE_MASK ? vec_select_bytes(x, row->mask + v * VEC_LANES, VEC_LANES) : x;
}

/* tanh(s / softcap) of similarities; the capped score is softcap times that. */
static inline vec tanh_of_softcap(const attn_problem *p, vec s) {
  return vec_tanh(vec_div(s, vec_set1(p->softcap * LOG2_E)));
}

static inline vec capped_scores(const attn_problem *p, vec tanh_of_scores) {
  return vec_mul(vec_set1(p->softcap * LOG2_E), tanh_of_scores);
}

/* Bias, ALiBi and mask of row i for VEC_LANES keys from `key` on. */
static inline vec shift_scores(const row_block *block, int64_t i, int64_t key, vec s) {
  const attn_problem *p = block->problem;
  const int64_t count = keys_in_vector(block, key);
  if (count <= 0) return s; /* beyond the sequence: never allowed */
  if (attn_uses(p, ATTN_USE_BIAS))
    s = vec_add_bias(s, vec_mul(vec_set1(LOG2_E), load_keys_f32(block, block->args->bias, &p->bias_stride, i, key, count)));
  if (attn_uses(p, ATTN_USE_ALIBI)) s = vec_sub(s, alibi_of(block, i, key));
  return attn_uses(p, ATTN_USE_MASK) ? select_by_mask(block, i, key, count, s) : s;
}

/* Scores of row i for VEC_LANES keys from `key` on, from their similarities. */
static inline vec adjust_scores(const row_block *block, int64_t i, int64_t key, vec s) {
  const attn_problem *p = block->problem;
  return shift_scores(block, i, key, p->softcap > 0 ? capped_scores(p, tanh_of_softcap(p, s)) : s);
}

/* Whether mask and bias exclude all keys of a panel for all rows of the tile. Then nothing of it is computed. */
static bool panel_masked(const row_block *block, int64_t tile_row, int64_t key, int64_t end) {
  for (int64_t i = tile_row; i < tile_row + TILE_ROWS; i++)
    for (int64_t at = key; at < end; at += VEC_LANES) {
      const vec left = select_allowed(block->range[i], at, select_keys(block, i, at, vec_zero()));
      if (vec_any_above(left, -INFINITY)) return false; /* a NaN bias allows its key */
    }
  return true;
}

/* The part of keys [begin, end) that the tile at tile_row needs; begin is a multiple of PANEL_KEYS. Panels at both ends that
 * mask and bias take from all rows are left out. */
static inline tile_keys keys_of_tile(const row_block *block, int64_t tile_row, int64_t begin, int64_t end) {
  tile_keys keys = classify_tile(block, tile_row, begin, end);
  if (keys.class == TILE_SKIP || !selects_keys(block->problem)) return keys;
  while (keys.first < keys.end && panel_masked(block, tile_row, keys.first, min64(keys.end, keys.first + PANEL_KEYS)))
    keys.first += PANEL_KEYS;
  keys.begin = max64(keys.begin, keys.first);
  while (keys.begin < keys.end) {
    const int64_t last = round_down(keys.end - 1, PANEL_KEYS);
    if (!panel_masked(block, tile_row, last, keys.end)) break;
    keys.end = last;
  }
  if (keys.begin >= keys.end) keys.class = TILE_SKIP;
  return keys;
}

/* ---- One panel of similarities, stored: `vecs` vectors per row ---- */

static ALWAYS_INLINE void score_panel(const row_block *block, int64_t tile_row, int64_t key, float *score, const int vecs) {
  const int64_t dim_qk = block->problem->dim_qk;
  vec sum[TILE_ROWS][TILE_VECS];
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    UNROLL
    for (int v = 0; v < vecs; v++) sum[i][v] = vec_zero();
  }
  const float_rows q = {block->q + tile_row * block->q_stride, block->q_stride},
                   k = {block->keys.k + key * dim_qk, PANEL_KEYS};
  product(sum, q, k, dim_qk, vecs);
  store_tile(sum, score, block->score_stride, vecs);
}

static inline void additive_panel(const row_block *block, int64_t i, const float *panel, const float *weight,
                                  vec sum[TILE_VECS]) {
  const int64_t dim_qk = block->problem->dim_qk;
  const float *q = block->q + i * block->q_stride;
  for (int64_t d = 0; d < dim_qk; d++) {
    UNROLL
    for (int v = 0; v < TILE_VECS; v++) {
      const vec k = vec_load(panel + d * PANEL_KEYS + v * VEC_LANES);
      sum[v] = vec_fma(vec_set1(weight[d] * LOG2_E), vec_tanh(vec_add(vec_set1(q[d]), k)), sum[v]);
    }
  }
}

static inline void gaussian_panel(const row_block *block, int64_t i, const float *panel, const float *weight,
                                  vec sum[TILE_VECS]) {
  const int64_t dim_qk = block->problem->dim_qk;
  const float *q = block->q + i * block->q_stride;
  for (int64_t d = 0; d < dim_qk; d++) {
    UNROLL
    for (int v = 0; v < TILE_VECS; v++) {
      vec distance = vec_sub(vec_set1(q[d]), vec_load(panel + d * PANEL_KEYS + v * VEC_LANES));
      if (weight) distance = vec_mul(vec_set1(weight[d]), distance);
      sum[v] = vec_fma(distance, distance, sum[v]);
    }
  }
  for (int v = 0; v < TILE_VECS; v++) sum[v] = vec_mul(sum[v], vec_set1(-0.5f * LOG2_E));
}

static inline void given_panel(const row_block *block, int64_t i, int64_t key, vec sum[TILE_VECS]) {
  const attn_problem *p = block->problem;
  for (int v = 0; v < TILE_VECS; v++) {
    const int64_t at = key + v * VEC_LANES, count = keys_in_vector(block, at);
    if (count > 0)
      sum[v] = vec_mul(vec_set1(LOG2_E), load_keys_f32(block, block->args->scores, &p->scores_stride, i, at, count));
  }
}

/* Stores similarities that are not dot products, of the tile's rows with the panel at `key`. */
static inline void other_panel(const row_block *block, int64_t tile_row, int64_t key, float *score) {
  const attn_problem *p = block->problem;
  const float *panel = block->keys.k + key * p->dim_qk;
  const float *weight =
      attn_uses(p, ATTN_USE_SCORE_WEIGHT) ? block->args->score_weight + block->head * p->score_weight_stride_h : NULL;
  for (int i = 0; i < TILE_ROWS; i++) {
    vec sum[TILE_VECS];
    for (int v = 0; v < TILE_VECS; v++) sum[v] = vec_zero();
    if (p->score == ATTN_SCORE_ADDITIVE) additive_panel(block, tile_row + i, panel, weight, sum);
    if (p->score == ATTN_SCORE_GAUSSIAN) gaussian_panel(block, tile_row + i, panel, weight, sum);
    if (p->score == ATTN_SCORE_PRECOMPUTED) given_panel(block, tile_row + i, key, sum);
    for (int v = 0; v < TILE_VECS; v++) vec_store(score + i * block->score_stride + v * VEC_LANES, sum[v]);
  }
}

#endif
