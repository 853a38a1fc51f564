/* SPDX-License-Identifier: MIT */
/* Limits that the system sets for a process (setrlimit, the shell's ulimit): attnbench says which one it meets, and dies of
 * none. */
#ifndef BENCH_RESOURCES_H
#define BENCH_RESOURCES_H

/* To be called first of all. Returns 0, or BENCH_EXIT_INTERNAL after a sentence if the stack is too small. From then on a
 * file that may not grow is an error of write(), and BENCH_CPU_SIGNAL comes shortly before the limit of CPU time is reached:
 * by default it ends the process with a sentence and BENCH_EXIT_INTERNAL. */
int bench_resources_check(void);

extern const int BENCH_CPU_SIGNAL; /* 0 where there is none */

/* Writes the sentence of BENCH_CPU_SIGNAL to stderr; a signal handler may call it. */
void bench_resources_say_cpu_limit(void);

#endif
