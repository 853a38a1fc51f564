/* SPDX-License-Identifier: MIT */
/* Reads the clock, and measures its resolution. */
#include "base/clock.h"

#include <dirent.h>
#include <stdlib.h>
#include <time.h>

static double read_ns(clockid_t clock) {
  struct timespec now = {0, 0};
  clock_gettime(clock, &now);
  return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}

double bench_now_ns(void) { return read_ns(CLOCK_MONOTONIC); }

/* The clock of another thread of this process, as pthread_getcpuclockid() makes it from the thread's number. */
static clockid_t clock_of_thread(int thread) { return (clockid_t)((~(unsigned)thread << 3) | 6u); }

/* Linux brings the time of threads that run on other CPUs up to date at timer interrupts only, or when their own clock is
 * read. */
bench_cpu_time bench_cpu_now(void) {
  DIR *threads = opendir("/proc/self/task");
  const struct dirent *thread;
  while (threads && (thread = readdir(threads))) {
    const int number = atoi(thread->d_name);
    if (number > 0) (void)read_ns(clock_of_thread(number));
  }
  if (threads) closedir(threads);
  return (bench_cpu_time){read_ns(CLOCK_PROCESS_CPUTIME_ID), read_ns(CLOCK_THREAD_CPUTIME_ID)};
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
