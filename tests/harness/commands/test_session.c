/* SPDX-License-Identifier: MIT */
/* A session over cases, with scripted runs of them: which kernels run, with which budget, which rows of a journal stay, and
 * what is kept of a run that was interrupted. tests/harness/commands/test_cli.py runs whole sessions. */
#define TEST_TEARDOWN close_session
static int close_session(void **state);
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli.h"
#include "commands/session.h"
#include "tests/support/layer_support.h"

/* ---- Scripted runs ---------------------------------------------------------------------------------------------------- */

enum { MOST_RUNS = 12 };

static struct {
  double seconds, run_s; /* the time now, and the duration of a run */
  int runs, stops_at;    /* the user presses Ctrl-C in this run; 0: in none */
  bool in_time;          /* the run under way was complete all the same */
  bench_status status;   /* in every row */
  double budget_s[MOST_RUNS];
  char said[400]; /* queries and kernels of each run */
  volatile int stop;
} now;

/* The linker's --wrap sends runs of cases, and looks at the clock, here. */
bool __wrap_bench_run_case(const bench_case *bench, const attn_kernel_info *const *kernels, int count,
                           const bench_case_settings *settings, bench_row *rows);
double __wrap_bench_now_ns(void);

double __wrap_bench_now_ns(void) { return 1e9 * now.seconds; }

bool __wrap_bench_run_case(const bench_case *bench, const attn_kernel_info *const *kernels, int count,
                           const bench_case_settings *settings, bench_row *rows) {
  const bool stops = now.runs + 1 == now.stops_at;
  now.budget_s[now.runs++] = settings->case_budget_s;
  now.seconds += now.run_s;
  bench_append(now.said, sizeof now.said, "%d", (int)bench->problem.seq_q);
  for (int i = 0; i < count; i++) {
    bench_append(now.said, sizeof now.said, " %s", kernels[i]->name);
    rows[i] = bench_row_create(bench, kernels[i]);
    rows[i].verdict = (bench_verdict){.status = now.status, .structure = 1u << i | 4, .reason = "why"};
    if (stops && i) rows[i].time.n = 7, rows[i].stop = BENCH_STOP_INTERRUPT; /* for too few rounds */
  }
  bench_append(now.said, sizeof now.said, ";");
  if (stops) now.stop = 1;
  return !stops || now.in_time;
}

static bench_session s; /* the current one */
static bench_options options;

/* Cases of 8, 9, ... queries, two kernels of tier c, a journal. */
static void open_session(int cases) {
  memset(&now, 0, sizeof now);
  options = (bench_options){.command = "check", .quiet = true, .case_budget_s = 5};
  s = (bench_session){.options = &options,
                      .steps = &bench_cases_steps,
                      .kernels = {attn_kernel_find("naive_c"), attn_kernel_find("flash_c")},
                      .kernel_count = 2,
                      .settings = {.timed = true, .case_budget_s = 5, .stop = &now.stop},
                      .journal = tmpfile(),
                      .run_id = "new",
                      .table = {.file = fopen("/dev/null", "w"), .command = "check"}};
  assert_true(s.journal && s.table.file);
  for (int i = 0; i < cases; i++) {
    char id[60];
    snprintf(id, sizeof id, "heads:1/seq_q:%d/seq_k:64/head_dim:8", 8 + i);
    const bench_case bench = valid_case(id);
    assert_true(bench_cases_append(&s.cases, &bench));
  }
}

static int close_session(void **state) {
  (void)state;
  bench_rows_clear(&s.rows);
  bench_rows_clear(&s.old);
  bench_cases_clear(&s.cases);
  if (s.journal) (void)fclose(s.journal);
  if (s.table.file) (void)fclose(s.table.file);
  s = (bench_session){.kernel_count = 0};
  return 0;
}

static void add_old(const char *case_id, const char *kernel, bench_status status) {
  bench_row row = bench_row_create(NULL, NULL);
  snprintf(row.case_id, sizeof row.case_id, "%s", case_id);
  snprintf(row.kernel, sizeof row.kernel, "%s", kernel);
  snprintf(row.run_id, sizeof row.run_id, "old");
  row.verdict.status = status;
  assert_true(bench_rows_append(&s.old, &row));
}

static const char *id_of(int index) { return s.cases.item[index].case_id; }

static void expect_rows(const char *wanted) {
  char text[600] = "";
  for (int i = 0; i < s.rows.count; i++) {
    const bench_row *row = &s.rows.item[i];
    const char *queries = strstr(row->case_id, "Sq:");
    bench_append(text, sizeof text, "%s %.*s %s;", row->run_id, queries ? (int)strcspn(queries, "/") - 3 : 4,
                 queries ? queries + 3 : row->case_id, row->kernel);
  }
  assert_string_equal(text, wanted);
}

static int lines_of_journal(void) {
  int lines = 0;
  rewind(s.journal);
  for (int c; (c = fgetc(s.journal)) != EOF;) lines += c == '\n';
  return lines;
}

static void run(void) { s.steps->run(&s); }

/* ---- What is to be done ----------------------------------------------------------------------------------------------- */

TEST(sessions_say_what_they_will_do) {
  char *text = NULL, wanted[400];
  size_t bytes = 0;
  for (int n = 1; n <= 2; n++) {
    open_session(n);
    s.kernel_count = n;
    s.settings.rounds = 10000;
    FILE *file = open_memstream(&text, &bytes);
    s.steps->print_extent(&s, file);
    (void)fclose(file);
    assert_string_equal(text, n == 1 ? "1 case x 1 kernel" : "2 cases x 2 kernels");
    free(text);
    double guess = 0;
    for (int i = 0; i < n; i++) guess += bench_case_guess(&s.cases.item[i], s.kernels, n, &s.settings);
    assert_true(s.steps->guess(&s) == guess && guess > 1);
    test_listen(stdout);
    s.steps->list(&s);
    snprintf(wanted, sizeof wanted, n == 1 ? "   30.0 s  %s\n" : "   60.0 s  %s\n   60.0 s  %s\n", id_of(0), id_of(n - 1));
    assert_string_equal(test_heard(), wanted);
    close_session(NULL);
  }
}

/* ---- Runs ------------------------------------------------------------------------------------------------------------- */

TEST(every_case_runs_with_every_kernel) {
  open_session(2);
  run();
  assert_string_equal(now.said, "8 naive_c flash_c;9 naive_c flash_c;");
  expect_rows("new 8 naive_c;new 8 flash_c;new 9 naive_c;new 9 flash_c;");
  assert_int_equal(lines_of_journal(), 4);
  assert_true(now.budget_s[0] == 5 && now.budget_s[1] == 5 && s.progress.done == 2 && s.progress.fresh == 2);
  for (int k = 0; k < 2; k++)
    for (int test = 0; test < BENCH_STRUCTURE_TESTS; test++)
      assert_int_equal(s.structure_runs[k][test], test == k || test == 2 ? 2 : 0);
  assert_true(!s.io_failed && fabs(s.guess_left_s) < 1e-12);
}

/* Each structural test has a column: on how many cases it ran. A column is as wide as its name, but at least five letters.
 */
TEST(structural_runs_are_counted) {
  char *text = NULL;
  size_t bytes = 0;
  open_session(12);
  s.settings.structure = true;
  run();
  FILE *file = open_memstream(&text, &bytes);
  bench_session_print_structure(&s, file);
  s.settings.structure = false;
  bench_session_print_structure(&s, file);
  (void)fclose(file);
  assert_string_equal(
      text,
      "structural tests, cases (of at most 1e8 multiply-adds) on which each ran:\n"
      "kernel             threads batch  rows poison neighbours probe convex permutation heads partition pieces\n"
      "naive_c                 12     0    12      0          0     0      0           0     0         0      0\n"
      "flash_c                  0    12    12      0          0     0      0           0     0         0      0\n\n");
  free(text);
}

/* The budget of a case is twice its share of the time that is left, by guesses: at least 50 ms, at most --case-budget. */
TEST(a_budget_is_shared_by_guesses) {
  static const struct {
    double run_s, first_s, second_s; /* 0: there is no second run */
  } cases[] = {{3, 4, 2}, {3.99, 4, 0.05}, {4, 4, 0}, {0.5, 4, 5}};
  for (size_t i = 0; i < COUNT(cases); i++) {
    open_session(2);
    s.cases.item[1] = s.cases.item[0];
    options.budget_s = 4;
    now.run_s = cases[i].run_s;
    run();
    assert_int_equal(now.runs, cases[i].second_s > 0 ? 2 : 1);
    assert_true(fabs(now.budget_s[0] - cases[i].first_s) < 1e-9);
    assert_true(fabs(now.budget_s[1] - cases[i].second_s) < 1e-9);
    assert_int_equal(lines_of_journal(), 2 * now.runs); /* --resume runs the rest */
    for (int row = 2 * now.runs; row < 4; row++) {
      assert_int_equal(s.rows.item[row].verdict.status, BENCH_SKIP);
      assert_string_equal(s.rows.item[row].verdict.reason, "--budget of 4 s is used up");
      assert_string_equal(s.rows.item[row].kernel, row % 2 ? "flash_c" : "naive_c");
    }
    assert_int_equal(s.rows.count, 4);
    close_session(NULL);
  }
}

/* Errors are measured again; rows of other kernels and cases stay. */
TEST(rows_of_the_journal_stay) {
  open_session(3);
  add_old("gone", "naive_c", BENCH_PASS);
  add_old(id_of(0), "flash_c", BENCH_ERROR);
  add_old(id_of(0), "naive_c", BENCH_FAIL);
  add_old(id_of(1), "other_c", BENCH_PASS);
  add_old(id_of(2), "flash_c", BENCH_SKIP);
  add_old(id_of(2), "naive_c", BENCH_PASS);
  run();
  assert_string_equal(now.said, "8 flash_c;9 naive_c flash_c;");
  expect_rows(
      "old 8 naive_c;new 8 flash_c;new 9 naive_c;new 9 flash_c;old 9 other_c;old 10 naive_c;old 10 flash_c;"
      "old gone naive_c;");
  assert_int_equal(lines_of_journal(), 3);
  assert_true(s.progress.done == 3 && s.progress.fresh == 2);
}

/* Rows of the case under way are lost, those of the journal are not. */
TEST(an_interrupted_session_keeps_what_is_complete) {
  open_session(3);
  add_old(id_of(2), "naive_c", BENCH_PASS);
  now.stops_at = 2;
  run();
  assert_string_equal(now.said, "8 naive_c flash_c;9 naive_c flash_c;");
  expect_rows("new 8 naive_c;new 8 flash_c;old 10 naive_c;");
  assert_int_equal(lines_of_journal(), 2);
}

/* A timing with fewer rounds than it should have is kept, but measured again by --resume. */
TEST(interrupted_timings_are_not_journalled) {
  open_session(2);
  now.stops_at = 1, now.in_time = true;
  test_listen(stderr);
  run();
  (void)test_heard();
  expect_rows("new 8 naive_c;new 8 flash_c;");
  assert_int_equal(lines_of_journal(), 1);
}

TEST(sessions_end_where_nothing_can_be_written) {
  open_session(2);
  (void)fclose(s.journal);
  s.journal = fopen("/dev/full", "w");
  if (!s.journal) skip();
  test_listen(stderr);
  run();
  test_contains(test_heard(), "cannot write the journal");
  assert_true(s.io_failed && now.runs == 1);
}

/* ---- The end ---------------------------------------------------------------------------------------------------------- */

/* --require makes a skip of that tier a failure. */
TEST(what_is_required_may_not_be_skipped) {
  static const char *const tiers[] = {NULL, "c", "avx2"};
  for (size_t i = 0; i < COUNT(tiers); i++) {
    open_session(1);
    options.require = tiers[i];
    now.status = BENCH_SKIP;
    run();
    for (int row = 0; row < 2; row++) {
      const bench_verdict *verdict = &s.rows.item[row].verdict;
      assert_int_equal(verdict->status, i == 1 ? BENCH_FAIL : BENCH_SKIP);
      assert_string_equal(verdict->reason, i == 1 ? "--require c: why" : "why");
    }
    close_session(NULL);
  }
  open_session(1);
  options.require = "c";
  run();
  assert_int_equal(s.rows.item[0].verdict.status, BENCH_PASS);
}

/* A row that ran is success; where none did, the exit code says whether any kernel could. */
TEST(sessions_of_skips_alone_are_no_success) {
  static const attn_kernel_info unknown = {.name = "unknown_c", .isa = "c", .library = ""};
  open_session(1);
  now.status = BENCH_SKIP;
  run();
  test_listen(stderr);
  const int code = s.steps->conclude(&s);
  assert_string_equal(test_heard(), "attnbench check: nothing could run: every row was skipped\n");
  assert_int_equal(code, BENCH_EXIT_NOTHING);
  s.kernels[0] = s.kernels[1] = &unknown;
  assert_int_equal(s.steps->conclude(&s), BENCH_EXIT_SKIPPED);
  s.rows.item[1].verdict.status = BENCH_PASS;
  assert_int_equal(s.steps->conclude(&s), BENCH_EXIT_OK);
  s.rows.item[1].verdict.status = BENCH_SKIP;
  s.kernels[1] = &bench_automatic;
  test_listen(stderr);
  assert_int_equal(s.steps->conclude(&s), BENCH_EXIT_NOTHING);
  (void)test_heard();
}
