/* SPDX-License-Identifier: MIT */
/* CPU time and preemptions of the threads of this process: they show whether other programs took CPUs from a call. */
#ifndef ATTN_PROCESS_USAGE_H
#define ATTN_PROCESS_USAGE_H

#include <stdint.h>

typedef struct attn_process_usage {
  double cpu_ns;       /* sum over all threads */
  int64_t preemptions; /* involuntary context switches of all threads */
} attn_process_usage;

#ifdef _WIN32 /* it does not count them */
static inline attn_process_usage attn_process_usage_now(void) { return (attn_process_usage){.cpu_ns = 0}; }
#else
#include <sys/resource.h>

static inline double attn_timeval_ns(struct timeval t) { return 1e9 * (double)t.tv_sec + 1e3 * (double)t.tv_usec; }

static inline attn_process_usage attn_process_usage_now(void) {
  struct rusage used;
  if (getrusage(RUSAGE_SELF, &used)) return (attn_process_usage){.cpu_ns = 0};
  return (attn_process_usage){.cpu_ns = attn_timeval_ns(used.ru_utime) + attn_timeval_ns(used.ru_stime),
                              .preemptions = used.ru_nivcsw};
}
#endif

#endif
