/* SPDX-License-Identifier: MIT */
#include "shared/shared.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/extend.h"
#include "base/clock.h"
#include "base/handlers.h"
#include "cases/case.h"
#include "cases/cases.h"
#include "check/check.h"
#include "data/lengths.h"
#include "kernels/common/problem/dtypes.h"
#include "machine/affinity.h"
#include "timing/rates.h"
#include "timing/reading.h"
#include "timing/stats.h"

/* The loops call this for attnbench's own threads. Threads of another program stay where that program puts them. */
void bench_thread_settle(void) {}
void bench_team_settle(int threads) { (void)threads; }

/* ---- Statistics -------------------------------------------------------------------------------------------------- */

static void flatten(bench_summary s, double summary[5]) {
  memcpy(summary, (double[5]){s.min, s.median, s.mad, s.ci_lo, s.ci_hi}, 5 * sizeof *summary);
}

void attnbench_summarise(const double *values, int n, double summary[5]) { flatten(bench_summarise(values, n), summary); }

void attnbench_paired_ratio(const double *a, const double *b, const double *ran_a, const double *ran_b, int n, int places,
                            int length, double summary[6]) {
  const bench_pairs pairs = {a, b, ran_a, ran_b, n, {places, length}};
  flatten(bench_paired_ratio(&pairs), summary);
  summary[5] = bench_estimate_p(bench_paired_estimate(&pairs));
}

int attnbench_holm(double *p, int n) { return bench_holm(p, n); }

int attnbench_latin_square(int *square, int n, uint64_t seed, int block) {
  return bench_latin_square(square, n, seed, block);
}

/* ---- Handlers ---------------------------------------------------------------------------------------------------- */

void attnbench_handlers_note(void) { bench_handlers_note(); }
int attnbench_handlers_other(void) { return bench_handlers_other(); }

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

static_assert((int)ATTNBENCH_ID >= (int)BENCH_NAME, "case ids must fit");

int attnbench_axis(const char *assignment, char *values, size_t bytes) {
  bench_grid grid = {0};
  size_t used = 0;
  bool fine = bench_grid_set(&grid, assignment, values, bytes);
  for (int axis = 0; fine && axis < AXIS_COUNT; axis++)
    for (int i = 0; i < grid.axes[axis].count && used < bytes; i++)
      used += (size_t)snprintf(values + used, bytes - used, "%s%s", used ? "," : "", grid.axes[axis].value[i]);
  if (fine && used >= bytes) snprintf(values, bytes, "too many values: give fewer");
  bench_grid_clear(&grid);
  return fine && used < bytes;
}

const char *attnbench_dtype(int dtype, double facts[2]) {
  if (!attn_dtype_exists((attn_dtype)dtype)) return NULL;
  const attn_dtype_info info = attn_dtype_of((attn_dtype)dtype);
  memcpy(facts, (double[2]){(double)info.bytes, info.roundoff}, 2 * sizeof *facts);
  return info.name;
}

/* Masks, offsets and lengths other than those of pages are arrays, and which pairs they allow is not known here. */
static bool is_known(const attn_problem *p) {
  const uint32_t of_pages = p->uses & ATTN_USE_PAGES ? ATTN_USE_PAGES | ATTN_USE_KV_LEN | ATTN_USE_VARLEN : 0;
  return p->align != ATTN_ALIGN_OFFSET && !(p->uses & ~(ATTN_USE_LSE | of_pages));
}

/* Queries and keys of each sequence, and where queries begin if they are packed. keys has room for 2 batch + 1 numbers.
 * Latent rows have one address of K and V, which is not read. */
static attn_args count_tokens(const bench_case *bench, int32_t *queries, int32_t *keys) {
  int32_t *cu = keys + bench->problem.batch;
  for (int64_t b = cu[0] = 0; b < bench->problem.batch; b++) {
    queries[b] = bench_query_count(bench, b), keys[b] = bench_key_count(bench, b);
    cu[b + 1] = cu[b] + queries[b];
  }
  const void *v = bench_spec_is(&bench->spec, AXIS_LATENT, "on") ? queries : keys;
  return ATTN_STRUCT(attn_args, .k = queries, .v = v, .kv_len = keys, .cu_seqlens_q = cu);
}

static int describe(const bench_case *bench, char id[ATTNBENCH_ID], int64_t sizes[7], double work[2]) {
  snprintf(id, ATTNBENCH_ID, "%s", bench->invalid[0] ? bench->invalid : bench->case_id);
  if (bench->invalid[0]) return 0;
  const attn_problem *p = &bench->problem;
  if (!is_known(p)) {
    snprintf(id, ATTNBENCH_ID, "masks, offsets and lengths without pages are not possible here; dense cases are right");
    return 0;
  }
  int32_t *tokens = malloc((3 * (size_t)p->batch + 1) * sizeof *tokens);
  if (!tokens) return 0;
  const attn_args args = count_tokens(bench, tokens, tokens + p->batch);
  memcpy(sizes, (int64_t[7]){p->batch, p->heads_q, p->heads_kv, p->seq_q, p->seq_k, p->dim_qk, p->dim_v}, 7 * sizeof *sizes);
  work[0] = bench_case_flops(bench, bench_work_pairs(p, &args));
  work[1] = bench_work_bytes(p, &args);
  free(tokens);
  return 1;
}

/* The case of these texts, as a run with its default seed has it. False with a sentence. */
static bool read_case(const char *const *axes, int count, bench_case *bench, char error[ATTNBENCH_ID]) {
  enum { DEFAULT_SEED = 1 };
  bench_grid grid = {0};
  bool fine = true;
  for (int i = 0; i < count && fine; i++) fine = bench_grid_set(&grid, axes[i], error, ATTNBENCH_ID);
  const bench_spec spec = bench_grid_spec(&grid, (const int[AXIS_COUNT]){0});
  bench_grid_clear(&grid);
  if (fine) bench_case_build(&spec, DEFAULT_SEED, bench);
  return fine;
}

int attnbench_case(const char *const *axes, int count, char id[ATTNBENCH_ID], int64_t sizes[7], double work[2]) {
  bench_case bench;
  return read_case(axes, count, &bench, id) && describe(&bench, id, sizes, work);
}

int attnbench_lengths(const char *const *axes, int count, int batch, int32_t *queries, int32_t *keys) {
  bench_case bench;
  char error[ATTNBENCH_ID];
  if (!read_case(axes, count, &bench, error) || bench.invalid[0] || bench.problem.batch != batch) return 0;
  for (int64_t b = 0; b < batch; b++) queries[b] = bench_query_count(&bench, b), keys[b] = bench_key_count(&bench, b);
  return 1;
}

/* ---- The oracle -------------------------------------------------------------------------------------------------- */

struct attnbench_expected {
  attn_args args;
  bench_expected *rows;
};

static attn_problem dense_problem(const attnbench_problem *p) {
  const int64_t *sizes = p->sizes;
  attn_problem problem;
  attn_problem_init(&problem, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6]);
  if (p->k == p->v) problem.v_stride = problem.k_stride;
  problem.dtype_q = problem.dtype_o = (attn_dtype)p->dtype;
  problem.dtype_kv = (attn_dtype)p->dtype_kv;
  if (p->align >= 0) attn_problem_set_causal(&problem, (attn_align)p->align);
  if (p->with_lse) problem.uses |= ATTN_USE_LSE;
  return problem;
}

attnbench_expected *attnbench_expected_create(const attnbench_problem *p) {
  const attn_problem problem = dense_problem(p);
  attnbench_expected *expected = malloc(sizeof *expected);
  if (!expected) return NULL;
  expected->args = ATTN_STRUCT(attn_args, .q = p->q, .k = p->k, .v = p->v);
  expected->rows = bench_expected_create(&problem, &expected->args, p->seed, true);
  if (expected->rows) return expected;
  free(expected);
  return NULL;
}

void attnbench_expected_destroy(attnbench_expected *expected) {
  if (expected) bench_expected_destroy(expected->rows);
  free(expected);
}

double attnbench_compare(const attnbench_expected *expected, const void *o, const float *lse, const double arithmetic[6],
                         double *abs_error, int64_t where[5]) {
  const attn_numerics numerics = {.exp_error = arithmetic[0],
                                  .p_rounding = arithmetic[1],
                                  .input_flush = arithmetic[2],
                                  .input_rounding = arithmetic[3],
                                  .query_rounding = arithmetic[4]};
  attn_args args = expected->args;
  args.o = (void *)(uintptr_t)o; /* only read here */
  args.lse = (float *)(uintptr_t)lse;
  const bench_verdict verdict = bench_check_stored_values(expected->rows, &args, &numerics, arithmetic[5]);
  *abs_error = verdict.max_abs_err;
  memcpy(where, verdict.err_index, sizeof verdict.err_index);
  where[4] = verdict.rows_checked;
  return verdict.max_err_ratio;
}

/* ---- Peaks ------------------------------------------------------------------------------------------------------- */

struct attnbench_peak {
  bench_peak_slice slice;
  char name[64];
};

attnbench_peak *attnbench_peak_open(const char *dtype, int threads, double slice_ns) {
  const attn_peak_loop *loop = attn_peak_for(bench_highest_tier(), dtype);
  attnbench_peak *peak = loop ? malloc(sizeof *peak) : NULL;
  if (!peak) return NULL;
  peak->slice = bench_peak_prepare(loop, threads, slice_ns);
  snprintf(peak->name, sizeof peak->name, "%s %s: %s", loop->isa, loop->dtype, loop->what);
  return peak;
}

void attnbench_peak_close(attnbench_peak *peak) { free(peak); }

const char *attnbench_peak_name(const attnbench_peak *peak) { return peak->name; }

double attnbench_peak_rate(const attnbench_peak *peak) { return bench_peak_rate(&peak->slice) * peak->slice.threads; }

double attnbench_read_rate(const void *first, size_t first_bytes, const void *second, size_t second_bytes, int threads,
                           int order) {
  const bench_read_loop read = bench_widest_read();
  if (!read || order < 0 || order >= BENCH_READ_ORDERS) return 0;
  return bench_read_arrays(read, (const void *[]){first, second}, (size_t[]){first_bytes, second_bytes}, threads, order);
}
