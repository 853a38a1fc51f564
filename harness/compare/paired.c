/* SPDX-License-Identifier: MIT */
/* Two builds of a kernel side by side: same process, same round, same inputs, same output, so that neither has a quieter
 * moment; and many placements of each, so that neither has better pages by luck. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "compare/compare.h"
#include "machine/affinity.h"

typedef struct pair {
  bench_case_settings settings; /* rounds are set after the check */
  bench_setup *setup;
} pair;

static bench_trial *trial_of(const pair *p, int side) { return &p->setup->trials[side]; }

static bool can_be_timed(const pair *p) {
  return trial_of(p, 0)->verdict.status == BENCH_PASS && trial_of(p, 1)->verdict.status == BENCH_PASS;
}

/* The number of rounds is fixed before any time is taken. To go on until times differ would make differences. */
static int choose_rounds(const pair *p) {
  const double call_s = 1e-9 * fmax(trial_of(p, 0)->call_ns, trial_of(p, 1)->call_ns);
  const double round_s = 3 * (fmax(call_s, BENCH_MIN_SAMPLE_S) + BENCH_MIN_SAMPLE_S / 2);
  const double rounds = fmin(p->settings.case_budget_s / round_s, BENCH_PAIRED_ROUNDS_COUNT);
  return (int)fmax(rounds, BENCH_LEAST_PAIRED_ROUNDS);
}

/* The rows take the samples; the control stays with the setup. */
static void fill(pair *p, bench_row rows[2], bench_comparison *c) {
  bench_setup_rows(p->setup, rows);
  *c = (bench_comparison){.a = &rows[0], .b = &rows[1]};
  if (!rows[0].time.n || !rows[1].time.n) return;
  const bench_setup *s = p->setup;
  const bench_pairs both = bench_setup_pairs(s, &s->trials[0], &rows[0], &s->trials[1], &rows[1]);
  const bench_pairs same = bench_setup_control(s, rows);
  bench_comparison_measure_paired(c, &both, &same);
}

static bool measure_pair(pair *p, bench_row rows[2], bench_comparison *c) {
  const int threads = p->setup->bench->threads;
  const bool held = bench_threads_hold(threads), complete = bench_setup_check(p->setup), timed = complete && can_be_timed(p);
  if (timed && !p->settings.rounds) p->settings.rounds = choose_rounds(p);
  if (timed) bench_setup_time(p->setup);
  fill(p, rows, c);
  if (held) bench_threads_release();
  return complete && !(p->settings.stop && *p->settings.stop);
}

/* Both rows say why there is nothing to compare; true, as nothing interrupted it. */
static bool refuse(bench_row rows[2], bench_status status, const char *why) {
  for (int side = 0; side < 2; side++) bench_set_reason(&rows[side].verdict, status, "%s", why);
  return true;
}

bool bench_paired_measure(const bench_copies sides[2], const bench_case *bench, const attn_kernel_info *kernel,
                          const bench_case_settings *settings, bench_row rows[2], bench_comparison *c) {
  const attn_kernel_info *const both[] = {bench_copies_kernel(&sides[0], kernel), bench_copies_kernel(&sides[1], kernel)};
  pair p = {.settings = *settings};
  rows[0] = rows[1] = bench_row_create(bench, kernel);
  if (bench_layer_is(bench)) return refuse(rows, BENCH_SKIP, "builds are compared on attention, not on layers");
  if (!both[0] || !both[1]) return refuse(rows, BENCH_ERROR, "only one of both plug-ins has a kernel of that name");
  p.setup = bench_setup_open(bench, both, 2, &p.settings);
  if (!p.setup) return refuse(rows, BENCH_ERROR, "out of memory");
  for (int side = 0; side < 2; side++) {
    trial_of(&p, side)->copies = &sides[side];
    trial_of(&p, side)->build = &sides[side].build[0];
  }
  const bool complete = measure_pair(&p, rows, c);
  for (int side = 0; side < 2; side++) snprintf(rows[side].kernel, sizeof rows[side].kernel, "%s", kernel->name);
  bench_setup_close(p.setup);
  return complete;
}

/* ---- All cases and kernels ------------------------------------------------------------------------------------------ */

/* One case and kernel, which count for nothing if the run was interrupted. False if memory is short. */
static bool run_one(bench_paired_job *job, int index, bench_matches *m) {
  const bench_case *bench = &job->cases.item[index / job->kernel_count];
  const attn_kernel_info *kernel = job->kernels[index % job->kernel_count];
  bench_row *rows = &job->rows[2 * index];
  bench_comparison c;
  char name[BENCH_NAME + 80];
  snprintf(name, sizeof name, "%s %s", kernel->name, bench->case_id);
  bench_progress_note(&job->progress, name, "begins");
  if (!bench_paired_measure(job->sides, bench, kernel, &job->settings, rows, &c)) return true;
  bench_progress_advance(&job->progress, 1, rows[0].verdict.status == BENCH_SKIP);
  const bool both = rows[0].time.n && rows[1].time.n;
  return both ? bench_matches_add(m, &c) : bench_matches_add_unpaired(m, &rows[0], &rows[1]);
}

bool bench_paired_run(bench_paired_job *job, double margin, bench_matches *m) {
  const int count = job->cases.count * job->kernel_count;
  bool fine = true;
  *m = (bench_matches){.table = {.design = BENCH_PAIRED_ROUNDS, .margin = margin}};
  job->rows = calloc((size_t)count, 2 * sizeof *job->rows);
  if (count && !job->rows) return false;
  bench_progress_start(&job->progress, count, count, job->progress.quiet);
  for (int i = 0; fine && i < count && !*job->settings.stop; i++) fine = run_one(job, i, m);
  bench_progress_wipe(&job->progress);
  return fine && bench_matches_decide(m);
}

void bench_paired_clear(bench_paired_job *job) {
  for (int i = 0; job->rows && i < 2 * job->cases.count * job->kernel_count; i++) bench_row_clear(&job->rows[i]);
  free(job->rows);
  bench_cases_clear(&job->cases);
}
