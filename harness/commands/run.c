/* SPDX-License-Identifier: MIT */
/* attnbench run and attnbench check: their options. */
#include <string.h>

#include "commands/commands.h"
#include "commands/session.h"
#include "machine/affinity.h"
#include "machine/emulation.h"

static const char exit_codes[] =
    "Exit codes: 0 all passed, 1 a check failed, 2 usage, 3 nothing matched or could run, 4 machine\n"
    "unfit (--strict-env), 5 input/output, 77 this CPU runs none of the kernels, 130 interrupted (the\n"
    "files are written).\n";

static bench_options defaults(const char *command, int argc, char **argv) {
  return (bench_options){.command = command,
                         .seed = 1,
                         .case_budget_s = 5,
                         .precision = 0.01,
                         .default_preset = "quick",
                         .argc = argc,
                         .argv = argv};
}

int bench_run_main(int argc, char **argv) {
  bench_options o = defaults("run", argc, argv);
  const cli_option options[] = {
      BENCH_CASE_OPTIONS(&o),
      BENCH_KERNEL_OPTIONS(&o),
      {CLI_STRING, 0, "require", "ISA", "a skip of a kernel of this tier is a failure", &o.require},
      CLI_HEADING("Measuring"),
      {CLI_DURATION, 0, "budget", "TIME", "of the whole run: 90s, 5m; cases beyond it are skipped (default none)",
       &o.budget_s},
      {CLI_DURATION, 0, "case-budget", "TIME", "of the rounds of one case (default 5s)", &o.case_budget_s},
      {CLI_PERCENT, 0, "precision", "SHARE", "stop when the 95 % interval of every median is within +- this (default 1%)",
       &o.precision},
      {CLI_INT, 0, "rounds", "N",
       "exactly so many rounds, whatever budget and precision say (default 11 to 200, 21 for --preset limits)", &o.rounds},
      {CLI_STRING, 0, "cpus", "LIST", BENCH_CPUS_HELP, &o.cpus},
      {CLI_FLAG, 0, "strict-env", NULL, "measure nothing if attnbench env finds something BAD", &o.strict_env},
      {CLI_FLAG, 0, "gate", NULL, "with --preset limits, the table of goals: a row short of its floor is a failure",
       &o.gate},
      BENCH_OUTPUT_OPTIONS(&o),
      CLI_END,
  };
  const cli_command command = {.name = "run",
                               .usage = "[-a AXIS=VALUES]... [--preset NAME] [--kernel GLOB]... [-o DIR]",
                               .summary =
                                   "Checks every kernel on every case against the float64 oracle, then times those that "
                                   "passed, together, in rounds of changing order. Without cases: preset quick.",
                               .options = options,
                               .epilogue = exit_codes};
  int code;
  o.timed = true;
  if (!cli_parse(&command, argc, argv, &code)) return code;
  return !o.dry_run && bench_refuses_to_time("run") ? BENCH_EXIT_UNFIT : bench_session_run(&o);
}

int bench_check_main(int argc, char **argv) {
  bench_options o = defaults("check", argc, argv);
  const cli_option options[] = {
      BENCH_CASE_OPTIONS(&o),
      {CLI_LIST, 's', "suite", "NAME",
       "edge (sizes, strides, masks of float32 kernels) or conformance (every option); the same as "
       "--preset (default edge)",
       &o.presets},
      BENCH_KERNEL_OPTIONS(&o),
      {CLI_STRING, 0, "require", "ISA", "a skip of a kernel of this tier is a failure", &o.require},
      {CLI_STRING, 0, "cpus", "LIST", BENCH_CPUS_HELP, &o.cpus},
      {CLI_DURATION, 0, "budget", "TIME", "of the whole run: 90s, 5m; cases beyond it are skipped (default none)",
       &o.budget_s},
      BENCH_OUTPUT_OPTIONS(&o),
      CLI_END,
  };
  const cli_command command = {.name = "check",
                               .usage = "[--suite NAME | -a AXIS=VALUES...] [--kernel GLOB]...",
                               .summary =
                                   "Checks every kernel on every case against the float64 oracle under the limits of "
                                   "docs/numerics.md, then against itself on the same problem put differently (structural "
                                   "tests), and times nothing. Without cases: suite edge.",
                               .options = options,
                               .epilogue = exit_codes};
  int code;
  o.default_preset = "edge";
  return cli_parse(&command, argc, argv, &code) ? bench_session_run(&o) : code;
}
