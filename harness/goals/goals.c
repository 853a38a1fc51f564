/* SPDX-License-Identifier: MIT */
/* Reads goals, and compares measured values with them. */
#include "goals/goals.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli.h"
#include "base/select.h"

enum { LINE = 400, FIELDS = 8, SENTENCE = 300, KERNEL = sizeof((bench_goal){0}.kernel) };

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
static const bench_metric metrics[] = {
    {.name = "peak", .unit = "%", .decimals = 1, .peak = true, .value = percent_of_peak},
    {.name = "reads", .unit = "%", .decimals = 1, .reads = true, .value = percent_of_peak},
    {.name = "points", .unit = "points", .decimals = 1, .against = true, .peak = true, .value = points},
    {.name = "ratio", .unit = "x", .decimals = 3, .against = true, .peak = true, .value = ratio},
    {.name = "cost", .unit = "x", .decimals = 3, .against = true, .peak = true, .lower = true, .value = cost},
    {.name = "time", .unit = "x", .decimals = 3, .against = true, .lower = true, .value = relative_time},
    {.name = "speedup", .unit = "x", .decimals = 3, .against = true, .value = speedup},
    {.name = "ns", .unit = "ns", .decimals = 0, .lower = true, .value = nanoseconds},
    {.name = "workspace", .unit = "KiB", .decimals = 0, .lower = true},
};
enum { METRICS = sizeof metrics / sizeof *metrics };

/* ---- Lines --------------------------------------------------------------------------------------------------------- */

static char *trim(char *text) {
  text += strspn(text, " \t");
  size_t length = strlen(text);
  while (length && isspace((unsigned char)text[length - 1])) text[--length] = 0;
  return text;
}

/* Cuts at every `separator` and stores the first `most` parts; returns the number of all parts. */
static int split(char *text, char separator, char **part, int most) {
  int count = 0;
  for (char *next = text; next; count++) {
    char *here = next;
    next = strchr(here, separator);
    if (next) *next++ = 0;
    if (count < most) part[count] = trim(here);
  }
  return count;
}

static const bench_metric *find_metric(const char *name, char *error) {
  const char *names[METRICS + 1] = {NULL};
  for (int i = 0; i < METRICS; i++) {
    if (!strcmp(name, metrics[i].name)) return &metrics[i];
    names[i] = metrics[i].name;
  }
  const char *near = cli_nearest(name, names);
  snprintf(error, SENTENCE, "unknown metric '%.40s'%s%s", name, near ? "; did you mean " : "", near ? near : "");
  return NULL;
}

/* Sets the axes of "heads=1 seq=2048", one value each. */
static bool set_axes(bench_grid *grid, char *axes, bench_spec *spec, char *error) {
  for (char *word = strtok(axes, " \t"); word; word = strtok(NULL, " \t"))
    if (!bench_grid_set(grid, word, error, SENTENCE)) return false;
  *spec = (bench_spec){0};
  for (int i = 0; i < AXIS_COUNT; i++) {
    if (grid->axes[i].count > 1)
      return bench_say(error, SENTENCE, "axis %s has %d values: a row is one case", bench_axis_get((bench_axis)i)->name,
                       grid->axes[i].count);
    if (grid->axes[i].count) memcpy(spec->value[i], grid->axes[i].value[0], BENCH_WORD);
  }
  return true;
}

/* Whether the source has a kernel of this name. */
static bool is_kernel(const char *name) {
  const char *other, *reason;
  for (int i = 0; (other = attn_kernel_not_built(i, &reason)); i++)
    if (!strcmp(name, other)) return true;
  return attn_kernel_find(name) != NULL;
}

/* A kernel's name, cut to fit a goal: no cut one is the name of another kernel. */
static bool read_kernel(const char *name, const char *field, char kernel[KERNEL], char *error) {
  snprintf(kernel, KERNEL, "%.*s", KERNEL - 1, name);
  return is_kernel(kernel) ||
         bench_say(error, SENTENCE, "'%.40s' in `%s` is no kernel; see attnbench list kernels", name, field);
}

/* Takes the word kernel=NAME out of `against`. */
static bool take_kernel(bench_goal *goal, char *against, char *error) {
  static const char key[] = "kernel=";
  char *word = strstr(against, key);
  if (!word || (word != against && !strchr(" \t", word[-1]))) return true;
  const int length = (int)strcspn(word, " \t");
  char name[LINE];
  snprintf(name, sizeof name, "%.*s", length - (int)strlen(key), word + strlen(key));
  if (!read_kernel(name, "against", goal->against_kernel, error)) return false;
  if (goal->metric->peak)
    return bench_say(error, SENTENCE, "metric %s counts shares of one peak: against kernel= needs time or speedup",
                     goal->metric->name);
  memset(word, ' ', (size_t)length);
  return true;
}

static bool read_cases(bench_goal *goal, char *axes, char *against, char *error) {
  bench_grid grid = {0};
  if (*against && !goal->metric->against)
    return bench_say(error, SENTENCE, "metric %s compares with nothing: `against` should be empty", goal->metric->name);
  bool fine = take_kernel(goal, against, error) && set_axes(&grid, axes, &goal->spec, error) &&
              set_axes(&grid, against, &goal->against, error);
  bench_grid_clear(&grid);
  if (!fine) return false;
  const char *threads = bench_spec_get(&goal->spec, AXIS_THREADS);
  if (!goal->metric->peak || !strcmp(threads, bench_spec_get(&goal->against, AXIS_THREADS))) return true;
  return bench_say(error, SENTENCE, "metric %s: the peak loop runs on %s threads, so should the case of comparison",
                   goal->metric->name, threads);
}

static bool read_number(const char *text, double *value, char *error) {
  *value = NAN;
  return !strcmp(text, "-") || cli_read_real(text, value) ||
         bench_say(error, SENTENCE, "'%.40s' should be a number, or - for none", text);
}

static const struct { const char *word, *vendor; } vendors[] = {{"AMD", "AuthenticAMD"}, {"Intel", "GenuineIntel"}};
enum { VENDORS = sizeof vendors / sizeof *vendors };

/* The vendor that a word stands for, or NULL. */
static const char *vendor_of(const char *word) {
  for (int i = 0; i < VENDORS; i++)
    if (!strcmp(word, vendors[i].word)) return vendors[i].vendor;
  return NULL;
}

/* Whether `word` is one of the words of `text`, which blanks separate. */
static bool has_word(const char *text, const char *word) {
  const size_t length = strlen(word);
  for (const char *at = text; (at = strstr(at, word)); at += length)
    if ((at == text || at[-1] == ' ') && (at[length] == 0 || at[length] == ' ')) return true;
  return false;
}

static bool is_condition(const char *word) {
  return !strcmp(word, "any") || vendor_of(word) || cli_index_of(word, bench_tier_names) >= 0;
}

static bool read_cpu(const char *text, char *cpu, size_t bytes, char *error) {
  char words[LINE];
  snprintf(words, sizeof words, "%s", text);
  snprintf(cpu, bytes, "%s", text);
  for (char *word = strtok(words, " \t"); word; word = strtok(NULL, " \t"))
    if (!is_condition(word)) return bench_say(error, SENTENCE, "CPU '%.40s' should be any, AMD, Intel or a tier", word);
  return *text || bench_say(error, SENTENCE, "CPU is empty: should be any, AMD, Intel or a tier");
}

static bool append(bench_goal_list *list, const bench_goal *goal, char *error) {
  bench_goal *grown = bench_grown(list->item, list->count, sizeof *list->item);
  if (!grown) return bench_say(error, SENTENCE, "out of memory");
  list->item = grown;
  list->item[list->count++] = *goal;
  return true;
}

/* The floor may not be harder to reach than the goal. */
static bool check_order(const bench_goal *goal, char *error) {
  const bool wrong = goal->metric->lower ? goal->goal > goal->floor : goal->goal < goal->floor;
  return !wrong || bench_say(error, SENTENCE, "goal %.9g is easier than floor %.9g", goal->goal, goal->floor);
}

static bool read_row(char *line, const char *section, bench_goal_list *list, char *error) {
  enum { METRIC, KERNELS, CASE, AGAINST, CPU, FLOOR, GOAL, TEXT, MOST_KERNELS = 16 };
  char *field[FIELDS], *kernel[MOST_KERNELS];
  bench_goal goal = {.kernel = ""};
  const int fields = split(line, '|', field, FIELDS);
  if (fields != FIELDS)
    return bench_say(error, SENTENCE,
                     "%d fields, should be %d: metric | kernels | case | against | CPU | floor | goal | row", fields,
                     FIELDS);
  goal.metric = find_metric(field[METRIC], error);
  if (!goal.metric || !read_cases(&goal, field[CASE], field[AGAINST], error) ||
      !read_cpu(field[CPU], goal.cpu, sizeof goal.cpu, error) || !read_number(field[FLOOR], &goal.floor, error) ||
      !read_number(field[GOAL], &goal.goal, error) || !check_order(&goal, error))
    return false;
  snprintf(goal.section, sizeof goal.section, "%s", section);
  snprintf(goal.text, sizeof goal.text, "%s", field[TEXT]);
  const int kernels = split(field[KERNELS], ',', kernel, MOST_KERNELS);
  for (int i = 0; i < kernels && i < MOST_KERNELS; i++) {
    if (!read_kernel(kernel[i], "kernels", goal.kernel, error) || !append(list, &goal, error)) return false;
  }
  return true;
}

static bool read_line(char *line, char *section, size_t bytes, bench_goal_list *list, char *error) {
  if (!*line || *line == '#') return true;
  if (*line != '[') return read_row(line, section, list, error);
  snprintf(section, bytes, "%.*s", (int)strcspn(line + 1, "]"), line + 1);
  return true;
}

bool bench_goals_read(const char *text, bench_goal_list *list, char *error, size_t error_bytes) {
  char section[sizeof list->item->section] = "", line[LINE], problem[SENTENCE] = "";
  for (int number = 1; *text; number++) {
    const size_t length = strcspn(text, "\n");
    snprintf(line, sizeof line, "%.*s", (int)length, text);
    if (!read_line(trim(line), section, sizeof section, list, problem))
      return bench_say(error, error_bytes, "line %d: %s", number, problem);
    text += length + (text[length] == '\n');
  }
  return true;
}

const char *bench_goals_find(const char *name) {
  for (const bench_preset *file = bench_goal_files; file->name; file++)
    if (!strcmp(file->name, name)) return file->text;
  return NULL;
}

void bench_goals_clear(bench_goal_list *list) {
  free(list->item);
  *list = (bench_goal_list){0};
}

/* ---- Verdicts ------------------------------------------------------------------------------------------------------ */

bool bench_goal_applies(const bench_goal *goal, const char *vendor, const char *tiers) {
  char words[sizeof goal->cpu];
  snprintf(words, sizeof words, "%s", goal->cpu);
  for (const char *word = strtok(words, " \t"); word; word = strtok(NULL, " \t")) {
    const char *wanted = vendor_of(word);
    if (wanted ? strcmp(vendor, wanted) != 0 : strcmp(word, "any") != 0 && !has_word(tiers, word)) return false;
  }
  return true;
}

static bool reaches(const bench_goal *goal, double value, double mark) {
  return goal->metric->lower ? value <= mark : value >= mark;
}

/* True if the interval holds values on both sides of the floor. Without an interval this is unknown, and false. */
static bool is_open(const bench_goal *goal, const bench_summary *measured) {
  if (isnan(measured->ci_lo) || isnan(measured->ci_hi)) return false;
  return reaches(goal, measured->ci_lo, goal->floor) != reaches(goal, measured->ci_hi, goal->floor);
}

bench_goal_verdict bench_goal_verdict_of(const bench_goal *goal, const bench_summary *measured) {
  if (isnan(goal->floor)) return (bench_goal_verdict){BENCH_NO_FLOOR, false};
  const bool floor = reaches(goal, measured->median, goal->floor), best = reaches(goal, measured->median, goal->goal);
  const bench_mark mark = !floor ? BENCH_SHORT : best ? BENCH_GOAL : BENCH_FLOOR;
  return (bench_goal_verdict){mark, is_open(goal, measured)};
}

const char *bench_mark_name(bench_mark mark) {
  static const char *const names[] = {"-", "short", "ok", "goal"};
  return names[mark];
}
