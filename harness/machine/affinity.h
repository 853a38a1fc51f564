/* SPDX-License-Identifier: MIT */
/* Keeps each thread on a CPU of its own while it is timed: a scheduler may put several threads on one CPU, or move them.
 * Only attnbench does this; the library never touches the affinity of a thread. */
#ifndef BENCH_AFFINITY_H
#define BENCH_AFFINITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "machine/topology.h"

/* Lowers the number of threads that OpenMP starts by default to CLI_MOST_THREADS, with a warning. */
void bench_threads_limit(void);

/* --cpus: keeps the process, and all threads that it starts, on the CPUs that `cpus` names (bench_cpus_read). Returns 0 or
 * an exit code, having said why on stderr. */
int bench_pin_cpus(const char *command, const char *cpus);

/* The text of --help about --cpus. */
#define BENCH_CPUS_HELP                                                                                                   \
  "keep to exactly these CPUs: 0-3,8; with hwloc, one thread per core: core:0-3, package:1.core:0-1, numa:0, or exactly " \
  "pu:0-3 (default: all that this process may use)"

/* Chooses a CPU for each of `threads` threads: one per core first, then the cores' other CPUs. CPUs on the NUMA node of
 * `first` (a CPU, or -1 for the first that is allowed) come before others. Returns how many threads could be placed, at most
 * one per CPU. */
int bench_place_threads(const bench_topology *topology, const cpu_set_t *allowed, int first, int *cpu, int threads);

/* Until bench_threads_release(), keeps thread i of a region of up to `threads` OpenMP threads on the i-th CPU of
 * bench_place_threads(). The caller is thread 0: it stays on its CPU, or with --cpus moves to the first of those. False if
 * nothing is held: OpenMP binds threads itself (OMP_PROC_BIND), or the system does not let affinity be read or set. */
bool bench_threads_hold(int threads);
void bench_threads_release(void);

/* `threads` of bench_threads_hold(); 0 if nothing is held. */
int bench_threads_held(void);

/* Moves the calling thread to its CPU. The harness' own regions begin with it: libgomp ends threads that a smaller team does
 * not need and starts new ones for the next, and those begin on their parent's CPU. The threads of a team that is larger
 * than what is held move freely. Costs next to nothing if the thread is there or nothing is held. */
void bench_thread_settle(void);

/* The same for every thread of a team that OpenMP will use next. */
void bench_team_settle(int threads);

/* Whether each of a team's threads is where it was put, in the same floating-point mode as the caller. If not, it is put
 * there again, and gets that mode. */
bool bench_team_stays(int threads, uint64_t float_mode);

/* Describes what timed threads are kept on; false if they are too many to be held. threads: 0 for any number. */
bool bench_describe_binding(const bench_topology *topology, const cpu_set_t *allowed, int threads, char *text, size_t bytes);

/* ---- Placement of memory ------------------------------------------------------------------------------------------ */
/* A page lies on the NUMA node of the thread that writes to it first. While threads are held, each thread first writes its
 * share of every tensor. Shares follow the order of memory, which in most layouts is the order of heads and of the library's
 * tasks. Workspaces are first written by the library's own threads. The library gives tasks to threads as they become free,
 * so a thread works mostly, but not only, on its own share. */

/* While threads are held, gives the pages that lie wholly in this memory back to the system and loses their contents. The
 * next thread that writes there decides on which node they lie. */
void bench_pages_forget(void *memory, size_t bytes);

/* Does the same as memset(). While several threads are held, each of `threads` writes its share. */
void bench_pages_fill(void *memory, int byte, size_t bytes, int threads);

#endif
