/* SPDX-License-Identifier: MIT */
/* The tile engine: products and exponentials of a few query rows against a few keys. flash.h and two_pass.h say in which
 * order tiles are visited and when softmax happens.
 *
 * A tile is TILE_ROWS query rows against the keys of one key block. Both products, S = Q K^T and O += P V, are the register
 * tile (register_tile.h); K, packed with keys in lanes, or V is the streamed operand.
 *
 * Every output element is one chain of fused multiply-adds over the keys in their order, and masked keys add exact zeros. So
 * a row's bits depend neither on the rows that share its tile nor on where tiles begin.
 *
 * Parameters: those of register_tile.h, and
 *   ROUND_P(p)  optional, defined before the first header of kernels/common: rounds a vector of P to the type that the
 *               tier's product of P and V takes, so that the sum of P is that of the rounded values; default: p itself;
 *               tested: to bf16 (avx512bf16, amx, neonbf16), p itself (the others) */
#ifndef ATTN_COMMON_TILES_H
#define ATTN_COMMON_TILES_H

#include <assert.h>

#include "kernels/common/memory/dropout.h"
#include "rows_io.h"

/* ---- Which keys ---- */

typedef enum tile_class { TILE_SKIP, TILE_FULL, TILE_EDGE } tile_class;

/* The keys of one tile. [begin, end): keys that at least one row may see; scores start at `first`, the panel border at or
 * before begin. [all_begin, all_end): keys that every row may see. FULL: this range holds all scored keys up to the next
 * panel border, so no mask code runs. EDGE: mask code runs for the panels outside of it. */
typedef struct tile_keys {
  tile_class class;
  int64_t first, begin, end, all_begin, all_end;
} tile_keys;

/* Which keys in [begin, end) some row of the tile at tile_row sees by its range, and which all rows see; begin is a multiple
 * of PANEL_KEYS. keys_of_tile() (scores.h) also considers masks and bias. */
static inline tile_keys classify_tile(const row_block *block, int64_t tile_row, int64_t begin, int64_t end) {
  int64_t any_begin = end, any_end = begin, all_begin = 0, all_end = INT64_MAX;
  assert(tile_row % TILE_ROWS == 0 && begin % PANEL_KEYS == 0);
  const int64_t different = block->alike ? 1 : TILE_ROWS;
  for (int64_t i = tile_row; i < tile_row + different; i++) {
    const attn_key_range range = block->range[i];
    all_begin = max64(all_begin, range.begin);
    all_end = min64(all_end, range.end);
    if (range.begin >= range.end) continue;
    any_begin = min64(any_begin, range.begin);
    any_end = max64(any_end, range.end);
  }
  tile_keys keys = {
      .begin = max64(begin, any_begin), .end = min64(end, any_end), .all_begin = all_begin, .all_end = all_end};
  keys.first = round_down(keys.begin, PANEL_KEYS);
  if (keys.begin >= keys.end)
    keys.class = TILE_SKIP;
  else
    keys.class = all_begin <= keys.first && round_up(keys.end, PANEL_KEYS) <= all_end ? TILE_FULL : TILE_EDGE;
  return keys;
}

/* The scores of `vecs` vectors of keys from `key` on, -inf where the row may not see the key. `begun`: its range begins at
 * `key` or before; a constant. */
static ALWAYS_INLINE void select_allowed_of(attn_key_range range, int64_t key, vec *score, const bool begun,
                                            const int vecs) {
  const int64_t keys = vecs * VEC_LANES;
  const int64_t begin = begun ? 0 : min64(max64(range.begin - key, 0), keys), end = min64(max64(range.end - key, 0), keys);
  UNROLL
  for (int v = 0; v < vecs; v++) score[v] = vec_select_range(score[v], v * VEC_LANES, begin, end);
}

static ALWAYS_INLINE void select_allowed_vecs(attn_key_range range, int64_t key, vec *score, const int vecs) {
  select_allowed_of(range, key, score, false, vecs);
}

static inline vec select_allowed(attn_key_range range, int64_t key, vec score) {
  select_allowed_vecs(range, key, &score, 1);
  return score;
}

/* ---- P = exp(S) ---- */

#ifndef ROUND_P
#define ROUND_P(p) (p)
#endif

/* p = 2^p for the first `vecs` vectors of a panel of a row, in registers, stored to `score`; returns sum + their lane-wise
 * sum. */
static ALWAYS_INLINE vec exponentials(vec p[TILE_VECS], float *score, vec sum, const int64_t vecs) {
  vec added = vec_zero();
  UNROLL
  for (int v = 0; v < TILE_VECS; v++) {
    if (v >= vecs) continue;
    p[v] = ROUND_P(vec_exp2(p[v]));
    vec_store(score + v * VEC_LANES, p[v]);
    added = v == 0 ? p[0] : vec_add(added, p[v]);
  }
  return vec_add(sum, added);
}

/* ---- O += P V ---- */

static ALWAYS_INLINE void accumulate_columns(float *acc, int64_t acc_stride, const float_rows p, const float_rows v,
                                             int64_t keys, const int vecs) {
  vec sum[TILE_ROWS][TILE_VECS];
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    UNROLL
    for (int c = 0; c < vecs; c++) sum[i][c] = vec_load(acc + i * acc_stride + c * VEC_LANES);
  }
  product(sum, p, v, keys, vecs);
  store_tile(sum, acc, acc_stride, vecs);
}

/* V of the keys from `key` on that lie in one run and before `end`: *count keys. */
static inline float_rows v_rows_from(const row_block *block, int64_t key, int64_t end, int64_t *count) {
  const packed_keys *keys = &block->keys;
  *count = end - key;
  if (keys->v) return (float_rows){keys->v + key * keys->v_stride, keys->v_stride};
  const attn_key_run run = attn_key_run_at(block->problem, block->args, block->seq, block->head, key);
  *count = min64(*count, run.keys);
  return (float_rows){(const float *)block->args->v + run.v, keys->v_stride};
}

/* The same sums as accumulate_tile, in the same order, but without reading V of keys that a row may not see: their weight is
 * 0, but 0 times NaN is NaN. */
static void accumulate_selected(const row_block *block, int64_t tile_row, int64_t rows, int64_t begin, int64_t end,
                                const float *p) {
  for (int64_t i = 0; i < rows; i++) {
    const int64_t row = tile_row + i;
    float *acc = block->acc + row * block->acc_stride;
    for (int64_t key = begin; key < end; key++) {
      if (!row_sees(block, row, key)) continue;
      const vec weight = vec_set1(p[i * block->score_stride + (key - begin)]);
      int64_t count;
      const float_rows v = v_rows_from(block, key, key + 1, &count);
      for (int64_t c = 0; c < block->acc_stride; c += VEC_LANES)
        vec_store(acc + c, vec_fma(weight, vec_load(v.at + c), vec_load(acc + c)));
    }
  }
}

/* Columns are cut into equal strips instead of full tiles and a rest: 5 vectors are 2 + 3, not 4 + 1, because a tile of one
 * vector has too few sums to hide the latency of multiply-add. */
typedef struct column_strips {
  int64_t vecs, narrow, wide; /* vectors of a narrow strip; narrow strips to come; wide ones, which have one vector more */
} column_strips;

static inline column_strips strips_of(int64_t columns) {
  const unsigned vecs = (unsigned)(columns / VEC_LANES), count = (vecs + TILE_VECS - 1) / TILE_VECS; /* quicker to divide */
  if (vecs % TILE_VECS == 0) return (column_strips){.vecs = TILE_VECS, .narrow = count};
  return (column_strips){.vecs = vecs / count, .narrow = count - vecs % count, .wide = vecs % count};
}

/* Vectors of the next strip, 0 after the last. */
static inline int64_t next_strip(column_strips *strips) {
  if (strips->narrow-- > 0) return strips->vecs;
  return strips->wide-- > 0 ? strips->vecs + 1 : 0;
}

/* Dropout of P, whose sum has been taken: p[i][j - begin] of the keys [begin, end). */
static NO_INLINE void drop_tile(const row_block *block, int64_t tile_row, int64_t begin, int64_t end, float *p) {
  float factors[PHILOX_GROUP];
  for (int64_t i = 0; i < min64(TILE_ROWS, block->rows - tile_row); i++) {
    const problem_row row = problem_row_of(block, tile_row + i);
    const uint32_t stream = attn_dropout_stream(block->problem, block->b, row.head);
    for (int64_t first = round_down(begin, PHILOX_GROUP); first < end; first += PHILOX_GROUP) {
      const int64_t last = min64(first + PHILOX_GROUP, end);
      float *of_row = p + i * block->score_stride - begin;
      philox_factors(block->dropout, stream, (uint32_t)row.query, first, last, factors);
      for (int64_t j = max64(first, begin); j < last; j++) of_row[j] *= factors[j - first];
    }
  }
}

/* Adds the keys [begin, end) with p[i][j - begin]. */
static NO_INLINE void accumulate_tile(const row_block *block, int64_t tile_row, int64_t begin, int64_t end, const float *p) {
  assert(tile_row % TILE_ROWS == 0 && begin < end);
  if (block->careful) {
    accumulate_selected(block, tile_row, min64(TILE_ROWS, block->rows - tile_row), begin, end, p);
    return;
  }
  for (int64_t key = begin, count; key < end; key += count) {
    float *acc = block->acc + tile_row * block->acc_stride;
    float_rows v = v_rows_from(block, key, end, &count);
    const float_rows weights = {p + (key - begin), block->score_stride};
    column_strips strips = strips_of(block->acc_stride);
    for (int64_t vecs; (vecs = next_strip(&strips)) > 0;) {
      WITH_CONSTANT_VECS(vecs, accumulate_columns, acc, block->acc_stride, weights, v, count)
      acc += vecs * VEC_LANES;
      v.at += vecs * VEC_LANES;
    }
  }
}

#endif
