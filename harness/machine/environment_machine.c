/* SPDX-License-Identifier: MIT */
/* CPU, caches, memory and operating system, from the system files of Linux; the topology, and the CPUs that timed threads
 * are kept on. */
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
#include "machine/cpus.h"
#include "machine/environment.h"

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

void bench_environment_add_machine(bench_environment *environment) {
  add_cpu(environment);
  add_hypervisor(environment);
  for (int index = 0; index < MOST_CACHES; index++) add_cache(environment, index);
  if (!bench_cache_bytes(1)) bench_fact_note(environment, "cache_l1d", "");
  add_memory(environment);
  add_system(environment);
  add_clock(environment);
  add_topology(environment);
}
