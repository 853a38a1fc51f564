/* SPDX-License-Identifier: MIT */
/* Timing the trials of a case: which of them, for how long, and against which control. */
#include <math.h>

#include "timing/setup.h"

enum { MIN_ROUNDS = 11, MAX_ROUNDS = 200, BANDWIDTH_CLASSES = 64, SMALLEST_CLASS = 14 /* 16 KiB */ };

static const double NO_BUDGET_S = 1e9;

/* ---- Who takes part -------------------------------------------------------------------------------------------------- */

void bench_setup_prepare_trial(const bench_setup *s, bench_trial *t) {
  if (t->layer) bench_layer_reset_shares(t->layer);
  t->peak = bench_peak_of(t->kernel, bench_dtype_name(s->bench->problem.dtype_kv));
}

/* Those that passed, but for kernels that are too slow, which get a warning. */
static int choose_trials(bench_setup *s, bench_trial **chosen) {
  const double budget_s = s->settings->case_budget_s;
  int count = 0;
  for (int i = 0; i < s->count; i++) {
    bench_trial *t = &s->trials[i];
    const double call_s = 1e-9 * t->call_ns;
    if (t->verdict.status != BENCH_PASS) continue;
    if (!s->settings->rounds && call_s * BENCH_FEW_ROUNDS > budget_s) {
      bench_warn(t, "not timed: one call takes %.3g s, and --case-budget %.3g s has no room for %d", call_s, budget_s,
                 BENCH_FEW_ROUNDS);
      continue;
    }
    bench_setup_prepare_trial(s, t);
    chosen[count++] = t;
  }
  return count;
}

/* ---- Read bandwidth -------------------------------------------------------------------------------------------------- */

/* Bytes/s of the read loop, measured once per size (a power of two), thread count and meter. */
static double read_bandwidth(bench_setup *s) {
  static struct known {
    size_t size;
    int threads;
    const bench_meter *meter;
    double rate;
  } known[BANDWIDTH_CLASSES];
  static int known_count;
  const bench_meter *meter = bench_setup_meter(s);
  const double bytes = s->bytes * (s->layer ? 1 : s->rotations) / s->bench->threads; /* that each thread reads */
  s->read_size = (size_t)1 << (int)fmax(SMALLEST_CLASS, ceil(log2(fmax(bytes, 1))));
  const struct known wanted = {s->read_size, s->bench->threads, meter, 0};
  for (const struct known *k = known; k < known + known_count; k++)
    if (k->size == wanted.size && k->threads == wanted.threads && k->meter == wanted.meter) return k->rate;
  bench_note(s, "measuring read bandwidth", "");
  const double rate = wanted.meter->bandwidth(wanted.size, wanted.threads);
  if (known_count < BANDWIDTH_CLASSES) {
    known[known_count] = wanted;
    known[known_count++].rate = rate;
  }
  return rate;
}

/* ---- Rounds ---------------------------------------------------------------------------------------------------------- */

static bench_timing_options options_of(const bench_setup *s) {
  const bench_case_settings *settings = s->settings;
  const int fixed = settings->rounds;
  return (bench_timing_options){.precision = settings->precision,
                                .min_rounds = fixed ? fixed : MIN_ROUNDS,
                                .max_rounds = fixed ? fixed : MAX_ROUNDS,
                                .budget_s = fixed ? NO_BUDGET_S : settings->case_budget_s,
                                .min_sample_s = BENCH_MIN_SAMPLE_S,
                                .threads = s->bench->threads,
                                .seed = s->bench->seed,
                                .stop = settings->stop,
                                .meter = settings->meter};
}

void bench_setup_time(bench_setup *s) {
  bench_trial *trials[BENCH_MAX_KERNELS + 2];
  const char *error;
  bench_setup_rotate(s);
  const int count = choose_trials(s, trials);
  if (!count) return;
  s->controlled = trials[0];
  for (int i = 1; i < count; i++)
    if (trials[i]->call_ns < s->controlled->call_ns) s->controlled = trials[i];
  s->control = *s->controlled;
  trials[count] = &s->control;
  const bench_timing_options options = options_of(s);
  bench_note(s, "timing", "");
  const bool fine = bench_time(trials, count + 1, &options, &s->stop, &error);
  if (fine) s->read_bandwidth = read_bandwidth(s);
  for (int i = 0; i < count && fine; i++) bench_setup_judge(s, trials[i]);
  for (int i = 0; i <= count && !fine; i++) {
    bench_conclude(trials[i], BENCH_ERROR, "timing: %s", error);
    bench_trial_clear(trials[i]);
  }
}
