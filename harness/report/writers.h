/* SPDX-License-Identifier: MIT */
/* The result files: results.csv, samples.csv, results.json. All are written at the end, whole or not at all. */
#ifndef BENCH_WRITERS_H
#define BENCH_WRITERS_H

#include <stdio.h>

#include "machine/environment.h"
#include "report/columns.h"

/* What every file says about the run. */
typedef struct bench_report {
  const bench_rows *rows;
  const char *run_id;
  const char *executable;
  const char *date; /* ISO 8601, local time with offset */
  const bench_environment *environment;
} bench_report;

/* Writers for bench_file_write(); `report` is a bench_report. CSV after RFC 4180 with the columns of columns.def; an empty
 * field is a missing value. */
void bench_write_csv(void *report, FILE *file);

/* Writes one field, quoted if it must be. */
void bench_csv_field(FILE *file, const char *text);

/* run_id,case_id,kernel,round,position,time_ns,iterations */
void bench_write_samples(void *report, FILE *file);

/* The name of a series in that JSON: "attn/kernel:flash_c/dtype:f32/B:1/..." and a suffix. */
void bench_series_name(char *name, size_t bytes, const char *kernel, const char *case_id, const char *suffix);

/* JSON that Google Benchmark's tools/compare.py reads: one entry per repetition and their median as an aggregate; rows
 * without a time stand in "not_timed", with their reason. */
void bench_write_json(void *report, FILE *file);

#endif
