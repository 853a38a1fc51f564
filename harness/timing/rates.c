/* SPDX-License-Identifier: MIT */
#include "timing/rates.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "attn/extend.h"
#include "base/cli.h"
#include "base/clock.h"
#include "machine/affinity.h"
#include "timing/reading.h"

/* The last loop that is usable here, and reads if it is to. The table goes from the lowest tier to the highest. */
static const attn_peak_loop *last_loop(bool reads) {
  const attn_peak_loop *loop, *last = NULL;
  for (int i = 0; (loop = attn_peak_get(i)); i++)
    if ((loop->read || !reads) && attn_peak_usable(loop->isa)) last = loop;
  return last;
}

const char *bench_highest_tier(void) { return last_loop(false) ? last_loop(false)->isa : "c"; }
bench_read_loop bench_widest_read(void) { return last_loop(true) ? last_loop(true)->read : NULL; }

/* ---- Multiply-adds ------------------------------------------------------------------------------------------------- */

const attn_peak_loop *bench_peak_of(const attn_kernel_info *kernel, const char *dtype) {
  if (!kernel->library[0]) return attn_peak_for(kernel->isa, dtype);
  return attn_peak_for(bench_highest_tier(), kernel->numerics.p_rounding > 0 ? dtype : "f32");
}

const attn_peak_loop *bench_parts_peak_of(const attn_kernel_info *kernel, const attn_peak_loop *loop) {
  const attn_peak_loop *by_parts;
  if (kernel->library[0] || !loop || strcmp(loop->dtype, "f32") != 0) return NULL;
  for (int i = 0; (by_parts = attn_peak_get(i)); i++)
    if (by_parts->f32_share > 0 && strcmp(by_parts->isa, kernel->isa) == 0) return by_parts;
  return NULL;
}

static const double WARM_UP_NS = 2e6; /* clocks and vector units of present CPUs need well under a millisecond to wake */

bench_team bench_team_count(int threads) {
  bench_team team = {0, 0};
  cpu_set_t all;
  CPU_ZERO(&all);
  (void)threads; /* not used without OpenMP */
#pragma omp parallel num_threads(attn_parallel_available(threads))
#pragma omp critical
  {
    cpu_set_t own;
    if (!sched_getaffinity(0, sizeof own, &own)) CPU_OR(&all, &all, &own);
    team.threads++;
  }
  team.cpus = CPU_COUNT(&all);
  return team;
}

#ifdef _OPENMP
/* Appends the setting if it is in force and leaves fewer than `least`. */
static void name_limit(const char *setting, int least, char *text, size_t bytes) {
  const char *value = getenv(setting);
  if (value && atoi(value) < least) bench_append(text, bytes, "; %s=%.20s should be %d or more", setting, value, least);
}
#endif

void bench_team_explain(int given, int wanted, char *text, size_t bytes) {
  snprintf(text, bytes, "%d of %d threads run: ", given, wanted);
#ifdef _OPENMP
  bench_append(text, bytes, "OpenMP or the system gives no more");
  name_limit("OMP_THREAD_LIMIT", wanted, text, bytes);
  name_limit("OMP_MAX_ACTIVE_LEVELS", 1, text, bytes);
  if (omp_get_dynamic() && getenv("OMP_DYNAMIC")) bench_append(text, bytes, "; OMP_DYNAMIC=true should be false");
#else
  bench_append(text, bytes, "this build has no OpenMP");
#endif
}

void bench_team_dismiss(void) {
#if defined _OPENMP && (_OPENMP >= 201811 || __GNUC__ >= 9) /* OpenMP 5.0 has it */
  if (omp_pause_resource_all(omp_pause_soft) == 0) (void)attn_parallel_available(0);
#endif
}

static double time_once(const attn_peak_loop *loop, int64_t iterations) {
  double start = bench_now_ns();
  loop->run(iterations);
  return bench_now_ns() - start;
}

bench_peak_slice bench_peak_prepare(const attn_peak_loop *loop, int threads, double slice_ns) {
  bench_peak_slice slice = {.loop = loop, .threads = bench_team_count(threads).threads, .iterations = 1000};
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
#pragma omp parallel num_threads(attn_parallel_available(slice->threads)) reduction(+ : rates, threads)
  {
    bench_thread_settle();
#pragma omp barrier
    rates += slice->loop->flops * (double)slice->iterations / time_once(slice->loop, slice->iterations) * 1e9;
    threads += 1;
  }
  return rates / threads;
}
