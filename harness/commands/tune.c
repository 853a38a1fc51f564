/* SPDX-License-Identifier: MIT */
/* attnbench tune: writes a tuning file of this machine, or says how much time its choices lose. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/files.h"
#include "commands/commands.h"
#include "commands/options.h"
#include "machine/affinity.h"
#include "machine/environment.h"
#include "timing/setup.h"
#include "tuning/tuning.h"

static bench_options asked;
static const char *output, *checked, *csv;
static double budget_s;
static int64_t points;

static const cli_option options[] = {
    {CLI_LIST, 'a', "axis", "AXIS=VALUES", "repeatable: dtype, head_dim, causal (default all types, 32 to 256, both)",
     &asked.axes},
    {CLI_DURATION, 0, "budget", "TIME", "of the whole: 90s, 5m (default 5m, 1m with --check)", &budget_s},
    {CLI_STRING, 'o', "output", "FILE", "write the tuning file there; - is stdout (the default)", &output},
    CLI_HEADING("How good is a file?"),
    {CLI_STRING, 0, "check", "FILE", "regret of the built-in choice and of the file's on random problems", &checked},
    {CLI_INT, 0, "points", "N", "so many problems (default 1000)", CLI_WITHIN(&points, 1, 1000000)},
    {CLI_INT, 0, "seed", "N", "of these problems (default 1)", CLI_WITHIN(&asked.seed, 0, INT64_MAX)},
    {CLI_STRING, 0, "csv", "FILE", "write a line for each, for scripts/plot_regret.py", &csv},
    CLI_HEADING("Machine"),
    {CLI_STRING, 0, "cpus", "LIST", BENCH_CPUS_HELP, &asked.cpus},
    BENCH_LOAD_OPTION(&asked.filter.load),
    CLI_END,
};

static const cli_command command = {
    .name = "tune",
    .usage = "[--budget TIME] [-o FILE] | --check FILE",
    .summary =
        "Measures which kernel is quickest for which problems on this machine, and from which size on threads pay. The file "
        "holds rules where the built-in choice is slower beyond doubt, with their evidence.",
    .options = options,
    .epilogue = "Use it:   ATTN_TUNING=FILE ./program   or attn_tuning_load() (docs/library.md, \"Tuning files\")\n"};

/* ---- Lines ---- */

enum { MOST_LINES = 1024, GROUPS = 3 };

typedef struct line_list {
  bench_tune_line item[MOST_LINES];
  int count;
} line_list;

static int refuse_axis(const char *assignment) {
  return cli_usage_error("tune", "-a %s: should be dtype, head_dim or causal; tune walks the others itself", assignment);
}

static int set_axis(bench_grid *grid, const char *assignment) {
  static const char *const allowed[] = {"dtype", "head_dim", "causal"};
  char error[400];
  const char *values;
  bool known = false;
  for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++) known |= bench_axis_is(assignment, allowed[i], &values);
  if (!known) return refuse_axis(assignment);
  return bench_grid_set(grid, assignment, error, sizeof error) ? 0 : cli_usage_error("tune", "%s", error);
}

static int set_axes(bench_grid *grid) {
  static const char *const defaults[] = {"dtype=f32,bf16,f16", "head_dim=64,128,32,256", "causal=none,bottom-right"};
  int code = 0;
  for (size_t i = 0; i < sizeof defaults / sizeof *defaults && !code; i++) code = set_axis(grid, defaults[i]);
  for (int i = 0; i < asked.axes.count && !code; i++) code = set_axis(grid, asked.axes.item[i]);
  return code;
}

/* From the middle (of logarithms) between a dimension and the next smaller one to that between it and the next larger. */
static void set_dims(const bench_values *dims, bench_tune_line *line) {
  int64_t smaller = 0, larger = INT64_MAX;
  for (int i = 0; i < dims->count; i++) {
    const int64_t d = strtoll(dims->value[i], NULL, 10);
    if (d < line->dim && d > smaller) smaller = d;
    if (d > line->dim && d < larger) larger = d;
  }
  line->dims[0] = smaller ? (int64_t)sqrt((double)smaller * (double)line->dim) + 1 : 1;
  line->dims[1] = larger < INT64_MAX ? (int64_t)sqrt((double)larger * (double)line->dim) : INT64_MAX;
}

static int add_line(line_list *lines, const bench_spec *spec, const bench_values *dims) {
  static const int64_t groups[GROUPS][3] = {{1, 1, 2}, {4, 3, 5}, {8, 6, INT64_MAX}};
  attn_dtype kv, o;
  bench_tune_line line = {.causal = !bench_spec_is(spec, AXIS_CAUSAL, "none"), .dim = bench_spec_int(spec, AXIS_HEAD_DIM)};
  if (!bench_dtype_read(bench_spec_get(spec, AXIS_DTYPE), &line.dtype, &kv, &o) || kv != line.dtype)
    return cli_usage_error("tune", "-a dtype=%s: should be f32, f16 or bf16", bench_spec_get(spec, AXIS_DTYPE));
  set_dims(dims, &line);
  for (int g = 0; g < GROUPS && lines->count < MOST_LINES; g++) {
    line.group = groups[g][0];
    memcpy(line.groups, &groups[g][1], sizeof line.groups);
    lines->item[lines->count++] = line;
  }
  return 0;
}

static int list_lines(line_list *lines) {
  bench_grid grid = {.title = ""};
  int code = set_axes(&grid), index[AXIS_COUNT] = {0};
  for (int d = 0; d < grid.axes[AXIS_HEAD_DIM].count && !code; d++)
    for (int t = 0; t < grid.axes[AXIS_DTYPE].count && !code; t++)
      for (int c = 0; c < grid.axes[AXIS_CAUSAL].count && !code; c++) {
        index[AXIS_HEAD_DIM] = d, index[AXIS_DTYPE] = t, index[AXIS_CAUSAL] = c;
        const bench_spec spec = bench_grid_spec(&grid, index);
        code = add_line(lines, &spec, &grid.axes[AXIS_HEAD_DIM]);
      }
  bench_grid_clear(&grid);
  return code;
}

/* ---- Checks: no rule for a kernel that computes wrong ---- */

static int check_case(const bench_case *bench) {
  const attn_kernel_info *kernels[BENCH_MAX_KERNELS];
  static bench_row rows[BENCH_MAX_KERNELS];
  const bench_case_settings settings = {.seed = 1};
  int count = 0, code = 0;
  while (count < BENCH_MAX_KERNELS && attn_kernel_get(count)) kernels[count] = attn_kernel_get(count), count++;
  (void)bench_run_case(bench, kernels, count, &settings, rows);
  for (int i = 0; i < count; i++) {
    if (rows[i].verdict.status == BENCH_FAIL && !code)
      code = cli_fail(BENCH_EXIT_FAILED, "tune", "%s fails its check on %s: %s", kernels[i]->name, bench->case_id,
                      rows[i].verdict.reason);
    bench_row_clear(&rows[i]);
  }
  return code;
}

static int check_line(const bench_tune_line *line) {
  bench_case bench;
  const bench_tune_shape shape = {.dtype = line->dtype,
                                  .causal = line->causal,
                                  .dim = line->dim,
                                  .group = line->group,
                                  .heads_kv = 2,
                                  .seq_q = 9,
                                  .seq_k = 70};
  bench_tune_case(&shape, &bench);
  return check_case(&bench);
}

/* ---- Tuning ---- */

static void write_result(void *context, FILE *file) { bench_tune_write(context, file); }

static int conclude(bench_tune_result *result) {
  for (int k = 0; k < TUNE_KERNELS; k++)
    for (int t = 0; t < 3; t++) bench_tune_cost_solve(&result->costs[k][t]);
  fprintf(stderr, "tune: %d problems timed, %d rules\n", result->points, result->rule_count);
  return bench_file_write(output, write_result, result) ? BENCH_EXIT_OK : BENCH_EXIT_INTERNAL;
}

/* A tenth of the time is for threads, the rest for the lines: each may take an even share of what is left. */
static int tune(const line_list *lines) {
  static bench_tune_result result;
  const bench_tune_source *source = &bench_tune_machine;
  const double end = source->now_s(NULL) + 0.9 * budget_s;
  int code = bench_file_writable(output) ? 0 : BENCH_EXIT_INTERNAL;
  for (int i = 0; i < lines->count && !code; i++) {
    code = check_line(&lines->item[i]);
    const double share = (end - source->now_s(NULL)) / (lines->count - i);
    if (!code && !bench_tune_walk(source, &lines->item[i], share, &result))
      code = cli_fail(BENCH_EXIT_INTERNAL, "tune", "out of memory");
  }
  if (!code) bench_tune_threads(source, 0.1 * budget_s, &result);
  if (!code) code = conclude(&result);
  bench_tune_clear(&result);
  return code;
}

/* ---- Regret ---- */

static void print_regret(const char *name, const bench_regret *r) {
  const bench_tune_shape *w = &r->where;
  printf("%-24s %6.2f %% %7.1f %% %7d    %s %s, %" PRId64 " x %" PRId64 " heads, %" PRId64 " x %" PRId64 " x %" PRId64 "\n",
         name, r->count ? 100 * r->sum / r->count : 0, 100 * r->worst, r->above, bench_dtype_name(w->dtype),
         w->causal ? "causal" : "full", w->heads_kv, w->group, w->seq_q, w->seq_k, w->dim);
}

static void measure_regret(void *context, FILE *file) {
  bench_regret regrets[2];
  (void)bench_regret_measure(&bench_tune_machine, context, (int)points, budget_s, (uint64_t)asked.seed, file, regrets);
  printf("regret on %d random problems, one thread: time of the choice beyond that of the best kernel\n\n",
         regrets[0].count);
  printf("%-24s %8s %9s %7s    %s\n", "choice", "mean", "worst", "> 8 %",
         "the worst: heads_kv x group, seq_q x seq_k x dim");
  print_regret("built-in rules", &regrets[0]);
  print_regret("with the file", &regrets[1]);
}

static int check(void) {
  attn_tuning *tuning;
  const attn_status status = attn_tuning_load(checked, &tuning);
  if (status != ATTN_OK)
    return cli_fail(status == ATTN_UNSUPPORTED ? BENCH_EXIT_UNFIT : BENCH_EXIT_USAGE, "tune", "%s", attn_last_error());
  bool written = true;
  if (csv)
    written = bench_file_write(csv, measure_regret, tuning);
  else
    measure_regret(tuning, NULL);
  attn_tuning_destroy(tuning);
  return written ? BENCH_EXIT_OK : BENCH_EXIT_INTERNAL;
}

/* What would make the automatic choice another one. */
static int refuse_environment(void) {
  static const char *const variables[] = {"ATTN_TUNING", "ATTN_KERNEL", "ATTN_MAX_ISA"};
  for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
    if (getenv(variables[i]) && *getenv(variables[i]))
      return cli_usage_error("tune", "%s is set; it must not be, because it decides in place of what is measured",
                             variables[i]);
  return 0;
}

int bench_tune_main(int argc, char **argv) {
  static line_list lines;
  int code;
  asked = bench_options_default("tune", NULL, argc, argv);
  checked = csv = NULL;
  output = "-";
  budget_s = 0;
  points = 1000;
  if (!cli_parse(&command, argc, argv, &code)) return code;
  if ((code = refuse_environment()) != 0 || (code = list_lines(&lines)) != 0) return code;
  if ((code = bench_plugins_load(&asked.filter.load, "tune")) != 0) return code;
  if (asked.cpus && (code = bench_pin_cpus("tune", asked.cpus)) != 0) return code;
  if (bench_refuses_to_time("tune")) return BENCH_EXIT_UNFIT;
  if (!(budget_s > 0)) budget_s = checked ? 60 : 300;
  return checked ? check() : tune(&lines);
}
