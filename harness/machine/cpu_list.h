/* SPDX-License-Identifier: MIT */
/* Lists of CPU numbers as system files and taskset write them: "0-3,8". */
#ifndef BENCH_CPU_LIST_H
#define BENCH_CPU_LIST_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

static inline bool bench_has_cpu(const cpu_set_t *set, int cpu) { return CPU_ISSET((size_t)cpu, set); }
static inline void bench_add_cpu(cpu_set_t *set, int cpu) { CPU_SET((size_t)cpu, set); }

/* False unless all of `text` is such a list, of numbers below CPU_SETSIZE. */
bool bench_cpu_list_read(const char *text, cpu_set_t *set);

/* "0-3,8"; cut at the end of `text`. */
void bench_cpu_list_write(const cpu_set_t *set, char *text, size_t bytes);

/* A sequence in its own order, with the step of a range behind a colon where it is not 1: "0-30:2,1-31:2". */
void bench_cpu_sequence_write(const int *cpu, int count, char *text, size_t bytes);

#endif
