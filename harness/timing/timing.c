/* SPDX-License-Identifier: MIT */
/* Rounds: every entrant once, in changing order, between two slices of its peak loop, its output held against the
 * check's.
 *
 * The budget is shared out evenly, and what quick entrants leave of their shares goes to the others. An entrant whose
 * `min_rounds` samples still don't fit (naive code on a long sequence) is slow: it takes part in the first rounds only,
 * as many as its share allows but at least SLOW_ROUNDS, so that it cannot eat up the others' time; pairs with it are
 * ratios over those common first rounds. All others run in every round. */
#include "timing/timing.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "machine/affinity.h"
#include "timing/order.h"
#include "timing/peak_rate.h"
#include "timing/read_rate.h"
#include "timing/stats.h"

enum { SLOW_ROUNDS = 3, SUB_SLICES = 2 };

static const double SUB_SLICE_NS = 0.25e6;  /* two before and two after each sample: a millisecond */
static const double REWARM_BELOW_NS = 20e6; /* longer calls don't notice that others used the caches in between */
static const double RESOLUTIONS = 1000;     /* a sample lasts as many clock steps: reading it adds at most 0.1 % */

/* Rates of the slices run last; loop NULL: nobody's neighbours. */
typedef struct slice_rates {
  const attn_peak_loop *loop;
  double rate[SUB_SLICES];
} slice_rates;

/* One entrant on the track. */
typedef struct lane {
  bench_entrant *entrant;
  bench_peak_slice peak; /* loop NULL: none */
  int quota;             /* rounds it takes part in */
  int64_t next_tensor;
  double call_ns;
} lane;

typedef struct track {
  lane *lanes;
  int count;
  int *square; /* orders of the present block of `count` rounds */
  const bench_timing_options *options;
  double sample_ns; /* a sample lasts at least this long */
  double start_ns;
  char error[400];
} track;

const char *bench_stop_name(bench_stop stop) {
  static const char *const names[] = {"precision", "rounds", "budget", "interrupt"};
  return names[stop];
}

static int threads_of(const track *t) { return t->options->threads > 1 ? t->options->threads : 1; }

static int fail(track *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int fail(track *t, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(t->error, sizeof t->error, format, arguments);
  va_end(arguments);
  return -1;
}

/* ---- Samples ---------------------------------------------------------------------------------------------------------- */

static const char *name_of(const bench_entrant *e) {
  return e->layer ? bench_layer_kernel(e->layer) : attn_plan_kernel(e->plan);
}

attn_status bench_entrant_call(const bench_entrant *e, int64_t turn) {
  if (e->layer) return bench_layer_call(e->layer, e->workspace, e->workspace_bytes);
  return attn_plan_run(e->plan, &e->tensors[turn % e->tensor_count].args, e->workspace, e->workspace_bytes);
}

void bench_entrant_poison(const bench_entrant *e, int64_t turn) {
  if (e->layer)
    bench_layer_poison(e->layer);
  else
    bench_tensors_poison_output(&e->tensors[turn % e->tensor_count], 0xff);
}

uint64_t bench_entrant_output_hash(const bench_entrant *e, int64_t turn) {
  if (e->layer) return bench_layer_output_hash(e->layer);
  return bench_tensors_output_hash(&e->tensors[turn % e->tensor_count]);
}

/* Calls the kernel on the next tensors of the rotation. */
static attn_status call(lane *l) {
  const int64_t turn = l->next_tensor;
  l->next_tensor = (turn + 1) % l->entrant->tensor_count;
  return bench_entrant_call(l->entrant, turn);
}

/* Nanoseconds of `calls` calls, or NaN if one failed. */
static double time_calls(lane *l, int64_t calls) {
  attn_status status = ATTN_OK;
  double start = bench_now_ns();
  for (int64_t i = 0; i < calls && status == ATTN_OK; i++) status = call(l);
  double end = bench_now_ns();
  return status == ATTN_OK ? end - start : NAN;
}

/* One sample: the time per call. The output that the last call writes is poisoned before and compared after. Where calls are
 * short and caches warm, one untimed call brings the entrant's data back first. */
static int take_sample(track *t, lane *l, double *time_ns) {
  bench_entrant *e = l->entrant;
  bool rewarm = e->tensor_count == 1 && l->call_ns < REWARM_BELOW_NS;
  const int64_t last = l->next_tensor + e->iterations - 1;
  bench_entrant_poison(e, last);
  bench_team_settle(t->options->threads);
  double warm_ns = rewarm ? time_calls(l, 1) : 0.0;
  double total_ns = time_calls(l, e->iterations);
  if (isnan(warm_ns + total_ns)) return fail(t, "%s: %s", name_of(e), attn_last_error());
  if (bench_entrant_output_hash(e, last) != e->verdict.output_hash)
    return fail(t, "%s: an output of the timed runs differs from the one that passed the check", name_of(e));
  *time_ns = total_ns / (double)e->iterations;
  return 0;
}

/* What the kernel reads, only read: as many tensors as a sample uses, in their turn of the rotation. */
static double read_next(const track *t, lane *l) {
  const bench_entrant *e = l->entrant;
  const int64_t first = l->next_tensor;
  l->next_tensor = (first + e->iterations) % e->tensor_count;
  return bench_read_rate(e->tensors, e->tensor_count, first, e->iterations, threads_of(t));
}

static bool has_slices(const lane *l) { return l->peak.loop || l->entrant->reads; }

static slice_rates run_slices(const track *t, lane *l) {
  slice_rates rates = {.loop = l->peak.loop};
  for (int i = 0; has_slices(l) && i < SUB_SLICES; i++)
    rates.rate[i] = l->entrant->reads ? read_next(t, l) : bench_peak_rate(&l->peak);
  return rates;
}

/* The median of four: one slice that an interrupt spoilt doesn't count. */
static double middle_rate(const slice_rates *before, const slice_rates *after) {
  double all[2 * SUB_SLICES];
  for (int i = 0; i < SUB_SLICES; i++) {
    all[i] = before->rate[i];
    all[SUB_SLICES + i] = after->rate[i];
  }
  return bench_median(all, 2 * SUB_SLICES);
}

/* ---- Preparation ------------------------------------------------------------------------------------------------------ */

static bool allocate_samples(bench_entrant *e, int rounds) {
  e->rounds = 0;
  e->time_ns = malloc((size_t)rounds * sizeof *e->time_ns);
  e->peak_flops = calloc((size_t)rounds, sizeof *e->peak_flops);
  e->position = malloc((size_t)rounds * sizeof *e->position);
  return e->time_ns && e->peak_flops && e->position;
}

void bench_entrant_clear(bench_entrant *entrant) {
  free(entrant->time_ns);
  free(entrant->peak_flops);
  free(entrant->position);
  entrant->time_ns = entrant->peak_flops = NULL;
  entrant->position = NULL;
  entrant->rounds = 0;
}

/* Finds how many calls make a sample, which also warms up. */
static int calibrate(track *t, lane *l) {
  bench_entrant *e = l->entrant;
  e->iterations = 1;
  bench_team_settle(t->options->threads);
  double total_ns = time_calls(l, 1);
  while (total_ns < t->sample_ns) {
    double factor = total_ns > 0 ? fmin(1.2 * t->sample_ns / total_ns, 100) : 100;
    e->iterations = (int64_t)ceil((double)e->iterations * fmax(factor, 1.2));
    total_ns = time_calls(l, e->iterations);
  }
  if (isnan(total_ns)) return fail(t, "%s: %s", name_of(e), attn_last_error());
  l->call_ns = total_ns / (double)e->iterations;
  return 0;
}

static int rounds_cap(const bench_timing_options *o) {
  return o->max_rounds > o->min_rounds ? o->max_rounds : o->min_rounds;
}

static bool is_slow(const track *t, const lane *l) { return l->quota < rounds_cap(t->options); }

/* Time of one round's sample and the slices around it. */
static double round_ns(const lane *l) {
  const double sample_ns = l->call_ns * (double)l->entrant->iterations;
  return sample_ns + 2 * SUB_SLICES * (l->entrant->reads ? sample_ns : SUB_SLICE_NS);
}

/* Sets every quota; see the head of this file. What the quick ones leave of their shares goes to the others. */
static void share_budget(track *t) {
  const bench_timing_options *o = t->options;
  double left_ns = 1e9 * o->budget_s;
  int waiting = t->count;
  for (bool settled = true; settled;) {
    settled = false;
    for (lane *l = t->lanes; l < t->lanes + t->count; l++) {
      double need_ns = round_ns(l) * o->min_rounds;
      if (l->quota || need_ns > left_ns / waiting) continue;
      l->quota = rounds_cap(o);
      left_ns -= need_ns;
      waiting--;
      settled = true;
    }
  }
  int least = SLOW_ROUNDS < o->min_rounds ? SLOW_ROUNDS : o->min_rounds;
  for (lane *l = t->lanes; l < t->lanes + t->count; l++) {
    if (l->quota) continue;
    int fitting = (int)(left_ns / waiting / round_ns(l));
    l->quota = fitting > least ? fitting : least;
  }
}

static int prepare(track *t, lane *l, bench_entrant *e) {
  *l = (lane){.entrant = e};
  if (e->verdict.status != BENCH_PASS)
    return fail(t, "%s: no time without a passed check; its verdict is %s", name_of(e),
                bench_status_name(e->verdict.status));
  if (!allocate_samples(e, rounds_cap(t->options))) return fail(t, "no memory for the samples");
  if (e->peak) l->peak = bench_peak_prepare(e->peak, threads_of(t), SUB_SLICE_NS);
  return calibrate(t, l);
}

static int prepare_all(track *t, bench_entrant *entrants) {
  double resolution_ns = bench_clock_resolution_ns();
  if (resolution_ns <= 0.0) return fail(t, "the clock (CLOCK_MONOTONIC) stands still");
  t->sample_ns = fmax(1e9 * t->options->min_sample_s, RESOLUTIONS * resolution_ns);
  for (int i = 0; i < t->count; i++)
    if (prepare(t, &t->lanes[i], &entrants[i])) return -1;
  share_budget(t);
  return 0;
}

/* ---- Rounds ----------------------------------------------------------------------------------------------------------- */

static int run_round(track *t, int round) {
  slice_rates last = {.loop = NULL};
  const int *order = t->square + (round % t->count) * t->count;
  for (int place = 0; place < t->count; place++) {
    lane *l = &t->lanes[order[place]];
    bench_entrant *e = l->entrant;
    if (e->rounds >= l->quota) continue;
    const slice_rates before = last.loop && last.loop == l->peak.loop ? last : run_slices(t, l);
    if (take_sample(t, l, &e->time_ns[e->rounds])) return -1;
    last = run_slices(t, l);
    e->peak_flops[e->rounds] = has_slices(l) ? middle_rate(&before, &last) : 0.0;
    e->position[e->rounds++] = place;
  }
  return 0;
}

static bool is_narrow(const bench_entrant *e, double precision) {
  bench_summary s = bench_summarise(e->time_ns, e->rounds);
  return s.ci_hi - s.median <= precision * s.median && s.median - s.ci_lo <= precision * s.median;
}

/* True if the rounds are over; *stop says why. Slow entrants don't vote unless all are. */
static bool is_over(const track *t, int rounds, bench_stop *stop) {
  const bench_timing_options *o = t->options;
  bool all_narrow = true, all_done = true, all_slow = true;
  for (int i = 0; i < t->count; i++) {
    const lane *l = &t->lanes[i];
    all_done = all_done && l->entrant->rounds >= l->quota;
    all_slow = all_slow && is_slow(t, l);
    if (!is_slow(t, l)) all_narrow = all_narrow && rounds >= o->min_rounds && is_narrow(l->entrant, o->precision);
  }
  bool over_budget = rounds >= o->min_rounds && bench_now_ns() - t->start_ns > 1e9 * o->budget_s;
  *stop = all_slow ? BENCH_STOP_BUDGET : BENCH_STOP_ROUNDS;
  if (all_done) return true;
  *stop = BENCH_STOP_INTERRUPT;
  if (o->stop && *o->stop) return true;
  *stop = all_narrow && !all_slow ? BENCH_STOP_PRECISION : BENCH_STOP_BUDGET;
  return over_budget || (all_narrow && !all_slow);
}

static int run_rounds(track *t, bench_stop *stop) {
  for (int round = 0;; round++) {
    bool fresh_square = round % t->count == 0;
    if (fresh_square && !bench_latin_square(t->square, t->count, t->options->seed, round / t->count))
      return fail(t, "no memory for the order of the rounds");
    if (run_round(t, round)) return -1;
    if (is_over(t, round + 1, stop)) return 0;
  }
}

int bench_time(bench_entrant *entrants, int count, const bench_timing_options *options, bench_stop *stop,
               const char **error) {
  static _Thread_local char message[sizeof((track *)0)->error];
  track t = {.count = count, .options = options, .start_ns = bench_now_ns()};
  t.lanes = calloc((size_t)count + 1, sizeof *t.lanes);
  t.square = calloc((size_t)count * (size_t)count + 1, sizeof *t.square);
  *stop = BENCH_STOP_ROUNDS;
  int failed = t.lanes && t.square ? 0 : fail(&t, "no memory for %d entrants", count);
  if (!failed) failed = prepare_all(&t, entrants);
  if (!failed && count > 0) failed = run_rounds(&t, stop);
  free(t.lanes);
  free(t.square);
  snprintf(message, sizeof message, "%s", t.error);
  *error = failed ? message : NULL;
  return failed;
}
