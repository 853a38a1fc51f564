/* SPDX-License-Identifier: MIT */
/* Goals as rows: which goals can be measured here (goals_choose.c), one of them measured (goals_measure.c), and all of
 * them as text and CSV (goals_table.c). */
#ifndef BENCH_GOAL_ROWS_H
#define BENCH_GOAL_ROWS_H

#include <stdio.h>

#include "base/select.h"
#include "goals/goals.h"
#include "timing/setup.h"

/* A row is the median of this many rounds, unless --rounds says otherwise; never of fewer than the least. */
enum { BENCH_GOAL_ROUNDS = 21, BENCH_LEAST_GOAL_ROUNDS = 11 };

/* A goal whose kernel runs here. */
typedef struct bench_goal_row {
  const bench_goal *goal;
  const attn_kernel_info *kernel;
  bench_case bench, against; /* `against` only where the metric compares */
  bool done;
  bench_status status; /* PASS: measured */
  char reason[400];    /* why not; "" on PASS */
  bench_summary measured;
  bench_goal_verdict verdict;
} bench_goal_row;

/* Why a goal is not among the rows. */
typedef enum bench_absence {
  BENCH_HERE,
  BENCH_OTHER_CPU,
  BENCH_NOT_BUILT,
  BENCH_NO_TIER,
  BENCH_REFUSED,
  BENCH_NOT_SELECTED,
  BENCH_ABSENCES
} bench_absence;

typedef struct bench_goal_table {
  bench_goal_list goals;
  bench_goal_row *row;
  int count;
  int absent[BENCH_ABSENCES];
} bench_goal_table;

/* Reads the goals of a text and makes rows of those whose kernel is selected and can run here. False with a sentence in
 * error; the caller calls bench_goal_table_clear() in any case. */
bool bench_goal_table_open(bench_goal_table *table, const char *text, const bench_selection *selection, uint64_t seed,
                           char *error, size_t error_bytes);
void bench_goal_table_clear(bench_goal_table *table);

/* Checks the row's cases and measures them in common rounds. rows[0] is of the case, rows[1] of the case that it is
 * compared with; the case_id is "" if a case is missing or was not reached. The caller clears both. False if
 * *settings->stop cut it short: the row is not done then. */
bool bench_goal_measure(bench_goal_row *row, const bench_case_settings *settings, bench_row rows[2]);

/* A guess at the seconds that it takes. */
double bench_goal_guess(const bench_goal_row *row, const bench_case_settings *settings);

/* What came out of the rows that are done. */
typedef struct bench_goal_counts {
  int done, failed;          /* failed: FAIL, ERROR or DEGENERATE */
  int marks[BENCH_GOAL + 1]; /* measured rows by verdict */
  int decided, open;         /* measured rows with a floor, and those whose interval holds the floor */
} bench_goal_counts;
bench_goal_counts bench_goals_count(const bench_goal_table *table);

/* The headings; one row, below the name of its section unless the row before it (NULL = none) is of the same; why goals are
 * absent; the counts of verdicts, and why goals are absent. */
void bench_goals_print_head(FILE *file);
void bench_goals_print_row(const bench_goal_row *row, const bench_goal_row *before, FILE *file);
void bench_goals_print_absences(const bench_goal_table *table, FILE *file);
void bench_goals_print_summary(const bench_goal_table *table, FILE *file);

/* limits.csv: one line per row of the table. */
void bench_goals_write_csv(const bench_goal_table *table, const char *run_id, FILE *file);

#endif
