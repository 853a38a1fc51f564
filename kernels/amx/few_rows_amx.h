/* SPDX-License-Identifier: MIT */
/* decode's products in the tile unit: up to 16 query rows against 64 keys, K and V read by tile loads where they lie.
 *
 *   S^T = K Q^T   16 keys x 32 dims of K, as they lie, times pairs of dims of 16 rows
 *   O += P V      in place, too, although the unit sums over pairs of adjacent values, and those of V are columns, not keys:
 *                 P is paired with zeros. (0, p) finds the odd columns of 32, (p, 0) the even ones, and the unit has time to
 *                 spare. A float whose lower half is 0 is such a pair (0, p), because P is rounded to bfloat16.
 *
 * So K and V are not touched by vectors at all. Their tiles are loaded as data that is used once, so that they
 * do not push what is written out of level 1. Columns of acc stand in the order that comes out, 16 even, 16 odd ones,
 * until the split is done.
 *
 * The unit sums the 16 keys of a product before it adds them to O, so these 16 must begin at an absolute key index: of a
 * block that does not begin or end with 64 keys, groups without keys are left out, and one with fewer than 16 is copied and
 * padded with zeros. */
#ifndef ATTN_FEW_ROWS_AMX_H
#define ATTN_FEW_ROWS_AMX_H

#include <assert.h>

#include "kernels/avx512/vec_avx512.h"
#include "kernels/avx512bf16/values_bf16.h"

/* P to bfloat16, as floats. Ties go up. As numbers without sign all NaN are above the largest infinity, so the limit keeps
 * them NaN. */
static inline vec round_p(vec p) {
  const __m512i bits = _mm512_min_epu32(_mm512_castps_si512(p), _mm512_set1_epi32(0x7fff0000));
  const __m512i up = _mm512_add_epi32(bits, _mm512_set1_epi32(0x8000));
  return _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32((int)0xffff0000)));
}
#define ROUND_P(p) round_p(p)

#define DECODE_KNOBS amx_knobs
#include "kernels/common/decode/knobs.h"
#include "kernels/common/memory/prefetch.h"
#include "kernels/common/tiles/streaming_softmax.h"
#include "tiles_amx.h"

enum {
  GROUP_KEYS = 16, /* keys of a tile */
  GROUPS = 4,
  DECODE_KEYS = GROUPS * GROUP_KEYS,
  DECODE_SCORE_STRIDE = DECODE_KEYS + 16,
  DECODE_TILE_ROWS = 16,
  FLOAT_QUERIES = false,
  TILE_BYTES = 1024,
  TILE_FLOATS = 256
};

#define DECODE_PRODUCTS /* decode.h takes the functions of this file */
static const decode_knobs amx_knobs = {.tile_rows = DECODE_TILE_ROWS};

/* Pairs of lines to prefetch: beside each load of a tile, and beside the transposition of a tile's scores. Together they are
 * 16 for a tile of K and its tile of V: all that these have. */
enum { PAIRS_BESIDE_TILE = 7, PAIRS_BESIDE_SCORES = 2 };

/* Tiles by number, which gcc pastes into names: scores of four groups of keys, or sums of two times 32 columns; a tile of K
 * or V; a tile of Q or P. */
#define SUM_0  0
#define SUM_1  1
#define SUM_2  2
#define SUM_3  3
#define KEYS_A 4
#define KEYS_B 5
#define ROWS_A 6
#define ROWS_B 7

/* Values of K or V: rows of bfloat16, `stride` apart. */
typedef struct value_rows {
  const uint16_t *at;
  int64_t stride;
} value_rows;

/* A thread's memory for products, and the block of keys at work. */
typedef struct products {
  uint16_t *q_tiles; /* [16 rows][dim / 32][16 pairs of dims][16 rows][2] */
  uint16_t *k_copy, *v_copy;
  float *s;       /* S^T [64 keys][16 rows] */
  uint32_t *even; /* the pairs (p, 0) [16 rows][64 keys] */
  value_rows k[GROUPS], v[GROUPS];
  prefetch_lines next;
  int64_t first, begin, end; /* first: of the 64 keys */
  int64_t behind;            /* the next 64 keys, maybe beyond the last, or -1 */
  bool whole;                /* all 64 are there and lie in one run */
  int from, to;              /* the groups that have keys */
  float scale;
} products;

/* Offsets in bytes, and the size. */
typedef struct products_layout {
  int64_t q_tiles, k, v, s, even, total;
} products_layout;

/* Whole tiles: what stands in rows beyond the last is never read by vectors, and touches no other row in the unit. */
static int64_t decode_capacity(int64_t rows) { return round_up(rows, DECODE_TILE_ROWS); }
static int64_t padded_rows(int64_t rows) { return rows; }
static int64_t decode_columns(const attn_problem *p) { return round_up(p->dim_v, ROW_VALUES); }

static bool products_layout_of(const attn_problem *p, const attn_machine *machine, int64_t capacity, products_layout *at) {
  (void)machine;
  const int64_t value = sizeof(uint16_t);
  const memory_part parts[] = {
      {&at->q_tiles, round_up(capacity, DECODE_TILE_ROWS), round_up(p->dim_qk, ROW_VALUES) * value},
      {&at->k, DECODE_KEYS, round_up(p->dim_qk, ROW_VALUES) * value},
      {&at->v, DECODE_KEYS, round_up(p->dim_v, ROW_VALUES) * value},
      {&at->s, DECODE_KEYS, float_bytes(DECODE_TILE_ROWS)},
      {&at->even, DECODE_KEYS, float_bytes(DECODE_TILE_ROWS)},
  };
  at->total = 0;
  return LAY_OUT(parts, &at->total);
}

static uint16_t *values_at(void *memory, int64_t offset) { return (uint16_t *)(void *)floats_at(memory, offset); }

/* ---- Queries ---- */

/* 32 dims of a row's query from d on. Rows without keys are not read, because they may hold anything. */
static __m512i load_query(const row_block *block, int64_t row, int64_t d) {
  const attn_problem *p = block->problem;
  if (row >= block->rows || block->range[row].begin >= block->range[row].end) return _mm512_setzero_si512();
  const problem_row at = problem_row_of(block, row);
  const uint16_t *q = (const uint16_t *)block->args->q + attn_q_offset(p, block->seq, block->b, at.head, at.query);
  return load_values(q + d * p->q_stride.d, p->q_stride.d, p->dim_qk - d);
}

static void pair_queries(const row_block *block, uint16_t *to) {
  for (int64_t row = 0; row < block->rows; row += DECODE_TILE_ROWS)
    for (int64_t d = 0; d < block->problem->dim_qk; d += ROW_VALUES, to += TILE_BYTES / 2) {
      vec pairs[DECODE_TILE_ROWS]; /* pairs of dims, as if they were floats */
      for (int64_t i = 0; i < DECODE_TILE_ROWS; i++) pairs[i] = _mm512_castsi512_ps(load_query(block, row + i, d));
      vec_transpose(pairs);
      for (int64_t i = 0; i < DECODE_TILE_ROWS; i++) _mm512_storeu_si512(to + i * ROW_VALUES, _mm512_castps_si512(pairs[i]));
    }
}

static products start_products(const row_block *block, const products_layout *at, void *memory) {
  const products work = {.q_tiles = values_at(memory, at->q_tiles),
                         .k_copy = values_at(memory, at->k),
                         .v_copy = values_at(memory, at->v),
                         .s = floats_at(memory, at->s),
                         .even = (uint32_t *)(void *)floats_at(memory, at->even),
                         .scale = block->problem->scale * LOG2_E};
  pair_queries(block, work.q_tiles);
  _tile_loadconfig(&eight_tiles);
  return work;
}

/* ---- Keys ---- */

/* A group's first key that is in [begin, end). */
static int64_t first_of_group(const products *work, int group) {
  return max64(work->first + group * GROUP_KEYS, work->begin);
}

/* The group from key `first` on, of `dim` values a key, 0 up to a multiple of 32 and where no key is: outside [begin, end),
 * or not seen by `row`, if that is not -1. from: the rows of its keys that are there. */
static value_rows copy_group(const products *work, const row_block *block, value_rows from, int64_t first, int64_t dim,
                             int64_t row, uint16_t *to) {
  const int64_t padded = round_up(dim, ROW_VALUES);
  for (int64_t key = first; key < first + GROUP_KEYS; key++) {
    const bool there = key >= work->begin && key < work->end && (row < 0 || row_sees(block, row, key));
    for (int64_t d = 0; d < padded; d += ROW_VALUES)
      _mm512_storeu_si512(to + (key - first) * padded + d,
                          there ? load_values(from.at + (key - max64(first, work->begin)) * from.stride + d, 1, dim - d)
                                : _mm512_setzero_si512());
  }
  return (value_rows){.at = to, .stride = padded};
}

/* One of the block's groups of rows: `values` if they can be read in place, else a copy in `copy`. */
static value_rows take_group(const products *work, const row_block *block, int group, value_rows values, int64_t dim,
                             int64_t row, uint16_t *copy) {
  const int64_t first = work->first + group * GROUP_KEYS;
  const bool whole = first >= work->begin && first + GROUP_KEYS <= work->end;
  if (whole && row < 0 && dim % ROW_VALUES == 0) return values;
  return copy_group(work, block, values, first, dim, row, copy + group * GROUP_KEYS * round_up(dim, ROW_VALUES));
}

/* Rows of `dim` values of K or V. */
static line_rows lines_of(const uint16_t *at, int64_t dim, int64_t stride) {
  return (line_rows){at, dim * (int64_t)sizeof *at, stride * (int64_t)sizeof *at, LINE_BYTES};
}

/* Before the rows of a block meet the keys [begin, end). */
static void take_keys(products *work, const row_block *block, int64_t begin, int64_t end, bool picks) {
  const attn_problem *p = block->problem;
  (void)picks; /* accumulate_carefully() does */
  const uint16_t *k = block->args->k, *v = block->args->v;
  const attn_key_run run = attn_key_run_at(p, block->args, block->seq, block->head, begin);
  work->first = round_down(begin, DECODE_KEYS);
  work->begin = begin;
  work->end = end;
  work->from = (int)(begin - work->first) / GROUP_KEYS;
  work->to = (int)ceil_div(end - work->first, GROUP_KEYS);
  work->whole = end - begin == DECODE_KEYS && run.keys >= DECODE_KEYS;
  work->next = prefetch_of(lines_of(k + run.k, p->dim_qk, p->k_stride.s), lines_of(v + run.v, p->dim_v, p->v_stride.s),
                           DECODE_KEYS, PREFETCH_ONCE, false);
  work->k[0] = (value_rows){k + run.k, p->k_stride.s};
  work->v[0] = (value_rows){v + run.v, p->v_stride.s};
  if (work->whole && (p->dim_qk | p->dim_v) % ROW_VALUES == 0) return; /* the first group says it all */
  for (int group = work->from; group < work->to; group++) {
    const attn_key_run at = attn_key_run_at(p, block->args, block->seq, block->head, first_of_group(work, group));
    const value_rows k_rows = {k + at.k, p->k_stride.s}, v_rows = {v + at.v, p->v_stride.s};
    work->k[group] = take_group(work, block, group, k_rows, p->dim_qk, -1, work->k_copy);
    work->v[group] = take_group(work, block, group, v_rows, p->dim_v, -1, work->v_copy);
  }
}

/* The first rows of a whole block prefetch what comes next. */
static bool prefetches(const products *work, int64_t tile_row) { return tile_row == 0 && work->whole; }

/* The groups of a whole block lie evenly, also as copies. */
static ALWAYS_INLINE value_rows group_at(const value_rows groups[GROUPS], int group, bool whole) {
  if (!whole) return groups[group];
  return (value_rows){groups[0].at + group * GROUP_KEYS * groups[0].stride, groups[0].stride};
}

/* ---- S ---- */

#define SCORE_GROUP(group, tile)                                          \
  if (whole || (group >= from && group < to)) {                           \
    const value_rows k = group_at(work->k, group, whole);                 \
    if (ahead) prefetch_once(&next, PAIRS_BESIDE_TILE);                   \
    _tile_stream_loadd(tile, k.at + d, k.stride * (int)sizeof(uint16_t)); \
    _tile_dpbf16ps(SUM_##group, tile, ROWS_A);                            \
  }

/* S^T of the block; 0 for groups without keys. */
static ALWAYS_INLINE void score_tiles(products *work, const uint16_t *q, int64_t dim_qk, const bool whole,
                                      const bool ahead) {
  const int from = work->from, to = work->to;
  prefetch_lines next = work->next;
  _tile_zero(SUM_0);
  _tile_zero(SUM_1);
  _tile_zero(SUM_2);
  _tile_zero(SUM_3);
  for (int64_t d = 0; d < dim_qk; d += ROW_VALUES, q += TILE_BYTES / 2) {
    _tile_loadd(ROWS_A, q, 64);
    SCORE_GROUP(0, KEYS_A)
    SCORE_GROUP(1, KEYS_B)
    SCORE_GROUP(2, KEYS_A)
    SCORE_GROUP(3, KEYS_B)
  }
  work->next = next;
  _tile_stored(SUM_0, work->s, 64);
  _tile_stored(SUM_1, work->s + TILE_FLOATS, 64);
  _tile_stored(SUM_2, work->s + 2 * TILE_FLOATS, 64);
  _tile_stored(SUM_3, work->s + 3 * TILE_FLOATS, 64);
}

static NO_INLINE void score_first(products *work, const uint16_t *q, int64_t dim_qk) {
  score_tiles(work, q, dim_qk, true, true);
}
static NO_INLINE void score_again(products *work, const uint16_t *q, int64_t dim_qk) {
  score_tiles(work, q, dim_qk, true, false);
}
static NO_INLINE void score_part(products *work, const uint16_t *q, int64_t dim_qk) {
  score_tiles(work, q, dim_qk, false, false);
}

/* S of `rows` rows from tile_row on, to block->score. */
static void score_rows(products *work, const row_block *block, int64_t tile_row, int64_t rows) {
  const int64_t dim_qk = block->problem->dim_qk;
  const bool ahead = prefetches(work, tile_row);
  const uint16_t *q = work->q_tiles + tile_row * round_up(dim_qk, ROW_VALUES);
  tiles_see_stores();
  (!work->whole ? score_part : ahead ? score_first : score_again)(work, q, dim_qk);
  tiles_see_stores();
  const vec scale = vec_set1(work->scale);
  const int64_t score_stride = block->score_stride;
  const float *from = work->s;
  for (float *to = block->score; to < block->score + DECODE_KEYS; to += GROUP_KEYS, from += TILE_FLOATS) {
    for (int64_t d = 0; ahead && d < dim_qk; d += ROW_VALUES) prefetch_once(&work->next, PAIRS_BESIDE_SCORES);
    vec s[GROUP_KEYS];
    UNROLL
    for (int i = 0; i < GROUP_KEYS; i++) s[i] = vec_load(from + i * DECODE_TILE_ROWS);
    vec_transpose(s);
    UNROLL
    for (int i = 0; i < DECODE_TILE_ROWS; i++)
      if (i < rows) vec_store(to + i * score_stride, vec_mul(scale, s[i]));
  }
}

/* ---- O ---- */

/* P of 16 keys from `group` on times two times 32 columns, or 32. */
#define ADD_COLUMNS(part, tile)                                                    \
  if (ahead) prefetch_once(&next, PAIRS_BESIDE_TILE);                              \
  _tile_stream_loadd(tile, v + (part)*ROW_VALUES, stride * (int)sizeof(uint16_t)); \
  if (part == 0) {                                                                 \
    _tile_dpbf16ps(SUM_0, ROWS_A, tile);                                           \
    _tile_dpbf16ps(SUM_1, ROWS_B, tile);                                           \
  } else {                                                                         \
    _tile_dpbf16ps(SUM_2, ROWS_A, tile);                                           \
    _tile_dpbf16ps(SUM_3, ROWS_B, tile);                                           \
  }

static ALWAYS_INLINE void add_columns(products *work, const row_block *block, float *acc, int64_t column, const int parts,
                                      const bool whole, const bool ahead) {
  const int from = whole ? 0 : work->from, to = whole ? GROUPS : work->to;
  const int acc_bytes = (int)float_bytes(block->acc_stride), score_bytes = (int)float_bytes(block->score_stride);
  prefetch_lines next = work->next;
  acc += column;
  _tile_loadd(SUM_0, acc, acc_bytes);
  _tile_loadd(SUM_1, acc + 16, acc_bytes);
  if (parts > 1) {
    _tile_loadd(SUM_2, acc + 32, acc_bytes);
    _tile_loadd(SUM_3, acc + 48, acc_bytes);
  }
  for (int group = from; group < to; group++) {
    const value_rows rows = group_at(work->v, group, whole);
    const uint16_t *v = rows.at + column;
    const int64_t stride = rows.stride;
    _tile_loadd(ROWS_A, work->even + group * GROUP_KEYS, DECODE_KEYS * (int)sizeof(uint32_t));
    _tile_loadd(ROWS_B, block->score + group * GROUP_KEYS, score_bytes);
    ADD_COLUMNS(0, KEYS_A)
    if (parts > 1) {
      ADD_COLUMNS(1, KEYS_B)
    }
  }
  work->next = next;
  _tile_stored(SUM_0, acc, acc_bytes);
  _tile_stored(SUM_1, acc + 16, acc_bytes);
  if (parts > 1) {
    _tile_stored(SUM_2, acc + 32, acc_bytes);
    _tile_stored(SUM_3, acc + 48, acc_bytes);
  }
}

/* Calls add_columns with the fields of `work` as constants. */
static ALWAYS_INLINE void choose_columns(products *work, const row_block *block, float *acc, int64_t column, const int parts,
                                         bool ahead) {
  if (!work->whole)
    add_columns(work, block, acc, column, parts, false, false);
  else if (ahead)
    add_columns(work, block, acc, column, parts, true, true);
  else
    add_columns(work, block, acc, column, parts, true, false);
}
static NO_INLINE void two_columns(products *work, const row_block *block, float *acc, int64_t column, bool ahead) {
  choose_columns(work, block, acc, column, 2, ahead);
}
static NO_INLINE void one_column(products *work, const row_block *block, float *acc, int64_t column, bool ahead) {
  choose_columns(work, block, acc, column, 1, ahead);
}

/* The pairs for even columns. */
static void pair_p(uint32_t *even, const float *p, int64_t p_stride, int64_t rows) {
  for (; rows > 0; rows--, p += p_stride, even += DECODE_KEYS)
    for (int64_t j = 0; j < DECODE_KEYS; j += GROUP_KEYS)
      _mm512_storeu_si512(even + j, _mm512_srli_epi32(_mm512_loadu_si512(p + j), 16));
}

/* Leaves of the pairs of columns in V's copies the first one, or the second. */
static void leave_columns(products *work, const row_block *block, int second) {
  const __m512i column = _mm512_set1_epi32((int)(second ? 0xffff0000u : 0xffffu));
  const int64_t padded = round_up(block->problem->dim_v, ROW_VALUES), end = work->to * GROUP_KEYS * padded;
  for (int64_t i = work->from * GROUP_KEYS * padded; i < end; i += ROW_VALUES)
    _mm512_storeu_si512(work->v_copy + i, _mm512_and_si512(_mm512_loadu_si512(work->v_copy + i), column));
}

/* accumulate_rows() where V is not finite: for one row after the other, from the keys alone that it may see, and without the
 * other column of each pair, which the unit multiplies by 0. What else that does to acc is taken back. */
static NO_INLINE void accumulate_carefully(products *work, const row_block *block, int64_t tile_row, int64_t rows) {
  enum { HALF = ROW_VALUES / 2 }; /* even columns, then odd ones */
  const attn_problem *p = block->problem;
  float *acc = block->acc + tile_row * block->acc_stride;
  for (int64_t n = 0; n < 2 * rows; n++) {
    for (int group = work->from; group < work->to; group++) {
      const attn_key_run at = attn_key_run_at(p, block->args, block->seq, block->head, first_of_group(work, group));
      const value_rows values = {(const uint16_t *)block->args->v + at.v, p->v_stride.s};
      work->v[group] = take_group(work, block, group, values, p->dim_v, tile_row + n / 2, work->v_copy);
    }
    leave_columns(work, block, (int)(n % 2));
    for (int64_t column = 0; column < block->acc_stride; column += ROW_VALUES) {
      float before[2 * DECODE_TILE_ROWS][HALF];
      for (int64_t i = 0; i < 2 * rows; i++)
        memcpy(before[i], acc + i / 2 * block->acc_stride + column + i % 2 * HALF, sizeof before[i]);
      tiles_see_stores();
      one_column(work, block, acc, column, false);
      tiles_see_stores();
      for (int64_t i = 0; i < 2 * rows; i++)
        if (i != n) memcpy(acc + i / 2 * block->acc_stride + column + i % 2 * HALF, before[i], sizeof before[i]);
    }
  }
}

/* acc += P V for the same rows. */
static void accumulate_rows(products *work, const row_block *block, int64_t tile_row, int64_t rows) {
  float *acc = block->acc + tile_row * block->acc_stride;
  const bool ahead = prefetches(work, tile_row);
  int64_t column = 0;
  pair_p(work->even, block->score, block->score_stride, rows);
  if (block->careful) {
    accumulate_carefully(work, block, tile_row, rows);
    return;
  }
  tiles_see_stores();
  for (; column + 2 * ROW_VALUES <= block->acc_stride; column += 2 * ROW_VALUES)
    two_columns(work, block, acc, column, ahead);
  if (column < block->acc_stride) one_column(work, block, acc, column, ahead);
  tiles_see_stores();
}

/* After a split's last block: puts the columns of acc in their order. */
static void end_products(const products *work, const row_block *block) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  (void)work;
  _tile_release();
  for (int64_t i = 0; i < block->rows; i++)
    for (int64_t c = 0; c < block->acc_stride; c += ROW_VALUES) {
      float *acc = block->acc + i * block->acc_stride + c;
      const vec even = vec_load(acc), odd = vec_load(acc + VEC_LANES);
      vec_store(acc, _mm512_permutex2var_ps(even, low, odd));
      vec_store(acc + VEC_LANES, _mm512_permutex2var_ps(even, high, odd));
    }
}

#endif
