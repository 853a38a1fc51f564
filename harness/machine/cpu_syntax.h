/* SPDX-License-Identifier: MIT */
/* What `--cpus` may say. */
#ifndef BENCH_CPU_SYNTAX_H
#define BENCH_CPU_SYNTAX_H

#include "machine/topology.h"

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

/* The part of it that takes hwloc (locations.c). Does not ask whether CPUs that the text names by number are allowed. */
bool bench_locations_read(const char *text, const bench_topology *topology, const cpu_set_t *allowed, cpu_set_t *set,
                          char *error, size_t error_bytes);

#endif
