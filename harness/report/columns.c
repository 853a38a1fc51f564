/* SPDX-License-Identifier: MIT */
/* Prints and reads the values of a row, column by column. */
#include "report/report.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli.h"

typedef enum kind {
  TEXT,
  WHOLE,
  CHECKED_WHOLE,
  NUMBER,
  CHECKED_NUMBER,
  POSITIVE,
  STATUS,
  CHECKED_INDEX,
  SAMPLES,
  STOP
} kind;

static const struct {
  const char *name;
  kind kind;
  size_t offset, bytes; /* place of the member in bench_row */
} columns[] = {
#define COLUMN(name, kind, member) {#name, kind, offsetof(bench_row, member), sizeof((bench_row *)0)->member},
#include "report/columns.def"
};

const char *bench_column_name(bench_column column) { return columns[column].name; }

void bench_format_number(double value, char text[BENCH_NUMBER]) {
  text[0] = 0;
  if (isnan(value)) return;
  snprintf(text, BENCH_NUMBER, "%.9g", value);
  char *comma = strchr(text, ',');
  if (comma) *comma = '.';
}

const char *bench_cell(const bench_row *row, bench_column column, char text[BENCH_CELL]) {
  const void *value = (const char *)row + columns[column].offset;
  const bool checked = row->verdict.status != BENCH_SKIP && row->verdict.status != BENCH_ERROR; /* an output */
  const kind is = columns[column].kind;
  const double *number = value;
  const int64_t *whole = value;
  text[0] = 0;
  if (is == TEXT) return value;
  if (is == STATUS) return bench_status_name(row->verdict.status);
  if (is == STOP) return row->time.n ? bench_stop_name(row->stop) : "";
  if (is == NUMBER || (is == CHECKED_NUMBER && checked) || (is == POSITIVE && *number > 0))
    bench_format_number(*number, text);
  else if ((is == WHOLE || (is == CHECKED_WHOLE && checked)) && *whole >= 0)
    snprintf(text, BENCH_CELL, "%" PRId64, *whole);
  else if (is == SAMPLES && row->time.n)
    snprintf(text, BENCH_CELL, "%d", row->time.n);
  else if (is == CHECKED_INDEX && checked) /* batch, head, query, column */
    snprintf(text, BENCH_CELL, "%" PRId64 ":%" PRId64 ":%" PRId64 ":%" PRId64, whole[0], whole[1], whole[2], whole[3]);
  return text;
}

static bool read_samples(const char *text, int *samples) {
  int64_t number;
  if (!cli_read_int(text, &number) || number < 0 || number > BENCH_MOST_SAMPLES) return false;
  *samples = (int)number;
  return true;
}

bool bench_cell_read(bench_row *row, bench_column column, const char *text) {
  void *value = (char *)row + columns[column].offset;
  int64_t *at = value;
  double *number = value;
  char *end, more;
  int index = -1;
  switch (columns[column].kind) {
    case TEXT: return (size_t)snprintf(value, columns[column].bytes, "%s", text) < columns[column].bytes;
    case WHOLE:
    case CHECKED_WHOLE: return cli_read_int(text, value) && *at >= 0;
    case NUMBER:
    case CHECKED_NUMBER:
    case POSITIVE: *number = strtod(text, &end); return end != text && !*end && !isnan(*number); /* "inf" as well */
    case CHECKED_INDEX:
      return sscanf(text, "%" SCNd64 ":%" SCNd64 ":%" SCNd64 ":%" SCNd64 "%c", &at[0], &at[1], &at[2], &at[3], &more) == 4;
    case SAMPLES: return read_samples(text, value);
    case STATUS: row->verdict.status = (bench_status)(index = cli_index_of(text, bench_status_names)); break;
    case STOP: row->stop = (bench_stop)(index = cli_index_of(text, bench_stop_names)); break;
  }
  return index >= 0;
}

bool bench_rows_append(bench_rows *rows, bench_row *row) {
  bench_row *grown = bench_grown(rows->item, rows->count, sizeof *rows->item);
  if (!grown) return false;
  rows->item = grown;
  rows->item[rows->count++] = *row;
  *row = (bench_row){0};
  return true;
}

void bench_rows_clear(bench_rows *rows) {
  for (int i = 0; i < rows->count; i++) bench_row_clear(&rows->item[i]);
  free(rows->item);
  *rows = (bench_rows){0};
}
