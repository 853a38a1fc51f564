/* SPDX-License-Identifier: MIT */
/* Runs a kernel twice and watches it: both times the output is poisoned and lies between guard zones, the second time the
 * workspace lies elsewhere. values.c checks the values. */
#include "check/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/float_mode.h"
#include "cases/case.h"
#include "data/generate.h"
#include "kernels/common/memory/aligned.h"
#include "kernels/common/problem/indexing.h"

/* The first is a NaN in every float type. The second is a large number in float32 and bfloat16. An element that holds one
 * of them after a run was not written. One that differs between the runs was not written, or is not repeatable. */
enum { FIRST_POISON = 0xff, SECOND_POISON = 0x7d };

typedef struct watched_kernel {
  const bench_build *build;
  const attn_plan *plan;
  bench_tensors *tensors;
  size_t workspace_bytes;
  size_t output_bytes;
  unsigned char *first, *second; /* the packed outputs of both runs */
  bench_verdict verdict;
} watched_kernel;

/* Names the element at a byte of the packed copy, which holds one output after the other. */
static void name_packed_byte(const bench_tensors *tensors, size_t byte, char *text, size_t bytes) {
  bench_owned owned = {.count = 0};
  const bench_buffer *t = tensors->buffers;
  for (int i = 0; i < BENCH_TENSORS; i++) {
    t = &tensors->buffers[i];
    if (!t->output) continue;
    owned = bench_owned_elements(tensors, (bench_tensor)i);
    if (byte < (size_t)owned.count * t->element_bytes) break;
    byte -= (size_t)owned.count * t->element_bytes;
  }
  long long at[4], n = (long long)(byte / t->element_bytes);
  for (int i = 3; i >= 0; n /= owned.extent[i--]) at[i] = n % owned.extent[i];
  snprintf(text, bytes, "%s[batch %lld, head %lld, %s %lld, column %lld]", t->name, at[0], at[1],
           tensors->problem.uses & ATTN_USE_VARLEN ? "token" : "query", at[2], at[3]);
}

/* Runs on poisoned output. False: the verdict says what went wrong. */
static bool run_watched(watched_kernel *w, int poison, void *workspace) {
  bench_tensors_poison_output(w->tensors, (uint8_t)poison, 1);
  if (workspace) memset(workspace, poison, w->workspace_bytes);
  const uint64_t float_mode = bench_float_mode();
  const attn_status status = w->build->plan_run(w->plan, &w->tensors->args, workspace, w->workspace_bytes);
  if (!bench_keeps_float_mode(float_mode)) return bench_set_reason(&w->verdict, BENCH_FAIL, BENCH_OTHER_FLOAT_MODE);
  const char *fault = status == ATTN_OK ? bench_tensors_damage(w->tensors) : w->build->last_error();
  if (status == ATTN_OK) return !fault || bench_set_reason(&w->verdict, BENCH_FAIL, "%s", fault);
  return bench_set_reason(&w->verdict, BENCH_ERROR, "%s: %s", attn_status_name(status), fault);
}

static bool is_guard(const unsigned char *zone) {
  for (size_t i = 0; i < BENCH_GUARD_BYTES; i++)
    if (zone[i] != BENCH_OUTPUT_GUARD) return false;
  return true;
}

/* Runs in another workspace, between guard zones: memory[guard][workspace][guard]. */
static bool run_elsewhere(watched_kernel *w) {
  unsigned char *memory = attn_aligned_alloc(64, w->workspace_bytes + 2 * BENCH_GUARD_BYTES);
  if (!memory)
    return bench_set_reason(&w->verdict, BENCH_ERROR, "no memory for a second workspace of %zu bytes", w->workspace_bytes);
  unsigned char *workspace = memory + BENCH_GUARD_BYTES, *after = workspace + w->workspace_bytes;
  memset(memory, BENCH_OUTPUT_GUARD, BENCH_GUARD_BYTES);
  memset(after, BENCH_OUTPUT_GUARD, BENCH_GUARD_BYTES);
  const bool ran = run_watched(w, SECOND_POISON, workspace), inside = is_guard(memory) && is_guard(after);
  if (ran && !inside)
    bench_set_reason(&w->verdict, BENCH_FAIL, "workspace: written outside its %zu bytes", w->workspace_bytes);
  attn_aligned_free(memory);
  return ran && inside;
}

static void compare_outputs(watched_kernel *w) {
  char where[120];
  size_t at = 0;
  bench_tensors_gather_output(w->tensors, w->second);
  while (at < w->output_bytes && w->first[at] == w->second[at]) at++;
  if (at == w->output_bytes) return;
  name_packed_byte(w->tensors, at, where, sizeof where);
  bench_set_reason(&w->verdict, BENCH_FAIL,
                   "%s differs between two runs on the same inputs: it was not written, or depends on what "
                   "stood in output or workspace before",
                   where);
}

/* The oracle's rows, and then the others. */
static void compare(watched_kernel *w, const bench_expected *expected, const attn_numerics *numerics) {
  const attn_args *args = &w->tensors->args;
  w->verdict = bench_check_values(expected, args, numerics);
  if (w->verdict.status == BENCH_FAIL) return;
  const bench_verdict others =
      bench_check_other_values(expected, args, numerics, attn_kernel_find(w->build->plan_kernel(w->plan)));
  memcpy(w->verdict.reference, others.reference, sizeof others.reference);
  if (others.status != BENCH_PASS) bench_set_reason(&w->verdict, others.status, "%s", others.reason);
}

/* Runs twice, the second time with the workspace elsewhere and after another poison: the output must have the same bits.
 * Neither run may change an input. */
static void check_watched(watched_kernel *w, const bench_expected *expected, const attn_numerics *numerics,
                          void *workspace) {
  const uint64_t inputs = bench_tensors_input_hash(w->tensors);
  if (!run_watched(w, FIRST_POISON, workspace)) return;
  compare(w, expected, numerics);
  bench_tensors_gather_output(w->tensors, w->first);
  if (w->verdict.status != BENCH_FAIL && run_elsewhere(w)) compare_outputs(w);
  if (w->verdict.status != BENCH_FAIL && bench_tensors_input_hash(w->tensors) != inputs)
    bench_set_reason(&w->verdict, BENCH_FAIL, "an input was overwritten");
  w->verdict.output_hash = bench_tensors_output_hash(w->tensors);
}

bench_verdict bench_check_build(const bench_build *build, const attn_plan *plan, bench_tensors *tensors,
                                const bench_expected *expected, const attn_numerics *numerics, void *workspace,
                                size_t workspace_bytes) {
  watched_kernel w = {.build = build, .plan = plan, .tensors = tensors, .workspace_bytes = workspace_bytes};
  w.output_bytes = bench_tensors_output_bytes(tensors);
  w.first = malloc(2 * w.output_bytes + 1);
  if (!w.first) {
    bench_set_reason(&w.verdict, BENCH_ERROR, "no memory for two copies of the %zu bytes of output", w.output_bytes);
    return w.verdict;
  }
  w.second = w.first + w.output_bytes;
  const char *excess = bench_beyond_cap(numerics);
  if (excess)
    bench_set_reason(&w.verdict, BENCH_FAIL, "declares %s beyond the cap of docs/numerics.md", excess);
  else
    check_watched(&w, expected, numerics, workspace);
  w.verdict.approximate = bench_is_approximate(&tensors->problem, numerics);
  free(w.first);
  return w.verdict;
}

bench_verdict bench_check(const attn_plan *plan, bench_tensors *tensors, const bench_expected *expected,
                          const attn_numerics *numerics, void *workspace, size_t workspace_bytes) {
  return bench_check_build(&bench_own_build, plan, tensors, expected, numerics, workspace, workspace_bytes);
}

static const double SMALL = 4e8; /* multiply-adds up to which naive_c, which shares no code with any tier, is quick enough */

enum { MOST_SETTLED = 256 }; /* rows that the oracle finds right where the reference differs, before nothing is believed */

/* ---- Which kernel ---------------------------------------------------------------------------------------------------- */

/* 0: another tier and another algorithm; 2: the kernel itself, or one like it. */
static int alike(const attn_kernel_info *a, const attn_kernel_info *b) {
  return b ? !strcmp(a->isa, b->isa) + !strcmp(a->algorithm, b->algorithm) : 0;
}

/* Kernels with large errors of their own would widen the limits; decode kernels are slow on many rows. */
static bool may_refer(const bench_reference *r, int index) {
  const attn_kernel_info *kernel = attn_kernel_get(index);
  const attn_numerics *n = &kernel->numerics;
  return !(r->wrong >> index & 1) && !kernel->library[0] && !(n->p_rounding > 0) && !(n->input_rounding > 0) &&
         !(n->query_rounding > 0) && n->exp_error <= 0x1p-21 && strcmp(kernel->algorithm, "decode") != 0 &&
         !attn_kernel_rejects(kernel, &r->problem);
}

/* The kernel that shares least code with the one to check; of several the first, which is the fastest, but naive_c for
 * problems of up to `most_small` multiply-adds. Its index; -1: none. */
static int choose_kernel(const bench_reference *r, const attn_kernel_info *checked, double most_small) {
  int chosen = -1, least = 4;
  for (int i = 0; i < attn_kernel_count() && i < 64; i++) {
    const bool small = bench_multiply_adds(&r->problem) <= most_small, naive = !strcmp(attn_kernel_get(i)->name, "naive_c");
    const int rank = 2 * alike(attn_kernel_get(i), checked) + (small && !naive);
    if (rank < least && may_refer(r, i)) chosen = i, least = rank;
  }
  return chosen;
}

/* ---- Its answer ------------------------------------------------------------------------------------------------------ */

static int64_t tokens(const attn_problem *p, int64_t of_sequence, int64_t total) {
  return p->uses & ATTN_USE_VARLEN ? total : of_sequence;
}

/* Room in *at, unless it is there. False if memory is short. */
static bool allocate(float **at, int64_t count) { return *at || (*at = malloc((size_t)count * sizeof **at + 1)); }

/* Elements of a dense output; strides of sums say what is summed, and stay. */
static int64_t make_dense(attn_problem *p, bench_tensor output) {
  const attn_operand o = attn_operand_of(p, (attn_operand_id)output);
  int64_t last = 0;
  if (!o.present) return 0;
  if (output < (bench_tensor)ATTN_ROW_OPERANDS) return attn_operand_set_dense(p, (attn_operand_id)output);
  for (int i = 0; i < 4; i++) last += max64(o.extent[i] - 1, 0) * o.stride[i];
  return last + 1;
}

/* Allocates dense outputs, O in float32. False if memory is short; a part of them is then kept for the next try. */
static bool open_outputs(bench_reference *r, const bench_expected *expected) {
  attn_problem *p = &r->problem;
  *p = expected->problem;
  if (attn_is_output(p, ATTN_OPERAND_O)) p->dtype_o = ATTN_F32;
  if (attn_is_output(p, ATTN_OPERAND_LSE)) p->uses |= ATTN_USE_LSE;
  for (const bench_output *output = bench_outputs_of(p); output->right; output++) {
    const int64_t count = make_dense(p, output->tensor);
    const bool first = output == bench_outputs_of(p), has_m = first && bench_answers[p->operation].absolute_v;
    if (!allocate(&r->output[output->tensor], count) || (has_m && !allocate(&r->m, count))) return false;
  }
  return true;
}

attn_status bench_run_once(const attn_plan *plan, const attn_args *args) {
  const size_t bytes = attn_plan_workspace(plan);
  void *workspace = attn_aligned_alloc(64, bytes ? bytes : 64);
  if (!workspace) return ATTN_OUT_OF_MEMORY;
  memset(workspace, 0xff, bytes);
  const attn_status status = attn_plan_run(plan, args, workspace, bytes);
  attn_aligned_free(workspace);
  return status;
}

/* The arguments with outputs of r. */
static attn_args with_outputs(const bench_reference *r, attn_args args) {
  for (const bench_output *output = bench_outputs_of(&r->problem); output->right; output++)
    if (attn_operand_of(&r->problem, (attn_operand_id)output->tensor).present)
      attn_operand_point(&r->problem, (attn_operand_id)output->tensor, &args, r->output[output->tensor]);
  return args;
}

/* threads: 0 for those of the library. */
static bool refer(const attn_problem *problem, const attn_args *args, const attn_kernel_info *kernel, int threads) {
  attn_plan *plan = NULL;
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel->name, .threads = threads);
  const bool planned = attn_plan_create(problem, &options, &plan) == ATTN_OK;
  const bool fine = planned && bench_run_once(plan, args) == ATTN_OK;
  attn_plan_destroy(plan);
  return fine;
}

/* |V|, dense, or page by page. NULL if memory is short. */
static void *copy_absolute(const attn_problem *p, const void *v, attn_strides *stride) {
  const bool paged = p->uses & ATTN_USE_PAGES;
  const int64_t keys = paged ? p->page_tokens : tokens(p, p->seq_k, p->total_k);
  const int64_t batch = paged ? p->pages : tokens(p, p->batch, 1);
  const int64_t row = attn_row_elements(p->dtype_kv, p->dim_v);
  char *copy = malloc((size_t)attn_elements_bytes(p->dtype_kv, batch * p->heads_kv * keys * row) + 1);
  double *values = malloc((size_t)p->dim_v * sizeof *values + 1);
  int64_t n = 0;
  for (int64_t h = 0; copy && values && h < batch * p->heads_kv; h++) {
    const int64_t at = h / p->heads_kv * p->v_stride.b + h % p->heads_kv * p->v_stride.h;
    for (int64_t j = 0; j < keys; j++, n += row) {
      for (int64_t d = 0; d < p->dim_v; d++)
        values[d] = fabs(attn_oracle_load(v, p->dtype_kv, at + j * p->v_stride.s + d * p->v_stride.d));
      bench_store_row(copy, p->dtype_kv, n, values, p->dim_v);
    }
  }
  if (!values) free(copy), copy = NULL;
  free(values);
  *stride = (attn_strides){p->heads_kv * keys * row, keys * row, row, 1};
  return copy;
}

/* M is the same for every reference, and takes the place of the first output. */
static bool compute_m(const bench_reference *r, const attn_args *given, const attn_kernel_info *kernel) {
  attn_problem problem = r->problem;
  attn_args args = with_outputs(r, *given);
  if (!r->m) return true;
  void *v = copy_absolute(&r->problem, args.v, &problem.v_stride);
  args.v = v;
  attn_operand_point(&problem, (attn_operand_id)bench_outputs_of(&problem)->tensor, &args, r->m);
  const bool fine = v && refer(&problem, &args, kernel, 0);
  free(v);
  return fine;
}

/* The reference's answer, held against the oracle's rows. */
static bool is_right(const bench_reference *r, const bench_expected *expected, const attn_args *args,
                     const attn_kernel_info *kernel) {
  bench_expected same_rows = *expected;
  same_rows.problem = r->problem;
  return bench_check_values(&same_rows, args, &kernel->numerics).status != BENCH_FAIL;
}

/* The same of what the limits of gradients need. */
static void learn_gradients(bench_reference *r, const bench_expected *e) {
  for (int64_t n = 0; n < e->rows; n++) {
    const bench_expected_row *row = &e->row[n];
    bench_right *most = &r->most[row->of];
    const int64_t columns = attn_operand_of(&e->problem, (attn_operand_id)row->of).extent[3];
    r->largest.allowed = max64(r->largest.allowed, row->facts.allowed);
    r->largest.max_v = fmax(r->largest.max_v, row->facts.max_v);
    for (int64_t k = row->at; k < row->at + columns; k++)
      *most = (bench_right){.m = fmax(most->m, e->m[k]),
                            .w = fmax(most->w, e->w[k]),
                            .proven = fmax(most->proven, e->proven[k]),
                            .sharp = fmax(most->sharp, e->sharp[k])};
  }
}

static void learn(bench_reference *r, const bench_expected *e) {
  attn_oracle_row *largest = &r->largest;
  if (bench_answers[e->problem.operation].by_output) {
    learn_gradients(r, e);
    return;
  }
  for (int64_t n = 0, k = 0; n < e->rows; n++) {
    const attn_oracle_row *facts = &e->row[n].facts;
    largest->abs_sum = fmax(largest->abs_sum, facts->abs_sum);
    largest->max_v = fmax(largest->max_v, facts->max_v);
    largest->max_v_factor = fmax(largest->max_v_factor, facts->max_v_factor);
    largest->max_q = fmax(largest->max_q, facts->max_q);
    largest->max_k = fmax(largest->max_k, facts->max_k);
    largest->sum_k = fmax(largest->sum_k, facts->sum_k);
    largest->norm_k = fmax(largest->norm_k, facts->norm_k);
    if (facts->allowed) largest->ties = fmax(largest->ties, facts->ties / (double)facts->allowed / (double)facts->allowed);
    for (int64_t d = 0; r->m && d < e->problem.dim_v; d++, k++)
      if (e->m[k] > 0.0) r->spread = fmax(r->spread, e->w[k] / e->m[k] * sqrt((double)facts->allowed));
  }
}

/* Runs a reference kernel that shares no code with the checked one, unless the last reference will do. False: there is none.
 */
static bool open_reference(bench_reference *r, const bench_expected *expected, const attn_args *args,
                           const attn_kernel_info *checked) {
  if (r->kernel && !alike(r->kernel, checked)) return true;
  if (!r->has_m && !open_outputs(r, expected)) return false;
  const attn_args own = with_outputs(r, *args);
  for (int index; (index = choose_kernel(r, checked, SMALL)) >= 0; r->wrong |= (uint64_t)1 << index) {
    const attn_kernel_info *kernel = attn_kernel_get(index);
    if (r->kernel == kernel) return true;
    r->kernel = NULL;
    if (!r->has_m && !compute_m(r, args, kernel)) continue;
    if (!refer(&r->problem, &own, kernel, 0) || !is_right(r, expected, &own, kernel)) continue;
    if (!r->has_m) learn(r, expected);
    r->has_m = true;
    r->kernel = kernel;
    return true;
  }
  return false;
}

/* ---- Comparison ------------------------------------------------------------------------------------------------------ */

/* The error limits of the difference between both kernels' answers in a row: the sum of both kernels' limits. */
static bench_row_limits limits_of(const bench_reference *r, const bench_expected *e, const attn_numerics *numerics,
                                  int64_t keys, double lse) {
  attn_oracle_row facts = r->largest;
  if (!bench_answers[e->problem.operation].by_output) facts.allowed = lse > -INFINITY || isnan(lse) ? keys : 0;
  facts.lse = lse;
  facts.ties *= (double)keys * (double)keys;
  return bench_limits_sum(bench_limits_of_row(&e->problem, numerics, &facts, e->zero_mean),
                          bench_limits_of_row(&r->problem, &r->kernel->numerics, &facts, e->zero_mean));
}

/* One row of both. */
typedef struct two_rows {
  const bench_reference *reference;
  const attn_problem *problem;
  const attn_args *args; /* the kernel's */
  const bench_expected_row *row;
  double spread; /* W / M */
} two_rows;

/* A value of the reference, with what its limit and the kernel's need: gradients have it from the oracle's rows. */
static bench_right right_of(const two_rows *two, const bench_output *output, const attn_operand *other, int64_t d) {
  const bench_reference *r = two->reference;
  const int64_t at = bench_output_place(&r->problem, two->args, other, two->row, d);
  const double value = attn_oracle_load(r->output[output->tensor], other->dtype, at);
  if (bench_answers[two->problem->operation].by_output) {
    const bench_right *most = &r->most[output->tensor];
    return (bench_right){value, most->m, most->w, 2 * most->proven, 2 * most->sharp};
  }
  const double m = output == bench_outputs_of(two->problem) && r->m ? (double)r->m[at] : fabs(value);
  return (bench_right){.value = value, .m = m, .w = two->spread * m};
}

static bool output_agrees(const two_rows *two, const bench_output *output, const bench_row_limits *limits) {
  const bench_reference *r = two->reference;
  const attn_operand own = attn_operand_of(two->problem, (attn_operand_id)output->tensor);
  const attn_operand other = attn_operand_of(&r->problem, (attn_operand_id)output->tensor);
  bench_row_limits stored = *limits;
  if (bench_answers[two->problem->operation].by_output) {
    stored.dtype_o = own.dtype;
    stored.store_error = 2 * attn_dtype_of(own.dtype).roundoff;
  }
  for (int64_t d = 0; own.present && d < own.extent[3]; d++) {
    const double got = bench_output_value(two->problem, two->args, &own, two->row, d);
    if (!(output->ratio(&stored, right_of(two, output, &other, d), got) <= 1)) return false;
  }
  return true;
}

/* Does the kernel's row agree with the reference's? */
static bool agrees(const bench_reference *r, const bench_expected *e, const attn_args *args, const attn_numerics *numerics,
                   const bench_expected_row *row, int64_t keys) {
  const attn_operand lse = attn_operand_of(&r->problem, ATTN_OPERAND_LSE);
  const double norm =
      r->output[BENCH_LSE] ? (double)r->output[BENCH_LSE][bench_output_place(&r->problem, args, &lse, row, 0)] : 0;
  const bench_row_limits limits = limits_of(r, e, numerics, keys, norm);
  const two_rows two = {.reference = r,
                        .problem = &e->problem,
                        .args = args,
                        .row = row,
                        .spread = keys ? r->spread / sqrt((double)keys) : 0.0};
  bool agree = true;
  for (const bench_output *output = bench_outputs_of(&e->problem); output->right && agree; output++)
    if (bench_has_row(&e->problem, output->tensor, row)) agree = output_agrees(&two, output, &limits);
  return agree;
}

/* Compares one row with the oracle's answer. Unless it is wrong, the reference learns how large a row's facts may be. */
static bench_verdict ask_oracle(bench_reference *r, const bench_expected *e, const attn_args *args,
                                const attn_numerics *numerics, const bench_expected_row *row) {
  bench_verdict verdict = {.status = BENCH_PASS};
  bench_expected *oracle = bench_expected_of_row(&e->problem, args, row, e->zero_mean);
  if (!oracle) return bench_set_reason(&verdict, BENCH_ERROR, "no memory for the oracle's answer to a row"), verdict;
  verdict = bench_check_values(oracle, args, numerics);
  if (verdict.status != BENCH_FAIL) learn(r, oracle);
  bench_expected_destroy(oracle);
  return verdict;
}

typedef struct other_rows {
  const bench_expected *expected;
  const attn_args *args;
  const attn_numerics *numerics;
  int settled;
  bench_verdict verdict; /* PASS so far */
} other_rows;

static void compare_row(other_rows *c, const bench_expected_row *row, int64_t keys) {
  bench_reference *r = c->expected->reference;
  if (agrees(r, c->expected, c->args, c->numerics, row, keys)) return;
  const bench_verdict verdict = ask_oracle(r, c->expected, c->args, c->numerics, row);
  if (verdict.status == BENCH_FAIL || verdict.status == BENCH_ERROR)
    c->verdict = verdict;
  else if (++c->settled > MOST_SETTLED)
    bench_set_reason(&c->verdict, BENCH_ERROR, "differs from %s in more than %d rows that the oracle finds right",
                     r->kernel->name, MOST_SETTLED);
}

static void compare_head(other_rows *c, bench_tensor output, int64_t b, int64_t h) {
  const attn_problem *p = &c->expected->problem;
  const bool by_output = bench_answers[p->operation].by_output;
  const attn_sequence seq = attn_sequence_of(p, c->args, b < p->batch ? b : 0);
  for (int64_t i = 0; i < bench_rows_of(p, c->args, output, b) && c->verdict.status == BENCH_PASS; i++) {
    const attn_key_range keys = by_output ? (attn_key_range){0, 1} : attn_allowed_keys(p, c->args, &seq, b, i);
    compare_row(c, &(bench_expected_row){.b = b, .h = h, .i = i, .of = output}, keys.end - keys.begin);
  }
}

/* All rows of an output. */
static void compare_rows_of(other_rows *c, bench_tensor output) {
  const attn_problem *p = &c->expected->problem;
  const int64_t heads = attn_operand_of(p, (attn_operand_id)output).extent[1];
  for (int64_t n = 0; n < bench_sequences_of(p, output) * heads && c->verdict.status == BENCH_PASS; n++)
    compare_head(c, output, n / heads, n % heads);
}

bench_verdict bench_check_other_values(const bench_expected *expected, const attn_args *args, const attn_numerics *numerics,
                                       const attn_kernel_info *kernel) {
  const attn_problem *p = &expected->problem;
  other_rows c = {.expected = expected, .args = args, .numerics = numerics, .verdict = {.status = BENCH_PASS}};
  if (expected->complete) return c.verdict;
  if (!open_reference(expected->reference, expected, args, kernel))
    bench_set_reason(&c.verdict, BENCH_ERROR,
                     "no kernel, or no memory, for a second answer to the rows that the oracle skips");
  for (const bench_output *output = bench_outputs_of(p); output->right; output++) {
    if (attn_operand_of(p, (attn_operand_id)output->tensor).present) compare_rows_of(&c, output->tensor);
    if (!bench_answers[p->operation].by_output) break; /* its outputs have the same rows */
  }
  const attn_kernel_info *used = expected->reference->kernel;
  snprintf(c.verdict.reference, sizeof c.verdict.reference, "%s", used ? used->name : "");
  return c.verdict;
}

/* ---- One row ---------------------------------------------------------------------------------------------------------- */

static bench_verdict check_row(const attn_problem *problem, const attn_args *args, const attn_numerics *numerics,
                               bool zero_mean, const bench_expected_row *row) {
  bench_verdict verdict = {.status = BENCH_PASS};
  bench_expected *expected = bench_expected_of_row(problem, args, row, zero_mean);
  if (!expected) return bench_set_reason(&verdict, BENCH_ERROR, "no memory for the oracle's answer to a row"), verdict;
  verdict = bench_check_values(expected, args, numerics);
  if (verdict.status != BENCH_FAIL) verdict.status = BENCH_PASS; /* one row tells little from zeros */
  bench_expected_destroy(expected);
  return verdict;
}

/* One of the outputs that have rows of their own; else the first, whose rows all have. */
static bench_tensor draw_output(const attn_problem *p, uint64_t random) {
  const bench_output *outputs = bench_outputs_of(p), *drawn = outputs;
  int64_t count = 0;
  for (const bench_output *o = outputs; bench_answers[p->operation].by_output && o->right; o++) {
    if (!attn_operand_of(p, (attn_operand_id)o->tensor).present) continue;
    count++;
    if (bench_value_below(random, BENCH_STREAM_CHECKED_ROWS, (uint64_t)(1 + count), count) == 0) drawn = o;
  }
  return drawn->tensor;
}

bench_verdict bench_check_row(const attn_problem *problem, const attn_args *args, const attn_numerics *numerics,
                              bool zero_mean, uint64_t random) {
  bench_expected_row row = {.of = draw_output(problem, random)};
  const int64_t sequences = bench_sequences_of(problem, row.of);
  const int64_t heads = attn_operand_of(problem, (attn_operand_id)row.of).extent[1];
  int64_t rows = 0;
  for (int64_t n = 0; n < sequences && rows <= 0; n++) { /* sequences may be empty */
    row.b = (int64_t)((random + (uint64_t)n) % (uint64_t)sequences);
    rows = bench_rows_of(problem, args, row.of, row.b);
  }
  if (rows <= 0 || heads <= 0) return (bench_verdict){.status = BENCH_PASS};
  row.h = bench_value_below(random, BENCH_STREAM_CHECKED_ROWS, 0, heads);
  row.i = bench_value_below(random, BENCH_STREAM_CHECKED_ROWS, 1, rows);
  return check_row(problem, args, numerics, zero_mean, &row);
}

static const double ROUNDING = 1.0 / 16; /* share of a row's norm: beyond bf16, far below another row's answer */

/* The squared distance of a row of the first output from the reference's, as a share of that row's squared norm. */
static double distance_of(const bench_reference *r, const attn_problem *p, const attn_args *args,
                          const bench_expected_row *row) {
  const bench_output *output = bench_outputs_of(p);
  const attn_operand own = attn_operand_of(p, (attn_operand_id)output->tensor);
  const attn_operand other = attn_operand_of(&r->problem, (attn_operand_id)output->tensor);
  double distance = 0, norm = 0;
  for (int64_t d = 0; d < own.extent[3]; d++) {
    const int64_t at = bench_output_place(&r->problem, args, &other, row, d);
    const double right = attn_oracle_load(r->output[output->tensor], other.dtype, at);
    const double apart = bench_output_value(p, args, &own, row, d) - right;
    distance += apart * apart;
    norm += right * right;
  }
  if (distance == 0) return 0;
  return isnan(distance) ? INFINITY : distance / norm;
}

/* Finds the row that is farthest from the reference's. False if rounding explains its distance. */
static bool find_odd_row(const bench_reference *r, const attn_problem *p, const attn_args *args, bench_expected_row *odd) {
  const bench_tensor first = bench_outputs_of(p)->tensor;
  const int64_t heads = attn_operand_of(p, (attn_operand_id)first).extent[1];
  double most = ROUNDING * ROUNDING;
  bool found = false;
  for (int64_t n = 0; n < bench_sequences_of(p, first) * heads; n++) {
    bench_expected_row row = {.b = n / heads, .h = n % heads, .of = first};
    const int64_t rows = bench_rows_of(p, args, first, row.b);
    for (; row.i < rows; row.i++) {
      const double distance = distance_of(r, p, args, &row);
      if (distance <= most) continue;
      most = distance;
      *odd = row;
      found = true;
    }
  }
  return found;
}

bench_verdict bench_check_odd_row(const attn_problem *problem, const attn_args *args, const attn_numerics *numerics,
                                  bool zero_mean, uint64_t random, const attn_kernel_info *kernel, int threads) {
  bench_expected *like = calloc(1, sizeof *like);
  bench_expected_row odd = {.h = 0};
  bool answered = false, differs = false;
  if (like) *like = (bench_expected){.problem = *problem, .reference = calloc(1, sizeof *like->reference)};
  bench_reference *r = like ? like->reference : NULL;
  if (r && open_outputs(r, like)) {
    const attn_args own = with_outputs(r, *args);
    const int index = choose_kernel(r, kernel, 0);
    answered = index >= 0 && refer(&r->problem, &own, attn_kernel_get(index), threads);
    differs = answered && find_odd_row(r, problem, args, &odd);
  }
  bench_expected_destroy(like);
  if (!answered) return bench_check_row(problem, args, numerics, zero_mean, random);
  return differs ? check_row(problem, args, numerics, zero_mean, &odd) : (bench_verdict){.status = BENCH_PASS};
}
