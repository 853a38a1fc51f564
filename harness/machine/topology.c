/* SPDX-License-Identifier: MIT */
/* Reads the topology on first use. */
#include "machine/topology.h"

#include <stdio.h>
#include <string.h>

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

void bench_topology_list_kind(char *text, size_t bytes, const char *kind, int count) {
  const size_t used = strlen(text);
  const char *comma = used ? ", " : "";
  if (count > 1)
    snprintf(text + used, bytes - used, "%s%s:0-%d", comma, kind, count - 1);
  else if (count == 1)
    snprintf(text + used, bytes - used, "%s%s:0", comma, kind);
}
