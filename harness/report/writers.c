/* SPDX-License-Identifier: MIT */
/* CSV files after RFC 4180 (fields with a comma, a quote or a line break are quoted; lines end in LF), and JSON. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/files.h"
#include "cases/cases.h"
#include "report/report.h"

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

/* Columns that only some files have: the columns of layers, and those that every row leaves empty. */
typedef struct extra_columns {
  bool layers, other_axes, reference;
} extra_columns;

static bool is_shown(const extra_columns *extra, bench_column c) {
  if (c < COLUMN_layer) return true;
  return c == COLUMN_reference ? extra->reference : c == COLUMN_other_axes ? extra->other_axes : extra->layers;
}

/* One line; NULL: the head. */
static void write_line(FILE *file, const bench_row *row, const extra_columns *extra) {
  char text[BENCH_CELL];
  for (bench_column c = 0; c < BENCH_COLUMNS; c++) {
    if (!is_shown(extra, c)) continue;
    if (c) fputc(',', file);
    bench_csv_field(file, row ? bench_cell(row, c, text) : bench_column_name(c));
  }
  fputc('\n', file);
}

void bench_write_csv(void *context, FILE *file) {
  const bench_rows *rows = ((const bench_report *)context)->rows;
  extra_columns extra = {.layers = false};
  for (const bench_row *row = rows->item; row < rows->item + rows->count; row++) {
    extra.layers |= row->layer[0] != 0;
    extra.other_axes |= row->other_axes[0] != 0;
    extra.reference |= row->verdict.reference[0] != 0;
  }
  write_line(file, NULL, &extra);
  for (int i = 0; i < rows->count; i++) write_line(file, &rows->item[i], &extra);
}

static void write_samples_of(FILE *file, const bench_row *row) {
  for (int round = 0; round < row->time.n; round++) {
    char time[BENCH_NUMBER], peak[BENCH_NUMBER] = "";
    bench_format_number(row->samples_ns[round], time);
    if (row->peaks && row->peaks[round] > 0) bench_format_number(1e-9 * row->peaks[round], peak);
    bench_csv_field(file, row->run_id);
    fputc(',', file);
    bench_csv_field(file, row->case_id);
    fputc(',', file);
    bench_csv_field(file, row->kernel);
    fprintf(file, ",%d,%d,%s,%" PRId64 ",%s\n", round, row->positions[round], time, row->iterations, peak);
  }
}

void bench_write_samples(void *context, FILE *file) {
  const bench_report *report = context;
  fputs("run_id,case_id,kernel,round,position,time_ns,iterations,peak_gflops\n", file);
  for (int i = 0; i < report->rows->count; i++) write_samples_of(file, &report->rows->item[i]);
}

/* ---- JSON --------------------------------------------------------------------------------------------------------- */
/* results.json: Google Benchmark's format (docs/user_guide.md, "Output Formats"; tools/gbench/util.py reads it).
 *
 * compare.py wants cpu_time in every entry. We measure wall time only: cpu_time repeats it, and the context says so. */

/* Columns that become counters of an entry. */
static const bench_column counters[] = {COLUMN_gflops, COLUMN_gbs,         COLUMN_peak_gflops, COLUMN_peak_pct,
                                        COLUMN_ratio,  COLUMN_ratio_ci_lo, COLUMN_ratio_ci_hi, COLUMN_max_err_ratio};

static void put_number(FILE *file, double value) {
  char text[BENCH_NUMBER];
  bench_format_number(value, text);
  fputs(isfinite(value) ? text : "null", file);
}

void bench_series_name(char *name, size_t bytes, const char *kernel, const char *case_id, const char *suffix) {
  snprintf(name, bytes, "attn/kernel:%s/%s%s", kernel, case_id, suffix);
}

static void put_name(FILE *file, const char *before, const char *key, const bench_row *row, const char *suffix) {
  char name[BENCH_NAME + 128];
  bench_series_name(name, sizeof name, row->kernel, row->case_id, suffix);
  bench_json_pair(file, before, key, name);
}

/* The keys shared by repetitions and aggregates. */
static void put_entry(FILE *file, const bench_row *row, int family, const char *suffix, double time_ns) {
  put_name(file, "    {\n      ", "name", row, suffix);
  fprintf(file, ",\n      \"family_index\": %d,\n      \"per_family_instance_index\": 0", family);
  put_name(file, ",\n      ", "run_name", row, "");
  fprintf(file,
          ",\n      \"repetitions\": %d,\n      \"threads\": %" PRId64 ",\n      \"iterations\": %" PRId64
          ",\n      \"real_time\": ",
          row->time.n, row->threads, row->iterations);
  put_number(file, time_ns);
  fputs(",\n      \"cpu_time\": ", file);
  put_number(file, time_ns);
  fputs(",\n      \"time_unit\": \"ns\"", file);
}

static void put_median(FILE *file, const bench_row *row, int family) {
  put_entry(file, row, family, "_median", row->time.median);
  fputs(",\n      \"run_type\": \"aggregate\",\n      \"aggregate_name\": \"median\",\n      \"aggregate_unit\": \"time\"",
        file);
  for (size_t i = 0; i < sizeof counters / sizeof *counters; i++) {
    char text[BENCH_CELL];
    const char *cell = bench_cell(row, counters[i], text);
    if (cell[0]) fprintf(file, ",\n      \"%s\": %s", bench_column_name(counters[i]), strcmp(cell, "inf") ? cell : "null");
  }
  if (row->warnings[0]) bench_json_pair(file, ",\n      ", "label", row->warnings);
  fputs("\n    }", file);
}

#ifdef NDEBUG
static const char build_type[] = "release";
#else
static const char build_type[] = "debug";
#endif

static void put_context(FILE *file, const bench_report *report) {
  static const struct {
    const char *key, *fact;
  } facts[] = {{"host_name", "host"}, {"cpu", "cpu"}, {"compiler", "compiler"}};
  bench_json_pair(file, "{\n  \"context\": {\n    ", "date", report->date);
  bench_json_pair(file, ",\n    ", "executable", report->executable);
  for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
    bench_json_pair(file, ",\n    ", facts[i].key, bench_environment_get(report->environment, facts[i].fact));
  }
  fprintf(file, ",\n    \"num_cpus\": %d", bench_cpu_count());
  bench_json_pair(file, ",\n    ", "library_version", attn_version());
  bench_json_pair(file, ",\n    ", "run_id", report->run_id);
  fputs(",\n    \"cpu_time_is\": \"a copy of real_time: only wall time is measured\"", file);
  fprintf(file, ",\n    \"library_build_type\": \"%s\",\n    \"json_schema_version\": 1\n  },\n", build_type);
}

/* With or without one entry per sample. */
static void put_benchmarks(FILE *file, const bench_rows *rows, bool samples) {
  const char *separator = "\n";
  int family = 0;
  fputs("  \"benchmarks\": [", file);
  for (int i = 0; i < rows->count; i++) {
    const bench_row *row = &rows->item[i];
    if (!row->time.n) continue;
    for (int round = 0; samples && round < row->time.n; round++) {
      fputs(separator, file);
      separator = ",\n";
      put_entry(file, row, family, "", row->samples_ns[round]);
      fprintf(file, ",\n      \"run_type\": \"iteration\",\n      \"repetition_index\": %d\n    }", round);
    }
    fputs(separator, file);
    separator = ",\n";
    put_median(file, row, family++);
  }
  fputs("\n  ],\n", file);
}

static void put_not_timed(FILE *file, const bench_rows *rows) {
  const char *separator = "\n";
  fputs("  \"not_timed\": [", file);
  for (int i = 0; i < rows->count; i++) {
    const bench_row *row = &rows->item[i];
    if (row->time.n) continue;
    fputs(separator, file);
    separator = ",\n";
    put_name(file, "    {", "name", row, "");
    bench_json_pair(file, ", ", "status", bench_status_name(row->verdict.status));
    bench_json_pair(file, ", ", "reason", row->verdict.reason);
    bench_json_pair(file, ", ", "warnings", row->warnings);
    fputs("}", file);
  }
  fputs("\n  ]", file);
}

static void write_json(const bench_report *report, FILE *file, bool samples) {
  put_context(file, report);
  put_benchmarks(file, report->rows, samples);
  put_not_timed(file, report->rows);
  fputs("\n}\n", file);
}

void bench_write_json(void *context, FILE *file) { write_json(context, file, true); }

void bench_write_json_medians(void *context, FILE *file) { write_json(context, file, false); }
