/* SPDX-License-Identifier: MIT */
/* flash_backward: terms of queries, -lse in log2 units and -delta.
 *
 * Parameters: those of tiles.h. */
#ifndef ATTN_COMMON_BACKWARD_TERMS_H
#define ATTN_COMMON_BACKWARD_TERMS_H

#include "kernels/common/memory/lanes.h"
#include "layout.h"

/* A row of o or d_o as floats that lie side by side, in place or in `copy`. */
static inline const float *row_floats_of(attn_storage from, int64_t offset, int64_t step, int64_t columns, float *copy,
                                         int64_t copy_floats) {
  if (from.dtype == ATTN_F32 && step == 1 && columns % VEC_LANES == 0) return (const float *)from.data + offset;
  const row_source row = {.from = from, .offset = offset, .column_stride = step, .columns = columns};
  copy_row(&row, 0, copy, copy_floats);
  return copy;
}

static float product_of_rows(const float *a, const float *b, int64_t floats) {
  vec sum = vec_zero();
  for (int64_t d = 0; d < floats; d += VEC_LANES) sum = vec_fma(vec_load(a + d), vec_load(b + d), sum);
  return vec_reduce_add(sum);
}

/* One query head whose terms are made. */
typedef struct head_terms {
  const attn_problem *p;
  const attn_args *args;
  attn_sequence seq;
  int64_t h;
  float *minus_lse, *minus_delta; /* [len_q] */
  float *copies[2];               /* room for a row of o and of d_o */
} head_terms;

/* Where row i of o or d_o begins. */
static int64_t value_row_at(const head_terms *t, const attn_strides *stride, int64_t i) {
  return attn_row_offset(t->p, stride, t->seq.b, t->h, t->seq.first_q + i);
}

/* Row i, whatever its types and options. */
static void row_terms_of(const head_terms *t, int64_t i) {
  const attn_problem *p = t->p;
  const float lse = t->args->lse[value_row_at(t, &p->lse_stride, i)];
  const int64_t floats = round_up(p->dim_v, VEC_LANES);
  t->minus_lse[i] = -INFINITY;
  t->minus_delta[i] = 0.0f;
  if (lse == -INFINITY) return;
  const float *o = row_floats_of((attn_storage){t->args->o, p->dtype_o}, value_row_at(t, &p->o_stride, i), p->o_stride.d,
                                 p->dim_v, t->copies[0], floats);
  const float *d_o = row_floats_of((attn_storage){t->args->d_o, p->dtype_o}, value_row_at(t, &p->d_o_stride, i),
                                   p->d_o_stride.d, p->dim_v, t->copies[1], floats);
  const double own = attn_uses(p, ATTN_USE_SINKS) ? lse + log1p(exp((double)t->args->sinks[t->h] - lse)) : lse;
  t->minus_lse[i] = -(float)((double)LOG2_E * own);
  t->minus_delta[i] = -product_of_rows(o, d_o, floats);
  if (attn_uses(p, ATTN_USE_D_LSE))
    t->minus_delta[i] += t->args->d_lse[value_row_at(t, &p->d_lse_stride, i)] * (float)exp(own - (double)lse);
}

/* VEC_LANES rows from i on whose o and d_o can be read in place, without sinks and gradients of lse. */
static ALWAYS_INLINE void terms_of_lanes(const head_terms *t, int64_t i, const attn_dtype dtype) {
  const attn_problem *p = t->p;
  const int64_t o = value_row_at(t, &p->o_stride, i), d_o = value_row_at(t, &p->d_o_stride, i);
  const vec lse = vec_load(t->args->lse + value_row_at(t, &p->lse_stride, i));
  vec sum[VEC_LANES];
  UNROLL
  for (int n = 0; n < VEC_LANES; n++) {
    sum[n] = vec_zero();
    for (int64_t d = 0; d < p->dim_v; d += VEC_LANES)
      sum[n] = vec_fma(load_lanes(t->args->o, o + n * p->o_stride.s + d, dtype),
                       load_lanes(t->args->d_o, d_o + n * p->d_o_stride.s + d, dtype), sum[n]);
  }
  vec_store(t->minus_lse + i, vec_unless_masked(vec_mul(lse, vec_set1(-LOG2_E)), lse));
  vec_store(t->minus_delta + i, vec_sub(vec_zero(), vec_sum_each(sum)));
  for (int n = 0; n < VEC_LANES; n++)
    if (t->minus_lse[i + n] == -INFINITY) t->minus_delta[i + n] = 0.0f; /* its o and d_o may hold anything */
}

/* Whole vectors of the rows [begin, end). Returns the first row that is left. */
static int64_t terms_in_lanes(const head_terms *t, int64_t begin, int64_t end) {
  for (; begin + VEC_LANES <= end; begin += VEC_LANES) switch (t->p->dtype_o) { /* a copy of the code for each type */
#define DTYPE(constant, ...)                   \
  case ATTN_##constant:                        \
    terms_of_lanes(t, begin, ATTN_##constant); \
    break;
#include "kernels/common/problem/floats.def"
#undef DTYPE
      default: assert(false);
    }
  return begin;
}

/* Rows [begin, end) of a query head. Rows without keys get -lse = -inf: their P is 0. */
static void find_terms(const head_terms *t, int64_t begin, int64_t end) {
  const attn_problem *p = t->p;
  const bool quick = !attn_uses(p, ATTN_USE_SINKS | ATTN_USE_D_LSE) && p->dim_v % VEC_LANES == 0 && p->o_stride.d == 1 &&
                     p->d_o_stride.d == 1 && p->lse_stride.s == 1;
  for (int64_t i = quick ? terms_in_lanes(t, begin, end) : begin; i < end; i++) row_terms_of(t, i);
}

/* Tiles of rows may end behind the last. */
static void end_terms(const head_terms *t, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i++) t->minus_lse[i] = -INFINITY, t->minus_delta[i] = 0.0f;
}

/* Tasks of a KV head that find terms. */
static int64_t term_tasks(const attn_problem *p) { return attn_group(p) * max64(1, ceil_div(p->seq_q, TASK_ROWS)); }

/* Task `item`: TASK_ROWS rows of a head; the last one also ends the terms. */
static void query_terms(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit, void *scratch) {
  const attn_problem *p = &schedule->problem;
  const backward_layout *at = backward_layout_in(schedule);
  const int64_t b = attn_batch_of_unit(p, task.unit), group = attn_group(p), head = task.item % group;
  const int64_t first = task.item / group * TASK_ROWS, next = first + TASK_ROWS;
  const head_terms t = {.p = p,
                        .args = args,
                        .seq = attn_sequence_of(p, args, b),
                        .h = attn_head_of_unit(p, task.unit) + head,
                        .minus_lse = floats_at(unit, at->minus_lse) + head * at->rows,
                        .minus_delta = floats_at(unit, at->minus_delta) + head * at->rows,
                        .copies = {floats_at(scratch, at->d_o), floats_at(scratch, at->d_o) + at->v_floats}};
  find_terms(&t, first, min64(next, t.seq.len_q));
  end_terms(&t, max64(first, t.seq.len_q), next < p->seq_q ? next : at->rows);
}

#endif
