/* SPDX-License-Identifier: MIT */
/* What a session prints around its table, and the files it leaves. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "commands/session.h"
#include "report/writers.h"

void bench_session_print_opening(const bench_session *s, FILE *file) {
  static const char *const changing[] = {"ATTN_KERNEL",     "ATTN_MAX_ISA",  "ATTN_VERBOSE", "ATTN_TUNING",
                                         "OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES"}; /* results */
  fprintf(file, "attnbench %s on %s; this CPU runs: %s\n", attn_version(), bench_environment_get(&s->environment, "cpu"),
          attn_cpu_tiers());
  s->steps->print_extent(s, file);
  fprintf(file, ", seed %" PRId64 "\n", s->options->seed);
  if (s->settings.timed) fprintf(file, "binding: %s\n", bench_environment_get(&s->environment, "binding"));
  for (size_t i = 0; i < sizeof changing / sizeof *changing; i++)
    if (getenv(changing[i])) fprintf(file, "in force: %s=%s\n", changing[i], getenv(changing[i]));
  fputc('\n', file);
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

static void write_environment(void *context, FILE *file) {
  bench_environment_write_json(&((const bench_session *)context)->environment, file);
}

static bool write_folder(bench_session *s, const bench_report *report) {
  const struct {
    const char *name;
    bench_write_fn write;
    void *context;
  } files[] = {{"results.csv", bench_write_csv, (void *)report},
               {"samples.csv", bench_write_samples, (void *)report},
               {"results.json", bench_write_json, (void *)report},
               {"env.json", write_environment, s},
               {"table.txt", write_table, s}};
  char path[BENCH_PATH_BYTES];
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    bench_session_path(s, files[i].name, path);
    if (!bench_file_write(path, files[i].write, files[i].context)) return false;
  }
  return !s->steps->write || s->steps->write(s);
}

void bench_session_write(bench_session *s) {
  const bench_options *o = s->options;
  const bench_report report = {
      .rows = &s->rows, .run_id = s->run_id, .executable = "attnbench", .date = s->date, .environment = &s->environment};
  const struct {
    const char *path;
    bench_write_fn write;
  } files[] = {{o->csv, bench_write_csv}, {o->json, bench_write_json}, {o->samples, bench_write_samples}};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++)
    if (files[i].path && !bench_file_write(files[i].path, files[i].write, (void *)&report)) s->io_failed = true;
  if (o->folder && !write_folder(s, &report)) s->io_failed = true;
  if (s->io_failed) return;
  for (size_t i = 0; i < sizeof files / sizeof *files; i++)
    if (files[i].path) fprintf(stderr, "written: %s\n", files[i].path);
  if (o->folder) fprintf(stderr, "written: %s\n", o->folder);
}
