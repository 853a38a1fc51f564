/* SPDX-License-Identifier: MIT */
/* Runs a command as if this machine had fewer CPUs or no AMX:
 *
 *     feign [--one-cpu] [--no-tiles] COMMAND ARGUMENT...
 *
 * --one-cpu   the command may use only the first of the CPUs allowed to this process
 * --no-tiles  Linux refuses the permission for AMX's tiles, as in a container whose seccomp profile is older than AMX
 *
 * Exit code 77 with a reason if this system cannot do that. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { USAGE = 2, SKIPPED = 77 };

static int skip(const char *reason) {
  printf("skipped: %s: %s\n", reason, strerror(errno));
  return SKIPPED;
}

static int keep_one_cpu(void) {
  cpu_set_t allowed, first;
  if (sched_getaffinity(0, sizeof allowed, &allowed)) return skip("the allowed CPUs cannot be read");
  size_t cpu = 0;
  while (!CPU_ISSET(cpu, &allowed)) cpu++;
  CPU_ZERO(&first);
  CPU_SET(cpu, &first);
  return sched_setaffinity(0, sizeof first, &first) ? skip("no CPU can be taken away") : 0;
}

#ifdef SYS_arch_prctl
enum { ARCH_REQ_XCOMP_PERM = 0x1023 };

/* A seccomp filter: arch_prctl(ARCH_REQ_XCOMP_PERM, ...) fails with EPERM, everything else is allowed. */
static int refuse_tiles(void) {
  struct sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH_REQ_XCOMP_PERM, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const struct sock_fprog filter = {.len = sizeof steps / sizeof *steps, .filter = steps};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return skip("no seccomp filter can be set");
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) ? skip("no seccomp filter can be set") : 0;
}
#else
static int refuse_tiles(void) {
  errno = ENOSYS;
  return skip("only x86-64 has tiles to refuse");
}
#endif

int main(int count, char **arguments) {
  int done = 0, i = 1;
  for (; i < count && !done && !strncmp(arguments[i], "--", 2); i++) {
    if (!strcmp(arguments[i], "--one-cpu"))
      done = keep_one_cpu();
    else if (!strcmp(arguments[i], "--no-tiles"))
      done = refuse_tiles();
    else
      done = USAGE;
  }
  if (done || i >= count) return done ? done : USAGE;
  execv(arguments[i], arguments + i);
  perror(arguments[i]);
  return 1;
}
