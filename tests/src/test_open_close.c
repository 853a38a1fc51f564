/* SPDX-License-Identifier: MIT */
/* Promises of kernel.h to kernels on other libraries: open() is called once per plan, after plan() and before the workspace
 * is sized; run() gets the plan data that plan() and open() left; close() is called once for each open() that succeeded. */
#define TEST_SETUP forget
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/plan/plan.h"
#include "tests/support/support.h"

enum { SCRATCH = 4096, MORE_SCRATCH = 1 << 20 };

/* Calls of the fake kernel's functions, and its answers. */
static struct {
  bool planned; /* since the last object was opened */
  int opened, ran, closed;
  attn_status answer;
  size_t unit_bytes;
} seen;

/* The fake library's object, and the kernel's plan data. */
static char object[] = "opened";

typedef struct fake_plan {
  int64_t scratch;
  char *object; /* made by open() */
} fake_plan;

static const fake_plan *plan_in(const attn_schedule *schedule) { return (const void *)schedule->own; }

static const char *rejects(const attn_problem *problem, char *buffer, size_t buffer_bytes) {
  (void)problem, (void)buffer, (void)buffer_bytes;
  return NULL;
}

static bool plan(const attn_problem *problem, const attn_machine *machine, attn_schedule *schedule) {
  (void)machine;
  schedule->phases = 1;
  schedule->items[0] = problem->heads_q / problem->heads_kv;
  schedule->unit_bytes = seen.unit_bytes;
  for (size_t i = 0; i < ATTN_OWN_BYTES; i++) assert_int_equal(schedule->own[i], 0);
  ((fake_plan *)(void *)schedule->own)->scratch = SCRATCH;
  schedule->scratch_bytes = SCRATCH;
  seen.planned = true; /* twice, where fewer threads pay */
  return true;
}

static attn_status open_object(attn_schedule *schedule, char *reason, size_t reason_bytes) {
  assert_true(seen.planned);
  seen.planned = false;
  assert_int_equal(schedule->scratch_bytes, SCRATCH);
  assert_int_equal(plan_in(schedule)->scratch, SCRATCH);
  assert_null(plan_in(schedule)->object);
  if (seen.answer != ATTN_OK) {
    snprintf(reason, reason_bytes, "the library has no product for dim_qk %d", (int)schedule->problem.dim_qk);
    return seen.answer;
  }
  seen.opened++;
  schedule->scratch_bytes += MORE_SCRATCH;
  ((fake_plan *)(void *)schedule->own)->object = object;
  return ATTN_OK;
}

static void close_object(attn_schedule *schedule) {
  assert_ptr_equal(plan_in(schedule)->object, object);
  seen.closed++;
}

static void run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory, void *scratch) {
  (void)args, (void)task, (void)unit_memory;
  assert_int_equal(plan_in(schedule)->scratch, SCRATCH);
  assert_ptr_equal(plan_in(schedule)->object, object);
  memset(scratch, 1, SCRATCH + MORE_SCRATCH);
  seen.ran++;
}

static const attn_kernel fake = {
    .info = {.name = "fake_library", .algorithm = "fake", .isa = "c", .library = "fake 1.0", .summary = "a test's own"},
    .rejects = rejects,
    .plan = plan,
    .run = run,
    .library = &(const attn_library_hooks){.open = open_object, .close = close_object},
};

static attn_problem two_heads(void) {
  attn_problem problem;
  attn_problem_init(&problem, 1, 2, 1, 3, 5, 7, 2);
  return problem;
}

static int forget(void **state) {
  (void)state;
  memset(&seen, 0, sizeof seen);
  return 0;
}

/* Naming it does not help: the problem is one of attention. */
TEST(a_kernel_of_another_operation_takes_no_attention) {
  const attn_problem problem = two_heads();
  attn_kernel other = fake;
  other.operation = (attn_operation)(ATTN_BACKWARD + 1); /* which nobody knows */
  attn_plan *plan;
  test_refused(attn_plan_create_for_kernel(&problem, &other, NULL, &plan), ATTN_UNSUPPORTED, "'fake_library'",
               "something else, not attention");
  assert_int_equal(seen.opened, 0);
}

TEST(one_object_serves_all_runs_of_a_plan) {
  const attn_problem problem = two_heads();
  test_data data = test_data_create(&problem, 1);
  attn_plan *plan;
  test_ok(attn_plan_create_for_kernel(&problem, &fake, &ATTN_STRUCT(attn_options, .threads = 1), &plan));
  const size_t bytes = attn_plan_workspace(plan);
  assert_int_equal(bytes, SCRATCH + MORE_SCRATCH);
  void *workspace = test_allocate(bytes);
  for (int i = 0; i < 3; i++) test_ok(attn_plan_run(plan, &data.args, workspace, bytes));
  assert_int_equal(seen.ran, 6);
  assert_int_equal(seen.opened, 1);
  assert_int_equal(seen.closed, 0);
  attn_plan_destroy(plan);
  assert_int_equal(seen.closed, 1);
  free(workspace);
  test_data_destroy(&data);
}

TEST(each_plan_has_its_own) {
  const attn_problem problem = two_heads();
  attn_plan *plans[2];
  for (int i = 0; i < 2; i++) test_ok(attn_plan_create_for_kernel(&problem, &fake, NULL, &plans[i]));
  assert_int_equal(seen.opened, 2);
  for (int i = 0; i < 2; i++) attn_plan_destroy(plans[i]);
  assert_int_equal(seen.closed, 2);
}

TEST(failure_is_a_status_and_a_sentence) {
  static const attn_status answers[] = {ATTN_UNSUPPORTED, ATTN_OUT_OF_MEMORY};
  const attn_problem problem = two_heads();
  for (size_t i = 0; i < COUNT(answers); i++) {
    attn_plan *plan = (attn_plan *)&seen; /* becomes NULL */
    forget(NULL);
    seen.answer = answers[i];
    test_refused(attn_plan_create_for_kernel(&problem, &fake, NULL, &plan), answers[i], "'fake_library'",
                 "the library has no product for dim_qk 7");
    assert_null(plan);
    assert_int_equal(seen.closed, 0);
  }
}

TEST(what_was_opened_is_closed_when_memory_overflows) {
  const attn_problem problem = two_heads();
  attn_plan *plan;
  seen.unit_bytes = SIZE_MAX / 2;
  test_refused(attn_plan_create_for_kernel(&problem, &fake, NULL, &plan), ATTN_UNSUPPORTED, "fake_library", "address space");
  assert_int_equal(seen.opened, 1);
  assert_int_equal(seen.closed, 1);
}
