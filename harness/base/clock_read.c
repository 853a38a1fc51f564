/* SPDX-License-Identifier: MIT */
/* Reads the clocks by ways that a kernel, which runs in the same process, does not replace by a function of the same name:
 * the kernel's own code that Linux maps into every process (vDSO), found before any plug-in is loaded, and system calls
 * without the C library. They tell the same time; where they do not, somebody changed one of them. */
#include "base/clock.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double nanoseconds(const struct timespec *time) { return 1e9 * (double)time->tv_sec + (double)time->tv_nsec; }

static double libc_ns(clockid_t clock) {
  struct timespec now = {0, 0};
  return clock_gettime(clock, &now) ? 0 : nanoseconds(&now);
}

#if defined __linux__ && defined __LP64__

#include <dirent.h>
#include <elf.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* ---- System calls ---------------------------------------------------------------------------------------------------- */

/* Like syscall(), but without errno: below 0 where it fails. */
static long call_system(long number, long first, long second) {
#ifdef __x86_64__
  long result;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(first), "S"(second) : "rcx", "r11", "memory");
  return result;
#elif defined __aarch64__
  register long x8 __asm__("x8") = number, x0 __asm__("x0") = first, x1 __asm__("x1") = second;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1) : "memory");
  return x0;
#else
  return syscall(number, first, second);
#endif
}

static double system_ns(clockid_t clock) {
  struct timespec now = {0, 0};
  return call_system(SYS_clock_gettime, clock, (long)(intptr_t)&now) ? 0 : nanoseconds(&now);
}

/* ---- vDSO ------------------------------------------------------------------------------------------------------------ */

typedef int (*read_clock)(clockid_t clock, struct timespec *now);

static read_clock vdso_clock; /* NULL: not found */

#ifdef __aarch64__
static const char vdso_name[] = "__kernel_clock_gettime";
#else
static const char vdso_name[] = "__vdso_clock_gettime";
#endif

/* The address that an image's dynamic section holds under a tag. It counts from the start of the image. */
static const void *find_dynamic(const unsigned char *image, const Elf64_Dyn *dynamic, Elf64_Sxword tag) {
  for (const Elf64_Dyn *d = dynamic; d->d_tag != DT_NULL; d++)
    if (d->d_tag == tag) return image + d->d_un.d_ptr;
  return NULL;
}

/* The table of symbols ends where their names begin. */
static const void *find_symbol(const unsigned char *image, const Elf64_Dyn *dynamic, const char *name) {
  const Elf64_Sym *symbol = find_dynamic(image, dynamic, DT_SYMTAB);
  const char *names = find_dynamic(image, dynamic, DT_STRTAB);
  for (; symbol && names && (const char *)(symbol + 1) <= names; symbol++)
    if (symbol->st_shndx != SHN_UNDEF && !strcmp(names + symbol->st_name, name)) return image + symbol->st_value;
  return NULL;
}

static const void *find_in_image(const unsigned char *image, const char *name) {
  const Elf64_Ehdr *head = (const void *)image;
  const Elf64_Phdr *part = (const void *)(image + head->e_phoff);
  for (int i = 0; i < head->e_phnum; i++)
    if (part[i].p_type == PT_DYNAMIC) return find_symbol(image, (const void *)(image + part[i].p_offset), name);
  return NULL;
}

/* Before main(), so that no plug-in is there yet. */
__attribute__((constructor)) static void find_clock(void) {
  const unsigned char *image = (const unsigned char *)getauxval(AT_SYSINFO_EHDR);  // NOLINT(performance-no-int-to-ptr)
  const void *found = image && !memcmp(image, ELFMAG, SELFMAG) ? find_in_image(image, vdso_name) : NULL;
  memcpy(&vdso_clock, &found, sizeof found);
}

double bench_now_ns(void) {
  struct timespec now = {0, 0};
  return vdso_clock && !vdso_clock(CLOCK_MONOTONIC, &now) ? nanoseconds(&now) : system_ns(CLOCK_MONOTONIC);
}

/* ---- CPU time -------------------------------------------------------------------------------------------------------- */

/* The clocks of another thread of this process and of another process, as pthread_getcpuclockid() and clock_getcpuclockid()
 * make them of a number. */
static clockid_t clock_of_thread(int thread) { return (clockid_t)((~(unsigned)thread << 3) | 6u); }
static clockid_t clock_of_process(int process) { return (clockid_t)((~(unsigned)process << 3) | 2u); }

static void add_task(bench_tasks *to, int number) {
  if (to->count < BENCH_MOST_TASKS) to->number[to->count++] = number;
}

/* The children of one thread. */
static void add_children(bench_tasks *to, const char *process, const char *thread) {
  char path[320];
  int child;
  snprintf(path, sizeof path, "/proc/%s/task/%s/children", process, thread);
  FILE *file = fopen(path, "re");
  while (file && fscanf(file, "%d", &child) == 1) add_task(to, child);
  if (file) (void)fclose(file);
}

/* The threads of a process, or its children that live or that nobody has waited for. */
static bench_tasks tasks_of(const char *process, bool children) {
  char path[40];
  snprintf(path, sizeof path, "/proc/%s/task", process);
  DIR *threads = opendir(path);
  const struct dirent *thread;
  bench_tasks found = {.count = 0};
  while (threads && (thread = readdir(threads))) {
    if (thread->d_name[0] == '.') continue;
    if (children)
      add_children(&found, process, thread->d_name);
    else
      add_task(&found, atoi(thread->d_name));
  }
  if (threads) closedir(threads);
  return found;
}

/* Where Linux put a program's code and stack: a number that fork() keeps and that hardly two other processes share. 0: not
 * known. */
static uint64_t layout_of(int process) {
  enum { START_OF_CODE = 26, START_OF_STACK = 28 };
  char path[40], text[1000];
  snprintf(path, sizeof path, "/proc/%d/stat", process);
  FILE *file = fopen(path, "re");
  const size_t bytes = file ? fread(text, 1, sizeof text - 1, file) : 0;
  if (file) (void)fclose(file);
  text[bytes] = 0;
  const char *at = strrchr(text, ')'); /* the end of field 2 */
  uint64_t code = 0, stack = 0;
  for (int field = 2; at && *at; at = strchr(at + 1, ' '), field++) {
    if (field == START_OF_CODE) code = strtoull(at, NULL, 10);
    if (field == START_OF_STACK) stack = strtoull(at, NULL, 10);
  }
  return code > 1 ? code ^ stack << 16 : 0;
}

/* Processes that this one made as children of its own parent, which clone() can do. */
static bench_tasks copies_beside(void) {
  const int parent = getppid();
  const uint64_t own = layout_of(getpid());
  char name[16];
  snprintf(name, sizeof name, "%d", parent);
  bench_tasks found = {.count = 0};
  if (!own || layout_of(parent) == own) return found; /* a copy of its parent: the parent may have made them */
  const bench_tasks all = tasks_of(name, true);
  for (int i = 0; i < all.count; i++)
    if (all.number[i] != getpid() && layout_of(all.number[i]) == own) add_task(&found, all.number[i]);
  return found;
}

static bench_tasks copies; /* found by bench_tasks_now() alone: a parent may have many threads to ask */

static double descendants_ns(const char *process, int depth);

/* CPU time of these processes and of those below them. */
static double family_ns(const bench_tasks *processes, int depth) {
  char name[16];
  double all_ns = 0;
  for (int i = 0; i < processes->count; i++) {
    all_ns += system_ns(clock_of_process(processes->number[i]));
    snprintf(name, sizeof name, "%d", processes->number[i]);
    if (depth > 0) all_ns += descendants_ns(name, depth - 1);
  }
  return all_ns;
}

static double descendants_ns(const char *process, int depth) {
  const bench_tasks children = tasks_of(process, true);
  return family_ns(&children, depth);
}

/* Linux brings the time of this process's threads that run on other CPUs up to date at timer interrupts only, or when their
 * own clock is read. */
static void refresh_threads(void) {
  const bench_tasks own = tasks_of("self", false);
  for (int i = 0; i < own.count; i++) (void)system_ns(clock_of_thread(own.number[i]));
}

/* CPU time of the processes below this one that have ended. */
static double ended_ns(void) {
  struct rusage usage = {.ru_utime = {0, 0}};
  if (call_system(SYS_getrusage, RUSAGE_CHILDREN, (long)(intptr_t)&usage)) return 0;
  return 1e9 * (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e3 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

enum { MOST_GENERATIONS = 4 };

static double processes_ns(void) {
  (void)prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); /* orphans of children become children */
  refresh_threads();
  return family_ns(&copies, MOST_GENERATIONS) + descendants_ns("self", MOST_GENERATIONS) + ended_ns() +
         system_ns(CLOCK_PROCESS_CPUTIME_ID);
}

static int64_t waits_of_thread(void) {
  struct rusage usage = {.ru_nvcsw = 0};
  return call_system(SYS_getrusage, RUSAGE_THREAD, (long)(intptr_t)&usage) ? 0 : usage.ru_nvcsw;
}

bench_tasks bench_tasks_now(void) {
  const bench_tasks children = tasks_of("self", true);
  bench_tasks now = tasks_of("self", false);
  copies = copies_beside();
  for (int i = 0; i < children.count; i++) add_task(&now, children.number[i]);
  for (int i = 0; i < copies.count; i++) add_task(&now, copies.number[i]);
  return now;
}

static bool has_task(const bench_tasks *tasks, int number) {
  for (int i = 0; i < tasks->count; i++)
    if (tasks->number[i] == number) return true;
  return false;
}

static struct {
  int number;
  const void *owner;
} owned[BENCH_MOST_TASKS]; /* the latest ones */
static int owned_count;

static void note_owner(int number, const void *owner) {
  owned[owned_count % BENCH_MOST_TASKS].number = number;
  owned[owned_count++ % BENCH_MOST_TASKS].owner = owner;
}

static const void *owner_of(int number) {
  for (int i = 0; i < BENCH_MOST_TASKS; i++)
    if (owned[i].number == number) return owned[i].owner;
  return NULL;
}

/* A thread is listed for some microseconds after pthread_join() has returned. */
bool bench_tasks_grew(const bench_tasks *before, const void *owner) {
  enum { LOOKS = 4 };
  int grown = 1;
  for (int look = 0; look < LOOKS && grown; look++) {
    if (look) (void)nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    const bench_tasks now = bench_tasks_now();
    grown = 0;
    for (int i = 0; i < now.count; i++) {
      if (has_task(before, now.number[i])) continue;
      if (look == LOOKS - 1) note_owner(now.number[i], owner);
      grown++;
    }
  }
  return grown;
}

static double cpu_ns_of(int number) {
  const double thread_ns = system_ns(clock_of_thread(number));
  return thread_ns > 0 ? thread_ns : system_ns(clock_of_process(number));
}

const void *bench_tasks_busiest_owner(double *share) {
  static const struct timespec pause = {.tv_nsec = 30000000}; /* threads of libraries may spin so long for more work */
  const void *busiest = NULL;
  double before_ns[BENCH_MOST_TASKS];
  (void)nanosleep(&pause, NULL);
  const bench_tasks now = bench_tasks_now();
  for (int i = 0; i < now.count; i++) before_ns[i] = cpu_ns_of(now.number[i]);
  (void)nanosleep(&pause, NULL);
  *share = 0;
  for (int i = 0; i < now.count; i++) {
    const void *owner = owner_of(now.number[i]);
    const double its_share = owner ? (cpu_ns_of(now.number[i]) - before_ns[i]) / (double)pause.tv_nsec : 0;
    if (its_share > *share) busiest = owner, *share = its_share;
  }
  return busiest;
}

double bench_own_cpu_ns(void) { return system_ns(CLOCK_THREAD_CPUTIME_ID); }

#else

static double system_ns(clockid_t clock) { return libc_ns(clock); }
double bench_now_ns(void) { return libc_ns(CLOCK_MONOTONIC); }
static double processes_ns(void) { return libc_ns(CLOCK_PROCESS_CPUTIME_ID); }
static int64_t waits_of_thread(void) { return 0; }
bench_tasks bench_tasks_now(void) { return (bench_tasks){.count = 0}; }
bool bench_tasks_grew(const bench_tasks *before, const void *owner) { return (void)before, (void)owner, false; }
const void *bench_tasks_busiest_owner(double *share) { return *share = 0, NULL; }
double bench_own_cpu_ns(void) { return libc_ns(CLOCK_THREAD_CPUTIME_ID); }

#endif

double bench_cpu_resolution_ns(void) {
  struct timespec step = {0, 0};
  return clock_getres(CLOCK_PROCESS_CPUTIME_ID, &step) ? INFINITY : nanoseconds(&step);
}

bench_cpu_time bench_cpu_now(void) {
  if (bench_cpu_resolution_ns() > BENCH_CPU_RESOLUTION_NS) return (bench_cpu_time){NAN, NAN, 0};
  return (bench_cpu_time){processes_ns(), bench_own_cpu_ns(), waits_of_thread()};
}

/* ---- Clocks that must agree ------------------------------------------------------------------------------------------ */

enum { TRIES = 100 };
static const double MOMENT_NS = 5e3; /* an interrupt between the readings takes longer */

bench_clocks bench_clocks_now(void) {
  for (int i = 0; i < TRIES; i++) {
    const double own_ns = bench_now_ns();
    const bench_clocks now = {own_ns, system_ns(CLOCK_MONOTONIC), libc_ns(CLOCK_MONOTONIC)};
    if (bench_now_ns() - own_ns < MOMENT_NS) return now;
  }
  return (bench_clocks){NAN, NAN, NAN};
}
