/* SPDX-License-Identifier: MIT */
/* The clocks of the harness, in nanoseconds: CLOCK_MONOTONIC, and CPU time; and how far a run is. */
#ifndef BENCH_CLOCK_H
#define BENCH_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

double bench_now_ns(void);

/* The same moment by three clocks: bench_now_ns(), a system call, and the C library's clock_gettime(), which a program may
 * replace. NaN where the thread was interrupted again and again. */
typedef struct bench_clocks {
  double own_ns, system_ns, libc_ns;
} bench_clocks;
bench_clocks bench_clocks_now(void);

/* CPU time of all threads of this process and of all processes that they have made, and of the calling thread, NaN if its
 * clock has coarser steps than this; and how often that thread has waited for something. */
#define BENCH_CPU_RESOLUTION_NS 1e6
typedef struct bench_cpu_time {
  double all_ns, own_ns;
  int64_t waits;
} bench_cpu_time;
bench_cpu_time bench_cpu_now(void);
double bench_own_cpu_ns(void); /* the calling thread's alone */
double bench_cpu_resolution_ns(void);

/* The threads of this process and the processes that it made, by their numbers; none if they are not known. Threads that are
 * about to end are among them, so the count alone does not show new ones. */
enum { BENCH_MOST_TASKS = 500 };
typedef struct bench_tasks {
  int count, number[BENCH_MOST_TASKS];
} bench_tasks;
bench_tasks bench_tasks_now(void);

/* Whether a thread or process that was not among these is there, and stays for a moment. Then it belongs to the owner. */
bool bench_tasks_grew(const bench_tasks *before, const void *owner);

/* The owner of the busiest one while the calling thread sleeps, and its share of a CPU; NULL and 0: none takes any time. */
const void *bench_tasks_busiest_owner(double *share);

/* The resolution: the larger one of what the system states and the smallest step seen; 0 if the clock stands still. */
double bench_clock_resolution_ns(void);

/* ---- How far the run is, on stderr -------------------------------------------------------------------------------- */
/* One line that rewrites itself on a terminal, one line per case elsewhere. */

typedef struct bench_progress {
  bool quiet, terminal;
  int cases, done, fresh; /* fresh: of those done, the ones that were run, not resumed */
  double work, work_done; /* guessed seconds of all cases, and of those that are done */
  double started;         /* seconds of the monotonic clock */
  double fresh_work;      /* guessed seconds of the cases that were run, not resumed */
  double last_line;       /* when the last line was printed, off terminals */
  double left;            /* seconds, as shown last */
} bench_progress;

void bench_progress_start(bench_progress *progress, int cases, double work, bool quiet);

/* A case begins: its name and what is happening ("checking flash_c"). */
void bench_progress_note(bench_progress *progress, const char *name, const char *doing);

/* A case is done; `skipped` if it came from the journal. */
void bench_progress_advance(bench_progress *progress, double work, bool skipped);

/* Seconds that are left at a time of the monotonic clock: the guesses of the cases to come, scaled by how wrong the guesses
 * of finished cases were. It never rises: it stands still instead. */
double bench_progress_left(bench_progress *progress, double now);

/* Wipes the rewritten line, so that other output can stand there. */
void bench_progress_wipe(const bench_progress *progress);

/* "1:05:09", "3:20", "12 s" */
void bench_format_clock(double seconds, char *text, unsigned bytes);

#endif
