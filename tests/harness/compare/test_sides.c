/* SPDX-License-Identifier: MIT */
/* Tests of the results that `attnbench compare` reads, and of its words beside the table. test_comparing.py tests which rows
 * it pairs. */
#define TEST_TEARDOWN clear
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cli.h"
#include "base/files.h"
#include "cases/case.h"
#include "compare/compare.h"
#include "data/generate.h"
#include "tests/support/failing_malloc.h"
#include "tests/support/support.h"

/* ---- Results in memory ------------------------------------------------------------------------------------------------ */

enum { MOST_ROWS = 6 };

static bench_result results[4];
static bench_side sides[4];

/* Side `n` is one run, with rows of these kernels and cases: "kernel case", up to the first NULL. */
static bench_side *side_of(int n, const char *const rows[MOST_ROWS]) {
  results[n] = (bench_result){.path = ""};
  for (int i = 0; i < MOST_ROWS && rows[i]; i++) {
    bench_row row = bench_row_create(NULL, NULL);
    const char *blank = strchr(rows[i], ' '), *threads = strstr(rows[i], "threads:");
    snprintf(row.kernel, sizeof row.kernel, "%.*s", (int)(blank - rows[i]), rows[i]);
    snprintf(row.case_id, sizeof row.case_id, "%s", blank + 1);
    row.threads = threads ? atoi(threads + 8) : 1;
    row.time = (bench_summary){.n = 21, .median = 1000 * (i + 1), .ci_lo = 990 * (i + 1), .ci_hi = 1010 * (i + 1)};
    assert_true(bench_rows_append(&results[n].rows, &row));
  }
  sides[n] = (bench_side){.name = "side", .run = {&results[n]}, .count = 1};
  return &sides[n];
}

#define SIDE(n, ...) side_of(n, (const char *const[MOST_ROWS]){__VA_ARGS__})

static int clear(void **state) {
  for (int n = 0; n < 4; n++) bench_rows_clear(&results[n].rows);
  return expect_no_blocks(state);
}

static void set_fact(int n, const char *name, const char *value) {
  for (int i = 0; i < BENCH_MOST_FACTS; i++)
    if (bench_result_facts[i] && !strcmp(bench_result_facts[i], name))
      snprintf(results[n].fact[i], sizeof results[n].fact[i], "%s", value);
}

/* ---- What a side is --------------------------------------------------------------------------------------------------- */

static void expect_description(const bench_side *side, const char *wanted) {
  char text[200];
  bench_side_describe(side, text, sizeof text);
  assert_string_equal(text, wanted);
}

/* Ten letters of the commit, and sixty of a CPU. */
TEST(sides_are_described) {
  bench_side *a = SIDE(0, "flash_c B:1");
  expect_description(a, " (1 run)");
  set_fact(0, "commit", "0123456789abcdef");
  expect_description(a, " (1 run, commit 0123456789)");
  set_fact(0, "date", "2026-01-31T12:00:00Z");
  set_fact(0, "cpu", "a CPU whose name goes on and on, up to the sixtieth: 1111111YZ");
  set_fact(0, "compiler", "GNU 12");
  a->count = 2;
  expect_description(
      a, " (2 runs, 2026-01-31T12:00:00Z, commit 0123456789, a CPU whose name goes on and on, up to the sixtieth: 1111111)");
  assert_string_equal(bench_result_fact(&results[0], "compiler"), "GNU 12");
  assert_string_equal(bench_result_fact(&results[0], "colour"), "");
}

static void expect_told(const bench_side *a, const bench_side *b, bool across, int code, const char *wanted) {
  test_listen(stderr);
  const int got = bench_sides_check(a, b, across);
  assert_string_equal(test_heard(), wanted);
  assert_int_equal(got, code);
}

#define REFUSED "attnbench compare: these are not results of one machine and build; --across compares them all the same\n"

/* Every run is compared with the first one of A. What is not known does not differ, and commits may. */
TEST(facts_that_differ_are_told) {
  bench_side *a = SIDE(0, "flash_c B:1"), *b = SIDE(1, "flash_c B:1"), *c = SIDE(2, "flash_c B:1");
  expect_told(a, b, false, 0, "");
  set_fact(0, "cpu", "one"), set_fact(1, "cpu", "one"), set_fact(0, "flags", "-O3");
  set_fact(0, "commit", "a"), set_fact(1, "commit", "b");
  expect_told(a, b, false, 0, "");
  set_fact(2, "cpu", "two"), set_fact(2, "flags", "-O2");
  expect_told(a, c, false, BENCH_EXIT_USAGE, "cpu differs: 'one' and 'two'\nflags differs: '-O3' and '-O2'\n" REFUSED);
  expect_told(a, c, true, 0, "cpu differs: 'one' and 'two'\nflags differs: '-O3' and '-O2'\n");
  a->run[a->count++] = &results[2]; /* within a side, too */
  expect_told(a, b, true, 0, "cpu differs: 'one' and 'two'\nflags differs: '-O3' and '-O2'\n");
  a->count = 1;
  b->run[b->count++] = &results[2];
  expect_told(a, b, true, 0, "cpu differs: 'one' and 'two'\nflags differs: '-O3' and '-O2'\n");
}

TEST(threads_that_differ_are_told) {
  bench_side *a = SIDE(0, "flash_c threads:1", "flash_c threads:2"), *b = SIDE(1, "flash_c threads:4", "flash_c threads:2");
  const bench_side *c = SIDE(2, "flash_c threads:4", "flash_c threads:3"), *none = SIDE(3, NULL);
  expect_told(a, b, false, 0, "");
  expect_told(a, none, false, 0, "");
  expect_told(none, a, false, 0, "");
  expect_told(a, c, false, BENCH_EXIT_USAGE, "threads differ: 1 and 4\n" REFUSED);
}

/* ---- Which rows are compared ------------------------------------------------------------------------------------------ */

static uint64_t random_state = 5;
static int draw(int count) { return (int)(bench_random(&random_state) % (uint64_t)count); }

/* Some of eight rows: of two kernels, two cases, and one or two threads. Some have no time, for a good reason or not. */
static bench_side *random_side(int n) {
  static const char *const rows[] = {"k B:1/threads:1", "l B:1/threads:1", "k B:2/threads:1", "l B:2/threads:1",
                                     "k B:1/threads:2", "l B:1/threads:2", "k B:2/threads:2", "l B:2/threads:2"};
  const char *chosen[MOST_ROWS] = {NULL};
  int count = 0;
  for (int i = draw(8), step = 1 + 2 * draw(4), left = 8; left && count < MOST_ROWS; left--, i += step)
    if (draw(2)) chosen[count++] = rows[i % 8];
  side_of(n, chosen);
  for (int i = 0; i < count; i++) {
    bench_row *row = &results[n].rows.item[i];
    if (draw(4) == 0) row->time.n = 0, row->verdict.status = (bench_status[]){BENCH_SKIP, BENCH_FAIL}[draw(2)];
  }
  return &sides[n];
}

/* The row of the same kernel and case; across numbers of threads also the only one that differs in nothing else. */
static const bench_row *partner_of(const bench_row *like, const bench_rows *rows, bool across) {
  const bench_row *other = NULL;
  int others = 0;
  for (int i = 0; i < rows->count; i++) {
    const bench_row *row = &rows->item[i];
    if (strcmp(row->kernel, like->kernel) || strncmp(row->case_id, like->case_id, 4)) continue;
    if (!strcmp(row->case_id, like->case_id)) return row;
    other = row, others++;
  }
  return across && others == 1 ? other : NULL;
}

/* Counts the entries for a row of A and one of B; each may be NULL. */
static int entries_of(const bench_matches *m, const bench_row *a, const bench_row *b, bool compared) {
  int count = 0;
  for (int i = 0; compared && i < m->table.count; i++) count += m->table.item[i].a == a && m->table.item[i].b == b;
  for (int i = 0; !compared && i < m->unpaired_count; i++) count += m->unpaired[i].a == a && m->unpaired[i].b == b;
  return count;
}

static bool has_no_time_to_have(const bench_row *row) { return !row || (!row->time.n && row->verdict.status == BENCH_SKIP); }

/* Each row is compared if it has a partner and both have times; else it is named, unless it was skipped on both sides. So it
 * is, or memory is short. */
TEST(random_rows_are_compared_or_named) {
  for (int n = 0; n < 400; n++) {
    const bench_side *a = random_side(0), *b = random_side(1);
    const bool across = n % 2;
    bench_matches m;
    int compared = 0, named = 0;
    for (int allowed = 0; allocations_left = allowed, !bench_match(a, b, 0.01, across, &m); allowed++)
      bench_matches_clear(&m);
    allocations_left = -1;
    for (int i = 0; i < m.table.count; i++) assert_true(m.table.item[i].ratio > 0); /* decided */
    for (int i = 0; i < results[0].rows.count + results[1].rows.count; i++) {
      const bool of_a = i < results[0].rows.count;
      const bench_row *row = of_a ? &results[0].rows.item[i] : &results[1].rows.item[i - results[0].rows.count];
      const bench_row *other = partner_of(row, of_a ? &results[1].rows : &results[0].rows, across);
      if (!of_a && other) continue;
      const bool both = other && row->time.n && other->time.n;
      const bool told = !both && !(has_no_time_to_have(row) && has_no_time_to_have(other));
      if (both || told) assert_int_equal(entries_of(&m, of_a ? row : NULL, of_a ? other : row, both), 1);
      compared += both, named += told;
    }
    assert_true(m.table.count == compared && m.unpaired_count == named);
    bench_matches_clear(&m);
    for (int side = 0; side < 2; side++) bench_rows_clear(&results[side].rows);
  }
}

/* ---- What could decide ------------------------------------------------------------------------------------------------ */

static void expect_advice(const bench_side *a, const bench_side *b, const bench_matches *m, const char *wanted) {
  test_listen(stdout);
  bench_sides_advise(a, b, m);
  assert_string_equal(test_heard(), wanted);
}

TEST(the_first_undecided_row_is_timed_again) {
  bench_side *a = SIDE(0, "k B:1", "l B:2", "m B:3"), *b = SIDE(1, "k B:1", "l B:2", "m B:3");
  bench_comparison items[3] = {{.verdict = BENCH_SLOWER}, {.verdict = BENCH_INCONCLUSIVE}, {.verdict = BENCH_INCONCLUSIVE}};
  bench_matches m = {.table = {.design = BENCH_SEVERAL_RUNS, .item = items, .count = 3}};
  static const char paired[] =
      "\nTo decide, time both builds side by side, in every round:\n"
      "  attnbench compare --paired BUILD_A BUILD_B -k l --case B:2\n";
  char wanted[500];
  for (int i = 0; i < 3; i++) items[i].a = items[i].b = &results[0].rows.item[i];
  expect_advice(a, b, &m, paired);
  m.table.design = BENCH_ONE_RUN;
  snprintf(wanted, sizeof wanted,
           "%sor give five runs a side, made in turns: attnbench compare A1,A2,A3,A4,A5 B1,B2,B3,B4,B5\n", paired);
  expect_advice(a, b, &m, wanted);
  m.table.design = BENCH_SEVERAL_RUNS;
  set_fact(0, "commit", "aaaaaaaaaaaaaaa");
  expect_advice(a, b, &m, paired);
  set_fact(1, "commit", "aaaaaaaaaaaaaaa");
  expect_advice(a, b, &m, paired);
  set_fact(1, "commit", "bbbbbbbbbbbbbbb");
  snprintf(wanted, sizeof wanted, "%s  scripts/ab.sh aaaaaaaaaa bbbbbbbbbb -k l\n", paired);
  expect_advice(a, b, &m, wanted);
  m.table.count = 1;
  expect_advice(a, b, &m, "");
}

/* ---- --fail-on -------------------------------------------------------------------------------------------------------- */

static void expect_known(const char *text, bool known, const char *wanted) {
  for (int first = 0; first < 2; first++) {
    const cli_list texts = {.item = {first ? text : "slower", first ? "slower" : text}, .count = 2};
    test_listen(stderr);
    const bool got = bench_failures_known(&texts);
    assert_string_equal(test_heard(), wanted);
    assert_int_equal(got, known);
  }
}

TEST(gates_are_words_and_shares) {
  static const char *const known[] = {"slower",       "faster",   "inconclusive", "missing",  "slower=3%",
                                      "faster=0.031", "slower=0", "slower=1000%", "faster=10"};
  static const char *const unknown[] = {"slower=x",  "slower=",   "slower=%",   "slower=-1",      "slower=1001%",
                                        "faster=11", "missing=3", "slower=3%x", "inconclusive=1", "missing="};
  for (size_t i = 0; i < COUNT(known); i++) expect_known(known[i], true, "");
  for (size_t i = 0; i < COUNT(unknown); i++) {
    char wanted[200];
    snprintf(wanted, sizeof wanted,
             "attnbench compare: --fail-on '%s': should be a word, or slower or faster with a share: slower=3%%\n",
             unknown[i]);
    expect_known(unknown[i], false, wanted);
  }
  expect_known("slow=3%", false, "attnbench compare: unknown failure 'slow'; did you mean slower?\n");
  expect_known(
      "qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq", false,
      "attnbench compare: unknown failure 'qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq'; slower, faster, inconclusive, missing\n");
}

TEST(gates_count_rows) {
  static const struct {
    const char *texts[2], *wanted;
  } cases[] = {{{"slower"}, "--fail-on slower: 2"},
               {{"slower=20%"}, "--fail-on slower=20%: 2"},
               {{"slower=25%"}, "--fail-on slower=25%: 2"}, /* 1 / 0.8, and more */
               {{"slower=25.1%"}, "--fail-on slower=25.1%: 1"},
               {{"slower=100%"}, "--fail-on slower=100%: 1"},
               {{"slower=101%"}, NULL},
               {{"faster=25%"}, "--fail-on faster=25%: 1"},
               {{"faster=0.251"}, NULL},
               {{"inconclusive"}, "--fail-on inconclusive: 1"},
               {{"missing"}, "--fail-on missing: 3"},
               {{"faster=2", "missing"}, "--fail-on missing: 3"},
               {{"missing", "faster=2"}, "--fail-on missing: 3"}};
  bench_comparison items[] = {
      {.verdict = BENCH_SLOWER, .ratio = 0.5},       {.verdict = BENCH_SLOWER, .ratio = 0.8},
      {.verdict = BENCH_INCONCLUSIVE, .ratio = 0.1}, {.verdict = BENCH_SAME, .ratio = 1},
      {.verdict = BENCH_FASTER, .ratio = 1.25},      {.verdict = BENCH_SLOWER, .ratio = 0.1}}; /* behind the table */
  const bench_matches m = {.table = {.item = items, .count = COUNT(items) - 1}, .unpaired_count = 3};
  for (size_t i = 0; i < COUNT(cases); i++) {
    const cli_list texts = {.item = {cases[i].texts[0], cases[i].texts[1]}, .count = cases[i].texts[1] ? 2 : 1};
    char wanted[100] = "";
    if (cases[i].wanted) snprintf(wanted, sizeof wanted, "attnbench compare: %s\n", cases[i].wanted);
    test_listen(stderr);
    const int code = bench_failures_conclude(&m, &texts);
    assert_string_equal(test_heard(), wanted);
    assert_int_equal(code, cases[i].wanted ? BENCH_EXIT_FAILED : BENCH_EXIT_OK);
  }
}

/* ---- Files ------------------------------------------------------------------------------------------------------------ */

static char folder[60] = "/tmp/attn_sides_XXXXXX";

static void write_text(const char *name, const char *text) {
  char path[100];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs(text, file);
  assert_int_equal(fclose(file), 0);
}

static void open_folder(void) {
  strcpy(strrchr(folder, '_'), "_XXXXXX");
  assert_non_null(mkdtemp(folder));
}

static void remove_folder(void) {
  static const char *const names[] = {"results.csv", "samples.csv", "env.json"};
  char path[100];
  for (size_t i = 0; i < COUNT(names); i++) {
    snprintf(path, sizeof path, "%s/%s", folder, names[i]);
    (void)unlink(path);
  }
  (void)rmdir(folder);
}

#define ROWS_HEAD    "case_id,kernel,other,samples,time_ns_median,reason,time_ns_ci_lo\n"
#define SAMPLES_HEAD "case_id,kernel,time_ns,peak_gflops\n"

static void expect_row(const bench_row *row, const char *case_id, const char *kernel, double median, const char *reason) {
  assert_string_equal(row->case_id, case_id);
  assert_string_equal(row->kernel, kernel);
  assert_string_equal(row->verdict.reason, reason);
  assert_true(row->time.median == median);
}

/* Quoted fields, line ends of two characters, columns of no meaning, values that are missing. */
TEST(results_are_read_as_they_stand) {
  bench_side side;
  char error[300] = "", path[100];
  open_folder();
  write_text("results.csv", ROWS_HEAD
             "B:1,k,x,3,2.5,\"too \"\"long\"\", too\nslow\",1.5\r\n"
             "\"B:2\",l,\"\",2,7,,\n"
             "B:3,m,,1,8,\"\",6\n"
             "B:4,n,,,9,end,7");
  write_text("samples.csv", SAMPLES_HEAD "B:2,l,7,\nB:2,l,8,\nB:1,k,2,1.5\nB:1,k,3,2\nB:1,k,4,2.5\n");
  write_text("env.json",
             "{\"cpu\": {\"value\": \"a CPU\"}, \"tiers\": {\"value\": \"unknown\"}, \"date\": {\"value\": \"now\"}}");
  for (int whole = 0; whole < 2; whole++) {
    snprintf(path, sizeof path, "%s%s", folder, whole ? "/results.csv" : "");
    if (!bench_side_read(&side, path, error, sizeof error)) fail_msg("%s", error);
    assert_true(side.count == 1 && side.name == path);
    assert_string_equal(side.run[0]->path, path);
    const bench_rows *rows = &side.run[0]->rows;
    assert_int_equal(rows->count, 4);
    expect_row(&rows->item[0], "B:1", "k", 2.5, "too \"long\", too\nslow");
    expect_row(&rows->item[1], "B:2", "l", 7, "");
    expect_row(&rows->item[2], "B:3", "m", 8, "");
    expect_row(&rows->item[3], "B:4", "n", 9, "end");
    assert_true(rows->item[0].time.n == 3 && rows->item[3].time.n == 0 && rows->item[0].time.ci_lo == 1.5);
    assert_true(isnan(rows->item[1].time.ci_lo) && rows->item[2].time.ci_lo == 6 && rows->item[3].time.ci_lo == 7);
    for (int i = 0; i < 3; i++) assert_true(rows->item[0].samples_ns[i] == 2 + i);
    for (int i = 0; i < 3; i++) assert_true(rows->item[0].peaks[i] == 1e9 * (1.5 + 0.5 * i));
    assert_true(rows->item[1].samples_ns[0] == 7 && rows->item[1].samples_ns[1] == 8 && !rows->item[1].peaks);
    assert_true(!rows->item[2].samples_ns && !rows->item[2].peaks && !rows->item[3].samples_ns);
    assert_string_equal(bench_result_fact(side.run[0], "cpu"), "a CPU");
    assert_string_equal(bench_result_fact(side.run[0], "tiers"), "");
    assert_string_equal(bench_result_fact(side.run[0], "date"), "now");
    bench_side_clear(&side);
    assert_int_equal(side.count, 0);
  }
  remove_folder();
}

static void expect_refused(const char *paths, const char *wanted) {
  bench_side side;
  char error[400] = "";
  errno = ERANGE; /* left by another call */
  assert_false(bench_side_read(&side, paths, error, sizeof error));
  bench_side_clear(&side);
  assert_string_equal(error, wanted);
}

TEST(results_that_are_none_are_refused) {
  static const struct {
    const char *text, *wanted;
  } cases[] = {{"", "is empty"},
               {"case_id,kernel\n", "is no results.csv of attnbench: no columns case_id, kernel, time_ns_median"},
               {"case_id,time_ns_median\n", "is no results.csv of attnbench: no columns case_id, kernel, time_ns_median"},
               {"kernel,time_ns_median\n", "is no results.csv of attnbench: no columns case_id, kernel, time_ns_median"},
               {ROWS_HEAD "B:1,k,x,3,2.5,,\nB:1,k\n", "line 3: 2 fields, the head has 7"},
               {ROWS_HEAD "B:1,k,x,three,2.5,,\n", "line 2: column samples is 'three'"},
               {ROWS_HEAD "B:1,k,x,3,2.5 ns,,\n", "line 2: column time_ns_median is '2.5 ns'"}};
  char wanted[300];
  open_folder();
  for (size_t i = 0; i < COUNT(cases); i++) {
    write_text("results.csv", cases[i].text);
    snprintf(wanted, sizeof wanted, "%s/results.csv: %s", folder, cases[i].wanted);
    expect_refused(folder, wanted);
  }
  remove_folder();
  snprintf(wanted, sizeof wanted, "%s: No such file or directory", folder);
  expect_refused(folder, wanted);
  expect_refused("", "'' names no result");
}

TEST(samples_belong_to_rows) {
  static const struct {
    const char *text;
    int line; /* the line that is refused; 0: none */
  } cases[] = {{"B:1,k,2,1\nB:1,k,3,1\n", 0},
               {"B:1,k,2,1\nB:2,l,3,1\nB:1,k,4,1\n", 0}, /* the runs are not paired: some are missing */
               {"B:1,k,2,1\nB:1,k,3,1\nB:1,k,4,1\n", 4},
               {"B:2,l,2,1\nB:2,l,2,1\n", 3},
               {"B:1,l,2,1\n", 2},
               {"B:2,k,2,1\n", 2},
               {"B:1,k,2\n", 2},
               {"B:1,k,0,1\n", 2},
               {"B:1,k,-1,1\n", 2},
               {"B:1,k,x,1\n", 2},
               {"B:1,k,1,x\n", 2},
               {"B:1,k,1,\n", 0}};
  open_folder();
  write_text("results.csv", ROWS_HEAD "B:1,k,,2,2.5,,\nB:2,l,,1,7,,\n");
  for (size_t i = 0; i <= COUNT(cases); i++) {
    char text[200], wanted[200];
    bench_side side;
    const bool last = i == COUNT(cases);
    snprintf(text, sizeof text, "%s%s", last ? "case_id,kernel,time\n" : SAMPLES_HEAD, last ? "" : cases[i].text);
    write_text("samples.csv", text);
    if (last || cases[i].line) {
      snprintf(wanted, sizeof wanted, "%s/samples.csv: line %d is no sample of a row of results.csv", folder,
               last ? 0 : cases[i].line);
      if (last) snprintf(wanted, sizeof wanted, "%s/samples.csv: is no samples.csv of attnbench", folder);
      expect_refused(folder, wanted);
      continue;
    }
    assert_int_equal(chdir(folder), 0);
    if (!bench_side_read(&side, i % 2 ? folder : "results.csv", wanted, sizeof wanted)) fail_msg("%s", wanted);
    assert_int_equal(chdir("/"), 0);
    assert_true(!side.run[0]->rows.item[0].samples_ns == (i > 0) && !side.run[0]->rows.item[0].peaks == (i > 0));
    assert_true(!side.run[0]->rows.item[1].samples_ns == (i != 1));
    bench_side_clear(&side);
  }
  remove_folder();
}

TEST(a_side_has_runs_up_to_a_number) {
  char paths[BENCH_MOST_RUNS * 30 + 60] = "", error[300];
  bench_side side;
  open_folder();
  write_text("results.csv", ROWS_HEAD "B:1,k,,2,2.5,,\n");
  for (int i = 0; i <= BENCH_MOST_RUNS; i++) {
    bench_append(paths, sizeof paths, "%s%s", i ? "," : "", folder);
    if (i + 1 == BENCH_MOST_RUNS) {
      if (!bench_side_read(&side, paths, error, sizeof error)) fail_msg("%s", error);
      assert_int_equal(side.count, BENCH_MOST_RUNS);
      bench_side_clear(&side);
    }
  }
  expect_refused(paths, "more than 32 runs of one side");
  remove_folder();
}

/* A file of 80 KB, whose first half would be a table as well. */
TEST(half_a_file_is_none) {
  enum { ROWS = 5000 };
  bench_side side;
  char error[300] = "", *text = malloc(sizeof ROWS_HEAD + 16 * ROWS);
  assert_non_null(text);
  strcpy(text, ROWS_HEAD);
  for (int i = 0; i < ROWS; i++) sprintf(text + strlen(ROWS_HEAD) + 16 * i, "B:%04d,k,,2,5,,\n", i);
  open_folder();
  write_text("results.csv", text);
  free(text);
  bool read = false;
  for (int left = 0; left < 100 && !read; left++) {
    allocations_left = left;
    read = bench_side_read(&side, folder, error, sizeof error);
    allocations_left = -1;
    if (read) assert_int_equal(side.run[0]->rows.count, ROWS);
    bench_side_clear(&side);
  }
  assert_true(read);
  remove_folder();
}

/* ---- Saved results: each test sets the variables that it reads ------------------------------------------------------ */

static void expect_baseline(const char *name, int code, const char *wanted) {
  char path[BENCH_BASELINE_PATH] = "";
  test_listen(stderr);
  const int got = bench_baseline_path(name, "--save", path);
  const char *said = test_heard();
  assert_int_equal(got, code);
  assert_string_equal(code ? said : path, wanted);
}

TEST(baselines_have_a_folder) {
  setenv("XDG_STATE_HOME", "/state", 1), setenv("HOME", "/home/me", 1);
  expect_baseline("before", 0, "/state/attn/baselines/before");
  setenv("XDG_STATE_HOME", "", 1);
  expect_baseline("before", 0, "/home/me/.local/state/attn/baselines/before");
  unsetenv("XDG_STATE_HOME");
  expect_baseline("a.b", 0, "/home/me/.local/state/attn/baselines/a.b");
  static const char *const wrong[] = {"", ".a", "a/b"};
  for (size_t i = 0; i < COUNT(wrong); i++) {
    char wanted[200];
    snprintf(wanted, sizeof wanted,
             "attnbench compare: --save '%s' is no name of a baseline: no '/', and no '.' at its start\n", wrong[i]);
    expect_baseline(wrong[i], BENCH_EXIT_USAGE, wanted);
  }
  for (int empty = 0; empty < 2; empty++) {
    if (empty)
      setenv("HOME", "", 1);
    else
      unsetenv("HOME");
    expect_baseline("a", BENCH_EXIT_USAGE,
                    "attnbench compare: --save baselines need a folder: neither XDG_STATE_HOME nor HOME is set\n");
  }
}
