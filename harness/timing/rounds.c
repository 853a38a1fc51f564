/* SPDX-License-Identifier: MIT */
/* Rounds: every trial once, in changing order, and the decision when they end.
 *
 * Every trial gets an even share of the budget. What quick trials leave of their shares goes to the others. A trial whose
 * `min_rounds` samples still don't fit (naive code on a long sequence) is slow: it takes part in the first rounds only, as
 * many as its share allows but at least SLOW_ROUNDS, so that it does not use up the time of the others. A ratio with it is
 * over those first rounds. All other trials run in every round. */
#include "timing/trial.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/float_mode.h"
#include "kernels/common/problem/arithmetic.h"
#include "timing/stats.h"

enum { SLOW_ROUNDS = 3, FEW_CALLS = 5, READINGS = 200 };
static const double RESOLUTIONS = 1000; /* a sample lasts as many clock steps: reading the clock adds at most 0.1 % */

typedef struct rounds {
  bench_trial *const *trials;
  int count;
  int *square; /* orders of the present block of `count` rounds */
  const bench_timing_options *options;
  bench_sampler sampler;
  double start_ns;
  bench_trial *failed; /* its call or output was wrong */
} rounds;

const char *const bench_stop_names[] = {"precision", "rounds", "budget", "interrupt", NULL};

/* ---- Budget ---------------------------------------------------------------------------------------------------------- */

/* Lets a trial run in all rounds if it fits into an even share of what is left. */
static bool admit_if_quick(const rounds *r, bench_trial *t, double *left_ns, int *waiting) {
  const double need_ns = bench_sample_guess_ns(t) * r->options->min_rounds;
  if (t->quota || need_ns > *left_ns / *waiting) return false;
  t->quota = r->options->max_rounds;
  *left_ns -= need_ns;
  --*waiting;
  return true;
}

/* Sets every quota; see the head of this file. */
static void share_budget(rounds *r) {
  double left_ns = 1e9 * r->options->budget_s;
  int waiting = r->count;
  for (bool admitted = true; admitted;) {
    admitted = false;
    for (int i = 0; i < r->count; i++) admitted |= admit_if_quick(r, r->trials[i], &left_ns, &waiting);
  }
  const int least = (int)min64(SLOW_ROUNDS, r->options->min_rounds);
  for (int i = 0; i < r->count; i++) {
    bench_trial *t = r->trials[i];
    if (!t->quota) t->quota = (int)fmax(least, left_ns / waiting / bench_sample_guess_ns(t));
  }
}

static bool is_slow(const rounds *r, const bench_trial *t) { return t->quota < r->options->max_rounds; }

/* ---- Preparation ----------------------------------------------------------------------------------------------------- */

static bool prepare(rounds *r, bench_trial *t) {
  t->quota = 0;
  if (t->verdict.status != BENCH_PASS)
    return bench_sampler_fail(&r->sampler, "%s: no time without a passed check; its verdict is %s", t->kernel->name,
                              bench_status_name(t->verdict.status));
  if (!bench_trial_allocate(t, r->options->max_rounds)) return bench_sampler_fail(&r->sampler, "no memory for the samples");
  r->failed = t;
  if (!bench_sample_calibrate(&r->sampler, t)) return false;
  r->failed = NULL;
  return true;
}

/* Teams of earlier cases go before a case of one thread. */
static bool has_threads(rounds *r) {
  char why[300];
  int wanted = 1;
  for (int i = 0; i < r->count; i++)
    if (r->trials[i]->threads > wanted) wanted = r->trials[i]->threads;
  const int given = r->sampler.meter->team(wanted).threads;
  r->sampler.team = wanted;
  if (wanted == 1) r->sampler.meter->dismiss();
  if (given >= wanted) return true;
  bench_team_explain(given, wanted, why, sizeof why);
  return bench_sampler_fail(&r->sampler, "%s", why);
}

/* Nanoseconds between two readings of a clock, at least. */
static double time_reading(double (*clock_ns)(void)) {
  double least = INFINITY;
  for (int i = 0; i < READINGS; i++) {
    const double start = clock_ns();
    least = fmin(least, clock_ns() - start);
  }
  return least;
}

/* Whether both are the same kernel and get compared: a trial and its A/A control, or two builds of a kernel. */
static bool are_alike(const bench_trial *a, const bench_trial *b) {
  return a->kernel == b->kernel || (a->copies && b->copies);
}

/* Nanoseconds of the quickest of a few calls. */
static double least_call_ns(const rounds *r, bench_trial *t) {
  const bench_tasks tasks = bench_tasks_now();
  double least = INFINITY;
  for (int i = 0; i < FEW_CALLS; i++) {
    const double start = r->sampler.meter->now_ns();
    (void)r->sampler.meter->call(t, 0);
    least = fmin(least, r->sampler.meter->now_ns() - start);
  }
  t->leaves_threads |= bench_tasks_grew(&tasks, t->kernel);
  return least;
}

/* The longer a sample, the more often another program takes the core meanwhile. So trials that are alike take as many calls,
 * also where their calibration was disturbed, unless they really are slower. */
static bool even_out(rounds *r) {
  for (int i = 0; i < r->count; i++) {
    int64_t *calls = &r->trials[i]->samples.iterations, most = *calls;
    for (int k = 0; k < r->count; k++)
      if (are_alike(r->trials[i], r->trials[k]) && r->trials[k]->samples.iterations > most)
        most = r->trials[k]->samples.iterations;
    if (most == *calls) continue;
    const double enough = ceil(1.2 * r->sampler.sample_ns / least_call_ns(r, r->trials[i]));
    *calls = (int64_t)fmax((double)*calls, fmin((double)most, enough));
    r->failed = r->trials[i];
    if (!bench_sample_keeps_float_mode(&r->sampler, r->failed)) return false;
    if (!bench_sample_leaves_process(&r->sampler, r->failed)) return false;
    r->failed = NULL;
  }
  return true;
}

static bool prepare_all(rounds *r) {
  const double resolution_ns = r->sampler.meter->resolution_ns();
  if (resolution_ns <= 0.0) return bench_sampler_fail(&r->sampler, "the clock (CLOCK_MONOTONIC) stands still");
  if (!has_threads(r)) return false;
  r->sampler.sample_ns = fmax(1e9 * r->options->min_sample_s, RESOLUTIONS * resolution_ns);
  r->sampler.clock_ns = time_reading(r->sampler.meter->now_ns);
  r->sampler.own_clock_ns = time_reading(r->sampler.meter->own_cpu_ns);
  r->sampler.random = r->options->seed ^ (uint64_t)r->sampler.meter->now_ns(); /* no kernel may foresee it */
  for (int i = 0; i < r->count; i++)
    if (!prepare(r, r->trials[i])) return false;
  if (!even_out(r)) return false;
  share_budget(r);
  return true;
}

/* ---- The end --------------------------------------------------------------------------------------------------------- */

static bool is_narrow(const bench_trial *t, double precision) {
  const bench_summary s = bench_summarise(t->samples.time_ns, t->samples.rounds);
  return s.ci_hi - s.median <= precision * s.median && s.median - s.ci_lo <= precision * s.median;
}

/* True if the rounds are over; *stop says why. Slow trials are not asked whether they are narrow: they stop at their quota.
 */
static bool is_over(const rounds *r, int done, bench_stop *stop) {
  const bench_timing_options *o = r->options;
  const bool enough = done >= o->min_rounds;
  bool over = true, all_done = true, all_slow = true, all_narrow = enough;
  for (int i = 0; i < r->count; i++) {
    const bench_trial *t = r->trials[i];
    all_done = all_done && t->samples.rounds >= t->quota;
    all_slow = all_slow && is_slow(r, t);
    all_narrow = all_narrow && (is_slow(r, t) || is_narrow(t, o->precision));
  }
  if (all_done)
    *stop = all_slow ? BENCH_STOP_BUDGET : BENCH_STOP_ROUNDS;
  else if (o->stop && *o->stop)
    *stop = BENCH_STOP_INTERRUPT;
  else if (all_narrow && !all_slow)
    *stop = BENCH_STOP_PRECISION;
  else if (enough && r->sampler.meter->now_ns() - r->start_ns > 1e9 * o->budget_s)
    *stop = BENCH_STOP_BUDGET;
  else
    over = false;
  return over;
}

static bool run_rounds(rounds *r, bench_stop *stop) {
  for (int round = 0;; round++) {
    const bool new_square = round % r->count == 0;
    if (new_square && !bench_latin_square(r->square, r->count, r->options->seed, round / r->count))
      return bench_sampler_fail(&r->sampler, "no memory for the order of the rounds");
    bench_slices last = {.loop = NULL};
    const int *order = r->square + (round % r->count) * r->count;
    for (int place = 0; place < r->count; place++) {
      bench_trial *t = r->trials[order[place]];
      r->failed = t;
      if (t->samples.rounds < t->quota && !bench_sample_take(&r->sampler, t, place, &last)) return false;
      r->failed = NULL;
    }
    if (r->options->reader) r->options->read_rates[round] = bench_sample_read(r->sampler.meter, r->options->reader);
    if (is_over(r, round + 1, stop)) return true;
  }
}

bool bench_time(bench_trial *const *trials, int count, const bench_timing_options *options, bench_stop *stop,
                const char **error, bench_trial **failed) {
  static _Thread_local char message[sizeof((bench_sampler *)0)->error];
  const bench_meter *meter = options->meter ? options->meter : &bench_machine_meter;
  rounds r = {.trials = trials,
              .count = count,
              .options = options,
              .square = calloc((size_t)count * (size_t)count + 1, sizeof *r.square),
              .sampler = {.meter = meter, .float_mode = bench_float_mode()},
              .start_ns = meter->now_ns()};
  *stop = BENCH_STOP_ROUNDS;
  bool fine = r.square || bench_sampler_fail(&r.sampler, "no memory for the order of %d trials", count);
  fine = fine && prepare_all(&r) && (count == 0 || run_rounds(&r, stop));
  free(r.square);
  snprintf(message, sizeof message, "%s", r.sampler.error);
  *error = fine ? NULL : message;
  *failed = fine ? NULL : r.failed;
  return fine;
}
