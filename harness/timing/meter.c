/* SPDX-License-Identifier: MIT */
#include "timing/meter.h"

#include "base/clock.h"
#include "timing/bandwidth.h"
#include "timing/read_rate.h"

static double read_rate(const bench_trial *t, int64_t turn, int threads) {
  const bench_read_span span = {t->tensors, t->tensor_count, turn, t->samples.iterations};
  return bench_read_rate(bench_widest_read(), span, threads);
}

const bench_meter bench_machine_meter = {
    .now_ns = bench_now_ns,
    .resolution_ns = bench_clock_resolution_ns,
    .call = bench_trial_call,
    .poison = bench_trial_poison,
    .output_hash = bench_trial_output_hash,
    .peak_prepare = bench_peak_prepare,
    .peak_rate = bench_peak_rate,
    .read_rate = read_rate,
    .bandwidth = bench_read_bandwidth,
};
