/* SPDX-License-Identifier: MIT */
/* Two builds compared on scripted trials with a simulated clock. */
#include "tests/harness/timing/simulated.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/compare.h"
#include "timing/places.h"

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

static double feigned_memory; /* 0: as much as there is */

double __real_bench_memory_available(const char *root);
double __wrap_bench_memory_available(const char *root);
double __wrap_bench_memory_available(const char *root) {
  return feigned_memory > 0 ? feigned_memory : __real_bench_memory_available(root);
}

/* Every round has a placement of its own, up to 121 of them, if all take at most 256 MiB. Otherwise there are five if these
 * take at most 40 % of the free memory, or fewer with a warning. Each lies at a line of its own memory. */
TEST(placements_fit_into_memory) {
  const bench_case bench = case_of("seq:8");
  static const struct {
    double bytes, memory; /* bytes: each of two workspaces; memory: free */
    int rounds, places, length;
  } cases[] = {{1e3, 1e12, 7, 7, 1},    {1e3, 1e12, 121, 121, 1}, {1e3, 1e12, 365, 121, 3}, {4e6, 1e12, 100, 33, 3},
               {5e7, 1e12, 100, 5, 20}, {5e7, 1e12, 3, 3, 1},     {5e7, 1.1e9, 100, 4, 25}, {5e7, 1.1e9, 4, 4, 1},
               {5e7, 1e8, 100, 1, 100}, {1e5, 1e7, 100, 19, 5}};
  for (size_t i = 0; i < COUNT(cases); i++) {
    bench_trial pair[] = {trial_of(&any), trial_of(&any)}, *const trials[] = {&pair[0], &pair[1]};
    bench_placing placing;
    char error[200], warning[100] = "";
    for (int k = 0; k < 2; k++) pair[k].workspace_bytes = (size_t)cases[i].bytes, pair[k].workspace = &pair[k];
    feigned_memory = cases[i].memory;
    assert_true(bench_places_draw(trials, 2, &bench.problem, cases[i].rounds, 1, &placing, error, sizeof error));
    feigned_memory = 0;
    if (placing.count != cases[i].places || placing.length != cases[i].length)
      fail_msg("case %zu: %d of %d rounds", i, placing.count, placing.length);
    if (placing.count < 5 && placing.count < cases[i].rounds)
      snprintf(warning, sizeof warning, "placement: memory has room for %d of 5", placing.count);
    for (int k = 0; k < 2; k++) {
      bench_trial *t_k = &pair[k];
      int moves = 0;
      assert_string_equal(t_k->warnings, warning);
      for (t_k->samples.rounds = 0; t_k->samples.rounds < cases[i].rounds; t_k->samples.rounds++) {
        const bench_place *place = &t_k->places[t_k->samples.rounds / placing.length % placing.count];
        moves += bench_place_take(t_k);
        assert_ptr_equal(t_k->workspace, place->workspace);
        assert_true((uintptr_t)place->workspace % 64 == 0 && place->workspace >= place->memory);
        memset(place->workspace, k, t_k->workspace_bytes); /* its memory has room for it */
      }
      assert_int_equal(moves, placing.count == 1 ? 1 : (cases[i].rounds + placing.length - 1) / placing.length);
    }
    bench_places_return(trials, 2);
    for (int k = 0; k < 2; k++) assert_true(pair[k].workspace == &pair[k] && !pair[k].places);
  }
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

static const bench_copies *loses_cores; /* in every second round */

static int lose_cores(const bench_trial *trial) {
  if (trial->copies == loses_cores && trial->samples.rounds % 2) sim.now_ns += 3 * any.call_ns[0];
  return 0;
}

/* Rounds in which another program took the cores of one side do not count, whichever side it is. */
TEST(rounds_that_lost_cores_are_no_difference_of_builds) {
  const bench_copies sides[2] = {{.build = {bench_own_build}, .count = 1}, {.build = {bench_own_build}, .count = 1}};
  const bench_case bench = case_of("heads:1/seq:8/head_dim:8");
  const bench_case_settings settings = {.timed = true, .rounds = 60, .meter = &simulated};
  for (int side = 0; side < 2; side++) {
    bench_row pair[2];
    bench_comparison c;
    simulated_begin(NULL);
    sim.all = &any, sim.effect = lose_cores;
    loses_cores = &sides[side];
    assert_true(bench_paired_measure(sides, &bench, attn_kernel_find("naive_c"), &settings, pair, &c));
    assert_true(fabs(c.log_ratio) < 1e-3 && c.whole == 30);
    for (int i = 0; i < 2; i++) bench_row_clear(&pair[i]);
  }
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

/* A kernel that one side lacks is compared with nothing, whichever side it is. */
TEST(both_sides_need_the_kernel) {
  const bench_case bench = case_of("heads:1/seq:8/head_dim:8");
  const bench_case_settings settings = {.timed = true, .rounds = 7, .meter = &simulated};
  for (int lacks = 0; lacks < 2; lacks++) {
    bench_copies sides[2] = {{.build = {bench_own_build}, .count = 1}, {.build = {bench_own_build}, .count = 1}};
    bench_row pair[2];
    bench_comparison c;
    sim.all = &any;
    sides[lacks].plugin = true;
    snprintf(sides[lacks].build[0].suffix, sizeof sides[lacks].build[0].suffix, "__b0");
    assert_true(bench_paired_measure(sides, &bench, attn_kernel_find("naive_c"), &settings, pair, &c));
    for (int i = 0; i < 2; i++) {
      assert_int_equal(pair[i].verdict.status, BENCH_ERROR);
      assert_string_equal(pair[i].verdict.reason, "only one of both plug-ins has a kernel of that name");
      bench_row_clear(&pair[i]);
    }
  }
}

static const bench_copies *errs; /* from the third round on */

static int err(const bench_trial *trial) { return trial->copies == errs && trial->samples.rounds > 2 ? SPOILT : 0; }

/* Where one side has no time, whichever it is, nothing is compared. */
TEST(a_pair_needs_both_times) {
  bench_case bench = case_of("heads:1/seq:8/head_dim:8");
  bench_paired_job job = {.sides = {{.build = {bench_own_build}, .count = 1}, {.build = {bench_own_build}, .count = 1}},
                          .cases = {.item = &bench, .count = 1},
                          .kernels = {attn_kernel_find("naive_c")},
                          .kernel_count = 1,
                          .settings = {.timed = true, .rounds = 7, .stop = &sim.stop, .meter = &simulated},
                          .progress = {.quiet = true}};
  for (int side = 0; side < 2; side++) {
    bench_matches m;
    simulated_begin(NULL);
    sim.all = &any, sim.effect = err;
    errs = &job.sides[side];
    assert_true(bench_paired_run(&job, 0.02, &m));
    assert_true(m.table.count == 0 && m.unpaired_count == 1);
    assert_true(job.rows[side].time.n == 0 && job.rows[!side].time.n == 7);
    bench_matches_clear(&m);
    for (int i = 0; i < 2; i++) bench_row_clear(&job.rows[i]);
    free(job.rows);
  }
}

/* A kernel and the automatic choice on two attentions and on a layer, which is no comparison of builds. */
TEST(a_paired_job_does_all_cases) {
  static const char *const ids[] = {"heads:1/seq:8/head_dim:8", "heads:1/seq:9/head_dim:8",
                                    "layer:mha/heads:1/seq:8/head_dim:8"};
  bench_paired_job job = {.sides = {{.build = {bench_own_build}, .count = 1}, {.build = {bench_own_build}, .count = 1}},
                          .kernels = {attn_kernel_find("naive_c"), &bench_automatic},
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
    assert_string_equal(m.table.item[i].a->kernel, i % 2 ? "auto" : "naive_c");
    assert_string_equal(m.table.item[i].b->kernel, i % 2 ? "auto" : "naive_c");
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
  free(job.rows);
  fail_allocations_after(0);
  assert_false(bench_paired_run(&job, 0.02, &m));
  fail_allocations_after(-1);
  bench_paired_clear(&job);
}
