/* SPDX-License-Identifier: MIT */
/* The topology: from hwloc, or without it from /sys/devices/system/cpu, which tells what binding needs. */
#include "machine/topology.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "machine/cpus.h"

#define CPU_FOLDER "/sys/devices/system/cpu"

static bench_topology known; /* what by_node_and_core() looks at */

static bool read_cpus(const char *path, cpu_set_t *set) {
  char text[4096];
  bench_read_line(path, text, sizeof text);
  return text[0] && bench_cpu_list_read(text, set);
}

/* The lowest CPU in a list of this CPU's neighbours, such as "0,64"; the CPU itself where the system has no list. */
static int lowest_of(int cpu, const char *list) {
  char path[128];
  cpu_set_t set;
  snprintf(path, sizeof path, CPU_FOLDER "/cpu%d/topology/%s", cpu, list);
  if (!read_cpus(path, &set)) return cpu;
  for (int i = 0; i < cpu; i++)
    if (bench_has_cpu(&set, i)) return i;
  return cpu;
}

/* Numbers groups of CPUs by their lowest member, in the order of CPUs. Returns how many there are. */
static int number_groups(const cpu_set_t *cpus, const char *list, int *group) {
  int groups = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!bench_has_cpu(cpus, cpu)) continue;
    const int lowest = lowest_of(cpu, list);
    group[cpu] = lowest < cpu && bench_has_cpu(cpus, lowest) ? group[lowest] : groups++;
  }
  return groups;
}

static int number_nodes(int *node) {
  int nodes = 0;
  for (int i = 0; i < CPU_SETSIZE; i++) {
    char path[96];
    cpu_set_t set;
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", i);
    if (!read_cpus(path, &set)) continue;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
      if (bench_has_cpu(&set, cpu)) node[cpu] = nodes;
    nodes++;
  }
  return nodes ? nodes : 1;
}

static int by_node_and_core(const void *left, const void *right) {
  const int a = *(const int *)left, b = *(const int *)right;
  if (known.node[a] != known.node[b]) return known.node[a] - known.node[b];
  return known.core[a] != known.core[b] ? known.core[a] - known.core[b] : a - b;
}

void bench_topology_from_system(bench_topology *topology) {
  known = (bench_topology){.here = true};
  snprintf(known.source, sizeof known.source, "system files");
  if (!read_cpus(CPU_FOLDER "/online", &known.cpus) && sched_getaffinity(0, sizeof known.cpus, &known.cpus))
    bench_add_cpu(&known.cpus, 0);
  known.cores = number_groups(&known.cpus, "thread_siblings_list", known.core);
  known.packages = number_groups(&known.cpus, "core_siblings_list", known.package);
  known.nodes = number_nodes(known.node);
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (bench_has_cpu(&known.cpus, cpu)) known.in_order[known.count++] = cpu;
  qsort(known.in_order, (size_t)known.count, sizeof *known.in_order, by_node_and_core);
  *topology = known;
}

const bench_topology *bench_topology_here(void) {
  static bench_topology system;
  const bench_topology *shown = bench_topology_get();
  if (shown->here) return shown;
  if (!system.count) bench_topology_from_system(&system);
  return &system;
}

const bench_topology *bench_topology_get(void) {
  static bench_topology topology;
  if (!topology.count && !bench_topology_from_hwloc(&topology)) bench_topology_from_system(&topology);
  return &topology;
}
