/* SPDX-License-Identifier: MIT */
/* From trials to rows: summaries, shares of the peak, ratios. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "timing/setup.h"

static int fewer(int a, int b) { return a < b ? a : b; }

/* ---- One row --------------------------------------------------------------------------------------------------------- */

/* Of the loop beside it, and of one call's work. */
static double get_share(const void *context, int round) {
  const bench_samples *samples = context;
  return 1e9 / samples->time_ns[round] / samples->loop_rate[round];
}

double bench_peak_share(const bench_trial *t, double flops, int threads) {
  if (!t->peak || flops <= 0 || t->samples.rounds < 1) return NAN;
  return flops / threads * bench_median_of(get_share, &t->samples, t->samples.rounds);
}

static void fill_peak(const bench_setup *s, bench_trial *t, bench_row *row) {
  row->peak_pct = 100 * bench_peak_share(t, s->flops, s->bench->threads);
  if (isnan(row->peak_pct)) return;
  row->peak_gflops = 1e-9 * s->bench->threads * bench_median(t->samples.loop_rate, t->samples.rounds);
  if (row->peak_pct > 100) bench_warn(t, "faster than the measured peak: the peak loop was disturbed");
}

static void fill_times(const bench_setup *s, bench_trial *t, bench_row *row) {
  row->threads_counted = bench_median(t->samples.busy, t->samples.rounds);
  row->stop = s->stop;
  for (int i = 0; i < s->count; i++)
    if (t->samples.rounds < s->trials[i].samples.rounds) row->stop = BENCH_STOP_BUDGET; /* of a slow kernel */
  if (bench_layer_has(s->bench, BENCH_HAS_PLAN)) row->plan_ns = t->plan_ns;
  if (bench_layer_has(s->bench, BENCH_HAS_WORKSPACE)) row->workspace_bytes = (double)t->workspace_bytes;
  row->flops = s->flops;
  row->bytes = s->bytes;
  row->gflops = s->flops / row->time.median;
  row->gbs = s->bytes / row->time.median;
  if (bench_layer_has(s->bench, BENCH_HAS_PROJECTIONS)) { /* the layer tells its parts apart */
    const bench_shares shares = bench_layer_shares(t->layer);
    row->projections_pct = 100 * shares.projections;
    if (bench_layer_has(s->bench, BENCH_HAS_ATTENTION)) row->attention_pct = 100 * shares.attention;
    row->rest_pct = 100 * shares.rest;
  }
  fill_peak(s, t, row);
  row->samples_ns = t->samples.time_ns;
  row->positions = t->samples.position;
  row->iterations = t->samples.iterations;
  t->samples.time_ns = NULL;
  t->samples.position = NULL;
}

bench_row bench_setup_row(const bench_setup *s, bench_trial *t) {
  bench_row row = bench_row_create(s->bench, t->automatic ? &bench_automatic : t->kernel);
  bench_row_set_origin(&row, t->kernel);
  row.time = bench_summarise(t->samples.time_ns, t->samples.rounds);
  if (t->samples.rounds && !row.time.n) bench_conclude(t, BENCH_ERROR, "timing: out of memory for the statistics");
  row.verdict = t->verdict;
  if (t->verdict.approximate) bench_warn(t, "approximate: declares larger errors than those of rounding");
  if (t->layer) snprintf(row.product, sizeof row.product, "%s", bench_layer_product(t->layer));
  if (row.time.n) fill_times(s, t, &row);
  memcpy(row.warnings, t->warnings, sizeof row.warnings);
  return row;
}

/* ---- Comparisons ----------------------------------------------------------------------------------------------------- */

/* A slow kernel takes part in the first rounds only: ratios are over the rounds that both have. The baseline is naive_c
 * where it was timed, else the slowest. */
static void compare(const bench_setup *s, bench_row *rows) {
  const bench_row *baseline = NULL, *best = NULL, *controlled = &rows[s->controlled - s->trials];
  const bench_samples *control = &s->control.samples;
  const int rounds = fewer(control->rounds, controlled->time.n);
  const double control_ratio = bench_paired_ratio(control->time_ns, controlled->samples_ns, rounds).median;
  for (bench_row *r = rows; r < rows + s->count; r++) {
    if (r->time.n && (!best || r->time.median < best->time.median)) best = r;
    if (r->time.n && (!baseline || r->time.median > baseline->time.median)) baseline = r;
  }
  for (bench_row *r = rows; r < rows + s->count; r++)
    if (r->time.n && !strcmp(r->kernel, "naive_c")) baseline = r;
  for (bench_row *r = rows; r < rows + s->count; r++) {
    if (!r->time.n) continue;
    memcpy(r->baseline, baseline->kernel, sizeof r->baseline);
    r->ratio = bench_paired_ratio(baseline->samples_ns, r->samples_ns, fewer(baseline->time.n, r->time.n));
    r->ratio_best = bench_paired_ratio(best->samples_ns, r->samples_ns, fewer(best->time.n, r->time.n)).median;
    r->noise = isnan(control_ratio) ? -1 : fabs(control_ratio - 1);
    r->peak_gbs = 1e-9 * s->read_bandwidth;
    r->bw_pct = s->read_bandwidth > 0 ? 100 * r->gbs / r->peak_gbs : NAN;
  }
}

void bench_setup_rows(bench_setup *s, bench_row *rows) {
  for (int i = 0; i < s->count; i++) rows[i] = bench_setup_row(s, &s->trials[i]);
  if (s->control.samples.rounds) compare(s, rows);
}
