/* SPDX-License-Identifier: MIT */
/* Every kernel on problems and data made of any bytes (problem.c). Its answers must agree with the second oracle (dense.c)
 * within the limits of docs/numerics.md, it must write only its own elements, and refuse arguments that do not fit. Both
 * oracles must agree in all that they say about a row. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check/check.h"
#include "data/generate.h"
#include "dense.h"
#include "kernels/common/problem/exact_row.h"
#include "kernels/common/problem/operation.h"
#include "problem.h"

/* ---- Outputs -------------------------------------------------------------------------------------------------------- */

static double load_output(const fuzz_problem *f, int64_t element) {
  float value;
  const unsigned char *at = f->tensor[FUZZ_O].data + (size_t)element * f->tensor[FUZZ_O].element_bytes;
  uint32_t bits = 0;
  if (f->problem.dtype_o != ATTN_BF16) return attn_oracle_load(f->tensor[FUZZ_O].data, f->problem.dtype_o, element);
  memcpy((char *)&bits + 2, at, 2);
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* The value of an element. Poisons the element again, so that later all elements without poison were written wrongly. */
static double take(fuzz_problem *f, fuzz_name name, int64_t element) {
  fuzz_tensor *t = &f->tensor[name];
  const double value = name == FUZZ_O ? load_output(f, element) : attn_oracle_load(t->data, ATTN_F32, element);
  memset(t->data + (size_t)element * t->element_bytes, FUZZ_POISON, t->element_bytes);
  return value;
}

static int64_t element_of(const fuzz_tensor *t, bool varlen, int64_t b, int64_t h, int64_t token) {
  return t->first + (varlen ? 0 : b * t->stride[0]) + h * t->stride[1] + token * t->stride[2];
}

typedef struct place {
  int64_t b, h, i;
} place;

/* The largest magnitude among the weights of additive scores. */
static double largest_score_weight(const fuzz_problem *f, int64_t h) {
  const attn_problem *p = &f->problem;
  double largest = 0;
  for (int64_t d = 0; p->score == ATTN_SCORE_ADDITIVE && d < p->dim_qk; d++)
    largest = fmax(largest, fabs((double)f->args.score_weight[h * p->score_weight_stride_h + d]));
  return largest;
}

/* No answer is promised where scores may overflow float32, or beside a softcap, which hides that, products of queries and
 * keys. Where keys come in pieces, no row is computed again in double precision: then values, slopes, score weights and
 * products may not overflow either, nor weights, by the rounding of scores, and factors of blocks are finite. */
static bool fits(const fuzz_problem *f, const attn_oracle_row *facts, int64_t h) {
  const double scaled = facts->max_q * fmax(fabs((double)f->problem.scale), 1);
  const double products = scaled * fmax(facts->max_k * (double)f->problem.dim_qk, 1);
  const bool in_pieces = f->problem.uses & ATTN_USE_STATE, multiply = !(isfinite(products) && products > 1e30);
  if (!(facts->abs_sum < (in_pieces ? 0x1p30 : 1e30))) return false;
  if (!in_pieces) return multiply || !(f->problem.softcap > 0);
  if (attn_dtype_of(f->problem.dtype_kv).values > 1 && !(isfinite(facts->max_k) && isfinite(facts->max_v))) return false;
  const double slope = f->problem.uses & ATTN_USE_ALIBI ? fabs((double)f->args.alibi_slopes[h]) : 0;
  return multiply && !(isfinite(facts->max_v) && facts->max_v > 1e30) && slope < 1e30 && largest_score_weight(f, h) < 1e30;
}

/* Where keys come in pieces, a row that is not finite need not be infinite with the same sign, or NaN. */
static bool is_right(const attn_problem *p, double ratio, double right, double got) {
  return ratio <= 1 || (p->uses & ATTN_USE_STATE && !isfinite(right) && !isfinite(got));
}

/* The state must hold the values of o and lse, without the sink. Then the row holds again what it held before
 * the run, so that later all other bytes were written wrongly. */
static void check_state(fuzz_problem *f, const attn_kernel_info *kernel, const dense_row *row,
                        const bench_row_limits *limits, place at) {
  const attn_problem *p = &f->problem;
  const fuzz_tensor *state = &f->tensor[FUZZ_STATE], *before = &f->tensor[FUZZ_STATE_BEFORE];
  const bool varlen = p->uses & ATTN_USE_VARLEN, must_fit = fits(f, &row->facts, at.h);
  const int64_t token = at.i + (varlen ? f->args.cu_seqlens_q[at.b] : 0);
  const size_t first = (size_t)element_of(state, varlen, at.b, at.h, token) * sizeof(float);
  float *floats = (float *)(void *)(state->data + first);
  const float *sums = floats + p->dim_v, *reference = sums + ATTN_STATE_SUMS;
  double sum = 0;
  for (int part = 0; part < ATTN_STATE_SUMS && reference[0] != -INFINITY; part++) sum += (double)sums[part];
  const double lse =
      reference[0] == -INFINITY ? -INFINITY : log(2) * ((double)reference[0] + (double)reference[1]) + log(sum);
  if (!is_right(p, bench_lse_ratio(limits, row->facts.lse, lse), row->facts.lse, lse) && must_fit)
    fuzz_fail("%s: state[%lld][%lld][%lld] has an LSE of %.9g instead of %.9g", kernel->name, (long long)at.b,
              (long long)at.h, (long long)at.i, lse, row->facts.lse);
  for (int64_t d = 0; d < p->dim_v && row->facts.allowed && !(p->uses & ATTN_USE_SINKS); d++) {
    const double got = (double)floats[d] / sum, ratio = bench_output_ratio(limits, row->o[d], row->m[d], 0, got);
    if (!is_right(p, ratio, row->o[d], got) && must_fit)
      fuzz_fail("%s: state[%lld][%lld][%lld][%lld] is %.9g instead of %.9g", kernel->name, (long long)at.b, (long long)at.h,
                (long long)at.i, (long long)d, got, row->o[d]);
  }
  memcpy(floats, before->data + first, (size_t)attn_state_floats(p->dim_v) * sizeof *floats);
}

static void check_row(fuzz_problem *f, const attn_kernel_info *kernel, const dense_row *row, place at) {
  const attn_problem *p = &f->problem;
  const bool varlen = p->uses & ATTN_USE_VARLEN, must_fit = fits(f, &row->facts, at.h);
  const int64_t token = at.i + (varlen ? f->args.cu_seqlens_q[at.b] : 0);
  const bench_row_limits limits = bench_limits_of_row(p, &kernel->numerics, &row->facts, false);
  if (p->uses & ATTN_USE_STATE) check_state(f, kernel, row, &limits, at);
  const int64_t first = element_of(&f->tensor[FUZZ_O], varlen, at.b, at.h, token);
  for (int64_t d = 0; d < p->dim_v && f->args.o; d++) {
    const double got = take(f, FUZZ_O, first + d * f->tensor[FUZZ_O].stride[3]);
    const double ratio = bench_output_ratio(&limits, row->o[d], row->m[d], 0, got);
    if (!is_right(p, ratio, row->o[d], got) && must_fit)
      fuzz_fail("%s: o[%lld][%lld][%lld][%lld] is %.9g instead of %.9g: %.3g limits", kernel->name, (long long)at.b,
                (long long)at.h, (long long)at.i, (long long)d, got, row->o[d], ratio);
  }
  if (!f->args.lse) return;
  const double lse = take(f, FUZZ_LSE, element_of(&f->tensor[FUZZ_LSE], varlen, at.b, at.h, token));
  if (!is_right(p, bench_lse_ratio(&limits, row->facts.lse, lse), row->facts.lse, lse) && must_fit)
    fuzz_fail("%s: lse[%lld][%lld][%lld] is %.9g instead of %.9g", kernel->name, (long long)at.b, (long long)at.h,
              (long long)at.i, lse, row->facts.lse);
}

static void check_gaps(const fuzz_problem *f, const attn_kernel_info *kernel) {
  for (int name = FUZZ_O; name <= FUZZ_LSE; name++)
    for (size_t i = 0; f->tensor[name].data && i < f->tensor[name].bytes; i++)
      if (f->tensor[name].data[i] != FUZZ_POISON)
        fuzz_fail("%s wrote to a gap of %s at byte %zu", kernel->name, name == FUZZ_O ? "o" : "lse", i);
  const fuzz_tensor *state = &f->tensor[FUZZ_STATE], *before = &f->tensor[FUZZ_STATE_BEFORE];
  if (state->data && memcmp(state->data, before->data, state->bytes))
    fuzz_fail("%s wrote to a gap of the state", kernel->name);
}

static int64_t queries_of(const fuzz_problem *f, int64_t b) {
  if (!(f->problem.uses & ATTN_USE_VARLEN)) return f->problem.seq_q;
  return f->args.cu_seqlens_q[b + 1] - f->args.cu_seqlens_q[b];
}

static void check_outputs(fuzz_problem *f, const attn_kernel_info *kernel, const dense_row *rows) {
  const attn_problem *p = &f->problem;
  for (int64_t n = 0; n < p->batch * p->heads_q; n++) {
    const int64_t b = n / p->heads_q;
    for (int64_t i = 0; i < queries_of(f, b); i++)
      check_row(f, kernel, &rows[n * p->seq_q + i], (place){b, n % p->heads_q, i});
  }
  check_gaps(f, kernel);
}

/* ---- The first oracle ------------------------------------------------------------------------------------------------ */

/* A relative error of a score is one of size abs_sum in its exponential. */
static bool near(double a, double b, double size) {
  return a == b || (isnan(a) && isnan(b)) || (isfinite(size) && fabs(a - b) <= 1e-12 * size);
}

static void compare_oracles(const fuzz_problem *f, const dense_row *row, place at) {
  enum { MOST = 129 }; /* the largest of sizes in problem.c */
  static double o[MOST], m[MOST], w[MOST], probability[MOST];
  const attn_oracle_row facts = attn_oracle_f64_row(&f->problem, &f->args, (attn_oracle_index){at.b, at.h, at.i},
                                                    &(attn_oracle_output){.o = o, .m = m, .w = w, .p = probability});
  const attn_oracle_row *other = &row->facts;
  const double amplified = 1 + row->finite_sum;
  bool same = facts.exists == other->exists && facts.allowed == other->allowed && facts.max_q == other->max_q &&
              facts.max_k == other->max_k && facts.max_v == other->max_v && near(facts.sum_k, other->sum_k, facts.sum_k) &&
              near(facts.norm_k, other->norm_k, facts.norm_k) && near(facts.abs_sum, other->abs_sum, facts.abs_sum) &&
              near(facts.lse, other->lse, amplified + fabs(facts.lse));
  for (int64_t d = 0; d < f->problem.dim_v; d++)
    same = same && near(o[d], row->o[d], amplified * m[d]) && near(m[d], row->m[d], amplified * m[d]) &&
           near(w[d], row->w[d], 1e3 * amplified * m[d]);
  if (!same) fuzz_fail("the oracles differ in row [%lld][%lld][%lld]", (long long)at.b, (long long)at.h, (long long)at.i);
}

/* Over the problem's own keys. */
static void check_oracle(const fuzz_problem *f) {
  attn_problem own = f->problem;
  own.uses &= ~(uint32_t)ATTN_USE_STATE;
  dense_row *rows = dense_answer(&own, &f->args);
  const attn_problem *p = &f->problem;
  for (int64_t n = 0; n < p->batch * p->heads_q; n++) {
    const int64_t b = n / p->heads_q;
    if (attn_oracle_f64_rows(p, &f->args, b) != queries_of(f, b)) fuzz_fail("the oracle counts other rows");
    for (int64_t i = 0; i < queries_of(f, b); i++)
      compare_oracles(f, &rows[n * p->seq_q + i], (place){b, n % p->heads_q, i});
  }
  free(rows);
}

/* ---- Running a kernel ------------------------------------------------------------------------------------------------ */

/* A pool with one thread. It runs the tasks from the last to the first, by all workers in turn. */
static void run_backwards(void *pool, int64_t tasks, int workers, attn_task_fn task, void *context) {
  (void)pool;
  for (int64_t i = tasks - 1; i >= 0; i--) task(context, i, (int)(i % workers));
}

/* Arguments that do not fit must be refused. The bits of `mistake` choose which ones are tried. */
static void check_refusals(const attn_plan *plan, const fuzz_problem *f, void *workspace, size_t bytes, uint8_t mistake) {
  attn_args args = f->args;
  const attn_problem *p = &f->problem;
  const bool pairs = p->batch > 0 && p->seq_q > 0 && p->seq_k > 0 && !(p->uses & ATTN_USE_VARLEN);
  if (mistake & 1 && bytes && attn_plan_run(plan, &args, workspace, bytes - 64) != ATTN_WORKSPACE_TOO_SMALL)
    fuzz_fail("a workspace that is too small is not refused");
  if (mistake & 2 && bytes && attn_plan_run(plan, &args, (char *)workspace + 8, bytes) == ATTN_OK)
    fuzz_fail("a workspace that is not aligned is not refused");
  args.v = NULL;
  if (mistake & 4 && pairs && attn_plan_run(plan, &args, workspace, bytes) != ATTN_INVALID_ARGUMENT)
    fuzz_fail("v = NULL is not refused");
  args.v = f->args.v;
  const int32_t lengths[] = {(int32_t)p->seq_k + 1, -1, (int32_t)p->seq_k + 1};
  args.kv_len = lengths;
  if (mistake & 8 && pairs && (p->uses & ATTN_USE_KV_LEN) &&
      attn_plan_run(plan, &args, workspace, bytes) != ATTN_INVALID_ARGUMENT)
    fuzz_fail("a length beyond seq_k is not refused");
}

/* Whether all keys of the sequence are seen by some query for certain. */
static bool sees_all(const fuzz_problem *f, int64_t b) {
  const attn_problem *p = &f->problem;
  return queries_of(f, b) > 0 && p->window_left < 0 && p->window_right < 0 && p->key_begin == 0 && p->key_end == 0 &&
         !(p->uses & (ATTN_USE_Q_LEN | ATTN_USE_ROW_LEN));
}

/* A page that does not exist, in place of one that a sequence has: refused, or no query sees it and the bits are the same.
 */
static void check_bad_page(const attn_plan *plan, fuzz_problem *f, void *workspace, size_t bytes, uint64_t where) {
  static const int32_t wrong[] = {-1, INT32_MIN, INT32_MAX};
  const attn_problem *p = &f->problem;
  const fuzz_tensor *table = &f->tensor[FUZZ_PAGE_TABLE];
  const int64_t b = p->batch ? (int64_t)(where & 0xff) % p->batch : 0;
  const int64_t used = table->data && p->batch ? (f->args.kv_len[b] + p->page_tokens - 1) / p->page_tokens : 0;
  if (used == 0) return;
  int32_t *copy = malloc(table->bytes);
  unsigned char *o = malloc(f->tensor[FUZZ_O].bytes + 1);
  if (!copy || !o) fuzz_fail("no memory for a table of pages");
  memcpy(copy, table->data, table->bytes);
  memcpy(o, f->tensor[FUZZ_O].data, f->tensor[FUZZ_O].bytes);
  copy[b * p->page_table_stride + (int64_t)(where >> 16) % used] =
      where >> 8 & 3 ? wrong[(where >> 8 & 3) - 1] : (int32_t)p->pages;
  attn_args args = f->args;
  args.page_table = copy;
  fuzz_problem_renew(f);
  const attn_status status = attn_plan_run(plan, &args, workspace, bytes);
  if (status != ATTN_OK && (status != ATTN_INVALID_ARGUMENT || !strstr(attn_last_error(), "page_table[")))
    fuzz_fail("a page that does not exist: %s", attn_last_error());
  if (status == ATTN_OK && (sees_all(f, b) || memcmp(o, f->tensor[FUZZ_O].data, f->tensor[FUZZ_O].bytes)))
    fuzz_fail("a page that does not exist is read");
  free(copy);
  free(o);
}

/* A state that no call leaves is refused, and nothing is written. */
static void check_bad_state(const attn_plan *plan, fuzz_problem *f, void *workspace, size_t bytes, uint64_t which) {
  const fuzz_tensor *state = &f->tensor[FUZZ_STATE];
  const attn_problem *p = &f->problem;
  if (!state->data || !state->bytes || !p->batch || queries_of(f, 0) == 0) return;
  fuzz_problem_renew(f);
  const bool varlen = p->uses & ATTN_USE_VARLEN;
  float *sums = (float *)(void *)state->data +
                element_of(state, varlen, 0, (int64_t)(which >> 2) % p->heads_q, varlen ? f->args.cu_seqlens_q[0] : 0) +
                p->dim_v;
  sums[ATTN_STATE_SUMS] = which & 1 ? INFINITY : 0;
  for (int part = 0; part < ATTN_STATE_SUMS; part++) sums[part] = which & 1 ? 1 : which & 2 ? -1 : 0;
  if (attn_plan_run(plan, &f->args, workspace, bytes) != ATTN_INVALID_ARGUMENT || !strstr(attn_last_error(), "state has"))
    fuzz_fail("a state that no call leaves is not refused");
  for (size_t i = 0; i < f->tensor[FUZZ_O].bytes; i++)
    if (f->tensor[FUZZ_O].data[i] != FUZZ_POISON) fuzz_fail("o is written beside a state that is refused");
}

/* Whether the last error may say that a ring is too short for the window, or that a query does not see all of a prefix. */
static bool may_be_refused(const fuzz_problem *f) {
  const attn_problem *p = &f->problem;
  const bool ring = (p->uses & ATTN_USE_PAGES) && p->window_left >= 0 && p->pages * p->page_tokens < p->seq_k;
  if (ring && (strstr(attn_last_error(), "this ring holds") || strstr(attn_last_error(), "window_first keeps"))) return true;
  return p->shared_prefix > 0 && strstr(attn_last_error(), "every query must see all of the prefix");
}

static void run_kernel(fuzz_problem *f, const attn_kernel_info *kernel, const dense_row *rows, uint8_t how,
                       uint64_t mistakes) {
  const int workers = 1 + (how & 3);
  const attn_options options =
      ATTN_STRUCT(attn_options, .kernel = kernel->name, .threads = workers, .parallel_for = run_backwards);
  attn_plan *plan;
  const attn_status status = attn_plan_create(&f->problem, &options, &plan);
  if (status == ATTN_UNSUPPORTED && attn_last_error()[0]) return;
  if (status != ATTN_OK) fuzz_fail("%s: %s: %s", kernel->name, attn_status_name(status), attn_last_error());
  const size_t bytes = attn_plan_workspace(plan);
  void *workspace = bytes ? aligned_alloc(64, bytes) : NULL;
  if (bytes && !workspace) fuzz_fail("no memory for a workspace of %zu bytes", bytes);
  if (bytes) memset(workspace, 0xff, bytes);
  fuzz_problem_renew(f);
  if (attn_plan_run(plan, &f->args, workspace, bytes) == ATTN_OK) {
    if (mistakes & 1) check_bad_page(plan, f, workspace, bytes, mistakes >> 8);
    if (mistakes & 2) check_bad_state(plan, f, workspace, bytes, mistakes >> 8);
    if (mistakes & 3) {
      fuzz_problem_renew(f);
      if (attn_plan_run(plan, &f->args, workspace, bytes) != ATTN_OK) fuzz_fail("%s: %s", kernel->name, attn_last_error());
    }
    check_outputs(f, kernel, rows);
    check_refusals(plan, f, workspace, bytes, how >> 4);
  } else if (!may_be_refused(f)) {
    fuzz_fail("%s: %s", kernel->name, attn_last_error());
  }
  free(workspace);
  attn_plan_destroy(plan);
}

/* Kernels call attn_exact_row() for rows that are not finite; it is right for every row. */
static void check_exact_rows(fuzz_problem *f, const dense_row *rows) {
  static const attn_kernel_info exact = {.name = "attn_exact_row"};
  const attn_problem *p = &f->problem;
  if (p->uses & ATTN_USE_STATE) return;
  fuzz_problem_renew(f);
  for (int64_t n = 0; n < p->batch * p->heads_q; n++)
    for (int64_t i = 0; i < queries_of(f, n / p->heads_q); i++)
      attn_exact_row(p, &f->args, n / p->heads_q, n % p->heads_q, i);
  check_outputs(f, &exact, rows);
}

/* ---- Gradients ------------------------------------------------------------------------------------------------------ */

/* Memory of a row tensor that is dense. */
static void *allocate_dense(attn_problem *p, attn_operand_id which) {
  const int64_t elements = attn_operand_set_dense(p, which);
  void *memory = calloc((size_t)elements + 1, attn_operand_of(p, which).element_bytes);
  if (!memory) fuzz_fail("no memory for a tensor of gradients");
  return memory;
}

static bool run_by_name(const attn_problem *p, const attn_args *args, const char *kernel, int workers) {
  const attn_options options =
      ATTN_STRUCT(attn_options, .kernel = kernel, .threads = workers, .parallel_for = run_backwards);
  attn_plan *plan;
  const attn_status status = attn_plan_create(p, &options, &plan);
  if (status != ATTN_OK && status != ATTN_UNSUPPORTED) fuzz_fail("%s: %s", kernel, attn_last_error());
  if (status != ATTN_OK) return false;
  if (bench_run_once(plan, args) != ATTN_OK) fuzz_fail("%s: %s", kernel, attn_last_error());
  attn_plan_destroy(plan);
  return true;
}

static bool is_finite_at(const void *data, attn_dtype dtype, int64_t i) {
  return isfinite(attn_oracle_load(data, dtype, i));
}

/* The gradients of the problem, if it has any, by every kernel: they read their inputs and no more, and write dense arrays,
 * finite ones to the same bits for any number of workers. */
static void run_gradients(const fuzz_problem *f, int workers) {
  static const attn_operand_id owned[] = {ATTN_OPERAND_O,   ATTN_OPERAND_LSE, ATTN_OPERAND_D_O,
                                          ATTN_OPERAND_D_Q, ATTN_OPERAND_D_K, ATTN_OPERAND_D_V};
  enum { OWNED = sizeof owned / sizeof *owned };
  attn_problem p = f->problem;
  attn_args args = f->args;
  void *memory[OWNED] = {NULL};
  attn_problem_set_backward(&p);
  for (int i = 0; i < OWNED; i++) (void)attn_operand_set_dense(&p, owned[i]);
  if (attn_problem_validate(&p) != ATTN_OK || p.score == ATTN_SCORE_PRECOMPUTED || p.shared_prefix) return;
  for (int i = 0; i < OWNED; i++) attn_operand_point(&p, owned[i], &args, memory[i] = allocate_dense(&p, owned[i]));
  const attn_problem forward = bench_forward_of(&p);
  const attn_args forward_args = bench_forward_args(&args);
  (void)run_by_name(&forward, &forward_args, "naive_c", workers);
  const int64_t count = attn_operand_set_dense(&p, ATTN_OPERAND_D_O), keys = attn_operand_set_dense(&p, ATTN_OPERAND_D_V);
  for (int64_t i = 0; i < count; i++) bench_store(memory[2], p.dtype_o, i, (double)(i % 7) / 4 - 0.75);
  const size_t bytes = (size_t)keys * attn_operand_of(&p, ATTN_OPERAND_D_V).element_bytes;
  unsigned char *before = malloc(bytes + 1);
  if (!before) fuzz_fail("no memory for a copy of d_v");
  for (int i = 0; i < attn_kernel_count(); i++) {
    const attn_kernel_info *kernel = attn_kernel_get(i);
    if (attn_kernel_unusable(kernel) || attn_kernel_rejects(kernel, &p)) continue;
    if (!run_by_name(&p, &args, kernel->name, 1)) continue;
    memcpy(before, memory[OWNED - 1], bytes);
    (void)run_by_name(&p, &args, kernel->name, workers);
    for (int64_t n = 0; n < keys; n++) {
      const size_t size = bytes / (size_t)keys, at = (size_t)n * size;
      if (is_finite_at(before, p.dtype_kv, n) && memcmp(before + at, (unsigned char *)memory[OWNED - 1] + at, size) != 0)
        fuzz_fail("%s: d_v has other bits with %d workers", kernel->name, workers);
    }
  }
  for (int i = 0; i < OWNED; i++) free(memory[i]);
  free(before);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_bytes bytes = {data, data + size};
  fuzz_problem f;
  const uint8_t how = fuzz_byte(&bytes), libraries = fuzz_byte(&bytes);
  fuzz_problem_read(&bytes, &f);
  const uint64_t mistakes = fuzz_word(&bytes);
  fuzz_problem_renew(&f);
  if (attn_problem_validate(&f.problem) != ATTN_OK) fuzz_fail("the problem is refused: %s", attn_last_error());
  check_oracle(&f);
  dense_row *rows = dense_answer(&f.problem, &f.args);
  check_exact_rows(&f, rows);
  for (int i = 0; i < attn_kernel_count(); i++) {
    const attn_kernel_info *kernel = attn_kernel_get(i);
    const bool slow = kernel->library[0]; /* its plans take long, so only one input in eight runs it */
    if (attn_kernel_unusable(kernel) || slow != (libraries % 8 == 7)) continue;
    run_kernel(&f, kernel, rows, how, mistakes);
  }
  if (!(f.problem.uses & ATTN_USE_STATE)) run_gradients(&f, 1 + (how & 3));
  free(rows);
  return 0;
}
