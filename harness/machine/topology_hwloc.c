/* SPDX-License-Identifier: MIT */
/* The topology from hwloc, which may be a synthetic one (HWLOC_SYNTHETIC). */
#include "machine/topology.h"

#ifdef BENCH_HWLOC
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine/cpu_list.h"
#include "machine/topology_hwloc.h"

static hwloc_topology_t machine;

hwloc_topology_t bench_hwloc_machine(void) { return machine; }

cpu_set_t bench_hwloc_cpus(hwloc_const_bitmap_t bits) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu = hwloc_bitmap_first(bits); cpu >= 0 && cpu < CPU_SETSIZE; cpu = hwloc_bitmap_next(bits, cpu))
    bench_add_cpu(&set, cpu);
  return set;
}

/* Appends "L3 32 MiB x 1". */
static void append_cache(char *text, size_t bytes, int depth) {
  char kind[32];
  const hwloc_obj_t first = hwloc_get_obj_by_depth(machine, depth, 0);
  const unsigned long long kib = first->attr->cache.size >> 10;
  const size_t used = strlen(text);
  (void)hwloc_obj_type_snprintf(kind, sizeof kind, first, 0);
  snprintf(text + used, bytes - used, "%s%s %llu %s x %u", used ? ", " : "", kind, kib % 1024 ? kib : kib / 1024,
           kib % 1024 ? "KiB" : "MiB", hwloc_get_nbobjs_by_depth(machine, depth));
}

/* From the last level to the first. */
static void describe_caches(char *text, size_t bytes) {
  for (int depth = 1; depth < hwloc_topology_get_depth(machine); depth++)
    if (hwloc_obj_type_is_dcache(hwloc_get_depth_type(machine, depth))) append_cache(text, bytes, depth);
}

/* Numbers the CPUs of each object of a kind; returns how many objects there are, 1 where the kind is missing. */
static int number(hwloc_obj_type_t type, int *of_cpu) {
  const int depth = hwloc_get_type_depth(machine, type);
  int count = 0;
  if (depth < 0 && depth != HWLOC_TYPE_DEPTH_NUMANODE) return 1;
  for (hwloc_obj_t o = NULL; (o = hwloc_get_next_obj_by_depth(machine, depth, o)); count++)
    for (int cpu = hwloc_bitmap_first(o->cpuset); cpu >= 0 && cpu < CPU_SETSIZE; cpu = hwloc_bitmap_next(o->cpuset, cpu))
      of_cpu[cpu] = count;
  return count;
}

static void name_source(bench_topology *t) {
  const char *synthetic = getenv("HWLOC_SYNTHETIC");
  const char *kind = t->here ? "" : synthetic ? ", synthetic: " : ", of another machine";
  const unsigned api = hwloc_get_api_version();
  snprintf(t->source, sizeof t->source, "hwloc, API %u.%u%s%.150s", api >> 16, api >> 8 & 0xff, kind,
           synthetic && !t->here ? synthetic : "");
}

static void fill(bench_topology *t) {
  *t = (bench_topology){.here = hwloc_topology_is_thissystem(machine)};
  for (hwloc_obj_t pu = NULL; (pu = hwloc_get_next_obj_by_type(machine, HWLOC_OBJ_PU, pu));) {
    if (pu->os_index >= CPU_SETSIZE) continue;
    bench_add_cpu(&t->cpus, (int)pu->os_index);
    t->core[pu->os_index] = t->count; /* unless there are cores */
    t->in_order[t->count++] = (int)pu->os_index;
  }
  t->cores = hwloc_get_type_depth(machine, HWLOC_OBJ_CORE) < 0 ? t->count : number(HWLOC_OBJ_CORE, t->core);
  t->nodes = number(HWLOC_OBJ_NUMANODE, t->node);
  t->packages = number(HWLOC_OBJ_PACKAGE, t->package);
  describe_caches(t->caches, sizeof t->caches);
  name_source(t);
}

static void forget(void) { hwloc_topology_destroy(machine); }

bool bench_topology_from_hwloc(bench_topology *topology) {
  if (machine || hwloc_topology_init(&machine)) return false;
  if (hwloc_topology_load(machine)) {
    hwloc_topology_destroy(machine);
    return false;
  }
  (void)atexit(forget);
  fill(topology);
  return topology->count > 0;
}

#else

bool bench_topology_from_hwloc(bench_topology *topology) {
  (void)topology;
  return false;
}
#endif
