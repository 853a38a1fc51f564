/* SPDX-License-Identifier: MIT */
/* CPU, caches, memory and operating system, as the system files of Linux tell them. */
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
#include "machine/environment_private.h"

#define CPU_FOLDER "/sys/devices/system/cpu"

static void add_cpu(bench_environment *e) {
  static const struct {
    const char *fact, *field;
  } fields[] = {
      {"cpu", "model name"},  {"cpu_vendor", "vendor_id"},  {"cpu_family", "cpu family"},
      {"cpu_model", "model"}, {"cpu_stepping", "stepping"}, {"microcode", "microcode"},
  };
  char value[512];
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    bench_read_field("/proc/cpuinfo", fields[i].field, value, sizeof value);
    bench_fact_note(e, fields[i].fact, value);
  }
  bench_fact_note(e, "tiers", attn_cpu_tiers());
  bench_read_line(CPU_FOLDER "/online", value, sizeof value);
  bench_fact_note(e, "cpus_online", value);
  bench_read_line(CPU_FOLDER "/smt/control", value, sizeof value);
  bench_fact_note(e, "smt", value);
}

/* The name that the hypervisor gives itself in CPUID leaf 0x40000000; "none" on bare metal. */
static void add_hypervisor(bench_environment *e) {
  const char *advice = "measure on bare metal: caches, clock and neighbours of a virtual machine are not what they seem";
#if defined(__x86_64__)
  unsigned eax, ebx, ecx, edx;
  char name[13] = "";
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) {
    bench_fact_note(e, "hypervisor", "");
  } else if (!(ecx >> 31)) {
    bench_fact_note(e, "hypervisor", "none");
  } else {
    __cpuid(0x40000000, eax, ebx, ecx, edx);
    memcpy(name, (unsigned[]){ebx, ecx, edx}, 12);
    bench_fact_add(e, "hypervisor", BENCH_WARN, advice, "%s", name[0] ? name : "one without a name");
  }
#else
  char type[64];
  bench_read_line("/sys/hypervisor/type", type, sizeof type);
  if (type[0])
    bench_fact_add(e, "hypervisor", BENCH_WARN, advice, "%s", type);
  else
    bench_fact_note(e, "hypervisor", ""); /* other hypervisors leave no trace that every system shows */
#endif
}

/* One file of a cache's folder, "48K" for `size`. */
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

static void add_caches(bench_environment *e) {
  for (int index = 0; index < MOST_CACHES; index++) {
    char level[16], type[32], size[32], shared[128], name[48];
    read_cache(index, "level", level, sizeof level);
    read_cache(index, "type", type, sizeof type);
    read_cache(index, "size", size, sizeof size);
    read_cache(index, "shared_cpu_list", shared, sizeof shared);
    if (!level[0] || strcmp(type, "Instruction") == 0) continue;
    snprintf(name, sizeof name, "cache_l%s%s", level, strcmp(type, "Data") ? "" : "d");
    bench_fact_add(e, name, BENCH_OK, "", "%lld KiB, shared by CPUs %s", read_size(size) / 1024,
                   shared[0] ? shared : "unknown");
  }
  if (!bench_cache_bytes(1)) bench_fact_note(e, "cache_l1d", "");
}

static void add_memory(bench_environment *e) {
  char total[64], free_now[64];
  bench_read_field("/proc/meminfo", "MemTotal", total, sizeof total);
  bench_read_field("/proc/meminfo", "MemAvailable", free_now, sizeof free_now);
  if (!total[0]) {
    bench_fact_note(e, "memory", "");
    return;
  }
  bench_fact_add(e, "memory", BENCH_OK, "", "%lld MiB, %lld MiB available", atoll(total) / 1024, atoll(free_now) / 1024);
}

static void add_system(bench_environment *e) {
  char text[512], stamp[64];
  struct utsname system;
  time_t now = time(NULL);
  struct tm calendar;
  if (gethostname(text, sizeof text)) text[0] = 0;
  text[sizeof text - 1] = 0;
  bench_fact_note(e, "host", text);
  strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &calendar));
  bench_fact_note(e, "date", stamp);
  bench_read_field("/etc/os-release", "PRETTY_NAME", text, sizeof text);
  bench_fact_note(e, "system", text);
  if (uname(&system))
    bench_fact_note(e, "kernel", "");
  else
    bench_fact_add(e, "kernel", BENCH_OK, "", "%s %s %s", system.sysname, system.release, system.machine);
#if defined(__GLIBC__)
  bench_fact_add(e, "libc", BENCH_OK, "", "glibc %s", gnu_get_libc_version());
#else
  bench_fact_note(e, "libc", "");
#endif
}

static void add_clock(bench_environment *e) {
  char source[64];
  bench_read_line("/sys/devices/system/clocksource/clocksource0/current_clocksource", source, sizeof source);
  bool quick = !strcmp(source, "tsc") || !strcmp(source, "arch_sys_counter") || !strcmp(source, "kvm-clock");
  const char *advice = quick || !source[0] ? "" : "boot with clocksource=tsc: reading another clock takes a system call";
  bench_fact_add(e, "clock_source",
                 !source[0] ? BENCH_UNKNOWN
                 : quick    ? BENCH_OK
                            : BENCH_WARN,
                 advice, "%s", source[0] ? source : "unknown");
  double resolution_ns = bench_clock_resolution_ns();
  if (resolution_ns <= 0.0)
    bench_fact_add(e, "clock_resolution", BENCH_BAD, "none: CLOCK_MONOTONIC stands still here", "0 ns");
  else
    bench_fact_add(e, "clock_resolution", resolution_ns < 1000.0 ? BENCH_OK : BENCH_WARN, "", "%.0f ns", resolution_ns);
}

void bench_environment_add_machine(bench_environment *environment) {
  add_cpu(environment);
  add_hypervisor(environment);
  add_caches(environment);
  add_memory(environment);
  add_system(environment);
  add_clock(environment);
}
