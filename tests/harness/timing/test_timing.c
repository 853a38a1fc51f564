/* SPDX-License-Identifier: MIT */
/* How times are measured, with a simulated clock and scripted trials: every reported number is known beforehand. */
#define TEST_SETUP    begin
#define TEST_TEARDOWN end
static int begin(void **state), end(void **state);
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cases/cases.h"
#include "compare/compare.h"
#include "data/generate.h"
#include "goals/goals.h"
#include "machine/affinity.h"
#include "tests/support/failing_malloc.h"
#include "tests/support/layer_support.h"
#include "timing/core_share.h"
#include "timing/setup.h"

enum {
  MOST_EVENTS = 20000,
  MOST_ROUNDS = 64,
  MOST_TENSORS = BENCH_MOST_GROUP,
  CHECKED = 4711,
  UNWRITTEN = 13,
  HIDDEN = 1 << 30
};

/* ---- The simulated world --------------------------------------------------------------------------------------------- */

/* The simulated behaviour of a trial. The first member must be `kernel`, to which the trial points. */
typedef struct script {
  attn_kernel_info kernel;
  double call_ns[MOST_ROUNDS]; /* a call in round r takes call_ns[r % lengths] */
  int lengths;
  double control_factor; /* of the times of the A/A control, a second trial of the same kernel */
  double own_share;      /* of its calls that the calling thread itself runs; 0: all */
  double busy;           /* threads; 0: as many as the trial has, or as a larger team that still spins */
  double alone_factor;   /* of the times of a trial with one thread, beside others; 0 = 1 */
  bool remembers;        /* repeats its first answer for a tensor, whatever the tensor holds now */
  int idle_from;         /* from this round on it writes no output; 0 = never */
  int wrong_from;        /* from this round on it writes another output */
  int hidden_from;       /* from this round on, where no close look sees it */
  int fail_from;         /* from this round on its calls fail */
  int interrupt_in;      /* in this round the user presses Ctrl-C; 0 = never */
} script;

typedef enum event_kind { CALL, FRESHEN, LOOK, RENEW, POISON, RESTORE, HASH, LOOK_CLOSELY, PEAK, READ, DISMISS } event_kind;

typedef struct event {
  event_kind kind;
  const bench_trial *trial; /* NULL: PEAK, DISMISS */
  const attn_peak_loop *loop;
  int64_t turn;
  double rate;
} event;

static struct {
  double now_ns, resolution_ns, peak_rate;
  double best_factor; /* of the peak of the last loop; 0 = 1 */
  event log[MOST_EVENTS];
  int events;
  int64_t calls;
  bench_cpu_time cpu;
  int threads, most_threads, cpus; /* of the team that spins; most that OpenMP gives; CPUs that it may use (0: enough) */
  int version[MOST_TENSORS];       /* of the inputs */
  int remembered[MOST_TENSORS];    /* the first version that a call saw */
  bool marked[MOST_TENSORS];       /* the output holds the mark of freshen() */
  uint64_t output[MOST_TENSORS];   /* of the trial that was poisoned last */
  volatile int stop;
  const bench_trial *control;
  const script *all;    /* the script of every trial; NULL: each trial has its own */
  double libc_factor;   /* by which the C library's clock is too quick; 0 = 1 */
  double slow_until_ns; /* until then peak loops are disturbed */
  int slices;
  int read_rounds;     /* reads so far, of a loop that reads once a round */
  double read_gbs;     /* of all threads; 0: faster than any kernel */
  bool read_disturbed; /* in the seven rounds a quarter of it */
  bool read_slower;    /* in round n a share of 1 / (n + 1) */
  size_t bandwidth_bytes;
  int disturb; /* so many of the next calls take a hundred times as long */
  double luck; /* standard deviation of the log-times of placements; 0: all are alike */
  const void *place[3 * MOST_ROUNDS],
      *owner[3 * MOST_ROUNDS]; /* workspaces in the order of their first calls; whose each is */
  int places, shared;          /* so many calls were in the workspace of another trial */
  const void *filled;          /* the last workspace that was, */
  size_t filled_bytes;
  int filled_by;                 /* and by how many threads */
  int core_looks, looks_a_round; /* at the core's share; looks_a_round 0: it is not known */
  uint64_t disturbed;            /* rounds in which one of these looks finds a neighbour, as bits */
} sim;

static void note(event e) {
  if (sim.events < MOST_EVENTS) sim.log[sim.events++] = e;
}

static const script *script_of(const bench_trial *trial) {
  return sim.all ? sim.all : (const script *)(const void *)trial->kernel;
}

static double now_ns(void) { return sim.now_ns; }
static double resolution_ns(void) { return sim.resolution_ns; }
static bench_cpu_time cpu_now(void) { return sim.cpu; }

static bench_team team(int threads) {
  sim.threads = sim.most_threads && sim.most_threads < threads ? sim.most_threads : threads;
  return (bench_team){sim.threads, sim.cpus ? sim.cpus : threads};
}

static void dismiss(void) {
  note((event){.kind = DISMISS});
  sim.threads = 1;
}

void __wrap_bench_pages_fill(void *memory, int byte, size_t bytes, int threads);
void __wrap_bench_pages_fill(void *memory, int byte, size_t bytes, int threads) {
  memset(memory, byte, bytes);
  sim.filled = memory, sim.filled_bytes = bytes, sim.filled_by = threads;
}

/* The output of a right call for this version of the inputs. */
static uint64_t right_output(int version) { return CHECKED + 1000 * (uint64_t)version; }

/* How much longer calls take where the trial lies. */
static double luck_of(const bench_trial *trial) {
  int at = 0;
  if (sim.luck <= 0 || trial->workspace == trial->home.workspace) return 1; /* before the rounds */
  while (at < sim.places && sim.place[at] != trial->workspace) at++;
  if (at == sim.places) {
    assert_true(sim.filled == trial->workspace && sim.filled_bytes == trial->workspace_bytes && sim.filled_bytes > 1);
    assert_int_equal(sim.filled_by, trial->threads);
    sim.place[sim.places] = trial->workspace, sim.owner[sim.places++] = trial;
  }
  assert_true(sim.places < (int)COUNT(sim.place));
  sim.shared += sim.owner[at] != trial;
  uint64_t state = (uint64_t)at + 1;
  double sum = 0; /* of twelve uniform numbers: nearly normal */
  for (int i = 0; i < 12; i++) sum += (double)(bench_random(&state) >> 11) * 0x1p-53;
  return exp(sim.luck * (sum - 6));
}

static attn_status call(const bench_trial *trial, int64_t turn) {
  const script *s = script_of(trial);
  const int round = trial->samples.rounds;
  const int64_t at = turn % trial->tensor_count;
  const double call_ns = s->call_ns[round % s->lengths] * (trial == sim.control ? s->control_factor : 1) *
                         (trial->threads == 1 && s->alone_factor > 0 ? s->alone_factor : 1) * luck_of(trial) *
                         (sim.disturb > 0 ? 100 : 1);
  sim.disturb--;
  sim.calls++;
  if (trial->threads > sim.threads) sim.threads = trial->threads;
  sim.now_ns += call_ns;
  sim.cpu.own_ns += call_ns * (s->own_share > 0 ? s->own_share : 1);
  sim.cpu.all_ns += call_ns * (s->busy > 0 ? s->busy : sim.threads);
  if (!sim.remembered[at]) sim.remembered[at] = sim.version[at] + 1;
  note((event){.kind = CALL, .trial = trial, .turn = turn % trial->tensor_count});
  if (s->interrupt_in && round == s->interrupt_in) sim.stop = 1;
  if (s->fail_from && round >= s->fail_from) return ATTN_INVALID_ARGUMENT;
  if (s->idle_from && round >= s->idle_from) return ATTN_OK;
  sim.marked[at] = false;
  sim.output[at] = right_output(s->remembers ? sim.remembered[at] - 1 : sim.version[at]);
  if (s->wrong_from && round >= s->wrong_from) sim.output[at]++;
  if (s->hidden_from && round >= s->hidden_from) sim.output[at] += HIDDEN;
  return ATTN_OK;
}

static void renew(const bench_trial *trial, int64_t turn, int threads) {
  note((event){.kind = RENEW, .trial = trial, .turn = turn % trial->tensor_count});
  assert_int_equal(threads, trial->threads);
  if (threads > sim.threads) sim.threads = threads;
  sim.version[turn % trial->tensor_count]++;
}

static void poison(const bench_trial *trial, int64_t turn) {
  note((event){.kind = POISON, .trial = trial, .turn = turn % trial->tensor_count});
  sim.output[turn % trial->tensor_count] = UNWRITTEN;
}

static void restore(const bench_trial *trial, int64_t turn) {
  note((event){.kind = RESTORE, .trial = trial, .turn = turn % trial->tensor_count});
}

static uint64_t output_hash(const bench_trial *trial, int64_t turn) {
  const int64_t at = turn % trial->tensor_count;
  note((event){.kind = HASH, .trial = trial, .turn = at});
  const uint64_t checked = sim.all ? trial->verdict.output_hash : CHECKED;
  return sim.output[at] - right_output(sim.version[at]) + checked;
}

static void freshen(const bench_trial *trial, int64_t turn, uint64_t *random) {
  const int64_t at = turn % trial->tensor_count;
  note((event){.kind = FRESHEN, .trial = trial, .turn = at});
  ++*random;
  sim.version[at]++;
  sim.marked[at] = true;
}

static const char *look(const bench_trial *trial, int64_t turn) {
  note((event){.kind = LOOK, .trial = trial, .turn = turn % trial->tensor_count});
  return sim.marked[turn % trial->tensor_count] ? "did not write" : NULL;
}

static const char *look_closely(const bench_trial *trial, int64_t turn, uint64_t random, char *text, size_t bytes) {
  const int64_t at = turn % trial->tensor_count;
  note((event){.kind = LOOK_CLOSELY, .trial = trial, .turn = at});
  (void)random;
  sim.now_ns += 1000;
  if (sim.output[at] % HIDDEN == right_output(sim.version[at])) return NULL;
  snprintf(text, bytes, "wrong in a row");
  return text;
}

static bench_clocks clocks(void) {
  return (bench_clocks){sim.now_ns, sim.now_ns, sim.now_ns * (sim.libc_factor > 0 ? sim.libc_factor : 1)};
}

static double own_cpu_ns(void) { return sim.cpu.own_ns; }

static bench_peak_slice peak_prepare(const attn_peak_loop *loop, int threads, double slice_ns) {
  return (bench_peak_slice){.loop = loop, .threads = threads, .iterations = (int64_t)slice_ns};
}

/* Rates differ from slice to slice, so a median tells which slices it was taken of. */
static double peak_rate(const bench_peak_slice *slice) {
  static const double factor[] = {1, 0.96, 0.5, 1.01, 0.98, 0.3, 0.99};
  const double slow = sim.now_ns < sim.slow_until_ns ? 0.1 : 1;
  const double best = sim.best_factor > 0 && !strcmp(slice->loop->isa, bench_highest_tier()) ? sim.best_factor : 1;
  const double rate = best * slow * sim.peak_rate * factor[sim.slices++ % (int)COUNT(factor)];
  sim.now_ns += (double)slice->iterations;
  note((event){.kind = PEAK, .loop = slice->loop, .rate = rate});
  return rate;
}

/* Where a trial reads instead of the peak loop, slices differ. Beside rounds any kernel is slower, unless a test says so. */
static double read_rate(const bench_trial *trial, int64_t turn, int threads) {
  const bool of_round = !trial->reads && sim.read_rounds++ < 7;
  const double slower = sim.read_slower && of_round ? sim.read_rounds : sim.read_disturbed && of_round ? 4 : 1;
  const double rate =
      trial->reads ? 1e9 * (1 + sim.slices++ % 5) * threads : (sim.read_gbs > 0 ? sim.read_gbs : 1e6) * 1e9 / slower;
  sim.now_ns += 1000.0 * (double)trial->samples.iterations;
  note((event){.kind = READ, .trial = trial, .turn = turn, .rate = rate});
  return rate;
}

static double bandwidth(size_t bytes, int threads) {
  sim.bandwidth_bytes = bytes;
  return 8e9 * threads;
}

static double core_share(int threads) {
  assert_true(threads >= 1);
  if (!sim.looks_a_round) return 0;
  const int round = sim.core_looks / sim.looks_a_round, look = sim.core_looks % sim.looks_a_round;
  sim.core_looks++;
  return sim.disturbed >> round & 1 && look == round % sim.looks_a_round ? 0.5 : 0.9;
}

static const bench_meter simulated = {.now_ns = now_ns,
                                      .resolution_ns = resolution_ns,
                                      .cpu_now = cpu_now,
                                      .team = team,
                                      .dismiss = dismiss,
                                      .call = call,
                                      .renew = renew,
                                      .poison = poison,
                                      .restore = restore,
                                      .freshen = freshen,
                                      .look = look,
                                      .look_closely = look_closely,
                                      .clocks = clocks,
                                      .own_cpu_ns = own_cpu_ns,
                                      .output_hash = output_hash,
                                      .peak_prepare = peak_prepare,
                                      .peak_rate = peak_rate,
                                      .read_rate = read_rate,
                                      .bandwidth = bandwidth,
                                      .core_share = core_share};

static script steady(const char *name, double ns) {
  return (script){.kernel = {.name = name, .algorithm = "scripted", .isa = "c", .library = ""},
                  .call_ns = {ns},
                  .lengths = 1,
                  .control_factor = 1};
}

static script any; /* of tests that need no other one */

static int blocks_before; /* the test; it keeps none */

static int begin(void **state) {
  if (state) blocks_before = blocks_held;
  memset(&sim, 0, sizeof sim);
  sim.now_ns = 1e9;
  sim.resolution_ns = 1;
  sim.peak_rate = 2e12;
  any = steady("any", 10000);
  return 0;
}

static bench_trial trial_of(const script *s) {
  return (bench_trial){
      .kernel = &s->kernel, .threads = 1, .tensor_count = 1, .verdict = {.status = BENCH_PASS, .output_hash = CHECKED}};
}

/* ---- One run of the rounds ------------------------------------------------------------------------------------------- */

enum { MOST_TRIALS = 6 };

typedef struct timing {
  bench_trial trial[MOST_TRIALS];
  int64_t turn;
  int count;
  bench_timing_options options;
  bench_stop stop;
  const char *error;
  bench_trial *failed;
} timing;

static timing t; /* the current run; end() clears it after each test */

static void clear(void) {
  for (int i = 0; i < t.count; i++) bench_trial_clear(&t.trial[i]);
}

/* Sets up a run of these scripts with fixed rounds of 1 us samples and no peak loop. */
static void set_up(const script *const *scripts, int count, int rounds) {
  clear();
  t = (timing){.count = count,
               .options = {.min_rounds = rounds,
                           .max_rounds = rounds,
                           .budget_s = 1e3,
                           .min_sample_s = 1e-6,
                           .seed = 5,
                           .stop = &sim.stop,
                           .meter = &simulated}};
  for (int i = 0; i < count; i++) t.trial[i] = trial_of(scripts[i]);
}

/* Sets up a run of the scripts whose addresses are given. */
#define SET_UP(rounds, ...) \
  set_up((const script *const[]){__VA_ARGS__}, (int)COUNT(((const script *const[]){__VA_ARGS__})), rounds)

static bool run(void) {
  bench_trial *trials[MOST_TRIALS];
  for (int i = 0; i < t.count; i++) trials[i] = &t.trial[i];
  return bench_time(trials, t.count, &t.options, &t.stop, &t.error, &t.failed);
}

static void run_well(void) {
  if (!run()) fail_msg("%s", t.error);
}

static void assert_close(double a, double b) {
  if (!(fabs(a - b) <= 1e-12 * (1 + fabs(b)))) fail_msg("%.17g instead of %.17g", a, b);
}

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
  assert_false(run());
  test_contains(t.error, "stands still");
}

/* A sample and two slices of a quarter millisecond before and after it; the read loop takes three times as long as calls.
 */
TEST(a_sample_and_its_slices_are_guessed) {
  bench_trial trial = {.call_ns = 5000, .samples.iterations = 40};
  assert_close(bench_sample_guess_ns(&trial), 200e3 + 4 * 0.25e6);
  trial.reads = true;
  assert_close(bench_sample_guess_ns(&trial), 200e3 + 4 * 3 * 200e3);
}

/* ---- Errors ---------------------------------------------------------------------------------------------------------- */

static void expect_error(const script *s, const char *part) {
  const script good = steady("good", 500);
  SET_UP(7, &good, s);
  assert_false(run());
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
    assert_false(run());
    test_contains(t.error, "no time without a passed check");
    test_contains(t.error, bench_status_name(others[i]));
    assert_int_equal(sim.calls, 0);
  }
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

static int at, orders; /* in the log; calls that do not follow their neighbour */
static int64_t turn;   /* of the rotation */

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

/* Calls, each on tensors of its own with inputs that no call has seen; a look at each output, and maybe a close one. Returns
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
  if (sim.log[at].kind == LOOK_CLOSELY) assert_true(++*close && used >> expect(LOOK_CLOSELY, trial) & 1);
  for (int i = 0; i < count; i++) assert_int_equal(expect(FRESHEN, trial), sim.log[first + i].turn);
  return used;
}

/* Where caches are warm and calls short, one on each of the tensors to warm up; then another V, and other inputs. Calls, and
 * one at most on known inputs, whose output is poisoned before and compared after it. Where caches are cold, another V. */
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
  assert_true((close >= 1 || round >= 8) && close <= 4 && known <= 1);
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
    begin(NULL);
    set_up((const script *const[]){&s[0], &s[1], &s[2], &s[3], &s[4]}, TRIALS, ROUNDS);
    t.options.min_sample_s = 5e-6;
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
}

/* ---- From trials to rows --------------------------------------------------------------------------------------------- */

static bench_setup setup; /* the current case with scripted trials; only its id is real. end() clears it after each test */
static bench_row rows[MOST_TRIALS];
static bench_row goal_row;    /* of the last goal; end() clears it, too */
static bench_goal_list goals; /* that goal; likewise */

static void clear_setup(void) {
  for (int i = 0; i < setup.count; i++) bench_row_clear(&rows[i]);
  for (int i = 0; i < setup.count; i++) bench_trial_clear(&setup.trials[i]);
  bench_trial_clear(&setup.control);
  free(setup.read_rates);
  setup = (bench_setup){.count = 0};
}

static int end(void **state) {
  (void)state;
  clear();
  clear_setup();
  bench_row_clear(&goal_row);
  bench_goals_clear(&goals);
  t = (timing){.count = 0};
  if (blocks_held != blocks_before) fail_msg("%d blocks are kept", blocks_held - blocks_before);
  return 0;
}

static void open_setup(const char *id, const bench_case_settings *settings, const script *const *scripts, int count) {
  static bench_case bench;
  clear_setup();
  bench = case_of(id);
  setup = (bench_setup){.bench = &bench, .settings = settings, .count = count, .rotations = 1, .flops = 1e6, .bytes = 1e6};
  for (int i = 0; i < count; i++) {
    setup.trials[i] = trial_of(scripts[i]);
    setup.trials[i].threads = bench.threads;
    setup.trials[i].call_ns = scripts[i]->call_ns[0];
  }
  sim.control = &setup.control;
}

/* Times the case and makes its rows. */
static void time_setup(const char *id, const bench_case_settings *settings, const script *const *scripts, int count) {
  open_setup(id, settings, scripts, count);
  bench_setup_time(&setup);
  bench_setup_rows(&setup, rows);
}

static const bench_case_settings seven_rounds = {.timed = true, .case_budget_s = 5, .rounds = 7, .meter = &simulated};
static const char one_thread[] = "seq:64/heads:2/head_dim:32", two_threads[] = "seq:64/heads:2/head_dim:32/threads:2";

TEST(rows_compare_with_naive_and_with_the_best) {
  script naive = steady("naive_c", 8000), slow = steady("slow_c", 16000), quick = steady("quick_c", 2000);
  quick.control_factor = 1.25;
  static double long_ns[] = {1e9, 1e9, 1e9, 1e9, 1e9, 1e9, 1e9};
  rows[3] = (bench_row){.kernel = "naive_c", .time = {.n = 7, .median = 1e9}, .samples_ns = long_ns}; /* of no trial */
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
  time_setup(one_thread, &seven_rounds, (const script *[]){&a, &b}, 2);
  assert_string_equal(rows[0].baseline, "b_c");
  assert_close(rows[0].ratio.median, 2);
  assert_close(rows[1].ratio.median, 1);
  assert_close(rows[0].noise, 0);
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

/* It loses its own; the others are timed again. */
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

/* No trial is to blame for a clock. */
TEST(clocks_that_disagree_are_an_error) {
  const script s = steady("steady", 300);
  SET_UP(7, &s);
  sim.libc_factor = 0.7;
  t.options.min_sample_s = 2e-3;
  assert_false(run());
  test_contains(t.error, "steady: clocks disagree about its sample");
  clear();
  sim.libc_factor = 1.001;
  run_well();
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
  const bench_case_settings settings = {.timed = true, .case_budget_s = 5, .precision = 0.01, .meter = &simulated};
  time_setup(one_thread, &settings, (const script *[]){&quick, &slow}, 2);
  assert_true(rows[1].time.n >= 3 && rows[1].time.n <= 5 && rows[0].time.n > 2 * rows[1].time.n);
  assert_int_equal(rows[1].stop, BENCH_STOP_BUDGET);
  assert_int_equal(rows[0].ratio.n, rows[1].time.n);
  assert_close(rows[0].ratio.median, rows[1].time.n <= 5 ? 1e3 : 5e2);
  assert_close(rows[0].time.median, 2e6);
}

/* ---- Impossible times ------------------------------------------------------------------------------------------------ */

/* Times the script beside one that does not cheat, which must pass, and makes the rows of both. */
static void judge(const char *id, const script *s, double flops) {
  static script honest;
  honest = steady("honest_c", 900000);
  open_setup(id, &seven_rounds, (const script *[]){s, &honest}, 2);
  setup.flops = flops;
  bench_setup_time(&setup);
  bench_setup_rows(&setup, rows);
  assert_int_equal(rows[1].verdict.status, BENCH_PASS);
  assert_int_equal(rows[1].time.n, 7);
}

static void expect_objection(const char *id, const script *s, double flops, const char *sentence) {
  judge(id, s, flops);
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
  s.busy = 3;
  expect_objection(two_threads, &s, 1e6, "3.00 threads were busy, but the case has 2");
  s.busy = 1.25; /* that much may be of other processes */
  judge(one_thread, &s, 1e6);
  assert_int_equal(rows[0].verdict.status, BENCH_PASS);
}

TEST(threads_are_counted) {
  script s = steady("idles_c", 80000);
  s.busy = 1;
  judge(two_threads, &s, 1e6);
  assert_close(rows[0].threads_counted, 1);
  assert_close(rows[1].threads_counted, 2);
  assert_string_equal(rows[0].warnings, "threads: 1.00 of 2 were busy");
  s.busy = 1.5; /* three quarters are enough */
  judge(two_threads, &s, 1e6);
  assert_true(rows[0].threads_counted == 1.5);
  assert_string_equal(rows[0].warnings, "");
  s.busy = 1;
  judge(two_threads, &s, 1e6);
  assert_string_equal(rows[1].warnings, "");
  sim.cpus = 1;
  judge(two_threads, &s, 1e6);
  test_contains(rows[1].warnings, "threads: 2 share 1 CPU");
  assert_null(strstr(rows[1].warnings, "1 CPUs"));
}

TEST(fewer_threads_than_asked_for_are_an_error) {
  const script s = steady("a", 100);
  SET_UP(7, &s);
  sim.most_threads = 2;
  t.trial[0].threads = 3;
  assert_false(run());
  test_contains(t.error, "2 of 3 threads run: "); /* test_rates.c knows what it names as limits */
  assert_int_equal(sim.calls, 0);
}

/* ---- Goals ---- */

static char notes[200];                /* what bench_note() said of the last goal */
static const char *compared_with = ""; /* the field `against`, but for a speedup */
static const char *other = "flash_c";  /* the kernel that runs it */
static int goal_rounds = 11;           /* of goals that nobody interrupts */
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
    begin(NULL);
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

/* 21 rounds, of which those of the bits have a neighbour, and take twice as long. */
static bench_goal_row measure_disturbed(int metric, const char *axes, uint64_t disturbed, int looks_a_round) {
  begin(NULL);
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

/* Rounds without neighbours alone count, if there are 11 or more. Either look of a sample may find one. */
TEST(goals_are_those_of_calm_rounds) {
  static const struct {
    uint64_t disturbed;
    int calm, counted;
    double median;
  } cases[] = {{0, 21, 21, 10000},        {0x1, 20, 20, 10000},      {0x15555d, 9, 21, 20000}, {0x1ffc00, 10, 21, 20000},
               {0x0aaaaa, 11, 11, 10000}, {0x1ff800, 11, 11, 10000}, {0x1fffff, 0, 21, 20000}};
  for (size_t i = 0; i < COUNT(cases); i++) {
    const bench_goal_row goal = measure_disturbed(BENCH_NS, small, cases[i].disturbed, 2);
    assert_true(goal.calm == cases[i].calm && goal.measured.n == cases[i].counted);
    assert_close(goal.measured.median, cases[i].median);
    assert_close(goal_row.calm_pct, 100.0 * cases[i].calm / 21);
  }
}

/* Both samples of a comparison must be undisturbed. Where the meter does not know, nothing is said. */
TEST(calm_rounds_are_those_of_all_trials) {
  compared_with = "seq=128";
  bench_goal_row goal = measure_disturbed(BENCH_TIME, "heads=2 seq=64 head_dim=32", 0x155, 4);
  assert_true(goal.calm == 16 && goal.measured.n == 16);
  compared_with = "";
  goal = measure_disturbed(BENCH_SPEEDUP, "heads=2 seq=64 head_dim=32 threads=2", 0x155, 4);
  assert_true(goal.calm == 16 && goal.measured.n == 16);
  goal = measure_disturbed(BENCH_NS, small, 0x155, 0);
  assert_true(goal.calm == -1 && goal.measured.n == 21 && isnan(goal_row.calm_pct));
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
    begin(NULL);
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

/* ---- Two builds ---- */

/* The linker's --wrap asks here for the time that the check of a case sees. Where it is feigned, only calls take time. */
static double feigned_ns, feigned_call_ns; /* 0: the real time */

double __real_bench_now_ns(void);
double __wrap_bench_now_ns(void);
double __wrap_bench_now_ns(void) { return feigned_ns > 0 ? feigned_ns : __real_bench_now_ns(); }

static attn_status run_slowly(const attn_plan *plan, const attn_args *args, void *workspace, size_t bytes) {
  feigned_ns += feigned_call_ns;
  return attn_plan_run(plan, args, workspace, bytes);
}

/* Rounds of paired builds: those that were asked for, else 121, or as many as fit into the budget, but 21. A round has three
 * samples of 2 ms, or of one call, and three slices of 1 ms. */
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

static int plans_left; /* of a build whose plans end after so many */

static attn_status plan_a_few(const attn_problem *problem, const attn_options *options, attn_plan **plan) {
  return plans_left-- > 0 ? attn_plan_create(problem, options, plan) : ATTN_OUT_OF_MEMORY;
}

/* The same build on both sides, in placements that differ by 2 %. No trial runs where another one does, the control neither,
 * and what they differ by is in the interval. */
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
  assert_true(bench_comparisons_judge(&table));
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
  assert_true(m.table.count == 4 && m.unpaired_count == 0); /* what is skipped on both sides is left out */
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

/* ---- Without memory ---- */

/* Every allocation fails from a certain one on. A row then has either a time or a reason, and no infinite number. */
TEST(without_memory_there_are_sentences) {
  const script a = steady("a_c", 3000), b = steady("b_c", 6000), *scripts[] = {&a, &b};
  int errors = 0;
  for (int allocations = 0; allocations < 60; allocations++) {
    begin(NULL);
    open_setup(one_thread, &seven_rounds, scripts, 2);
    allocations_left = allocations;
    bench_setup_time(&setup);
    bench_setup_rows(&setup, rows);
    allocations_left = -1;
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

/* The best slice reaches 1.01 x 2e12 flop/s per thread: 4.04e12 on two threads. */
TEST(what_beats_the_peak_is_an_error) {
  const script s = steady("beats_c", 1000);
  expect_objection(two_threads, &s, 1e3 * 4.04e3 * 1.051, "105 % of the peak loop");
  judge(two_threads, &s, 1e3 * 4.04e3 * 1.049);
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
    setup.flops = 1e3 * (much ? 3.2 : 3.1) * 2.02e3; /* of 3.03 times the rate of the others */
    bench_setup_time(&setup);
    setup.trials[0].peak = attn_peak_for("c", "f32");
    bench_setup_judge(&setup, &setup.trials[0]);
    if (much) test_contains(setup.trials[0].verdict.reason, "107 % of the peak loop");
    if (!much) assert_int_equal(setup.trials[0].verdict.status, BENCH_PASS);
  }
}

/* All slices beside the samples are disturbed, so the peak is measured again. */
TEST(a_slow_peak_makes_no_error) {
  const script s = steady("honest_too_c", 1000);
  sim.slow_until_ns = sim.now_ns + 7 * 10e6; /* the rounds take 14 samples of 2.4 ms and 28 slices of 0.25 ms */
  judge(one_thread, &s, 1.5e6);
  assert_int_equal(rows[0].verdict.status, BENCH_PASS);
  assert_true(rows[0].peak_pct > 70 && rows[0].peak_pct < 80); /* of the best slice: 1.5e12 of 2.02e12 flop/s */
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
    if (cases[i].error)
      test_contains(rows[0].verdict.reason, "10.5 GB/s are 105 % of the loop that only reads these bytes");
    else
      assert_true(fabs(rows[0].bw_pct - cases[i].pct) < 0.01 && fabs(rows[0].peak_gbs - 10) < 1e-9);
    assert_int_equal(strstr(rows[0].warnings, "disturbed") != NULL, !cases[i].error && cases[i].disturbed);
  }
}

/* Beside each round, and of this round. */
TEST(shares_of_the_read_loop_are_of_one_round) {
  script s = steady("reads_c", 0);
  s.lengths = 7;
  for (int r = 0; r < 7; r++) s.call_ns[r] = 200e3 * (1 + r);
  open_setup(two_threads, &seven_rounds, (const script *[]){&s}, 1);
  sim.read_gbs = 10, sim.read_slower = true; /* by the same factor in each round */
  bench_setup_time(&setup);
  bench_setup_rows(&setup, rows);
  assert_close(rows[0].bw_pct, 50);
  assert_close(rows[0].peak_gbs, 2.5); /* the median: round 3 */
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
