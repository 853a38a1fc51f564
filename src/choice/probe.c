/* SPDX-License-Identifier: MIT */
#include "src/choice/probe.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Distances ---- */

static const double UNKNOWN = 0.5; /* counts as the error of a kernel without costs */

/* The logarithm of how much longer it took than the costs say; NaN if they say nothing. */
static double error_of(const attn_tuning *tuning, const attn_probe_time *t) {
  const attn_kernel_costs *c = attn_tuning_costs_of(tuning, t->kernel, &t->problem);
  const double expected = c ? attn_expected_ns(t->kernel, c->ns, &t->problem) : 0;
  return expected > 0 ? log(t->ns / expected) : NAN;
}

static bool was_timed(const attn_probe_time *t) { return !isinf(t->ns) && t->ns > 0; }

double attn_probe_distance(const attn_tuning *tuning, const attn_probe_time *times, int count) {
  double sum = 0, squares = 0, unknown = 0, known = 0;
  for (int i = 0; i < count; i++) {
    if (!was_timed(&times[i])) continue;
    const double error = error_of(tuning, &times[i]);
    if (isnan(error))
      unknown++;
    else
      sum += error, squares += error * error, known++;
  }
  if (known == 0) return unknown > 0 ? UNKNOWN : 0;
  return sqrt((squares - sum * sum / known + unknown * UNKNOWN * UNKNOWN) / (known + unknown));
}

/* ---- Tiers ---- */
/* A class may say how kernels of one tier compare, but not how one tier does with another: units of 512 bits are as wide as
 * they look on some CPUs, and half as wide on others. Then its costs hold with a factor for each tier. It is
 * rounded to a power of the root of 2, so that most processes find the same one: where other programs use the core, the
 * logarithm between two tiers has a standard deviation of 0.08 (132 probes of a Zen 3).
 *
 * Tested on the costs of six classes, each chosen for by the nearest other one, with that noise: the choice takes 1.9 to
 * 2.1 % longer than the best kernel with steps of 0.05 to 0.35, and 2.2 % without factors. */

enum { MOST_ERRORS = 512 };

static const double STEP = 0x1.62e42fefa39efp-2; /* the logarithm of the root of 2 */
static const double EXPLAINED = 0.5; /* share of the squared distance that factors must take away to be believed */

static int compare_numbers(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The median error of a tier's lines that were measured; NaN without any. */
static double error_of_tier(const attn_tuning *tuning, const attn_probe_time *times, int count, const char *isa) {
  double errors[MOST_ERRORS];
  int known = 0;
  for (int i = 0; i < count && known < MOST_ERRORS; i++) {
    const attn_probe_time *t = &times[i];
    const attn_kernel_costs *c = attn_tuning_costs_of(tuning, t->kernel, &t->problem);
    const double error = was_timed(t) ? error_of(tuning, t) : NAN;
    if (!isnan(error) && c->error < UNKNOWN && strcmp(t->kernel->info.isa, isa) == 0) errors[known++] = error;
  }
  qsort(errors, (size_t)known, sizeof *errors, compare_numbers);
  return known ? (errors[(known - 1) / 2] + errors[known / 2]) / 2 : NAN;
}

static double factor_of_tier(const attn_tuning *costs, const attn_probe_time *times, int count, const char *isa,
                             const char *highest) {
  const double error = error_of_tier(costs, times, count, isa) - error_of_tier(costs, times, count, highest);
  return isnan(error) ? 1 : exp(STEP * round(error / STEP));
}

bool attn_probe_adjust(attn_tuning *costs, const attn_probe_time *times, int count, const char *highest) {
  const double before = attn_probe_distance(costs, times, count);
  double factor[ATTN_CLASS_LINES];
  assert(costs->cost_count <= ATTN_CLASS_LINES);
  for (int i = 0; i < costs->cost_count; i++)
    factor[i] = factor_of_tier(costs, times, count, costs->costs[i].kernel->info.isa, highest);
  for (int i = 0; i < costs->cost_count; i++)
    for (int n = 0; n < ATTN_MAX_TERMS; n++) costs->costs[i].ns[n] *= factor[i];
  const double after = attn_probe_distance(costs, times, count);
  return after * after <= (1 - EXPLAINED) * before * before && after < before;
}
