/* SPDX-License-Identifier: MIT */
/* Trials on top of bench_stage: one kernel on one case, checked. */
#include "trials.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "commands/options.h"
#include "machine/affinity.h"
#include "machine/emulation.h"
#include "report/writers.h"
#include "timing/peak_rate.h"
#include "timing/run_case_private.h"
#include "timing/stats.h"

enum { SLICES = 2 }; /* of the peak loop, before and after */

static const double SLICE_NS = 0.25e6;

/* The trial that is open. */
typedef struct trial {
  bool open, held;
  int index;
  bench_stage *stage;
  bench_row row;
  bench_entrant entrant;
  bench_peak_slice peak; /* loop NULL: none */
  double rate[2 * SLICES];
  int64_t calls;
  double start_ns;
  bool failed; /* a call returned an error */
  char error[sizeof(((bench_verdict *)0)->reason) + 32];
} trial;

struct bench_trials {
  const attn_kernel_info *kernels[BENCH_MAX_KERNELS + 1];
  int kernel_count;
  bench_case_list cases;
  char (*names)[BENCH_NAME + 128];
  bench_case_settings settings;
  trial now;
  int exit_code;
};

/* ---- Which trials there are -------------------------------------------------------------------------------------------- */

static const char epilogue[] =
    "Google Benchmark's own options go beside these: --benchmark_list_tests, --benchmark_filter=REGEX,\n"
    "--benchmark_repetitions=N, --benchmark_min_time=SECONDS, --benchmark_out=FILE, ...\n"
    "Exit codes: 0 fine, 1 a check failed, 2 usage, 3 nothing matched.\n";

static bool parse(bench_options *o, int argc, char **argv, int *exit_code) {
  const cli_option options[] = {
      BENCH_CASE_OPTIONS(o),
      BENCH_KERNEL_OPTIONS(o),
      CLI_HEADING("Measuring"),
      {CLI_STRING, 0, "cpus", "LIST", BENCH_CPUS_HELP, &o->cpus},
      CLI_END,
  };
  const cli_command command = {.name = "-gbench",
                               .usage = "[-a AXIS=VALUES]... [--preset NAME] [--kernel GLOB]... [--benchmark_...]",
                               .summary =
                                   "Google Benchmark times the cases of attnbench run: each is checked against the float64 "
                                   "oracle first, and one that fails is an error, not a time. Without cases: preset quick.",
                               .options = options,
                               .epilogue = epilogue};
  return cli_parse(&command, argc, argv, exit_code);
}

static int read_trials(bench_trials *t, bench_options *o) {
  bench_selection selection;
  int code = bench_check_overrides(o->command);
  if (!code && o->seed < 0) code = cli_usage_error(o->command, "--seed %lld: should be at least 0", (long long)o->seed);
  if (!code && o->cpus) code = bench_pin_cpus(o->command, o->cpus);
  if (!code) code = bench_options_kernels(o, &selection);
  if (!code) code = bench_options_cases(o, &t->cases);
  if (code) return code;
  if (selection.automatic) t->kernels[t->kernel_count++] = &bench_automatic;
  for (int i = 0; i < selection.count; i++) t->kernels[t->kernel_count++] = selection.kernel[i];
  return 0;
}

static bool name_trials(bench_trials *t) {
  t->names = malloc(((size_t)bench_trials_count(t) + 1) * sizeof *t->names);
  for (int i = 0; t->names && i < bench_trials_count(t); i++)
    bench_series_name(t->names[i], sizeof *t->names, t->kernels[i % t->kernel_count]->name,
                      t->cases.item[i / t->kernel_count].case_id, "");
  return t->names;
}

bench_trials *bench_trials_create(int argc, char **argv, int *exit_code) {
  bench_options o = {.command = "-gbench", .seed = 1, .default_preset = "quick"};
  if (!parse(&o, argc, argv, exit_code)) return NULL;
  *exit_code = BENCH_EXIT_UNFIT;
  if (bench_refuses_to_time(o.command)) return NULL;
  bench_trials *t = calloc(1, sizeof *t);
  *exit_code = t ? read_trials(t, &o) : BENCH_EXIT_INTERNAL;
  if (!*exit_code && !name_trials(t)) *exit_code = BENCH_EXIT_INTERNAL;
  if (!*exit_code && !bench_trials_count(t)) *exit_code = BENCH_EXIT_NOTHING;
  if (!*exit_code) {
    t->settings = (bench_case_settings){.timed = true, .seed = (uint64_t)o.seed};
    return t;
  }
  bench_trials_destroy(t);
  return NULL;
}

int bench_trials_count(const bench_trials *trials) { return trials->cases.count * trials->kernel_count; }

const char *bench_trial_name(const bench_trials *trials, int index) { return trials->names[index]; }

int bench_trials_exit_code(const bench_trials *trials) { return trials->exit_code; }

/* ---- One trial ----------------------------------------------------------------------------------------------------------- */

static void close_trial(bench_trials *t) {
  if (!t->now.open) return;
  bench_stage_close(t->now.stage);
  if (t->now.held) bench_threads_release();
  t->now.open = false;
}

void bench_trials_destroy(bench_trials *trials) {
  if (!trials) return;
  close_trial(trials);
  bench_cases_clear(&trials->cases);
  free(trials->names);
  free(trials);
}

/* The status and reason that stand for a time. */
static const char *refuse(bench_trials *t, bench_status status, const char *reason) {
  snprintf(t->now.error, sizeof t->now.error, "%s: %s", bench_status_name(status), reason);
  if (status == BENCH_FAIL || status == BENCH_ERROR) t->exit_code = BENCH_EXIT_FAILED;
  return t->now.error;
}

static const char *judge(bench_trials *t) {
  const bench_verdict *verdict = &t->now.row.verdict;
  return verdict->status == BENCH_PASS ? NULL : refuse(t, verdict->status, verdict->reason);
}

static void open_trial(bench_trials *t, int index) {
  const bench_case *bench = &t->cases.item[index / t->kernel_count];
  const attn_kernel_info *kernel = t->kernels[index % t->kernel_count];
  trial *now = &t->now;
  *now = (trial){.open = true, .index = index, .held = bench_threads_hold(bench->threads)};
  now->stage = bench_stage_open(bench, &kernel, 1, &t->settings, &now->row);
  if (now->row.verdict.status != BENCH_PASS) return;
  bench_stage_rotate(now->stage);
  now->entrant = bench_stage_entrant(now->stage, &now->stage->jobs[0]);
  if (now->entrant.peak) now->peak = bench_peak_prepare(now->entrant.peak, bench->threads, SLICE_NS);
}

const char *bench_trial_open(bench_trials *trials, int index) {
  if (!trials->now.open || trials->now.index != index) {
    close_trial(trials);
    open_trial(trials, index);
  }
  return judge(trials);
}

static void run_peak(trial *now, double *rate) {
  for (int i = 0; i < SLICES && now->peak.loop; i++) rate[i] = bench_peak_rate(&now->peak);
}

void bench_trial_begin(bench_trials *trials) {
  trial *now = &trials->now;
  run_peak(now, now->rate);
  for (int i = 0; i < now->entrant.tensor_count; i++) bench_entrant_poison(&now->entrant, i);
  bench_team_settle(now->stage->bench->threads);
  now->failed = false;
  now->calls = 0;
  (void)bench_trial_call(trials);
  now->start_ns = bench_now_ns();
  now->calls = 0;
}

bool bench_trial_call(bench_trials *trials) {
  trial *now = &trials->now;
  now->failed |= bench_entrant_call(&now->entrant, now->calls++) != ATTN_OK;
  return !now->failed;
}

const char *bench_trial_end(bench_trials *trials, bench_trial_rates *rates) {
  const double end_ns = bench_now_ns();
  trial *now = &trials->now;
  *rates = (bench_trial_rates){.max_err_ratio = now->row.verdict.max_err_ratio};
  if (now->failed) return refuse(trials, BENCH_ERROR, attn_last_error());
  if (now->calls > 0 && bench_entrant_output_hash(&now->entrant, now->calls - 1) != now->row.verdict.output_hash)
    return refuse(trials, BENCH_FAIL, "an output of the timed runs differs from the one that passed the check");
  const double seconds = 1e-9 * (end_ns - now->start_ns) / (double)(now->calls ? now->calls : 1);
  rates->gflops = 1e-9 * now->stage->flops / seconds;
  rates->gbs = 1e-9 * now->stage->bytes / seconds;
  if (!now->peak.loop) return NULL;
  run_peak(now, now->rate + SLICES);
  rates->peak_gflops = 1e-9 * bench_median(now->rate, 2 * SLICES) * now->stage->bench->threads;
  rates->peak_pct = 100 * rates->gflops / rates->peak_gflops;
  return NULL;
}
