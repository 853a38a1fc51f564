/* SPDX-License-Identifier: MIT */
/* How far the run is, on stderr: one line that rewrites itself on a terminal, one line per case elsewhere. */
#ifndef BENCH_PROGRESS_H
#define BENCH_PROGRESS_H

#include <stdbool.h>

typedef struct bench_progress {
  bool quiet, terminal;
  int cases, done;
  double work, work_done; /* guessed seconds of all cases, and of those that are done */
  double started;         /* of the monotonic clock, seconds */
  double fresh_work;      /* guessed seconds of the cases that were run, not resumed */
  double last_line;       /* when the last line was printed, off terminals */
} bench_progress;

void bench_progress_start(bench_progress *progress, int cases, double work, bool quiet);

/* A case begins: its name and what is happening ("checking flash_c"). */
void bench_progress_note(bench_progress *progress, const char *name, const char *doing);

/* A case is done; `skipped` if it came from the journal. */
void bench_progress_advance(bench_progress *progress, double work, bool skipped);

/* Wipes the rewritten line, so that other output can stand there. */
void bench_progress_wipe(const bench_progress *progress);

/* "1:05:09", "3:20", "12 s" */
void bench_format_clock(double seconds, char *text, unsigned bytes);

#endif
