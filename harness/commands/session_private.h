/* SPDX-License-Identifier: MIT */
/* What session.c (the loop) and session_output.c (what is said and written) share. */
#ifndef BENCH_SESSION_PRIVATE_H
#define BENCH_SESSION_PRIVATE_H

#include <stdio.h>

#include "base/progress.h"
#include "check/structure.h"
#include "commands/options.h"
#include "machine/environment.h"
#include "report/columns.h"
#include "report/table.h"
#include "timing/run_case.h"

enum { BENCH_PATH_BYTES = 4096 };

typedef struct bench_session {
  bench_options *options;
  const attn_kernel_info *kernels[BENCH_MAX_KERNELS + 1];
  int kernel_count;
  int structure_runs[BENCH_MAX_KERNELS + 1][BENCH_STRUCTURE_TESTS]; /* cases on which each structural test ran */
  bench_case_list cases;
  bench_case_settings settings;
  bench_environment environment;
  bench_rows rows; /* in the order of cases and kernels */
  bench_rows old;  /* of the journal that is resumed */
  FILE *journal;
  bench_progress progress;
  bench_table table;
  char run_id[48], date[48];
  const char *case_name;          /* of the case that runs */
  struct bench_goal_table *goals; /* of --preset limits; NULL = the rows are cases and kernels */
  double started_s, guess_left_s;
  bool io_failed;
} bench_session;

/* Machine, library, how many cases and kernels, and the environment variables in force. */
void bench_session_print_opening(const bench_session *session, FILE *file);

/* On how many cases each structural test ran, by kernel: none is a hole in what was checked, not a pass. */
void bench_session_print_structure(const bench_session *session, FILE *file);

/* False if a file that was asked for cannot be written; said on stderr. */
bool bench_session_can_write(const bench_session *session);

/* Writes all files that were asked for. Sets io_failed after an error, said on stderr. */
void bench_session_write(bench_session *session);

/* The path of a file in the result folder. */
void bench_session_path(const bench_session *session, const char *name, char *path);

#endif
