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

/* Keys in a row without a loop: a vector's worth, whose sums stay in registers. Of types that are converted at some cost
 * fewer: their code would be large, and beside the conversion a store and a load of each sum is little. */
static ALWAYS_INLINE int keys_unrolled(attn_dtype dtype) { return attn_dtype_is_integer(dtype) ? 4 : VEC_LANES; }

/* S of a block of keys, in its runs. Key by key, because memory is read fastest in its own
 * order. */
static ALWAYS_INLINE void score_block(const float *q, const block_rows k, float factor, const int dim, const few_kind kind,
                                      float *score, prefetch_lines *next) {
  const int two_lines = 2 * line_elements(kind.dtype), pairs = dim > two_lines ? dim / two_lines : 1;
  const int at_once = keys_unrolled(kind.dtype);
  int64_t key = k.rows.first;
  NO_UNROLL
  for (int at = 0; at < DECODE_KEYS; at += VEC_LANES) {
    vec sum[VEC_LANES];
    NO_UNROLL
    for (int some = 0; some < VEC_LANES; some += at_once) {
      UNROLL
      for (int j = 0; j < at_once; j++) {
        vec one = vec_zero();
        if (j * dim % two_lines == 0)
          prefetch_ahead(next, kind.policy, kind.paged, pairs, line_step(kind.dtype), &next->v_again);
        UNROLL
        for (int d = 0; d < dim; d += VEC_VALUES)
          one = multiply_lanes(vec_load(q + d / LANE_VALUES),
                               load_row_lanes(attn_storage_as(k.rows.from, kind.dtype), key, d, VEC_VALUES), one);
        sum[some + j] = one;
        key += k.rows.stride;
        __asm__ volatile("" : "+r"(key)); /* or gcc keeps an address for each of the keys */
      }
    }
    if (at + VEC_LANES == RUN_KEYS) key += k.gap;
    vec_store(score + at, scores_of(vec_sum_each(sum), factor));
  }
}

/* acc += P V for as many keys, as many columns at a time as there are registers for. */
static ALWAYS_INLINE void accumulate_block(const float *p, const block_rows v, const int dim, const few_kind kind,
                                           float *acc, prefetch_lines *next) {
  const int two_lines = 2 * line_elements(kind.dtype);
  const int vecs = dim / VEC_LANES < DECODE_SUMS ? dim / VEC_LANES : DECODE_SUMS, columns = vecs * VEC_LANES;
  const int values = columns * LANE_VALUES; /* values of a lane's keys */
  const int pairs = values > two_lines ? values / two_lines : 1, between = values < two_lines ? two_lines / values : 1;
  UNROLL
  for (int column = 0; column < dim; column += columns) {
    vec sum[DECODE_SUMS];
    UNROLL
    for (int c = 0; c < vecs; c++) sum[c] = vec_load(acc + column + c * VEC_LANES);
    const int64_t whole = columns_before(kind.dtype, column, vecs), rest = column - whole;
    int64_t at[LANE_VALUES];
    UNROLL
    for (int i = 0; i < LANE_VALUES; i++) at[i] = v.rows.first + i * v.rows.stride + whole;
    NO_UNROLL
    for (int j = 0; j < DECODE_KEYS / LANE_VALUES; j++) {
      const vec_factor weight = vec_factor_at(p + j);
      if (j % between == 0) prefetch_ahead(next, kind.policy, kind.paged, pairs, line_step(kind.dtype), &next->k_again);
      UNROLL
      for (int c = 0; c < vecs; c += LANE_VALUES) {
        vec x[LANE_VALUES];
        load_columns(x, attn_storage_as(v.rows.from, kind.dtype), at, rest + c * VEC_LANES, VEC_VALUES);
        UNROLL
        for (int i = 0; i < LANE_VALUES; i++) sum[c + i] = vec_fma_factor(weight, x[i], sum[c + i]);
      }
      UNROLL
      for (int i = 0; i < LANE_VALUES; i++) at[i] += step_over(v, j * LANE_VALUES, LANE_VALUES);
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
  const stream_walk walk = walk_of(stream, runs, key, kind);
  key_rows k = walk.k, v = walk.v;
  prefetch_lines next = walk.next;
  const bool scaled = streams_scale(kind.dtype) && stream->scaled;
  block_scales scales;
  for (; key < end; key += DECODE_KEYS, k.first += DECODE_KEYS * k.stride, v.first += DECODE_KEYS * v.stride) {
    const int64_t run = (key - runs->begin) / RUN_KEYS;
    if (scaled) find_scales(block, key, key, key + DECODE_KEYS, &scales);
    prefetch_beside_scores(&next, kind, walk.k_places, walk.v_places, run);
    score_block(stream->q, rows_of_block(k, &runs->k, run, kind), score_factor(p), dim, kind, block->score, &next);
    if (scaled) scale_whole_row(block->score, scales.k);
    softmax_row(block, 0, key, (attn_key_range){key, key + DECODE_KEYS}, block->score, true);
    if (scaled) scale_whole_row(block->score, scales.v);
    join_weights(block->score, DECODE_KEYS);
    prefetch_beside_sums(&next, kind, walk.k_places, walk.v_places, run);
    accumulate_block(block->score, rows_of_block(v, &runs->v, run, kind), dim, kind, block->acc, &next);
  }
}

/* The functions of one_row.def. */
#define ONE_ROW(name, paged_name, dim, type, policy)                                                     \
  static NO_INLINE void name(row_stream *stream, const key_runs *runs, int64_t key, int64_t end) {       \
    stream_blocks(stream, runs, key, end, dim, (few_kind){1, ATTN_##type, policy, false});               \
  }                                                                                                      \
  static NO_INLINE void paged_name(row_stream *stream, const key_runs *runs, int64_t key, int64_t end) { \
    stream_blocks(stream, runs, key, end, dim, (few_kind){1, ATTN_##type, policy, true});                \
  }
#include "one_row.def"
#undef ONE_ROW

/* NULL for other head dimensions. */
static const stream_functions *one_row_of(const attn_problem *p, prefetch_policy policy) {
  static const stream_functions functions[ATTN_DTYPE_COUNT][2][2] = {
#define ONE_ROW(name, paged_name, dim, type, policy) \
  [ATTN_##type][(dim) / 128][(policy) != PREFETCH_NONE] = STREAM_FUNCTIONS(LANES_TAKE(ATTN_##type), name, paged_name),
#include "one_row.def"
#undef ONE_ROW
  };
  if (p->dim_qk != p->dim_v || (p->dim_qk != 64 && p->dim_qk != 128)) return NULL;
  return &functions[p->dtype_kv][p->dim_qk / 128][policy != PREFETCH_NONE];
}

#endif
