/* SPDX-License-Identifier: MIT */
/* Plans, the registry and dispatch: a cap or a name can only exclude kernels, errors list the kernels that would do, plans
 * can be shared, and the workspace is checked. */
#define TEST_SETUP    clear_environment
#define TEST_TEARDOWN clear_environment
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "support.h"

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
  (void)state;
  unsetenv("ATTN_KERNEL");
  unsetenv("ATTN_VERBOSE");
  if (*outer_cap) return setenv("ATTN_MAX_ISA", outer_cap, 1);
  return unsetenv("ATTN_MAX_ISA");
}

static attn_status create(const char *kernel, const char *max_isa, attn_plan **plan) {
  const attn_problem problem = small_problem(kernel);
  return attn_plan_create(&problem, &ATTN_STRUCT(attn_options, .kernel = kernel, .max_isa = max_isa, .threads = 1), plan);
}

static void assert_plan_runs(const char *kernel, const char *max_isa, const char *expected) {
  attn_plan *plan;
  test_ok(create(kernel, max_isa, &plan));
  assert_string_equal(attn_plan_kernel(plan), expected);
  attn_plan_destroy(plan);
}

static void assert_plan_of(const attn_problem *problem, const char *expected) {
  attn_plan *plan;
  test_ok(attn_plan_create(problem, NULL, &plan));
  assert_string_equal(attn_plan_kernel(plan), expected);
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
    assert_int_equal(strcasecmp(info->name, name), 0);
    assert_ptr_equal(attn_kernel_find(info->name), info);
    assert_true(strlen(info->summary) > 10);
    assert_non_null(info->library);
    assert_true(info->numerics.p_rounding >= 0 && info->numerics.input_flush >= 0);
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
  assert_create_fails("flash_mmx", NULL, ATTN_UNKNOWN_KERNEL, "attn_options.kernel", "'flash_mmx'", "naive_c", "flash_c");
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

/* Split-KV for few queries, flash for many; wide keys, and half a tile of flash left empty, move the border. Batch and
 * threads do not matter. */
TEST(choice_depends_on_the_shape_of_a_sequence) {
  static const struct {
    int64_t heads_q, seq_q, dim;
    attn_dtype dtype;
    const char *expected;
  } cases[] = {{1, 4, 64, ATTN_F32, "decode_c"},   {1, 5, 64, ATTN_F32, "flash_c"},    {1, 6, 64, ATTN_F32, "flash_c"},
               {1, 7, 64, ATTN_F32, "decode_c"},   {1, 8, 64, ATTN_F32, "decode_c"},   {1, 9, 64, ATTN_F32, "flash_c"},
               {4, 4, 64, ATTN_F32, "decode_c"},   {4, 6, 64, ATTN_F32, "flash_c"},    {4, 8, 64, ATTN_F32, "decode_c"},
               {1, 10, 128, ATTN_F32, "decode_c"}, {1, 11, 128, ATTN_F32, "flash_c"},  {1, 14, 128, ATTN_F32, "decode_c"},
               {1, 15, 128, ATTN_F32, "flash_c"},  {1, 20, 200, ATTN_F32, "decode_c"}, {1, 21, 200, ATTN_F32, "flash_c"},
               {1, 6, 64, ATTN_F16, "decode_c"},   {1, 14, 64, ATTN_BF16, "decode_c"}, {1, 18, 64, ATTN_BF16, "flash_c"},
               {1, 10, 32, ATTN_F16, "decode_c"},  {1, 11, 32, ATTN_F16, "flash_c"},   {1, 22, 200, ATTN_F16, "decode_c"},
               {1, 27, 200, ATTN_F16, "flash_c"},  {64, 1, 64, ATTN_F32, "flash_c"}};
  for (size_t i = 0; i < COUNT(cases); i++)
    for (int batch = 1; batch <= 64; batch += 63) {
      attn_problem problem;
      attn_plan *plan;
      attn_problem_init(&problem, batch, cases[i].heads_q, 1, cases[i].seq_q, 512, cases[i].dim, cases[i].dim);
      problem.dtype_q = problem.dtype_kv = cases[i].dtype;
      test_ok(attn_plan_create(&problem, &ATTN_STRUCT(attn_options, .max_isa = "c", .threads = batch), &plan));
      assert_string_equal(attn_plan_kernel(plan), cases[i].expected);
      const char *why = strstr(attn_plan_describe(plan), "decode_c (slower than flash for so many queries)");
      assert_int_equal(why != NULL, cases[i].seq_q > 1 && !strcmp(cases[i].expected, "flash_c"));
      attn_plan_destroy(plan);
    }
}

/* AVX-512 goes through K and V once for 8 rows, others for 4, and is quicker in blocks of 32 keys. */
TEST(choice_depends_on_the_rows_at_once) {
  static const struct {
    int64_t group, seq_q, seq_k, dim;
    attn_dtype dtype;
    const char *expected;
  } cases[] = {
      {1, 4, 512, 32, ATTN_F32, "decode"},  {1, 5, 512, 32, ATTN_F32, "flash"},   {1, 7, 512, 32, ATTN_F32, "decode"},
      {1, 16, 512, 64, ATTN_F32, "decode"}, {1, 17, 512, 64, ATTN_F32, "flash"},  {1, 20, 512, 64, ATTN_F32, "decode"},
      {1, 21, 512, 64, ATTN_F32, "flash"},  {1, 28, 512, 64, ATTN_F16, "decode"}, {1, 29, 512, 64, ATTN_F16, "flash"},
      {1, 5, 512, 64, ATTN_F32, "decode"},  {1, 5, 31, 64, ATTN_F32, "flash"},    {1, 5, 512, 60, ATTN_F32, "flash"},
      {8, 4, 512, 32, ATTN_F16, "decode"},  {8, 4, 31, 32, ATTN_F16, "flash"}};
  if (!attn_kernel_find("decode_avx512") || attn_kernel_unusable(attn_kernel_find("decode_avx512"))) skip();
  for (size_t i = 0; i < COUNT(cases); i++) {
    attn_problem p;
    char expected[24];
    attn_problem_init(&p, 1, cases[i].group, 1, cases[i].seq_q, cases[i].seq_k, cases[i].dim, cases[i].dim);
    p.dtype_q = p.dtype_kv = cases[i].dtype;
    snprintf(expected, sizeof expected, "%s_avx512", cases[i].expected);
    assert_plan_of(&p, expected);
  }
}

/* A problem whose heads all have these sizes, and the kernel that is chosen for it. */
typedef struct choice {
  int64_t heads_q, heads_kv, seq_q, seq_k, dim;
  const char *expected;
} choice;

static void expect_choices(const choice *cases, size_t count, attn_dtype dtype) {
  for (size_t i = 0; i < count; i++) {
    const choice *c = &cases[i];
    attn_problem problem;
    attn_problem_init(&problem, 1, c->heads_q, c->heads_kv, c->seq_q, c->seq_k, c->dim, c->dim);
    problem.dtype_q = problem.dtype_kv = problem.dtype_o = dtype;
    assert_plan_of(&problem, c->expected);
  }
}

/* Where K and V of a head, as floats, exceed 1.5 MiB, decode keeps 24 queries. So do up to 8 rows of a KV head where it has
 * more than 1 MiB and all heads more than 8. Flash packs K and V slower the further they reach beyond 256 KiB, and computes
 * its tiles slower where keys are few. */
TEST(the_size_of_keys_moves_the_border) {
  static const choice cases[] = {
      {1, 1, 24, 3072, 64, "flash_c"}, {1, 1, 24, 3073, 64, "decode_c"}, {1, 1, 25, 3072, 64, "flash_c"},
      {1, 1, 25, 3073, 64, "flash_c"}, {8, 8, 6, 3276, 40, "flash_c"},   {8, 8, 6, 3277, 40, "decode_c"},
      {7, 7, 6, 3277, 40, "flash_c"},  {8, 8, 12, 3277, 40, "flash_c"},  {1, 1, 5, 512, 64, "flash_c"},
      {1, 1, 5, 1536, 64, "decode_c"}, {1, 1, 9, 512, 64, "flash_c"},    {1, 1, 9, 1536, 64, "decode_c"},
      {1, 1, 9, 6, 64, "decode_c"}};
  setenv("ATTN_MAX_ISA", "c", 1);
  expect_choices(cases, COUNT(cases), ATTN_F32);
}

/* Where there is a tile unit: 24 queries x 17 keys fill it, or 512 pairs of a query and a key, or 28 queries of fewer keys
 * and 336 pairs; decode_amx takes up to 16 queries. The more rows of a KV head and the wider the keys, the fewer keys it
 * needs. One or two rows need K and V in level 2 unless they are narrow. Where it copies K and V, it takes 5 rows or more.
 * Queries of grouped heads that fill one tile of vectors stay there. */
TEST(tiles_are_for_problems_that_fill_them) {
  static const choice cases[] = {
      {1, 1, 2, 95, 64, "decode_avx512"},   {1, 1, 2, 96, 64, "decode_amx"},      {1, 1, 5, 39, 64, "decode_avx512"},
      {1, 1, 5, 40, 64, "decode_amx"},      {1, 1, 27, 16, 64, "flash_avx512"},   {1, 1, 28, 16, 64, "flash_amx"},
      {1, 1, 41, 8, 64, "flash_avx512"},    {1, 1, 42, 8, 64, "flash_amx"},       {1, 1, 24, 17, 64, "flash_amx"},
      {1, 1, 23, 22, 64, "flash_avx512"},   {1, 1, 23, 23, 64, "flash_amx"},      {1, 1, 11, 23, 64, "flash_avx512"},
      {1, 1, 11, 24, 64, "decode_amx"},     {1, 1, 16, 23, 64, "flash_avx512"},   {1, 1, 16, 24, 64, "decode_amx"},
      {1, 1, 17, 30, 64, "flash_avx512"},   {1, 1, 17, 31, 64, "flash_amx"},      {1, 1, 1, 8193, 64, "decode_amx"},
      {4, 2, 1, 512, 128, "decode_amx"},    {2, 2, 1, 512, 192, "decode_amx"},    {2, 2, 1, 199, 192, "decode_avx512"},
      {2, 2, 1, 200, 192, "decode_amx"},    {2, 2, 1, 512, 256, "decode_avx512"}, {2, 2, 1, 95, 64, "decode_avx512"},
      {2, 2, 1, 96, 64, "decode_amx"},      {2, 2, 2, 2048, 128, "decode_amx"},   {2, 2, 2, 2049, 128, "decode_avx512"},
      {2, 2, 2, 9000, 96, "decode_amx"},    {6, 2, 1, 71, 64, "decode_avx512"},   {6, 2, 1, 72, 64, "decode_amx"},
      {8, 2, 1, 79, 32, "decode_avx512"},   {8, 2, 1, 80, 32, "decode_amx"},      {8, 2, 1, 55, 192, "decode_avx512"},
      {8, 2, 1, 56, 192, "decode_amx"},     {8, 2, 1, 512, 80, "decode_avx512"},  {10, 2, 1, 127, 80, "decode_avx512"},
      {10, 2, 1, 128, 80, "decode_amx"},    {8, 2, 4, 43, 80, "decode_avx512"},   {8, 2, 4, 44, 80, "decode_amx"},
      {2, 2, 16, 512, 64, "decode_amx"},    {2, 2, 17, 512, 64, "flash_amx"},     {2, 2, 24, 512, 192, "decode_amx"},
      {2, 2, 25, 512, 192, "flash_amx"},    {16, 2, 4, 512, 64, "decode_amx"},    {16, 2, 4, 19, 64, "decode_avx512"},
      {16, 2, 4, 20, 64, "decode_amx"},     {2, 2, 24, 100, 80, "decode_amx"},    {2, 2, 25, 100, 80, "flash_amx"},
      {2, 2, 17, 100, 40, "flash_amx"},     {8, 2, 18, 17, 64, "flash_avx512"},   {8, 2, 19, 17, 64, "flash_amx"},
      {2, 2, 23, 17, 64, "flash_avx512"},   {16, 2, 5, 255, 64, "flash_avx512"},  {16, 2, 5, 256, 64, "flash_amx"},
      {16, 2, 6, 4000, 40, "flash_avx512"}, {16, 2, 7, 74, 40, "flash_amx"},      {16, 2, 7, 73, 40, "flash_avx512"}};
  if (!attn_kernel_find("decode_amx") || attn_kernel_unusable(attn_kernel_find("decode_amx"))) skip();
  expect_choices(cases, COUNT(cases), ATTN_BF16);
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

static const char *choice_of(const attn_plan *plan) { return strstr(attn_plan_describe(plan), "\nchoice"); }

/* Whatever the problem, the words say what the choice went by, and neither depends on batch or threads. Built-in costs are
 * of plain and causal dot products, in head dimensions that are multiples of 8. */
TEST(every_choice_says_why_for_any_batch_and_threads) {
  static const int64_t queries[] = {1, 4, 9, 300}, dims[] = {7, 24, 64, 128};
  enum { CAUSAL = 1, KINDS = 8 };
  for (int n = 0; n < 4 * 4 * 3 * KINDS; n++) {
    const int kind = n / 48;
    attn_problem p;
    attn_plan *plan, *other;
    attn_problem_init(&p, 1, 4, 2, queries[n % 4], 300, dims[n / 4 % 4], dims[n / 4 % 4]);
    p.dtype_q = p.dtype_kv = p.dtype_o = (attn_dtype)(n / 16 % 3);
    if (kind == CAUSAL) attn_problem_set_causal(&p, ATTN_ALIGN_BOTTOM_RIGHT);
    if (kind == 2) p.softcap = 5;
    if (kind == 3) p.window_left = 9;
    if (kind == 4) p.window_right = 9;
    if (kind == 5) p.score = ATTN_SCORE_GAUSSIAN;
    if (kind > 5) p.uses = kind == 6 ? ATTN_USE_BIAS : ATTN_USE_MASK;
    test_ok(attn_plan_create(&p, &ATTN_STRUCT(attn_options, .threads = 1), &plan));
    p.batch = 5;
    p.q_stride.b = p.k_stride.b = p.v_stride.b = p.o_stride.b = 1 << 20;
    test_ok(attn_plan_create(&p, &ATTN_STRUCT(attn_options, .threads = 3), &other));
    test_contains(choice_of(plan), "automatic");
    if (kind > CAUSAL || dims[n / 4 % 4] == 7) assert_null(strstr(choice_of(plan), "by costs"));
    assert_string_equal(choice_of(plan), choice_of(other));
    assert_string_equal(attn_plan_kernel(plan), attn_plan_kernel(other));
    attn_plan_destroy(plan);
    attn_plan_destroy(other);
  }
}

/* Which of two kernels the choice takes follows from the probe's figure, which is the same in every plan. */
TEST(the_probe_decides_on_products_of_bf16) {
  static const struct {
    int64_t queries;
    const char *dot, *widening;
  } pairs[] = {{300, "flash_avx512bf16", "flash_avx512"}, {4, "decode_avx512bf16", "decode_avx512"}};
  attn_problem problem;
  attn_plan *plan;
  double gain[2] = {0};
  for (int i = 0; i < 2; i++) {
    const attn_kernel_info *dot = attn_kernel_find(pairs[i].dot);
    attn_problem_init(&problem, 1, 2, 2, pairs[i].queries, 300, 64, 64);
    problem.dtype_q = problem.dtype_kv = problem.dtype_o = ATTN_BF16;
    if (!dot || attn_kernel_rejects(dot, &problem)) skip();
    test_ok(attn_plan_create(&problem, &ATTN_STRUCT(attn_options, .max_isa = "avx512bf16", .threads = 1), &plan));
    const char *figure = strstr(attn_plan_describe(plan), "a probe found it ");
    assert_non_null(figure);
    assert_int_equal(sscanf(figure, "a probe found it %lf times as fast as widening", &gain[i]), 1);
    assert_true(gain[i] > 0.1 && gain[i] < 10);
    if (fabs(gain[i] - 1.1) > 0.01) /* it is rounded */
      assert_string_equal(attn_plan_kernel(plan), gain[i] > 1.1 ? pairs[i].dot : pairs[i].widening);
    attn_plan_destroy(plan);
  }
  assert_true(gain[0] == gain[1]);
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
  assert_non_null(attn_status_name((attn_status)99));
  char version[32];
  snprintf(version, sizeof version, "%d.%d.%d", ATTN_VERSION_MAJOR, ATTN_VERSION_MINOR, ATTN_VERSION_PATCH);
  assert_string_equal(attn_version(), version);
}
