/* Which CPUs the process may use (--cpus), and which CPU each thread is kept on while it is timed. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "affinity.h"
#include "options.h"

/* The lowest CPU of the core that this one belongs to; -1 if there is no such CPU. */
static int first_of_core(int cpu) {
  char path[96];
  int first = cpu;
  snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
  FILE *file = fopen(path, "r");
  if (!file) return -1;
  if (fscanf(file, "%d", &first) != 1) first = cpu;
  (void)fclose(file);
  return first;
}

/* The first CPU of the given core, counting cores by their first CPU among all CPUs; -1 if there are not so many. */
static int cpu_of_core(int wanted) {
  int core = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    const int first = first_of_core(cpu);
    if (first < 0) return -1;
    if (first == cpu && core++ == wanted) return cpu;
  }
  return -1;
}

/* Adds "3" or "0-3" to the set; NULL, or what is wrong. */
static const char *add_range(const char *text, bool cores, cpu_set_t *set) {
  int first, last;
  char rest;
  const int fields = sscanf(text, "%d-%d%c", &first, &last, &rest);
  if (fields < 1 || fields > 2 || (fields == 1 && strspn(text, "0123456789") != strlen(text)))
    return "a list such as 0-3,8 or core:0-3";
  if (fields == 1) last = first;
  if (first < 0 || last < first || last >= CPU_SETSIZE) return "numbers of CPUs, the first not above the last";
  for (int i = first; i <= last; i++) {
    const int cpu = cores ? cpu_of_core(i) : i;
    if (cpu < 0) return "cores that this machine has";
    CPU_SET(cpu, set);
  }
  return NULL;
}

int bench_pin_cpus(const char *command, const char *cpus) {
  cpu_set_t set;
  const bool cores = !strncmp(cpus, "core:", 5);
  const char *text = cpus + (cores ? 5 : 0), *wanted = *text ? NULL : "a list such as 0-3,8 or core:0-3";
  CPU_ZERO(&set);
  while (*text && !wanted) {
    char item[32];
    const size_t length = strcspn(text, ",");
    snprintf(item, sizeof item, "%.*s", (int)length, text);
    wanted = add_range(item, cores, &set);
    text += length + (text[length] == ',');
  }
  if (wanted) return cli_usage_error(command, "--cpus '%s': should be %s", cpus, wanted);
  if (!sched_setaffinity(0, sizeof set, &set)) return 0;
  return cli_usage_error(command, "--cpus '%s': %s; this process may use %d CPUs", cpus, strerror(errno), bench_cpu_count());
}

/* ---- Holding threads ------------------------------------------------------------------------------------------------ */

static bool openmp_binds(void) {
#ifdef _OPENMP
  return omp_get_proc_bind() != omp_proc_bind_false;
#else
  return false;
#endif
}

/* Calls place(context, thread) on every thread of a region; on the caller alone without OpenMP. */
static void on_each_thread(int threads, void (*place)(const void *context, int thread), const void *context) {
#ifdef _OPENMP
  if (threads > 1) {
#pragma omp parallel num_threads(threads)
    place(context, omp_get_thread_num());
    return;
  }
#endif
  (void)threads;
  place(context, 0);
}

static void keep_on(const void *context, int thread) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(((const int *)context)[thread], &one);
  (void)sched_setaffinity(0, sizeof one, &one);
}

static void set_free(const void *context, int thread) {
  (void)thread;
  (void)sched_setaffinity(0, sizeof(cpu_set_t), context);
}

static bool shares_core(const int *cpu, int count, int candidate) {
  for (int i = 0; i < count; i++)
    if (first_of_core(cpu[i]) == first_of_core(candidate)) return true;
  return false;
}

/* Fills cpu[wanted] from `allowed`, starting with the present one; siblings of a core that is taken come last. */
static bool choose_cpus(cpu_set_t allowed, int *cpu, int wanted) {
  int count = 0;
  cpu[count++] = sched_getcpu();
  if (cpu[0] < 0 || !CPU_ISSET(cpu[0], &allowed)) return false;
  CPU_CLR(cpu[0], &allowed);
  for (int siblings = 0; siblings < 2; siblings++)
    for (int i = 0; i < CPU_SETSIZE && count < wanted; i++) {
      if (!CPU_ISSET(i, &allowed) || (!siblings && shares_core(cpu, count, i))) continue;
      CPU_CLR(i, &allowed);
      cpu[count++] = i;
    }
  return count == wanted;
}

bench_hold bench_threads_hold(int threads) {
  bench_hold hold = {.threads = 0};
  int cpu[CPU_SETSIZE];
  if (openmp_binds() || threads < 1 || threads > CPU_SETSIZE) return hold;
  if (sched_getaffinity(0, sizeof hold.before, &hold.before) || !choose_cpus(hold.before, cpu, threads)) return hold;
  on_each_thread(threads, keep_on, cpu);
  hold.threads = threads;
  return hold;
}

void bench_threads_release(const bench_hold *hold) {
  if (hold->threads) on_each_thread(hold->threads, set_free, &hold->before);
}
