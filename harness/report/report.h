/* SPDX-License-Identifier: MIT */
/* Rows for people and programs: their columns as text, the table, the files. */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include <stdio.h>

#include "machine/environment.h"
#include "timing/setup.h"

typedef enum bench_column {
#define COLUMN(name, kind, member) COLUMN_##name,
#include "report/columns.def"
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

/* ---- The table on stdout: one block per case, from fast to slow, then a summary ----------------------------------- */

typedef struct bench_table {
  FILE *file;
  bool colour;
  bool timed;    /* columns of `run`, else of `check` */
  bool reads;    /* shares are of the read loop, not of the peak loop: bench_table_case() sets it */
  bool repro;    /* a command line below each row; failures always get one */
  bool only_bad; /* failures and errors only, for suites of a thousand cases */
  const char *command;
  uint64_t seed;
} bench_table;

/* True where colour is welcome: a terminal, no NO_COLOR, not TERM=dumb. */
bool bench_wants_colour(FILE *file);

/* The rows of one case. */
void bench_table_case(const bench_table *table, const bench_row *rows, int count);

/* All cases. */
void bench_table_cases(const bench_table *table, const bench_rows *rows);

/* Per kernel how many rows passed, failed and were skipped, and why; the noise floor; the peaks. */
void bench_table_summary(const bench_table *table, const bench_rows *rows);

/* How many rows have the status. */
int bench_count_status(const bench_rows *rows, bench_status status);

/* "1.23 ms": four characters of number and a unit. */
void bench_format_time(double ns, char *text, size_t bytes);

/* Prints words wrapped at the table's width. All lines begin at `indent`; the output is already there. */
void bench_print_wrapped(FILE *file, const char *text, int indent);

/* ---- The result files: results.csv, samples.csv, results.json ----------------------------------------------------- */

/* The rows of a run and the facts about it that go into every file. */
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

/* run_id,case_id,kernel,round,position,time_ns,iterations,peak_gflops */
void bench_write_samples(void *report, FILE *file);

/* The name of a series in that JSON: "attn/kernel:flash_c/dtype:f32/B:1/..." and a suffix. */
void bench_series_name(char *name, size_t bytes, const char *kernel, const char *case_id, const char *suffix);

/* JSON that Google Benchmark's tools/compare.py reads: one entry per repetition and their median as an aggregate; rows
 * without a time stand in "not_timed", with their reason. */
void bench_write_json(void *report, FILE *file);

/* The same without the repetitions, which samples.csv has as well. */
void bench_write_json_medians(void *report, FILE *file);

/* ---- The journal -------------------------------------------------------------------------------------------------- */
/* One JSON object per line, appended and flushed after every case, so that a run that is cut short loses at most one case,
 * and
 * --resume continues it. The first line says what the run was; the others hold rows. */

/* Whatever changes numbers: build, CPU, settings. Rows with the same head may stand in one file. */
enum { BENCH_HEAD_ITEMS = 24 };
typedef struct bench_journal_head {
  struct {
    const char *name;
    char value[512];
  } item[BENCH_HEAD_ITEMS];
  int count;
  const char *no_room_for; /* an item beyond BENCH_HEAD_ITEMS; NULL: all have room */
} bench_journal_head;

/* Adds an item. A head with more than BENCH_HEAD_ITEMS makes no journal. */
void bench_journal_describe(bench_journal_head *head, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Starts a new journal. NULL after an error, said on stderr. */
FILE *bench_journal_create(const char *path, const bench_journal_head *head);

/* Reads the rows of a journal, appends them to *rows, and opens the journal to be continued. Of several rows of a case and
 * kernel the last one counts. A line that is no row is left out with a warning; one at the end that was cut off is removed.
 * A journal whose first line was cut off is started again. NULL after an error (unreadable, or another head), said on
 * stderr. */
FILE *bench_journal_resume(const char *path, const bench_journal_head *head, bench_rows *rows);

/* Reads a journal without continuing it: its first line, which the caller frees, and its rows, as bench_journal_resume()
 * does. False after an error, said on stderr. */
bool bench_journal_read(const char *path, char **head, bench_rows *rows);

/* Reads the next "key": "value" of a JSON object and moves *at behind it. False at its end, and before other values. */
bool bench_json_next_pair(const char **at, char *key, size_t key_bytes, char *value, size_t value_bytes);

/* Appends one row. bench_journal_flush() makes it durable: false after an error of either. */
void bench_journal_append(FILE *journal, const bench_row *row);
bool bench_journal_flush(FILE *journal);

#endif
