/* SPDX-License-Identifier: MIT */
/* Which lines of a journal are rows: all that attnbench writes, and nothing else. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "report/report.h"
#include "tests/support/support.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define HEAD         "{\"journal\": 2, \"cpu\": \"any\"}\n"
#define START        "{\"case_id\": \"c\", \"kernel\": \"k\", \"status\": \"PASS\""

static char path[] = "/tmp/attn_journal_XXXXXX";

static void write_file(const char *text) {
  strcpy(strrchr(path, '_'), "_XXXXXX");
  const int file = mkstemp(path);
  assert_true(file >= 0);
  assert_int_equal(write(file, text, strlen(text)), strlen(text));
  (void)close(file);
}

static FILE *resume(bench_rows *rows) {
  bench_journal_head head = {.count = 0};
  bench_journal_describe(&head, "cpu", "%s", "any");
  *rows = (bench_rows){0};
  return bench_journal_resume(path, &head, rows);
}

static void listen(void) { test_listen(stderr); }

static void expect_said(const char *part) { test_contains(test_heard(), part); }

/* The rows of a journal with these lines below its head. */
static bench_rows read_lines(const char *lines) {
  char text[8000];
  bench_rows rows;
  snprintf(text, sizeof text, "%s%s", HEAD, lines);
  write_file(text);
  FILE *file = resume(&rows);
  assert_non_null(file);
  (void)fclose(file);
  (void)unlink(path);
  return rows;
}

static void expect_rows(const char *line, int count) {
  bench_rows rows = read_lines(line);
  if (rows.count != count) fail_msg("%d rows in %.300s", rows.count, line);
  bench_rows_clear(&rows);
}

TEST(lines_of_other_forms_are_no_rows) {
  static const char *const good[] = {
      START "}\n",
      START " , \"ratio_best\": 0.5 }\n",
      START ", \"noise\": \"0.5\"}\n",
      "{\"case_id\":\"c\",\"kernel\":\"k\"}\n",
      START ", \"samples\": \"2\", \"samples_ns\": [1,2.5e3], \"positions\": [0,2147483647]}\n",
      START ", \"samples\": \"1\", \"samples_ns\": [ 1 ], \"positions\": [ 0 ]}\n",
      START ", \"iterations\": 9007199254740992, \"ratio_best\": -3}\n",
      START ", \"iterations\": 0}\n",
      START ", \"samples\": \"1\", \"samples_ns\": [1,2], \"samples_ns\": [3], \"positions\": [0]}\n"};
  static const char *const bad[] = {START "\n",
                                    START ", }\n",
                                    "\"case_id\": \"c\"}\n",
                                    "{}\n",
                                    "{\"case_id\" \"c\"}\n",
                                    "{\"case_id\": \"c}\n",
                                    START ", \"colour\": \"red\"}\n",
                                    START ", \"weight\": 3}\n",
                                    START ", \"ratio_best\": }\n",
                                    START ", \"ratio_best\": inf}\n",
                                    START ", \"samples\": \"1\", \"samples_ns\": [1], \"positions\": [0], \"peaks\": []}\n",
                                    START ", \"iterations\": -1}\n",
                                    START ", \"iterations\": 9007199254740994}\n",
                                    START ", \"status\": \"GOOD\"}\n",
                                    START ", \"samples\": \"2\"}\n",
                                    START ", \"samples_ns\": [1], \"positions\": [0]}\n",
                                    START ", \"samples\": \"1\", \"samples_ns\": [1]}\n",
                                    START ", \"samples\": \"1\", \"positions\": [1]}\n",
                                    START ", \"samples\": \"2\", \"samples_ns\": [1,2], \"positions\": [0]}\n",
                                    START ", \"samples\": \"1\", \"samples_ns\": [1,2], \"positions\": [0,1]}\n",
                                    START ", \"samples\": \"2\", \"samples_ns\": [1 2], \"positions\": [0,1]}\n",
                                    START ", \"samples\": \"1\", \"samples_ns\": [1, \"positions\": [0]}\n",
                                    START ", \"samples\": \"1\", \"samples_ns\": [1,], \"positions\": [0]}\n",
                                    START ", \"samples\": \"1\", \"samples_ns\": [1], \"positions\": [-1]}\n",
                                    START ", \"samples\": \"2\", \"samples_ns\": [1,1], \"positions\": [-1,0]}\n",
                                    START ", \"samples\": \"1\", \"samples_ns\": [1], \"positions\": [2147483648]}\n",
                                    START ", \"samples\": \"1\", \"samples_ns\": [x], \"positions\": [0]}\n",
                                    START ", \"a key of more than thirty-one letters\": 3}\n",
                                    START ", \"reason\": \"\\x\"}\n",
                                    START ", \"reason\": \"\\u00\"}\n",
                                    START ", \"reason\": \"\\u0000\"}\n",
                                    START ", \"reason\": \"\\u0100\"}\n",
                                    START ", \"reason\": \"\\u004\"}\n",
                                    START ", \"reason\": \"\\"};
  for (size_t i = 0; i < COUNT(good); i++) expect_rows(good[i], 1);
  for (size_t i = 0; i < COUNT(bad); i++) expect_rows(bad[i], 0);
}

TEST(numbers_are_read_as_they_stand) {
  bench_rows rows = read_lines(START
                               ", \"samples\": \"2\", \"iterations\": 12, \"noise\": \"0.25\", \"ratio_best\": 0.5, "
                               "\"samples_ns\": [1.5,-2e3], \"peaks\": [3e9,0], \"positions\": [3,2147483647]}\n");
  assert_int_equal(rows.count, 1);
  const bench_row *r = rows.item;
  assert_true(r->iterations == 12 && r->noise == 0.25 && r->ratio_best == 0.5 && r->time.n == 2);
  assert_true(r->samples_ns[0] == 1.5 && r->samples_ns[1] == -2000 && r->positions[0] == 3 && r->positions[1] == INT_MAX);
  assert_true(r->peaks[0] == 3e9 && r->peaks[1] == 0);
  bench_rows_clear(&rows);
}

TEST(escapes_are_read_as_the_bytes_they_stand_for) {
  bench_rows rows = read_lines(START ", \"reason\": \"a\\nb\\\"c\\\\d\\u0041\\u00ff\\u0001e\"}\n");
  assert_int_equal(rows.count, 1);
  assert_string_equal(rows.item[0].verdict.reason,
                      "a\nb\"c\\dA\xff\x01"
                      "e");
  bench_rows_clear(&rows);
}

/* A row that the end of the file cuts off behind its last brace, and one with a zero behind it. */
TEST(a_line_ends_with_its_end) {
  expect_rows(START "}", 0);
  bench_rows rows;
  FILE *file = fopen(path, "w");
  assert_true(file && fputs(HEAD START "}", file) >= 0 && fwrite("\0 \n", 1, 3, file) == 3 && !fclose(file));
  assert_non_null(file = resume(&rows));
  (void)fclose(file);
  (void)unlink(path);
  assert_int_equal(rows.count, 0);
  bench_rows_clear(&rows);
}

TEST(lines_without_anything_are_left_out_like_others) {
  listen();
  bench_rows rows = read_lines("\n" START "}\n");
  expect_said(": line 2 is no whole row, and left out\n");
  assert_int_equal(rows.count, 1);
  bench_rows_clear(&rows);
}

/* Blanks may stand around everything. */
TEST(pairs_stand_between_blanks) {
  const char *at = "  { \"a\" : \"one\" ,\t\"b\":\"\"} ";
  char key[8], value[4];
  assert_true(bench_json_next_pair(&at, key, sizeof key, value, sizeof value));
  assert_string_equal(key, "a");
  assert_string_equal(value, "one");
  assert_true(bench_json_next_pair(&at, key, sizeof key, value, sizeof value));
  assert_string_equal(key, "b");
  assert_string_equal(value, "");
  assert_false(bench_json_next_pair(&at, key, sizeof key, value, sizeof value));
  at = "{\"a\": \"four\"}"; /* has no room */
  assert_false(bench_json_next_pair(&at, key, sizeof key, value, sizeof value));
}

/* ---- The end of the file --------------------------------------------------------------------------------------------- */

static char *whole_file(void) {
  static char text[2000];
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  text[fread(text, 1, sizeof text - 1, file)] = 0;
  (void)fclose(file);
  return text;
}

/* A resumed run writes behind the last whole line; a torn line is cut off. */
TEST(torn_ends_are_cut_off) {
  static const char *const ends[] = {"", "{\"case", START "}"};
  for (size_t i = 0; i < COUNT(ends); i++) {
    char text[500];
    bench_rows rows;
    snprintf(text, sizeof text, HEAD START "}\nnonsense\n%s", ends[i]);
    write_file(text);
    FILE *file = resume(&rows);
    assert_non_null(file);
    fputs("next\n", file);
    (void)fclose(file);
    assert_int_equal(rows.count, 1);
    assert_string_equal(whole_file(), HEAD START "}\nnonsense\nnext\n");
    (void)unlink(path);
    bench_rows_clear(&rows);
  }
}

TEST(a_torn_head_starts_the_journal_again) {
  static const char *const heads[] = {"", "{\"journal\": 2", "{\"journal\": 2, \"cpu\": \"other\"}"};
  for (size_t i = 0; i < COUNT(heads); i++) {
    bench_rows rows;
    write_file(heads[i]);
    listen();
    FILE *file = resume(&rows);
    expect_said(": line 1 is cut off: nothing was measured, the journal starts again\n");
    assert_non_null(file);
    (void)fclose(file);
    assert_int_equal(rows.count, 0);
    assert_string_equal(whole_file(), HEAD);
    (void)unlink(path);
  }
}

TEST(other_heads_are_refused_and_stay) {
  static const char *const heads[] = {"{\"journal\": 2, \"cpu\": \"other\"}\n", "{\"journal\": 2}\n", "case_id,kernel\n",
                                      "{\"journal\": 2, \"cpu\": 3}\n", "{\"journal\": 2, \"cpu\" \"any\"}\n"};
  for (size_t i = 0; i < COUNT(heads); i++) {
    bench_rows rows;
    write_file(heads[i]);
    assert_null(resume(&rows));
    assert_string_equal(whole_file(), heads[i]);
    (void)unlink(path);
  }
}

/* A value of the head that no journal of attnbench can hold is not cut off: it is unknown. */
TEST(values_too_long_for_a_head_are_unknown) {
  char text[2000], value[sizeof((bench_journal_head *)NULL)->item->value + 1];
  for (int longer = 0; longer < 2; longer++) {
    bench_rows rows;
    memset(value, 'x', sizeof value);
    value[sizeof value - 2 + (size_t)longer] = 0;
    snprintf(text, sizeof text, "{\"journal\": 2, \"cpu\": \"%s\"}\n", value);
    write_file(text);
    listen();
    assert_null(resume(&rows));
    expect_said(longer ? "unknown" : "xxxx");
    (void)unlink(path);
  }
}

/* A journal that is not there, or is none. */
TEST(journals_that_cannot_be_read_say_so) {
  bench_rows rows = {0};
  char *head = NULL, wanted[200];
  const bench_journal_head any = {.count = 0};
  listen();
  assert_null(bench_journal_resume("/nowhere/journal", &any, &rows));
  assert_string_equal(test_heard(), "attnbench: /nowhere/journal: No such file or directory\n");
  listen();
  assert_false(bench_journal_read("/nowhere/journal", &head, &rows));
  assert_string_equal(test_heard(), "attnbench: /nowhere/journal: No such file or directory\n");
  write_file("case_id,kernel\n");
  snprintf(wanted, sizeof wanted, "attnbench: %s: is no journal of attnbench\n", path);
  listen();
  assert_false(bench_journal_read(path, &head, &rows));
  assert_string_equal(test_heard(), wanted);
  free(head);
  (void)unlink(path);
  write_file(HEAD START "}\n");
  assert_true(bench_journal_read(path, &head, &rows));
  assert_string_equal(head, HEAD);
  assert_int_equal(rows.count, 1);
  free(head);
  bench_rows_clear(&rows);
  (void)unlink(path);
}

TEST(journals_that_cannot_be_written_say_so) {
  FILE *full = fopen("/dev/full", "w");
  if (!full) skip();
  fputs("row", full);
  assert_false(bench_journal_flush(full));
  (void)fclose(full);
  const bench_journal_head head = {.count = 0};
  listen();
  assert_null(bench_journal_create("/nowhere/journal", &head));
  expect_said("attnbench: /nowhere/journal: ");
  assert_null(bench_journal_create("/dev/full", &head));
}

static void expect_no_room(FILE *journal) {
  assert_null(journal);
  expect_said("its head has 24 items and no room for 'seed'");
}

TEST(a_head_keeps_all_its_items_or_makes_no_journal) {
  bench_journal_head head = {.count = 0};
  bench_rows rows = {0};
  for (int i = 0; i < BENCH_HEAD_ITEMS; i++) bench_journal_describe(&head, "n", "%d", i);
  assert_int_equal(head.count, BENCH_HEAD_ITEMS);
  for (int i = 0; i < BENCH_HEAD_ITEMS; i++) assert_int_equal(atoi(head.item[i].value), i);
  write_file("");
  FILE *journal = bench_journal_create(path, &head);
  assert_non_null(journal);
  (void)fclose(journal);
  bench_journal_describe(&head, "seed", "%d", 1);
  listen();
  expect_no_room(bench_journal_resume(path, &head, &rows));
  listen();
  expect_no_room(bench_journal_create(path, &head));
  (void)unlink(path);
}
