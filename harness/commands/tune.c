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
    {CLI_LIST, 0, "load", "FILE",
     "repeatable: also kernels of plug-ins, libattn's own among them, which programs load as well", &asked.filter.load},
    CLI_END,
};

static const cli_command command = {
    .name = "tune",
    .usage = "[--budget TIME] [-o FILE] | --check FILE",
    .summary =
        "Measures what kernels cost on this machine, from which the library knows which of them is quickest for a problem, "
        "and from which size on threads pay.",
    .options = options,
    .epilogue = "Use it:   ATTN_TUNING=FILE ./program   or attn_tuning_load() (docs/library.md, \"Tuning files\")\n"};

/* ---- Tuning ---- */

static void write_result(void *context, FILE *file) { bench_tune_write(context, file); }

static int conclude(bench_tune_result *result) {
  fprintf(stderr, "tune: %d problems timed\n", result->points[0] + result->points[1] + result->points[2]);
  if (!bench_tune_has_costs(result))
    return cli_usage_error("tune",
                           "--budget %gs is too short: too few problems were timed to say what a kernel costs; it should be "
                           "5m, or 10s for one type, mask and head_dim (-a)",
                           budget_s);
  return bench_file_write(output, write_result, result) ? BENCH_EXIT_OK : BENCH_EXIT_INTERNAL;
}

/* A twentieth of the time is for threads, the rest for random problems. */
static int tune(const bench_tune_lines *lines) {
  static bench_tune_result result;
  const bench_tune_source *source = &bench_tune_machine;
  const double end = source->now_s(NULL) + 0.95 * budget_s;
  int code = bench_file_writable(output) ? 0 : BENCH_EXIT_INTERNAL;
  for (int i = 0; i < lines->count && !code; i++) code = bench_tune_check(&lines->item[i]);
  if (code) return code;
  bench_tune_sample(source, lines, end - source->now_s(NULL), &result);
  bench_tune_threads(source, 0.05 * budget_s, &result);
  return conclude(&result);
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
  static bench_tune_lines lines;
  int code;
  asked = bench_options_default("tune", NULL, argc, argv);
  checked = csv = NULL;
  output = "-";
  budget_s = 0;
  points = 1000;
  if (!cli_parse(&command, argc, argv, &code)) return code;
  if ((code = refuse_environment()) != 0 || (code = bench_tune_list(&asked.axes, &lines)) != 0) return code;
  if (asked.filter.load.count && (code = bench_plugins_load(&asked.filter.load, "tune")) != 0) return code;
  if (asked.cpus && (code = bench_pin_cpus("tune", asked.cpus)) != 0) return code;
  if (bench_refuses_to_time("tune")) return BENCH_EXIT_UNFIT;
  if (!(budget_s > 0)) budget_s = checked ? 60 : 300;
  return checked ? check() : tune(&lines);
}
