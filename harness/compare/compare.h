/* SPDX-License-Identifier: MIT */
/* Two measurements of the same cases, A and B: which rows became faster or slower, by how much, and how sure that is.
 *
 * Everything is computed with logarithms of times. Where both sides have the peak loop beside each sample, a time counts
 * as time x peak, the inverse of a share of the peak, so that what slows the clock for both leaves it alone. The ratio of a
 * row is time of A / time of B: above 1, B is faster. docs/measuring.md derives the intervals. */
#ifndef BENCH_COMPARE_H
#define BENCH_COMPARE_H

#include "base/build.h"
#include "base/clock.h"
#include "cases/cases.h"
#include "report/report.h"

enum { BENCH_MOST_RUNS = 32, BENCH_MOST_FACTS = 8, BENCH_LEAST_ROUNDS = 6 /* for an interval */ };

/* ---- Result files (files.c) --------------------------------------------------------------------------------------- */

/* One run: results.csv with what lies beside it. */
typedef struct bench_result {
  char path[512];
  bench_rows rows;                  /* with samples, if there is a samples.csv */
  char fact[BENCH_MOST_FACTS][400]; /* from env.json, in the order of bench_result_facts; "" = unknown */
} bench_result;

/* Names of facts. Those before the first NULL must not differ unless --across is given; the others are told. */
extern const char *const bench_result_facts[BENCH_MOST_FACTS];
const char *bench_result_fact(const bench_result *result, const char *name);

/* The runs of one version. */
typedef struct bench_side {
  const char *name; /* the user's words */
  bench_result *run[BENCH_MOST_RUNS];
  int count;
} bench_side;

/* Reads a folder or a results.csv, or several separated by commas. False with a sentence in error. */
bool bench_side_read(bench_side *side, const char *paths, char *error, size_t error_bytes);
void bench_side_clear(bench_side *side);

/* " (3 runs, 2026-01-31T12:00:00Z, commit 0123456789, CPU)" */
void bench_side_describe(const bench_side *side, char *text, size_t bytes);

/* Says on stderr which facts differ between the runs of both sides. Returns 0, or BENCH_EXIT_USAGE unless `across`. */
int bench_sides_check(const bench_side *a, const bench_side *b, bool across);

/* ---- Results saved under a name, in $XDG_STATE_HOME/attn/baselines (sides.c) -------------------------------------- */

enum { BENCH_BASELINE_PATH = 4096 };

/* The folder of a name, which an option gave. Both return 0 or an exit code, having said why. */
int bench_baseline_path(const char *name, const char *option, char path[BENCH_BASELINE_PATH]);
int bench_baseline_save(const bench_side *side, const char *name);

/* ---- Verdicts (verdict.c) ----------------------------------------------------------------------------------------- */

typedef enum bench_change { BENCH_SLOWER, BENCH_INCONCLUSIVE, BENCH_SAME, BENCH_FASTER } bench_change; /* worst first */
extern const char *const bench_change_names[];

/* Where the uncertainty of a ratio comes from: which errors count (verdict.c). */
typedef enum bench_design {
  BENCH_ONE_RUN,       /* one run a side: how runs differ is guessed */
  BENCH_SEVERAL_RUNS,  /* several runs a side, alternated: how runs differ is known */
  BENCH_PAIRED_ROUNDS, /* both sides in one run, side by side in each round */
} bench_design;

/* One case and kernel, or the mean of several. */
typedef struct bench_comparison {
  const bench_row *a, *b;                                    /* in the first run of each side */
  double level_a[BENCH_MOST_RUNS], level_b[BENCH_MOST_RUNS]; /* one value a run: median log(time), or log(time x peak) */
  int runs_a, runs_b;
  double within; /* standard error of the log-ratio from the rounds within the runs; of paired rounds also from placements */
  double runs;   /* standard deviation of the runs of a side; NaN where they are too few */
  double drift;  /* how far the peak loop itself moved: |log ratio|; NaN without a peak loop */
  double noise;  /* |log ratio| of the A/A control; NaN without one */
  int rounds;    /* fewest rounds of any run */
  int whole;     /* paired rounds in which no other program had a core */

  double log_ratio, error;       /* error: its standard error, from all causes */
  int degrees;                   /* degrees of freedom */
  double ratio, ci_lo, ci_hi, p; /* 95 % interval of this ratio alone; p: Holm-adjusted over the table */
  bench_change verdict;
  char reason[200];
} bench_comparison;

typedef struct bench_comparisons {
  bench_design design;
  double margin; /* a verdict needs a ratio beyond 1 + margin, or below its inverse */
  bench_comparison *item;
  int count;
  bench_comparison mean; /* geometric */
} bench_comparisons;

/* Fills levels, log_ratio and the known parts of its error from the rows of the runs. */
void bench_comparison_measure(bench_comparison *c, const bench_row *const *a, int runs_a, const bench_row *const *b,
                              int runs_b);

/* The same from paired rounds: of A and B, and of two trials of the same, the A/A control. Keeps a and b of *c. */
void bench_comparison_measure_paired(bench_comparison *c, const bench_pairs *both, const bench_pairs *control);

/* Fills error, interval, p, verdict and reason of every item, and the mean. False if memory is short. */
bool bench_comparisons_decide(bench_comparisons *table);

/* The geometric mean of some items (`count` of them, at least 1). */
bench_comparison bench_comparisons_mean(const bench_comparisons *table, const bench_comparison *const *item, int count);

/* ---- Tables (match.c) --------------------------------------------------------------------------------------------- */

/* Rows that stand on one side only, or have no time there. */
typedef struct bench_unpaired {
  const bench_row *a, *b;
} bench_unpaired;

typedef struct bench_matches {
  bench_comparisons table;
  bench_unpaired *unpaired;
  int unpaired_count;
} bench_matches;

/* Add a comparison, or two rows of which one at least has no time. False if memory is short. */
bool bench_matches_add(bench_matches *matches, const bench_comparison *comparison);
bool bench_matches_add_unpaired(bench_matches *matches, const bench_row *a, const bench_row *b);

/* bench_matches_decide() gives each pair its verdict and sorts them, worst first. bench_match() also pairs the rows of both
 * sides by case and kernel before it; with `across` whatever their threads, if each case has one number of threads on each
 * side. False if memory is short. */
bool bench_matches_decide(bench_matches *matches);
bool bench_match(const bench_side *a, const bench_side *b, double margin, bool across, bench_matches *matches);
void bench_matches_clear(bench_matches *matches);

/* Prints the command that can decide what was INCONCLUSIVE, if anything was. */
void bench_sides_advise(const bench_side *a, const bench_side *b, const bench_matches *m);

/* --fail-on (gate.c). The first checks its texts, and names one that is not understood. The second returns 0, or
 * BENCH_EXIT_FAILED after it has said how many rows fail by which text. */
bool bench_failures_known(const cli_list *fail_on);
int bench_failures_conclude(const bench_matches *m, const cli_list *fail_on);

/* ---- Two builds in one process (paired.c) ------------------------------------------------------------------------- */

enum { BENCH_PAIRED_ROUNDS_COUNT = 121, BENCH_LEAST_PAIRED_ROUNDS = 21 };

/* Checks a kernel of both builds on a case and times them side by side, and A or B once more, in settings->rounds rounds (0:
 * 121, or fewer that fit the case's budget, but 21). rows[0] is of A, rows[1] of B; the caller clears them. *c is measured
 * if both have times. False if *settings->stop cut it short. */
bool bench_paired_measure(const bench_copies sides[2], const bench_case *bench, const attn_kernel_info *kernel,
                          const bench_case_settings *settings, bench_row rows[2], bench_comparison *c);

/* Cases and kernels to time with both builds, and the rows that come out. */
typedef struct bench_paired_job {
  bench_copies sides[2];
  bench_case_list cases;
  const attn_kernel_info *kernels[BENCH_MAX_KERNELS + 1];
  int kernel_count;
  bench_case_settings settings;
  bench_progress progress;
  bench_row *rows; /* two per case and kernel; matches point there */
} bench_paired_job;

/* Measures every kernel on every case and gives each pair its verdict; after an interrupt, the pairs measured until then.
 * False if memory is short. bench_matches_clear() comes before bench_paired_clear(). */
bool bench_paired_run(bench_paired_job *job, double margin, bench_matches *matches);
void bench_paired_clear(bench_paired_job *job);

/* ---- Output (print.c) --------------------------------------------------------------------------------------------- */

typedef struct bench_comparison_report {
  const char *name_a, *name_b;
  char about_a[200], about_b[200]; /* runs, commit, date, CPU */
  const bench_matches *matches;
  const char *by[2]; /* columns of results.csv whose values are rows and columns of the pivot table; NULL = none */
  bool colour;
} bench_comparison_report;

/* The column of results.csv that an axis or column is, or NULL. */
const char *bench_pivot_column(const char *name);

/* Writers for bench_file_write(); the context is a bench_comparison_report. */
void bench_comparison_print(void *report, FILE *file);
void bench_comparison_write_markdown(void *report, FILE *file);
void bench_comparison_write_csv(void *report, FILE *file);
void bench_comparison_write_json(void *report, FILE *file);

/* Writes the files whose path is not NULL. False after an error, said on stderr. */
bool bench_comparison_write(bench_comparison_report *report, const char *markdown, const char *csv, const char *json);

#endif
