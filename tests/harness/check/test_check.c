/* SPDX-License-Identifier: MIT */
/* Tests of the verdict: the limits that a case has, and checked runs of kernels with one fault each. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases/cases.h"
#include "check/check.h"
#include "src/plan/plan.h"
#include "tests/support/layer_support.h"
#include "timing/setup.h"

/* ---- The limits of a case -------------------------------------------------------------------------------------------- */

static bool meets_the_sharp_limit(const char *id) {
  static const bench_case_settings settings = {.timed = false};
  const bench_case bench = case_of(id);
  const attn_kernel_info *kernel = attn_kernel_find("naive_c");
  bench_setup *setup = bench_setup_open(&bench, &kernel, 1, &settings);
  assert_non_null(setup);
  const bool sharp = setup->expected->zero_mean;
  bench_setup_close(setup);
  return sharp;
}

TEST(cases_meet_the_sharp_limit_where_errors_average_out) {
  assert_true(meets_the_sharp_limit("heads:1/seq:12/head_dim:8"));
  assert_false(meets_the_sharp_limit("heads:1/seq:12/head_dim:8/values:positive"));
  assert_true(meets_the_sharp_limit("heads:1/seq:12/head_dim:8/magnitude:1e-3"));
}

/* ---- Checked runs ---------------------------------------------------------------------------------------------------- */

/* The fault that the kernel makes after it has written the right answer. */
typedef enum fault {
  NONE,
  WRONG_VALUE,
  AFTER_WORKSPACE,
  BEFORE_WORKSPACE,
  IN_A_GAP,
  BEHIND_O,
  ON_AN_INPUT,
  SECOND_RUN,
  WRONG_TILE,
  SCALED,
  LEAVES_OUT,
  READS_WORKSPACE,
  SECOND_CALL,
  SECOND_ELEMENT
} fault;

enum { SLACK = 4096, TILE = 6 };

static struct {
  fault fault;
  float error; /* error of WRONG_VALUE */
  int runs;
  size_t workspace_bytes;
  float declared;  /* exp error; SCALED multiplies the output by 1 + this */
  float before;    /* the value before the run, which LEAVES_OUT restores */
  bool is_second;  /* for READS_WORKSPACE: the workspace held the second poison */
  int64_t tile;    /* first row of WRONG_TILE */
  attn_args *args; /* those of the case */
  int64_t element; /* element of O or LSE that SECOND_ELEMENT changes */
  bool in_lse;
} now = {.error = 0.01f};

extern const attn_kernel attn_naive_c;

/* The first run gets the test's own workspace with room around it; the second run gets one between guards. */
static void run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory, void *scratch) {
  if (task.item == 0 && task.phase == 0) now.before = ((const float *)args->o)[3];
  if (task.item == 0 && task.phase == 0) now.is_second = *(const unsigned char *)scratch == 0x7d;
  attn_naive_c.run(schedule, args, task, unit_memory, scratch);
  if (task.item + 1 < schedule->items[task.phase]) return;
  const bool second = ++now.runs == 2;
  float *o = args->o;
  unsigned char *workspace = scratch;
  if (now.fault == LEAVES_OUT) o[3] = now.before;
  if (now.fault == SECOND_CALL && !second) now.args->q = NULL; /* so that the library refuses the second call */
  if (now.fault == READS_WORKSPACE && now.is_second) o[3] = nextafterf(o[3], 2);
  if (now.fault == WRONG_VALUE) o[3] += now.error;
  if (now.fault == SECOND_ELEMENT && now.runs == 2 * schedule->units)
    *(now.in_lse ? &args->lse[now.element] : &o[now.element]) += 1;
  if (now.fault == SECOND_RUN && second) o[3] = nextafterf(o[3], 2);
  for (int64_t n = 0; now.fault == WRONG_TILE && n < TILE * schedule->problem.dim_v; n++)
    o[now.tile * schedule->problem.o_stride.s + n] *= 1.01f;
  for (int64_t n = 0; now.fault == SCALED && n < schedule->problem.seq_q * schedule->problem.dim_v; n++)
    o[n] *= 1 + now.declared;
  if (now.fault == AFTER_WORKSPACE) memset(workspace + now.workspace_bytes, 1, 64);
  if (now.fault == BEFORE_WORKSPACE) workspace[-1] = 1;
  if (now.fault == IN_A_GAP) o[schedule->problem.dim_v * schedule->problem.o_stride.d] = 1;
  if (now.fault == BEHIND_O) o[schedule->problem.seq_q * schedule->problem.o_stride.s + 8] = 1;
  if (now.fault == ON_AN_INPUT && second) ((float *)(uintptr_t)args->q)[0] += 1;
}

/* The first row of a tile near the middle of the last head, in which the oracle computes no row. */
static int64_t find_tile(const bench_expected *expected) {
  const attn_problem *p = &expected->problem;
  for (int64_t first = p->seq_q / 2;; first++) {
    bool chosen = false;
    for (int64_t n = 0; n < expected->rows; n++) {
      const bench_expected_row *row = &expected->row[n];
      chosen |= row->h == p->heads_q - 1 && row->i >= first && row->i < first + TILE;
    }
    if (!chosen) return first;
  }
}

/* Checks a kernel with one fault, on a case of one unit. */
static bench_verdict verdict_on(fault what, const char *id) {
  attn_kernel kernel = attn_naive_c;
  attn_plan *plan;
  const bench_case bench = case_of(id);
  bench_tensors tensors;
  kernel.run = run;
  now.args = &tensors.args;
  if (now.declared > 0) kernel.info.numerics.exp_error = (double)now.declared;
  test_ok(attn_plan_create_for_kernel(&bench.problem, &kernel, &ATTN_STRUCT(attn_options, .threads = 1), &plan));
  assert_true(bench_tensors_create(&bench, &tensors));
  bench_expected *expected = bench_expected_create(&bench.problem, &tensors.args, 1, true);
  assert_non_null(expected);
  now.runs = 0;
  if (what == WRONG_TILE) now.tile = find_tile(expected);
  now.workspace_bytes = attn_plan_workspace(plan);
  unsigned char *memory = test_allocate(now.workspace_bytes + 2 * SLACK);
  now.fault = NONE; /* leaves the right answer in o, for a check that would not poison o */
  if (what == LEAVES_OUT)
    (void)bench_check(plan, &tensors, expected, &kernel.info.numerics, memory + SLACK, now.workspace_bytes);
  now.fault = what;
  const bench_verdict verdict =
      bench_check(plan, &tensors, expected, &kernel.info.numerics, memory + SLACK, now.workspace_bytes);
  if (verdict.status == BENCH_PASS) assert_true(verdict.output_hash == bench_tensors_output_hash(&tensors));
  free(memory);
  bench_expected_destroy(expected);
  bench_tensors_destroy(&tensors);
  attn_plan_destroy(plan);
  return verdict;
}

static const char long_head[] = "heads:1/seq:1000/head_dim:64"; /* the oracle computes only some of its rows */
static const char small[] = "heads:1/seq:12/head_dim:8", strided[] = "heads:1/seq:12/head_dim:8/layout:strided";

TEST(right_kernels_pass_in_two_runs) {
  assert_int_equal(verdict_on(NONE, small).status, BENCH_PASS);
  assert_int_equal(now.runs, 2);
  assert_int_equal(verdict_on(NONE, strided).status, BENCH_PASS);
}

TEST(every_fault_fails) {
  static const struct {
    fault fault;
    const char *id, *reason;
  } faults[] = {{WRONG_VALUE, small, "times the error limit"},
                {AFTER_WORKSPACE, small, "workspace: written outside"},
                {BEFORE_WORKSPACE, small, "workspace: written outside"},
                {IN_A_GAP, strided, "which belongs to no row"},
                {BEHIND_O, small, "o: guard after the tensor overwritten"},
                {ON_AN_INPUT, small, "an input was overwritten"},
                {SECOND_RUN, small, "differs between two runs"},
                {LEAVES_OUT, small, "which no error limit allows"},
                {READS_WORKSPACE, small, "differs between two runs"},
                {WRONG_TILE, long_head, "times the error limit"}};
  for (size_t i = 0; i < COUNT(faults); i++) {
    const bench_verdict verdict = verdict_on(faults[i].fault, faults[i].id);
    assert_int_equal(verdict.status, BENCH_FAIL);
    test_contains(verdict.reason, faults[i].reason);
  }
}

/* The reason names the place of an element that differs between two runs: 3 heads of 5 queries with 4 columns. */
TEST(what_differs_between_two_runs_is_named) {
  static const struct {
    int64_t element;
    bool in_lse;
    const char *part;
  } cases[] = {{0, false, "o[batch 0, head 0, query 0, column 0] differs"},
               {3 * 5 * 4 - 1, false, "o[batch 0, head 2, query 4, column 3] differs"},
               {5 * 4 + 2 * 4 + 1, false, "o[batch 0, head 1, query 2, column 1] differs"},
               {0, true, "lse[batch 0, head 0, query 0, column 0] differs"},
               {5 + 3, true, "lse[batch 0, head 1, query 3, column 0] differs"}};
  for (size_t i = 0; i < COUNT(cases); i++) {
    now.element = cases[i].element, now.in_lse = cases[i].in_lse;
    const bench_verdict verdict = verdict_on(SECOND_ELEMENT, "heads:3/seq:5/dim_qk:8/dim_v:4/lse:on");
    assert_int_equal(verdict.status, BENCH_FAIL);
    test_contains(verdict.reason, cases[i].part);
  }
}

/* No output is checked after a call that the library refused. */
TEST(a_refused_second_call_is_an_error) {
  const bench_verdict verdict = verdict_on(SECOND_CALL, small);
  assert_int_equal(verdict.status, BENCH_ERROR);
  test_contains(verdict.reason, "ATTN_INVALID_ARGUMENT: attn_args.q is NULL");
}

/* ---- Declared errors ------------------------------------------------------------------------------------------------- */

/* A kernel that declares an exp error and scales its output by it. */
static bench_verdict verdict_on_declared(float exp_error) {
  now.declared = exp_error;
  const bench_verdict verdict = verdict_on(SCALED, small);
  now.declared = 0;
  return verdict;
}

TEST(declared_errors_are_marked_and_capped) {
  const bench_verdict usual = verdict_on_declared(0x1p-21f), large = verdict_on_declared(0x1p-9f),
                      beyond = verdict_on_declared(0.02f);
  assert_int_equal(usual.status, BENCH_PASS);
  assert_false(usual.approximate);
  assert_int_equal(large.status, BENCH_PASS);
  assert_true(large.approximate);
  assert_int_equal(beyond.status, BENCH_FAIL);
  test_contains(beyond.reason, "declares an exp error beyond the cap");
}
