/* SPDX-License-Identifier: MIT */
/* Result folders of one sweep, joined: the parts of each machine by themselves. */
#ifndef BENCH_MERGE_H
#define BENCH_MERGE_H

#include "report/report.h"

enum { BENCH_PART_ITEM = 512 }; /* room for an item of a head */

/* A result folder of `run` or `check`. */
typedef struct bench_part {
  const char *path;
  char *head; /* the first line of its journal; owned */
  bench_rows rows;
  bench_environment environment;
  char shard[32]; /* "2/8", or "all" */
  char runs[512]; /* the run_id of each process that measured some of it, separated by blanks */
  bool ended;     /* its run wrote results.csv */
  int machine;    /* parts of one machine, build and settings have one number, from 0 on */
} bench_part;

typedef struct bench_parts {
  bench_part *item;
  int count, machines;
} bench_parts;

/* Reads a result folder and appends it. False after an error, said on stderr. */
bool bench_parts_read(bench_parts *parts, const char *path);
void bench_parts_clear(bench_parts *parts);

/* An item of the head that all parts of the machine share; "" if there is none. */
void bench_parts_item(const bench_parts *parts, int machine, const char *name, char value[BENCH_PART_ITEM]);

/* The item of the head in which the part differs from the first of machine `machine`, e.g. "microcode"; NULL if in none that
 * makes another machine: shard and affinity do not. */
const char *bench_part_difference(const bench_parts *parts, const bench_part *part, int machine);

/* A machine's rows from all of its parts, one per case and kernel: a timed one before others, then the earliest part's. They
 * move out of the parts. *repeated counts the others. False if memory is short. */
bool bench_parts_join(bench_parts *parts, int machine, bench_rows *rows, int *repeated);

/* The facts of a machine's parts; different values of one fact are joined by "; ", and the worst grade counts. */
void bench_parts_environment(const bench_parts *parts, int machine, bench_environment *environment);

/* The head of a journal that continues all of the machine's parts: without a shard. */
void bench_parts_head(const bench_parts *parts, int machine, bench_journal_head *head);

/* "cpu-6-173": a name for the machine's folder, of letters, digits and '-'. */
void bench_parts_slug(const bench_parts *parts, int machine, char *text, size_t bytes);

#endif
