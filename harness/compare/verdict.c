/* SPDX-License-Identifier: MIT */
/* From rows to verdicts. The error of a ratio is what rounds, runs, machine and table say of it, whichever is known:
 *
 *   paired rounds   within^2 + unequal^2                      within: of rounds and placements (timing/stats.h);
 *                                                             unequal: what A/A controls differ beyond their own errors
 *   several runs    runs^2 (1 / n_a + 1 / n_b) + drift^2      runs: of this row, or typical of the table if that is more
 *   one run a side  within^2 + floor^2 + drift^2              floor: the largest of 1 %, the A/A controls of both files,
 *                                                             and the spread of the ratios of each kernel
 *
 * Times of one run are alike (same pages, same clock, same other programs), so their number says nothing of the next run:
 * the rounds within a run are the wrong measure of error for two files. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/compare.h"

enum {
  BLOCKS = 4,
  LEAST_SPREAD = 6,
  LEAST_OF_KERNEL = 3,
  MOST_DEGREES = 60,
  FEW_DEGREES = 5 /* single runs have outliers: seven real ones had a false verdict with 60 */
};

static const double ONE_RUN_FLOOR = 0.01; /* two runs of one program differ so, at the least, on quiet machines */
static const double RUNS_FLOOR = 0.0005;  /* a few runs that agree by chance */
static const double LEAST_ERROR = 1e-9;   /* times are all equal */
static const double NORMAL = 1.959964;    /* 97.5 % quantile: half a 95 % interval in standard errors */
static const double SIGMA = 1.482602;     /* standard deviation / median absolute deviation of a normal distribution */
static const double ALPHA = 0.01;         /* chance of any false FASTER or SLOWER in a table */
static const double OUT_OF_LINE = 2;      /* standard errors that a control may be off without further notice */

const char *const bench_change_names[] = {"SLOWER", "INCONCLUSIVE", "SAME", "FASTER", NULL};

static double squared(double x) { return x * x; }
static double or_zero(double x) { return isnan(x) ? 0 : x; }

static double mean_of(const double *values, int count) {
  double sum = 0;
  for (int i = 0; i < count; i++) sum += values[i];
  return sum / count;
}

static double squares_of(const double *values, int count) {
  const double mean = mean_of(values, count);
  double sum = 0;
  for (int i = 0; i < count; i++) sum += squared(values[i] - mean);
  return sum;
}

/* ---- One run -------------------------------------------------------------------------------------------------------- */

/* A run of one row. */
typedef struct run_level {
  double value, error; /* median log(time) or log(time x peak), and its standard error */
  double peak;         /* median log(peak); NaN without */
} run_level;

/* Peaks of samples are there for all rounds, or for none (harness/compare/files.c). */
static bool has_peaks(const bench_row *row) { return row->samples_ns ? row->peaks != NULL : row->peak_gflops > 0; }

/* Standard error of the median from its interval; NaN where there is none. */
static double error_of(double lo, double hi) { return (hi - lo) / (2 * NORMAL); }

/* Another estimate, from the medians of consecutive blocks of rounds: it is larger where rounds that follow each other are
 * alike, as under drift. */
static double error_of_blocks(const double *logs, int rounds) {
  double median[BLOCKS];
  const int length = rounds / BLOCKS;
  if (length < 4) return 0;
  for (int b = 0; b < BLOCKS; b++) median[b] = bench_median(logs + b * length, length);
  return sqrt(squares_of(median, BLOCKS) / (BLOCKS - 1) / BLOCKS);
}

/* Without samples, from the medians and intervals of results.csv. */
static run_level summary_level(const bench_row *row, bool scaled) {
  const bench_summary *t = &row->time;
  return (run_level){.value = log(t->median) + (scaled ? log(1e9 * row->peak_gflops) : 0),
                     .error = error_of(log(t->ci_lo), log(t->ci_hi)),
                     .peak = row->peak_gflops > 0 ? log(1e9 * row->peak_gflops) : NAN};
}

static run_level level_of(const bench_row *row, bool scaled) {
  const int n = row->time.n;
  double *logs = row->samples_ns ? malloc(2 * (size_t)n * sizeof *logs) : NULL;
  const bool has_peak = has_peaks(row);
  if (!logs) return summary_level(row, scaled);
  double *const peaks = logs + n;
  for (int i = 0; i < n; i++) {
    peaks[i] = has_peak ? log(row->peaks[i]) : NAN;
    logs[i] = log(row->samples_ns[i]) + (scaled ? peaks[i] : 0);
  }
  const bench_summary summary = bench_summarise(logs, n);
  const run_level level = {
      .value = summary.median,
      .error = n < BENCH_LEAST_ROUNDS ? NAN : fmax(error_of(summary.ci_lo, summary.ci_hi), error_of_blocks(logs, n)),
      .peak = has_peak ? bench_median(peaks, n) : NAN};
  free(logs);
  return level;
}

/* ---- One row of the table ------------------------------------------------------------------------------------------- */

static bool all_have_peaks(const bench_row *const *rows, int count) {
  for (int i = 0; i < count; i++)
    if (!has_peaks(rows[i])) return false;
  return true;
}

/* The levels of one side. Adds its part of within^2; returns the mean of its peaks. */
static double measure_side(bench_comparison *c, const bench_row *const *rows, int runs, bool scaled, double *levels) {
  double peaks = 0, squares = 0;
  for (int i = 0; i < runs; i++) {
    const run_level level = level_of(rows[i], scaled);
    levels[i] = level.value;
    peaks += level.peak;
    squares += squared(level.error);
    if (!c->rounds || rows[i]->time.n < c->rounds) c->rounds = rows[i]->time.n;
    if (!isnan(rows[i]->noise)) c->noise = fmax(or_zero(c->noise), log1p(rows[i]->noise));
  }
  c->within += squares / squared(runs);
  return peaks / runs;
}

void bench_comparison_measure(bench_comparison *c, const bench_row *const *a, int runs_a, const bench_row *const *b,
                              int runs_b) {
  const bool scaled = all_have_peaks(a, runs_a) && all_have_peaks(b, runs_b);
  const int degrees = runs_a + runs_b - 2;
  *c = (bench_comparison){.a = a[0], .b = b[0], .runs_a = runs_a, .runs_b = runs_b, .noise = NAN, .runs = NAN};
  const double peak_a = measure_side(c, a, runs_a, scaled, c->level_a);
  const double peak_b = measure_side(c, b, runs_b, scaled, c->level_b);
  c->within = sqrt(c->within);
  c->drift = fabs(peak_a - peak_b);
  c->log_ratio = mean_of(c->level_a, runs_a) - mean_of(c->level_b, runs_b);
  if (runs_a > 1 && runs_b > 1) c->runs = sqrt((squares_of(c->level_a, runs_a) + squares_of(c->level_b, runs_b)) / degrees);
}

void bench_comparison_measure_paired(bench_comparison *c, const bench_pairs *both, const bench_pairs *control) {
  const bench_estimate ratio = bench_paired_estimate(both), same = bench_paired_estimate(control);
  *c = (bench_comparison){.a = c->a, .b = c->b, .runs_a = 1, .runs_b = 1, .runs = NAN, .drift = NAN, .rounds = both->n};
  c->whole = ratio.rounds;
  c->log_ratio = ratio.value;
  c->within = ratio.error;
  c->degrees = ratio.degrees;
  c->noise = fabs(same.value);
}

/* ---- What the whole table says of errors ---------------------------------------------------------------------------- */

typedef struct table_errors {
  double *value;  /* room for two per item */
  double unequal; /* spread of A/A controls beyond their own errors */
  double spread;  /* spread of the ratios beyond the errors within runs */
  double runs, drift;
  int degrees;
} table_errors;

/* The median of get() over the items that have a value; NaN if none has. */
static double median_over(const bench_comparisons *t, double *value, double (*get)(const bench_comparison *)) {
  int n = 0;
  for (int i = 0; i < t->count; i++)
    if (!isnan(get(&t->item[i]))) value[n++] = get(&t->item[i]);
  return bench_median(value, n);
}

static double get_within(const bench_comparison *c) { return c->within; }
static double get_noise(const bench_comparison *c) { return c->noise; }
static double get_drift(const bench_comparison *c) { return c->drift; }
static double get_runs_squared(const bench_comparison *c) { return squared(c->runs); }

/* The median of a variance with d degrees of freedom is below the variance itself (Wilson and Hilferty 1931). */
static double unbiased(double median, int d) { return median / pow(1 - 2.0 / (9 * d), 3); }

/* The median of the ratios of item[index]'s kernel (NULL: of all). *count is how many there are. */
static double middle_of(const bench_comparisons *t, const bench_row *like, double *value, int *count) {
  *count = 0;
  for (int i = 0; i < t->count; i++)
    if (!like || !t->item[i].a || !strcmp(t->item[i].a->kernel, like->kernel)) value[(*count)++] = t->item[i].log_ratio;
  return bench_median(value, *count);
}

/* The spread of ratios around the median of their kernel's ratios, because a change of a whole kernel is no noise; around
 * the median of all rows if too few kernels have enough rows, and 0 if all rows are too few. `value` has room for twice as
 * many as there are items. */
static double spread_of(const bench_comparisons *t, double *value) {
  double *const away = value + t->count;
  int n = 0, all, own;
  for (int i = 0; i < t->count; i++) {
    const double middle = middle_of(t, t->item[i].a, value, &own);
    if (own >= LEAST_OF_KERNEL) away[n++] = fabs(t->item[i].log_ratio - middle) * sqrt(own / (own - 1.0));
  }
  if (n < LEAST_SPREAD) {
    const double middle = middle_of(t, NULL, value, &all);
    for (n = 0; n < t->count; n++) away[n] = fabs(t->item[n].log_ratio - middle) * sqrt(all / fmax(all - 1.0, 1));
  }
  return n < LEAST_SPREAD ? 0 : SIGMA * bench_median(away, n);
}

static table_errors learn(const bench_comparisons *t, double *value) {
  table_errors e = {.value = value, .degrees = MOST_DEGREES};
  const double within = or_zero(median_over(t, value, get_within));
  const double noise = or_zero(median_over(t, value, get_noise)) * SIGMA;
  const int d = t->count ? t->item[0].runs_a + t->item[0].runs_b - 2 : 0;
  e.drift = or_zero(median_over(t, value, get_drift));
  e.unequal = sqrt(fmax(0, squared(noise) - squared(within)));
  e.spread = sqrt(fmax(0, squared(spread_of(t, value)) - squared(within)));
  if (d > 0) e.runs = fmax(RUNS_FLOOR, sqrt(unbiased(or_zero(median_over(t, value, get_runs_squared)), d)));
  if (t->design == BENCH_ONE_RUN) e.degrees = t->count < LEAST_SPREAD ? 3 : FEW_DEGREES;
  if (t->design == BENCH_SEVERAL_RUNS) e.degrees = t->count < LEAST_SPREAD ? d : 2 * d;
  return e;
}

/* ---- Errors --------------------------------------------------------------------------------------------------------- */

/* An error and its name: the largest is the reason why nothing can be said. */
typedef struct part {
  double error;
  const char *what;
} part;

static double combine(const part *parts, int count, const char **largest) {
  double sum = 0, most = -1;
  for (int i = 0; i < count; i++) {
    sum += squared(parts[i].error);
    if (parts[i].error > most) *largest = parts[i].what;
    most = fmax(most, parts[i].error);
  }
  return sqrt(sum);
}

static double error_paired(const bench_comparison *c, const table_errors *e, const char **largest) {
  const double own = fmax(0, c->noise - OUT_OF_LINE * c->within);
  const part parts[] = {{c->within, "rounds and placements differ by more"},
                        {fmax(e->unequal, own), "the A/A control differs as well"}};
  return combine(parts, 2, largest);
}

static double error_of_runs(const bench_comparison *c, const table_errors *e, const char **largest) {
  const double runs = fmax(e->runs, or_zero(c->runs)) * sqrt(1.0 / c->runs_a + 1.0 / c->runs_b);
  const part parts[] = {{runs, "runs of one side differ by more"}, {or_zero(c->drift), "the peak loop moved as well"}};
  return combine(parts, 2, largest);
}

static double error_of_one_run(const bench_comparison *c, const table_errors *e, const char **largest) {
  const double controls = e->unequal > 0 ? fmax(e->unequal, or_zero(c->noise)) : 0;
  const bool wide = e->spread > fmax(controls, ONE_RUN_FLOOR), noisy = !wide && controls > ONE_RUN_FLOOR;
  const part parts[] = {{c->within, "rounds differ by more"},
                        {wide    ? e->spread
                         : noisy ? controls
                                 : ONE_RUN_FLOOR,
                         wide    ? "ratios of equal kernels spread as far"
                         : noisy ? "the A/A controls differ as well"
                                 : "one run a side may differ so by chance"},
                        {isnan(c->drift) ? e->drift : c->drift, "the peak loop moved as well"}};
  return combine(parts, 3, largest);
}

/* ---- Verdicts ------------------------------------------------------------------------------------------------------- */

static void set_interval(bench_comparison *c) {
  const double half = c->error * bench_student_quantile(0.05, c->degrees);
  c->ratio = exp(c->log_ratio);
  c->ci_lo = exp(c->log_ratio - half);
  c->ci_hi = exp(c->log_ratio + half);
  c->p = bench_student_p(c->log_ratio / fmax(c->error, LEAST_ERROR), c->degrees);
}

static double half_width(const bench_comparison *c) { return 100 * (c->ci_hi / c->ratio - 1); }

/* The p-value is adjusted, all else is set. `largest` is the name of the largest error. */
static void conclude_comparison(bench_comparison *c, double margin, const char *largest) {
  const double limit = log1p(margin);
  const bool apart = c->p <= ALPHA;
  c->verdict = BENCH_INCONCLUSIVE;
  if (apart && fabs(c->log_ratio) > limit) {
    c->verdict = c->log_ratio < 0 ? BENCH_SLOWER : BENCH_FASTER;
    snprintf(c->reason, sizeof c->reason, "p %.2g", c->p);
  } else if (log(c->ci_hi) < limit && log(c->ci_lo) > -limit) {
    c->verdict = BENCH_SAME;
    snprintf(c->reason, sizeof c->reason, "within %.3g %%", 100 * margin);
  } else if (apart) {
    snprintf(c->reason, sizeof c->reason, "differs, perhaps by less than %.3g %%", 100 * margin);
  } else {
    snprintf(c->reason, sizeof c->reason, "+-%.2g %%: %s", half_width(c), largest);
  }
}

static void refuse(bench_comparison *c, bench_design design) {
  c->error = c->ci_lo = c->ci_hi = NAN;
  c->p = 1;
  c->verdict = BENCH_INCONCLUSIVE;
  if (isnan(c->log_ratio))
    snprintf(c->reason, sizeof c->reason, "out of memory");
  else
    snprintf(c->reason, sizeof c->reason, "%d rounds%s are too few for an interval",
             design == BENCH_PAIRED_ROUNDS ? c->whole : c->rounds,
             design == BENCH_PAIRED_ROUNDS ? " in which no other program had the core" : "");
}

static bool has_error(const bench_comparison *c, bench_design design) {
  return !isnan(c->log_ratio) && (design == BENCH_SEVERAL_RUNS || !isnan(c->within));
}

static bool decide(bench_comparisons *t, const table_errors *e) {
  static double (*const errors[])(const bench_comparison *, const table_errors *, const char **) = {
      error_of_one_run, error_of_runs, error_paired};
  const char **largest = calloc((size_t)t->count + 1, sizeof *largest);
  for (int i = 0; largest && i < t->count; i++) {
    bench_comparison *c = &t->item[i];
    if (t->design != BENCH_PAIRED_ROUNDS) c->degrees = e->degrees;
    c->error = errors[t->design](c, e, &largest[i]);
    set_interval(c);
    if (!has_error(c, t->design)) refuse(c, t->design);
    e->value[i] = c->p;
  }
  const bool fine = largest && bench_holm(e->value, t->count);
  for (int i = 0; fine && i < t->count; i++) {
    t->item[i].p = e->value[i];
    if (has_error(&t->item[i], t->design)) conclude_comparison(&t->item[i], t->margin, largest[i]);
  }
  free(largest);
  return fine;
}

/* ---- Means ---------------------------------------------------------------------------------------------------------- */

/* Runs that shift all rows at once shift their mean: the mean has a level in every run, and these are compared. */
static void average_runs(bench_comparison *mean, const bench_comparison *const *item, int count) {
  mean->runs_a = item[0]->runs_a;
  mean->runs_b = item[0]->runs_b;
  for (int i = 0; i < count; i++) {
    for (int r = 0; r < mean->runs_a; r++) mean->level_a[r] += item[i]->level_a[r] / count;
    for (int r = 0; r < mean->runs_b; r++) mean->level_b[r] += item[i]->level_b[r] / count;
  }
  mean->degrees = mean->runs_a + mean->runs_b - 2;
  const double squares = squares_of(mean->level_a, mean->runs_a) + squares_of(mean->level_b, mean->runs_b);
  mean->runs = fmax(RUNS_FLOOR, sqrt(squares / mean->degrees));
}

/* Errors within runs and of placement average out; what shifts a whole run does not. */
static double error_of_mean(const bench_comparisons *t, const bench_comparison *mean, const table_errors *e, int count) {
  const double independent = squared(mean->within) + (squared(e->spread) + squared(e->unequal)) / count;
  if (t->design == BENCH_PAIRED_ROUNDS) return sqrt(squared(mean->within) + squared(e->unequal) / count);
  if (t->design == BENCH_ONE_RUN) return sqrt(independent + squared(ONE_RUN_FLOOR) + squared(e->drift));
  return sqrt(squared(mean->runs) * (1.0 / mean->runs_a + 1.0 / mean->runs_b) + squared(e->drift));
}

/* `unknown`: rows without an error of their own. */
static void refuse_mean(bench_comparison *mean, int unknown, int count, bench_design design) {
  refuse(mean, design);
  if (isnan(mean->log_ratio)) return;
  snprintf(mean->reason, sizeof mean->reason, "%d of its %d rows have too few rounds for an interval", unknown, count);
}

/* Degrees of freedom of a sum of independent variances (Satterthwaite): the sum squared / the sum of each variance squared
 * over its own degrees. `shares` is that second sum. */
static int join_degrees(double sum, double shares) {
  return shares > 0 ? (int)fmin(squared(sum) / shares, MOST_DEGREES) : MOST_DEGREES;
}

static bench_comparison mean_with(const bench_comparisons *t, const bench_comparison *const *item, int count,
                                  const table_errors *e) {
  bench_comparison mean = {.degrees = e->degrees, .runs = NAN, .drift = e->drift, .noise = NAN};
  int unknown = 0;
  double shares = 0;
  for (int i = 0; i < count; i++) {
    const double square = squared(or_zero(item[i]->within) / count);
    unknown += !has_error(item[i], t->design);
    mean.log_ratio += item[i]->log_ratio / count;
    mean.within += square;
    shares += squared(square) / fmax(item[i]->degrees, 1);
  }
  if (t->design == BENCH_PAIRED_ROUNDS) mean.degrees = join_degrees(mean.within, shares);
  mean.within = sqrt(mean.within);
  if (t->design == BENCH_SEVERAL_RUNS) average_runs(&mean, item, count);
  mean.error = error_of_mean(t, &mean, e, count);
  set_interval(&mean);
  if (unknown)
    refuse_mean(&mean, unknown, count, t->design);
  else
    conclude_comparison(&mean, t->margin, "no more can be said of these runs");
  return mean;
}

bench_comparison bench_comparisons_mean(const bench_comparisons *t, const bench_comparison *const *item, int count) {
  double *value = calloc(2 * (size_t)t->count + 1, sizeof *value);
  bench_comparison mean = {.ratio = NAN, .ci_lo = NAN, .ci_hi = NAN, .verdict = BENCH_INCONCLUSIVE};
  if (!value) return mean;
  const table_errors e = learn(t, value);
  mean = mean_with(t, item, count, &e);
  free(value);
  return mean;
}

bool bench_comparisons_decide(bench_comparisons *t) {
  double *value = calloc(2 * (size_t)t->count + 1, sizeof *value);
  const bench_comparison **all = calloc((size_t)t->count + 1, sizeof *all);
  bool fine = value && all;
  if (fine) {
    const table_errors e = learn(t, value);
    fine = decide(t, &e);
    for (int i = 0; i < t->count; i++) all[i] = &t->item[i];
    if (fine && t->count) t->mean = mean_with(t, all, t->count, &e);
  }
  free(all);
  free(value);
  return fine;
}
