/* SPDX-License-Identifier: MIT */
/* The topology as hwloc sees it, which knows more kinds of objects and can pretend (HWLOC_SYNTHETIC). */
#include "machine/topology.h"

#ifdef BENCH_HWLOC
#include <ctype.h>
#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine/cpu_list.h"

static hwloc_topology_t machine;

static void to_set(hwloc_const_cpuset_t from, cpu_set_t *set) {
  CPU_ZERO(set);
  for (int cpu = hwloc_bitmap_first(from); cpu >= 0 && cpu < CPU_SETSIZE; cpu = hwloc_bitmap_next(from, cpu))
    bench_add_cpu(set, cpu);
}

/* The kind's depth in the tree (a negative one for memory); false if it is no kind of hwloc's, or none is here. */
static bool find_depth(const char *kind, int *depth) {
  union hwloc_obj_attr_u attributes;
  hwloc_obj_type_t type;
  if (hwloc_type_sscanf(kind, &type, &attributes, sizeof attributes) < 0) return false;
  *depth = hwloc_get_type_depth(machine, type);
  return *depth >= 0 || *depth == HWLOC_TYPE_DEPTH_NUMANODE;
}

static int objects_of(const char *kind, const cpu_set_t *within, cpu_set_t *objects) {
  int depth, count = 0;
  if (!find_depth(kind, &depth)) return -1;
  for (hwloc_obj_t o = NULL; (o = hwloc_get_next_obj_by_depth(machine, depth, o)) && count < CPU_SETSIZE;) {
    cpu_set_t shared;
    to_set(o->cpuset, &objects[count]);
    CPU_AND(&shared, &objects[count], within);
    count += CPU_COUNT(&shared) > 0;
  }
  return count;
}

static void list_depth(char *text, size_t bytes, int depth) {
  char kind[32];
  hwloc_obj_t first = hwloc_get_obj_by_depth(machine, depth, 0);
  if (!first) return;
  (void)hwloc_obj_type_snprintf(kind, sizeof kind, first, 0);
  for (char *c = kind; *c; c++) *c = (char)tolower((unsigned char)*c);
  bench_topology_list_kind(text, bytes, kind, (int)hwloc_get_nbobjs_by_depth(machine, depth));
}

/* From the widest to the PUs; the machine itself is no choice, and instruction caches are beside those of data. */
static void list_kinds(char *text, size_t bytes) {
  text[0] = 0;
  list_depth(text, bytes, HWLOC_TYPE_DEPTH_NUMANODE);
  for (int depth = 1; depth < hwloc_topology_get_depth(machine); depth++)
    if (!hwloc_obj_type_is_icache(hwloc_get_depth_type(machine, depth))) list_depth(text, bytes, depth);
}

/* "L3 32 MiB x 1, ..." from the last level to the first. */
static void describe_caches(char *text, size_t bytes) {
  for (int depth = 1; depth < hwloc_topology_get_depth(machine); depth++) {
    char kind[32];
    const hwloc_obj_type_t type = hwloc_get_depth_type(machine, depth);
    hwloc_obj_t first = hwloc_get_obj_by_depth(machine, depth, 0);
    if (!hwloc_obj_type_is_dcache(type)) continue;
    (void)hwloc_obj_type_snprintf(kind, sizeof kind, first, 0);
    const unsigned long long kib = first->attr->cache.size >> 10;
    const size_t used = strlen(text);
    snprintf(text + used, bytes - used, "%s%s %llu %s x %u", used ? ", " : "", kind, kib % 1024 ? kib : kib / 1024,
             kib % 1024 ? "KiB" : "MiB", hwloc_get_nbobjs_by_depth(machine, depth));
  }
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
  const unsigned api = hwloc_get_api_version();
  snprintf(t->source, sizeof t->source, "hwloc, API %u.%u", api >> 16, api >> 8 & 0xff);
  if (t->here) return;
  const size_t used = strlen(t->source);
  if (synthetic)
    snprintf(t->source + used, sizeof t->source - used, ", synthetic: %.150s", synthetic);
  else
    snprintf(t->source + used, sizeof t->source - used, ", of another machine");
}

static void fill(bench_topology *t) {
  *t = (bench_topology){.here = hwloc_topology_is_thissystem(machine), .objects = objects_of, .list_kinds = list_kinds};
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
