/* SPDX-License-Identifier: MIT */
/* attn_tune() by a scripted clock: the order of the kernels, their medians and intervals, who takes part for how long, and
 * what is not timed. Only the last tests measure, and they expect no time. */
#define TEST_SETUP    begin
#define TEST_TEARDOWN clear_environment
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/plan/tune.h"
#include "tests/support/failing_malloc.h"
#include "timing/stats.h"

/* ---- The script ---- */

enum { MOST_CALLS = 4000 };

/* Nanoseconds of a call of each kernel; the clock moves by nothing else. */
typedef struct scripted_kernel {
  const char *name;
  double ns, ns_a_call;    /* time of the first call, and how much longer each call is than the one before */
  double per_thread;       /* added for each thread beyond the first */
  double ns_more_at_first; /* how much longer its first call takes */
  bool fails;
  int good;                  /* calls before the first one that fails */
  int calls, disturbed_call; /* which takes 60 ms longer; 0: none */
  double spent[MOST_CALLS];
} scripted_kernel;

static scripted_kernel script[] = {{.name = "flash_c"}, {.name = "blocked_c"}, {.name = "naive_c"}, {.name = NULL}};
static double clock_ns, slower_by; /* the factor that all calls take longer by, for each second of the clock */
static char last_kernel[64];
static int first_threads;    /* threads of the first call; 0: there was none */
static int calls_to_disturb; /* calls on several threads whose CPUs other programs take */
static double disturbed_ns;  /* the time that such a call takes longer */
static attn_process_usage used;

static int threads_of(const attn_plan *plan) {
  int threads = 0;
  assert_int_equal(sscanf(strstr(attn_plan_describe(plan), "threads "), "threads %d", &threads), 1);
  return threads;
}

static double scripted_now(void *context) { return (void)context, clock_ns; }

static scripted_kernel *find(const char *name) {
  scripted_kernel *k = script;
  while (k->name && strcmp(k->name, name) != 0) k++;
  return k;
}

static attn_status scripted_call(void *context, const attn_plan *plan, const attn_args *args, void *workspace,
                                 size_t bytes) {
  scripted_kernel *k = find(attn_plan_kernel(plan));
  (void)context, (void)args, (void)workspace;
  assert_true(bytes >= attn_plan_workspace(plan));
  const double ns = (k->ns + k->calls * k->ns_a_call + (threads_of(plan) - 1) * k->per_thread) +
                    (k->calls && k->calls == k->disturbed_call ? 6e7 : 0) + (k->calls == 0 ? k->ns_more_at_first : 0);
  if (k->calls < MOST_CALLS) k->spent[k->calls] = ns;
  k->calls++;
  const int threads = threads_of(plan);
  const bool disturbed = threads > 1 && calls_to_disturb > 0;
  first_threads = first_threads ? first_threads : threads;
  calls_to_disturb -= disturbed;
  used.preemptions += disturbed;
  used.cpu_ns += threads * ns;
  clock_ns += ns * (1 + slower_by * 1e-9 * clock_ns) + disturbed * disturbed_ns;
  snprintf(last_kernel, sizeof last_kernel, "%s", attn_plan_kernel(plan));
  return k->fails && k->calls > k->good ? ATTN_OUT_OF_MEMORY : ATTN_OK;
}

static attn_process_usage scripted_usage(void *context) { return (void)context, used; }

static const attn_tune_meter meter = {.now_ns = scripted_now, .call = scripted_call, .usage = scripted_usage};

static int clear_environment(void **state) { return unsetenv("ATTN_KERNEL") | expect_no_blocks(state); }

static int begin(void **state) {
  static const double usual_ms[] = {3, 1, 2, 50};
  for (size_t i = 0; i < COUNT(script); i++) script[i] = (scripted_kernel){.name = script[i].name, .ns = 1e6 * usual_ms[i]};
  clock_ns = slower_by = disturbed_ns = 0;
  first_threads = calls_to_disturb = 0;
  return note_blocks(state) || unsetenv("ATTN_KERNEL");
}

static attn_problem problem;
static test_data data;

static attn_tune_report tune(const attn_options *options, double seconds, attn_status expected) {
  attn_tune_report report = {.struct_size = sizeof report};
  attn_problem_init(&problem, 1, 2, 2, 40, 40, 16, 16); /* too many queries for the decode kernels */
  problem.score = ATTN_SCORE_GAUSSIAN;                  /* no product for kernels on other libraries, some of tier c */
  data = test_data_create(&problem, 1);
  assert_int_equal(attn_tune_by(&meter, &problem, &data.args, options, seconds, &report), expected);
  test_data_destroy(&data);
  for (int i = 0; i < report.count * report.count; i++) { /* each pair of kernel and threads stands once */
    const attn_tune_entry *a = &report.entry[i / report.count], *b = &report.entry[i % report.count];
    assert_true(a == b || a->threads != b->threads || strcmp(a->kernel, b->kernel) != 0);
  }
  return report;
}

/* The kernels of plain C, on one thread. */
static attn_tune_report tune_plain(double seconds) {
  return tune(&ATTN_STRUCT(attn_options, .max_isa = "c", .threads = 1), seconds, ATTN_OK);
}

static const attn_tune_entry *entry_of(const attn_tune_report *report, const char *kernel, int threads) {
  for (int i = 0; i < report->count; i++)
    if (strcmp(report->entry[i].kernel, kernel) == 0 && report->entry[i].threads == threads) return &report->entry[i];
  return NULL;
}

/* ---- What comes out ---- */

static void expect_entry(const attn_tune_entry *e, const char *kernel, double ns, double ratio) {
  assert_string_equal(e->kernel, kernel);
  assert_true(e->time_ns == ns && e->time_low_ns == ns && e->time_high_ns == ns);
  assert_true(fabs(e->ratio - ratio) < 1e-9 && fabs(e->ratio_low - ratio) < 1e-9 && fabs(e->ratio_high - ratio) < 1e-9);
}

TEST(the_quickest_comes_first) {
  const attn_tune_report report = tune_plain(2);
  assert_true(report.timed >= 3 && report.count >= report.timed);
  expect_entry(&report.entry[0], "blocked_c", 1e6, 1);
  expect_entry(&report.entry[1], "naive_c", 2e6, 2);
  expect_entry(&report.entry[2], "flash_c", 3e6, 3);
  assert_string_equal(report.automatic, "flash_c");
  assert_int_equal(report.automatic_threads, 1);
  assert_int_equal(report.left_out, 0);
  assert_int_equal(report.entry[0].rounds, report.rounds);
}

TEST(the_last_call_is_the_winners) {
  (void)tune_plain(1);
  assert_string_equal(last_kernel, "blocked_c");
}

TEST(the_time_is_kept) {
  find("flash_c")->ns = find("naive_c")->ns = 1.2e6;
  const attn_tune_report report = tune_plain(0.2);
  assert_true(report.seconds >= 0.2 && report.seconds < 0.202 && report.rounds > 50);
  for (size_t i = 0; i < COUNT(script); i++) script[i].ns = 1e5;
  assert_int_equal(tune_plain(1000).rounds, 101); /* more would tell nothing new */
}

/* Samples of different length: median and interval are those of the harness. */
TEST(intervals_are_order_statistics) {
  find("blocked_c")->ns_a_call = 1000;
  const attn_tune_report report = tune_plain(0.3);
  const attn_tune_entry *e = entry_of(&report, "blocked_c", 1);
  const scripted_kernel *k = find("blocked_c"); /* the first call is no sample */
  const bench_summary s = bench_summarise(k->spent + 1, e->rounds);
  assert_true(e->rounds > 20);
  assert_true(e->time_ns == s.median && e->time_low_ns == s.ci_lo && e->time_high_ns == s.ci_hi);
}

TEST(few_rounds_have_no_interval) {
  script[0].ns = script[1].ns = script[2].ns = 4e6;
  const attn_tune_report report = tune_plain(0.05);
  assert_true(report.entry[0].rounds >= 1 && report.entry[0].rounds < 6);
  assert_true(report.entry[0].time_low_ns == 0 && report.entry[0].time_high_ns == INFINITY);
}

/* A machine that becomes slower makes all medians longer; ratios are by rounds. */
TEST(ratios_do_not_feel_a_slower_clock) {
  slower_by = 3;
  script[2].ns = 1.2e6; /* naive_c: near the best, so that it is in all rounds */
  const attn_tune_report report = tune_plain(0.5);
  const attn_tune_entry *e = entry_of(&report, "naive_c", 1);
  assert_true(e->time_ns > 1.5e6);
  assert_true(e->time_high_ns > 1.02 * e->time_low_ns);
  assert_true(fabs(e->ratio - 1.2) < 0.02 && e->ratio_low > 1.15 && e->ratio_high < 1.25);
  assert_true(e->ratio_low < e->ratio_high);
}

/* ---- Who takes part ---- */

TEST(what_is_far_behind_leaves) {
  find("naive_c")->ns = 1.1e6;
  const attn_tune_report report = tune_plain(0.3);
  const attn_tune_entry *slow = entry_of(&report, "flash_c", 1), *near = entry_of(&report, "naive_c", 1);
  assert_int_equal(slow->rounds, 6);
  assert_int_equal(near->rounds, report.entry[0].rounds);
  assert_true(near->rounds > 60);
}

/* Each kernel has a share of half of the time. A round takes two calls of one that is far behind: one to warm up. */
TEST(slow_kernels_leave_when_their_share_is_spent) {
  for (double ns = 5e6; ns <= 60e6; ns += 5e6) {
    find("naive_c")->ns = ns;
    const attn_tune_report report = tune_plain(1);
    const double rounds = floor(0.25e9 / report.count / ns);
    assert_int_equal(entry_of(&report, "naive_c", 1)->rounds, (int)fmin(6, fmax(1, rounds)));
  }
}

TEST(one_disturbed_sample_sends_nobody_away) {
  find("naive_c")->ns = 1.1e6;
  find("naive_c")->disturbed_call = 1; /* the first sample */
  find("blocked_c")->ns_more_at_first = 2e6;
  const attn_tune_report report = tune_plain(0.3);
  const attn_tune_entry *e = entry_of(&report, "naive_c", 1);
  assert_true(e->rounds == report.rounds && entry_of(&report, "blocked_c", 1)->rounds == report.rounds);
  assert_true(fabs(e->ratio - 1.1) < 1e-9);
}

TEST(short_calls_are_repeated) {
  find("blocked_c")->ns = 100;
  const attn_tune_report report = tune_plain(0.1);
  const int calls = find("blocked_c")->calls - 4; /* three at first, one at the end */
  assert_int_equal(report.entry[0].rounds * (1 + 500), calls);
  assert_true(fabs(report.entry[0].time_ns - 100) < 1e-3);
}

/* Tunes a problem of 23 MFLOP, for which plain C is expected to take 4.6 ms. */
static attn_tune_report tune_shortly(const attn_options *options, double seconds) {
  attn_tune_report report = {.struct_size = sizeof report};
  attn_problem_init(&problem, 1, 1, 1, 600, 600, 16, 16);
  data = test_data_create(&problem, 1);
  test_ok(attn_tune_by(&meter, &problem, &data.args, options, seconds, &report));
  test_data_destroy(&data);
  return report;
}

static attn_tune_report tune_too_shortly(const attn_options *options) { return tune_shortly(options, 0.001); }

/* A kernel that would take too long is never called, and is named at the end. */
TEST(there_are_kernels_without_a_time) {
  const attn_tune_report report = tune_too_shortly(&ATTN_STRUCT(attn_options, .max_isa = "c", .threads = 1));
  assert_int_equal(report.timed, 1); /* the automatic choice */
  assert_string_equal(report.entry[0].kernel, "flash_c");
  assert_true(report.count >= 3);
  assert_null(report.not_timed[0]);
  for (int i = 1; i < report.count; i++) {
    assert_true(report.entry[i].rounds == 0 && report.entry[i].time_ns == 0);
    assert_string_equal(report.not_timed[i], "no time was left for its first call");
  }
  assert_int_equal(find("naive_c")->calls, 0);
}

TEST(a_kernel_that_fails_has_no_time) {
  find("blocked_c")->fails = true;
  const attn_tune_report report = tune_plain(0.3);
  assert_string_equal(report.entry[0].kernel, "naive_c");
  const attn_tune_entry *failed = entry_of(&report, "blocked_c", 1);
  assert_int_equal(failed->rounds, 0);
  assert_string_equal(report.not_timed[failed - report.entry], "a call of it failed");
  assert_int_equal(find("blocked_c")->calls, 1);
  assert_true(report.entry[0].rounds > 40); /* an entry without time is not the best */
}

TEST(a_kernel_that_has_failed_is_called_no_more) {
  for (int good = 0; good < 40; good += 3) {
    begin(NULL);
    find("blocked_c")->fails = true;
    find("blocked_c")->good = good;
    const attn_tune_report report = tune_plain(0.3);
    const attn_tune_entry *failed = entry_of(&report, "blocked_c", 1);
    assert_in_range(find("blocked_c")->calls, good + 1, good + 2);
    assert_int_equal(failed->rounds, 0);
    assert_string_equal(report.not_timed[failed - report.entry], "a call of it failed");
    assert_string_equal(report.entry[0].kernel, "naive_c");
  }
}

TEST(if_all_fail_so_does_the_call) {
  for (size_t i = 0; i < COUNT(script); i++) script[i].fails = true;
  (void)tune(&ATTN_STRUCT(attn_options, .max_isa = "c", .threads = 1), 0.3, ATTN_OUT_OF_MEMORY);
}

/* The test runs with OMP_NUM_THREADS=4; without OpenMP there is one thread. */
TEST(threads_are_part_of_the_choice) {
  find("blocked_c")->per_thread = 1e6;
  find("naive_c")->per_thread = -1e5;
  const attn_tune_report report = tune(&ATTN_STRUCT(attn_options, .max_isa = "c"), 3, ATTN_OK);
  assert_string_equal(report.entry[0].kernel, "blocked_c");
  assert_int_equal(report.entry[0].threads, 1);
  if (!entry_of(&report, "naive_c", 4)) return;
  assert_non_null(entry_of(&report, "naive_c", 2));
  assert_null(entry_of(&report, "naive_c", 3));
  assert_true(entry_of(&report, "naive_c", 4)->time_ns < entry_of(&report, "naive_c", 2)->time_ns);
}

/* Each call on several threads takes a quarter of the time that there is. */
TEST(one_thread_is_tried_first) {
  for (size_t i = 0; i < COUNT(script); i++) script[i].per_thread = 7e7;
  const attn_tune_report report = tune(&ATTN_STRUCT(attn_options, .max_isa = "c"), 0.3, ATTN_OK);
  assert_int_equal(first_threads, 1);
  assert_string_equal(report.entry[0].kernel, "blocked_c");
  assert_int_equal(report.entry[0].threads, 1);
  for (size_t i = 0; i + 1 < COUNT(script); i++) assert_true(entry_of(&report, script[i].name, 1)->rounds > 0);
}

/* One thread of the automatic choice is called even where that takes longer than the whole time, as long as it may be
 * quicker than the automatic choice was. */
TEST(one_thread_is_tried_where_all_take_too_long) {
  find("flash_c")->per_thread = 1e7;
  const attn_tune_report report = tune_too_shortly(&ATTN_STRUCT(attn_options, .max_isa = "c"));
  assert_int_equal(report.entry[0].threads, 1);
}

/* One thread may take all of the time, and not only its share, also where several threads are quicker. */
TEST(one_thread_may_take_all_of_the_time) {
  find("flash_c")->ns = 1e6;
  for (int fits = 0; fits < 2; fits++) {
    const attn_tune_report report = tune_shortly(&ATTN_STRUCT(attn_options, .max_isa = "c"), fits ? 0.02 : 0.001);
    if (report.automatic_threads > 1) assert_int_equal(entry_of(&report, "flash_c", 1)->rounds > 0, fits);
  }
}

/* Otherwise the automatic choice alone has a time, even a disturbed one. */
TEST(a_disturbed_time_is_better_than_none) {
  find("flash_c")->ns = 1e6;
  calls_to_disturb = MOST_CALLS, disturbed_ns = 1e6;
  const attn_tune_report report = tune_too_shortly(&ATTN_STRUCT(attn_options, .max_isa = "c"));
  assert_int_equal(report.timed, 1);
  assert_string_equal(report.entry[0].kernel, report.automatic);
  assert_int_equal(report.entry[0].threads, report.automatic_threads);
}

static const char *reason_of(const attn_tune_report *report, const char *kernel, int threads) {
  return report->not_timed[entry_of(report, kernel, threads) - report->entry];
}

/* On several threads the kernels are quicker, but other programs take the CPUs of this many of these calls. */
static attn_tune_report tune_beside_others(int calls, double longer_ns, double gain_ns, double seconds) {
  for (size_t i = 0; i < COUNT(script); i++) script[i].per_thread = -gain_ns;
  calls_to_disturb = calls, disturbed_ns = longer_ns;
  return tune(&ATTN_STRUCT(attn_options, .max_isa = "c"), seconds, ATTN_OK);
}

/* The test runs with OMP_NUM_THREADS=4; without OpenMP there is one thread. The others have their intervals before. */
TEST(threads_that_lose_their_cpus_are_left_out) {
  const attn_tune_report report = tune_beside_others(MOST_CALLS, 4e7, 1e5, 1);
  assert_int_equal(report.entry[0].threads, 1);
  for (int i = 0; i < report.timed; i++) assert_true(report.entry[i].threads == 1 && !report.not_timed[i]);
  for (int i = 0; i < report.timed; i++) assert_true(report.entry[i].rounds >= 6);
  if (!entry_of(&report, "flash_c", 4)) return;
  assert_non_null(strstr(reason_of(&report, "flash_c", 4), "other programs"));
  assert_non_null(strstr(reason_of(&report, "blocked_c", 2), "other programs"));
  assert_int_equal(entry_of(&report, "flash_c", 4)->rounds, 0);
}

/* The first calls lose their CPUs, and later ones do not: they are tried again, and win. */
TEST(threads_that_lost_their_cpus_are_tried_again) {
  const attn_tune_report report = tune_beside_others(6, 2e6, 1e5, 3);
  if (!entry_of(&report, "flash_c", 4)) return;
  expect_entry(&report.entry[0], "blocked_c", 7e5, 1);
  assert_int_equal(report.entry[0].threads, 4);
  assert_true(report.entry[0].rounds >= 6);
}

/* A few lost calls are fewer than half of all. No number of threads is quicker here. */
TEST(few_lost_calls_leave_nothing_out) {
  for (int calls = 0; calls < 3; calls++) {
    begin(NULL);
    const attn_tune_report report = tune_beside_others(calls, 4e7, 0, 3);
    for (int i = 0; i < 3 && entry_of(&report, script[i].name, 4); i++)
      assert_true(entry_of(&report, script[i].name, 4)->rounds > 0 && entry_of(&report, script[i].name, 2)->rounds > 0);
  }
}

/* Disturbed, and quicker all the same: four threads take a third of the time of one. */
TEST(what_is_quicker_beyond_doubt_stays) {
  for (size_t i = 0; i < COUNT(script); i++) script[i].ns = 9e6;
  const attn_tune_report report = tune_beside_others(MOST_CALLS, 1e6, 2.4e6, 3);
  if (!entry_of(&report, "flash_c", 4)) return;
  assert_int_equal(report.entry[0].threads, 4);
  assert_null(report.not_timed[0]);
}

TEST(a_named_kernel_is_alone) {
  attn_tune_report report = tune(&ATTN_STRUCT(attn_options, .kernel = "naive_c", .threads = 1), 0.1, ATTN_OK);
  assert_int_equal(report.count, 1);
  setenv("ATTN_KERNEL", "blocked_c", 1);
  report = tune(&ATTN_STRUCT(attn_options, .threads = 1), 0.1, ATTN_OK);
  assert_int_equal(report.count, 1);
  assert_string_equal(report.entry[0].kernel, "blocked_c");
}

TEST(kernels_that_round_their_inputs_are_not_timed) {
  const attn_tune_report report = tune(&ATTN_STRUCT(attn_options, .threads = 1), 0.1, ATTN_OK);
  for (int i = 0; i < attn_kernel_count(); i++)
    if (attn_kernel_get(i)->numerics.input_rounding > 0 || attn_kernel_get(i)->numerics.query_rounding > 0)
      assert_null(entry_of(&report, attn_kernel_get(i)->name, 1));
}

/* ---- Mistakes ---- */

TEST(mistakes_are_sentences) {
  attn_problem_init(&problem, 1, 2, 2, 4, 4, 16, 16);
  data = test_data_create(&problem, 1);
  attn_tune_report report, before;
  memset(&report, 7, sizeof report);
  test_invalid(attn_tune(&problem, &data.args, NULL, 1, NULL), "report is NULL");
  test_invalid(attn_tune(&problem, &data.args, NULL, 0, &report), "seconds is 0");
  test_invalid(attn_tune(&problem, &data.args, NULL, NAN, &report), "seconds is");
  test_invalid(attn_tune(&problem, &data.args, NULL, 1e9, &report), "at most 1000000");
  test_invalid(attn_tune(NULL, &data.args, NULL, 1, &report), "problem is NULL");
  test_invalid(attn_tune(&problem, NULL, NULL, 1, &report), "args is NULL");
  test_invalid(attn_tune(&problem, &(attn_args){.q = data.args.q}, NULL, 1, &report), "attn_args.k is NULL");
  problem.uses = ATTN_USE_STATE;
  test_invalid(attn_tune(&problem, &data.args, NULL, 1, &report), "uses has ATTN_USE_STATE");
  problem.uses = 0;
  before = report;
  test_refused(attn_tune(&problem, &data.args, &ATTN_STRUCT(attn_options, .kernel = "flash_mmx"), 1, &report),
               ATTN_UNKNOWN_KERNEL, "flash_mmx");
  assert_memory_equal(&report, &before, sizeof report);       /* a failing call writes nothing */
  report.struct_size = offsetof(attn_tune_report, not_timed); /* for a program that knows no reasons */
  test_ok((attn_tune)(&problem, &data.args, NULL, 0.001, &report));
  assert_true(report.timed >= 1);
  assert_memory_equal(report.not_timed, before.not_timed, sizeof report.not_timed);
  report.struct_size = 12;
  test_invalid((attn_tune)(&problem, &data.args, NULL, 1, &report), "attn_tune_report.struct_size is 12");
  test_data_destroy(&data);
}

/* ---- By the real clock ---- */

TEST(o_holds_the_first_entrys_answer) {
  attn_problem_init(&problem, 1, 2, 2, 40, 40, 16, 16);
  data = test_data_create(&problem, 1);
  test_data again = test_data_share_inputs(&problem, &data);
  attn_tune_report report;
  test_ok(attn_tune(&problem, &data.args, NULL, 0.01, &report));
  assert_true(report.timed >= 1 && report.entry[0].time_ns > 0 && report.entry[0].ratio == 1);
  const attn_options best = ATTN_STRUCT(attn_options, .kernel = report.entry[0].kernel, .threads = report.entry[0].threads);
  test_ok(test_run(&problem, &again.args, &best));
  assert_memory_equal(data.args.o, again.args.o, data.o_bytes);
  test_data_destroy_outputs(&again);
  test_data_destroy(&data);
}

/* Kernels read keys in shuffled pages, and the answer is that of the same keys at one stride. */
TEST(keys_in_pages_can_be_timed) {
  enum { TOKENS = 16, KEYS = 40, DIM = 16, PAGE = TOKENS * DIM };
  static const int32_t table[] = {3, 0, 2}, kv_len[] = {KEYS};
  attn_problem_init(&problem, 1, 2, 1, 5, KEYS, DIM, DIM);
  data = test_data_create(&problem, 1);
  attn_problem paged = problem;
  attn_problem_set_pages(&paged, TOKENS, 4);
  static float k[4 * PAGE], v[4 * PAGE];
  for (int j = 0; j < KEYS; j++) {
    const int to = table[j / TOKENS] * PAGE + j % TOKENS * DIM;
    memcpy(k + to, (const float *)data.args.k + j * DIM, DIM * sizeof *k);
    memcpy(v + to, (const float *)data.args.v + j * DIM, DIM * sizeof *v);
  }
  attn_args args = data.args;
  args.k = k, args.v = v, args.page_table = table, args.kv_len = kv_len;
  attn_tune_report report;
  test_ok(attn_tune(&paged, &args, NULL, 0.01, &report));
  assert_true(report.timed >= 1 && report.entry[0].time_ns > 0);
  test_data dense = test_data_share_inputs(&problem, &data);
  const attn_options best = ATTN_STRUCT(attn_options, .kernel = report.entry[0].kernel, .threads = report.entry[0].threads);
  test_ok(test_run(&problem, &dense.args, &best));
  assert_memory_equal(data.args.o, dense.args.o, data.o_bytes);
  args.page_table = NULL;
  test_invalid(attn_tune(&paged, &args, NULL, 1, &report), "page_table is NULL");
  test_data_destroy_outputs(&dense);
  test_data_destroy(&data);
}

TEST(nothing_to_compute_can_be_timed) {
  attn_problem_init(&problem, 1, 2, 2, 0, 8, 16, 16);
  attn_tune_report report;
  const attn_args none = ATTN_STRUCT(attn_args, .q = NULL);
  test_ok(attn_tune(&problem, &none, NULL, 0.001, &report));
  assert_true(report.timed >= 1);
}
