/* SPDX-License-Identifier: MIT */
// attnbench-gbench: the cases of attnbench in Google Benchmark's own timing loop, for users of its tools.
//
// A benchmark's name is the case's name in results.json. So none asks for UseRealTime(), which would append to the name. The
// number of iterations then follows from the CPU time of this thread, which works in every call. The reported real time and
// the rates are the wall clock's.
#include <benchmark/benchmark.h>

#include <cstring>

#include "gbench/suite.h"

static void run_trial(benchmark::State &state, gbench_suite *suite, int index) {
  const char *error = gbench_open(suite, index);
  if (error != nullptr) {
    state.SkipWithError(error);
    return;
  }
  gbench_begin(suite);
  for (auto unused : state) {
    (void)unused;
    if (!gbench_call(suite)) {
      state.SkipWithError("ERROR: a timed run failed");
      break;
    }
  }
  gbench_rates rates;
  error = gbench_end(suite, &rates);
  if (error != nullptr) {
    state.SkipWithError(error);
    return;
  }
  if (rates.gflops > 0) state.counters["gflops"] = rates.gflops;
  state.counters["gbs"] = rates.gbs;
  state.counters["max_err_ratio"] = rates.max_err_ratio;
  if (rates.peak_gflops <= 0) return;
  state.counters["peak_gflops"] = rates.peak_gflops;
  state.counters["peak_pct"] = rates.peak_pct;
}

static bool asks_for_help(int argc, char **argv) {
  for (int i = 1; i < argc; i++)
    if (std::strcmp(argv[i], "--help") == 0) return true;
  return false;
}

int main(int argc, char **argv) {
  int exit_code = 0;
  if (asks_for_help(argc, argv)) {
    (void)gbench_create(argc, argv, &exit_code);  // prints it
    return exit_code;
  }
  benchmark::Initialize(&argc, argv);  // takes its own options out
  gbench_suite *suite = gbench_create(argc, argv, &exit_code);
  if (suite == nullptr) return exit_code;
  for (int i = 0; i < gbench_count(suite); i++)
    benchmark::RegisterBenchmark(gbench_name(suite, i), run_trial, suite, i);
  const auto matched = benchmark::RunSpecifiedBenchmarks();
  exit_code = matched == 0 ? 3 : gbench_exit_code(suite);
  benchmark::Shutdown();
  gbench_destroy(suite);
  return exit_code;
}
