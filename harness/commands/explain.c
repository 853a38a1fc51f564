/* SPDX-License-Identifier: MIT */
/* attnbench explain: which kernel the library chooses for a problem, and why each other was refused; with --simulate how
 * long a call takes on any number of threads. */
#include <stdio.h>

#include "commands/commands.h"
#include "commands/options.h"
#include "report/report.h"
#include "simulate/simulate.h"

static void print_plan(const bench_case *bench) {
  const attn_options options = ATTN_STRUCT(attn_options, .threads = bench->threads, .steady = bench->steady);
  attn_plan *plan;
  if (attn_plan_create(&bench->problem, &options, &plan) != ATTN_OK) {
    printf("no plan: %s\n", attn_last_error());
    return;
  }
  fputs(attn_plan_describe(plan), stdout);
  attn_plan_destroy(plan);
}

static void explain_case(const bench_case *bench) {
  printf("%s\n\n", bench->case_id);
  if (bench->invalid[0])
    printf("%s\n", bench->invalid);
  else
    print_plan(bench);
  printf("\n%-25s %s\n", "kernel", "takes it?");
  for (int i = 0; i < attn_kernel_count(); i++) {
    const attn_kernel_info *kernel = attn_kernel_get(i);
    const char *reason = bench->invalid[0] ? bench->invalid : attn_kernel_rejects(kernel, &bench->problem);
    printf("%-25s %s", kernel->name, reason ? "no: " : "yes\n");
    if (reason) bench_print_wrapped(stdout, reason, 30);
  }
  const char *name, *reason;
  for (int i = 0; (name = attn_kernel_not_built(i, &reason)); i++) {
    printf("%-25s no: ", name);
    bench_print_wrapped(stdout, reason, 30);
  }
  putchar('\n');
}

static bench_options asked;
static bool simulate;
static const char *topology;

static const cli_option options[] = {
    BENCH_CASE_OPTIONS(&asked),
    CLI_HEADING("Kernels"),
    BENCH_LOAD_OPTION(&asked.filter.load),
    CLI_HEADING("Simulation"),
    {CLI_FLAG, 0, "simulate", NULL,
     "time single tasks of each case here and play them on its threads, however many: predicted time, efficiency, idle "
     "share, "
     "and what limits it; -t 1:256:*2 gives a table",
     &simulate},
    {CLI_STRING, 0, "topology", "FILE", "the machine to simulate, see below (default: as many cores like these as threads)",
     &topology},
    {CLI_STRING, 0, "json", "FILE", "write the simulation as JSON; - is stdout and replaces the table", &asked.json},
    CLI_END};

static const cli_command command = {.name = "explain",
                                    .usage = "[-a AXIS=VALUE]...",
                                    .summary =
                                        "Says which kernel the library chooses for a problem and with which plan, and for "
                                        "every other kernel whether it could have taken it or why not.",
                                    .options = options,
                                    .epilogue = bench_topology_help};

static int read_topology(sim_machine *machine) {
  enum { MOST = 1 << 16 };
  char error[400];
  static char text[MOST];
  FILE *file = fopen(topology, "r");
  const size_t bytes = file ? fread(text, 1, MOST, file) : 0;
  const bool read = file && !ferror(file);
  if (file) fclose(file);
  if (!read) return cli_usage_error("explain", "--topology: cannot read %s", topology);
  if (bytes == MOST) return cli_usage_error("explain", "--topology: %s has more than %d bytes", topology, MOST - 1);
  text[bytes] = 0;
  if (sim_machine_read(topology, text, machine, error, sizeof error)) return 0;
  return cli_usage_error("explain", "--topology: %s", error);
}

static int simulate_cases(const bench_case_list *cases) {
  sim_machine machine;
  const int code = topology ? read_topology(&machine) : 0;
  return code ? code : sim_explain(cases->item, cases->count, topology ? &machine : NULL, asked.json);
}

int bench_explain_main(int argc, char **argv) {
  bench_case_list cases = {0};
  int code;
  simulate = false;
  topology = NULL;
  asked = bench_options_default("explain", NULL, argc, argv);
  if (!cli_parse(&command, argc, argv, &code)) return code;
  if (!simulate && (topology || asked.json))
    return cli_usage_error("explain", "--%s needs --simulate", topology ? "topology" : "json");
  code = bench_check_overrides(asked.command);
  if (!code) code = bench_plugins_load(&asked.filter.load, asked.command);
  if (!code) code = bench_options_cases(&asked, &cases);
  if (!code && simulate) code = simulate_cases(&cases);
  for (int i = 0; i < cases.count && !code && !simulate; i++) explain_case(&cases.item[i]);
  bench_cases_clear(&cases);
  return code;
}
