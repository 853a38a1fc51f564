/* SPDX-License-Identifier: MIT */
/* Prints records as a table for people. */
#include "report/table.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cli.h"
#include "base/select.h"

enum { WIDTH = 118, NAME_WIDTH = 16, BELOW = NAME_WIDTH + 3 };

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

static const char *get(const bench_record *r, bench_column column) { return bench_record_get(r, column); }

static void append_pair(char *text, size_t bytes, const char *name, const char *a, const char *b, const char *separator) {
  const size_t used = strlen(text);
  if (!a[0]) return;
  const bool differ = strcmp(a, b);
  snprintf(text + used, bytes - used, "  %s %s%s%s", name, a, differ ? separator : "", differ ? b : "");
}

/* "f32  batch 1  heads 8  seq 512  head_dim 64  causal none  threads 1  lse on" */
static void print_headline(const bench_table *t, const bench_record *r) {
  char text[BENCH_NAME + 64];
  const char *case_id = get(r, COLUMN_case_id);
  snprintf(text, sizeof text, "%.*s", (int)strcspn(case_id, "/") - 6, case_id + 6); /* behind "dtype:" */
  append_pair(text, sizeof text, "batch", get(r, COLUMN_batch), get(r, COLUMN_batch), "");
  append_pair(text, sizeof text, "heads", get(r, COLUMN_heads_q), get(r, COLUMN_heads_kv), "/");
  append_pair(text, sizeof text, "seq", get(r, COLUMN_seq_q), get(r, COLUMN_seq_k), "x");
  append_pair(text, sizeof text, "head_dim", get(r, COLUMN_dim_qk), get(r, COLUMN_dim_v), "/");
  append_pair(text, sizeof text, "causal", get(r, COLUMN_causal), get(r, COLUMN_causal), "");
  append_pair(text, sizeof text, "threads", get(r, COLUMN_threads), get(r, COLUMN_threads), "");
  const char *rest = strstr(case_id, "/threads:"); /* what is not at its default stands behind it */
  rest = rest ? strchr(rest + 1, '/') : NULL;
  while (rest) {
    char word[4 * BENCH_WORD];
    snprintf(word, sizeof word, "%.*s", (int)strcspn(rest + 1, "/"), rest + 1);
    char *colon = strchr(word, ':');
    if (colon) *colon = 0;
    append_pair(text, sizeof text, word, colon ? colon + 1 : "", colon ? colon + 1 : "", "");
    rest = strchr(rest + 1, '/');
  }
  cli_print_wrapped(t->file, text, 0, 4, WIDTH);
}

/* ---- Rows ------------------------------------------------------------------------------------------------------------- */

static void format_fixed(const bench_record *r, bench_column column, int digits, char *text, size_t bytes) {
  text[0] = 0;
  if (get(r, column)[0]) snprintf(text, bytes, "%.*f", digits, bench_record_number(r, column));
}

/* For numbers that may be huge, as those of failures are. */
static void format_general(const bench_record *r, bench_column column, int digits, char *text, size_t bytes) {
  text[0] = 0;
  if (get(r, column)[0]) snprintf(text, bytes, "%.*g", digits, bench_record_number(r, column));
}

/* The larger half of the interval, as a share of the median. */
static void format_spread(const bench_record *r, char *text, size_t bytes) {
  const double median = bench_record_number(r, COLUMN_time_ns_median);
  const double above = bench_record_number(r, COLUMN_time_ns_ci_hi) - median;
  const double below = median - bench_record_number(r, COLUMN_time_ns_ci_lo);
  snprintf(text, bytes, "%.1f %%", median > 0 ? 100 * fmax(above, below) / median : 0);
}

static void format_ratio(const bench_record *r, char *text, size_t bytes) {
  const double ratio = bench_record_number(r, COLUMN_ratio);
  const int digits = ratio < 10 ? 2 : ratio < 100 ? 1 : 0;
  text[0] = 0;
  if (ratio > 0)
    snprintf(text, bytes, "%.*f [%.*f, %.*f]", digits, ratio, digits, bench_record_number(r, COLUMN_ratio_ci_lo), digits,
             bench_record_number(r, COLUMN_ratio_ci_hi));
}

static void print_time_row(const bench_table *t, const bench_record *r) {
  char time[24], spread[24], rate[24], peak[24], gbs[24], ratio[64], error[24];
  bench_format_time(bench_record_number(r, COLUMN_time_ns_median), time, sizeof time);
  format_spread(r, spread, sizeof spread);
  format_fixed(r, COLUMN_gflops, 1, rate, sizeof rate);
  format_fixed(r, COLUMN_peak_pct, 1, peak, sizeof peak);
  format_fixed(r, COLUMN_gbs, 2, gbs, sizeof gbs);
  format_ratio(r, ratio, sizeof ratio);
  format_fixed(r, COLUMN_max_err_ratio, 3, error, sizeof error);
  fprintf(t->file, "  %-*s %10s %8s %9s %7s %8s  %-24s %8s  %s\n", NAME_WIDTH, get(r, COLUMN_kernel), time, spread, rate,
          peak, gbs, ratio, error, get(r, COLUMN_samples));
}

/* Of a layer: where the time went. Without attention there is nothing to tell its dense layers' time from. */
static void print_shares(const bench_table *t, const bench_record *r) {
  if (!get(r, COLUMN_projections_pct)[0]) return;
  fprintf(t->file, "%*sprojections %.1f %% (%s)", BELOW, "", bench_record_number(r, COLUMN_projections_pct),
          get(r, COLUMN_product));
  if (get(r, COLUMN_attention_pct)[0]) fprintf(t->file, ", attention %.1f %%", bench_record_number(r, COLUMN_attention_pct));
  fprintf(t->file, ", rest %.1f %%\n", bench_record_number(r, COLUMN_rest_pct));
}

static void print_check_row(const bench_table *t, const bench_record *r) {
  char error[24], absolute[24];
  format_general(r, COLUMN_max_err_ratio, 3, error, sizeof error);
  format_general(r, COLUMN_max_abs_err, 3, absolute, sizeof absolute);
  fprintf(t->file, "  %-*s %-10s %9s %10s %8s", NAME_WIDTH, get(r, COLUMN_kernel), get(r, COLUMN_status), error, absolute,
          get(r, COLUMN_rows_checked));
  fprintf(t->file, "\n%*s", get(r, COLUMN_reason)[0] ? BELOW : 0, "");
  if (get(r, COLUMN_reason)[0]) bench_print_wrapped(t->file, get(r, COLUMN_reason), BELOW);
}

static void print_refusal(const bench_table *t, const bench_record *r) {
  const int indent = fprintf(t->file, "  %-*s %-10s ", NAME_WIDTH, get(r, COLUMN_kernel), get(r, COLUMN_status));
  bench_print_wrapped(t->file, get(r, COLUMN_reason), indent);
}

static bool is_bad(const bench_record *r) { return bench_record_is(r, BENCH_FAIL) || bench_record_is(r, BENCH_ERROR); }

static paint paint_of(const bench_record *r, bool best) {
  if (is_bad(r)) return RED;
  if (bench_record_is(r, BENCH_SKIP) || bench_record_is(r, BENCH_DEGENERATE)) return DIM;
  return best ? BOLD : PLAIN;
}

static void print_row(const bench_table *t, const bench_record *r, bool best) {
  const paint how = paint_of(r, best);
  start(t, how);
  if (r->sample_count)
    print_time_row(t, r);
  else if (!t->timed && !bench_record_is(r, BENCH_SKIP))
    print_check_row(t, r);
  else
    print_refusal(t, r);
  print_shares(t, r);
  if (get(r, COLUMN_warnings)[0]) {
    fprintf(t->file, "%*s", BELOW, "");
    bench_print_wrapped(t->file, get(r, COLUMN_warnings), BELOW);
  }
  stop(t, how);
  if (t->repro || is_bad(r))
    fprintf(t->file, "%*sattnbench %s --case %s --kernel %s --seed %" PRIu64 "\n", BELOW, "", t->command,
            get(r, COLUMN_case_id), get(r, COLUMN_kernel), t->seed);
}

/* The baseline of all timed rows; "baseline" where resumed rows have another; NULL if nothing was timed. */
static const char *common_baseline(const bench_record *const *rows, int count) {
  const char *baseline = NULL;
  for (int i = 0; i < count; i++) {
    const char *own = get(rows[i], COLUMN_baseline);
    if (baseline && own[0] && strcmp(own, baseline)) return "baseline";
    if (own[0]) baseline = own;
  }
  return baseline;
}

static void print_columns(const bench_table *t, const bench_record *const *rows, int count) {
  char ratio[64] = "x";
  if (!t->timed) {
    fprintf(t->file, "  %-*s %-10s %9s %10s %8s\n", NAME_WIDTH, "kernel", "status", "err/lim", "abs error", "rows");
    return;
  }
  const char *baseline = common_baseline(rows, count);
  if (!rows[0]->sample_count) { /* timed rows come first: there are none */
    fprintf(t->file, "  %-*s %-10s %s\n", NAME_WIDTH, "kernel", "status", "reason");
    return;
  }
  if (baseline) snprintf(ratio, sizeof ratio, "x %s [95 %%]", baseline);
  fprintf(t->file, "  %-*s %10s %8s %9s %7s %8s  %-24s %8s  n\n", NAME_WIDTH, "kernel", "median", "+-", "GFLOP/s", "% peak",
          "GB/s", ratio, "err/lim");
}

/* Timed rows first, by time; the others in the order they have. */
static int compare_rows(const void *a, const void *b) {
  const bench_record *x = *(const bench_record *const *)a, *y = *(const bench_record *const *)b;
  const double s = x->sample_count ? bench_record_number(x, COLUMN_time_ns_median) : INFINITY;
  const double t = y->sample_count ? bench_record_number(y, COLUMN_time_ns_median) : INFINITY;
  if (s != t) return s < t ? -1 : 1;
  return x < y ? -1 : x > y;
}

void bench_table_case(const bench_table *table, const bench_record *records, int count) {
  const bench_record *rows[BENCH_MAX_KERNELS + 1];
  int shown = 0;
  for (int i = 0; i < count && shown <= BENCH_MAX_KERNELS; i++)
    if (!table->only_bad || is_bad(&records[i])) rows[shown++] = &records[i];
  if (!shown) return;
  qsort(rows, (size_t)shown, sizeof *rows, compare_rows);
  start(table, BOLD);
  print_headline(table, rows[0]);
  stop(table, BOLD);
  print_columns(table, rows, shown);
  for (int i = 0; i < shown; i++) print_row(table, rows[i], i == 0 && rows[i]->sample_count);
  fputc('\n', table->file);
  fflush(table->file);
}
