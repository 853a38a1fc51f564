/* SPDX-License-Identifier: MIT */
/* Reads the clock, and measures its resolution. */
#include "base/clock.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double read_ns(clockid_t clock) {
  struct timespec now = {0, 0};
  clock_gettime(clock, &now);
  return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}

double bench_now_ns(void) { return read_ns(CLOCK_MONOTONIC); }

/* The clock of another thread of this process, as pthread_getcpuclockid() makes it from the thread's number. */
static clockid_t clock_of_thread(int thread) { return (clockid_t)((~(unsigned)thread << 3) | 6u); }

double bench_cpu_resolution_ns(void) {
  struct timespec step = {0, 0};
  return clock_getres(CLOCK_PROCESS_CPUTIME_ID, &step) ? INFINITY : 1e9 * (double)step.tv_sec + (double)step.tv_nsec;
}

/* Linux brings the time of threads that run on other CPUs up to date at timer interrupts only, or when their own clock is
 * read. */
bench_cpu_time bench_cpu_now(void) {
  if (bench_cpu_resolution_ns() > BENCH_CPU_RESOLUTION_NS) return (bench_cpu_time){NAN, NAN};
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

/* ---- Progress ----------------------------------------------------------------------------------------------------- */
/* The time that is left: the guesses of cases/work.c, scaled by how wrong they have been so far. */

enum { MANY_CASES = 60, SECONDS_BETWEEN = 5, BAR = 20 };

/* A guess counts as if so many seconds of it had come true already: a single short case says little. */
static const double TRUSTED_S = 5;

void bench_format_clock(double seconds, char *text, unsigned bytes) {
  const long whole = (long)(seconds + 0.5);
  if (whole < 60)
    snprintf(text, bytes, "%ld s", whole);
  else if (whole < 3600)
    snprintf(text, bytes, "%ld:%02ld", whole / 60, whole % 60);
  else
    snprintf(text, bytes, "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
}

void bench_progress_start(bench_progress *progress, int cases, double work, bool quiet) {
  const char *terminal = getenv("TERM");
  *progress = (bench_progress){.quiet = quiet,
                               .terminal = isatty(STDERR_FILENO) && !(terminal && !strcmp(terminal, "dumb")),
                               .cases = cases,
                               .work = work,
                               .left = INFINITY,
                               .started = 1e-9 * bench_now_ns()};
}

/* Whether a line is due off terminals: one per case, and every few seconds where there are very many cases. */
static bool is_due(bench_progress *progress, const char *doing) {
  const double now = 1e-9 * bench_now_ns();
  if (strcmp(doing, "begins") || (progress->cases > MANY_CASES && now - progress->last_line < SECONDS_BETWEEN)) return false;
  progress->last_line = now;
  return true;
}

double bench_progress_left(bench_progress *p, double now) {
  const double pace = (now - p->started + TRUSTED_S) / (p->fresh_work + TRUSTED_S);
  p->left = fmin(p->left, (p->work - p->work_done) * fmax(pace, 0));
  return p->left;
}

/* "[#####...............] 3/12, 8.2 cases/min, 3:20 left, NAME: checking flash_c", in place of the line before. */
static void draw_bar(bench_progress *p, const char *clock, double now, const char *name, const char *doing) {
  char bar[BAR + 1] = "";
  const int full = p->work > 0 ? (int)(BAR * p->work_done / p->work) : 0;
  for (int i = 0; i < BAR; i++) bar[i] = i < full ? '#' : '.';
  fprintf(stderr, "\r\033[K[%s] %d/%d", bar, p->done + 1, p->cases);
  if (p->fresh && now > p->started) fprintf(stderr, ", %.1f cases/min", 60 * p->fresh / (now - p->started));
  fprintf(stderr, ", %s left, %.40s: %.40s", clock, name, doing);
}

void bench_progress_note(bench_progress *p, const char *name, const char *doing) {
  if (p->quiet || (!p->terminal && !is_due(p, doing))) return;
  const double now = 1e-9 * bench_now_ns();
  char clock[24];
  bench_format_clock(bench_progress_left(p, now), clock, sizeof clock);
  if (p->terminal)
    draw_bar(p, clock, now, name, doing);
  else
    fprintf(stderr, "[%d/%d, %s%s] %s\n", p->done + 1, p->cases, clock, p->fresh_work > 0 ? " left" : "", name);
  fflush(stderr);
}

void bench_progress_advance(bench_progress *progress, double work, bool skipped) {
  progress->done++;
  progress->work_done += work;
  if (skipped) return;
  progress->fresh_work += work;
  progress->fresh++;
}

void bench_progress_wipe(const bench_progress *progress) {
  if (progress->quiet || !progress->terminal) return;
  fputs("\r\033[K", stderr);
  fflush(stderr);
}
