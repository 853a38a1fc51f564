/* SPDX-License-Identifier: MIT */
/* Is what runs here the machine itself? A time taken under emulation is no time. */
#ifndef BENCH_EMULATION_H
#define BENCH_EMULATION_H

#include <stdbool.h>

/* NULL on real hardware, else what is emulated, in words. */
const char *bench_emulation(void);

/* True where times mean nothing; says so on stderr in the name of the sub-command. */
bool bench_refuses_to_time(const char *command);

#endif
