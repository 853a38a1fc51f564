/* SPDX-License-Identifier: MIT */
/* The end of the table: what each kernel did, why rows were skipped, the measured peaks, how noisy the machine was. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/select.h"
#include "report/table.h"

int bench_count_status(const bench_rows *rows, bench_status status) {
  int count = 0;
  for (int i = 0; i < rows->count; i++) count += rows->item[i].verdict.status == status;
  return count;
}

/* Whether two rows belong together. */
typedef bool same_fn(const bench_row *a, const bench_row *b);

/* True if no earlier row belongs together with row `index`. */
static bool is_first(const bench_rows *rows, int index, same_fn *same) {
  for (int i = 0; i < index; i++)
    if (same(&rows->item[i], &rows->item[index])) return false;
  return true;
}

/* ---- Kernels -------------------------------------------------------------------------------------------------------- */

static bool same_kernel(const bench_row *a, const bench_row *b) { return !strcmp(a->kernel, b->kernel); }

/* Of the kernel of `like`: rows by status, and the largest share of the error limit that any row used up. */
static void print_kernel(const bench_table *t, const bench_rows *rows, const bench_row *like) {
  int count[BENCH_ERROR + 1] = {0};
  double worst = -1; /* no output was checked */
  for (int i = 0; i < rows->count; i++) {
    const bench_verdict *v = &rows->item[i].verdict;
    if (!same_kernel(&rows->item[i], like)) continue;
    count[v->status]++;
    if (v->status != BENCH_SKIP && v->status != BENCH_ERROR) worst = fmax(worst, v->max_err_ratio);
  }
  fprintf(t->file, "%-18s %7d %7d %7d %10d %7d", like->kernel, count[BENCH_PASS], count[BENCH_FAIL], count[BENCH_ERROR],
          count[BENCH_DEGENERATE], count[BENCH_SKIP]);
  if (worst >= 0) fprintf(t->file, "  %13.3g", worst);
  fputc('\n', t->file);
}

/* ---- Reasons of skips ----------------------------------------------------------------------------------------------- */

static bool same_skip(const bench_row *a, const bench_row *b) {
  return a->verdict.status == BENCH_SKIP && b->verdict.status == BENCH_SKIP && !strcmp(a->verdict.reason, b->verdict.reason);
}

/* Appends ", NAME" unless the list holds the name already. */
static void add_name(char *list, size_t bytes, const char *name) {
  const size_t length = strlen(name);
  for (const char *at = list; (at = strstr(at, name)); at += length)
    if ((at == list || at[-1] == ' ') && (at[length] == ',' || !at[length])) return;
  const size_t used = strlen(list);
  snprintf(list + used, bytes - used, "%s%s", used ? ", " : "", name);
}

/* Every distinct reason of a skip, with how many rows it skipped and of which kernels. */
static void print_reasons(const bench_table *t, const bench_rows *rows) {
  const char *title = "\nskipped:\n";
  for (int first = 0; first < rows->count; first++) {
    char text[2048], kernels[1024] = "";
    const bench_row *row = &rows->item[first];
    int count = 0;
    if (row->verdict.status != BENCH_SKIP || !is_first(rows, first, same_skip)) continue;
    for (int i = first; i < rows->count; i++) {
      if (!same_skip(&rows->item[i], row)) continue;
      add_name(kernels, sizeof kernels, rows->item[i].kernel);
      count++;
    }
    snprintf(text, sizeof text, "%s (%s)", row->verdict.reason, kernels);
    const int column = fprintf(t->file, "%s%7d  ", title, count) - (int)strlen(title);
    bench_print_wrapped(t->file, text, column);
    title = "";
  }
}

/* ---- Peaks and noise ------------------------------------------------------------------------------------------------ */

/* Rows with the same peak loop on the same number of threads. */
static bool same_peak(const bench_row *a, const bench_row *b) {
  return a->peak_gflops > 0 && b->peak_gflops > 0 && !strcmp(a->library, b->library) && !strcmp(a->isa, b->isa) &&
         !strcmp(a->dtype_kv, b->dtype_kv) && a->threads == b->threads;
}

/* The median over the cases of each tier's measured peak, per thread count. `values` has room for one per row. */
static void print_peaks(const bench_table *t, const bench_rows *rows, double *values) {
  const char *separator = "measured peak, GFLOP/s (threads): ";
  for (int i = 0; i < rows->count; i++) {
    const bench_row *r = &rows->item[i];
    int count = 0;
    if (!(r->peak_gflops > 0) || !is_first(rows, i, same_peak)) continue;
    for (int k = i; k < rows->count; k++)
      if (same_peak(&rows->item[k], r)) values[count++] = rows->item[k].peak_gflops;
    fprintf(t->file, "%s%s %s %.1f (%d)", separator, r->library[0] ? r->library : r->isa, r->dtype_kv,
            bench_median(values, count), (int)r->threads);
    separator = ", ";
  }
  if (separator[0] == ',') fputc('\n', t->file);
}

static bool same_timed_case(const bench_row *a, const bench_row *b) {
  return a->time.n && b->time.n && !strcmp(a->case_id, b->case_id);
}

/* The noise floor: how far a kernel differs from itself. Smaller differences between kernels mean nothing. */
static void print_noise(const bench_table *t, const bench_rows *rows, double *values) {
  double worst = 0;
  int count = 0;
  for (int i = 0; i < rows->count; i++) {
    const bench_row *r = &rows->item[i];
    if (!r->time.n || r->noise < 0 || !is_first(rows, i, same_timed_case)) continue;
    worst = fmax(worst, r->noise);
    values[count++] = r->noise;
  }
  if (count)
    fprintf(t->file,
            "noise floor: the quickest kernel timed against itself differs by %.2f %% (median over %d case%s), %.2f %% at "
            "worst\n",
            100 * bench_median(values, count), count, count == 1 ? "" : "s", 100 * worst);
}

void bench_table_summary(const bench_table *t, const bench_rows *rows) {
  double *values = rows->count ? malloc((size_t)rows->count * sizeof *values) : NULL;
  if (!rows->count) return;
  fprintf(t->file, "%-18s %7s %7s %7s %10s %7s  %s\n", "kernel", "PASS", "FAIL", "ERROR", "DEGENERATE", "SKIP",
          "worst err/lim");
  for (int i = 0; i < rows->count; i++)
    if (is_first(rows, i, same_kernel)) print_kernel(t, rows, &rows->item[i]);
  if (t->only_bad) print_reasons(t, rows);
  fputc('\n', t->file);
  if (values) print_peaks(t, rows, values);
  if (values) print_noise(t, rows, values);
  if (!values) fprintf(t->file, "out of memory for the peaks and the noise floor\n");
  fprintf(t->file, "%d row%s: %d PASS, %d FAIL, %d ERROR, %d DEGENERATE, %d SKIP\n", rows->count,
          rows->count == 1 ? "" : "s", bench_count_status(rows, BENCH_PASS), bench_count_status(rows, BENCH_FAIL),
          bench_count_status(rows, BENCH_ERROR), bench_count_status(rows, BENCH_DEGENERATE),
          bench_count_status(rows, BENCH_SKIP));
  free(values);
}
