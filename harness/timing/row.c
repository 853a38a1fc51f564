/* SPDX-License-Identifier: MIT */
/* Fills rows: first case and kernel, then summaries, shares of the peak, and ratios from the trials. */

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/case.h"
#include "kernels/common/problem/arithmetic.h"
#include "layers/layer.h"
#include "timing/setup.h"

#define COPY(target, text) ((void)snprintf(target, sizeof(target), "%s", text))

/* "none", or keys to the left and to the right, "" = all: "256..0", "..64". */
static void describe_window(bench_row *row, const attn_problem *p) {
  char left[24] = "", right[24] = "";
  if (p->window_left >= 0) snprintf(left, sizeof left, "%" PRId64, p->window_left);
  if (p->window_right >= 0) snprintf(right, sizeof right, "%" PRId64, p->window_right);
  COPY(row->window, "none");
  if (p->window_left >= 0 || p->window_right > 0) snprintf(row->window, sizeof row->window, "%s..%s", left, right);
}

static void describe_problem(bench_row *row, const attn_problem *p) {
  COPY(row->dtype_q, bench_dtype_name(p->dtype_q));
  COPY(row->dtype_kv, bench_dtype_name(p->dtype_kv));
  COPY(row->dtype_o, bench_dtype_name(p->dtype_o));
  COPY(row->align, bench_axis_get(AXIS_ALIGN)->words[p->align]);
  row->batch = p->batch;
  row->seq_q = p->seq_q;
  row->seq_k = p->seq_k;
  row->softcap = p->softcap;
  describe_window(row, p);
}

static void describe_options(bench_row *row, const bench_case *bench) {
  if (bench_layer_has(bench, BENCH_HAS_ATTENTION)) COPY(row->score, bench_spec_get(&bench->spec, AXIS_SCORE));
  COPY(row->causal, bench_spec_get(&bench->spec, AXIS_CAUSAL));
  COPY(row->mask, bench_spec_get(&bench->spec, AXIS_MASK));
  COPY(row->bias, bench_spec_get(&bench->spec, AXIS_BIAS));
  COPY(row->alibi, bench_spec_get(&bench->spec, AXIS_ALIBI));
  COPY(row->sinks, bench_spec_get(&bench->spec, AXIS_SINKS));
  COPY(row->lengths, bench_spec_get(&bench->spec, AXIS_LENGTHS));
  COPY(row->layout, bench->layout);
  COPY(row->cache, bench_axis_get(AXIS_CACHE)->words[bench->cache]);
}

/* Whether an axis of the data has a column of its own. The width that is given has none: column width is d_model, given or
 * not. */
static bool has_column(bench_axis axis) {
  switch (axis) {
    case AXIS_ALIGN:
    case AXIS_WINDOW:
    case AXIS_MASK:
    case AXIS_BIAS:
    case AXIS_ALIBI:
    case AXIS_SOFTCAP:
    case AXIS_SCORE:
    case AXIS_SINKS:
    case AXIS_LENGTHS:
    case AXIS_LAYOUT:
    case AXIS_LAYER: return true;
    default: return false;
  }
}

static void describe_case(bench_row *row, const bench_case *bench) {
  const attn_problem *p = &bench->problem;
  char other[BENCH_NAME] = "";
  COPY(row->case_id, bench->case_id);
  bench_case_name_axes(bench, AXIS_IN_DATA, has_column, other);
  if (*other) snprintf(row->other_axes, sizeof row->other_axes, "%.120s", other + 1);
  describe_problem(row, p);
  if (bench_layer_has(bench, BENCH_HAS_HEADS)) {
    row->heads_q = p->heads_q, row->heads_kv = p->heads_kv;
    row->dim_qk = p->dim_qk, row->dim_v = p->dim_v;
  }
  describe_options(row, bench);
  row->threads = bench->threads;
  if (!bench_layer_is(bench)) return;
  COPY(row->layer, bench->layer);
  if (bench_layer_has(bench, BENCH_HAS_WIDTH)) row->width = bench->width;
}

void bench_row_set_origin(bench_row *row, const attn_kernel_info *kernel) {
  COPY(row->algorithm, kernel->algorithm);
  COPY(row->isa, kernel->isa);
  COPY(row->library, kernel->library);
}

bench_row bench_row_create(const bench_case *bench, const attn_kernel_info *kernel) {
  bench_row row = {.time = bench_no_summary, .noise = NAN, .softcap = NAN};
  row.batch = row.seq_q = row.seq_k = row.threads = -1;
  row.heads_q = row.heads_kv = row.dim_qk = row.dim_v = row.width = -1;
  row.ratio = bench_no_summary;
  row.threads_counted = row.plan_ns = row.workspace_bytes = row.flops = row.bytes = row.gflops = row.gbs = NAN;
  row.undisturbed_pct = row.peak_gflops = row.peak_pct = row.peak_gbs = row.bw_pct = row.ratio_best = NAN;
  row.projections_pct = row.attention_pct = row.rest_pct = NAN;
  if (bench) describe_case(&row, bench);
  if (kernel) bench_row_set_origin(&row, kernel);
  if (kernel) COPY(row.kernel, kernel->name);
  return row;
}

void bench_row_clear(bench_row *row) {
  free(row->samples_ns);
  free(row->positions);
  free(row->peaks);
  *row = (bench_row){0};
}

/* ---- One row --------------------------------------------------------------------------------------------------------- */

/* The rate of calls in a round / the rate of the loop beside it. */
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
  if (row->peak_pct > 100 && !bench_parts_peak_of(t->kernel, t->peak))
    bench_warn(t, "faster than the measured peak: the peak loop was disturbed");
  if (!(t->peak_best > 0)) return;
  row->peak_gflops = 1e-9 * t->peak_best;
  row->peak_pct = 100 * row->gflops / row->peak_gflops;
}

/* The samples of the peak loop become the row's, for all threads. */
static void take_peaks(const bench_setup *s, bench_trial *t, bench_row *row) {
  if (!t->peak) return;
  row->peaks = t->samples.loop_rate;
  for (int i = 0; i < t->samples.rounds; i++) row->peaks[i] *= s->bench->threads;
  t->samples.loop_rate = NULL;
}

static void fill_reading(const bench_setup *s, const bench_trial *t, bench_row *row) {
  const double share = bench_read_share(s, t);
  COPY(row->level, s->level);
  if (isnan(share)) return;
  row->peak_gbs = 1e-9 * bench_median(t->reads ? t->samples.loop_rate : s->read_rates, t->samples.rounds);
  row->bw_pct = 100 * share;
}

/* In percent; NaN where it is not known. */
static double undisturbed_share(const bench_trial *t) {
  int undisturbed = 0;
  for (int i = 0; i < t->samples.rounds; i++) undisturbed += bench_sample_is_undisturbed(t, i);
  return bench_knows_disturbance(t) ? 100.0 * undisturbed / t->samples.rounds : NAN;
}

static void fill_times(const bench_setup *s, bench_trial *t, bench_row *row) {
  row->threads_counted = bench_median(t->samples.busy, t->samples.rounds);
  row->undisturbed_pct = undisturbed_share(t);
  row->stop = s->stop;
  for (int i = 0; i < s->count; i++)
    if (t->samples.rounds < s->trials[i].samples.rounds) row->stop = BENCH_STOP_BUDGET; /* a slow kernel's */
  if (bench_layer_has(s->bench, BENCH_HAS_PLAN)) row->plan_ns = t->plan_ns;
  if (bench_layer_has(s->bench, BENCH_HAS_WORKSPACE)) row->workspace_bytes = (double)t->workspace_bytes;
  row->flops = s->flops;
  row->bytes = s->bytes;
  row->gflops = s->flops / row->time.median;
  row->gbs = s->bytes / row->time.median;
  fill_reading(s, t, row);
  if (bench_layer_has(s->bench, BENCH_HAS_PROJECTIONS)) { /* the layer tells its parts apart */
    const bench_shares shares = bench_layer_shares(t->layer);
    row->projections_pct = 100 * shares.projections;
    if (bench_layer_has(s->bench, BENCH_HAS_ATTENTION)) row->attention_pct = 100 * shares.attention;
    row->rest_pct = 100 * shares.rest;
  }
  fill_peak(s, t, row);
  take_peaks(s, t, row);
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

/* A slow kernel takes part in the first rounds only. */
static bench_pairs pair(const bench_setup *s, const double *a, const bench_trial *trial_a, const double *b,
                        const bench_trial *trial_b) {
  return (bench_pairs){.a = a,
                       .b = b,
                       .ran_a = trial_a->samples.ran,
                       .ran_b = trial_b->samples.ran,
                       .n = (int)min64(trial_a->samples.rounds, trial_b->samples.rounds),
                       .placing = s->placing};
}

bench_pairs bench_setup_pairs(const bench_setup *s, const bench_trial *a, const bench_row *row_a, const bench_trial *b,
                              const bench_row *row_b) {
  return pair(s, row_a->samples_ns, a, row_b->samples_ns, b);
}

bench_pairs bench_setup_control(const bench_setup *s, const bench_row *rows) {
  return pair(s, s->control.samples.time_ns, &s->control, rows[s->controlled - s->trials].samples_ns, s->controlled);
}

static bench_summary ratio_of(const bench_setup *s, const bench_row *rows, const bench_row *a, const bench_row *b) {
  const bench_pairs pairs = bench_setup_pairs(s, &s->trials[a - rows], a, &s->trials[b - rows], b);
  return bench_paired_ratio(&pairs);
}

/* The baseline is naive_c where it was timed, else the slowest. */
static void compare(const bench_setup *s, bench_row *rows) {
  const bench_row *baseline = NULL, *best = NULL;
  const bench_pairs control = bench_setup_control(s, rows);
  const double control_ratio = bench_paired_ratio(&control).median;
  for (bench_row *r = rows; r < rows + s->count; r++) {
    if (r->time.n && (!best || r->time.median < best->time.median)) best = r;
    if (r->time.n && (!baseline || r->time.median > baseline->time.median)) baseline = r;
  }
  for (bench_row *r = rows; r < rows + s->count; r++)
    if (r->time.n && !strcmp(r->kernel, "naive_c")) baseline = r;
  for (bench_row *r = rows; r < rows + s->count; r++) {
    if (!r->time.n) continue;
    memcpy(r->baseline, baseline->kernel, sizeof r->baseline);
    r->ratio = ratio_of(s, rows, baseline, r);
    r->ratio_best = ratio_of(s, rows, best, r).median;
    r->noise = fabs(control_ratio - 1);
  }
}

void bench_setup_rows(bench_setup *s, bench_row *rows) {
  for (int i = 0; i < s->count; i++) rows[i] = bench_setup_row(s, &s->trials[i]);
  if (s->control.samples.rounds) compare(s, rows);
}
