/* SPDX-License-Identifier: MIT */
/* Which rows of A and B belong together. */
#include <stdlib.h>
#include <string.h>

#include "cases/case.h"
#include "compare/compare.h"

/* The case without its threads, where those may differ. */
static void name_case(const bench_row *row, bool across, char *name) {
  const char *at = row->case_id;
  name[0] = 0;
  if (!across) {
    snprintf(name, BENCH_NAME, "%s", row->case_id);
    return;
  }
  for (bench_id_part part; bench_id_next(&at, &part);)
    if (strcmp(part.name, "threads")) {
      const size_t used = strlen(name);
      snprintf(name + used, BENCH_NAME - used, "%s:%s/", part.name, part.value);
    }
}

static bool is_same(const bench_row *x, const bench_row *y, bool across) {
  char name[BENCH_NAME], other[BENCH_NAME];
  if (strcmp(x->kernel, y->kernel)) return false;
  if (!across) return !strcmp(x->case_id, y->case_id);
  name_case(x, across, name);
  name_case(y, across, other);
  return !strcmp(name, other);
}

/* The row of the same case and kernel; with `across` only if it is the only one, or has the same threads. */
static const bench_row *find(const bench_rows *rows, const bench_row *like, bool across) {
  const bench_row *found = NULL;
  int count = 0;
  for (const bench_row *row = rows->item; row < rows->item + rows->count; row++)
    if (is_same(row, like, false)) return row;
  for (const bench_row *row = rows->item; across && row < rows->item + rows->count; row++)
    if (is_same(row, like, true)) found = row, count++;
  return count == 1 ? found : NULL;
}

/* The rows of all runs of a side. False if one has no time. */
static bool gather(const bench_side *side, const bench_row *like, bool across, const bench_row **rows) {
  for (int i = 0; i < side->count; i++) {
    rows[i] = find(&side->run[i]->rows, like, across);
    if (!rows[i] || !rows[i]->time.n) return false;
  }
  return true;
}

static bool add_comparison(bench_comparisons *table, const bench_row *const *a, int runs_a, const bench_row *const *b,
                           int runs_b) {
  bench_comparison *grown = bench_grown(table->item, table->count, sizeof *table->item);
  if (!grown) return false;
  table->item = grown;
  bench_comparison_measure(&table->item[table->count++], a, runs_a, b, runs_b);
  return true;
}

static bool add_unpaired(bench_matches *m, const bench_row *a, const bench_row *b) {
  const bool timed = (a && a->time.n) || (b && b->time.n);
  if (!timed) return true; /* skipped on both sides */
  bench_unpaired *grown = bench_grown(m->unpaired, m->unpaired_count, sizeof *m->unpaired);
  if (!grown) return false;
  m->unpaired = grown;
  m->unpaired[m->unpaired_count++] = (bench_unpaired){a, b};
  return true;
}

static bool match_row(const bench_side *a, const bench_side *b, bool across, const bench_row *row, bench_matches *m) {
  const bench_row *rows_a[BENCH_MOST_RUNS], *rows_b[BENCH_MOST_RUNS];
  if (gather(a, row, false, rows_a) && gather(b, row, across, rows_b))
    return add_comparison(&m->table, rows_a, a->count, rows_b, b->count);
  return add_unpaired(m, row, find(&b->run[0]->rows, row, across));
}

static int compare_items(const void *x, const void *y) {
  const bench_comparison *s = x, *t = y;
  if (s->verdict != t->verdict) return s->verdict < t->verdict ? -1 : 1;
  return s->log_ratio < t->log_ratio ? -1 : s->log_ratio > t->log_ratio;
}

bool bench_match(const bench_side *a, const bench_side *b, double margin, bool across, bench_matches *m) {
  const bench_rows *rows_a = &a->run[0]->rows, *rows_b = &b->run[0]->rows;
  const bool several = a->count > 1 && b->count > 1;
  *m = (bench_matches){.table = {.design = several ? BENCH_SEVERAL_RUNS : BENCH_ONE_RUN, .margin = margin}};
  for (int i = 0; i < rows_a->count; i++)
    if (!match_row(a, b, across, &rows_a->item[i], m)) return false;
  for (int i = 0; i < rows_b->count; i++)
    if (!find(rows_a, &rows_b->item[i], across) && !add_unpaired(m, NULL, &rows_b->item[i])) return false;
  if (!bench_comparisons_judge(&m->table)) return false;
  if (m->table.count) qsort(m->table.item, (size_t)m->table.count, sizeof *m->table.item, compare_items);
  return true;
}

void bench_matches_clear(bench_matches *m) {
  free(m->table.item);
  free(m->unpaired);
  *m = (bench_matches){.unpaired = NULL};
}
