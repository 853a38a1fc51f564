/* SPDX-License-Identifier: MIT */
/* Measures one goal: the case and the case that it is compared with run in the same rounds, so that every value compares
 * samples that were taken one after the other. */
#include <math.h>
#include <stdlib.h>

#include "cases/work.h"
#include "goals/goals.h"
#include "machine/affinity.h"
#include "timing/setup.h"

enum { MOST_CASES = 2 };

/* The cases of one row while they are measured; each has one trial. */
typedef struct pair {
  bench_goal_row *row;
  const bench_case_settings *settings;
  bench_setup *setup[MOST_CASES];
  bench_trial *trial[MOST_CASES];
  int count;
} pair;

/* False, so that whatever cannot be measured can return it. */
#define conclude(row, how, ...) ((row)->done = true, bench_set_reason(row, how, __VA_ARGS__))

static void conclude_measured(bench_goal_row *row, bench_summary measured) {
  row->measured = measured;
  row->verdict = bench_goal_verdict_of(row->goal, &row->measured);
  conclude(row, BENCH_PASS, "%s", "");
}

static void measure_workspace(bench_goal_row *row) {
  attn_plan *plan;
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = row->kernel->name, .threads = row->bench.threads);
  if (attn_plan_create(&row->bench.problem, &options, &plan) != ATTN_OK) {
    conclude(row, BENCH_ERROR, "%s", attn_last_error());
    return;
  }
  const double kib = (double)attn_plan_workspace(plan) / 1024;
  attn_plan_destroy(plan);
  conclude_measured(row, (bench_summary){.min = kib, .median = kib, .ci_lo = kib, .ci_hi = kib, .n = 1}); /* exact */
}

/* ---- In rounds ------------------------------------------------------------------------------------------------------ */

/* An output without elements cannot be wrong, so that DEGENERATE is no objection: the check has seen that nothing was
 * written. */
static void accept_empty_output(const bench_setup *setup, bench_trial *trial) {
  if (trial->verdict.status != BENCH_DEGENERATE || bench_tensors_output_bytes(&setup->tensors[0])) return;
  trial->verdict.status = BENCH_PASS;
  trial->verdict.reason[0] = 0;
}

/* What runs beside the samples; false if there is no such loop. */
static bool choose_loop(bench_goal_row *row, const bench_setup *setup, bench_trial *trial) {
  const bench_metric *metric = row->goal->metric;
  if (!metric->peak) trial->peak = NULL;
  trial->reads = metric->reads;
  if (metric->peak && !trial->peak) return conclude(row, BENCH_ERROR, "tier %s has no peak loop", row->kernel->isa);
  if (metric->reads && bench_read_bytes(&setup->bench->problem) <= 0)
    return conclude(row, BENCH_ERROR, "a loop that only reads K and V needs them dense; here the layout is another");
  return true;
}

/* Opens and checks the next case. False if it cannot be timed; the row says why. */
static bool open_trial(pair *p) {
  const int i = p->count;
  bench_goal_row *row = p->row;
  bench_setup *setup = bench_setup_open(i ? &row->against : &row->bench, &row->kernel, 1, p->settings);
  if (!setup) return conclude(row, BENCH_ERROR, "out of memory");
  bench_trial *trial = &setup->trials[0];
  p->setup[i] = setup;
  p->trial[i] = trial;
  p->count++;
  (void)bench_setup_check(setup); /* an interrupted one has no PASS */
  if (setup->expected) accept_empty_output(setup, trial);
  if (trial->verdict.status != BENCH_PASS)
    return conclude(row, trial->verdict.status, "%s%.300s", i ? "the case of comparison: " : "", trial->verdict.reason);
  bench_setup_rotate(setup);
  bench_setup_prepare_trial(setup, trial);
  return choose_loop(row, setup, trial);
}

static bool take_rounds(pair *p, bench_stop *stop, const char **error) {
  const bench_timing_options options = {.min_rounds = p->settings->rounds,
                                        .max_rounds = p->settings->rounds,
                                        .budget_s = INFINITY,
                                        .min_sample_s = BENCH_MIN_SAMPLE_S,
                                        .threads = p->row->bench.threads,
                                        .seed = p->row->bench.seed,
                                        .stop = p->settings->stop,
                                        .meter = p->settings->meter};
  bench_note(p->setup[0], "timing", p->row->kernel->name);
  return bench_time(p->trial, p->count, &options, stop, error);
}

static bench_goal_sample sample_of(const pair *p, int i, int round) {
  const bench_trial *t = p->trial[i];
  const bench_case *bench = p->setup[i]->bench;
  const double work = t->reads ? bench_read_bytes(&bench->problem) : p->setup[i]->flops;
  const double limit = t->samples.loop_rate[round] * (t->reads ? 1 : bench->threads), time_ns = t->samples.time_ns[round];
  return (bench_goal_sample){.time_ns = time_ns, .peak_share = limit > 0 ? work / (1e-9 * time_ns) / limit : 0};
}

static void summarise(pair *p, int rounds) {
  double *values = malloc(((size_t)rounds + 1) * sizeof *values);
  if (!values) conclude(p->row, BENCH_ERROR, "out of memory");
  for (int round = 0; values && round < rounds; round++) {
    const bench_goal_sample sample = sample_of(p, 0, round);
    const bench_goal_sample against = p->count > 1 ? sample_of(p, 1, round) : (bench_goal_sample){0};
    values[round] = p->row->goal->metric->value(&sample, &against);
  }
  if (values) conclude_measured(p->row, bench_summarise(values, rounds));
  free(values);
}

static void spoil(pair *p, const char *error) {
  for (int i = 0; i < p->count; i++) {
    bench_conclude(p->trial[i], BENCH_ERROR, "timing: %s", error);
    bench_trial_clear(p->trial[i]);
  }
  conclude(p->row, BENCH_ERROR, "timing: %s", error);
}

/* False if it was interrupted before there were rounds enough. */
static bool measure_rounds(pair *p) {
  bench_stop stop;
  const char *error;
  if (!take_rounds(p, &stop, &error)) {
    spoil(p, error);
    return true;
  }
  for (int i = 0; i < p->count; i++) {
    bench_setup_judge(p->setup[i], p->trial[i]);
    if (p->trial[i]->verdict.status == BENCH_PASS) continue;
    conclude(p->row, BENCH_ERROR, "%s", p->trial[i]->verdict.reason);
    return true;
  }
  int rounds = p->trial[0]->samples.rounds;
  if (p->count > 1 && p->trial[1]->samples.rounds < rounds) rounds = p->trial[1]->samples.rounds;
  if (stop == BENCH_STOP_INTERRUPT && rounds < BENCH_LEAST_GOAL_ROUNDS) return false;
  summarise(p, rounds);
  for (int i = 0; i < p->count; i++) p->setup[i]->stop = stop;
  return true;
}

static bool measure_pair(pair *p) {
  const int wanted = p->row->goal->metric->against ? 2 : 1;
  while (p->count < wanted) {
    if (!open_trial(p)) return !*p->settings->stop;
    if (*p->settings->stop) return false;
  }
  return measure_rounds(p);
}

bool bench_goal_measure(bench_goal_row *row, const bench_case_settings *settings, bench_row rows[2]) {
  pair p = {.row = row, .settings = settings};
  rows[0] = rows[1] = (bench_row){.case_id = ""};
  if (!row->goal->metric->value) {
    measure_workspace(row);
    return true;
  }
  const bool held = bench_threads_hold(row->bench.threads);
  const bool complete = measure_pair(&p);
  for (int i = 0; i < p.count; i++) {
    if (complete) rows[i] = bench_setup_row(p.setup[i], p.trial[i]);
    bench_setup_close(p.setup[i]);
  }
  if (held) bench_threads_release();
  row->done = row->done && complete;
  return complete;
}

double bench_goal_guess(const bench_goal_row *row, const bench_case_settings *settings) {
  if (!row->goal->metric->value) return 1e-4;
  const double one = bench_case_guess(&row->bench, &row->kernel, 1, settings);
  return row->goal->metric->against ? one + bench_case_guess(&row->against, &row->kernel, 1, settings) : one;
}
