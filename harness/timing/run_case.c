/* SPDX-License-Identifier: MIT */
#include "timing/setup.h"

#include <math.h>

#include "cases/work.h"
#include "machine/affinity.h"

enum { TYPICAL_ROUNDS = 45 };

bool bench_run_case(const bench_case *bench, const attn_kernel_info *const *kernels, int count,
                    const bench_case_settings *settings, bench_row *rows) {
  bench_setup *s = bench_setup_open(bench, kernels, count, settings);
  for (int i = 0; i < count && !s; i++) {
    rows[i] = bench_row_create(bench, kernels[i]);
    rows[i].verdict = (bench_verdict){.status = BENCH_ERROR, .reason = "out of memory"};
  }
  if (!s) return true;
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

double bench_case_guess(const bench_case *bench, const attn_kernel_info *const *kernels, int count,
                        const bench_case_settings *settings) {
  const double factor = layer_factor(bench);
  double calls_s = 0, samples_s = 0; /* of one call of each kernel that runs, and of one sample of each that is timed */
  for (int i = 0; i < count; i++) {
    if (bench_refusal(bench, kernels, count, i)) continue;
    const double call_s = factor * bench_work_guess(&bench->problem, kernels[i], bench->threads);
    const bool is_timed = call_s * BENCH_FEW_ROUNDS < settings->case_budget_s;
    calls_s += call_s;
    samples_s += is_timed ? fmax(call_s, BENCH_MIN_SAMPLE_S) + BENCH_MIN_SAMPLE_S / 2 : 0;
  }
  if (calls_s <= 0) return 1e-4;
  const double check_s = 1e-3 + 3 * calls_s + fmin(bench_multiply_adds(&bench->problem), 1e8) * 6e-9;
  if (!settings->timed) return check_s;
  if (settings->rounds) return check_s + settings->rounds * samples_s;
  return check_s + fmin(settings->case_budget_s, TYPICAL_ROUNDS * samples_s);
}
