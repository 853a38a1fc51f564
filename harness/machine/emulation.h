/* SPDX-License-Identifier: MIT */
/* Whether the program runs on the real machine. Times taken under emulation mean nothing. */
#ifndef BENCH_EMULATION_H
#define BENCH_EMULATION_H

#include <stdbool.h>

/* NULL on real hardware, else what is emulated, in words. */
const char *bench_emulation(void);

/* True where times mean nothing; then says so on stderr, with the name of the sub-command. */
bool bench_refuses_to_time(const char *command);

#endif
