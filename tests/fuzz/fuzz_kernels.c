/* SPDX-License-Identifier: MIT */
/* Every kernel on problems and data made of any bytes (problem.c). Its answers must agree with the second oracle (dense.c)
 * within the limits of docs/numerics.md, it must write only its own elements, and refuse arguments that do not fit. Both
 * oracles must agree in all that they say about a row. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check/check.h"
#include "dense.h"
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

static void check_row(fuzz_problem *f, const attn_kernel_info *kernel, const dense_row *row, place at) {
  const attn_problem *p = &f->problem;
  const bool varlen = p->uses & ATTN_USE_VARLEN;
  const int64_t token = at.i + (varlen ? f->args.cu_seqlens_q[at.b] : 0);
  const bench_row_limits limits = bench_limits_of_row(p, &kernel->numerics, &row->facts, false);
  const bool fits = row->facts.abs_sum < 1e30; /* larger scores may overflow float32, and no answer is promised */
  const int64_t first = element_of(&f->tensor[FUZZ_O], varlen, at.b, at.h, token);
  for (int64_t d = 0; d < p->dim_v; d++) {
    const double got = take(f, FUZZ_O, first + d * f->tensor[FUZZ_O].stride[3]);
    const double ratio = bench_output_ratio(&limits, row->o[d], row->m[d], 0, got);
    if (!(ratio <= 1) && fits)
      fuzz_fail("%s: o[%lld][%lld][%lld][%lld] is %.9g instead of %.9g: %.3g limits", kernel->name, (long long)at.b,
                (long long)at.h, (long long)at.i, (long long)d, got, row->o[d], ratio);
  }
  if (!(p->uses & ATTN_USE_LSE)) return;
  const double lse = take(f, FUZZ_LSE, element_of(&f->tensor[FUZZ_LSE], varlen, at.b, at.h, token));
  if (!(bench_lse_ratio(&limits, row->facts.lse, lse) <= 1) && fits)
    fuzz_fail("%s: lse[%lld][%lld][%lld] is %.9g instead of %.9g", kernel->name, (long long)at.b, (long long)at.h,
              (long long)at.i, lse, row->facts.lse);
}

static void check_gaps(const fuzz_problem *f, const attn_kernel_info *kernel) {
  for (int name = FUZZ_O; name <= FUZZ_LSE; name++)
    for (size_t i = 0; f->tensor[name].data && i < f->tensor[name].bytes; i++)
      if (f->tensor[name].data[i] != FUZZ_POISON)
        fuzz_fail("%s wrote to a gap of %s at byte %zu", kernel->name, name == FUZZ_O ? "o" : "lse", i);
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
              facts.max_k == other->max_k && facts.max_v == other->max_v &&
              near(facts.abs_sum, other->abs_sum, facts.abs_sum) && near(facts.lse, other->lse, amplified + fabs(facts.lse));
  for (int64_t d = 0; d < f->problem.dim_v; d++)
    same = same && near(o[d], row->o[d], amplified * m[d]) && near(m[d], row->m[d], amplified * m[d]) &&
           near(w[d], row->w[d], 1e3 * amplified * m[d]);
  if (!same) fuzz_fail("the oracles differ in row [%lld][%lld][%lld]", (long long)at.b, (long long)at.h, (long long)at.i);
}

static void check_oracle(const fuzz_problem *f, const dense_row *rows) {
  const attn_problem *p = &f->problem;
  for (int64_t n = 0; n < p->batch * p->heads_q; n++) {
    const int64_t b = n / p->heads_q;
    if (attn_oracle_f64_rows(p, &f->args, b) != queries_of(f, b)) fuzz_fail("the oracle counts other rows");
    for (int64_t i = 0; i < queries_of(f, b); i++)
      compare_oracles(f, &rows[n * p->seq_q + i], (place){b, n % p->heads_q, i});
  }
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

/* Whether the last error may say that a ring is too short for the window, or that a query does not see all of a prefix. */
static bool may_be_refused(const fuzz_problem *f) {
  const attn_problem *p = &f->problem;
  const bool ring = (p->uses & ATTN_USE_PAGES) && p->window_left >= 0 && p->pages * p->page_tokens < p->seq_k;
  if (ring && (strstr(attn_last_error(), "this ring holds") || strstr(attn_last_error(), "window_first keeps"))) return true;
  return p->shared_prefix > 0 && strstr(attn_last_error(), "every query must see all of the prefix");
}

static void run_kernel(fuzz_problem *f, const attn_kernel_info *kernel, const dense_row *rows, uint8_t how) {
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
  fuzz_problem_poison(f);
  if (attn_plan_run(plan, &f->args, workspace, bytes) == ATTN_OK) {
    check_outputs(f, kernel, rows);
    check_refusals(plan, f, workspace, bytes, how >> 4);
  } else if (!may_be_refused(f)) {
    fuzz_fail("%s: %s", kernel->name, attn_last_error());
  }
  free(workspace);
  attn_plan_destroy(plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_bytes bytes = {data, data + size};
  fuzz_problem f;
  const uint8_t how = fuzz_byte(&bytes), libraries = fuzz_byte(&bytes);
  fuzz_problem_read(&bytes, &f);
  if (attn_problem_validate(&f.problem) != ATTN_OK) fuzz_fail("the problem is refused: %s", attn_last_error());
  dense_row *rows = dense_answer(&f.problem, &f.args);
  check_oracle(&f, rows);
  for (int i = 0; i < attn_kernel_count(); i++) {
    const attn_kernel_info *kernel = attn_kernel_get(i);
    const bool slow = kernel->library[0]; /* its plans take long, so only one input in eight runs it */
    if (attn_kernel_unusable(kernel) || slow != (libraries % 8 == 7)) continue;
    run_kernel(&f, kernel, rows, how);
  }
  free(rows);
  return 0;
}
