/* SPDX-License-Identifier: MIT */
/* What makes times scatter: clock control, other work, CPU time lost to the hypervisor, page sizes, memory nodes, quotas. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "machine/environment_private.h"

static void add_governor(bench_environment *e) {
  char governor[64];
  bench_read_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", governor, sizeof governor);
  bool fine = strcmp(governor, "performance") == 0;
  bench_fact_add(e, "governor", fine ? BENCH_OK : BENCH_WARN, fine ? "" : "cpupower frequency-set -g performance", "%s",
                 governor);
}

/* Two drivers have two files of opposite sense. A boosted clock depends on heat and on the load of other cores. */
static void add_boost(bench_environment *e) {
  char boost[16], no_turbo[16];
  bench_read_line("/sys/devices/system/cpu/cpufreq/boost", boost, sizeof boost);
  bench_read_line("/sys/devices/system/cpu/intel_pstate/no_turbo", no_turbo, sizeof no_turbo);
  bool on = boost[0] == '1' || no_turbo[0] == '0';
  const char *off = boost[0] ? "echo 0 > /sys/devices/system/cpu/cpufreq/boost (for a steady clock)"
                             : "echo 1 > /sys/devices/system/cpu/intel_pstate/no_turbo (for a steady clock)";
  const char *value = !boost[0] && !no_turbo[0] ? "" : on ? "on" : "off";
  bench_fact_add(e, "boost", on ? BENCH_WARN : BENCH_OK, on ? off : "", "%s", value);
}

/* Other work in the last minute, compared with the number of CPUs. */
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

enum { IDLE_TICKS = 3, IO_WAIT_TICKS, STEAL_TICKS = 7, TICK_KINDS }; /* in the first line of /proc/stat */

/* Share of the busy CPU time since boot that the hypervisor gave to others, in %; negative if it is unknown. */
static double stolen_share(void) {
  long long ticks[TICK_KINDS] = {0}, total = 0;
  char text[256];
  bench_read_line("/proc/stat", text, sizeof text);
  char *next = text + strcspn(text, " ");
  for (int i = 0; i < TICK_KINDS; i++) total += ticks[i] = strtoll(next, &next, 10);
  const long long busy = total - ticks[IDLE_TICKS] - ticks[IO_WAIT_TICKS];
  return total > 0 ? 100.0 * (double)ticks[STEAL_TICKS] / (double)(busy > 0 ? busy : total) : -1.0;
}

static void add_steal(bench_environment *e) {
  const double share = stolen_share();
  if (share < 0) {
    bench_fact_note(e, "steal", "");
    return;
  }
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
  bench_fact_add(e, "numa_nodes", one ? BENCH_OK : BENCH_WARN,
                 one ? "" : "numactl --cpunodebind=0 --membind=0 attnbench ...", "%s", online);
}

/* ---- Quota of control groups ------------------------------------------------------------------------------------- */

static void read_in(const char *folder, const char *file, char *text, size_t bytes) {
  char path[1024];
  snprintf(path, sizeof path, "%s/%s", folder, file);
  bench_read_line(path, text, bytes);
}

/* How many CPUs' time a group may use, 0 without a limit: cgroup 2 has "max 100000" or "200000 100000", cgroup 1 quota and
 * period in two files. */
static double quota_of(const char *folder) {
  char quota[128], period[128];
  read_in(folder, "cpu.max", quota, sizeof quota);
  snprintf(period, sizeof period, "%s", quota + strcspn(quota, " "));
  if (!quota[0]) {
    read_in(folder, "cpu.cfs_quota_us", quota, sizeof quota);
    read_in(folder, "cpu.cfs_period_us", period, sizeof period);
  }
  return atof(quota) > 0 && atof(period) > 0 ? atof(quota) / atof(period) : 0.0;
}

static bool is_folder(const char *path) {
  DIR *folder = opendir(path);
  if (folder) closedir(folder);
  return folder;
}

/* Cuts the last name off a path below `root`; false at the root. */
static bool go_up(char *folder, const char *root) {
  char *slash = strrchr(folder, '/');
  if (!slash || strlen(folder) <= strlen(root)) return false;
  *slash = 0;
  return true;
}

/* What the control groups of this process say about its CPU time. */
typedef struct cpu_limit {
  double cpus; /* 0: no limit */
  bool known;  /* some group was found */
} cpu_limit;

/* Applies the smallest quota of a group and of all above it. */
static void limit_by_group(cpu_limit *limit, const char *root, const char *group) {
  char folder[768];
  double smallest = 0.0;
  snprintf(folder, sizeof folder, "%s%s", root, group);
  do {
    const double quota = quota_of(folder);
    limit->known = limit->known || is_folder(folder);
    if (quota > 0 && (smallest == 0.0 || quota < smallest)) smallest = quota;
  } while (go_up(folder, root));
  if (smallest > 0) limit->cpus = smallest;
}

/* A line of /proc/self/cgroup: "0::/group" of cgroup 2, or "4:cpu,cpuacct:/group" of cgroup 1. */
static void limit_by_line(cpu_limit *limit, char *line) {
  char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
  if (!group) return;
  *group++ = 0;
  group[strcspn(group, "\n")] = 0;
  const bool unified = strncmp(line, "0:", 2) == 0 && controllers[1] == 0;
  if (unified && access("/sys/fs/cgroup/cgroup.controllers", F_OK) == 0) limit_by_group(limit, "/sys/fs/cgroup", group);
  if (!unified && strstr(controllers, "cpu") && !strstr(controllers, "cpuset"))
    limit_by_group(limit, "/sys/fs/cgroup/cpu", group);
}

static void add_quota(bench_environment *e) {
  char line[512];
  cpu_limit limit = {0};
  FILE *file = fopen("/proc/self/cgroup", "r");
  while (file && fgets(line, sizeof line, file)) limit_by_line(&limit, line);
  if (file) fclose(file);
  if (limit.cpus > 0)
    bench_fact_add(e, "cpu_quota", BENCH_WARN, "run outside the container's CPU limit (docker run without --cpus)",
                   "%.2f CPUs", limit.cpus);
  else
    bench_fact_note(e, "cpu_quota", limit.known ? "none" : "");
}

/* ---- All --------------------------------------------------------------------------------------------------------- */

void bench_environment_add_noise(bench_environment *environment) {
  add_governor(environment);
  add_boost(environment);
  add_load(environment);
  add_steal(environment);
  add_pages(environment);
  add_numa(environment);
  add_quota(environment);
}
