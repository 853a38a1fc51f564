/* SPDX-License-Identifier: MIT */
/* Reads what `run -o` wrote: results.csv, samples.csv, env.json. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cli.h"
#include "compare/compare.h"

enum { PATH_BYTES = 4096, FIELDS = 96 };

/* ---- CSV after RFC 4180 --------------------------------------------------------------------------------------------- */

/* A whole file; fields are ended by 0 where they stand. */
typedef struct csv {
  char *text, *at;
  char *field[FIELDS];
  int count, line;
} csv;

static char *read_whole(const char *path) {
  FILE *file = fopen(path, "rbe");
  char *text = NULL;
  size_t used = 0, got = 1;
  for (size_t room = 65536; file && got; room *= 2) {
    char *grown = realloc(text, room + 1);
    if (!grown) { /* half a file is none */
      free(text);
      text = NULL;
      break;
    }
    text = grown;
    used += got = fread(text + used, 1, room - used, file);
    if (used < room) got = 0;
  }
  if (text) text[used] = 0;
  if (file) (void)fclose(file);
  return text;
}

/* Moves a quoted field to its place without quotes. Returns its end, behind the closing quote. */
static char *unquote(char *at, char *to) {
  for (at++; *at && !(at[0] == '"' && at[1] != '"'); at++) {
    at += *at == '"';
    *to++ = *at;
  }
  char *end = at + (*at == '"');
  *to = 0;
  return end;
}

/* The next line with its fields; false at the end. */
static bool next_line(csv *c) {
  c->count = 0;
  if (!*c->at) return false;
  for (bool more = true; more;) {
    char *start = c->at, *end = *start == '"' ? unquote(start, start) : start + strcspn(start, ",\r\n");
    more = *end == ',' && c->count + 1 < FIELDS;
    c->at = end + (*end != 0);
    if (end[0] == '\r' && end[1] == '\n') c->at++;
    *end = 0;
    c->field[c->count++] = start;
  }
  c->line++;
  return true;
}

/* Opens a file and reads its head. False if there is no such file. */
static bool open_csv(csv *c, const char *path) {
  *c = (csv){.text = read_whole(path)};
  c->at = c->text;
  return c->text && next_line(c);
}

/* The place of a column in the head, -1 if it has none. */
static int column_of(const csv *c, const char *name) {
  for (int i = 0; i < c->count; i++)
    if (!strcmp(c->field[i], name)) return i;
  return -1;
}

/* ---- Rows ----------------------------------------------------------------------------------------------------------- */

static bool read_row(const csv *c, const bench_column *columns, int count, bench_row *row, char *error, size_t bytes) {
  *row = bench_row_create(NULL, NULL);
  if (c->count != count) return bench_say(error, bytes, "line %d: %d fields, the head has %d", c->line, c->count, count);
  for (int i = 0; i < count; i++)
    if (columns[i] < BENCH_COLUMNS && c->field[i][0] && !bench_cell_read(row, columns[i], c->field[i]))
      return bench_say(error, bytes, "line %d: column %s is '%.40s'", c->line, bench_column_name(columns[i]), c->field[i]);
  return true;
}

static bool read_rows(csv *c, bench_rows *rows, char *error, size_t bytes) {
  bench_column columns[FIELDS];
  const int count = c->count;
  if (column_of(c, "case_id") < 0 || column_of(c, "kernel") < 0 || column_of(c, "time_ns_median") < 0)
    return bench_say(error, bytes, "is no results.csv of attnbench: no columns case_id, kernel, time_ns_median");
  for (int i = 0; i < count; i++) {
    columns[i] = (bench_column)0;
    while (columns[i] < BENCH_COLUMNS && strcmp(bench_column_name(columns[i]), c->field[i])) columns[i]++;
  }
  while (next_line(c)) {
    bench_row row;
    if (!read_row(c, columns, count, &row, error, bytes)) return false;
    if (!bench_rows_append(rows, &row)) return bench_say(error, bytes, "out of memory");
  }
  return true;
}

/* ---- Samples -------------------------------------------------------------------------------------------------------- */

/* Columns of samples.csv; peak may be missing (-1). */
typedef struct sample_columns {
  int case_id, kernel, time_ns, peak;
} sample_columns;

/* Rows and samples have the same order: the search begins where the last one ended. */
static bench_row *find_row(bench_rows *rows, const char *case_id, const char *kernel, int *last) {
  for (int i = 0; i < rows->count; i++) {
    bench_row *row = &rows->item[(*last + i) % rows->count];
    if (strcmp(row->case_id, case_id) || strcmp(row->kernel, kernel)) continue;
    *last = (*last + i) % rows->count;
    return row;
  }
  return NULL;
}

static bool open_samples(bench_row *row) {
  if (row->samples_ns) return true;
  row->samples_ns = calloc((size_t)row->time.n, sizeof *row->samples_ns);
  row->peaks = calloc((size_t)row->time.n, sizeof *row->peaks);
  return row->samples_ns && row->peaks;
}

static bool add_sample(const csv *c, const sample_columns *at, bench_row *row, int n) {
  double time, peak = 0;
  if (!cli_read_real(c->field[at->time_ns], &time) || !(time > 0)) return false;
  if (at->peak >= 0 && c->field[at->peak][0] && !cli_read_real(c->field[at->peak], &peak)) return false;
  row->samples_ns[n] = time;
  row->peaks[n] = 1e9 * peak;
  return true;
}

static bool read_samples(csv *c, bench_rows *rows, char *error, size_t bytes) {
  const sample_columns at = {column_of(c, "case_id"), column_of(c, "kernel"), column_of(c, "time_ns"),
                             column_of(c, "peak_gflops")};
  const int count = c->count;
  int last = 0, n = 0;
  const bench_row *before = NULL;
  if (at.case_id < 0 || at.kernel < 0 || at.time_ns < 0) return bench_say(error, bytes, "is no samples.csv of attnbench");
  while (next_line(c)) {
    bench_row *row = c->count == count ? find_row(rows, c->field[at.case_id], c->field[at.kernel], &last) : NULL;
    n = row == before ? n + 1 : 0;
    before = row;
    if (!row || n >= row->time.n || !open_samples(row) || !add_sample(c, &at, row, n))
      return bench_say(error, bytes, "line %d is no sample of a row of results.csv", c->line);
  }
  return true;
}

/* Rows without all of their samples are left with their medians; without all peaks they have none. */
static void check_samples(bench_rows *rows) {
  for (bench_row *row = rows->item; row < rows->item + rows->count; row++) {
    bool all = row->samples_ns && row->peaks, peaks = all;
    for (int i = 0; all && i < row->time.n; i++) {
      all = row->samples_ns[i] > 0;
      peaks = peaks && row->peaks[i] > 0;
    }
    if (!all || !peaks) free(row->peaks), row->peaks = NULL;
    if (!all) free(row->samples_ns), row->samples_ns = NULL;
  }
}

/* ---- Facts of env.json ---------------------------------------------------------------------------------------------- */

const char *const bench_result_facts[BENCH_MOST_FACTS] = {"cpu",       "tiers", "compiler", "flags",
                                                          "libraries", NULL,    "commit",   "date"};

const char *bench_result_fact(const bench_result *result, const char *name) {
  for (int i = 0; i < BENCH_MOST_FACTS; i++)
    if (bench_result_facts[i] && !strcmp(bench_result_facts[i], name)) return result->fact[i];
  return "";
}

/* The value of "name": {"value": "..."} as attnbench writes it. */
static void read_fact(const char *text, const char *name, char *value, size_t bytes) {
  char key[64];
  snprintf(key, sizeof key, "\"%s\": {\"value\": \"", name);
  const char *at = text ? strstr(text, key) : NULL;
  value[0] = 0;
  if (at) snprintf(value, bytes, "%.*s", (int)strcspn(at + strlen(key), "\""), at + strlen(key));
  if (!strcmp(value, "unknown")) value[0] = 0;
}

static void read_facts(const char *path, bench_result *result) {
  char *text = read_whole(path);
  for (int i = 0; i < BENCH_MOST_FACTS; i++)
    if (bench_result_facts[i]) read_fact(text, bench_result_facts[i], result->fact[i], sizeof result->fact[i]);
  free(text);
}

/* ---- Results -------------------------------------------------------------------------------------------------------- */

static bool is_folder(const char *path) {
  struct stat info;
  return !stat(path, &info) && S_ISDIR(info.st_mode);
}

/* A file beside results.csv. */
static void name_file(const bench_result *result, const char *name, char *path) {
  const char *slash = strrchr(result->path, '/');
  const int length = is_folder(result->path) ? (int)strlen(result->path) : slash ? (int)(slash - result->path) : 0;
  snprintf(path, PATH_BYTES, "%.*s%s%s", length, result->path, length ? "/" : "", name);
}

static bool read_result(bench_result *result, char *error, size_t bytes) {
  char path[PATH_BYTES], why[200];
  csv c;
  name_file(result, "results.csv", path);
  const char *main = is_folder(result->path) ? path : result->path;
  errno = 0;
  bool fine = open_csv(&c, main);
  if (!fine) return free(c.text), bench_say(error, bytes, "%s: %s", main, errno ? strerror(errno) : "is empty");
  fine = read_rows(&c, &result->rows, why, sizeof why) || bench_say(error, bytes, "%s: %s", main, why);
  free(c.text);
  name_file(result, "samples.csv", path);
  if (fine && open_csv(&c, path)) {
    fine = read_samples(&c, &result->rows, why, sizeof why) || bench_say(error, bytes, "%s: %s", path, why);
    free(c.text);
  }
  check_samples(&result->rows);
  name_file(result, "env.json", path);
  read_facts(path, result);
  return fine;
}

bool bench_side_read(bench_side *side, const char *paths, char *error, size_t bytes) {
  char path[sizeof((bench_result *)0)->path];
  *side = (bench_side){.name = paths};
  for (const char *at = paths; cli_next_word(&at, path, sizeof path);) {
    if (side->count == BENCH_MOST_RUNS) return bench_say(error, bytes, "more than %d runs of one side", BENCH_MOST_RUNS);
    bench_result *result = calloc(1, sizeof *result);
    if (!result) return bench_say(error, bytes, "out of memory");
    side->run[side->count++] = result;
    memcpy(result->path, path, sizeof path);
    if (!read_result(result, error, bytes)) return false;
  }
  return side->count || bench_say(error, bytes, "'%s' names no result", paths);
}

void bench_side_clear(bench_side *side) {
  for (int i = 0; i < side->count; i++) {
    bench_rows_clear(&side->run[i]->rows);
    free(side->run[i]);
  }
  *side = (bench_side){0};
}
