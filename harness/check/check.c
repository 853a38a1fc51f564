/* SPDX-License-Identifier: MIT */
/* The verdict: outputs against the oracle under the limits of docs/numerics.md, and a run under watch. */
#include "check/check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/check_private.h"
#include "check/error_limits.h"
#include "data/tensors_private.h"

/* The first is a NaN in every float type; the second, in float32 and bfloat16, a large number. What holds either after a run
 * was not written, and what differs between the runs was not written or is not repeatable. */
enum { FIRST_POISON = 0xff, SECOND_POISON = 0x7d };

enum { LSE_COLUMN = -1 };

const char *bench_status_name(bench_status status) {
  static const char *const names[] = {"PASS", "FAIL", "SKIP", "DEGENERATE", "ERROR"};
  return names[status];
}

static void set_reason(bench_verdict *verdict, bench_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void set_reason(bench_verdict *verdict, bench_status status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  verdict->status = status;
  vsnprintf(verdict->reason, sizeof verdict->reason, format, arguments);
  va_end(arguments);
}

/* ---- Comparison --------------------------------------------------------------------------------------------------- */

/* Element offset of the row's first output. */
static int64_t place(const attn_problem *p, const attn_args *args, const attn_strides *stride,
                     const bench_expected_row *row) {
  bool varlen = p->uses & ATTN_USE_VARLEN;
  int64_t start = varlen ? args->cu_seqlens_q[row->b] * stride->s : row->b * stride->b;
  return start + row->h * stride->h + row->i * stride->s;
}

/* The worst value so far, and how many were beyond their limit. */
typedef struct judgement {
  bench_verdict verdict;
  double worst_got, worst_expected;
  int64_t beyond;
} judgement;

static void judge(judgement *j, const bench_expected_row *row, int64_t column, double ratio, double got, double expected) {
  double error = fabs(got - expected);
  if (error > j->verdict.max_abs_err && error < INFINITY) j->verdict.max_abs_err = error;
  if (ratio > 1.0) j->beyond++;
  if (!(ratio > j->verdict.max_err_ratio)) return;
  j->verdict.max_err_ratio = ratio;
  memcpy(j->verdict.err_index, (int64_t[4]){row->b, row->h, row->i, column}, sizeof j->verdict.err_index);
  j->worst_got = got;
  j->worst_expected = expected;
}

static void judge_row(judgement *j, const bench_expected *e, int64_t n, const attn_args *args,
                      const attn_numerics *numerics) {
  const attn_problem *p = &e->problem;
  const bench_expected_row *row = &e->row[n];
  const double *o = e->o + n * p->dim_v, *m = e->m + n * p->dim_v, *w = e->w + n * p->dim_v;
  bench_row_limits limits = bench_limits_of_row(p, numerics, &row->facts, e->zero_mean);
  int64_t at = place(p, args, &p->o_stride, row);
  for (int64_t d = 0; d < p->dim_v; d++) {
    double got = attn_oracle_load(args->o, p->dtype_o, at + d * p->o_stride.d);
    judge(j, row, d, bench_output_ratio(&limits, o[d], m[d], w[d], got), got, o[d]);
  }
  if (!(p->uses & ATTN_USE_LSE)) return;
  double got = (double)args->lse[place(p, args, &p->lse_stride, row)];
  judge(j, row, LSE_COLUMN, bench_lse_ratio(&limits, row->facts.lse, got), got, row->facts.lse);
}

static void explain_failure(judgement *j, int64_t rows) {
  const int64_t *at = j->verdict.err_index;
  char where[120], how[80];
  int used = snprintf(where, sizeof where, "%s[batch %lld, head %lld, query %lld", at[3] == LSE_COLUMN ? "lse" : "o",
                      (long long)at[0], (long long)at[1], (long long)at[2]);
  if (at[3] != LSE_COLUMN) snprintf(where + used, sizeof where - (size_t)used, ", column %lld", (long long)at[3]);
  if (isfinite(j->verdict.max_err_ratio))
    snprintf(how, sizeof how, "%.3g times the error limit", j->verdict.max_err_ratio);
  else
    snprintf(how, sizeof how, "which no error limit allows");
  set_reason(&j->verdict, BENCH_FAIL, "%s] is %.9g, should be %.9g: %s; %lld values of %lld rows are beyond theirs", where,
             j->worst_got, j->worst_expected, how, (long long)j->beyond, (long long)rows);
}

bench_verdict bench_compare(const bench_expected *expected, const attn_args *args, const attn_numerics *numerics) {
  judgement j = {.verdict = {.status = BENCH_PASS, .rows_checked = expected->rows}};
  for (int64_t n = 0; n < expected->rows; n++) judge_row(&j, expected, n, args, numerics);
  const char *null_answer = j.beyond ? NULL : bench_null_answer(expected, args, numerics);
  if (j.beyond) explain_failure(&j, expected->rows);
  if (null_answer) set_reason(&j.verdict, BENCH_DEGENERATE, "right, but %s would pass as well", null_answer);
  return j.verdict;
}

/* ---- Null answers --------------------------------------------------------------------------------------------------- */

typedef enum null_answer { NULL_UNTOUCHED, NULL_ZEROS, NULL_MEAN_ALLOWED, NULL_MEAN_ALL, NULL_ANSWERS } null_answer;

/* Mean of the finite values of one column of V over all keys of the row's sequence; padding holds NaN. */
static double mean_of_column(const attn_problem *p, const attn_args *args, const bench_expected_row *row, int64_t d) {
  bool varlen = p->uses & ATTN_USE_VARLEN;
  const attn_strides *stride = &p->v_stride;
  int64_t first = varlen ? args->cu_seqlens_k[row->b] : 0, keys = varlen ? args->cu_seqlens_k[row->b + 1] - first : p->seq_k;
  int64_t head = row->h / (p->heads_q / p->heads_kv), count = 0;
  int64_t at = (varlen ? 0 : row->b * stride->b) + head * stride->h + first * stride->s + d * stride->d;
  double sum = 0.0;
  for (int64_t j = 0; j < keys; j++) {
    double v = attn_oracle_load(args->v, p->dtype_kv, at + j * stride->s);
    if (!isfinite(v)) continue;
    sum += v;
    count++;
  }
  return count ? sum / (double)count : 0.0;
}

static double null_value(const bench_expected *e, const attn_args *args, null_answer answer, int64_t n, int64_t d) {
  switch (answer) {
    case NULL_ZEROS: return 0.0;
    case NULL_MEAN_ALLOWED: return e->mean_v[n * e->problem.dim_v + d];
    case NULL_MEAN_ALL: return mean_of_column(&e->problem, args, &e->row[n], d);
    default: return NAN; /* untouched output: the first poison */
  }
}

/* True if the answer passes at every output of every checked row: stops at the first that rejects it. */
static bool null_passes(const bench_expected *e, const attn_args *args, const attn_numerics *numerics, null_answer answer) {
  const attn_problem *p = &e->problem;
  for (int64_t n = 0; n < e->rows; n++) {
    bench_row_limits limits = bench_limits_of_row(p, numerics, &e->row[n].facts, e->zero_mean);
    for (int64_t d = 0; d < p->dim_v; d++) {
      int64_t at = n * p->dim_v + d;
      double ratio = bench_output_ratio(&limits, e->o[at], e->m[at], e->w[at], null_value(e, args, answer, n, d));
      if (ratio > 1.0) return false;
    }
  }
  return true;
}

const char *bench_null_answer(const bench_expected *expected, const attn_args *args, const attn_numerics *numerics) {
  static const char *const names[NULL_ANSWERS] = {
      [NULL_UNTOUCHED] = "output that nobody wrote",
      [NULL_ZEROS] = "all zeros",
      [NULL_MEAN_ALLOWED] = "the mean of V over the allowed keys",
      [NULL_MEAN_ALL] = "the mean of V over all keys",
  };
  for (int answer = 0; answer < NULL_ANSWERS; answer++)
    if (null_passes(expected, args, numerics, (null_answer)answer)) return names[answer];
  return NULL;
}

/* ---- A run under watch ------------------------------------------------------------------------------------------------ */

/* Names the output element at a byte of the packed copy. */
static void name_packed_byte(const bench_tensors *tensors, size_t byte, char *text, size_t bytes) {
  const bench_buffer *o = &tensors->buffers[BENCH_O], *lse = &tensors->buffers[BENCH_LSE];
  bench_owned owned = bench_owned_elements(tensors, BENCH_O);
  size_t o_bytes = (size_t)owned.count * o->element_bytes;
  bool in_o = byte < o_bytes;
  if (!in_o) owned = bench_owned_elements(tensors, BENCH_LSE);
  int64_t n = (int64_t)(in_o ? byte / o->element_bytes : (byte - o_bytes) / lse->element_bytes), at[4];
  for (int i = 3; i >= 0; i--) {
    at[i] = n % owned.extent[i];
    n /= owned.extent[i];
  }
  snprintf(text, bytes, "%s[batch %lld, head %lld, %s %lld, column %lld]", in_o ? "o" : "lse", (long long)at[0],
           (long long)at[1], tensors->problem.uses & ATTN_USE_VARLEN ? "token" : "query", (long long)at[2],
           (long long)at[3]);
}

/* Runs on poisoned output. False: verdict says what went wrong. */
static bool run_watched(const attn_plan *plan, bench_tensors *tensors, int poison, void *workspace, size_t workspace_bytes,
                        bench_verdict *verdict) {
  bench_tensors_poison_output(tensors, (uint8_t)poison);
  if (workspace) memset(workspace, poison, workspace_bytes);
  attn_status status = attn_plan_run(plan, &tensors->args, workspace, workspace_bytes);
  if (status != ATTN_OK) {
    set_reason(verdict, BENCH_ERROR, "%s: %s", attn_status_name(status), attn_last_error());
    return false;
  }
  const char *damage = bench_tensors_damage(tensors);
  if (damage) set_reason(verdict, BENCH_FAIL, "%s", damage);
  return !damage;
}

/* Runs again in a workspace elsewhere, with guard zones of its own, after another poison: the same bits must come out. */
static void run_again(const attn_plan *plan, bench_tensors *tensors, const unsigned char *first, unsigned char *second,
                      size_t workspace_bytes, bench_verdict *verdict) {
  unsigned char *memory = aligned_alloc(64, (workspace_bytes + 63) / 64 * 64 + 2 * BENCH_GUARD_BYTES);
  if (!memory) {
    set_reason(verdict, BENCH_ERROR, "no memory for a second workspace of %zu bytes", workspace_bytes);
    return;
  }
  unsigned char *workspace = memory + BENCH_GUARD_BYTES;
  memset(memory, BENCH_OUTPUT_GUARD, BENCH_GUARD_BYTES);
  memset(workspace + workspace_bytes, BENCH_OUTPUT_GUARD, BENCH_GUARD_BYTES);
  bool fine = run_watched(plan, tensors, SECOND_POISON, workspace, workspace_bytes, verdict);
  for (size_t i = 0; i < BENCH_GUARD_BYTES && fine; i++) {
    fine = memory[i] == BENCH_OUTPUT_GUARD && workspace[workspace_bytes + i] == BENCH_OUTPUT_GUARD;
    if (!fine) set_reason(verdict, BENCH_FAIL, "workspace: written outside its %zu bytes", workspace_bytes);
  }
  free(memory);
  if (!fine) return;

  size_t bytes = bench_tensors_output_bytes(tensors), at = 0;
  bench_tensors_gather_output(tensors, second);
  while (at < bytes && first[at] == second[at]) at++;
  if (at == bytes) return;
  char where[120];
  name_packed_byte(tensors, at, where, sizeof where);
  set_reason(verdict, BENCH_FAIL,
             "%s differs between two runs on the same inputs: it was not written, or depends on what "
             "stood in output or workspace before",
             where);
}

bench_verdict bench_check(const attn_plan *plan, bench_tensors *tensors, const bench_expected *expected,
                          const attn_numerics *numerics, void *workspace, size_t workspace_bytes) {
  bench_verdict verdict = {.status = BENCH_PASS};
  size_t bytes = bench_tensors_output_bytes(tensors);
  unsigned char *packed = malloc(2 * bytes + 1);
  if (!packed) {
    set_reason(&verdict, BENCH_ERROR, "no memory for two copies of the %zu bytes of output", bytes);
    return verdict;
  }
  uint64_t inputs = bench_tensors_input_hash(tensors);
  if (run_watched(plan, tensors, FIRST_POISON, workspace, workspace_bytes, &verdict)) {
    verdict = bench_compare(expected, &tensors->args, numerics);
    bench_tensors_gather_output(tensors, packed);
    if (verdict.status != BENCH_FAIL) run_again(plan, tensors, packed, packed + bytes, workspace_bytes, &verdict);
    if (verdict.status != BENCH_FAIL && bench_tensors_input_hash(tensors) != inputs)
      set_reason(&verdict, BENCH_FAIL, "an input was overwritten");
    verdict.output_hash = bench_tensors_output_hash(tensors);
  }
  free(packed);
  return verdict;
}
