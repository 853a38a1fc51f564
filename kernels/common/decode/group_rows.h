/* SPDX-License-Identifier: MIT */
/* decode of 2, 4 or 8 query rows without a mask: few_rows.h, but softmax has rows in lanes, and the usual head dimensions
 * are constants.
 *
 * A block's scores stand key by key, those of a key's rows side by side, as the sums of all rows and a vector's worth of
 * keys come out of vec_sum_each(). So largest scores and sums of P are taken lane by lane, nothing is added across lanes,
 * and P is where P V wants its factors. A row's bits are those of few_rows.h and softmax_row().
 * Pairs of bf16 values (few_pairs.h) share lanes as there: P of two keys in each, row by row.
 *
 * A tier that has it includes it before decode.h. Parameters: those of wide_sums.h, and
 *   vec pair_rows_of_2(vec low, vec high), pair_rows_of_4(), pair_rows_of_8()  if lanes hold pairs: P of that many rows side
 *                                                                              by side, key by key, to pairs of each row */
#ifndef ATTN_COMMON_DECODE_GROUP_ROWS_H
#define ATTN_COMMON_DECODE_GROUP_ROWS_H

#include "stream.h"
#include "wide_sums.h"

/* Row and key of lane l of vector i of scores or P: l % rows, and i * keys_of_vector + l / rows. */
static ALWAYS_INLINE int keys_of_vector(const int rows) { return VEC_LANES / rows; }

static void load_references(const row_block *block, int64_t rows, group_softmax *state) {
  state->unset = 0;
  for (int64_t row = 0; row < rows; row++) {
    state->unset += block->row_max[row] == -INFINITY;
    for (int64_t lane = row; lane < VEC_LANES; lane += rows) state->reference[lane] = reference_of(block, row);
  }
}

/* Moves sums between the state and row_sum, where a row's sums stand side by side, key by key. */
static ALWAYS_INLINE void move_sums(const row_block *block, const int rows, group_softmax *state, const bool stores) {
  for (int row = 0; row < rows; row++) {
    float *of_row = block->row_sum + row * VEC_LANES;
    for (int i = 0; i < rows; i++)
      for (int lane = row; lane < VEC_LANES; lane += rows, of_row++)
        if (stores)
          *of_row = state->sum[i][lane];
        else
          state->sum[i][lane] = *of_row;
  }
}

/* All of it unrolled for each number of rows. */
static ALWAYS_INLINE void move_sums_of(const row_block *block, int64_t rows, group_softmax *state, const bool stores) {
  switch (rows) {
    case 2: move_sums(block, 2, state, stores); break;
    case 4: move_sums(block, 4, state, stores); break;
    default: move_sums(block, 8, state, stores);
  }
}
static NO_INLINE void load_sums(const row_block *block, int64_t rows, group_softmax *state) {
  move_sums_of(block, rows, state, false);
}
static NO_INLINE void store_sums(const row_block *block, int64_t rows, group_softmax *state) {
  move_sums_of(block, rows, state, true);
}

static void start_group(const row_block *block, int64_t rows, group_softmax *state) {
  load_references(block, rows, state);
  if (state->unset < rows)
    load_sums(block, rows, state);
  else
    memset(state->sum, 0, (size_t)rows * sizeof state->sum[0]);
}

/* Moves the references of rows that need it; best: the largest scores of each lane. */
static NO_INLINE void raise_references(const row_block *block, int64_t rows, const float best[VEC_LANES],
                                       group_softmax *state) {
  const bool scales = state->unset < rows;
  if (scales) store_sums(block, rows, state);
  for (int64_t row = 0; row < rows; row++) {
    float largest = best[row];
    for (int64_t lane = row; lane < VEC_LANES; lane += rows) largest = fmaxf(largest, best[lane]);
    const float step = largest - reference_of(block, row);
    if (step > (block->row_max[row] == -INFINITY ? -INFINITY : RESCALE_AT)) rescale_row(block, row, step, block->score, 0);
  }
  if (scales) load_sums(block, rows, state);
  load_references(block, rows, state);
}

/* P of LANE_VALUES neighbouring vectors, as P V takes them. */
static ALWAYS_INLINE vec join_rows(const int rows, const vec p[LANE_VALUES]) {
#ifdef ATTN_COMMON_DECODE_FEW_PAIRS_H
  return rows == 8 ? pair_rows_of_8(p[0], p[1]) : rows == 4 ? pair_rows_of_4(p[0], p[1]) : pair_rows_of_2(p[0], p[1]);
#else
  (void)rows;
  return p[0];
#endif
}

/* Where P of a block goes, whose scores are at `score`: over them if it takes as much room, else behind them. */
static ALWAYS_INLINE float *weights_of(float *score, const int rows) {
  return score + (LANE_VALUES == 1 ? 0 : DECODE_KEYS * rows);
}
_Static_assert(LANE_VALUES == 1 || DECODE_KEYS * 3 / 2 <= DECODE_SCORE_STRIDE, "score must hold S and P");

/* Head dimensions that a function is for, if it is not a single one. */
enum { DIMS_WHOLE = 0 /* whole vectors */, DIMS_PARTS = -1 /* with a part of a vector at the end */ };

/* Whether a line of group_rows.def is for this tier. */
#define HAS_GROUP(dim, type) (((dim) != DIMS_PARTS || LOADS_PARTS_OF(type)) && LANES_TAKE(type))

/* The queries as tile_queries() leaves them, and the keys of a vector of scores, of which the first begins at k.rows.first.
 */
typedef struct group_operands {
  const float *q;
  block_rows k;
} group_operands;

/* sum[j * rows + r] += products of the elements [d, d + n) of row r and of key j. */
static ALWAYS_INLINE void score_step(const group_operands of, int64_t d, int64_t n, const few_kind kind, vec sum[VEC_LANES],
                                     prefetch_lines *next) {
  const int two_lines = 2 * line_elements(kind.dtype), keys = keys_of_vector(kind.rows);
  const int values = keys * VEC_VALUES, pairs = values / two_lines; /* pairs of lines */
  /* P V prefetches for whole vectors, so that both prefetch what they read if a part is half of one. */
  const bool prefetches = n == VEC_VALUES && (pairs > 0 || d * keys % two_lines == 0);
  if (prefetches)
    prefetch_ahead(next, kind.policy, kind.paged, pairs > 0 ? pairs : 1, line_step(kind.dtype), &next->v_again);
  vec x[VEC_LANES];
  UNROLL
  for (int j = 0; j < keys; j++)
    x[j] = load_row_lanes(attn_storage_as(of.k.rows.from, kind.dtype), of.k.rows.first + j * of.k.rows.stride, d, n);
  UNROLL
  for (int r = 0; r < kind.rows; r++) {
    vec query = vec_load(of.q + d / LANE_VALUES * kind.rows + r * VEC_LANES);
    if (keys > 1 && LANE_VALUES == 1) query = vec_in_register(query); /* or gcc copies x for each product */
    UNROLL
    for (int j = 0; j < keys; j++) sum[j * kind.rows + r] = multiply_lanes(query, x[j], sum[j * kind.rows + r]);
  }
}

/* Factors of a block's keys as its scores stand, those of a key for each of the rows: 2, 4 or 8 floats at a time. */
typedef float two_floats __attribute__((vector_size(8)));
typedef float four_floats __attribute__((vector_size(16)));
typedef float eight_floats __attribute__((vector_size(32)));
static ALWAYS_INLINE void spread_scales(const int rows, const float *scale, float *spread) {
  NO_UNROLL
  for (int j = 0; j < DECODE_KEYS; j++, spread += rows) {
    const float x = scale[j];
    if (rows == 2) memcpy(spread, &(two_floats){x, x}, sizeof(two_floats));
    if (rows == 4) memcpy(spread, &(four_floats){x, x, x, x}, sizeof(four_floats));
    if (rows == 8) memcpy(spread, &(eight_floats){x, x, x, x, x, x, x, x}, sizeof(eight_floats));
  }
}

/* Those of the block from key `key` on. */
static NO_INLINE void spread_block_scales(const row_block *block, int64_t key, int64_t rows, float *k, float *v) {
  block_scales scales;
  find_scales(block, key, key, key + DECODE_KEYS, &scales);
  for (int i = 0; i < 2; i++) {
    const float *from = i == 0 ? scales.k : scales.v;
    float *to = i == 0 ? k : v;
    switch (rows) {
      case 2: spread_scales(2, from, to); break;
      case 4: spread_scales(4, from, to); break;
      default: spread_scales(8, from, to);
    }
  }
}

static ALWAYS_INLINE void scale_group(const int rows, const float *spread, float *weights) {
  NO_UNROLL
  for (int i = 0; i < DECODE_KEYS * rows; i += VEC_LANES)
    vec_store(weights + i, vec_mul(vec_load(weights + i), vec_load(spread + i)));
}

/* S of a block of keys, times spread factors, or NULL. Returns the largest score of each lane. */
static ALWAYS_INLINE vec score_group(group_operands of, float factor, const float *spread, int64_t dim, const int fixed,
                                     const few_kind kind, float *score, prefetch_lines *next) {
  const int keys = keys_of_vector(kind.rows);
  vec best = vec_set1(-INFINITY);
  NO_UNROLL
  for (int at = 0; at < DECODE_KEYS; at += keys) {
    vec sum[VEC_LANES];
    UNROLL
    for (int i = 0; i < VEC_LANES; i++) sum[i] = vec_zero();
    int64_t d = 0;
    UNROLL
    for (; d < fixed; d += VEC_VALUES) score_step(of, d, VEC_VALUES, kind, sum, next);
    NO_UNROLL
    for (; d + VEC_VALUES <= dim; d += VEC_VALUES) score_step(of, d, VEC_VALUES, kind, sum, next);
    if (fixed == DIMS_PARTS && d < dim) score_step(of, d, dim - d, kind, sum, next);
    vec s = scores_of(vec_sum_each(sum), factor);
    if (spread) s = vec_mul(s, vec_load(spread + at * kind.rows));
    best = vec_max(s, best);
    vec_store(score + at * kind.rows, s);
    of.k.rows.first += step_over(of.k, at, keys);
  }
  return best;
}

/* Scores to P. */
static ALWAYS_INLINE void softmax_rows(const int rows, float *score, group_softmax *state) {
  const vec reference = vec_load(state->reference);
  float *weights = weights_of(score, rows);
  NO_UNROLL
  for (int i = 0; i < rows; i += LANE_VALUES) {
    vec sum[LANE_VALUES];
    UNROLL
    for (int l = 0; l < LANE_VALUES; l++) sum[l] = vec_load(state->sum[i + l]);
    UNROLL
    for (int at = i * VEC_LANES; at < DECODE_KEYS * rows; at += rows * VEC_LANES) {
      vec p[LANE_VALUES];
      UNROLL
      for (int l = 0; l < LANE_VALUES; l++) {
        p[l] = ROUND_P(vec_exp2(vec_sub(vec_load(score + at + l * VEC_LANES), reference)));
        sum[l] = vec_add(sum[l], p[l]);
      }
      vec_store(weights + at / LANE_VALUES, join_rows(rows, p));
    }
    UNROLL
    for (int l = 0; l < LANE_VALUES; l++) vec_store(state->sum[i + l], sum[l]);
  }
}

/* A function for all streams, as it depends on the number of rows alone. */
static NO_INLINE void softmax_group(int64_t rows, float *score, group_softmax *state) {
  switch (rows) {
    case 2: softmax_rows(2, score, state); break;
    case 4: softmax_rows(4, score, state); break;
    default: softmax_rows(8, score, state);
  }
}

/* acc += P V for `vecs` vectors of columns from *column on, and moves that, if there are as many. `part`: values of the last
 * load of all columns; `before`: vectors of the steps before. */
static ALWAYS_INLINE bool accumulate_columns_of_group(const wide_work w, int64_t part, const few_kind kind, const int vecs,
                                                      const int before, int64_t *column, prefetch_lines *next) {
  const int64_t from = *column, end = from + vecs * VEC_LANES;
  if (vecs < LANE_VALUES || end > w.acc_stride) return false;
  accumulate_wide(w, from, end == w.acc_stride ? part : VEC_VALUES, kind, vecs, vecs | before, 4, next);
  *column = end;
  return true;
}

static ALWAYS_INLINE void accumulate_group(const wide_work w, int64_t part, const int fixed, const few_kind kind,
                                           prefetch_lines *next) {
  const int vecs = wide_vecs(kind.rows), rest = fixed > 0 ? fixed / VEC_LANES % vecs : vecs - 1; /* at most */
  int64_t column = 0;
  NO_UNROLL
  while (accumulate_columns_of_group(w, part, kind, vecs, vecs, &column, next)) continue;
  if (rest >= 4) accumulate_columns_of_group(w, part, kind, 4, vecs, &column, next);
  if (rest % 4 >= 2) accumulate_columns_of_group(w, part, kind, 2, vecs, &column, next);
  if (rest % 2 == 1 || (fixed <= 0 && rest > 0)) accumulate_columns_of_group(w, part, kind, 1, vecs, &column, next);
}

/* The blocks from key `key` up to `end`. `fixed`: both head dimensions, or one of the above. */
static ALWAYS_INLINE void stream_group(row_stream *stream, const key_runs *runs, int64_t key, int64_t end, const int fixed,
                                       const few_kind kind) {
  const row_block *block = stream->block;
  const attn_problem *p = block->problem;
  group_softmax *state = &stream->state;
  const int64_t dim_qk = fixed > 0 ? fixed : p->dim_qk, dim_v = fixed > 0 ? fixed : p->dim_v;
  const int64_t acc_stride = fixed > 0 ? fixed : block->acc_stride;
  const int64_t part = fixed == DIMS_PARTS ? dim_v - acc_stride + VEC_VALUES : VEC_VALUES;
  const stream_walk walk = walk_of(stream, runs, key, kind);
  key_rows k = walk.k, v = walk.v;
  prefetch_lines next = walk.next;
  const bool scaled = streams_scale(kind.dtype) && stream->scaled;
  float k_spread[DECODE_KEYS * MOST_TILE_ROWS], v_spread[DECODE_KEYS * MOST_TILE_ROWS];
  for (; key < end; key += DECODE_KEYS, k.first += DECODE_KEYS * k.stride, v.first += DECODE_KEYS * v.stride) {
    const int64_t run = (key - runs->begin) / RUN_KEYS;
    /* Now, long before the loops read them: a wide load waits for the narrow stores before it. */
    if (scaled) spread_block_scales(block, key, kind.rows, k_spread, v_spread);
    prefetch_beside_scores(&next, kind, walk.k_places, walk.v_places, run);
    const vec best = score_group((group_operands){stream->q, rows_of_block(k, &runs->k, run, kind)}, score_factor(p),
                                 scaled ? k_spread : NULL, dim_qk, fixed, kind, block->score, &next);
    if (state->unset > 0 || vec_any_above(vec_sub(best, vec_load(state->reference)), RESCALE_AT)) {
      float largest[VEC_LANES];
      vec_store(largest, best);
      raise_references(block, kind.rows, largest, state);
    }
    softmax_group(kind.rows, block->score, state);
    if (scaled) scale_group(kind.rows, v_spread, block->score);
    prefetch_beside_sums(&next, kind, walk.k_places, walk.v_places, run);
    const wide_work w = {.v = rows_of_block(v, &runs->v, run, kind),
                         .keys = DECODE_KEYS,
                         .p = weights_of(block->score, kind.rows),
                         .row_step = 1,
                         .lane_step = kind.rows,
                         .acc = block->acc,
                         .acc_stride = acc_stride};
    accumulate_group(w, part, fixed, kind, &next);
  }
}

/* The functions of group_rows.def. */
#define GROUP_ROWS(name, paged_name, rows, dim, policy, type)                                            \
  static NO_INLINE void name(row_stream *stream, const key_runs *runs, int64_t key, int64_t end) {       \
    stream_group(stream, runs, key, end, dim, (few_kind){rows, ATTN_##type, policy, false});             \
  }                                                                                                      \
  static NO_INLINE void paged_name(row_stream *stream, const key_runs *runs, int64_t key, int64_t end) { \
    stream_group(stream, runs, key, end, dim, (few_kind){rows, ATTN_##type, policy, true});              \
  }
#include "group_rows.def"
#undef GROUP_ROWS

/* NULL if rows of K or V end within a vector, unless the tier loads parts of vectors; not where it would prefetch twice,
 * because beyond the caches few_rows.h is quicker then. rows: 2, 4 or 8. */
static const stream_functions *group_of(const attn_problem *p, int64_t rows, prefetch_policy policy) {
  enum { WHOLE, PARTS, DIMS_64, DIMS_128, DIMS };
  static const stream_functions functions[ATTN_DTYPE_COUNT][3][DIMS][2] = {
#define INDEX_OF(dim) ((dim) == 64 ? DIMS_64 : (dim) == 128 ? DIMS_128 : (dim) == DIMS_PARTS ? PARTS : WHOLE)
#define GROUP_ROWS(name, paged_name, rows, dim, policy, type)            \
  [ATTN_##type][(rows) / 4][INDEX_OF(dim)][(policy) == PREFETCH_TWICE] = \
      STREAM_FUNCTIONS(HAS_GROUP(dim, ATTN_##type), name, paged_name),
#include "group_rows.def"
#undef GROUP_ROWS
  };
  const bool whole = (p->dim_qk | p->dim_v) % VEC_VALUES == 0;
  const int dims = !whole ? PARTS : p->dim_qk == p->dim_v ? INDEX_OF(p->dim_qk) : WHOLE;
#undef INDEX_OF
  return &functions[p->dtype_kv][rows / 4][dims][policy == PREFETCH_TWICE];
}

#endif
