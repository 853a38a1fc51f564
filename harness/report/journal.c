/* SPDX-License-Identifier: MIT */
/* Writes and reads journal.jsonl. The reader takes exactly what the writer makes: flat objects whose values are strings,
 * numbers or arrays of numbers. */
#include "report/journal.h"

#include <errno.h>
#include <inttypes.h>
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
  char text[32];
  bench_format_number(value, text, sizeof text);
  fputs(text, file);
}

static void put_samples(FILE *file, const bench_record *record) {
  fprintf(file, ", \"iterations\": %" PRId64 ", \"noise\": ", record->iterations);
  put_number(file, record->noise);
  fputs(", \"ratio_best\": ", file);
  put_number(file, record->ratio_best);
  fputs(", \"samples_ns\": [", file);
  for (int i = 0; i < record->sample_count; i++) {
    if (i) fputc(',', file);
    put_number(file, record->samples_ns[i]);
  }
  fputs("], \"positions\": [", file);
  for (int i = 0; i < record->sample_count; i++) fprintf(file, "%s%d", i ? "," : "", record->positions[i]);
  fputc(']', file);
}

bool bench_journal_append(FILE *journal, const bench_record *record) {
  const char *separator = "{";
  for (int i = 0; i < BENCH_COLUMNS; i++) {
    if (!record->field[i]) continue;
    fputs(separator, journal);
    separator = ", ";
    bench_json_string(journal, bench_column_names[i]);
    fputs(": ", journal);
    bench_json_string(journal, record->field[i]);
  }
  if (record->sample_count) put_samples(journal, record);
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

/* "[1,2,3]"; the caller frees *values. */
static bool read_numbers(const char **at, double **values, int *count) {
  *count = 0;
  free(*values);
  *values = malloc((strlen(*at) / 2 + 1) * sizeof **values); /* a number and its comma take two characters at least */
  if (!*values || !take(at, '[')) return false;
  while (!take(at, ']'))
    if ((*count && !take(at, ',')) || !read_number(at, &(*values)[(*count)++])) return false;
  return true;
}

static bool set_positions(bench_record *record, const double *values, int count) {
  free(record->positions);
  record->positions = malloc(((size_t)count + 1) * sizeof *record->positions);
  for (int i = 0; record->positions && i < count; i++) record->positions[i] = (int)values[i];
  return record->positions;
}

static bool set_field(bench_record *record, const char *key, const char *text) {
  for (int i = 0; i < BENCH_COLUMNS; i++)
    if (!strcmp(key, bench_column_names[i])) return bench_record_set(record, (bench_column)i, text);
  return false;
}

/* A value that is not a string. `positions` counts them, to be compared with the samples. */
static bool read_other(const char **at, const char *key, bench_record *record, int *positions) {
  double number = 0, *values = NULL;
  if (!strcmp(key, "samples_ns")) return read_numbers(at, &record->samples_ns, &record->sample_count);
  if (!strcmp(key, "positions")) {
    const bool fine = read_numbers(at, &values, positions) && set_positions(record, values, *positions);
    free(values);
    return fine;
  }
  if (!read_number(at, &number)) return false;
  if (!strcmp(key, "iterations"))
    record->iterations = (int64_t)number;
  else if (!strcmp(key, "noise"))
    record->noise = number;
  else if (!strcmp(key, "ratio_best"))
    record->ratio_best = number;
  else
    return false;
  return true;
}

static bool read_record(const char *line, bench_record *record) {
  char key[KEY], text[1024];
  int positions = 0;
  const char *at = line;
  *record = (bench_record){.noise = -1};
  if (!take(&at, '{')) return false;
  do {
    if (!read_string(&at, key, sizeof key) || !take(&at, ':')) return false;
    skip_blanks(&at);
    if (*at == '"' ? !read_string(&at, text, sizeof text) || !set_field(record, key, text)
                   : !read_other(&at, key, record, &positions))
      return false;
  } while (take(&at, ','));
  return take(&at, '}') && positions == record->sample_count;
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

/* Reads the records behind the head. *end is where the last whole line ends. */
static const char *read_records(FILE *file, bench_records *records, long *end) {
  char *line = NULL;
  size_t room = 0;
  ssize_t length;
  const char *error = NULL;
  while (!error && (length = getline(&line, &room, file)) > 0 && line[length - 1] == '\n') {
    bench_record record;
    if (!read_record(line, &record)) {
      error = "holds a line that is not a record of attnbench";
      bench_record_clear(&record);
    } else if (!bench_records_append(records, &record)) {
      error = "out of memory";
    } else {
      *end = ftell(file);
    }
  }
  free(line);
  return error;
}

FILE *bench_journal_resume(const char *path, const bench_journal_head *head, bench_records *records) {
  char why[600], *line = NULL;
  size_t room = 0;
  FILE *file = fopen(path, "r+");
  if (!file) return fail(NULL, path, strerror(errno));
  const char *error = getline(&line, &room, file) > 0 ? head_mismatch(line, head, why, sizeof why) : "is empty";
  long end = ftell(file);
  if (!error) error = read_records(file, records, &end);
  free(line);
  if (error) return fail(file, path, error);
  if (fseek(file, end, SEEK_SET) || ftruncate(fileno(file), end)) return fail(file, path, strerror(errno));
  return file;
}
