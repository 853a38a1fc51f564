/* SPDX-License-Identifier: MIT */
/* Goals measured on scripted trials with a simulated clock. */
#define TEST_TEARDOWN clear_goals
static int clear_goals(void **state);
#include "goals/goals.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/timing/simulated.h"

static bench_row goal_row;    /* row of the last goal; the teardown clears it */
static bench_goal_list goals; /* the last goal; likewise */

static int clear_goals(void **state) {
  bench_row_clear(&goal_row);
  bench_goals_clear(&goals);
  return simulated_end(state);
}

static char notes[200];                /* words of bench_note() about the last goal */
static const char *compared_with = ""; /* the field `against` of goals that are no speedups */
static const char *other = "flash_c";  /* the kernel that runs it */
static int goal_rounds = 11;           /* for goals that nobody interrupts */
static bool complete;                  /* the last goal was not interrupted */
static const char small[] = "heads=2 seq=64 head_dim=32";

static void hear(void *context, const char *what, const char *kernel) {
  (void)context;
  const size_t used = strlen(notes);
  snprintf(notes + used, sizeof notes - used, "%s %s;", what, kernel);
}

/* Measures flash_c on a case as a goal; a speedup is over one thread. */
static bench_goal_row measure(int metric, const char *axes, const script *s) {
  static bench_goal_line lines[2];
  char error[200];
  const bench_case_settings settings = {.timed = true,
                                        .case_budget_s = 5,
                                        .rounds = s->interrupt_in ? 21 : goal_rounds,
                                        .stop = &sim.stop,
                                        .note = hear,
                                        .meter = &simulated};
  notes[0] = 0;
  lines[0] = (bench_goal_line){.metric = &bench_metrics[metric],
                               .kernels = "flash_c",
                               .axes = axes,
                               .against = metric == BENCH_SPEEDUP ? "threads=1" : compared_with};
  bench_goals_clear(&goals);
  if (!bench_goals_make(lines, &goals, error, sizeof error)) fail_msg("%s", error);
  bench_goal_row result = {
      .goal = goals.item, .kernel = attn_kernel_find("flash_c"), .against_kernel = attn_kernel_find(other)};
  bench_row found[2];
  bench_case_build(&goals.item[0].spec, 1, &result.bench);
  bench_case_build(&goals.item[0].against, 1, &result.against);
  sim.all = s;
  complete = bench_goal_measure(&result, &settings, found);
  bench_row_clear(&goal_row);
  goal_row = found[0];
  bench_row_clear(&found[1]);
  return result;
}

static bench_goal_row measure_goal(int metric, const script *s) {
  const bench_goal_row result = measure(metric, "heads=2 seq=64 head_dim=32 threads=2", s);
  assert_true(complete && result.done);
  return result;
}

/* An output without elements cannot be wrong: its check is no objection. Where no row sees a key, zeros would pass as well.
 * The read loop takes dense K and V alone. */
TEST(goals_need_cases_that_can_be_timed) {
  static const struct {
    int metric;
    const char *axes, *against, *other;
    bench_status status;
    const char *reason, *notes;
  } cases[] = {
      {BENCH_NS, "heads=2 seq_q=0 seq_k=64 head_dim=32", "", "flash_c", BENCH_PASS, "", "checking flash_c;timing flash_c;"},
      {BENCH_NS, "heads=2 seq=8 head_dim=32 causal=offset offset=-100", "", "flash_c", BENCH_DEGENERATE, "", "flash_c"},
      {BENCH_TIME, "heads=2 seq=8 head_dim=32", "causal=offset offset=-100", "naive_c", BENCH_DEGENERATE,
       "naive_c in the case of comparison: right, but ", "checking naive_c;"},
      {BENCH_TIME, "heads=2 seq=64 head_dim=32", "", "naive_c", BENCH_PASS, "", "checking naive_c;"},
      {BENCH_READS, "heads=2 seq=64 head_dim=32 layout=strided", "", "flash_c", BENCH_ERROR,
       "a loop that only reads needs the rows of a head without gaps", ""}};
  for (size_t i = 0; i < COUNT(cases); i++) {
    compared_with = cases[i].against, other = cases[i].other;
    const bench_goal_row goal = measure(cases[i].metric, cases[i].axes, &any);
    compared_with = "", other = "flash_c";
    assert_int_equal(goal.status, cases[i].status);
    test_contains(goal.reason, cases[i].reason);
    test_contains(notes, cases[i].notes);
    assert_string_equal(goal_row.kernel, "flash_c");
    assert_true(complete && goal.done && goal.measured.n == (goal.status == BENCH_PASS ? 11 : 0));
    assert_int_equal(goal.against_failed, cases[i].status == BENCH_DEGENERATE && *cases[i].against);
  }
}

/* A goal that was interrupted before its check is not done, so that a later run measures it. */
TEST(interrupted_goals_are_not_done) {
  sim.stop = 1;
  const bench_goal_row goal = measure(BENCH_NS, small, &any);
  assert_true(!complete && !goal.done && goal.measured.n == 0);
}

/* After Ctrl-C the rounds so far count, if there are enough for an interval. */
TEST(an_interrupted_goal_keeps_enough_rounds) {
  for (int round = 7; round < 14; round++) {
    simulated_begin(NULL);
    any.interrupt_in = round;
    const bench_goal_row goal = measure(BENCH_NS, small, &any);
    const bool enough = round + 1 >= BENCH_LEAST_GOAL_ROUNDS;
    assert_true(complete == enough && goal.done == enough && goal.measured.n == (enough ? round + 1 : 0));
    assert_int_equal(goal_row.time.n, goal.measured.n);
  }
}

/* The memory that a plan asks for, or why there is no plan. */
TEST(goals_of_memory_are_those_of_plans) {
  static const attn_kernel_info unknown = {.name = "unknown_c"};
  const attn_kernel_info *const kernels[] = {attn_kernel_find("flash_c"), &unknown};
  const bench_goal_line lines[2] = {
      {.metric = &bench_metrics[BENCH_WORKSPACE], .kernels = "flash_c", .axes = small, .against = ""}};
  char error[200];
  bench_row found[2];
  assert_true(bench_goals_make(lines, &goals, error, sizeof error));
  for (int i = 0; i < 2; i++) {
    bench_goal_row row = {.goal = goals.item, .kernel = kernels[i]};
    bench_case_build(&goals.item[0].spec, 1, &row.bench);
    assert_true(bench_goal_measure(&row, &seven_rounds, found));
    assert_true(row.done && !found[0].case_id[0] && row.measured.n == !i);
    assert_int_equal(row.status, i ? BENCH_ERROR : BENCH_PASS);
    if (i) {
      test_contains(row.reason, "unknown_c");
      continue;
    }
    attn_plan *plan;
    test_ok(attn_plan_create(&row.bench.problem, &ATTN_STRUCT(attn_options, .kernel = "flash_c", .threads = 1), &plan));
    assert_close(row.measured.median, (double)attn_plan_workspace(plan) / 1024);
    assert_true(row.measured.median > 0 && row.measured.ci_lo == row.measured.ci_hi);
    assert_true(row.measured.min == row.measured.median && row.measured.ci_lo == row.measured.median);
    attn_plan_destroy(plan);
  }
  bench_goals_clear(&goals);
}

/* A goal that compares takes as long as both of its cases; memory takes no time. */
TEST(goals_are_guessed_from_their_cases) {
  const bench_case_settings settings = {.timed = true, .case_budget_s = 5, .rounds = 11};
  const attn_kernel_info *kernel = attn_kernel_find("flash_c");
  const bench_goal_line lines[4] = {
      {.metric = &bench_metrics[BENCH_NS], .kernels = "flash_c", .axes = small, .against = ""},
      {.metric = &bench_metrics[BENCH_TIME], .kernels = "flash_c", .axes = small, .against = "seq=512"},
      {.metric = &bench_metrics[BENCH_WORKSPACE], .kernels = "flash_c", .axes = small, .against = ""}};
  char error[200] = "";
  double guess[3];
  assert_true(bench_goals_make(lines, &goals, error, sizeof error));
  for (int i = 0; i < 3; i++) {
    bench_goal_row row = {.goal = &goals.item[i], .kernel = kernel, .against_kernel = kernel};
    bench_case_build(&goals.item[i].spec, 1, &row.bench);
    bench_case_build(&goals.item[i].against, 1, &row.against);
    guess[i] = bench_goal_guess(&row, &settings);
    const double one = bench_case_guess(&row.bench, &kernel, 1, &settings);
    if (i == 0) assert_true(guess[i] == one);
    if (i == 1) assert_true(guess[i] == one + bench_case_guess(&row.against, &kernel, 1, &settings));
  }
  assert_true(guess[1] > 2 * guess[0] && guess[2] == 1e-4);
  bench_goals_clear(&goals);
}

/* 32 KiB of K and V in 10 us are 3.3 GB/s; the simulated read loop reads 2 to 10 GB/s on two threads. */
TEST(goals_are_shares_of_the_loops_beside) {
  any.call_ns[0] = 20000;
  bench_goal_row goal = measure_goal(BENCH_PEAK, &any);
  assert_int_equal(goal.status, BENCH_PASS);
  assert_int_equal(goal.measured.n, 11);
  assert_close(goal.measured.median, goal_row.peak_pct);
  sim.events = 0;
  goal = measure_goal(BENCH_READS, &any);
  double share[11];
  for (int r = 0, e = 0; r < 11; r++) {
    double rates[2 * BENCH_SLICES];
    for (int i = 0; i < 2 * BENCH_SLICES; i++, e++) {
      while (sim.log[e].kind != READ) e++;
      rates[i] = sim.log[e].rate;
    }
    share[r] = 100 * 4 * 2 * 64 * 32 * sizeof(float) / 2e-5 / bench_median(rates, 4);
  }
  assert_close(goal.measured.median, bench_median(share, 11));
  assert_true(goal.measured.median > 33 && goal.measured.median < 105);
}

/* 21 rounds, of which those of the bits are disturbed, and take twice as long. */
static bench_goal_row measure_disturbed(int metric, const char *axes, uint64_t disturbed, int looks_a_round) {
  simulated_begin(NULL);
  for (int r = 0; r < 21; r++) any.call_ns[r] = disturbed >> r & 1 ? 20000 : 10000;
  any.lengths = 21;
  sim.looks_a_round = looks_a_round;
  sim.disturbed = disturbed;
  goal_rounds = 21;
  const bench_goal_row result = measure(metric, axes, &any);
  goal_rounds = 11;
  assert_true(complete && result.done && result.rounds == 21 && goal_row.time.n == 21);
  return result;
}

/* Undisturbed rounds alone count, if there are 11 or more. Either look of a sample may find one. */
TEST(goals_are_those_of_undisturbed_rounds) {
  static const struct {
    uint64_t disturbed;
    int undisturbed, counted;
    double median;
  } cases[] = {{0, 21, 21, 10000},        {0x1, 20, 20, 10000},      {0x15555d, 9, 21, 20000}, {0x1ffc00, 10, 21, 20000},
               {0x0aaaaa, 11, 11, 10000}, {0x1ff800, 11, 11, 10000}, {0x1fffff, 0, 21, 20000}};
  for (size_t i = 0; i < COUNT(cases); i++) {
    const bench_goal_row goal = measure_disturbed(BENCH_NS, small, cases[i].disturbed, 2);
    assert_true(goal.undisturbed == cases[i].undisturbed && goal.measured.n == cases[i].counted);
    assert_close(goal.measured.median, cases[i].median);
    assert_close(goal_row.undisturbed_pct, 100.0 * cases[i].undisturbed / 21);
  }
}

/* Both samples of a comparison must be undisturbed. Where the meter does not know, nothing is said. */
TEST(undisturbed_rounds_are_those_of_all_trials) {
  compared_with = "seq=128";
  bench_goal_row goal = measure_disturbed(BENCH_TIME, "heads=2 seq=64 head_dim=32", 0x155, 4);
  assert_true(goal.undisturbed == 16 && goal.measured.n == 16);
  compared_with = "";
  goal = measure_disturbed(BENCH_SPEEDUP, "heads=2 seq=64 head_dim=32 threads=2", 0x155, 4);
  assert_true(goal.undisturbed == 16 && goal.measured.n == 16);
  goal = measure_disturbed(BENCH_NS, small, 0x155, 0);
  assert_true(goal.undisturbed == -1 && goal.measured.n == 21 && isnan(goal_row.undisturbed_pct));
}

/* Two threads take turns with one. While a team of two still waits for work, it would be busy beside the one. */
TEST(larger_teams_go_before_samples_of_fewer_threads) {
  any.alone_factor = 1.5;
  const bench_goal_row goal = measure_goal(BENCH_SPEEDUP, &any);
  assert_string_equal(goal.reason, "");
  assert_int_equal(goal.status, BENCH_PASS);
  assert_close(goal.measured.median, 1.5);
  assert_close(goal_row.threads_counted, 2);
}

/* Calls that fail, and times that are doubted, leave none, neither of the goal nor of its rows. */
TEST(a_failed_goal_has_no_time) {
  for (int doubted = 0; doubted < 2; doubted++) {
    simulated_begin(NULL);
    if (doubted)
      any.busy = 3;
    else
      any.fail_from = 4;
    const bench_goal_row goal = measure_goal(doubted ? BENCH_PEAK : BENCH_NS, &any);
    assert_int_equal(goal.status, BENCH_ERROR);
    test_contains(goal.reason, doubted ? "3.00 threads were busy, but the case has 2" : "timing: flash_c");
    assert_int_equal(goal_row.verdict.status, BENCH_ERROR);
    assert_string_equal(goal_row.verdict.reason, goal.reason);
    assert_true(goal.measured.n == 0 && goal_row.time.n == 0);
  }
}
