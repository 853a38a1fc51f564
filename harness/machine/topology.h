/* SPDX-License-Identifier: MIT */
/* The CPUs and what they share: from hwloc where it is built in, else from the system files of Linux.
 *
 * CPUs are numbered as the operating system does; cores, NUMA nodes and packages are counted from 0 in the order of the
 * topology ("logically", in hwloc's words). */
#ifndef BENCH_TOPOLOGY_H
#define BENCH_TOPOLOGY_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct bench_topology {
  char source[200]; /* "hwloc, API 2.8" */
  bool here;        /* describes this machine; no thread can be bound to another one (HWLOC_SYNTHETIC) */
  cpu_set_t cpus;   /* all that the system shows, whether this process may use them or not */
  int count;
  int in_order[CPU_SETSIZE];                                      /* the CPUs, those of a core beside each other */
  int core[CPU_SETSIZE], node[CPU_SETSIZE], package[CPU_SETSIZE]; /* of each CPU */
  int cores, nodes, packages;
  char caches[200]; /* "L3 32 MiB x 1, L2 512 KiB x 2, L1d 32 KiB x 2" */
} bench_topology;

/* The topology that hwloc shows (a synthetic one too), or that of the system files. Read once; never fails: where the system
 * does not say, there is one package, one node, and a core for each CPU. */
const bench_topology *bench_topology_get(void);

/* The same, but always of this machine. */
const bench_topology *bench_topology_here(void);

/* The two sources; the first is false without hwloc, or where hwloc cannot read the topology. */
bool bench_topology_from_hwloc(bench_topology *topology);
void bench_topology_from_system(bench_topology *topology);

#endif
