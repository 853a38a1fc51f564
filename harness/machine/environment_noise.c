/* SPDX-License-Identifier: MIT */
/* What makes times scatter: clock control, other work, CPU time lost to the hypervisor, page sizes, memory nodes, quotas. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"
#include "machine/cgroup.h"
#include "machine/environment.h"

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

/* The share of the busy CPU time since boot that the hypervisor gave to others. */
static void add_steal(bench_environment *e) {
  long long ticks[TICK_KINDS] = {0}, total = 0;
  char text[256];
  bench_read_line("/proc/stat", text, sizeof text);
  char *next = text + strcspn(text, " ");
  for (int i = 0; i < TICK_KINDS; i++) total += ticks[i] = strtoll(next, &next, 10);
  if (total <= 0) {
    bench_fact_note(e, "steal", "");
    return;
  }
  const long long busy = total - ticks[IDLE_TICKS] - ticks[IO_WAIT_TICKS];
  const double share = 100.0 * (double)ticks[STEAL_TICKS] / (double)(busy > 0 ? busy : total);
  const bench_grade grade = share >= 5.0 ? BENCH_BAD : share >= 0.5 ? BENCH_WARN : BENCH_OK;
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

static void add_quota(bench_environment *e) {
  const double cpus = bench_cpu_quota("");
  if (isfinite(cpus) && cpus > 0)
    bench_fact_add(e, "cpu_quota", BENCH_WARN, "run outside the container's CPU limit (docker run without --cpus)",
                   "%.2f CPUs", cpus);
  else
    bench_fact_note(e, "cpu_quota", cpus < 0 ? "" : "none");
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
