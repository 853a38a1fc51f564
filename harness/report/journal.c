/* SPDX-License-Identifier: MIT */
/* Writes and reads journal.jsonl. The reader takes exactly what the writer makes: flat objects whose values are strings,
 * numbers or arrays of numbers. */
#include "report/journal.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"

enum { KEY = 32 };

/* ---- Writing ------------------------------------------------------------------------------------------------------- */

static void put_head(FILE *file, const bench_journal_head *head) {
  fputs("{\"journal\": 1, \"command\": ", file);
  bench_json_string(file, head->command);
  fputs(", \"version\": ", file);
  bench_json_string(file, head->version);
  fputs(", \"cpu\": ", file);
  bench_json_string(file, head->cpu);
  fprintf(file, ", \"seed\": \"%" PRIu64 "\"}\n", head->seed);
}

static void put_number(FILE *file, double value) {
  char text[BENCH_NUMBER];
  bench_format_number(value, text);
  fputs(text, file);
}

static void put_samples(FILE *file, const bench_row *row) {
  fprintf(file, ", \"iterations\": %" PRId64 ", \"noise\": ", row->iterations);
  put_number(file, row->noise);
  fputs(", \"ratio_best\": ", file);
  put_number(file, isnan(row->ratio_best) ? 0 : row->ratio_best);
  fputs(", \"samples_ns\": [", file);
  for (int i = 0; i < row->time.n; i++) {
    if (i) fputc(',', file);
    put_number(file, row->samples_ns[i]);
  }
  fputs("], \"positions\": [", file);
  for (int i = 0; i < row->time.n; i++) fprintf(file, "%s%d", i ? "," : "", row->positions[i]);
  fputc(']', file);
}

bool bench_journal_append(FILE *journal, const bench_row *row) {
  const char *separator = "{";
  for (int i = 0; i < BENCH_COLUMNS; i++) {
    char text[BENCH_CELL];
    const char *cell = bench_cell(row, (bench_column)i, text);
    if (!cell[0]) continue;
    fputs(separator, journal);
    separator = ", ";
    bench_json_string(journal, bench_column_name((bench_column)i));
    fputs(": ", journal);
    bench_json_string(journal, cell);
  }
  if (row->time.n) put_samples(journal, row);
  fputs("}\n", journal);
  return !ferror(journal);
}

bool bench_journal_flush(FILE *journal) { return !fflush(journal) && !fsync(fileno(journal)); }

static FILE *fail(FILE *file, const char *path, const char *why) {
  fprintf(stderr, "attnbench: %s: %s\n", path, why);
  if (file) (void)fclose(file);
  return NULL;
}

FILE *bench_journal_create(const char *path, const bench_journal_head *head) {
  FILE *file = fopen(path, "w");
  if (!file) return fail(NULL, path, strerror(errno));
  put_head(file, head);
  return bench_journal_flush(file) ? file : fail(file, path, strerror(errno));
}

/* ---- Reading ------------------------------------------------------------------------------------------------------- */

static void skip_blanks(const char **at) { *at += strspn(*at, " \t"); }

static bool take(const char **at, char c) {
  skip_blanks(at);
  if (**at != c) return false;
  ++*at;
  return true;
}

static bool read_escape(const char **at, char *out) {
  const char c = *(*at)++;
  unsigned code;
  if (c == 'n')
    *out = '\n';
  else if (c == '"' || c == '\\')
    *out = c;
  else if (c == 'u' && sscanf(*at, "%4x", &code) == 1 && code < 0x80 && strlen(*at) >= 4) {
    *out = (char)code;
    *at += 4;
  } else
    return false;
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

static bool read_number(const char **at, double *value) {
  char *end;
  skip_blanks(at);
  *value = strtod(*at, &end);
  if (end == *at) return false;
  *at = end;
  return true;
}

/* Reads "[1,2,3]". The caller frees *values. */
static bool read_numbers(const char **at, double **values, int *count) {
  *count = 0;
  free(*values);
  *values = malloc((strlen(*at) / 2 + 1) * sizeof **values); /* a number and its comma take at least two characters */
  if (!*values || !take(at, '[')) return false;
  while (!take(at, ']'))
    if ((*count && !take(at, ',')) || !read_number(at, &(*values)[(*count)++])) return false;
  return true;
}

static bool read_positions(const char **at, bench_row *row, int *count) {
  double *values = NULL;
  const bool fine = read_numbers(at, &values, count);
  free(row->positions);
  row->positions = fine ? malloc(((size_t)*count + 1) * sizeof *row->positions) : NULL;
  for (int i = 0; row->positions && i < *count; i++) row->positions[i] = (int)values[i];
  free(values);
  return row->positions;
}

static bool set_cell(bench_row *row, const char *key, const char *text) {
  for (int i = 0; i < BENCH_COLUMNS; i++)
    if (!strcmp(key, bench_column_name((bench_column)i))) return bench_cell_read(row, (bench_column)i, text);
  return false;
}

static bool set_number(bench_row *row, const char *key, double number) {
  if (!strcmp(key, "iterations"))
    row->iterations = (int64_t)number;
  else if (!strcmp(key, "noise"))
    row->noise = number;
  else if (!strcmp(key, "ratio_best"))
    row->ratio_best = number;
  else
    return false;
  return true;
}

/* How many samples and positions the line held: as many as the row says. */
typedef struct lengths {
  int samples, positions;
} lengths;

static bool read_value(const char **at, const char *key, bench_row *row, lengths *found) {
  char text[1024];
  double number;
  skip_blanks(at);
  if (**at == '"') return read_string(at, text, sizeof text) && set_cell(row, key, text);
  if (!strcmp(key, "samples_ns")) return read_numbers(at, &row->samples_ns, &found->samples);
  if (!strcmp(key, "positions")) return read_positions(at, row, &found->positions);
  return read_number(at, &number) && set_number(row, key, number);
}

static bool read_row(const char *line, bench_row *row) {
  char key[KEY];
  lengths found = {0};
  const char *at = line;
  *row = bench_row_create(NULL, NULL);
  if (!take(&at, '{')) return false;
  do {
    if (!read_string(&at, key, sizeof key) || !take(&at, ':') || !read_value(&at, key, row, &found)) return false;
  } while (take(&at, ','));
  return take(&at, '}') && found.samples == row->time.n && found.positions == row->time.n;
}

/* The value of a string in the head line. */
static bool read_head(const char *line, const char *wanted, char *text, size_t bytes) {
  char key[KEY], pattern[KEY + 4];
  snprintf(pattern, sizeof pattern, "\"%s\"", wanted);
  const char *at = strstr(line, pattern);
  return at && read_string(&at, key, sizeof key) && take(&at, ':') && read_string(&at, text, bytes);
}

static const char *head_mismatch(const char *line, const bench_journal_head *head, char *why, size_t bytes) {
  char seed[32], text[512];
  snprintf(seed, sizeof seed, "%" PRIu64, head->seed);
  const struct {
    const char *key, *value;
  } wanted[] = {{"command", head->command}, {"version", head->version}, {"cpu", head->cpu}, {"seed", seed}};
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    if (!read_head(line, wanted[i].key, text, sizeof text)) return "not a journal of attnbench";
    if (strcmp(text, wanted[i].value)) {
      snprintf(why, bytes, "cannot be resumed: its %s is '%.200s', now it is '%.200s'", wanted[i].key, text,
               wanted[i].value);
      return why;
    }
  }
  return NULL;
}

/* Reads the lines after the head. *end is where the last whole line ends. */
static const char *read_rows(FILE *file, bench_rows *rows, long *end) {
  char *line = NULL;
  size_t room = 0;
  ssize_t length;
  const char *error = NULL;
  while (!error && (length = getline(&line, &room, file)) > 0 && line[length - 1] == '\n') {
    bench_row row;
    if (!read_row(line, &row)) {
      error = "holds a line that is not a row of attnbench";
      bench_row_clear(&row);
    } else if (!bench_rows_append(rows, &row)) {
      error = "out of memory";
    } else {
      *end = ftell(file);
    }
  }
  free(line);
  return error;
}

FILE *bench_journal_resume(const char *path, const bench_journal_head *head, bench_rows *rows) {
  char why[600], *line = NULL;
  size_t room = 0;
  FILE *file = fopen(path, "r+");
  if (!file) return fail(NULL, path, strerror(errno));
  const char *error = getline(&line, &room, file) > 0 ? head_mismatch(line, head, why, sizeof why) : "is empty";
  long end = ftell(file);
  if (!error) error = read_rows(file, rows, &end);
  free(line);
  if (error) return fail(file, path, error);
  if (fseek(file, end, SEEK_SET) || ftruncate(fileno(file), end)) return fail(file, path, strerror(errno));
  return file;
}
