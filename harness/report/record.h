/* SPDX-License-Identifier: MIT */
/* A finished row as text, column by column: what table, CSV, JSON and journal all print, so that they cannot disagree and a
 * resumed row is like a fresh one. */
#ifndef BENCH_RECORD_H
#define BENCH_RECORD_H

#include "cases/cases.h"
#include "timing/result.h"

typedef enum bench_column {
#define COLUMN(name) COLUMN_##name,
#include "report/columns.def"
#undef COLUMN
  BENCH_COLUMNS
} bench_column;

extern const char *const bench_column_names[]; /* ended by NULL */

typedef struct bench_record {
  char *field[BENCH_COLUMNS]; /* NULL = missing */
  double *samples_ns;         /* in round order */
  int *positions;             /* place of each sample in its round */
  int sample_count;
  int64_t iterations; /* calls per sample */
  double noise;       /* A/A control of the case; < 0 = none */
  double ratio_best;  /* best kernel's time / this time; 0 = not timed */
} bench_record;

typedef struct bench_records {
  bench_record *item;
  int count;
} bench_records;

/* "" where missing. */
const char *bench_record_get(const bench_record *record, bench_column column);

/* 0 where missing or not a number. */
double bench_record_number(const bench_record *record, bench_column column);
bool bench_record_is(const bench_record *record, bench_status status);

/* Replaces a field; "" makes it missing. False if memory is short. */
bool bench_record_set(bench_record *record, bench_column column, const char *text);

/* Writes the row. Takes the result's samples over. False if memory is short. */
bool bench_record_fill(bench_record *record, const bench_case *bench, bench_result *result, const char *run_id);

/* Moves the record to the end of the list. False if memory is short. */
bool bench_records_append(bench_records *records, bench_record *record);
void bench_records_clear(bench_records *records);
void bench_record_clear(bench_record *record);

/* A number with at most 9 digits, '.' whatever the locale; "" if it is not finite, except that infinity is "inf". */
void bench_format_number(double value, char *text, size_t bytes);

#endif
