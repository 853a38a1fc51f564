/* SPDX-License-Identifier: MIT */
/* Reads the limits of a control group and of all groups above it; the smallest counts. */
#include "machine/environment.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/files.h"

enum { FOLDER = 1024 };

/* Finds the first line of a file that begins with `key`, and reads the number behind that. INFINITY without one, as in
 * "max". */
static double read_number(const char *folder, const char *name, const char *key) {
  char path[FOLDER + 64], line[256];
  double value = INFINITY;
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "r");
  while (file && isinf(value) && fgets(line, sizeof line, file))
    if (strncmp(line, key, strlen(key)) || sscanf(line + strlen(key), "%lf", &value) != 1) value = INFINITY;
  if (file) (void)fclose(file);
  return value;
}

static bool has_file(const char *folder, const char *name) {
  char path[FOLDER + 64];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return bench_file_exists(path);
}

/* Version 2 has "200000 100000", or "max 100000" without a limit; version 1 has quota and period in two files. */
static double cpus_left(const char *folder) {
  char path[FOLDER + 64], text[128];
  double quota = read_number(folder, "cpu.cfs_quota_us", ""), period = read_number(folder, "cpu.cfs_period_us", "");
  snprintf(path, sizeof path, "%s/cpu.max", folder);
  bench_read_line(path, text, sizeof text);
  if (text[0] && sscanf(text, "%lf %lf", &quota, &period) != 2) return INFINITY;
  return quota > 0 && period > 0 && isfinite(quota) ? quota / period : INFINITY; /* version 1: -1 is no limit */
}

/* The page cache counts as used, but its inactive part can be taken back. */
static double memory_left(const char *folder) {
  const bool second = has_file(folder, "memory.current");
  const double limit = read_number(folder, second ? "memory.max" : "memory.limit_in_bytes", "");
  const double used = read_number(folder, second ? "memory.current" : "memory.usage_in_bytes", "");
  const double cache = read_number(folder, "memory.stat", second ? "inactive_file " : "total_inactive_file ");
  if (isinf(limit) || isinf(used)) return INFINITY;
  return fmax(limit - used + (isinf(cache) ? 0 : fmin(cache, used)), 0);
}

typedef double left_fn(const char *folder);

/* The smallest limit of a group and all groups above it. A container may not see the folder of its own group, but only the
 * root's. */
static double least_upwards(const char *root, const char *mount, const char *group, left_fn *left) {
  char folder[FOLDER];
  const int top = snprintf(folder, sizeof folder, "%s/sys/fs/cgroup%s", root, mount);
  double least = INFINITY;
  snprintf(folder + top, sizeof folder - (size_t)top, "%s", group);
  for (char *end = folder + strlen(folder); end; end = strrchr(folder + top, '/')) {
    *end = 0;
    least = fmin(least, left(folder));
  }
  return least;
}

/* A line of /proc/self/cgroup is "0::/group" for version 2, or "4:cpu,cpuacct:/group" for version 1. */
static double left_by_line(const char *root, char *line, const char *controller, left_fn *left, bool *known) {
  char *controllers = strchr(line, ':'), *group = controllers ? strchr(++controllers, ':') : NULL;
  char mount[64] = "";
  bool found = false;
  if (!group) return INFINITY;
  *group++ = 0;
  group[strcspn(group, "\n")] = 0;
  if (strlen(root) + strlen(group) + sizeof "/sys/fs/cgroup" + sizeof mount > FOLDER) return INFINITY;
  for (char *rest = controllers, *word; (word = strsep(&rest, ","));) found = found || !strcmp(word, controller);
  if (found)
    snprintf(mount, sizeof mount, "/%s", controller);
  else if (strncmp(line, "0:", 2) || *controllers)
    return INFINITY;
  *known = true;
  return least_upwards(root, mount, group, left);
}

static double left_of(const char *root, const char *controller, left_fn *left, bool *known) {
  char path[FOLDER], line[512];
  double least = INFINITY;
  snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
  FILE *file = fopen(path, "r");
  while (file && fgets(line, sizeof line, file)) least = fmin(least, left_by_line(root, line, controller, left, known));
  if (file) (void)fclose(file);
  return least;
}

double bench_cpu_quota(const char *root) {
  bool known = false;
  const double cpus = left_of(root, "cpu", cpus_left, &known);
  return known ? cpus : -1;
}

double bench_memory_available(const char *root) {
  bool known = false;
  char folder[FOLDER];
  snprintf(folder, sizeof folder, "%s/proc", root);
  return fmin(1024 * read_number(folder, "meminfo", "MemAvailable:"), left_of(root, "memory", memory_left, &known));
}
