/* SPDX-License-Identifier: MIT */
/* CSV files after RFC 4180: fields with a comma, a quote or a line break are quoted. Lines end in LF. */
#include <inttypes.h>
#include <string.h>

#include "report/writers.h"

void bench_csv_field(FILE *file, const char *text) {
  if (!strpbrk(text, ",\"\r\n")) {
    fputs(text, file);
    return;
  }
  fputc('"', file);
  for (; *text; text++) {
    if (*text == '"') fputc('"', file);
    fputc(*text, file);
  }
  fputc('"', file);
}

/* Which of the columns at the end a file has. */
typedef struct extras {
  bool layers, other_axes;
} extras;

static extras extras_of(const bench_rows *rows) {
  extras found = {0};
  for (int i = 0; i < rows->count; i++) {
    found.layers = found.layers || rows->item[i].layer[0];
    found.other_axes = found.other_axes || rows->item[i].other_axes[0];
  }
  return found;
}

static bool is_written(bench_column column, extras has) {
  return column < COLUMN_layer || (column == COLUMN_other_axes ? has.other_axes : has.layers);
}

static void write_line(FILE *file, const bench_row *row, extras has) {
  char text[BENCH_CELL];
  for (bench_column c = 0; c < BENCH_COLUMNS; c++) {
    if (!is_written(c, has)) continue;
    if (c) fputc(',', file);
    bench_csv_field(file, row ? bench_cell(row, c, text) : bench_column_name(c));
  }
  fputc('\n', file);
}

void bench_write_csv(void *context, FILE *file) {
  const bench_rows *rows = ((const bench_report *)context)->rows;
  const extras has = extras_of(rows);
  write_line(file, NULL, has);
  for (int i = 0; i < rows->count; i++) write_line(file, &rows->item[i], has);
}

static void write_samples_of(FILE *file, const bench_row *row) {
  for (int round = 0; round < row->time.n; round++) {
    char time[BENCH_NUMBER];
    bench_format_number(row->samples_ns[round], time);
    bench_csv_field(file, row->run_id);
    fputc(',', file);
    bench_csv_field(file, row->case_id);
    fputc(',', file);
    bench_csv_field(file, row->kernel);
    fprintf(file, ",%d,%d,%s,%" PRId64 "\n", round, row->positions[round], time, row->iterations);
  }
}

void bench_write_samples(void *context, FILE *file) {
  const bench_report *report = context;
  fputs("run_id,case_id,kernel,round,position,time_ns,iterations\n", file);
  for (int i = 0; i < report->rows->count; i++) write_samples_of(file, &report->rows->item[i]);
}
