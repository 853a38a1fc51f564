/* SPDX-License-Identifier: MIT */
/* What the terms of a kernel's time take on one thread, by least squares of relative errors, and what further threads cost.
 * From both the library knows which kernel is quickest, and how many threads pay. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "timing/stats.h"
#include "tuning/tuning.h"

/* A kernel that is far behind the quickest weighs less: its time decides nothing. */
void bench_tune_cost_add(bench_tune_cost *c, const attn_kernel_info *kernel, const bench_tune_shape *shape, double time_ns,
                         double best_ns) {
  const double weight = best_ns * best_ns / (time_ns * time_ns);
  double terms[ATTN_COST_TERMS];
  attn_problem problem;
  bench_tune_problem(shape, &problem);
  attn_cost_terms(kernel, &problem, terms);
  for (int i = 0; i < ATTN_COST_TERMS; i++) {
    for (int j = 0; j < ATTN_COST_TERMS; j++) c->sums[i][j] += weight * (terms[i] / time_ns) * (terms[j] / time_ns);
    c->right[i] += weight * terms[i] / time_ns;
  }
  c->weight += weight;
  c->count++;
}

static double mean_square(const bench_tune_cost *c) {
  double error = c->weight;
  for (int i = 0; i < ATTN_COST_TERMS; i++) {
    error -= 2 * c->right[i] * c->ns[i];
    for (int j = 0; j < ATTN_COST_TERMS; j++) error += c->ns[i] * c->sums[i][j] * c->ns[j];
  }
  return error / c->weight;
}

/* Least squares of which no unknown is negative, each in turn by what the others leave (coordinate descent: Franc, Hlavac
 * and Navara 2005, https://doi.org/10.1007/11556121_50). A term that no problem had stays 0. */
void bench_tune_cost_solve(bench_tune_cost *c) {
  enum { SWEEPS = 20000 };
  for (int sweep = 0; sweep < SWEEPS && c->count; sweep++)
    for (int i = 0; i < ATTN_COST_TERMS; i++) {
      double left = c->right[i];
      for (int j = 0; j < ATTN_COST_TERMS; j++) left -= c->sums[i][j] * c->ns[j];
      if (c->sums[i][i] > 0) c->ns[i] = fmax(c->ns[i] + left / c->sums[i][i], 0);
    }
  c->error = c->count ? sqrt(fmax(mean_square(c), 0)) : 0;
}

/* ---- Threads ---- */

static const attn_tune_entry *entry_with(const attn_tune_report *report, int threads) {
  for (int i = 0; i < report->timed; i++)
    if (report->entry[i].threads == threads && strcmp(report->entry[i].kernel, report->automatic) == 0)
      return &report->entry[i];
  return NULL;
}

/* What n threads take beyond an nth of the time of one; 0 if it cannot be known. */
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
    if (!source->measure(source->context, &shape, seconds / SHAPES, &report)) continue;
    overheads[count] = overhead_of(&report);
    count += overheads[count] > 0;
  }
  if (count) result->least_ns = bench_median(overheads, count);
}
