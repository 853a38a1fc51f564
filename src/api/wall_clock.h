/* SPDX-License-Identifier: MIT */
/* A clock that only goes forward, in nanoseconds from some moment. */
#ifndef ATTN_WALL_CLOCK_H
#define ATTN_WALL_CLOCK_H

#ifdef _WIN32
#include <windows.h>

static inline double attn_wall_clock_ns(void) {
  LARGE_INTEGER count, frequency;
  QueryPerformanceCounter(&count);
  QueryPerformanceFrequency(&frequency);
  return 1e9 * (double)count.QuadPart / (double)frequency.QuadPart;
}
#else
#include <time.h>

static inline double attn_wall_clock_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}
#endif

#endif
