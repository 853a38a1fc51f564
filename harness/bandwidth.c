/* Read-only loops. The harness is built for the baseline CPU, whose 16-byte loads can't saturate every cache, so two loops
 * compete: one of our own on 16-byte vectors, and the C library's memchr() looking for a byte that isn't there, which glibc
 * chooses for the CPU at run time. */
#include "bandwidth.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "stats.h"

typedef uint64_t two_words __attribute__((vector_size(16)));

enum { STREAMS = 8, PASSES = 9, FILL = 0x55, ABSENT = 0xaa, LINE = 64 };

static const double PASS_NS = 3e6;

/* Reads all of it; false, as every byte is FILL. */
typedef bool (*read_loop)(const unsigned char *data, size_t bytes);

static bool read_vectors(const unsigned char *data, size_t bytes) {
  const two_words *word = (const two_words *)(const void *)data;
  two_words seen[STREAMS];
  for (int i = 0; i < STREAMS; i++) seen[i] = (two_words){0, 0};
  for (size_t n = 0; n + STREAMS <= bytes / sizeof *word; n += STREAMS)
    for (int i = 0; i < STREAMS; i++) seen[i] |= word[n + (size_t)i];
  for (int i = 1; i < STREAMS; i++) seen[0] |= seen[i];
  return (seen[0][0] | seen[0][1]) & 0x8080808080808080u;
}

static bool read_memchr(const unsigned char *data, size_t bytes) { return memchr(data, ABSENT, bytes) != NULL; }

/* What the threads of one measurement share. */
typedef struct reading {
  read_loop loop;
  size_t bytes;
  int64_t repeats; /* of one pass */
  double rate[PASSES];
  bool failed;
} reading;

static double time_repeats(const reading *r, const unsigned char *data, int64_t repeats, bool *found) {
  double start = bench_now_ns();
  for (int64_t i = 0; i < repeats; i++) *found |= r->loop(data, r->bytes);
  return bench_now_ns() - start;
}

/* How often a pass reads the buffer. Calibrated by one thread alone, so passes of many threads last somewhat longer. */
static void calibrate(reading *r, const unsigned char *data) {
  bool found = false;
  r->repeats = 1;
  double time_ns = time_repeats(r, data, 1, &found);
  while (time_ns < PASS_NS / 2) {
    r->repeats *= 2;
    time_ns = time_repeats(r, data, r->repeats, &found);
  }
  r->failed |= found;
}

/* One thread's part: fills its own buffer (first touch), then adds its rate to every pass, all threads starting together. */
static void read_own_buffer(reading *r) {
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
    bool found = false;
    double rate = data ? (double)r->bytes * (double)r->repeats / time_repeats(r, data, r->repeats, &found) * 1e9 : 0.0;
#ifdef _OPENMP
#pragma omp critical
#endif
    {
      r->rate[pass] += rate;
      r->failed |= found;
    }
  }
  free(data);
}

static double bandwidth_of(read_loop loop, size_t bytes, int threads) {
  reading r = {.loop = loop, .bytes = bytes / LINE * LINE};
  (void)threads; /* not used without OpenMP */
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
#endif
  read_own_buffer(&r);
  return r.failed ? 0.0 : bench_median(r.rate, PASSES);
}

double bench_read_bandwidth(size_t bytes, int threads) {
  if (bytes < 2 * STREAMS * sizeof(two_words)) bytes = 2 * STREAMS * sizeof(two_words);
  double own = bandwidth_of(read_vectors, bytes, threads > 1 ? threads : 1);
  double library = bandwidth_of(read_memchr, bytes, threads > 1 ? threads : 1);
  return own > library ? own : library;
}
