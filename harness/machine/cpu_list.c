/* SPDX-License-Identifier: MIT */
/* Lists of CPU numbers. */
#include "machine/cpu_list.h"

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

static void append(char *text, size_t bytes, const char *part) {
  const size_t used = strlen(text);
  snprintf(text + used, bytes - used, "%s%s", used ? "," : "", part);
}

static void append_range(char *text, size_t bytes, int first, int last, int step) {
  char range[48];
  int used = snprintf(range, sizeof range, "%d", first);
  if (last > first) used += snprintf(range + used, sizeof range - (size_t)used, "-%d", last);
  if (step > 1) snprintf(range + used, sizeof range - (size_t)used, ":%d", step);
  append(text, bytes, range);
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
