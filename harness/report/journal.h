/* SPDX-License-Identifier: MIT */
/* The journal: one JSON object per line, appended and flushed after every case, so that a run that is cut short loses at
 * most one case, and --resume continues it. The first line says what the run was; the others hold rows. */
#ifndef BENCH_JOURNAL_H
#define BENCH_JOURNAL_H

#include <stdio.h>

#include "report/columns.h"

/* Whatever changes numbers: build, CPU, settings. Rows with the same head may stand in one file. */
enum { BENCH_HEAD_ITEMS = 24 };
typedef struct bench_journal_head {
  struct {
    const char *name;
    char value[512];
  } item[BENCH_HEAD_ITEMS];
  int count;
} bench_journal_head;

/* Adds an item; at most BENCH_HEAD_ITEMS. */
void bench_journal_describe(bench_journal_head *head, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Starts a new journal. NULL after an error, said on stderr. */
FILE *bench_journal_create(const char *path, const bench_journal_head *head);

/* Reads the rows of a journal, appends them to *rows, and opens the journal to be continued. Of several rows of a case and
 * kernel the last one counts. A line that is no row is left out with a warning; one at the end that was cut off is removed.
 * A journal whose first line was cut off is started again. NULL after an error (unreadable, or another head), said on
 * stderr. */
FILE *bench_journal_resume(const char *path, const bench_journal_head *head, bench_rows *rows);

/* Appends one row. bench_journal_flush() makes it durable: false after an error of either. */
void bench_journal_append(FILE *journal, const bench_row *row);
bool bench_journal_flush(FILE *journal);

#endif
