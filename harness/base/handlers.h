/* SPDX-License-Identifier: MIT */
/* Handlers of signals. One that a kernel sets could do its work between its calls, where no clock runs. */
#ifndef BENCH_HANDLERS_H
#define BENCH_HANDLERS_H

#include <signal.h>

/* The handlers that are there now belong to no kernel. */
void bench_handlers_note(void);

/* Sets a handler that belongs to no kernel. */
void bench_handlers_set(int number, const struct sigaction *action);

/* The number of a signal that has another handler, and is ignored from now on. 0: none has, or nothing was noted. */
int bench_handlers_other(void);

#define BENCH_OTHER_HANDLER "sets a handler of signal %d, which could work between calls"

#endif
