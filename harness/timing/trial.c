/* SPDX-License-Identifier: MIT */
/* What a trial does: calls, verdicts and samples. */
#include "timing/trial.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "machine/affinity.h"
#include "timing/core_share.h"
#include "timing/stats.h"

const attn_kernel_info bench_automatic = {
    .name = "auto", .algorithm = "auto", .isa = "", .library = "", .summary = "the library's own choice"};

void bench_warn(bench_trial *t, const char *format, ...) {
  size_t used = strlen(t->warnings);
  va_list arguments;
  va_start(arguments, format);
  if (used && used + 2 < sizeof t->warnings) used += (size_t)sprintf(t->warnings + used, "; ");
  vsnprintf(t->warnings + used, sizeof t->warnings - used, format, arguments);
  va_end(arguments);
}

static bench_tensors *tensors_of(const bench_trial *t, int64_t turn) { return &t->tensors[turn % t->tensor_count]; }

const bench_build *bench_trial_build(const bench_trial *t) { return t->build ? t->build : &bench_own_build; }

attn_status bench_trial_call(const bench_trial *t, int64_t turn) {
  if (t->layer) return bench_layer_call(t->layer, t->workspace, t->workspace_bytes);
  return bench_trial_build(t)->plan_run(t->plan, &tensors_of(t, turn)->args, t->workspace, t->workspace_bytes);
}

void bench_trial_renew(const bench_trial *t, int64_t turn, int threads) {
  if (t->layer)
    bench_layer_negate(t->layer);
  else
    bench_tensors_renew_v(tensors_of(t, turn), threads);
}

void bench_trial_poison(const bench_trial *t, int64_t turn) {
  static const uint8_t poison[] = {0xff, 0x3e, 0xbd}; /* a NaN in every float type; 0.19 and -0.09 in two of them */
  if (t->layer)
    bench_layer_poison(t->layer);
  else
    bench_tensors_poison_output(tensors_of(t, turn), poison[t->samples.rounds % (int)sizeof poison], t->threads);
}

uint64_t bench_trial_output_hash(const bench_trial *t, int64_t turn) {
  return t->layer ? bench_layer_output_hash(t->layer) : bench_tensors_output_hash(tensors_of(t, turn));
}

bool bench_trial_allocate(bench_trial *t, int rounds) {
  t->samples = (bench_samples){.time_ns = malloc((size_t)rounds * sizeof(double)),
                               .loop_rate = calloc((size_t)rounds, sizeof(double)),
                               .busy = calloc((size_t)rounds, sizeof(double)),
                               .first_ns = calloc((size_t)rounds, sizeof(double)),
                               .core_share = calloc((size_t)rounds, sizeof(double)),
                               .position = malloc((size_t)rounds * sizeof(int))};
  const bench_samples *s = &t->samples;
  return s->time_ns && s->loop_rate && s->busy && s->first_ns && s->core_share && s->position;
}

void bench_trial_clear(bench_trial *t) {
  free(t->samples.time_ns);
  free(t->samples.loop_rate);
  free(t->samples.busy);
  free(t->samples.first_ns);
  free(t->samples.core_share);
  free(t->samples.position);
  t->samples = (bench_samples){.rounds = 0};
}

static const double SLICE_NS = 0.25e6;      /* two before and two after each sample: a millisecond */
static const double REWARM_BELOW_NS = 20e6; /* a longer call hardly notices that others used the caches before it */

static double read_rate(const bench_trial *t, int64_t turn, int threads) {
  return bench_read_rate(bench_widest_read(), (bench_read_span){t->tensors, t->tensor_count, turn, t->samples.iterations},
                         threads);
}

const bench_meter bench_machine_meter = {
    .now_ns = bench_now_ns,
    .resolution_ns = bench_clock_resolution_ns,
    .cpu_now = bench_cpu_now,
    .team = bench_team_count,
    .dismiss = bench_team_dismiss,
    .call = bench_trial_call,
    .renew = bench_trial_renew,
    .poison = bench_trial_poison,
    .output_hash = bench_trial_output_hash,
    .peak_prepare = bench_peak_prepare,
    .peak_rate = bench_peak_rate,
    .read_rate = read_rate,
    .bandwidth = bench_read_bandwidth,
    .core_share = bench_core_share,
};

/* Gets the trial's threads ready. Those of a larger team go: they would take CPU time beside the calls. */
static void gather_team(bench_sampler *s, const bench_trial *t) {
  if (t->threads < s->team) s->meter->dismiss();
  s->team = t->threads;
  bench_team_settle(t->threads);
}

/* ---- Calls ----------------------------------------------------------------------------------------------------------- */

/* The turn of the next call, after which `calls` are taken. */
static int64_t take_turns(const bench_trial *t, int64_t calls) {
  if (!t->turn) return 0;
  const int64_t turn = *t->turn;
  *t->turn = (turn + calls) % t->tensor_count;
  return turn;
}

static attn_status call(const bench_sampler *s, const bench_trial *t, int64_t calls, int64_t turn) {
  attn_status status = ATTN_OK;
  for (int64_t i = 0; i < calls && status == ATTN_OK; i++) status = s->meter->call(t, (turn + i) % t->tensor_count);
  return status;
}

/* Nanoseconds of `calls` calls, or NaN if one failed. */
static double time_calls(const bench_sampler *s, const bench_trial *t, int64_t calls) {
  const int64_t turn = take_turns(t, calls);
  const double start = s->meter->now_ns();
  const attn_status status = call(s, t, calls, turn);
  const double end = s->meter->now_ns();
  return status == ATTN_OK ? end - start : NAN;
}

static bool fail_call(bench_sampler *s, const bench_trial *t) {
  return bench_sampler_fail(s, "%s: %s", t->kernel->name, bench_trial_build(t)->last_error());
}

/* Times the calls of a sample into round r, the first one also alone. The threads that were busy: CPU time over a time that
 * begins before it and ends after it, so that honest threads are never counted twice. Of a single thread's time other
 * processes may take a part: the other threads' CPU time is held against its own. */
static bool time_round(const bench_sampler *s, bench_trial *t, int64_t turn, int r) {
  const bench_meter *m = s->meter;
  const int64_t calls = t->samples.iterations;
  const double share = m->core_share(t->threads), before = m->now_ns();
  const bench_cpu_time from = m->cpu_now();
  const double start = m->now_ns();
  attn_status status = call(s, t, 1, turn);
  const double first = m->now_ns();
  if (status == ATTN_OK) status = call(s, t, calls - 1, turn + 1);
  const double end = m->now_ns();
  const bench_cpu_time to = m->cpu_now();
  const double whole_ns = m->now_ns() - before;
  t->samples.core_share[r] = fmin(share, m->core_share(t->threads));
  t->samples.busy[r] = (to.all_ns - from.all_ns) / (t->threads > 1 ? whole_ns : fmax(to.own_ns - from.own_ns, 1));
  t->samples.first_ns[r] = first - start;
  t->samples.time_ns[r] = (end - start) / (double)calls;
  return status == ATTN_OK;
}

/* Where all calls use the same tensors and are short, one call that is not timed brings them back into the caches. Then the
 * inputs change, so that no answer is known from before, and the output is poisoned. Where calls rotate through copies, so
 * that caches are cold, inputs change right after their use: they are cold again before their next turn. The output of the
 * last call is compared, all of it. */
static bool time_sample(bench_sampler *s, bench_trial *t) {
  const int64_t calls = t->samples.iterations;
  const bool rotates = t->tensor_count > 1;
  if (!rotates && t->call_ns < REWARM_BELOW_NS && call(s, t, 1, 0) != ATTN_OK) return fail_call(s, t);
  const int64_t turn = take_turns(t, calls), last = (turn + calls - 1) % t->tensor_count;
  if (!rotates) s->meter->renew(t, 0, t->threads);
  s->meter->poison(t, last);
  if (!time_round(s, t, turn, t->samples.rounds)) return fail_call(s, t);
  if (s->meter->output_hash(t, last) != t->verdict.output_hash)
    return bench_sampler_fail(s, "%s: an output of the timed runs differs from the one that passed the check",
                              t->kernel->name);
  for (int64_t i = 0; rotates && i < t->tensor_count && i < calls; i++)
    s->meter->renew(t, (turn + i) % t->tensor_count, t->threads);
  return true;
}

/* What a sample reads, in every order: as many tensors each, in their turn of the rotation. */
double bench_sample_read(const bench_meter *m, const bench_trial *t) {
  return m->read_rate(t, take_turns(t, BENCH_READ_ORDERS * t->samples.iterations), t->threads);
}

static bench_slices run_slices(const bench_sampler *s, bench_trial *t) {
  bench_slices slices = {.loop = t->slice.loop};
  const bench_meter *m = s->meter;
  for (int i = 0; i < BENCH_SLICES && (t->slice.loop || t->reads); i++)
    slices.rate[i] = t->reads ? bench_sample_read(m, t) : m->peak_rate(&t->slice);
  return slices;
}

/* ---- Samples --------------------------------------------------------------------------------------------------------- */

bool bench_sample_take(bench_sampler *s, bench_trial *t, int position, bench_slices *last) {
  bench_samples *samples = &t->samples;
  const int r = samples->rounds;
  gather_team(s, t);
  const bench_slices before = last->loop && last->loop == t->slice.loop ? *last : run_slices(s, t);
  if (!time_sample(s, t)) return false;
  *last = run_slices(s, t);
  double rates[2 * BENCH_SLICES]; /* their median: a slice that an interrupt disturbed does not count */
  memcpy(rates, before.rate, sizeof before.rate);
  memcpy(rates + BENCH_SLICES, last->rate, sizeof last->rate);
  samples->loop_rate[r] = bench_median(rates, 2 * BENCH_SLICES);
  samples->position[r] = position;
  samples->rounds++;
  return true;
}

bool bench_sample_is_calm(const bench_trial *t, int round) { return t->samples.core_share[round] >= BENCH_CALM; }

bool bench_knows_calm(const bench_trial *t) { return t->samples.rounds > 0 && t->samples.core_share[0] > 0; }

/* More calls by the factor that is missing, and a fifth on top; at most a hundred times as many. */
static int64_t more_calls(int64_t calls, double total_ns, double sample_ns) {
  const double factor = total_ns > 0 ? fmin(1.2 * sample_ns / total_ns, 100) : 100;
  return (int64_t)ceil((double)calls * fmax(factor, 1.2));
}

bool bench_sample_calibrate(bench_sampler *s, bench_trial *t) {
  int64_t calls = 1;
  t->slice = (bench_peak_slice){.loop = NULL};
  gather_team(s, t);
  if (t->peak) t->slice = s->meter->peak_prepare(t->peak, t->threads, SLICE_NS);
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
  return calls_ns + 2 * BENCH_SLICES * (t->reads ? BENCH_READ_ORDERS * calls_ns : SLICE_NS);
}
