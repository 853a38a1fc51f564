/* SPDX-License-Identifier: MIT */
/* Rows: what they say of their case, and cells that are none. test_merging.py reads back what is printed. */
#include <string.h>

#include "report/report.h"
#include "tests/support/support.h"
#include "timing/setup.h"

TEST(test_what_is_no_value_is_refused) {
  static const struct {
    bench_column column;
    const char *text;
  } cases[] = {{COLUMN_batch, "x"},         {COLUMN_batch, "1.5"},
               {COLUMN_flops, "fast"},      {COLUMN_flops, ""},
               {COLUMN_status, "PASSED"},   {COLUMN_stop_reason, "end"},
               {COLUMN_err_index, "1:2:3"}, {COLUMN_err_index, "1:2:3:4:5"},
               {COLUMN_samples, "-1"},      {COLUMN_rows_checked, "-6"},
               {COLUMN_max_abs_err, "nan"}, {COLUMN_alibi, "a word longer than any value of an axis"}};
  bench_row row = bench_row_create(NULL, NULL);
  for (size_t i = 0; i < COUNT(cases); i++)
    if (bench_cell_read(&row, cases[i].column, cases[i].text))
      fail_msg("%s takes %s", bench_column_name(cases[i].column), cases[i].text);
}

/* A row says nothing of what it was not told. */
TEST(test_empty_rows_have_empty_cells) {
  bench_row row = bench_row_create(NULL, NULL);
  char text[BENCH_CELL];
  row.verdict.status = BENCH_SKIP; /* was not checked */
  for (bench_column c = 0; c < BENCH_COLUMNS; c++) {
    const char *cell = bench_cell(&row, c, text);
    if (cell[0] && c != COLUMN_status) fail_msg("%s: %s", bench_column_name(c), cell);
  }
}

TEST(test_few_rounds_have_no_interval) {
  const double times[] = {3, 1, 2, 5, 4};
  bench_row row = bench_row_create(NULL, NULL);
  char text[BENCH_CELL];
  row.time = bench_summarise(times, 5);
  row.ratio = bench_paired_ratio(&(bench_pairs){.a = times, .b = times, .n = 5});
  assert_string_equal(bench_cell(&row, COLUMN_time_ns_median, text), "3");
  assert_string_equal(bench_cell(&row, COLUMN_ratio, text), "1");
  static const bench_column limits[] = {COLUMN_time_ns_ci_lo, COLUMN_time_ns_ci_hi, COLUMN_ratio_ci_lo, COLUMN_ratio_ci_hi};
  for (size_t i = 0; i < COUNT(limits); i++) assert_string_equal(bench_cell(&row, limits[i], text), "");
}

/* The row of a kernel that declares large errors has a warning. */
TEST(test_approximate_kernels_are_marked) {
  const attn_kernel_info *kernel = attn_kernel_find("naive_c");
  bench_case bench;
  bench_case_build(&(bench_spec){{{0}}}, 1, &bench);
  for (int approximate = 0; approximate < 2; approximate++) {
    bench_trial trial = {.kernel = kernel, .verdict.approximate = approximate};
    const bench_setup setup = {.bench = &bench, .count = 1};
    const bench_row row = bench_setup_row(&setup, &trial);
    assert_int_equal(strncmp(row.warnings, "approximate: ", 13) == 0, approximate);
  }
}

/* A row describes its case in columns, and in one text the axes without a column. */
TEST(test_rows_describe_their_case) {
  static const struct {
    bench_column column;
    const char *text;
  } cells[] = {{COLUMN_batch, "2"},
               {COLUMN_heads_q, "6"},
               {COLUMN_heads_kv, "3"},
               {COLUMN_seq_q, "5"},
               {COLUMN_seq_k, "7"},
               {COLUMN_dim_qk, "8"},
               {COLUMN_dim_v, "4"},
               {COLUMN_threads, "2"},
               {COLUMN_dtype_q, "f32"},
               {COLUMN_dtype_kv, "bf16"},
               {COLUMN_dtype_o, "f32"},
               {COLUMN_softcap, "0.5"},
               {COLUMN_align, "bottom-right"},
               {COLUMN_window, "3..0"},
               {COLUMN_mask, "random"},
               {COLUMN_bias, "full"},
               {COLUMN_alibi, "on"},
               {COLUMN_sinks, "on"},
               {COLUMN_lengths, "kv_len"},
               {COLUMN_layout, "strided"},
               {COLUMN_cache, "cold"},
               {COLUMN_causal, "bottom-right"},
               {COLUMN_score, "dot"},
               {COLUMN_kernel, "naive_c"},
               {COLUMN_algorithm, "naive"},
               {COLUMN_isa, "c"}};
  bench_spec spec;
  bench_case bench;
  char error[300], text[BENCH_CELL];
  if (!bench_spec_from_id("B:2/Hq:6/Hkv:3/Sq:5/Sk:7/D:8/Dv:4/threads:2/dtype:f32+bf16/softcap:0.5/causal:bottom-right/"
                          "window:3/mask:random/bias:full/alibi:on/sinks:on/lengths:kv_len/layout:strided/cache:cold/"
                          "lse:on/magnitude:2",
                          &spec, error, sizeof error))
    fail_msg("%s", error);
  bench_case_build(&spec, 1, &bench);
  assert_string_equal(bench.invalid, "");
  const bench_row row = bench_row_create(&bench, attn_kernel_find("naive_c"));
  for (size_t i = 0; i < COUNT(cells); i++) assert_string_equal(bench_cell(&row, cells[i].column, text), cells[i].text);
  assert_string_equal(row.other_axes, "lse:on/magnitude:2");
  assert_string_equal(row.case_id, bench.case_id);
  assert_string_equal(row.layer, "");
}

/* Cases that differ in axes without a column differ in other_axes all the same: figures tell them apart by it. */
TEST(axes_without_a_column_stand_together) {
  static const char *const ids[] = {"page_tokens:16/page_order:shuffled", "chunk:4/page_tokens:32", "shared_prefix:8",
                                    "window_first:3", "key_begin:2/key_end:9"};
  for (size_t i = 0; i < COUNT(ids); i++) {
    char id[120];
    snprintf(id, sizeof id, "batch:2/heads:2/seq_q:5/seq_k:40/head_dim:8/causal:bottom-right/window:20..0/%s", ids[i]);
    bench_spec spec;
    bench_case bench;
    char error[300];
    if (!bench_spec_from_id(id, &spec, error, sizeof error)) fail_msg("%s", error);
    bench_case_build(&spec, 1, &bench);
    const bench_row row = bench_row_create(&bench, attn_kernel_find("naive_c"));
    assert_string_equal(row.other_axes, ids[i]);
  }
}

/* Keys to the left and to the right; a causal mask alone is no window. */
TEST(test_windows_are_named) {
  static const struct {
    int64_t left, right;
    const char *name;
  } windows[] = {{-1, -1, "none"}, {-1, 0, "none"}, {0, -1, "0.."}, {-1, 1, "..1"}, {0, 0, "0..0"}, {256, 64, "256..64"}};
  bench_case bench;
  bench_case_build(&(bench_spec){{{0}}}, 1, &bench);
  for (size_t i = 0; i < COUNT(windows); i++) {
    bench.problem.window_left = windows[i].left;
    bench.problem.window_right = windows[i].right;
    assert_string_equal(bench_row_create(&bench, NULL).window, windows[i].name);
  }
}

/* Two cases could share an id that is cut off. */
TEST(test_a_case_whose_name_is_cut_off_is_not_run) {
  bench_spec spec = {{{0}}};
  bench_case bench;
  bench_case_build(&spec, 1, &bench);
  assert_string_equal(bench.invalid, "");
  for (bench_axis axis = 0; axis < AXIS_COUNT; axis++)
    if (bench_axis_get(axis)->kind == AXIS_IS_WORD)
      memset(spec.value[axis], 'x', BENCH_WORD - 1);
    else if (bench_axis_get(axis)->kind == AXIS_IS_REAL)
      bench_spec_set(&spec, axis, "-1.23456789e-30");
  bench_case_build(&spec, 1, &bench);
  assert_non_null(strstr(bench.invalid, "case_id is cut off"));
}
