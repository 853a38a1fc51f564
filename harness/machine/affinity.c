/* SPDX-License-Identifier: MIT */
/* The CPUs that the process may use (--cpus), and the CPU that each thread is kept on while it is timed. */
#include "machine/affinity.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "attn/extend.h"
#include "base/cli.h"
#include "base/float_mode.h"
#include "machine/topology.h"

static bool chosen_by_user; /* with --cpus; thread 0 then goes to the first CPU */

int bench_pin_cpus(const char *command, const char *cpus) {
  char error[600];
  cpu_set_t allowed, set;
  const bench_topology *topology = bench_topology_get();
  if (!topology->here)
    return cli_usage_error(command, "--cpus '%s': no thread can be bound to %s; attnbench env --cpus shows the plan", cpus,
                           topology->source);
  if (sched_getaffinity(0, sizeof allowed, &allowed)) allowed = topology->cpus;
  if (!bench_cpus_read(cpus, topology, &allowed, &set, error, sizeof error))
    return cli_usage_error(command, "--cpus '%s': %s", cpus, error);
  if (sched_setaffinity(0, sizeof set, &set))
    return cli_usage_error(command, "--cpus '%s': the system refuses: %s", cpus, strerror(errno));
  chosen_by_user = true;
  return 0;
}

void bench_threads_limit(void) {
#ifdef _OPENMP
  if (omp_get_max_threads() <= CLI_MOST_THREADS) return;
  fprintf(stderr, "warning: OpenMP would start %d threads (OMP_NUM_THREADS); %d is the most\n", omp_get_max_threads(),
          CLI_MOST_THREADS);
  omp_set_num_threads(CLI_MOST_THREADS);
#endif
}

/* ---- Places ------------------------------------------------------------------------------------------------------ */

/* How many allowed CPUs of its core come before the CPU at `place`: 0 for the one that the first thread gets. */
static int rank_in_core(const bench_topology *t, const cpu_set_t *allowed, int place) {
  int rank = 0;
  for (int i = 0; i < place; i++)
    rank += bench_has_cpu(allowed, t->in_order[i]) && t->core[t->in_order[i]] == t->core[t->in_order[place]];
  return rank;
}

enum { MOST_PER_CORE = 8, NODES_NEAR_AND_FAR = 2 }; /* hardware threads of a core: no CPU has more */

/* In which turn a CPU gets a thread: CPUs that are first in their cores before second ones, and among equals those on the
 * node of `first` before others. Where `first` (not -1) is a CPU, it counts as the first of its core. */
static int turn_of(const bench_topology *t, const cpu_set_t *allowed, int first, int place) {
  const int cpu = t->in_order[place], rank = rank_in_core(t, allowed, place);
  if (first < 0) return rank * NODES_NEAR_AND_FAR;
  const bool shares_core = t->core[cpu] == t->core[first] && rank < MOST_PER_CORE;
  return (rank + shares_core) * NODES_NEAR_AND_FAR + (t->node[cpu] != t->node[first]);
}

int bench_place_threads(const bench_topology *t, const cpu_set_t *allowed, int first, int *cpu, int threads) {
  int turn[CPU_SETSIZE], count = 0;
  if (first >= 0 && !(bench_has_cpu(allowed, first) && bench_has_cpu(&t->cpus, first))) first = -1;
  for (int i = 0; i < t->count; i++) turn[i] = turn_of(t, allowed, first, i);
  if (first >= 0) cpu[count++] = first;
  for (int now = 0; now < (MOST_PER_CORE + 1) * NODES_NEAR_AND_FAR; now++)
    for (int i = 0; i < t->count && count < threads; i++) {
      const int next = t->in_order[i];
      if (turn[i] == now && next != first && bench_has_cpu(allowed, next)) cpu[count++] = next;
    }
  return count;
}

/* ---- Holding ----------------------------------------------------------------------------------------------------- */

/* Set by the thread that opens parallel regions. */
static struct {
  bool active;
  unsigned epoch; /* counts the holdings, so that a thread notices a new one */
  int cpu[CPU_SETSIZE];
  int count;
  int threads;      /* the threads asked for */
  int largest_team; /* the largest team that has been bound */
  cpu_set_t before;
} held;

enum { FREE = -1 };

/* Where this thread was put. */
static _Thread_local struct {
  unsigned epoch;
  int cpu;
} settled;

static bool openmp_binds(void) {
#ifdef _OPENMP
  return omp_get_proc_bind() != omp_proc_bind_false;
#else
  return false;
#endif
}

bool bench_threads_hold(int threads) {
  if (held.active || openmp_binds() || threads < 1) return false;
  if (sched_getaffinity(0, sizeof held.before, &held.before)) return false;
  if (sched_setaffinity(0, sizeof held.before, &held.before)) return false; /* a sandbox may forbid it */
  held.count =
      bench_place_threads(bench_topology_here(), &held.before, chosen_by_user ? -1 : sched_getcpu(), held.cpu, CPU_SETSIZE);
  held.threads = threads;
  held.epoch++;
  held.largest_team = 1;
  held.active = held.count > 0;
  if (held.active) bench_team_settle(threads);
  return held.active;
}

int bench_threads_held(void) { return held.active ? held.threads : 0; }

/* One CPU, or with FREE all. */
static cpu_set_t cpus_of(int cpu) {
  cpu_set_t set = held.before;
  if (cpu == FREE) return set;
  CPU_ZERO(&set);
  bench_add_cpu(&set, cpu);
  return set;
}

void bench_thread_settle(void) {
  int thread = 0, team = 1;
  if (!held.active) return;
#ifdef _OPENMP
  thread = omp_get_thread_num(), team = omp_get_num_threads();
#endif
  if (thread == 0 && team > held.largest_team) held.largest_team = team;
  const int wanted = team <= held.count ? held.cpu[thread] : FREE;
  if (settled.epoch == held.epoch && settled.cpu == wanted) return;
  const cpu_set_t set = cpus_of(wanted);
  (void)sched_setaffinity(0, sizeof set, &set);
  settled.epoch = held.epoch;
  settled.cpu = wanted;
}

void bench_team_settle(int threads) {
  if (held.active && threads < 2) bench_thread_settle();
  if (!held.active || threads < 2) return;
#pragma omp parallel num_threads(attn_parallel_available(threads))
  bench_thread_settle();
}

#ifdef _WIN32 /* it tells the CPUs of the process alone */
static bool thread_stays(void) { return true; }
#else
static bool thread_stays(void) {
  cpu_set_t now, wanted = cpus_of(settled.cpu);
  if (!held.active || settled.epoch != held.epoch) return true;
  if (sched_getaffinity(0, sizeof now, &now) || CPU_EQUAL(&now, &wanted)) return true;
  (void)sched_setaffinity(0, sizeof wanted, &wanted);
  return false;
}
#endif

bool bench_team_stays(int threads, uint64_t float_mode) {
  int stay = true;
  (void)threads; /* not used without OpenMP */
#pragma omp parallel num_threads(attn_parallel_available(threads)) reduction(&& : stay)
  {
    const bool keeps = bench_keeps_float_mode(float_mode); /* both, so that both are put back */
    stay = thread_stays() && keeps;
  }
  return stay;
}

/* Frees every thread that may be waiting for the next region, the caller first: new threads inherit its affinity. */
void bench_threads_release(void) {
  if (!held.active) return;
  held.active = false;
  (void)sched_setaffinity(0, sizeof held.before, &held.before);
  if (held.largest_team < 2) return;
#pragma omp parallel num_threads(attn_parallel_available(held.largest_team))
  (void)sched_setaffinity(0, sizeof held.before, &held.before);
}

/* ---- Description ------------------------------------------------------------------------------------------------- */

static int count_cores(const bench_topology *t, const cpu_set_t *allowed) {
  int cores = 0;
  for (int i = 0; i < t->count; i++) cores += bench_has_cpu(allowed, t->in_order[i]) && !rank_in_core(t, allowed, i);
  return cores;
}

static bool describe_places(const bench_topology *t, const cpu_set_t *allowed, int threads, char *text, size_t bytes) {
  int cpu[CPU_SETSIZE];
  char list[400];
  const int placed = threads <= CPU_SETSIZE ? bench_place_threads(t, allowed, -1, cpu, threads) : 0;
  if (!placed || placed < threads) {
    const int cpus = CPU_COUNT(allowed);
    snprintf(text, bytes, "none: %d threads on %d CPU%s would share them", threads, cpus, cpus == 1 ? "" : "s");
    return false;
  }
  const char *plural = placed == 1 ? "" : "s";
  bench_cpu_sequence_write(cpu, placed, list, sizeof list);
  snprintf(text, bytes, "%d thread%s on CPU%s %s, %s", placed, plural, plural, list,
           placed <= count_cores(t, allowed) ? "one per core" : "more than one per core");
  return true;
}

bool bench_describe_binding(const bench_topology *topology, const cpu_set_t *allowed, int threads, char *text,
                            size_t bytes) {
  const char *bind = getenv("OMP_PROC_BIND"), *places = getenv("OMP_PLACES");
  const int cores = count_cores(topology, allowed);
  char list[400];
  if (openmp_binds()) {
    snprintf(text, bytes, "OpenMP's: OMP_PROC_BIND=%s OMP_PLACES=%s", bind ? bind : "", places ? places : "");
    return true;
  }
  if (threads || chosen_by_user)
    return describe_places(topology, allowed, threads ? threads : CPU_COUNT(allowed), text, bytes);
  /* Names no CPU for each thread: the first one depends on where the caller runs. */
  bench_cpu_list_write(allowed, list, sizeof list);
  snprintf(text, bytes, "one thread per core of CPUs %s, %d core%s", list, cores, cores == 1 ? "" : "s");
  return true;
}

/* ---- First touch by the threads that will use the memory ---------------------------------------------------------- */

enum { FEW_PAGES = 16 }; /* per thread; for fewer it is not worth waking */

static uintptr_t page_bytes(void) { return (uintptr_t)sysconf(_SC_PAGESIZE); }

void bench_pages_forget(void *memory, size_t bytes) {
  const uintptr_t page = page_bytes(), begin = ((uintptr_t)memory + page - 1) / page * page;
  const uintptr_t end = ((uintptr_t)memory + bytes) / page * page;
  if (bench_threads_held() && end > begin)
    (void)madvise((char *)memory + (begin - (uintptr_t)memory), end - begin, MADV_DONTNEED);
}

/* Fills share n of `shares`, in whole pages. */
static void fill_share(unsigned char *memory, int byte, size_t bytes, size_t n, size_t shares) {
  const size_t page = page_bytes(), share = (bytes / shares + page - 1) / page * page;
  const size_t begin = n * share, end = n + 1 == shares || begin + share > bytes ? bytes : begin + share;
  if (begin < end) memset(memory + begin, byte, end - begin);
}

void bench_pages_fill(void *memory, int byte, size_t bytes, int threads) {
  if (bench_threads_held() < 2 || threads < 2 || bytes < (size_t)threads * FEW_PAGES * page_bytes()) {
    memset(memory, byte, bytes);
    return;
  }
#pragma omp parallel num_threads(attn_parallel_available(threads))
  {
    bench_thread_settle();
#pragma omp for schedule(static, 1)
    for (int n = 0; n < threads; n++) fill_share(memory, byte, bytes, (size_t)n, (size_t)threads);
  }
}
