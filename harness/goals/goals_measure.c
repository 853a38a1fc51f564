/* SPDX-License-Identifier: MIT */
/* One row of the goals: the case, and the case that it is compared with, take turns in the same rounds, so that every value
 * is one of neighbours. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>

#include "cases/work.h"
#include "goals/goals_private.h"
#include "machine/affinity.h"
#include "timing/read_rate.h"
#include "timing/run_case_private.h"

enum { MOST_ENTRANTS = 2 };

/* The cases of one row on their way. */
typedef struct contest {
  bench_goal_row *row;
  const bench_case_settings *settings;
  bench_row *rows;
  bench_stage *stage[MOST_ENTRANTS];
  bench_entrant entrant[MOST_ENTRANTS];
  int count;
} contest;

static void conclude(bench_goal_row *row, bench_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void conclude(bench_goal_row *row, bench_status status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(row->reason, sizeof row->reason, format, arguments);
  va_end(arguments);
  row->status = status;
  row->done = true;
}

static void conclude_measured(bench_goal_row *row, bench_summary measured) {
  row->measured = measured;
  row->judgement = bench_goal_judge(row->goal, &row->measured);
  conclude(row, BENCH_PASS, "%s", "");
}

/* ---- Of the plan alone ---------------------------------------------------------------------------------------------- */

static void measure_workspace(bench_goal_row *row) {
  attn_plan *plan;
  const attn_options options = {.kernel = row->kernel->name, .threads = row->bench.threads};
  if (attn_plan_create(&row->bench.problem, &options, &plan) != ATTN_OK) {
    conclude(row, BENCH_ERROR, "%s", attn_last_error());
    return;
  }
  const double kib = (double)attn_plan_workspace(plan) / 1024;
  attn_plan_destroy(plan);
  conclude_measured(row, bench_summarise(&kib, 1));
}

/* ---- In rounds ------------------------------------------------------------------------------------------------------ */

/* An output without elements cannot be wrong: that every answer would pass is no objection. The check has seen that nothing
 * was written, which is all that can be asked. */
static void accept_empty_output(bench_stage *stage, bench_verdict *verdict) {
  if (verdict->status != BENCH_DEGENERATE || bench_tensors_output_bytes(&stage->tensors[0])) return;
  verdict->status = BENCH_PASS;
  verdict->reason[0] = 0;
}

/* What stands beside the samples; false if there is no such loop. */
static bool choose_loop(bench_goal_row *row, const bench_stage *stage, bench_entrant *entrant) {
  const bench_metric *metric = row->goal->metric;
  if (!metric->peak) entrant->peak = NULL;
  entrant->reads = metric->reads;
  if (metric->peak && !entrant->peak) {
    conclude(row, BENCH_ERROR, "tier %s has no peak loop", row->kernel->isa);
    return false;
  }
  if (metric->reads && bench_read_bytes(&stage->bench->problem) <= 0) {
    conclude(row, BENCH_ERROR, "a loop that only reads K and V needs them dense; here the layout is another");
    return false;
  }
  return true;
}

static bool open_entrant(contest *c, int i) {
  bench_goal_row *row = c->row;
  bench_verdict *verdict = &c->rows[i].verdict;
  c->stage[i] = bench_stage_open(i ? &row->against : &row->bench, &row->kernel, 1, c->settings, &c->rows[i]);
  if (c->stage[i] && c->stage[i]->expected) accept_empty_output(c->stage[i], verdict);
  if (verdict->status != BENCH_PASS) {
    conclude(row, verdict->status, "%s%.300s", i ? "the case of comparison: " : "", verdict->reason);
    return false;
  }
  bench_stage_rotate(c->stage[i]);
  c->entrant[i] = bench_stage_entrant(c->stage[i], &c->stage[i]->jobs[0]);
  return choose_loop(row, c->stage[i], &c->entrant[i]);
}

static int take_rounds(contest *c, bench_stop *stop, const char **error) {
  const bench_timing_options options = {.min_rounds = c->settings->rounds,
                                        .max_rounds = c->settings->rounds,
                                        .budget_s = INFINITY,
                                        .min_sample_s = BENCH_MIN_SAMPLE_S,
                                        .threads = c->row->bench.threads,
                                        .seed = c->row->bench.seed,
                                        .stop = c->settings->stop};
  bench_note(c->stage[0], "timing", c->row->kernel->name);
  return bench_time(c->entrant, c->count, &options, stop, error);
}

static bench_goal_sample sample_of(const contest *c, int i, int round) {
  const bench_entrant *e = &c->entrant[i];
  const bench_case *bench = c->stage[i]->bench;
  const double work = e->reads ? bench_read_bytes(&bench->problem) : c->stage[i]->flops;
  const double limit = e->peak_flops[round] * (e->reads ? 1 : bench->threads), seconds = 1e-9 * e->time_ns[round];
  return (bench_goal_sample){.time_ns = e->time_ns[round], .peak_share = limit > 0 ? work / seconds / limit : 0};
}

static void summarise(contest *c, int rounds) {
  double *values = malloc(((size_t)rounds + 1) * sizeof *values);
  if (!values) {
    conclude(c->row, BENCH_ERROR, "out of memory");
    return;
  }
  for (int round = 0; round < rounds; round++) {
    const bench_goal_sample sample = sample_of(c, 0, round);
    const bench_goal_sample against = c->count > 1 ? sample_of(c, 1, round) : (bench_goal_sample){0};
    values[round] = c->row->goal->metric->value(&sample, &against);
  }
  conclude_measured(c->row, bench_summarise(values, rounds));
  free(values);
}

/* False if it was interrupted before there were rounds enough. */
static bool measure_rounds(contest *c) {
  bench_stop stop;
  const char *error;
  if (take_rounds(c, &stop, &error)) {
    for (int i = 0; i < c->count; i++) bench_conclude(&c->rows[i], BENCH_ERROR, "timing: %s", error);
    conclude(c->row, BENCH_ERROR, "timing: %s", error);
    return true;
  }
  int rounds = c->entrant[0].rounds;
  if (c->count > 1 && c->entrant[1].rounds < rounds) rounds = c->entrant[1].rounds;
  if (stop == BENCH_STOP_INTERRUPT && rounds < BENCH_LEAST_GOAL_ROUNDS) return false;
  summarise(c, rounds);
  for (int i = 0; i < c->count; i++) bench_stage_fill(c->stage[i], &c->stage[i]->jobs[0], &c->entrant[i], stop);
  return true;
}

static bool run_contest(contest *c) {
  const int wanted = c->row->goal->metric->against ? 2 : 1;
  for (; c->count < wanted; c->count++) {
    if (!open_entrant(c, c->count)) return !*c->settings->stop;
    if (*c->settings->stop) return false;
  }
  return measure_rounds(c);
}

bool bench_goal_measure(bench_goal_row *row, const bench_case_settings *settings, bench_row rows[2]) {
  contest c = {.row = row, .settings = settings, .rows = rows};
  rows[0] = rows[1] = (bench_row){.case_id = ""};
  if (!row->goal->metric->value) {
    measure_workspace(row);
    return true;
  }
  const bool held = bench_threads_hold(row->bench.threads);
  const bool complete = run_contest(&c);
  for (int i = 0; i < MOST_ENTRANTS; i++) {
    bench_entrant_clear(&c.entrant[i]);
    bench_stage_close(c.stage[i]);
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
