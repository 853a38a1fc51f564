/* SPDX-License-Identifier: MIT */
/* The layers mha and block as benchmark cases: they are checked before they are timed, wrong ones get no time, and the
 * shares of the time are right. test_layer_family.c has the other layers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/report.h"
#include "tests/support/layer_support.h"
#include "timing/trial.h"

static const char *const kinds[] = {"mha", "block"};

TEST(test_right_layers_pass) {
  static const char *const shapes[] = {"heads:4/width:64/seq:40", "heads:4/width:64/seq:150/causal:top-left",
                                       "heads:6/heads_kv:2/head_dim:8/width:40/seq:33", "batch:3/heads:2/width:32/seq:20",
                                       "heads:1/width:8/seq:97" /* one row more than the check computes all of */};
  for (int k = 0; k < 2; k++)
    for (int s = 0; s < 5; s++) {
      layer_one one;
      open_layer(&one, kinds[k], shapes[s]);
      const bench_verdict verdict = check_layer(&one);
      if (verdict.status != BENCH_PASS) fail_msg("%s %s: %s", kinds[k], shapes[s], verdict.reason);
      assert_true(verdict.rows_checked > 0 && verdict.max_err_ratio > 0);
      assert_string_not_equal(bench_layer_product(one.trial), "");
      close_layer(&one);
    }
}

/* A weight or bias that changes after the layer was made makes the layer wrong; then it gets no time. */
TEST(test_wrong_layers_fail_and_are_not_timed) {
  for (int k = 0; k < 2; k++)
    for (int which = 0; which < 2; which++) {
      layer_one one;
      open_layer(&one, kinds[k], "heads:4/width:64/seq:40");
      bench_layer_data *data = &one.layer->data;
      *(which ? &data->weights[70] : &data->biases[3]) += 0.05f;
      bench_trial trial = {.kernel = &bench_automatic,
                           .layer = one.trial,
                           .tensor_count = 1,
                           .workspace = one.workspace,
                           .workspace_bytes = one.bytes,
                           .verdict = check_layer(&one)};
      bench_trial *const trials[] = {&trial};
      assert_int_equal(trial.verdict.status, BENCH_FAIL);
      assert_true(trial.verdict.max_err_ratio > 1);
      const bench_timing_options options = {.min_rounds = 3, .max_rounds = 3, .budget_s = 1, .min_sample_s = 1e-4};
      bench_stop stop;
      const char *error;
      bench_trial *failed;
      assert_false(bench_time(trials, 1, &options, &stop, &error, &failed));
      test_contains(error, "no time without a passed check");
      bench_trial_clear(&trial);
      close_layer(&one);
    }
}

/* With one key every weight is 1, so the wrong layer, which looks at all keys alike, is right too. */
TEST(test_a_case_that_cannot_fail_is_degenerate) {
  for (int k = 0; k < 2; k++) {
    layer_one one;
    open_layer(&one, kinds[k], "heads:2/width:16/seq:1");
    const bench_verdict verdict = check_layer(&one);
    assert_int_equal(verdict.status, BENCH_DEGENERATE);
    test_contains(verdict.reason, "looks at all keys alike");
    close_layer(&one);
  }
}

TEST(test_width_and_heads) {
  bench_case p = valid_case("layer:mha/heads:8/width:512");
  assert_int_equal(p.problem.dim_qk, 64);
  assert_int_equal(p.width, 512);
  p = valid_case("layer:mha/heads:4/head_dim:32");
  assert_int_equal(p.width, 128);
  p = valid_case("layer:mha/heads:4/head_dim:32/width:100");
  assert_int_equal(p.width, 100);
  assert_int_equal(p.problem.dim_v, 32);
  static const struct {
    const char *id, *part;
  } bad[] = {
      {"layer:mha/heads:8/width:100", "width is 100 with 8 heads; it must be a multiple of its heads"},
      {"heads:8/width:512", "width is of layers"},
      {"layer:mha/seq_q:3/seq_k:4", "seq_q is 3 with seq_k 4; layer mha has one length"},
      {"layer:mha/seq:0", "seq_q is 0; layers need at least 1"},
      {"layer:mha/causal:offset", "alignment is offset; layers know no offsets"},
      {"layer:block/lengths:kv_len", "lengths is kv_len; layers here have no such choice"},
      {"layer:mha/score:additive", "score is additive; layer mha has none to choose"},
      {"layer:mha/dtype:f32+bf16", "dtype is f32+bf16; layer mha has one type for everything: dtype=f32, bf16 or f16"},
      {"layer:mha/layout:bshd", "layout is bshd; layers here have no such choice"}};
  for (size_t i = 0; i < COUNT(bad); i++) test_contains(case_of(bad[i].id).invalid, bad[i].part);
}

/* A case from its id to its row. */
TEST(test_row_of_a_layer) {
  for (int k = 0; k < 2; k++) {
    char id[100];
    snprintf(id, sizeof id, "layer:%s/heads:4/width:64/seq:40", kinds[k]);
    const bench_case bench = valid_case(id);
    const attn_kernel_info *kernels[] = {attn_kernel_find("flash_c"), &bench_automatic};
    const bench_case_settings settings = {.timed = true, .case_budget_s = 5, .rounds = 3};
    bench_row rows[2];
    assert_true(bench_run_case(&bench, kernels, 2, &settings, rows));
    for (int i = 0; i < 2; i++) {
      const bench_row *row = &rows[i];
      assert_int_equal(row->verdict.status, BENCH_PASS);
      assert_string_equal(row->layer, kinds[k]);
      assert_int_equal(row->width, 64);
      assert_int_equal(row->time.n, 3);
      assert_true(row->flops == bench_layer_flops(&bench));
      assert_true(row->projections_pct > 0 && row->attention_pct > 0);
      assert_true(fabs(row->projections_pct + row->attention_pct + row->rest_pct - 100) < 1e-6);
      if (i == 0) assert_string_equal(row->product, "product_c"); /* the product of the kernel's tier */
      bench_row_clear(&rows[i]);
    }
  }
}

/* The columns of layers are empty for attention alone. */
TEST(test_row_of_a_kernel) {
  const bench_case bench = valid_case("heads:2/seq:16/head_dim:8");
  const attn_kernel_info *kernel = attn_kernel_find("flash_c");
  const bench_case_settings settings = {.case_budget_s = 1};
  bench_row row;
  char text[BENCH_CELL];
  assert_true(bench_run_case(&bench, &kernel, 1, &settings, &row));
  assert_int_equal(row.verdict.status, BENCH_PASS);
  for (int c = COLUMN_layer; c <= COLUMN_rest_pct; c++) assert_string_equal(bench_cell(&row, (bench_column)c, text), "");
  bench_row_clear(&row);
}
