/* SPDX-License-Identifier: MIT */
/* The end of the table: what each kernel did, why rows were skipped, how noisy the machine was. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/select.h"
#include "report/table.h"

int bench_count_status(const bench_records *records, bench_status status) {
  int count = 0;
  for (int i = 0; i < records->count; i++) count += bench_record_is(&records->item[i], status);
  return count;
}

static bool same(const bench_record *a, const bench_record *b, bench_column column) {
  return !strcmp(bench_record_get(a, column), bench_record_get(b, column));
}

/* True if no earlier record has the same text there. */
static bool is_first(const bench_records *records, int index, bench_column column) {
  for (int i = 0; i < index; i++)
    if (same(&records->item[i], &records->item[index], column)) return false;
  return true;
}

static int count_of(const bench_records *records, const bench_record *like, bench_status status) {
  int count = 0;
  for (int i = 0; i < records->count; i++)
    count += same(&records->item[i], like, COLUMN_kernel) && bench_record_is(&records->item[i], status);
  return count;
}

/* The largest share of the error limit that the kernel used up in any row; < 0 if none was judged. */
static double worst_of(const bench_records *records, const bench_record *like) {
  double worst = -1;
  for (int i = 0; i < records->count; i++) {
    const bench_record *r = &records->item[i];
    if (same(r, like, COLUMN_kernel) && bench_record_get(r, COLUMN_max_err_ratio)[0])
      worst = fmax(worst, bench_record_number(r, COLUMN_max_err_ratio));
  }
  return worst;
}

static void print_kernels(const bench_table *t, const bench_records *records) {
  fprintf(t->file, "%-18s %7s %7s %7s %10s %7s  %s\n", "kernel", "PASS", "FAIL", "ERROR", "DEGENERATE", "SKIP",
          "worst err/lim");
  for (int i = 0; i < records->count; i++) {
    const bench_record *r = &records->item[i];
    if (!is_first(records, i, COLUMN_kernel)) continue;
    const double worst = worst_of(records, r);
    fprintf(t->file, "%-18s %7d %7d %7d %10d %7d", bench_record_get(r, COLUMN_kernel), count_of(records, r, BENCH_PASS),
            count_of(records, r, BENCH_FAIL), count_of(records, r, BENCH_ERROR), count_of(records, r, BENCH_DEGENERATE),
            count_of(records, r, BENCH_SKIP));
    if (worst >= 0) fprintf(t->file, "  %13.3g", worst);
    fputc('\n', t->file);
  }
}

/* Appends ", NAME" unless the list holds the name already. */
static void add_name(char *list, size_t bytes, const char *name) {
  const size_t length = strlen(name);
  for (const char *at = list; (at = strstr(at, name)); at += length)
    if ((at == list || at[-1] == ' ') && (at[length] == ',' || !at[length])) return;
  const size_t used = strlen(list);
  snprintf(list + used, bytes - used, "%s%s", used ? ", " : "", name);
}

/* The reason of record `index`, with how many rows it skipped and of which kernels. */
static void print_reason(const bench_table *t, const bench_records *records, int index) {
  char text[2048], kernels[1024] = "";
  int count = 0;
  for (int i = index; i < records->count; i++) {
    const bench_record *r = &records->item[i];
    if (!bench_record_is(r, BENCH_SKIP) || !same(r, &records->item[index], COLUMN_reason)) continue;
    add_name(kernels, sizeof kernels, bench_record_get(r, COLUMN_kernel));
    count++;
  }
  snprintf(text, sizeof text, "%s (%s)", bench_record_get(&records->item[index], COLUMN_reason), kernels);
  const int column = fprintf(t->file, "%7d  ", count);
  bench_print_wrapped(t->file, text, column);
}

/* Every distinct reason of a skip. */
static void print_reasons(const bench_table *t, const bench_records *records) {
  const char *title = "\nskipped:\n";
  for (int i = 0; i < records->count; i++) {
    if (!bench_record_is(&records->item[i], BENCH_SKIP) || !is_first(records, i, COLUMN_reason)) continue;
    fputs(title, t->file);
    title = "";
    print_reason(t, records, i);
  }
}

static int compare_doubles(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* A kernel against itself in every case: differences below this mean nothing. */
static void print_noise(const bench_table *t, const bench_records *records) {
  double *noise = malloc(((size_t)records->count + 1) * sizeof *noise);
  int count = 0;
  if (!noise) return;
  for (int i = 0; i < records->count; i++)
    if (records->item[i].sample_count && records->item[i].noise >= 0 &&
        (!count || !same(&records->item[i], &records->item[i - 1], COLUMN_case_id)))
      noise[count++] = records->item[i].noise;
  qsort(noise, (size_t)count, sizeof *noise, compare_doubles);
  if (count)
    fprintf(t->file,
            "noise floor: the quickest kernel timed against itself differs by %.2f %% (median over %d case%s), %.2f %% at "
            "worst\n",
            100 * noise[count / 2], count, count == 1 ? "" : "s", 100 * noise[count - 1]);
  free(noise);
}

/* The median over the cases of each tier's measured peak, per thread count. */
static void print_peaks(const bench_table *t, const bench_records *records) {
  double *peaks = malloc(((size_t)records->count + 1) * sizeof *peaks);
  const char *separator = "measured peak, GFLOP/s (threads): ";
  if (!peaks) return;
  for (int i = 0; i < records->count; i++) {
    const bench_record *first = &records->item[i];
    int count = 0;
    bool repeated = !bench_record_get(first, COLUMN_peak_gflops)[0];
    for (int k = 0; k < records->count && !repeated; k++) {
      const bench_record *r = &records->item[k];
      if (!same(r, first, COLUMN_library) || !same(r, first, COLUMN_isa) || !same(r, first, COLUMN_dtype_kv) ||
          !same(r, first, COLUMN_threads))
        continue;
      if (!bench_record_get(r, COLUMN_peak_gflops)[0]) continue;
      repeated = k < i;
      peaks[count++] = bench_record_number(r, COLUMN_peak_gflops);
    }
    if (repeated) continue;
    qsort(peaks, (size_t)count, sizeof *peaks, compare_doubles);
    const char *library = bench_record_get(first, COLUMN_library);
    fprintf(t->file, "%s%s %s %.1f (%s)", separator, library[0] ? library : bench_record_get(first, COLUMN_isa),
            bench_record_get(first, COLUMN_dtype_kv), peaks[count / 2], bench_record_get(first, COLUMN_threads));
    separator = ", ";
  }
  if (separator[0] == ',') fputc('\n', t->file);
  free(peaks);
}

void bench_table_summary(const bench_table *table, const bench_records *records) {
  if (!records->count) return;
  print_kernels(table, records);
  if (table->only_bad) print_reasons(table, records);
  fputc('\n', table->file);
  print_peaks(table, records);
  print_noise(table, records);
  fprintf(table->file, "%d row%s: %d PASS, %d FAIL, %d ERROR, %d DEGENERATE, %d SKIP\n", records->count,
          records->count == 1 ? "" : "s", bench_count_status(records, BENCH_PASS), bench_count_status(records, BENCH_FAIL),
          bench_count_status(records, BENCH_ERROR), bench_count_status(records, BENCH_DEGENERATE),
          bench_count_status(records, BENCH_SKIP));
}
