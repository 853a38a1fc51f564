/* SPDX-License-Identifier: MIT */
/* Which trial is to blame for an output that is wrong, or for threads that are busy beside a sample. All trials of a case
 * run in one process, on the same tensors: one may overwrite what the others read, or leave a thread behind that does so or
 * takes their CPU time. It is found by leaving it out. */
#include <math.h>

#include "base/float_mode.h"
#include "timing/setup.h"

enum { ROUNDS = 5, REPEATS = 3 };
static const double MOST_BUSY = 1.1; /* times the trial's threads; kernels that hide none are within 1.001 */
static const double MOST_LATE = 0.5; /* times the CPU time of its calls */
static const double BUSY_SHARE = 0.05;

/* Others may answer each call of a thread that waits: another process, or a device. */
static bool lets_others_work(const bench_trial *t) { return t->threads == 1 && 2 * t->samples.waited > t->samples.rounds; }

/* The mean for one thread: Linux counts the time of another process at timer interrupts, which a short sample may not meet.
 * The median for several: their CPU time is held against wall time, where the time of a look may be wrong beside a load. */
static double busy_threads(const bench_trial *t) {
  const bench_samples *samples = &t->samples;
  double sum = 0;
  if (t->threads > 1) return bench_median(samples->busy, samples->rounds);
  for (int i = 0; i < samples->rounds; i++) sum += samples->busy[i];
  return sum / samples->rounds;
}

bool bench_trial_works_aside(const bench_trial *t, char *sentence, size_t bytes) {
  const double busy = busy_threads(t);
  if (busy > MOST_BUSY * t->threads)
    return !bench_say(sentence, bytes, "%.2f threads were busy, but the case has %d", busy, t->threads);
  if (lets_others_work(t))
    return !bench_say(sentence, bytes,
                      "its calls wait, for what another process or a device may do, but the case has 1 thread");
  const double late = bench_median(t->samples.late, t->samples.rounds);
  if (!(late > MOST_LATE)) return false;
  return !bench_say(sentence, bytes, "works late: when its output was read, it took %.3g times the CPU time of its calls",
                    late);
}

/* Whether a few rounds of these trials find nothing wrong with the first one. Their samples and verdicts stay as they are.
 */
static bool runs_well(const bench_setup *s, const bench_trial *first, const bench_trial *second) {
  bench_trial copy[] = {*first, second ? *second : *first};
  bench_trial *trials[] = {&copy[0], &copy[1]}, *failed;
  const bench_timing_options options = {.min_rounds = ROUNDS,
                                        .max_rounds = ROUNDS,
                                        .budget_s = INFINITY,
                                        .min_sample_s = BENCH_MIN_SAMPLE_S,
                                        .seed = s->bench->seed,
                                        .meter = s->settings->meter};
  bench_stop stop;
  const char *error;
  const int count = second ? 2 : 1;
  for (int i = 0; i < count; i++) copy[i].samples = (bench_samples){0}, copy[i].verdict.status = BENCH_PASS;
  char sentence[200];
  bool well = bench_time(trials, count, &options, &stop, &error, &failed) &&
              !bench_trial_works_aside(&copy[0], sentence, sizeof sentence);
  for (int i = 0; i < count; i++) bench_trial_clear(&copy[i]);
  return well;
}

static bool can_run(const bench_trial *t) { return t->plan || t->layer; }

static bool any_leaves_threads(const bench_setup *s) {
  bool any = false;
  for (int i = 0; i < s->count; i++) any |= s->trials[i].leaves_threads;
  return any;
}

/* Whether the trial may disturb the failed one: if some trials left threads running, only those may. Leaving out another
 * would prove nothing, because the damage of a thread changes from round to round. */
static bool may_disturb(const bench_setup *s, const bench_trial *t, const bench_trial *failed) {
  return t != failed && can_run(t) && (t->leaves_threads || !any_leaves_threads(s));
}

/* ---- Inputs ---------------------------------------------------------------------------------------------------------- */

/* The inputs' hash from when the tensors were made, if nothing else has been written there. */
static uint64_t hash_inputs(bench_setup *s) {
  bench_tensors *tensors = &s->tensors[0];
  bench_tensors_restore(tensors, 1);
  while (bench_v_factor(tensors) != 1) bench_tensors_renew_v(tensors, 1);  // NOLINT
  return bench_tensors_input_hash(tensors);
}

/* The trial whose call changes an input; NULL: none, or there are no inputs to look at. */
static bench_trial *find_writer(bench_setup *s, bench_trial *failed) {
  if (!s->tensors[0].buffers || hash_inputs(s) == s->input_hash) return NULL;
  bench_trial *writer = NULL;
  const uint64_t float_mode = bench_float_mode();
  for (int i = 0; i < s->count && !writer; i++) {
    if (!can_run(&s->trials[i])) continue;
    const uint64_t before = hash_inputs(s);
    for (int n = 0; n < ROUNDS && !writer; n++) {
      (void)bench_setup_meter(s)->call(&s->trials[i], 0);
      if (bench_tensors_input_hash(&s->tensors[0]) != before) writer = &s->trials[i];
    }
  }
  (void)bench_keeps_float_mode(float_mode);
  s->inputs_lost = true;
  return writer ? writer : failed;
}

/* ---- Leaving out ----------------------------------------------------------------------------------------------------- */

/* Whether the failed trial always runs well alone, and never beside the other. */
static bool is_disturbed_by(const bench_setup *s, bench_trial *failed, bench_trial *other) {
  for (int i = 0; i < REPEATS; i++)
    if (!runs_well(s, failed, NULL) || runs_well(s, failed, other)) return false;
  return true;
}

static bool always_runs_well(const bench_setup *s, bench_trial *t) {
  for (int i = 0; i < REPEATS; i++)
    if (!runs_well(s, t, NULL)) return false;
  return true;
}

/* Whether the failed trial, which ran well while the other's plan was closed, is wrong again once that is open and has been
 * called. If not, something else ended meanwhile, such as a library's thread that spins for some time after its start. */
static bool is_wrong_again(bench_setup *s, bench_trial *failed, bench_trial *other) {
  bench_setup_reopen_plan(s, other);
  (void)(other->plan && runs_well(s, other, NULL));
  return !runs_well(s, failed, NULL);
}

/* The trial whose presence, or whose open plan, makes the failed one wrong every time, while it is right without. NULL:
 * none. */
static bench_trial *find_disturber(bench_setup *s, bench_trial *failed) {
  bench_trial *closed[BENCH_MAX_KERNELS + 1], *found = NULL;
  int count = 0;
  for (int i = 0; i < s->count && !found; i++)
    if (may_disturb(s, &s->trials[i], failed) && is_disturbed_by(s, failed, &s->trials[i])) found = &s->trials[i];
  for (int i = 0; i < s->count && !found && !always_runs_well(s, failed); i++) {
    bench_trial *t = &s->trials[i];
    if (!may_disturb(s, t, failed) || !t->plan) continue;
    bench_setup_close_plan(t);
    if (!always_runs_well(s, failed))
      closed[count++] = t;
    else if (is_wrong_again(s, failed, t))
      found = t;
  }
  for (int i = 0; i < count; i++) bench_setup_reopen_plan(s, closed[i]);
  return found;
}

/* The trial whose thread or process, maybe of an earlier case, is the busiest while nothing runs, and its share of a CPU.
 * NULL: none. */
static bench_trial *find_busiest(bench_setup *s, double *share) {
  bench_team_dismiss();
  const void *owner = bench_tasks_busiest_owner(share);
  for (int i = 0; owner && i < s->count; i++)
    if (s->trials[i].kernel == owner) return &s->trials[i];
  return NULL;
}

/* A thread that outlives its plan has to run at times to do harm; those of libraries sleep. */
bench_trial *bench_setup_find_cause(bench_setup *s, bench_trial *failed) {
  s->trials[s->controlled - s->trials].leaves_threads |= s->control.leaves_threads; /* the same kernel */
  bench_trial *cause = find_writer(s, failed);
  if (cause) return cause;
  double share;
  bench_trial *busiest = find_busiest(s, &share);
  if (busiest && share > BUSY_SHARE) return busiest;
  /* A trial can act between its calls only by threads that it left running. */
  if (any_leaves_threads(s) || bench_tasks_now().count > 1) cause = find_disturber(s, failed);
  if (!cause) cause = busiest;
  return cause || always_runs_well(s, failed) ? cause : failed;
}
