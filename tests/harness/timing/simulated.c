/* SPDX-License-Identifier: MIT */
#include "tests/harness/timing/simulated.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/float_mode.h"
#include "data/generate.h"
#include "tests/support/failing_malloc.h"

enum { CHECKED = 4711, UNWRITTEN = 13, HIDDEN = 1 << 30, READING_NS = 20000 };

simulated_world sim;

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

/* Threads never move here. */
static bool stays(int threads, uint64_t float_mode) { return threads > 0 && bench_float_mode() == float_mode; }

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
  double sum = 0; /* sum of twelve uniform numbers: nearly normal */
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
  sim.cpu.waits += s->waits;
  if (trial->threads > sim.threads) sim.threads = trial->threads;
  sim.now_ns += call_ns;
  sim.cpu.own_ns += call_ns * (s->own_share > 0 ? s->own_share : 1);
  sim.cpu.all_ns += call_ns * (s->busy > 0 ? s->busy : sim.threads);
  if (!sim.remembered[at]) sim.remembered[at] = sim.version[at] + 1;
  note((event){.kind = CALL, .trial = trial, .turn = turn % trial->tensor_count});
  if (s->interrupt_in && round == s->interrupt_in) sim.stop = 1;
  const int effect = sim.effect ? sim.effect(trial) : 0;
  if (effect & FAILED || (s->fail_from && round >= s->fail_from)) return ATTN_INVALID_ARGUMENT;
  if (s->idle_from && round >= s->idle_from) return ATTN_OK;
  sim.marked[at] = false;
  sim.output[at] = right_output(s->remembers ? sim.remembered[at] - 1 : sim.version[at]);
  sim.output[at] += effect & SPOILT;
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
  const script *s = script_of(trial);
  sim.cpu.own_ns += s->late_share * s->call_ns[0];
  sim.cpu.all_ns += s->late_share * s->call_ns[0];
  note((event){.kind = LOOK, .trial = trial, .turn = turn % trial->tensor_count});
  return sim.marked[turn % trial->tensor_count] ? "did not write" : NULL;
}

static const char *look_closely(const bench_trial *trial, int64_t turn, uint64_t random, char *text, size_t bytes) {
  const int64_t at = turn % trial->tensor_count;
  note((event){.kind = LOOK_CLOSELY, .trial = trial, .turn = at});
  (void)random;
  const double ns = sim.row_ns > 0 ? sim.row_ns : 1000;
  sim.now_ns += ns, sim.cpu.own_ns += ns, sim.cpu.all_ns += ns;
  sim.cpu.waits++;
  if (sim.output[at] % HIDDEN == right_output(sim.version[at])) return NULL;
  snprintf(text, bytes, "wrong in a row");
  return text;
}

static bench_clocks clocks(void) {
  return (bench_clocks){sim.now_ns, sim.now_ns * (sim.system_factor > 0 ? sim.system_factor : 1),
                        sim.now_ns * (sim.libc_factor > 0 ? sim.libc_factor : 1)};
}

/* A reading takes a while of the CPU time that the next one tells. */
static double own_cpu_ns(void) { return sim.cpu.own_ns + (sim.readings_ns += READING_NS); }

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

/* The slices of a trial that reads instead of the peak loop differ. Beside rounds the loop is faster than any kernel, unless
 * a test says otherwise. */
static double read_rate(const bench_trial *trial, int64_t turn, int threads) {
  const bool of_round = !trial->reads && sim.read_rounds++ < 7;
  const double slower = sim.read_slower && of_round ? sim.read_rounds : sim.read_disturbed && of_round ? 4 : 1;
  const double rate =
      trial->reads ? 1e9 * (1 + sim.slices++ % 5) * threads : (sim.read_gbs > 0 ? sim.read_gbs : 1e6) * 1e9 / slower;
  sim.now_ns += 1000.0 * (double)trial->samples.iterations;
  note((event){.kind = READ, .trial = trial, .turn = turn, .rate = rate});
  return rate;
}

static double bandwidth(size_t bytes, int threads, bool copies) {
  assert_false(copies);
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

const bench_meter simulated = {.now_ns = now_ns,
                               .resolution_ns = resolution_ns,
                               .cpu_now = cpu_now,
                               .team = team,
                               .dismiss = dismiss,
                               .stays = stays,
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

script steady(const char *name, double ns) {
  return (script){.kernel = {.name = name, .algorithm = "scripted", .isa = "c", .library = ""},
                  .call_ns = {ns},
                  .lengths = 1,
                  .control_factor = 1};
}

script any;

void fail_allocations_after(int count) { allocations_left = count; }

int simulated_begin(void **state) {
  if (state) (void)note_blocks(state);
  memset(&sim, 0, sizeof sim);
  sim.now_ns = 1e9;
  sim.resolution_ns = 1;
  sim.peak_rate = 2e12;
  any = steady("any", 10000);
  return 0;
}

bench_trial trial_of(const script *s) {
  return (bench_trial){
      .kernel = &s->kernel, .threads = 1, .tensor_count = 1, .verdict = {.status = BENCH_PASS, .output_hash = CHECKED}};
}

/* ---- One run of the rounds ------------------------------------------------------------------------------------------- */

timing t;

void clear_run(void) {
  for (int i = 0; i < t.count; i++) bench_trial_clear(&t.trial[i]);
}

void set_up(const script *const *scripts, int count, int rounds) {
  clear_run();
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

bool run_rounds(void) {
  bench_trial *trials[MOST_TRIALS];
  for (int i = 0; i < t.count; i++) trials[i] = &t.trial[i];
  return bench_time(trials, t.count, &t.options, &t.stop, &t.error, &t.failed);
}

void run_well(void) {
  if (!run_rounds()) fail_msg("%s", t.error);
  for (int i = 0; i < t.count; i++) {
    const bench_trial *trial = &t.trial[i];
    const script *s = script_of(trial);
    const double own = s->own_share > 0 ? s->own_share : 1, all = s->busy > 0 ? s->busy : 1;
    for (int r = 0; trial->threads == 1 && sim.threads == 1 && r < trial->samples.rounds; r++) {
      assert_close(trial->samples.busy[r], 1 + (all - own) / own);
      assert_close(trial->samples.ran[r], own);
    }
    assert_int_equal(trial->samples.waited, s->waits ? trial->samples.rounds : 0);
  }
}

void assert_close(double a, double b) {
  if (!(fabs(a - b) <= 1e-12 * (1 + fabs(b)))) fail_msg("%.17g instead of %.17g", a, b);
}

/* ---- From trials to rows --------------------------------------------------------------------------------------------- */

bench_setup setup;
bench_row rows[MOST_TRIALS];
const bench_case_settings seven_rounds = {.timed = true, .case_budget_s = 5, .rounds = 7, .meter = &simulated};
const char one_thread[] = "seq:64/heads:2/head_dim:32", two_threads[] = "seq:64/heads:2/head_dim:32/threads:2";

static void clear_setup(void) {
  for (int i = 0; i < setup.count; i++) bench_row_clear(&rows[i]);
  for (int i = 0; i < setup.count; i++) bench_trial_clear(&setup.trials[i]);
  bench_trial_clear(&setup.control);
  free(setup.read_rates);
  setup = (bench_setup){.count = 0};
}

int simulated_end(void **state) {
  clear_run();
  clear_setup();
  t = (timing){.count = 0};
  return expect_no_blocks(state);
}

void open_setup(const char *id, const bench_case_settings *settings, const script *const *scripts, int count) {
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
void time_setup(const char *id, const bench_case_settings *settings, const script *const *scripts, int count) {
  open_setup(id, settings, scripts, count);
  bench_setup_time(&setup);
  bench_setup_rows(&setup, rows);
}
