/* SPDX-License-Identifier: MIT */
/* The columns of a row as text, for CSV, JSON, journal and table alike, and lists of rows. */
#ifndef BENCH_COLUMNS_H
#define BENCH_COLUMNS_H

#include "timing/row.h"

typedef enum bench_column {
#define COLUMN(name, kind, member) COLUMN_##name,
#include "report/columns.def"
#undef COLUMN
  BENCH_COLUMNS
} bench_column;

enum { BENCH_CELL = 512, BENCH_NUMBER = 32 }; /* room for any cell, and for a cell that is a number */
enum { BENCH_MOST_SAMPLES = 1 << 24 };

const char *bench_column_name(bench_column column);

/* The cell as text, "" where the value is missing. Returns the row's own text, a constant, or `text`. */
const char *bench_cell(const bench_row *row, bench_column column, char text[BENCH_CELL]);

/* Sets a value from the text of its cell. False if that is not what bench_cell() prints. */
bool bench_cell_read(bench_row *row, bench_column column, const char *text);

/* A number with at most 9 digits, '.' whatever the locale; "" if it is NaN; infinity is "inf". */
void bench_format_number(double value, char text[BENCH_NUMBER]);

/* Rows in the order of the files. */
typedef struct bench_rows {
  bench_row *item;
  int count;
} bench_rows;

/* Moves the row to the end of the list. False if memory is short. */
bool bench_rows_append(bench_rows *rows, bench_row *row);
void bench_rows_clear(bench_rows *rows);

#endif
