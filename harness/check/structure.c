/* SPDX-License-Identifier: MIT */
/* The structural tests that compare bits, and the loop over all of them. */
#include "check/structure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/structure_private.h"

enum { PICK_SEQUENCE, PICK_ROW, PICK_ROWS, PICK_POISON };

/* ---- Threads --------------------------------------------------------------------------------------------------------- */

/* A pool that runs all tasks itself, the last one first, and names one worker after the other. So a result that depends
 * on how work is divided shows without starting a thread. (tests/test_bits.c runs real threads.) */
static void run_backwards(void *pool, int64_t tasks, int workers, attn_task_fn task, void *context) {
  (void)pool;
  for (int64_t i = tasks - 1; i >= 0; i--) task(context, i, (int)(i % workers));
}

static attn_status run_plan(const attn_plan *plan, const attn_args *args) {
  const size_t bytes = attn_plan_workspace(plan);
  void *workspace = aligned_alloc(64, bytes ? bytes : 64);
  const attn_status status = workspace ? attn_plan_run(plan, args, workspace, bytes) : ATTN_OUT_OF_MEMORY;
  free(workspace);
  return status;
}

/* Runs the whole case again. False: reason says why not. */
static bool run_case_again(bench_structure *s, const attn_options *options) {
  attn_plan *plan = NULL;
  attn_status status = s->subject->create_plan(s->subject->context, &s->tensors->problem, options, &plan);
  if (status == ATTN_OK) status = run_plan(plan, &s->tensors->args);
  if (status != ATTN_OK)
    snprintf(s->reason, sizeof s->reason, "%s", status == ATTN_OUT_OF_MEMORY ? "out of memory" : attn_last_error());
  attn_plan_destroy(plan);
  return status == ATTN_OK;
}

static bench_outcome compare_threads(bench_structure *s, int threads, const unsigned char *before, unsigned char *after,
                                     size_t bytes) {
  const attn_options options = {.threads = threads, .parallel_for = run_backwards};
  bench_tensors_poison_output(s->tensors, 0xff);
  if (!run_case_again(s, &options)) return BENCH_CANNOT_RUN;
  bench_tensors_gather_output(s->tensors, after);
  if (!memcmp(before, after, bytes)) return BENCH_HOLDS;
  snprintf(s->reason, sizeof s->reason, "other bits with %d threads that take the tasks backwards", threads);
  return BENCH_BROKEN;
}

/* Afterwards the tensors hold the case's output again, unless the test failed. */
static bench_outcome test_threads(bench_structure *s) {
  static const int counts[] = {1, 2, 3, 7};
  const size_t bytes = bench_tensors_output_bytes(s->tensors);
  unsigned char *packed = malloc(2 * bytes + 1);
  if (!packed) return bench_structure_cannot_run(s, "out of memory");
  bench_outcome outcome = BENCH_HOLDS;
  bench_tensors_gather_output(s->tensors, packed);
  for (size_t i = 0; i < sizeof counts / sizeof *counts && outcome == BENCH_HOLDS; i++)
    outcome = compare_threads(s, counts[i], packed, packed + bytes, bytes);
  free(packed);
  return outcome;
}

/* ---- Other sizes ---------------------------------------------------------------------------------------------- */

/* Libraries choose their code by the size of a product, so their bits may differ in a view of another size: there the
 * limits decide. */
static bench_outcome same_answer(bench_structure *s, const bench_view *view, const char *what) {
  const attn_problem *whole = &s->tensors->problem;
  const bool same_size = view->problem.seq_q == whole->seq_q && view->problem.seq_k == whole->seq_k;
  return s->subject->rows_stand_alone || same_size ? bench_view_same_bits(s, view, what)
                                                   : bench_view_within_limits(s, view, NULL, false, what);
}

/* Runs the view, compares it with the whole, and clears it. */
static bench_outcome run_and_compare(bench_structure *s, bench_view *view, const char *what) {
  bench_outcome outcome = bench_view_run(s, view);
  if (outcome == BENCH_HOLDS) outcome = same_answer(s, view, what);
  bench_view_clear(view);
  return outcome;
}

static bench_outcome test_batch(bench_structure *s) {
  bench_view view = bench_view_of_sequence(s);
  return run_and_compare(s, &view, "as a sequence of its own");
}

static bench_outcome test_rows(bench_structure *s) {
  const int64_t first = bench_structure_pick(s, PICK_ROW, s->seq.len_q);
  const int64_t count = 1 + bench_structure_pick(s, PICK_ROWS, s->seq.len_q - first);
  if (count == s->seq.len_q) return BENCH_NOT_APPLICABLE;
  bench_view view = bench_view_of_sequence(s);
  bench_view_keep_rows(&view, first, count);
  return run_and_compare(s, &view, "without the other rows");
}

/* ---- Poison ---------------------------------------------------------------------------------------------------------- */

static void fill_row(void *rows, attn_dtype dtype, int64_t dim, int64_t row, double value) {
  for (int64_t d = 0; d < dim; d++) bench_store(rows, dtype, row * dim + d, value);
}

/* Whether any row of a KV head's query heads sees key j. */
static bool is_seen(const bench_view *v, int64_t kv_head, int64_t j) {
  const int64_t group = attn_group(&v->problem);
  for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++)
    for (int64_t i = 0; i < v->problem.seq_q; i++)
      if (bench_view_sees(v, h, i, j)) return true;
  return false;
}

static void poison_key(const bench_view *v, int64_t key, double poison) {
  const attn_problem *p = &v->problem;
  fill_row((void *)(uintptr_t)v->args.v, p->dtype_kv, p->dim_v, key, poison);
  if (p->score != ATTN_SCORE_PRECOMPUTED) fill_row((void *)(uintptr_t)v->args.k, p->dtype_kv, p->dim_qk, key, poison);
}

/* K and V of the keys that no row of their head sees. Returns how many there are. */
static int64_t poison_keys(const bench_view *v, double poison) {
  const attn_problem *p = &v->problem;
  int64_t poisoned = 0;
  for (int64_t g = 0; g < p->heads_kv; g++)
    for (int64_t j = 0; j < p->seq_k; j++) {
      if (is_seen(v, g, j)) continue;
      poison_key(v, g * p->seq_k + j, poison);
      poisoned++;
    }
  return poisoned;
}

/* The score and the bias of one pair, if it is masked by something else; n is its index. Bias comes last, as it decides
 * what is masked. */
static int64_t poison_pair(const bench_view *v, int64_t h, int64_t i, int64_t j, float poison) {
  const attn_problem *p = &v->problem;
  const int64_t n = (h * p->seq_q + i) * p->seq_k + j;
  const bool score = p->score == ATTN_SCORE_PRECOMPUTED && !bench_view_sees(v, h, i, j);
  const bool bias = attn_uses(p, ATTN_USE_BIAS) && !bench_view_sees_but_for_bias(v, h, i, j);
  if (score) ((float *)(uintptr_t)v->args.scores)[n] = poison;
  if (bias) ((float *)(uintptr_t)v->args.bias)[n] = poison;
  return score + bias;
}

static int64_t poison_pairs(const bench_view *v, float poison) {
  const attn_problem *p = &v->problem;
  int64_t poisoned = 0;
  if (p->score != ATTN_SCORE_PRECOMPUTED && !attn_uses(p, ATTN_USE_BIAS)) return 0;
  for (int64_t h = 0; h < p->heads_q; h++)
    for (int64_t i = 0; i < p->seq_q; i++)
      for (int64_t j = 0; j < p->seq_k; j++) poisoned += poison_pair(v, h, i, j, poison);
  return poisoned;
}

static bench_outcome test_poison(bench_structure *s) {
  static const float poisons[] = {NAN, INFINITY, -INFINITY, 3e38f};
  const float poison = poisons[bench_structure_pick(s, PICK_POISON, sizeof poisons / sizeof *poisons)];
  bench_view view = bench_view_of_sequence(s);
  int64_t poisoned = 0;
  bench_view_copy_keys_in_order(&view);
  if (!view.out_of_memory) poisoned += poison_keys(&view, (double)poison);
  if (!view.out_of_memory) poisoned += poison_pairs(&view, poison);
  if (poisoned || view.out_of_memory) return run_and_compare(s, &view, "with poison in what it may not see");
  bench_view_clear(&view);
  return BENCH_NOT_APPLICABLE;
}

/* ---- All of them ----------------------------------------------------------------------------------------------------- */

#define NAME(name, what)  #name,
#define CLAIM(name, what) what,
static const char *const names[] = {BENCH_STRUCTURE_LIST(NAME)};
static const char *const claims[] = {BENCH_STRUCTURE_LIST(CLAIM)};

const char *bench_structure_name(bench_structure_test test) { return names[test]; }
const char *bench_structure_claim(bench_structure_test test) { return claims[test]; }

static bench_outcome (*const tests[])(bench_structure *) = {
    [BENCH_STRUCTURE_threads] = test_threads,
    [BENCH_STRUCTURE_batch] = test_batch,
    [BENCH_STRUCTURE_rows] = test_rows,
    [BENCH_STRUCTURE_poison] = test_poison,
    [BENCH_STRUCTURE_neighbours] = bench_structure_neighbours,
    [BENCH_STRUCTURE_probe] = bench_structure_probe,
    [BENCH_STRUCTURE_convex] = bench_structure_convex,
    [BENCH_STRUCTURE_permutation] = bench_structure_permutation,
    [BENCH_STRUCTURE_heads] = bench_structure_heads,
    [BENCH_STRUCTURE_partition] = bench_structure_partition,
};

/* A sequence with queries and keys, by seed; false if the case has none. */
static bool choose_sequence(bench_structure *s) {
  const int64_t batch = s->tensors->problem.batch;
  if (batch == 0) return false;
  const int64_t start = bench_structure_pick(s, PICK_SEQUENCE, batch);
  for (int64_t n = 0; n < batch; n++) {
    s->seq = attn_sequence_of(&s->tensors->problem, &s->tensors->args, (start + n) % batch);
    if (s->seq.len_q > 0 && s->seq.len_k > 0) return true;
  }
  return false;
}

static void explain(bench_verdict *verdict, int test, bench_outcome outcome, const char *reason) {
  if (outcome != BENCH_BROKEN && outcome != BENCH_CANNOT_RUN) return;
  bench_set_reason(verdict, outcome == BENCH_BROKEN ? BENCH_FAIL : BENCH_ERROR, "structural test '%s': %s", names[test],
                   reason);
}

bench_verdict bench_structure_check(const bench_subject *subject, bench_tensors *tensors, const bench_expected *expected,
                                    uint64_t seed, unsigned set, unsigned *ran) {
  bench_structure s = {.subject = subject, .tensors = tensors, .expected = expected, .seed = seed};
  bench_verdict verdict = {.status = BENCH_PASS};
  *ran = 0;
  if (!choose_sequence(&s)) return verdict;
  for (int test = 0; test < BENCH_STRUCTURE_TESTS && verdict.status == BENCH_PASS; test++) {
    if (!(set >> test & 1)) continue;
    const bench_outcome outcome = tests[test](&s);
    if (outcome != BENCH_NOT_APPLICABLE) *ran |= 1u << test;
    explain(&verdict, test, outcome, s.reason);
  }
  return verdict;
}
