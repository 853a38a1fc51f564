/* SPDX-License-Identifier: MIT */
/* Reads lists and ranges of values into grids, and builds lists of cases from them. */
#include "cases/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli.h"
#include "cases/case.h"

enum { MOST_COMBINATIONS = 50000 };

bool bench_cases_append(bench_case_list *list, const bench_case *bench) {
  for (int i = 0; i < list->count; i++)
    if (list->item[i].seed == bench->seed && !strcmp(list->item[i].case_id, bench->case_id)) return true;
  bench_case *grown = bench_grown(list->item, list->count, sizeof *list->item);
  if (!grown) return false;
  list->item = grown;
  list->item[list->count++] = *bench;
  return true;
}

void bench_cases_clear(bench_case_list *list) {
  free(list->item);
  *list = (bench_case_list){0};
}

/* Advances the odometer, innermost axis first; false when it has come round. */
static bool next_combination(const bench_grid *grid, int *index) {
  for (int i = AXIS_COUNT - 1; i >= 0; i--) {
    if (!grid->axes[i].count) continue;
    if (++index[i] < grid->axes[i].count) return true;
    index[i] = 0;
  }
  return false;
}

static bool has_too_many(const bench_grid *grid, char *error, size_t error_bytes) {
  double combinations = 1;
  for (int i = 0; i < AXIS_COUNT; i++) combinations *= grid->axes[i].count ? grid->axes[i].count : 1;
  if (combinations <= MOST_COMBINATIONS) return false;
  return !bench_say(error, error_bytes, "the axes have %.0f combinations, more than %d: give fewer values", combinations,
                    MOST_COMBINATIONS);
}

bool bench_cases_add(bench_case_list *list, const bench_grid *grid, uint64_t seed, char *error, size_t error_bytes) {
  if (grid->pick) return bench_cases_cover(list, grid, seed, error, error_bytes);
  if (has_too_many(grid, error, error_bytes)) return false;
  int index[AXIS_COUNT] = {0};
  do {
    const bench_spec spec = bench_grid_spec(grid, index);
    bench_case bench;
    bench_case_build(&spec, seed, &bench);
    if (!bench_cases_append(list, &bench)) return bench_say(error, error_bytes, "out of memory for the list of cases");
  } while (next_combination(grid, index));
  return true;
}

enum { MOST_VALUES = 4096, ITEM = 3 * BENCH_WORD /* a range */ };

/* Where the sentence of an error goes. */
typedef struct sentence {
  char *text;
  size_t bytes;
} sentence;

/* ---- Errors -------------------------------------------------------------------------------------------------------- */

static void append_bounds(const bench_axis_info *axis, const sentence *s) {
  bench_append(s->text, s->bytes, "at least %lld and at most %lld", (long long)axis->least, (long long)axis->most);
}

static bool say_bad_value(const bench_axis_info *axis, const char *text, const char *wanted, const sentence *s) {
  const bool is_word = axis->kind == AXIS_IS_WORD;
  const char *near = is_word ? cli_nearest(text, axis->words) : NULL;
  snprintf(s->text, s->bytes, "axis %s: '%s' should be ", axis->name, text);
  if (!is_word) bench_append(s->text, s->bytes, "%s", wanted);
  for (int i = 0; is_word && axis->words[i]; i++) bench_append(s->text, s->bytes, "%s%s", i ? ", " : "", axis->words[i]);
  if (axis->kind == AXIS_IS_INT || axis->kind == AXIS_IS_WINDOW)
    bench_append(s->text, s->bytes, ", "), append_bounds(axis, s);
  if (near) bench_append(s->text, s->bytes, "; did you mean %s?", near);
  return false;
}

static bool say_bad_range(const bench_axis_info *axis, const char *text, const sentence *s) {
  snprintf(s->text, s->bytes,
           "axis %s: range '%s' should be FIRST:LAST, FIRST:LAST:+STEP or FIRST:LAST:*FACTOR, FIRST <= LAST, "
           "at most %d values, each ",
           axis->name, text, MOST_VALUES);
  append_bounds(axis, s);
  return false;
}

static bool say_unknown_axis(const char *assignment, const sentence *s) {
  const char *names[AXIS_COUNT + 2] = {[AXIS_COUNT] = "kernel"};
  char word[BENCH_WORD * 2];
  for (int i = 0; i < AXIS_COUNT; i++) names[i] = bench_axis_get((bench_axis)i)->name;
  snprintf(word, sizeof word, "%.*s", (int)strcspn(assignment, "="), assignment);
  const char *near = cli_nearest(word, names);
  if (!strchr(assignment, '='))
    return bench_say(s->text, s->bytes, "'%s' should be AXIS=VALUES, as in seq=128:8192:*2", assignment);
  return bench_say(s->text, s->bytes, "unknown axis '%s'; %s%s%s", word, near ? "did you mean " : "see attnbench list axes",
                   near ? near : "", near ? "?" : "");
}

typedef struct range {
  int64_t first, last, step;
  bool multiply;
} range;

/* Reads "a:b", "a:b:s", "a:b:+s" or "a:b:*f". */
static bool read_range(const char *text, range *r) {
  char copy[ITEM];
  snprintf(copy, sizeof copy, "%s", text);
  char *second = strchr(copy, ':');
  *second++ = 0;
  char *third = strchr(second, ':');
  if (third) *third++ = 0;
  *r = (range){.step = 1, .multiply = third && *third == '*'};
  if (third && (*third == '*' || *third == '+')) third++;
  if (third && (!cli_read_int(third, &r->step) || r->step < 1 + (r->multiply ? 1 : 0))) return false;
  return cli_read_int(copy, &r->first) && cli_read_int(second, &r->last) && r->first <= r->last &&
         !(r->multiply && r->first < 1);
}

/* The value after this one; false behind the last. */
static bool next_in_range(const range *r, int64_t *value) {
  int64_t next;
  if (r->multiply ? __builtin_mul_overflow(*value, r->step, &next) : __builtin_add_overflow(*value, r->step, &next))
    return false;
  *value = next;
  return next <= r->last;
}

/* ---- Lists --------------------------------------------------------------------------------------------------------- */

static bool add_value(bench_values *values, const char *text) {
  if (values->count == MOST_VALUES || strlen(text) >= BENCH_WORD) return false;
  void *grown = bench_grown(values->value, values->count, sizeof *values->value);
  values->no_memory = !grown;
  if (!grown) return false;
  values->value = grown;
  snprintf(values->value[values->count++], BENCH_WORD, "%s", text);
  return true;
}

static bool add_range(const bench_axis_info *axis, bench_values *values, const char *text) {
  range r;
  if (!read_range(text, &r)) return false;
  int64_t value = r.first;
  do {
    char word[BENCH_WORD];
    snprintf(word, sizeof word, "%lld", (long long)value);
    if (bench_axis_wants(axis, word) || !add_value(values, word)) return false;
  } while (next_in_range(&r, &value));
  return true;
}

static bool add_item(const bench_axis_info *axis, bench_values *values, const char *item, const sentence *error) {
  const bool is_range = axis->kind == AXIS_IS_INT && strchr(item, ':');
  const char *wanted = is_range ? NULL : strlen(item) < BENCH_WORD ? bench_axis_wants(axis, item) : "shorter";
  if (wanted) return say_bad_value(axis, item, wanted, error);
  if (is_range ? add_range(axis, values, item) : add_value(values, item)) return true;
  if (values->no_memory) return bench_say(error->text, error->bytes, "axis %s: out of memory", axis->name);
  return is_range ? say_bad_range(axis, item, error)
                  : bench_say(error->text, error->bytes, "axis %s: more than %d values", axis->name, MOST_VALUES);
}

static void clear_values(bench_values *values) {
  free(values->value);
  *values = (bench_values){0};
}

/* ---- Grids --------------------------------------------------------------------------------------------------------- */

bool bench_axis_is(const char *assignment, const char *name, const char **values) {
  const size_t length = strlen(name);
  if (strncmp(assignment, name, length) || assignment[length] != '=') return false;
  *values = assignment + length + 1;
  return true;
}

static bench_axis find_axis(const char *assignment, const char **values) {
  for (int i = 0; i < AXIS_COUNT; i++)
    if (bench_axis_is(assignment, bench_axis_get((bench_axis)i)->name, values)) return (bench_axis)i;
  return AXIS_COUNT;
}

/* The values of the axis and, if it stands for two other axes, of those. */
static void clear_axis(bench_grid *grid, bench_axis axis) {
  clear_values(&grid->axes[axis]);
  if (axis == AXIS_SEQ) clear_values(&grid->axes[AXIS_SEQ_Q]), clear_values(&grid->axes[AXIS_SEQ_K]);
  if (axis == AXIS_HEAD_DIM) clear_values(&grid->axes[AXIS_DIM_QK]), clear_values(&grid->axes[AXIS_DIM_V]);
}

bool bench_grid_set(bench_grid *grid, const char *assignment, char *error, size_t error_bytes) {
  const sentence s = {error, error_bytes};
  const char *values;
  const bench_axis axis = find_axis(assignment, &values);
  if (axis == AXIS_COUNT) return say_unknown_axis(assignment, &s);
  clear_axis(grid, axis);
  while (true) {
    char item[ITEM];
    const size_t length = strcspn(values, ",");
    snprintf(item, sizeof item, "%.*s", (int)length, values);
    if (!add_item(bench_axis_get(axis), &grid->axes[axis], item, &s)) return false;
    if (!values[length]) return true;
    values += length + 1;
  }
}

bench_spec bench_grid_spec(const bench_grid *grid, const int index[AXIS_COUNT]) {
  bench_spec spec = {0};
  for (int i = 0; i < AXIS_COUNT; i++)
    if (grid->axes[i].count) memcpy(spec.value[i], grid->axes[i].value[index[i]], BENCH_WORD);
  return spec;
}

void bench_grid_clear(bench_grid *grid) {
  for (int i = 0; i < AXIS_COUNT; i++) clear_values(&grid->axes[i]);
  *grid = (bench_grid){0};
}

/* ---- Covering selections ------------------------------------------------------------------------------------------ */
/* Few combinations of many axes in which as many pairs of values as possible meet.
 *
 * Most faults need one value or two that meet (a causal mask with a short last tile), rarely more, so covering pairs finds
 * nearly what the whole grid would (Kuhn, Wallace, Gallo 2004). Greedy: of several random combinations, take the one with
 * the most pairs not seen yet. */

enum { CANDIDATES = 24, TRIES = 400 };

typedef struct cover {
  const bench_grid *grid;
  int first[AXIS_COUNT]; /* index of the axis's first value among the values of all axes */
  int values;            /* values of all axes */
  bool *seen;            /* [values][values]: pairs that have met */
  uint64_t random;
} cover;

static bool cover_open(cover *c, const bench_grid *grid, uint64_t seed) {
  *c = (cover){.grid = grid, .random = seed};
  for (int i = 0; i < AXIS_COUNT; i++) {
    c->first[i] = c->values;
    c->values += grid->axes[i].count;
  }
  c->seen = calloc((size_t)c->values * (size_t)c->values + 1, sizeof *c->seen);
  return c->seen;
}

static void draw(cover *c, int *index) {
  for (int i = 0; i < AXIS_COUNT; i++)
    if (c->grid->axes[i].count) index[i] = (int)(bench_random(&c->random) % (uint64_t)c->grid->axes[i].count);
}

/* Visits the pairs of a combination: returns how many are new, and marks them if asked to. */
static int new_pairs(cover *c, const int *index, bool mark) {
  int count = 0;
  for (int i = 0; i < AXIS_COUNT; i++)
    for (int j = 0; j < i; j++) {
      if (!c->grid->axes[i].count || !c->grid->axes[j].count) continue;
      bool *pair = &c->seen[(size_t)(c->first[i] + index[i]) * (size_t)c->values + (size_t)(c->first[j] + index[j])];
      count += !*pair;
      if (mark) *pair = true;
    }
  return count;
}

/* Draws until a combination is a valid problem within the work limit. */
static bool draw_valid(cover *c, int *index) {
  for (int try = 0; try < TRIES; try++) {
    draw(c, index);
    const bench_spec spec = bench_grid_spec(c->grid, index);
    bench_case bench;
    bench_case_draft(&spec, &bench);
    if (!bench.invalid[0] && !(c->grid->work > 0 && bench_multiply_adds(&bench.problem) > c->grid->work)) return true;
  }
  return false;
}

/* The best of several candidates by new pairs. */
static bool choose(cover *c, uint64_t seed, bench_case *best) {
  int best_index[AXIS_COUNT] = {0}, best_pairs = -1;
  for (int candidate = 0; candidate < CANDIDATES; candidate++) {
    int index[AXIS_COUNT] = {0};
    if (!draw_valid(c, index)) return false;
    const int pairs = new_pairs(c, index, false);
    if (pairs > best_pairs) {
      best_pairs = pairs;
      memcpy(best_index, index, sizeof index);
    }
  }
  (void)new_pairs(c, best_index, true);
  const bench_spec spec = bench_grid_spec(c->grid, best_index);
  bench_case_build(&spec, seed, best);
  return !best->invalid[0];
}

bool bench_cases_cover(bench_case_list *list, const bench_grid *grid, uint64_t seed, char *error, size_t error_bytes) {
  cover c;
  bench_case bench;
  bool fine = cover_open(&c, grid, seed) || bench_say(error, error_bytes, "out of memory for the covering selection");
  for (int64_t i = 0; i < grid->pick && fine; i++)
    if (!choose(&c, seed, &bench))
      fine = bench_say(error, error_bytes,
                       "grid '%s': no combination of its values is a valid problem within its work limit", grid->title);
    else if (!bench_cases_append(list, &bench))
      fine = bench_say(error, error_bytes, "out of memory for the list of cases");
  free(c.seen);
  return fine;
}
