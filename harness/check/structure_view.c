/* SPDX-License-Identifier: MIT */
/* Views: parts of a case as problems of their own, by pointers and strides where that will do. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/error_limits.h"
#include "check/structure_private.h"

static const void *shift(const void *data, int64_t elements, size_t bytes) {
  return data ? (const char *)data + elements * (int64_t)bytes : NULL;
}

/* ---- Memory ---------------------------------------------------------------------------------------------------------- */

void *bench_view_allocate(bench_view *v, int64_t count, size_t bytes) {
  const size_t rounded = ((size_t)count * bytes + 63) / 64 * 64;
  void *memory = aligned_alloc(64, rounded ? rounded : 64);
  if (!memory || v->owned_count == (int)(sizeof v->owned / sizeof *v->owned)) {
    free(memory);
    v->out_of_memory = true;
    return NULL;
  }
  v->owned[v->owned_count++] = memory;
  return memset(memory, 0, rounded);
}

void bench_view_clear(bench_view *v) {
  for (int i = 0; i < v->owned_count; i++) free(v->owned[i]);
  v->owned_count = 0;
}

/* ---- Parts ----------------------------------------------------------------------------------------------------------- */

/* Every way to say where query 0 stands gets its turn: the offset only where no alignment says the same. */
static void align(bench_view *v, int64_t offset) {
  attn_problem *p = &v->problem;
  v->offset = (int32_t)offset;
  p->align = ATTN_ALIGN_OFFSET;
  if (offset == p->seq_k - p->seq_q && !attn_uses(p, ATTN_USE_ROW_LEN)) p->align = ATTN_ALIGN_BOTTOM_RIGHT;
  if (offset == 0) p->align = ATTN_ALIGN_TOP_LEFT;
}

bench_view bench_view_of_sequence(const bench_structure *s) {
  const attn_problem *whole = &s->tensors->problem;
  const attn_args *args = &s->tensors->args;
  const int64_t b = s->seq.b;
  bench_view v = {.problem = *whole, .args = *args};
  attn_problem *p = &v.problem;
  p->batch = 1;
  p->seq_q = s->seq.len_q;
  p->seq_k = s->seq.len_k;
  p->uses &= ~(uint32_t)(ATTN_USE_KV_LEN | ATTN_USE_Q_LEN | ATTN_USE_VARLEN);
  p->uses |= ATTN_USE_LSE;
  v.args.q = shift(args->q, attn_q_offset(whole, &s->seq, b, 0, 0), bench_dtype_bytes(whole->dtype_q));
  v.args.k = shift(args->k, attn_k_offset(whole, &s->seq, b, 0, 0), bench_dtype_bytes(whole->dtype_kv));
  v.args.v = shift(args->v, attn_v_offset(whole, &s->seq, b, 0, 0), bench_dtype_bytes(whole->dtype_kv));
  v.args.bias = shift(args->bias, b * whole->bias_stride.b, sizeof(float));
  v.args.mask = shift(args->mask, b * whole->mask_stride.b, 1);
  v.args.scores = shift(args->scores, b * whole->scores_stride.b, sizeof(float));
  v.args.row_len = shift(args->row_len, b * whole->seq_q, sizeof(int32_t));
  align(&v, s->seq.offset);
  return v;
}

void bench_view_keep_kv_head(bench_view *v, int64_t kv_head) {
  attn_problem *p = &v->problem;
  attn_args *a = &v->args;
  const int64_t group = p->heads_q / p->heads_kv, h = kv_head * group;
  a->q = shift(a->q, h * p->q_stride.h, bench_dtype_bytes(p->dtype_q));
  a->k = shift(a->k, kv_head * p->k_stride.h, bench_dtype_bytes(p->dtype_kv));
  a->v = shift(a->v, kv_head * p->v_stride.h, bench_dtype_bytes(p->dtype_kv));
  a->bias = shift(a->bias, h * p->bias_stride.h, sizeof(float));
  a->mask = shift(a->mask, h * p->mask_stride.h, 1);
  a->scores = shift(a->scores, h * p->scores_stride.h, sizeof(float));
  a->score_weight = shift(a->score_weight, h * p->score_weight_stride_h, sizeof(float));
  a->alibi_slopes = shift(a->alibi_slopes, h, sizeof(float));
  a->sinks = shift(a->sinks, h, sizeof(float));
  p->heads_q = group;
  p->heads_kv = 1;
  v->head += h;
}

void bench_view_keep_rows(bench_view *v, int64_t first, int64_t count) {
  attn_problem *p = &v->problem;
  attn_args *a = &v->args;
  a->q = shift(a->q, first * p->q_stride.s, bench_dtype_bytes(p->dtype_q));
  a->bias = shift(a->bias, first * p->bias_stride.q, sizeof(float));
  a->mask = shift(a->mask, first * p->mask_stride.q, 1);
  a->scores = shift(a->scores, first * p->scores_stride.q, sizeof(float));
  a->row_len = shift(a->row_len, first, sizeof(int32_t));
  p->seq_q = count;
  v->row += first;
  align(v, v->offset + first);
}

/* Lengths of rows count from the first key that is kept. */
static void cut_row_lengths(bench_view *v, int64_t first) {
  const attn_problem *p = &v->problem;
  const int32_t *old = v->args.row_len;
  if (!attn_uses(p, ATTN_USE_ROW_LEN)) return;
  int32_t *length = bench_view_allocate(v, p->seq_q, sizeof *length);
  for (int64_t i = 0; length && i < p->seq_q; i++) {
    const int64_t left = old[i] - first;
    length[i] = (int32_t)(left < 0 ? 0 : left < p->seq_k ? left : p->seq_k);
  }
  v->args.row_len = length;
}

void bench_view_keep_keys(bench_view *v, int64_t first, int64_t end, int64_t step) {
  attn_problem *p = &v->problem;
  attn_args *a = &v->args;
  a->k = shift(a->k, first * p->k_stride.s, bench_dtype_bytes(p->dtype_kv));
  a->v = shift(a->v, first * p->v_stride.s, bench_dtype_bytes(p->dtype_kv));
  a->bias = shift(a->bias, first * p->bias_stride.k, sizeof(float));
  a->mask = shift(a->mask, first * p->mask_stride.k, 1);
  a->scores = shift(a->scores, first * p->scores_stride.k, sizeof(float));
  p->k_stride.s *= step;
  p->v_stride.s *= step;
  p->bias_stride.k *= step;
  p->mask_stride.k *= step;
  p->scores_stride.k *= step;
  p->seq_k = (end - first + step - 1) / step;
  cut_row_lengths(v, first);
  align(v, v->offset - first);
}

bool bench_view_is_positional(const bench_view *v) {
  return v->problem.window_left >= 0 || v->problem.window_right >= 0 ||
         attn_uses(&v->problem, ATTN_USE_ALIBI | ATTN_USE_ROW_LEN);
}

/* ---- Copies ---------------------------------------------------------------------------------------------------------- */

/* Rows of K or V, dense. */
static const void *copy_rows(bench_view *v, const void *data, attn_strides *stride, int64_t dim, const int64_t *order) {
  const attn_problem *p = &v->problem;
  const size_t bytes = bench_dtype_bytes(p->dtype_kv);
  char *copy = bench_view_allocate(v, p->heads_kv * p->seq_k * dim, bytes), *to = copy;
  for (int64_t h = 0; copy && h < p->heads_kv; h++)
    for (int64_t j = 0; j < p->seq_k; j++)
      for (int64_t d = 0; d < dim; d++, to += bytes)
        memcpy(to, shift(data, h * stride->h + order[j] * stride->s + d * stride->d, bytes), bytes);
  *stride = (attn_strides){p->heads_kv * p->seq_k * dim, p->seq_k * dim, dim, 1};
  return copy;
}

/* Bias, mask or scores, dense. */
static const void *copy_pairs(bench_view *v, const void *data, attn_score_strides *stride, size_t bytes,
                              const int64_t *order) {
  const attn_problem *p = &v->problem;
  char *copy = bench_view_allocate(v, p->heads_q * p->seq_q * p->seq_k, bytes), *to = copy;
  for (int64_t h = 0; copy && h < p->heads_q; h++)
    for (int64_t i = 0; i < p->seq_q; i++)
      for (int64_t j = 0; j < p->seq_k; j++, to += bytes)
        memcpy(to, shift(data, attn_score_offset(stride, 0, h, i, order[j]), bytes), bytes);
  *stride = (attn_score_strides){0, p->seq_q * p->seq_k, p->seq_k, 1};
  return copy;
}

void bench_view_copy_keys(bench_view *v, const int64_t *order) {
  attn_problem *p = &v->problem;
  attn_args *a = &v->args;
  if (p->score == ATTN_SCORE_PRECOMPUTED)
    a->scores = copy_pairs(v, a->scores, &p->scores_stride, sizeof(float), order);
  else
    a->k = copy_rows(v, a->k, &p->k_stride, p->dim_qk, order);
  a->v = copy_rows(v, a->v, &p->v_stride, p->dim_v, order);
  if (attn_uses(p, ATTN_USE_BIAS)) a->bias = copy_pairs(v, a->bias, &p->bias_stride, sizeof(float), order);
  if (attn_uses(p, ATTN_USE_MASK)) a->mask = copy_pairs(v, a->mask, &p->mask_stride, 1, order);
}

/* ---- Who sees what --------------------------------------------------------------------------------------------------- */

bool bench_view_sees_but_for_bias(const bench_view *v, int64_t h, int64_t i, int64_t j) {
  attn_problem p = v->problem;
  attn_args args = v->args;
  args.offsets = &v->offset;
  p.uses &= ~(uint32_t)ATTN_USE_BIAS;
  const attn_sequence seq = attn_sequence_of(&p, &args, 0);
  const attn_key_range keys = attn_allowed_keys(&p, &args, &seq, 0, i);
  return j >= keys.begin && j < keys.end && attn_key_selected(&p, &args, 0, h, i, j);
}

bool bench_view_sees(const bench_view *v, int64_t h, int64_t i, int64_t j) {
  return bench_view_sees_but_for_bias(v, h, i, j) && attn_key_selected(&v->problem, &v->args, 0, h, i, j);
}

void bench_view_forget_positions(bench_view *v) {
  attn_problem *p = &v->problem;
  uint8_t *mask = bench_view_allocate(v, p->heads_q * p->seq_q * p->seq_k, 1), *to = mask;
  for (int64_t h = 0; mask && h < p->heads_q; h++)
    for (int64_t i = 0; i < p->seq_q; i++)
      for (int64_t j = 0; j < p->seq_k; j++) *to++ = bench_view_sees_but_for_bias(v, h, i, j);
  v->args.mask = mask;
  p->mask_stride = (attn_score_strides){0, p->seq_q * p->seq_k, p->seq_k, 1};
  p->uses = (p->uses & ~(uint32_t)ATTN_USE_ROW_LEN) | ATTN_USE_MASK;
  p->window_left = p->window_right = -1;
}

/* ---- Running --------------------------------------------------------------------------------------------------------- */

static bool allocate_outputs(bench_view *v) {
  attn_problem *p = &v->problem;
  const int64_t rows = p->heads_q * p->seq_q;
  p->o_stride = (attn_strides){rows * p->dim_v, p->seq_q * p->dim_v, p->dim_v, 1};
  p->lse_stride = (attn_strides){rows, p->seq_q, 1, 1};
  v->args.o = bench_view_allocate(v, rows * p->dim_v, bench_dtype_bytes(p->dtype_o));
  v->args.lse = bench_view_allocate(v, rows, sizeof(float));
  if (v->out_of_memory) return false;
  memset(v->args.o, 0xff, (size_t)(rows * p->dim_v) * bench_dtype_bytes(p->dtype_o));
  memset(v->args.lse, 0xff, (size_t)rows * sizeof(float));
  return true;
}

static bench_outcome cannot_run(bench_structure *s, const char *why) {
  snprintf(s->reason, sizeof s->reason, "%s", why);
  return BENCH_CANNOT_RUN;
}

bench_outcome bench_view_run(bench_structure *s, bench_view *v) {
  attn_plan *plan = NULL;
  if (v->out_of_memory || !allocate_outputs(v)) return cannot_run(s, "out of memory");
  v->args.offsets = &v->offset;
  attn_status status = s->subject->create_plan(s->subject->context, &v->problem, &(attn_options){.threads = 1}, &plan);
  if (status == ATTN_UNSUPPORTED) return BENCH_NOT_APPLICABLE;
  if (status != ATTN_OK) return cannot_run(s, attn_last_error());
  const size_t bytes = attn_plan_workspace(plan);
  void *workspace = aligned_alloc(64, bytes ? bytes : 64);
  if (workspace) memset(workspace, 0xff, bytes);
  status = workspace ? attn_plan_run(plan, &v->args, workspace, bytes) : ATTN_OUT_OF_MEMORY;
  free(workspace);
  attn_plan_destroy(plan);
  return status == ATTN_OK ? BENCH_HOLDS : cannot_run(s, workspace ? attn_last_error() : "out of memory");
}

int64_t bench_structure_pick(const bench_structure *s, int use, int64_t count) {
  return bench_value_below(s->seed, BENCH_STREAM_STRUCTURE, (uint64_t)use, count);
}

/* ---- Comparing ------------------------------------------------------------------------------------------------------- */

static bench_outcome broken(bench_structure *s, const char *what, int64_t h, int64_t i, int64_t d, double got,
                            double expected) {
  char column[32] = "";
  if (d >= 0) snprintf(column, sizeof column, ", column %lld", (long long)d);
  snprintf(s->reason, sizeof s->reason, "%s[batch %lld, head %lld, query %lld%s] is %.9g %s, should be %.9g",
           d < 0 ? "lse" : "o", (long long)s->seq.b, (long long)h, (long long)i, column, got, what, expected);
  return BENCH_BROKEN;
}

static bench_outcome same_row(bench_structure *s, const bench_view *v, int64_t h, int64_t i, const char *what) {
  const attn_problem *p = &v->problem, *whole = &s->tensors->problem;
  const attn_args *args = &s->tensors->args;
  const size_t bytes = bench_dtype_bytes(p->dtype_o);
  const int64_t head = v->head + h, row = v->row + i, n = h * p->seq_q + i;
  const int64_t at = attn_o_offset(whole, &s->seq, s->seq.b, head, row);
  for (int64_t d = 0; d < p->dim_v; d++)
    if (memcmp(shift(v->args.o, n * p->dim_v + d, bytes), shift(args->o, at + d * whole->o_stride.d, bytes), bytes))
      return broken(s, what, head, row, d, attn_oracle_load(v->args.o, p->dtype_o, n * p->dim_v + d),
                    attn_oracle_load(args->o, p->dtype_o, at + d * whole->o_stride.d));
  if (!attn_uses(whole, ATTN_USE_LSE)) return BENCH_HOLDS;
  const float *lse = &args->lse[attn_lse_offset(whole, &s->seq, s->seq.b, head, row)];
  if (!memcmp(&v->args.lse[n], lse, sizeof *lse)) return BENCH_HOLDS;
  return broken(s, what, head, row, -1, (double)v->args.lse[n], (double)*lse);
}

bench_outcome bench_view_same_bits(bench_structure *s, const bench_view *v, const char *what) {
  bench_outcome outcome = BENCH_HOLDS;
  for (int64_t h = 0; h < v->problem.heads_q && outcome == BENCH_HOLDS; h++)
    for (int64_t i = 0; i < v->problem.seq_q && outcome == BENCH_HOLDS; i++) outcome = same_row(s, v, h, i, what);
  return outcome;
}

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
static bench_outcome judge_row(bench_structure *s, const bench_view *v, int64_t n, bool merged, const char *what) {
  const bench_expected *e = s->expected;
  const bench_expected_row *row = &e->row[n];
  const attn_problem *whole = &s->tensors->problem;
  const attn_args *args = &s->tensors->args;
  const bench_row_limits limits = limits_of(s, &row->facts, merged);
  const int64_t dim_v = v->problem.dim_v, own = (row->h - v->head) * v->problem.seq_q + row->i - v->row;
  const int64_t at = attn_o_offset(whole, &s->seq, row->b, row->h, row->i);
  for (int64_t d = 0; d < dim_v; d++) {
    const double got = attn_oracle_load(v->args.o, v->problem.dtype_o, own * dim_v + d);
    const double before = attn_oracle_load(args->o, whole->dtype_o, at + d * whole->o_stride.d);
    if (isinf(before) && v->problem.dtype_o != whole->dtype_o) continue;
    if (!(bench_output_ratio(&limits, before, e->m[n * dim_v + d], e->w[n * dim_v + d], got) <= 2))
      return broken(s, what, row->h, row->i, d, got, before);
  }
  const double lse = (double)v->args.lse[own];
  const double before = attn_uses(whole, ATTN_USE_LSE)
                            ? (double)args->lse[attn_lse_offset(whole, &s->seq, row->b, row->h, row->i)]
                            : row->facts.lse;
  if (bench_lse_ratio(&limits, before, lse) <= 2) return BENCH_HOLDS;
  return broken(s, what, row->h, row->i, -1, lse, before);
}

bench_outcome bench_view_within_limits(bench_structure *s, const bench_view *v, const unsigned char *leave_out, bool merged,
                                       const char *what) {
  bench_outcome outcome = BENCH_HOLDS;
  for (int64_t n = 0; n < s->expected->rows && outcome == BENCH_HOLDS; n++) {
    const bench_expected_row *row = &s->expected->row[n];
    const int64_t h = row->h - v->head, i = row->i - v->row;
    if (row->b != s->seq.b || h < 0 || h >= v->problem.heads_q || i < 0 || i >= v->problem.seq_q) continue;
    if (!leave_out || !leave_out[h * v->problem.seq_q + i]) outcome = judge_row(s, v, n, merged, what);
  }
  return outcome;
}
