/* SPDX-License-Identifier: MIT */
/* attnbench run: checks kernels, then times them. */
#include "commands/commands.h"
#include "commands/session.h"
#include "machine/affinity.h"
#include "machine/environment.h"

static bench_options asked;

static const cli_option options[] = {
    BENCH_CASE_OPTIONS(&asked),
    BENCH_SHARD_OPTION(&asked),
    BENCH_KERNEL_OPTIONS(&asked),
    {CLI_STRING, 0, "require", "ISA", "a skip of a kernel of this tier is a failure", &asked.require},
    CLI_HEADING("Measuring"),
    {CLI_DURATION, 0, "budget", "TIME",
     "of the whole run: 90s, 5m; a case gets at most twice its share of what is left, but its least number of rounds; "
     "cases that would begin later are skipped (default none)",
     &asked.budget_s},
    {CLI_DURATION, 0, "case-budget", "TIME", "of the rounds of one case (default 5s)", &asked.case_budget_s},
    {CLI_PERCENT, 0, "precision", "SHARE", "stop when the 95 % interval of every median is within +- this (default 1%)",
     &asked.precision},
    {CLI_INT, 0, "rounds", "N",
     "exactly so many rounds, whatever budget and precision say (default 11 to 200, but from 3 on for kernels that are too "
     "slow for 11 in the budget of their case; 21 for --preset limits)",
     CLI_WITHIN(&asked.rounds, 1, 100000)},
    {CLI_STRING, 0, "cpus", "LIST", BENCH_CPUS_HELP, &asked.cpus},
    {CLI_FLAG, 0, "strict-env", NULL, "measure nothing if attnbench env finds something BAD", &asked.strict_env},
    {CLI_FLAG, 0, "gate", NULL, "with --preset limits, the table of goals: a row short of its floor is a failure",
     &asked.gate},
    BENCH_OUTPUT_OPTIONS(&asked),
    CLI_END,
};

static const cli_command command = {.name = "run",
                                    .usage = "[-a AXIS=VALUES]... [--preset NAME] [--kernel GLOB]... [-o DIR]",
                                    .summary =
                                        "Checks every kernel on every case against the float64 oracle, then times those "
                                        "that passed, together, in rounds of changing order. Without cases: preset quick.",
                                    .options = options,
                                    .epilogue = BENCH_SESSION_EXIT_CODES};

int bench_run_main(int argc, char **argv) {
  int code;
  asked = bench_options_default("run", "quick", argc, argv);
  asked.timed = true;
  if (!cli_parse(&command, argc, argv, &code)) return code;
  if (!asked.dry_run && bench_refuses_to_time("run")) return BENCH_EXIT_UNFIT;
  return bench_session_run(&asked, bench_limits_wanted(&asked) ? &bench_limits_steps : &bench_cases_steps);
}
