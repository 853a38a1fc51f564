/* SPDX-License-Identifier: MIT */
/* Reads the topology on first use. */
#include "machine/topology.h"

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
