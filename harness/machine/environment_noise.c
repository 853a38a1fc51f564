/* SPDX-License-Identifier: MIT */
/* What makes times scatter: clock control, other work, the hypervisor's thefts, page sizes, memory nodes, quotas. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "machine/environment_private.h"

static void add_governor(bench_environment *e) {
  char governor[64];
  bench_read_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", governor, sizeof governor);
  bool fine = strcmp(governor, "performance") == 0;
  if (governor[0])
    bench_fact_add(e, "governor", fine ? BENCH_OK : BENCH_WARN, fine ? "" : "cpupower frequency-set -g performance", "%s",
                   governor);
  else
    bench_fact_note(e, "governor", "");
}

/* Two drivers, two files of opposite sense. A boosted clock depends on heat and neighbours. */
static void add_boost(bench_environment *e) {
  char boost[16], no_turbo[16];
  bench_read_line("/sys/devices/system/cpu/cpufreq/boost", boost, sizeof boost);
  bench_read_line("/sys/devices/system/cpu/intel_pstate/no_turbo", no_turbo, sizeof no_turbo);
  bool on = boost[0] == '1' || no_turbo[0] == '0';
  const char *off = boost[0] ? "echo 0 > /sys/devices/system/cpu/cpufreq/boost (for a steady clock)"
                             : "echo 1 > /sys/devices/system/cpu/intel_pstate/no_turbo (for a steady clock)";
  if (boost[0] || no_turbo[0])
    bench_fact_add(e, "boost", on ? BENCH_WARN : BENCH_OK, on ? off : "", on ? "on" : "off");
  else
    bench_fact_note(e, "boost", "");
}

/* Other work in the last minute, against the CPUs there are. */
static void add_load(bench_environment *e) {
  char text[128];
  bench_read_line("/proc/loadavg", text, sizeof text);
  if (!text[0]) {
    bench_fact_note(e, "load", "");
    return;
  }
  double load = strtod(text, NULL), cpus = (double)sysconf(_SC_NPROCESSORS_ONLN);
  bench_grade grade = load >= cpus ? BENCH_BAD : load >= 0.5 ? BENCH_WARN : BENCH_OK;
  bench_fact_add(e, "load", grade, grade == BENCH_OK ? "" : "uptime; top (wait until other work is done)", "%s on %.0f CPUs",
                 text, cpus);
}

/* Share of CPU time that the hypervisor gave to others since boot. */
static void add_steal(bench_environment *e) {
  long long ticks[8] = {0}, total = 0; /* user nice system idle iowait irq softirq steal */
  char text[256];
  bench_read_line("/proc/stat", text, sizeof text);
  char *next = text + strcspn(text, " ");
  for (int i = 0; i < 8; i++) total += ticks[i] = strtoll(next, &next, 10);
  if (total <= 0) {
    bench_fact_note(e, "steal", "");
    return;
  }
  double share = 100.0 * (double)ticks[7] / (double)(total - ticks[3] - ticks[4] > 0 ? total - ticks[3] - ticks[4] : total);
  bench_grade grade = share >= 5.0 ? BENCH_BAD : share >= 0.5 ? BENCH_WARN : BENCH_OK;
  bench_fact_add(e, "steal", grade, grade == BENCH_OK ? "" : "use a dedicated host or a larger instance",
                 "%.2f %% of the busy CPU time since boot", share);
}

static void add_pages(bench_environment *e) {
  char text[128];
  bench_read_line("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text);
  char *chosen = strchr(text, '['), *end = chosen ? strchr(chosen, ']') : NULL;
  if (end) {
    *end = 0;
    chosen++;
  }
  bench_fact_note(e, "huge_pages", end ? chosen : "");
}

static void add_numa(bench_environment *e) {
  char online[64];
  bench_read_line("/sys/devices/system/node/online", online, sizeof online);
  bool one = online[0] && !strpbrk(online, "-,");
  if (!online[0])
    bench_fact_note(e, "numa_nodes", "");
  else
    bench_fact_add(e, "numa_nodes", one ? BENCH_OK : BENCH_WARN,
                   one ? "" : "numactl --cpunodebind=0 --membind=0 attnbench ...", "%s", online);
}

/* CPUs' worth of time that a group may use: cgroup 2 "max 100000" or "200000 100000", cgroup 1 quota and period. */
static double quota_of(const char *folder) {
  char path[1024], text[128];
  snprintf(path, sizeof path, "%s/cpu.max", folder);
  bench_read_line(path, text, sizeof text);
  double quota = atof(text), period = text[0] && strchr(text, ' ') ? atof(strchr(text, ' ')) : 0.0;
  if (!text[0]) {
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    bench_read_line(path, text, sizeof text);
    quota = atof(text);
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    bench_read_line(path, text, sizeof text);
    period = atof(text);
  }
  return quota > 0 && period > 0 ? quota / period : 0.0;
}

/* The smallest quota of our group and all above it; 0 = none. *known tells whether any group was found. */
static double smallest_quota(const char *root, const char *group, bool *known) {
  char folder[768];
  double smallest = 0.0;
  snprintf(folder, sizeof folder, "%s%s", root, group);
  for (;;) {
    DIR *there = opendir(folder);
    if (there) closedir(there);
    *known = *known || there;
    double quota = quota_of(folder);
    if (quota > 0 && (smallest == 0.0 || quota < smallest)) smallest = quota;
    char *slash = strrchr(folder, '/');
    if (!slash || strlen(folder) <= strlen(root)) return smallest;
    *slash = 0;
  }
}

static void add_quota(bench_environment *e) {
  char line[512];
  double quota = 0.0;
  bool known = false;
  FILE *file = fopen("/proc/self/cgroup", "r");
  while (file && fgets(line, sizeof line, file)) { /* "0::/group", or "4:cpu,cpuacct:/group" */
    char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group) continue;
    *group++ = 0;
    group[strcspn(group, "\n")] = 0;
    if (strncmp(line, "0:", 2) == 0 && controllers[1] == 0) {
      bool unified = access("/sys/fs/cgroup/cgroup.controllers", F_OK) == 0;
      double found = unified ? smallest_quota("/sys/fs/cgroup", group, &known) : 0.0;
      if (found > 0) quota = found;
    } else if (strstr(controllers, "cpu") && !strstr(controllers, "cpuset")) {
      double found = smallest_quota("/sys/fs/cgroup/cpu", group, &known);
      if (found > 0) quota = found;
    }
  }
  if (file) fclose(file);
  if (quota > 0)
    bench_fact_add(e, "cpu_quota", BENCH_WARN, "run outside the container's CPU limit (docker run without --cpus)",
                   "%.2f CPUs", quota);
  else
    bench_fact_note(e, "cpu_quota", known ? "none" : "");
}

void bench_environment_add_noise(bench_environment *environment) {
  add_governor(environment);
  add_boost(environment);
  add_load(environment);
  add_steal(environment);
  add_pages(environment);
  add_numa(environment);
  add_quota(environment);
}
