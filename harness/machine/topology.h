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
  int in_order[CPU_SETSIZE];                                      /* the CPUs; CPUs of one core stand beside each other */
  int core[CPU_SETSIZE], node[CPU_SETSIZE], package[CPU_SETSIZE]; /* one for each CPU */
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

/* ---- Sets of CPUs as text ----------------------------------------------------------------------------------------- */

static inline bool bench_has_cpu(const cpu_set_t *set, int cpu) { return CPU_ISSET((size_t)cpu, set); }
static inline void bench_add_cpu(cpu_set_t *set, int cpu) { CPU_SET((size_t)cpu, set); }

/* False unless all of `text` is such a list, of numbers below CPU_SETSIZE. */
bool bench_cpu_list_read(const char *text, cpu_set_t *set);

/* "0-3,8"; cut at the end of `text`. */
void bench_cpu_list_write(const cpu_set_t *set, char *text, size_t bytes);

/* A sequence in its own order, with the step of a range behind a colon where it is not 1: "0-30:2,1-31:2". */
void bench_cpu_sequence_write(const int *cpu, int count, char *text, size_t bytes);

/* Reads a list of CPUs by the operating system's numbers, such as 0-3,8. With hwloc, reads its locations as well: items
 * separated by commas or blanks, each of
 *
 *     core:0-3   package:1.core:0-1   numa:0   l3:1   pu:4   all      objects, counted from 0 in hwloc's order
 *     0-3        8                                                    CPUs by the operating system's numbers
 *     0xf                                                             a set of such CPUs
 *
 * with ranges N, N-M, N-, N:COUNT, all, odd, even. An item without a kind continues the list before it (core:0-3,8). A ~ in
 * front takes an item away. Objects that are cores or larger give one CPU per core, the first that is allowed; pu:, numbers
 * and sets give exactly the CPUs that they name.
 *
 * True with a set that is not empty and lies in `allowed`. Else false; error then says what is wrong and what would be
 * right. */
bool bench_cpus_read(const char *text, const bench_topology *topology, const cpu_set_t *allowed, cpu_set_t *set, char *error,
                     size_t error_bytes);

/* The part of it that takes hwloc (hwloc.c). Does not ask whether CPUs that the text names by number are allowed. */
bool bench_locations_read(const char *text, const bench_topology *topology, const cpu_set_t *allowed, cpu_set_t *set,
                          char *error, size_t error_bytes);

#endif
