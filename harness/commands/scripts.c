/* SPDX-License-Identifier: MIT */
/* attnbench plot and attnbench report: Python scripts, which lie in ../share/attn of the program's folder. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cli.h"
#include "base/files.h"
#include "commands/commands.h"
#include "src/registry/shared_object.h"

enum { PATH = 4096 };

static cli_list results, figures;
static const char *output, *title;

static const cli_option plot_options[] = {
    {CLI_STRING, 'o', "output", "DIR", "where to write (default: figures, beside the first results.csv)", &output},
    {CLI_LIST, 0, "only", "NAME", "repeatable: draw this figure only", &figures},
    CLI_END,
};
static const cli_option report_options[] = {
    {CLI_STRING, 'o', "output", "FILE", "the file to write (default report.html)", &output},
    {CLI_STRING, 0, "title", "WORDS", "heading (default: \"Attention on\" and the CPU)", &title},
    CLI_END,
};

#define EXIT_CODES                                                                                   \
  "Needs Python 3 with matplotlib. Exit codes: 0 written, 2 bad input or usage, 3 nothing to draw\n" \
  "or nothing to draw with, 5 cannot write.\n"
static const cli_command plot = {.name = "plot",
                                 .usage = "RESULTS... [-o DIR] [--only NAME]...",
                                 .summary =
                                     "Draws the figures of result folders as PNG and SVG: rates, speed-ups, winners, "
                                     "roofline, threads and more. Reads results.csv, and env.json and peak.csv "
                                     "(attnbench peak --csv) beside it.",
                                 .options = plot_options,
                                 .epilogue = EXIT_CODES,
                                 .positionals = &results};
static const cli_command report = {.name = "report",
                                   .usage = "RESULTS... [-o FILE] [--title WORDS]",
                                   .summary =
                                       "Writes one HTML file about result folders, with figures and sortable tables, "
                                       "which opens from disk without a network.",
                                   .options = report_options,
                                   .epilogue = EXIT_CODES,
                                   .positionals = &results};

/* Becomes Python with the script of this name and the arguments behind argv[0]. Returns an exit code if that fails. */
static int become(const cli_command *command, int argc, char **argv) {
  char path[PATH + 64], folder[PATH], python[] = "python3";
  char **words = calloc((size_t)argc + 2, sizeof *words);
  if (!words) return cli_fail(BENCH_EXIT_INTERNAL, command->name, "out of memory");
  attn_object_own_folder(folder, sizeof folder);
  snprintf(path, sizeof path, "%s/../share/attn/%s.py", folder, command->name);
  words[0] = python;
  words[1] = path;
  memcpy(words + 2, argv + 1, (size_t)(argc - 1) * sizeof *words);
  if (bench_file_exists(path)) (void)execvp(python, words);
  free(words);
  return cli_fail(BENCH_EXIT_NOTHING, command->name, "cannot run %s %s: %s", python, path, strerror(errno));
}

static int run_script(const cli_command *command, int argc, char **argv) {
  int code;
  results.count = figures.count = 0;
  if (!cli_parse(command, argc, argv, &code)) return code;
  if (!results.count) return cli_usage_error(command->name, "needs a result folder, or a results.csv");
  return become(command, argc, argv);
}

int bench_plot_main(int argc, char **argv) { return run_script(&plot, argc, argv); }

int bench_report_main(int argc, char **argv) { return run_script(&report, argc, argv); }
