/* SPDX-License-Identifier: MIT */
/* attnbench peak: what this machine can do at most. The peak loop of every tier and dtype, and the read bandwidth of
 * every cache level and of memory, on one core and on all. */
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "base/cli.h"
#include "base/files.h"
#include "cases/cases.h"
#include "commands/commands.h"
#include "machine/affinity.h"
#include "machine/environment.h"
#include "timing/rates.h"
#include "timing/reading.h"
#include "timing/stats.h"

enum { SLICES = 21, MOST_ROWS = 64, READ_LINE = 4096, LEAST_READ = 1 << 20 };

static const double SLICE_NS = 2e6;

/* One measured ceiling. */
typedef struct ceiling {
  const char *kind;  /* "compute" or "read" */
  const char *name;  /* tier, or "L1", "memory" */
  const char *dtype; /* type of the inputs; "" for reads */
  char what[48];     /* "fma, 512 bit", or "32 KiB per core" */
  const char *unit;  /* "Gflop/s" or "GB/s" */
  double one, all;   /* one core; all cores together */
} ceiling;

typedef struct ceilings {
  ceiling row[MOST_ROWS];
  int count;
  int threads;
} ceilings;

/* ---- Measuring ----------------------------------------------------------------------------------------------------- */

/* Median over the slices, of all `threads` together. */
static double compute_rate(const attn_peak_loop *loop, int threads) {
  double rate[SLICES];
  bench_peak_slice slice = bench_peak_prepare(loop, threads, SLICE_NS);
  for (int i = 0; i < SLICES; i++) rate[i] = bench_peak_rate(&slice) * slice.threads;
  return bench_median(rate, SLICES);
}

static void measure_compute(ceilings *c) {
  const attn_peak_loop *loop;
  for (int i = 0; (loop = attn_peak_get(i)) && c->count < MOST_ROWS; i++) {
    if (!attn_peak_usable(loop->isa)) continue;
    ceiling *row = &c->row[c->count++];
    *row = (ceiling){.kind = "compute", .name = loop->isa, .dtype = loop->dtype, .unit = "Gflop/s"};
    row->one = compute_rate(loop, 1) / 1e9;
    snprintf(row->what, sizeof row->what, "%s", loop->what);
    row->all = c->threads > 1 ? compute_rate(loop, c->threads) / 1e9 : row->one;
  }
}

/* bytes: read by each core. */
static void measure_read(ceilings *c, const char *name, size_t bytes, const char *note) {
  if (c->count == MOST_ROWS) return;
  ceiling *row = &c->row[c->count++];
  *row = (ceiling){.kind = "read", .name = name, .dtype = "", .unit = "GB/s", .one = bench_read_bandwidth(bytes, 1) / 1e9};
  snprintf(row->what, sizeof row->what, "%zu KiB per core%s", bytes / 1024, note);
  row->all = c->threads > 1 ? bench_read_bandwidth(bytes, c->threads) / 1e9 : row->one;
}

/* Reads half of a private cache, which leaves room for other data. Reads half of a core's share of the last level, which all
 * cores share, but at least twice the level before it, because less would fit into that. */
static void measure_reads(ceilings *c) {
  size_t l1 = (size_t)bench_cache_bytes(1), l2 = (size_t)bench_cache_bytes(2), l3 = (size_t)bench_cache_bytes(3);
  if (l1) measure_read(c, "L1", l1 / 2, "");
  if (l2) measure_read(c, "L2", l2 / 2, "");
  size_t l3_share = l3 / 2 / (size_t)c->threads;
  if (l3) measure_read(c, "L3", l3_share > 2 * l2 ? l3_share : 2 * l2, "");

  /* Each thread reads a buffer of its own; all together they take at most half of the memory that is free. */
  const double share = 0.5 * bench_memory_available("") / c->threads / READ_LINE;
  const size_t last = l3 ? l3 : l2 ? l2 : (size_t)32 << 20, most = (size_t)1 << 30;
  size_t beyond = 4 * last < most ? 4 * last : most;
  if (share < (double)(beyond / READ_LINE)) beyond = (size_t)share * READ_LINE;
  if (beyond < LEAST_READ)
    fprintf(stderr, "warning: too little memory is free to measure how fast it is read\n");
  else
    measure_read(c, "memory", beyond, beyond < 2 * last ? ", may be cached" : "");
}

/* ---- Output ---------------------------------------------------------------------------------------------------------- */

static void print_table(const ceilings *c) {
  printf("%-8s %-12s %-6s %-30s %12s %12s  %s\n", "kind", "name", "dtype", "what", "one core", "all cores", "unit");
  for (const ceiling *row = c->row; row < c->row + c->count; row++)
    printf("%-8s %-12s %-6s %-30s %12.1f %12.1f  %s\n", row->kind, row->name, row->dtype, row->what, row->one, row->all,
           row->unit);
  printf("\nall cores: %d threads at once. Reads use the widest loads of this CPU.\n", c->threads);
}

static void write_csv(void *context, FILE *file) {
  const ceilings *c = context;
  fprintf(file, "kind,name,dtype,what,threads,one_core,all_cores,unit\n");
  for (const ceiling *row = c->row; row < c->row + c->count; row++)
    fprintf(file, "%s,%s,%s,\"%s\",%d,%.6g,%.6g,%s\n", row->kind, row->name, row->dtype, row->what, c->threads, row->one,
            row->all, row->unit);
}

static void write_json(void *context, FILE *file) {
  const ceilings *c = context;
  fprintf(file, "{\"threads\": %d,\n \"ceilings\": [", c->threads);
  for (const ceiling *row = c->row; row < c->row + c->count; row++)
    fprintf(file,
            "%s\n  {\"kind\": \"%s\", \"name\": \"%s\", \"dtype\": \"%s\", \"what\": \"%s\", \"one_core\": %.6g, "
            "\"all_cores\": %.6g, \"unit\": \"%s\"}",
            row == c->row ? "" : ",", row->kind, row->name, row->dtype, row->what, row->one, row->all, row->unit);
  fprintf(file, "\n]}\n");
}

static const char *csv, *json, *cpus;
static int64_t threads;

static const cli_option options[] = {
    {CLI_STRING, 0, "csv", "FILE", "write the table as CSV; - is stdout and replaces the table", &csv},
    {CLI_STRING, 0, "json", "FILE", "write the table as JSON; - is stdout and replaces the table", &json},
    {CLI_INT, 0, "threads", "N", "what \"all cores\" means (default: every CPU this process may use)",
     CLI_WITHIN(&threads, 1, CLI_MOST_THREADS)},
    {CLI_STRING, 0, "cpus", "LIST", BENCH_CPUS_HELP, &cpus},
    CLI_END,
};

static const cli_command command = {.name = "peak",
                                    .usage = "[options]",
                                    .summary =
                                        "Measures what this machine can do at most: multiply-adds per tier and dtype, and "
                                        "read bandwidth per cache level and of memory, on one core and on all.",
                                    .options = options};

static void measure_ceilings(ceilings *all) {
  const int wanted = threads ? (int)threads : bench_usable_threads();
  char why[300];
  all->threads = bench_team_count(wanted).threads;
  bench_team_explain(all->threads, wanted, why, sizeof why);
  if (all->threads < wanted) fprintf(stderr, "warning: %s\n", why);
  all->count = 0;
  const bool held = bench_threads_hold(all->threads);
  measure_compute(all);
  measure_reads(all);
  if (held) bench_threads_release();
}

int bench_peak_main(int argc, char **argv) {
  static ceilings all;
  int code;
  csv = json = cpus = NULL;
  threads = 0; /* not given */
  if (!cli_parse(&command, argc, argv, &code)) return code;
  if (bench_refuses_to_time("peak")) return BENCH_EXIT_UNFIT;
  if (cpus && (code = bench_pin_cpus("peak", cpus)) != 0) return code;
  measure_ceilings(&all);
  const bool taken = (csv && !strcmp(csv, "-")) || (json && !strcmp(json, "-")); /* stdout, by a file */
  if (!taken) print_table(&all);
  const bool csv_written = !csv || bench_file_write(csv, write_csv, &all);
  return (!json || bench_file_write(json, write_json, &all)) && csv_written ? BENCH_EXIT_OK : BENCH_EXIT_INTERNAL;
}
