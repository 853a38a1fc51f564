/* SPDX-License-Identifier: MIT */
/* Adding facts to bench_environment. Each of the files environment_*.c adds some. */
#ifndef BENCH_ENVIRONMENT_PRIVATE_H
#define BENCH_ENVIRONMENT_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>

#include "machine/environment.h"

/* Adds a fact, whose value is cut to fit. An empty value becomes "unknown", whatever the grade. advice: the command that
 * would improve it, or "". */
void bench_fact_add(bench_environment *environment, const char *name, bench_grade grade, const char *advice,
                    const char *format, ...) __attribute__((format(printf, 5, 6)));

/* A fact that is OK whatever its value; the second takes the value from the first line of a file. */
void bench_fact_note(bench_environment *environment, const char *name, const char *value);
void bench_fact_note_file(bench_environment *environment, const char *name, const char *path);

/* First line of a small file, without surrounding blanks; "" if there is none. */
void bench_read_line(const char *path, char *line, size_t bytes);

/* The value of the first "name: value" or "name=value" line of a file, without blanks and quotes; "" if there is none. */
void bench_read_field(const char *path, const char *name, char *value, size_t bytes);

void bench_environment_add_machine(bench_environment *environment);  /* CPU, caches, memory, system */
void bench_environment_add_topology(bench_environment *environment); /* cores, nodes, caches, where threads are kept */
void bench_environment_add_noise(bench_environment *environment);    /* what disturbs measurements */
void bench_environment_add_build(bench_environment *environment);    /* compiler, flags, commit */
void bench_environment_add_process(bench_environment *environment, int argc, char **argv, unsigned long long seed);

#endif
