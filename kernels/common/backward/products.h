/* SPDX-License-Identifier: MIT */
/* flash_backward: what a step adds to dV, dK and dQ.
 *
 * Parameters: those of tiles.h. */
#ifndef ATTN_COMMON_BACKWARD_PRODUCTS_H
#define ATTN_COMMON_BACKWARD_PRODUCTS_H

#include "step.h"

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

/* Row `row` of an operand that is read down its rows, where an element holds it. */
static float_rows rows_from(const float_rows *rows, int64_t row) {
  return (float_rows){rows->at + row / OPERAND_VALUES * rows->stride, rows->stride};
}

/* acc[column] += rows^T weights, as acc^T += weights^T rows: a tile of columns against one of keys. */
static void add_turned(const float_rows of_key, const float_rows rows, float *acc, int64_t columns, int64_t depth,
                       bool fresh) {
  for (int64_t c = 0; c < columns; c += TILE_ROWS)
    add_query_columns(acc + c * BACKWARD_KEYS, BACKWARD_KEYS, (float_rows){rows.at + c * rows.stride, rows.stride}, of_key,
                      depth, fresh, ceil_div(TILE_ROWS, VEC_LANES));
}

/* acc[key] += weights^T rows for all keys of the block: dV from P and dO, dK from dS and Q. */
static void key_gradient(const backward_step *s, const float_rows *weights, const float_rows *rows, float *acc,
                         int64_t acc_stride, bool fresh) {
  for (int64_t key = 0; key < s->keys; key += TILE_ROWS) {
    const attn_key_range tiles = s->row_tiles[key / TILE_ROWS];
    const int64_t row = tiles.begin * TILE_ROWS, end = min64(tiles.end * TILE_ROWS, s->block.rows);
    if (row >= end && !fresh) continue;
    const int64_t depth = elements_of(max64(end - row, 0));
    float_rows of_key = rows_from(weights, row);
    of_key.at += key;
    if (SUMS_ARE_TURNED)
      add_turned(of_key, (float_rows){rows->at + row / 2, rows->stride}, acc + key, acc_stride, depth, fresh);
    else
      add_tile(acc + key * acc_stride, acc_stride, of_key, true, rows_from(rows, row), depth, fresh);
  }
}

/* dQ += dS K. */
static void query_gradient(const backward_step *s, float *d_q, int64_t d_q_stride, bool fresh) {
  for (int64_t row = 0; row < s->block.rows; row += TILE_ROWS) {
    const attn_key_range seen = s->seen[row / TILE_ROWS];
    const int64_t begin = round_down(seen.begin, OPERAND_STEP), end = min64(seen.end, s->keys);
    if (begin >= end && !fresh) continue;
    const float_rows d_s = {s->d_s_along.at + row * s->d_s_along.stride + begin / OPERAND_VALUES, s->d_s_along.stride};
    add_tile(d_q + row * d_q_stride, d_q_stride, d_s, false, rows_from(&s->k, begin), elements_of(max64(end - begin, 0)),
             fresh);
  }
}

/* Sums of a block's keys, [key][column], which are put there if they are turned. */
static float *sums_by_key(float *sums, int64_t floats, float *turned) {
  for (int64_t key = 0; SUMS_ARE_TURNED && key < BACKWARD_KEYS; key += VEC_LANES)
    for (int64_t c = 0; c < floats; c += VEC_LANES) {
      vec r[VEC_LANES];
      for (int64_t i = 0; i < VEC_LANES; i++) r[i] = vec_load(sums + (c + i) * BACKWARD_KEYS + key);
      vec_transpose(r);
      for (int64_t i = 0; i < VEC_LANES; i++) vec_store(turned + (key + i) * floats + c, r[i]);
    }
  return SUMS_ARE_TURNED ? turned : sums;
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
      const vec q = vec_load(s->q.down.at + i * s->q.down.stride + d);
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

#endif
