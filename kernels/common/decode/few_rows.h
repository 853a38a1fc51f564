/* SPDX-License-Identifier: MIT */
/* decode's products on vectors: a few query rows against a block of keys, K and V in place. Lanes hold floats
 * (few_floats.h), or pairs of bf16 values (few_pairs.h), whichever the tier has included.
 *
 * Scores put the head dimension in lanes: VEC_LANES or more vectors of sums at a time, of 1 row x as many keys or of 8
 * rows x an eighth of the keys. A transposing tree of additions (vec_sum_each) turns VEC_LANES sums into a vector of scores.
 *
 * Parameters: those of register_tile.h, and DECODE_KNOBS (knobs.h). */
#ifndef ATTN_COMMON_DECODE_FEW_ROWS_H
#define ATTN_COMMON_DECODE_FEW_ROWS_H

#include <assert.h>

#include "kernels/common/memory/prefetch.h"
#include "kernels/common/tiles/streaming_softmax.h"
#include "knobs.h"

#ifndef ATTN_COMMON_DECODE_FEW_PAIRS_H
#include "few_floats.h"
#endif

enum {
  DECODE_KEYS = 32,                       /* keys of a block: K and V are used while they are in level 2 */
  DECODE_SCORE_STRIDE = DECODE_KEYS + 16, /* 16 at least, for scores beyond the keys */
  VEC_VALUES = VEC_LANES * LANE_VALUES    /* elements of K or V in a vector */
};

/* Lanes of a row of Q, whole vectors. */
static ALWAYS_INLINE int64_t lanes_of(int64_t values) { return round_up(ceil_div(values, LANE_VALUES), VEC_LANES); }

/* ---- A few rows and a block of keys ---- */

/* Rows of K or V as the loops read them: element (j, d) is first + j * stride + d of `from`, in place or converted. */
typedef struct key_rows {
  attn_storage from;
  int64_t first, stride;
} key_rows;

/* K or V of a block: two runs of RUN_KEYS keys. */
typedef struct block_rows {
  key_rows rows;
  int64_t gap; /* elements from the end of the first run to the second one; 0 if they adjoin */
} block_rows;

/* Elements from key `key`, a multiple of `keys`, of a block to the key `keys` behind it. */
static ALWAYS_INLINE int64_t step_over(const block_rows block, int64_t key, const int keys) {
  return keys * block.rows.stride + (key + keys == RUN_KEYS ? block.gap : 0);
}

/* Rows that are scored and summed together, and the block's keys. */
typedef struct few_rows {
  key_rows keys;        /* K for scores, V for sums */
  prefetch_lines *next; /* to prefetch */
  int64_t count;        /* number of keys */
  int64_t lanes;        /* lanes of P; the first key is the `before`-th of its lane */
  int64_t before;
  float factor;   /* from sums to scores in log2 units (scores_of) */
  int64_t row;    /* the first row that a call works on */
  const float *q; /* from tile_queries */
  float *score;   /* [row][DECODE_SCORE_STRIDE]: S, or P */
  float *acc;     /* [row][acc_stride] */
  int64_t dim_qk, acc_stride;
  int64_t columns; /* columns of V that may be read */
} few_rows;

/* Constants at every call. */
typedef struct few_kind {
  int rows;
  attn_dtype dtype; /* type of K and V */
  prefetch_policy policy;
  bool paged; /* streams: runs of keys lie anywhere, not at one stride */
} few_kind;

#define DTYPE(constant, name, element, ...) \
  _Static_assert(VEC_VALUES * sizeof(element) <= LINE_BYTES, "a vector of " #name " must lie in a line");
#define BLOCK_DTYPE(constant, name, element, values, ...) \
  _Static_assert((values) % VEC_VALUES == 0, "a vector of " #name " must lie in a block");
#include LANE_DTYPES
#undef DTYPE
#undef BLOCK_DTYPE

/* Elements that the loops read between prefetches of a line, and their bytes: those of a line, or two blocks. */
static ALWAYS_INLINE int line_elements(const attn_dtype dtype) {
  const int together = attn_dtype_of(dtype).values;
  return together > 1 ? 2 * together : attn_elements_in(dtype, LINE_BYTES);
}
static ALWAYS_INLINE int line_step(const attn_dtype dtype) { return (int)attn_elements_bytes(dtype, line_elements(dtype)); }

/* ---- S = Q K^T, K in place ---- */

/* Keys that are summed side by side. A row on its own waits for memory, which is read fastest in its own order: key by key.
 * Several rows go through their keys side by side, so that each load of q serves all of them. */
static ALWAYS_INLINE int keys_at_once(few_kind kind) { return kind.rows == 1 ? 1 : DECODE_KNOBS.score_sums / kind.rows; }

/* sum[r][j] += products of the elements [d, d + n) of the rows and of the keys that begin at elements key[0] .. `line`: up
 * to d, in whole blocks. */
static ALWAYS_INLINE void score_columns(vec *sum, const few_rows t, const int64_t *key, int64_t line, int64_t d, int64_t n,
                                        const few_kind kind) {
  const int columns = DECODE_KNOBS.score_sums / kind.rows;
  vec query[MOST_TILE_ROWS];
  UNROLL
  for (int r = 0; r < kind.rows; r++) query[r] = vec_load(t.q + d / LANE_VALUES * kind.rows + r * VEC_LANES);
  UNROLL
  for (int j = 0; j < keys_at_once(kind); j++) {
    const vec x = load_row_lanes(attn_storage_as(t.keys.from, kind.dtype), key[j] + line, d - line, n);
    UNROLL
    for (int r = 0; r < kind.rows; r++) sum[r * columns + j] = multiply_lanes(query[r], x, sum[r * columns + j]);
  }
}

/* score[r][at + j] for the rows and j < score_sums / rows; scores of keys that do not exist repeat the last key's.
 * Prefetches as many lines as it reads. */
static ALWAYS_INLINE void score_few(const few_rows t, int64_t at, const few_kind kind, prefetch_lines *next) {
  const int sums = DECODE_KNOBS.score_sums, columns = sums / kind.rows, group = keys_at_once(kind),
            line = line_elements(kind.dtype), bytes = line_step(kind.dtype);
  vec sum[MOST_SCORE_SUMS];
  int64_t key[MOST_SCORE_SUMS];
  UNROLL
  for (int i = 0; i < sums; i++) sum[i] = vec_zero();
  UNROLL
  for (int j = 0; j < columns; j++) key[j] = t.keys.first + min64(at + j, t.count - 1) * t.keys.stride;
  UNROLL
  for (int j = 0; j < columns; j += group) {
    int64_t d = 0;
    for (; group == 1 && d + 2 * line <= t.dim_qk; d += 2 * line) {
      prefetch_ahead(next, kind.policy, kind.paged, 1, bytes, &next->v_again);
      UNROLL
      for (int part = 0; part < 2 * line; part += VEC_VALUES)
        score_columns(&sum[j], t, &key[j], d, d + part, VEC_VALUES, kind);
    }
    for (; d + line <= t.dim_qk; d += line) {
      if (group > 1 || (columns % 2 ? at + j : j) % 2 == 0)
        prefetch_ahead(next, kind.policy, kind.paged, (group + 1) / 2, bytes, &next->v_again);
      UNROLL
      for (int part = 0; part < line; part += VEC_VALUES) score_columns(&sum[j], t, &key[j], d, d + part, VEC_VALUES, kind);
    }
    for (; d < t.dim_qk; d += VEC_VALUES) score_columns(&sum[j], t, &key[j], 0, d, min64(t.dim_qk - d, VEC_VALUES), kind);
  }
  float each[MOST_SCORE_SUMS];
  UNROLL
  for (int i = 0; i < sums; i += VEC_LANES) vec_store(each + i, scores_of(vec_sum_each(sum + i), t.factor));
  UNROLL
  for (int r = 0; r < kind.rows; r++)
    memcpy(t.score + r * DECODE_SCORE_STRIDE + at, each + r * columns, (size_t)columns * sizeof(float));
}

/* The rows that the next call works on, of which there are functions: 8, 4, 2 or 1. 3 rows are taken as 4, and 7 as 8: one
 * more row, which is zeros, costs less than one more call, which reads and converts K and V again. */
static inline int64_t rows_at_once(int64_t rows) {
  return rows >= 7 && DECODE_KNOBS.tile_rows >= 8 ? 8 : rows >= 3 ? 4 : rows;
}

/* Rows with those of zeros behind them. */
static int64_t padded_rows(int64_t rows) {
  int64_t padded = 0;
  while (padded < rows) padded += rows_at_once(rows - padded);
  return padded;
}

/* The rows from `row` on. */
static ALWAYS_INLINE few_rows rows_left(const few_rows *t) {
  few_rows left = *t;
  left.q += t->row * lanes_of(t->dim_qk);
  left.score += t->row * DECODE_SCORE_STRIDE;
  left.acc += t->row * t->acc_stride;
  return left;
}

/* Scores of the rows for all keys of the block. Up to score_sums scores beyond those of the block's keys are written too. */
static ALWAYS_INLINE void score_keys(const few_rows *t, const few_kind kind) {
  const few_rows left = rows_left(t);
  prefetch_lines next = *t->next;
  for (int64_t at = 0; at < left.count; at += DECODE_KNOBS.score_sums / kind.rows) score_few(left, at, kind, &next);
  *t->next = next;
}

/* Arranges the queries as score_few reads them: one vector of each row that a call works on, side by side, so that one
 * pointer reaches all of them. */
static void tile_queries(const row_block *block, float *q_tiles) {
  const int64_t dim = block->problem->dim_qk;
  for (int64_t row = 0, step; row < block->rows; row += step) {
    step = rows_at_once(block->rows - row);
    for (int64_t r = 0; r < step; r++) {
      const query_row q = query_row_of(block, row + r);
      for (int64_t d = 0; d < dim; d += VEC_VALUES)
        vec_store(q_tiles + row * lanes_of(dim) + d / LANE_VALUES * step + r * VEC_LANES, query_lanes(&q, d));
    }
  }
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

/* acc += P V for `vecs`, a constant, vectors of columns from `column` on. Prefetches as many lines as it reads. */
static ALWAYS_INLINE void accumulate_few(const few_rows t, int64_t column, const few_kind kind, const int vecs,
                                         prefetch_lines *next) {
  const int two_lines = 2 * line_elements(kind.dtype), values = vecs * VEC_LANES * LANE_VALUES;
  const int pairs =
      values > two_lines ? values / two_lines : 1; /* pairs of lines to prefetch, each time that as many have been read */
  const int between = values < two_lines ? two_lines / values : 1;
  const int64_t whole = columns_before(kind.dtype, column, vecs), rest = column - whole;
  const int64_t columns = min64(t.columns - column - (vecs - LANE_VALUES) * VEC_LANES, VEC_VALUES);
  const int64_t last = LOADS_PARTS_OF(kind.dtype) ? columns : VEC_VALUES;
  float *acc = t.acc + column;
  vec sum[DECODE_SUMS];
  UNROLL
  for (int i = 0; i < kind.rows * vecs; i++) sum[i] = vec_load(acc + i / vecs * t.acc_stride + i % vecs * VEC_LANES);
  for (int64_t j = 0; j < t.lanes; j++) {
    int64_t at[LANE_VALUES];
    find_columns(&t, j, whole, at);
    vec_factor weight[MOST_TILE_ROWS];
    if (j % between == 0) prefetch_ahead(next, kind.policy, kind.paged, pairs, line_step(kind.dtype), &next->k_again);
    UNROLL
    for (int r = 0; r < kind.rows; r++) weight[r] = vec_factor_at(t.score + r * DECODE_SCORE_STRIDE + j);
    UNROLL
    for (int c = 0; c < vecs; c += LANE_VALUES) {
      vec x[LANE_VALUES];
      load_columns(x, attn_storage_as(t.keys.from, kind.dtype), at, rest + c * VEC_LANES,
                   c < vecs - LANE_VALUES ? VEC_VALUES : last);
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

/* All columns of the rows from *column on that fill `vecs` vectors at a time; moves *column behind them. Nothing if the
 * rows' sums of as many vectors exceed the registers. */
static ALWAYS_INLINE void accumulate_vecs(const few_rows t, int64_t *column, const few_kind kind, const int vecs,
                                          prefetch_lines *next) {
  if (vecs < LANE_VALUES || vecs * kind.rows > DECODE_SUMS) return;
  for (; *column + vecs * VEC_LANES <= t.acc_stride; *column += vecs * VEC_LANES)
    accumulate_few(t, *column, kind, vecs, next);
}

/* From sums to scores in log2 units (scores_of). */
static inline float score_factor(const attn_problem *p) { return p->scale * LOG2_E; }

/* The lines of rows of `dim` elements. */
static line_rows block_lines(key_rows rows, int64_t dim) {
  const attn_dtype dtype = rows.from.dtype;
  return (line_rows){attn_element_at(rows.from.data, dtype, rows.first), attn_elements_bytes(dtype, dim),
                     attn_elements_bytes(dtype, rows.stride), line_step(dtype)};
}

#endif
