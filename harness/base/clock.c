/* SPDX-License-Identifier: MIT */
/* The resolution of the clock, and the line of progress. */
#include "base/clock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

/* The guess counts as much as this many measured seconds: a single short case says little. */
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
