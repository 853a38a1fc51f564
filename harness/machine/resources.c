/* SPDX-License-Identifier: MIT */
#include "machine/resources.h"

#include "base/cli.h"

#ifdef _WIN32 /* it has none of these limits */
const int BENCH_CPU_SIGNAL = 0;
int bench_resources_check(void) { return 0; }
void bench_resources_say_cpu_limit(void) {}
#else
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

enum { LEAST_STACK_KIB = 256 /* twice the memory that a case and the libraries below it take */ };
static const double LAST_SECONDS = 1; /* after the CPU time ends, for the files */

/* At a limit of whole seconds SIGXCPU comes; at the last second it is SIGKILL. */
const int BENCH_CPU_SIGNAL = SIGPROF;

void bench_resources_say_cpu_limit(void) {
  static const char sentence[] = "attnbench: the limit of CPU time is nearly reached (ulimit -t)\n";
  const ssize_t written = write(STDERR_FILENO, sentence, sizeof sentence - 1);
  (void)written;
}

static void end(int number) {
  (void)number;
  bench_resources_say_cpu_limit();
  _exit(BENCH_EXIT_INTERNAL);
}

static void watch_cpu_time(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_CPU, &limit) || limit.rlim_cur == RLIM_INFINITY) return;
  const double all = (double)limit.rlim_cur, until = all > 2 * LAST_SECONDS ? all - LAST_SECONDS : all / 2;
  struct itimerval timer = {.it_value = {.tv_sec = (time_t)until}};
  timer.it_value.tv_usec = (suseconds_t)(1e6 * (until - (double)timer.it_value.tv_sec)) + 1;
  (void)sigaction(BENCH_CPU_SIGNAL, &(struct sigaction){.sa_handler = end}, NULL);
  (void)setitimer(ITIMER_PROF, &timer, NULL);
}

int bench_resources_check(void) {
  struct rlimit stack;
  (void)signal(SIGXFSZ, SIG_IGN);
  watch_cpu_time();
  if (getrlimit(RLIMIT_STACK, &stack) || stack.rlim_cur >= (rlim_t)LEAST_STACK_KIB << 10) return 0;
  return cli_fail(BENCH_EXIT_INTERNAL, "", "the stack is limited to %lu KiB (ulimit -s); it must have at least %d",
                  (unsigned long)stack.rlim_cur >> 10, LEAST_STACK_KIB);
}
#endif
