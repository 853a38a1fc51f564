/* SPDX-License-Identifier: MIT */
/* A comparison as text, Markdown, CSV and JSON: lines worst first, a mean, what could not be compared, a pivot table. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "cases/case.h"
#include "compare/compare.h"

enum { CELL = 64, MOST_VALUES = 64 };

/* ---- Names of cases ------------------------------------------------------------------------------------------------- */

/* Whether all rows have this part of the case id. */
static bool is_common(const bench_comparisons *t, const bench_id_part *part) {
  for (int i = 0; i < t->count; i++) {
    const char *at = t->item[i].a->case_id;
    bool has = false;
    for (bench_id_part own; !has && bench_id_next(&at, &own);)
      has = !strcmp(own.name, part->name) && !strcmp(own.value, part->value);
    if (!has) return false;
  }
  return true;
}

/* The parts of a case id that all rows have, or those that they don't. */
static void name_parts(const bench_comparisons *t, const char *case_id, bool common, char name[BENCH_NAME]) {
  name[0] = 0;
  for (bench_id_part part; bench_id_next(&case_id, &part);)
    if (is_common(t, &part) == common) bench_append(name, BENCH_NAME, "%s%s:%s", *name ? "/" : "", part.name, part.value);
  if (!*name) snprintf(name, BENCH_NAME, "%s", "-");
}

/* ---- Counts --------------------------------------------------------------------------------------------------------- */

static int count_verdict(const bench_comparisons *t, bench_change verdict) {
  int count = 0;
  for (int i = 0; i < t->count; i++) count += t->item[i].verdict == verdict;
  return count;
}

static void name_counts(const bench_comparisons *t, char *text, size_t bytes) {
  text[0] = 0;
  for (int v = 0; bench_change_names[v]; v++)
    bench_append(text, bytes, "%s%d %s", v ? ", " : "", count_verdict(t, (bench_change)v), bench_change_names[v]);
}

static void format_ratio(const bench_comparison *c, char text[CELL]) {
  snprintf(text, CELL, "%.4f", c->ratio);
  if (isnan(c->ratio)) snprintf(text, CELL, "out of memory"); /* for a mean */
  if (!isnan(c->ci_lo)) bench_append(text, CELL, " [%.4f, %.4f]", c->ci_lo, c->ci_hi);
}

/* Whether it is A that lacks the row, or has no time for it. */
static bool lacks_a(const bench_unpaired *u) {
  if (!u->a || !u->b) return !u->a;
  return !u->a->time.n && (u->b->time.n || u->a->verdict.status != BENCH_PASS);
}

/* Why a row cannot be compared. */
static void name_absence(const bench_unpaired *u, char *text, size_t bytes) {
  const bench_row *missing = lacks_a(u) ? u->a : u->b;
  const char *side = lacks_a(u) ? "A" : "B";
  if (!missing)
    snprintf(text, bytes, "not in %s", side);
  else if (missing->time.n)
    snprintf(text, bytes, "not in every run");
  else
    snprintf(text, bytes, "%s in %s: %.200s", bench_status_name(missing->verdict.status), side,
             missing->verdict.reason[0] ? missing->verdict.reason
             : missing->warnings[0]     ? missing->warnings
                                        : "no time");
}

/* ---- Pivot table ---------------------------------------------------------------------------------------------------- */

const char *bench_pivot_column(const char *name) {
  static const char *const aliases[][2] = {
      {"seq", "seq_q"}, {"head_dim", "dim_qk"}, {"heads", "heads_q"}, {"dtype", "dtype_kv"}, {"tier", "isa"}};
  for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
    if (!strcmp(name, aliases[i][0])) return aliases[i][1];
  for (bench_column c = COLUMN_kernel; c < COLUMN_status; c++)
    if (!strcmp(name, bench_column_name(c))) return bench_column_name(c);
  return strcmp(name, "layer") ? NULL : "layer";
}

typedef struct pivot_axis {
  bench_column column;
  int count;
  char value[MOST_VALUES][BENCH_CELL];
} pivot_axis;

/* The place of the row's value, which is added if it is new; -1 without an axis, or beyond MOST_VALUES. */
static int place_on(pivot_axis *axis, const char *column, const bench_row *row) {
  char text[BENCH_CELL];
  if (!column) return 0;
  for (axis->column = 0; strcmp(bench_column_name(axis->column), column);) axis->column++;
  const char *value = bench_cell(row, axis->column, text);
  for (int i = 0; i < axis->count; i++)
    if (!strcmp(axis->value[i], value)) return i;
  if (axis->count == MOST_VALUES) return -1;
  snprintf(axis->value[axis->count], BENCH_CELL, "%s", value);
  return axis->count++;
}

static int by_number(const void *a, const void *b) {
  const double x = strtod(a, NULL), y = strtod(b, NULL);
  return (x > y) - (x < y);
}

/* Numbers rise; words stay in the order of the rows, worst first. */
static void sort_numbers(pivot_axis *axis) {
  for (int i = 0; i < axis->count; i++) {
    char *end;
    (void)strtod(axis->value[i], &end);
    if (*end || end == axis->value[i]) return;
  }
  qsort(axis->value, (size_t)axis->count, sizeof *axis->value, by_number);
}

typedef struct pivot {
  const bench_comparison_report *report;
  pivot_axis axis[2];
  const bench_comparison **member; /* room for all */
} pivot;

/* The mean of the cell; false if it is empty. */
static bool find_cell(pivot *p, int row, int column, bench_comparison *mean) {
  const bench_comparisons *t = &p->report->matches->table;
  int count = 0;
  for (int i = 0; i < t->count; i++) {
    const bench_row *a = t->item[i].a;
    if (place_on(&p->axis[0], p->report->by[0], a) == row && place_on(&p->axis[1], p->report->by[1], a) == column)
      p->member[count++] = &t->item[i];
  }
  if (count) *mean = bench_comparisons_mean(t, p->member, count);
  return count > 0;
}

static void print_pivot_row(pivot *p, FILE *file, int row, const char *separator) {
  const int columns = p->report->by[1] ? p->axis[1].count : 1;
  fprintf(file, "%s%-16s", separator, p->axis[0].value[row]);
  for (int column = 0; column < columns; column++) {
    bench_comparison mean;
    char text[CELL] = "", cell[2 * CELL];
    if (find_cell(p, row, column, &mean)) format_ratio(&mean, text);
    snprintf(cell, sizeof cell, "%s%s", text,
             !*text                         ? ""
             : mean.verdict == BENCH_SLOWER ? " -"
             : mean.verdict == BENCH_FASTER ? " +"
                                            : "");
    fprintf(file, " %s %-26s", separator, cell);
  }
  fprintf(file, "%s\n", separator);
}

static void print_pivot_head(const pivot *p, FILE *file, const char *separator) {
  const int columns = p->report->by[1] ? p->axis[1].count : 1;
  fprintf(file, "%s%-16s", separator, p->report->by[0]);
  for (int i = 0; i < columns; i++) {
    char text[CELL] = "ratio [95 %]";
    if (p->report->by[1]) snprintf(text, sizeof text, "%s %.30s", p->report->by[1], p->axis[1].value[i]);
    fprintf(file, " %s %-26s", separator, text);
  }
  fprintf(file, "%s\n", separator);
  for (int i = 0; *separator && i <= columns; i++) fprintf(file, "|---%s", i == columns ? "|\n" : "");
}

/* Geometric means of the rows with the same values. + and - stand for means that are FASTER and SLOWER. */
static void print_pivot(const bench_comparison_report *r, FILE *file, const char *separator) {
  const bench_comparisons *t = &r->matches->table;
  pivot *p = calloc(1, sizeof *p);
  if (p) p->member = calloc((size_t)t->count + 1, sizeof *p->member);
  if (p && p->member && r->by[0] && t->count) {
    p->report = r;
    for (int i = 0; i < t->count; i++)
      for (int a = 0; a < 2; a++) (void)place_on(&p->axis[a], r->by[a], t->item[i].a);
    for (int a = 0; a < 2; a++) sort_numbers(&p->axis[a]);
    fputc('\n', file);
    print_pivot_head(p, file, separator);
    for (int row = 0; row < p->axis[0].count; row++) print_pivot_row(p, file, row, separator);
  }
  if (p) free((void *)p->member);
  free(p);
}

/* ---- Text ----------------------------------------------------------------------------------------------------------- */

static void paint(const bench_comparison_report *r, FILE *file, bench_change verdict, bool begins) {
  static const char *const codes[] = {
      [BENCH_SLOWER] = "\033[31m", [BENCH_INCONCLUSIVE] = "\033[2m", [BENCH_FASTER] = "\033[32m"};
  if (r->colour && codes[verdict]) fputs(begins ? codes[verdict] : "\033[0m", file);
}

static void print_line(const bench_comparison_report *r, FILE *file, const bench_comparison *c) {
  char ratio[CELL], time_a[24], time_b[24], name[BENCH_NAME];
  format_ratio(c, ratio);
  bench_format_time(c->a->time.median, time_a, sizeof time_a);
  bench_format_time(c->b->time.median, time_b, sizeof time_b);
  name_parts(&r->matches->table, c->a->case_id, false, name);
  paint(r, file, c->verdict, true);
  fprintf(file, "%-12s %-25s %10s %10s  %-16s %s  (%s)", bench_change_names[c->verdict], ratio, time_a, time_b, c->a->kernel,
          name, c->reason);
  paint(r, file, c->verdict, false);
  fputc('\n', file);
}

static void print_absences(const bench_matches *m, FILE *file, const char *before) {
  for (int i = 0; i < m->unpaired_count; i++) {
    const bench_unpaired *u = &m->unpaired[i];
    const bench_row *row = u->a ? u->a : u->b;
    char why[300];
    name_absence(u, why, sizeof why);
    fprintf(file, "%s%s %s (%s)\n", before, row->kernel, row->case_id, why);
  }
}

static void print_mean(const bench_comparisons *t, FILE *file) {
  char ratio[CELL], counts[120];
  format_ratio(&t->mean, ratio);
  name_counts(t, counts, sizeof counts);
  fprintf(file, "geometric mean of %d: %s, %s (%s)\n%s\n", t->count, ratio, bench_change_names[t->mean.verdict],
          t->mean.reason, counts);
}

void bench_comparison_print(void *report, FILE *file) {
  const bench_comparison_report *r = report;
  const bench_comparisons *t = &r->matches->table;
  char common[BENCH_NAME];
  fprintf(file, "A: %s%s\nB: %s%s\nratio: time of A / time of B; above 1, B is faster\n", r->name_a, r->about_a, r->name_b,
          r->about_b);
  if (t->count) {
    name_parts(t, t->item[0].a->case_id, true, common);
    fprintf(file, "all cases: %s\n\n%-12s %-25s %10s %10s  %-16s %s\n", common, "verdict", "ratio [95 %]", "time of A",
            "time of B", "kernel", "case  (reason)");
    for (int i = 0; i < t->count; i++) print_line(r, file, &t->item[i]);
    fputc('\n', file);
    print_mean(t, file);
  }
  if (r->matches->unpaired_count) fprintf(file, "\nnot compared: %d\n", r->matches->unpaired_count);
  print_absences(r->matches, file, "  ");
  print_pivot(r, file, "");
}

/* ---- Markdown ------------------------------------------------------------------------------------------------------- */

void bench_comparison_write_markdown(void *report, FILE *file) {
  const bench_comparison_report *r = report;
  const bench_comparisons *t = &r->matches->table;
  fprintf(file, "A: `%s`, B: `%s`; ratio: time of A / time of B, above 1 B is faster\n\n", r->name_a, r->name_b);
  fputs("| verdict | ratio [95 %] | kernel | case | reason |\n|---|---|---|---|---|\n", file);
  for (int i = 0; i < t->count; i++) {
    const bench_comparison *c = &t->item[i];
    char ratio[CELL];
    format_ratio(c, ratio);
    fprintf(file, "| %s | %s | `%s` | `%s` | %s |\n", bench_change_names[c->verdict], ratio, c->a->kernel, c->a->case_id,
            c->reason);
  }
  if (t->count) {
    fputc('\n', file);
    print_mean(t, file);
  }
  if (r->matches->unpaired_count) fputs("\nNot compared:\n\n", file);
  print_absences(r->matches, file, "- ");
  print_pivot(r, file, "| ");
}

/* ---- CSV and JSON --------------------------------------------------------------------------------------------------- */

typedef struct number {
  const char *name;
  double value;
} number;

enum { NUMBERS = 7 };

static void list_numbers(const bench_comparison *c, number numbers[NUMBERS]) {
  const number all[NUMBERS] = {{"ratio", c->ratio},
                               {"ratio_ci_lo", c->ci_lo},
                               {"ratio_ci_hi", c->ci_hi},
                               {"p", c->p},
                               {"time_ns_a", c->a ? c->a->time.median : NAN},
                               {"time_ns_b", c->b ? c->b->time.median : NAN},
                               {"rounds", c->a ? (double)c->rounds : (double)NAN}};
  memcpy(numbers, all, sizeof all);
}

static void write_csv_line(FILE *file, const bench_comparison *c) {
  number numbers[NUMBERS];
  list_numbers(c, numbers);
  fprintf(file, "%s,", bench_change_names[c->verdict]);
  bench_csv_field(file, c->a ? c->a->kernel : "geometric mean");
  fputc(',', file);
  bench_csv_field(file, c->a ? c->a->case_id : "");
  for (int i = 0; i < NUMBERS; i++) {
    char text[BENCH_NUMBER];
    bench_format_number(numbers[i].value, text);
    fprintf(file, ",%s", text);
  }
  fputc(',', file);
  bench_csv_field(file, c->reason);
  fputc('\n', file);
}

void bench_comparison_write_csv(void *report, FILE *file) {
  const bench_matches *m = ((const bench_comparison_report *)report)->matches;
  number numbers[NUMBERS];
  list_numbers(&m->table.mean, numbers);
  fputs("verdict,kernel,case_id", file);
  for (int i = 0; i < NUMBERS; i++) fprintf(file, ",%s", numbers[i].name);
  fputs(",reason\n", file);
  for (int i = 0; i < m->table.count; i++) write_csv_line(file, &m->table.item[i]);
  if (m->table.count) write_csv_line(file, &m->table.mean);
}

static void write_json_entry(FILE *file, const char *before, const bench_comparison *c) {
  number numbers[NUMBERS];
  list_numbers(c, numbers);
  bench_json_pair(file, before, "verdict", bench_change_names[c->verdict]);
  if (c->a) bench_json_pair(file, ", ", "kernel", c->a->kernel);
  if (c->a) bench_json_pair(file, ", ", "case_id", c->a->case_id);
  for (int i = 0; i < NUMBERS; i++) {
    char text[BENCH_NUMBER];
    bench_format_number(numbers[i].value, text);
    fprintf(file, ", \"%s\": %s", numbers[i].name, isfinite(numbers[i].value) ? text : "null");
  }
  bench_json_pair(file, ", ", "reason", c->reason);
  fputs("}", file);
}

void bench_comparison_write_json(void *report, FILE *file) {
  const bench_comparison_report *r = report;
  const bench_matches *m = r->matches;
  bench_json_pair(file, "{\n  ", "a", r->name_a);
  bench_json_pair(file, ",\n  ", "b", r->name_b);
  fputs(",\n  \"comparisons\": [", file);
  for (int i = 0; i < m->table.count; i++) write_json_entry(file, i ? ",\n    {" : "\n    {", &m->table.item[i]);
  fputs("\n  ],\n  \"not_compared\": [", file);
  for (int i = 0; i < m->unpaired_count; i++) {
    const bench_row *row = m->unpaired[i].a ? m->unpaired[i].a : m->unpaired[i].b;
    char why[300];
    name_absence(&m->unpaired[i], why, sizeof why);
    bench_json_pair(file, i ? ",\n    {" : "\n    {", "kernel", row->kernel);
    bench_json_pair(file, ", ", "case_id", row->case_id);
    bench_json_pair(file, ", ", "reason", why);
    fputs("}", file);
  }
  fputs("\n  ],\n  \"geometric_mean\": ", file);
  if (m->table.count)
    write_json_entry(file, "{", &m->table.mean);
  else
    fputs("null", file);
  fputs("\n}\n", file);
}

bool bench_comparison_write(bench_comparison_report *report, const char *markdown, const char *csv, const char *json) {
  const struct {
    const char *path;
    bench_write_fn write;
  } files[] = {
      {markdown, bench_comparison_write_markdown}, {csv, bench_comparison_write_csv}, {json, bench_comparison_write_json}};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++)
    if (files[i].path && !bench_file_write(files[i].path, files[i].write, report)) return false;
  return true;
}
