/* SPDX-License-Identifier: MIT */
/* How matmul_onednn cuts a problem into products, and where a task's data lies: what its plan, open and run agree on. */
#ifndef ATTN_ONEDNN_MATMUL_LAYOUT_H
#define ATTN_ONEDNN_MATMUL_LAYOUT_H

#include "kernels/common/problem/convert.h"
#include "kernels/library/score_steps.h"

/* Rows of a product: one of these. Without AVX-512 oneDNN computes float32 rows in groups of six, and the one to three rows
 * that may be left by other code, which adds the terms in another order. It cuts some multiples of 6 (78, 90) so that rows
 * are left all the same. With the sizes here none are left in 2.6, 3.2 and 3.13, and a row gets the same bits in each. */
static const int64_t MATMUL_ROWS[] = {96, 72, 48, 24, 12, 6};

enum {
  /* Keys of a product: no more than oneDNN sums at a time, so that every output is one chain of multiply-adds over the block
   * and zeros beyond the last key change nothing. */
  MATMUL_KEYS = 256,
  MATMUL_SCORE_FLOATS = 96 * 4096, /* floats of one block's scores: longer sequences get fewer rows at a time */
};

typedef struct matmul_layout {
  bool in_place; /* whole blocks of K and V are read where they are: every row sees every key, and the strides suit */
  int64_t rows;  /* rows of a product; those beyond the block's are zero queries */
  int64_t heads; /* query heads of one KV head whose rows share a product: more than one for few queries */
  int64_t row_blocks, head_blocks;
  int64_t keys, key_blocks; /* keys of a product; beyond the sequence's, zeros */
  int64_t first_packed;     /* the first key block that is copied: 0, or a last one that is not whole */
  int64_t score_stride, q_stride, acc_stride;
  size_t element_bytes; /* bytes of an element of q, k, v, and of P in its product with V */

  int64_t k_at, v_at, finite_at, unit_bytes;                               /* packed K and V of a KV head */
  int64_t q_at, acc_at, max_at, sum_at, range_at, score_at, p_at, work_at; /* a thread's scratch; oneDNN's own comes last */
} matmul_layout;

/* No mask, length or window: every row sees every key. */
static inline bool matmul_sees_all(const attn_problem *p) {
  const uint32_t selections =
      ATTN_USE_MASK | ATTN_USE_BIAS | ATTN_USE_KV_LEN | ATTN_USE_Q_LEN | ATTN_USE_ROW_LEN | ATTN_USE_VARLEN;
  const bool whole = p->key_begin == 0 && p->key_end == 0;
  return !attn_uses(p, selections) && p->window_left < 0 && p->window_right < 0 && whole;
}

/* Rows that follow each other without overlap, elements side by side: what oneDNN takes as a matrix. */
static inline bool matmul_is_matrix(const attn_strides *stride, int64_t dim) { return stride->d == 1 && stride->s >= dim; }

static inline bool matmul_in_place(const attn_problem *p) {
  const bool k = p->score == ATTN_SCORE_PRECOMPUTED || matmul_is_matrix(&p->k_stride, p->dim_qk);
  return matmul_sees_all(p) && k && matmul_is_matrix(&p->v_stride, p->dim_v);
}

static inline void matmul_choose_blocks(const attn_problem *p, matmul_layout *m) {
  const int64_t group = attn_group(p), queries = max64(p->seq_q, 1);
  m->keys = min64(MATMUL_KEYS, round_up(max64(p->seq_k, 1), STEPS_KEYS));
  m->key_blocks = ceil_div(p->seq_k, m->keys);
  m->first_packed = m->in_place ? p->seq_k / m->keys : 0;
  m->score_stride = m->key_blocks * m->keys;
  int64_t most = MATMUL_ROWS[0];
  while (most > 24 && most * m->score_stride > MATMUL_SCORE_FLOATS) most /= 2; /* 48 and 24 are among them */
  m->heads = min64(max64(most / queries, 1), group);
  m->rows = most;
  for (size_t i = 0; i < sizeof MATMUL_ROWS / sizeof *MATMUL_ROWS; i++)
    if (MATMUL_ROWS[i] <= most && MATMUL_ROWS[i] >= m->heads * queries) m->rows = MATMUL_ROWS[i];
  m->row_blocks = ceil_div(queries, m->rows);
  m->head_blocks = ceil_div(group, m->heads);
}

/* False if a size overflows. */
static inline bool matmul_layout_of(const attn_problem *p, matmul_layout *m) {
  *m = (matmul_layout){.in_place = matmul_in_place(p),
                       .element_bytes = (size_t)attn_elements_bytes(p->dtype_kv, 1),
                       .q_stride = p->dim_qk,
                       .acc_stride = round_up(p->dim_v, STEPS_LANES)};
  matmul_choose_blocks(p, m);
  const bool scores_given = p->score == ATTN_SCORE_PRECOMPUTED, narrows = p->dtype_kv != ATTN_F32;
  const int64_t keys = (m->key_blocks - m->first_packed) * m->keys, element = (int64_t)m->element_bytes;
  const memory_part unit[] = {{&m->k_at, scores_given ? 0 : keys, p->dim_qk * element},
                              {&m->v_at, keys, p->dim_v * element},
                              {&m->finite_at, keys, sizeof(uint8_t)}};
  const memory_part scratch[] = {{&m->q_at, m->rows, p->dim_qk * element},
                                 {&m->acc_at, m->rows, float_bytes(m->acc_stride)},
                                 {&m->max_at, m->rows, float_bytes(1)},
                                 {&m->sum_at, m->rows, float_bytes(STEPS_LANES)},
                                 {&m->range_at, m->rows, sizeof(attn_key_range)},
                                 {&m->score_at, m->rows, float_bytes(m->score_stride)},
                                 {&m->p_at, narrows ? m->rows : 0, m->keys * element}};
  return LAY_OUT(unit, &m->unit_bytes) && LAY_OUT(scratch, &m->work_at);
}

#endif
