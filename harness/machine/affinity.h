/* SPDX-License-Identifier: MIT */
/* Threads kept on CPUs of their own while they are timed: a scheduler may pack threads on one CPU, or move them about. Only
 * attnbench does this; the library never touches the affinity of a thread. */
#ifndef BENCH_AFFINITY_H
#define BENCH_AFFINITY_H

#include <stdbool.h>
#include <stddef.h>

#include "machine/topology.h"

/* --cpus: keeps the process, and all threads that it starts, on the CPUs that `cpus` names (cpu_syntax.h). Returns 0 or an
 * exit code, having said why on stderr. */
int bench_pin_cpus(const char *command, const char *cpus);

/* What --cpus takes, for --help. */
#define BENCH_CPUS_HELP                                                                                                   \
  "keep to exactly these CPUs: 0-3,8; with hwloc, one thread per core: core:0-3, package:1.core:0-1, numa:0, or exactly " \
  "pu:0-3 (default: all that this process may use)"

/* The CPU of each of `threads` threads: one per core first, then the cores' other CPUs; those near `first` (a CPU, or -1 for
 * the first that is allowed) before those of other NUMA nodes. Returns how many could be placed: fewer if CPUs are short. */
int bench_place_threads(const bench_topology *topology, const cpu_set_t *allowed, int first, int *cpu, int threads);

/* From here on, until bench_threads_release(), thread i of a region of up to `threads` OpenMP threads belongs on the i-th CPU
 * of bench_place_threads(): the caller, thread 0, stays on the present CPU (without --cpus) or moves to the first one. False
 * if nothing is held: OpenMP binds threads itself (OMP_PROC_BIND), or the system tells or allows nothing about affinity. */
bool bench_threads_hold(int threads);
void bench_threads_release(void);

/* The threads that bench_threads_hold() was asked for; 0 if nothing is held. */
int bench_threads_held(void);

/* Whether those are more than there are CPUs, so that they are free to move and share them. */
bool bench_threads_share_cpus(void);

/* Moves the calling thread to its CPU. The harness' own regions begin with it: libgomp ends threads that a smaller team has no
 * use for and starts new ones for the next, and those begin on their parent's CPU. Where a team is larger than what is held,
 * its threads are free to move. Does nothing, at next to no cost, if the thread is there or nothing is held. */
void bench_thread_settle(int thread, int team);

/* The same for every thread of a team that OpenMP will use next. */
void bench_team_settle(int threads);

/* What timed threads are kept on, in words; false if they are too many to be held. threads 0: whatever number. */
bool bench_describe_binding(const bench_topology *topology, const cpu_set_t *allowed, int threads, char *text, size_t bytes);

#endif
