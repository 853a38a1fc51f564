/* SPDX-License-Identifier: MIT */
/* What suits a point, and which neighbours one choice suits. */
#include <math.h>
#include <string.h>

#include "tuning/tuning.h"

static const double SUITS = 1.03;      /* times the best */
static const double CLEARLY = 1.01;    /* quicker: among those that suit */
static const double SURELY_NOT = 1.25; /* where too few rounds give no interval */
enum { ROUNDS_OF_INTERVAL = 6 };

int bench_tune_kernel(const char *kernel) {
  for (int i = 0; i < TUNE_AUTO && attn_kernel_get(i); i++)
    if (strcmp(attn_kernel_get(i)->name, kernel) == 0) return i;
  return -1;
}

/* The built-in choice stays unless it is slower beyond doubt. */
static bool suits_as_default(const attn_tune_entry *e) {
  if (e->rounds < ROUNDS_OF_INTERVAL) return e->ratio <= SURELY_NOT;
  return e->ratio_low <= SUITS;
}

static void read_entry(const attn_tune_entry *e, bool automatic, bench_tune_point *p) {
  const int kernel = bench_tune_kernel(e->kernel);
  if (kernel < 0) return;
  p->ratio[kernel] = e->ratio;
  if (e->ratio <= SUITS) p->fine |= 1u << kernel;
  if (!automatic) return;
  p->automatic = kernel;
  p->uncertain = e->rounds < ROUNDS_OF_INTERVAL;
  p->ratio[TUNE_AUTO] = e->ratio;
  if (suits_as_default(e)) p->fine |= 1u << TUNE_AUTO;
}

bool bench_tune_point_read(const attn_tune_report *report, int64_t seq_q, bench_tune_point *point) {
  *point = (bench_tune_point){.seq_q = seq_q};
  for (int i = 0; i < report->timed; i++)
    read_entry(&report->entry[i], strcmp(report->entry[i].kernel, report->automatic) == 0, point);
  return point->ratio[TUNE_AUTO] > 0 && point->fine;
}

bool bench_tune_suits(const bench_tune_point *p, int kernel) { return p->fine >> kernel & 1; }

void bench_tune_point_join(bench_tune_point *p, const bench_tune_point *other) {
  double best = INFINITY;
  p->fine = other->uncertain ? 1u << TUNE_AUTO : (p->fine | other->fine) & 1u << TUNE_AUTO;
  for (int k = 0; k < TUNE_KERNELS; k++) {
    p->ratio[k] = sqrt(p->ratio[k] * other->ratio[k]);
    if (p->ratio[k] > 0) best = fmin(best, p->ratio[k]);
  }
  for (int k = 0; k < TUNE_KERNELS; k++) {
    p->ratio[k] /= best;
    if (k != TUNE_AUTO && p->ratio[k] > 0 && p->ratio[k] <= SUITS) p->fine |= 1u << k;
  }
}

/* ---- Segments ---- */

static double loss_of(const bench_tune_point *const *points, int first, int last, int kernel) {
  double loss = 0;
  for (int i = first; i <= last; i++) loss += log(points[i]->ratio[kernel]);
  return loss;
}

/* The built-in choice if it is among those that suit, or else the quickest. One that comes later in the registry, and so
 * depends more on the caches, has to be clearly quicker. */
static int choose(const bench_tune_point *const *points, int first, int last, uint32_t fine) {
  const double clearly = log(CLEARLY) * (last - first + 1);
  int best = -1;
  if (fine >> TUNE_AUTO & 1) return TUNE_AUTO;
  for (int k = 0; k < TUNE_AUTO; k++)
    if ((fine >> k & 1) && (best < 0 || loss_of(points, first, last, k) < loss_of(points, first, last, best) - clearly))
      best = k;
  return best;
}

/* The last point with the same seq_q as the first; *fine: what suits all of them. */
static int end_of_tie(const bench_tune_point *const *points, int count, int first, uint32_t *fine) {
  int last = first;
  *fine = points[first]->fine;
  while (last + 1 < count && points[last + 1]->seq_q == points[first]->seq_q) *fine &= points[++last]->fine;
  return last;
}

int bench_tune_cut(const bench_tune_point *const *points, int count, bench_tune_segment *segments) {
  int cut = 0;
  uint32_t fine = 0; /* what suits all of the present segment */
  for (int i = 0; i < count;) {
    uint32_t here;
    const int last = end_of_tie(points, count, i, &here);
    if (!here) return count + 1;
    if (!(fine & here)) segments[cut++] = (bench_tune_segment){.first = i}, fine = UINT32_MAX;
    fine &= here;
    segments[cut - 1].last = last;
    segments[cut - 1].kernel = choose(points, segments[cut - 1].first, last, fine);
    i = last + 1;
  }
  return cut;
}
