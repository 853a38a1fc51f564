/* SPDX-License-Identifier: MIT */
/* POSIX functions by those of Windows. */
#include "windows/posix.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#undef open
#undef fopen
#undef rename
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

static int fail(int error) {
  errno = error;
  return -1;
}

/* ---- CPUs ------------------------------------------------------------------------------------------------------------ */

int sched_getaffinity(int thread, size_t bytes, cpu_set_t *set) {
  DWORD_PTR process, system;
  (void)thread, (void)bytes;
  if (!GetProcessAffinityMask(GetCurrentProcess(), &process, &system)) return fail(ENOSYS);
  set->bits = process;
  return 0;
}

int sched_setaffinity(int thread, size_t bytes, const cpu_set_t *set) {
  (void)thread, (void)bytes;
  return SetThreadAffinityMask(GetCurrentThread(), (DWORD_PTR)set->bits) ? 0 : fail(EINVAL);
}

int sched_getcpu(void) { return (int)GetCurrentProcessorNumber(); }

/* ---- Memory ---------------------------------------------------------------------------------------------------------- */

static DWORD page_protection(int protection) { return protection == PROT_NONE ? PAGE_NOACCESS : PAGE_READWRITE; }

void *mmap(void *address, size_t bytes, int protection, int flags, int file, long long offset) {
  (void)flags, (void)file, (void)offset;
  void *memory = VirtualAlloc(address, bytes, MEM_RESERVE | MEM_COMMIT, page_protection(protection));
  return memory ? memory : MAP_FAILED;
}

int munmap(void *memory, size_t bytes) {
  (void)bytes;
  return VirtualFree(memory, 0, MEM_RELEASE) ? 0 : fail(EINVAL);
}

int mprotect(void *memory, size_t bytes, int protection) {
  DWORD before;
  return VirtualProtect(memory, bytes, page_protection(protection), &before) ? 0 : fail(EACCES);
}

int madvise(void *memory, size_t bytes, int advice) {
  (void)memory, (void)bytes, (void)advice;
  return 0;
}

/* ---- Files ----------------------------------------------------------------------------------------------------------- */

int bench_posix_open(const char *path, int flags) {
  struct stat info;
  if (!(flags & O_DIRECTORY)) return open(strcmp(path, "/dev/null") ? path : "NUL", flags | O_BINARY);
  if (stat(path, &info)) return -1;
  return S_ISDIR(info.st_mode) ? open("NUL", O_RDONLY) : fail(ENOTDIR);
}

FILE *bench_posix_fopen(const char *path, const char *mode) {
  char binary[] = {mode[0], 'b', 0, 0};
  if (strchr(mode, '+')) binary[2] = '+';
  return fopen(path, binary);
}

int bench_posix_rename(const char *from, const char *to) {
  return MoveFileExA(from, to, MOVEFILE_REPLACE_EXISTING) ? 0 : fail(EACCES);
}

int fsync(int file) { return _commit(file); }

int flock(int file, int operation) {
  (void)file, (void)operation;
  return fail(ENOSYS);
}

int fcntl(int file, int command) {
  (void)command;
  return _get_osfhandle(file) == -1 ? -1 : 0;
}

int unlinkat(int folder, const char *name, int flags) {
  (void)folder, (void)name, (void)flags;
  return fail(ENOSYS);
}

void *fdopendir(int folder) {
  (void)folder;
  errno = ENOSYS;
  return NULL;
}

ssize_t readlink(const char *path, char *target, size_t bytes) {
  (void)path, (void)target, (void)bytes;
  return fail(ENOSYS);
}

static bool grow(char **line, size_t *room, size_t needed) {
  if (*line && needed <= *room) return true;
  char *larger = realloc(*line, 2 * needed + 64);
  if (!larger) return false;
  *line = larger;
  *room = 2 * needed + 64;
  return true;
}

ssize_t getline(char **line, size_t *room, FILE *file) {
  ssize_t length = 0;
  for (int c = 0; c != '\n' && (c = getc(file)) != EOF;) {
    if (!grow(line, room, (size_t)length + 2)) return -1;
    (*line)[length++] = (char)c;
  }
  if (length == 0) return -1;
  (*line)[length] = 0;
  return length;
}

/* ---- Text, system ------------------------------------------------------------------------------------------------------
 */

static bool matches(const char *pattern, const char *text) {
  if (*pattern == '*') return matches(pattern + 1, text) || (*text && matches(pattern, text + 1));
  if (!*pattern || !*text) return *pattern == *text;
  return (*pattern == '?' || *pattern == *text) && matches(pattern + 1, text + 1);
}

int fnmatch(const char *pattern, const char *text, int flags) {
  (void)flags;
  return !matches(pattern, text);
}

char *strsep(char **text, const char *separators) {
  char *word = *text;
  if (!word) return NULL;
  *text = word + strcspn(word, separators);
  if (**text)
    *(*text)++ = 0;
  else
    *text = NULL;
  return word;
}

long sysconf(int name) {
  SYSTEM_INFO system;
  GetSystemInfo(&system);
  return name == _SC_PAGESIZE ? (long)system.dwPageSize : (long)system.dwNumberOfProcessors;
}

int uname(struct utsname *system) {
  const DWORD version = GetVersion();
  snprintf(system->sysname, sizeof system->sysname, "Windows");
  snprintf(system->release, sizeof system->release, "%u.%u", (unsigned)LOBYTE(version), (unsigned)HIBYTE(version));
  snprintf(system->machine, sizeof system->machine, sizeof(void *) == 8 ? "x86_64" : "x86");
  return 0;
}

int gethostname(char *name, size_t bytes) {
  DWORD length = (DWORD)bytes;
  return GetComputerNameA(name, &length) ? 0 : fail(ENOSYS);
}

int sigaction(int number, const struct sigaction *action, struct sigaction *before) {
  (void)before;
  return signal(number, action->sa_handler) == SIG_ERR ? -1 : 0;
}
