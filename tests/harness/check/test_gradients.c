/* SPDX-License-Identifier: MIT */
/* Broken kernels of gradients fail the check: each is flash_backward_c with one fault. */
#include <math.h>
#include <string.h>

#include "cases/cases.h"
#include "kernels/common/problem/indexing.h"
#include "src/registry/registry.h"
#include "tests/support/layer_support.h"
#include "timing/setup.h"

/* ---- Faults: a changed problem, changed arguments, or changed outputs ------------------------------------------------- */

typedef struct faulty_call {
  attn_schedule schedule;
  attn_args args;
  attn_task task;
  void *scratch;
} faulty_call;

static const attn_kernel *original(void) { return attn_registry_find("flash_backward_c"); }

static void compute(faulty_call *c) { original()->run(&c->schedule, &c->args, c->task, NULL, c->scratch); }

static void is_right(faulty_call *c) { compute(c); }

static void does_nothing(faulty_call *c) { (void)c; }

/* delta = rowsum(d_o o) of an o of zeros */
static void forgets_delta(faulty_call *c) {
  static const float zero;
  c->args.o = (void *)(uintptr_t)&zero;
  c->schedule.problem.o_stride = (attn_strides){0, 0, 0, 0};
  compute(c);
}

static void forgets_d_lse(faulty_call *c) {
  c->schedule.problem.uses &= ~(uint32_t)ATTN_USE_D_LSE;
  compute(c);
}

/* z = lse, without the sink */
static void forgets_sinks(faulty_call *c) {
  c->schedule.problem.uses &= ~(uint32_t)ATTN_USE_SINKS;
  compute(c);
}

static void drops_last_keys(faulty_call *c) {
  c->schedule.problem.key_end = c->schedule.problem.seq_k - 3;
  compute(c);
}

static void ignores_mask(faulty_call *c) {
  c->schedule.problem.uses &= ~(uint32_t)ATTN_USE_MASK;
  compute(c);
}

static void ignores_softcap(faulty_call *c) {
  c->schedule.problem.softcap = 0;
  compute(c);
}

static void adds_to_what_is_there(faulty_call *c) {
  c->schedule.problem.uses |= ATTN_USE_ACCUMULATE;
  compute(c);
}

/* Rows of an output in the task's head: [rows][columns], multiplied. */
static void multiply(const faulty_call *c, float *data, attn_strides stride, int64_t h, int64_t rows, int64_t columns,
                     float factor) {
  const int64_t b = attn_batch_of_unit(&c->schedule.problem, c->task.unit);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t d = 0; d < columns; d++) data[b * stride.b + h * stride.h + i * stride.s + d * stride.d] *= factor;
}

static void forgets_scale(faulty_call *c) {
  const attn_problem *p = &c->schedule.problem;
  compute(c);
  if (c->task.phase == 0)
    multiply(c, c->args.d_k, p->d_k_stride, attn_head_of_unit(p, c->task.unit) / attn_group(p), p->seq_k, p->dim_qk,
             1 / p->scale);
}

static void errs_by_a_thousandth(faulty_call *c) {
  const attn_problem *p = &c->schedule.problem;
  compute(c);
  if (c->task.phase == 0)
    multiply(c, c->args.d_q, p->d_q_stride, attn_head_of_unit(p, c->task.unit), 1, 1, 1.001f); /* one element of a head */
}

/* d_k and d_v from the first query head of each KV head alone; d_q is right. */
static void forgets_the_group(faulty_call *c) {
  attn_problem *p = &c->schedule.problem;
  faulty_call first = *c;
  void *d_k = c->args.d_k, *d_v = c->args.d_v;
  c->args.d_k = c->args.d_v = NULL;
  compute(c);
  if (c->task.phase > 0) return;
  attn_problem *one = &first.schedule.problem;
  const int64_t group = attn_group(p);
  one->heads_q = p->heads_kv;
  one->q_stride.h *= group, one->o_stride.h *= group, one->d_o_stride.h *= group;
  one->lse_stride.h *= group, one->d_lse_stride.h *= group;
  one->mask_stride.h *= group;
  first.args.d_q = NULL, first.args.d_k = d_k, first.args.d_v = d_v;
  compute(&first);
}

/* ---- Their kernels --------------------------------------------------------------------------------------------------- */

#define FAULT_LIST(FAULT)      \
  FAULT(is_right)              \
  FAULT(does_nothing)          \
  FAULT(forgets_delta)         \
  FAULT(forgets_d_lse)         \
  FAULT(forgets_sinks)         \
  FAULT(drops_last_keys)       \
  FAULT(ignores_mask)          \
  FAULT(ignores_softcap)       \
  FAULT(adds_to_what_is_there) \
  FAULT(forgets_scale)         \
  FAULT(errs_by_a_thousandth)  \
  FAULT(forgets_the_group)

#define RUN(fault)                                                                                          \
  static void run_##fault(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit, \
                          void *scratch) {                                                                  \
    faulty_call call = {*schedule, *args, task, scratch};                                                   \
    (void)unit;                                                                                             \
    fault(&call);                                                                                           \
  }
FAULT_LIST(RUN)

#define NAME_AND_RUN(fault) {#fault, run_##fault},
static const struct {
  const char *name;
  void (*run)(const attn_schedule *, const attn_args *, attn_task, void *, void *);
} faults[] = {FAULT_LIST(NAME_AND_RUN)};

int test_begin(char **arguments) {
  static attn_kernel kernels[COUNT(faults)];
  static const attn_kernel *list[COUNT(faults)];
  static const attn_plugin plugin = {ATTN_PLUGIN_SIZES, list, COUNT(faults), NULL, NULL};
  (void)arguments;
  for (size_t i = 0; i < COUNT(faults); i++) {
    kernels[i] = *original();
    kernels[i].info.name = faults[i].name;
    kernels[i].info.algorithm = "broken";
    kernels[i].run = faults[i].run;
    list[i] = &kernels[i];
  }
  return !attn_registry_add(&plugin, "this program");
}

/* ---- Tests ----------------------------------------------------------------------------------------------------------- */

/* All options that a fault forgets. */
static const char *const ids[] = {
    "pass:backward/batch:2/heads:4/heads_kv:2/seq_q:21/seq_k:33/head_dim:16/mask:random/softcap:2/sinks:on/lse:on",
    "pass:backward/batch:2/heads:4/heads_kv:2/seq:70/head_dim:24/causal:bottom-right/mask:random/softcap:2/sinks:on/lse:on",
};

static bench_verdict check_of(const char *id, const char *kernel) {
  const bench_case bench = valid_case(id);
  const attn_kernel_info *info = attn_kernel_find(kernel);
  const bench_case_settings settings = {.seed = 1};
  bench_row row = {0};
  assert_true(bench_run_case(&bench, &info, 1, &settings, &row));
  const bench_verdict verdict = row.verdict;
  bench_row_clear(&row);
  return verdict;
}

TEST(every_fault_fails) {
  for (size_t n = 0; n < COUNT(ids); n++)
    for (size_t i = 0; i < COUNT(faults); i++) {
      const bench_verdict verdict = check_of(ids[n], faults[i].name);
      if (verdict.status != (i ? BENCH_FAIL : BENCH_PASS))
        fail_msg("%s: %s: %s %s", ids[n], faults[i].name, bench_status_name(verdict.status), verdict.reason);
      assert_true(verdict.rows_checked > 0);
    }
}

TEST(failures_name_the_row) {
  test_contains(check_of(ids[0], "forgets_the_group").reason, "key ");
  test_contains(check_of(ids[0], "errs_by_a_thousandth").reason, "d_q[batch ");
}

/* Kernels of attention have no row in cases of gradients, nor the reverse. */
TEST(kernels_of_the_other_operation_are_refused) {
  const bench_verdict forward = check_of(ids[0], "naive_c");
  assert_int_equal(forward.status, BENCH_SKIP);
  test_contains(forward.reason, "it computes attention, not gradients");
  const bench_verdict backward = check_of("heads:2/seq:16/head_dim:8", "is_right");
  assert_int_equal(backward.status, BENCH_SKIP);
  test_contains(backward.reason, "it computes gradients, not attention");
}

/* Rows that the oracle leaves out are compared with a second kernel's. */
TEST(other_rows_are_compared_with_a_second_kernel) {
  const bench_case bench = valid_case(ids[0]);
  const attn_kernel_info *checked = attn_kernel_find("is_right");
  bench_tensors t;
  assert_true(bench_tensors_create(&bench, &t));
  bench_expected *expected = bench_expected_create(&bench.problem, &t.args, 1, true);
  assert_true(expected && expected->complete);
  int64_t kept[BENCH_TENSORS] = {0}, rows = 0;
  for (int64_t n = 0; n < expected->rows; n++) /* three rows of each output */
    if (kept[expected->row[n].of]++ < 3) expected->row[rows++] = expected->row[n];
  expected->rows = rows;
  expected->complete = false;
  test_ok(test_run(&bench.problem, &t.args, &ATTN_STRUCT(attn_options, .kernel = "is_right", .threads = 1)));
  bench_verdict verdict = bench_check_other_values(expected, &t.args, &checked->numerics, checked);
  if (verdict.status != BENCH_PASS) fail_msg("%s", verdict.reason);
  assert_true(verdict.reference[0] && strcmp(verdict.reference, "is_right") != 0);
  for (int which = BENCH_D_Q; which <= BENCH_D_V; which++) { /* the last row of the last head */
    const attn_operand o = attn_operand_of(&bench.problem, (attn_operand_id)which);
    float *last = (float *)attn_operand_at(&o, &t.args);
    for (int i = 0; i < 4; i++) last += (o.extent[i] - 1) * o.stride[i];
    const float right = *last;
    *last += 0.01f;
    verdict = bench_check_other_values(expected, &t.args, &checked->numerics, checked);
    assert_int_equal(verdict.status, BENCH_FAIL);
    test_contains(verdict.reason, o.name);
    *last = right;
  }
  bench_expected_destroy(expected);
  bench_tensors_destroy(&t);
}

TEST(what_passes_is_timed) {
  const bench_case bench = valid_case("pass:backward/heads:2/seq_q:32/seq_k:48/dim_qk:16/dim_v:8");
  const bench_case_settings settings = {.timed = true, .case_budget_s = 0.2, .precision = 0.05, .rounds = 5};
  const attn_kernel_info *info = attn_kernel_find("flash_backward_c");
  bench_row row = {0};
  assert_true(bench_run_case(&bench, &info, 1, &settings, &row));
  if (row.verdict.status != BENCH_PASS) fail_msg("%s", row.verdict.reason);
  assert_true(row.time.n == 5 && row.time.median > 0);
  assert_true(row.flops == 2 * 32 * 48 * (6 * 16 + 4 * 8));
  /* q, o, d_o, d_q; k, v, d_k, d_v */
  assert_true(row.bytes == 2 * 4 * (32 * (16 + 8 + 8 + 16) + 48 * 2 * (16 + 8)));
  bench_row_clear(&row);
}
