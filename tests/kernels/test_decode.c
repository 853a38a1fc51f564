/* SPDX-License-Identifier: MIT */
/* Which keys the rows of a decode step see: windows, alignments, offsets and lengths, each begun and ended at, before and
 * behind the borders of vectors, blocks (32 keys) and splits (1024), for one row and several of a KV head, in head
 * dimensions of every loop. All decode kernels of this CPU against the oracle; pages behind the tensors are inaccessible. */
#include <stdlib.h>
#include <string.h>

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
    "head_dim = 64, 128, 16, 32, 40, 72, 80, 7\n"
    "causal = none, offset\n"
    "align = offset\n"
    "offset = 63, 64, 65, 95, 96, 97, 100, 127, 128\n"
    "window = none, 0.., 1.., 31.., 32.., 33.., 63.., 64.., 65.., ..0, ..1, ..31, ..32, 32..32, 33..30, 64..31\n"
    "lengths = full, kv_len, both, row_len\n"
    "dtype = f32, bf16, f16\n"
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

TEST(windows_begin_and_end_at_borders_of_blocks) { check_cases(windows_at_borders); }
TEST(windows_begin_and_end_at_borders_of_splits) { check_cases(windows_at_splits); }
TEST(all_alignments_scores_and_layouts) { check_cases(other_alignments); }
