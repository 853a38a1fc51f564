/* SPDX-License-Identifier: MIT */
/* decode's products on vectors: a few query rows against a block of keys, K and V in place. Lanes hold floats
 * (few_floats.h), or pairs of bf16 values (few_pairs.h).
 *
 * Scores put the head dimension in lanes: VEC_LANES or more vectors of sums at a time, of 1 row x as many keys or of 8
 * rows x an eighth of the keys. A transposing tree of additions (vec_sum_each) turns VEC_LANES sums into a vector of scores.
 *
 * Parameters: those of register_tile.h, and
 *   DECODE_EIGHT_ROWS  optional: work on up to 8 rows at once instead of 4, for tiers with registers for their sums;
 *                      tested: set (avx2, avx512, avx512bf16), not set (portable, neon, neonbf16)
 *   DECODE_SCORE_SUMS  optional: vectors of sums of scores at a time, a multiple of VEC_LANES, for tiers with registers for
 *                      more than VEC_LANES; tested: 16 (neon, neonbf16), VEC_LANES (the others)
 *   DECODE_ASKS_TWICE  optional: code for CPUs that drop hints, too (asks_of); tested: set (avx2, avx512, avx512bf16),
 *                      not set (portable, neon, neonbf16)
 *   DECODE_GROUP_ROWS  optional: group_rows.h, its P V in tiles of up to so many rows (wide_vecs); the tier brings
 *                      vec_in_register(x), which is x, but loaded once for all its uses, and pair_rows_of_2(), _4() and _8()
 *                      if lanes hold pairs; tested: 4 (avx2), 8 (avx512, avx512bf16), not set (the others)
 *   DECODE_WIDE_SUMS   optional: these tiles for all P V of 4 or 8 rows; tested: set (avx2), not set (the others)
 *   DECODE_PAIRS       optional: the tier multiplies pairs of bf16 values, by the names that few_pairs.h tells;
 *                      tested: set (avx512bf16, neonbf16), not set (avx512, avx2, neon, portable) */
#ifndef ATTN_COMMON_FEW_ROWS_H
#define ATTN_COMMON_FEW_ROWS_H

#include <assert.h>

#include "cpu_hints.h"
#include "next_lines.h"
#include "streaming_softmax.h"

#ifdef DECODE_PAIRS
#include "few_pairs.h"
#else
#include "few_floats.h"
#endif

/* The most rows that are scored and summed together: each load and conversion of K and V is used as often. */
#ifdef DECODE_EIGHT_ROWS
enum { DECODE_TILE_ROWS = 8 };
#define EIGHT_ROWS(...) __VA_ARGS__
#else
enum { DECODE_TILE_ROWS = 4 };
#define EIGHT_ROWS(...)
#endif

enum {
  DECODE_KEYS = 32,                       /* of a block: K and V are used while they are in level 2 */
  DECODE_SCORE_STRIDE = DECODE_KEYS + 16, /* 16 at least, for scores beyond the keys */
  VEC_VALUES = VEC_LANES * LANE_VALUES    /* of K or V in a vector */
};

/* Lanes of a row of Q, whole vectors. */
static ALWAYS_INLINE int64_t lanes_of(int64_t values) { return round_up(ceil_div(values, LANE_VALUES), VEC_LANES); }

#ifndef DECODE_SCORE_SUMS
#define DECODE_SCORE_SUMS VEC_LANES
#endif

/* ---- A few rows and a block of keys ---- */

/* Rows of K or V as the loops read them: element (j, d) is data[first + j * stride + d], in place or converted. */
typedef struct key_rows {
  const void *data;
  attn_dtype dtype;
  int64_t first, stride;
} key_rows;

/* Rows that are scored and summed together, and the block's keys. */
typedef struct few_rows {
  key_rows keys;    /* K for scores, V for sums */
  next_lines *next; /* to ask memory for */
  int ahead;        /* for the rows that read them first: cached, fresh or twice */
  int64_t count;    /* of the keys */
  int64_t lanes;    /* of P; the first key is the `before`-th of its lane */
  int64_t before;
  float factor;   /* from sums to scores in log2 units (scores_of) */
  int64_t row;    /* the first row that a call works on */
  const float *q; /* as tile_queries leaves them */
  float *score;   /* [row][DECODE_SCORE_STRIDE]: S, or P */
  float *acc;     /* [row][acc_stride] */
  int64_t dim_qk, acc_stride;
  int64_t columns; /* of V that may be read */
} few_rows;

/* Whether memory is asked for what comes next: not for K and V that other rows have just read, or that the CPU fetches by
 * itself; once; twice. */
enum { cached, fresh, twice };

/* Constants at every call: how many rows there are, the type of K and V, and one of the above. */
typedef struct few_kind {
  int rows;
  attn_dtype dtype;
  int ahead;
} few_kind;

#define DTYPE(constant, name, element, ...) \
  _Static_assert(VEC_VALUES * sizeof(element) <= LINE_BYTES, "a vector of " #name " must lie in a line");
#include LANE_DTYPES
#undef DTYPE

/* Asks for `pairs` lines of K and V each, or for these and again for twice as many from *at on. */
static ALWAYS_INLINE void ask_ahead(next_lines *next, const few_kind kind, const int pairs, uintptr_t *at) {
  if (kind.ahead == fresh) fetch_pairs(next, pairs);
  if (kind.ahead == twice) ask_twice(next, pairs, at);
}

/* ---- S = Q K^T, K in place ---- */

/* Keys that are summed side by side. A row on its own waits for memory, which is read fastest in its own order: key by key.
 * Several rows go through their keys side by side, so that each load of q serves all of them. */
static ALWAYS_INLINE int keys_at_once(few_kind kind) { return kind.rows == 1 ? 1 : DECODE_SCORE_SUMS / kind.rows; }

/* sum[r][j] += products of the elements [d, d + n) of the rows and of the keys that begin at elements key[0] .. */
static ALWAYS_INLINE void score_columns(vec *sum, const few_rows t, const int64_t *key, int64_t d, int64_t n,
                                        const few_kind kind) {
  const int columns = DECODE_SCORE_SUMS / kind.rows;
  vec query[DECODE_TILE_ROWS];
  UNROLL
  for (int r = 0; r < kind.rows; r++) query[r] = vec_load(t.q + d / LANE_VALUES * kind.rows + r * VEC_LANES);
  UNROLL
  for (int j = 0; j < keys_at_once(kind); j++) {
    const vec x = load_lanes(t.keys.data, kind.dtype, key[j] + d, n);
    UNROLL
    for (int r = 0; r < kind.rows; r++) sum[r * columns + j] = multiply_lanes(query[r], x, sum[r * columns + j]);
  }
}

/* score[r][at + j] for the rows and j < DECODE_SCORE_SUMS / rows; scores of keys that do not exist repeat the last key's.
 * Asks for as many lines as it reads. */
static ALWAYS_INLINE void score_few(const few_rows t, int64_t at, const few_kind kind, next_lines *next) {
  const int columns = DECODE_SCORE_SUMS / kind.rows, group = keys_at_once(kind),
            line = LINE_BYTES / (int)attn_dtype_bytes(kind.dtype);
  vec sum[DECODE_SCORE_SUMS];
  int64_t key[DECODE_SCORE_SUMS];
  UNROLL
  for (int i = 0; i < DECODE_SCORE_SUMS; i++) sum[i] = vec_zero();
  UNROLL
  for (int j = 0; j < columns; j++) key[j] = t.keys.first + min64(at + j, t.count - 1) * t.keys.stride;
  UNROLL
  for (int j = 0; j < columns; j += group) {
    int64_t d = 0;
    for (; group == 1 && d + 2 * line <= t.dim_qk; d += 2 * line) {
      ask_ahead(next, kind, 1, &next->v_again);
      UNROLL
      for (int part = 0; part < 2 * line; part += VEC_VALUES) score_columns(&sum[j], t, &key[j], d + part, VEC_VALUES, kind);
    }
    for (; d + line <= t.dim_qk; d += line) {
      if (group > 1 || (columns % 2 ? at + j : j) % 2 == 0) ask_ahead(next, kind, (group + 1) / 2, &next->v_again);
      UNROLL
      for (int part = 0; part < line; part += VEC_VALUES) score_columns(&sum[j], t, &key[j], d + part, VEC_VALUES, kind);
    }
    for (; d < t.dim_qk; d += VEC_VALUES) score_columns(&sum[j], t, &key[j], d, min64(t.dim_qk - d, VEC_VALUES), kind);
  }
  float each[DECODE_SCORE_SUMS];
  UNROLL
  for (int i = 0; i < DECODE_SCORE_SUMS; i += VEC_LANES) vec_store(each + i, scores_of(vec_sum_each(sum + i), t.factor));
  UNROLL
  for (int r = 0; r < kind.rows; r++)
    memcpy(t.score + r * DECODE_SCORE_STRIDE + at, each + r * columns, (size_t)columns * sizeof(float));
}

/* Rows that one call works on, by index into the tables below. */
static const int64_t ROWS_AT_ONCE[] = {8, 4, 2, 1};

/* 3 rows are taken as 4, and 7 as 8: a row of zeros costs less than one more call, which reads and converts K and V again. 5
 * and 6 are worth 8 only for pairs, whose products cost half as much. */
static inline int rows_index(int64_t rows) {
  const int64_t worth_8 = LANE_VALUES == 1 ? 7 : 5;
  return rows >= worth_8 && DECODE_TILE_ROWS >= 8 ? 0 : rows >= 3 ? 1 : rows == 2 ? 2 : 3;
}

/* Rows with those of zeros behind them. */
static int64_t padded_rows(int64_t rows) {
  int64_t padded = 0;
  while (padded < rows) padded += ROWS_AT_ONCE[rows_index(rows - padded)];
  return padded;
}

/* NAME(rows, dtype, ahead) for all numbers of rows. Each combination is a function of its own, because in one function they
 * would compete for registers. */
#define FOR_EACH_ROWS(NAME, dtype, ahead) \
  EIGHT_ROWS(NAME(8, dtype, ahead))       \
  NAME(4, dtype, ahead) NAME(2, dtype, ahead) NAME(1, dtype, ahead)
#define ENTRIES_OF(name, kind) \
  { EIGHT_ROWS([0] = name##_8_##kind, )[1] = name##_4_##kind, [2] = name##_2_##kind, [3] = name##_1_##kind }
#ifdef DECODE_ASKS_TWICE
enum { MAY_ASK_TWICE = true };
#define ASKS_TWICE(...) __VA_ARGS__
#else
enum { MAY_ASK_TWICE = false };
#define ASKS_TWICE(...)
#endif

typedef void few_function(const few_rows *rows);

/* The rows from `row` on. */
static ALWAYS_INLINE few_rows rows_left(const few_rows *t) {
  few_rows left = *t;
  left.q += t->row * lanes_of(t->dim_qk);
  left.score += t->row * DECODE_SCORE_STRIDE;
  left.acc += t->row * t->acc_stride;
  return left;
}

/* Scores of the rows for all keys of the block. Up to DECODE_SCORE_SUMS scores beyond those of the block's keys are written
 * too. */
#define DEFINE_SCORE(rows, dtype, ahead)                                                                      \
  static NO_INLINE void score_##rows##_##dtype##_##ahead(const few_rows *t) {                                 \
    const few_rows left = rows_left(t);                                                                       \
    const few_kind kind = {rows, dtype, ahead};                                                               \
    next_lines next = *t->next;                                                                               \
    for (int64_t at = 0; at < left.count; at += DECODE_SCORE_SUMS / (rows)) score_few(left, at, kind, &next); \
    *t->next = next;                                                                                          \
  }
#define DTYPE(constant, ...)                           \
  FOR_EACH_ROWS(DEFINE_SCORE, ATTN_##constant, fresh)  \
  FOR_EACH_ROWS(DEFINE_SCORE, ATTN_##constant, cached) \
  ASKS_TWICE(FOR_EACH_ROWS(DEFINE_SCORE, ATTN_##constant, twice))
#include LANE_DTYPES
#undef DTYPE

/* Arranges the queries as score_few reads them: one vector of each row that a call works on, side by side, so that one
 * pointer reaches all of them. */
static void tile_queries(const row_block *block, float *q_tiles) {
  const int64_t dim = block->problem->dim_qk;
  for (int64_t row = 0, step; row < block->rows; row += step) {
    step = ROWS_AT_ONCE[rows_index(block->rows - row)];
    for (int64_t r = 0; r < step; r++) {
      const query_row q = query_row_of(block, row + r);
      for (int64_t d = 0; d < dim; d += VEC_VALUES)
        vec_store(q_tiles + row * lanes_of(dim) + d / LANE_VALUES * step + r * VEC_LANES, query_lanes(&q, d));
    }
  }
}

/* Calls the functions of a table of a kind for all `rows` rows. `read`: other rows have already read the keys. */
static void for_few_rows(few_function *const functions[][3][4], few_rows *t, int64_t rows, bool read) {
  for (t->row = 0; t->row < rows; read = true) {
    const int index = rows_index(rows - t->row);
    functions[t->keys.dtype][read ? cached : t->ahead][index](t);
    t->row += ROWS_AT_ONCE[index];
  }
}

static void score_few_rows(few_rows *t, int64_t rows, bool read) {
  static few_function *const functions[][3][4] = {
#define DTYPE(constant, ...)                                                                                    \
  [ATTN_##constant] = {ENTRIES_OF(score, ATTN_##constant##_cached), ENTRIES_OF(score, ATTN_##constant##_fresh), \
                       ASKS_TWICE(ENTRIES_OF(score, ATTN_##constant##_twice))},
#include LANE_DTYPES
#undef DTYPE
  };
  for_few_rows(functions, t, rows, read);
}

/* ---- O += P V, V in place ---- */

/* Sums that stay in registers: rows times vectors of columns. */
enum { DECODE_SUMS = 4 * TILE_VECS };

/* at[i] = where `column` of key i of lane j of P is in V. A key that does not exist, whose P is 0, counts as the other. */
static ALWAYS_INLINE void find_columns(const few_rows *t, int64_t j, int64_t column, int64_t at[LANE_VALUES]) {
  const int64_t key = LANE_VALUES == 1 ? j : j * LANE_VALUES - t->before;
  UNROLL
  for (int i = 0; i < LANE_VALUES; i++) at[i] = t->keys.first + (key + i) * t->keys.stride + column;
  if (LANE_VALUES == 1) return;
  if (key < 0) at[0] = at[LANE_VALUES - 1];
  if (key + 1 == t->count) at[LANE_VALUES - 1] = at[0];
}

/* acc += P V for `vecs`, a constant, vectors of columns from `column` on. Asks for as many lines as it reads. */
static ALWAYS_INLINE void accumulate_few(const few_rows t, int64_t column, const few_kind kind, const int vecs,
                                         next_lines *next) {
  const int two_lines = 2 * LINE_BYTES / (int)attn_dtype_bytes(kind.dtype), values = vecs * VEC_LANES * LANE_VALUES;
  const int pairs = values > two_lines ? values / two_lines : 1; /* of lines, each time that as many have been read */
  const int between = values < two_lines ? two_lines / values : 1;
  const int64_t columns = min64(t.columns - column - (vecs - LANE_VALUES) * VEC_LANES, VEC_VALUES);
  const int64_t last = LOADS_PARTS ? columns : VEC_VALUES;
  float *acc = t.acc + column;
  vec sum[DECODE_SUMS];
  UNROLL
  for (int i = 0; i < kind.rows * vecs; i++) sum[i] = vec_load(acc + i / vecs * t.acc_stride + i % vecs * VEC_LANES);
  for (int64_t j = 0; j < t.lanes; j++) {
    int64_t at[LANE_VALUES];
    find_columns(&t, j, column, at);
    vec_factor weight[DECODE_TILE_ROWS];
    if (j % between == 0) ask_ahead(next, kind, pairs, &next->k_again);
    UNROLL
    for (int r = 0; r < kind.rows; r++) weight[r] = vec_factor_at(t.score + r * DECODE_SCORE_STRIDE + j);
    UNROLL
    for (int c = 0; c < vecs; c += LANE_VALUES) {
      vec x[LANE_VALUES];
      load_columns(x, t.keys.data, kind.dtype, at, c * VEC_LANES, c < vecs - LANE_VALUES ? VEC_VALUES : last);
      UNROLL
      for (int i = 0; i < LANE_VALUES; i++) {
        UNROLL
        for (int r = 0; r < kind.rows; r++) sum[r * vecs + c + i] = vec_fma_factor(weight[r], x[i], sum[r * vecs + c + i]);
      }
    }
  }
  UNROLL
  for (int i = 0; i < kind.rows * vecs; i++) vec_store(acc + i / vecs * t.acc_stride + i % vecs * VEC_LANES, sum[i]);
}

#ifdef DECODE_GROUP_ROWS
/* P of rows and keys: that of row r and key j is at[r * row_step + j * key_step]. */
typedef struct wide_weights {
  const float *at;
  int row_step, key_step; /* constants at every call */
} wide_weights;

enum { WIDE_VECS = 8, WIDE_SUMS = DECODE_GROUP_ROWS == 4 ? 12 : 24 };

/* Vectors of columns of a tile for 2, 4 or 8 rows: as many as there are registers for. */
static ALWAYS_INLINE int wide_vecs(const int rows) {
  const int fit = WIDE_SUMS / (rows < DECODE_GROUP_ROWS ? rows : DECODE_GROUP_ROWS);
  return fit >= WIDE_VECS ? WIDE_VECS : fit >= 4 ? 4 : fit / LANE_VALUES * LANE_VALUES;
}

/* acc += P V for 2, 4 or 8 rows, at most DECODE_GROUP_ROWS at a time, and `vecs`, at most wide_vecs(), vectors of columns
 * from `column` on: a tile of 4 × 3 sums takes 19 instructions for 12 multiply-adds, one of 8 × 1 17 for 8. `lanes` of
 * P, none of which lacks a key; `last`: columns of the last load; `at_once`: lanes between two looks at what is to be
 * asked for, a divisor of `lanes`. Both passes together ask for as many lines as they read. */
static ALWAYS_INLINE void accumulate_wide(key_rows v, int64_t lanes, int64_t column, int64_t last, const wide_weights p,
                                          float *acc, int64_t acc_stride, const few_kind kind, const int vecs,
                                          const int at_once, next_lines *next) {
  enum { PARTS = 16 };
  const int tile = kind.rows < DECODE_GROUP_ROWS ? kind.rows : DECODE_GROUP_ROWS;
  const int two_lines = 2 * LINE_BYTES / (int)attn_dtype_bytes(kind.dtype);
  const int asked = PARTS * vecs * VEC_VALUES / two_lines * tile / kind.rows; /* of a pair of lines, for each lane */
  int due = 0;
  NO_UNROLL
  for (int row = 0; row < kind.rows; row += tile) {
    float *to = acc + row * acc_stride + column;
    const float *weights = p.at + row * p.row_step;
    int64_t at[LANE_VALUES];
    UNROLL
    for (int i = 0; i < LANE_VALUES; i++) at[i] = v.first + i * v.stride + column;
    vec sum[WIDE_SUMS];
    UNROLL
    for (int i = 0; i < tile * vecs; i++) sum[i] = vec_load(to + i / vecs * acc_stride + i % vecs * VEC_LANES);
    NO_UNROLL
    for (int64_t j = 0; j < lanes; j += at_once) {
      for (due -= asked * at_once; due < 0; due += PARTS) ask_ahead(next, kind, 1, &next->k_again);
      UNROLL
      for (int i = 0; i < at_once; i++, weights += p.key_step) {
        vec x[WIDE_VECS];
        UNROLL
        for (int c = 0; c < vecs; c += LANE_VALUES)
          load_columns(x + c, v.data, kind.dtype, at, c * VEC_LANES, c < vecs - LANE_VALUES ? VEC_VALUES : last);
        UNROLL
        for (int c = 0; c < vecs; c++) x[c] = vec_in_register(x[c]);
        UNROLL
        for (int l = 0; l < LANE_VALUES; l++) at[l] += LANE_VALUES * v.stride;
        UNROLL
        for (int r = 0; r < tile; r++) {
          const vec_factor weight = vec_factor_at(weights + r * p.row_step);
          UNROLL
          for (int c = 0; c < vecs; c++) sum[r * vecs + c] = vec_fma_factor(weight, x[c], sum[r * vecs + c]);
        }
      }
    }
    UNROLL
    for (int i = 0; i < tile * vecs; i++) vec_store(to + i / vecs * acc_stride + i % vecs * VEC_LANES, sum[i]);
  }
}

#endif

#ifdef DECODE_WIDE_SUMS
#define IS_WIDE(rows) ((rows) >= DECODE_GROUP_ROWS)
#define ACCUMULATE_WIDE(rows, vecs)                                                                             \
  for (; IS_WIDE(rows) && column + (vecs)*VEC_LANES <= left.acc_stride; column += (vecs)*VEC_LANES)             \
    accumulate_wide(left.keys, left.lanes, column,                                                              \
                    LOADS_PARTS ? min64(left.columns - column - ((vecs)-1) * VEC_LANES, VEC_LANES) : VEC_LANES, \
                    (wide_weights){left.score, DECODE_SCORE_STRIDE, 1}, left.acc, left.acc_stride, kind, vecs, 1, &next);
#else
#define IS_WIDE(rows) false
#define ACCUMULATE_WIDE(rows, vecs)
#endif

/* All columns of the rows, as many vectors at a time as there are registers for their sums: too few sums could not hide the
 * latency of multiply-add. */
#define FIT_SUMS(rows, vecs) (!IS_WIDE(rows) && (vecs) >= LANE_VALUES && (vecs) * (rows) <= DECODE_SUMS)
#define ACCUMULATE_VECS(rows, vecs)                                                                        \
  for (; FIT_SUMS(rows, vecs) && column + (vecs)*VEC_LANES <= left.acc_stride; column += (vecs)*VEC_LANES) \
    accumulate_few(left, column, kind, FIT_SUMS(rows, vecs) ? (vecs) : LANE_VALUES, &next);
#define DEFINE_ACCUMULATE(rows, dtype, ahead)                                      \
  static NO_INLINE void accumulate_##rows##_##dtype##_##ahead(const few_rows *t) { \
    const few_rows left = rows_left(t);                                            \
    const few_kind kind = {rows, dtype, ahead};                                    \
    int64_t column = 0;                                                            \
    next_lines next = *t->next;                                                    \
    ACCUMULATE_WIDE(rows, 3)                                                       \
    ACCUMULATE_WIDE(rows, 2)                                                       \
    ACCUMULATE_WIDE(rows, 1)                                                       \
    ACCUMULATE_VECS(rows, 16)                                                      \
    ACCUMULATE_VECS(rows, 8)                                                       \
    ACCUMULATE_VECS(rows, 4)                                                       \
    ACCUMULATE_VECS(rows, 2)                                                       \
    ACCUMULATE_VECS(rows, 1)                                                       \
    *t->next = next;                                                               \
  }
#define DTYPE(constant, ...)                                \
  FOR_EACH_ROWS(DEFINE_ACCUMULATE, ATTN_##constant, fresh)  \
  FOR_EACH_ROWS(DEFINE_ACCUMULATE, ATTN_##constant, cached) \
  ASKS_TWICE(FOR_EACH_ROWS(DEFINE_ACCUMULATE, ATTN_##constant, twice))
#include LANE_DTYPES
#undef DTYPE

static void accumulate_few_rows(few_rows *t, int64_t rows, bool read) {
  static few_function *const functions[][3][4] = {
#define DTYPE(constant, ...)                                                                                              \
  [ATTN_##constant] = {ENTRIES_OF(accumulate, ATTN_##constant##_cached), ENTRIES_OF(accumulate, ATTN_##constant##_fresh), \
                       ASKS_TWICE(ENTRIES_OF(accumulate, ATTN_##constant##_twice))},
#include LANE_DTYPES
#undef DTYPE
  };
  for_few_rows(functions, t, rows, read);
}

/* ---- What decode.h calls ---- */

/* A thread's memory for products, and the block of keys at work. */
typedef struct products {
  float *q_tiles, *v_copy;
  key_rows k, v;
  next_lines next;
  int64_t begin, end;
  bool picks; /* V of a key is read only for rows that may see it */
  int ahead;  /* asks_of */
  float factor;
} products;

/* Offsets in bytes, and the size. */
typedef struct products_layout {
  int64_t q_tiles, v, total;
} products_layout;

static int64_t decode_capacity(int64_t rows) { return round_up(rows, DECODE_TILE_ROWS); }
static int64_t decode_columns(const attn_problem *p) { return round_up(p->dim_v, VEC_VALUES); }

static bool products_layout_of(const attn_problem *p, int64_t capacity, products_layout *at) {
  const memory_part parts[] = {{&at->q_tiles, capacity, float_bytes(lanes_of(p->dim_qk))},
                               {&at->v, DECODE_KEYS, float_bytes(lanes_of(p->dim_v))}};
  at->total = 0;
  return LAY_OUT(parts, &at->total);
}

/* How K and V of a call are asked for. Twice on CPUs that drop hints, if they are too large to be in a cache and have no
 * gaps between rows: Zen 5 gains up to a third; up to 8 MiB it would lose as much as 18 %. Zen 4, with caches of the same
 * size, loses up to 40 %: it, Zen 3 and Granite Rapids had their best times with hints into level 2. Not at all where a
 * single row reads K and V in their order and level 3 may hold them: Zen 4 takes up to 1.7 times as long with hints. */
static int asks_of(const row_block *block) {
  const attn_problem *p = block->problem;
  const bool dense = p->k_stride.s == p->dim_qk && p->v_stride.s == p->dim_v;
  const double elements = (double)(p->batch * p->heads_kv) * (double)p->seq_k * (double)(p->dim_qk + p->dim_v);
  const double bytes = elements * (double)attn_dtype_bytes(p->dtype_kv);
  if (MAY_ASK_TWICE && dense && bytes > 8 << 20 && attn_drops_hints()) return twice;
  return block->rows == 1 && bytes <= 16 << 20 && attn_needs_no_hints() ? cached : fresh;
}

/* From sums to scores in log2 units (scores_of). */
static inline float score_factor(const attn_problem *p) { return p->scale * LOG2_E; }

/* Called once the block's queries are loaded. */
static products start_products(const row_block *block, const products_layout *at, void *memory) {
  const products work = {.q_tiles = floats_at(memory, at->q_tiles),
                         .v_copy = floats_at(memory, at->v),
                         .ahead = asks_of(block),
                         .factor = score_factor(block->problem)};
  tile_queries(block, work.q_tiles);
  return work;
}

/* The lines of rows of `dim` elements. */
static line_rows block_lines(key_rows rows, int64_t dim) {
  const int64_t bytes = (int64_t)attn_dtype_bytes(rows.dtype);
  return (line_rows){(const char *)rows.data + rows.first * bytes, dim * bytes, rows.stride * bytes};
}

/* Copies V of the block's keys to rows of whole vectors, with zeros for keys that `row` may not see, unless that is
 * negative. */
static key_rows copy_values(const products *work, const row_block *block, int64_t row) {
  const key_rows v = work->v;
  const int64_t columns = block->acc_stride, dim_v = block->problem->dim_v;
  float *to = work->v_copy;
  for (int64_t j = 0; j < work->end - work->begin; j++) {
    const bool used = row < 0 || row_sees(block, row, work->begin + j);
    for (int64_t c = 0; c < columns; c += VEC_VALUES, to += VEC_LANES)
      vec_store(to, load_lanes(v.data, v.dtype, v.first + j * v.stride + c, used ? min64(dim_v - c, VEC_VALUES) : 0));
  }
  return (key_rows){work->v_copy, LANE_VALUES == 1 ? ATTN_F32 : v.dtype, 0, columns};
}

/* Before the rows of a block meet the keys [begin, end). `picks`: V of keys that a row may not see must not touch it. */
static void take_keys(products *work, const row_block *block, int64_t begin, int64_t end, bool picks) {
  const attn_problem *p = block->problem;
  const attn_args *args = block->args;
  work->begin = begin;
  work->end = end;
  work->picks = picks;
  work->k = (key_rows){args->k, p->dtype_kv, attn_k_offset(p, block->seq, block->b, block->head, begin), p->k_stride.s};
  work->v = (key_rows){args->v, p->dtype_kv, attn_v_offset(p, block->seq, block->b, block->head, begin), p->v_stride.s};
  work->next =
      next_lines_of(block_lines(work->k, p->dim_qk), block_lines(work->v, p->dim_v), DECODE_KEYS, work->ahead == twice);
  const bool whole = LOADS_PARTS || p->dim_v % VEC_VALUES == 0;
  if (!whole && !picks) work->v = copy_values(work, block, -1);
}

static few_rows few_rows_of(products *work, const row_block *block, int64_t tile_row, key_rows keys) {
  return (few_rows){.keys = keys,
                    .next = &work->next,
                    .ahead = work->ahead,
                    .count = work->end - work->begin,
                    .lanes = ceil_div(work->end, LANE_VALUES) - work->begin / LANE_VALUES,
                    .before = work->begin % LANE_VALUES,
                    .factor = work->factor,
                    .q = work->q_tiles + tile_row * lanes_of(block->problem->dim_qk),
                    .score = block->score + work->begin % DECODE_KEYS,
                    .acc = block->acc + tile_row * block->acc_stride,
                    .dim_qk = block->problem->dim_qk,
                    .acc_stride = block->acc_stride,
                    .columns = keys.data == work->v_copy ? block->acc_stride : block->problem->dim_v};
}

/* S of `rows` rows from tile_row on, to block->score. */
static void score_rows(products *work, const row_block *block, int64_t tile_row, int64_t rows) {
  few_rows tile = few_rows_of(work, block, tile_row, work->k);
  score_few_rows(&tile, rows, tile_row > 0);
}

/* acc += P V for the same rows. Where V of single keys counts, each row reads a copy of its own. */
static void accumulate_rows(products *work, const row_block *block, int64_t tile_row, int64_t rows) {
  const int64_t first = work->begin % DECODE_KEYS, step = work->picks ? 1 : rows;
  for (int64_t i = 0; i < rows; i++) join_weights(block->score + i * DECODE_SCORE_STRIDE, first + work->end - work->begin);
  for (int64_t i = 0; i < rows; i += step) {
    const key_rows v = work->picks ? copy_values(work, block, tile_row + i) : work->v;
    few_rows tile = few_rows_of(work, block, tile_row + i, v);
    tile.score = block->score + i * DECODE_SCORE_STRIDE + first / LANE_VALUES;
    accumulate_few_rows(&tile, step, tile_row > 0 || v.data == work->v_copy);
  }
}

/* After a split's last block: puts the columns of acc in their order. */
static void end_products(const products *work, const row_block *block) {
  (void)work;
  for (int64_t i = 0; i < block->rows; i++)
    for (int64_t c = 0; c < block->acc_stride; c += VEC_VALUES) order_columns(block->acc + i * block->acc_stride + c);
}

#endif
