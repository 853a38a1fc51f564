/* SPDX-License-Identifier: MIT */
/* Reads preset text into grids. */
#include "cases/cases.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/cli.h"

enum { LINE = 512 };

const bench_preset bench_presets[] = {
#include "preset_texts.h"
    {0}};

const bench_preset *bench_preset_find(const char *name) {
  for (const bench_preset *preset = bench_presets; preset->name; preset++)
    if (!strcmp(preset->name, name)) return preset;
  return NULL;
}

const bench_preset *bench_preset_named(const char *command, const char *name) {
  enum { MOST = 63 };
  const char *names[MOST + 1];
  int count = 0;
  if (bench_preset_find(name)) return bench_preset_find(name);
  for (const bench_preset *preset = bench_presets; preset->name && count < MOST; preset++) names[count++] = preset->name;
  names[count] = NULL;
  (void)cli_unknown(command, "preset", name, names, "see attnbench list presets");
  return NULL;
}

void bench_preset_summary(const bench_preset *preset, char *text, size_t bytes) {
  const char *start = preset->text + strspn(preset->text, "# ");
  snprintf(text, bytes, "%.*s", (int)strcspn(start, "\n"), start);
}

void bench_grids_clear(bench_grids *grids) {
  for (int i = 0; i < grids->count; i++) bench_grid_clear(&grids->grid[i]);
  grids->count = 0;
}

/* Copies `text` without its comment and without any blanks, except in a [title], where they stay. */
static void tidy_line(const char *text, size_t length, char *line) {
  size_t used = 0;
  bool title = false;
  for (size_t i = 0; i < length && text[i] != '#' && used < LINE - 1; i++) {
    title |= text[i] == '[';
    if (title || !isspace((unsigned char)text[i])) line[used++] = text[i];
  }
  while (used && isspace((unsigned char)line[used - 1])) used--;
  line[used] = 0;
}

static bench_grid *open_grid(bench_grids *grids) {
  if (grids->count == BENCH_MAX_GRIDS) return NULL;
  bench_grid *grid = &grids->grid[grids->count++];
  *grid = (bench_grid){0};
  return grid;
}

/* One "name=values" line. */
static bool set_line(bench_grid *grid, const char *line, char *error, size_t bytes) {
  const char *value;
  if (bench_axis_is(line, "pick", &value))
    return (cli_read_int(value, &grid->pick) && grid->pick > 0) ||
           bench_say(error, bytes, "pick '%s' should be a whole number above 0", value);
  if (bench_axis_is(line, "work", &value))
    return (cli_read_real(value, &grid->work) && grid->work > 0) ||
           bench_say(error, bytes, "work '%s' should be a number above 0", value);
  return bench_grid_set(grid, line, error, bytes);
}

bool bench_preset_read(const char *text, bench_grids *grids, char *error, size_t error_bytes) {
  bench_grid *grid = NULL;
  for (int number = 1; *text; number++) {
    char line[LINE], problem[LINE] = "";
    const size_t length = strcspn(text, "\n");
    tidy_line(text, length, line);
    if (line[0] == '[' || (line[0] && !grid)) {
      grid = open_grid(grids);
      if (!grid)
        snprintf(problem, sizeof problem, "more than %d grids", BENCH_MAX_GRIDS);
      else if (line[0] == '[')
        snprintf(grid->title, sizeof grid->title, "%.*s", (int)strcspn(line + 1, "]"), line + 1);
    }
    if (grid && line[0] && line[0] != '[') (void)set_line(grid, line, problem, sizeof problem);
    if (problem[0]) return bench_say(error, error_bytes, "line %d: %s", number, problem);
    text += length + (text[length] == '\n');
  }
  return true;
}
