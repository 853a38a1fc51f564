/* SPDX-License-Identifier: MIT */
/* Rows from scripted trials: ratios, peaks, times that cannot be, rows without memory, and how long a run still takes. */
#include "tests/harness/timing/simulated.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "machine/environment.h"

/* ---- What rows say --------------------------------------------------------------------------------------------------- */

TEST(rows_compare_with_naive_and_with_the_best) {
  script naive = steady("naive_c", 8000), slow = steady("slow_c", 16000), quick = steady("quick_c", 2000);
  quick.control_factor = 1.25;
  static double long_ns[] = {1e9, 1e9, 1e9, 1e9, 1e9, 1e9, 1e9};
  rows[3] = (bench_row){.kernel = "naive_c", .time = {.n = 7, .median = 1e9}, .samples_ns = long_ns}; /* no trial's */
  time_setup(two_threads, &seven_rounds, (const script *[]){&slow, &naive, &quick}, 3);
  static const double times[] = {16000, 8000, 2000}, ratios[] = {0.5, 1, 4}, best[] = {0.125, 0.25, 1};
  for (int i = 0; i < 3; i++) {
    const bench_row *r = &rows[i];
    assert_int_equal(r->verdict.status, BENCH_PASS);
    assert_int_equal(r->time.n, 7);
    assert_int_equal(r->stop, BENCH_STOP_ROUNDS);
    assert_close(r->time.median, times[i]);
    assert_close(r->time.mad, 0);
    assert_string_equal(r->baseline, "naive_c");
    assert_close(r->ratio.median, ratios[i]);
    assert_close(r->ratio.ci_lo, ratios[i]);
    assert_close(r->ratio_best, best[i]);
    assert_close(r->noise, 0.25); /* the fastest kernel against itself */
    assert_close(r->gflops, 1e6 / times[i]);
    assert_close(r->gbs, 1e6 / times[i]);
    assert_close(r->peak_gbs, 1e6);
    assert_close(r->bw_pct, 100 / times[i]);
    assert_string_equal(r->level, bench_level_of(0.5e6, 2)); /* each of two threads reads half of 1e6 bytes */
    assert_int_equal(r->iterations, (int64_t)ceil(1.2 * 2e6 / times[i]));
    for (int n = 0; n < 7; n++) assert_close(r->samples_ns[n], times[i]);
    for (int n = 0; n < 7; n++) assert_true(r->positions[n] >= 0 && r->positions[n] < 4); /* with the control */
  }
  assert_ptr_equal(setup.controlled, &setup.trials[2]);
}

/* The workspace and time that a plan takes stand in the kernel's row; a layer without plans has neither. */
TEST(rows_tell_what_plans_take) {
  const script s = steady("a_c", 3000);
  for (int layer = 0; layer < 2; layer++) {
    open_setup(layer ? "layer:add-norm/seq:4/heads:1/head_dim:8" : one_thread, &seven_rounds, (const script *[]){&s}, 1);
    setup.trials[0].workspace_bytes = 640;
    setup.trials[0].plan_ns = 250;
    bench_setup_time(&setup);
    bench_setup_rows(&setup, rows);
    assert_int_equal(rows[0].time.n, 7);
    assert_true(layer ? isnan(rows[0].workspace_bytes) : rows[0].workspace_bytes == 640);
    assert_true(layer ? isnan(rows[0].plan_ns) : rows[0].plan_ns == 250);
    assert_true(rows[0].flops == 1e6 && rows[0].bytes == 1e6);
  }
}

TEST(without_naive_the_slowest_is_the_baseline) {
  const script a = steady("a_c", 3000), b = steady("b_c", 6000);
  for (int last = 0; last < 2; last++) { /* wherever it stands */
    time_setup(one_thread, &seven_rounds, (const script *[]){last ? &a : &b, last ? &b : &a}, 2);
    assert_string_equal(rows[0].baseline, "b_c");
    assert_close(rows[!last].ratio.median, 2);
    assert_close(rows[last].ratio.median, 1);
    assert_close(rows[0].noise, 0);
  }
}

/* Each trial is compared with the loop of its own tier, round by round, on all threads. */
TEST(the_peak_is_that_of_the_tier) {
  script s1 = steady("a_c", 4000), s2 = steady("b_other", 2000);
  s2.kernel.isa = attn_peak_get(1)->isa; /* some tier of this build; its loop is not run */
  const script *scripts[] = {&s1, &s2};
  open_setup("seq:64/heads:2/head_dim:32/threads:3", &seven_rounds, scripts, 2);
  bench_setup_time(&setup);
  for (int i = 0; i < 2; i++) {
    assert_non_null(setup.trials[i].peak);
    assert_string_equal(setup.trials[i].peak->isa, scripts[i]->kernel.isa);
  }
  double share[2][7], rate[2][7];
  for (int i = 0; i < 2; i++)
    for (int r = 0; r < 7; r++) {
      rate[i][r] = setup.trials[i].samples.loop_rate[r];
      share[i][r] = 1e6 / (scripts[i]->call_ns[0] * 1e-9) / (3 * rate[i][r]);
    }
  bench_setup_rows(&setup, rows);
  for (int i = 0; i < 2; i++) {
    assert_close(rows[i].peak_gflops, 3e-9 * bench_median(rate[i], 7));
    assert_close(rows[i].peak_pct, 100 * bench_median(share[i], 7));
    for (int r = 0; r < 7; r++) assert_close(rows[i].peaks[r], 3 * rate[i][r]);
  }
}

/* A failed trial has no time; the others are timed again. */
TEST(a_failure_spoils_no_other_times) {
  script a = steady("a_c", 3000), b = steady("b_c", 6000), c = steady("c_c", 9000);
  b.wrong_from = 5;
  open_setup(one_thread, &seven_rounds, (const script *[]){&a, &b, &c}, 3);
  bench_conclude(&setup.trials[2], BENCH_FAIL, "wrong");
  bench_setup_time(&setup);
  bench_setup_rows(&setup, rows);
  assert_int_equal(rows[0].verdict.status, BENCH_PASS);
  assert_int_equal(rows[0].time.n, 7);
  assert_int_equal(rows[1].verdict.status, BENCH_ERROR);
  test_contains(rows[1].verdict.reason, "timing: b_c: ");
  assert_int_equal(rows[2].verdict.status, BENCH_FAIL); /* took no part */
  for (int i = 1; i < 3; i++) assert_true(rows[i].time.n == 0 && !rows[i].samples_ns && isnan(rows[i].ratio.median));
}

/* A kernel whose call takes more than a quarter of the case's budget is not timed, unless rounds were asked for. */
TEST(kernels_too_slow_for_the_budget_say_so) {
  const script quick = steady("a_c", 3000), slow = steady("b_c", 1.3e9);
  bench_case_settings settings = {.timed = true, .case_budget_s = 5, .precision = 0.01, .meter = &simulated};
  for (int fixed = 0; fixed < 2; fixed++) {
    settings.rounds = fixed ? 3 : 0;
    time_setup(one_thread, &settings, (const script *[]){&quick, &slow}, 2);
    assert_int_equal(rows[0].time.n, fixed ? 3 : 11);
    assert_int_equal(rows[0].stop, fixed ? BENCH_STOP_ROUNDS : BENCH_STOP_PRECISION);
    assert_int_equal(rows[1].time.n, fixed ? 3 : 0);
    if (!fixed) test_contains(rows[1].warnings, "not timed: one call takes 1.3 s");
    if (fixed) assert_true(isnan(rows[0].time.ci_lo)); /* three rounds have no interval */
  }
  settings.rounds = 0;
  settings.case_budget_s = 1e-9 * 1.3e9 * BENCH_FEW_ROUNDS; /* four calls fit exactly */
  time_setup(one_thread, &settings, (const script *[]){&slow}, 1);
  assert_int_equal(rows[0].time.n, 3);
}

/* A slow trial has fewer samples. Ratios with it are over the rounds in common, and its row says that the budget ended its
 * rounds. */
TEST(ratios_are_over_common_rounds) {
  script quick = steady("a_c", 0), slow = steady("b_c", 1e9);
  for (int r = 0; r < 30; r++) quick.call_ns[r] = r < 3 ? 1e6 : 2e6;
  quick.lengths = 30;
  const bench_case_settings settings = {.timed = true, .case_budget_s = 5, .precision = 1, .meter = &simulated};
  time_setup(one_thread, &settings, (const script *[]){&quick, &slow}, 2);
  assert_int_equal(rows[0].stop, BENCH_STOP_PRECISION);
  assert_true(rows[1].time.n >= 3 && rows[1].time.n <= 5 && rows[0].time.n > 2 * rows[1].time.n);
  assert_int_equal(rows[1].stop, BENCH_STOP_BUDGET);
  assert_int_equal(rows[0].ratio.n, rows[1].time.n);
  assert_close(rows[0].ratio.median, rows[1].time.n <= 5 ? 1e3 : 5e2);
  assert_close(rows[0].time.median, 2e6);
}

/* ---- Impossible times ------------------------------------------------------------------------------------------------ */

/* Times the script beside one that does not cheat and must pass, and makes the rows of both. */
static void check_time(const char *id, const script *s, double flops) {
  static script constant;
  constant = steady("constant_c", 900000);
  open_setup(id, &seven_rounds, (const script *[]){s, &constant}, 2);
  setup.flops = flops;
  bench_setup_time(&setup);
  bench_setup_rows(&setup, rows);
  assert_int_equal(rows[1].verdict.status, BENCH_PASS);
  assert_int_equal(rows[1].time.n, 7);
}

static void expect_objection(const char *id, const script *s, double flops, const char *sentence) {
  check_time(id, s, flops);
  if (rows[0].verdict.status != BENCH_ERROR) fail_msg("%s is not an error", s->kernel.name);
  test_contains(rows[0].verdict.reason, sentence);
  assert_true(rows[0].time.n == 0 && !rows[0].samples_ns && isnan(rows[0].peak_pct));
}

TEST(hidden_threads_are_an_error) {
  script s = steady("hides_c", 80000);
  s.busy = 2;
  expect_objection(one_thread, &s, 1e6, "2.00 threads were busy, but the case has 1");
  s.busy = 1, s.own_share = 0.5; /* another process has half of a core, but two threads took the other half */
  expect_objection(one_thread, &s, 1e6, "2.00 threads were busy, but the case has 1");
  s.own_share = 0;
  s.busy = 1.15;
  expect_objection(one_thread, &s, 1e6, "1.15 threads were busy, but the case has 1");
  s.busy = 3;
  expect_objection(two_threads, &s, 1e6, "3.00 threads were busy, but the case has 2");
  s.busy = 1.05; /* the clocks are not read in one moment */
  check_time(one_thread, &s, 1e6);
  assert_int_equal(rows[0].verdict.status, BENCH_PASS);
}

TEST(what_does_no_flops_has_no_peak) {
  const script s = steady("copies_c", 80000);
  check_time(one_thread, &s, 0);
  assert_true(rows[0].time.n == 7 && isnan(rows[0].peak_pct) && isnan(rows[0].peak_gflops));
}

/* Half of the samples decide. A thread that shares its work with others waits for them. */
TEST(work_outside_of_calls_is_an_error) {
  script s = steady("late_c", 80000);
  s.late_share = 0.51;
  expect_objection(one_thread, &s, 1e6,
                   "works late: when its output was read, it took 0.51 times the CPU time of its calls");
  s.late_share = 0.49;
  check_time(one_thread, &s, 1e6);
  assert_int_equal(rows[0].verdict.status, BENCH_PASS);
  s.waits = true;
  expect_objection(one_thread, &s, 1e6, "its calls wait");
  s.late_share = 0;
  check_time(two_threads, &s, 1e6);
  assert_int_equal(rows[0].verdict.status, BENCH_PASS);
}

TEST(threads_are_counted) {
  script s = steady("idles_c", 80000);
  s.busy = 1;
  check_time(two_threads, &s, 1e6);
  assert_close(rows[0].threads_counted, 1);
  assert_close(rows[1].threads_counted, 2);
  assert_string_equal(rows[0].warnings, "threads: 1.00 of 2 were busy");
  s.busy = 1.5; /* three quarters are enough */
  check_time(two_threads, &s, 1e6);
  assert_true(rows[0].threads_counted == 1.5);
  assert_string_equal(rows[0].warnings, "");
  s.busy = 1;
  check_time(two_threads, &s, 1e6);
  assert_string_equal(rows[1].warnings, "");
  sim.cpus = 1;
  check_time(two_threads, &s, 1e6);
  test_contains(rows[1].warnings, "threads: 2 share 1 CPU");
  assert_null(strstr(rows[1].warnings, "1 CPUs"));
}

/* The best slice reaches 1.01 x 2e12 flop/s per thread: 4.04e12 on two threads. */
TEST(what_beats_the_peak_is_an_error) {
  const script s = steady("beats_c", 1000);
  expect_objection(two_threads, &s, 1e3 * 4.04e3 * 1.051, "4246 Gflop/s are 105 % of the peak loop");
  check_time(two_threads, &s, 1e3 * 4.04e3 * 1.049);
  assert_int_equal(rows[0].verdict.status, BENCH_PASS);
  test_contains(rows[0].warnings, "faster than the measured peak");
}

/* A library chooses its instructions itself: no loop of this CPU may be slower than it, whichever stands beside it. */
TEST(kernels_of_libraries_may_use_any_tier) {
  if (!strcmp(bench_highest_tier(), "c")) skip();
  script s = steady("wide_c", 1000);
  sim.best_factor = 3;
  expect_objection(one_thread, &s, 1e3 * 2 * 2.02e3, "200 % of the peak loop");
  s.kernel.library = "x";
  for (int much = 0; much < 2; much++) {
    open_setup(one_thread, &seven_rounds, (const script *[]){&s}, 1);
    setup.flops = 1e3 * (much ? 3.2 : 3.1) * 2.02e3; /* the peak is 3.03 times that of the others */
    bench_setup_time(&setup);
    setup.trials[0].peak = attn_peak_for("c", "f32");
    bench_setup_check_time(&setup, &setup.trials[0]);
    if (much) test_contains(setup.trials[0].verdict.reason, "107 % of the peak loop");
    if (!much) assert_int_equal(setup.trials[0].verdict.status, BENCH_PASS);
  }
}

/* All slices beside the samples are disturbed, so the peak is measured again. */
TEST(a_slow_peak_makes_no_error) {
  const script s = steady("also_constant_c", 1000);
  sim.slow_until_ns = sim.now_ns + 7 * 10e6; /* the rounds take 14 samples of 2.4 ms and 28 slices of 0.25 ms */
  check_time(one_thread, &s, 1.5e6);
  assert_int_equal(rows[0].verdict.status, BENCH_PASS);
  assert_true(rows[0].peak_pct > 70 && rows[0].peak_pct < 80); /* the best slice: 1.5e12 of 2.02e12 flop/s */
}

/* The loop beside the samples reads 10 GB/s with two threads; 1e6 bytes at 105 % of it take 95238 ns. A disturbed loop is
 * measured again, and its best rate is the roof then. */
TEST(what_beats_the_read_loop_is_an_error) {
  static const struct {
    bool disturbed;
    double ns, pct;
    bool error;
  } cases[] = {{false, 1e5, 100, false},
               {false, 95240, 105, false},
               {false, 95230, 0, true},
               {true, 1e5, 100, false},
               {true, 95230, 0, true}};
  for (size_t i = 0; i < COUNT(cases); i++) {
    const script s = steady("reads_c", cases[i].ns);
    open_setup(two_threads, &seven_rounds, (const script *[]){&s}, 1);
    sim.read_rounds = 0, sim.read_gbs = 10, sim.read_disturbed = cases[i].disturbed;
    bench_setup_time(&setup);
    bench_setup_rows(&setup, rows);
    assert_int_equal(rows[0].verdict.status, cases[i].error ? BENCH_ERROR : BENCH_PASS);
    char sentence[120];
    const char *level = bench_level_of(0.5e6, 2);
    snprintf(sentence, sizeof sentence, "10.5 GB/s are 105 %% of the loop that only reads these bytes%s%s: no kernel can",
             *level ? ", in " : "", level);
    if (cases[i].error)
      test_contains(rows[0].verdict.reason, sentence);
    else
      assert_true(fabs(rows[0].bw_pct - cases[i].pct) < 0.01 && fabs(rows[0].peak_gbs - 10) < 1e-9);
    assert_int_equal(strstr(rows[0].warnings, "disturbed") != NULL, !cases[i].error && cases[i].disturbed);
  }
}

/* Copies that are used in turn are all read before one is read again; a layer has one. */
TEST(the_level_holds_all_cold_copies) {
  static const char *const caches[] = {"warm", "cold-kv", "cold"};
  static bench_layer layer;
  const script s = steady("reads_c", 1e9); /* beats no loop, however large the caches are */
  for (int n = 0; n < 6; n++) {
    char id[100];
    snprintf(id, sizeof id, "%s/cache:%s", two_threads, caches[n % 3]);
    open_setup(id, &seven_rounds, (const script *[]){&s}, 1);
    setup.rotations = MOST_TENSORS;
    setup.layer = n < 3 ? NULL : &layer;
    for (int level = 1; level <= 3 && bench_cache_bytes(level) > 0; level++) { /* which holds one, but not all */
      setup.bytes = 2 * (double)bench_cache_bytes(level) / (level == 3 ? 4 : 2);
      bench_setup_time(&setup);
      assert_string_equal(setup.level, bench_level_of(setup.bytes * (n % 3 && n < 3 ? MOST_TENSORS : 1) / 2, 2));
      if (n >= 3) assert_true(sim.bandwidth_bytes == (size_t)(setup.bytes / 2) && setup.read_rates[6] == 16e9);
      bench_trial_clear(&setup.trials[0]), bench_trial_clear(&setup.control);
    }
  }
}

/* The read rate is measured beside each round, and a round's share is that of its own rate. */
TEST(shares_of_the_read_loop_are_of_one_round) {
  script s = steady("reads_c", 0);
  s.lengths = 7;
  for (int r = 0; r < 7; r++) s.call_ns[r] = 200e3 * (1 + r);
  open_setup(two_threads, &seven_rounds, (const script *[]){&s}, 1);
  sim.read_gbs = 10, sim.read_slower = true; /* slower by the same factor in each round */
  bench_setup_time(&setup);
  bench_setup_rows(&setup, rows);
  assert_close(rows[0].bw_pct, 50);
  assert_close(rows[0].peak_gbs, 2.5); /* the median: round 3 */
}

/* ---- Without memory -------------------------------------------------------------------------------------------------- */

/* Every allocation fails from a certain one on. A row then has either a time or a reason, and no infinite number. */
TEST(without_memory_there_are_sentences) {
  const script a = steady("a_c", 3000), b = steady("b_c", 6000), *scripts[] = {&a, &b};
  int errors = 0;
  for (int allocations = 0; allocations < 60; allocations++) {
    simulated_begin(NULL);
    open_setup(one_thread, &seven_rounds, scripts, 2);
    fail_allocations_after(allocations);
    bench_setup_time(&setup);
    bench_setup_rows(&setup, rows);
    fail_allocations_after(-1);
    for (int i = 0; i < 2; i++) {
      const bool timed = rows[i].verdict.status == BENCH_PASS;
      errors += !timed;
      assert_true(timed || strstr(rows[i].verdict.reason, "memory"));
      assert_true(timed == (rows[i].time.n == 7));
      if (timed) assert_close(rows[i].time.median, scripts[i]->call_ns[0]);
      assert_false(isinf(rows[i].gflops) || isinf(rows[i].peak_pct) || rows[i].peak_pct > 100 || rows[i].peak_gflops <= 0);
      assert_false(isinf(rows[i].ratio.median) || isinf(rows[i].ratio_best) || isinf(rows[i].noise));
    }
  }
  assert_true(errors > 2 && errors < 120);
}

/* ---- How long it still takes ---------------------------------------------------------------------------------------- */

TEST(time_left_follows_the_pace_and_never_rises) {
  bench_progress p;
  bench_progress_start(&p, 4, 40, true); /* four cases of ten guessed seconds */
  p.started = 100;
  assert_true(fabs(bench_progress_left(&p, 100) - 40) < 1e-9);
  bench_progress_advance(&p, 10, false); /* it took five */
  const double left = bench_progress_left(&p, 105);
  assert_true(fabs(left - 30 * 10. / 15) < 1e-9); /* the guess counts as 5 more seconds that came true */
  bench_progress_advance(&p, 10, false);          /* and this one a hundred */
  assert_true(bench_progress_left(&p, 205) == left);
  bench_progress_advance(&p, 10, true); /* one of the journal's: it says nothing about the pace */
  assert_true(bench_progress_left(&p, 205) == left);
  bench_progress_advance(&p, 10, false);
  assert_true(bench_progress_left(&p, 206) == 0);
  assert_int_equal(p.fresh, 3);
}
