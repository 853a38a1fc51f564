/* SPDX-License-Identifier: MIT */
/* What a session prints around its table, and the files it leaves. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "commands/session.h"
#include "report/writers.h"

/* The library's environment variables that are set: they change results. */
static void print_overrides(FILE *file) {
  static const char *const names[] = {"ATTN_KERNEL",     "ATTN_MAX_ISA",  "ATTN_VERBOSE", "ATTN_TUNING",
                                      "OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (getenv(names[i])) fprintf(file, "in force: %s=%s\n", names[i], getenv(names[i]));
}

void bench_session_print_opening(const bench_session *s, FILE *file) {
  fprintf(file, "attnbench %s on %s; this CPU runs: %s\n", attn_version(), bench_environment_get(&s->environment, "cpu"),
          attn_cpu_tiers());
  s->steps->print_extent(s, file);
  fprintf(file, ", seed %" PRId64 "\n", s->options->seed);
  if (s->settings.timed) fprintf(file, "binding: %s\n", bench_environment_get(&s->environment, "binding"));
  print_overrides(file);
  fputc('\n', file);
}

void bench_print_estimate(const char *extent, double seconds) {
  char clock[24];
  bench_format_clock(seconds, clock, sizeof clock);
  printf("%s, about %s (a guess, to a factor of two or so)\n", extent, clock);
}

/* The width of a structural test's column. */
static int width_of(int test) {
  const int length = (int)strlen(bench_structure_name((bench_structure_test)test));
  return length > 5 ? length : 5;
}

void bench_session_print_structure(const bench_session *s, FILE *file) {
  if (!s->settings.structure) return;
  fprintf(file, "structural tests, cases (of at most 1e8 multiply-adds) on which each ran:\n%-18s", "kernel");
  for (int test = 0; test < BENCH_STRUCTURE_TESTS; test++)
    fprintf(file, " %*s", width_of(test), bench_structure_name((bench_structure_test)test));
  for (int k = 0; k < s->kernel_count; k++) {
    fprintf(file, "\n%-18s", s->kernels[k]->name);
    for (int test = 0; test < BENCH_STRUCTURE_TESTS; test++)
      fprintf(file, " %*d", width_of(test), s->structure_runs[k][test]);
  }
  fputs("\n\n", file);
}

void bench_session_path(const bench_session *s, const char *name, char *path) {
  snprintf(path, BENCH_PATH_BYTES, "%s/%s", s->options->folder, name);
}

bool bench_session_can_write(const bench_session *s) {
  const char *const files[] = {s->options->csv, s->options->json, s->options->samples};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++)
    if (files[i] && !bench_file_writable(files[i])) return false;
  return true;
}

/* ---- Files ---------------------------------------------------------------------------------------------------------- */

/* table.txt: the same as on stdout, every row, without colour. */
static void write_table(void *context, FILE *file) {
  const bench_session *s = context;
  bench_table table = s->table;
  table.file = file;
  table.colour = table.only_bad = false;
  bench_session_print_opening(s, file);
  for (int first = 0, next; first < s->rows.count; first = next) {
    for (next = first + 1; next < s->rows.count; next++)
      if (strcmp(s->rows.item[next].case_id, s->rows.item[first].case_id)) break;
    bench_table_case(&table, s->rows.item + first, next - first);
  }
  bench_session_print_structure(s, file);
  bench_table_summary(&table, &s->rows);
}

static void write_environment(void *context, FILE *file) { bench_environment_write_json(context, file); }

static bool write_folder(bench_session *s, const bench_report *report) {
  char csv[BENCH_PATH_BYTES], samples[BENCH_PATH_BYTES], json[BENCH_PATH_BYTES], environment[BENCH_PATH_BYTES],
      table[BENCH_PATH_BYTES];
  bench_session_path(s, "results.csv", csv);
  bench_session_path(s, "samples.csv", samples);
  bench_session_path(s, "results.json", json);
  bench_session_path(s, "env.json", environment);
  bench_session_path(s, "table.txt", table);
  return bench_write_csv(csv, report) && bench_write_samples(samples, report) && bench_write_json(json, report) &&
         bench_file_write(environment, write_environment, &s->environment) && bench_file_write(table, write_table, s) &&
         s->steps->write(s);
}

void bench_session_write(bench_session *s) {
  const bench_options *o = s->options;
  const bench_report report = {
      .rows = &s->rows, .run_id = s->run_id, .executable = "attnbench", .date = s->date, .environment = &s->environment};
  if (o->csv && !bench_write_csv(o->csv, &report)) s->io_failed = true;
  if (o->json && !bench_write_json(o->json, &report)) s->io_failed = true;
  if (o->samples && !bench_write_samples(o->samples, &report)) s->io_failed = true;
  if (o->folder && !write_folder(s, &report)) s->io_failed = true;
  if (s->io_failed) return;
  const char *files[] = {o->csv, o->json, o->samples, o->folder};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++)
    if (files[i]) fprintf(stderr, "written: %s\n", files[i]);
}
