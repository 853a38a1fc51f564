/* SPDX-License-Identifier: MIT */
/* Costs of a class on a CPU whose tiers compare otherwise: the times of calls are made up from the class's own costs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/choice/probe.h"
#include "src/registry/cpu.h"
#include "tests/support/support.h"

static attn_kernel_costs lines[ATTN_CLASS_LINES];
static attn_tuning costs;
static attn_probe_time times[1000];
static int count;

static void read_class(const char *name) {
  static char text[1 << 17];
  char path[400];
  snprintf(path, sizeof path, TEST_SOURCE_DIR "/kernels/machines/%s.tuning", name);
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  text[fread(text, 1, sizeof text - 1, file)] = 0;
  (void)fclose(file);
  test_ok(attn_tuning_read_class(name, text, lines, ATTN_CLASS_LINES, &costs));
}

static bool is_of(const attn_kernel *kernel, const char *isa) { return strcmp(kernel->info.isa, isa) == 0; }

/* Kernels of other tiers count their terms with instructions that this CPU may lack. */
static bool counts_here(const attn_kernel *kernel) { return !attn_tier_unusable(attn_tier_find(kernel->info.isa), NULL); }

/* Calls of all kernels with costs that count here, times as long as the class says: `factor` for the tier, and up to `noise`
 * for each call, as logarithms. */
static void make_times(const char *isa, double factor, double noise) {
  static const int64_t queries[] = {1, 6, 48}, keys[] = {128, 384};
  count = 0;
  srand(5);
  for (int i = 0; i < costs.cost_count; i++)
    for (int n = 0; n < 6 && counts_here(costs.costs[i].kernel); n++) {
      attn_problem p;
      attn_problem_init(&p, 1, 1, 1, queries[n % 3], keys[n / 3], 64, 64);
      p.dtype_q = p.dtype_kv = p.dtype_o = costs.costs[i].dtype;
      const double error = (is_of(costs.costs[i].kernel, isa) ? factor : 0) + noise * (2.0 * rand() / RAND_MAX - 1);
      times[count++] = (attn_probe_time){costs.costs[i].kernel, p,
                                         attn_expected_ns(costs.costs[i].kernel, costs.costs[i].ns, &p) * exp(error)};
    }
}

/* The change of a tier's costs, as a logarithm; all its lines change by the same factor. */
static double change_of(const char *isa, const attn_kernel_costs *before) {
  double change = NAN;
  for (int i = 0; i < costs.cost_count; i++)
    for (int n = 0; n < ATTN_MAX_TERMS; n++) {
      if (!is_of(before[i].kernel, isa) || before[i].ns[n] == 0) continue;
      const double now = log(costs.costs[i].ns[n] / before[i].ns[n]);
      assert_true(isnan(change) || fabs(now - change) < 1e-9);
      change = now;
    }
  return change;
}

static bool has_tier(const char *isa) {
  for (int i = 0; i < costs.cost_count; i++)
    if (is_of(costs.costs[i].kernel, isa) && counts_here(costs.costs[i].kernel)) return true;
  return false;
}

/* The class, the highest tier of it that counts here, and the next one; false if there is one tier alone. */
static bool read_tiers(const char **high, const char **low) {
  read_class("amd-zen4");
  *high = has_tier("avx512") ? "avx512" : "avx2";
  *low = has_tier("avx512") ? "avx2" : "portable";
  return has_tier(*high) && has_tier(*low);
}

TEST(a_tier_that_compares_otherwise_gets_a_factor) {
  static attn_kernel_costs before[ATTN_CLASS_LINES];
  const double step = log(2) / 2;
  const double factors[] = {step, -2 * step, 0.9 * step, 1.2 * step}, expected[] = {step, -2 * step, step, step};
  const char *high, *low;
  for (size_t i = 0; i < COUNT(factors); i++) {
    if (!read_tiers(&high, &low)) return;
    memcpy(before, lines, sizeof before);
    make_times(low, factors[i], 0.05);
    const double distance = attn_probe_distance(&costs, times, count);
    assert_true(attn_probe_adjust(&costs, times, count, high));
    assert_true(attn_probe_distance(&costs, times, count) < distance / 2);
    assert_true(fabs(change_of(low, before) - expected[i]) < 1e-9);
    assert_true(change_of(high, before) == 0);
    read_class("amd-zen4"); /* if it is the highest tier, all others get it */
    make_times(high, -factors[i], 0.05);
    assert_true(attn_probe_adjust(&costs, times, count, high));
    assert_true(fabs(change_of(low, before) - expected[i]) < 1e-9 && change_of(high, before) == 0);
  }
}

/* A common factor is a clock, and errors of single calls are no tier's. */
TEST(a_class_that_fits_keeps_its_costs) {
  static const struct {
    double factor, noise; /* the lower tier has the factor, each call the noise */
  } cases[] = {{0, 0}, {0, 0.1}, {0, 0.5}, {0.08, 0.2}, {0.2, 0.5}};
  const char *high, *low;
  for (size_t i = 0; i < COUNT(cases); i++) {
    if (!read_tiers(&high, &low)) return;
    make_times(low, cases[i].factor, cases[i].noise);
    for (int n = 0; n < count; n++) times[n].ns *= 3;
    assert_false(attn_probe_adjust(&costs, times, count, high));
  }
}

TEST(what_was_not_timed_says_nothing) {
  const char *high, *low;
  (void)read_tiers(&high, &low);
  make_times(low, 0, 0);
  for (int n = 0; n < count; n++) times[n].ns = INFINITY;
  assert_true(attn_probe_distance(&costs, times, count) == 0);
  assert_false(attn_probe_adjust(&costs, times, count, high));
}
