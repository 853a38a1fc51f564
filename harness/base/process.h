/* SPDX-License-Identifier: MIT */
/* Settings of the process and of the calling thread that a kernel must leave as they were: they change the times of all that
 * runs afterwards. */
#ifndef BENCH_PROCESS_H
#define BENCH_PROCESS_H

#include <stdint.h>

enum { BENCH_PROCESS_SETTINGS = 20 };

typedef struct bench_process {
  int64_t value[BENCH_PROCESS_SETTINGS];
} bench_process;

/* Those of this moment; all 0 where they are not known. */
bench_process bench_process_now(void);

/* The name of one that has changed, NULL: none has. They are set again where the system lets them be, and *to becomes what
 * they are then. */
const char *bench_process_keep(bench_process *to);

#define BENCH_OTHER_PROCESS "changes the %s of the process"
#define BENCH_OTHER_TEAM    "moves threads to other CPUs, or leaves them with other rounding or flushing to zero"

#endif
