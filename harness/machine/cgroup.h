/* SPDX-License-Identifier: MIT */
/* What the control groups (cgroups, version 1 and 2) of this process leave to it. `root` is "", or a folder that stands for
 * the root of the file system, so that tests can feign other systems. */
#ifndef BENCH_CGROUP_H
#define BENCH_CGROUP_H

/* How many CPUs' time the process may use: INFINITY without a limit, negative where the system does not say. */
double bench_cpu_quota(const char *root);

/* Bytes of memory that are free: MemAvailable, or what the groups leave if that is less. INFINITY if neither is known. */
double bench_memory_available(const char *root);

#endif
