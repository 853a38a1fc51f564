/* SPDX-License-Identifier: MIT */
/* --cpus: a plain list of CPUs, or hwloc's locations; and whether this process may use them. */
#include "machine/cpu_syntax.h"

#include <stdio.h>

#include "machine/cpu_list.h"

/* The first CPU of the set that is not allowed, or -1. */
static int first_beyond(const cpu_set_t *set, const cpu_set_t *allowed) {
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (bench_has_cpu(set, cpu) && !bench_has_cpu(allowed, cpu)) return cpu;
  return -1;
}

static bool is_usable(const cpu_set_t *set, const bench_topology *topology, const cpu_set_t *allowed, char *error,
                      size_t error_bytes) {
  char list[200];
  const int beyond = first_beyond(set, allowed);
  if (beyond < 0 && CPU_COUNT(set)) return true;
  bench_cpu_list_write(allowed, list, sizeof list);
  if (beyond < 0)
    snprintf(error, error_bytes, "no CPU is left; this process may use %s", list);
  else if (bench_has_cpu(&topology->cpus, beyond))
    snprintf(error, error_bytes, "CPU %d is not allowed; this process may use %s", beyond, list);
  else
    snprintf(error, error_bytes, "there is no CPU %d; this process may use %s", beyond, list);
  return false;
}

bool bench_cpus_read(const char *text, const bench_topology *topology, const cpu_set_t *allowed, cpu_set_t *set, char *error,
                     size_t error_bytes) {
  if (!bench_cpu_list_read(text, set) && !bench_locations_read(text, topology, allowed, set, error, error_bytes))
    return false;
  return is_usable(set, topology, allowed, error, error_bytes);
}
