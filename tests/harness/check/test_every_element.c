/* SPDX-License-Identifier: MIT */
/* Random problems with the right answer, one element of which is then wrong: the check must decide as a second writing of
 * docs/numerics.md does, in rows of the oracle and in rows that a second kernel answers for. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases/cases.h"
#include "check/check.h"
#include "data/generate.h"
#include "kernels/common/problem/dtypes.h"
#include "kernels/common/problem/indexing.h"
#include "tests/support/layer_support.h"
#include "tests/support/limits_model.h"

enum { CASES = 80, CHANGES = 16, SEED = 20, NULL_ANSWERS = 4, MOST_LOOKED_AT = 64 /* rows */ };

static uint64_t random_state = SEED;
static int64_t draw(int64_t count) { return (int64_t)(bench_random(&random_state) % (uint64_t)count); }

/* ---- One case, and one element of it --------------------------------------------------------------------------------- */

typedef struct sample {
  bench_case bench;
  attn_problem p;
  bench_tensors tensors;
  bench_expected *expected;
  attn_numerics numerics;
  bool zero_mean;
  double *o, *m, *w, *score; /* one row's */
  bool refuted[NULL_ANSWERS];
  bool extreme;            /* an input is not finite, or nearly so */
  attn_oracle_row largest; /* facts of the oracle's rows, once others are cut off, */
  double spread;           /* and of W / M * sqrt(n) */
} sample;

typedef struct element {
  int64_t b, h, i, d; /* d -1: the LSE */
  attn_oracle_row facts;
  double right, m, w;
} element;

static int64_t place_of(const sample *s, const attn_strides *stride, const element *at) {
  const bool varlen = s->p.uses & ATTN_USE_VARLEN;
  return at->h * stride->h +
         (varlen ? (s->tensors.args.cu_seqlens_q[at->b] + at->i) * stride->s : at->b * stride->b + at->i * stride->s);
}

static void put(const sample *s, const element *at, double value) {
  const attn_args *args = &s->tensors.args;
  if (at->d < 0)
    args->lse[place_of(s, &s->p.lse_stride, at)] = (float)value;
  else
    bench_store(args->o, s->p.dtype_o, place_of(s, &s->p.o_stride, at) + at->d * s->p.o_stride.d, value);
}

static double get(const sample *s, const element *at) {
  const attn_args *args = &s->tensors.args;
  return at->d < 0 ? (double)args->lse[place_of(s, &s->p.lse_stride, at)]
                   : attn_oracle_load(args->o, s->p.dtype_o, place_of(s, &s->p.o_stride, at) + at->d * s->p.o_stride.d);
}

/* Pairs of different keys whose weights are the same to within float32's error of a score, and of the most keys whose
 * weights are within 2^-24, half a place of their sum, of one another. */
static double count_ties(const sample *s, double abs_sum) {
  const double same = 1 + 0x1p-23 * (1 + abs_sum), *p = s->score;
  double ties = 0, most = 0;
  for (int64_t i = 0; i < s->p.seq_k; i++) {
    double near = 0;
    for (int64_t j = 0; j < s->p.seq_k && p[i] >= 0; j++) {
      if (i != j && p[j] >= 0 && fmax(p[i], p[j]) <= same * fmin(p[i], p[j]))
        ties += fmin(1, p[i] * 0x1p24) * fmin(1, p[j] * 0x1p24);
      if (p[j] >= p[i] && p[j] <= p[i] + 0x1p-24) near += fmin(1, p[j] * 0x1p24);
    }
    most = fmax(most, near);
  }
  return ties + most * fmax(most - 1, 0);
}

static void compute_row(const sample *s, element *at) {
  const attn_oracle_output out = {s->o, s->m, s->w, s->score};
  for (int64_t j = 0; j < s->p.seq_k; j++) s->score[j] = -1; /* stays where the row sees no key */
  at->facts = attn_oracle_f64_row(&s->p, &s->tensors.args, (attn_oracle_index){at->b, at->h, at->i}, &out);
  at->facts.ties = count_ties(s, at->facts.abs_sum);
}

/* Rows of a sequence, padding too. */
static int64_t rows_of(const sample *s, int64_t b) {
  const int32_t *cu = s->tensors.args.cu_seqlens_q;
  return s->p.uses & ATTN_USE_VARLEN ? cu[b + 1] - cu[b] : s->p.seq_q;
}

/* ---- The right answer ------------------------------------------------------------------------------------------------ */

/* Whether docs/numerics.md allows the value. */
static bool is_allowed(const sample *s, const element *at, double got) {
  static const double overflow[] = {[ATTN_F32] = 0x1.ffffffp127, [ATTN_F16] = 65520, [ATTN_BF16] = 0x1.ffp127};
  model l = {.proven = 0};
  if (at->facts.allowed == 0 || !isfinite(at->right)) return isnan(at->right) ? isnan(got) : got == at->right;
  add_kernel(&l, &s->p, &s->numerics, &at->facts);
  const double limit = limit_of(&l, s->p.dtype_o, s->zero_mean, at->d < 0, at->right, at->m, at->w);
  if (isinf(got) && at->d >= 0 && fabs(at->right) + limit >= overflow[s->p.dtype_o]) return (got > 0) == (at->right > 0);
  return fabs(got - at->right) <= limit;
}

/* The mean of column d of V: of the keys that the oracle has seen in the row, or of all finite ones of the sequence. */
static double mean_of_v(const sample *s, const element *at, int64_t d, bool seen_only) {
  const attn_sequence seq = attn_sequence_of(&s->p, &s->tensors.args, at->b);
  const attn_strides *v = &s->p.v_stride;
  const int64_t head = at->h / (s->p.heads_q / s->p.heads_kv) * v->h + (s->p.uses & ATTN_USE_VARLEN ? 0 : at->b * v->b);
  const int64_t keys = s->p.uses & ATTN_USE_VARLEN ? seq.len_k : s->p.seq_k;
  double sum = 0, count = 0;
  for (int64_t j = 0; j < keys; j++) {
    const double x = attn_oracle_load(s->tensors.args.v, s->p.dtype_kv, head + (seq.first_k + j) * v->s + d * v->d);
    if (seen_only ? s->score[j] >= 0 : isfinite(x)) sum += x, count++;
  }
  return count > 0 ? sum / count : 0;
}

/* Notes which answers without work would do for the row as well: NaN, 0, and both means. */
static void try_null_answers(sample *s, element *at) {
  for (at->d = 0; at->d < s->p.dim_v; at->d++) {
    const double answers[NULL_ANSWERS] = {NAN, 0, mean_of_v(s, at, at->d, true), mean_of_v(s, at, at->d, false)};
    at->right = s->o[at->d], at->m = s->m[at->d], at->w = s->w[at->d];
    for (int n = 0; n < NULL_ANSWERS; n++)
      if (!s->refuted[n]) s->refuted[n] = !is_allowed(s, at, answers[n]);
  }
}

/* The work of the case is the keys that the oracle finds. */
static void write_right_output(sample *s) {
  element at = {.d = -1};
  double pairs = 0;
  for (at.b = 0; at.b < s->p.batch; at.b++)
    for (at.h = 0; at.h < s->p.heads_q; at.h++)
      for (at.i = 0; at.i < rows_of(s, at.b); at.i++) {
        compute_row(s, &at);
        pairs += (double)at.facts.allowed;
        try_null_answers(s, &at);
        for (at.d = 0; at.d < s->p.dim_v; at.d++) put(s, &at, s->o[at.d]);
        at.d = -1;
        if (s->p.uses & ATTN_USE_LSE) put(s, &at, at.facts.lse);
      }
  assert_true(bench_work_pairs(&s->p, &s->tensors.args) == pairs);
}

/* A right answer is marked where one without work would pass. */
static void expect_mark(const sample *s) {
  static const char *const answers[NULL_ANSWERS] = {"output that nobody wrote", "all zeros",
                                                    "the mean of V over the allowed keys", "the mean of V over all keys"};
  const bench_verdict verdict = bench_check_values(s->expected, &s->tensors.args, &s->numerics);
  int n = 0;
  while (n < NULL_ANSWERS && s->refuted[n]) n++;
  if ((verdict.status == BENCH_DEGENERATE) != (n < NULL_ANSWERS) || verdict.status == BENCH_FAIL)
    fail_msg("%s: %s, not %s", s->bench.case_id, verdict.reason, n < NULL_ANSWERS ? answers[n] : "PASS");
  if (n < NULL_ANSWERS) test_contains(verdict.reason, answers[n]);
}

static attn_numerics draw_numerics(void) {
  static const double exp_error[] = {0x1p-22, 0x1p-15, 0}, p_rounding[] = {0, 0x1p-8, 0x1p-12}, flush[] = {0, 0x1p-126};
  return (attn_numerics){exp_error[draw(3)], p_rounding[draw(3)], flush[draw(2)], p_rounding[draw(3)], p_rounding[draw(3)]};
}

/* One number of V. */
static void put_extreme(sample *s) {
  const double values[] = {NAN, INFINITY, -INFINITY, 3e38, -6e4};
  const bench_buffer *v = &s->tensors.buffers[BENCH_V];
  s->extreme = v->bytes > 0 && draw(3) == 0;
  if (s->extreme)
    bench_store(v->data, s->p.dtype_kv, draw((int64_t)(v->bytes / v->element_bytes)), values[draw(COUNT(values))]);
}

static void open_sample(sample *s, const bench_case *bench) {
  *s = (sample){.bench = *bench, .p = bench->problem, .numerics = draw_numerics(), .zero_mean = draw(3) > 0};
  assert_true(bench_tensors_create(bench, &s->tensors));
  bench_tensors_poison_output(&s->tensors, 0xff, 1);
  put_extreme(s);
  s->expected = bench_expected_create(&s->p, &s->tensors.args, SEED, s->zero_mean);
  assert_non_null(s->expected);
  s->o = test_allocate((size_t)(3 * s->p.dim_v + s->p.seq_k + 1) * sizeof *s->o);
  s->m = s->o + s->p.dim_v, s->w = s->m + s->p.dim_v, s->score = s->w + s->p.dim_v;
  write_right_output(s);
}

static void close_sample(sample *s) {
  free(s->o);
  bench_expected_destroy(s->expected);
  bench_tensors_destroy(&s->tensors);
}

/* An element of row n of those that the check knows. */
static element draw_element(const sample *s, int64_t n) {
  const bench_expected_row *row = &s->expected->row[n];
  element at = {.b = row->b, .h = row->h, .i = row->i, .d = draw(s->p.dim_v)};
  if (s->p.uses & ATTN_USE_LSE && draw(3) == 0) at.d = -1;
  compute_row(s, &at);
  at.right = at.d < 0 ? at.facts.lse : s->o[at.d];
  if (at.d >= 0) at.m = s->m[at.d], at.w = s->w[at.d];
  return at;
}

/* A wrong value: `limit` off or a little more or less, or none at all. */
static double draw_value(double right, double limit) {
  static const double part[] = {0.999, 1.001, 0.9, 1.1, 0.5, 2, 100};
  if (draw(4)) return right + (draw(2) ? 1 : -1) * part[draw((int64_t)COUNT(part))] * limit;
  const double none[] = {NAN, INFINITY, -INFINITY, 0, -right, 0x1p-149, 0x1p100};
  return none[draw((int64_t)COUNT(none))];
}

static void explain(const sample *s, const element *at, double got, const bench_verdict *verdict) {
  print_message("  %s: b %d h %d i %d d %d, right %.9g, got %.9g, zero mean %d: %s\n", s->bench.case_id, (int)at->b,
                (int)at->h, (int)at->i, (int)at->d, at->right, got, s->zero_mean, verdict->reason);
}

static void expect(const sample *s, const element *at, double got, bool passes, const bench_verdict *verdict) {
  const int64_t index[] = {at->b, at->h, at->i, at->d};
  const bool failed = verdict->status == BENCH_FAIL;
  if (failed == passes || verdict->status == BENCH_ERROR) explain(s, at, got, verdict), fail();
  if (failed) assert_memory_equal(verdict->err_index, index, sizeof index);
}

/* ---- Rows of the oracle ---------------------------------------------------------------------------------------------- */

static int changes, wrong, learnt; /* learnt: cases in which a right row differs from the second kernel's */

static void change_a_row_of_the_oracle(const sample *s) {
  const element at = draw_element(s, draw(s->expected->rows));
  const double stored = get(s, &at);
  model l = {.proven = 0};
  add_kernel(&l, &s->p, &s->numerics, &at.facts);
  const double limit = limit_of(&l, s->p.dtype_o, s->zero_mean, at.d < 0, at.right, at.m, at.w);
  put(s, &at, draw_value(at.right, limit));
  const double got = get(s, &at);
  const bool passes = is_allowed(s, &at, got);
  const bench_verdict verdict = bench_check_values(s->expected, &s->tensors.args, &s->numerics);
  expect(s, &at, got, passes, &verdict);
  assert_true(isfinite(verdict.max_abs_err));
  if (!passes && isfinite(got) && isfinite(at.right) && at.facts.allowed)
    assert_true(fabs(verdict.max_err_ratio / (fabs(got - at.right) / limit) - 1) < 1e-9);
  put(s, &at, stored);
  changes++, wrong += !passes;
}

/* ---- Rows between them ----------------------------------------------------------------------------------------------- */

/* Leaves the oracle a few rows. Returns how many others there are, behind those. */
static int64_t cut(sample *s) {
  const int64_t all = s->expected->rows;
  s->expected->rows = 1 + draw(all - 1);
  s->expected->complete = false;
  return all - s->expected->rows;
}

static void find_largest_facts(sample *s) {
  attn_oracle_row *most = &s->largest;
  for (int64_t n = 0; n < s->expected->rows; n++) {
    element at = {.b = s->expected->row[n].b, .h = s->expected->row[n].h, .i = s->expected->row[n].i};
    compute_row(s, &at);
    most->abs_sum = fmax(most->abs_sum, at.facts.abs_sum), most->max_v = fmax(most->max_v, at.facts.max_v);
    most->max_q = fmax(most->max_q, at.facts.max_q), most->max_k = fmax(most->max_k, at.facts.max_k);
    most->sum_k = fmax(most->sum_k, at.facts.sum_k), most->norm_k = fmax(most->norm_k, at.facts.norm_k);
    most->ties = fmax(most->ties, at.facts.ties / pow(fmax(1, (double)at.facts.allowed), 2));
    for (int64_t d = 0; d < s->p.dim_v; d++)
      if (s->m[d] > 0) s->spread = fmax(s->spread, s->w[d] / s->m[d] * sqrt((double)at.facts.allowed));
  }
}

/* Keys of the row's range, masked ones too. */
static int64_t keys_of(const sample *s, const element *at) {
  const attn_sequence seq = attn_sequence_of(&s->p, &s->tensors.args, at->b);
  const attn_key_range keys = attn_allowed_keys(&s->p, &s->tensors.args, &seq, at->b, at->i);
  return keys.end - keys.begin;
}

/* The element as the second kernel has it, with M by its answer, W by the largest spread, and the largest facts. */
static element seen_by(const sample *s, const element *at) {
  const bench_reference *r = s->expected->reference;
  const sample dense = {.p = r->problem, .tensors = s->tensors};
  element seen = *at;
  const int64_t o = place_of(&dense, &r->problem.o_stride, at) + at->d, lse = place_of(&dense, &r->problem.lse_stride, at);
  seen.facts = s->largest;
  seen.facts.allowed = keys_of(s, at), seen.facts.lse = (double)r->output[BENCH_LSE][lse];
  seen.facts.ties *= pow((double)keys_of(s, at), 2);
  seen.right = at->d < 0 ? seen.facts.lse : (double)r->output[BENCH_O][o];
  seen.m = at->d < 0 ? 0 : (double)r->m[o];
  seen.w = s->spread / sqrt((double)seen.facts.allowed) * seen.m;
  return seen;
}

static double sum_of_limits(const sample *s, const element *seen) {
  const bench_reference *r = s->expected->reference;
  model l = {.proven = 0};
  add_kernel(&l, &s->p, &s->numerics, &seen->facts);
  add_kernel(&l, &r->problem, &r->kernel->numerics, &seen->facts);
  return limit_of(&l, s->p.dtype_o, s->zero_mean, seen->d < 0, seen->right, seen->m, seen->w);
}

/* Within the sum of both limits a value passes; beyond it the oracle decides. */
static void change_another_row(const sample *s, int64_t others) {
  bench_reference *r = s->expected->reference;
  r->largest = s->largest, r->spread = s->spread; /* it learns from rows that the oracle finds right */
  const element at = draw_element(s, s->expected->rows + draw(others)), seen = seen_by(s, &at);
  const double stored = get(s, &at), limit = sum_of_limits(s, &seen);
  element answer = seen; /* M is the output of a run on |V| */
  answer.right = at.m, answer.m = at.m, answer.w = at.w;
  assert_true(at.d < 0 || !at.facts.allowed || fabs(seen.m - at.m) <= sum_of_limits(s, &answer));
  put(s, &at, draw_value(seen.right, limit));
  const double got = get(s, &at);
  const bool agrees = at.facts.allowed && fabs(got - seen.right) <= limit, passes = agrees || is_allowed(s, &at, got);
  const bench_verdict verdict = bench_check_other_values(s->expected, &s->tensors.args, &s->numerics, NULL);
  expect(s, &at, got, passes, &verdict);
  assert_string_equal(verdict.reference, r->kernel->name);
  put(s, &at, stored);
  changes++, wrong += !passes;
}

static bench_verdict find_odd_row(const sample *s, uint64_t random) {
  static const attn_kernel_info like = {.isa = "avx512", .algorithm = "flash"};
  return bench_check_odd_row(&s->p, &s->tensors.args, &s->numerics, s->zero_mean, random, &like, 1);
}

static void expect_looks(const sample *s, bench_status status) {
  enum { LOOKS = 5 };
  for (uint64_t n = 0; n < LOOKS; n++) {
    const bench_verdict verdict = bench_check_row(&s->p, &s->tensors.args, &s->numerics, s->zero_mean, n);
    if (verdict.status != status) fail_msg("%s: look %d: %s", s->bench.case_id, (int)n, verdict.reason);
  }
  const bench_verdict odd = find_odd_row(s, 0);
  if (odd.status != status) fail_msg("%s: odd row: %s", s->bench.case_id, odd.reason);
}

/* Looks at a row by itself find any one that is wrong, if there are enough of them. One look at all rows finds it at once.
 */
static void find_wrong_row(sample *s) {
  const bench_expected_row *row = &s->expected->row[draw(s->expected->rows)];
  const uint64_t most = 40 * (uint64_t)(s->p.batch * s->p.heads_q * s->p.seq_q);
  uint64_t looks = 0;
  for (element at = {.b = row->b, .h = row->h, .i = row->i}; at.d < s->p.dim_v; at.d++) put(s, &at, 3e4);
  while (looks < most && bench_check_row(&s->p, &s->tensors.args, &s->numerics, s->zero_mean, looks).status == BENCH_PASS)
    looks++;
  if (looks == most) fail_msg("%s: row %d of head %d is never looked at", s->bench.case_id, (int)row->i, (int)row->h);
  if (find_odd_row(s, looks + 1).status != BENCH_FAIL) fail_msg("%s: an odd row is not found", s->bench.case_id);
  write_right_output(s);
}

/* A row by itself, whichever is chosen: right ones pass, and where all are wrong, each fails. */
static void look_at_rows(sample *s) {
  element at = {.d = 0};
  expect_looks(s, BENCH_PASS);
  if (s->extreme) return; /* limits without end pass anything finite */
  if (s->p.batch * s->p.heads_q * s->p.seq_q <= MOST_LOOKED_AT) find_wrong_row(s);
  for (at.b = 0; at.b < s->p.batch; at.b++)
    for (at.h = 0; at.h < s->p.heads_q; at.h++)
      for (at.i = 0; at.i < rows_of(s, at.b); at.i++) put(s, &at, 3e4);
  expect_looks(s, BENCH_FAIL);
  write_right_output(s);
}

static void change_rows(sample *s) {
  expect_mark(s);
  for (int n = 0; n < CHANGES; n++) change_a_row_of_the_oracle(s);
  if (s->expected->rows < 2 || s->extreme) return;
  const int64_t others = cut(s);
  const bench_verdict verdict = bench_check_other_values(s->expected, &s->tensors.args, &s->numerics, NULL);
  if (verdict.status != BENCH_PASS) print_message("  %s: %s\n", s->bench.case_id, verdict.reason);
  assert_int_equal(verdict.status, BENCH_PASS);
  find_largest_facts(s);
  const bench_reference *r = s->expected->reference;
  const double known[] = {r->largest.abs_sum, r->largest.max_v,  r->largest.max_q, r->largest.max_k,
                          r->largest.sum_k,   r->largest.norm_k, r->largest.ties,  r->spread};
  const double facts[] = {s->largest.abs_sum, s->largest.max_v,  s->largest.max_q, s->largest.max_k,
                          s->largest.sum_k,   s->largest.norm_k, s->largest.ties,  s->spread};
  bool more = false;
  for (size_t i = 0; i < COUNT(facts); i++) {
    assert_true(known[i] >= facts[i] * (1 - 1e-12)); /* sums in another order */
    more |= known[i] > facts[i] * (1 + 1e-12);
  }
  learnt += more;
  for (int n = 0; n < CHANGES; n++) change_another_row(s, others);
}

/* The last cases have rows of few different weights, some of them far below u. */
TEST(every_element_is_held_against_its_limit) {
  static const char *const tied[] = {"seq_q:40/seq_k:300/heads:2/head_dim:1/score:additive/magnitude:10/lse:on",
                                     "seq_q:40/seq_k:300/heads:2/head_dim:1/softcap:8.5/magnitude:10/lse:on"};
  bench_case_list list = conformance_cases(0, CASES, 3e5, SEED);
  for (int i = 0; i < list.count + 6; i++) {
    const bench_case few = case_of(tied[i % 2]);
    sample s;
    open_sample(&s, i < list.count ? &list.item[i] : &few);
    if (s.expected->rows) look_at_rows(&s);
    if (s.expected->rows) change_rows(&s);
    close_sample(&s);
  }
  print_message("  %d changes in %d cases, %d of them wrong\n", changes, list.count, wrong);
  assert_true(wrong > changes / 3 && wrong < changes && learnt <= list.count / 50);
  bench_cases_clear(&list);
}
