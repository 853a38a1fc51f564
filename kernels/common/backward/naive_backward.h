/* SPDX-License-Identifier: MIT */
/* naive_backward: the textbook's gradients, the unfused baseline: P and dS of a head, whole matrices, lie in memory.
 *
 * Parameters: those of tiles.h. */
#ifndef ATTN_COMMON_NAIVE_BACKWARD_H
#define ATTN_COMMON_NAIVE_BACKWARD_H

#include "kernels/common/problem/terms.h"
#include "unfused_backward.h"

enum {
  NAIVE_DEPTH = 256, /* rows of b that tiles of a go through before the next: they stay in a cache */
  PANEL_DEPTH = 64   /* rows of a panel of b transposed: 16 KB */
};

/* A tile of c, which gets rows up to TILE_ROWS and columns up to whole vectors, from as many of a and b. */
static ALWAYS_INLINE void multiply_tile(float *c, int64_t c_stride, const float_rows a, const bool transposed,
                                        const float_rows b, int64_t depth, bool adds, const int vecs) {
  vec sum[TILE_ROWS][TILE_VECS];
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    UNROLL
    for (int v = 0; v < vecs; v++) sum[i][v] = adds ? vec_load(c + i * c_stride + v * VEC_LANES) : vec_zero();
  }
  product_of(sum, a, transposed, b, depth, vecs);
  store_tile(sum, c, c_stride, vecs);
}

static NO_INLINE void multiply_rows_of_a(float *c, int64_t c_stride, float_rows a, float_rows b, int64_t depth, bool adds,
                                         int64_t vecs) {
  WITH_CONSTANT_VECS(vecs, multiply_tile, c, c_stride, a, false, b, depth, adds)
}

static NO_INLINE void multiply_columns_of_a(float *c, int64_t c_stride, float_rows a, float_rows b, int64_t depth, bool adds,
                                            int64_t vecs) {
  WITH_CONSTANT_VECS(vecs, multiply_tile, c, c_stride, a, true, b, depth, adds)
}

/* All rows of c, against `vecs` vectors of columns of b. */
static void multiply_strip(const library_product *m, float *c, float_rows b, int64_t k, int64_t depth, int64_t vecs) {
  for (int64_t i = 0; i < m->rows; i += TILE_ROWS) {
    const float_rows a = {m->a_transposed ? m->a + k * m->a_stride + i : m->a + i * m->a_stride + k, m->a_stride};
    (m->a_transposed ? multiply_columns_of_a : multiply_rows_of_a)(c + i * m->c_stride, m->c_stride, a, b, depth,
                                                                   m->accumulate || k > 0, vecs);
  }
}

/* b transposed, in panels of PANEL_KEYS columns and PANEL_DEPTH rows. */
static void multiply_transposed(const library_product *m) {
  float panel[PANEL_DEPTH * PANEL_KEYS];
  for (int64_t k = 0; k < m->depth; k += PANEL_DEPTH) {
    const attn_problem as_k = {.k_stride = {.s = m->b_stride, .d = 1}, .dim_qk = min64(PANEL_DEPTH, m->depth - k)};
    for (int64_t j = 0; j < m->columns; j += PANEL_KEYS) {
      const int64_t columns = min64(PANEL_KEYS, m->columns - j);
      for (int64_t key = 0; key < columns; key += VEC_LANES)
        pack_lanes(&as_k, (attn_storage){m->b, ATTN_F32}, (j + key) * m->b_stride + k, min64(columns - key, VEC_LANES),
                   panel + key);
      multiply_strip(m, m->c + j, (float_rows){panel, PANEL_KEYS}, k, as_k.dim_qk, ceil_div(columns, VEC_LANES));
    }
  }
}

static void multiply_by_tiles(const library_product *m) {
  if (m->b_transposed) {
    multiply_transposed(m);
    return;
  }
  for (int64_t k = 0; k < m->depth; k += NAIVE_DEPTH) {
    column_strips strips = strips_of(m->columns);
    for (int64_t vecs, at = 0; (vecs = next_strip(&strips)) > 0; at += vecs * VEC_LANES)
      multiply_strip(m, m->c + at, (float_rows){m->b + k * m->b_stride + at, m->b_stride}, k,
                     min64(NAIVE_DEPTH, m->depth - k), vecs);
  }
}

static inline bool naive_backward_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  (void)machine;
  return unfused_plan(p, max64(p->seq_q, 1), schedule);
}

static inline void naive_backward_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *memory,
                                      void *scratch) {
  unfused_run(schedule, args, task, memory, scratch, multiply_by_tiles);
}

static inline void naive_backward_terms_of(const attn_problem *p, double *terms) {
  const backward_walk walk = {.lanes = VEC_LANES,
                              .tile_rows = TILE_ROWS,
                              .panel_keys = PANEL_KEYS,
                              .rows = max64(p->seq_q, 1),
                              .keys = max64(p->seq_k, 1),
                              .ranges = 1};
  attn_backward_terms(p, &walk, terms);
}

#define NAIVE_BACKWARD_TERMS \
  { BACKWARD_TERM_COUNT, attn_backward_term_names, naive_backward_terms_of }

#endif
