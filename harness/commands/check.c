/* SPDX-License-Identifier: MIT */
/* attnbench check: checks kernels and times nothing. */
#include "commands/commands.h"
#include "commands/session.h"
#include "machine/affinity.h"

static bench_options asked;

static const cli_option options[] = {
    BENCH_CASE_OPTIONS(&asked),
    BENCH_SHARD_OPTION(&asked),
    {CLI_LIST, 's', "suite", "NAME",
     "edge (sizes, strides, masks of float32 kernels) or conformance (every option); the same as "
     "--preset (default edge)",
     &asked.presets},
    BENCH_KERNEL_OPTIONS(&asked),
    {CLI_STRING, 0, "require", "ISA", "a skip of a kernel of this tier is a failure", &asked.require},
    {CLI_STRING, 0, "cpus", "LIST", BENCH_CPUS_HELP, &asked.cpus},
    {CLI_DURATION, 0, "budget", "TIME", "of the whole run: 90s, 5m; cases beyond it are skipped (default none)",
     &asked.budget_s},
    BENCH_OUTPUT_OPTIONS(&asked),
    CLI_END,
};

static const cli_command command = {
    .name = "check",
    .usage = "[--suite NAME | -a AXIS=VALUES...] [--kernel GLOB]...",
    .summary =
        "Checks every kernel on every case against the float64 oracle under the limits of docs/numerics.md, then against "
        "itself on the same problem put differently (structural tests), and times nothing. Without cases: suite edge.",
    .options = options,
    .epilogue = BENCH_SESSION_EXIT_CODES};

int bench_check_main(int argc, char **argv) {
  int code;
  asked = bench_options_default("check", "edge", argc, argv);
  return cli_parse(&command, argc, argv, &code) ? bench_session_run(&asked, &bench_cases_steps) : code;
}
