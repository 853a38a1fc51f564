/* SPDX-License-Identifier: MIT */
/* Sets of CPUs as text: lists as system files and taskset write them ("0-3,8"), and what `--cpus` may say. */
#ifndef BENCH_CPUS_H
#define BENCH_CPUS_H

#include "machine/topology.h"

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
