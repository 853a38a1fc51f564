/* SPDX-License-Identifier: MIT */
/* The journal: one JSON object per line, appended and flushed after every case, so that a run that is cut short loses at
 * most one case, and --resume continues it. The first line says what the run was; the others hold rows. */
#ifndef BENCH_JOURNAL_H
#define BENCH_JOURNAL_H

#include <stdio.h>

#include "report/columns.h"

/* Results with the same head may stand in one file. */
typedef struct bench_journal_head {
  const char *command; /* "run", "check" */
  const char *version; /* of attnbench */
  const char *cpu;
  uint64_t seed;
} bench_journal_head;

/* Starts a new journal. NULL after an error, said on stderr. */
FILE *bench_journal_create(const char *path, const bench_journal_head *head);

/* Reads the rows of a journal, appends them to *rows, and opens the journal to be continued. Drops a last line that was cut
 * off. NULL after an error (unreadable, or of another command, version, CPU or seed), said on stderr. */
FILE *bench_journal_resume(const char *path, const bench_journal_head *head, bench_rows *rows);

/* Appends one row; false after an error. bench_journal_flush() makes it durable. */
bool bench_journal_append(FILE *journal, const bench_row *row);
bool bench_journal_flush(FILE *journal);

#endif
