/* SPDX-License-Identifier: MIT */
/* attnbench env: the audit of machine, build and noise, and the CPUs to which threads would be bound. */
#include "base/cli.h"
#include "base/files.h"
#include "base/plugins.h"
#include "commands/commands.h"
#include "machine/affinity.h"
#include "machine/environment.h"
#include "machine/topology.h"

static const char epilogue[] =
    "Exit code 4 if --strict was given and a fact is BAD. 'unknown' means that this system does not say:\n"
    "nothing is guessed. With HWLOC_SYNTHETIC set (\"pack:2 numa:1 core:8 pu:2\"), --cpus and --threads\n"
    "show what they would choose on such a machine.\n";

/* The CPUs to which threads would be bound. */
typedef struct placing {
  const char *cpus;
  int64_t threads;
  cpu_set_t set;
} placing;

static void write_json(void *context, FILE *file) { bench_environment_write_json(context, file); }

/* Returns 0 or an exit code. */
static int choose_cpus(placing *p) {
  char error[600];
  const bench_topology *topology = bench_topology_get();
  cpu_set_t allowed = topology->cpus;
  if (topology->here && sched_getaffinity(0, sizeof allowed, &allowed)) allowed = topology->cpus;
  p->set = allowed;
  if (p->cpus && !bench_cpus_read(p->cpus, topology, &allowed, &p->set, error, sizeof error))
    return cli_usage_error("env", "--cpus '%s': %s", p->cpus, error);
  if (p->cpus && !p->threads) p->threads = CPU_COUNT(&p->set);
  return 0;
}

/* One line per thread. */
static void print_threads(const placing *p) {
  const bench_topology *t = bench_topology_get();
  int cpu[CPU_SETSIZE];
  const int wanted = (int)p->threads, placed = bench_place_threads(t, &p->set, -1, cpu, wanted);
  printf("\n%-8s %6s %6s %6s %8s\n", "thread", "CPU", "core", "node", "package");
  for (int i = 0; i < placed; i++)
    printf("%-8d %6d %6d %6d %8d\n", i, cpu[i], t->core[cpu[i]], t->node[cpu[i]], t->package[cpu[i]]);
  if (placed < wanted)
    printf("%d threads have no CPU of their own: none of the %d would be bound\n", wanted - placed, wanted);
}

static const char *json;
static bool strict;
static cli_list load;
static placing where;

static const cli_option options[] = {
    {CLI_STRING, 0, "json", "FILE", "write the facts as JSON instead of the table; - is stdout", &json},
    {CLI_FLAG, 0, "strict", NULL, "exit with 4 if the machine is unfit to measure: any fact is BAD", &strict},
    BENCH_LOAD_OPTION(&load),
    CLI_HEADING("Where threads would be kept (nothing is bound)"),
    {CLI_STRING, 0, "cpus", "LIST", BENCH_CPUS_HELP, &where.cpus},
    {CLI_INT, 't', "threads", "N", "so many threads (default: one for each CPU of --cpus, or for each core)",
     CLI_WITHIN(&where.threads, 1, CPU_SETSIZE)},
    CLI_END,
};

static const cli_command command = {
    .name = "env",
    .usage = "[options]",
    .summary = "Says what this machine and this build are, what disturbs measurements here, and which command would fix it.",
    .options = options,
    .epilogue = epilogue};

int bench_env_main(int argc, char **argv) {
  static bench_environment environment;
  int code;
  json = NULL;
  strict = false;
  load.count = 0;
  where = (placing){.cpus = NULL};
  if (!cli_parse(&command, argc, argv, &code)) return code;
  code = choose_cpus(&where);
  if (!code) code = bench_plugins_load(&load, "env");
  if (code) return code;
  bench_environment_read(&environment, argc, argv, 0);
  bench_environment_set_binding(&environment, &where.set, (int)where.threads);
  if (json && !bench_file_write(json, write_json, &environment)) return BENCH_EXIT_INTERNAL;
  if (!json) bench_environment_print(&environment, stdout);
  if (!json && where.threads) print_threads(&where);
  return strict && bench_environment_worst(&environment) == BENCH_BAD ? BENCH_EXIT_UNFIT : BENCH_EXIT_OK;
}
