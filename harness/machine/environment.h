/* SPDX-License-Identifier: MIT */
/* Facts about machine, build and noise, for env.json and `attnbench env`. What cannot be read is "unknown", never
 * guessed. */
#ifndef BENCH_ENVIRONMENT_H
#define BENCH_ENVIRONMENT_H

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>

typedef enum bench_grade { BENCH_OK, BENCH_WARN, BENCH_BAD, BENCH_UNKNOWN } bench_grade;

typedef struct bench_fact {
  char name[48];   /* "governor" */
  char value[512]; /* "performance" or "unknown" */
  bench_grade grade;
  char advice[200]; /* the command that would improve it, or "" */
} bench_fact;

typedef struct bench_environment {
  bench_fact facts[96];
  int count;
} bench_environment;

/* Adds a fact; its value is cut to fit. An empty value becomes "unknown". advice: the command that would improve it, or "".
 */
void bench_fact_add(bench_environment *environment, const char *name, bench_grade grade, const char *advice,
                    const char *format, ...) __attribute__((format(printf, 5, 6)));
void bench_fact_note(bench_environment *environment, const char *name, const char *value); /* OK whatever its value */

/* A part of bench_environment_read(): CPU, caches, memory, system, topology, and what disturbs measurements. */
void bench_environment_add_machine(bench_environment *environment);

/* argc, argv and seed are recorded as they are. */
void bench_environment_read(bench_environment *environment, int argc, char **argv, unsigned long long seed);

/* Replaces the fact "binding": the CPUs, among these, that `threads` timed threads (0: any number) would be kept on. */
void bench_environment_set_binding(bench_environment *environment, const cpu_set_t *cpus, int threads);

const char *bench_environment_get(const bench_environment *environment, const char *name); /* "unknown" if absent */

/* One object: {"governor": {"value": "performance", "grade": "OK"}, ...}, with "advice" where there is any. */
void bench_environment_write_json(const bench_environment *environment, FILE *file);
void bench_environment_print(const bench_environment *environment, FILE *file); /* the audit table */

/* BAD before WARN before UNKNOWN before OK. */
bench_grade bench_environment_worst(const bench_environment *environment);
const char *bench_grade_name(bench_grade grade); /* "OK", "WARN", "BAD", "unknown" */

/* Size of the data (or unified) cache of a level as the first CPU reports it, in bytes; 0 = unknown. */
long long bench_cache_bytes(int level);

/* ---- Emulation ---------------------------------------------------------------------------------------------------- */
/* Times taken under emulation mean nothing. */

/* NULL on real hardware, else a name of the emulation */
const char *bench_emulation(void);

/* Whether times mean nothing here, which it then says on stderr, with the name of the sub-command. */
bool bench_refuses_to_time(const char *command);

/* ---- Control groups (cgroups, version 1 and 2): what those of this process leave to it ---------------------------- */
/* `root` is "", or a folder that stands for the root of the file system, so that tests can feign other systems. */

/* How many CPUs' time the process may use: INFINITY without a limit, negative where the system does not say. */
double bench_cpu_quota(const char *root);

/* Bytes of memory that are free: MemAvailable, or what the groups leave if that is less. INFINITY if neither is known. */
double bench_memory_available(const char *root);

#endif
