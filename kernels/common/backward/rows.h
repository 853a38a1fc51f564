/* SPDX-License-Identifier: MIT */
/* flash_backward: a task, and how gradients get out.
 *
 * Parameters: those of tiles.h. */
#ifndef ATTN_COMMON_BACKWARD_ROWS_H
#define ATTN_COMMON_BACKWARD_ROWS_H

#include "kernels/common/memory/lanes.h"
#include "kernels/common/problem/exact_row.h"
#include "layout.h"

/* Everything of one task. */
typedef struct backward_task {
  const attn_problem *p;
  const attn_args *args;
  const backward_layout *at;
  unit_keys unit;
  void *memory, *scratch;
} backward_task;

static backward_task task_of(const attn_schedule *schedule, const attn_args *args, attn_task task, void *memory,
                             void *scratch) {
  backward_task t = {.p = &schedule->problem,
                     .args = args,
                     .at = backward_layout_in(schedule),
                     .unit = keys_of_unit(&schedule->problem, args, task.unit),
                     .memory = memory,
                     .scratch = scratch};
  return t;
}

/* Rows of q and of d_o of query head h from `row` on. */
static row_source q_rows(const backward_task *t, int64_t h, int64_t row) {
  const attn_problem *p = t->p;
  return (row_source){.from = attn_q_storage(p, t->args),
                      .offset = attn_row_offset(p, &p->q_stride, t->unit.b, h, t->unit.seq.first_q + row),
                      .row_stride = p->q_stride.s,
                      .column_stride = p->q_stride.d,
                      .columns = p->dim_qk};
}

static row_source d_o_rows(const backward_task *t, int64_t h, int64_t row) {
  const attn_problem *p = t->p;
  return (row_source){.from = {t->args->d_o, p->dtype_o},
                      .offset = attn_row_offset(p, &p->d_o_stride, t->unit.b, h, t->unit.seq.first_q + row),
                      .row_stride = p->d_o_stride.s,
                      .column_stride = p->d_o_stride.d,
                      .columns = p->dim_v};
}

/* A gradient: where its rows go, and how they are rounded. */
typedef struct gradient_rows {
  const attn_problem *p;
  void *data; /* NULL: not wanted */
  attn_dtype dtype;
  int64_t at, row_stride, column_stride; /* the first row, and steps, in elements */
  int64_t columns, row_floats;           /* row_floats: a row of sums, in whole vectors */
  float factor;
} gradient_rows;

static float factor_of(const attn_problem *p) { return p->score == ATTN_SCORE_DOT ? p->scale : 1.0f; }

/* Gradients of the keys from `key` on. */
static gradient_rows d_k_rows(const backward_task *t, int64_t key) {
  const attn_problem *p = t->p;
  const int64_t head = attn_kv_head(p, t->unit.head), token = t->unit.seq.first_k + key;
  return (gradient_rows){.p = p,
                         .data = t->args->d_k,
                         .dtype = p->dtype_kv,
                         .at = attn_row_offset(p, &p->d_k_stride, t->unit.b, head, token),
                         .row_stride = p->d_k_stride.s,
                         .column_stride = p->d_k_stride.d,
                         .columns = k_dimensions(p),
                         .row_floats = t->at->qk_floats,
                         .factor = factor_of(p)};
}

static gradient_rows d_v_rows(const backward_task *t, int64_t key) {
  const attn_problem *p = t->p;
  const int64_t head = attn_kv_head(p, t->unit.head), token = t->unit.seq.first_k + key;
  return (gradient_rows){.p = p,
                         .data = t->args->d_v,
                         .dtype = p->dtype_kv,
                         .at = attn_row_offset(p, &p->d_v_stride, t->unit.b, head, token),
                         .row_stride = p->d_v_stride.s,
                         .column_stride = p->d_v_stride.d,
                         .columns = p->dim_v,
                         .row_floats = t->at->v_floats,
                         .factor = 1.0f};
}

/* The gradient of the queries of a head from `row` on. */
static gradient_rows d_q_rows(const backward_task *t, int64_t head, int64_t row) {
  const attn_problem *p = t->p;
  return (gradient_rows){.p = p,
                         .data = t->args->d_q,
                         .dtype = p->dtype_q,
                         .at = attn_row_offset(p, &p->d_q_stride, t->unit.b, t->unit.head + head, t->unit.seq.first_q + row),
                         .row_stride = p->d_q_stride.s,
                         .column_stride = p->d_q_stride.d,
                         .columns = k_dimensions(p),
                         .row_floats = t->at->qk_floats,
                         .factor = factor_of(p)};
}

/* Whether factor * row is. */
static bool is_finite(const gradient_rows *to, const float *row) {
  vec poison = vec_zero(); /* 0 * x is NaN for NaN and infinity */
  for (int64_t d = 0; d < to->row_floats; d += VEC_LANES)
    poison = vec_fma(vec_mul(vec_load(row + d), vec_set1(to->factor)), vec_zero(), poison);
  return !vec_any_nan(poison);
}

/* The first n lanes of x, from element `at` on. */
static ALWAYS_INLINE void store_first_lanes(const gradient_rows *to, int64_t at, vec x, int64_t n, const attn_dtype dtype) {
  float padded[VEC_LANES];
  if (dtype == ATTN_F32) {
    vec_store_first((float *)to->data + at, x, n);
    return;
  }
  store_lanes(padded, 0, dtype, x);
  memcpy((uint16_t *)to->data + at, padded, (size_t)n * sizeof(uint16_t));
}

/* Stores factor * row for rows whose elements lie side by side. False if some row is not finite. */
static ALWAYS_INLINE bool store_dense_rows(const gradient_rows *to, const float *rows, int64_t count,
                                           const attn_dtype dtype) {
  const vec factor = vec_set1(to->factor);
  const int64_t columns = to->columns, whole = round_down(columns, VEC_LANES);
  vec poison = vec_zero();
  for (int64_t i = 0; i < count; i++, rows += to->row_floats) {
    const int64_t at = to->at + i * to->row_stride;
    vec of_row = vec_zero();
    UNROLL_4
    for (int64_t d = 0; d < whole; d += VEC_LANES) {
      const vec x = vec_mul(vec_load(rows + d), factor);
      store_lanes(to->data, at + d, dtype, x);
      of_row = vec_fma(x, vec_zero(), of_row);
    }
    if (whole < columns) {
      const vec x = vec_mul(vec_load(rows + whole), factor);
      store_first_lanes(to, at + whole, x, columns - whole, dtype);
      of_row = vec_fma(x, vec_zero(), of_row);
    }
    poison = vec_add(poison, of_row);
  }
  return !vec_any_nan(poison);
}

static bool store_all_rows(const gradient_rows *to, const float *rows, int64_t count) {
  switch (to->dtype) { /* a copy of the code for each type */
#define DTYPE(constant, ...) \
  case ATTN_##constant:      \
    return store_dense_rows(to, rows, count, ATTN_##constant);
#include "kernels/common/problem/floats.def"
#undef DTYPE
    default: assert(false);
  }
  return false;
}

/* Stores factor * row, or adds it to what is there, where the row is finite. */
static bool store_any_rows(const gradient_rows *to, const float *rows, int64_t count) {
  bool finite = true;
  for (int64_t i = 0; i < count; i++) {
    const float *row = rows + i * to->row_floats;
    if (is_finite(to, row))
      for (int64_t d = 0; d < to->columns; d++)
        attn_put_gradient(to->p, to->data, to->dtype, to->at + i * to->row_stride + d * to->column_stride,
                          (double)(to->factor * row[d]));
    else
      finite = false;
  }
  return finite;
}

/* False if some row is not finite: the caller computes it otherwise. Nothing has been added to its gradient. */
static bool store_rows(const gradient_rows *to, const float *rows, int64_t count) {
  if (!to->data || to->columns == 0) return true;
  const bool dense = to->column_stride == 1 && !attn_uses(to->p, ATTN_USE_ACCUMULATE);
  return (dense ? store_all_rows : store_any_rows)(to, rows, count);
}

static void finish_keys(const backward_task *t, int64_t key, int64_t keys, float *d_k, float *d_v) {
  const gradient_rows to_k = d_k_rows(t, key), to_v = d_v_rows(t, key);
  const int64_t head = attn_kv_head(t->p, t->unit.head);
  const bool finite_k = store_rows(&to_k, d_k, keys), finite_v = store_rows(&to_v, d_v, keys);
  const bool finite = finite_k && finite_v;
  for (int64_t j = 0; !finite && j < keys; j++) {
    if (!is_finite(&to_k, d_k + j * to_k.row_floats))
      attn_exact_key_gradient(t->p, t->args, t->unit.b, head, key + j, false);
    if (!is_finite(&to_v, d_v + j * to_v.row_floats)) attn_exact_key_gradient(t->p, t->args, t->unit.b, head, key + j, true);
  }
}

/* Keys beyond the sequence's get zeros. */
static void finish_padding(const backward_task *t) {
  const int64_t end = attn_uses(t->p, ATTN_USE_VARLEN) ? 0 : t->p->seq_k;
  float *zeros = floats_at(t->scratch, t->at->d_k);
  memset(zeros, 0, (size_t)max64(t->at->qk_floats, t->at->v_floats) * sizeof *zeros);
  for (int64_t j = t->unit.seq.len_k; j < end; j++) finish_keys(t, j, 1, zeros, zeros);
}

/* dQ of rows [first, end) of a query head from their sums. Rows from `full` on, beyond the sequence's queries or without
 * keys, are zeros. `zeros`: room for a row. */
static void finish_query_rows(const backward_task *t, int64_t head, int64_t first, int64_t full, int64_t end,
                              const float *rows, float *zeros) {
  const gradient_rows all = d_q_rows(t, head, 0);
  gradient_rows to = all;
  if (first < full) {
    to.at = all.at + first * to.row_stride;
    const bool finite = store_rows(&to, rows, full - first);
    for (int64_t i = first; !finite && i < full; i++)
      if (!is_finite(&to, rows + (i - first) * to.row_floats))
        attn_exact_query_gradient(t->p, t->args, t->unit.b, t->unit.head + head, i);
  }
  memset(zeros, 0, (size_t)to.row_floats * sizeof *zeros);
  for (int64_t i = max64(first, full); i < end; i++) {
    to.at = all.at + i * to.row_stride;
    store_rows(&to, zeros, 1);
  }
}

#endif
