/* SPDX-License-Identifier: MIT */
/* What decides about PASS: which limits a case has, and checked runs of kernels with one fault each. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases/cases.h"
#include "check/check.h"
#include "failing_malloc.h"
#include "layer_support.h"
#include "src/plan.h"
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
  assert_false(meets_the_sharp_limit("heads:1/seq:12/head_dim:8/magnitude:0.22")); /* of which 0.05 is the square, nearly */
  assert_true(meets_the_sharp_limit("heads:1/seq:12/head_dim:8/magnitude:0.23"));
  assert_false(meets_the_sharp_limit("heads:1/seq:12/head_dim:8/magnitude:0.23/values:positive"));
}

/* ---- Checked runs ---------------------------------------------------------------------------------------------------- */

/* What the kernel does after it has written the right answer. */
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
  float error; /* of WRONG_VALUE */
  int runs;
  size_t workspace_bytes;
  float declared;  /* exp error; SCALED multiplies the output by 1 + this */
  float before;    /* the value before the run, which LEAVES_OUT restores */
  bool is_second;  /* for READS_WORKSPACE: the workspace held the second poison */
  int64_t tile;    /* first row of WRONG_TILE */
  attn_args *args; /* those of the case */
  int64_t element; /* of O or LSE, which SECOND_ELEMENT changes */
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

/* The first row of a tile, near the middle of the last head, of which the oracle computes no row. */
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

/* An error of 1.25 limits fails, one of half a limit does not. */
TEST(the_limit_is_the_limit) {
  const float limit = 0.01f / (float)verdict_on(WRONG_VALUE, small).max_err_ratio;
  now.error = 1.25f * limit;
  const bench_verdict beyond = verdict_on(WRONG_VALUE, small);
  now.error = 0.5f * limit;
  const bench_verdict within = verdict_on(WRONG_VALUE, small);
  now.error = 0.01f;
  assert_true(beyond.max_err_ratio > 1 && beyond.max_err_ratio < 1.5);
  assert_int_equal(beyond.status, BENCH_FAIL);
  assert_int_equal(within.status, BENCH_PASS);
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

/* What differs between two runs is named by its place: 3 heads of 5 queries with 4 columns. */
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

/* No output is judged after a call that the library refused. */
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

/* ---- Rows that the oracle does not compute --------------------------------------------------------------------------- */

/* A case of which the oracle computes only some rows, with the answer of naive_c in its output. */
typedef struct large_case {
  bench_case bench;
  bench_tensors tensors;
  bench_expected *expected;
} large_case;

static large_case open_large(const char *id) {
  large_case c = {.bench = case_of(id)};
  attn_plan *plan;
  assert_true(bench_tensors_create(&c.bench, &c.tensors));
  c.expected = bench_expected_create(&c.bench.problem, &c.tensors.args, 1, true);
  assert_non_null(c.expected);
  assert_false(c.expected->complete);
  test_ok(attn_plan_create_for_kernel(&c.bench.problem, &attn_naive_c, &ATTN_STRUCT(attn_options, .threads = 1), &plan));
  test_ok(bench_run_once(plan, &c.tensors.args));
  attn_plan_destroy(plan);
  return c;
}

static void close_large(large_case *c) {
  bench_expected_destroy(c->expected);
  bench_tensors_destroy(&c->tensors);
}

static bench_verdict judge(const large_case *c) {
  bench_verdict verdict = bench_compare(c->expected, &c->tensors.args, &attn_naive_c.info.numerics);
  assert_int_equal(verdict.status, BENCH_PASS);
  return bench_compare_others(c->expected, &c->tensors.args, &attn_naive_c.info.numerics, &attn_naive_c.info);
}

/* Multiplies six rows, of which the oracle computed none, by a factor: the case must fail and name the first value. */
static void a_wrong_tile_fails(const char *id, float factor) {
  large_case c = open_large(id);
  const attn_problem *p = &c.bench.problem;
  const int64_t first = find_tile(c.expected);
  float *o = (float *)c.tensors.args.o + (p->heads_q - 1) * p->o_stride.h;
  assert_int_equal(judge(&c).status, BENCH_PASS);
  for (int64_t i = first; i < first + TILE; i++)
    for (int64_t d = 0; d < p->dim_v; d++) o[i * p->o_stride.s + d * p->o_stride.d] *= factor;
  const bench_verdict verdict = judge(&c);
  assert_int_equal(verdict.status, BENCH_FAIL);
  assert_int_equal(verdict.err_index[1], p->heads_q - 1);
  assert_int_equal(verdict.err_index[2], first);
  close_large(&c);
}

static const char large[] = "heads:2/seq:640/head_dim:64";

TEST(wrong_tiles_fail_between_the_oracles_rows) {
  a_wrong_tile_fails(large, 0);
  a_wrong_tile_fails(large, 1.01f);
  a_wrong_tile_fails("heads:2/seq:640/head_dim:64/causal:bottom-right/lse:on/layout:strided", 1.01f);
}

TEST(wrong_lse_fails_between_the_oracles_rows) {
  large_case c = open_large("heads:2/seq:640/head_dim:64/lse:on");
  const int64_t first = find_tile(c.expected);
  c.tensors.args.lse[c.bench.problem.lse_stride.h + first * c.bench.problem.lse_stride.s] += 1e-3f;
  const bench_verdict verdict = judge(&c);
  assert_int_equal(verdict.status, BENCH_FAIL);
  assert_int_equal(verdict.err_index[3], -1);
  assert_string_equal(verdict.reference, c.expected->reference->kernel->name);
  close_large(&c);
}

/* Rounding a large LSE may err more than rounding one near 0. */
TEST(the_limit_of_an_lse_knows_its_size) {
  large_case c = open_large("heads:2/seq:640/head_dim:64/lse:on/magnitude:8");
  const attn_problem *p = &c.bench.problem;
  assert_int_equal(judge(&c).status, BENCH_PASS);
  const bench_reference *r = c.expected->reference;
  const int64_t first = find_tile(c.expected);
  const double lse = (double)r->lse[p->seq_q + first];
  double limit[2];
  for (int sized = 0; sized < 2; sized++) {
    attn_oracle_row facts = r->largest;
    facts.allowed = p->seq_k;
    facts.lse = sized ? lse : 0;
    limit[sized] = bench_limits_of_row(p, &attn_naive_c.info.numerics, &facts, true).lse +
                   bench_limits_of_row(&r->problem, &r->kernel->numerics, &facts, true).lse;
  }
  for (int beyond = 0; beyond < 2; beyond++) {
    const double error = beyond ? 1.1 * limit[1] : (limit[0] + limit[1]) / 2;
    c.tensors.args.lse[p->lse_stride.h + first * p->lse_stride.s] = (float)(lse + error);
    assert_int_equal(judge(&c).status, beyond ? BENCH_FAIL : BENCH_PASS);
  }
  close_large(&c);
}

/* The oracle decides about differences, so a wrong reference makes no kernel fail. Too many differences are an error. */
TEST(a_wrong_reference_fails_no_kernel) {
  large_case c = open_large(large);
  const attn_problem *p = &c.bench.problem;
  assert_int_equal(judge(&c).status, BENCH_PASS);
  const bench_reference *r = c.expected->reference;
  float *o = r->o;
  assert_string_not_equal(r->kernel->name, "naive_c");
  for (int64_t n = 0; n < TILE * p->dim_v; n++) o[300 * p->dim_v + n] = 0;
  assert_int_equal(judge(&c).status, BENCH_PASS);
  for (int more = 0; more < 2; more++) { /* 256 rows, and one */
    for (int64_t n = 0; n < (250 + more) * p->dim_v; n++) o[n] = 0;
    const bench_verdict verdict = judge(&c);
    assert_int_equal(verdict.status, more ? BENCH_ERROR : BENCH_PASS);
    if (more) test_contains(verdict.reason, "in more than 256 rows that the oracle finds right");
  }
  close_large(&c);
}

/* Where the oracle contradicts every other kernel, none is believed, nor the last one that was. */
TEST(without_a_right_reference_there_is_an_error) {
  large_case c = open_large(large);
  assert_int_equal(judge(&c).status, BENCH_PASS);
  const attn_kernel_info *last = c.expected->reference->kernel;
  c.expected->o[0] += 1e9;
  const bench_verdict verdict = bench_compare_others(c.expected, &c.tensors.args, &last->numerics, last);
  assert_int_equal(verdict.status, BENCH_ERROR);
  test_contains(verdict.reason, "no kernel, or no memory, for a second answer");
  assert_string_equal(verdict.reference, "");
  close_large(&c);
}

/* A kernel like the last reference gets another one; where the oracle contradicts all others, the last one stays. */
TEST(a_reference_is_kept_where_no_other_is_left) {
  large_case c = open_large(large);
  assert_int_equal(judge(&c).status, BENCH_PASS);
  const attn_kernel_info *last = c.expected->reference->kernel, *alike = NULL;
  c.expected->reference->wrong = ~(uint64_t)0;
  for (int i = 0; i < attn_kernel_count(); i++) {
    const attn_kernel_info *kernel = attn_kernel_get(i);
    if (kernel == last) c.expected->reference->wrong &= ~((uint64_t)1 << i);
    if (!strcmp(kernel->isa, last->isa) != !strcmp(kernel->algorithm, last->algorithm)) alike = kernel;
  }
  assert_non_null(alike);
  const bench_verdict verdict = bench_compare_others(c.expected, &c.tensors.args, &attn_naive_c.info.numerics, alike);
  assert_int_equal(verdict.status, BENCH_PASS);
  assert_string_equal(verdict.reference, last->name);
  close_large(&c);
}

/* ---- Without memory -------------------------------------------------------------------------------------------------- */

static bench_verdict judge_others(const large_case *c) {
  return bench_compare_others(c->expected, &c->tensors.args, &attn_naive_c.info.numerics, &attn_naive_c.info);
}

/* What a second answer needs is made whole, or said to be missing; and then it is made for the next kernel. */
TEST(half_a_reference_is_none) {
  large_case c = open_large(large);
  bench_reference *r = c.expected->reference;
  assert_int_equal(judge_others(&c).status, BENCH_PASS);
  float *m = r->m;
  int errors = 0;
  for (int allocations = 0; allocations < 7; allocations++) {
    free(r->o);
    free(r->lse);
    *r = (bench_reference){.o = NULL};
    allocations_left = allocations;
    const bench_verdict verdict = judge_others(&c);
    allocations_left = -1;
    errors += verdict.status == BENCH_ERROR;
    if (verdict.status == BENCH_ERROR) test_contains(verdict.reason, "memory");
    r->wrong = 0;
    assert_int_equal(judge_others(&c).status, BENCH_PASS);
    for (int64_t n = 0; n < 2 * 640 * 64; n += 63) assert_true(fabsf(r->m[n] - m[n]) < 1e-3f * m[n]);
    if (allocations == 6) break;
    memset(r->m, 0xff, 2 * 640 * 64 * sizeof *m); /* so that nobody finds it again */
    free(r->m);
  }
  assert_true(errors > 2);
  free(m);
  close_large(&c);
}
