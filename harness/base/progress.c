/* SPDX-License-Identifier: MIT */
/* Progress with ETA: the guesses of cases/work.c, scaled by how wrong they have been so far. */
#include "base/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

enum { MANY_CASES = 60, SECONDS_BETWEEN = 5 };

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
                               .started = 1e-9 * bench_now_ns()};
}

static void format_eta(const bench_progress *p, char *text, unsigned bytes) {
  char clock[24];
  if (p->fresh_work <= 0) {
    snprintf(text, bytes, "about %s", (bench_format_clock(p->work - p->work_done, clock, sizeof clock), clock));
    return;
  }
  const double left = (p->work - p->work_done) / p->fresh_work * (1e-9 * bench_now_ns() - p->started);
  bench_format_clock(left, clock, sizeof clock);
  snprintf(text, bytes, "%s left", clock);
}

/* Whether a line is due off terminals: one per case, and every few seconds where there are very many cases. */
static bool is_due(bench_progress *progress, const char *doing) {
  const double now = 1e-9 * bench_now_ns();
  if (strcmp(doing, "begins") || (progress->cases > MANY_CASES && now - progress->last_line < SECONDS_BETWEEN)) return false;
  progress->last_line = now;
  return true;
}

void bench_progress_note(bench_progress *progress, const char *name, const char *doing) {
  char eta[48];
  if (progress->quiet || (!progress->terminal && !is_due(progress, doing))) return;
  format_eta(progress, eta, sizeof eta);
  if (progress->terminal)
    fprintf(stderr, "\r\033[K[%d/%d, %s] %.70s: %s", progress->done + 1, progress->cases, eta, name, doing);
  else
    fprintf(stderr, "[%d/%d, %s] %s\n", progress->done + 1, progress->cases, eta, name);
  fflush(stderr);
}

void bench_progress_advance(bench_progress *progress, double work, bool skipped) {
  progress->done++;
  progress->work_done += work;
  if (!skipped) progress->fresh_work += work;
}

void bench_progress_wipe(const bench_progress *progress) {
  if (progress->quiet || !progress->terminal) return;
  fputs("\r\033[K", stderr);
  fflush(stderr);
}
