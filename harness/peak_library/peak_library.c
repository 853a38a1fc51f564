/* SPDX-License-Identifier: MIT */
/* The peak and read loops of kernels/peak.h behind four functions that a foreign-function interface can call. */
#include "peak_library.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "machine/affinity.h"
#include "timing/peak_rate.h"

struct peak_meter {
  bench_peak_slice slice;
  char name[64];
};

/* What the peak loop calls for attnbench's own threads: those of another program stay where it puts them. */
void bench_thread_settle(int thread, int team) { (void)thread, (void)team; }

/* Tables go from the lowest tier to the highest. */
static const char *highest_tier(void) {
  const attn_peak_loop *loop;
  const char *highest = NULL;
  for (int i = 0; (loop = attn_peak_get(i)); i++)
    if (bench_tier_usable(loop->isa)) highest = loop->isa;
  return highest;
}

peak_meter *peak_open(const char *dtype, int threads, double slice_ns) {
  const char *isa = highest_tier();
  const attn_peak_loop *loop = isa ? attn_peak_for(isa, dtype) : NULL;
  peak_meter *meter = loop ? malloc(sizeof *meter) : NULL;
  if (!meter) return NULL;
  meter->slice = bench_peak_prepare(loop, threads, slice_ns);
  snprintf(meter->name, sizeof meter->name, "%s %s: %s", loop->isa, loop->dtype, loop->what);
  return meter;
}

void peak_close(peak_meter *meter) { free(meter); }

const char *peak_name(const peak_meter *meter) { return meter->name; }

double peak_rate(const peak_meter *meter) { return bench_peak_rate(&meter->slice) * meter->slice.threads; }

/* ---- Reading ------------------------------------------------------------------------------------------------------------- */

static uint64_t (*widest_read(void))(const void *, size_t) {
  const attn_peak_loop *loop;
  uint64_t (*widest)(const void *, size_t) = NULL;
  for (int i = 0; (loop = attn_peak_get(i)); i++)
    if (loop->read && bench_tier_usable(loop->isa)) widest = loop->read;
  return widest;
}

static volatile uint64_t seen; /* so that no compiler finds the reading useless */

double peak_read_rate(const void *data, size_t bytes, int threads) {
  uint64_t (*const read)(const void *, size_t) = widest_read();
  const size_t part = bytes / (size_t)threads / ATTN_READ_BYTES * ATTN_READ_BYTES;
  if (!read || part == 0) return 0.0;
  const double start = bench_now_ns();
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) schedule(static, 1)
#endif
  for (int i = 0; i < threads; i++) seen = read((const char *)data + (size_t)i * part, part);
  return (double)part * threads / (bench_now_ns() - start) * 1e9;
}
