/* SPDX-License-Identifier: MIT */
/* flash_backward: the gradients of attention without a score matrix in memory: P is computed again from the LSE (Dao et al.
 * 2022, https://arxiv.org/abs/2205.14135, section B.2).
 *
 *     P = exp(Q K^T - lse),  dS = P (dO V^T - delta)     delta = rowsum(dO O), and more where lse has a gradient
 *     dV = P^T dO,  dK = dS^T Q,  dQ = dS K
 *
 * Blocks of BACKWARD_KEYS keys outside, blocks of BACKWARD_ROWS queries inside: K and V are packed once, dK and dV of a
 * block stay in level 2 until they are done, and dQ is read and written once for each block of keys. A step is one pair of
 * blocks. It makes P and dS tile by tile, keeps both, and multiplies them three times. All five products are the register
 * tile.
 *
 * A task is a KV head times a range of keys at borders that the sequence's length alone decides. The ranges have a dQ each,
 * and a last phase adds those up in order. Every sum is one chain of multiply-adds in the order of queries or keys, so no
 * bit depends on threads, batch or the sizes of blocks.
 *
 * Rows and keys whose gradients are not finite are computed again in double precision, from allowed pairs alone
 * (exact_gradients.h): a masked element that a product of whole tiles read cannot reach them.
 *
 * Parameters: those of tiles.h. */
#ifndef ATTN_COMMON_FLASH_BACKWARD_H
#define ATTN_COMMON_FLASH_BACKWARD_H

#include "kernels/common/problem/exact_gradients.h"
#include "kernels/common/problem/rejects.h"
#include "pack.h"

enum {
  BACKWARD_KEYS = 192, /* whole panels and whole tiles of every tier; P and dS of a step are 2 x 160 KB */
  BACKWARD_ROWS = 192,
  BACKWARD_TILES = BACKWARD_ROWS / TILE_ROWS,
  SCORE_STRIDE = BACKWARD_KEYS + 16,              /* an odd number of lines: a column uses all sets of level 1 */
  FINISH_ROWS = 256,                              /* of a task that adds up dQ */
  LEAST_RANGE = 3 * BACKWARD_KEYS,                /* keys of a range: a dQ of its own must pay */
  KEPT_STRIDE = BACKWARD_KEYS + 2 * PHILOX_GROUP, /* a block's keys and what their groups have beside */
  MOST_RANGES = 8                                 /* so memory grows by the length, not its square */
};
_Static_assert(BACKWARD_KEYS % PANEL_KEYS == 0 && BACKWARD_KEYS % TILE_ROWS == 0 && BACKWARD_ROWS % TILE_ROWS == 0,
               "blocks are whole panels and tiles");

/* Offsets in the memory of a unit and of a thread, in bytes, and strides of rows, in floats: the plan data. */
typedef struct backward_layout {
  int64_t minus_lse, minus_delta, d_q, unit_bytes; /* of a unit */
  int64_t k_panels, v_panels, k_rows, q, d_o, p, d_s, slope, d_k, d_v, range, max, kept, sums, terms,
      scratch_bytes; /* of a thread */
  int64_t rows, qk_floats, v_floats, ranges;
} backward_layout;
_Static_assert(sizeof(backward_layout) <= ATTN_OWN_BYTES, "attn_schedule.own holds it");

static const backward_layout *backward_layout_in(const attn_schedule *schedule) { return (const void *)schedule->own; }

/* Keys of a range of a sequence of len_k keys. */
static int64_t range_keys(int64_t len_k) {
  return round_up(max64(ceil_div(len_k, MOST_RANGES), LEAST_RANGE), BACKWARD_KEYS);
}

/* Gradients of what is added to scores, or of all scores: they take a phase of their own. */
static bool wants_score_gradients(const attn_problem *p) {
  return attn_uses(p, ATTN_USE_D_BIAS | ATTN_USE_D_ALIBI | ATTN_USE_D_SINKS | ATTN_USE_D_SCORE_WEIGHT) ||
         p->score == ATTN_SCORE_PRECOMPUTED;
}

static bool backward_layout_of(const attn_problem *p, backward_layout *at) {
  const int64_t dim_qk = k_dimensions(p), keys = BACKWARD_KEYS, rows = BACKWARD_ROWS, scores = rows * SCORE_STRIDE;
  *at = (backward_layout){.rows = round_up(p->seq_q, TILE_ROWS),
                          .qk_floats = round_up(dim_qk, VEC_LANES),
                          .v_floats = round_up(p->dim_v, VEC_LANES),
                          .ranges = max64(1, ceil_div(p->seq_k, range_keys(p->seq_k)))};
  const int64_t heads = attn_group(p);
  const memory_part unit[] = {{&at->minus_lse, heads * at->rows + TILE_ROWS, float_bytes(1)},
                              {&at->minus_delta, heads * at->rows + TILE_ROWS, float_bytes(1)},
                              {&at->d_q, at->ranges * heads * at->rows, float_bytes(at->qk_floats)}};
  const memory_part scratch[] = {{&at->k_panels, keys, float_bytes(dim_qk)},
                                 {&at->v_panels, keys, float_bytes(p->dim_v)},
                                 {&at->k_rows, keys, float_bytes(at->qk_floats)},
                                 {&at->q, rows, float_bytes(at->qk_floats)},
                                 {&at->d_o, rows, float_bytes(at->v_floats)},
                                 {&at->p, scores, float_bytes(1)},
                                 {&at->d_s, scores, float_bytes(1)},
                                 {&at->slope, p->softcap > 0 ? scores : 0, float_bytes(1)},
                                 {&at->d_k, keys, float_bytes(at->qk_floats)},
                                 {&at->d_v, keys, float_bytes(at->v_floats)},
                                 {&at->range, rows, sizeof(attn_key_range)},
                                 {&at->max, rows, float_bytes(1)},
                                 {&at->kept, p->dropout > 0 ? TILE_ROWS : 0, float_bytes(KEPT_STRIDE)},
                                 {&at->sums, wants_score_gradients(p) ? scores : 0, float_bytes(1)},
                                 {&at->terms, wants_score_gradients(p) ? 2 * (rows + TILE_ROWS) : 0, float_bytes(1)}};
  return LAY_OUT(unit, &at->unit_bytes) && LAY_OUT(scratch, &at->scratch_bytes);
}

/* ---- Terms of queries: -lse in log2 units, -delta ---------------------------------------------------------------- */

/* A row of o or d_o as floats that lie side by side, in place or in `copy`. */
static inline const float *row_floats_of(attn_storage from, int64_t offset, int64_t step, int64_t columns, float *copy,
                                         int64_t copy_floats) {
  if (from.dtype == ATTN_F32 && step == 1 && columns % VEC_LANES == 0) return (const float *)from.data + offset;
  const row_source row = {.from = from, .offset = offset, .column_stride = step, .columns = columns};
  copy_row(&row, 0, copy, copy_floats);
  return copy;
}

static float product_of_rows(const float *a, const float *b, int64_t floats) {
  vec sum = vec_zero();
  for (int64_t d = 0; d < floats; d += VEC_LANES) sum = vec_fma(vec_load(a + d), vec_load(b + d), sum);
  return vec_reduce_add(sum);
}

/* One query head whose terms are made. */
typedef struct head_terms {
  const attn_problem *p;
  const attn_args *args;
  attn_sequence seq;
  int64_t h;
  float *minus_lse, *minus_delta; /* [len_q] */
  float *copies[2];               /* room for a row of o and of d_o */
} head_terms;

/* Where row i of o or d_o begins. */
static int64_t value_row_at(const head_terms *t, const attn_strides *stride, int64_t i) {
  return attn_row_offset(t->p, stride, t->seq.b, t->h, t->seq.first_q + i);
}

/* Row i, whatever its types and options. */
static void row_terms_of(const head_terms *t, int64_t i) {
  const attn_problem *p = t->p;
  const float lse = t->args->lse[value_row_at(t, &p->lse_stride, i)];
  const int64_t floats = round_up(p->dim_v, VEC_LANES);
  t->minus_lse[i] = -INFINITY;
  t->minus_delta[i] = 0.0f;
  if (lse == -INFINITY) return;
  const float *o = row_floats_of((attn_storage){t->args->o, p->dtype_o}, value_row_at(t, &p->o_stride, i), p->o_stride.d,
                                 p->dim_v, t->copies[0], floats);
  const float *d_o = row_floats_of((attn_storage){t->args->d_o, p->dtype_o}, value_row_at(t, &p->d_o_stride, i),
                                   p->d_o_stride.d, p->dim_v, t->copies[1], floats);
  const double own = attn_uses(p, ATTN_USE_SINKS) ? lse + log1p(exp((double)t->args->sinks[t->h] - lse)) : lse;
  t->minus_lse[i] = -(float)((double)LOG2_E * own);
  t->minus_delta[i] = -product_of_rows(o, d_o, floats);
  if (attn_uses(p, ATTN_USE_D_LSE))
    t->minus_delta[i] += t->args->d_lse[value_row_at(t, &p->d_lse_stride, i)] * (float)exp(own - (double)lse);
}

/* VEC_LANES rows from i on whose o and d_o can be read in place, without sinks and gradients of lse. */
static void terms_of_lanes(const head_terms *t, int64_t i) {
  const attn_problem *p = t->p;
  const float *o = (const float *)t->args->o + value_row_at(t, &p->o_stride, i);
  const float *d_o = (const float *)t->args->d_o + value_row_at(t, &p->d_o_stride, i);
  const vec lse = vec_load(t->args->lse + value_row_at(t, &p->lse_stride, i));
  vec sum[VEC_LANES];
  UNROLL
  for (int n = 0; n < VEC_LANES; n++) {
    sum[n] = vec_zero();
    for (int64_t d = 0; d < p->dim_v; d += VEC_LANES)
      sum[n] = vec_fma(vec_load(o + n * p->o_stride.s + d), vec_load(d_o + n * p->d_o_stride.s + d), sum[n]);
  }
  vec_store(t->minus_lse + i, vec_unless_masked(vec_mul(lse, vec_set1(-LOG2_E)), lse));
  vec_store(t->minus_delta + i, vec_sub(vec_zero(), vec_sum_each(sum)));
  for (int n = 0; n < VEC_LANES; n++)
    if (t->minus_lse[i + n] == -INFINITY) t->minus_delta[i + n] = 0.0f; /* its o and d_o may hold anything */
}

/* Rows [begin, end) of a query head. Rows without keys get -lse = -inf: their P is 0. */
static void find_terms(const head_terms *t, int64_t begin, int64_t end) {
  const attn_problem *p = t->p;
  const bool quick = !attn_uses(p, ATTN_USE_SINKS | ATTN_USE_D_LSE) && p->dtype_o == ATTN_F32 && p->dim_v % VEC_LANES == 0 &&
                     p->o_stride.d == 1 && p->d_o_stride.d == 1 && p->lse_stride.s == 1;
  int64_t i = begin;
  for (; quick && i + VEC_LANES <= end; i += VEC_LANES) terms_of_lanes(t, i);
  for (; i < end; i++) row_terms_of(t, i);
}

/* Tiles of rows may end behind the last. */
static void end_terms(const head_terms *t, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i++) t->minus_lse[i] = -INFINITY, t->minus_delta[i] = 0.0f;
}

static void query_terms(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit, void *scratch) {
  const attn_problem *p = &schedule->problem;
  const backward_layout *at = backward_layout_in(schedule);
  const int64_t b = attn_batch_of_unit(p, task.unit);
  const head_terms t = {.p = p,
                        .args = args,
                        .seq = attn_sequence_of(p, args, b),
                        .h = attn_head_of_unit(p, task.unit) + task.item,
                        .minus_lse = floats_at(unit, at->minus_lse) + task.item * at->rows,
                        .minus_delta = floats_at(unit, at->minus_delta) + task.item * at->rows,
                        .copies = {floats_at(scratch, at->d_o), floats_at(scratch, at->d_o) + at->v_floats}};
  find_terms(&t, 0, t.seq.len_q);
  end_terms(&t, t.seq.len_q, at->rows);
}

/* ---- A step ------------------------------------------------------------------------------------------------------ */

/* Rows of floats, of which tiles may read whole ones: the last tile's are copied where they end within it. */
typedef struct tile_source {
  float_rows rows;
  float_rows last; /* the tile that has fewer than TILE_ROWS rows */
  int64_t last_row;
} tile_source;

static ALWAYS_INLINE float_rows tile_of(const tile_source *from, int64_t tile_row) {
  return tile_row == from->last_row ? from->last
                                    : (float_rows){from->rows.at + tile_row * from->rows.stride, from->rows.stride};
}

/* Queries [row, row + rows) of a head and keys [key, key + keys). */
typedef struct backward_step {
  row_block block; /* the rows as scores.h sees them */
  int64_t key, keys;
  tile_source q, d_o;
  float_rows k; /* of the block's first key */
  const float *k_panels, *v_panels, *minus_lse, *minus_delta;
  float *p, *d_s, *slope;              /* [BACKWARD_ROWS][SCORE_STRIDE]; slope: of the softcap */
  attn_key_range seen[BACKWARD_TILES]; /* keys of the block, counted from its first, that each tile of rows sees */
  attn_key_range row_tiles[BACKWARD_KEYS / TILE_ROWS]; /* tiles of rows, from the first to behind the last, that see some of
                                                          TILE_ROWS keys */
  float *kept;                                         /* [TILE_ROWS][KEPT_STRIDE]: factors of dropout; NULL: none */
  bool adjusted, simple;                               /* more than dot products; dot scores */
} backward_step;

static ALWAYS_INLINE void start_tile(vec sum[TILE_ROWS][TILE_VECS], const float *start, const int vecs) {
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    UNROLL
    for (int v = 0; v < vecs; v++) sum[i][v] = vec_set1(start[i]);
  }
}

/* P of a panel's first `vecs` vectors; `key` counts from the block's first. `edge`: not every row sees all of them. */
static ALWAYS_INLINE void p_tile(const backward_step *s, int64_t tile_row, int64_t key, const bool edge, const int vecs) {
  const int64_t dim = s->block.problem->dim_qk;
  vec sum[TILE_ROWS][TILE_VECS];
  start_tile(sum, s->minus_lse + tile_row, vecs);
  product(sum, tile_of(&s->q, tile_row), (float_rows){s->k_panels + key * dim, PANEL_KEYS}, dim, vecs);
  float *p = s->p + tile_row * SCORE_STRIDE + key;
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    if (edge) select_allowed_vecs(s->block.range[tile_row + i], s->key + key, sum[i], vecs);
    UNROLL
    for (int v = 0; v < vecs; v++) vec_store(p + i * SCORE_STRIDE + v * VEC_LANES, vec_exp2(sum[i][v]));
  }
}

/* dS of the same. `edge`: P of masked keys is 0, whatever their V. */
static ALWAYS_INLINE void d_s_tile(const backward_step *s, int64_t tile_row, int64_t key, const bool edge, const int vecs) {
  const int64_t dim = s->block.problem->dim_v;
  vec sum[TILE_ROWS][TILE_VECS];
  start_tile(sum, s->minus_delta + tile_row, vecs);
  product(sum, tile_of(&s->d_o, tile_row), (float_rows){s->v_panels + key * dim, PANEL_KEYS}, dim, vecs);
  const int64_t at = tile_row * SCORE_STRIDE + key;
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
static ALWAYS_INLINE void dropped_tile(const backward_step *s, int64_t tile_row, int64_t key, const int vecs) {
  const int64_t dim = s->block.problem->dim_v;
  vec sum[TILE_ROWS][TILE_VECS];
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    UNROLL
    for (int v = 0; v < vecs; v++) sum[i][v] = vec_zero();
  }
  product(sum, tile_of(&s->d_o, tile_row), (float_rows){s->v_panels + key * dim, PANEL_KEYS}, dim, vecs);
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    const vec minus_delta = vec_set1(s->minus_delta[tile_row + i]);
    UNROLL
    for (int v = 0; v < vecs; v++) {
      const int64_t place = (tile_row + i) * SCORE_STRIDE + key + v * VEC_LANES;
      const vec p = vec_load(s->p + place), factor = vec_load(s->kept + i * KEPT_STRIDE + key + v * VEC_LANES);
      vec_store(s->d_s + place, vec_unless_zero(vec_mul(p, vec_fma(factor, sum[i][v], minus_delta)), p));
      vec_store(s->p + place, vec_mul(p, factor));
    }
  }
}

static NO_INLINE void dropped_d_s_tile(const backward_step *s, int64_t tile_row, int64_t key, int64_t vecs) {
  WITH_CONSTANT_VECS(vecs, dropped_tile, s, tile_row, key)
}

/* The factors of dropout of a tile's rows for the keys [begin, end) of the block: s->kept points to that of the block's
 * first. */
static void find_kept(backward_step *s, float *memory, int64_t tile_row, int64_t begin, int64_t end) {
  const attn_problem *p = s->block.problem;
  const philox_dropout dropout = philox_dropout_of(p->dropout, s->block.args->seed, s->block.args->offset);
  const uint32_t stream = (uint32_t)(s->block.b * p->heads_q + s->block.head);
  const int64_t first = s->key / PHILOX_GROUP;
  for (int64_t i = 0; i < min64(TILE_ROWS, s->block.rows - tile_row); i++)
    for (int64_t group = begin / PHILOX_GROUP; group * PHILOX_GROUP < end; group++)
      philox_factors(&dropout, stream, (uint32_t)(s->block.first_row + tile_row + i), group,
                     memory + i * KEPT_STRIDE + (group - first) * PHILOX_GROUP);
  s->kept = memory + s->key % PHILOX_GROUP;
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
  const int64_t dim = p->dim_qk;
  const float *panel = s->k_panels + key * k_dimensions(p);
  float *score = s->p + tile_row * SCORE_STRIDE + key;
  if (p->score == ATTN_SCORE_DOT) {
    vec sum[TILE_ROWS][TILE_VECS];
    for (int i = 0; i < TILE_ROWS; i++)
      for (int v = 0; v < TILE_VECS; v++) sum[i][v] = vec_zero();
    product(sum, tile_of(&s->q, tile_row), (float_rows){panel, PANEL_KEYS}, dim, TILE_VECS);
    store_tile(sum, score, SCORE_STRIDE, TILE_VECS);
    return;
  }
  block.keys.k = panel - (s->key + key) * k_dimensions(p); /* of key 0: other_panel counts from there */
  block.score_stride = SCORE_STRIDE;
  other_panel(&block, tile_row, s->key + key, score);
}

/* P of a panel whose scores are more than dot products. */
static NO_INLINE void adjusted_p_tile(const backward_step *s, int64_t tile_row, int64_t key) {
  const attn_problem *p = s->block.problem;
  similarity_tile(s, tile_row, key);
  for (int i = 0; i < TILE_ROWS; i++)
    for (int v = 0; v < TILE_VECS; v++) {
      const int64_t row = tile_row + i, place = row * SCORE_STRIDE + key + v * VEC_LANES;
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
      const int64_t place = (tile_row + i) * SCORE_STRIDE + key + v * VEC_LANES;
      vec_store(s->d_s + place, vec_mul(vec_load(s->d_s + place), vec_load(s->slope + place)));
    }
}

/* P and dS of the tile's keys in the block. */
static void fill_tile(const backward_step *s, int64_t tile_row, tile_keys keys) {
  for (int64_t at = keys.first; at < keys.end; at += PANEL_KEYS) {
    const int64_t key = at - s->key;
    const bool full = !s->adjusted && keys.all_begin <= at && at + PANEL_KEYS <= min64(keys.all_end, s->key + s->keys);
    const int64_t vecs = s->adjusted ? TILE_VECS : ceil_div(min64(keys.end - at, PANEL_KEYS), VEC_LANES);
    if (full)
      full_p_tile(s, tile_row, key);
    else if (s->adjusted)
      adjusted_p_tile(s, tile_row, key);
    else
      edge_p_tile(s, tile_row, key, vecs);
    if (s->kept)
      dropped_d_s_tile(s, tile_row, key, vecs);
    else if (full)
      full_d_s_tile(s, tile_row, key);
    else
      edge_d_s_tile(s, tile_row, key, vecs);
    if (s->slope) apply_slope(s, tile_row, key);
  }
}

/* Zeros in the columns [begin, end) of a tile of P and dS. */
static void clear_columns(const backward_step *s, int64_t tile_row, int64_t begin, int64_t end) {
  for (int64_t i = tile_row; i < tile_row + TILE_ROWS; i++)
    for (int64_t at = i * SCORE_STRIDE + begin; at < i * SCORE_STRIDE + end; at += VEC_LANES) {
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
static void fill_scores(backward_step *s, float *kept) {
  const attn_problem *p = s->block.problem;
  const int64_t columns = round_up(s->keys, VEC_LANES);
  const bool in_order = !attn_uses(p, ATTN_USE_ROW_LEN) && !selects_keys(p);
  for (int64_t row = 0; row < s->block.rows; row += TILE_ROWS) {
    const tile_keys keys = keys_of_tile(&s->block, row, s->key, s->key + s->keys);
    attn_key_range *seen = &s->seen[row / TILE_ROWS], filled = {0, 0};
    *seen = filled;
    if (keys.class != TILE_SKIP) {
      const int64_t width = s->adjusted ? PANEL_KEYS : VEC_LANES;
      *seen = (attn_key_range){keys.begin - s->key, keys.end - s->key};
      filled = (attn_key_range){keys.first - s->key, keys.first - s->key + round_up(keys.end - keys.first, width)};
      if (kept) find_kept(s, kept, row, keys.first, keys.end);
      fill_tile(s, row, keys);
    }
    const int64_t beside = in_order ? round_up(TILE_ROWS, VEC_LANES) : columns;
    if (keys.class == TILE_SKIP && in_order) continue;
    clear_columns(s, row, max64(0, filled.begin - beside), filled.begin);
    clear_columns(s, row, filled.end, min64(columns, filled.end + beside));
  }
  find_row_tiles(s);
}

/* ---- dK, dV, dQ += ... --------------------------------------------------------------------------------------------- */

/* `fresh`: acc holds nothing yet. */
static ALWAYS_INLINE void add_columns(float *acc, int64_t acc_stride, const float_rows weights, const bool transposed,
                                      const float_rows rows, int64_t depth, bool fresh, const int vecs) {
  vec sum[TILE_ROWS][TILE_VECS];
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    UNROLL
    for (int v = 0; v < vecs; v++) sum[i][v] = fresh ? vec_zero() : vec_load(acc + i * acc_stride + v * VEC_LANES);
  }
  product_of(sum, weights, transposed, rows, depth, vecs);
  store_tile(sum, acc, acc_stride, vecs);
}

static NO_INLINE void add_key_columns(float *acc, int64_t acc_stride, const float_rows weights, const float_rows rows,
                                      int64_t depth, bool fresh, int64_t vecs) {
  WITH_CONSTANT_VECS(vecs, add_columns, acc, acc_stride, weights, true, rows, depth, fresh)
}

static NO_INLINE void add_query_columns(float *acc, int64_t acc_stride, const float_rows weights, const float_rows rows,
                                        int64_t depth, bool fresh, int64_t vecs) {
  WITH_CONSTANT_VECS(vecs, add_columns, acc, acc_stride, weights, false, rows, depth, fresh)
}

/* A tile of TILE_ROWS rows of acc, all of its columns. */
static void add_tile(float *acc, int64_t acc_stride, float_rows weights, bool of_keys, float_rows rows, int64_t depth,
                     bool fresh) {
  column_strips strips = strips_of(acc_stride);
  for (int64_t vecs; (vecs = next_strip(&strips)) > 0;) {
    (of_keys ? add_key_columns : add_query_columns)(acc, acc_stride, weights, rows, depth, fresh, vecs);
    acc += vecs * VEC_LANES;
    rows.at += vecs * VEC_LANES;
  }
}

/* acc[key] += weights^T rows for all keys of the block: dV from P and dO, dK from dS and Q. */
static void key_gradient(const backward_step *s, const float *weights, const tile_source *rows, float *acc,
                         int64_t acc_stride, bool fresh) {
  for (int64_t key = 0; key < s->keys; key += TILE_ROWS) {
    const attn_key_range tiles = s->row_tiles[key / TILE_ROWS];
    const int64_t row = tiles.begin * TILE_ROWS, end = min64(tiles.end * TILE_ROWS, s->block.rows);
    if (row >= end && !fresh) continue;
    add_tile(acc + key * acc_stride, acc_stride, (float_rows){weights + row * SCORE_STRIDE + key, SCORE_STRIDE}, true,
             (float_rows){rows->rows.at + row * rows->rows.stride, rows->rows.stride}, max64(end - row, 0), fresh);
  }
}

/* dQ += dS K. */
static void query_gradient(const backward_step *s, float *d_q, int64_t d_q_stride, bool fresh) {
  for (int64_t row = 0; row < s->block.rows; row += TILE_ROWS) {
    const attn_key_range seen = s->seen[row / TILE_ROWS];
    const int64_t end = min64(seen.end, s->keys);
    if (seen.begin >= end && !fresh) continue;
    add_tile(d_q + row * d_q_stride, d_q_stride, (float_rows){s->d_s + row * SCORE_STRIDE + seen.begin, SCORE_STRIDE}, false,
             (float_rows){s->k.at + seen.begin * s->k.stride, s->k.stride}, max64(end - seen.begin, 0), fresh);
  }
}

/* Where scores are no dot products: dS times the derivative of each pair's sum, for vectors of columns. */
static void other_gradients(const backward_step *s, float *d_q, float *d_k, int64_t stride) {
  const attn_problem *p = s->block.problem;
  const float *weight = NULL;
  if (attn_uses(p, ATTN_USE_SCORE_WEIGHT)) weight = s->block.args->score_weight + s->block.head * p->score_weight_stride_h;
  for (int64_t d = 0; d < stride; d += VEC_LANES) {
    const int64_t count = min64(VEC_LANES, p->dim_qk - d);
    const vec w = weight ? vec_load_first(weight + d, count) : vec_set1(1.0f);
    for (int64_t i = 0; i < s->block.rows; i++) {
      const attn_key_range seen = s->seen[i / TILE_ROWS];
      const vec q = vec_load(s->q.rows.at + i * s->q.rows.stride + d);
      vec of_q = vec_load(d_q + i * stride + d);
      for (int64_t j = seen.begin; j < min64(seen.end, s->keys); j++) {
        const float d_s = s->d_s[i * SCORE_STRIDE + j];
        if (d_s == 0.0f) continue;
        const vec k = vec_load(s->k.at + j * s->k.stride + d);
        vec of_k;
        if (p->score == ATTN_SCORE_ADDITIVE) {
          const vec t = vec_tanh(vec_add(q, k));
          of_k = vec_mul(vec_mul(w, vec_set1(d_s)), vec_sub(vec_set1(1.0f), vec_mul(t, t)));
          of_q = vec_add(of_q, of_k);
        } else {
          of_k = vec_mul(vec_mul(w, w), vec_mul(vec_set1(d_s), vec_sub(q, k)));
          of_q = vec_sub(of_q, of_k);
        }
        vec_store(d_k + j * stride + d, vec_add(vec_load(d_k + j * stride + d), of_k));
      }
      vec_store(d_q + i * stride + d, of_q);
    }
  }
}

/* ---- Rows and keys in -------------------------------------------------------------------------------------------- */

/* Everything of one task. */
typedef struct backward_task {
  const attn_problem *p;
  const attn_args *args;
  const backward_layout *at;
  unit_keys unit;
  float *unit_memory; /* d_q of the range */
  void *memory, *scratch;
} backward_task;

static bool all_live(const float *minus_lse, int64_t rows) {
  for (int64_t i = 0; i < rows; i++)
    if (minus_lse[i] == -INFINITY) return false;
  return true;
}

/* Rows of queries: in place where tiles can read them so, else copied. Rows without keys are zeros: they may hold anything.
 */
static tile_source load_rows(attn_storage from, int64_t offset, int64_t row_stride, int64_t column_stride, int64_t columns,
                             int64_t rows, const float *minus_lse, float *copy, int64_t copy_floats) {
  const bool in_place =
      from.dtype == ATTN_F32 && column_stride == 1 && columns % VEC_LANES == 0 && all_live(minus_lse, rows);
  const row_source source = {
      .from = from, .offset = offset, .row_stride = row_stride, .column_stride = column_stride, .columns = columns};
  const int64_t first = in_place ? round_down(rows, TILE_ROWS) : 0;
  for (int64_t i = first; i < round_up(rows, TILE_ROWS); i++) {
    float *row = copy + (i - first) * copy_floats;
    if (i < rows && minus_lse[i] != -INFINITY)
      copy_row(&source, i, row, copy_floats);
    else
      memset(row, 0, (size_t)copy_floats * sizeof *row);
  }
  const float_rows copied = {copy, copy_floats};
  if (!in_place) return (tile_source){.rows = copied, .last_row = -1};
  return (tile_source){
      .rows = {(const float *)from.data + offset, row_stride}, .last = copied, .last_row = first < rows ? first : -1};
}

/* `keys` rows transposed into panels, times `factor`; those that are not used are zeros. */
static void pack_panels(const attn_problem *as_k, attn_storage from, int64_t offset, int64_t keys, attn_key_range used,
                        float factor, float *panels) {
  const int64_t dim = as_k->dim_qk;
  for (int64_t key = 0; key < keys; key += VEC_LANES) {
    float *panel = panels + round_down(key, PANEL_KEYS) * dim + key % PANEL_KEYS;
    const int64_t count = min64(used.end - key, VEC_LANES), skip = min64(used.begin - key, VEC_LANES);
    pack_lanes(as_k, from, offset + key * as_k->k_stride.s, max64(count, 0), panel);
    for (int64_t d = 0; factor != 1.0f && d < dim; d++)
      vec_store(panel + d * PANEL_KEYS, vec_mul(vec_load(panel + d * PANEL_KEYS), vec_set1(factor)));
    for (int64_t d = 0; skip > 0 && d < dim; d++)
      for (int64_t i = 0; i < skip; i++) panel[d * PANEL_KEYS + i] = 0.0f;
  }
}

/* Packs the block of keys from `key` on; keys that no row may see are zeros. */
static void load_keys(const backward_task *t, int64_t key, int64_t keys, backward_step *s) {
  const attn_problem *p = t->p;
  const attn_key_run run = run_of_unit(&t->unit, key);
  const attn_key_range used = {max64(t->unit.used.begin - key, 0), min64(t->unit.used.end - key, keys)};
  attn_problem v_as_k = *p;
  v_as_k.k_stride = p->v_stride;
  v_as_k.dim_qk = p->dim_v;
  s->key = key;
  s->keys = keys;
  s->k_panels = floats_at(t->scratch, t->at->k_panels);
  s->v_panels = floats_at(t->scratch, t->at->v_panels);
  pack_panels(&v_as_k, attn_v_storage(p, t->args), run.v, keys, used, 1.0f, floats_at(t->scratch, t->at->v_panels));
  if (!k_dimensions(p)) return;
  const float factor = p->score == ATTN_SCORE_DOT ? p->scale * LOG2_E : 1.0f;
  pack_panels(p, attn_k_storage(p, t->args), run.k, keys, used, factor, floats_at(t->scratch, t->at->k_panels));
  const row_source rows = k_rows(&t->unit, run);
  float *copy = floats_at(t->scratch, t->at->k_rows);
  s->k = (float_rows){copy, t->at->qk_floats};
  if (p->dtype_kv == ATTN_F32 && p->k_stride.d == 1 && p->dim_qk % VEC_LANES == 0 && used.begin == 0 && used.end == keys) {
    s->k = (float_rows){(const float *)t->args->k + run.k, p->k_stride.s};
    return;
  }
  for (int64_t j = 0; j < keys; j++)
    if (j >= used.begin && j < used.end)
      copy_row(&rows, j, copy + j * t->at->qk_floats, t->at->qk_floats);
    else
      memset(copy + j * t->at->qk_floats, 0, (size_t)t->at->qk_floats * sizeof *copy);
}

/* Whether certainly none of the rows sees a key of the block, by the ranges of the first and the last. */
static bool sees_none(const backward_task *t, int64_t row, int64_t rows, const backward_step *s) {
  if (attn_uses(t->p, ATTN_USE_ROW_LEN)) return false;
  const attn_key_range first = attn_allowed_keys(t->p, t->args, &t->unit.seq, t->unit.b, row);
  const attn_key_range last = attn_allowed_keys(t->p, t->args, &t->unit.seq, t->unit.b, row + rows - 1);
  return (first.begin < first.end && first.begin >= s->key + s->keys) || (last.begin < last.end && last.end <= s->key);
}

/* Loads the rows of query head h; their terms are in s already. */
static void load_step(const backward_task *t, int64_t h, int64_t row, int64_t rows, backward_step *s) {
  const attn_problem *p = t->p;
  const backward_layout *at = t->at;
  const int64_t token = t->unit.seq.first_q + row;
  if (k_dimensions(p))
    s->q = load_rows(attn_q_storage(p, t->args), attn_row_offset(p, &p->q_stride, t->unit.b, h, token), p->q_stride.s,
                     p->q_stride.d, p->dim_qk, rows, s->minus_lse, floats_at(t->scratch, at->q), at->qk_floats);
  s->d_o = load_rows((attn_storage){t->args->d_o, p->dtype_o}, attn_row_offset(p, &p->d_o_stride, t->unit.b, h, token),
                     p->d_o_stride.s, p->d_o_stride.d, p->dim_v, rows, s->minus_lse, floats_at(t->scratch, at->d_o),
                     at->v_floats);
  s->block = (row_block){.problem = p,
                         .args = t->args,
                         .seq = &t->unit.seq,
                         .b = t->unit.b,
                         .head = h,
                         .first_row = row,
                         .rows = rows,
                         .rows_per_head = rows,
                         .q = (float *)(uintptr_t)s->q.rows.at,
                         .q_stride = s->q.rows.stride,
                         .range = (attn_key_range *)(void *)floats_at(t->scratch, at->range),
                         .row_max = floats_at(t->scratch, at->max)};
  s->block.alike = rows_see_alike(&s->block);
  start_ranges(&s->block, round_up(rows, TILE_ROWS));
}

/* ---- Gradients out ----------------------------------------------------------------------------------------------- */

/* A gradient: where its rows go, and how they are rounded. */
typedef struct gradient_rows {
  const attn_problem *p;
  void *data; /* NULL: not wanted */
  attn_dtype dtype;
  int64_t at, row_stride, column_stride; /* of the first row, in elements */
  int64_t columns, row_floats;           /* of the sums: whole vectors */
  float factor;
} gradient_rows;

static float factor_of(const attn_problem *p) { return p->score == ATTN_SCORE_DOT ? p->scale : 1.0f; }

/* Gradients of the keys from `key` on. */
static gradient_rows d_k_rows(const backward_task *t, int64_t key) {
  const attn_problem *p = t->p;
  const int64_t head = attn_kv_head(p, t->unit.head), token = t->unit.seq.first_k + key;
  return (gradient_rows){.p = p,
                         .data = t->args->d_k,
                         .dtype = p->dtype_kv,
                         .at = attn_row_offset(p, &p->d_k_stride, t->unit.b, head, token),
                         .row_stride = p->d_k_stride.s,
                         .column_stride = p->d_k_stride.d,
                         .columns = k_dimensions(p),
                         .row_floats = t->at->qk_floats,
                         .factor = factor_of(p)};
}

static gradient_rows d_v_rows(const backward_task *t, int64_t key) {
  const attn_problem *p = t->p;
  const int64_t head = attn_kv_head(p, t->unit.head), token = t->unit.seq.first_k + key;
  return (gradient_rows){.p = p,
                         .data = t->args->d_v,
                         .dtype = p->dtype_kv,
                         .at = attn_row_offset(p, &p->d_v_stride, t->unit.b, head, token),
                         .row_stride = p->d_v_stride.s,
                         .column_stride = p->d_v_stride.d,
                         .columns = p->dim_v,
                         .row_floats = t->at->v_floats,
                         .factor = 1.0f};
}

/* That of the queries of a head from `row` on. */
static gradient_rows d_q_rows(const backward_task *t, int64_t head, int64_t row) {
  const attn_problem *p = t->p;
  return (gradient_rows){.p = p,
                         .data = t->args->d_q,
                         .dtype = p->dtype_q,
                         .at = attn_row_offset(p, &p->d_q_stride, t->unit.b, t->unit.head + head, t->unit.seq.first_q + row),
                         .row_stride = p->d_q_stride.s,
                         .column_stride = p->d_q_stride.d,
                         .columns = k_dimensions(p),
                         .row_floats = t->at->qk_floats,
                         .factor = factor_of(p)};
}

/* Whether factor * row is. */
static bool is_finite(const gradient_rows *to, const float *row) {
  vec poison = vec_zero(); /* 0 * x is NaN for NaN and infinity */
  for (int64_t d = 0; d < to->row_floats; d += VEC_LANES)
    poison = vec_fma(vec_mul(vec_load(row + d), vec_set1(to->factor)), vec_zero(), poison);
  return !vec_any_nan(poison);
}

/* Stores factor * row for rows of floats that lie side by side. False if some row is not finite. */
static bool store_dense_rows(const gradient_rows *to, const float *rows, int64_t count) {
  const vec factor = vec_set1(to->factor);
  const int64_t columns = to->columns, whole = round_down(columns, VEC_LANES), stride = to->row_stride;
  float *o = (float *)to->data + to->at;
  vec poison = vec_zero();
  for (int64_t i = 0; i < count; i++, rows += to->row_floats, o += stride) {
    vec of_row = vec_zero();
    UNROLL_4
    for (int64_t d = 0; d < whole; d += VEC_LANES) {
      const vec x = vec_mul(vec_load(rows + d), factor);
      vec_store(o + d, x);
      of_row = vec_fma(x, vec_zero(), of_row);
    }
    if (whole < columns) {
      const vec x = vec_mul(vec_load(rows + whole), factor);
      vec_store_first(o + whole, x, columns - whole);
      of_row = vec_fma(x, vec_zero(), of_row);
    }
    poison = vec_add(poison, of_row);
  }
  return !vec_any_nan(poison);
}

/* Stores factor * row, or adds it to what is there, where the row is finite. */
static bool store_any_rows(const gradient_rows *to, const float *rows, int64_t count) {
  bool finite = true;
  for (int64_t i = 0; i < count; i++) {
    const float *row = rows + i * to->row_floats;
    if (is_finite(to, row))
      for (int64_t d = 0; d < to->columns; d++)
        attn_put_gradient(to->p, to->data, to->dtype, to->at + i * to->row_stride + d * to->column_stride,
                          (double)(to->factor * row[d]));
    else
      finite = false;
  }
  return finite;
}

/* False if some row is not finite: the caller computes it otherwise. Nothing has been added to its gradient. */
static bool store_rows(const gradient_rows *to, const float *rows, int64_t count) {
  if (!to->data || to->columns == 0) return true;
  const bool dense = to->dtype == ATTN_F32 && to->column_stride == 1 && !attn_uses(to->p, ATTN_USE_ACCUMULATE);
  return (dense ? store_dense_rows : store_any_rows)(to, rows, count);
}

static void finish_keys(const backward_task *t, int64_t key, int64_t keys, float *d_k, float *d_v) {
  const gradient_rows to_k = d_k_rows(t, key), to_v = d_v_rows(t, key);
  const int64_t head = attn_kv_head(t->p, t->unit.head);
  const bool finite = store_rows(&to_k, d_k, keys) & store_rows(&to_v, d_v, keys);
  for (int64_t j = 0; !finite && j < keys; j++) {
    if (!is_finite(&to_k, d_k + j * to_k.row_floats))
      attn_exact_key_gradient(t->p, t->args, t->unit.b, head, key + j, false);
    if (!is_finite(&to_v, d_v + j * to_v.row_floats)) attn_exact_key_gradient(t->p, t->args, t->unit.b, head, key + j, true);
  }
}

/* Keys beyond the sequence's get zeros. */
static void finish_padding(const backward_task *t) {
  const int64_t end = attn_uses(t->p, ATTN_USE_VARLEN) ? 0 : t->p->seq_k;
  float *zeros = floats_at(t->scratch, t->at->d_k);
  memset(zeros, 0, (size_t)max64(t->at->qk_floats, t->at->v_floats) * sizeof *zeros);
  for (int64_t j = t->unit.seq.len_k; j < end; j++) finish_keys(t, j, 1, zeros, zeros);
}

/* ---- Tasks ------------------------------------------------------------------------------------------------------- */

static backward_task task_of(const attn_schedule *schedule, const attn_args *args, attn_task task, void *memory,
                             void *scratch) {
  backward_task t = {.p = &schedule->problem,
                     .args = args,
                     .at = backward_layout_in(schedule),
                     .unit = keys_of_unit(&schedule->problem, args, task.unit),
                     .memory = memory,
                     .scratch = scratch};
  return t;
}

static float *d_q_of(const backward_task *t, int64_t range, int64_t head, int64_t row) {
  const int64_t rows = (range * attn_group(t->p) + head) * t->at->rows + row;
  return floats_at(t->memory, t->at->d_q) + rows * t->at->qk_floats;
}

/* All queries of the heads that share the KV head, against one block of keys. */
static void differentiate_block(const backward_task *t, int64_t range, int64_t key, int64_t keys, bool first) {
  const attn_problem *p = t->p;
  float *d_k = floats_at(t->scratch, t->at->d_k), *d_v = floats_at(t->scratch, t->at->d_v);
  backward_step s = {.p = floats_at(t->scratch, t->at->p),
                     .d_s = floats_at(t->scratch, t->at->d_s),
                     .slope = p->softcap > 0 ? floats_at(t->scratch, t->at->slope) : NULL,
                     .adjusted = scores_adjusted(p),
                     .simple = p->score == ATTN_SCORE_DOT};
  bool fresh = true;
  load_keys(t, key, keys, &s);
  if (!s.simple) memset(d_k, 0, (size_t)(BACKWARD_KEYS * t->at->qk_floats) * sizeof *d_k);
  for (int64_t head = 0; head < attn_group(p); head++)
    for (int64_t row = 0; row < t->unit.seq.len_q; row += BACKWARD_ROWS) {
      const int64_t rows = min64(BACKWARD_ROWS, t->unit.seq.len_q - row);
      float *d_q = d_q_of(t, range, head, row);
      const size_t d_q_bytes = (size_t)(round_up(rows, TILE_ROWS) * t->at->qk_floats) * sizeof *d_q;
      const bool skip = sees_none(t, row, rows, &s);
      if (first && (skip || !s.simple)) memset(d_q, 0, d_q_bytes);
      if (skip) continue;
      s.minus_lse = floats_at(t->memory, t->at->minus_lse) + head * t->at->rows + row;
      s.minus_delta = floats_at(t->memory, t->at->minus_delta) + head * t->at->rows + row;
      load_step(t, t->unit.head + head, row, rows, &s);
      fill_scores(&s, p->dropout > 0 ? floats_at(t->scratch, t->at->kept) : NULL);
      key_gradient(&s, s.p, &s.d_o, d_v, t->at->v_floats, fresh);
      if (s.simple) {
        key_gradient(&s, s.d_s, &s.q, d_k, t->at->qk_floats, fresh);
        query_gradient(&s, d_q, t->at->qk_floats, first);
      } else if (k_dimensions(p)) {
        other_gradients(&s, d_q, d_k, t->at->qk_floats);
      }
      fresh = false;
    }
  if (fresh) {
    memset(d_k, 0, (size_t)(BACKWARD_KEYS * t->at->qk_floats) * sizeof *d_k);
    memset(d_v, 0, (size_t)(BACKWARD_KEYS * t->at->v_floats) * sizeof *d_v);
  }
  finish_keys(t, key, keys, d_k, d_v);
}

/* Task `item`: one range of keys. */
static void differentiate_range(const attn_schedule *schedule, const attn_args *args, attn_task task, void *memory,
                                void *scratch) {
  const backward_task t = task_of(schedule, args, task, memory, scratch);
  const int64_t len_k = t.unit.seq.len_k, size = range_keys(len_k), begin = task.item * size;
  if (task.item == 0) finish_padding(&t);
  for (int64_t key = begin; key < min64(begin + size, len_k); key += BACKWARD_KEYS)
    differentiate_block(&t, task.item, key, min64(BACKWARD_KEYS, min64(begin + size, len_k) - key), key == begin);
}

/* rows[0] += the same rows of the other ranges, in order. */
static void add_ranges(const backward_task *t, int64_t ranges, int64_t head, int64_t row, int64_t rows) {
  const int64_t floats = rows * t->at->qk_floats;
  float *sum = d_q_of(t, 0, head, row);
  for (int64_t range = 1; range < ranges; range++) {
    const float *other = d_q_of(t, range, head, row);
    for (int64_t d = 0; d < floats; d += VEC_LANES) vec_store(sum + d, vec_add(vec_load(sum + d), vec_load(other + d)));
  }
}

/* dQ of FINISH_ROWS rows. Rows beyond the sequence's, and those without keys, are zeros. */
static void finish_queries(const attn_schedule *schedule, const attn_args *args, attn_task task, void *memory,
                           void *scratch) {
  const backward_task t = task_of(schedule, args, task, memory, scratch);
  const attn_problem *p = t.p;
  const attn_sequence *seq = &t.unit.seq;
  const int64_t group = attn_group(p), head = task.item % group, first = task.item / group * FINISH_ROWS;
  const int64_t ranges = ceil_div(seq->len_k, range_keys(seq->len_k)), floats = t.at->qk_floats;
  const int64_t end = min64(first + FINISH_ROWS, attn_rows(p, seq)), full = ranges > 0 ? min64(end, seq->len_q) : 0;
  const gradient_rows all = d_q_rows(&t, head, 0);
  gradient_rows to = all;
  if (first < full) {
    const float *rows = d_q_of(&t, 0, head, first);
    add_ranges(&t, ranges, head, first, full - first);
    to.at = all.at + first * to.row_stride;
    const bool finite = store_rows(&to, rows, full - first);
    for (int64_t i = first; !finite && i < full; i++)
      if (!is_finite(&to, rows + (i - first) * floats)) attn_exact_query_gradient(p, args, t.unit.b, t.unit.head + head, i);
  }
  float *zeros = floats_at(scratch, t.at->d_k);
  memset(zeros, 0, (size_t)floats * sizeof *zeros);
  for (int64_t i = max64(first, full); i < end; i++) {
    to.at = all.at + i * to.row_stride;
    store_rows(&to, zeros, 1);
  }
}

/* ---- Gradients of what is added to scores: dS again, summed over batches and heads --------------------------------- */

/* A pair of blocks of all batches and heads that one gradient sums over, at the place of a head of a batch. */
typedef struct score_sum {
  const attn_schedule *schedule;
  const attn_args *args;
  void *scratch;
  attn_sum_range range;
  int64_t row, key;
  bool of_sums; /* before softcap */
} score_sum;

/* What a gradient makes of dS of one batch and head. */
typedef void take_scores(void *context, const backward_step *s, int64_t d_q_floats);

/* dS of the pair of blocks for batch b and head h, handed to `take`. */
static void score_step(const score_sum *sum, int64_t b, int64_t h, take_scores *take, void *context) {
  const attn_problem *p = &sum->schedule->problem;
  const int64_t unit = b * p->heads_kv + attn_kv_head(p, h);
  const backward_task t = task_of(sum->schedule, sum->args, (attn_task){.unit = unit}, NULL, sum->scratch);
  const int64_t rows = min64(BACKWARD_ROWS, t.unit.seq.len_q - sum->row);
  const int64_t keys = min64(BACKWARD_KEYS, t.unit.seq.len_k - sum->key);
  float *terms = floats_at(sum->scratch, t.at->terms);
  backward_step s = {.p = floats_at(sum->scratch, t.at->p),
                     .d_s = floats_at(sum->scratch, t.at->d_s),
                     .slope = p->softcap > 0 && sum->of_sums ? floats_at(sum->scratch, t.at->slope) : NULL,
                     .adjusted = scores_adjusted(p),
                     .simple = p->score == ATTN_SCORE_DOT,
                     .minus_lse = terms,
                     .minus_delta = terms + BACKWARD_ROWS + TILE_ROWS};
  if (rows <= 0 || keys <= 0) return;
  const head_terms of_rows = {
      .p = p,
      .args = sum->args,
      .seq = t.unit.seq,
      .h = h,
      .minus_lse = terms - sum->row,
      .minus_delta = terms + BACKWARD_ROWS + TILE_ROWS - sum->row,
      .copies = {floats_at(sum->scratch, t.at->d_o), floats_at(sum->scratch, t.at->d_o) + t.at->v_floats}};
  find_terms(&of_rows, sum->row, sum->row + rows);
  end_terms(&of_rows, sum->row + rows, sum->row + round_up(rows, TILE_ROWS));
  load_keys(&t, sum->key, keys, &s);
  if (sees_none(&t, sum->row, rows, &s)) return;
  load_step(&t, h, sum->row, rows, &s);
  fill_scores(&s, p->dropout > 0 ? floats_at(sum->scratch, t.at->kept) : NULL);
  take(context, &s, t.at->qk_floats);
}

static void each_score_step(const score_sum *sum, take_scores *take, void *context) {
  for (int64_t b = sum->range.first_b; b < sum->range.first_b + sum->range.batches; b++)
    for (int64_t h = sum->range.first_h; h < sum->range.first_h + sum->range.heads; h++)
      score_step(sum, b, h, take, context);
}

/* sums[i][j] += dS. */
static void add_scores(void *context, const backward_step *s, int64_t d_q_floats) {
  float *sums = context;
  (void)d_q_floats;
  for (int64_t i = 0; i < s->block.rows; i++) {
    const attn_key_range seen = s->seen[i / TILE_ROWS];
    for (int64_t j = seen.begin; j < min64(seen.end, s->keys); j++)
      sums[i * SCORE_STRIDE + j] += s->d_s[i * SCORE_STRIDE + j];
  }
}

/* d_bias or d_scores where the sums of batch b and head h stand. */
static void array_gradient(score_sum *sum, float *to, const attn_score_strides *stride, int64_t b, int64_t h) {
  const attn_problem *p = &sum->schedule->problem;
  const bool adds = attn_uses(p, ATTN_USE_ACCUMULATE);
  float *sums = floats_at(sum->scratch, backward_layout_in(sum->schedule)->sums);
  sum->range = attn_sum_of(p, stride->b, stride->h, b, h);
  if (sum->range.batches == 0) return;
  for (sum->row = 0; sum->row < p->seq_q; sum->row += BACKWARD_ROWS)
    for (sum->key = 0; sum->key < p->seq_k; sum->key += BACKWARD_KEYS) {
      memset(sums, 0, (size_t)(BACKWARD_ROWS * SCORE_STRIDE) * sizeof *sums);
      each_score_step(sum, add_scores, sums);
      for (int64_t i = 0; i < min64(BACKWARD_ROWS, p->seq_q - sum->row); i++)
        for (int64_t j = 0; j < min64(BACKWARD_KEYS, p->seq_k - sum->key); j++) {
          float *element = to + attn_score_offset(stride, b, h, sum->row + i, sum->key + j);
          const bool first = !adds && (stride->q || sum->row + i == 0) && (stride->k || sum->key + j == 0);
          *element = (first ? 0.0f : *element) + sums[i * SCORE_STRIDE + j];
        }
    }
}

/* -sum of dS |i + offset - j| */
static void add_distances(void *context, const backward_step *s, int64_t d_q_floats) {
  double *total = context;
  (void)d_q_floats;
  for (int64_t i = 0; i < s->block.rows; i++) {
    const attn_key_range seen = s->seen[i / TILE_ROWS];
    const float position = (float)(s->block.first_row + i + s->block.seq->offset - s->key);
    float sum = 0.0f;
    for (int64_t j = seen.begin; j < min64(seen.end, s->keys); j++)
      sum += s->d_s[i * SCORE_STRIDE + j] * fabsf(position - (float)j);
    *total -= (double)sum;
  }
}

/* Sums of dS times the derivative of the score's sum by its weights: [dim_qk] doubles, in the place of d_k. */
static void add_weight_gradients(void *context, const backward_step *s, int64_t d_q_floats) {
  const attn_problem *p = s->block.problem;
  const float *weight = s->block.args->score_weight + s->block.head * p->score_weight_stride_h;
  double *total = context;
  for (int64_t d = 0; d < d_q_floats; d += VEC_LANES) {
    const vec w = vec_load_first(weight + d, min64(VEC_LANES, p->dim_qk - d));
    float lanes[VEC_LANES];
    for (int64_t i = 0; i < s->block.rows; i++) {
      const attn_key_range seen = s->seen[i / TILE_ROWS];
      const vec q = vec_load(s->q.rows.at + i * s->q.rows.stride + d);
      vec sum = vec_zero();
      for (int64_t j = seen.begin; j < min64(seen.end, s->keys); j++) {
        const vec k = vec_load(s->k.at + j * s->k.stride + d), d_s = vec_set1(s->d_s[i * SCORE_STRIDE + j]);
        const vec apart = vec_sub(q, k);
        if (p->score == ATTN_SCORE_ADDITIVE)
          sum = vec_fma(d_s, vec_tanh(vec_add(q, k)), sum);
        else
          sum = vec_sub(sum, vec_mul(vec_mul(d_s, w), vec_mul(apart, apart)));
      }
      vec_store(lanes, sum);
      for (int64_t n = 0; n < min64(VEC_LANES, p->dim_qk - d); n++) total[d + n] += (double)lanes[n];
    }
  }
}

/* All pairs of blocks, in order. */
static void each_block(score_sum *sum, take_scores *take, void *context) {
  const attn_problem *p = &sum->schedule->problem;
  for (sum->row = 0; sum->row < p->seq_q; sum->row += BACKWARD_ROWS)
    for (sum->key = 0; sum->key < p->seq_k; sum->key += BACKWARD_KEYS) each_score_step(sum, take, context);
}

static void weight_gradient(score_sum *sum, int64_t b, int64_t h) {
  const attn_problem *p = &sum->schedule->problem;
  double *total = (double *)(void *)floats_at(sum->scratch, backward_layout_in(sum->schedule)->d_k);
  _Static_assert(BACKWARD_KEYS >= 2, "d_k holds a row of doubles");
  sum->range = attn_sum_of(p, 0, p->score_weight_stride_h, b, h);
  if (sum->range.batches == 0) return;
  memset(total, 0, (size_t)p->dim_qk * sizeof *total);
  if (p->score == ATTN_SCORE_ADDITIVE || p->score == ATTN_SCORE_GAUSSIAN) each_block(sum, add_weight_gradients, total);
  for (int64_t d = 0; d < p->dim_qk; d++)
    attn_put_gradient(p, sum->args->d_score_weight, ATTN_F32, h * p->score_weight_stride_h + d, total[d]);
}

/* Item: a query head of the unit, where sums over heads or batches are those of the first. */
static void score_gradients(const attn_schedule *schedule, const attn_args *args, attn_task task, void *scratch) {
  const attn_problem *p = &schedule->problem;
  const int64_t b = attn_batch_of_unit(p, task.unit), h = attn_head_of_unit(p, task.unit) + task.item;
  score_sum sum = {.schedule = schedule, .args = args, .scratch = scratch};
  if (args->d_bias && attn_uses(p, ATTN_USE_D_BIAS)) array_gradient(&sum, args->d_bias, &p->d_bias_stride, b, h);
  sum.of_sums = true;
  if (args->d_scores && p->score == ATTN_SCORE_PRECOMPUTED) array_gradient(&sum, args->d_scores, &p->d_scores_stride, b, h);
  if (args->d_score_weight && attn_uses(p, ATTN_USE_D_SCORE_WEIGHT)) weight_gradient(&sum, b, h);
  attn_exact_sink_gradient(p, args, b, h);
  if (b > 0 || !args->d_alibi_slopes || !attn_uses(p, ATTN_USE_D_ALIBI)) return;
  double total = 0;
  sum.of_sums = false;
  sum.range = attn_sum_of(p, 0, 1, b, h);
  each_block(&sum, add_distances, &total);
  attn_put_gradient(p, args->d_alibi_slopes, ATTN_F32, h, total);
}

/* ---- The contract of kernel.h ------------------------------------------------------------------------------------- */

enum { TERMS_PHASE, RANGE_PHASE, QUERY_PHASE, SCORE_PHASE };

static inline bool backward_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  backward_layout *at = (void *)schedule->own;
  (void)machine;
  if (!backward_layout_of(p, at)) return false;
  schedule->phases = wants_score_gradients(p) ? 4 : 3;
  schedule->items[TERMS_PHASE] = attn_group(p);
  schedule->items[RANGE_PHASE] = at->ranges;
  schedule->items[QUERY_PHASE] = k_dimensions(p) ? attn_group(p) * max64(1, ceil_div(p->seq_q, FINISH_ROWS)) : 1;
  schedule->items[SCORE_PHASE] = attn_group(p);
  schedule->row_block = BACKWARD_ROWS;
  schedule->key_block = BACKWARD_KEYS;
  schedule->unit_bytes = (size_t)at->unit_bytes;
  schedule->scratch_bytes = (size_t)at->scratch_bytes;
  return true;
}

static inline void backward_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                                void *scratch) {
  const attn_problem *p = &schedule->problem;
  switch (task.phase) {
    case TERMS_PHASE: query_terms(schedule, args, task, unit_memory, scratch); break;
    case RANGE_PHASE: differentiate_range(schedule, args, task, unit_memory, scratch); break;
    case QUERY_PHASE:
      if (k_dimensions(p)) finish_queries(schedule, args, task, unit_memory, scratch);
      break;
    default: score_gradients(schedule, args, task, scratch);
  }
}

#endif
