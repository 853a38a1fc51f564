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

/* sum[j * rows + r] += products of the elements [d, d + VEC_VALUES) of row r and of the key j that begins at `key`. */
static ALWAYS_INLINE void score_step(const float *q, key_rows k, int64_t key, int64_t d, const few_kind kind,
                                     vec sum[VEC_LANES], next_lines *next) {
  const int two_lines = 2 * LINE_BYTES / (int)attn_dtype_bytes(kind.dtype), keys = keys_of_vector(kind.rows);
  const int values = keys * VEC_VALUES, pairs = values / two_lines; /* of lines */
  if (pairs > 0 || d * keys % two_lines == 0) ask_ahead(next, kind, pairs > 0 ? pairs : 1, &next->v_again);
  vec x[VEC_LANES];
  UNROLL
  for (int j = 0; j < keys; j++) x[j] = load_lanes(k.data, kind.dtype, key + j * k.stride + d, VEC_VALUES);
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
    UNROLL
    for (int d = 0; d < fixed; d += VEC_VALUES) score_step(q, k, key, d, kind, sum, next);
    NO_UNROLL
    for (int64_t d = fixed; d < dim; d += VEC_VALUES) score_step(q, k, key, d, kind, sum, next);
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

/* acc += P V for the same keys. */
static ALWAYS_INLINE void accumulate_group(const row_block *block, key_rows v, int64_t dim, int64_t acc_stride,
                                           const few_kind kind, next_lines *next) {
  enum { LANES = DECODE_KEYS / LANE_VALUES /* of P */ };
  const int vecs = wide_vecs(kind.rows);
  const wide_weights p = {weights_of(block->score, kind.rows), 1, kind.rows};
  int64_t column = 0;
#define COLUMNS(n) accumulate_wide(v, LANES, column, VEC_VALUES, p, block->acc, acc_stride, kind, n, 4, next)
  NO_UNROLL
  for (; column + vecs * VEC_LANES <= dim; column += vecs * VEC_LANES) COLUMNS(vecs);
  if (vecs > 4 && column + 4 * VEC_LANES <= dim) {
    COLUMNS(4);
    column += 4 * VEC_LANES;
  }
  if (vecs > 2 && column + 2 * VEC_LANES <= dim) {
    COLUMNS(2);
    column += 2 * VEC_LANES;
  }
  if (LANE_VALUES == 1 && column < dim) COLUMNS(1);
#undef COLUMNS
}

/* The blocks from key `key` up to `end`. */
static ALWAYS_INLINE void stream_group(const row_block *block, const float *q, int64_t key, int64_t end,
                                       group_softmax *state, const int fixed, const few_kind kind) {
  const attn_problem *p = block->problem;
  const int64_t dim_qk = fixed ? fixed : p->dim_qk, dim_v = fixed ? fixed : p->dim_v;
  const int64_t k_stride = p->k_stride.s, v_stride = p->v_stride.s;
  key_rows k = {block->args->k, kind.dtype, attn_k_offset(p, block->seq, block->b, block->head, key), k_stride};
  key_rows v = {block->args->v, kind.dtype, attn_v_offset(p, block->seq, block->b, block->head, key), v_stride};
  next_lines next = next_lines_of(block_lines(k, dim_qk), block_lines(v, dim_v), DECODE_KEYS);
  for (; key < end; key += DECODE_KEYS) {
    const vec best = score_group(q, k, score_factor(p), dim_qk, fixed, kind, block->score, &next);
    if (state->unset > 0 || vec_any_above(vec_sub(best, vec_load(state->reference)), RESCALE_AT)) {
      float largest[VEC_LANES];
      vec_store(largest, best);
      raise_references(block, kind.rows, largest, state);
    }
    softmax_group(kind.rows, block->score, state);
    accumulate_group(block, v, dim_v, fixed ? fixed : block->acc_stride, kind, &next);
    k.first += DECODE_KEYS * k_stride;
    v.first += DECODE_KEYS * v_stride;
  }
}

/* For any head dimensions, and for the usual ones. */
#define DEFINE_GROUP(rows, dim, dtype, ahead)                                                                         \
  static NO_INLINE void group_##rows##_##dim##_##dtype##_##ahead(const row_block *block, const float *q, int64_t key, \
                                                                 int64_t end, group_softmax *state) {                 \
    stream_group(block, q, key, end, state, dim, (few_kind){rows, dtype, ahead});                                     \
  }
#define DEFINE_DIMS(rows, dtype, ahead) \
  DEFINE_GROUP(rows, 0, dtype, ahead) DEFINE_GROUP(rows, 64, dtype, ahead) DEFINE_GROUP(rows, 128, dtype, ahead)
#define DEFINE_GROUPS(dtype, ahead) \
  DEFINE_DIMS(2, dtype, ahead) DEFINE_DIMS(4, dtype, ahead) EIGHT_ROWS(DEFINE_DIMS(8, dtype, ahead))
#define DTYPE(constant, ...)            \
  DEFINE_GROUPS(ATTN_##constant, fresh) \
  ASKS_TWICE(DEFINE_GROUPS(ATTN_##constant, twice))
#include LANE_DTYPES
#undef DTYPE

/* NULL if rows of K or V end within a vector. rows: 2, 4 or 8; `asks`: twice. */
static stream_function *group_of(const attn_problem *p, int64_t rows, bool asks) {
#define GROUP_OF(rows, kind) \
  { group_##rows##_0_##kind, group_##rows##_64_##kind, group_##rows##_128_##kind }
#define GROUPS_OF(kind) \
  { GROUP_OF(2, kind), GROUP_OF(4, kind), EIGHT_ROWS(GROUP_OF(8, kind)) }
  static stream_function *const functions[][2][3][3] = {
#define DTYPE(constant, ...) \
  [ATTN_##constant] = {GROUPS_OF(ATTN_##constant##_fresh), ASKS_TWICE(GROUPS_OF(ATTN_##constant##_twice))},
#include LANE_DTYPES
#undef DTYPE
  };
  if ((p->dim_qk | p->dim_v) % VEC_VALUES != 0) return NULL;
  const int dims = p->dim_qk != p->dim_v ? 0 : p->dim_qk == 64 ? 1 : p->dim_qk == 128 ? 2 : 0;
  return functions[p->dtype_kv][asks][rows / 4][dims];
}

#endif
