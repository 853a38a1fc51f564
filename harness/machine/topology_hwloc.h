/* SPDX-License-Identifier: MIT */
/* hwloc's own view of the machine, for what bench_topology does not tell. */
#ifndef BENCH_TOPOLOGY_HWLOC_H
#define BENCH_TOPOLOGY_HWLOC_H

#include <hwloc.h>
#include <sched.h>

/* What bench_topology_get() read; NULL before. */
hwloc_topology_t bench_hwloc_machine(void);

/* Bits from CPU_SETSIZE on are left out. */
cpu_set_t bench_hwloc_cpus(hwloc_const_bitmap_t bits);

#endif
