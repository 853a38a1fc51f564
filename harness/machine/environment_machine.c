/* SPDX-License-Identifier: MIT */
/* CPU, caches, memory and operating system, from the system files of Linux; the topology, and the CPUs that timed threads
 * are kept on. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__GLIBC__)
#include <gnu/libc-version.h>
#endif

#include "attn/attn.h"
#include "base/clock.h"
#include "base/files.h"
#include "machine/affinity.h"
#include "machine/environment.h"
#include "machine/topology.h"

#define CPU_FOLDER "/sys/devices/system/cpu"

static void note_field(bench_environment *e, const char *name, const char *path, const char *field) {
  char value[512];
  bench_read_field(path, field, value, sizeof value);
  bench_fact_note(e, name, value);
}

static void note_line(bench_environment *e, const char *name, const char *path) {
  char line[512];
  bench_read_line(path, line, sizeof line);
  bench_fact_note(e, name, line);
}

static void add_cpu(bench_environment *e) {
  static const char *const fields[][2] = {
      {"cpu", "model name"},  {"cpu_vendor", "vendor_id"},  {"cpu_family", "cpu family"},
      {"cpu_model", "model"}, {"cpu_stepping", "stepping"}, {"microcode", "microcode"},
  };
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) note_field(e, fields[i][0], "/proc/cpuinfo", fields[i][1]);
  bench_fact_note(e, "tiers", attn_cpu_tiers());
  note_line(e, "cpus_online", CPU_FOLDER "/online");
  note_line(e, "smt", CPU_FOLDER "/smt/control");
}

/* The hypervisor's name, "none" on bare metal, "" if it cannot be told. */
#if defined(__x86_64__)
static void read_hypervisor(char name[64]) {
  unsigned eax, ebx, ecx, edx, present = 1u << 31;
  strcpy(name, "");
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return;
  strcpy(name, "none");
  if (!(ecx & present)) return;
  __cpuid(0x40000000, eax, ebx, ecx, edx); /* the hypervisor's own leaf */
  const unsigned words[4] = {ebx, ecx, edx, 0};
  memcpy(name, words, sizeof words);
  if (!name[0]) strcpy(name, "one without a name");
}
#else
static void read_hypervisor(char name[64]) {
  bench_read_line("/sys/hypervisor/type", name, 64);
} /* only Xen has this file */
#endif

static void add_hypervisor(bench_environment *e) {
  char name[64];
  read_hypervisor(name);
  if (!strcmp(name, "none"))
    bench_fact_note(e, "hypervisor", name);
  else
    bench_fact_add(e, "hypervisor", BENCH_WARN,
                   "measure on bare metal: a virtual machine may misreport its caches and clock, and shares its CPU", "%s",
                   name);
}

/* A file in the folder of a cache: `what` is "size" for "48K". */
static void read_cache(int index, const char *what, char *value, size_t bytes) {
  char path[128];
  snprintf(path, sizeof path, CPU_FOLDER "/cpu0/cache/index%d/%s", index, what);
  bench_read_line(path, value, bytes);
}

/* Bytes of "48K", "32768K", "1M"; 0 if it is no size. */
static long long read_size(const char *text) {
  char *unit;
  long long size = strtoll(text, &unit, 10);
  if (size <= 0) return 0;
  return size << (*unit == 'K' ? 10 : *unit == 'M' ? 20 : *unit == 'G' ? 30 : 0);
}

enum { MOST_CACHES = 8 };

long long bench_cache_bytes(int level) {
  char text[64];
  for (int index = 0; index < MOST_CACHES; index++) {
    read_cache(index, "level", text, sizeof text);
    if (atoi(text) != level) continue;
    read_cache(index, "type", text, sizeof text);
    if (strcmp(text, "Instruction") == 0) continue;
    read_cache(index, "size", text, sizeof text);
    return read_size(text);
  }
  return 0;
}

static void add_cache(bench_environment *e, int index) {
  char level[16], type[32], size[32], shared[128], name[48];
  read_cache(index, "level", level, sizeof level);
  read_cache(index, "type", type, sizeof type);
  read_cache(index, "size", size, sizeof size);
  read_cache(index, "shared_cpu_list", shared, sizeof shared);
  if (!level[0] || strcmp(type, "Instruction") == 0) return;
  snprintf(name, sizeof name, "cache_l%s%s", level, strcmp(type, "Data") ? "" : "d");
  bench_fact_add(e, name, BENCH_OK, "", "%lld KiB, shared by CPUs %s", read_size(size) / 1024,
                 shared[0] ? shared : "unknown");
}

static void add_memory(bench_environment *e) {
  char total[64], free_now[64];
  bench_read_field("/proc/meminfo", "MemTotal", total, sizeof total);
  bench_read_field("/proc/meminfo", "MemAvailable", free_now, sizeof free_now);
  if (total[0])
    bench_fact_add(e, "memory", BENCH_OK, "", "%lld MiB, %lld MiB available", atoll(total) / 1024, atoll(free_now) / 1024);
  else
    bench_fact_note(e, "memory", "");
}

static void add_system(bench_environment *e) {
  char host[512] = "", stamp[64], kernel[256] = "";
  struct tm calendar;
  struct utsname system;
  const time_t now = time(NULL);
  strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &calendar));
  bench_fact_note(e, "host", gethostname(host, sizeof host - 1) ? "" : host);
  bench_fact_note(e, "date", stamp);
  note_field(e, "system", "/etc/os-release", "PRETTY_NAME");
  if (!uname(&system)) snprintf(kernel, sizeof kernel, "%s %s %s", system.sysname, system.release, system.machine);
  bench_fact_note(e, "kernel", kernel);
#if defined(__GLIBC__)
  bench_fact_add(e, "libc", BENCH_OK, "", "glibc %s", gnu_get_libc_version());
#else
  bench_fact_note(e, "libc", "");
#endif
}

static void add_clock(bench_environment *e) {
  char source[64];
  bench_read_line("/sys/devices/system/clocksource/clocksource0/current_clocksource", source, sizeof source);
  const bool quick = !strcmp(source, "tsc") || !strcmp(source, "arch_sys_counter") || !strcmp(source, "kvm-clock");
  bench_fact_add(e, "clock_source", quick ? BENCH_OK : BENCH_WARN,
                 quick ? "" : "boot with clocksource=tsc: reading another clock takes a system call", "%s", source);
  const double resolution_ns = bench_clock_resolution_ns();
  if (resolution_ns <= 0.0)
    bench_fact_add(e, "clock_resolution", BENCH_BAD, "none: CLOCK_MONOTONIC does not advance here", "0 ns");
  else
    bench_fact_add(e, "clock_resolution", resolution_ns < 1000.0 ? BENCH_OK : BENCH_WARN, "", "%.0f ns", resolution_ns);
  const bool fine = bench_cpu_resolution_ns() <= BENCH_CPU_RESOLUTION_NS;
  const char *advice = fine ? "" : "nothing here: busy threads are not counted";
  bench_fact_add(e, "cpu_clock", fine ? BENCH_OK : BENCH_WARN, advice, "%.0f ns", bench_cpu_resolution_ns());
}

/* ---- Topology --------------------------------------------------------------------------------------------------- */

/* The CPUs of the topology that this process may use; all of them if it is another machine's. */
static cpu_set_t usable_cpus(const bench_topology *topology) {
  cpu_set_t set;
  if (!topology->here || sched_getaffinity(0, sizeof set, &set)) return topology->cpus;
  return set;
}

void bench_environment_set_binding(bench_environment *environment, const cpu_set_t *cpus, int threads) {
  char text[512];
  const bool bound = bench_describe_binding(bench_topology_get(), cpus, threads, text, sizeof text);
  int place = 0;
  while (place < environment->count && strcmp(environment->facts[place].name, "binding")) place++;
  const int last = environment->count;
  bench_fact_add(environment, "binding", bound ? BENCH_OK : BENCH_WARN, bound ? "" : "fewer threads", "%s", text);
  if (place == last || environment->count == last) return;
  environment->facts[place] = environment->facts[last];
  environment->count = last;
}

static void add_topology(bench_environment *e) {
  const bench_topology *t = bench_topology_get();
  const struct {
    const char *name;
    int number;
  } numbers[] = {{"packages", t->packages}, {"nodes", t->nodes}, {"cores", t->cores}, {"pus", t->count}};
  const cpu_set_t usable = usable_cpus(t);
  cpu_set_t own;
  char list[400];
  bench_fact_note(e, "topology", t->source);
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    bench_fact_add(e, numbers[i].name, BENCH_OK, "", "%d", numbers[i].number);
  if (t->caches[0]) bench_fact_note(e, "caches", t->caches);
  if (sched_getaffinity(0, sizeof own, &own)) {
    bench_fact_note(e, "affinity", "");
  } else {
    bench_cpu_list_write(&own, list, sizeof list);
    bench_fact_add(e, "affinity", BENCH_OK, "", "CPUs %s", list);
  }
  bench_environment_set_binding(e, &usable, 0);
}

/* ---- Noise: what makes times scatter ------------------------------------------------------------------------------ */

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

void bench_environment_add_machine(bench_environment *environment) {
  static void (*const further[])(bench_environment *) = {add_memory,   add_system, add_clock, add_topology,
                                                         add_governor, add_boost,  add_load,  add_steal,
                                                         add_pages,    add_numa,   add_quota};
  add_cpu(environment);
  add_hypervisor(environment);
  for (int index = 0; index < MOST_CACHES; index++) add_cache(environment, index);
  if (!bench_cache_bytes(1)) bench_fact_note(environment, "cache_l1d", "");
  for (size_t i = 0; i < sizeof further / sizeof *further; i++) further[i](environment);
}
