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
static int columns_of(const bench_records *records) {
  for (int i = 0; i < records->count; i++)
    if (bench_record_get(&records->item[i], COLUMN_layer)[0]) return BENCH_COLUMNS;
  return COLUMN_layer;
}

static void write_results(void *context, FILE *file) {
  const bench_report *report = context;
  const int columns = columns_of(report->records);
  for (int c = 0; c < columns; c++) fprintf(file, "%s%s", c ? "," : "", bench_column_names[c]);
  fputc('\n', file);
  for (int i = 0; i < report->records->count; i++) {
    for (int c = 0; c < columns; c++) {
      if (c) fputc(',', file);
      bench_csv_field(file, bench_record_get(&report->records->item[i], (bench_column)c));
    }
    fputc('\n', file);
  }
}

static void write_sample_rows(FILE *file, const bench_record *record) {
  for (int round = 0; round < record->sample_count; round++) {
    char time[32];
    bench_format_number(record->samples_ns[round], time, sizeof time);
    bench_csv_field(file, bench_record_get(record, COLUMN_run_id));
    fputc(',', file);
    bench_csv_field(file, bench_record_get(record, COLUMN_case_id));
    fputc(',', file);
    bench_csv_field(file, bench_record_get(record, COLUMN_kernel));
    fprintf(file, ",%d,%d,%s,%" PRId64 "\n", round, record->positions[round], time, record->iterations);
  }
}

static void write_samples(void *context, FILE *file) {
  const bench_report *report = context;
  fputs("run_id,case_id,kernel,round,position,time_ns,iterations\n", file);
  for (int i = 0; i < report->records->count; i++) write_sample_rows(file, &report->records->item[i]);
}

bool bench_write_csv(const char *path, const bench_report *report) {
  return bench_file_write(path, write_results, (void *)report);
}

bool bench_write_samples(const char *path, const bench_report *report) {
  return bench_file_write(path, write_samples, (void *)report);
}
