/* SPDX-License-Identifier: MIT */
/* The table on stdout: one block per case, with the kernels from fast to slow and the reasons of the others; then a
 * summary. */
#ifndef BENCH_TABLE_H
#define BENCH_TABLE_H

#include <stdio.h>

#include "report/columns.h"

typedef struct bench_table {
  FILE *file;
  bool colour;
  bool timed;    /* columns of `run`, else of `check` */
  bool repro;    /* a command line below each row; failures always get one */
  bool only_bad; /* failures and errors only, for suites of a thousand cases */
  const char *command;
  uint64_t seed;
} bench_table;

/* True where colour is welcome: a terminal, no NO_COLOR, not TERM=dumb. */
bool bench_wants_colour(FILE *file);

/* The rows of one case. */
void bench_table_case(const bench_table *table, const bench_row *rows, int count);

/* Per kernel how many rows passed, failed and were skipped, and why; the noise floor; the peaks. */
void bench_table_summary(const bench_table *table, const bench_rows *rows);

/* How many rows have the status. */
int bench_count_status(const bench_rows *rows, bench_status status);

/* "1.23 ms": four characters of number and a unit. */
void bench_format_time(double ns, char *text, size_t bytes);

/* Prints words wrapped at the table's width. All lines begin at `indent`; the output is already there. */
void bench_print_wrapped(FILE *file, const char *text, int indent);

#endif
