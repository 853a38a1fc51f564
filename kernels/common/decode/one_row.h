/* SPDX-License-Identifier: MIT */
/* decode of one query row without a mask, for the usual head dimensions: few_rows.h with all sizes constant, and all whole
 * blocks in one function.
 *
 * One row waits for memory, and memory waits for the row: while a core works on arithmetic, it loads nothing that lies
 * beyond its window of some 450 instructions. So what counts is how few instructions stand between one load and the next,
 * and between a block's last load of K and its first of V. A row's bits are those of few_rows.h and softmax_row().
 *
 * A tier that has it includes it before decode.h. Parameters: those of few_rows.h. */
#ifndef ATTN_COMMON_DECODE_ONE_ROW_H
#define ATTN_COMMON_DECODE_ONE_ROW_H

#include "softmax.h"
#include "stream.h"

/* S of a block of keys, whose runs begin at elements first[0] .. of K. Key by key, because memory is read fastest in its own
 * order. */
static ALWAYS_INLINE void score_block(const float *q, key_rows k, const int64_t *first, float factor, const int dim,
                                      const few_kind kind, float *score, prefetch_lines *next) {
  const int two_lines = attn_elements_in(kind.dtype, 2 * LINE_BYTES);
  int64_t key = 0;
  NO_UNROLL
  for (int at = 0; at < DECODE_KEYS; at += VEC_LANES) {
    if (at % RUN_KEYS == 0) key = first[at / RUN_KEYS];
    vec sum[VEC_LANES];
    UNROLL
    for (int j = 0; j < VEC_LANES; j++) {
      prefetch_ahead(next, kind.policy, dim / two_lines, &next->v_again);
      sum[j] = vec_zero();
      UNROLL
      for (int d = 0; d < dim; d += VEC_VALUES)
        sum[j] = multiply_lanes(vec_load(q + d / LANE_VALUES),
                                load_lanes(attn_storage_as(k.from, kind.dtype), key + d, VEC_VALUES), sum[j]);
      key += k.stride;
      __asm__ volatile("" : "+r"(key)); /* or gcc keeps an address for each of the keys */
    }
    vec_store(score + at, scores_of(vec_sum_each(sum), factor));
  }
}

/* acc += P V for as many keys, as many columns at a time as there are registers for. */
static ALWAYS_INLINE void accumulate_block(const float *p, key_rows v, key_pieces pieces, const int dim, const few_kind kind,
                                           float *acc, prefetch_lines *next) {
  const int two_lines = attn_elements_in(kind.dtype, 2 * LINE_BYTES);
  const int vecs = dim / VEC_LANES < DECODE_SUMS ? dim / VEC_LANES : DECODE_SUMS, columns = vecs * VEC_LANES;
  const int values = columns * LANE_VALUES; /* values of a lane's keys */
  const int pairs = values > two_lines ? values / two_lines : 1, between = values < two_lines ? two_lines / values : 1;
  UNROLL
  for (int column = 0; column < dim; column += columns) {
    vec sum[DECODE_SUMS];
    UNROLL
    for (int c = 0; c < vecs; c++) sum[c] = vec_load(acc + column + c * VEC_LANES);
    const float *weights = p;
    NO_UNROLL
    for (int64_t piece = 0; piece < pieces.count; piece++) {
      int64_t at[LANE_VALUES];
      UNROLL
      for (int i = 0; i < LANE_VALUES; i++) at[i] = pieces.first[piece] + i * v.stride + column;
      NO_UNROLL
      for (int64_t j = 0; j < pieces.keys / LANE_VALUES; j++) {
        const vec_factor weight = vec_factor_at(weights++);
        if (j % between == 0) prefetch_ahead(next, kind.policy, pairs, &next->k_again);
        UNROLL
        for (int c = 0; c < vecs; c += LANE_VALUES) {
          vec x[LANE_VALUES];
          load_columns(x, attn_storage_as(v.from, kind.dtype), at, c * VEC_LANES, VEC_VALUES);
          UNROLL
          for (int i = 0; i < LANE_VALUES; i++) sum[c + i] = vec_fma_factor(weight, x[i], sum[c + i]);
        }
        UNROLL
        for (int i = 0; i < LANE_VALUES; i++) at[i] += LANE_VALUES * v.stride;
      }
    }
    UNROLL
    for (int c = 0; c < vecs; c++) vec_store(acc + column + c * VEC_LANES, sum[c]);
  }
}

/* The blocks from key `key` up to `end`. */
static ALWAYS_INLINE void stream_blocks(const row_stream *stream, const key_runs *runs, int64_t key, int64_t end,
                                        const int dim, const few_kind kind) {
  const row_block *block = stream->block;
  const attn_problem *p = block->problem;
  const key_rows k = {attn_k_storage(p, block->args), 0, p->k_stride.s},
                 v = {attn_v_storage(p, block->args), 0, p->v_stride.s};
  prefetch_lines next = prefetch_of(block_lines(k, dim), block_lines(v, dim), DECODE_KEYS, stream->policy);
  const run_places k_places = places_of(runs->k, runs->k_ahead, k, kind),
                   v_places = places_of(runs->v, runs->v_ahead, v, kind);
  for (; key < end; key += DECODE_KEYS) {
    const int64_t run = (key - runs->begin) / RUN_KEYS;
    prefetch_beside_scores(&next, kind, k_places, v_places, run);
    score_block(stream->q, k, runs->k + run, score_factor(p), dim, kind, block->score, &next);
    softmax_row(block, 0, key, (attn_key_range){key, key + DECODE_KEYS}, block->score, true);
    join_weights(block->score, DECODE_KEYS);
    prefetch_beside_sums(&next, kind, k_places, v_places, run);
    accumulate_block(block->score, v, pieces_of(runs->v + run, v.stride), dim, kind, block->acc, &next);
  }
}

/* The functions of one_row.def. */
#define ONE_ROW(name, dim, type, policy)                                                           \
  static NO_INLINE void name(row_stream *stream, const key_runs *runs, int64_t key, int64_t end) { \
    stream_blocks(stream, runs, key, end, dim, (few_kind){1, ATTN_##type, policy});                \
  }
#include "one_row.def"
#undef ONE_ROW

/* NULL for other head dimensions. */
static stream_function *one_row_of(const attn_problem *p, prefetch_policy policy) {
  static stream_function *const functions[ATTN_DTYPE_COUNT][2][2] = {
#define ONE_ROW(name, dim, type, policy) \
  [ATTN_##type][(dim) / 128][(policy) != PREFETCH_NONE] = LANES_TAKE(ATTN_##type) ? name : NULL,
#include "one_row.def"
#undef ONE_ROW
  };
  if (p->dim_qk != p->dim_v || (p->dim_qk != 64 && p->dim_qk != 128)) return NULL;
  return functions[p->dtype_kv][p->dim_qk / 128][policy != PREFETCH_NONE];
}

#endif
