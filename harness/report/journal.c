/* SPDX-License-Identifier: MIT */
/* Writes and reads journal.jsonl. The reader takes exactly what the writer makes: flat objects whose values are strings,
 * numbers or arrays of numbers. */
#include "report/report.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"

enum { KEY = 32 };
#define HEAD_START "{\"journal\": "

/* ---- Writing ------------------------------------------------------------------------------------------------------- */

void bench_journal_describe(bench_journal_head *head, const char *name, const char *format, ...) {
  va_list arguments;
  if (head->count == BENCH_HEAD_ITEMS) {
    head->no_room_for = name;
    return;
  }
  va_start(arguments, format);
  head->item[head->count].name = name;
  vsnprintf(head->item[head->count++].value, sizeof head->item->value, format, arguments);
  va_end(arguments);
}

static void put_number(FILE *file, double value) {
  char text[BENCH_NUMBER];
  bench_format_number(value, text);
  fputs(text, file);
}

static void put_numbers(FILE *file, const char *key, const double *numbers, int count) {
  fprintf(file, ", \"%s\": [", key);
  for (int i = 0; i < count; i++) {
    if (i) fputc(',', file);
    put_number(file, numbers[i]);
  }
  fputc(']', file);
}

static void put_samples(FILE *file, const bench_row *row) {
  fprintf(file, ", \"iterations\": %" PRId64 ", \"ratio_best\": ", row->iterations);
  put_number(file, isfinite(row->ratio_best) ? row->ratio_best : 0);
  put_numbers(file, "samples_ns", row->samples_ns, row->time.n);
  if (row->peaks) put_numbers(file, "peaks", row->peaks, row->time.n);
  fputs(", \"positions\": [", file);
  for (int i = 0; i < row->time.n; i++) fprintf(file, "%s%d", i ? "," : "", row->positions[i]);
  fputc(']', file);
}

void bench_journal_append(FILE *journal, const bench_row *row) {
  const char *separator = "{";
  for (bench_column c = 0; c < BENCH_COLUMNS; c++) {
    char text[BENCH_CELL];
    const char *cell = bench_cell(row, c, text);
    if (!cell[0]) continue;
    bench_json_pair(journal, separator, bench_column_name(c), cell);
    separator = ", ";
  }
  if (row->time.n) put_samples(journal, row);
  fputs("}\n", journal);
}

bool bench_journal_flush(FILE *journal) {
  if (!fflush(journal) && !ferror(journal) && !fsync(fileno(journal))) return true;
  fprintf(stderr, "attnbench: cannot write the journal: %s\n", strerror(errno));
  return false;
}

static FILE *fail(FILE *file, const char *path, const char *why) {
  fprintf(stderr, "attnbench: %s: %s\n", path, why);
  if (file) (void)fclose(file);
  return NULL;
}

/* A journal without one of its items would let other settings resume it. NULL: nothing is wrong. */
static const char *head_fault(const bench_journal_head *head, char *why, size_t bytes) {
  if (!head->no_room_for) return NULL;
  snprintf(why, bytes, "its head has %d items and no room for '%s'", BENCH_HEAD_ITEMS, head->no_room_for);
  return why;
}

FILE *bench_journal_create(const char *path, const bench_journal_head *head) {
  char why[100];
  const char *fault = head_fault(head, why, sizeof why);
  FILE *file = fault ? NULL : fopen(path, "we");
  if (!file) return fail(NULL, path, fault ? fault : strerror(errno));
  fputs("{\"journal\": 2", file);
  for (int i = 0; i < head->count; i++) bench_json_pair(file, ", ", head->item[i].name, head->item[i].value);
  fputs("}\n", file);
  if (bench_journal_flush(file)) return file;
  (void)fclose(file);
  return NULL;
}

/* ---- Reading ------------------------------------------------------------------------------------------------------- */

static void skip_blanks(const char **at) { *at += strspn(*at, " \t"); }

static bool take(const char **at, char c) {
  skip_blanks(at);
  if (**at != c) return false;
  ++*at;
  return true;
}

/* The escapes of bench_json_string(). \u0080 to \u00ff are bytes that are not UTF-8. */
static bool read_escape(const char **at, char *out) {
  const char c = *(*at)++;
  unsigned code;
  int used = 0;
  *out = c == 'n' ? '\n' : c;
  if (c == 'n' || c == '"' || c == '\\') return true;
  if (c != 'u' || sscanf(*at, "%4x%n", &code, &used) != 1 || used != 4 || !code || code > 0xff) return false;
  *out = (char)code;
  *at += 4;
  return true;
}

/* A string of at most bytes - 1 bytes. */
static bool read_string(const char **at, char *text, size_t bytes) {
  size_t used = 0;
  if (!take(at, '"')) return false;
  while (**at && **at != '"') {
    char c = *(*at)++;
    if (c == '\\' && !read_escape(at, &c)) return false;
    if (used + 1 >= bytes) return false;
    text[used++] = c;
  }
  text[used] = 0;
  return take(at, '"');
}

bool bench_json_next_pair(const char **at, char *key, size_t key_bytes, char *value, size_t value_bytes) {
  skip_blanks(at);
  *at += **at == '{' || **at == ',';
  return read_string(at, key, key_bytes) && take(at, ':') && read_string(at, value, value_bytes);
}

static bool read_number(const char **at, double *value) {
  char *end;
  skip_blanks(at);
  *value = strtod(*at, &end);
  if (end == *at || !isfinite(*value)) return false;
  *at = end;
  return true;
}

/* Reads "[1,2,3]" into *samples, or where that is NULL into *positions; frees what stood there. */
static bool read_numbers(const char **at, double **samples, int **positions, int *count) {
  const size_t most = strlen(*at) / 2 + 1; /* a number and its comma take at least two characters */
  double number;
  *count = 0;
  free(samples ? (void *)*samples : *positions);
  void *memory = malloc(most * sizeof number);
  if (samples) *samples = memory;
  if (positions) *positions = memory;
  if (!memory || !take(at, '[')) return false;
  for (; !take(at, ']'); ++*count) {
    if ((*count && !take(at, ',')) || !read_number(at, &number)) return false;
    if (positions && !(number >= 0 && number <= INT_MAX)) return false;
    if (samples) (*samples)[*count] = number;
    if (positions) (*positions)[*count] = (int)number;
  }
  return true;
}

static bool set_cell(bench_row *row, const char *key, const char *text) {
  for (int i = 0; i < BENCH_COLUMNS; i++)
    if (!strcmp(key, bench_column_name((bench_column)i))) return bench_cell_read(row, (bench_column)i, text);
  return false;
}

static bool set_number(bench_row *row, const char *key, double number) {
  const double most = 0x1p53; /* beyond it, doubles are not all whole numbers */
  if (!strcmp(key, "iterations") && number >= 0 && number <= most)
    row->iterations = (int64_t)number;
  else if (!strcmp(key, "ratio_best"))
    row->ratio_best = number;
  else
    return false;
  return true;
}

/* Checks the numbers of samples, peaks and positions of a line: as many as the row says; of peaks also none. */
typedef struct lengths {
  int samples, peaks, positions;
} lengths;

static bool read_value(const char **at, const char *key, bench_row *row, lengths *found) {
  char text[1024];
  double number;
  skip_blanks(at);
  if (**at == '"') return read_string(at, text, sizeof text) && set_cell(row, key, text);
  if (!strcmp(key, "samples_ns")) return read_numbers(at, &row->samples_ns, NULL, &found->samples);
  if (!strcmp(key, "peaks")) return read_numbers(at, &row->peaks, NULL, &found->peaks);
  if (!strcmp(key, "positions")) return read_numbers(at, NULL, &row->positions, &found->positions);
  return read_number(at, &number) && set_number(row, key, number);
}

static bool read_row(const char *line, bench_row *row) {
  char key[KEY];
  lengths found = {0};
  const char *at = line;
  if (!take(&at, '{')) return false;
  do {
    if (!read_string(&at, key, sizeof key) || !take(&at, ':') || !read_value(&at, key, row, &found)) return false;
  } while (take(&at, ','));
  if (!take(&at, '}') || found.samples != row->time.n || found.positions != row->time.n) return false;
  return !row->peaks || found.peaks == row->time.n;
}

/* The value of a string in the head line; "unknown" if there is none. */
static void read_head(const char *line, const char *wanted, char *text, size_t bytes) {
  char key[KEY], pattern[KEY + 4];
  snprintf(pattern, sizeof pattern, "\"%s\"", wanted);
  const char *at = strstr(line, pattern);
  if (!at || !read_string(&at, key, sizeof key) || !take(&at, ':') || !read_string(&at, text, bytes))
    snprintf(text, bytes, "unknown");
}

/* Why the rows below this head line cannot stand beside rows of `head`; NULL if they can. */
static const char *head_mismatch(const char *line, const bench_journal_head *head, char *why, size_t bytes) {
  char text[sizeof head->item->value];
  if (strncmp(line, HEAD_START, strlen(HEAD_START))) return "is no journal of attnbench";
  for (int i = 0; i < head->count; i++) {
    read_head(line, head->item[i].name, text, sizeof text);
    if (!strcmp(text, head->item[i].value)) continue;
    snprintf(why, bytes, "cannot be resumed: its %s is '%.200s', now it is '%.200s'; --overwrite starts again",
             head->item[i].name, text, head->item[i].value);
    return why;
  }
  return NULL;
}

/* Moves a row to the list, in the place of an older one of its case and kernel. False if memory is short. */
static bool keep_latest(bench_rows *rows, bench_row *row) {
  for (int i = 0; i < rows->count; i++) {
    bench_row *old = &rows->item[i];
    if (strcmp(old->kernel, row->kernel) || strcmp(old->case_id, row->case_id)) continue;
    bench_row_clear(old);
    *old = *row;
    return true;
  }
  return bench_rows_append(rows, row);
}

/* Reads the lines after the head. *end is where the last whole line ends. False if memory is short. */
static bool read_rows(FILE *file, const char *path, bench_rows *rows, long *end) {
  char *line = NULL;
  size_t room = 0;
  ssize_t length;
  bool fine = true;
  for (int number = 2; fine && (length = getline(&line, &room, file)) > 0; number++) {
    const bool whole = line[length - 1] == '\n' && strlen(line) == (size_t)length;
    bench_row row = bench_row_create(NULL, NULL);
    const bool kept = whole && read_row(line, &row);
    if (kept) fine = keep_latest(rows, &row);
    if (!kept) fprintf(stderr, "warning: %s: line %d is no whole row, and left out\n", path, number);
    if (!kept || !fine) bench_row_clear(&row);
    if (line[length - 1] == '\n') *end = ftell(file);
  }
  free(line);
  return fine;
}

bool bench_journal_read(const char *path, char **head, bench_rows *rows) {
  size_t room = 0;
  long end = 0;
  FILE *file = fopen(path, "re");
  *head = NULL;
  if (!file) return fail(NULL, path, strerror(errno));
  const bool has_head = getline(head, &room, file) > 0 && !strncmp(*head, HEAD_START, strlen(HEAD_START));
  if (!has_head) return fail(file, path, "is no journal of attnbench");
  if (!read_rows(file, path, rows, &end)) return fail(file, path, "out of memory");
  (void)fclose(file);
  return true;
}

FILE *bench_journal_resume(const char *path, const bench_journal_head *head, bench_rows *rows) {
  char why[600], *line = NULL;
  size_t room = 0;
  FILE *file = fopen(path, "r+e");
  if (!file) return fail(NULL, path, strerror(errno));
  const ssize_t length = getline(&line, &room, file);
  const bool has_head = length > 0 && line[length - 1] == '\n';
  const char *error = has_head ? head_fault(head, why, sizeof why) : NULL;
  if (has_head && !error) error = head_mismatch(line, head, why, sizeof why);
  long end = ftell(file);
  free(line);
  if (!has_head) {
    fprintf(stderr, "warning: %s: line 1 is cut off: nothing was measured, the journal starts again\n", path);
    (void)fclose(file);
    return bench_journal_create(path, head);
  }
  if (!error && !read_rows(file, path, rows, &end)) error = "out of memory";
  if (error) return fail(file, path, error);
  if (fseek(file, end, SEEK_SET) || ftruncate(fileno(file), end)) return fail(file, path, strerror(errno));
  return file;
}
