/* SPDX-License-Identifier: MIT */
/* Which keys the rows of a decode step see: windows, alignments, offsets and lengths, each begun and ended at, before and
 * behind the borders of vectors, blocks (32 keys) and splits (1024), for one row and several of a KV head, in head
 * dimensions of every loop. All decode kernels of this CPU against the oracle; pages behind the tensors are inaccessible.
 * And how their splits are merged. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/decode/split_keys.h"
#include "kernels/common/problem/convert.h"
#include "src/registry/registry.h"
#include "tests/support/kernel_checks.h"
#include "tests/support/support.h"

/* Rows of several queries, which begin or end at different keys of one block. Their offset is the place of the first query,
 * so that windows begin at multiples of 32 and next to them. */
static const char windows_at_borders[] =
    "[windows at borders of blocks]\n"
    "pick = 420\n"
    "heads = 1, 2, 3, 4, 5, 8\n"
    "heads_kv = heads, 1\n"
    "seq_q = 1, 2, 3, 4\n"
    "seq_k = 97, 128, 160, 200\n"
    "head_dim = 64, 65, 128, 129, 16, 32, 40, 72, 80, 7\n"
    "causal = none, offset\n"
    "align = offset\n"
    "offset = 63, 64, 65, 95, 96, 97, 100, 127, 128\n"
    "window = none, 0.., 1.., 31.., 32.., 33.., 63.., 64.., 65.., ..0, ..1, ..31, ..32, 32..32, 33..30, 64..31\n"
    "lengths = full, kv_len, both, row_len\n"
    "dtype = f32, bf16, f16\n"
    "lse = on\n";
static const char integers_at_borders[] =
    "[keys and values in integers, at borders of blocks]\n"
    "pick = 150\n"
    "heads = 1, 2, 3, 4, 5, 8, 11\n"
    "heads_kv = 1\n"
    "seq_q = 1, 2, 3\n"
    "seq_k = 97, 128, 160, 200\n"
    "head_dim = 64, 65, 128, 129, 16, 33, 80, 7\n"
    "causal = none, offset\n"
    "align = offset\n"
    "offset = 63, 64, 65, 95, 96, 97, 100, 127, 128\n"
    "window = none, 0.., 31.., 33.., 64.., ..0, ..31, 32..32, 33..30, 64..31\n"
    "lengths = full, kv_len, row_len\n"
    "page_tokens = none, 16, 64\n"
    "dtype = f32+q8_0, f32+q4_0, f32+i8, bf16+q8_0\n"
    "lse = on\n";
static const char windows_at_splits[] =
    "[windows at borders of splits]\n"
    "pick = 100\n"
    "heads = 1, 2, 4, 8\n"
    "heads_kv = 1\n"
    "seq_q = 1, 2, 3\n"
    "seq_k = 1023, 1024, 1025, 1088, 2049\n"
    "head_dim = 64, 16, 24\n"
    "causal = none, offset\n"
    "align = offset\n"
    "offset = 1022, 1023, 1024, 1056\n"
    "window = none, 0.., 31.., 32.., 33.., 1000.., ..0, ..1, 32..32\n"
    "lengths = full, kv_len, row_len\n"
    "dtype = f32, bf16\n"
    "lse = on\n";
static const char other_alignments[] =
    "[the other alignments, scores and layouts]\n"
    "pick = 150\n"
    "batch = 1, 2\n"
    "heads = 1, 4, 6\n"
    "heads_kv = heads, 1, 2\n"
    "seq_q = 1, 2, 5, 8\n"
    "seq_k = 1, 31, 32, 33, 64, 96, 130\n"
    "dim_qk = 64, 48, 80\n"
    "dim_v = 64, 48, 96\n"
    "causal = none, top-left, bottom-right\n"
    "align = top-left, bottom-right\n"
    "window = none, 3.., 31.., 64.., ..0, ..40, 40..3\n"
    "lengths = full, kv_len, both\n"
    "mask = none, random\n"
    "alibi = off, on\n"
    "softcap = 0, 5\n"
    "layout = bhsd, bshd, strided\n"
    "dtype = f32, bf16\n"
    "lse = on\n";

static bool is_decode(const attn_kernel_info *kernel) {
  return strcmp(kernel->algorithm, "decode") == 0 && !attn_kernel_unusable(kernel);
}

/* How many runs passed. */
static int check_case(const bench_case *bench) {
  bench_tensors tensors;
  int passed = 0;
  assert_true(bench_tensors_create_guarded(bench, &tensors, BENCH_GUARD_PAGE_AFTER));
  bench_expected *expected = checks_expected(bench, &tensors);
  for (int i = 0; i < attn_kernel_count(); i++) {
    const attn_kernel_info *kernel = attn_kernel_get(i);
    if (!is_decode(kernel)) continue;
    const bench_verdict verdict = checks_kernel(attn_registry_find(kernel->name), 1, &tensors, expected);
    if (verdict.status == BENCH_FAIL || verdict.status == BENCH_ERROR)
      fail_msg("%s on %s: %s", kernel->name, bench->case_id, verdict.reason);
    passed += verdict.status == BENCH_PASS;
  }
  bench_expected_destroy(expected);
  bench_tensors_destroy(&tensors);
  return passed;
}

static void check_cases(const char *text) {
  bench_case_list list = checks_cases(text);
  int passed = 0;
  for (int i = 0; i < list.count; i += test_few() ? 5 : 1) passed += check_case(&list.item[i]);
  if (passed < list.count / 5) fail_msg("only %d runs of %d cases passed", passed, list.count);
  bench_cases_clear(&list);
}

/* ---- Splits are merged as attn_partial_merge() does it ---- */

enum { SPLITS = 3, LAST_KEYS = 700, STEP_KEYS = (SPLITS - 1) * SPLIT_KEYS + LAST_KEYS, MOST_ROWS = 5, MOST_DIM = 72 };
/* K's first element and that of Q: powers of two, so that references are exact. */
static const float key_of_split[SPLITS] = {1, 4, -0.5f}, query_of_row[MOST_ROWS] = {1, 2, -0.25f, 0.125f, -1};

static float value_of(int64_t key, int64_t d) { return (float)((key * 7 + d * 5) % 17 - 8); }

/* A step of `rows` heads that share K and V, whose keys score alike within a split, and whose values are small integers. So
 * the state of each split is known without rounding: P is 1 for all keys. */
static void fill_step(const attn_problem *p, const test_data *data) {
  for (int64_t i = 0; i < p->heads_q * p->dim_qk; i++)
    attn_store_f32((void *)(uintptr_t)data->args.q, p->dtype_q, i, i % p->dim_qk == 0 ? query_of_row[i / p->dim_qk] : 0);
  for (int64_t i = 0; i < STEP_KEYS * p->dim_qk; i++)
    attn_store_f32((void *)(uintptr_t)data->args.k, p->dtype_kv, i,
                   i % p->dim_qk == 0 ? key_of_split[i / p->dim_qk / SPLIT_KEYS] : 0);
  for (int64_t i = 0; i < STEP_KEYS * p->dim_v; i++)
    attn_store_f32((void *)(uintptr_t)data->args.v, p->dtype_kv, i, value_of(i / p->dim_v, i % p->dim_v));
}

/* Attention of row `row` by attn_partial_merge(); kernels multiply by the inverse instead of dividing. */
static void fold_splits(int64_t row, int64_t dim, float *o) {
  float piece_o[MOST_DIM], piece_reference, piece_sum, reference = -INFINITY, sum = 0;
  const attn_partial piece = ATTN_STRUCT(attn_partial, .o = piece_o, .reference = &piece_reference, .sum = &piece_sum);
  const attn_partial state = ATTN_STRUCT(attn_partial, .o = o, .reference = &reference, .sum = &sum);
  for (int split = 0; split < SPLITS; split++) {
    const int64_t first = split * SPLIT_KEYS, keys = split + 1 < SPLITS ? SPLIT_KEYS : LAST_KEYS;
    piece_reference = query_of_row[row] * key_of_split[split] * 1.44269504f;
    piece_sum = (float)keys;
    for (int64_t d = 0; d < dim; d++) {
      piece_o[d] = 0;
      for (int64_t key = first; key < first + keys; key++) piece_o[d] += value_of(key, d);
    }
    test_ok(attn_partial_merge(1, dim, &piece, &state));
  }
  for (int64_t d = 0; d < dim; d++) o[d] *= 1.0f / sum;
}

static void check_merge(const char *kernel, attn_dtype dtype, int64_t rows, int64_t dim) {
  attn_problem p;
  attn_problem_init(&p, 1, rows, 1, 1, STEP_KEYS, dim, dim);
  p.dtype_q = p.dtype_kv = dtype;
  p.dtype_o = ATTN_F32;
  p.scale = 1;
  if (attn_kernel_rejects(attn_kernel_find(kernel), &p)) return;
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1);
  test_data data = test_data_create(&p, 1);
  fill_step(&p, &data);
  test_ok(test_run(&p, &data.args, &options));
  for (int64_t row = 0; row < rows; row++) {
    float expected[MOST_DIM];
    fold_splits(row, dim, expected);
    if (memcmp(expected, (const float *)data.args.o + row * dim, (size_t)dim * sizeof *expected))
      fail_msg("%s, type %d, %d rows of %d: row %d is not what attn_partial_merge() makes of its splits", kernel, (int)dtype,
               (int)rows, (int)dim, (int)row);
  }
  test_data_destroy(&data);
}

/* decode_c keeps references in natural logarithms, whose bits differ. */
TEST(splits_merge_as_partial_states_do) {
  static const int64_t dims[] = {64, 72};
  for (int i = 0; i < attn_kernel_count(); i++) {
    const attn_kernel_info *kernel = attn_kernel_get(i);
    if (!is_decode(kernel) || strcmp(kernel->isa, "c") == 0) continue;
    for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++)
      for (int64_t rows = 1; rows <= MOST_ROWS; rows++)
        for (size_t d = 0; d < COUNT(dims); d++) check_merge(kernel->name, (attn_dtype)dtype, rows, dims[d]);
  }
}

TEST(windows_begin_and_end_at_borders_of_blocks) { check_cases(windows_at_borders); }
TEST(integers_begin_and_end_at_borders_of_blocks) { check_cases(integers_at_borders); }
TEST(windows_begin_and_end_at_borders_of_splits) { check_cases(windows_at_splits); }
TEST(all_alignments_scores_and_layouts) { check_cases(other_alignments); }

/* Factors of 16 keys are looked up by places of 32 bits. */
TEST(rows_of_integers_too_far_apart_are_refused) {
  const attn_kernel_info *kernel = attn_kernel_find("decode_avx512vnni");
  if (!kernel || attn_kernel_unusable(kernel)) return;
  for (int dtype = ATTN_I8; dtype <= ATTN_Q4_0; dtype++)
    for (int sign = -1; sign <= 1; sign += 2) {
      attn_problem p;
      attn_problem_init(&p, 1, 4, 1, 1, 32, 64, 64);
      p.dtype_kv = (attn_dtype)dtype;
      p.k_stride.s = sign * (int64_t)(INT32_MAX / 16 / 34 * 32);
      p.v_stride.s = -p.k_stride.s;
      assert_null(attn_kernel_rejects(kernel, &p));
      p.v_stride.s = (int64_t)1 << 33;
      test_contains(attn_kernel_rejects(kernel, &p), "128 MiB apart");
      p.v_stride.s = 64;
      p.k_stride.s = -((int64_t)1 << 33);
      test_contains(attn_kernel_rejects(kernel, &p), "128 MiB apart");
    }
}
