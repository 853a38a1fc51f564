/* SPDX-License-Identifier: MIT */
/* Two builds compared on scripted trials with a simulated clock. */
#include "tests/harness/timing/simulated.h"

#include <math.h>
#include <stdlib.h>

#include "compare/compare.h"

/* The linker's --wrap asks here for the time that the check of a case sees. Where it is feigned, only calls take time. */
static double feigned_ns, feigned_call_ns; /* 0: the real time */

double __real_bench_now_ns(void);
double __wrap_bench_now_ns(void);
double __wrap_bench_now_ns(void) { return feigned_ns > 0 ? feigned_ns : __real_bench_now_ns(); }

static attn_status run_slowly(const attn_plan *plan, const attn_args *args, void *workspace, size_t bytes) {
  feigned_ns += feigned_call_ns;
  return attn_plan_run(plan, args, workspace, bytes);
}

/* The number of rounds of paired builds: as asked for; else 121, or as many as fit into the budget, at least 21. A round has
 * three samples of 2 ms, or of one call, and three slices of 1 ms. */
static int paired_rounds(int rounds, double budget_s, double call_ns, int slow) {
  static bench_row pair[2];
  bench_copies sides[2] = {{.build = {bench_own_build}, .count = 1}, {.build = {bench_own_build}, .count = 1}};
  const bench_case bench = case_of("heads:1/seq:8/head_dim:8");
  const bench_case_settings settings = {.timed = true, .rounds = rounds, .case_budget_s = budget_s, .meter = &simulated};
  bench_comparison c;
  sim.all = &any;
  feigned_ns = 1e9, feigned_call_ns = call_ns;
  sides[slow].build[0].plan_run = run_slowly; /* the other takes no time */
  assert_true(bench_paired_measure(sides, &bench, attn_kernel_find("naive_c"), &settings, pair, &c));
  feigned_ns = 0;
  assert_int_equal(pair[0].verdict.status, BENCH_PASS);
  assert_int_equal(pair[0].time.n, pair[1].time.n);
  assert_int_equal(c.rounds, pair[0].time.n);
  assert_true(fabs(c.log_ratio) < 1e-12 && c.noise < 1e-12);
  for (int i = 0; i < 2; i++) bench_row_clear(&pair[i]);
  return c.rounds;
}

TEST(paired_rounds_fit_into_the_budget) {
  assert_int_equal(paired_rounds(33, 1e-3, 1000, 0), 33);
  assert_int_equal(paired_rounds(0, 1e4, 1000, 0), BENCH_PAIRED_ROUNDS_COUNT);
  assert_int_equal(paired_rounds(0, 1e-3, 1000, 0), BENCH_LEAST_PAIRED_ROUNDS);
  assert_int_equal(paired_rounds(0, 30.5 * 9e-3, 1000, 0), 30);
  for (int slow = 0; slow < 2; slow++) assert_int_equal(paired_rounds(0, 30.5 * 15e-3, 4e6, slow), 30);
}

static int plans_left; /* plans that a build still makes */

static attn_status plan_a_few(const attn_problem *problem, const attn_options *options, attn_plan **plan) {
  return plans_left-- > 0 ? attn_plan_create(problem, options, plan) : ATTN_OUT_OF_MEMORY;
}

/* The same build on both sides, in placements that differ by 2 %. No trial, nor the control, runs in the place of another
 * one, and the differences between places are in the interval. */
TEST(placements_are_no_difference_of_builds) {
  const bench_copies sides[2] = {{.build = {bench_own_build, bench_own_build}, .count = 2},
                                 {.build = {bench_own_build}, .count = 1}};
  const bench_case bench = case_of("heads:1/seq:8/head_dim:8");
  const bench_case_settings settings = {.timed = true, .rounds = 60, .meter = &simulated};
  bench_row pair[2];
  bench_comparison c;
  bench_comparisons table = {.design = BENCH_PAIRED_ROUNDS, .margin = 0.01, .item = &c, .count = 1};
  sim.all = &any;
  sim.luck = 0.02;
  assert_true(bench_paired_measure(sides, &bench, attn_kernel_find("naive_c"), &settings, pair, &c));
  assert_true(bench_comparisons_decide(&table));
  assert_true(sim.places == 3 * 60 && sim.shared == 0);
  assert_true(c.log_ratio != 0 && c.noise > 0);
  assert_true(c.within > 0.002 && c.within < 0.008); /* 0.02 x sqrt(2 / 60) is 0.0037 */
  assert_true(c.verdict == BENCH_INCONCLUSIVE || c.verdict == BENCH_SAME);
  for (int i = 0; i < 2; i++) bench_row_clear(&pair[i]);
}

/* A plan that was made once and cannot be made again is an error, with the sentence of its build. Without any, there is no
 * time. */
TEST(placements_need_their_plans) {
  bench_copies sides[2] = {{.build = {bench_own_build}, .count = 1}, {.build = {bench_own_build}, .count = 1}};
  const bench_case bench = case_of("heads:1/seq:8/head_dim:8");
  const bench_case_settings settings = {.timed = true, .rounds = 7, .meter = &simulated};
  bench_row pair[2];
  bench_comparison c;
  sim.all = &any;
  sides[1].build[0].plan_create = plan_a_few;
  for (int checked = 0; checked < 2; checked++) {
    plans_left = 10 * checked; /* the check makes 6 */
    assert_true(bench_paired_measure(sides, &bench, attn_kernel_find("naive_c"), &settings, pair, &c));
    for (int i = 0; i < 2; i++) {
      assert_true(pair[i].time.n == 0 && pair[i].verdict.status == (checked || i ? BENCH_ERROR : BENCH_PASS));
      if (checked) test_contains(pair[i].verdict.reason, "naive_c: its plan cannot be made again: ");
      bench_row_clear(&pair[i]);
    }
  }
}

/* Two kernels on an attention and on a layer, which is no comparison of builds. */
TEST(a_paired_job_does_all_cases) {
  static const char *const ids[] = {"heads:1/seq:8/head_dim:8", "heads:1/seq:9/head_dim:8",
                                    "layer:mha/heads:1/seq:8/head_dim:8"};
  bench_paired_job job = {.sides = {{.build = {bench_own_build}, .count = 1}, {.build = {bench_own_build}, .count = 1}},
                          .kernels = {attn_kernel_find("naive_c"), attn_kernel_find("flash_c")},
                          .kernel_count = 2,
                          .settings = {.timed = true, .rounds = 7, .stop = &sim.stop, .meter = &simulated},
                          .progress = {.quiet = true}};
  bench_matches m;
  sim.all = &any;
  for (int i = 0; i < 3; i++) {
    const bench_case bench = case_of(ids[i]);
    assert_true(bench_cases_append(&job.cases, &bench));
  }
  assert_true(bench_paired_run(&job, 0.02, &m));
  assert_true(m.table.count == 4 && m.unpaired_count == 0); /* without those that are skipped on both sides */
  assert_true(m.table.design == BENCH_PAIRED_ROUNDS && m.table.margin == 0.02);
  for (int i = 0; i < 4; i++) {
    assert_int_equal(m.table.item[i].verdict, BENCH_SAME);
    assert_true(m.table.item[i].a != m.table.item[i].b);
    assert_string_equal(m.table.item[i].a->kernel, m.table.item[i].b->kernel);
  }
  assert_true(job.progress.done == 6 && job.progress.fresh == 4);
  for (int i = 8; i < 12; i++) test_contains(job.rows[i].verdict.reason, "builds are compared on attention, not on layers");
  bench_matches_clear(&m);
  for (int i = 0; i < 12; i++) bench_row_clear(&job.rows[i]);
  free(job.rows);
  sim.stop = 1; /* nothing more is measured */
  assert_true(bench_paired_run(&job, 0.02, &m));
  assert_true(m.table.count == 0 && m.unpaired_count == 0 && job.progress.done == 0);
  bench_matches_clear(&m);
  bench_paired_clear(&job);
}
