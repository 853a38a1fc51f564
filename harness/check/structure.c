/* SPDX-License-Identifier: MIT */
/* Structural tests with other threads, other sizes, reordered and divided keys; and the loop over all tests. */
#include "check/structure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check/check.h"
#include "check/structure_private.h"

/* ---- Threads --------------------------------------------------------------------------------------------------------- */

/* A pool that runs all tasks itself, the last one first, and names one worker after the other. So a result that depends
 * on how work is divided shows without starting a thread. (tests/kernels/test_bits.c runs real threads.) */
static void run_backwards(void *pool, int64_t tasks, int workers, attn_task_fn task, void *context) {
  (void)pool;
  for (int64_t i = tasks - 1; i >= 0; i--) task(context, i, (int)(i % workers));
}

static bench_outcome compare_threads(bench_structure *s, int threads, const unsigned char *before, unsigned char *after,
                                     size_t bytes) {
  const attn_options options = ATTN_STRUCT(attn_options, .threads = threads, .parallel_for = run_backwards);
  bench_tensors_poison_output(s->tensors, 0xff, 1);
  const attn_status status = bench_structure_run(s, &s->tensors->problem, &s->tensors->args, &options);
  if (status == ATTN_OUT_OF_MEMORY) return bench_outcome_of(s, BENCH_CANNOT_RUN, "out of memory");
  if (status != ATTN_OK) return bench_outcome_of(s, BENCH_CANNOT_RUN, "%s", attn_last_error());
  bench_tensors_gather_output(s->tensors, after);
  if (!memcmp(before, after, bytes)) return BENCH_HOLDS;
  return bench_outcome_of(s, BENCH_BROKEN, "other bits with %d threads that take the tasks backwards", threads);
}

/* Afterwards the tensors hold the case's output again, unless the test failed. */
static bench_outcome test_threads(bench_structure *s) {
  static const int counts[] = {1, 2, 3, 7};
  const size_t bytes = bench_tensors_output_bytes(s->tensors);
  unsigned char *packed = malloc(2 * bytes + 1);
  if (!packed) return bench_outcome_of(s, BENCH_CANNOT_RUN, "out of memory");
  bench_outcome outcome = BENCH_HOLDS;
  bench_tensors_gather_output(s->tensors, packed);
  for (size_t i = 0; i < sizeof counts / sizeof *counts && outcome == BENCH_HOLDS; i++)
    outcome = compare_threads(s, counts[i], packed, packed + bytes, bytes);
  free(packed);
  return outcome;
}

static bench_outcome test_batch(bench_structure *s) {
  bench_view view = bench_view_of_sequence(s);
  return bench_view_check(s, &view, bench_likeness_of(s, &view), "as a sequence of its own");
}

static bench_outcome test_rows(bench_structure *s) {
  const int64_t first = bench_structure_pick(s, BENCH_PICK_ROW, s->seq.len_q);
  const int64_t count = 1 + bench_structure_pick(s, BENCH_PICK_ROWS, s->seq.len_q - first);
  if (count == s->seq.len_q) return BENCH_NOT_APPLICABLE;
  bench_view view = bench_view_of_sequence(s);
  bench_view_keep_rows(&view, first, count);
  return bench_view_check(s, &view, bench_likeness_of(s, &view), "without the other rows");
}

/* ---- All of them ----------------------------------------------------------------------------------------------------- */

#define NAME(name, what) #name,
static const char *const names[] = {BENCH_STRUCTURE_LIST(NAME)};

const char *bench_structure_name(bench_structure_test test) { return names[test]; }

static bench_outcome (*const tests[])(bench_structure *) = {
    [BENCH_STRUCTURE_threads] = test_threads,
    [BENCH_STRUCTURE_batch] = test_batch,
    [BENCH_STRUCTURE_rows] = test_rows,
    [BENCH_STRUCTURE_poison] = bench_structure_poison,
    [BENCH_STRUCTURE_neighbours] = bench_structure_neighbours,
    [BENCH_STRUCTURE_probe] = bench_structure_probe,
    [BENCH_STRUCTURE_convex] = bench_structure_convex,
    [BENCH_STRUCTURE_permutation] = bench_structure_permutation,
    [BENCH_STRUCTURE_heads] = bench_structure_heads,
    [BENCH_STRUCTURE_partition] = bench_structure_partition,
    [BENCH_STRUCTURE_pieces] = bench_structure_pieces,
};

/* A sequence with queries and keys, by seed; false if the case has none. */
static bool choose_sequence(bench_structure *s) {
  const int64_t batch = s->tensors->problem.batch, start = batch ? bench_structure_pick(s, BENCH_PICK_SEQUENCE, batch) : 0;
  for (int64_t n = 0; n < batch; n++) {
    s->seq = attn_sequence_of(&s->tensors->problem, &s->tensors->args, (start + n) % batch);
    if (s->seq.len_q > 0 && s->seq.len_k > 0) return true;
  }
  return false;
}

bench_verdict bench_structure_check(const bench_subject *subject, bench_tensors *tensors, const bench_expected *expected,
                                    uint64_t seed, unsigned set, unsigned *ran) {
  bench_structure s = {.subject = subject, .tensors = tensors, .expected = expected, .seed = seed};
  bench_verdict verdict = {.status = BENCH_PASS};
  *ran = 0;
  set &= bench_answers[tensors->problem.operation].structure;
  if (tensors->problem.dropout > 0) set &= 1u << BENCH_STRUCTURE_threads; /* in other places, others are dropped */
  if (!choose_sequence(&s)) return verdict;
  if (!bench_view_gather_keys(&s)) bench_set_reason(&verdict, BENCH_ERROR, "out of memory: copies of keys and values");
  for (int test = 0; test < BENCH_STRUCTURE_TESTS && verdict.status == BENCH_PASS; test++) {
    if (!(set >> test & 1)) continue;
    const bench_outcome outcome = tests[test](&s);
    if (outcome != BENCH_NOT_APPLICABLE) *ran |= 1u << test;
    if (outcome == BENCH_BROKEN || outcome == BENCH_CANNOT_RUN)
      bench_set_reason(&verdict, outcome == BENCH_BROKEN ? BENCH_FAIL : BENCH_ERROR, "structural test '%s': %s", names[test],
                       s.reason);
  }
  bench_view_clear(&s.dense);
  return verdict;
}

enum { CONVEX_ROWS = 16 };

/* ---- Convexity ------------------------------------------------------------------------------------------------------- */

/* The least and the largest value in each column that a row may see. */
typedef struct hull {
  double *low, *high; /* [dim_v] */
} hull;

/* Sets the hull of row i of head h. A sink is a key with value 0. False if the row sees no key. */
static bool find_hull(const bench_view *v, int64_t h, int64_t i, hull range) {
  const attn_problem *p = &v->problem;
  const bool sink = attn_uses(p, ATTN_USE_SINKS);
  bool any = false;
  for (int64_t d = 0; d < p->dim_v; d++) range.low[d] = sink ? 0 : INFINITY, range.high[d] = sink ? 0 : -INFINITY;
  for (int64_t j = 0; j < p->seq_k; j++) {
    const int64_t at = attn_kv_head(p, h) * p->v_stride.h + j * p->v_stride.s;
    const bool seen = bench_view_sees(v, h, i, j);
    any |= seen;
    for (int64_t d = 0; seen && d < p->dim_v; d++) {
      const double scale = bench_v_scale(p, &v->args, &(bench_expected_row){.h = h}, j, d);
      const double value = scale * attn_oracle_load(v->args.v, p->dtype_kv, at + d * p->v_stride.d);
      range.low[d] = fmin(range.low[d], value);
      range.high[d] = fmax(range.high[d], value);
    }
  }
  return any;
}

static bench_outcome row_is_convex(bench_structure *s, const bench_view *v, int64_t n, hull range) {
  const bench_expected *e = s->expected;
  const bench_expected_row *row = &e->row[n];
  const attn_problem *whole = &s->tensors->problem;
  const bench_row_limits limits = bench_limits_of_row(&e->problem, s->subject->numerics, &row->facts, e->zero_mean);
  const int64_t dim_v = whole->dim_v, at = attn_o_offset(whole, &s->seq, row->b, row->h, row->i);
  if (!find_hull(v, row->h, row->i, range)) return BENCH_HOLDS;
  for (int64_t d = 0; d < dim_v; d++) {
    const double got = attn_oracle_load(s->tensors->args.o, whole->dtype_o, at + d * whole->o_stride.d);
    const double nearest = fmin(fmax(got, range.low[d]), range.high[d]);
    if (!(bench_output_ratio(&limits, nearest, e->m[n * dim_v + d], e->w[n * dim_v + d], got) <= 1))
      return bench_outcome_of(
          s, BENCH_BROKEN, "o[batch %lld, head %lld, query %lld, column %lld] is %.9g, but its values lie in %.9g .. %.9g",
          (long long)row->b, (long long)row->h, (long long)row->i, (long long)d, got, range.low[d], range.high[d]);
  }
  return BENCH_HOLDS;
}

static bool is_of_sequence(const bench_structure *s, const bench_expected_row *row) {
  return row->b == s->seq.b && row->i < s->seq.len_q;
}

bench_outcome bench_structure_convex(bench_structure *s) {
  const bench_expected *e = s->expected;
  bench_view view = bench_view_of_sequence(s);
  double *memory = bench_view_allocate(&view, 2 * view.problem.dim_v, sizeof *memory);
  if (!memory) return bench_outcome_of(s, BENCH_CANNOT_RUN, "out of memory");
  bench_outcome outcome = BENCH_NOT_APPLICABLE;
  const int64_t start = bench_structure_pick(s, BENCH_PICK_CONVEX_ROW, e->rows);
  for (int64_t k = 0, seen = 0; k < e->rows && seen < CONVEX_ROWS && outcome != BENCH_BROKEN; k++) {
    const int64_t n = (start + k) % e->rows;
    if (!is_of_sequence(s, &e->row[n])) continue;
    outcome = row_is_convex(s, &view, n, (hull){memory, memory + view.problem.dim_v});
    seen++;
  }
  bench_view_clear(&view);
  return outcome;
}

/* ---- Keys in another order, heads repeated --------------------------------------------------------------------------- */

/* A seeded permutation: Fisher-Yates, inside out. NULL if memory is short. */
static int64_t *permute(const bench_structure *s, bench_view *view) {
  const int64_t keys = view->problem.seq_k;
  int64_t *order = bench_view_allocate(view, keys, sizeof *order);
  for (int64_t j = 0; order && j < keys; j++) {
    const int64_t other = bench_structure_pick(s, BENCH_PICK_ORDER + (int)j, j + 1);
    order[j] = order[other];
    order[other] = j;
  }
  return order;
}

bench_outcome bench_structure_permutation(bench_structure *s) {
  bench_view view = bench_view_of_sequence(s);
  if (view.problem.seq_k < 2 || attn_uses(&view.problem, ATTN_USE_ALIBI)) return BENCH_NOT_APPLICABLE;
  if (bench_view_is_positional(&view)) bench_view_forget_positions(&view);
  const int64_t *order = permute(s, &view);
  if (!view.out_of_memory) bench_view_copy_keys(&view, order);
  return bench_view_check(s, &view, BENCH_WITHIN_LIMITS, "with keys in another order");
}

/* The view repeats one KV head, by a stride of 0, until there are as many KV heads as query heads. */
bench_outcome bench_structure_heads(bench_structure *s) {
  if (s->tensors->problem.heads_q == s->tensors->problem.heads_kv) return BENCH_NOT_APPLICABLE;
  bench_view view = bench_view_of_kv_head(s);
  view.problem.heads_kv = view.problem.heads_q;
  view.problem.k_stride.h = view.problem.v_stride.h = 0;
  view.problem.k_scale_stride.h = view.problem.v_scale_stride.h = 0;
  return bench_view_check(s, &view, BENCH_WITHIN_LIMITS, "with KV heads repeated");
}

/* ---- Partition ------------------------------------------------------------------------------------------------------- */

enum { PARTS = 3 };

/* Part `n` of 3: a section between cuts by seed, or every third key. Float32, as attn_merge takes it, and without the sink,
 * which is applied last. */
static bench_view part_of(const bench_structure *s, int n, bool interleaved) {
  bench_view part = bench_view_of_sequence(s);
  const int64_t keys = part.problem.seq_k, first = bench_structure_pick(s, BENCH_PICK_CUT, keys + 1);
  const int64_t cuts[PARTS + 1] = {0, first, first + bench_structure_pick(s, BENCH_PICK_KEY, keys - first + 1), keys};
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
  whole->args.o = bench_view_allocate(whole, attn_operand_set_dense(&whole->problem, ATTN_OPERAND_O), sizeof(float));
  whole->args.lse = bench_view_allocate(whole, attn_operand_set_dense(&whole->problem, ATTN_OPERAND_LSE), sizeof(float));
  if (whole->out_of_memory) return bench_outcome_of(s, BENCH_CANNOT_RUN, "out of memory");
  if (attn_merge(PARTS, rows, p->dim_v, o, lse, whole->args.o, whole->args.lse) != ATTN_OK)
    return bench_outcome_of(s, BENCH_CANNOT_RUN, "%s", attn_last_error());
  if (attn_uses(p, ATTN_USE_SINKS)) apply_sinks(whole);
  return BENCH_HOLDS;
}

static bench_outcome merge_partition(bench_structure *s, bool interleaved) {
  const char *what = interleaved ? "merged from every third key" : "merged from parts";
  bench_view whole = bench_view_of_sequence(s), parts[PARTS] = {{.owned_count = 0}};
  whole.problem.dtype_o = ATTN_F32;
  bench_outcome outcome = BENCH_HOLDS;
  for (int n = 0; n < PARTS && outcome == BENCH_HOLDS; n++) {
    parts[n] = part_of(s, n, interleaved);
    outcome = bench_view_run(s, &parts[n]);
  }
  if (outcome == BENCH_HOLDS) outcome = merge(s, &whole, parts);
  if (outcome == BENCH_HOLDS) outcome = bench_view_compare(s, &whole, BENCH_MERGED, what);
  for (int n = 0; n < PARTS; n++) bench_view_clear(&parts[n]);
  bench_view_clear(&whole);
  return outcome;
}

bench_outcome bench_structure_partition(bench_structure *s) {
  const bench_view view = bench_view_of_sequence(s);
  const bench_outcome outcome = merge_partition(s, false);
  return outcome == BENCH_HOLDS && !bench_view_is_positional(&view) ? merge_partition(s, true) : outcome;
}
