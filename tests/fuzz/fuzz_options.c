/* SPDX-License-Identifier: MIT */
/* The parsers of the command line: options, axes, kernel patterns, CPU lists, single values. The first byte chooses one. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli.h"
#include "base/select.h"
#include "cases/cases.h"
#include "fuzz.h"
#include "machine/topology.h"

/* ---- A command line: one argument per line -------------------------------------------------------------------------- */

static void parse_command(const char *text) {
  enum { ARGUMENTS = 100 };
  bool flag = false;
  const char *string = NULL;
  cli_list list = {.count = 0}, rest = {.count = 0};
  int64_t number = 0;
  double real = 0, seconds = 0, percent = 0;
  const cli_option options[] = {
      CLI_HEADING("All kinds"),
      {CLI_FLAG, 'f', "flag", NULL, "a flag", &flag},
      {CLI_STRING, 's', "string", "TEXT", "a string", &string},
      {CLI_LIST, 'l', "list", "TEXT", "a list", &list},
      {CLI_INT, 'n', "number", "N", "a whole number", CLI_WITHIN(&number, -3, 4096)},
      {CLI_REAL, 'r', "real", "X", "a number", &real},
      {CLI_DURATION, 'd', "duration", "TIME", "a time", &seconds},
      {CLI_PERCENT, 'p', "percent", "P", "a share", &percent},
      CLI_END,
  };
  const cli_command command = {
      .name = "fuzz", .usage = "[options]", .summary = "Everything.", .options = options, .positionals = &rest};
  char *copy = strdup(text), *arguments[ARGUMENTS + 1] = {"fuzz"}, *place = NULL;
  int count = 1, code = -1;
  for (char *word = strtok_r(copy, "\n", &place); word && count < ARGUMENTS; word = strtok_r(NULL, "\n", &place))
    arguments[count++] = word;
  if (!cli_parse(&command, count, arguments, &code) && code != BENCH_EXIT_OK && code != BENCH_EXIT_USAGE)
    fuzz_fail("exit code %d", code);
  if (!isfinite(real) || !isfinite(seconds) || seconds < 0 || !(percent >= 0 && percent <= 1) || number < -3 ||
      number > 4096)
    fuzz_fail("a number that is not allowed");
  free(copy);
}

/* ---- Axes: one assignment per line ----------------------------------------------------------------------------------- */

static void parse_axes(const char *text) {
  bench_grid grid = {0};
  char *copy = strdup(text), *place = NULL;
  for (char *line = strtok_r(copy, "\n", &place); line; line = strtok_r(NULL, "\n", &place)) {
    char error[600] = "";
    if (!bench_grid_set(&grid, line, error, sizeof error) && !error[0]) fuzz_fail("'%s' is refused without a word", line);
  }
  for (int i = 0; i < AXIS_COUNT; i++)
    for (int v = 0; v < grid.axes[i].count; v++)
      if (bench_axis_wants(bench_axis_get((bench_axis)i), grid.axes[i].value[v]))
        fuzz_fail("axis %s holds '%s'", bench_axis_get((bench_axis)i)->name, grid.axes[i].value[v]);
  bench_grid_clear(&grid);
  free(copy);
}

/* ---- Kernels: a line of names, one of algorithms, one of tiers -------------------------------------------------------- */

static void parse_patterns(const char *text) {
  static bench_selection selection;
  bench_filter filter = {.kernels.count = 0};
  cli_list *const lists[] = {&filter.kernels, &filter.algorithms, &filter.isas};
  char *copy = strdup(text), *next = copy;
  for (int i = 0; i < 3 && next; i++) {
    char *line = strsep(&next, "\n");
    if (*line) lists[i]->item[lists[i]->count++] = line;
  }
  selection = (bench_selection){.count = 0};
  const int code = bench_select(&filter, "fuzz", &selection);
  if (code != 0 && code != BENCH_EXIT_USAGE && code != BENCH_EXIT_NOTHING) fuzz_fail("exit code %d", code);
  if (!code && !selection.count && !selection.automatic) fuzz_fail("nothing is selected, without a word");
  free(copy);
}

/* ---- CPUs ------------------------------------------------------------------------------------------------------------- */

static void parse_cpus(const char *text) {
  static const char machine[] = "pack:2 numa:1 l3:2 core:4 pu:2(indexes=core:pu)";
  char error[600] = "";
  cpu_set_t allowed, set;
  (void)setenv("HWLOC_SYNTHETIC", machine, 1);
  const bench_topology *topology = bench_topology_get();
  if (!bench_cpu_list_read("1-13,16-63", &allowed)) fuzz_fail("a plain list is refused");
  CPU_AND(&allowed, &allowed, &topology->cpus);
  if (!bench_cpus_read(text, topology, &allowed, &set, error, sizeof error)) {
    if (!error[0]) fuzz_fail("refused without a word");
    return;
  }
  cpu_set_t both;
  CPU_AND(&both, &set, &allowed);
  if (!CPU_COUNT(&set) || !CPU_EQUAL(&both, &set)) fuzz_fail("an empty set, or CPUs that are not allowed");
}

/* A list that is read, written and read again gives the same set. */
static void parse_cpu_list(const char *text) {
  cpu_set_t set, again;
  char list[4 * CPU_SETSIZE];
  if (!bench_cpu_list_read(text, &set)) return;
  bench_cpu_list_write(&set, list, sizeof list);
  if (!bench_cpu_list_read(list, &again) || !CPU_EQUAL(&set, &again)) fuzz_fail("'%s' is written as '%s'", text, list);
}

/* ---- Single values ---------------------------------------------------------------------------------------------------- */

static void parse_value(const char *text) {
  int64_t number;
  double real = 0;
  bench_window window = {0};
  attn_dtype types[3];
  (void)cli_read_int(text, &number);
  if (cli_read_real(text, &real) && !isfinite(real)) fuzz_fail("'%s' is read as a real number", text);
  if (bench_window_read(text, false, &window) && (window.left < -1 || window.right < -1))
    fuzz_fail("'%s' is read as a window", text);
  if (bench_dtype_read(text, &types[0], &types[1], &types[2]))
    for (int i = 0; i < 3; i++)
      if (types[i] > ATTN_BF16) fuzz_fail("'%s' is read as a type", text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static void (*const parsers[])(const char *) = {parse_command, parse_axes,     parse_patterns,
                                                  parse_cpus,    parse_cpu_list, parse_value};
  fuzz_bytes bytes = {data, data + size};
  const uint8_t which = fuzz_byte(&bytes);
  parsers[which % (sizeof parsers / sizeof *parsers)](fuzz_text(bytes));
  return 0;
}
