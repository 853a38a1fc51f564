/* SPDX-License-Identifier: MIT */
/* Timing the trials of a case: which of them, for how long, and against which control; and what no time can be. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "timing/places.h"
#include "timing/setup.h"

enum { MIN_ROUNDS = 11, MAX_ROUNDS = 200, MOST_REPEATS = 3 };

static const double NO_BUDGET_S = 1e9;

static void spoil(bench_trial *t, const char *why) {
  bench_conclude(t, BENCH_ERROR, "timing: %s", why);
  bench_trial_clear(t);
}

/* The sentence for a trial that disturbs others. */
static const char *disturbs(const bench_trial *t, const char *why) {
  static _Thread_local char text[400];
  (void)bench_say(text, sizeof text, "%s: disturbs other kernels: %.330s", t->kernel->name, why);
  return text;
}

void bench_setup_prepare_trial(const bench_setup *s, bench_trial *t) {
  if (t->layer) t->layer->time = (attn_mha_profile){0};
  t->peak = bench_peak_of(t->kernel, bench_dtype_name(s->bench->problem.dtype_kv));
}

/* The trials that passed, but for kernels that are too slow, which get a warning. */
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

/* ---- The read loop ------------------------------------------------------------------------------------------------- */

static double read_once(const bench_setup *s, const bench_trial *t) {
  const bench_meter *meter = bench_setup_meter(s);
  return s->layer ? bench_sample_read_layer(meter, s->bench, s->bytes) : bench_sample_read(meter, t);
}

/* Makes room for the rates of these rounds, and says who reads in them. False if memory is short. */
static bool open_reading(bench_setup *s, bench_timing_options *options) {
  const int rounds = s->read_rounds = options->max_rounds;
  const bool cold = s->bench->cache != BENCH_WARM && !s->layer;
  const char *level = bench_level_of(s->bytes * (cold ? s->rotations : 1) / s->bench->threads, s->bench->threads);
  snprintf(s->level, sizeof s->level, "%s", level);
  if (!s->layer && !bench_can_read(&s->tensors[0])) return true;
  free(s->read_rates); /* left by an attempt before */
  s->read_rates = options->read_rates = calloc((size_t)rounds, sizeof *s->read_rates);
  if (!s->layer) options->reader = s->controlled;
  const double rate = s->layer ? read_once(s, s->controlled) : 0; /* a layer's, once for all rounds */
  for (int i = 0; s->read_rates && i < rounds; i++) s->read_rates[i] = rate;
  return s->read_rates;
}

static double get_read_share(const void *context, int round) {
  const double *const *of = context;
  return 1e9 / of[0][round] / of[1][round];
}

/* The rates of the read loop: that which runs once a round, or the one beside the trial's samples. */
static double *read_rates_of(const bench_setup *s, const bench_trial *t) {
  return t->reads ? t->samples.loop_rate : s->read_rates;
}

double bench_read_share(const bench_setup *s, const bench_trial *t) {
  const double *const of[] = {t->samples.time_ns, read_rates_of(s, t)};
  if (!of[1] || t->samples.rounds < 1) return NAN;
  for (int i = 0; i < t->samples.rounds; i++)
    if (!(of[1][i] > 0)) return NAN; /* memory was short */
  return s->bytes * bench_median_of(get_read_share, of, t->samples.rounds);
}

/* ---- Timing ---------------------------------------------------------------------------------------------------------- */

static bench_timing_options options_of(const bench_setup *s) {
  const bench_case_settings *settings = s->settings;
  const int fixed = settings->rounds;
  return (bench_timing_options){.precision = settings->precision,
                                .min_rounds = fixed ? fixed : MIN_ROUNDS,
                                .max_rounds = fixed ? fixed : MAX_ROUNDS,
                                .budget_s = fixed ? NO_BUDGET_S : settings->case_budget_s,
                                .min_sample_s = BENCH_MIN_SAMPLE_S,
                                .seed = s->bench->seed,
                                .stop = settings->stop,
                                .meter = settings->meter};
}

/* Adds the A/A control of the quickest trial. */
static void choose_control(bench_setup *s, bench_trial **trials, int count) {
  s->controlled = trials[0];
  for (int i = 1; i < count; i++)
    if (trials[i]->call_ns < s->controlled->call_ns) s->controlled = trials[i];
  s->control = *s->controlled;
  trials[count] = &s->control;
}

/* The first trial that worked beside its calls, with a sentence that names it; NULL if there is none. */
static bench_trial *find_hidden_work(bench_trial *const *trials, int count, char *why, size_t bytes) {
  char sentence[200];
  for (int i = 0; i < count; i++) {
    if (!bench_trial_works_aside(trials[i], sentence, sizeof sentence)) continue;
    (void)bench_say(why, bytes, "%s: %s", trials[i]->kernel->name, sentence);
    return trials[i];
  }
  return NULL;
}

/* Gives the error to the trial that caused it, and removes that trial from the list. */
static int leave_out(const bench_setup *s, bench_trial **trials, int count, bench_trial *cause, const bench_trial *failed,
                     const char *why) {
  int left = 0;
  for (int i = 0; i <= count; i++) bench_trial_clear(trials[i]);
  const bool known = cause->verdict.status != BENCH_PASS || s->inputs_lost;
  if (cause->verdict.status == BENCH_PASS) spoil(cause, cause == failed ? why : disturbs(cause, why));
  for (int i = 0; i < count; i++) {
    if (trials[i] != cause) trials[left++] = trials[i];
    if (trials[i] != cause && known)
      bench_conclude(trials[i], BENCH_ERROR, "not timed, through no fault of its own: %s disturbs it", cause->kernel->name);
  }
  if (known) return 0;
  if (cause->plan) bench_setup_close_plan(cause);
  return left;
}

/* In several placements of each trial. *failed: the one to blame for the error; NULL: none of them. */
static bool time_in_places(bench_setup *s, bench_trial *const *trials, int count, const char **error, bench_trial **failed) {
  static _Thread_local char message[300];
  bench_timing_options options = options_of(s);
  *failed = NULL;
  *error = message;
  if (!open_reading(s, &options)) return bench_say(message, sizeof message, "no memory for the rates of the read loop");
  const bool fine = bench_places_draw(trials, count, &s->bench->problem, options.min_rounds, s->bench->seed, &s->placing,
                                      message, sizeof message) &&
                    bench_time(trials, count, &options, &s->stop, error, failed);
  bench_places_return(trials, count);
  return fine;
}

/* Times the trials, without those that fail. Returns how many are left. Threads that were busy beside a sample and sleep now
 * may belong to no kernel: then all is timed again, a few times. Where no cause of a wrong output is known, the trial that
 * failed counts as one. */
static int time_trials(bench_setup *s, bench_trial **trials, int count) {
  for (int again = 0; count > 0;) {
    const char *error;
    char why[400] = ""; /* more rounds find the kernel that caused it */
    bench_trial *failed;
    choose_control(s, trials, count);
    bench_note(s, "timing", "");
    const bool fine = time_in_places(s, trials, count + 1, &error, &failed);
    if (fine)
      failed = find_hidden_work(trials, count, why, sizeof why);
    else
      (void)bench_say(why, sizeof why, "%s", error);
    if (fine && !failed) return count;
    for (int i = 0; i <= count && !failed; i++) spoil(trials[i], why);
    if (!failed) return 0;
    if (failed == &s->control) failed = &s->trials[s->controlled - s->trials];
    bench_trial *cause = bench_setup_find_cause(s, failed);
    if (!cause && fine && again++ < MOST_REPEATS)
      for (int i = 0; i <= count; i++) bench_trial_clear(trials[i]);
    else
      count = leave_out(s, trials, count, cause ? cause : failed, failed, why);
  }
  return 0;
}

void bench_setup_time(bench_setup *s) {
  bench_trial *trials[BENCH_MAX_KERNELS + 2];
  bench_setup_rotate(s);
  const int count = time_trials(s, trials, choose_trials(s, trials));
  if (!count) return;
  for (int i = 0; i < count; i++) bench_setup_check_time(s, trials[i]);
}

/* ---- Impossible times --------------------------------------------------------------------------------------------- */
/* A kernel may pass the check and still compute less, or on more threads, when it is timed. These checks look at rates and
 * busy threads of the timed runs; other checks look at their output. */

enum { REMEASURED_SLICES = 100, REMEASURED_READS = 60 };
static const double SLICE_NS = 0.5e6;
static const double FEWER_THREADS = 0.75; /* times the case's threads that should be busy */

static double largest(const double *values, int n) {
  double most = 0;
  for (int i = 0; i < n; i++) most = fmax(most, values[i]);
  return most;
}

static bool hides_work(const bench_setup *s, bench_trial *t, char *sentence, size_t bytes) {
  const bench_samples *m = &t->samples;
  const int threads = s->bench->threads;
  const double busy = bench_median(m->busy, m->rounds);
  const bench_team team = bench_setup_meter(s)->team(threads);
  if (team.cpus && team.cpus < threads) {
    const char *places = getenv("OMP_PLACES");
    bench_warn(t, "threads: %d share %d CPU%s%s%.40s", threads, team.cpus, team.cpus == 1 ? "" : "s",
               places ? ", OMP_PLACES=" : "", places ? places : "");
  } else if (busy < FEWER_THREADS * threads) {
    bench_warn(t, "threads: %.2f of %d were busy", busy, threads);
  }
  return bench_trial_works_aside(t, sentence, bytes);
}

/* ---- Roofs --------------------------------------------------------------------------------------------------------- */

/* Flop/s of the best of several slices of a loop. */
static double best_slice(const bench_setup *s, const attn_peak_loop *loop) {
  const bench_meter *meter = bench_setup_meter(s);
  const bench_peak_slice slice = meter->peak_prepare(loop, s->bench->threads, SLICE_NS);
  double best = 0;
  for (int i = 0; i < REMEASURED_SLICES; i++) best = fmax(best, meter->peak_rate(&slice));
  return best;
}

/* The best rate of the kernel's loop. A library's kernel chooses its instructions itself, and a pass before may be of
 * another tier: for them, the quickest loop of this CPU counts. The best slice counts, of those beside the samples and as
 * many more, so that a disturbed one makes no error.
 */
static double peak_of(const bench_setup *s, const bench_trial *t) {
  const attn_peak_loop *loop;
  double best = fmax(largest(t->samples.loop_rate, t->samples.rounds), best_slice(s, t->peak));
  for (int n = 0; (t->kernel->library[0] || t->before) && (loop = attn_peak_get(n)); n++)
    if (attn_peak_usable(loop->isa)) best = fmax(best, best_slice(s, loop));
  return best * s->bench->threads;
}

static bool beats_peak(const bench_setup *s, bench_trial *t, char *sentence, size_t bytes) {
  if (!(bench_peak_share(t, s->flops, s->bench->threads) > BENCH_ROOF)) return false;
  const double rate = s->flops / bench_median(t->samples.time_ns, t->samples.rounds) * 1e9;
  double peak = t->peak_best = peak_of(s, t);
  if (!(rate > BENCH_ROOF * peak)) return false;
  const attn_peak_loop *by_parts = bench_parts_peak_of(t->kernel, t->peak);
  if (by_parts) peak = fmax(peak, by_parts->f32_share * best_slice(s, by_parts) * s->bench->threads);
  if (!(rate > BENCH_ROOF * peak)) return false;
  return !bench_say(sentence, bytes, "%.4g Gflop/s are %.0f %% of the peak loop: no kernel can do the work so fast",
                    1e-9 * rate, 100 * rate / peak);
}

/* In the level of cache that holds the case, as its tensors lie. A disturbed loop must not make an error: then the best of
 * many becomes the rate of all rounds. */
static bool beats_reading(const bench_setup *s, bench_trial *t, char *sentence, size_t bytes) {
  const double rate = s->bytes / bench_median(t->samples.time_ns, t->samples.rounds) * 1e9;
  const int rounds = t->reads ? t->samples.rounds : s->read_rounds;
  double *rates = read_rates_of(s, t);
  if (!(bench_read_share(s, t) > BENCH_ROOF)) return false;
  double best = largest(rates, rounds);
  for (int i = 0; i < REMEASURED_READS && rate > BENCH_ROOF * best; i++) best = fmax(best, read_once(s, t));
  if (rate > BENCH_ROOF * best)
    return !bench_say(sentence, bytes, "%.4g GB/s are %.0f %% of the loop that only %s these bytes%s%s: no kernel can",
                      1e-9 * rate, 100 * rate / best, bench_layer_has(s->bench, BENCH_HAS_CACHE) ? "copies" : "reads",
                      *s->level ? ", in " : "", s->level);
  for (int i = 0; i < rounds; i++) rates[i] = best;
  bench_warn(t, "the loops that only read were disturbed: the best of them is the roof");
  return false;
}

void bench_setup_check_time(bench_setup *s, bench_trial *t) {
  char sentence[300];
  if (hides_work(s, t, sentence, sizeof sentence) || beats_peak(s, t, sentence, sizeof sentence) ||
      beats_reading(s, t, sentence, sizeof sentence))
    spoil(t, sentence);
}
