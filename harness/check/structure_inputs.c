/* SPDX-License-Identifier: MIT */
/* Structural tests with inputs of their own: poison where no row may see it, a NaN in one key, scores that are all equal. */
#include <math.h>
#include <string.h>

#include "check/structure_private.h"
#include "kernels/common/problem/dtypes.h"

enum { MOST_PROBE_KEYS = 1024 };

/* ---- Poison ---------------------------------------------------------------------------------------------------------- */

/* Fills the row of one key in a dense K or V. */
static void fill_key(const bench_view *v, bool in_k, int64_t key, double value) {
  const attn_dtype dtype = v->problem.dtype_kv;
  const int64_t row = attn_row_elements(dtype, in_k ? v->problem.dim_qk : v->problem.dim_v);
  const int64_t together = attn_dtype_of(dtype).values;
  void *data = (void *)(uintptr_t)(in_k ? v->args.k : v->args.v);
  for (int64_t d = 0; d < row; d += together) bench_store_row(data, dtype, key * row + d, &value, 1);
}

/* Whether any row of a KV head's query heads sees key j. */
static bool is_seen(const bench_view *v, int64_t kv_head, int64_t j) {
  const int64_t group = attn_group(&v->problem);
  for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++)
    for (int64_t i = 0; i < v->problem.seq_q; i++)
      if (bench_view_sees(v, h, i, j)) return true;
  return false;
}

/* K and V of the keys that no row of their head sees. Returns whether there are any. */
static bool poison_keys(const bench_view *v, double poison) {
  const attn_problem *p = &v->problem;
  bool poisoned = false;
  for (int64_t g = 0; g < p->heads_kv; g++)
    for (int64_t j = 0; j < p->seq_k; j++) {
      if (is_seen(v, g, j)) continue;
      fill_key(v, false, g * p->seq_k + j, poison);
      if (p->score != ATTN_SCORE_PRECOMPUTED) fill_key(v, true, g * p->seq_k + j, poison);
      poisoned = true;
    }
  return poisoned;
}

/* Poisons the score and the bias of pair (i, j) if anything else masks it. Bias comes last, as it decides what is masked. */
static bool poison_pair(const bench_view *v, int64_t h, int64_t i, int64_t j, float poison) {
  const attn_problem *p = &v->problem;
  const int64_t n = (h * p->seq_q + i) * p->seq_k + j;
  const bool score = p->score == ATTN_SCORE_PRECOMPUTED && !bench_view_sees(v, h, i, j);
  const bool bias = attn_uses(p, ATTN_USE_BIAS) && !bench_view_sees_but_for_bias(v, h, i, j);
  if (score) ((float *)(uintptr_t)v->args.scores)[n] = poison;
  if (bias) ((float *)(uintptr_t)v->args.bias)[n] = poison;
  return score || bias;
}

static bool poison_pairs(const bench_view *v, float poison) {
  const attn_problem *p = &v->problem;
  bool poisoned = false;
  if (p->score != ATTN_SCORE_PRECOMPUTED && !attn_uses(p, ATTN_USE_BIAS)) return false;
  for (int64_t h = 0; h < p->heads_q; h++)
    for (int64_t i = 0; i < p->seq_q; i++)
      for (int64_t j = 0; j < p->seq_k; j++) poisoned |= poison_pair(v, h, i, j, poison);
  return poisoned;
}

bench_outcome bench_structure_poison(bench_structure *s) {
  static const float poisons[] = {NAN, INFINITY, -INFINITY, 3e38f};
  const float poison = poisons[bench_structure_pick(s, BENCH_PICK_POISON, sizeof poisons / sizeof *poisons)];
  bench_view view = bench_view_of_sequence(s);
  bool poisoned = false;
  bench_view_copy_keys(&view, NULL);
  if (!view.out_of_memory) poisoned |= poison_keys(&view, (double)poison);
  if (!view.out_of_memory) poisoned |= poison_pairs(&view, poison);
  if (poisoned || view.out_of_memory)
    return bench_view_check(s, &view, bench_likeness_of(s, &view), "with poison in what it may not see");
  bench_view_clear(&view);
  return BENCH_NOT_APPLICABLE;
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
  const int64_t start = bench_structure_pick(s, BENCH_PICK_KEY, keys);
  if (!bench_view_is_positional(v) && !attn_uses(&v->problem, ATTN_USE_MASK | ATTN_USE_BIAS)) return -1;
  for (int64_t n = 0; n < keys; n++) {
    const int64_t j = (start + n) % keys, count = mark_rows(v, j, sees);
    if (count > 0 && count < rows) return j;
  }
  return -1;
}

static bool output_is_nan(const bench_view *v, int64_t row) {
  const int64_t dim_v = v->problem.dim_v;
  for (int64_t d = 0; d < dim_v; d++)
    if (!isnan(attn_oracle_load(v->args.o, v->problem.dtype_o, row * dim_v + d))) return false;
  return true;
}

static bench_outcome seen_rows_are_nan(bench_structure *s, const bench_view *v, const unsigned char *sees, bool in_k) {
  const attn_problem *p = &v->problem;
  for (int64_t n = 0; n < p->heads_q * p->seq_q; n++)
    if (sees[n] && !(output_is_nan(v, n) && (!in_k || isnan(v->args.lse[n]))))
      return bench_outcome_of(
          s, BENCH_BROKEN, "batch %lld, head %lld, query %lld may see a NaN in %s and does not come to NaN",
          (long long)s->seq.b, (long long)(v->head + n / p->seq_q), (long long)(n % p->seq_q), in_k ? "K" : "V");
  return BENCH_HOLDS;
}

/* A view with a NaN in one key, which only the rows in sees[] may notice. */
static bench_outcome run_with_nan(bench_structure *s, bench_view *view, unsigned char *sees) {
  const bool in_k = view->problem.score != ATTN_SCORE_PRECOMPUTED && bench_structure_pick(s, BENCH_PICK_TENSOR, 2);
  const int64_t key = view->out_of_memory ? -1 : choose_key(s, view, sees);
  if (key < 0 && !view->out_of_memory) return BENCH_NOT_APPLICABLE;
  if (attn_dtype_is_integer(view->problem.dtype_kv)) return BENCH_NOT_APPLICABLE;
  if (key >= 0) fill_key(view, in_k, key, NAN);
  bench_outcome outcome = bench_view_run(s, view);
  if (outcome == BENCH_HOLDS) outcome = seen_rows_are_nan(s, view, sees, in_k);
  if (outcome == BENCH_HOLDS) outcome = bench_view_within_limits(s, view, sees, false, "with a NaN in a neighbour's key");
  return outcome;
}

bench_outcome bench_structure_neighbours(bench_structure *s) {
  bench_view view = bench_view_of_kv_head(s);
  unsigned char *sees = bench_view_allocate(&view, view.problem.heads_q * view.problem.seq_q, 1);
  bench_view_copy_keys(&view, NULL);
  const bench_outcome outcome = run_with_nan(s, &view, sees);
  bench_view_clear(&view);
  return outcome;
}

/* ---- Index probe ----------------------------------------------------------------------------------------------------- */

/* All scores are 0 where they are allowed. */
static void equalise_scores(bench_view *v) {
  attn_problem *p = &v->problem;
  const int64_t pairs = p->heads_q * p->seq_q * p->seq_k, k_row = attn_row_elements(p->dtype_kv, p->dim_qk);
  float *bias = (float *)(uintptr_t)v->args.bias;
  if (p->score == ATTN_SCORE_PRECOMPUTED)
    memset((void *)(uintptr_t)v->args.scores, 0, (size_t)pairs * sizeof(float));
  else
    memset((void *)(uintptr_t)v->args.k, 0, (size_t)attn_elements_bytes(p->dtype_kv, p->seq_k * k_row));
  for (int64_t n = 0; attn_uses(p, ATTN_USE_BIAS) && n < pairs; n++) bias[n] = bias[n] == -INFINITY ? -INFINITY : 0;
  p->uses &= ~(uint32_t)(ATTN_USE_ALIBI | ATTN_USE_SINKS);
}

/* Equal scores and one-hot V, so that column j of O is the weight of key j. */
static void make_probe(bench_view *v) {
  static const float one = 1;
  attn_problem *p = &v->problem;
  const int64_t keys = p->seq_k, row = attn_row_elements(p->dtype_kv, keys);
  bench_view_copy_keys(v, NULL);
  void *one_hot = bench_view_allocate(v, attn_elements_bytes(p->dtype_kv, keys * row), 1);
  double *values = bench_view_allocate(v, keys, sizeof *values);
  v->args.q = bench_view_allocate(v, attn_elements_bytes(p->dtype_q, p->heads_q * p->seq_q * p->dim_qk), 1);
  if (v->out_of_memory) return;
  p->q_stride = (attn_strides){0, p->seq_q * p->dim_qk, p->dim_qk, 1};
  equalise_scores(v);
  for (int64_t j = 0; j < keys; values[j++] = 0) {
    values[j] = 1;
    bench_store_row(one_hot, p->dtype_kv, j * row, values, keys);
  }
  v->args.v = one_hot;
  if (attn_uses(p, ATTN_USE_KV_SCALES)) v->args.v_scale = &one;
  p->v_scale_stride = (attn_strides){0};
  p->dim_v = keys;
  p->v_stride = (attn_strides){keys * row, keys * row, row, 1};
}

static int64_t count_keys(const bench_view *v, int64_t h, int64_t i) {
  int64_t count = 0;
  for (int64_t j = 0; j < v->problem.seq_k; j++) count += bench_view_sees(v, h, i, j);
  return count;
}

static double probe_limit(const bench_structure *s, const bench_view *v, int64_t count) {
  const attn_numerics *numerics = s->subject->numerics;
  return 2 * (numerics->exp_error + bench_p_rounding(&v->problem, numerics) + numerics->input_rounding) +
         attn_dtype_of(v->problem.dtype_o).roundoff + 0x1p-24 * (double)(count + 8);
}

static bench_outcome weights_are_right(bench_structure *s, const bench_view *v, int64_t h, int64_t i) {
  const attn_problem *p = &v->problem;
  const int64_t count = count_keys(v, h, i);
  const double share = count ? 1 / (double)count : 0, limit = probe_limit(s, v, count);
  for (int64_t j = 0; j < p->seq_k; j++) {
    const double got = attn_oracle_load(v->args.o, p->dtype_o, (h * p->seq_q + i) * p->seq_k + j);
    const double expected = bench_view_sees(v, h, i, j) ? share : 0;
    if (!(fabs(got - expected) <= limit * expected))
      return bench_outcome_of(
          s, BENCH_BROKEN,
          "batch %lld, head %lld, query %lld gives key %lld of %lld allowed ones the weight %.9g, should be %.9g",
          (long long)s->seq.b, (long long)(v->head + h), (long long)i, (long long)j, (long long)count, got, expected);
  }
  return BENCH_HOLDS;
}

bench_outcome bench_structure_probe(bench_structure *s) {
  bench_view view = bench_view_of_kv_head(s);
  if (view.problem.seq_k > MOST_PROBE_KEYS) return BENCH_NOT_APPLICABLE;
  make_probe(&view);
  bench_outcome outcome = bench_view_run(s, &view);
  for (int64_t h = 0; h < view.problem.heads_q && outcome == BENCH_HOLDS; h++)
    for (int64_t i = 0; i < view.problem.seq_q && outcome == BENCH_HOLDS; i++) outcome = weights_are_right(s, &view, h, i);
  bench_view_clear(&view);
  return outcome;
}
