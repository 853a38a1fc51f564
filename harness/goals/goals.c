/* SPDX-License-Identifier: MIT */
/* The table of goals, and what it says of measured values. */
#include "goals/goals.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli.h"
#include "src/api/text.h"

enum { WORDS = 200 };

/* ---- Metrics ------------------------------------------------------------------------------------------------------- */

typedef const bench_goal_sample *sample;

static double percent_of_peak(sample s, sample against) { return (void)against, 100 * s->peak_share; }
static double points(sample s, sample against) { return 100 * (s->peak_share - against->peak_share); }
static double ratio(sample s, sample against) { return s->peak_share / against->peak_share; }
static double cost(sample s, sample against) { return against->peak_share / s->peak_share; }
static double relative_time(sample s, sample against) { return s->time_ns / against->time_ns; }
static double speedup(sample s, sample against) { return against->time_ns / s->time_ns; }
static double nanoseconds(sample s, sample against) { return (void)against, s->time_ns; }

/* The time per FLOP is inverse to the share of the peak, so that `cost` is a ratio of shares. */
const bench_metric bench_metrics[] = {
    [BENCH_PEAK] = {.name = "peak", .unit = "%", .decimals = 1, .peak = true, .value = percent_of_peak},
    [BENCH_READS] = {.name = "reads", .unit = "%", .decimals = 1, .reads = true, .value = percent_of_peak},
    [BENCH_POINTS] = {.name = "points", .unit = "points", .decimals = 1, .against = true, .peak = true, .value = points},
    [BENCH_RATIO] = {.name = "ratio", .unit = "x", .decimals = 3, .against = true, .peak = true, .value = ratio},
    [BENCH_COST] = {.name = "cost", .unit = "x", .decimals = 3, .against = true, .peak = true, .lower = true, .value = cost},
    [BENCH_TIME] = {.name = "time", .unit = "x", .decimals = 3, .against = true, .lower = true, .value = relative_time},
    [BENCH_SPEEDUP] = {.name = "speedup", .unit = "x", .decimals = 3, .against = true, .value = speedup},
    [BENCH_NS] = {.name = "ns", .unit = "ns", .decimals = 0, .lower = true, .value = nanoseconds},
    [BENCH_WORKSPACE] = {.name = "workspace", .unit = "KiB", .decimals = 0, .lower = true},
};

/* ---- Lines --------------------------------------------------------------------------------------------------------- */

#define NONE           NAN
#define SECTION(title) {.section = (title)},
#define GOAL(...)      GOAL_OVER("", __VA_ARGS__)
#define GOAL_OVER(other, what, names, given, difference, words, least, best, row) \
  {.against_kernel = (other),                                                     \
   .metric = &bench_metrics[BENCH_##what],                                        \
   .kernels = (names),                                                            \
   .axes = (given),                                                               \
   .against = (difference),                                                       \
   .cpu = (words),                                                                \
   .floor = (least),                                                              \
   .goal = (best),                                                                \
   .text = (row)},
const bench_goal_line bench_limits[] = {
#include "goals/limits.def"
    {.section = NULL},
};

/* Sets the axes of "heads=1 seq=2048", one value each. */
static bool set_axes(bench_grid *grid, const char *axes, bench_spec *spec, char *error, size_t error_bytes) {
  char words[WORDS];
  snprintf(words, sizeof words, "%s", axes);
  for (char *word = strtok(words, " "); word; word = strtok(NULL, " "))
    if (!bench_grid_set(grid, word, error, error_bytes)) return false;
  const int first[AXIS_COUNT] = {0};
  *spec = bench_grid_spec(grid, first);
  return true;
}

static bool append(bench_goal_list *list, const bench_goal *goal, char *error, size_t error_bytes) {
  bench_goal *grown = bench_grown(list->item, list->count, sizeof *list->item);
  if (!grown) return bench_say(error, error_bytes, "out of memory");
  list->item = grown;
  list->item[list->count++] = *goal;
  return true;
}

bool bench_goals_make(const bench_goal_line *line, bench_goal_list *list, char *error, size_t error_bytes) {
  bool fine = true;
  for (const char *section = ""; fine && (line->metric || line->section); line++) {
    if (line->section) section = line->section;
    if (!line->metric) continue;
    bench_goal goal = {.line = line, .section = section};
    bench_grid grid = {0};
    fine = set_axes(&grid, line->axes, &goal.spec, error, error_bytes) &&
           set_axes(&grid, line->against, &goal.against, error, error_bytes);
    bench_grid_clear(&grid);
    for (const char *names = line->kernels; fine && cli_next_word(&names, goal.kernel, sizeof goal.kernel);)
      fine = append(list, &goal, error, error_bytes);
  }
  return fine;
}

void bench_goals_clear(bench_goal_list *list) {
  free(list->item);
  *list = (bench_goal_list){0};
}

/* ---- Verdicts ------------------------------------------------------------------------------------------------------ */

/* Whether one word of a condition holds. */
static bool holds(const char *word, const char *vendor, const char *tiers) {
  if (!strcmp(word, "AMD")) return !strcmp(vendor, "AuthenticAMD");
  if (!strcmp(word, "Intel")) return !strcmp(vendor, "GenuineIntel");
  return !strcmp(word, "any") || attn_has_word(tiers, word);
}

bool bench_goal_applies(const char *cpu, const char *vendor, const char *tiers) {
  char words[WORDS];
  snprintf(words, sizeof words, "%s", cpu);
  for (const char *word = strtok(words, " "); word; word = strtok(NULL, " "))
    if (!holds(word, vendor, tiers)) return false;
  return true;
}

static bool reaches(const bench_goal_line *goal, double value, double mark) {
  return goal->metric->lower ? value <= mark : value >= mark;
}

/* True if the interval holds values on both sides of the floor. Without an interval this is unknown, and false. */
static bool is_open(const bench_goal_line *goal, const bench_summary *measured) {
  if (isnan(measured->ci_lo) || isnan(measured->ci_hi)) return false;
  return reaches(goal, measured->ci_lo, goal->floor) != reaches(goal, measured->ci_hi, goal->floor);
}

bench_goal_verdict bench_goal_verdict_of(const bench_goal_line *goal, const bench_summary *measured) {
  if (isnan(goal->floor)) return (bench_goal_verdict){BENCH_NO_FLOOR, false};
  const bool floor = reaches(goal, measured->median, goal->floor), best = reaches(goal, measured->median, goal->goal);
  const bench_mark mark = !floor ? BENCH_SHORT : best ? BENCH_GOAL : BENCH_FLOOR;
  return (bench_goal_verdict){mark, is_open(goal, measured)};
}

const char *bench_mark_name(bench_mark mark) {
  static const char *const names[] = {"-", "short", "ok", "goal"};
  return names[mark];
}
