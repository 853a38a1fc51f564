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

/* Whether a line is due off terminals: one per case, and every few seconds where there are very many cases. */
static bool is_due(bench_progress *progress, const char *doing) {
  const double now = 1e-9 * bench_now_ns();
  if (strcmp(doing, "begins") || (progress->cases > MANY_CASES && now - progress->last_line < SECONDS_BETWEEN)) return false;
  progress->last_line = now;
  return true;
}

void bench_progress_note(bench_progress *p, const char *name, const char *doing) {
  if (p->quiet || (!p->terminal && !is_due(p, doing))) return;
  const bool guessed = p->fresh_work <= 0; /* nothing has been measured */
  const double pace = guessed ? 1 : (1e-9 * bench_now_ns() - p->started) / p->fresh_work;
  char clock[24];
  bench_format_clock((p->work - p->work_done) * pace, clock, sizeof clock);
  fprintf(stderr, "%s[%d/%d, %s%s%s] ", p->terminal ? "\r\033[K" : "", p->done + 1, p->cases, guessed ? "about " : "", clock,
          guessed ? "" : " left");
  if (p->terminal)
    fprintf(stderr, "%.70s: %s", name, doing);
  else
    fprintf(stderr, "%s\n", name);
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
