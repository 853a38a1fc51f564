/* The register tile: the one product that everything is made of. TILE_ROWS x TILE_VECS vectors of sums, one row of the streamed
 * operand times one broadcast element per row. Attention multiplies Q with K and P with V by it (tiles.h), and projections X with
 * W (product_panel.h).
 *
 * Include vec_<isa>.h first. */
#ifndef ATTN_COMMON_REGISTER_TILE_H
#define ATTN_COMMON_REGISTER_TILE_H

#include <stdint.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define NO_INLINE     __attribute__((noinline, unused))
#ifdef __clang__
#define UNROLL   _Pragma("clang loop unroll(full)")
#define UNROLL_4 _Pragma("clang loop unroll_count(4)")
#else
#define UNROLL   _Pragma("GCC unroll 16")
#define UNROLL_4 _Pragma("GCC unroll 4")
#endif

/* sum[i][v] += sum_k a[i][k] b[k][v]: TILE_ROWS rows of a against `depth` rows of `vecs` vectors. `vecs` is a constant at
 * every call, so that the sums live in registers. */
static ALWAYS_INLINE void product(vec sum[TILE_ROWS][TILE_VECS], const float *a, int64_t a_stride, const float *b,
                                  int64_t b_stride, int64_t depth, const int vecs) {
  UNROLL_4
  for (int64_t k = 0; k < depth; k++) {
    vec row[TILE_VECS];
    UNROLL
    for (int v = 0; v < vecs; v++) row[v] = vec_load(b + k * b_stride + v * VEC_LANES);
    UNROLL
    for (int i = 0; i < TILE_ROWS; i++) {
      vec x = vec_set1(a[i * a_stride + k]);
      UNROLL
      for (int v = 0; v < vecs; v++) sum[i][v] = vec_fma(x, row[v], sum[i][v]);
    }
  }
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
