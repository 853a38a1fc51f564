/* SPDX-License-Identifier: MIT */
/* attnbench tune: writes a tuning file of this machine, or says how much time its choices lose. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/files.h"
#include "commands/commands.h"
#include "commands/options.h"
#include "machine/affinity.h"
#include "machine/environment.h"
#include "src/choice/machine_class.h"
#include "tuning/tuning.h"

static bench_options asked;
static const char *output, *tuning_file, *csv, *class_name;
static bool checks, without_class;
static double budget_s;
static bench_tune_lines lines_asked;
static int64_t points;

static const cli_option options[] = {
    {CLI_LIST, 'a', "axis", "AXIS=VALUES",
     "repeatable: dtype, head_dim, causal, pass (default all types, 20 to 256, both, both); with --check dtype and pass "
     "alone",
     &asked.axes},
    {CLI_DURATION, 0, "budget", "TIME", "of the whole: 90s, 5m (default 10m, 1m with --check)", &budget_s},
    {CLI_STRING, 'o', "output", "FILE", "write the tuning file there; - is stdout (the default)", &output},
    {CLI_STRING, 0, "emit-class", "NAME", "write costs for all CPUs like this one (kernels/machines)", &class_name},
    CLI_HEADING("How good is the choice?"),
    {CLI_FLAG, 0, "check", NULL, "regret of the built-in choice on random problems", &checks},
    {CLI_STRING, 0, "tuning", "FILE", "and of that tuning file's", &tuning_file},
    {CLI_FLAG, 0, "without-class", NULL, "and of the nearest other class of CPUs", &without_class},
    {CLI_INT, 0, "points", "N", "so many problems (default 1000)", CLI_WITHIN(&points, 1, 1000000)},
    {CLI_INT, 0, "seed", "N", "of these problems (default 1)", CLI_WITHIN(&asked.seed, 0, INT64_MAX)},
    {CLI_STRING, 0, "csv", "FILE", "write a line for each, for scripts/plot_regret.py", &csv},
    CLI_HEADING("Machine"),
    {CLI_STRING, 0, "cpus", "LIST", BENCH_CPUS_HELP, &asked.cpus},
    {CLI_LIST, 0, "load", "FILE",
     "repeatable: also kernels of plug-ins, libattn's own among them, which programs load as well", &asked.filter.load},
    CLI_END,
};

static const cli_command command = {
    .name = "tune",
    .usage = "[--budget TIME] [-o FILE] | --check [--tuning FILE] [--without-class]",
    .summary =
        "Measures what kernels cost on this machine, from which the library knows which of them is quickest for a problem, "
        "and from which size on threads pay.",
    .options = options,
    .epilogue = "Use it:   ATTN_TUNING=FILE ./program   or attn_tuning_load() (docs/library.md, \"Tuning files\")\n"};

/* ---- Tuning ---- */

static void write_result(void *context, FILE *file) { bench_tune_write(context, file); }

static int conclude_tuning(bench_tune_result *result) {
  fprintf(stderr, "tune: %d problems timed\n", bench_tune_points(result));
  if (!bench_tune_has_costs(result))
    return cli_usage_error("tune",
                           "--budget %gs is too short: too few problems were timed to say what a kernel costs; it should be "
                           "10m, or 10s for one type, mask and head_dim (-a)",
                           budget_s);
  return bench_file_write(output, write_result, result) ? BENCH_EXIT_OK : BENCH_EXIT_INTERNAL;
}

/* A twentieth of the time is for threads, the rest for random problems. */
static int tune(void) {
  const bench_tune_source *source = &bench_tune_machine;
  const double end = source->now_s(NULL) + 0.95 * budget_s;
  int code = bench_file_writable(output) ? 0 : BENCH_EXIT_INTERNAL;
  for (int i = 0; i < lines_asked.count && !code; i++) code = bench_tune_check(&lines_asked.item[i]);
  if (code) return code;
  bench_tune_result *result = calloc(1, sizeof *result);
  if (!result)
    return cli_fail(BENCH_EXIT_INTERNAL, "tune", "out of memory: the times of problems need %zu bytes", sizeof *result);
  result->class = class_name;
  bench_tune_sample(source, &lines_asked, end - source->now_s(NULL), result);
  bench_tune_threads(source, 0.05 * budget_s, result);
  code = conclude_tuning(result);
  free(result);
  return code;
}

/* ---- Regret ---- */

static void print_regret(const bench_regret *r) {
  const bench_tune_shape *w = &r->where;
  printf("%-24s %6.2f %% %7.1f %% %7d    %s %s, %" PRId64 " x %" PRId64 " heads, %" PRId64 " x %" PRId64 " x %" PRId64 "\n",
         r->name, r->count ? 100 * r->sum / r->count : 0, 100 * r->worst, r->above, bench_dtype_name(w->dtype),
         bench_tune_mask_name[w->mask], w->heads_kv, w->group, w->seq_q, w->seq_k, w->dim);
}

typedef struct regrets {
  bench_regret item[BENCH_REGRETS];
  int count;
} regrets;

static void measure_regret(void *context, FILE *file) {
  regrets *r = context;
  const bench_tune_lines *lines = asked.axes.count ? &lines_asked : NULL;
  (void)bench_regret_measure(&bench_tune_machine, lines, (int)points, budget_s, (uint64_t)asked.seed, file, r->item,
                             r->count);
  printf("regret on %d random problems, one thread: time of the choice beyond that of the best kernel\n\n",
         r->item[0].count);
  printf("%-24s %8s %9s %7s    %s\n", "choice", "mean", "worst", "> 10 %",
         "the worst: heads_kv x group, seq_q x seq_k x dim");
  for (int i = 0; i < r->count; i++) print_regret(&r->item[i]);
}

static void add_regret(regrets *r, const char *name, const attn_tuning *tuning) {
  r->item[r->count++] = (bench_regret){.name = name, .tuning = tuning};
}

static void print_class(const char *what, const attn_class *class) {
  printf("%-14s %s, distance %.1f %%%s\n", what, attn_tuning_class(class->costs), 100 * class->distance,
         class->adjusted ? " with a factor for each tier" : "");
}

/* The classes whose costs decide; the built-in choice itself comes without a file. */
static attn_status add_classes(regrets *r) {
  const attn_class *here;
  attn_class other;
  attn_status status = attn_class_here(&here);
  if (status == ATTN_OK) print_class("class", here);
  add_regret(r, "built_in", NULL);
  if (status != ATTN_OK || !without_class) return status;
  status = attn_class_nearest(attn_tuning_class(here->costs), &other);
  if (status == ATTN_OK) print_class("without it", &other);
  add_regret(r, "without_class", other.costs);
  return status;
}

static int check_tuning(void) {
  attn_tuning *tuning = NULL;
  regrets r = {.count = 0};
  attn_status status = tuning_file ? attn_tuning_load(tuning_file, &tuning) : ATTN_OK;
  if (status == ATTN_OK) status = add_classes(&r);
  if (status != ATTN_OK)
    return cli_fail(status == ATTN_UNSUPPORTED ? BENCH_EXIT_UNFIT : BENCH_EXIT_USAGE, "tune", "%s", attn_last_error());
  if (tuning) add_regret(&r, "tuned", tuning);
  bool written = true;
  if (csv)
    written = bench_file_write(csv, measure_regret, &r);
  else
    measure_regret(&r, NULL);
  attn_tuning_destroy(tuning);
  return written ? BENCH_EXIT_OK : BENCH_EXIT_INTERNAL;
}

/* Refuses to tune while a variable is set that changes the automatic choice. */
static int refuse_environment(void) {
  static const char *const variables[] = {"ATTN_TUNING", "ATTN_KERNEL", "ATTN_MAX_ISA", "ATTN_MACHINE"};
  for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
    if (getenv(variables[i]) && *getenv(variables[i]))
      return cli_usage_error("tune", "%s is set; it must not be, because it decides in place of what is measured",
                             variables[i]);
  return 0;
}

int bench_tune_main(int argc, char **argv) {
  int code;
  asked = bench_options_default("tune", NULL, argc, argv);
  tuning_file = csv = class_name = NULL;
  checks = without_class = false;
  output = "-";
  budget_s = 0;
  points = 1000;
  lines_asked.count = 0;
  if (!cli_parse(&command, argc, argv, &code)) return code;
  if ((code = refuse_environment()) != 0 || (code = bench_tune_list(&asked.axes, &lines_asked)) != 0) return code;
  if (asked.filter.load.count && (code = bench_plugins_load(&asked.filter.load, "tune")) != 0) return code;
  if (asked.cpus && (code = bench_pin_cpus("tune", asked.cpus)) != 0) return code;
  if (bench_refuses_to_time("tune")) return BENCH_EXIT_UNFIT;
  if (!checks && (tuning_file || without_class || csv))
    return cli_usage_error("tune", "--tuning, --without-class and --csv belong to --check, which is missing");
  const char *values;
  for (int i = 0; checks && i < asked.axes.count; i++)
    if (!bench_axis_is(asked.axes.item[i], "dtype", &values) && !bench_axis_is(asked.axes.item[i], "pass", &values))
      return cli_usage_error(
          "tune", "-a %s: should be dtype or pass with --check, whose problems have all head dimensions and masks",
          asked.axes.item[i]);
  if (!(budget_s > 0)) budget_s = checks ? 60 : 600;
  return checks ? check_tuning() : tune();
}
