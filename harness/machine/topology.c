/* SPDX-License-Identifier: MIT */
/* The topology: from hwloc, or without it from /sys/devices/system/cpu, which tells what binding needs. */
#include "machine/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli.h"
#include "base/files.h"
#include "src/plan/nodes.h"

#define CPU_FOLDER "/sys/devices/system/cpu"

static bench_topology known; /* for by_node_and_core() */

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
  attn_node_map map;
  attn_node_map_read("/sys/devices/system/node", &map);
  for (int cpu = 0; cpu < map.cpus && cpu < CPU_SETSIZE; cpu++) node[cpu] = attn_nodes_below(map.nodes, map.node[cpu]);
  return map.nodes ? attn_nodes_count(map.nodes) : 1;
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

/* ---- Lists of CPU numbers ----------------------------------------------------------------------------------------- */

/* Reads a number below CPU_SETSIZE at *text and moves behind it; -1 if there is none. */
static int read_number(const char **text) {
  char *end;
  if (**text < '0' || **text > '9') return -1;
  const long number = strtol(*text, &end, 10);
  *text = end;
  return number < CPU_SETSIZE ? (int)number : -1;
}

/* "3" or "0-3". */
static bool read_range(const char **text, cpu_set_t *set) {
  const int first = read_number(text);
  int last = first;
  if (first >= 0 && **text == '-') {
    ++*text;
    last = read_number(text);
  }
  for (int cpu = first; first >= 0 && cpu <= last; cpu++) bench_add_cpu(set, cpu);
  return first >= 0 && first <= last;
}

bool bench_cpu_list_read(const char *text, cpu_set_t *set) {
  CPU_ZERO(set);
  if (!read_range(&text, set)) return false;
  while (*text == ',') {
    text++;
    if (!read_range(&text, set)) return false;
  }
  return !*text;
}

/* Appends "0", "0-3" or "0-6:2". */
static void append_range(char *text, size_t bytes, int first, int last, int step) {
  bench_append(text, bytes, "%s%d", *text ? "," : "", first);
  if (last > first) bench_append(text, bytes, "-%d", last);
  if (step > 1) bench_append(text, bytes, ":%d", step);
}

/* The length of the range at the beginning of a sequence; two numbers are a range only where they are neighbours. */
static int range_length(const int *cpu, int count) {
  const int step = count > 1 ? cpu[1] - cpu[0] : 1;
  int length = 1;
  while (length < count && cpu[length] - cpu[length - 1] == step) length++;
  return step == 1 || (step > 1 && length > 2) ? length : 1;
}

void bench_cpu_sequence_write(const int *cpu, int count, char *text, size_t bytes) {
  text[0] = 0;
  for (int i = 0, length; i < count; i += length) {
    length = range_length(cpu + i, count - i);
    append_range(text, bytes, cpu[i], cpu[i + length - 1], length > 1 ? cpu[i + 1] - cpu[i] : 1);
  }
}

void bench_cpu_list_write(const cpu_set_t *set, char *text, size_t bytes) {
  text[0] = 0;
  for (int cpu = 0, last; cpu < CPU_SETSIZE; cpu = last + 1) {
    last = cpu;
    if (!bench_has_cpu(set, cpu)) continue;
    while (last + 1 < CPU_SETSIZE && bench_has_cpu(set, last + 1)) last++;
    append_range(text, bytes, cpu, last, 1);
  }
}

static bool is_usable(const cpu_set_t *set, const bench_topology *topology, const cpu_set_t *allowed, char *error,
                      size_t error_bytes) {
  char list[200];
  int beyond = 0; /* the first CPU that is not allowed */
  while (beyond < CPU_SETSIZE && (!bench_has_cpu(set, beyond) || bench_has_cpu(allowed, beyond))) beyond++;
  if (beyond == CPU_SETSIZE && CPU_COUNT(set)) return true;
  bench_cpu_list_write(allowed, list, sizeof list);
  if (beyond == CPU_SETSIZE) return bench_say(error, error_bytes, "no CPU is left; this process may use %s", list);
  const char *what = bench_has_cpu(&topology->cpus, beyond) ? "CPU %d is not allowed" : "there is no CPU %d";
  snprintf(error, error_bytes, what, beyond);
  bench_append(error, error_bytes, "; this process may use %s", list);
  return false;
}

bool bench_cpus_read(const char *text, const bench_topology *topology, const cpu_set_t *allowed, cpu_set_t *set, char *error,
                     size_t error_bytes) {
  if (!bench_cpu_list_read(text, set) && !bench_locations_read(text, topology, allowed, set, error, error_bytes))
    return false;
  return is_usable(set, topology, allowed, error, error_bytes);
}
