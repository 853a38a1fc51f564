/* SPDX-License-Identifier: MIT */
/* The list of facts: adding, finding, printing. */
#include "machine/environment.h"

#include <ctype.h>
#include <stdarg.h>
#include <string.h>

#include "machine/environment_private.h"

/* ---- Reading --------------------------------------------------------------------------------------------------------- */

static void trim(char *text) {
  size_t begin = strspn(text, " \t\""), end = strlen(text);
  while (end > begin && strchr(" \t\r\n\"", text[end - 1])) end--;
  memmove(text, text + begin, end - begin);
  text[end - begin] = 0;
}

void bench_read_line(const char *path, char *line, size_t bytes) {
  FILE *file = fopen(path, "r");
  line[0] = 0;
  if (!file) return;
  if (!fgets(line, (int)bytes, file)) line[0] = 0;
  fclose(file);
  trim(line);
}

/* The value in a line "name: value" or "name=value", or NULL. Changes the line. */
static const char *value_of(char *line, const char *name) {
  char *separator = strpbrk(line, ":=");
  if (!separator) return NULL;
  *separator = 0;
  trim(line);
  trim(separator + 1);
  return strcmp(line, name) ? NULL : separator + 1;
}

void bench_read_field(const char *path, const char *name, char *value, size_t bytes) {
  char line[8192];
  const char *found = NULL;
  FILE *file = fopen(path, "r");
  while (file && !found && fgets(line, sizeof line, file)) found = value_of(line, name);
  snprintf(value, bytes, "%s", found ? found : "");
  if (file) fclose(file);
}

void bench_fact_add(bench_environment *environment, const char *name, bench_grade grade, const char *advice,
                    const char *format, ...) {
  if (environment->count == (int)(sizeof environment->facts / sizeof *environment->facts)) return;
  bench_fact *fact = &environment->facts[environment->count++];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(fact->value, sizeof fact->value, format, arguments);
  va_end(arguments);
  const bool known = fact->value[0] != 0;
  if (!known) snprintf(fact->value, sizeof fact->value, "unknown");
  snprintf(fact->name, sizeof fact->name, "%s", name);
  snprintf(fact->advice, sizeof fact->advice, "%s", known ? advice : "");
  fact->grade = known ? grade : BENCH_UNKNOWN;
}

void bench_fact_note(bench_environment *environment, const char *name, const char *value) {
  bench_fact_add(environment, name, BENCH_OK, "", "%s", value);
}

void bench_fact_note_file(bench_environment *environment, const char *name, const char *path) {
  char line[512];
  bench_read_line(path, line, sizeof line);
  bench_fact_note(environment, name, line);
}

void bench_environment_read(bench_environment *environment, int argc, char **argv, unsigned long long seed) {
  environment->count = 0;
  bench_environment_add_machine(environment);
  bench_environment_add_topology(environment);
  bench_environment_add_noise(environment);
  bench_environment_add_build(environment);
  bench_environment_add_process(environment, argc, argv, seed);
}

/* ---- Showing --------------------------------------------------------------------------------------------------------- */

const char *bench_environment_get(const bench_environment *environment, const char *name) {
  for (int i = 0; i < environment->count; i++)
    if (strcmp(environment->facts[i].name, name) == 0) return environment->facts[i].value;
  return "unknown";
}

const char *bench_grade_name(bench_grade grade) {
  static const char *const names[] = {"OK", "WARN", "BAD", "unknown"};
  return names[grade];
}

bench_grade bench_environment_worst(const bench_environment *environment) {
  static const int rank[] = {[BENCH_OK] = 0, [BENCH_UNKNOWN] = 1, [BENCH_WARN] = 2, [BENCH_BAD] = 3};
  bench_grade worst = BENCH_OK;
  for (int i = 0; i < environment->count; i++)
    if (rank[environment->facts[i].grade] > rank[worst]) worst = environment->facts[i].grade;
  return worst;
}

/* Writes bytes beyond ASCII as they are, which is valid JSON where the text is UTF-8. */
static void put_json_string(FILE *file, const char *text) {
  fputc('"', file);
  for (; *text; text++) {
    unsigned char c = (unsigned char)*text;
    if (c == '"' || c == '\\')
      fprintf(file, "\\%c", c);
    else if (iscntrl(c))
      fprintf(file, "\\u%04x", c);
    else
      fputc(c, file);
  }
  fputc('"', file);
}

static void put_json_fact(FILE *file, const bench_fact *fact) {
  put_json_string(file, fact->name);
  fputs(": {\"value\": ", file);
  put_json_string(file, fact->value);
  fprintf(file, ", \"grade\": \"%s\"", bench_grade_name(fact->grade));
  if (fact->advice[0]) {
    fputs(", \"advice\": ", file);
    put_json_string(file, fact->advice);
  }
  fputs("}", file);
}

void bench_environment_write_json(const bench_environment *environment, FILE *file) {
  fputs("{", file);
  for (int i = 0; i < environment->count; i++) {
    fputs(i ? ",\n  " : "\n  ", file);
    put_json_fact(file, &environment->facts[i]);
  }
  fputs("\n}\n", file);
}

void bench_environment_print(const bench_environment *environment, FILE *file) {
  for (int i = 0; i < environment->count; i++) {
    const bench_fact *fact = &environment->facts[i];
    fprintf(file, "%-8s %-18s %s\n", bench_grade_name(fact->grade), fact->name, fact->value);
    if (fact->advice[0]) fprintf(file, "%-8s %-18s mend: %s\n", "", "", fact->advice);
  }
}
