/* SPDX-License-Identifier: MIT */
/* Tuning files: which rule decides, what is refused and with which words. Nothing is measured. */
#define TEST_TEARDOWN end
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/choice/tuning.h"
#include "src/registry/registry.h"
#include "tests/support/failing_malloc.h"
#include "tests/support/idle_kernel.h"

static char head[16384], text[65536]; /* text of a file of this machine; of the file that a test reads */
static attn_tuning *tuning;

static int forget(void **state) {
  attn_tuning_destroy(tuning);
  tuning = NULL;
  return (void)state, 0;
}

static int end(void **state) { return forget(state) || expect_no_blocks(state); }

static attn_status read_text(void) { return attn_tuning_read("a.tuning", text, strlen(text), &tuning); }

/* Reads a file of this machine with the lines. */
static void read_lines(const char *lines) {
  snprintf(text, sizeof text, "%s%s\n", head, lines);
  test_ok(read_text());
}

/* The number of the line behind the head. */
static int first_line(void) {
  int lines = 1;
  for (const char *c = head; *c; c++) lines += *c == '\n';
  return lines;
}

#define EVERYWHERE "dim=1..* group=1..* seq_k=0..* seq_q=0..* "
#define EVIDENCE   " margin=1.25 low=1.2 high=1.31"

static attn_options with(const char *kernel) {
  return ATTN_STRUCT(attn_options, .kernel = kernel, .max_isa = "c", .threads = 1, .tuning = tuning);
}

/* The plan of the problem runs the kernel, and says so with every part. */
static void expect_choice(const attn_problem *problem, const char *kernel, const char *part, const char *also) {
  const attn_options options = with(NULL);
  attn_plan *plan;
  test_ok(attn_plan_create(problem, &options, &plan));
  assert_string_equal(attn_plan_kernel(plan), kernel);
  test_contains(attn_plan_describe(plan), part);
  if (also) test_contains(attn_plan_describe(plan), also);
  if (strstr(attn_plan_describe(plan), " where it was measured")) { /* a rule: nothing of costs, or of what cannot run */
    assert_null(strstr(attn_plan_describe(plan), "error of costs"));
    assert_null(strstr(attn_plan_describe(plan), "names cannot run"));
  }
  attn_plan_destroy(plan);
}

static attn_problem of_shape(int64_t seq_q, int64_t seq_k, int64_t group, int64_t dim) {
  attn_problem problem;
  attn_problem_init(&problem, 1, 2 * group, 2, seq_q, seq_k, dim, dim);
  return problem;
}

/* ATTN_TUNING is read once: here it names a file of another CPU. The other tests bring their own. */
static char stale[] = "/tmp/attn_tuning_XXXXXX";

static void add_kernels(void);

int test_begin(char **arguments) {
  add_kernels();
  attn_tuning_head(head, sizeof head);
  const int descriptor = mkstemp(stale);
  FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "w");
  if (!file) return 1;
  fprintf(file, "attn-tuning 5\ncpu of another world\nlibrary 0.1.0\n");
  fclose(file);
  unsetenv("ATTN_KERNEL");
  setenv("ATTN_TUNING", stale, 1);
  return (void)arguments, 0;
}

/* ---- Choices ---- */

#define NOTHING_KNOWN "no kernel that can run the problem has costs in the tuning file; automatic"

TEST(a_stale_file_of_the_environment_changes_nothing) {
  const attn_problem problem = of_shape(40, 40, 1, 32);
  expect_choice(&problem, "flash_c", "ATTN_TUNING: ", "it was measured on another CPU, of another world; this is ");
  expect_choice(&problem, "flash_c", "; automatic, the first in rank: none that can run it has costs", NULL);
  remove(stale);
}

TEST(the_rule_decides_and_is_named) {
  char where[60];
  read_lines("# a comment\n\nrule f32 full " EVERYWHERE "kernel=naive_c second=flash_c" EVIDENCE);
  snprintf(where, sizeof where, "tuning file a.tuning, line %d", first_line() + 2);
  const attn_problem problem = of_shape(40, 40, 1, 32);
  expect_choice(&problem, "naive_c", where, "flash_c takes 1.25 times as long where it was measured");
}

TEST(borders_belong_to_the_box) {
  read_lines("rule f32 full dim=32..64 group=2..4 seq_k=10..20 seq_q=3..* kernel=naive_c second=flash_c" EVIDENCE);
  static const struct {
    int64_t seq_q, seq_k, group, dim;
    bool inside;
  } tries[] = {{3, 10, 2, 32, true},  {900, 20, 4, 64, true}, {2, 10, 2, 32, false},
               {3, 9, 2, 32, false},  {3, 21, 2, 32, false},  {3, 10, 1, 32, false},
               {3, 10, 5, 32, false}, {3, 10, 2, 31, false},  {3, 10, 2, 65, false}};
  for (size_t i = 0; i < COUNT(tries); i++) {
    const attn_problem problem = of_shape(tries[i].seq_q, tries[i].seq_k, tries[i].group, tries[i].dim);
    assert_int_equal(attn_tuning_find(tuning, &problem) != NULL, tries[i].inside);
  }
}

/* A rule names the largest step (8, 16 or 32) that divides its head dimension, because kernels on tiles copy rows of other
 * widths: 16 for 48 and 80, 8 for 40 and 72. */
TEST(steps_have_rules_of_their_own) {
  static const int64_t dims[] = {32, 40, 48, 72, 80, 96}, steps[] = {32, 8, 16, 8, 16, 32};
  for (int64_t step = 8; step <= 32; step *= 2) {
    char rule[200];
    snprintf(rule, sizeof rule, "rule f32 full dim=1..* step=%d group=1..* seq_k=0..* seq_q=0..* kernel=a second=b" EVIDENCE,
             (int)step);
    read_lines(rule);
    for (size_t i = 0; i < COUNT(dims); i++) {
      attn_problem problem = of_shape(3, 10, 2, dims[i]);
      assert_int_equal(attn_tuning_find(tuning, &problem) != NULL, steps[i] == step);
      problem.dim_v = 64; /* the smaller step of both counts */
      assert_int_equal(attn_tuning_find(tuning, &problem) != NULL, steps[i] == step);
    }
    attn_tuning_destroy(tuning);
    tuning = NULL;
  }
}

TEST(types_and_masks_have_rules_of_their_own) {
  read_lines("rule f32 full " EVERYWHERE "kernel=naive_c second=flash_c" EVIDENCE
             "\n"
             "rule f32 causal " EVERYWHERE "kernel=blocked_c second=flash_c" EVIDENCE
             "\n"
             "rule bf16 full " EVERYWHERE "kernel=blocked_c second=flash_c" EVIDENCE
             "\n"
             "rule f32+bf16 full " EVERYWHERE "kernel=naive_c second=flash_c" EVIDENCE);
  attn_problem problem = of_shape(40, 40, 1, 32);
  expect_choice(&problem, "naive_c", "line", NULL);
  problem.dtype_kv = ATTN_BF16;
  expect_choice(&problem, "naive_c", "line", NULL);
  problem.dtype_q = ATTN_BF16;
  expect_choice(&problem, "blocked_c", "line", NULL);
  problem.dtype_q = problem.dtype_kv = ATTN_F16;
  expect_choice(&problem, "flash_c", NOTHING_KNOWN, NULL);
  problem = of_shape(40, 40, 1, 32);
  attn_problem_set_causal(&problem, ATTN_ALIGN_TOP_LEFT);
  expect_choice(&problem, "blocked_c", "line", NULL);
}

/* The first line that fits decides. */
TEST(rules_go_from_top_to_bottom) {
  read_lines("rule f32 full dim=1..* group=1..* seq_k=0..* seq_q=0..8 kernel=blocked_c second=flash_c" EVIDENCE
             "\n"
             "rule f32 full " EVERYWHERE "kernel=naive_c second=flash_c" EVIDENCE);
  attn_problem problem = of_shape(8, 40, 1, 32);
  expect_choice(&problem, "blocked_c", "line", NULL);
  problem = of_shape(9, 40, 1, 32);
  expect_choice(&problem, "naive_c", "line", NULL);
}

TEST(rules_hold_for_what_was_measured) {
  read_lines("rule f32 full " EVERYWHERE "kernel=naive_c second=flash_c" EVIDENCE);
  attn_problem others[8], problem = of_shape(40, 40, 1, 32);
  problem.uses = ATTN_USE_KV_LEN | ATTN_USE_LSE;
  expect_choice(&problem, "naive_c", "line", NULL);
  for (size_t i = 0; i < COUNT(others); i++) others[i] = of_shape(40, 40, 1, i ? 32 : 36);
  others[1].softcap = 5;
  others[2].uses = ATTN_USE_BIAS;
  others[3].window_left = 0;
  others[4].score = ATTN_SCORE_GAUSSIAN;
  others[5].window_right = 1;
  others[6].key_begin = 1;
  others[7].key_end = 1;
  for (size_t i = 0; i < COUNT(others); i++) expect_choice(&others[i], "flash_c", NOTHING_KNOWN, NULL);
  for (int bit = 0; bit < 32; bit++) { /* lengths, and one more output, change no time */
    const uint32_t lengths = ATTN_USE_LSE | ATTN_USE_KV_LEN | ATTN_USE_Q_LEN | ATTN_USE_VARLEN;
    problem.uses = 1u << bit;
    assert_int_equal(attn_tuning_find(tuning, &problem) != NULL, (lengths & problem.uses) != 0);
  }
}

TEST(a_rules_kernel_must_run) {
  read_lines("rule f32 full " EVERYWHERE "kernel=decode_c second=flash_c" EVIDENCE
             "\n"
             "rule f32 causal " EVERYWHERE "kernel=flash_mmx second=flash_c" EVIDENCE);
  attn_problem problem = of_shape(4, 40, 1, 32);
  expect_choice(&problem, "decode_c", "line", NULL);
  problem = of_shape(40, 40, 1, 32);
  expect_choice(&problem, "flash_c", "wants decode_c, which cannot run: it takes at most 32 query rows",
                "decode_c (it takes at most 32 query rows");
  attn_problem_set_causal(&problem, ATTN_ALIGN_TOP_LEFT);
  expect_choice(&problem, "flash_c", "wants flash_mmx, which cannot run: no kernel of this process has that name",
                "automatic");
}

TEST(a_named_kernel_needs_no_rule) {
  read_lines("rule f32 full " EVERYWHERE "kernel=naive_c second=flash_c" EVIDENCE);
  const attn_problem problem = of_shape(40, 40, 1, 32);
  const attn_options options = with("blocked_c");
  attn_plan *plan;
  test_ok(attn_plan_create(&problem, &options, &plan));
  assert_string_equal(attn_plan_kernel(plan), "blocked_c");
  attn_plan_destroy(plan);
}

/* ---- Costs, of kernels with terms of this test: rows of a head, and the call ---- */

static void count_rows(const attn_problem *p, double *terms) {
  terms[0] = (double)(p->heads_q * p->seq_q);
  terms[1] = 1;
}

static void run_nothing(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit, void *scratch) {
  (void)schedule, (void)args, (void)task, (void)unit, (void)scratch;
}

static const char *takes_few_rows(const attn_problem *problem, char *buffer, size_t bytes) {
  (void)buffer, (void)bytes;
  return problem->seq_q > 32 ? "it takes at most 32 queries" : NULL;
}

static char long_name[ATTN_KERNEL_NAME_BYTES];
static const char *const term_names[] = {"row", "call"};
#define KERNEL_THAT_ROUNDS(kernel_name, reject, ...)                                                      \
  {                                                                                                       \
    .info = {kernel_name, "", "c", "", "for tests", {__VA_ARGS__}}, .rejects = reject, .plan = idle_plan, \
    .terms = {2, term_names, count_rows}, .run = run_nothing,                                             \
  }
#define KERNEL(kernel_name, reject) KERNEL_THAT_ROUNDS(kernel_name, reject, .exp_error = 0)
static const attn_kernel slow = KERNEL("slow", idle_rejects), quick = KERNEL("quick", idle_rejects),
                         few = KERNEL("few", takes_few_rows), longest = KERNEL(long_name, idle_rejects),
                         rough = KERNEL_THAT_ROUNDS("rough", idle_rejects, .input_rounding = 0x1p-17),
                         coarse = KERNEL_THAT_ROUNDS("coarse", idle_rejects, .query_rounding = 0x1p-17);

static void add_kernels(void) {
  static const attn_kernel *const kernels[] = {&slow, &quick, &few, &longest, &rough, &coarse};
  static const attn_plugin added = {.kernels = kernels, .kernel_count = COUNT(kernels)};
  memset(long_name, 'x', sizeof long_name - 1);
  assert_true(attn_registry_add(&added, "this program"));
}

/* A row takes so long, and each call. */
#define COST(kernel, type, row, call) "cost kernel=" kernel " " type " error=0.05 row=" row " call=" call "\n"

TEST(the_quickest_by_costs_runs) {
  char where[60];
  read_lines(COST("slow", "f32", "100", "50") COST("quick", "f32", "10", "5000") COST("few", "f32", "1", "1")
                 COST("quick", "bf16", "1", "1") COST("flash_mmx", "f32", "1", "1"));
  snprintf(where, sizeof where, "tuning file a.tuning, line %d: ", first_line() + 1);
  attn_problem problem = of_shape(40, 40, 1, 32); /* 80 rows */
  expect_choice(&problem, "quick", where, "slow takes 1.39 times as long, error of costs 5 %");
  problem = of_shape(20, 40, 1, 36);
  problem.softcap = 3; /* costs hold for every problem */
  expect_choice(&problem, "few", "tuning file a.tuning, line", "slow takes 98.78 times as long");
  problem.dtype_q = problem.dtype_kv = ATTN_BF16;
  expect_choice(&problem, "quick", "no other kernel with costs can run", NULL);
  problem.dtype_kv = ATTN_F16;
  problem.dtype_q = ATTN_F16;
  expect_choice(&problem, "decode_c", NOTHING_KNOWN, NULL);
}

/* Lines count for the types that they serve alone; types that no line of the file serves take those of float16. */
TEST(types_of_few_bits_have_costs_of_their_own) {
  static const struct {
    attn_dtype dtype;
    const char *kernel, *margin;
    bool factors;
  } cases[] = {{ATTN_F16, "quick", "slow takes 8.00 times as long, error of costs 5 %; cannot run it", false},
               {ATTN_Q8_0, "slow", "quick takes 2.00 times as long, error of costs 5 %; cannot run it", false},
               {ATTN_Q4_0, "slow", "quick takes 2.00 times as long, error of costs 5 %; cannot run it", false},
               {ATTN_I8, "slow", "no other kernel with costs can run, error of costs 5 %; cannot run it", true},
               {ATTN_I8, "quick", "those of f16, as there are none for i8 without factors; cannot run it", false},
               {ATTN_F8_E5M2, "quick", "error of costs 5 %, those of f16, as there are none for e5m2; cannot run it", false},
               {ATTN_F8_E4M3, "quick", "slow takes 8.00 times as long, error of costs 5 %, those of f16", false}};
  read_lines(COST("slow", "f16", "8", "0") COST("quick", "f16", "1", "0") COST("slow", "q8_0", "3", "0")
                 COST("quick", "q8_0", "6", "0") COST("slow", "i8", "9", "0"));
  for (size_t i = 0; i < COUNT(cases); i++) {
    attn_problem problem = of_shape(40, 40, 1, 32);
    problem.dtype_kv = cases[i].dtype;
    if (cases[i].dtype == ATTN_F16) problem.dtype_q = ATTN_F16;
    if (cases[i].factors) problem.uses |= ATTN_USE_KV_SCALES;
    expect_choice(&problem, cases[i].kernel, "tuning file a.tuning, line", cases[i].margin);
  }
}

TEST(kernels_that_round_their_inputs_run_only_where_they_are_named) {
  read_lines(COST("slow", "f32", "100", "50") COST("rough", "f32", "1", "1") COST("coarse", "f32", "1", "1"));
  const attn_problem problem = of_shape(40, 40, 1, 32);
  expect_choice(&problem, "slow", "no other kernel with costs can run", NULL);
  static const char *const names[] = {"rough", "coarse"};
  for (size_t i = 0; i < COUNT(names); i++) {
    const attn_options options = with(names[i]);
    attn_plan *plan;
    test_ok(attn_plan_create(&problem, &options, &plan));
    assert_string_equal(attn_plan_kernel(plan), names[i]);
    attn_plan_destroy(plan);
  }
}

/* Terms that no line names take no time. */
TEST(costs_may_be_0) {
  read_lines("cost kernel=slow f32 error=0\ncost kernel=quick f32 error=0 row=0\n" COST("few", "f32", "1", "1"));
  attn_problem problem = of_shape(20, 40, 1, 32);
  expect_choice(&problem, "slow", "quick takes 1.00 times as long", NULL);
  forget(NULL);
  read_lines("cost kernel=slow f32 error=0\n" COST("few", "f32", "1", "1"));
  expect_choice(&problem, "slow", "few takes inf times as long", NULL);
}

TEST(rules_come_before_costs) {
  read_lines(COST("slow", "f32", "2", "2") COST(
      "quick", "f32", "1",
      "1") "rule f32 full dim=1..* group=1..* seq_k=0..* "
           "seq_q=0..9 kernel=blocked_c second=flash_c" EVIDENCE
           "\nrule f32 full dim=1..* group=1..* seq_k=0..* seq_q=64..64 "
           "kernel=decode_c second=flash_c" EVIDENCE);
  attn_problem problem = of_shape(64, 40, 1, 32);
  expect_choice(&problem, "quick", "wants decode_c, which cannot run: it takes", "slow takes 2.00 times as long");
  problem = of_shape(9, 40, 1, 32);
  expect_choice(&problem, "blocked_c", "flash_c takes 1.25 times as long", NULL);
  problem = of_shape(10, 40, 1, 32);
  expect_choice(&problem, "quick", "slow takes 2.00 times as long", NULL);
}

TEST(names_of_plugins_kernels_may_be_long) {
  char line[200];
  snprintf(line, sizeof line, "cost kernel=%s f32 error=0.1 row=2", long_name);
  read_lines(line);
  const attn_problem problem = of_shape(40, 40, 1, 32);
  expect_choice(&problem, long_name, "no other kernel with costs can run", NULL);
}

/* A class's costs are for every build; without a probe its file is a tuning file like others. */
TEST(a_file_of_a_class_is_for_every_cpu) {
  const char *memory = "prefetch none_up_to=4096 twice_beyond=8192\ncaches level1=1024 level2=2048";
  snprintf(text, sizeof text, "attn-tuning 5\nclass cray-1 c vector\n" COST("quick", "f32", "1", "1") "%s", memory);
  test_ok(read_text());
  assert_true(attn_tuning_prefetch(tuning).none_up_to == 4096 && attn_tuning_prefetch(tuning).twice_beyond == 8192);
  assert_true(attn_tuning_caches(tuning).level1 == 1024 && attn_tuning_caches(tuning).level2 == 2048);
  assert_string_equal(attn_tuning_class(tuning), "cray-1");
  assert_string_equal(attn_tuning_tiers(tuning), "c vector");
  const attn_problem problem = of_shape(40, 40, 1, 32);
  expect_choice(&problem, "quick", "tuning file a.tuning, line 3: ", NULL);
}

/* A plan's description names its tuning file, and outlives it. */
TEST(plans_hold_their_file) {
  attn_plan *plan;
  read_lines(COST("quick", "f32", "1", "1") COST("slow", "f32", "2", "2"));
  const attn_problem problem = of_shape(40, 40, 1, 32);
  const attn_options options = with(NULL);
  test_ok(attn_plan_create(&problem, &options, &plan));
  forget(NULL);
  test_contains(attn_plan_describe(plan), "tuning file a.tuning, line");
  attn_plan_destroy(plan);
}

/* ---- Threads: the test runs with OMP_NUM_THREADS=4 ---- */

static int planned_threads(const char *lines, int threads) {
  attn_plan *plan;
  int planned = 0;
  attn_problem problem = of_shape(40, 40, 1, 32);
  read_lines(lines);
  attn_options options = with("flash_c");
  options.threads = threads;
  test_ok(attn_plan_create(&problem, &options, &plan));
  assert_int_equal(sscanf(strstr(attn_plan_describe(plan), "threads "), "threads %d", &planned), 1);
  attn_plan_destroy(plan);
  forget(NULL);
  return planned;
}

TEST(plans_take_the_files_threads) {
  if (planned_threads("threads least_ns=1", 0) == 1) return;
  assert_int_equal(planned_threads("threads least_ns=1e9", 0), 1);
  assert_int_equal(planned_threads("threads least_ns=1e9", 2), 2);
}

/* ---- Files of others ---- */

static void replace(const char *old, const char *new) {
  snprintf(text, sizeof text, "%s", head);
  char *at = strstr(text, old), rest[sizeof text];
  assert_non_null(at);
  snprintf(rest, sizeof rest, "%s", at + strlen(old));
  snprintf(at, sizeof text - (size_t)(at - text), "%s%s", new, rest);
}

TEST(other_machines_and_builds_are_refused) {
  replace("tiers", "stars");
  test_refused(read_text(), ATTN_UNSUPPORTED, "a.tuning is not used: it was measured on another CPU, ", "stars", "this is ");
  assert_null(tuning);
  replace("library 0", "library 7");
  test_refused(read_text(), ATTN_UNSUPPORTED, "it was measured with libattn 7.1.0; this is ", attn_version());
  snprintf(text, sizeof text, "attn-tuning 5\ncpu x\nlibrary 7\n"); /* the first reason counts */
  test_refused(read_text(), ATTN_UNSUPPORTED, "it was measured on another CPU, x; this is ");
  replace("kernel flash_c ", "kernel flash_c 00");
  test_refused(read_text(), ATTN_UNSUPPORTED, "it was measured with another build of flash_c: its code is 00");
  replace("kernel flash_c ", "kernel flash_mmx "); /* not here: no harm */
  test_ok(read_text());
}

TEST(code_versions_are_hashes_of_sources) {
  const char *flash = attn_tuning_code(attn_kernel_find("flash_c")), *naive = attn_tuning_code(attn_kernel_find("naive_c"));
  assert_int_equal(strlen(flash), 12);
  assert_int_equal(strspn(flash, "0123456789abcdef"), 12);
  assert_string_not_equal(flash, naive);
}

/* ---- Mistakes ---- */

#define RULE(box, rest) "rule f32 full " box "kernel=naive_c second=flash_c " rest

TEST(wrong_lines_are_named) {
  static const char *const wrong[] = {
      "rules",
      "rule",
      "rule f32",
      "rule f31 full " EVERYWHERE "kernel=a second=b" EVIDENCE,
      "rule f32+f8 full " EVERYWHERE "kernel=a second=b" EVIDENCE,
      "rule f32 half " EVERYWHERE "kernel=a second=b" EVIDENCE,
      RULE("dim=9..8 group=1..* seq_k=0..* seq_q=0..* ", "margin=1 low=1 high=1"),
      RULE("dim=1-8 group=1..* seq_k=0..* seq_q=0..* ", "margin=1 low=1 high=1"),
      RULE("dim=1..8 group=..* seq_k=0..* seq_q=0..* ", "margin=1 low=1 high=1"),
      RULE("dim=1..8 group=1..* seq_k=0..9999999999999999999999 seq_q=0..* ", "margin=1 low=1 high=1"),
      RULE("dim=1..8 group=1..* seq_k=0..9x seq_q=0..* ", "margin=1 low=1 high=1"),
      RULE("dim=1..8 step=12 group=1..* seq_k=0..* seq_q=0..* ", "margin=1 low=1 high=1"),
      RULE("dim=1..8 step=8x group=1..* seq_k=0..* seq_q=0..* ", "margin=1 low=1 high=1"),
      RULE("dim=1..8 step= group=1..* seq_k=0..* seq_q=0..* ", "margin=1 low=1 high=1"),
      RULE(EVERYWHERE, "margin=x low=1 high=1"),
      RULE(EVERYWHERE, "margin=-1 low=1 high=1"),
      RULE(EVERYWHERE, "margin=nan low=1 high=1"),
      RULE(EVERYWHERE, "margin=1e10 low=1 high=1"),
      RULE(EVERYWHERE, "margin=1e low=1 high=1"),
      RULE(EVERYWHERE, "margin=. low=1 high=1"),
      RULE(EVERYWHERE, "margin=1 low=1"),
      RULE(EVERYWHERE, "margin=1 low=1 high=1 more"),
      "rule f32 full " EVERYWHERE "kernel=a/b second=b" EVIDENCE,
      "rule f32 full " EVERYWHERE "kernel= second=b" EVIDENCE,
      "rule f32 full " EVERYWHERE "kernel=a_name_of_sixty_letters_which_no_plug_in_may_give_to_its_own second=b" EVIDENCE,
      "kernel",
      "kernel flash_c",
      "threads least_ns=0",
      "threads",
      "cost kernel=slow",
      "cost kernel=slow f32 row=1",
      "cost kernel=slow f32+f16 error=0.1 row=1",
      "cost kernel=slow f32+i8 error=0.1 row=1",
      "cost kernel=slow e5m2 error=0.1 row=1",
      "cost kernel=slow q4_0 error=0.1 row=1",
      "cost kernel=slow f32 error=-0.1 row=1",
      "cost kernel=slow f32 error=0.1 row",
      "cost kernel=slow f32 error=0.1 =1",
      "cost kernel=slow f32 error=0.1 row=",
      "cost kernel=slow f32 error=0.1 row=-1",
      "cost kernel=slow f32 error=0.1 row=nan",
      "cost kernel=slow f32 error=0.1 row=inf",
      "cost kernel=slow f32 error=0.1 row=1e10",
      "cost kernel=slow f32 error=0.1 row=1 2",
      "cost kernel=slow f32 error=0.1 column=1",
      "class",
      "class cray-1",
      "prefetch none_up_to=4096 twice_beyond=8192", /* the policy of one machine */
      "class cray-1 c\nprefetch none_up_to=4096",
      "class cray-1 c\nprefetch none_up_to=-1 twice_beyond=8192",
      "class cray-1 c\nprefetch none_up_to=4096 twice_beyond=8192 3",
      "caches level1=1024 level2=2048", /* the caches of one machine */
      "class cray-1 c\ncaches level1=1024",
      "class cray-1 c\ncaches level1=1024 level2=0",
      "class cray-1 c\ncaches level1=0 level2=1024",
      "class cray-1 c\ncaches level1=1024 level2=2048 3",
      "class cray-1 c\ncaches level1=1.1e12 level2=1024",
      "class cray-1 c\ncaches level1=1024 level2=1.1e12",
  };
  char where[40];
  for (size_t i = 0; i < COUNT(wrong); i++) {
    snprintf(where, sizeof where, "a.tuning, line %d: ", first_line() + 1 + (strchr(wrong[i], '\n') != NULL));
    snprintf(text, sizeof text, "%s# one\n%s\n", head, wrong[i]);
    test_invalid(read_text(), where, "; it must be ");
    const char *right = strstr(attn_last_error(), "; it must be ");
    assert_true(!strstr(right, " is ") && !strstr(right, " has ")); /* the mistake stands before it */
    assert_null(tuning);
  }
}

TEST(every_word_of_a_line_is_needed) {
  static const char *const lines[] = {"rule f32 full " EVERYWHERE "kernel=a second=b" EVIDENCE, "threads least_ns=1",
                                      "cost kernel=slow f32 error=0.1",
                                      "class cray-1 c\nprefetch none_up_to=1 twice_beyond=2\ncaches level1=1 level2=2"};
  for (size_t i = 0; i < COUNT(lines); i++) {
    read_lines(lines[i]);
    forget(NULL);
    for (const char *word = lines[i], *end; *word; word = end + (*end != 0)) {
      end = word + strcspn(word, " \n");
      snprintf(text, sizeof text, "%s%.*s%s\n", head, (int)(word - lines[i]), lines[i], end + (*end == ' '));
      test_invalid(read_text(), "a.tuning, line ");
    }
  }
}

#define BOX(range)         "rule f32 full dim=" range " group=" range " seq_k=" range " seq_q=" range " kernel=a second=b "
#define COST_OF(error, ns) "cost kernel=slow f32 error=" error " row=" ns

/* The last number that a line may have, and one beyond. */
TEST(borders_of_numbers_are_taken) {
  static const char *const lines[][2] = {
      {"threads least_ns=1", "threads least_ns=0.9999"},
      {"threads least_ns=1e9", "threads least_ns=1000000001"},
      {COST_OF("1e9", "1e9"), COST_OF("1e9", "1000000001")},
      {COST_OF("1e9", "1"), COST_OF("1000000001", "1")},
      {BOX("0..0") "margin=0 low=0 high=0", BOX("1..0") "margin=0 low=0 high=0"},
      {BOX("5..5") "margin=1e9 low=1e9 high=1e9", BOX("5..5") "margin=1e9 low=1e9 high=1000000001"},
      {BOX("0..1152921504606846976") "margin=1 low=1 high=1e9", BOX("0..1152921504606846977") "margin=1 low=1 high=1"},
      {BOX("1152921504606846976..*") "margin=1 low=1 high=1", BOX("0..1") "margin=1 low=1000000001 high=1"},
      {"class cray-1 c\nprefetch none_up_to=0 twice_beyond=0", "class cray-1 c\nprefetch none_up_to=0 twice_beyond=1.1e18"},
      {"class cray-1 c\nprefetch none_up_to=1e18 twice_beyond=1e18",
       "class cray-1 c\nprefetch none_up_to=1.1e18 twice_beyond=1"},
      {"class cray-1 c\ncaches level1=1 level2=1e12", "class cray-1 c\ncaches level1=0.9 level2=1e12"},
      {"class cray-1 c\ncaches level1=1e12 level2=1", "class cray-1 c\ncaches level1=1e12 level2=0.9"}};
  for (size_t i = 0; i < 2 * COUNT(lines); i++) {
    snprintf(text, sizeof text, "%s%s\n", head, lines[i / 2][i % 2]);
    if ((read_text() == ATTN_OK) == i % 2) fail_msg("%s: %s", lines[i / 2][i % 2], attn_last_error());
    forget(NULL);
  }
}

/* A file of 4 MiB is read, and one byte more is not; no call leaves it open. */
TEST(large_files_are_read_to_the_border) {
  static char large[(4 << 20) + 1], path[] = "/tmp/attn_tuning_XXXXXX";
  const int descriptor = mkstemp(path), free_before = dup(descriptor);
  close(free_before);
  memset(large, '\n', sizeof large);
  memcpy(large, head, strlen(head));
  memset(large + strlen(head), '#', 2000); /* the longest line */
  assert_int_equal(write(descriptor, large, sizeof large), sizeof large);
  test_invalid(attn_tuning_load(path, &tuning), "File too large");
  assert_int_equal(ftruncate(descriptor, sizeof large - 1), 0);
  test_ok(attn_tuning_load(path, &tuning));
  assert_int_equal(dup(descriptor), free_before);
  close(free_before), close(descriptor), remove(path);
}

TEST(costs_of_a_kernel_stand_once) {
  char line[90];
  snprintf(text, sizeof text, "%s" COST("slow", "f32", "1", "1") COST("slow", "f16", "1", "1") COST("slow", "f32", "2", "1"),
           head);
  snprintf(line, sizeof line, "a.tuning, line %d: line %d has costs of slow in this type already; it must be ",
           first_line() + 2, first_line());
  test_invalid(read_text(), line, "the only line of its kernel and type");
  snprintf(text, sizeof text, "%scost kernel=slow f32 error=0.1 column=1", head);
  test_invalid(read_text(), "slow has no term 'column'; it must be one that attnbench tune writes");
}

TEST(wrong_files_are_refused) {
  snprintf(text, sizeof text, "attn-tuning 1\n");
  test_invalid(read_text(), "its first line must be 'attn-tuning 5', but is 'attn-tuning 1'");
  text[0] = 0;
  test_invalid(read_text(), "its first line");
  snprintf(text, sizeof text, "attn-tuning 5\nlibrary 0.1.0\n");
  test_invalid(read_text(), "a.tuning has no line cpu");
  snprintf(text, sizeof text, "%s%2001s", head, "");
  test_invalid(read_text(), "it is too long or has a byte 0; it must be text of at most 2000 characters");
  snprintf(text, sizeof text, "%s", head);
  test_invalid(attn_tuning_read("a.tuning", text, strlen(text) + 1, &tuning), "has a byte 0");
  test_invalid(attn_tuning_load("/no such file", &tuning), "cannot read the tuning file /no such file: No such file");
  test_invalid(attn_tuning_load("/tmp", &tuning), "cannot read the tuning file /tmp: Input/output error");
  errno = 0;
  test_invalid(attn_tuning_load("/dev/zero", &tuning), "cannot read the tuning file /dev/zero: File too large");
  test_invalid(attn_tuning_load("", &tuning), "path is empty");
  test_invalid(attn_tuning_load(NULL, &tuning), "path is NULL");
  test_invalid(attn_tuning_load("x", NULL), "tuning is NULL");
}

TEST(numbers_are_read_in_every_form) {
  static const char *const forms[] = {"1.25", "1.25e0", "125e-2", "0.125e+1", "01.250", "1.25000000000000000000"};
  for (size_t i = 0; i < COUNT(forms); i++) {
    snprintf(text, sizeof text, "%srule f32 full " EVERYWHERE "kernel=a second=b margin=%s low=.5 high=2.", head, forms[i]);
    test_ok(read_text());
    const attn_problem problem = of_shape(1, 1, 1, 32);
    const attn_tuning_rule *rule = attn_tuning_find(tuning, &problem);
    assert_true(rule->margin > 1.2499999 && rule->margin < 1.2500001 && rule->low == 0.5 && rule->high == 2);
    forget(NULL);
  }
}

TEST(the_head_says_how_long_it_is) {
  char small[20];
  const size_t bytes = attn_tuning_head(NULL, 0);
  assert_int_equal(bytes, strlen(head));
  assert_int_equal(attn_tuning_head(small, sizeof small), bytes);
  assert_int_equal(strlen(small), sizeof small - 1);
  snprintf(text, sizeof text, "%s", head);
  test_ok(read_text());
}
