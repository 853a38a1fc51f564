/* SPDX-License-Identifier: MIT */
/* Running a view, and comparing its answer with the whole case's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/error_limits.h"
#include "check/reference.h"
#include "check/structure_private.h"

int64_t bench_structure_pick(const bench_structure *s, int use, int64_t count) {
  return bench_value_below(s->seed, BENCH_STREAM_STRUCTURE, (uint64_t)use, count);
}

bench_outcome bench_structure_cannot_run(bench_structure *s, const char *why) {
  snprintf(s->reason, sizeof s->reason, "%s", why);
  return BENCH_CANNOT_RUN;
}

/* ---- Running --------------------------------------------------------------------------------------------------------- */

enum { POISON = 0xff };

static void *allocate_poisoned(bench_view *v, int64_t count, size_t bytes) {
  void *memory = bench_view_allocate(v, count, bytes);
  return memory ? memset(memory, POISON, (size_t)count * bytes) : NULL;
}

static bool allocate_outputs(bench_view *v) {
  attn_problem *p = &v->problem;
  const int64_t rows = p->heads_q * p->seq_q;
  p->o_stride = (attn_strides){rows * p->dim_v, p->seq_q * p->dim_v, p->dim_v, 1};
  p->lse_stride = (attn_strides){rows, p->seq_q, 1, 1};
  v->args.o = allocate_poisoned(v, rows * p->dim_v, attn_dtype_bytes(p->dtype_o));
  v->args.lse = allocate_poisoned(v, rows, sizeof(float));
  return !v->out_of_memory;
}

attn_status bench_structure_run(const bench_structure *s, const attn_problem *problem, const attn_args *args,
                                const attn_options *options) {
  attn_plan *plan = NULL;
  const attn_args used = bench_used_args(problem, args);
  attn_status status = s->subject->create_plan(s->subject->context, problem, options, &plan);
  if (status == ATTN_OK) status = bench_run_once(plan, &used);
  attn_plan_destroy(plan);
  return status;
}

bench_outcome bench_view_run(bench_structure *s, bench_view *v) {
  if (v->out_of_memory || !allocate_outputs(v)) return bench_structure_cannot_run(s, "out of memory");
  v->args.offsets = &v->offset;
  const attn_status status = bench_structure_run(s, &v->problem, &v->args, &(attn_options){.threads = 1});
  if (status == ATTN_OK) return BENCH_HOLDS;
  if (status == ATTN_UNSUPPORTED) return BENCH_NOT_APPLICABLE;
  return bench_structure_cannot_run(s, status == ATTN_OUT_OF_MEMORY ? "out of memory" : attn_last_error());
}

bench_outcome bench_view_check(bench_structure *s, bench_view *view, bench_likeness likeness, const char *what) {
  bench_outcome outcome = bench_view_run(s, view);
  if (outcome == BENCH_HOLDS) outcome = bench_view_compare(s, view, likeness, what);
  bench_view_clear(view);
  return outcome;
}

/* ---- Values ---------------------------------------------------------------------------------------------------------- */

/* One output of the case: its head and row there, and its column; -1 is the LSE. */
typedef struct output_place {
  int64_t h, i, d;
} output_place;

static const void *view_element(const bench_view *v, output_place at) {
  const int64_t row = (at.h - v->head) * v->problem.seq_q + at.i - v->row;
  if (at.d < 0) return &v->args.lse[row];
  return (const char *)v->args.o + (row * v->problem.dim_v + at.d) * (int64_t)attn_dtype_bytes(v->problem.dtype_o);
}

static const void *case_element(const bench_structure *s, output_place at) {
  const attn_problem *whole = &s->tensors->problem;
  const attn_args *args = &s->tensors->args;
  if (at.d < 0) return &args->lse[attn_lse_offset(whole, &s->seq, s->seq.b, at.h, at.i)];
  const int64_t element = attn_o_offset(whole, &s->seq, s->seq.b, at.h, at.i) + at.d * whole->o_stride.d;
  return (const char *)args->o + element * (int64_t)attn_dtype_bytes(whole->dtype_o);
}

static double view_value(const bench_view *v, output_place at) {
  return attn_oracle_load(view_element(v, at), at.d < 0 ? ATTN_F32 : v->problem.dtype_o, 0);
}

static double case_value(const bench_structure *s, output_place at) {
  return attn_oracle_load(case_element(s, at), at.d < 0 ? ATTN_F32 : s->tensors->problem.dtype_o, 0);
}

static bench_outcome broken(bench_structure *s, const char *what, output_place at, double got, double expected) {
  char column[32] = "";
  if (at.d >= 0) snprintf(column, sizeof column, ", column %lld", (long long)at.d);
  snprintf(s->reason, sizeof s->reason, "%s[batch %lld, head %lld, query %lld%s] is %.9g %s, should be %.9g",
           at.d < 0 ? "lse" : "o", (long long)s->seq.b, (long long)at.h, (long long)at.i, column, got, what, expected);
  return BENCH_BROKEN;
}

/* ---- Bits ------------------------------------------------------------------------------------------------------------ */

static bench_outcome same_bits(bench_structure *s, const bench_view *v, int64_t h, int64_t i, const char *what) {
  for (int64_t d = attn_uses(&s->tensors->problem, ATTN_USE_LSE) ? -1 : 0; d < v->problem.dim_v; d++) {
    const output_place at = {v->head + h, v->row + i, d};
    const size_t bytes = d < 0 ? sizeof(float) : attn_dtype_bytes(v->problem.dtype_o);
    if (memcmp(view_element(v, at), case_element(s, at), bytes))
      return broken(s, what, at, view_value(v, at), case_value(s, at));
  }
  return BENCH_HOLDS;
}

bench_likeness bench_likeness_of(const bench_structure *s, const bench_view *view) {
  const attn_problem *whole = &s->tensors->problem;
  const bool same_size = view->problem.seq_q == whole->seq_q && view->problem.seq_k == whole->seq_k;
  return s->subject->rows_stand_alone || same_size ? BENCH_SAME_BITS : BENCH_WITHIN_LIMITS;
}

bench_outcome bench_view_compare(bench_structure *s, const bench_view *v, bench_likeness likeness, const char *what) {
  if (likeness != BENCH_SAME_BITS) return bench_view_within_limits(s, v, NULL, likeness == BENCH_MERGED, what);
  bench_outcome outcome = BENCH_HOLDS;
  for (int64_t h = 0; h < v->problem.heads_q && outcome == BENCH_HOLDS; h++)
    for (int64_t i = 0; i < v->problem.seq_q && outcome == BENCH_HOLDS; i++) outcome = same_bits(s, v, h, i, what);
  return outcome;
}

/* ---- Limits ---------------------------------------------------------------------------------------------------------- */

/* A merged answer is that of a kernel whose weights carry one more relative error: that of the rounded LSE of a part, whose
 * magnitude is at most S + ln n. */
static bench_row_limits limits_of(const bench_structure *s, const attn_oracle_row *facts, bool merged) {
  const bench_expected *e = s->expected;
  attn_numerics numerics = *s->subject->numerics;
  const bench_row_limits limits = bench_limits_of_row(&e->problem, &numerics, facts, e->zero_mean);
  if (!merged || !facts->allowed) return limits;
  numerics.exp_error += limits.lse + 0x1p-22 * (facts->abs_sum + log((double)facts->allowed));
  return bench_limits_of_row(&e->problem, &numerics, facts, e->zero_mean);
}

/* Each of the two answers may be off by its limit. Where the case's own output type overflowed, only the view can tell. */
static bench_outcome near_row(bench_structure *s, const bench_view *v, int64_t n, bool merged, const char *what) {
  const bench_expected *e = s->expected;
  const bench_expected_row *row = &e->row[n];
  const bench_row_limits limits = limits_of(s, &row->facts, merged);
  const bool other_type = v->problem.dtype_o != s->tensors->problem.dtype_o;
  for (int64_t d = 0, k = n * v->problem.dim_v; d < v->problem.dim_v; d++, k++) {
    const output_place at = {row->h, row->i, d};
    const double got = view_value(v, at), before = case_value(s, at);
    if (isinf(before) && other_type) continue;
    if (!(bench_output_ratio(&limits, before, e->m[k], e->w[k], got) <= 2)) return broken(s, what, at, got, before);
  }
  const output_place at = {row->h, row->i, -1};
  const double got = view_value(v, at);
  const double before = attn_uses(&s->tensors->problem, ATTN_USE_LSE) ? case_value(s, at) : row->facts.lse;
  return bench_lse_ratio(&limits, before, got) <= 2 ? BENCH_HOLDS : broken(s, what, at, got, before);
}

bench_outcome bench_view_within_limits(bench_structure *s, const bench_view *v, const unsigned char *leave_out, bool merged,
                                       const char *what) {
  bench_outcome outcome = BENCH_HOLDS;
  for (int64_t n = 0; n < s->expected->rows && outcome == BENCH_HOLDS; n++) {
    const bench_expected_row *row = &s->expected->row[n];
    const int64_t h = row->h - v->head, i = row->i - v->row;
    if (row->b != s->seq.b || h < 0 || h >= v->problem.heads_q || i < 0 || i >= v->problem.seq_q) continue;
    if (!leave_out || !leave_out[h * v->problem.seq_q + i]) outcome = near_row(s, v, n, merged, what);
  }
  return outcome;
}
