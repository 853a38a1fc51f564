/* SPDX-License-Identifier: MIT */
/* bench_journal_resume() on any bytes, or on any bytes behind a valid head. The rows that it reads can be written to a new
 * journal, and reading and writing that one again gives the same text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "report/report.h"

static const bench_journal_head head = {.item = {{"command", "run"}, {"cpu", "a \"CPU\""}}, .count = 2};

/* Writes a journal of all rows into the file of `slot`. The caller frees the returned text. */
static char *write_rows(int slot, const bench_rows *rows, size_t *bytes) {
  const char *path = fuzz_file(slot, "", 0);
  FILE *journal = bench_journal_create(path, &head);
  if (!journal) fuzz_fail("no journal can be created");
  for (int i = 0; i < rows->count; i++) bench_journal_append(journal, &rows->item[i]);
  if (!bench_journal_flush(journal)) fuzz_fail("the journal cannot be flushed");
  *bytes = (size_t)ftell(journal);
  (void)fclose(journal);
  char *text = calloc(*bytes + 1, 1);
  FILE *file = fopen(path, "r");
  if (!text || !file || fread(text, 1, *bytes, file) != *bytes) fuzz_fail("the journal cannot be read");
  (void)fclose(file);
  return text;
}

static void check_round_trip(const bench_rows *rows) {
  size_t bytes, bytes_again;
  char *text = write_rows(1, rows, &bytes);
  bench_rows again = {0};
  FILE *journal = bench_journal_resume(fuzz_file(1, text, bytes), &head, &again);
  if (!journal) fuzz_fail("a journal that was just written cannot be resumed:\n%s", text);
  (void)fclose(journal);
  if (again.count != rows->count) fuzz_fail("%d of %d rows came back:\n%s", again.count, rows->count, text);
  char *text_again = write_rows(2, &again, &bytes_again);
  if (strcmp(text, text_again) != 0) fuzz_fail("rows that were read print otherwise:\n%s\n%s", text, text_again);
  bench_rows_clear(&again);
  free(text);
  free(text_again);
}

/* If the first byte is '+', the others come behind a valid head. */
static const char *make_file(const uint8_t *data, size_t size) {
  if (!size || data[0] != '+') return fuzz_file(0, data, size);
  const char *path = fuzz_file(0, "", 0);
  FILE *journal = bench_journal_create(path, &head);
  if (!journal || fwrite(data + 1, 1, size - 1, journal) != size - 1) fuzz_fail("no journal can be created");
  (void)fclose(journal);
  return path;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  bench_rows rows = {0};
  FILE *journal = bench_journal_resume(make_file(data, size), &head, &rows);
  if (journal) {
    (void)fclose(journal);
    check_round_trip(&rows);
  }
  bench_rows_clear(&rows);
  return 0;
}
