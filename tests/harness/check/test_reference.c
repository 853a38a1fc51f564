/* SPDX-License-Identifier: MIT */
/* Rows that the oracle has not computed: which kernel answers for them, what it answers, and who is right where it differs.
 * Small cases stand for large ones: the oracle's rows are cut down to a few. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases/cases.h"
#include "check/check.h"
#include "tests/support/failing_malloc.h"
#include "tests/support/layer_support.h"

enum { KEPT = 3 };

static const char small[] = "heads:2/seq:20/head_dim:8";

typedef struct cut_case {
  bench_case bench;
  bench_tensors tensors;
  bench_expected *expected; /* its first `KEPT` rows only */
  int64_t all;              /* rows of the problem */
} cut_case;

static attn_status run_kernel(const attn_problem *problem, const char *name, const attn_args *args) {
  attn_plan *plan;
  test_ok(attn_plan_create(problem, &ATTN_STRUCT(attn_options, .kernel = name, .threads = 1), &plan));
  const attn_status status = bench_run_once(plan, args);
  attn_plan_destroy(plan);
  return status;
}

/* The case with the answer of naive_c in its output. */
static cut_case open_cut(const char *id) {
  cut_case c = {.bench = valid_case(id)};
  assert_true(bench_tensors_create(&c.bench, &c.tensors));
  c.expected = bench_expected_create(&c.bench.problem, &c.tensors.args, 1, true);
  assert_non_null(c.expected);
  assert_true(c.expected->complete);
  c.all = c.expected->rows;
  c.expected->complete = false;
  c.expected->rows = KEPT;
  test_ok(run_kernel(&c.bench.problem, "naive_c", &c.tensors.args));
  return c;
}

static void close_cut(cut_case *c) {
  bench_expected_destroy(c->expected);
  bench_tensors_destroy(&c->tensors);
}

/* A kernel that shares code with none. */
static const attn_kernel_info unrelated = {.name = "unrelated", .algorithm = "none", .isa = "none", .library = ""};

static bench_verdict check_as(const cut_case *c, const attn_kernel_info *kernel) {
  return bench_check_other_values(c->expected, &c->tensors.args, &(attn_numerics){.exp_error = 0x1p-22}, kernel);
}

static bench_verdict check(const cut_case *c) { return check_as(c, &unrelated); }

static float *output_at(const cut_case *c, int64_t b, int64_t h, int64_t i) {
  const bench_expected_row row = {.b = b, .h = h, .i = i};
  const attn_problem *p = &c->bench.problem;
  return (float *)c->tensors.args.o + bench_row_place(p, &c->tensors.args, &p->o_stride, &row);
}

/* Where memory is short, a look at an output that is wrong everywhere does not pass it, and keeps no memory. */
TEST(looks_without_memory_pass_nothing) {
  cut_case c = open_cut(small);
  const attn_problem *p = &c.bench.problem;
  for (int64_t n = 0; n < p->heads_q * p->seq_q * p->dim_v; n++) ((float *)c.tensors.args.o)[n] += 1;
  const int held = blocks_held;
  int failed = 0;
  for (int enough = 0, n = 0; enough < 3; n++) {
    allocations_left = n;
    const bench_verdict verdict = bench_check_odd_row(p, &c.tensors.args, &(attn_numerics){0}, true, 1, &unrelated, 1);
    enough += allocations_left > 0;
    failed += allocations_left == 0 && verdict.status == BENCH_ERROR;
    allocations_left = -1;
    if (verdict.status != BENCH_FAIL && verdict.status != BENCH_ERROR) fail_msg("%d allocations: it passes", n);
    assert_int_equal(blocks_held, held);
  }
  assert_true(failed > 0);
  close_cut(&c);
}

/* ---- Which kernel ---------------------------------------------------------------------------------------------------- */

static bool may_refer(const attn_kernel_info *kernel, const attn_problem *p) {
  const attn_numerics *n = &kernel->numerics;
  const bool exact = !(n->p_rounding > 0) && !(n->input_rounding > 0) && !(n->query_rounding > 0) && n->exp_error <= 0x1p-21;
  return !kernel->library[0] && exact && strcmp(kernel->algorithm, "decode") && !attn_kernel_rejects(kernel, p);
}

/* Counts the properties that two kernels share: 1 for the tier, 1 for the algorithm. */
static int shared(const attn_kernel_info *a, const attn_kernel_info *b) {
  return !strcmp(a->isa, b->isa) + !strcmp(a->algorithm, b->algorithm);
}

static void expect_least_alike(const attn_kernel_info *checked, const attn_problem *p, const attn_kernel_info *chosen) {
  for (int i = 0; i < attn_kernel_count(); i++) {
    const attn_kernel_info *other = attn_kernel_get(i);
    if (!may_refer(other, p)) continue;
    if (shared(other, checked) < shared(chosen, checked)) fail_msg("%s, not %s", other->name, chosen->name);
    if (shared(other, checked) == shared(chosen, checked) && !strcmp(other->name, "naive_c"))
      assert_string_equal(chosen->name, "naive_c"); /* one of several, in small problems */
  }
}

TEST(references_share_the_least_with_the_kernel_to_check) {
  for (int i = -1; i < attn_kernel_count(); i++) {
    const attn_kernel_info *checked = i < 0 ? &unrelated : attn_kernel_get(i);
    cut_case c = open_cut(small);
    assert_int_equal(check_as(&c, checked).status, BENCH_PASS);
    assert_true(may_refer(c.expected->reference->kernel, &c.expected->reference->problem));
    expect_least_alike(checked, &c.expected->reference->problem, c.expected->reference->kernel);
    close_cut(&c);
  }
}

/* The answer of one reference serves all kernels that are not like it. */
TEST(references_stay_while_they_are_not_like_the_kernel) {
  cut_case c = open_cut(small);
  const bench_reference *r = c.expected->reference;
  assert_int_equal(check(&c).status, BENCH_PASS);
  assert_string_equal(r->kernel->name, "naive_c");
  const float *m = r->m; /* computed once, whichever kernel comes next */
  for (int64_t n = 0; n < KEPT * c.bench.problem.dim_v; n++)
    r->output[BENCH_O][n] = 77; /* in the oracle's rows: would it run again? */
  assert_int_equal(check_as(&c, NULL).status, BENCH_PASS);
  assert_true(r->output[BENCH_O][0] == 77);
  assert_int_equal(check_as(&c, r->kernel).status, BENCH_PASS);
  assert_true(r->output[BENCH_O][0] != 77 && r->m == m);
  close_cut(&c);
}

/* A kernel like the last reference gets another one; where the oracle contradicts all others, the last one stays. */
TEST(a_reference_is_kept_where_no_other_is_left) {
  cut_case c = open_cut(small);
  assert_int_equal(check(&c).status, BENCH_PASS);
  const attn_kernel_info *last = c.expected->reference->kernel, *alike = NULL;
  c.expected->reference->wrong = ~(uint64_t)0;
  for (int i = 0; i < attn_kernel_count(); i++) {
    const attn_kernel_info *kernel = attn_kernel_get(i);
    if (kernel == last) c.expected->reference->wrong &= ~((uint64_t)1 << i);
    if (shared(kernel, last) == 1) alike = kernel;
  }
  assert_non_null(alike);
  assert_string_equal(check_as(&c, alike).reference, last->name);
  close_cut(&c);
}

/* Where the oracle's own rows refute every kernel, none is believed. */
TEST(references_that_the_oracle_refutes_are_not_believed) {
  cut_case c = open_cut(small);
  c.expected->o[KEPT * c.bench.problem.dim_v - 1] += 1;
  const bench_verdict verdict = check(&c);
  assert_int_equal(verdict.status, BENCH_ERROR);
  test_contains(verdict.reason, "no kernel, or no memory");
  assert_string_equal(verdict.reference, "");
  for (int i = 0; i < attn_kernel_count() && i < 64; i++)
    assert_int_equal(c.expected->reference->wrong >> i & 1, may_refer(attn_kernel_get(i), &c.expected->reference->problem));
  close_cut(&c);
}

/* ---- Differences ----------------------------------------------------------------------------------------------------- */

TEST(complete_answers_need_no_reference) {
  cut_case c = open_cut(small);
  c.expected->complete = true;
  *output_at(&c, 0, 1, 19) += 1;
  assert_int_equal(check(&c).status, BENCH_PASS);
  assert_null(c.expected->reference->kernel);
  close_cut(&c);
}

/* The reference is spoilt in 256 rows, in which the oracle finds the kernel right; one more is an error. */
TEST(references_may_err_in_256_rows) {
  cut_case c = open_cut("heads:1/seq:300/head_dim:8");
  assert_int_equal(check(&c).status, BENCH_PASS);
  float *o = c.expected->reference->output[BENCH_O];
  for (int64_t i = KEPT; i < KEPT + 256; i++) o[8 * i + 5] += 1;
  assert_int_equal(check(&c).status, BENCH_PASS);
  o[8 * 299] += 1;
  const bench_verdict verdict = check(&c);
  assert_int_equal(verdict.status, BENCH_ERROR);
  test_contains(verdict.reason, "differs from naive_c in more than 256 rows that the oracle finds right");
  close_cut(&c);
}

/* A row that the oracle finds right says how large facts may be; one that it finds wrong does not. */
TEST(references_learn_from_right_rows_only) {
  cut_case c = open_cut("heads:1/seq:60/head_dim:8/causal:top-left");
  const bench_reference *r = c.expected->reference;
  assert_int_equal(check(&c).status, BENCH_PASS);
  const double known = r->largest.max_v, last = c.expected->row[59].facts.max_v;
  assert_true(known < last); /* it sees all keys */
  float *o = output_at(&c, 0, 0, 59), right = *o;
  *o = 5;
  assert_int_equal(check(&c).status, BENCH_FAIL);
  assert_true(r->largest.max_v == known);
  *o = right;
  r->output[BENCH_O][8 * 59] += 1;
  assert_int_equal(check(&c).status, BENCH_PASS);
  assert_true(r->largest.max_v == last);
  close_cut(&c);
}

/* ---- Answers that fail ----------------------------------------------------------------------------------------------- */

/* Runs of plans number first_bad to last_bad fail, counted from the last reset. The linker's --wrap calls these functions
 * in place of attn_plan_run(). */
static int runs, first_bad = -1, last_bad = -1;

attn_status __real_attn_plan_run(const attn_plan *plan, const attn_args *args, void *workspace, size_t bytes);
attn_status __wrap_attn_plan_run(const attn_plan *plan, const attn_args *args, void *workspace, size_t bytes);
attn_status __wrap_attn_plan_run(const attn_plan *plan, const attn_args *args, void *workspace, size_t bytes) {
  const int number = runs++;
  return first_bad <= number && number <= last_bad ? ATTN_OUT_OF_MEMORY : __real_attn_plan_run(plan, args, workspace, bytes);
}

static bench_verdict watch_naive(const cut_case *c, int first, int last, int allocations) {
  attn_plan *plan;
  bench_tensors tensors = c->tensors;
  test_ok(attn_plan_create(&c->bench.problem, &ATTN_STRUCT(attn_options, .kernel = "naive_c", .threads = 1), &plan));
  const size_t bytes = attn_plan_workspace(plan);
  void *workspace = test_allocate(bytes);
  runs = 0, first_bad = first, last_bad = last, allocations_left = allocations;
  const bench_verdict verdict =
      bench_check(plan, &tensors, c->expected, &attn_kernel_find("naive_c")->numerics, workspace, bytes);
  first_bad = last_bad = allocations_left = -1;
  free(workspace);
  attn_plan_destroy(plan);
  return verdict;
}

/* The kernel runs, then its reference for M and O, then the kernel again. One run fails, or all from then on. */
TEST(a_second_answer_that_fails_is_no_pass) {
  char usual[32] = "";
  for (int first = -1; first < 4; first++)
    for (int last = first; last < 100; last += 99 - first) {
      cut_case c = open_cut(small);
      const bench_verdict verdict = watch_naive(&c, first, first < 0 ? -1 : last, -1);
      const bool fine = first < 0 || (last < 3 && first > 0); /* another reference takes its place */
      assert_int_equal(verdict.status, fine ? BENCH_PASS : BENCH_ERROR);
      if (first < 0) assert_int_equal(runs, 4);
      if (first < 0) memcpy(usual, verdict.reference, sizeof usual);
      if (fine) assert_int_equal(strcmp(verdict.reference, usual) != 0, first > 0);
      test_contains(verdict.reason, fine ? "" : "ATTN_OUT_OF_MEMORY");
      close_cut(&c);
    }
}

/* If an allocation fails, the second answer is complete or reported as missing, and the next kernel gets one. */
TEST(half_a_reference_is_none) {
  bench_verdict verdict = {.status = BENCH_ERROR};
  int allocations = 0;
  for (; verdict.status == BENCH_ERROR && allocations < 20; allocations++) {
    cut_case c = open_cut(small);
    verdict = watch_naive(&c, -1, -1, allocations);
    if (verdict.status == BENCH_ERROR) test_contains(verdict.reason, "memory");
    c.expected->reference->wrong = 0;
    assert_int_equal(watch_naive(&c, -1, -1, -1).status, BENCH_PASS);
    for (int64_t n = 0; n < c.all * 8; n++)
      assert_true(fabs((double)c.expected->reference->m[n] - c.expected->m[n]) <= 1e-4 * c.expected->m[n]);
    close_cut(&c);
  }
  assert_int_equal(verdict.status, BENCH_PASS);
  assert_in_range(allocations, 6,
                  19); /* copies of the output; O, LSE and M of the second kernel; |V|; and those of its plan */
}
