/* SPDX-License-Identifier: MIT */
/* A second operation, from its plan to its times and files: the log-sum-exp alone. It reads no V and writes no O. Its
 * tables of operations replace the library's and the harness's; all other code is the code that forward runs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check/structure.h"
#include "eval/eval.h"
#include "kernels/common/problem/convert.h"
#include "kernels/common/problem/indexing.h"
#include "src/choice/tuning.h"
#include "src/registry/registry.h"
#include "tests/support/layer_support.h"
#include "timing/setup.h"

#define NORM ((attn_operation)(ATTN_BACKWARD + 1))

/* ---- The lines in tables --------------------------------------------------------------------------------------------- */

#define BIT(operand) (UINT64_C(1) << ATTN_OPERAND_##operand)
#define INPUTS       ((BIT(D_O) - 1 - BIT(O) - BIT(LSE)) | (BIT(D_BIAS) - BIT(BIAS)))

const attn_operation_info attn_operations[] = {
    [ATTN_FORWARD] = {"forward", "attention", INPUTS, BIT(O) | BIT(LSE), .linear_in = ATTN_OPERAND_V, .linear = BIT(O)},
    [ATTN_BACKWARD] = {.name = "backward", .what = "gradients", .inputs = INPUTS, .outputs = BIT(D_Q)},
    [NORM] = {.name = "norm", .what = "norms of scores", .inputs = INPUTS & ~(BIT(V) | BIT(SINKS)), .outputs = BIT(LSE)},
};

const int attn_operation_count = COUNT(attn_operations);

static double flops(const attn_problem *p, double pairs) { return pairs * 2 * (double)p->dim_qk; }

bench_operation_flops *const bench_operations[] = {[NORM] = flops};

static bench_right right_lse(const bench_expected *e, int64_t n, int64_t d) {
  (void)d;
  return (bench_right){.value = e->row[n].facts.lse};
}

static double ratio_lse(const bench_row_limits *limits, bench_right right, double got) {
  return bench_lse_ratio(limits, right.value, got);
}

/* The oracle with one column of zeros as V. */
static void compute_row(bench_expected *e, const attn_args *args, int64_t n, double *scratch) {
  static const float zero;
  double o, m, w;
  bench_expected_row *row = &e->row[n];
  attn_problem p = e->problem;
  attn_args a = *args;
  p.operation = ATTN_FORWARD;
  p.dim_v = 1;
  p.v_stride = (attn_strides){0};
  a.v = &zero;
  row->facts =
      attn_oracle_f64_row(&p, &a, (attn_oracle_index){row->b, row->h, row->i}, &(attn_oracle_output){&o, &m, &w, scratch});
}

static const bench_output outputs[] = {{BENCH_LSE, right_lse, ratio_lse, NULL}, {.right = NULL}};

const bench_answer bench_answers[] = {
    [NORM] = {.outputs = outputs,
              .compute_row = compute_row,
              .structure = 1u << BENCH_STRUCTURE_threads | 1u << BENCH_STRUCTURE_batch | 1u << BENCH_STRUCTURE_rows |
                           1u << BENCH_STRUCTURE_heads},
};

/* ---- Its kernels ----------------------------------------------------------------------------------------------------- */

static const char *rejects(const attn_problem *p, char *buffer, size_t bytes) {
  (void)buffer, (void)bytes;
  if (p->score != ATTN_SCORE_DOT || p->softcap > 0) return "it takes plain dot scores only";
  return p->uses & (ATTN_USE_BIAS | ATTN_USE_ALIBI) ? "it adds nothing to scores" : NULL;
}

static bool plan_norm(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  (void)machine;
  schedule->phases = 1;
  schedule->items[0] = 1;
  schedule->row_block = p->seq_q;
  schedule->key_block = p->seq_k;
  return true;
}

static double score(const attn_problem *p, const attn_args *args, const attn_sequence *seq, int64_t h, int64_t i,
                    int64_t j) {
  const int64_t q = attn_q_offset(p, seq, seq->b, h, i), k = attn_key_run_at(p, args, seq, h, j).k;
  double sum = 0;
  for (int64_t d = 0; d < p->dim_qk; d++)
    sum += (double)attn_load_f32(attn_q_storage(p, args), q + d * p->q_stride.d) *
           (double)attn_load_f32(attn_k_storage(p, args), k + d * p->k_stride.d);
  return sum * (double)p->scale;
}

static float norm_of_row(const attn_problem *p, const attn_args *args, const attn_sequence *seq, int64_t h, int64_t i) {
  const attn_key_range keys = i < seq->len_q ? attn_allowed_keys(p, args, seq, seq->b, i) : (attn_key_range){0, 0};
  double most = -INFINITY, sum = 0;
  for (int64_t j = keys.begin; j < keys.end; j++)
    if (attn_key_selected(p, args, seq->b, h, i, j)) most = fmax(most, score(p, args, seq, h, i, j));
  for (int64_t j = keys.begin; j < keys.end; j++)
    if (attn_key_selected(p, args, seq->b, h, i, j)) sum += exp(score(p, args, seq, h, i, j) - most);
  return sum > 0 ? (float)(most + log(sum)) : -INFINITY;
}

/* One KV head; adds `wrong` to the rows of its first query head. */
static void run_norm(const attn_schedule *schedule, const attn_args *args, attn_task task, float wrong) {
  const attn_problem *p = &schedule->problem;
  const attn_sequence seq = attn_sequence_of(p, args, attn_batch_of_unit(p, task.unit));
  const int64_t first = attn_head_of_unit(p, task.unit);
  for (int64_t h = first; h < first + attn_group(p); h++)
    for (int64_t i = 0; i < attn_rows(p, &seq); i++)
      args->lse[attn_lse_offset(p, &seq, seq.b, h, i)] = norm_of_row(p, args, &seq, h, i) + (h == first ? wrong : 0);
}

static void run_right(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit, void *scratch) {
  (void)unit, (void)scratch;
  run_norm(schedule, args, task, 0);
}

static void run_wrong(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit, void *scratch) {
  (void)unit, (void)scratch;
  run_norm(schedule, args, task, 1e-3f);
}

static void run_nothing(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit, void *scratch) {
  (void)schedule, (void)args, (void)task, (void)unit, (void)scratch;
}

static void terms(const attn_problem *p, double *count) { count[0] = (double)(p->seq_q * p->seq_k); }

static const char *const term_names[] = {"pair"};

#define NORM_KERNEL(kernel, way, function)                                                                      \
  {                                                                                                             \
    .info = {.name = kernel,                                                                                    \
             .algorithm = way,                                                                                  \
             .isa = "c",                                                                                        \
             .library = "",                                                                                     \
             .summary = "norms of scores",                                                                      \
             .numerics = {.exp_error = 0x1p-50}},                                                               \
    .operation = NORM, .rejects = rejects, .plan = plan_norm, .terms = {1, term_names, terms}, .run = function, \
  }

static const attn_kernel kernels[] = {NORM_KERNEL("norm_c", "norm", run_right), NORM_KERNEL("norm_twin", "twin", run_right),
                                      NORM_KERNEL("norm_wrong", "wrong", run_wrong),
                                      NORM_KERNEL("norm_nothing", "nothing", run_nothing)};

enum { KERNELS = COUNT(kernels) };

int test_begin(char **arguments) {
  static const attn_kernel *list[KERNELS];
  static const attn_plugin plugin = {ATTN_PLUGIN_SIZES, list, KERNELS, NULL, NULL};
  (void)arguments;
  for (int i = 0; i < KERNELS; i++) list[i] = &kernels[i];
  return !attn_registry_add(&plugin, "this program");
}

/* ---- Tests ----------------------------------------------------------------------------------------------------------- */

static const char *const ids[] = {
    "heads:4/heads_kv:2/seq_q:19/seq_k:37/head_dim:24",
    "batch:3/heads:2/seq:21/head_dim:8/causal:bottom-right/lengths:both",
    "batch:2/heads:2/seq:40/head_dim:16/causal:top-left/window:7..0/layout:reversed",
    "batch:3/heads:4/heads_kv:1/seq:33/head_dim:8/lengths:varlen",
    "batch:2/heads:2/seq:48/head_dim:8/page_tokens:16/page_order:shuffled/mask:random/dtype:bf16",
};

static bench_case norm_case(const char *id) {
  bench_case bench = valid_case(id);
  bench.problem.operation = NORM;
  bench.problem.uses |= ATTN_USE_LSE;
  return bench;
}

/* The row of one kernel after its check, and its timing. */
static bench_row row_of(const bench_case *bench, const attn_kernel_info *kernel, bool timed) {
  const bench_case_settings settings = {
      .timed = timed, .structure = !timed, .case_budget_s = 0.2, .precision = 0.05, .rounds = timed ? 11 : 0};
  bench_row row = {0};
  assert_true(bench_run_case(bench, &kernel, 1, &settings, &row));
  return row;
}

static bench_row row_of_name(const bench_case *bench, const char *name) {
  return row_of(bench, attn_kernel_find(name), false);
}

TEST(the_choice_is_a_kernel_of_the_operation) {
  for (size_t i = 0; i < COUNT(ids); i++) {
    const bench_case bench = norm_case(ids[i]);
    attn_plan *plan;
    test_ok(attn_plan_create(&bench.problem, NULL, &plan));
    assert_string_equal(attn_plan_kernel(plan), "norm_c");
    assert_null(strstr(attn_plan_describe(plan), "naive_c")); /* it is not in question */
    attn_plan_destroy(plan);
  }
  assert_int_equal(attn_kernel_operation(attn_kernel_find("norm_c")), NORM);
  assert_int_equal(attn_kernel_operation(attn_kernel_find("naive_c")), ATTN_FORWARD);
}

TEST(costs_decide_between_kernels_of_the_operation) {
  static const char text[] =
      "attn-tuning 5\nclass x c\ncost kernel=flash_c f32 error=0.1 call=1\n"
      "cost kernel=norm_c f32 error=0.1 pair=2\ncost kernel=norm_twin f32 error=0.1 pair=1\n";
  const bench_case bench = norm_case(ids[0]);
  attn_kernel_costs costs[3];
  attn_tuning tuning;
  attn_plan *plan;
  test_ok(attn_tuning_read_class("x", text, costs, COUNT(costs), &tuning));
  test_ok(attn_plan_create(&bench.problem, &ATTN_STRUCT(attn_options, .tuning = &tuning), &plan));
  assert_string_equal(attn_plan_kernel(plan), "norm_twin");
  test_contains(attn_plan_describe(plan), "norm_c");
  attn_plan_destroy(plan);
}

TEST(kernels_of_other_operations_are_refused) {
  const bench_case bench = norm_case(ids[0]);
  attn_plan *plan;
  test_refused(attn_plan_create(&bench.problem, &ATTN_STRUCT(attn_options, .kernel = "naive_c"), &plan), ATTN_UNSUPPORTED,
               "'naive_c'", "it computes attention, not norms of scores");
  const bench_case forward = valid_case(ids[0]);
  test_refused(attn_plan_create(&forward.problem, &ATTN_STRUCT(attn_options, .kernel = "norm_c"), &plan), ATTN_UNSUPPORTED,
               "'norm_c'", "it computes norms of scores, not attention");
}

TEST(arguments_are_those_of_the_operation) {
  const bench_case bench = norm_case(ids[0]);
  bench_tensors t;
  attn_plan *plan;
  float o;
  assert_true(bench_tensors_create(&bench, &t));
  assert_null(t.args.v);
  assert_null(t.args.o);
  test_ok(attn_plan_create(&bench.problem, &ATTN_STRUCT(attn_options, .threads = 1), &plan));
  test_ok(attn_plan_run(plan, &t.args, NULL, 0));
  attn_args args = t.args;
  args.o = &o;
  test_refused(attn_plan_run(plan, &args, NULL, 0), ATTN_INVALID_ARGUMENT, "attn_args.o", "'norm' neither reads nor writes");
  args.o = NULL, args.lse = NULL;
  test_refused(attn_plan_run(plan, &args, NULL, 0), ATTN_INVALID_ARGUMENT, "attn_args.lse", "NULL");
  args.lse = (float *)(uintptr_t)args.q;
  test_refused(attn_plan_run(plan, &args, NULL, 0), ATTN_INVALID_ARGUMENT, "attn_args.lse", "overlaps");
  attn_plan_destroy(plan);
  bench_tensors_destroy(&t);
}

/* Strides of V say nothing, those of LSE are checked as an output's. */
TEST(strides_are_those_of_the_operation) {
  bench_case bench = norm_case(ids[0]);
  bench.problem.v_stride.b = bench.problem.o_stride.b = INT64_MAX;
  test_ok(attn_problem_validate(&bench.problem));
  bench.problem.lse_stride.s = 0;
  test_refused(attn_problem_validate(&bench.problem), ATTN_INVALID_ARGUMENT, "lse_stride.s", "overlap");
}

TEST(right_answers_pass_every_check) {
  for (size_t i = 0; i < COUNT(ids); i++) {
    const bench_case bench = norm_case(ids[i]);
    bench_row row = row_of_name(&bench, "norm_c");
    if (row.verdict.status != BENCH_PASS) fail_msg("%s: %s", ids[i], row.verdict.reason);
    assert_true(row.verdict.rows_checked > 0 && row.verdict.structure);
    bench_row_clear(&row);
  }
}

TEST(wrong_answers_fail) {
  for (size_t i = 0; i < COUNT(ids); i++) {
    const bench_case bench = norm_case(ids[i]);
    bench_row wrong = row_of_name(&bench, "norm_wrong"), nothing = row_of_name(&bench, "norm_nothing");
    assert_int_equal(wrong.verdict.status, BENCH_FAIL);
    test_contains(wrong.verdict.reason, "lse[batch ");
    assert_int_equal(nothing.verdict.status, BENCH_FAIL);
    bench_row_clear(&wrong);
    bench_row_clear(&nothing);
  }
}

/* Rows that the oracle leaves out are those of a second kernel of the operation. */
TEST(other_rows_are_compared_with_a_second_kernel) {
  const bench_case bench = norm_case(ids[0]);
  const attn_kernel_info *checked = attn_kernel_find("norm_twin");
  bench_tensors t;
  attn_plan *plan;
  assert_true(bench_tensors_create(&bench, &t));
  bench_expected *expected = bench_expected_create(&bench.problem, &t.args, 1, true);
  assert_non_null(expected);
  expected->complete = false;
  expected->rows = 2;
  test_ok(attn_plan_create(&bench.problem, &ATTN_STRUCT(attn_options, .kernel = "norm_twin", .threads = 1), &plan));
  test_ok(attn_plan_run(plan, &t.args, NULL, 0));
  bench_verdict verdict = bench_check_other_values(expected, &t.args, &checked->numerics, checked);
  assert_int_equal(verdict.status, BENCH_PASS);
  assert_string_equal(verdict.reference, "norm_c");
  t.args.lse[bench.problem.lse_stride.h + 2] += 0.01f;
  verdict = bench_check_other_values(expected, &t.args, &checked->numerics, checked);
  assert_int_equal(verdict.status, BENCH_FAIL);
  test_contains(verdict.reason, "lse[batch 0, head 1, query 2]");
  attn_plan_destroy(plan);
  bench_expected_destroy(expected);
  bench_tensors_destroy(&t);
}

TEST(what_passes_is_timed) {
  const bench_case bench = norm_case(ids[0]);
  bench_row row = row_of(&bench, &bench_automatic, true);
  if (row.verdict.status != BENCH_PASS) fail_msg("%s", row.verdict.reason);
  assert_string_equal(row.kernel, "auto");
  assert_true(row.time.n == 11 && row.time.median > 0);
  assert_true(row.flops == 4 * 19 * 37 * 2 * 24);
  assert_true(row.bytes == (4 * 19 + 2 * 37) * 24 * sizeof(float)); /* Q and K */
  assert_true(row.peak_gbs > 0);
  bench_row_clear(&row);
}

/* ---- attnbench eval -------------------------------------------------------------------------------------------------- */

/* The exit code of eval on the case with one kernel; the LSE of the oracle plus `wrong` is an --expect file. */
static int eval_of(const bench_case *bench, const char *kernel, double wrong, const char *path) {
  eval_input input = {.rank = 4};
  const eval_task task = {.threads = 1, .save = {[1] = path}};
  const bench_selection selection = {.kernel = {attn_kernel_find(kernel)}, .count = 1};
  assert_true(bench_tensors_create(bench, &input.tensors));
  const attn_problem *p = &input.tensors.problem;
  const attn_operand lse = attn_operand_of(p, ATTN_OPERAND_LSE);
  bench_expected *right = bench_expected_create(p, &input.tensors.args, 1, false);
  double *given = calloc((size_t)(p->batch * p->heads_q * p->seq_q), sizeof *given);
  assert_true(right && right->complete && given);
  for (int64_t n = 0; n < right->rows; n++)
    given[bench_output_place(p, &input.tensors.args, &lse, &right->row[n], 0)] = right->row[n].facts.lse + wrong;
  bench_expected_destroy(right);
  input.given[BENCH_LSE] = given;
  const int code = eval_run(&task, &input, &selection);
  eval_unload(&input);
  return code;
}

TEST(eval_compares_and_saves_the_outputs_of_the_operation) {
  char folder[] = "/tmp/operation_XXXXXX", path[sizeof folder + 10], error[200];
  const bench_case bench = norm_case(ids[0]);
  npy_array saved;
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/lse.npy", folder);
  assert_int_equal(eval_of(&bench, "norm_c", 0, path), BENCH_EXIT_OK);
  assert_int_equal(eval_of(&bench, "norm_c", 1e-3, NULL), BENCH_EXIT_FAILED);
  assert_int_equal(eval_of(&bench, "norm_wrong", 0, NULL), BENCH_EXIT_FAILED);
  assert_int_equal(npy_read(path, &saved, error, sizeof error), 0);
  assert_true(saved.dims == 3 && saved.shape[0] == 1 && saved.shape[1] == 4 && saved.shape[2] == 19);
  bench_tensors t;
  assert_true(bench_tensors_create(&bench, &t));
  const attn_sequence seq = attn_sequence_of(&bench.problem, &t.args, 0);
  const float norm = norm_of_row(&bench.problem, &t.args, &seq, 3, 7);
  assert_true(((const float *)saved.data)[3 * 19 + 7] == norm);
  bench_tensors_destroy(&t);
  npy_free(&saved);
  assert_true(!unlink(path) && !rmdir(folder));
}
