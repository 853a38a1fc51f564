/* SPDX-License-Identifier: MIT */
/* The functions of POSIX that attnbench uses and Windows lacks. Builds for Windows include this file before every source of
 * the harness, and find headers/ where Windows has no such header. Where a function cannot do its work, it fails with
 * ENOSYS, and attnbench says so or calls the fact unknown: output folders are not locked. */
#ifndef BENCH_POSIX_H
#define BENCH_POSIX_H

#define _POSIX_THREAD_SAFE_FUNCTIONS 200112L /* for localtime_r() and gmtime_r() */

#include <fcntl.h>
#include <io.h>
#include <process.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

/* ---- CPUs: the first 64, those of one processor group ---------------------------------------------------------------- */

enum { CPU_SETSIZE = 64 };

typedef struct cpu_set_t {
  uint64_t bits;
} cpu_set_t;

#define CPU_ZERO(set)          ((void)((set)->bits = 0))
#define CPU_SET(cpu, set)      ((void)((set)->bits |= UINT64_C(1) << (cpu)))
#define CPU_ISSET(cpu, set)    ((set)->bits >> (cpu)&1)
#define CPU_COUNT(set)         __builtin_popcountll((set)->bits)
#define CPU_OR(to, one, other) ((void)((to)->bits = (one)->bits | (other)->bits))

int sched_getaffinity(int thread, size_t bytes, cpu_set_t *set);       /* the process's CPUs, whatever the thread */
int sched_setaffinity(int thread, size_t bytes, const cpu_set_t *set); /* the calling thread's, whatever `thread` is */
int sched_getcpu(void);

/* ---- Memory ---------------------------------------------------------------------------------------------------------- */

enum { PROT_NONE = 0, PROT_READ = 1, PROT_WRITE = 2, MAP_PRIVATE = 2, MAP_ANONYMOUS = 0x20, MADV_DONTNEED = 4 };
#define MAP_FAILED ((void *)-1)

void *mmap(void *address, size_t bytes, int protection, int flags, int file, long long offset); /* anonymous memory only */
int munmap(void *memory, size_t bytes);
int mprotect(void *memory, size_t bytes, int protection);
int madvise(void *memory, size_t bytes, int advice); /* does nothing */

/* ---- Files: always binary -------------------------------------------------------------------------------------------- */

enum { O_DIRECTORY = 0x100000, O_CLOEXEC = O_NOINHERIT, O_NONBLOCK = 0, F_GETFD = 1, LOCK_EX = 2, LOCK_NB = 4 };

int bench_posix_open(const char *path, int flags); /* a folder opens as the empty file NUL */
FILE *bench_posix_fopen(const char *path, const char *mode);
int bench_posix_rename(const char *from, const char *to); /* replaces what is there */
int fsync(int file);
int flock(int file, int operation);
int fcntl(int file, int command);
int unlinkat(int folder, const char *name, int flags);
void *fdopendir(int folder);
ssize_t readlink(const char *path, char *target, size_t bytes);
ssize_t getline(char **line, size_t *room, FILE *file);

#define open              bench_posix_open
#define fopen             bench_posix_fopen
#define rename            bench_posix_rename
#define mkdir(path, mode) mkdir(path)

/* ---- Text, system ------------------------------------------------------------------------------------------------------
 */

int fnmatch(const char *pattern, const char *text, int flags); /* * and ?, without sets */
char *strsep(char **text, const char *separators);

enum { _SC_PAGESIZE = 30, _SC_NPROCESSORS_ONLN = 84 };
long sysconf(int name);

struct utsname {
  char sysname[16], release[32], machine[16];
};
int uname(struct utsname *system);
int gethostname(char *name, size_t bytes);

enum { SA_RESETHAND = 0 }; /* which is what signal() does here */
struct sigaction {
  void (*sa_handler)(int);
  int sa_flags, sa_mask;
};
int sigaction(int number, const struct sigaction *action, struct sigaction *before);
static inline int sigemptyset(int *set) { return *set = 0; }

#endif
