/* SPDX-License-Identifier: MIT */
#include "timing/sample.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "machine/affinity.h"
#include "timing/stats.h"

static const double SLICE_NS = 0.25e6;      /* two before and two after each sample: a millisecond */
static const double REWARM_BELOW_NS = 20e6; /* a longer call hardly notices that others used the caches before it */

static double read_rate(const bench_trial *t, int64_t turn, int threads) {
  return bench_read_rate(bench_widest_read(), (bench_read_span){t->tensors, t->tensor_count, turn, t->samples.iterations},
                         threads);
}

const bench_meter bench_machine_meter = {
    .now_ns = bench_now_ns,
    .resolution_ns = bench_clock_resolution_ns,
    .call = bench_trial_call,
    .poison = bench_trial_poison,
    .output_hash = bench_trial_output_hash,
    .peak_prepare = bench_peak_prepare,
    .peak_rate = bench_peak_rate,
    .read_rate = read_rate,
    .bandwidth = bench_read_bandwidth,
};

bool bench_sampler_fail(bench_sampler *s, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(s->error, sizeof s->error, format, arguments);
  va_end(arguments);
  return false;
}

/* ---- Calls ----------------------------------------------------------------------------------------------------------- */

/* Nanoseconds of `calls` calls, or NaN if one failed. */
static double time_calls(const bench_sampler *s, bench_trial *t, int64_t calls) {
  attn_status status = ATTN_OK;
  const double start = s->meter->now_ns();
  for (int64_t i = 0; i < calls && status == ATTN_OK; i++) {
    const int64_t turn = t->turn; /* picks the next tensors of the rotation */
    t->turn = (turn + 1) % t->tensor_count;
    status = s->meter->call(t, turn);
  }
  const double end = s->meter->now_ns();
  return status == ATTN_OK ? end - start : NAN;
}

static bool fail_call(bench_sampler *s, const bench_trial *t) {
  return bench_sampler_fail(s, "%s: %s", t->kernel->name, attn_last_error());
}

/* Sets *time_ns, per call. The output that the last call writes is poisoned before and compared after. Where calls are short
 * and caches warm, one call that is not timed brings the trial's data back first. */
static bool time_sample(bench_sampler *s, bench_trial *t, double *time_ns) {
  const int64_t calls = t->samples.iterations, last = t->turn + calls - 1;
  const bool rewarm = t->tensor_count == 1 && t->call_ns < REWARM_BELOW_NS;
  s->meter->poison(t, last);
  bench_team_settle(s->threads);
  const double warm_ns = rewarm ? time_calls(s, t, 1) : 0.0;
  const double total_ns = time_calls(s, t, calls);
  if (isnan(warm_ns + total_ns)) return fail_call(s, t);
  *time_ns = total_ns / (double)calls;
  if (s->meter->output_hash(t, last) == t->verdict.output_hash) return true;
  return bench_sampler_fail(s, "%s: an output of the timed runs differs from the one that passed the check",
                            t->kernel->name);
}

/* ---- Slices ---------------------------------------------------------------------------------------------------------- */

/* Reads what a sample reads: as many tensors, in their turn of the rotation. */
static double read_next(const bench_sampler *s, bench_trial *t) {
  const int64_t turn = t->turn;
  t->turn = (turn + t->samples.iterations) % t->tensor_count;
  return s->meter->read_rate(t, turn, s->threads);
}

static bench_slices run_slices(const bench_sampler *s, bench_trial *t) {
  bench_slices slices = {.loop = t->slice.loop};
  for (int i = 0; i < BENCH_SLICES && (t->slice.loop || t->reads); i++)
    slices.rate[i] = t->reads ? read_next(s, t) : s->meter->peak_rate(&t->slice);
  return slices;
}

/* ---- Samples --------------------------------------------------------------------------------------------------------- */

bool bench_sample_take(bench_sampler *s, bench_trial *t, int position, bench_slices *last) {
  bench_samples *samples = &t->samples;
  const bench_slices before = last->loop && last->loop == t->slice.loop ? *last : run_slices(s, t);
  if (!time_sample(s, t, &samples->time_ns[samples->rounds])) return false;
  *last = run_slices(s, t);
  double rates[2 * BENCH_SLICES]; /* their median: a slice that an interrupt disturbed does not count */
  memcpy(rates, before.rate, sizeof before.rate);
  memcpy(rates + BENCH_SLICES, last->rate, sizeof last->rate);
  samples->loop_rate[samples->rounds] = bench_median(rates, 2 * BENCH_SLICES);
  samples->position[samples->rounds++] = position;
  return true;
}

/* More calls by the factor that is missing, and a fifth on top; at most a hundred times as many. */
static int64_t more_calls(int64_t calls, double total_ns, double sample_ns) {
  const double factor = total_ns > 0 ? fmin(1.2 * sample_ns / total_ns, 100) : 100;
  return (int64_t)ceil((double)calls * fmax(factor, 1.2));
}

bool bench_sample_calibrate(bench_sampler *s, bench_trial *t) {
  int64_t calls = 1;
  t->turn = 0;
  t->slice = (bench_peak_slice){.loop = NULL};
  if (t->peak) t->slice = s->meter->peak_prepare(t->peak, s->threads, SLICE_NS);
  bench_team_settle(s->threads);
  double total_ns = time_calls(s, t, calls);
  while (total_ns < s->sample_ns) {
    calls = more_calls(calls, total_ns, s->sample_ns);
    total_ns = time_calls(s, t, calls);
  }
  if (isnan(total_ns)) return fail_call(s, t);
  t->samples.iterations = calls;
  t->call_ns = total_ns / (double)calls;
  return true;
}

double bench_sample_guess_ns(const bench_trial *t) {
  const double calls_ns = t->call_ns * (double)t->samples.iterations;
  return calls_ns + 2 * BENCH_SLICES * (t->reads ? calls_ns : SLICE_NS);
}
