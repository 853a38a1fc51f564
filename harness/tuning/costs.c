/* SPDX-License-Identifier: MIT */
/* What a kernel takes on one thread, by least squares of relative errors, and what further threads cost. From both the
 * library knows how many threads pay. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "timing/stats.h"
#include "tuning/tuning.h"

void bench_tune_cost_add(bench_tune_cost *c, const bench_tune_shape *s, double time_ns) {
  const double dims = 2 * (double)s->dim, heads = (double)s->heads_kv, keys = (double)s->seq_k;
  const double pairs = heads * (double)(s->group * s->seq_q) * keys * (s->causal && s->seq_q > 1 ? 0.5 : 1);
  const double work[3] = {pairs * dims / time_ns, keys * dims * heads / time_ns, heads / time_ns};
  for (int i = 0; i < 3; i++) {
    for (int j = 0; j < 3; j++) c->sums[i][j] += work[i] * work[j];
    c->right[i] += work[i];
  }
  c->count++;
}

/* Solves the equations of the unknowns in `used`, by elimination; the others are 0. False if they have no solution >= 0. */
static bool solve_some(const bench_tune_cost *c, unsigned used, double ns[3]) {
  double a[3][4];
  for (int i = 0; i < 3; i++)
    for (int j = 0; j < 4; j++) a[i][j] = !(used >> i & 1) ? i == j : j == 3 ? c->right[i] : c->sums[i][j];
  for (int i = 0; i < 3; i++) {
    if (fabs(a[i][i]) < 1e-12 * c->sums[i][i] || a[i][i] == 0) return false;
    for (int r = 0; r < 3; r++) {
      const double factor = r == i ? 0 : a[r][i] / a[i][i];
      for (int j = 0; j < 4; j++) a[r][j] -= factor * a[i][j];
    }
  }
  for (int i = 0; i < 3; i++) ns[i] = a[i][3] / a[i][i];
  return ns[0] >= 0 && ns[1] >= 0 && ns[2] >= 0;
}

static double error_of(const bench_tune_cost *c, const double ns[3]) {
  double error = c->count;
  for (int i = 0; i < 3; i++) {
    error -= 2 * c->right[i] * ns[i];
    for (int j = 0; j < 3; j++) error += ns[i] * c->sums[i][j] * ns[j];
  }
  return error;
}

/* The best of all subsets of the three terms that none of is negative. */
void bench_tune_cost_solve(bench_tune_cost *c) {
  double least = INFINITY, ns[3];
  for (unsigned used = 1; used < 8 && c->count; used++)
    if (solve_some(c, used, ns) && error_of(c, ns) < least) {
      least = error_of(c, ns);
      memcpy(c->ns, ns, sizeof ns);
    }
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
