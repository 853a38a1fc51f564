/* SPDX-License-Identifier: MIT */
/* Read-only loops: those of the widest tier that this CPU runs (kernels/peak.h). */
#include "timing/bandwidth.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "base/clock.h"
#include "machine/affinity.h"
#include "timing/peak_rate.h"
#include "timing/stats.h"

enum { PASSES = 9, FILL = 0x55, LINE = 64 };

static const double PASS_NS = 3e6;

/* The table of loops goes from the lowest tier to the highest. */
bench_read_loop bench_widest_read(void) {
  const attn_peak_loop *loop;
  bench_read_loop widest = NULL;
  for (int i = 0; (loop = attn_peak_get(i)); i++)
    if (loop->read && bench_tier_usable(loop->isa)) widest = loop->read;
  return widest;
}

/* What the threads of one measurement share. */
typedef struct reading {
  bench_read_loop loop;
  size_t bytes;
  int64_t repeats; /* of one pass */
  double rate[PASSES];
  bool failed;
} reading;

static double time_repeats(const reading *r, const unsigned char *data, int64_t repeats, bool *wrong) {
  double start = bench_now_ns();
  for (int64_t i = 0; i < repeats; i++) *wrong |= r->loop(data, r->bytes) != FILL * 0x0101010101010101u;
  return bench_now_ns() - start;
}

/* Finds how often a pass reads the buffer. One thread alone does so; passes of many threads last somewhat longer. */
static void calibrate(reading *r, const unsigned char *data) {
  bool wrong = false;
  r->repeats = 1;
  double time_ns = time_repeats(r, data, 1, &wrong);
  while (time_ns < PASS_NS / 2) {
    r->repeats *= 2;
    time_ns = time_repeats(r, data, r->repeats, &wrong);
  }
  r->failed |= wrong;
}

/* One thread's part: fills its own buffer (first touch), then adds its rate to every pass. All threads start a pass
 * together. */
static void read_own_buffer(reading *r) {
#ifdef _OPENMP
  bench_thread_settle(omp_get_thread_num(), omp_get_num_threads());
#endif
  unsigned char *data = aligned_alloc(LINE, r->bytes);
  if (data) memset(data, FILL, r->bytes);
#ifdef _OPENMP
#pragma omp critical
#endif
  {
    r->failed |= !data;
    if (data && !r->repeats) calibrate(r, data);
  }
  for (int pass = 0; pass < PASSES; pass++) {
#ifdef _OPENMP
#pragma omp barrier
#endif
    bool wrong = false;
    double rate = data ? (double)r->bytes * (double)r->repeats / time_repeats(r, data, r->repeats, &wrong) * 1e9 : 0.0;
#ifdef _OPENMP
#pragma omp critical
#endif
    {
      r->rate[pass] += rate;
      r->failed |= wrong;
    }
  }
  free(data);
}

static double bandwidth_of(bench_read_loop loop, size_t bytes, int threads) {
  reading r = {.loop = loop, .bytes = bytes};
  (void)threads; /* not used without OpenMP */
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
#endif
  read_own_buffer(&r);
  return r.failed ? 0.0 : bench_median(r.rate, PASSES);
}

double bench_read_bandwidth(size_t bytes, int threads) {
  bytes = (bytes + ATTN_READ_BYTES - 1) / ATTN_READ_BYTES * ATTN_READ_BYTES;
  return bandwidth_of(bench_widest_read(), bytes > 0 ? bytes : ATTN_READ_BYTES, threads > 1 ? threads : 1);
}
