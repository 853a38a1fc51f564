/* SPDX-License-Identifier: MIT */
#include "base/process.h"

#include <stddef.h>

#ifdef __linux__
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>

/* In bench_process.value; the soft limits come behind them, by their numbers. */
enum { PRIORITY, SCHEDULER, HUGE_PAGES, TIMER_SLACK, LIMITS };
static const char *const names[LIMITS + 1] = {"priority", "scheduler", "use of huge pages", "timers", "limits"};

static int64_t limit_of(int kind) {
  struct rlimit limit;
  return getrlimit((__rlimit_resource_t)kind, &limit) ? 0 : (int64_t)limit.rlim_cur;
}

static void set(int which, int64_t value) {
  struct rlimit limit;
  if (which == PRIORITY) (void)setpriority(PRIO_PROCESS, 0, (int)value);
  if (which == SCHEDULER) (void)sched_setscheduler(0, (int)value, &(struct sched_param){.sched_priority = 0});
  if (which == HUGE_PAGES) (void)prctl(PR_SET_THP_DISABLE, value, 0, 0, 0);
  if (which == TIMER_SLACK) (void)prctl(PR_SET_TIMERSLACK, value, 0, 0, 0);
  if (which < LIMITS || getrlimit((__rlimit_resource_t)(which - LIMITS), &limit)) return;
  limit.rlim_cur = (rlim_t)value;
  (void)setrlimit((__rlimit_resource_t)(which - LIMITS), &limit);
}

bench_process bench_process_now(void) {
  bench_process now = {{[PRIORITY] = getpriority(PRIO_PROCESS, 0),
                        [SCHEDULER] = sched_getscheduler(0),
                        [HUGE_PAGES] = prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0),
                        [TIMER_SLACK] = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0)}};
  for (int kind = 0; kind < RLIMIT_NLIMITS; kind++) now.value[LIMITS + kind] = limit_of(kind);
  return now;
}

const char *bench_process_keep(bench_process *to) {
  const bench_process now = bench_process_now();
  const char *changed = NULL;
  for (int i = 0; i < LIMITS + RLIMIT_NLIMITS; i++) {
    if (now.value[i] == to->value[i]) continue;
    changed = names[i < LIMITS ? i : LIMITS];
    set(i, to->value[i]);
  }
  if (changed) *to = bench_process_now();
  return changed;
}

_Static_assert(LIMITS + RLIMIT_NLIMITS <= BENCH_PROCESS_SETTINGS, "every limit has room");
#else
bench_process bench_process_now(void) { return (bench_process){{0}}; }
const char *bench_process_keep(bench_process *to) { return (void)to, NULL; }
#endif
