/* SPDX-License-Identifier: MIT */
#include "timing/run_case.h"

#include <math.h>
#include <stdio.h>

#include "cases/work.h"
#include "machine/affinity.h"
#include "timing/setup_private.h"

enum { TYPICAL_ROUNDS = 45 };

/* Rows of a case for which there was no memory at all. */
static void fill_without_memory(const bench_case *bench, const attn_kernel_info *const *kernels, int count,
                                bench_row *rows) {
  for (int i = 0; i < count; i++) {
    rows[i] = bench_row_create(bench, kernels[i]);
    rows[i].verdict = (bench_verdict){.status = BENCH_ERROR, .reason = "out of memory"};
  }
}

bool bench_run_case(const bench_case *bench, const attn_kernel_info *const *kernels, int count,
                    const bench_case_settings *settings, bench_row *rows) {
  bench_setup *s = bench_setup_open(bench, kernels, count, settings);
  if (!s) {
    fill_without_memory(bench, kernels, count, rows);
    return true;
  }
  const bool held = settings->timed && bench_threads_hold(bench->threads), complete = bench_setup_check(s);
  if (complete && settings->timed) bench_setup_time(s);
  bench_setup_rows(s, rows);
  bench_setup_close(s);
  if (held) bench_threads_release();
  return complete;
}

/* ---- Guesses --------------------------------------------------------------------------------------------------------- */

/* How much more a layer has to do than its attention. */
static double layer_factor(const bench_case *bench) {
  const attn_args none = {0};
  if (bench->invalid[0] || !bench_layer_is(bench)) return 1;
  const double attention = bench_work_flops(&bench->problem, bench_work_pairs(&bench->problem, &none));
  const double flops = bench_layer_flops(bench);
  return attention > 0 && flops > 0 ? flops / attention : 1;
}

/* Seconds of one call of each kernel that runs, and of one sample of each that is timed. */
typedef struct guess {
  double calls_s, samples_s;
} guess;

static guess guess_of(const bench_case *bench, const attn_kernel_info *const *kernels, int count, double budget_s) {
  const double factor = layer_factor(bench);
  guess sum = {0, 0};
  for (int i = 0; i < count; i++) {
    if (bench_refusal(bench, kernels, count, i)) continue;
    const double call_s = factor * bench_work_guess(&bench->problem, kernels[i], bench->threads);
    sum.calls_s += call_s;
    if (call_s * BENCH_FEW_ROUNDS < budget_s) sum.samples_s += fmax(call_s, BENCH_MIN_SAMPLE_S) + BENCH_MIN_SAMPLE_S / 2;
  }
  return sum;
}

double bench_case_guess(const bench_case *bench, const attn_kernel_info *const *kernels, int count,
                        const bench_case_settings *settings) {
  const guess one = guess_of(bench, kernels, count, settings->case_budget_s);
  if (one.calls_s <= 0) return 1e-4;
  const double check_s = 1e-3 + 3 * one.calls_s + fmin(bench_multiply_adds(&bench->problem), 1e8) * 6e-9;
  if (!settings->timed) return check_s;
  if (settings->rounds) return check_s + settings->rounds * one.samples_s;
  return check_s + fmin(settings->case_budget_s, TYPICAL_ROUNDS * one.samples_s);
}
