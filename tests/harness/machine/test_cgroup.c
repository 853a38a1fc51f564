/* SPDX-License-Identifier: MIT */
/* The CPUs and memory that control groups allow, read from folders that imitate the system files of other machines. */
#define TEST_SETUP    make_root
#define TEST_TEARDOWN remove_root
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "machine/environment.h"
#include "tests/support/support.h"

/* A root folder for each test. */
static char root[] = "/tmp/attn_cgroup_XXXXXX";

static int make_root(void **state) {
  (void)state;
  strcpy(root + strlen(root) - 6, "XXXXXX");
  return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state) {
  (void)state;
  char command[64];
  snprintf(command, sizeof command, "rm -r %s", root);
  return system(command);
}

static void put(void *text, FILE *file) { fputs(text, file); }

/* Writes a file below the root, and makes its folder. */
static void feign(const char *path, const char *text) {
  char whole[256];
  snprintf(whole, sizeof whole, "%s%s", root, path);
  char *slash = strrchr(whole, '/');
  *slash = 0;
  assert_true(bench_folder_create(whole));
  *slash = '/';
  assert_true(bench_file_write(whole, put, (void *)text));
}

static void assert_leaves(double cpus, double memory) {
  const double quota = bench_cpu_quota(root), bytes = bench_memory_available(root);
  if (quota != cpus || bytes != memory) fail_msg("%g CPUs, %g bytes; expected %g, %g", quota, bytes, cpus, memory);
}

TEST(test_nothing_is_known) {
  assert_leaves(-1, INFINITY);
  feign("/proc/meminfo", "MemTotal:       2000 kB\nMemFree:        1000 kB\nMemAvailable:   1500 kB\n");
  assert_leaves(-1, 1500 * 1024);
}

TEST(test_version_2) {
  feign("/proc/meminfo", "MemAvailable: 1000000 kB\n");
  feign("/proc/self/cgroup", "0::/outer/inner\n");
  assert_leaves(INFINITY, 1024e6);
  feign("/sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
  feign("/sys/fs/cgroup/outer/inner/memory.max", "max\n");
  feign("/sys/fs/cgroup/outer/inner/memory.current", "100000\n");
  assert_leaves(INFINITY, 1024e6);
  feign("/sys/fs/cgroup/outer/cpu.max", "150000 100000\n");
  feign("/sys/fs/cgroup/outer/memory.max", "1000000\n");
  feign("/sys/fs/cgroup/outer/memory.current", "400000\n");
  assert_leaves(1.5, 600000);
  feign("/sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 150000\n"); /* Linux can reclaim these */
  assert_leaves(1.5, 750000);
  feign("/sys/fs/cgroup/outer/inner/cpu.max", "50000 100000\n"); /* the smallest limit counts */
  feign("/sys/fs/cgroup/outer/inner/memory.max", "90000\n");
  assert_leaves(0.5, 0);
}

/* A container with version 1: the path of its group is the host's, and its own limits are in the top folder. */
TEST(test_version_1) {
  feign("/proc/meminfo", "MemAvailable: 1000000 kB\n");
  feign("/proc/self/cgroup", "9:cpuset:/docker/1\n4:cpu,cpuacct:/docker/1\n3:memory:/docker/1\n1:name=systemd:/docker/1\n");
  feign("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  feign("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  feign("/sys/fs/cgroup/cpuset/cpu.cfs_quota_us", "1\n");
  feign("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"); /* no limit */
  feign("/sys/fs/cgroup/memory/memory.usage_in_bytes", "300000\n");
  assert_leaves(INFINITY, 1024e6);
  feign("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "250000\n");
  feign("/sys/fs/cgroup/memory/memory.limit_in_bytes", "500000\n");
  feign("/sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 1000\n");
  assert_leaves(2.5, 201000);
}
