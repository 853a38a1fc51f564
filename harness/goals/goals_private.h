/* SPDX-License-Identifier: MIT */
/* What goals_session.c (which rows, in which order), goals_measure.c (one row) and goals_table.c (text and CSV) share. */
#ifndef BENCH_GOALS_PRIVATE_H
#define BENCH_GOALS_PRIVATE_H

#include <stdio.h>

#include "goals/goals.h"
#include "timing/run_case.h"

/* A row is the median of at least so many rounds. */
enum { BENCH_LEAST_GOAL_ROUNDS = 11 };

/* A goal whose kernel runs here. */
typedef struct bench_goal_row {
  const bench_goal *goal;
  const attn_kernel_info *kernel;
  bench_case bench, against; /* `against` only where the metric compares */
  bool done;
  bench_status status; /* PASS: measured */
  char reason[400];    /* why not; "" on PASS */
  bench_summary measured;
  bench_judgement judgement;
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

/* Checks the row's cases and measures them in common rounds. rows[1] is that of the case of comparison; where there is none, or
 * it did not come to that, its case_id is "". The caller clears both. False if *settings->stop cut it short: the row is not
 * done then. */
bool bench_goal_measure(bench_goal_row *row, const bench_case_settings *settings, bench_row rows[2]);

/* A guess at the seconds that it takes. */
double bench_goal_guess(const bench_goal_row *row, const bench_case_settings *settings);

/* Headings; one row, with the name of its section if the row before it (NULL = none) is of another; why goals are absent;
 * counts of verdicts, and that again. */
void bench_goals_print_head(FILE *file);
void bench_goals_print_row(const bench_goal_row *row, const bench_goal_row *before, FILE *file);
void bench_goals_print_absences(const bench_goal_table *table, FILE *file);
void bench_goals_print_summary(const bench_goal_table *table, FILE *file);

/* limits.csv: one line per row of the table. */
void bench_goals_write_csv(const bench_goal_table *table, const char *run_id, FILE *file);

#endif
