/* SPDX-License-Identifier: MIT */
/* From trials to rows: summaries, shares of the peak, ratios. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine/affinity.h"
#include "timing/setup.h"

static int fewer(int a, int b) { return a < b ? a : b; }

/* ---- One row --------------------------------------------------------------------------------------------------------- */

double bench_peak_share(const bench_trial *t, double flops, int threads) {
  const bench_samples *samples = &t->samples;
  double *share = t->peak && flops > 0 ? malloc(((size_t)samples->rounds + 1) * sizeof *share) : NULL;
  if (!share) return NAN;
  for (int i = 0; i < samples->rounds; i++)
    share[i] = flops / (samples->time_ns[i] * 1e-9) / (samples->loop_rate[i] * threads);
  const double median = bench_median(share, samples->rounds);
  free(share);
  return median;
}

static void fill_peak(const bench_setup *s, bench_trial *t, bench_row *row) {
  row->peak_pct = 100 * bench_peak_share(t, s->flops, s->bench->threads);
  if (isnan(row->peak_pct)) return;
  row->peak_gflops = 1e-9 * s->bench->threads * bench_median(t->samples.loop_rate, t->samples.rounds);
  if (row->peak_pct > 100) bench_warn(t, "faster than the measured peak: the peak loop was disturbed");
}

/* Shares of the time of a layer's parts. */
static void fill_shares(const bench_case *bench, const bench_layer_trial *layer, bench_row *row) {
  if (!bench_layer_has_projections(bench)) return;
  const bench_shares shares = bench_layer_shares(layer);
  row->projections_pct = 100 * shares.projections;
  if (bench_layer_has_attention(bench)) row->attention_pct = 100 * shares.attention;
  row->rest_pct = 100 * shares.rest;
}

static void fill_work(const bench_setup *s, const bench_trial *t, bench_row *row) {
  const double seconds = row->time.median * 1e-9;
  if (bench_layer_has_plan(s->bench)) row->plan_ns = t->plan_ns;
  if (bench_layer_has_workspace(s->bench)) row->workspace_bytes = (double)t->workspace_bytes;
  row->flops = s->flops;
  row->bytes = s->bytes;
  row->gflops = s->flops / seconds * 1e-9;
  row->gbs = s->bytes / seconds * 1e-9;
}

static int most_rounds(const bench_setup *s) {
  int rounds = 0;
  for (int i = 0; i < s->count; i++)
    if (s->trials[i].samples.rounds > rounds) rounds = s->trials[i].samples.rounds;
  return rounds;
}

static void move_samples(bench_samples *samples, bench_row *row) {
  row->samples_ns = samples->time_ns;
  row->positions = samples->position;
  row->iterations = samples->iterations;
  samples->time_ns = NULL;
  samples->position = NULL;
}

static void fill_times(const bench_setup *s, bench_trial *t, bench_row *row) {
  if (bench_threads_share_cpus()) bench_warn(t, "threads: %d share fewer CPUs, and may move", s->bench->threads);
  row->time = bench_summarise(t->samples.time_ns, t->samples.rounds);
  row->stop = t->samples.rounds < most_rounds(s) ? BENCH_STOP_BUDGET : s->stop;
  fill_work(s, t, row);
  if (t->layer) fill_shares(s->bench, t->layer, row);
  fill_peak(s, t, row);
  move_samples(&t->samples, row);
}

bench_row bench_setup_row(const bench_setup *s, bench_trial *t) {
  bench_row row = bench_row_create(s->bench, t->automatic ? &bench_automatic : t->kernel);
  bench_row_set_origin(&row, t->kernel);
  row.verdict = t->verdict;
  if (t->layer) snprintf(row.product, sizeof row.product, "%s", bench_layer_product(t->layer));
  if (t->samples.rounds) fill_times(s, t, &row);
  memcpy(row.warnings, t->warnings, sizeof row.warnings);
  return row;
}

/* ---- Comparisons ----------------------------------------------------------------------------------------------------- */

/* A slow kernel takes part in the first rounds only: the ratio is over the rounds that both have. */
static bench_summary ratio_of(const bench_row *a, const bench_row *b) {
  return bench_paired_ratio(a->samples_ns, b->samples_ns, fewer(a->time.n, b->time.n));
}

/* naive_c where it was timed, else the slowest. */
static const bench_row *choose_baseline(const bench_row *rows, int count) {
  const bench_row *slowest = NULL;
  for (const bench_row *r = rows; r < rows + count; r++) {
    if (r->time.n && !strcmp(r->kernel, "naive_c")) return r;
    if (r->time.n && (!slowest || r->time.median > slowest->time.median)) slowest = r;
  }
  return slowest;
}

static const bench_row *choose_best(const bench_row *rows, int count) {
  const bench_row *best = NULL;
  for (const bench_row *r = rows; r < rows + count; r++)
    if (r->time.n && (!best || r->time.median < best->time.median)) best = r;
  return best;
}

/* How far apart two trials of the same kernel are. */
static double noise_of(const bench_setup *s, const bench_row *controlled) {
  const bench_samples *control = &s->control.samples;
  const int rounds = fewer(control->rounds, controlled->time.n);
  return fabs(bench_paired_ratio(control->time_ns, controlled->samples_ns, rounds).median - 1);
}

static void compare(const bench_setup *s, bench_row *rows) {
  const bench_row *baseline = choose_baseline(rows, s->count), *best = choose_best(rows, s->count);
  const double noise = noise_of(s, &rows[s->controlled - s->trials]);
  for (bench_row *r = rows; r < rows + s->count; r++) {
    if (!r->time.n) continue;
    memcpy(r->baseline, baseline->kernel, sizeof r->baseline);
    r->ratio = ratio_of(baseline, r);
    r->ratio_best = ratio_of(best, r).median;
    r->noise = noise;
    r->peak_gbs = 1e-9 * s->read_bandwidth;
    r->bw_pct = s->read_bandwidth > 0 ? 100 * r->gbs / r->peak_gbs : NAN;
  }
}

void bench_setup_rows(bench_setup *s, bench_row *rows) {
  for (int i = 0; i < s->count; i++) rows[i] = bench_setup_row(s, &s->trials[i]);
  if (s->control.samples.rounds) compare(s, rows);
}
