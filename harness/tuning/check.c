/* SPDX-License-Identifier: MIT */
/* No costs of a kernel that computes wrong: every kernel is checked once on each line. */
#include "timing/setup.h"
#include "tuning/tuning.h"

static int check_case(const bench_case *bench) {
  const attn_kernel_info *kernels[BENCH_MAX_KERNELS];
  static bench_row rows[BENCH_MAX_KERNELS];
  const bench_case_settings settings = {.seed = 1};
  int count = 0, code = 0;
  while (count < BENCH_MAX_KERNELS && attn_kernel_get(count)) kernels[count] = attn_kernel_get(count), count++;
  (void)bench_run_case(bench, kernels, count, &settings, rows);
  for (int i = 0; i < count; i++) {
    if (rows[i].verdict.status == BENCH_FAIL && !code)
      code = cli_fail(BENCH_EXIT_FAILED, "tune", "%s fails its check on %s: %s", kernels[i]->name, bench->case_id,
                      rows[i].verdict.reason);
    bench_row_clear(&rows[i]);
  }
  return code;
}

int bench_tune_check(const bench_tune_line *line) {
  bench_case bench;
  const bench_tune_shape shape = {.dtype = line->dtype,
                                  .backward = line->backward,
                                  .mask = line->causal ? TUNE_CAUSAL : TUNE_FULL,
                                  .dim = line->dim,
                                  .group = 4,
                                  .heads_kv = 2,
                                  .seq_q = 9,
                                  .seq_k = 70};
  bench_tune_case(&shape, &bench);
  return check_case(&bench);
}
