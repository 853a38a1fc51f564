/* SPDX-License-Identifier: MIT */
/* decode of 2, 4 or 8 query rows without a mask: few_rows.h, but softmax has rows in lanes, and the usual head dimensions
 * are constants.
 *
 * A block's scores stand key by key, those of a key's rows side by side, as the sums of all rows and a vector's worth of
 * keys come out of vec_sum_each(). So largest scores and sums of P are taken lane by lane, nothing is added across lanes,
 * and P is where P V wants its factors. A row's bits are those of few_rows.h and softmax_row().
 * Pairs of bf16 values (few_pairs.h) share lanes as there: P of two keys in each, row by row.
 *
 * Included by decode.h where DECODE_GROUP_ROWS is set. Parameters: those of register_tile.h. */
#ifndef ATTN_COMMON_GROUP_ROWS_H
#define ATTN_COMMON_GROUP_ROWS_H

/* Row and key of lane l of vector i of scores or P: l % rows, and i * keys_of_vector + l / rows. */
static ALWAYS_INLINE int keys_of_vector(const int rows) { return VEC_LANES / rows; }

static void load_references(const row_block *block, int64_t rows, group_softmax *state) {
  state->unset = 0;
  for (int64_t row = 0; row < rows; row++) {
    state->unset += block->row_max[row] == -INFINITY;
    for (int64_t lane = row; lane < VEC_LANES; lane += rows) state->reference[lane] = reference_of(block, row);
  }
}

/* Between the state and row_sum, where a row's sums stand side by side, key by key. */
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

#define DEFINE_MOVE_SUMS(name, stores)                                                     \
  static NO_INLINE void name(const row_block *block, int64_t rows, group_softmax *state) { \
    switch (rows) { /* all of it unrolled */                                               \
      case 2: move_sums(block, 2, state, stores); break;                                   \
      case 4: move_sums(block, 4, state, stores); break;                                   \
      default: move_sums(block, 8, state, stores);                                         \
    }                                                                                      \
  }
DEFINE_MOVE_SUMS(load_sums, false)
DEFINE_MOVE_SUMS(store_sums, true)

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
#ifdef DECODE_PAIRS
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
enum { any = 0 /* whole vectors */, parts = -1 /* with a part of a vector at the end */ };

/* sum[j * rows + r] += products of the elements [d, d + n) of row r and of the key j that begins at `key`. */
static ALWAYS_INLINE void score_step(const float *q, key_rows k, int64_t key, int64_t d, int64_t n, const few_kind kind,
                                     vec sum[VEC_LANES], next_lines *next) {
  const int two_lines = 2 * LINE_BYTES / (int)attn_dtype_bytes(kind.dtype), keys = keys_of_vector(kind.rows);
  const int values = keys * VEC_VALUES, pairs = values / two_lines; /* of lines */
  /* P V asks for whole vectors, so that both ask for what they read if a part is half of one. */
  const bool asks = n == VEC_VALUES && (pairs > 0 || d * keys % two_lines == 0);
  if (asks) ask_ahead(next, kind, pairs > 0 ? pairs : 1, &next->v_again);
  vec x[VEC_LANES];
  UNROLL
  for (int j = 0; j < keys; j++) x[j] = load_lanes(k.data, kind.dtype, key + j * k.stride + d, n);
  UNROLL
  for (int r = 0; r < kind.rows; r++) {
    vec query = vec_load(q + d / LANE_VALUES * kind.rows + r * VEC_LANES);
    if (keys > 1 && LANE_VALUES == 1) query = vec_in_register(query); /* or gcc copies x for each product */
    UNROLL
    for (int j = 0; j < keys; j++) sum[j * kind.rows + r] = multiply_lanes(query, x[j], sum[j * kind.rows + r]);
  }
}

/* S of a block of keys. Returns the largest score of each lane. */
static ALWAYS_INLINE vec score_group(const float *q, key_rows k, float factor, int64_t dim, const int fixed,
                                     const few_kind kind, float *score, next_lines *next) {
  const int keys = keys_of_vector(kind.rows);
  vec best = vec_set1(-INFINITY);
  int64_t key = k.first;
  NO_UNROLL
  for (int at = 0; at < DECODE_KEYS; at += keys, key += keys * k.stride) {
    vec sum[VEC_LANES];
    UNROLL
    for (int i = 0; i < VEC_LANES; i++) sum[i] = vec_zero();
    int64_t d = 0;
    UNROLL
    for (; d < fixed; d += VEC_VALUES) score_step(q, k, key, d, VEC_VALUES, kind, sum, next);
    NO_UNROLL
    for (; d + VEC_VALUES <= dim; d += VEC_VALUES) score_step(q, k, key, d, VEC_VALUES, kind, sum, next);
    if (fixed == parts && d < dim) score_step(q, k, key, d, dim - d, kind, sum, next);
    const vec s = scores_of(vec_sum_each(sum), factor);
    best = vec_max(s, best);
    vec_store(score + at * kind.rows, s);
  }
  return best;
}

/* Scores to P. */
static ALWAYS_INLINE void softmax_group(const int rows, float *score, group_softmax *state) {
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

/* acc += P V for the same keys and `vecs` vectors of columns from *column on, and moves that, if there are as many. `part`:
 * values of the last load of all columns. */
static ALWAYS_INLINE bool accumulate_vecs(const row_block *block, key_rows v, int64_t acc_stride, int64_t part,
                                          const few_kind kind, const int vecs, int64_t *column, next_lines *next) {
  const wide_weights p = {weights_of(block->score, kind.rows), 1, kind.rows};
  const int64_t from = *column, end = from + vecs * VEC_LANES;
  if (vecs < LANE_VALUES || end > acc_stride) return false;
  accumulate_wide(v, DECODE_KEYS / LANE_VALUES, from, end == acc_stride ? part : VEC_VALUES, p, block->acc, acc_stride, kind,
                  vecs, 4, next);
  *column = end;
  return true;
}

static ALWAYS_INLINE void accumulate_group(const row_block *block, key_rows v, int64_t acc_stride, int64_t part,
                                           const few_kind kind, next_lines *next) {
  const int vecs = wide_vecs(kind.rows);
  int64_t column = 0;
  NO_UNROLL
  while (accumulate_vecs(block, v, acc_stride, part, kind, vecs, &column, next)) continue;
  if (vecs > 4) accumulate_vecs(block, v, acc_stride, part, kind, 4, &column, next);
  if (vecs > 2) accumulate_vecs(block, v, acc_stride, part, kind, 2, &column, next);
  accumulate_vecs(block, v, acc_stride, part, kind, 1, &column, next);
}

/* The blocks from key `key` up to `end`. */
static ALWAYS_INLINE void stream_group(const row_block *block, const float *q, int64_t key, int64_t end,
                                       group_softmax *state, const int fixed, const few_kind kind) {
  const attn_problem *p = block->problem;
  const int64_t dim_qk = fixed > 0 ? fixed : p->dim_qk, dim_v = fixed > 0 ? fixed : p->dim_v;
  const int64_t acc_stride = fixed > 0 ? fixed : block->acc_stride;
  const int64_t part = fixed == parts ? dim_v - acc_stride + VEC_VALUES : VEC_VALUES;
  const int64_t k_stride = p->k_stride.s, v_stride = p->v_stride.s;
  key_rows k = {block->args->k, kind.dtype, attn_k_offset(p, block->seq, block->b, block->head, key), k_stride};
  key_rows v = {block->args->v, kind.dtype, attn_v_offset(p, block->seq, block->b, block->head, key), v_stride};
  next_lines next = next_lines_of(block_lines(k, dim_qk), block_lines(v, dim_v), DECODE_KEYS, kind.ahead == twice);
  for (; key < end; key += DECODE_KEYS) {
    const vec best = score_group(q, k, score_factor(p), dim_qk, fixed, kind, block->score, &next);
    if (state->unset > 0 || vec_any_above(vec_sub(best, vec_load(state->reference)), RESCALE_AT)) {
      float largest[VEC_LANES];
      vec_store(largest, best);
      raise_references(block, kind.rows, largest, state);
    }
    softmax_group(kind.rows, block->score, state);
    accumulate_group(block, v, acc_stride, part, kind, &next);
    k.first += DECODE_KEYS * k_stride;
    v.first += DECODE_KEYS * v_stride;
  }
}

#define DEFINE_GROUP(rows, dim, dtype, ahead)                                                                         \
  static NO_INLINE void group_##rows##_##dim##_##dtype##_##ahead(const row_block *block, const float *q, int64_t key, \
                                                                 int64_t end, group_softmax *state) {                 \
    stream_group(block, q, key, end, state, dim, (few_kind){rows, dtype, ahead});                                     \
  }
#define DEFINE_DIMS(rows, dtype, ahead) \
  DEFINE_GROUP(rows, any, dtype, ahead) \
  DEFINE_GROUP(rows, 64, dtype, ahead)  \
  DEFINE_GROUP(rows, 128, dtype, ahead)
#ifdef VEC_LOADS_PARTS
#define IN_PARTS(...) __VA_ARGS__
#else
#define IN_PARTS(...)
#endif
#define DEFINE_GROUPS(dtype, ahead) \
  DEFINE_DIMS(2, dtype, ahead) DEFINE_DIMS(4, dtype, ahead) EIGHT_ROWS(DEFINE_DIMS(8, dtype, ahead))
#define DTYPE(constant, ...)                                                                             \
  DEFINE_GROUPS(ATTN_##constant, fresh)                                                                  \
  ASKS_TWICE(DEFINE_GROUPS(ATTN_##constant, twice))                                                      \
  IN_PARTS(DEFINE_GROUP(2, parts, ATTN_##constant, fresh) DEFINE_GROUP(4, parts, ATTN_##constant, fresh) \
               EIGHT_ROWS(DEFINE_GROUP(8, parts, ATTN_##constant, fresh)))
#include LANE_DTYPES
#undef DTYPE

/* NULL if rows of K or V end within a vector, unless the tier loads parts of vectors; not where it would ask twice, because
 * beyond the caches few_rows.h is quicker then. rows: 2, 4 or 8; `asks`: twice. */
static stream_function *group_of(const attn_problem *p, int64_t rows, bool asks) {
#define GROUP_OF(rows, kind) \
  { group_##rows##_any_##kind, group_##rows##_64_##kind, group_##rows##_128_##kind }
#define GROUPS_OF(kind) \
  { GROUP_OF(2, kind), GROUP_OF(4, kind), EIGHT_ROWS(GROUP_OF(8, kind)) }
  static stream_function *const functions[][2][3][3] = {
#define DTYPE(constant, ...) \
  [ATTN_##constant] = {GROUPS_OF(ATTN_##constant##_fresh), ASKS_TWICE(GROUPS_OF(ATTN_##constant##_twice))},
#include LANE_DTYPES
#undef DTYPE
  };
  static stream_function *const in_parts[][3] = {
#define DTYPE(constant, ...)                                                                                  \
  [ATTN_##constant] = {IN_PARTS(group_2_parts_ATTN_##constant##_fresh, group_4_parts_ATTN_##constant##_fresh, \
                                EIGHT_ROWS(group_8_parts_ATTN_##constant##_fresh))},
#include LANE_DTYPES
#undef DTYPE
  };
  if ((p->dim_qk | p->dim_v) % VEC_VALUES != 0) return asks ? NULL : in_parts[p->dtype_kv][rows / 4];
  const int dims = p->dim_qk != p->dim_v ? 0 : p->dim_qk == 64 ? 1 : p->dim_qk == 128 ? 2 : 0;
  return functions[p->dtype_kv][asks][rows / 4][dims];
}

#endif
