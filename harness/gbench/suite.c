/* SPDX-License-Identifier: MIT */
/* One trial at a time is opened, checked and handed to Google Benchmark's loop. */
#include "gbench/suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/float_mode.h"
#include "base/handlers.h"
#include "commands/options.h"
#include "machine/affinity.h"
#include "machine/environment.h"
#include "report/report.h"
#include "timing/setup.h"

enum {
  SLICES = 2,            /* slices of the peak loop, before and after */
  OTHER_SAMPLES = 30,    /* on other inputs */
  MOST_SAMPLES = 5000,   /* while they seem slower: half a second, in which a CPU that was slowed down is fast again */
  STRAY_NS = 1000 * 1000 /* CPU time of other threads in a sample: a thread of a pool that has not slept yet, clocks that
                            are not read at once */
};

static const double SLICE_NS = 0.25e6;
static const double OTHER_SAMPLE_NS = 0.1e6; /* so short that other programs leave some of them alone */
static const double SLOWER_ON_OTHERS =
    1.3; /* times as long as repeated calls may the quickest sample take on other inputs */

/* The trial that is open. */
typedef struct open_trial {
  bool open, held;
  int index;
  bench_setup *setup; /* NULL: out of memory */
  bench_trial *trial; /* the setup's */
  double rate[2 * SLICES];
  int64_t calls;
  double open_ns, start_ns; /* before and after start_cpu was read */
  bench_cpu_time start_cpu;
  bool failed; /* a call returned an error */
  char error[sizeof(((bench_verdict *)0)->reason) + 32];
} open_trial;

struct gbench_suite {
  const attn_kernel_info *kernels[BENCH_MAX_KERNELS + 1];
  int kernel_count;
  bench_case_list cases;
  char name[BENCH_NAME + 128]; /* the one that gbench_name() returned last */
  bench_case_settings settings;
  open_trial now;
  int exit_code;
};

/* ---- Which trials there are ------------------------------------------------------------------------------------------ */

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

static int read_options(gbench_suite *suite, bench_options *o) {
  bench_selection selection;
  int code = bench_check_overrides(o->command);
  if (!code && o->cpus) code = bench_pin_cpus(o->command, o->cpus);
  if (!code) code = bench_options_kernels(o, &selection);
  if (!code) code = bench_options_cases(o, &suite->cases);
  if (code) return code;
  if (selection.automatic) suite->kernels[suite->kernel_count++] = &bench_automatic;
  for (int i = 0; i < selection.count; i++) suite->kernels[suite->kernel_count++] = selection.kernel[i];
  return 0;
}

gbench_suite *gbench_create(int argc, char **argv, int *exit_code) {
  bench_options o = {.command = "-gbench", .seed = 1, .default_preset = "quick"};
  bench_handlers_note();
  bench_threads_limit();
  if (!parse(&o, argc, argv, exit_code)) return NULL;
  *exit_code = BENCH_EXIT_UNFIT;
  if (bench_refuses_to_time(o.command)) return NULL;
  gbench_suite *suite = calloc(1, sizeof *suite);
  *exit_code = suite ? read_options(suite, &o) : BENCH_EXIT_INTERNAL;
  if (!*exit_code && !gbench_count(suite)) *exit_code = BENCH_EXIT_NOTHING;
  if (!*exit_code) {
    suite->settings = (bench_case_settings){.timed = true, .seed = (uint64_t)o.seed};
    return suite;
  }
  gbench_destroy(suite);
  return NULL;
}

int gbench_count(const gbench_suite *suite) { return suite->cases.count * suite->kernel_count; }

const char *gbench_name(gbench_suite *suite, int index) {
  bench_series_name(suite->name, sizeof suite->name, suite->kernels[index % suite->kernel_count]->name,
                    suite->cases.item[index / suite->kernel_count].case_id, "");
  return suite->name;
}

int gbench_exit_code(const gbench_suite *suite) { return suite->exit_code; }

/* ---- One trial ------------------------------------------------------------------------------------------------------- */

static void close_trial(gbench_suite *suite) {
  if (!suite->now.open) return;
  bench_setup_close(suite->now.setup);
  if (suite->now.held) bench_threads_release();
  suite->now.open = false;
}

void gbench_destroy(gbench_suite *suite) {
  if (!suite) return;
  close_trial(suite);
  bench_cases_clear(&suite->cases);
  free(suite);
}

/* Notes why there is no time, and returns it. */
static const char *refuse(gbench_suite *suite, bench_status status, const char *reason) {
  snprintf(suite->now.error, sizeof suite->now.error, "%s: %s", bench_status_name(status), reason);
  if (status == BENCH_FAIL || status == BENCH_ERROR) suite->exit_code = BENCH_EXIT_FAILED;
  return suite->now.error;
}

static const char *refuse_unless_passed(gbench_suite *suite) {
  if (!suite->now.setup) return refuse(suite, BENCH_ERROR, "out of memory");
  const bench_verdict *verdict = &suite->now.trial->verdict;
  return verdict->status == BENCH_PASS ? NULL : refuse(suite, verdict->status, verdict->reason);
}

static void open_setup(gbench_suite *suite, int index) {
  const bench_case *bench = &suite->cases.item[index / suite->kernel_count];
  const attn_kernel_info *kernel = suite->kernels[index % suite->kernel_count];
  open_trial *now = &suite->now;
  *now = (open_trial){.open = true, .index = index, .held = bench_threads_hold(bench->threads)};
  now->setup = bench_setup_open(bench, &kernel, 1, &suite->settings);
  if (!now->setup) return;
  bench_trial *trial = now->trial = &now->setup->trials[0];
  (void)bench_setup_check(now->setup);
  if (trial->verdict.status != BENCH_PASS) return;
  const int given = bench_team_count(bench->threads).threads;
  if (bench->threads == 1) bench_team_dismiss();
  if (given < bench->threads) bench_conclude(trial, BENCH_ERROR, "timing: %d of %d threads run", given, bench->threads);
  bench_setup_rotate(now->setup);
  bench_setup_prepare_trial(now->setup, trial);
  if (trial->peak) trial->slice = bench_peak_prepare(trial->peak, bench->threads, SLICE_NS);
}

const char *gbench_open(gbench_suite *suite, int index) {
  if (!suite->now.open || suite->now.index != index) {
    close_trial(suite);
    open_setup(suite, index);
  }
  return refuse_unless_passed(suite);
}

static void run_peak(const open_trial *now, double *rate) {
  for (int i = 0; i < SLICES && now->trial->slice.loop; i++) rate[i] = bench_peak_rate(&now->trial->slice);
}

void gbench_begin(gbench_suite *suite) {
  open_trial *now = &suite->now;
  const int threads = now->setup->bench->threads;
  run_peak(now, now->rate);
  bench_team_settle(threads);
  now->failed = false;
  now->calls = 0;
  (void)gbench_call(suite);
  for (int i = 0; i < now->trial->tensor_count; i++) {
    bench_trial_restore(now->trial, i);
    bench_trial_renew(now->trial, i, threads);
    bench_trial_poison(now->trial, i);
  }
  now->calls = 0;
  now->open_ns = bench_now_ns();
  now->start_cpu = bench_cpu_now();
  now->start_ns = bench_now_ns();
}

bool gbench_call(gbench_suite *suite) {
  open_trial *now = &suite->now;
  now->failed |= bench_trial_call(now->trial, now->calls) != ATTN_OK;
  now->calls++;
  return !now->failed;
}

static bool output_is_the_checked_one(const open_trial *now) {
  return now->calls == 0 || bench_trial_output_hash(now->trial, now->calls - 1) == now->trial->verdict.output_hash;
}

/* Google Benchmark's calls are on the same inputs again and again. So a few samples of `attnbench run` follow, whose calls
 * are on inputs that none has seen: they must be right, and not take longer. False: the verdict says why. */
static bool is_as_quick_on_others(open_trial *now, double time_ns) {
  bench_trial *t = now->trial, other = *t;
  bench_sampler sampler = {.meter = &bench_machine_meter,
                           .sample_ns = OTHER_SAMPLE_NS,
                           .random = (uint64_t)now->start_ns,
                           .float_mode = bench_float_mode()};
  bench_slices slices = {.loop = NULL};
  double least_ns = INFINITY;
  other.peak = NULL;
  if (!bench_trial_allocate(&other, MOST_SAMPLES)) return bench_conclude(t, BENCH_ERROR, "out of memory for samples");
  bool fine = bench_sample_calibrate(&sampler, &other);
  for (int i = 0; i < MOST_SAMPLES && fine && (i < OTHER_SAMPLES || least_ns > SLOWER_ON_OTHERS * time_ns); i++) {
    fine = bench_sample_take(&sampler, &other, 0, &slices);
    if (fine) least_ns = fmin(least_ns, other.samples.time_ns[i]);
  }
  bench_trial_clear(&other);
  if (!fine) return bench_conclude(t, BENCH_ERROR, "timing: %s", sampler.error);
  if (least_ns <= SLOWER_ON_OTHERS * time_ns) return true;
  return bench_conclude(t, BENCH_ERROR, "timing: skips work: repeated calls take %.3g us, calls on other inputs %.3g us",
                        1e-3 * time_ns, 1e-3 * least_ns);
}

/* Checks by the rules of `attnbench run` that such a time is possible; all calls are one sample. False: the verdict says
 * why. */
static bool is_credible(open_trial *now, double time_ns, double busy) {
  bench_trial *t = now->trial;
  if (!bench_trial_allocate(t, 1)) return bench_conclude(t, BENCH_ERROR, "out of memory for a sample"), false;
  t->samples.iterations = now->calls;
  t->samples.rounds = 1;
  t->samples.time_ns[0] = time_ns / (double)now->calls;
  t->samples.busy[0] = busy;
  t->samples.loop_rate[0] = bench_median(now->rate, 2 * SLICES);
  bench_setup_check_time(now->setup, t);
  bench_trial_clear(t);
  return t->verdict.status == BENCH_PASS && (now->calls < 2 || is_as_quick_on_others(now, time_ns / (double)now->calls));
}

static void fill_rates(const open_trial *now, double seconds, gbench_rates *rates) {
  rates->gflops = 1e-9 * now->setup->flops / seconds;
  rates->gbs = 1e-9 * now->setup->bytes / seconds;
  if (!now->trial->slice.loop) return;
  rates->peak_gflops = 1e-9 * bench_median(now->rate, 2 * SLICES) * now->setup->bench->threads;
  rates->peak_pct = 100 * rates->gflops / rates->peak_gflops;
}

/* Counts busy threads. `attnbench run` does so in every round, and the median counts. Here one sample counts, and the first
 * one is a single call, which may take microseconds. So STRAY_NS of other threads' CPU time are free: a hidden thread is
 * busy in all of the many calls of the last sample. Several threads are held against whole_ns, the wall time around both
 * readings of the CPU clock: this thread may lose its CPU between a reading and the call while the others go on. */
static double busy_threads(int threads, bench_cpu_time from, bench_cpu_time to, double whole_ns) {
  const double all_ns = to.all_ns - from.all_ns, own_ns = fmax(to.own_ns - from.own_ns, 1);
  if (threads > 1) return all_ns / whole_ns;
  return 1 + fmax(all_ns - own_ns - STRAY_NS, 0) / own_ns;
}

const char *gbench_end(gbench_suite *suite, gbench_rates *rates) {
  const double end_ns = bench_now_ns();
  const bench_cpu_time end_cpu = bench_cpu_now();
  open_trial *now = &suite->now;
  const bench_cpu_time from = now->start_cpu;
  const double time_ns = end_ns - now->start_ns, whole_ns = bench_now_ns() - now->open_ns;
  const double busy = busy_threads(now->setup->bench->threads, from, end_cpu, whole_ns);
  *rates = (gbench_rates){.max_err_ratio = now->trial->verdict.max_err_ratio};
  if (now->failed) return refuse(suite, BENCH_ERROR, attn_last_error());
  if (!output_is_the_checked_one(now))
    return refuse(suite, BENCH_FAIL, "an output of the timed runs differs from the one that passed the check");
  if (!now->calls) return NULL;
  run_peak(now, now->rate + SLICES);
  if (!is_credible(now, time_ns, busy)) return refuse_unless_passed(suite);
  fill_rates(now, 1e-9 * time_ns / (double)now->calls, rates);
  return NULL;
}
