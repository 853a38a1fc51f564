/* SPDX-License-Identifier: MIT */
/* Timing of one case: rotations, rounds, ratios, peak and bandwidth. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cases/work.h"
#include "machine/affinity.h"
#include "timing/bandwidth.h"
#include "timing/peak_rate.h"
#include "timing/run_case_private.h"

enum { MIN_ROUNDS = 11, MAX_ROUNDS = 200, BANDWIDTH_CLASSES = 64 };

static const double ROTATION_BYTES = 2147483648.0; /* most memory for the rotations of a cold cache */

/* Several copies of the tensors, together larger than the last-level cache, so that none is in it when its turn comes. Where
 * only K and V are to be cold, the copies share q; outputs are checked one by one, so each copy keeps its own. */
void bench_stage_rotate(bench_stage *s) {
  if (s->bench->cache == BENCH_WARM) return;
  const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  const double size = s->bytes > 1 ? s->bytes : 1, wanted = 4.0 * (cache > 0 ? (double)cache : 33554432.0);
  const double room = fmin(ROTATION_BYTES, 0.4 * bench_memory_available()) / ((double)s->tensors[0].bytes + 1);
  const int target = (int)fmax(1, fmin(BENCH_MAX_ROTATIONS, fmin(ceil(wanted / size) + 1, room)));
  while (s->rotations < target && bench_tensors_clone(&s->tensors[0], &s->tensors[s->rotations])) {
    if (s->bench->cache == BENCH_COLD_KV) s->tensors[s->rotations].args.q = s->tensors[0].args.q;
    s->rotations++;
  }
  if (s->rotations * size < wanted)
    for (int i = 0; i < s->count; i++)
      bench_warn(s->jobs[i].row, "cache: %d rotations of %.3g MB are less than 4 x the last-level cache", s->rotations,
                 size * 1e-6);
}

bench_entrant bench_stage_entrant(bench_stage *s, const bench_job *j) {
  if (j->layer) bench_layer_reset_shares(j->layer);
  return (bench_entrant){.plan = j->plan,
                         .layer = j->layer,
                         .tensors = s->tensors,
                         .tensor_count = s->layer ? 1 : s->rotations,
                         .workspace = j->workspace,
                         .workspace_bytes = j->workspace_bytes,
                         .verdict = j->row->verdict,
                         .peak = bench_peak_of(j->kernel, bench_dtype_name(s->bench->problem.dtype_kv))};
}

/* Kernels that passed and are quick enough; the slow ones say so. Fills who[] with their jobs. */
static int choose_entrants(bench_stage *s, bench_entrant *entrants, bench_job **who) {
  int count = 0;
  for (int i = 0; i < s->count; i++) {
    bench_job *j = &s->jobs[i];
    if (j->row->verdict.status != BENCH_PASS) continue;
    if (j->call_s * BENCH_FEW_ROUNDS > s->settings->case_budget_s && !s->settings->rounds) {
      bench_warn(j->row, "not timed: one call takes %.3g s, and --case-budget %.3g s has no room for %d", j->call_s,
                 s->settings->case_budget_s, BENCH_FEW_ROUNDS);
      continue;
    }
    who[count] = j;
    entrants[count++] = bench_stage_entrant(s, j);
  }
  return count;
}

/* The A/A control: the quickest kernel once more. */
static int add_control(bench_entrant *entrants, bench_job *const *who, int count) {
  int quickest = 0;
  for (int i = 1; i < count; i++)
    if (who[i]->call_s < who[quickest]->call_s) quickest = i;
  entrants[count] = entrants[quickest];
  entrants[count].control = true;
  return quickest;
}

/* Bytes/s of the read loop over about as much memory as the case reads, measured once per size and thread count. */
static double read_bandwidth(const bench_stage *s) {
  static struct {
    int size_class, threads;
    double rate;
  } known[BANDWIDTH_CLASSES];
  static int known_count;
  const double bytes = s->bytes * (s->layer ? 1 : s->rotations) / s->bench->threads;
  const int size_class = bytes > 16384 ? (int)ceil(log2(bytes)) : 14;
  for (int i = 0; i < known_count; i++)
    if (known[i].size_class == size_class && known[i].threads == s->bench->threads) return known[i].rate;
  bench_note(s, "measuring read bandwidth", "");
  const double rate = bench_read_bandwidth((size_t)1 << size_class, s->bench->threads);
  if (known_count < BANDWIDTH_CLASSES) {
    known[known_count].size_class = size_class;
    known[known_count].threads = s->bench->threads;
    known[known_count++].rate = rate;
  }
  return rate;
}

/* Share of the peak, round by round: a ratio of neighbours. */
static void fill_peak(bench_row *r, const bench_entrant *e, double flops, int threads) {
  double *share = malloc(((size_t)e->rounds + 1) * sizeof *share);
  if (!share || !e->peak || !e->peak_flops || flops <= 0) {
    free(share);
    return;
  }
  for (int i = 0; i < e->rounds; i++) share[i] = flops / (e->time_ns[i] * 1e-9) / (e->peak_flops[i] * threads);
  r->peak_gflops = 1e-9 * threads * bench_median(e->peak_flops, e->rounds);
  r->peak_pct = 100 * bench_median(share, e->rounds);
  if (r->peak_pct > 100) bench_warn(r, "faster than the measured peak: the peak loop was disturbed");
  free(share);
}

/* Shares of the time of a layer's parts. */
static void fill_shares(bench_row *r, const bench_case *bench, const bench_layer_job *layer) {
  if (!bench_layer_has_projections(bench)) return;
  const bench_shares shares = bench_layer_shares(layer);
  r->projections_pct = 100 * shares.projections;
  if (bench_layer_has_attention(bench)) r->attention_pct = 100 * shares.attention;
  r->rest_pct = 100 * shares.rest;
}

static void fill_work(const bench_stage *s, const bench_job *j) {
  bench_row *r = j->row;
  const double seconds = r->time.median * 1e-9;
  if (bench_layer_has_plan(s->bench)) r->plan_ns = j->plan_ns;
  if (bench_layer_has_workspace(s->bench)) r->workspace_bytes = (double)j->workspace_bytes;
  r->flops = s->flops;
  r->bytes = s->bytes;
  r->gflops = s->flops / seconds * 1e-9;
  r->gbs = s->bytes / seconds * 1e-9;
}

void bench_stage_fill(const bench_stage *s, const bench_job *j, bench_entrant *e, bench_stop stop) {
  bench_row *r = j->row;
  if (bench_threads_share_cpus()) bench_warn(r, "threads: %d share fewer CPUs, and may move", s->bench->threads);
  r->time = bench_summarise(e->time_ns, e->rounds);
  r->stop = stop;
  r->iterations = e->iterations;
  fill_work(s, j);
  if (e->layer) fill_shares(r, s->bench, e->layer);
  fill_peak(r, e, s->flops, s->bench->threads);
  r->samples_ns = e->time_ns;
  r->positions = e->position;
  e->time_ns = NULL;
  e->position = NULL;
}

/* naive_c where it was timed, else the slowest. */
static const bench_row *choose_baseline(bench_job *const *who, int count) {
  const bench_row *slowest = who[0]->row;
  for (int i = 0; i < count; i++) {
    if (!strcmp(who[i]->row->kernel, "naive_c")) return who[i]->row;
    if (who[i]->row->time.median > slowest->time.median) slowest = who[i]->row;
  }
  return slowest;
}

static const bench_row *choose_best(bench_job *const *who, int count) {
  const bench_row *best = who[0]->row;
  for (int i = 1; i < count; i++)
    if (who[i]->row->time.median < best->time.median) best = who[i]->row;
  return best;
}

/* Slow kernels take part in the first rounds only; those are what a pair has in common. */
static int fewer(int a, int b) { return a < b ? a : b; }

static void fill_ratios(bench_job *const *who, int count) {
  const bench_row *baseline = choose_baseline(who, count), *best = choose_best(who, count);
  for (int i = 0; i < count; i++) {
    bench_row *r = who[i]->row;
    snprintf(r->baseline, sizeof r->baseline, "%s", baseline->kernel);
    r->ratio = bench_paired_ratio(baseline->samples_ns, r->samples_ns, fewer(baseline->time.n, r->time.n));
    r->ratio_best = bench_paired_ratio(best->samples_ns, r->samples_ns, fewer(best->time.n, r->time.n)).median;
  }
}

static void fill_noise(const bench_entrant *control, const bench_row *same, bench_job *const *who, int count) {
  const int rounds = fewer(control->rounds, same->time.n);
  const double noise = fabs(bench_paired_ratio(control->time_ns, same->samples_ns, rounds).median - 1);
  for (int i = 0; i < count; i++) who[i]->row->noise = noise;
}

static bench_timing_options timing_options(const bench_stage *s) {
  const bench_case_settings *settings = s->settings;
  return (bench_timing_options){.precision = settings->rounds ? 0 : settings->precision,
                                .min_rounds = settings->rounds ? settings->rounds : MIN_ROUNDS,
                                .max_rounds = settings->rounds ? settings->rounds : MAX_ROUNDS,
                                .budget_s = settings->rounds ? 1e9 : settings->case_budget_s,
                                .min_sample_s = BENCH_MIN_SAMPLE_S,
                                .threads = s->bench->threads,
                                .seed = s->bench->seed,
                                .stop = settings->stop};
}

static void fill_rows(const bench_stage *s, bench_entrant *entrants, bench_job *const *who, int count, int same,
                      bench_stop stop) {
  int rounds = 0;
  for (int i = 0; i < count; i++)
    if (entrants[i].rounds > rounds) rounds = entrants[i].rounds;
  for (int i = 0; i < count; i++)
    bench_stage_fill(s, who[i], &entrants[i], entrants[i].rounds < rounds ? BENCH_STOP_BUDGET : stop);
  fill_ratios(who, count);
  fill_noise(&entrants[count], who[same]->row, who, count);
  const double bandwidth = read_bandwidth(s);
  for (int i = 0; i < count; i++) {
    who[i]->row->peak_gbs = 1e-9 * bandwidth;
    who[i]->row->bw_pct = bandwidth > 0 ? who[i]->row->gbs * 1e9 / bandwidth * 100 : NAN;
  }
}

/* All kernels of the case in common rounds. An error of one spoils the times of all. */
void bench_time_jobs(bench_stage *s) {
  bench_entrant entrants[BENCH_MAX_KERNELS + 2];
  bench_job *who[BENCH_MAX_KERNELS + 1];
  bench_stop stop = BENCH_STOP_INTERRUPT;
  const char *error = "";
  bench_stage_rotate(s);
  const int count = choose_entrants(s, entrants, who);
  if (!count) return;
  const int same = add_control(entrants, who, count);
  const bench_timing_options options = timing_options(s);
  bench_note(s, "timing", "");
  if (bench_time(entrants, count + 1, &options, &stop, &error))
    for (int i = 0; i < count; i++) bench_conclude(who[i]->row, BENCH_ERROR, "timing: %s", error);
  else if (entrants[0].rounds > 0)
    fill_rows(s, entrants, who, count, same, stop);
  for (int i = 0; i <= count; i++) bench_entrant_clear(&entrants[i]);
}
