/* SPDX-License-Identifier: MIT */
/* Nodes come from the system's files, once per process; which of them a call may use from where its threads may run. */
#define _GNU_SOURCE /* sched_getaffinity, sched_getcpu */
#include "src/plan/nodes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#endif

#include "src/plan/parallel.h"

/* ---- The system's files ---- */

static void add_cpus(attn_node_map *map, int node, long first, long last) {
  for (long cpu = first; cpu >= 0 && cpu <= last && cpu < ATTN_MOST_CPUS; cpu++) {
    map->node[cpu] = (unsigned char)node;
    map->nodes |= UINT64_C(1) << node;
    if (cpu >= map->cpus) map->cpus = (int)cpu + 1;
  }
}

/* "0-3,8"; nothing where the node has memory alone. */
static void read_list(attn_node_map *map, int node, const char *text) {
  for (char *end; *text >= '0' && *text <= '9'; text = *end == ',' ? end + 1 : end) {
    const long first = strtol(text, &end, 10), last = *end == '-' ? strtol(end + 1, &end, 10) : first;
    add_cpus(map, node, first, last);
  }
}

void attn_node_map_read(const char *folder, attn_node_map *map) {
  char text[4096];
  memset(map, 0, sizeof *map);
  for (int node = 0; node < ATTN_MOST_NODES; node++) {
    snprintf(text, sizeof text, "%s/node%d/cpulist", folder, node);
    FILE *file = fopen(text, "r");
    if (!file) continue;
    if (fgets(text, sizeof text, file)) read_list(map, node, text);
    fclose(file);
  }
}

/* ---- This machine ---- */

static const attn_node_map *pretended;

void attn_nodes_pretend(const attn_node_map *map) { pretended = map; }

#ifdef __linux__
static attn_node_map machine;

static void read_machine(void) { attn_node_map_read("/sys/devices/system/node", &machine); }

static const attn_node_map *machine_map(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, read_machine);
  return &machine;
}

static uint64_t node_of(int cpu) { return cpu >= 0 && cpu < machine.cpus ? UINT64_C(1) << machine.node[cpu] : 0; }

static uint64_t nodes_of_affinity(void) {
  uint64_t nodes = 0;
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof cpus, &cpus)) return 0;
  for (int cpu = 0; cpu < machine.cpus; cpu++)
    if (CPU_ISSET((size_t)cpu, &cpus)) nodes |= node_of(cpu);
  return nodes;
}

uint64_t attn_parallel_nodes(int threads) {
  if (pretended) return pretended->nodes;
  if (attn_nodes_count(machine_map()->nodes) < 2) return 1;
  uint64_t nodes = attn_parallel_places(threads, node_of);
  if (!nodes) nodes = nodes_of_affinity();
  return nodes ? nodes : 1;
}

static int node_here(void) {
  const int cpu = sched_getcpu();
  return cpu >= 0 && cpu < machine.cpus ? machine.node[cpu] : 0;
}
#else
uint64_t attn_parallel_nodes(int threads) { return (void)threads, pretended ? pretended->nodes : 1; }

static int node_here(void) { return 0; }
#endif

int attn_nodes_here(uint64_t nodes, int worker) {
  if (!(nodes & (nodes - 1))) return 0;
  return attn_nodes_below(nodes, pretended ? pretended->node[worker % pretended->cpus] : node_here());
}
