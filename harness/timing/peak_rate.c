/* SPDX-License-Identifier: MIT */
/* Peak loops against the clock. */
#include "timing/peak_rate.h"

#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "base/clock.h"
#include "machine/affinity.h"

bool bench_tier_usable(const char *isa) {
  const char *tiers = attn_cpu_tiers(); /* words with blanks between them */
  const size_t length = strlen(isa);
  for (const char *at = tiers; (at = strstr(at, isa)); at += length)
    if ((at == tiers || at[-1] == ' ') && (at[length] == 0 || at[length] == ' ')) return true;
  return false;
}

const attn_peak_loop *bench_peak_of(const attn_kernel_info *kernel, const char *dtype) {
  if (!kernel->library[0]) return attn_peak_for(kernel->isa, dtype);
  const char *tiers = attn_cpu_tiers(), *last = strrchr(tiers, ' ');
  return attn_peak_for(last ? last + 1 : tiers, kernel->numerics.p_rounding > 0 ? dtype : "f32");
}

static const double WARM_UP_NS = 2e6; /* clocks and vector units of present CPUs need well under a millisecond to wake */

static double time_once(const attn_peak_loop *loop, int64_t iterations) {
  double start = bench_now_ns();
  loop->run(iterations);
  return bench_now_ns() - start;
}

bench_peak_slice bench_peak_prepare(const attn_peak_loop *loop, int threads, double slice_ns) {
  bench_peak_slice slice = {.loop = loop, .threads = threads, .iterations = 1000};
  double start = bench_now_ns();
  while (bench_now_ns() - start < WARM_UP_NS) loop->run(slice.iterations);
  double time = time_once(loop, slice.iterations);
  while (time < slice_ns / 2) {
    slice.iterations *= 2;
    time = time_once(loop, slice.iterations);
  }
  slice.iterations = 1 + (int64_t)((double)slice.iterations * slice_ns / time);
  return slice;
}

double bench_peak_rate(const bench_peak_slice *slice) {
  double rates = 0.0;
  int threads = 0;
#ifdef _OPENMP
#pragma omp parallel num_threads(slice->threads) reduction(+ : rates, threads)
#endif
  {
#ifdef _OPENMP
    bench_thread_settle(omp_get_thread_num(), omp_get_num_threads());
#pragma omp barrier
#endif
    rates += slice->loop->flops * (double)slice->iterations / time_once(slice->loop, slice->iterations) * 1e9;
    threads += 1;
  }
  return rates / threads;
}
