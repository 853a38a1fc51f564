/* SPDX-License-Identifier: MIT */
/* CSV files (RFC 4180: comma, CRLF is optional and left out, fields with comma, quote or line break are quoted). */
#include <inttypes.h>
#include <string.h>

#include "base/files.h"
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

/* Files without layers do without their columns, which are the last. */
static int columns_of(const bench_rows *rows) {
  for (int i = 0; i < rows->count; i++)
    if (rows->item[i].layer[0]) return BENCH_COLUMNS;
  return COLUMN_layer;
}

static void write_row(FILE *file, const bench_row *row, int columns) {
  char text[BENCH_CELL];
  for (int c = 0; c < columns; c++) {
    if (c) fputc(',', file);
    bench_csv_field(file, bench_cell(row, (bench_column)c, text));
  }
  fputc('\n', file);
}

static void write_results(void *context, FILE *file) {
  const bench_report *report = context;
  const int columns = columns_of(report->rows);
  for (int c = 0; c < columns; c++) fprintf(file, "%s%s", c ? "," : "", bench_column_name((bench_column)c));
  fputc('\n', file);
  for (int i = 0; i < report->rows->count; i++) write_row(file, &report->rows->item[i], columns);
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

static void write_samples(void *context, FILE *file) {
  const bench_report *report = context;
  fputs("run_id,case_id,kernel,round,position,time_ns,iterations\n", file);
  for (int i = 0; i < report->rows->count; i++) write_samples_of(file, &report->rows->item[i]);
}

bool bench_write_csv(const char *path, const bench_report *report) {
  return bench_file_write(path, write_results, (void *)report);
}

bool bench_write_samples(const char *path, const bench_report *report) {
  return bench_file_write(path, write_samples, (void *)report);
}
