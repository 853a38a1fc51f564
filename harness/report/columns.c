/* SPDX-License-Identifier: MIT */
/* Prints and reads the values of a row, column by column. */
#include "report/columns.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli.h"

/* How the values of a column are printed and read. `value` is the member of the row. */
typedef struct kind {
  const char *(*print)(const bench_row *row, const void *value, char text[BENCH_CELL]);
  bool (*read)(const char *text, void *value, size_t bytes);
} kind;

/* ---- Texts and numbers ---------------------------------------------------------------------------------------------- */

void bench_format_number(double value, char text[BENCH_NUMBER]) {
  text[0] = 0;
  if (isnan(value)) return;
  snprintf(text, BENCH_NUMBER, "%.9g", value);
  char *comma = strchr(text, ',');
  if (comma) *comma = '.';
}

static const char *print_TEXT(const bench_row *row, const void *value, char *text) {
  (void)row;
  (void)text;
  return value;
}

static bool read_TEXT(const char *text, void *value, size_t bytes) {
  return (size_t)snprintf(value, bytes, "%s", text) < bytes;
}

static const char *print_number(double value, char *text) {
  bench_format_number(value, text);
  return text;
}

static const char *print_NUMBER(const bench_row *row, const void *value, char *text) {
  (void)row;
  return print_number(*(const double *)value, text);
}

static bool read_NUMBER(const char *text, void *value, size_t bytes) {
  char *end;
  (void)bytes;
  *(double *)value = strtod(text, &end);
  return end != text && !*end;
}

static const char *print_POSITIVE(const bench_row *row, const void *value, char *text) {
  return *(const double *)value > 0 ? print_NUMBER(row, value, text) : "";
}

#define read_POSITIVE read_NUMBER

static const char *print_WHOLE(const bench_row *row, const void *value, char *text) {
  (void)row;
  snprintf(text, BENCH_CELL, "%" PRId64, *(const int64_t *)value);
  return *(const int64_t *)value < 0 ? "" : text;
}

static bool read_WHOLE(const char *text, void *value, size_t bytes) {
  (void)bytes;
  return cli_read_int(text, value);
}

/* ---- What the check found ------------------------------------------------------------------------------------------- */

static const char *print_STATUS(const bench_row *row, const void *value, char *text) {
  (void)value;
  (void)text;
  return bench_status_name(row->verdict.status);
}

static bool read_STATUS(const char *text, void *value, size_t bytes) {
  bench_status *status = value;
  (void)bytes;
  for (*status = BENCH_PASS; *status <= BENCH_ERROR; ++*status)
    if (!strcmp(text, bench_status_name(*status))) return true;
  return false;
}

/* True if there was an output to check. */
static bool is_checked(const bench_row *row) {
  return row->verdict.status != BENCH_SKIP && row->verdict.status != BENCH_ERROR;
}

static const char *print_CHECKED_ROWS(const bench_row *row, const void *value, char *text) {
  return is_checked(row) ? print_WHOLE(row, value, text) : "";
}

#define read_CHECKED_ROWS read_WHOLE

static const char *print_CHECKED_NUMBER(const bench_row *row, const void *value, char *text) {
  return is_checked(row) ? print_NUMBER(row, value, text) : "";
}

#define read_CHECKED_NUMBER read_NUMBER

/* "batch:head:query:column" */
static const char *print_CHECKED_INDEX(const bench_row *row, const void *value, char *text) {
  const int64_t *at = value;
  snprintf(text, BENCH_CELL, "%" PRId64 ":%" PRId64 ":%" PRId64 ":%" PRId64, at[0], at[1], at[2], at[3]);
  return is_checked(row) ? text : "";
}

static bool read_CHECKED_INDEX(const char *text, void *value, size_t bytes) {
  int64_t *at = value;
  char end;
  (void)bytes;
  return sscanf(text, "%" SCNd64 ":%" SCNd64 ":%" SCNd64 ":%" SCNd64 "%c", &at[0], &at[1], &at[2], &at[3], &end) == 4;
}

/* ---- How it was timed ----------------------------------------------------------------------------------------------- */

static const char *print_SAMPLES(const bench_row *row, const void *value, char *text) {
  (void)value;
  snprintf(text, BENCH_CELL, "%d", row->time.n);
  return row->time.n ? text : "";
}

static bool read_SAMPLES(const char *text, void *value, size_t bytes) {
  int64_t samples;
  (void)bytes;
  if (!cli_read_int(text, &samples) || samples < 0 || samples > INT32_MAX) return false;
  *(int *)value = (int)samples;
  return true;
}

static const char *print_STOP(const bench_row *row, const void *value, char *text) {
  (void)value;
  (void)text;
  return row->time.n ? bench_stop_name(row->stop) : "";
}

static bool read_STOP(const char *text, void *value, size_t bytes) {
  bench_stop *stop = value;
  (void)bytes;
  for (*stop = BENCH_STOP_PRECISION; *stop <= BENCH_STOP_INTERRUPT; ++*stop)
    if (!strcmp(text, bench_stop_name(*stop))) return true;
  return false;
}

/* ---- The table ------------------------------------------------------------------------------------------------------ */

static const struct {
  const char *name;
  kind kind;
  size_t offset, bytes;
} columns[] = {
#define COLUMN(name, kind, member) \
  {#name, {print_##kind, read_##kind}, offsetof(bench_row, member), sizeof((bench_row *)0)->member},
#include "report/columns.def"
#undef COLUMN
};

const char *bench_column_name(bench_column column) { return columns[column].name; }

const char *bench_cell(const bench_row *row, bench_column column, char text[BENCH_CELL]) {
  return columns[column].kind.print(row, (const char *)row + columns[column].offset, text);
}

bool bench_cell_read(bench_row *row, bench_column column, const char *text) {
  return columns[column].kind.read(text, (char *)row + columns[column].offset, columns[column].bytes);
}

/* ---- Lists ---------------------------------------------------------------------------------------------------------- */

bool bench_rows_append(bench_rows *rows, bench_row *row) {
  if (!(rows->count & (rows->count - 1))) { /* grows at powers of two */
    void *grown = realloc(rows->item, (rows->count ? 2 * (size_t)rows->count : 1) * sizeof *rows->item);
    if (!grown) return false;
    rows->item = grown;
  }
  rows->item[rows->count++] = *row;
  *row = (bench_row){0};
  return true;
}

void bench_rows_clear(bench_rows *rows) {
  for (int i = 0; i < rows->count; i++) bench_row_clear(&rows->item[i]);
  free(rows->item);
  *rows = (bench_rows){0};
}
