/* SPDX-License-Identifier: MIT */
/* Plans, the registry and dispatch: a cap or a name can only exclude kernels, errors list the kernels that would do, plans
 * can be shared, and the workspace is checked. */
#define TEST_SETUP    clear_environment
#define TEST_TEARDOWN end
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "src/plan/plan.h"
#include "tests/support/failing_malloc.h"

/* A problem that the kernel takes; NULL stands for any kernel. */
static attn_problem small_problem(const char *kernel) {
  attn_problem problem;
  attn_problem_init(&problem, 2, 4, 2, 4, 65, 24, 20); /* few enough queries for the decode kernels */
  if (kernel) test_fit_types(kernel, &problem);
  return problem;
}

/* Environment variables are part of the interface. Every test starts without them, except for a cap that this program was
 * started with. */
static char outer_cap[32];

__attribute__((constructor)) static void read_outer_cap(void) {
  const char *cap = getenv("ATTN_MAX_ISA");
  if (cap) snprintf(outer_cap, sizeof outer_cap, "%s", cap);
}

static int clear_environment(void **state) {
  (void)note_blocks(state);
  unsetenv("ATTN_KERNEL");
  unsetenv("ATTN_VERBOSE");
  if (*outer_cap) return setenv("ATTN_MAX_ISA", outer_cap, 1);
  return unsetenv("ATTN_MAX_ISA");
}

static int end(void **state) { return clear_environment(state) | expect_no_blocks(state); }

static attn_status create(const char *kernel, const char *max_isa, attn_plan **plan) {
  const attn_problem problem = small_problem(kernel);
  return attn_plan_create(&problem, &ATTN_STRUCT(attn_options, .kernel = kernel, .max_isa = max_isa, .threads = 1), plan);
}

static void assert_plan_runs(const char *kernel, const char *max_isa, const char *expected) {
  attn_plan *plan;
  test_ok(create(kernel, max_isa, &plan));
  assert_string_equal(attn_plan_kernel(plan), expected);
  test_contains(attn_plan_describe(plan), "threads    1 (serial");
  attn_plan_destroy(plan);
}

#define assert_create_fails(kernel, max_isa, expected, ...)              \
  do {                                                                   \
    attn_plan *none = (attn_plan *)outer_cap; /* becomes NULL */         \
    test_refused(create(kernel, max_isa, &none), expected, __VA_ARGS__); \
    assert_null(none);                                                   \
  } while (0)

/* ---- The registry ---- */

TEST(registry_can_be_read) {
  assert_true(attn_kernel_count() >= 3);
  assert_null(attn_kernel_get(-1));
  assert_null(attn_kernel_get(attn_kernel_count()));
  assert_null(attn_kernel_find(NULL));
  assert_null(attn_kernel_find("flash"));
  for (int i = 0; i < attn_kernel_count(); i++) {
    const attn_kernel_info *info = attn_kernel_get(i);
    char name[64];
    const bool foreign = info->library[0] != 0; /* such a kernel is named after its library, not after a tier */
    snprintf(name, sizeof name, "%s_%s", info->algorithm, foreign ? info->library : info->isa);
    if (foreign) *strchr(name, ' ') = 0; /* "OpenBLAS 0.3.21 Zen" */
    const size_t length = strlen(name);  /* behind it _x3: kernels of one algorithm may differ in how they make products */
    assert_int_equal(strncasecmp(info->name, name, length), 0);
    assert_true(!info->name[length] || (!foreign && strncmp(info->name + length, "_x", 2) == 0));
    assert_ptr_equal(attn_kernel_find(info->name), info);
    assert_true(strlen(info->summary) > 10);
    assert_non_null(info->library);
    assert_true(info->numerics.p_rounding >= 0 && info->numerics.input_flush >= 0 && info->numerics.input_rounding >= 0);
    assert_true(info->numerics.query_rounding >= 0);
    assert_true(info->numerics.exp_error > 0);
    assert_true(info->numerics.exp_error < 1e-5 || info->numerics.exp_error < info->numerics.p_rounding / 100);
  }
}

TEST(kernels_that_are_not_built_say_why) {
  const char *reason = NULL, *name;
  int count = 0;
  for (; (name = attn_kernel_not_built(count, &reason)); count++) {
    assert_null(attn_kernel_find(name));
    assert_true(strlen(reason) > 10);
  }
  assert_null(attn_kernel_not_built(count, &reason));
  assert_null(attn_kernel_not_built(-1, NULL));
}

TEST(registry_answers_for_a_problem) {
  const attn_problem good = small_problem(NULL);
  attn_problem bad = good;
  bad.dim_v = 0;
  const attn_kernel_info *kernel = attn_kernel_find("naive_c");
  assert_non_null(kernel);
  assert_null(attn_kernel_unusable(kernel));
  assert_null(attn_kernel_rejects(kernel, &good));
  test_contains(attn_kernel_rejects(kernel, &bad), "dim_v");
  assert_non_null(attn_kernel_rejects(NULL, &good));
  assert_non_null(attn_kernel_unusable(NULL));
  assert_int_equal(strncmp(attn_cpu_tiers(), "c", 1), 0);
}

#ifdef __x86_64__
static bool has_tier(const char *isa) {
  char listed[120], wanted[40];
  snprintf(listed, sizeof listed, " %s ", attn_cpu_tiers());
  snprintf(wanted, sizeof wanted, " %s ", isa);
  return strstr(listed, wanted);
}

/* Compares with the compiler's own detection. Tests of a tier that libattn failed to detect would be skipped. */
TEST(no_tier_of_the_cpu_is_missed) {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  assert_int_equal(has_tier("avx2"), avx2);
  assert_true(has_tier("avx512") || !avx512); /* it may be emulated */
}
#endif

/* ---- Choosing by name ---- */

static void named_kernel_runs(const char *kernel) { assert_plan_runs(kernel, NULL, kernel); }

TEST(every_usable_kernel_can_be_named) { test_each_kernel(named_kernel_runs); }

TEST(unknown_kernel_lists_names) {
  assert_create_fails("flash_mmx", NULL, ATTN_UNKNOWN_KERNEL, "attn_options.kernel", "'flash_mmx'", "flash_c", "naive_c");
  assert_create_fails("", NULL, ATTN_UNKNOWN_KERNEL, "attn_options.kernel", "''", "naive_c");
}

TEST(refused_kernel_is_an_error_not_a_fallback) {
  for (int i = 0; i < attn_kernel_count(); i++) {
    const attn_kernel_info *kernel = attn_kernel_get(i);
    const char *reason = attn_kernel_unusable(kernel);
    if (reason) assert_create_fails(kernel->name, NULL, ATTN_UNSUPPORTED, kernel->name, reason, "naive_c");
  }
}

/* Which request names which kernel, and why it cannot run, in this order. */
TEST(refusals_name_the_request_the_kernel_and_the_reason) {
  for (int i = 0; i < attn_kernel_count(); i++) {
    const attn_kernel_info *kernel = attn_kernel_get(i);
    char sentence[120];
    if (strcmp(kernel->isa, "c") == 0 || kernel->library[0] || attn_kernel_unusable(kernel)) continue;
    snprintf(sentence, sizeof sentence, "attn_options.kernel is '%s', which cannot run: tier %s is above the cap 'c'",
             kernel->name, kernel->isa);
    assert_create_fails(kernel->name, "c", ATTN_UNSUPPORTED, sentence, "kernels that can: ");
  }
}

TEST(attn_kernel_variable_fills_in_for_null_only) {
  setenv("ATTN_KERNEL", "blocked_c", 1);
  assert_plan_runs(NULL, NULL, "blocked_c");
  assert_plan_runs("naive_c", NULL, "naive_c");
  setenv("ATTN_KERNEL", "", 1); /* an empty variable is no request */
  assert_plan_runs("flash_c", NULL, "flash_c");
  setenv("ATTN_KERNEL", "flash_c2", 1);
  assert_create_fails(NULL, NULL, ATTN_UNKNOWN_KERNEL, "ATTN_KERNEL", "'flash_c2'", "flash_c,", "naive_c");
  assert_plan_runs("naive_c", NULL, "naive_c");
}

/* ---- Capping the tier ---- */

TEST(cap_takes_higher_tiers_away) {
  assert_plan_runs(NULL, "c", "decode_c");
  setenv("ATTN_MAX_ISA", "c", 1);
  assert_plan_runs(NULL, NULL, "decode_c");
  for (int i = 0; i < attn_kernel_count(); i++) {
    const attn_kernel_info *kernel = attn_kernel_get(i);
    const char *unusable = attn_kernel_unusable(kernel);
    if (strcmp(kernel->isa, "c") == 0) { /* a library chooses its instructions itself, and they may be above the cap */
      assert_true(!unusable || (kernel->library[0] && strstr(unusable, "cap 'c'")));
      if (!unusable) continue;
    }
    assert_non_null(unusable);
    assert_create_fails(kernel->name, NULL, ATTN_UNSUPPORTED, kernel->name, "flash_c");
    setenv("ATTN_KERNEL", kernel->name, 1);
    assert_create_fails(NULL, NULL, ATTN_UNSUPPORTED, "ATTN_KERNEL", kernel->name, "flash_c");
    unsetenv("ATTN_KERNEL");
  }
}

/* The lower of the two caps counts. */
TEST(caps_only_take_away) {
  const char *tiers = attn_cpu_tiers(), *last = strrchr(tiers, ' ');
  const char *highest = last ? last + 1 : tiers;
  setenv("ATTN_MAX_ISA", "c", 1);
  assert_plan_runs(NULL, highest, "decode_c");
  setenv("ATTN_MAX_ISA", highest, 1);
  assert_plan_runs(NULL, "c", "decode_c");
}

TEST(unknown_cap_is_an_error) {
  assert_create_fails(NULL, "avx9", ATTN_INVALID_ARGUMENT, "attn_options.max_isa", "'avx9'", "c");
  setenv("ATTN_MAX_ISA", "sse2", 1);
  assert_create_fails(NULL, NULL, ATTN_INVALID_ARGUMENT, "ATTN_MAX_ISA", "'sse2'", "c");
  assert_create_fails("naive_c", NULL, ATTN_INVALID_ARGUMENT, "ATTN_MAX_ISA", "'sse2'");
  test_contains(attn_kernel_unusable(attn_kernel_find("naive_c")), "sse2");
}

/* ---- Options, workspace, description ---- */

static void worker_without_tasks(void *pool, int64_t tasks, int workers, attn_task_fn task, void *context) {
  (void)pool, (void)tasks, (void)workers, (void)task, (void)context;
}

TEST(thread_counts_are_checked) {
  const attn_problem problem = small_problem(NULL);
  attn_plan *plan;
  attn_options options = ATTN_STRUCT(attn_options, .threads = -1);
  test_invalid(attn_plan_create(&problem, &options, &plan), "threads", "-1", "0");
  options = ATTN_STRUCT(attn_options, .threads = 0, .parallel_for = worker_without_tasks);
  test_invalid(attn_plan_create(&problem, &options, &plan), "threads", "0", "parallel_for");
}

static void workspace_is_checked(const char *kernel) {
  const attn_problem problem = small_problem(kernel);
  test_data data = test_data_create(&problem, 1);
  attn_plan *plan;
  test_ok(attn_plan_create(&problem, &ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 2), &plan));
  const size_t bytes = attn_plan_workspace(plan);
  assert_int_equal(bytes % 64, 0);
  char *workspace = test_allocate(bytes + 64);
  if (bytes) {
    char needed[32];
    snprintf(needed, sizeof needed, "needs %zu", bytes);
    const char *const parts[4] = {"workspace", needed};
    test_refused_by_parts(attn_plan_run(plan, &data.args, workspace, bytes - 1), ATTN_WORKSPACE_TOO_SMALL, parts);
    test_refused_by_parts(attn_plan_run(plan, &data.args, workspace, 0), ATTN_WORKSPACE_TOO_SMALL, parts);
    test_refused_by_parts(attn_plan_run(plan, &data.args, NULL, bytes), ATTN_WORKSPACE_TOO_SMALL, parts);
    test_refused(attn_plan_run(plan, &data.args, workspace + 4, bytes + 60), ATTN_WORKSPACE_TOO_SMALL, "workspace",
                 "aligned", "64");
  }
  /* Its content before does not matter, and nothing beyond it is touched. */
  test_data again = test_data_share_inputs(&problem, &data);
  memset(workspace, 0xff, bytes + 64);
  test_ok(attn_plan_run(plan, &data.args, workspace, bytes));
  for (size_t i = bytes; i < bytes + 64; i++) assert_int_equal((unsigned char)workspace[i], 0xff);
  memset(workspace, 0, bytes);
  test_ok(attn_plan_run(plan, &again.args, workspace, bytes));
  assert_memory_equal(data.args.o, again.args.o, data.o_bytes);
  test_data_destroy_outputs(&again);
  test_data_destroy(&data);
  attn_plan_destroy(plan);
  free(workspace);
}

TEST(every_kernel_checks_its_workspace) { test_each_kernel(workspace_is_checked); }

/* A task of naive_c is a whole head, so with more threads than heads only as many score matrices are needed as heads. */
TEST(threads_without_tasks_cost_no_memory) {
  attn_problem problem;
  attn_problem_init(&problem, 1, 3, 1, 100, 100, 8, 8);
  size_t bytes[2];
  static const int threads[2] = {3, 64};
  for (int i = 0; i < 2; i++) {
    attn_plan *plan;
    test_ok(attn_plan_create(&problem, &ATTN_STRUCT(attn_options, .kernel = "naive_c", .threads = threads[i]), &plan));
    bytes[i] = attn_plan_workspace(plan);
    attn_plan_destroy(plan);
  }
  assert_true(bytes[0] >= 3 * sizeof(float) * 100 * 100);
  assert_int_equal(bytes[0], bytes[1]);
}

static void plan_describes_itself(const char *kernel) {
  attn_plan *plan;
  test_ok(create(kernel, NULL, &plan));
  const char *text = attn_plan_describe(plan);
  char bytes[32];
  snprintf(bytes, sizeof bytes, "%zu", attn_plan_workspace(plan));
  test_contains(text, kernel);
  test_contains(text, bytes);
  test_contains(text, "attn_options.kernel"); /* the reason for the choice */
  assert_true(!strstr(text, " in 1 phase,") == !!strstr(text, " phases,"));
  test_contains(text, "threads");
  assert_int_equal(attn_plan_piece_keys(plan), 0); /* it keeps no state */
  attn_plan_destroy(plan);
}

TEST(every_plan_describes_itself) {
  test_each_kernel(plan_describes_itself);
  attn_plan *plan;
  test_ok(create(NULL, NULL, &plan));
  test_contains(attn_plan_describe(plan), "automatic");
  attn_plan_destroy(plan);
  attn_plan_destroy(NULL);
  assert_int_equal(attn_plan_workspace(NULL), 0);
}

TEST(verbose_plans_are_printed) {
  attn_plan *plan;
  char heard[4000];
  for (int verbose = 0; verbose <= 1; verbose++) {
    setenv("ATTN_VERBOSE", verbose ? "1" : "0", 1);
    test_listen(stderr);
    test_ok(create(NULL, NULL, &plan));
    snprintf(heard, sizeof heard, "%s", test_heard());
    if (verbose) {
      assert_int_equal(strncmp(heard, "attn plan\n", 10), 0);
      assert_string_equal(heard + 10, attn_plan_describe(plan));
    } else {
      assert_string_equal(heard, "");
    }
    attn_plan_destroy(plan);
  }
}

static void *ask_for_description(void *plan) { return (void *)(uintptr_t)attn_plan_describe(plan); }

/* The text is made by whoever asks first. */
TEST(threads_may_ask_for_the_description_at_once) {
  enum { THREADS = 8 };
  for (int turn = 0; turn < 50; turn++) {
    pthread_t threads[THREADS];
    void *text[THREADS];
    attn_plan *plan;
    test_ok(create(NULL, NULL, &plan));
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, ask_for_description, plan), 0);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_join(threads[i], &text[i]), 0);
    for (int i = 0; i < THREADS; i++) assert_ptr_equal(text[i], text[0]);
    test_contains(text[0], "automatic");
    attn_plan_destroy(plan);
  }
}

/* Query rows of a block, as attn_plan_describe() tells them; 0 if the kernel does not run here. */
static int rows_of_block(const char *kernel, const attn_problem *problem, int threads) {
  attn_plan *plan;
  int rows = 0;
  const attn_kernel_info *info = attn_kernel_find(kernel);
  if (!info || attn_kernel_rejects(info, problem)) return 0;
  test_ok(attn_plan_create(problem, &ATTN_STRUCT(attn_options, .kernel = kernel, .threads = threads), &plan));
  assert_int_equal(sscanf(strstr(attn_plan_describe(plan), "\nblocks"), "\nblocks %d", &rows), 1);
  attn_plan_destroy(plan);
  return rows;
}

/* Blocks of few heads are cut so that no thread idles, those of many are not; scores of long rows stay in the cache. */
TEST(blocks_fit_threads_and_caches) {
  static const char *const flash[] = {"flash_avx2", "flash_avx512"}, *const blocked[] = {"blocked_avx2", "blocked_avx512"};
  attn_problem few, many, wide;
  attn_problem_init(&few, 1, 1, 1, 96, 512, 64, 64);
  attn_problem_init(&wide, 1, 1, 1, 96, 20000, 64, 64);
  attn_problem_init(&many, 4, 8, 8, 1024, 512, 64, 64);
  for (int i = 0; i < 2; i++) {
    assert_true(rows_of_block(flash[i], &few, 2) <= 48);
    assert_int_equal(rows_of_block(flash[i], &many, 2), rows_of_block(flash[i], &many, 1));
    assert_true(rows_of_block(blocked[i], &wide, 1) <= 16);
    assert_int_equal(rows_of_block(blocked[i], &many, 1), rows_of_block(flash[i], &many, 1));
  }
  few.dtype_q = few.dtype_kv = many.dtype_q = many.dtype_kv = ATTN_BF16;
  assert_true(rows_of_block("flash_amx", &few, 2) <= 64);
  assert_int_equal(rows_of_block("flash_amx", &many, 2), rows_of_block("flash_amx", &many, 1));
}

TEST(one_shot_gives_the_bits_of_a_plan) {
  attn_problem problem = small_problem(NULL);
  problem.uses = ATTN_USE_LSE;
  test_data data = test_data_create(&problem, 5), again = test_data_share_inputs(&problem, &data);
  test_ok(test_run(&problem, &data.args, NULL));
  test_ok(attn_sdpa(&problem, &again.args));
  assert_memory_equal(data.args.o, again.args.o, data.o_bytes);
  assert_memory_equal(data.args.lse, again.args.lse, data.lse_bytes);
  test_invalid(attn_sdpa(&problem, NULL), "args", "NULL");
  test_data_destroy_outputs(&again);
  test_data_destroy(&data);
}

typedef struct seen_tasks {
  attn_task open;
  int64_t begun, ended;
} seen_tasks;

static void see(void *context, const attn_task *task, bool ended) {
  seen_tasks *s = context;
  assert_int_equal(s->begun - s->ended, ended);
  if (ended) assert_true(task->phase == s->open.phase && task->unit == s->open.unit && task->item == s->open.item);
  s->open = *task;
  (*(ended ? &s->ended : &s->begun))++;
}

/* Each task begins and ends before the next one, and all of them make the bits of a run. */
static void tasks_are_seen(const char *kernel) {
  const attn_problem problem = small_problem(kernel);
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 2);
  attn_plan *plan;
  test_ok(attn_plan_create(&problem, &options, &plan));
  test_data data = test_data_create(&problem, 5), again = test_data_share_inputs(&problem, &data);
  void *workspace = test_allocate(attn_plan_workspace(plan));
  test_ok(test_run(&problem, &data.args, &options));
  seen_tasks seen = {.begun = 0};
  attn_plan_run_seen(plan, &again.args, workspace, see, &seen);
  const attn_schedule *s = attn_plan_schedule(plan);
  for (int phase = 0; phase < s->phases; phase++) seen.ended -= s->units * s->items[phase];
  assert_int_equal(seen.ended, 0);
  assert_memory_equal(data.args.o, again.args.o, data.o_bytes);
  free(workspace);
  test_data_destroy_outputs(&again);
  test_data_destroy(&data);
  attn_plan_destroy(plan);
}
KERNEL_TEST(tasks_are_seen)

/* ---- Errors ---- */

static void *fail_elsewhere(void *seen) {
  snprintf(seen, 64, "%.60s", attn_last_error());
  attn_problem problem = small_problem(NULL);
  problem.dim_qk = -77;
  return (void *)(intptr_t)attn_problem_validate(&problem);
}

TEST(last_error_belongs_to_the_thread) {
  attn_problem problem = small_problem(NULL);
  problem.batch = -5;
  assert_int_equal(attn_problem_validate(&problem), ATTN_INVALID_ARGUMENT);
  char seen_at_start[64] = "not run", before[256];
  snprintf(before, sizeof before, "%s", attn_last_error());
  pthread_t thread;
  void *status;
  assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, seen_at_start), 0);
  assert_int_equal(pthread_join(thread, &status), 0);
  assert_int_equal((intptr_t)status, ATTN_INVALID_ARGUMENT);
  assert_string_equal(seen_at_start, "");
  assert_string_equal(attn_last_error(), before);
  test_contains(before, "-5");
}

TEST(statuses_and_version_have_names) {
#define HAS_ITS_NAME(status) assert_string_equal(attn_status_name(status), #status)
  HAS_ITS_NAME(ATTN_OK), HAS_ITS_NAME(ATTN_INVALID_ARGUMENT), HAS_ITS_NAME(ATTN_UNSUPPORTED);
  HAS_ITS_NAME(ATTN_UNKNOWN_KERNEL), HAS_ITS_NAME(ATTN_WORKSPACE_TOO_SMALL), HAS_ITS_NAME(ATTN_OUT_OF_MEMORY);
  for (int other = ATTN_OUT_OF_MEMORY + 1; other < 100; other++)
    assert_string_equal(attn_status_name((attn_status)other), "unknown status");
  char version[32];
  snprintf(version, sizeof version, "%d.%d.%d", ATTN_VERSION_MAJOR, ATTN_VERSION_MINOR, ATTN_VERSION_PATCH);
  assert_string_equal(attn_version(), version);
}
