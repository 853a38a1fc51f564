/* SPDX-License-Identifier: MIT */
/* The register tile: the product that everything is made of. It keeps TILE_ROWS x TILE_VECS vectors of sums in registers and
 * multiplies one row of the streamed operand by one broadcast element per row. Attention multiplies Q with K and P with V by
 * it (tiles.h), and dense layers X with W (product_panel.h).
 *
 * Parameters, all from vec_<isa>.h, which a file includes first:
 *   vec and the vec_ functions  the tier's vector vocabulary; every vec_<isa>.h has the same names
 *   VEC_LANES      floats of a vector, a compile-time constant; tested: 4, 8, 16
 *   TILE_ROWS      rows of a tile; tested: 3, 4, 6, 8
 *   TILE_VECS      vectors of a row of a tile, at most 4 (WITH_CONSTANT_VECS); tested: 2, 3, 4
 *   PRODUCT_STEPS  optional: the tier multiplies this many steps of k at once by a product_steps() of its own;
 *                  tested: 4 (neon), 1 (portable)
 *   PRODUCT_WHOLE  optional: a product_whole() of the tier does whole products, of rows that are not transposed, whose depth
 *                  is a multiple of it; tested: 16 (amx) */
#ifndef ATTN_COMMON_REGISTER_TILE_H
#define ATTN_COMMON_REGISTER_TILE_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/common/problem/unroll.h"

/* Rows of floats, `stride` apart. */
typedef struct float_rows {
  const float *at;
  int64_t stride;
} float_rows;

/* sum[i][v] += sum_k a[i][k] b[k][v]: TILE_ROWS rows of a, or of a transposed, against `depth` rows of `vecs` vectors.
 * `transposed` and `vecs` are constants at every call, so that the sums live in registers. A tier may bring PRODUCT_STEPS
 * steps of k of its own for rows that are not transposed; then the loop here does the few that are left. */
static ALWAYS_INLINE void product_of(vec sum[TILE_ROWS][TILE_VECS], const float_rows a, const bool transposed,
                                     const float_rows b, int64_t depth, const int vecs) {
  int64_t k = 0;
  assert(depth >= 0 && vecs >= 1 && vecs <= TILE_VECS);
#ifdef PRODUCT_WHOLE
  assert(!transposed && depth % PRODUCT_WHOLE == 0);
  product_whole(sum, a.at, a.stride, b.at, b.stride, depth, vecs);
  k = depth;
#endif
#ifdef PRODUCT_STEPS
  for (; !transposed && k + PRODUCT_STEPS <= depth; k += PRODUCT_STEPS)
    product_steps(sum, a.at + k, a.stride, b.at + k * b.stride, b.stride, vecs);
  NO_UNROLL
#else
  UNROLL_4
#endif
  for (; k < depth; k++) {
    vec row[TILE_VECS];
    UNROLL
    for (int v = 0; v < vecs; v++) row[v] = vec_load(b.at + k * b.stride + v * VEC_LANES);
    UNROLL
    for (int i = 0; i < TILE_ROWS; i++) {
      const vec_factor x = vec_factor_at(transposed ? a.at + k * a.stride + i : a.at + i * a.stride + k);
      UNROLL
      for (int v = 0; v < vecs; v++) sum[i][v] = vec_fma_factor(x, row[v], sum[i][v]);
    }
  }
}

static ALWAYS_INLINE void product(vec sum[TILE_ROWS][TILE_VECS], const float_rows a, const float_rows b, int64_t depth,
                                  const int vecs) {
  product_of(sum, a, false, b, depth, vecs);
}

/* sum[i][v] += sum_k a[k][i] b[k][v] */
static ALWAYS_INLINE void product_transposed(vec sum[TILE_ROWS][TILE_VECS], const float_rows a, const float_rows b,
                                             int64_t depth, const int vecs) {
  product_of(sum, a, true, b, depth, vecs);
}

static ALWAYS_INLINE void store_tile(vec sum[TILE_ROWS][TILE_VECS], float *rows, int64_t row_stride, const int vecs) {
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    UNROLL
    for (int v = 0; v < vecs; v++) vec_store(rows + i * row_stride + v * VEC_LANES, sum[i][v]);
  }
}

/* Calls f(..., n) with n a constant in 1..TILE_VECS. */
#define WITH_CONSTANT_VECS(n, f, ...)                             \
  switch (n) {                                                    \
    case 1: f(__VA_ARGS__, 1); break;                             \
    case 2: f(__VA_ARGS__, TILE_VECS < 2 ? TILE_VECS : 2); break; \
    case 3: f(__VA_ARGS__, TILE_VECS < 3 ? TILE_VECS : 3); break; \
    default: f(__VA_ARGS__, TILE_VECS); break;                    \
  }

#endif
