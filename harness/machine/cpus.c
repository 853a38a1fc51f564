/* SPDX-License-Identifier: MIT */
/* Lists of CPU numbers; --cpus, and whether this process may use the CPUs that it names. */
#include "machine/cpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads a number below CPU_SETSIZE at *text and moves behind it; -1 if there is none. */
static int read_number(const char **text) {
  char *end;
  if (**text < '0' || **text > '9') return -1;
  const long number = strtol(*text, &end, 10);
  *text = end;
  return number < CPU_SETSIZE ? (int)number : -1;
}

/* "3" or "0-3". */
static bool read_range(const char **text, cpu_set_t *set) {
  const int first = read_number(text);
  int last = first;
  if (first >= 0 && **text == '-') {
    ++*text;
    last = read_number(text);
  }
  for (int cpu = first; first >= 0 && cpu <= last; cpu++) bench_add_cpu(set, cpu);
  return first >= 0 && first <= last;
}

bool bench_cpu_list_read(const char *text, cpu_set_t *set) {
  CPU_ZERO(set);
  if (!read_range(&text, set)) return false;
  while (*text == ',') {
    text++;
    if (!read_range(&text, set)) return false;
  }
  return !*text;
}

/* Appends "0", "0-3" or "0-6:2". */
static void append_range(char *text, size_t bytes, int first, int last, int step) {
  char dash[16] = "", colon[16] = "";
  const size_t used = strlen(text);
  if (last > first) snprintf(dash, sizeof dash, "-%d", last);
  if (step > 1) snprintf(colon, sizeof colon, ":%d", step);
  snprintf(text + used, bytes - used, "%s%d%s%s", used ? "," : "", first, dash, colon);
}

/* The length of the range at the beginning of a sequence; two numbers are a range only where they are neighbours. */
static int range_length(const int *cpu, int count) {
  const int step = count > 1 ? cpu[1] - cpu[0] : 1;
  int length = 1;
  while (length < count && cpu[length] - cpu[length - 1] == step) length++;
  return step == 1 || (step > 1 && length > 2) ? length : 1;
}

void bench_cpu_sequence_write(const int *cpu, int count, char *text, size_t bytes) {
  text[0] = 0;
  for (int i = 0, length; i < count; i += length) {
    length = range_length(cpu + i, count - i);
    append_range(text, bytes, cpu[i], cpu[i + length - 1], length > 1 ? cpu[i + 1] - cpu[i] : 1);
  }
}

void bench_cpu_list_write(const cpu_set_t *set, char *text, size_t bytes) {
  text[0] = 0;
  for (int cpu = 0, last; cpu < CPU_SETSIZE; cpu = last + 1) {
    last = cpu;
    if (!bench_has_cpu(set, cpu)) continue;
    while (last + 1 < CPU_SETSIZE && bench_has_cpu(set, last + 1)) last++;
    append_range(text, bytes, cpu, last, 1);
  }
}

static bool is_usable(const cpu_set_t *set, const bench_topology *topology, const cpu_set_t *allowed, char *error,
                      size_t error_bytes) {
  char list[200];
  int beyond = 0; /* the first CPU that is not allowed */
  while (beyond < CPU_SETSIZE && (!bench_has_cpu(set, beyond) || bench_has_cpu(allowed, beyond))) beyond++;
  if (beyond == CPU_SETSIZE && CPU_COUNT(set)) return true;
  bench_cpu_list_write(allowed, list, sizeof list);
  if (beyond == CPU_SETSIZE)
    snprintf(error, error_bytes, "no CPU is left; this process may use %s", list);
  else if (bench_has_cpu(&topology->cpus, beyond))
    snprintf(error, error_bytes, "CPU %d is not allowed; this process may use %s", beyond, list);
  else
    snprintf(error, error_bytes, "there is no CPU %d; this process may use %s", beyond, list);
  return false;
}

bool bench_cpus_read(const char *text, const bench_topology *topology, const cpu_set_t *allowed, cpu_set_t *set, char *error,
                     size_t error_bytes) {
  if (!bench_cpu_list_read(text, set) && !bench_locations_read(text, topology, allowed, set, error, error_bytes))
    return false;
  return is_usable(set, topology, allowed, error, error_bytes);
}
