/* SPDX-License-Identifier: MIT */
/* Lists of CPU numbers. */
#include "machine/cpu_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads a number below CPU_SETSIZE and moves on; -1 if there is none. */
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

void bench_cpu_sequence_write(const int *cpu, int count, char *text, size_t bytes) {
  text[0] = 0;
  for (int i = 0, end; i < count; i = end) {
    const int step = i + 1 < count ? cpu[i + 1] - cpu[i] : 1;
    char range[48];
    for (end = i + 1; end < count && cpu[end] - cpu[end - 1] == step;) end++;
    if (step < 1 || (step > 1 && end - i < 3)) end = i + 1; /* two numbers are no range */
    if (end - i == 1)
      snprintf(range, sizeof range, "%d", cpu[i]);
    else if (step == 1)
      snprintf(range, sizeof range, "%d-%d", cpu[i], cpu[end - 1]);
    else
      snprintf(range, sizeof range, "%d-%d:%d", cpu[i], cpu[end - 1], step);
    append(text, bytes, range);
  }
}

void bench_cpu_list_write(const cpu_set_t *set, char *text, size_t bytes) {
  text[0] = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    int last = cpu;
    if (!bench_has_cpu(set, cpu)) continue;
    while (last + 1 < CPU_SETSIZE && bench_has_cpu(set, last + 1)) last++;
    char range[32];
    snprintf(range, sizeof range, last > cpu ? "%d-%d" : "%d", cpu, last);
    append(text, bytes, range);
    cpu = last;
  }
}
