/* SPDX-License-Identifier: MIT */
/* Rounds with a simulated clock: calls of a sample, wrong outputs, when rounds end, and in which order all happens. */
#include "tests/harness/timing/simulated.h"

#include <fenv.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "base/handlers.h"
#include "data/generate.h"

/* ---- Calls and samples ----------------------------------------------------------------------------------------------- */

/* A call takes 100 ns, a sample 2 ms. The calibration tries 1, 100 and 10000 calls, then 1.2 times as many as are needed. */
TEST(iterations_fill_a_sample) {
  const script s = steady("steady", 100);
  SET_UP(7, &s);
  t.options.min_sample_s = 2e-3;
  run_well();
  assert_int_equal(t.trial[0].samples.iterations, 24000);
  assert_int_equal(sim.calls, 1 + 100 + 10000 + 24000 +
                                  7 * (2 + 24000)); /* each round warms up with one call, and has one on known inputs */
  assert_close(t.trial[0].call_ns, 100);
  for (int r = 0; r < 7; r++) assert_close(t.trial[0].samples.time_ns[r], 100);
}

/* The first calibration is disturbed by a hundred times, and would leave its trial with shorter samples than another one of
 * the same kernel. What is slower by itself keeps its calls. */
TEST(trials_of_a_kernel_take_as_many_calls) {
  const script s = steady("steady", 10000);
  SET_UP(7, &s, &s);
  t.options.min_sample_s = 1e-3;
  sim.disturb = 1;
  run_well();
  for (int i = 0; i < 2; i++) assert_int_equal(t.trial[i].samples.iterations, 100);
  script slow = steady("steady", 10000);
  slow.control_factor = 50;
  SET_UP(7, &slow, &slow);
  t.trial[1].kernel = t.trial[0].kernel;
  t.options.min_sample_s = 1e-3;
  sim.control = &t.trial[1];
  run_well();
  assert_int_equal(t.trial[0].samples.iterations, 100);
  assert_int_equal(t.trial[1].samples.iterations, 3);
}

TEST(a_sample_lasts_a_thousand_clock_steps) {
  const script s = steady("steady", 1000);
  SET_UP(7, &s);
  sim.resolution_ns = 50;
  run_well();
  assert_int_equal(t.trial[0].samples.iterations, 60); /* 1.2 * 50 us */
  sim.resolution_ns = 0;
  SET_UP(7, &s);
  assert_false(run_rounds());
  test_contains(t.error, "stands still");
}

/* run_well() knows what they must be: each thread's time is of calls alone, without that of close looks. */
TEST(cpu_times_are_those_of_calls) {
  static const double shares[][2] = {{1, 1}, {2, 0.5}, {0.5, 0.5}, {3, 1}};
  for (size_t i = 0; i < 2 * COUNT(shares); i++) {
    script s = steady("steady", 2000);
    s.busy = shares[i / 2][0], s.own_share = shares[i / 2][1], s.waits = i % 2;
    SET_UP(7, &s);
    run_well();
  }
}

TEST(warnings_are_one_sentence) {
  bench_warn(&t.trial[0], "%d thread", 1);
  bench_warn(&t.trial[0], "%s", "disturbed");
  assert_string_equal(t.trial[0].warnings, "1 thread; disturbed");
  for (size_t i = 0; i < sizeof t.trial[0].warnings; i++) bench_warn(&t.trial[0], "more");
  assert_int_equal(strlen(t.trial[0].warnings), sizeof t.trial[0].warnings - 1);
}

/* A sample and two slices of a quarter millisecond before and after it; the read loop takes three times as long as calls.
 */
TEST(a_sample_and_its_slices_are_guessed) {
  bench_trial trial = {.call_ns = 5000, .samples.iterations = 40};
  assert_close(bench_sample_guess_ns(&trial), 200e3 + 4 * 0.25e6);
  trial.reads = true;
  assert_close(bench_sample_guess_ns(&trial), 200e3 + 4 * 3 * 200e3);
}

/* Which calls are looked at closely hangs on the clock: two runs of the same seed look at others. */
TEST(no_seed_tells_what_is_looked_at) {
  const script s = steady("steady", 1e3);
  uint64_t looked_at[2] = {0, 0};
  for (int run = 0; run < 2; run++) {
    (void)simulated_begin(NULL);
    sim.now_ns += 12345 * run;
    SET_UP(40, &s);
    t.options.min_sample_s = 1e-4;
    run_well();
    for (int i = 0; i < sim.events; i++)
      if (sim.log[i].kind == LOOK_CLOSELY) looked_at[run] = 31 * looked_at[run] + (uint64_t)i;
  }
  assert_int_not_equal(looked_at[0], looked_at[1]);
}

/* ---- Errors ---------------------------------------------------------------------------------------------------------- */

static void expect_error(const script *s, const char *part) {
  const script good = steady("good", 500);
  SET_UP(7, &good, s);
  assert_false(run_rounds());
  test_contains(t.error, s->kernel.name);
  test_contains(t.error, part);
}

TEST(the_timed_output_is_compared) {
  script s = steady("turns_wrong", 700);
  s.hidden_from = 4;
  expect_error(&s, "differs from the one that passed the check");
  s.hidden_from = 0;
  s.wrong_from = 4;
  expect_error(&s, "wrong in a row");
}

TEST(every_output_is_looked_at) {
  script s = steady("skips_work", 700);
  s.idle_from = 3;
  expect_error(&s, "did not write");
}

/* The inputs change before every sample, so an answer that was right for the first inputs is wrong later. */
TEST(remembered_answers_are_wrong) {
  script s = steady("remembers", 700);
  s.remembers = true;
  expect_error(&s, "wrong in a row");
}

TEST(a_failing_call_is_an_error) {
  script s = steady("fails", 700);
  s.fail_from = 2;
  expect_error(&s, "");
}

TEST(no_time_without_pass) {
  static const bench_status others[] = {BENCH_FAIL, BENCH_SKIP, BENCH_DEGENERATE, BENCH_ERROR};
  const script s = steady("unchecked", 100);
  for (size_t i = 0; i < COUNT(others); i++) {
    SET_UP(7, &s);
    t.trial[0].verdict.status = others[i];
    assert_false(run_rounds());
    test_contains(t.error, "no time without a passed check");
    test_contains(t.error, bench_status_name(others[i]));
    assert_int_equal(sim.calls, 0);
  }
}

/* The limit is 0.2 % and 50 us; samples have one to three calls. */
TEST(clocks_that_disagree_are_an_error) {
  static const struct { double call_ns, within, beyond; } cases[] = {{1e6, 0.015, 0.055}, {1e9, 0.002, 0.0022}};
  for (int n = 0; n < 8; n++) {
    const bool later = n & 1, of_system = n & 2;
    const script s = steady("steady", cases[n / 4].call_ns);
    for (int differ = 0; differ < 2; differ++) {
      const double by = differ ? cases[n / 4].beyond : cases[n / 4].within, factor = later ? 1 + by : 1 - by;
      SET_UP(7, &s);
      sim.system_factor = of_system ? factor : 1;
      sim.libc_factor = of_system ? 1 : factor;
      assert_int_equal(run_rounds(), !differ);
      if (differ) test_contains(t.error, "steady: clocks disagree about its sample");
    }
  }
}

/* ---- Each call ------------------------------------------------------------------------------------------------------- */

enum { FAILS, ROUNDS_DOWN, SETS_HANDLER, SLACKENS_TIMERS, DEEDS };
static int deed;
static int64_t deed_call; /* the call that does it */
static const bench_trial *doer;

static int do_deed(const bench_trial *trial) {
  if (sim.calls != deed_call) return 0;
  doer = trial;
  if (deed == ROUNDS_DOWN || deed == FAILS) (void)fesetround(FE_DOWNWARD);
  if (deed == SETS_HANDLER) (void)signal(SIGUSR2, (void (*)(int))abort);
  if (deed == SLACKENS_TIMERS) (void)prctl(PR_SET_TIMERSLACK, 123456, 0, 0, 0);
  return deed == FAILS ? FAILED : 0;
}

/* Two alike trials, the first of which gets more calls, and one with cold caches. */
static void set_up_deeds(void) {
  static script a, b;
  a = steady("a", 900), b = steady("b", 700);
  simulated_begin(NULL);
  SET_UP(2, &a, deed == FAILS ? &b : &a, &b); /* a failure is no matter where calls are only evened out */
  t.options.min_sample_s = 2e-6;
  t.trial[2].cold = true, t.trial[2].turn = &t.turn;
  for (int i = 0; i < 3; i++) t.trial[i].tensor_count = 3;
  sim.disturb = 1;
  sim.effect = do_deed;
}

/* Whichever call fails, or leaves something behind in the thread or the process, is an error of its trial, and all is as it
 * was: calls to calibrate, to compare trials that are alike, to warm up, timed ones, and those on known inputs. */
TEST(each_call_is_watched) {
  static const char *const sentences[] = {"", "other rounding", "sets a handler of signal", "changes the timers"};
  const int slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
  bench_handlers_note();
  for (deed = 0; deed < DEEDS; deed++) {
    for (deed_call = 1, set_up_deeds(); !run_rounds(); deed_call++, set_up_deeds()) { /* up to the first that is none */
      assert_ptr_equal(t.failed, doer);
      test_contains(t.error, doer->kernel->name);
      test_contains(t.error, sentences[deed]);
      assert_true(fegetround() == FE_TONEAREST && prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0) == slack);
    }
    assert_true(deed_call > 40 && sim.calls == deed_call - 1);
  }
  deed_call = 0;
  (void)signal(SIGUSR2, SIG_DFL);
}

TEST(fewer_threads_than_asked_for_are_an_error) {
  const script s = steady("a", 100);
  SET_UP(7, &s);
  sim.most_threads = 2;
  t.trial[0].threads = 3;
  assert_false(run_rounds());
  test_contains(t.error, "2 of 3 threads run: "); /* test_rates.c tests which limits are named */
  assert_int_equal(sim.calls, 0);
}

/* ---- When the rounds end --------------------------------------------------------------------------------------------- */

/* Two scripts run for 11 to 20 rounds, until their times are precise to 1 %. */
static void set_up_open_end(const script *a, const script *b) {
  SET_UP(11, a, b);
  t.options.max_rounds = 20;
  t.options.precision = 0.01;
}

TEST(precise_times_end_at_the_least_rounds) {
  script a = steady("a", 0), b = steady("b", 3000);
  const double inside[] = {5000, 5050, 4950}; /* an interval of exactly +-1 % is precise */
  memcpy(a.call_ns, inside, sizeof inside);
  a.lengths = 3;
  set_up_open_end(&a, &b);
  run_well();
  assert_int_equal(t.stop, BENCH_STOP_PRECISION);
  assert_int_equal(t.trial[0].samples.rounds, 11);
  assert_int_equal(t.trial[1].samples.rounds, 11);
}

/* If the interval of one trial is too wide on one side, all trials go on. */
static void expect_all_rounds(double odd) {
  script wide = steady("wide", 0);
  const double times[] = {odd, 5000, 5000};
  memcpy(wide.call_ns, times, sizeof times);
  wide.lengths = 3;
  const script narrow = steady("narrow", 3000);
  set_up_open_end(&wide, &narrow);
  run_well();
  assert_int_equal(t.stop, BENCH_STOP_ROUNDS);
  assert_int_equal(t.trial[0].samples.rounds, 20);
  assert_int_equal(t.trial[1].samples.rounds, 20);
}

TEST(an_interval_wide_below_is_not_precise) { expect_all_rounds(4900); }

TEST(an_interval_wide_above_is_not_precise) { expect_all_rounds(5100); }

/* A round has 2 samples of 3 calls and 2 calls to warm up; a call takes 1 ms, so the round takes 8 ms, and more where calls
 * on known inputs come to it. The budget allows 13.5 rounds beside the 8 calls of the calibration. */
TEST(the_budget_ends_the_rounds) {
  script wide = steady("wide", 0);
  wide.call_ns[0] = 1e6, wide.call_ns[1] = 1.2e6, wide.call_ns[2] = 0.8e6;
  wide.lengths = 3;
  script other = wide;
  other.kernel.name = "other";
  set_up_open_end(&wide, &other);
  t.options.max_rounds = 60;
  t.options.min_sample_s = 2.5e-3;
  t.options.budget_s = 13.5 * 8e-3 + 8e-3;
  run_well();
  assert_int_equal(t.stop, BENCH_STOP_BUDGET);
  assert_int_equal(t.trial[0].samples.iterations, 3);
  assert_in_range(t.trial[0].samples.rounds, 12, 14);
  assert_int_equal(t.trial[1].samples.rounds, t.trial[0].samples.rounds);
  set_up_open_end(&wide, &other);
  t.options.max_rounds = 60;
  t.options.min_sample_s = 2.5e-3;
  t.options.budget_s = 12 * 8e-3 + 8e-3; /* which is used up, exactly, but not exceeded */
  run_well();
  assert_in_range(t.trial[0].samples.rounds, 11, 13);
}

/* A share of the budget that 11 rounds fill exactly is enough for all rounds. */
TEST(trials_that_fill_their_share_are_not_slow) {
  const script a = steady("a", 1e6), b = steady("b", 1e6);
  set_up_open_end(&a, &b);
  t.options.budget_s = 2 * 11 * 2e-3;
  run_well();
  assert_int_equal(t.stop, BENCH_STOP_PRECISION);
  assert_int_equal(t.trial[0].quota, 20);
}

TEST(an_interrupt_ends_after_the_round) {
  script a = steady("a", 1000), b = steady("b", 2000);
  a.interrupt_in = 4; /* the fifth round */
  SET_UP(30, &a, &b);
  run_well();
  assert_int_equal(t.stop, BENCH_STOP_INTERRUPT);
  assert_int_equal(t.trial[0].samples.rounds, 5);
  assert_int_equal(t.trial[1].samples.rounds, 5);
}

/* 10 s for three trials are 3.33 s each. Two need 1.11 s each for 11 rounds: a sample takes 100 ms, the slices around it 1
 * ms. The third, whose samples take 1 s, gets the rest: 7 rounds. */
TEST(a_slow_trial_runs_in_the_first_rounds_only) {
  const script a = steady("a", 1e8), slow = steady("slow", 1e9), b = steady("b", 1e8);
  SET_UP(11, &a, &slow, &b);
  t.options.budget_s = 10;
  run_well();
  assert_int_equal(t.trial[0].samples.rounds, 11);
  assert_int_equal(t.trial[1].samples.rounds, 7);
  assert_int_equal(t.trial[2].samples.rounds, 11);
  assert_int_equal(t.stop, BENCH_STOP_ROUNDS);
}

/* A slow trial gets three rounds, or fewer if fewer were asked for. */
TEST(slow_trials_run_three_times_at_least) {
  const script slow = steady("slow", 1e9), slower = steady("slower", 2e9);
  for (int rounds = 2; rounds <= 11; rounds += 9) {
    SET_UP(rounds, &slow, &slower);
    t.options.budget_s = 2;
    run_well();
    for (int i = 0; i < 2; i++) assert_int_equal(t.trial[i].samples.rounds, rounds < 3 ? rounds : 3);
    assert_int_equal(t.stop, rounds < 3 ? BENCH_STOP_ROUNDS : BENCH_STOP_BUDGET);
  }
}

/* ---- Order ----------------------------------------------------------------------------------------------------------- */

static int at, orders; /* at: index in the log; orders: calls whose tensors do not follow those of the call before */
static double looks[2], looks_wanted[2]; /* after the rounds that are sure to have one: many, and few */
static int64_t turn;                     /* place in the rotation */

/* The tensors of the next event, which must be of this kind. */
static int64_t expect(event_kind kind, const bench_trial *trial) {
  const event *e = &sim.log[at++];
  if (at > sim.events || e->kind != kind || e->trial != trial) fail_msg("event %d: kind %d, not %d", at - 1, e->kind, kind);
  return e->turn;
}

/* Two slices of the trial's loop; 0 without one. */
static void expect_slices(const bench_trial *trial, double *rate) {
  for (int i = 0; i < BENCH_SLICES; i++) {
    const event *e = &sim.log[at];
    rate[i] = trial->reads || trial->peak ? e->rate : 0;
    if (trial->reads) assert_int_equal(expect(READ, trial), turn % trial->tensor_count);
    if (trial->reads) turn += BENCH_READ_ORDERS * trial->samples.iterations;
    if (trial->peak) assert_true(expect(PEAK, NULL) == 0 && e->loop == trial->peak);
  }
}

/* In its turn, where caches are cold. */
static int64_t expect_tensors(event_kind kind, const bench_trial *trial) {
  const int64_t tensors = expect(kind, trial);
  if (trial->cold) assert_int_equal(tensors, turn++ % trial->tensor_count);
  return tensors;
}

/* Calls, each on tensors of its own with inputs that no call has seen; a look at each output, and maybe close ones. Returns
 * the tensors as bits. */
static int expect_group(const bench_trial *trial, int64_t count, int *close) {
  const int first = at;
  int used = 0;
  for (int64_t i = 0, last = -1, tensors; i < count; i++, last = tensors) {
    tensors = expect_tensors(CALL, trial);
    assert_false(used >> tensors & 1);
    used |= 1 << tensors;
    orders += !trial->cold && tensors != last + 1;
  }
  for (int i = 0; i < count; i++) assert_int_equal(expect(LOOK, trial), sim.log[first + i].turn);
  while (sim.log[at].kind == LOOK_CLOSELY) assert_true(++*close && used >> expect(LOOK_CLOSELY, trial) & 1);
  for (int i = 0; i < count; i++) assert_int_equal(expect(FRESHEN, trial), sim.log[first + i].turn);
  return used;
}

/* One sample. If caches are warm and calls short: a call on each of the tensors to warm up; then another V, and other
 * inputs. Calls, one of them at most on known inputs, whose output is poisoned before and compared after it. If caches are
 * cold: then another V. Rows that are looked at closely take a tenth of its time, also where it has one call. */
static void expect_sample(const bench_trial *trial, int round) {
  static const event_kind kinds[] = {POISON, CALL, HASH, FRESHEN};
  int close = 0, known = 0, used = 0;
  const int64_t warm = trial->cold ? 0 : trial->tensor_count;
  for (int64_t i = 0; i < warm && trial->call_ns < 20e6; i++) assert_int_equal(expect(CALL, trial), i);
  for (int64_t i = 0; i < warm; i++) assert_true(expect(RENEW, trial) == i && expect(FRESHEN, trial) == i);
  for (int64_t left = trial->samples.iterations; left > 0; left -= trial->group) {
    used |= expect_group(trial, left < trial->group ? left : trial->group, &close);
    if (sim.log[at].kind != RESTORE) continue;
    const int64_t tensors = expect_tensors(RESTORE, trial);
    for (size_t i = 0; i < COUNT(kinds); i++) assert_int_equal(expect(kinds[i], trial), tensors);
    used |= 1 << tensors;
    known++;
  }
  if (trial->cold) assert_true(used >> expect(RENEW, trial) & 1);
  const double wanted = fmin(8, 0.1 * bench_sample_guess_ns(trial) / sim.row_ns);
  assert_true((close >= 1 || round >= 8) && close <= 8 && known <= 1);
  assert_true(round == 0 || trial->by_kernel == (sim.row_ns > bench_sample_guess_ns(trial)));
  assert_true(round == 0 || (close <= fmax(1, wanted + 1) && close >= floor(wanted) / 2));
  if (round >= 8) looks[wanted < 0.1] += close, looks_wanted[wanted < 0.1] += wanted;
  assert_true(known == 1 || bench_sample_guess_ns(trial) < 8 * trial->call_ns);
}

static void expect_team(const bench_trial *trial, int *team) {
  if (trial->threads < *team) (void)expect(DISMISS, NULL);
  *team = trial->threads;
}

/* Trials in the order of Latin squares, with threads, loops and tensors of their own. A larger team goes before fewer
 * threads; slices come right before and after a sample, and their median counts. The slices behind a sample serve the next
 * trial, too, if it has the same loop. */
TEST(rounds_have_their_order) {
  enum { TRIALS = 5, ROUNDS = 10 };
  static const attn_peak_loop loops[] = {{.isa = "c", .dtype = "f32", .flops = 1},
                                         {.isa = "avx2", .dtype = "f32", .flops = 1}};
  static const double call_ns[] = {300, 900, 2100, 2e7};
  uint64_t random = 1;
  for (int n = 0; n < 40; n++) {
    const script s[TRIALS] = {steady("a", call_ns[n % 4]), steady("b", 300), steady("c", 500), steady("d", 600),
                              steady("e", 700)};
    int team = 1, order[TRIALS * TRIALS];
    simulated_begin(NULL);
    set_up((const script *const[]){&s[0], &s[1], &s[2], &s[3], &s[4]}, TRIALS, ROUNDS);
    t.options.min_sample_s = 5e-6;
    sim.row_ns = n % 5 ? 30e3 : 1e9; /* longer than most samples, but not than the loops beside them; or than both */
    for (int i = 0; i < TRIALS; i++) {
      bench_trial *trial = &t.trial[i];
      const int loop = i + 1 < TRIALS ? (int)(bench_random(&random) % 4) : 1; /* the last one: where its calibration ends */
      trial->threads = n < 4 ? 1 : 1 + (int)(bench_random(&random) % 3);
      trial->peak = loop < 2 ? &loops[loop] : NULL;
      trial->reads = loop == 2;
      trial->tensor_count = 1 + n % 7;
      trial->turn = &t.turn;
      trial->cold = n & 1;
      if (trial->threads > team) team = trial->threads;
    }
    run_well();
    at = 0, turn = 0;
    if (team == 1) (void)expect(DISMISS, NULL);
    for (int i = 0; i < TRIALS; i++) { /* the calibration */
      const bench_trial *trial = &t.trial[i];
      expect_team(trial, &team);
      for (int64_t k = 0; k < trial->tensor_count; k++) assert_int_equal(expect(FRESHEN, trial), k);
      for (; sim.log[at].trial == trial && sim.log[at].kind <= LOOK; at++) turn += trial->cold && sim.log[at].kind == CALL;
      assert_int_equal(trial->group, fmin(trial->tensor_count, ceil(BENCH_GROUP_NS / s[i].call_ns[0])));
    }
    for (int r = 0; r < ROUNDS; r++) {
      const attn_peak_loop *last = NULL;
      double rates[2 * BENCH_SLICES] = {0};
      assert_true(bench_latin_square(order, TRIALS, t.options.seed, r / TRIALS));
      for (int place = 0; place < TRIALS; place++) {
        const bench_trial *trial = &t.trial[order[r % TRIALS * TRIALS + place]];
        expect_team(trial, &team);
        if (last && last == trial->peak)
          memcpy(rates, rates + BENCH_SLICES, sizeof rates / 2);
        else
          expect_slices(trial, rates);
        expect_sample(trial, r);
        expect_slices(trial, rates + BENCH_SLICES);
        last = trial->peak;
        assert_close(trial->samples.loop_rate[r], bench_median((double[]){rates[0], rates[1], rates[2], rates[3]}, 4));
        assert_int_equal(trial->samples.position[r], place);
        if (trial->peak) assert_int_equal(trial->slice.threads, trial->threads);
      }
    }
    assert_int_equal(at, sim.events);
    assert_int_equal(turn % t.trial[0].tensor_count, t.turn);
  }
  assert_true(orders > 1000);
  for (int few = 0; few < 2; few++) /* each takes place with its chance */
    if (!(fabs(looks[few] - looks_wanted[few]) < 4 + 0.1 * looks_wanted[few]))
      fail_msg("%g looks instead of %g", looks[few], looks_wanted[few]);
}
