/* SPDX-License-Identifier: MIT */
/* Goals: the share of the machine's limit that each kernel should reach (goals/limits.def), and the verdict on a measured
 * value. */
#ifndef BENCH_GOALS_H
#define BENCH_GOALS_H

#include <stdio.h>

#include "base/select.h"
#include "cases/cases.h"
#include "timing/setup.h"

/* One round of one case. */
typedef struct bench_goal_sample {
  double time_ns;    /* one call's */
  double peak_share; /* share of the tier's peak loop, or of the loop that only reads, in the same round; 0 = not measured */
} bench_goal_sample;

typedef struct bench_metric {
  const char *name, *unit;
  int decimals; /* to print */
  bool against; /* compares two cases */
  bool peak;    /* counts shares of the peak loop */
  bool reads;   /* counts shares of the loop that only reads the same bytes */
  bool lower;   /* less is better */
  /* The value of one round; `against` is NULL unless the metric compares. NULL: the plan tells the value, nothing runs. */
  double (*value)(const bench_goal_sample *sample, const bench_goal_sample *against);
} bench_metric;

/* The metrics of limits.def. */
enum {
  BENCH_PEAK,
  BENCH_READS,
  BENCH_POINTS,
  BENCH_RATIO,
  BENCH_COST,
  BENCH_TIME,
  BENCH_SPEEDUP,
  BENCH_NS,
  BENCH_WORKSPACE
};
extern const bench_metric bench_metrics[];

/* One line of a table of goals: a section's title, or a goal, whose fields limits.def explains. */
typedef struct bench_goal_line {
  const char *section; /* NULL: a goal, or with no metric the end */
  const bench_metric *metric;
  const char *kernels, *axes, *against, *against_kernel, *cpu; /* against_kernel "": the same kernel */
  double floor, goal;                                          /* NAN = none */
  const char *text;
} bench_goal_line;

#define BENCH_GOALS "limits"                 /* the preset whose rows are goals */
extern const bench_goal_line bench_limits[]; /* limits.def */

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

/* A line for one of its kernels. */
typedef struct bench_goal {
  const bench_goal_line *line;
  const char *section;
  char kernel[32];
  bench_spec spec, against; /* `against` only where the metric compares */
  bench_absence absence;    /* for goals of a table */
} bench_goal;

typedef struct bench_goal_list {
  bench_goal *item;
  int count;
} bench_goal_list;

/* Appends the goals of a table, one per kernel. False with a sentence in error: an axis cannot be set, or memory is short.
 */
bool bench_goals_make(const bench_goal_line *lines, bench_goal_list *list, char *error, size_t error_bytes);
void bench_goals_clear(bench_goal_list *list);

/* True if the words of a goal's CPU condition hold on a CPU of this vendor ("AuthenticAMD", ...) that runs these tiers ("c
 * avx2 ..."). */
bool bench_goal_applies(const char *cpu, const char *vendor, const char *tiers);

typedef enum bench_mark {
  BENCH_NO_FLOOR, /* there is no floor: no verdict */
  BENCH_SHORT,    /* the floor is not reached */
  BENCH_FLOOR,    /* the floor is reached */
  BENCH_GOAL,     /* the goal is reached too */
} bench_mark;

typedef struct bench_goal_verdict {
  bench_mark mark;
  bool open; /* the interval holds values on the other side of the floor */
} bench_goal_verdict;

/* The mark follows from the median alone; a floor that is just met is reached. */
bench_goal_verdict bench_goal_verdict_of(const bench_goal_line *goal, const bench_summary *measured);
const char *bench_mark_name(bench_mark mark); /* "-", "short", "ok", "goal" */

/* ---- Goals as rows: goals_table.c chooses, measures and prints them ---- */

/* A row is the median of BENCH_GOAL_ROUNDS rounds, unless --rounds says otherwise; never of fewer than the least. Where at
 * least BENCH_LEAST_GOAL_ROUNDS rounds are undisturbed (bench_sample_is_undisturbed()), it is the median of these. */
enum { BENCH_GOAL_ROUNDS = 21, BENCH_LEAST_GOAL_ROUNDS = 11 };

/* A goal whose kernel runs here. */
typedef struct bench_goal_row {
  const bench_goal *goal;
  const attn_kernel_info *kernel, *against_kernel;
  bench_case bench, against; /* `against` only where the metric compares, as against_kernel */
  bool done;
  bool against_failed; /* `against`, or its kernel, could not be measured */
  bench_status status; /* PASS: measured */
  char reason[400];    /* why not; "" on PASS */
  bench_summary measured;
  int rounds, undisturbed; /* all rounds, and undisturbed ones (bench_sample_is_undisturbed()) or -1 if that is not known */
  bench_goal_verdict verdict;
} bench_goal_row;

typedef struct bench_goal_table {
  bench_goal_list goals;
  bench_goal_row *row;
  int count;
  int absent[BENCH_ABSENCES];
} bench_goal_table;

/* Makes rows of those goals whose kernel is selected and can run here. False with a sentence in error; the caller calls
 * bench_goal_table_clear() in any case. */
bool bench_goal_table_open(bench_goal_table *table, const bench_goal_line *lines, const bench_selection *selection,
                           uint64_t seed, char *error, size_t error_bytes);
void bench_goal_table_clear(bench_goal_table *table);

/* Checks the row's cases and measures them in common rounds. rows[0] is of the case, rows[1] of the case that it is
 * compared with; the case_id is "" if a case is missing or was not reached. The caller clears both. False if
 * *settings->stop cut it short: the row is not done then. */
bool bench_goal_measure(bench_goal_row *row, const bench_case_settings *settings, bench_row rows[2]);

/* A guess at the seconds that it takes. */
double bench_goal_guess(const bench_goal_row *row, const bench_case_settings *settings);

/* Numbers of rows that are done, by how they ended. */
typedef struct bench_goal_counts {
  int done, failed;           /* failed: FAIL, ERROR or DEGENERATE */
  int marks[BENCH_GOAL + 1];  /* measured rows by verdict */
  int decided, open;          /* measured rows with a floor, and those whose interval holds the floor */
  int undisturbed, disturbed; /* measured rows: medians of undisturbed rounds; of all, because too few are undisturbed */
} bench_goal_counts;
bench_goal_counts bench_goals_count(const bench_goal_table *table);

/* The headings; one row, below the name of its section unless the row before it (NULL = none) is of the same; why goals are
 * absent; the counts of verdicts, and why goals are absent; the names of those that another CPU or tier would measure; the
 * command that runs the row's case, or that of comparison if that one failed. */
void bench_goals_print_head(FILE *file);
void bench_goals_print_row(const bench_goal_row *row, const bench_goal_row *before, FILE *file);
void bench_goals_print_absences(const bench_goal_table *table, FILE *file);
void bench_goals_print_summary(const bench_goal_table *table, FILE *file);
void bench_goals_print_open(const bench_goal_table *table, FILE *file);
void bench_goals_print_repro(const bench_goal_row *row, FILE *file);

/* limits.csv: one line per row of the table. */
void bench_goals_write_csv(const bench_goal_table *table, const char *run_id, FILE *file);

#endif
