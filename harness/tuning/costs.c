/* SPDX-License-Identifier: MIT */
/* Fits the nanoseconds of each term of a kernel's time on one thread, by least squares of relative errors, and the cost of
 * further threads. From both the library knows which kernel is quickest, and how many threads pay. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/registry/registry.h"
#include "timing/stats.h"
#include "tuning/tuning.h"

/* A kernel that is far behind the quickest weighs less: its time decides nothing. */
void bench_tune_cost_add(bench_tune_cost *c, const attn_kernel_info *info, const bench_tune_shape *shape, double time_ns,
                         double best_ns, double trust) {
  const attn_kernel *kernel = attn_registry_find(info->name);
  const double weight = trust * best_ns * best_ns / (time_ns * time_ns);
  double terms[ATTN_MAX_TERMS];
  attn_problem problem;
  bench_tune_problem(shape, &problem);
  kernel->terms.of(&problem, terms);
  c->terms = kernel->terms.count;
  for (int i = 0; i < c->terms; i++) terms[i] /= time_ns;
  for (int i = 0; i < c->terms; i++) {
    if (terms[i] == 0) continue; /* most are, for any one problem */
    for (int j = 0; j < c->terms; j++) c->sums[i][j] += weight * terms[i] * terms[j];
    c->right[i] += weight * terms[i];
  }
  c->weight += weight;
  c->count++;
}

static double mean_square(const bench_tune_cost *c) {
  double error = c->weight;
  for (int i = 0; i < c->terms; i++) {
    error -= 2 * c->right[i] * c->ns[i];
    for (int j = 0; j < c->terms; j++) error += c->ns[i] * c->sums[i][j] * c->ns[j];
  }
  return error / c->weight;
}

enum { SWEEPS = 20000 /* at most */, ROUNDS = 10 /* rounds of costs and slowness in turn */ };
static const double STILL = 1e-6; /* the part of itself by which an unknown moves that has been found */

/* Least squares of which no unknown is negative, each in turn by what the others leave (coordinate descent: Franc, Hlavac
 * and Navara 2005, https://doi.org/10.1007/11556121_50). A term that no problem had stays 0. */
static bool sweep(bench_tune_cost *c) {
  bool moved = false;
  for (int i = 0; i < c->terms; i++) {
    const double before = c->ns[i];
    double left = c->right[i];
    for (int j = 0; j < c->terms; j++) left -= c->sums[i][j] * c->ns[j];
    if (c->sums[i][i] > 0) c->ns[i] = fmax(before + left / c->sums[i][i], 0);
    moved |= fabs(c->ns[i] - before) > STILL * c->ns[i];
  }
  return moved;
}

static void descend(bench_tune_cost *c, int sweeps) {
  for (int i = 0; i < sweeps && c->count && sweep(c); i++) continue;
}

void bench_tune_cost_solve(bench_tune_cost *c) {
  descend(c, SWEEPS);
  c->error = c->count ? sqrt(fmax(mean_square(c), 0)) : 0;
}

/* ---- Slow moments ---- */

/* A moment counts as usual (slowness 1) unless its times say otherwise: the assumption weighs a twentieth of one time. It
 * decides where a problem's kernels say nothing. */
static const double USUAL = 0.05;

/* The factor by which the times of a look exceed what is expected, by least squares of relative errors. */
static double slowness_of(const bench_tune_result *result, const bench_tune_look *look) {
  double expected_weight = USUAL, timed_weight = USUAL;
  attn_problem problem;
  bench_tune_problem(&look->shape, &problem);
  for (int i = 0; i < look->count && look->count > 1; i++) {
    const bench_tune_cost *c = &result->costs[look->kernel[i]][bench_tune_type(&look->shape)];
    const double expected = attn_expected_ns(attn_registry_get(look->kernel[i]), c->ns, &problem);
    const double weight = look->time_ns[0] / look->time_ns[i], ratio = weight * expected / look->time_ns[i];
    expected_weight += ratio * ratio;
    timed_weight += ratio * weight;
  }
  return timed_weight / expected_weight;
}

/* Slowness is relative: the mean over the looks of a type is 1, so that costs are those of a usual moment. */
static void find_slowness(bench_tune_result *result) {
  double sum[TUNE_TYPES] = {0};
  for (int i = 0; i < result->looks; i++) {
    bench_tune_look *look = &result->look[i];
    look->slowness = slowness_of(result, look);
    sum[bench_tune_type(&look->shape)] += look->slowness;
  }
  for (int i = 0; i < result->looks; i++) {
    const attn_dtype dtype = bench_tune_type(&result->look[i].shape);
    result->look[i].slowness *= result->points[dtype] / sum[dtype];
  }
}

/* Another program on the core does not slow all kernels alike: on a Zen 4 flash_avx2 keeps 0.78 of its rate and
 * flash_avx512 0.95. Where most looks are undisturbed, the others count for little; where all are disturbed, they count in
 * full. */
static const double TRUST_IN_OTHERS = 0.05;

/* The equations anew, from what the times were in a usual moment. */
static void gather(bench_tune_result *result) {
  for (int k = 0; k < TUNE_KERNELS; k++)
    for (int t = 0; t < TUNE_TYPES; t++) {
      bench_tune_cost fresh = {.leads = result->costs[k][t].leads, .near = result->costs[k][t].near};
      memcpy(fresh.ns, result->costs[k][t].ns, sizeof fresh.ns);
      result->costs[k][t] = fresh;
    }
  for (int n = 0; n < result->looks; n++) {
    const bench_tune_look *look = &result->look[n];
    for (int i = 0; i < look->count; i++)
      bench_tune_cost_add(&result->costs[look->kernel[i]][bench_tune_type(&look->shape)], attn_kernel_get(look->kernel[i]),
                          &look->shape, look->time_ns[i] / look->slowness, look->time_ns[0] / look->slowness,
                          look->undisturbed ? 1 : TRUST_IN_OTHERS);
  }
}

static void solve(bench_tune_result *result, bool last) {
  for (int k = 0; k < TUNE_KERNELS; k++)
    for (int t = 0; t < TUNE_TYPES; t++)
      last ? bench_tune_cost_solve(&result->costs[k][t]) : descend(&result->costs[k][t], SWEEPS / ROUNDS);
}

/* Other programs on the same core can make a moment twice as slow, for all kernels alike. What kernels differ by says which
 * is quicker, so each look gets a slowness of its own: costs and slowness in turn by what the others leave. */
void bench_tune_fit(bench_tune_result *result) {
  for (int i = 0; i < result->looks; i++) result->look[i].slowness = 1;
  for (int round = 0; round < ROUNDS; round++) {
    gather(result);
    solve(result, round == ROUNDS - 1);
    find_slowness(result);
  }
}

/* ---- Threads ---- */

static const attn_tune_entry *entry_with(const attn_tune_report *report, int threads) {
  for (int i = 0; i < report->timed; i++)
    if (report->entry[i].threads == threads && strcmp(report->entry[i].kernel, report->automatic) == 0)
      return &report->entry[i];
  return NULL;
}

/* Nanoseconds that n threads take beyond an nth of the time of one; 0 if they cannot be known. */
static double overhead_of(const attn_tune_report *report) {
  int most = 1;
  for (int i = 0; i < report->timed; i++) most = report->entry[i].threads > most ? report->entry[i].threads : most;
  const attn_tune_entry *one = entry_with(report, 1), *all = entry_with(report, most);
  return most > 1 && one && all ? fmax(all->time_ns - one->time_ns / most, 0) : 0;
}

enum { SHAPES = 8 };

void bench_tune_threads(const bench_tune_source *source, double seconds, bench_tune_result *result) {
  static const int64_t sizes[SHAPES][2] = {{1, 64}, {1, 128}, {1, 256}, {1, 512}, {16, 16}, {24, 24}, {32, 32}, {48, 48}};
  double overheads[SHAPES];
  int count = 0;
  for (int i = 0; i < SHAPES; i++) {
    const bench_tune_shape shape = {
        .dim = 64, .group = 1, .heads_kv = 8, .seq_q = sizes[i][0], .seq_k = sizes[i][1], .threads = true};
    attn_tune_report report;
    if (!source->measure(source->context, &shape, TUNE_ALL, seconds / SHAPES, &report)) continue;
    overheads[count] = overhead_of(&report);
    count += overheads[count] > 0;
  }
  if (count) result->least_ns = bench_median(overheads, count);
}
