/* SPDX-License-Identifier: MIT */
/* Reads lists and ranges of values into grids. */
#include "cases/grid.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli.h"

enum { MOST_VALUES = 4096, ITEM = 3 * BENCH_WORD /* a range */ };

/* Where the sentence of an error goes. */
typedef struct sentence {
  char *text;
  size_t bytes;
} sentence;

/* ---- Errors -------------------------------------------------------------------------------------------------------- */

static void append(const sentence *s, const char *before, const char *text) {
  const size_t used = strlen(s->text);
  snprintf(s->text + used, s->bytes - used, "%s%s", before, text);
}

static void append_bounds(const bench_axis_info *axis, const sentence *s) {
  char bounds[80];
  snprintf(bounds, sizeof bounds, "at least %lld and at most %lld", (long long)axis->least, (long long)axis->most);
  append(s, "", bounds);
}

static bool say_bad_value(const bench_axis_info *axis, const char *text, const char *wanted, const sentence *s) {
  const bool is_word = axis->kind == AXIS_IS_WORD;
  const char *near = is_word ? cli_nearest(text, axis->words) : NULL;
  snprintf(s->text, s->bytes, "axis %s: '%s' should be ", axis->name, text);
  if (!is_word) append(s, "", wanted);
  for (int i = 0; is_word && axis->words[i]; i++) append(s, i ? ", " : "", axis->words[i]);
  if (axis->kind == AXIS_IS_INT || axis->kind == AXIS_IS_WINDOW) append(s, ", ", ""), append_bounds(axis, s);
  if (near) append(s, "; did you mean ", near), append(s, "?", "");
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
    snprintf(s->text, s->bytes, "'%s' should be AXIS=VALUES, as in seq=128:8192:*2", assignment);
  else if (near)
    snprintf(s->text, s->bytes, "unknown axis '%s'; did you mean %s?", word, near);
  else
    snprintf(s->text, s->bytes, "unknown axis '%s'; see attnbench list axes", word);
  return false;
}

/* ---- Ranges -------------------------------------------------------------------------------------------------------- */

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
  if (!(values->count & (values->count - 1))) { /* grows at powers of two */
    const size_t room = values->count ? (size_t)values->count * 2 : 1;
    void *grown = realloc(values->value, room * sizeof *values->value);
    values->no_memory = !grown;
    if (!grown) return false;
    values->value = grown;
  }
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
  if (is_range && !values->no_memory) return say_bad_range(axis, item, error);
  if (values->no_memory)
    snprintf(error->text, error->bytes, "axis %s: out of memory", axis->name);
  else
    snprintf(error->text, error->bytes, "axis %s: more than %d values", axis->name, MOST_VALUES);
  return false;
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

/* Those of the axis and, where it stands for two others, theirs. */
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
