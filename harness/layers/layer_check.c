/* SPDX-License-Identifier: MIT */
/* The check of a layer against float64. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "layers/layer_private.h"

static bool guards_stand(const bench_layer *layer) {
  const unsigned char *before = (const unsigned char *)layer->y_memory;
  const unsigned char *behind = (const unsigned char *)(layer->y_memory + BENCH_LAYER_GUARD + layer->y_floats);
  for (size_t i = 0; i < BENCH_LAYER_GUARD * sizeof(float); i++)
    if (before[i] != 0xff || behind[i] != 0xff) return false;
  return true;
}

/* Error over limit; a NaN anywhere fails. */
static double ratio_of(double error, double limit) {
  if (error <= limit) return limit > 0 ? error / limit : 0;
  const double ratio = error / limit;
  return ratio > 1 && ratio < INFINITY ? ratio : INFINITY;
}

/* Takes one number into the verdict. */
static void compare_number(double error, double limit, const int64_t index[4], bench_verdict *verdict) {
  const double ratio = ratio_of(error, limit);
  if (!(error <= verdict->max_abs_err)) verdict->max_abs_err = error;
  if (ratio <= verdict->max_err_ratio) return;
  verdict->max_err_ratio = ratio;
  memcpy(verdict->err_index, index, sizeof verdict->err_index);
}

/* Compares what stands in y, or zeros, with the expected rows. */
static void compare(const bench_layer *layer, bool zeros, bench_verdict *verdict) {
  const int64_t columns = layer->data.shape.columns, rows = layer->data.shape.rows;
  *verdict = (bench_verdict){.status = BENCH_PASS, .rows_checked = layer->rows.count};
  for (int64_t r = 0; r < layer->rows.count; r++)
    for (int64_t c = 0; c < columns; c++) {
      const int64_t index[] = {layer->rows.batch[r], 0, layer->rows.row[r], c};
      const double got = zeros ? 0 : (double)layer->data.y[(index[0] * rows + index[2]) * columns + c];
      compare_number(fabs(got - layer->rows.value[r * columns + c]), layer->rows.limit[r * columns + c], index, verdict);
    }
}

/* Compares the wrong answer of the layer. If it passes, the case cannot see that error. */
static attn_status run_wrong(bench_layer_trial *trial, void *workspace, size_t bytes, bench_verdict *verdict) {
  bench_layer_trial *wrong;
  attn_status status = bench_layer_make_trial(trial->of, &trial->options, true, &wrong);
  if (status != ATTN_OK) return status;
  status = bench_layer_call(wrong, workspace, bytes);
  bench_layer_unmake(wrong);
  if (status == ATTN_OK) compare(trial->of, false, verdict);
  return status;
}

static bench_verdict error_verdict(const char *reason) {
  bench_verdict verdict = {.status = BENCH_ERROR};
  snprintf(verdict.reason, sizeof verdict.reason, "%s", reason);
  return verdict;
}

static void decide(const bench_layer *layer, bench_verdict *verdict) {
  if (verdict->max_err_ratio > 1) {
    verdict->status = BENCH_FAIL;
    snprintf(verdict->reason, sizeof verdict->reason, "error is %.3g of the limit at batch %lld, row %lld, column %lld",
             verdict->max_err_ratio, (long long)verdict->err_index[0], (long long)verdict->err_index[2],
             (long long)verdict->err_index[3]);
  } else if (!guards_stand(layer)) {
    verdict->status = BENCH_FAIL;
    snprintf(verdict->reason, sizeof verdict->reason, "wrote outside y");
  }
}

/* The wrong answer that the case does not tell from the right one, or NULL. */
static const char *undetected(const bench_layer_trial *trial, const bench_verdict *zeros, const bench_verdict *wrong) {
  if (trial->of->rows.count == 0) return NULL;
  if (zeros->max_err_ratio <= 1) return "zeros";
  return wrong->max_err_ratio <= 1 ? trial->data->functions->wrong : NULL;
}

bench_verdict bench_layer_check(bench_layer_trial *trial, const attn_numerics *numerics, void *workspace, size_t bytes) {
  bench_layer *layer = trial->of;
  bench_verdict verdict, zeros, wrong;
  if (!bench_layer_expect(layer, numerics)) return error_verdict("out of memory for the oracle's answer");
  compare(layer, true, &zeros);
  if (run_wrong(trial, workspace, bytes, &wrong) != ATTN_OK) return error_verdict(attn_last_error());
  bench_layer_poison(trial);
  if (bench_layer_call(trial, workspace, bytes) != ATTN_OK) return error_verdict(attn_last_error());
  compare(layer, false, &verdict);
  decide(layer, &verdict);
  verdict.output_hash = bench_layer_output_hash(trial);
  const char *missed = undetected(trial, &zeros, &wrong);
  if (verdict.status == BENCH_PASS && missed) {
    verdict.status = BENCH_DEGENERATE;
    snprintf(verdict.reason, sizeof verdict.reason, "%s would pass as well", missed);
  }
  return verdict;
}
