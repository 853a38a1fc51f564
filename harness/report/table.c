/* SPDX-License-Identifier: MIT */
/* Prints the rows of one case as a block of the table. */
#include "report/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cli.h"
#include "base/select.h"
#include "cases/case.h"

enum { WIDTH = 118, NAME_WIDTH = 16, BELOW = NAME_WIDTH + 3, HEADLINE = BENCH_NAME + 64 };

typedef enum paint { PLAIN, BOLD, DIM, RED } paint;

bool bench_wants_colour(FILE *file) {
  const char *refused = getenv("NO_COLOR"), *terminal = getenv("TERM");
  return !(refused && refused[0]) && isatty(fileno(file)) && terminal && strcmp(terminal, "dumb");
}

static void start(const bench_table *t, paint how) {
  static const char *const codes[] = {[PLAIN] = "", [BOLD] = "\033[1m", [DIM] = "\033[2m", [RED] = "\033[31m"};
  if (t->colour) fputs(codes[how], t->file);
}

static void stop(const bench_table *t, paint how) {
  if (t->colour && how != PLAIN) fputs("\033[0m", t->file);
}

void bench_print_wrapped(FILE *file, const char *text, int indent) { cli_print_wrapped(file, text, indent, indent, WIDTH); }

void bench_format_time(double ns, char *text, size_t bytes) {
  static const struct {
    double ns;
    const char *unit;
  } units[] = {{1e9, "s "}, {1e6, "ms"}, {1e3, "us"}, {1, "ns"}};
  for (size_t i = 0; i < sizeof units / sizeof *units; i++)
    if (ns >= units[i].ns || i + 1 == sizeof units / sizeof *units) {
      const double value = ns / units[i].ns;
      snprintf(text, bytes, "%.*f %s", value < 10 ? 3 : value < 100 ? 2 : 1, value, units[i].unit);
      return;
    }
}

/* ---- A case's headline ---------------------------------------------------------------------------------------------- */

static void append_pair(char *text, const char *name, const char *a, const char *b, const char *separator) {
  const bool differ = strcmp(a, b);
  if (a[0]) bench_append(text, HEADLINE, "  %s %s%s%s", name, a, differ ? separator : "", differ ? b : "");
}

/* "  batch 1  heads 8/2  seq 512  head_dim 64  causal none  threads 1" */
static void append_head(char *text, const bench_row *r) {
  static const struct {
    const char *name;
    bench_column a, b;
    const char *separator;
  } pairs[] = {{"batch", COLUMN_batch, COLUMN_batch, ""},    {"heads", COLUMN_heads_q, COLUMN_heads_kv, "/"},
               {"seq", COLUMN_seq_q, COLUMN_seq_k, "x"},     {"head_dim", COLUMN_dim_qk, COLUMN_dim_v, "/"},
               {"causal", COLUMN_causal, COLUMN_causal, ""}, {"threads", COLUMN_threads, COLUMN_threads, ""}};
  char first[BENCH_CELL], second[BENCH_CELL];
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
    append_pair(text, pairs[i].name, bench_cell(r, pairs[i].a, first), bench_cell(r, pairs[i].b, second),
                pairs[i].separator);
}

/* "f32  batch 1  ...  threads 1  lse on": the dtype, the head, and every other part of the case id behind it. */
static void print_headline(const bench_table *t, const bench_row *r) {
  char text[HEADLINE] = "";
  const char *at = r->case_id;
  bool behind = false;
  for (bench_id_part part; bench_id_next(&at, &part);) {
    if (!strcmp(part.name, "dtype")) snprintf(text, sizeof text, "%s", part.value);
    if (behind) append_pair(text, part.name, part.value, part.value, "");
    if (strcmp(part.name, "threads")) continue;
    append_head(text, r);
    behind = true;
  }
  cli_print_wrapped(t->file, text, 0, 4, WIDTH);
}

/* ---- Rows ------------------------------------------------------------------------------------------------------------ */

/* "" where there is no such number. */
static const char *format_fixed(double value, int digits, char text[24]) {
  snprintf(text, 24, "%.*f", digits, value);
  return isnan(value) ? "" : text;
}

/* For numbers that may be huge: the errors of failures. */
static const char *format_general(double value, char text[24]) {
  snprintf(text, 24, "%.3g", value);
  return isnan(value) ? "" : text;
}

/* The larger half of the interval, as a share of the median; "" where there is no interval. */
static void format_spread(const bench_summary *time, char *text, size_t bytes) {
  const double half = fmax(time->ci_hi - time->median, time->median - time->ci_lo);
  snprintf(text, bytes, "%.1f %%", 100 * half / time->median);
  if (isnan(half)) text[0] = 0;
}

static void format_ratio(const bench_summary *ratio, char *text, size_t bytes) {
  const int digits = ratio->median < 10 ? 2 : ratio->median < 100 ? 1 : 0;
  text[0] = 0;
  if (!(ratio->median > 0)) return;
  if (isnan(ratio->ci_lo))
    snprintf(text, bytes, "%.*f", digits, ratio->median);
  else
    snprintf(text, bytes, "%.*f [%.*f, %.*f]", digits, ratio->median, digits, ratio->ci_lo, digits, ratio->ci_hi);
}

static void print_time_row(const bench_table *t, const bench_row *r) {
  char time[24], spread[24], rate[24], peak[24], gbs[24], ratio[64], error[24];
  bench_format_time(r->time.median, time, sizeof time);
  format_spread(&r->time, spread, sizeof spread);
  format_ratio(&r->ratio, ratio, sizeof ratio);
  fprintf(t->file, "  %-*s %10s %8s %9s %8s %8s  %-24s %8s  %d\n", NAME_WIDTH, r->kernel, time, spread,
          format_fixed(r->gflops > 0 ? r->gflops : NAN, 1, rate), format_fixed(t->reads ? r->bw_pct : r->peak_pct, 1, peak),
          format_fixed(r->gbs, 2, gbs), ratio, format_fixed(r->verdict.max_err_ratio, 3, error), r->time.n);
}

/* Prints the shares of a layer's time; the share of attention only if the layer has some. */
static void print_shares(const bench_table *t, const bench_row *r) {
  if (isnan(r->projections_pct)) return;
  fprintf(t->file, "%*sprojections %.1f %% (%s)", BELOW, "", r->projections_pct, r->product);
  if (!isnan(r->attention_pct)) fprintf(t->file, ", attention %.1f %%", r->attention_pct);
  fprintf(t->file, ", rest %.1f %%\n", r->rest_pct);
}

static void print_check_row(const bench_table *t, const bench_row *r) {
  char error[24], absolute[24], rows[BENCH_CELL];
  const bench_verdict *v = &r->verdict;
  const bool has_errors = v->status != BENCH_ERROR;
  fprintf(t->file, "  %-*s %-10s %9s %10s %8s\n", NAME_WIDTH, r->kernel, bench_status_name(v->status),
          has_errors ? format_general(v->max_err_ratio, error) : "",
          has_errors ? format_general(v->max_abs_err, absolute) : "", bench_cell(r, COLUMN_rows_checked, rows));
  if (!v->reason[0]) return;
  fprintf(t->file, "%*s", BELOW, "");
  bench_print_wrapped(t->file, v->reason, BELOW);
}

static void print_refusal(const bench_table *t, const bench_row *r) {
  const int indent = fprintf(t->file, "  %-*s %-10s ", NAME_WIDTH, r->kernel, bench_status_name(r->verdict.status));
  bench_print_wrapped(t->file, r->verdict.reason, indent);
}

static bool is_bad(const bench_row *r) { return r->verdict.status == BENCH_FAIL || r->verdict.status == BENCH_ERROR; }

static paint paint_of(const bench_row *r, bool best) {
  if (is_bad(r)) return RED;
  if (r->verdict.status == BENCH_SKIP || r->verdict.status == BENCH_DEGENERATE) return DIM;
  return best ? BOLD : PLAIN;
}

static void print_row(const bench_table *t, const bench_row *r, bool best) {
  const paint how = paint_of(r, best);
  start(t, how);
  if (r->time.n)
    print_time_row(t, r);
  else if (!t->timed && r->verdict.status != BENCH_SKIP)
    print_check_row(t, r);
  else
    print_refusal(t, r);
  print_shares(t, r);
  if (r->warnings[0]) {
    fprintf(t->file, "%*s", BELOW, "");
    bench_print_wrapped(t->file, r->warnings, BELOW);
  }
  stop(t, how);
  if (t->repro || is_bad(r))
    fprintf(t->file, "%*sattnbench %s --case %s --kernel %s --seed %" PRIu64 "\n", BELOW, "", t->command, r->case_id,
            r->kernel, t->seed);
}

/* The baseline of all timed rows; "baseline" where they differ, after --resume; NULL if nothing was timed. */
static const char *common_baseline(const bench_row *const *rows, int count) {
  const char *baseline = NULL;
  for (int i = 0; i < count; i++) {
    const char *own = rows[i]->baseline;
    if (baseline && own[0] && strcmp(own, baseline)) return "baseline";
    if (own[0]) baseline = own;
  }
  return baseline;
}

static void print_columns(const bench_table *t, const bench_row *const *rows, int count) {
  char ratio[80] = "x", share[16] = "% peak";
  if (!t->timed) {
    fprintf(t->file, "  %-*s %-10s %9s %10s %8s\n", NAME_WIDTH, "kernel", "status", "err/lim", "abs error", "rows");
    return;
  }
  const char *baseline = common_baseline(rows, count);
  if (!rows[0]->time.n) { /* timed rows come first, so there are none */
    fprintf(t->file, "  %-*s %-10s %s\n", NAME_WIDTH, "kernel", "status", "reason");
    return;
  }
  if (baseline) snprintf(ratio, sizeof ratio, "x %s [95 %%]", baseline);
  if (t->reads) snprintf(share, sizeof share, "%% %s", rows[0]->level[0] ? rows[0]->level : "read");
  fprintf(t->file, "  %-*s %10s %8s %9s %8s %8s  %-24s %8s  n\n", NAME_WIDTH, "kernel", "median", "+-", "GFLOP/s", share,
          "GB/s", ratio, "err/lim");
}

/* Timed rows first, by time; the others in the order they have. */
static int compare_rows(const void *a, const void *b) {
  const bench_row *x = *(const bench_row *const *)a, *y = *(const bench_row *const *)b;
  const double s = x->time.n ? x->time.median : INFINITY;
  const double t = y->time.n ? y->time.median : INFINITY;
  if (s != t) return s < t ? -1 : 1;
  return x < y ? -1 : x > y;
}

/* Decoding reads K and V and computes little: where the best kernel is nearer to the rate of the read loop than to the peak,
 * shares are those of the read loop, and the column is named by the level of cache that it read: "% L2". */
static bool is_bound_by_reading(const bench_row *best) { return best->time.n && best->bw_pct > best->peak_pct; }

static void print_case(const bench_table *table, const bench_row *const *rows, int count) {
  start(table, BOLD);
  print_headline(table, rows[0]);
  stop(table, BOLD);
  print_columns(table, rows, count);
  for (int i = 0; i < count; i++) print_row(table, rows[i], i == 0 && rows[i]->time.n);
  fputc('\n', table->file);
  fflush(table->file);
}

void bench_table_case(const bench_table *table, const bench_row *all, int count) {
  bench_table own = *table;
  const bench_row *rows[BENCH_MAX_KERNELS + 1];
  int shown = 0;
  for (int i = 0; i < count && shown <= BENCH_MAX_KERNELS; i++)
    if (!table->only_bad || is_bad(&all[i])) rows[shown++] = &all[i];
  if (!shown) return;
  qsort(rows, (size_t)shown, sizeof *rows, compare_rows);
  own.reads = is_bound_by_reading(rows[0]);
  print_case(&own, rows, shown);
}

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

static bool same_kernel(const bench_row *a, const bench_row *b) { return !strcmp(a->kernel, b->kernel); }

/* Prints, for the kernel of `like`, its rows by status and the largest share of the error limit that any row used up. */
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
  bench_append(list, bytes, "%s%s", *list ? ", " : "", name);
}

/* Every distinct reason of a skip, with the number of rows and their kernels. */
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
    if (!r->time.n || isnan(r->noise) || !is_first(rows, i, same_timed_case)) continue;
    worst = fmax(worst, r->noise);
    values[count++] = r->noise;
  }
  if (count)
    fprintf(t->file,
            "noise floor: the quickest kernel timed against itself differs by %.2f %% (median over %d case%s), %.2f %% at "
            "worst\n",
            100 * bench_median(values, count), count, count == 1 ? "" : "s", 100 * worst);
}

/* Samples whose cores other programs used as well, of those that tell. */
static void print_disturbance(const bench_table *t, const bench_rows *rows) {
  double undisturbed = 0, all = 0;
  for (int i = 0; i < rows->count; i++) {
    const bench_row *r = &rows->item[i];
    if (!r->time.n || isnan(r->undisturbed_pct)) continue;
    undisturbed += r->time.n * r->undisturbed_pct / 100;
    all += r->time.n;
  }
  if (undisturbed < all)
    fprintf(t->file, "disturbed: another program ran on the same cores in %.0f %% of the samples\n",
            100 * (all - undisturbed) / all);
}

void bench_table_cases(const bench_table *table, const bench_rows *rows) {
  for (int first = 0, next; first < rows->count; first = next) {
    for (next = first + 1; next < rows->count; next++)
      if (strcmp(rows->item[next].case_id, rows->item[first].case_id)) break;
    bench_table_case(table, rows->item + first, next - first);
  }
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
  print_disturbance(t, rows);
  if (!values) fprintf(t->file, "out of memory for the peaks and the noise floor\n");
  fprintf(t->file, "%d row%s: %d PASS, %d FAIL, %d ERROR, %d DEGENERATE, %d SKIP\n", rows->count,
          rows->count == 1 ? "" : "s", bench_count_status(rows, BENCH_PASS), bench_count_status(rows, BENCH_FAIL),
          bench_count_status(rows, BENCH_ERROR), bench_count_status(rows, BENCH_DEGENERATE),
          bench_count_status(rows, BENCH_SKIP));
  free(values);
}
