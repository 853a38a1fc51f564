/* --cpus: keeps the process, and the threads it will start, on some CPUs. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"

/* The first CPU of the given core, counting cores by their first CPU among all CPUs; -1 if there are not so many. */
static int cpu_of_core(int wanted) {
  int core = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    char path[96];
    int first = cpu;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    if (fscanf(file, "%d", &first) != 1) first = cpu;
    (void)fclose(file);
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
