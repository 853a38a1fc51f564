/* SPDX-License-Identifier: MIT */
/* The structural tests that compare within the limits of docs/numerics.md. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check/error_limits.h"
#include "check/structure_private.h"

enum { PICK_HEAD = 16, PICK_KEY, PICK_TENSOR, PICK_CUT, PICK_CONVEX_ROW, PICK_ORDER /* and on */ };

enum { MOST_PROBE_KEYS = 1024, CONVEX_ROWS = 16 };

/* One KV head with its queries, seeded. */
static bench_view view_of_kv_head(const bench_structure *s) {
  bench_view view = bench_view_of_sequence(s);
  bench_view_keep_kv_head(&view, bench_structure_pick(s, PICK_HEAD, view.problem.heads_kv));
  return view;
}

static void copy_keys_in_order(bench_view *v) {
  int64_t *order = bench_view_allocate(v, v->problem.seq_k, sizeof *order);
  for (int64_t j = 0; order && j < v->problem.seq_k; j++) order[j] = j;
  if (order) bench_view_copy_keys(v, order);
}

/* ---- Neighbours ------------------------------------------------------------------------------------------------------ */

/* Marks the rows that see key j; returns how many do. */
static int64_t mark_rows(const bench_view *v, int64_t j, unsigned char *sees) {
  const attn_problem *p = &v->problem;
  int64_t count = 0;
  for (int64_t h = 0; h < p->heads_q; h++)
    for (int64_t i = 0; i < p->seq_q; i++) count += sees[h * p->seq_q + i] = bench_view_sees(v, h, i, j);
  return count;
}

/* A key that some rows see and some do not, by seed; -1 if there is none. */
static int64_t choose_key(const bench_structure *s, const bench_view *v, unsigned char *sees) {
  const int64_t keys = v->problem.seq_k, rows = v->problem.heads_q * v->problem.seq_q;
  const int64_t start = bench_structure_pick(s, PICK_KEY, keys);
  if (!bench_view_is_positional(v) && !attn_uses(&v->problem, ATTN_USE_MASK | ATTN_USE_BIAS)) return -1;
  for (int64_t n = 0; n < keys; n++) {
    const int64_t j = (start + n) % keys, count = mark_rows(v, j, sees);
    if (count > 0 && count < rows) return j;
  }
  return -1;
}

static bench_outcome seen_rows_are_nan(bench_structure *s, const bench_view *v, const unsigned char *sees, bool lse_too) {
  const attn_problem *p = &v->problem;
  for (int64_t n = 0; n < p->heads_q * p->seq_q; n++) {
    if (!sees[n]) continue;
    bool nan = !lse_too || isnan(v->args.lse[n]);
    for (int64_t d = 0; d < p->dim_v && nan; d++) nan = isnan(attn_oracle_load(v->args.o, p->dtype_o, n * p->dim_v + d));
    if (nan) continue;
    snprintf(s->reason, sizeof s->reason, "batch %lld, head %lld, query %lld may see a NaN in %s and does not come to NaN",
             (long long)s->seq.b, (long long)(v->head + n / p->seq_q), (long long)(n % p->seq_q), lse_too ? "K" : "V");
    return BENCH_BROKEN;
  }
  return BENCH_HOLDS;
}

bench_outcome bench_structure_neighbours(bench_structure *s) {
  bench_view view = view_of_kv_head(s);
  const attn_problem *p = &view.problem;
  const bool in_k = p->score != ATTN_SCORE_PRECOMPUTED && bench_structure_pick(s, PICK_TENSOR, 2);
  unsigned char *sees = bench_view_allocate(&view, p->heads_q * p->seq_q, 1);
  copy_keys_in_order(&view);
  const int64_t key = view.out_of_memory ? -1 : choose_key(s, &view, sees), dim = in_k ? p->dim_qk : p->dim_v;
  for (int64_t d = 0; key >= 0 && d < dim; d++)
    bench_store((void *)(uintptr_t)(in_k ? view.args.k : view.args.v), p->dtype_kv, key * dim + d, NAN);
  bench_outcome outcome = key < 0 && !view.out_of_memory ? BENCH_NOT_APPLICABLE : bench_view_run(s, &view);
  if (outcome == BENCH_HOLDS) outcome = seen_rows_are_nan(s, &view, sees, in_k);
  if (outcome == BENCH_HOLDS) outcome = bench_view_within_limits(s, &view, sees, false, "with a NaN in a neighbour's key");
  bench_view_clear(&view);
  return outcome;
}

/* ---- Index probe ----------------------------------------------------------------------------------------------------- */

/* All scores 0 where they are allowed, and V one-hot, so that column j of O is the weight of key j. */
static void make_probe(bench_view *v) {
  attn_problem *p = &v->problem;
  copy_keys_in_order(v);
  const int64_t pairs = p->heads_q * p->seq_q * p->seq_k, keys = p->seq_k;
  void *one_hot = bench_view_allocate(v, keys * keys, bench_dtype_bytes(p->dtype_kv));
  v->args.q = bench_view_allocate(v, p->heads_q * p->seq_q * p->dim_qk, bench_dtype_bytes(p->dtype_q));
  if (v->out_of_memory) return;
  p->q_stride = (attn_strides){0, p->seq_q * p->dim_qk, p->dim_qk, 1};
  if (p->score == ATTN_SCORE_PRECOMPUTED)
    memset((void *)(uintptr_t)v->args.scores, 0, (size_t)pairs * sizeof(float));
  else
    memset((void *)(uintptr_t)v->args.k, 0, (size_t)(keys * p->dim_qk) * bench_dtype_bytes(p->dtype_kv));
  float *bias = (float *)(uintptr_t)v->args.bias;
  for (int64_t n = 0; attn_uses(p, ATTN_USE_BIAS) && n < pairs; n++) bias[n] = bias[n] == -INFINITY ? -INFINITY : 0;
  for (int64_t j = 0; j < keys; j++) bench_store(one_hot, p->dtype_kv, j * keys + j, 1);
  v->args.v = one_hot;
  p->dim_v = keys;
  p->v_stride = (attn_strides){keys * keys, keys * keys, keys, 1};
  p->uses &= ~(uint32_t)(ATTN_USE_ALIBI | ATTN_USE_SINKS);
}

static bench_outcome weights_are_right(bench_structure *s, const bench_view *v, int64_t h, int64_t i) {
  const attn_problem *p = &v->problem;
  const attn_numerics *numerics = s->subject->numerics;
  int64_t count = 0;
  for (int64_t j = 0; j < p->seq_k; j++) count += bench_view_sees(v, h, i, j);
  const double share = count ? 1 / (double)count : 0, limit = 2 * (numerics->exp_error + numerics->p_rounding) +
                                                              attn_dtype_of(p->dtype_o).roundoff +
                                                              0x1p-24 * (double)(count + 8);
  for (int64_t j = 0; j < p->seq_k; j++) {
    const double got = attn_oracle_load(v->args.o, p->dtype_o, (h * p->seq_q + i) * p->seq_k + j);
    const double expected = bench_view_sees(v, h, i, j) ? share : 0;
    if (fabs(got - expected) <= limit * expected) continue;
    snprintf(s->reason, sizeof s->reason,
             "batch %lld, head %lld, query %lld gives key %lld of %lld allowed ones the weight %.9g, should be %.9g",
             (long long)s->seq.b, (long long)(v->head + h), (long long)i, (long long)j, (long long)count, got, expected);
    return BENCH_BROKEN;
  }
  return BENCH_HOLDS;
}

bench_outcome bench_structure_probe(bench_structure *s) {
  bench_view view = view_of_kv_head(s);
  if (view.problem.seq_k > MOST_PROBE_KEYS) return BENCH_NOT_APPLICABLE;
  make_probe(&view);
  bench_outcome outcome = bench_view_run(s, &view);
  for (int64_t h = 0; h < view.problem.heads_q && outcome == BENCH_HOLDS; h++)
    for (int64_t i = 0; i < view.problem.seq_q && outcome == BENCH_HOLDS; i++) outcome = weights_are_right(s, &view, h, i);
  bench_view_clear(&view);
  return outcome;
}

/* ---- Convexity ------------------------------------------------------------------------------------------------------- */

/* The least and the largest value that row i of head h may see in each column: low[dim_v], then high[dim_v]. A sink is a key
 * with value 0. False if the row sees no key. */
static bool hull_of(const bench_view *v, int64_t h, int64_t i, double *low) {
  const attn_problem *p = &v->problem;
  const bool sink = attn_uses(p, ATTN_USE_SINKS);
  double *high = low + p->dim_v;
  bool any = false;
  for (int64_t d = 0; d < p->dim_v; d++) low[d] = sink ? 0 : INFINITY, high[d] = sink ? 0 : -INFINITY;
  for (int64_t j = 0; j < p->seq_k; j++) {
    if (!bench_view_sees(v, h, i, j)) continue;
    any = true;
    const int64_t at = attn_kv_head(p, h) * p->v_stride.h + j * p->v_stride.s;
    for (int64_t d = 0; d < p->dim_v; d++) {
      const double value = attn_oracle_load(v->args.v, p->dtype_kv, at + d * p->v_stride.d);
      low[d] = fmin(low[d], value);
      high[d] = fmax(high[d], value);
    }
  }
  return any;
}

static bench_outcome row_is_convex(bench_structure *s, const bench_view *v, int64_t n, double *low) {
  const bench_expected *e = s->expected;
  const bench_expected_row *row = &e->row[n];
  const attn_problem *whole = &s->tensors->problem;
  const bench_row_limits limits = bench_limits_of_row(&e->problem, s->subject->numerics, &row->facts, e->zero_mean);
  const int64_t dim_v = whole->dim_v, at = attn_o_offset(whole, &s->seq, row->b, row->h, row->i);
  const double *high = low + dim_v;
  if (!hull_of(v, row->h, row->i, low)) return BENCH_HOLDS;
  for (int64_t d = 0; d < dim_v; d++) {
    const double got = attn_oracle_load(s->tensors->args.o, whole->dtype_o, at + d * whole->o_stride.d);
    const double nearest = fmin(fmax(got, low[d]), high[d]);
    if (bench_output_ratio(&limits, nearest, e->m[n * dim_v + d], e->w[n * dim_v + d], got) <= 1) continue;
    snprintf(s->reason, sizeof s->reason,
             "o[batch %lld, head %lld, query %lld, column %lld] is %.9g, but its values lie in %.9g .. %.9g",
             (long long)row->b, (long long)row->h, (long long)row->i, (long long)d, got, low[d], high[d]);
    return BENCH_BROKEN;
  }
  return BENCH_HOLDS;
}

bench_outcome bench_structure_convex(bench_structure *s) {
  const bench_expected *e = s->expected;
  bench_view view = bench_view_of_sequence(s);
  double *hull = bench_view_allocate(&view, 2 * view.problem.dim_v, sizeof *hull);
  bench_outcome outcome = BENCH_NOT_APPLICABLE;
  const int64_t start = bench_structure_pick(s, PICK_CONVEX_ROW, e->rows);
  for (int64_t k = 0, judged = 0; hull && k < e->rows && judged < CONVEX_ROWS && outcome != BENCH_BROKEN; k++) {
    const int64_t n = (start + k) % e->rows;
    if (e->row[n].b != s->seq.b || e->row[n].i >= s->seq.len_q) continue;
    outcome = row_is_convex(s, &view, n, hull);
    judged++;
  }
  bench_view_clear(&view);
  return outcome;
}

/* ---- Keys in another order, heads repeated --------------------------------------------------------------------------- */

bench_outcome bench_structure_permutation(bench_structure *s) {
  bench_view view = bench_view_of_sequence(s);
  const int64_t keys = view.problem.seq_k;
  if (keys < 2 || attn_uses(&view.problem, ATTN_USE_ALIBI)) return BENCH_NOT_APPLICABLE;
  if (bench_view_is_positional(&view)) bench_view_forget_positions(&view);
  int64_t *order = bench_view_allocate(&view, keys, sizeof *order);
  for (int64_t j = 0; order && j < keys; j++) { /* Fisher-Yates, inside out */
    const int64_t other = bench_structure_pick(s, PICK_ORDER + (int)j, j + 1);
    order[j] = order[other];
    order[other] = j;
  }
  if (!view.out_of_memory) bench_view_copy_keys(&view, order);
  bench_outcome outcome = bench_view_run(s, &view);
  if (outcome == BENCH_HOLDS) outcome = bench_view_within_limits(s, &view, NULL, false, "with keys in another order");
  bench_view_clear(&view);
  return outcome;
}

/* Repeated by a stride of 0: as many KV heads as query heads, all of them the same. */
bench_outcome bench_structure_heads(bench_structure *s) {
  if (s->tensors->problem.heads_q == s->tensors->problem.heads_kv) return BENCH_NOT_APPLICABLE;
  bench_view view = view_of_kv_head(s);
  view.problem.heads_kv = view.problem.heads_q;
  view.problem.k_stride.h = view.problem.v_stride.h = 0;
  bench_outcome outcome = bench_view_run(s, &view);
  if (outcome == BENCH_HOLDS) outcome = bench_view_within_limits(s, &view, NULL, false, "with KV heads repeated");
  bench_view_clear(&view);
  return outcome;
}

/* ---- Partition ------------------------------------------------------------------------------------------------------- */

enum { PARTS = 3 };

/* Part `n` of 3: two contiguous ones and what is between, or every third key. Float32, as attn_merge takes it, and without
 * the sink, which is applied last. */
static bench_view part_of(const bench_structure *s, const bench_view *whole, int n, bool interleaved) {
  bench_view part = bench_view_of_sequence(s);
  const int64_t keys = whole->problem.seq_k, first_cut = bench_structure_pick(s, PICK_CUT, keys + 1),
                second_cut = first_cut + bench_structure_pick(s, PICK_KEY, keys - first_cut + 1);
  const int64_t cuts[PARTS + 1] = {0, first_cut, second_cut, keys};
  part.problem.dtype_o = ATTN_F32;
  part.problem.uses &= ~(uint32_t)ATTN_USE_SINKS;
  if (interleaved)
    bench_view_keep_keys(&part, n, n < keys ? keys : n, PARTS);
  else
    bench_view_keep_keys(&part, cuts[n], cuts[n + 1], 1);
  return part;
}

/* o = sum p v / (sum p + exp(sink)), and the LSE without the sink. */
static void apply_sinks(const bench_view *whole) {
  const attn_problem *p = &whole->problem;
  float *o = whole->args.o;
  for (int64_t n = 0; n < p->heads_q * p->seq_q; n++) {
    const double lse = (double)whole->args.lse[n], sink = (double)whole->args.sinks[n / p->seq_q];
    for (int64_t d = 0; d < p->dim_v && lse > -INFINITY; d++)
      o[n * p->dim_v + d] = (float)((double)o[n * p->dim_v + d] / (1 + exp(sink - lse)));
  }
}

static bench_outcome merge(bench_structure *s, bench_view *whole, const bench_view *parts) {
  const attn_problem *p = &whole->problem;
  const int64_t rows = p->heads_q * p->seq_q;
  const float *o[PARTS], *lse[PARTS];
  for (int n = 0; n < PARTS; n++) o[n] = parts[n].args.o, lse[n] = parts[n].args.lse;
  whole->args.o = bench_view_allocate(whole, rows * p->dim_v, sizeof(float));
  whole->args.lse = bench_view_allocate(whole, rows, sizeof(float));
  if (!whole->out_of_memory && attn_merge(PARTS, rows, p->dim_v, o, lse, whole->args.o, whole->args.lse) == ATTN_OK) {
    if (attn_uses(p, ATTN_USE_SINKS)) apply_sinks(whole);
    return BENCH_HOLDS;
  }
  snprintf(s->reason, sizeof s->reason, "%s", whole->out_of_memory ? "out of memory" : attn_last_error());
  return BENCH_CANNOT_RUN;
}

static bench_outcome merge_partition(bench_structure *s, bool interleaved) {
  bench_view whole = bench_view_of_sequence(s), parts[PARTS] = {{.owned_count = 0}};
  whole.problem.dtype_o = ATTN_F32;
  bench_outcome outcome = BENCH_HOLDS;
  for (int n = 0; n < PARTS && outcome == BENCH_HOLDS; n++) {
    parts[n] = part_of(s, &whole, n, interleaved);
    outcome = bench_view_run(s, &parts[n]);
  }
  if (outcome == BENCH_HOLDS) outcome = merge(s, &whole, parts);
  if (outcome == BENCH_HOLDS)
    outcome =
        bench_view_within_limits(s, &whole, NULL, true, interleaved ? "merged from every third key" : "merged from parts");
  for (int n = 0; n < PARTS; n++) bench_view_clear(&parts[n]);
  bench_view_clear(&whole);
  return outcome;
}

bench_outcome bench_structure_partition(bench_structure *s) {
  const bench_view view = bench_view_of_sequence(s);
  const bench_outcome outcome = merge_partition(s, false);
  return outcome == BENCH_HOLDS && !bench_view_is_positional(&view) ? merge_partition(s, true) : outcome;
}
