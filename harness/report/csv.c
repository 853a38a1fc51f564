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

/* One line; NULL: the head. */
static void write_line(FILE *file, const bench_row *row, bool layers, bool other_axes) {
  char text[BENCH_CELL];
  for (bench_column c = 0; c < BENCH_COLUMNS; c++) {
    if (c >= COLUMN_layer && !(c == COLUMN_other_axes ? other_axes : layers)) continue;
    if (c) fputc(',', file);
    bench_csv_field(file, row ? bench_cell(row, c, text) : bench_column_name(c));
  }
  fputc('\n', file);
}

void bench_write_csv(void *context, FILE *file) {
  const bench_rows *rows = ((const bench_report *)context)->rows;
  bool layers = false, other_axes = false; /* columns that only some files have */
  for (int i = 0; i < rows->count; i++) {
    layers = layers || rows->item[i].layer[0];
    other_axes = other_axes || rows->item[i].other_axes[0];
  }
  write_line(file, NULL, layers, other_axes);
  for (int i = 0; i < rows->count; i++) write_line(file, &rows->item[i], layers, other_axes);
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
