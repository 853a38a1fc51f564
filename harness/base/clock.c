/* SPDX-License-Identifier: MIT */
/* Reads the clock, and measures its resolution. */
#include "base/clock.h"

#include <time.h>

double bench_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}

/* Time until the clock shows another value; 0 if ten million readings (a fifth of a second or more) show none. */
static double one_step(void) {
  double start = bench_now_ns();
  for (int reading = 0; reading < 10 * 1000 * 1000; reading++) {
    double now = bench_now_ns();
    if (now != start) return now - start;
  }
  return 0.0;
}

double bench_clock_resolution_ns(void) {
  struct timespec claimed = {0, 0};
  clock_getres(CLOCK_MONOTONIC, &claimed);
  double smallest = one_step();
  for (int i = 0; i < 100; i++) {
    double step = one_step();
    if (step < smallest) smallest = step;
  }
  double claim = 1e9 * (double)claimed.tv_sec + (double)claimed.tv_nsec;
  return smallest > 0.0 && claim > smallest ? claim : smallest;
}
