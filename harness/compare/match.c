/* SPDX-License-Identifier: MIT */
/* Which rows of A and B belong together. */
#include <stdlib.h>
#include <string.h>

#include "cases/case.h"
#include "compare/compare.h"

/* The case without its threads. */
static void name_case(const bench_row *row, char *name) {
  const char *at = row->case_id;
  name[0] = 0;
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
  name_case(x, name);
  name_case(y, other);
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

bool bench_matches_add(bench_matches *m, const bench_comparison *comparison) {
  bench_comparison *grown = bench_grown(m->table.item, m->table.count, sizeof *grown);
  if (!grown) return false;
  m->table.item = grown;
  m->table.item[m->table.count++] = *comparison;
  return true;
}

/* Whether a row has no time on either side for a reason that is no fault. */
static bool is_never_timed(const bench_row *row) {
  return !row || row->verdict.status == BENCH_SKIP || row->verdict.status == BENCH_DEGENERATE;
}

bool bench_matches_add_unpaired(bench_matches *m, const bench_row *a, const bench_row *b) {
  const bool skipped = is_never_timed(a) && is_never_timed(b);
  bench_unpaired *grown = skipped ? NULL : bench_grown(m->unpaired, m->unpaired_count, sizeof *grown);
  if (skipped || !grown) return skipped;
  m->unpaired = grown;
  m->unpaired[m->unpaired_count++] = (bench_unpaired){a, b};
  return true;
}

static bool match_row(const bench_side *a, const bench_side *b, bool across, const bench_row *row, bench_matches *m) {
  const bench_row *rows_a[BENCH_MOST_RUNS], *rows_b[BENCH_MOST_RUNS];
  bench_comparison c;
  if (gather(a, row, false, rows_a) && gather(b, row, across, rows_b)) {
    bench_comparison_measure(&c, rows_a, a->count, rows_b, b->count);
    return bench_matches_add(m, &c);
  }
  return bench_matches_add_unpaired(m, row, find(&b->run[0]->rows, row, across));
}

static int compare_items(const void *x, const void *y) {
  const bench_comparison *s = x, *t = y;
  if (s->verdict != t->verdict) return s->verdict < t->verdict ? -1 : 1;
  return s->log_ratio < t->log_ratio ? -1 : s->log_ratio > t->log_ratio;
}

bool bench_matches_decide(bench_matches *m) {
  if (!bench_comparisons_decide(&m->table)) return false;
  if (m->table.count) qsort(m->table.item, (size_t)m->table.count, sizeof *m->table.item, compare_items);
  return true;
}

bool bench_match(const bench_side *a, const bench_side *b, double margin, bool across, bench_matches *m) {
  const bench_rows *rows_a = &a->run[0]->rows, *rows_b = &b->run[0]->rows;
  const bool several = a->count > 1 && b->count > 1;
  *m = (bench_matches){.table = {.design = several ? BENCH_SEVERAL_RUNS : BENCH_ONE_RUN, .margin = margin}};
  for (int i = 0; i < rows_a->count; i++)
    if (!match_row(a, b, across, &rows_a->item[i], m)) return false;
  for (int i = 0; i < rows_b->count; i++)
    if (!find(rows_a, &rows_b->item[i], across) && !bench_matches_add_unpaired(m, NULL, &rows_b->item[i])) return false;
  return bench_matches_decide(m);
}

void bench_matches_clear(bench_matches *m) {
  free(m->table.item);
  free(m->unpaired);
  *m = (bench_matches){.unpaired = NULL};
}
