/* SPDX-License-Identifier: MIT */
/* The verdict on an output: every checked value against the oracle under the limits of docs/numerics.md, and whether a null
 * answer would pass as well. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check/check.h"
#include "kernels/common/problem/dtypes.h"
#include "kernels/common/problem/indexing.h"

enum { NO_COLUMN = -1 }; /* the column of an output that has one number a row */

const char *const bench_status_names[] = {"PASS", "FAIL", "SKIP", "DEGENERATE", "ERROR", NULL};

/* ---- Null answers --------------------------------------------------------------------------------------------------- */

typedef enum null_answer { NULL_UNTOUCHED, NULL_ZEROS, NULL_MEAN_ALLOWED, NULL_MEAN_ALL, NULL_ANSWERS } null_answer;

static double null_value(const bench_expected *e, const attn_args *args, null_answer answer, int64_t n, int64_t d) {
  const bench_output *output = bench_outputs_of(&e->problem);
  switch (answer) {
    case NULL_ZEROS: return 0.0;
    case NULL_MEAN_ALLOWED: return output->mean(e, args, n, d, false);
    case NULL_MEAN_ALL: return output->mean(e, args, n, d, true);
    default: return NAN; /* untouched output: the first poison */
  }
}

/* Limits of an output that is stored in its own type. */
static bench_row_limits stored_as(bench_row_limits limits, const attn_operand *output, double store_error) {
  limits.dtype_o = output->dtype;
  limits.store_error = fmax(attn_dtype_of(output->dtype).roundoff, store_error);
  return limits;
}

/* True if the answer passes at every element of the first output in every checked row: stops at the first that rejects it.
 */
static bool null_passes(const bench_expected *e, const attn_args *args, const attn_numerics *numerics, null_answer answer) {
  const bench_output *output = bench_outputs_of(&e->problem);
  const attn_operand operand = attn_operand_of(&e->problem, (attn_operand_id)output->tensor);
  if (answer >= NULL_MEAN_ALLOWED && !output->mean) return false;
  for (int64_t n = 0; n < e->rows; n++) {
    if (!bench_has_row(&e->problem, output->tensor, &e->row[n])) continue;
    const bench_row_limits limits =
        stored_as(bench_limits_of_row(&e->problem, numerics, &e->row[n].facts, e->zero_mean), &operand, 0);
    for (int64_t d = 0; d < operand.extent[3]; d++)
      if (output->ratio(&limits, output->right(e, n, d), null_value(e, args, answer, n, d)) > 1.0) return false;
  }
  return true;
}

/* The null answer that would pass under these numerics, or NULL. */
static const char *find_null_answer(const bench_expected *expected, const attn_args *args, const attn_numerics *numerics) {
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

/* ---- Values -------------------------------------------------------------------------------------------------------- */

int64_t bench_output_place(const attn_problem *p, const attn_args *args, const attn_operand *output,
                           const bench_expected_row *row, int64_t d) {
  const int64_t *stride = output->stride;
  const attn_strides rows = {.b = stride[0], .h = stride[1], .s = stride[2]};
  const bool packed = p->uses & ATTN_USE_VARLEN && output->axes[0] == 'b' && output->axes[2] == 's';
  if (packed && !output->of_keys) return bench_row_place(p, args, &rows, row) + d * stride[3];
  const int64_t first = packed ? args->cu_seqlens_k[row->b] * rows.s : row->b * rows.b;
  return first + row->h * rows.h + row->i * rows.s + d * stride[3];
}

double bench_output_value(const attn_problem *p, const attn_args *args, const attn_operand *output,
                          const bench_expected_row *row, int64_t d) {
  return attn_oracle_load(attn_operand_at(output, args), output->dtype, bench_output_place(p, args, output, row, d));
}

bench_right bench_right_of(const bench_expected *e, const attn_args *args, const bench_output *output,
                           const attn_operand *operand, int64_t n, int64_t d) {
  bench_right right = output->right(e, n, d);
  const double *given = e->given ? e->given[output->tensor] : NULL;
  if (given) right.value = given[bench_output_place(&e->problem, args, operand, &e->row[n], d)];
  return right;
}

/* ---- Comparison --------------------------------------------------------------------------------------------------- */

typedef struct comparison {
  const bench_expected *expected;
  const attn_args *args;
  const attn_numerics *numerics;
  double store_error;
  bench_verdict verdict; /* on the values so far */
  double worst_got, worst_expected;
  const char *worst_output; /* its name, */
  bool worst_of_keys;       /* and whether its rows are those of keys */
  int64_t beyond;           /* how many values were beyond their limit */
} comparison;

static void compare_value(comparison *c, const bench_expected_row *row, const attn_operand *output, int64_t column,
                          double got, double expected, double ratio) {
  const double error = fabs(got - expected);
  if (error > c->verdict.max_abs_err && error < INFINITY) c->verdict.max_abs_err = error;
  if (ratio > 1.0) c->beyond++;
  if (!(ratio > c->verdict.max_err_ratio)) return;
  c->verdict.max_err_ratio = ratio;
  memcpy(c->verdict.err_index, (int64_t[4]){row->b, row->h, row->i, output->single ? NO_COLUMN : column},
         sizeof c->verdict.err_index);
  c->worst_output = output->name;
  c->worst_of_keys = output->of_keys;
  c->worst_got = got;
  c->worst_expected = expected;
}

static void compare_output(comparison *c, int64_t n, const bench_output *output, const bench_row_limits *limits) {
  const bench_expected *e = c->expected;
  const attn_operand operand = attn_operand_of(&e->problem, (attn_operand_id)output->tensor);
  const bench_row_limits own = stored_as(*limits, &operand, c->store_error);
  for (int64_t d = 0; operand.present && d < operand.extent[3]; d++) {
    const bench_right right = bench_right_of(e, c->args, output, &operand, n, d);
    const double got = bench_output_value(&e->problem, c->args, &operand, &e->row[n], d);
    compare_value(c, &e->row[n], &operand, d, got, right.value, output->ratio(&own, right, got));
  }
}

static void compare_row(comparison *c, int64_t n) {
  const bench_expected *e = c->expected;
  const bench_row_limits limits = bench_limits_of_row(&e->problem, c->numerics, &e->row[n].facts, e->zero_mean);
  for (const bench_output *output = bench_outputs_of(&e->problem); output->right; output++)
    if (bench_has_row(&e->problem, output->tensor, &e->row[n])) compare_output(c, n, output, &limits);
}

static void explain_failure(comparison *c) {
  const int64_t *at = c->verdict.err_index;
  char column[40] = "", how[80] = "which no error limit allows";
  if (at[3] != NO_COLUMN) snprintf(column, sizeof column, ", column %lld", (long long)at[3]);
  if (isfinite(c->verdict.max_err_ratio)) snprintf(how, sizeof how, "%.3g times the error limit", c->verdict.max_err_ratio);
  bench_set_reason(&c->verdict, BENCH_FAIL,
                   "%s[batch %lld, head %lld, %s %lld%s] is %.9g, should be %.9g: %s; %lld values of %lld rows are beyond "
                   "theirs",
                   c->worst_output, (long long)at[0], (long long)at[1], c->worst_of_keys ? "key" : "query", (long long)at[2],
                   column, c->worst_got, c->worst_expected, how, (long long)c->beyond, (long long)c->expected->rows);
}

bench_verdict bench_check_stored_values(const bench_expected *expected, const attn_args *args, const attn_numerics *numerics,
                                        double store_error) {
  comparison c = {.expected = expected, .args = args, .numerics = numerics, .store_error = store_error};
  c.verdict.rows_checked = expected->rows;
  for (int64_t n = 0; n < expected->rows; n++) compare_row(&c, n);
  const char *null = c.beyond ? NULL : find_null_answer(expected, args, numerics);
  if (c.beyond) explain_failure(&c);
  if (null) bench_set_reason(&c.verdict, BENCH_DEGENERATE, "right, but %s would pass as well", null);
  return c.verdict;
}

bench_verdict bench_check_values(const bench_expected *expected, const attn_args *args, const attn_numerics *numerics) {
  return bench_check_stored_values(expected, args, numerics, 0.0);
}

/* ---- Error limits: docs/numerics.md, "The formulas", line by line ------------------------------------------------- */

/* The terms of the formulas for one row; u is the roundoff of float32. */
typedef struct row_terms {
  double u, u_p;         /* roundoff of float32; of p */
  double eps, f, tiny;   /* error of exp; inputs below f are flushed; the smallest result that is not */
  double n, ties, terms; /* allowed keys, pairs of them with equal weights; terms of a score */
  double scaled;         /* 1 with factors of K and V, each of which rounds once, else 0 */
  double rescales, bend; /* how often the sum is rescaled; error of tanh */
  double pair;           /* error of two rounded inputs in a product */
  double vanish;         /* most that flushed inputs and results take from a score */
  double coarse;         /* most that queries rounded to integers move a score, */
  double spread;         /* and a bound of the standard deviation by which they move those of unrelated keys */
} row_terms;

static double flushed_scores(const attn_problem *problem, const attn_oracle_row *row, double f) {
  const double scale = fabs((double)problem->scale), flushed = f > 0 ? f * (row->max_q + row->max_k) : 0.0;
  const double denormal = attn_k_channel_step(problem) ? 0x1p-150 * scale * row->max_k : 0.0;
  if (problem->score != ATTN_SCORE_DOT) return 0.0;
  return (double)problem->dim_qk * (scale * flushed + denormal + 0x1p-126 * (scale + row->max_k));
}

/* Most that an element of the row's query errs by, times the scale of scores; max_q is 0 where no product is. */
static double rounded_query(const attn_problem *problem, const attn_numerics *numerics, const attn_oracle_row *row) {
  if (problem->score != ATTN_SCORE_DOT || !(numerics->query_rounding > 0)) return 0.0;
  return fabs((double)problem->scale) * numerics->query_rounding * row->max_q;
}

double bench_p_rounding(const attn_problem *problem, const attn_numerics *numerics) {
  if (problem->dtype_kv == ATTN_F32) return 0.0;
  if (attn_dtype_is_integer(problem->dtype_kv)) return numerics->p_rounding;
  return fmin(numerics->p_rounding, attn_dtype_of(problem->dtype_kv).roundoff);
}

static row_terms terms_of(const attn_problem *problem, const attn_numerics *numerics, const attn_oracle_row *row) {
  const double u = 0x1p-24, eps = numerics->exp_error, f = numerics->input_flush;
  const double tanhs = (problem->score == ATTN_SCORE_ADDITIVE) + (problem->softcap > 0);
  const double query = rounded_query(problem, numerics, row);
  return (row_terms){.u = u,
                     .u_p = bench_p_rounding(problem, numerics),
                     .pair = 2 * numerics->input_rounding,
                     .eps = eps,
                     .f = f,
                     .tiny = f > 0 ? 0x1p-126 : 0x1p-149,
                     .n = (double)row->allowed,
                     .ties = row->ties,
                     .terms = problem->score == ATTN_SCORE_PRECOMPUTED ? 0.0 : (double)problem->dim_qk,
                     .scaled = attn_uses(problem, ATTN_USE_KV_SCALES),
                     .rescales = (double)(1 + row->allowed / 16),
                     .bend = tanhs * (2 * eps + 4 * u),
                     .vanish = flushed_scores(problem, row, f),
                     .coarse = query > 0 ? query * row->sum_k : 0.0,
                     .spread = query > 0 ? query * row->norm_k : 0.0};
}

static double proven_error(const row_terms *t, double abs_sum) {
  return (t->u * (t->terms + 16 + t->scaled) + t->bend + t->pair) * abs_sum + t->vanish + t->coarse +
         t->eps * (1 + t->rescales) + t->u_p + t->pair + t->u * (t->n + t->rescales + 4 + t->scaled);
}

static double sharp_error(const row_terms *t, double abs_sum) {
  return (t->u * (4 + sqrt(t->terms) + t->scaled) + t->bend + t->pair) * abs_sum + t->vanish + t->eps + t->pair +
         t->u * (sqrt(t->n + t->ties) + 4 + t->scaled);
}

/* Relative to M: docs/numerics.md, "Gradients". */
static bench_row_limits limits_of_gradient(const attn_problem *problem, const attn_numerics *numerics,
                                           const attn_oracle_row *row, bool zero_mean) {
  const double u = 0x1p-24, n = (double)row->allowed, eps = numerics->exp_error;
  const double u_p = bench_p_rounding(problem, numerics);
  return (bench_row_limits){.proven = 2 * eps + 2 * u_p + u * (n + 8),
                            .sharp = 2 * eps + u * (2 * sqrt(n) + 8),
                            .lost = n * 0x1p-126 * row->max_v,
                            .max_v = row->max_v,
                            .p_rounding = u_p,
                            .store_error = attn_dtype_of(problem->dtype_o).roundoff,
                            .dtype_o = problem->dtype_o,
                            .both = zero_mean,
                            .empty = row->allowed == 0};
}

bench_row_limits bench_limits_of_row(const attn_problem *problem, const attn_numerics *numerics, const attn_oracle_row *row,
                                     bool zero_mean) {
  if (problem->operation == ATTN_BACKWARD) return limits_of_gradient(problem, numerics, row, zero_mean);
  const row_terms t = terms_of(problem, numerics, row);
  const double proven = proven_error(&t, row->abs_sum), sharp = sharp_error(&t, row->abs_sum);
  const double lse_rounding = 4 * t.u * (1 + fabs(row->lse));
  const double moved = expm1(12 * t.spread) / 2;
  return (bench_row_limits){
      .proven = proven,
      .sharp = sharp,
      .lost = t.n * 0x1p-125 * row->max_v + ((2 * t.n + 4) * t.tiny + t.f) * fmax(row->max_v_factor, 1),
      .lse = (zero_mean ? fmin(proven, sharp + t.u_p + moved) : proven) + lse_rounding,
      .max_v = row->max_v,
      .p_rounding = t.u_p,
      .moved = moved,
      .store_error = attn_dtype_of(problem->dtype_o).roundoff,
      .dtype_o = problem->dtype_o,
      .both = zero_mean,
      .empty = row->allowed == 0,
  };
}

bench_row_limits bench_limits_sum(bench_row_limits limits, bench_row_limits other) {
  limits.proven += other.proven, limits.sharp += other.sharp;
  limits.lost += other.lost, limits.lse += other.lse;
  limits.moved += other.moved;
  limits.p_rounding += other.p_rounding, limits.store_error += other.store_error;
  return limits;
}

const char *bench_beyond_cap(const attn_numerics *numerics) {
  if (!(numerics->exp_error <= 0x1p-8)) return "an exp error";
  if (!(numerics->p_rounding <= 0x1p-8)) return "a rounding of P";
  if (!(numerics->input_rounding <= 0x1p-8)) return "a rounding of inputs";
  if (!(numerics->query_rounding <= 0x1p-7)) return "a rounding of queries";
  return numerics->input_flush <= 0x1p-126 ? NULL : "flushed inputs";
}

bool bench_is_approximate(const attn_problem *problem, const attn_numerics *numerics) {
  const double exact = fmax(0x1p-21, attn_dtype_of(problem->dtype_kv).roundoff);
  return numerics->exp_error > exact || numerics->input_rounding > exact || numerics->query_rounding > exact;
}

/* INFINITY where the error is infinite or one of the two is a NaN. */
static double ratio_of(double error, double limit) { return error < INFINITY && !isnan(limit) ? error / limit : INFINITY; }

/* The largest error that a finite output may have before it is stored. */
static double error_limit(const bench_row_limits *limits, double o, double m, double w) {
  const double a = 2 * limits->proven;
  const double proven = (a < 1 ? expm1(a) * m : 2 * (limits->max_v + fabs(o))) + limits->lost;
  const double sharp = 2 * limits->sharp * m + (6 * limits->p_rounding + limits->moved) * w + limits->lost;
  return limits->both && sharp < proven ? sharp : proven;
}

double bench_output_ratio(const bench_row_limits *limits, double o, double m, double w, double got) {
  if (limits->empty) return got == 0.0 && o == 0.0 ? 0.0 : INFINITY; /* o may come from a file */
  if (isnan(o)) return isnan(got) ? 0.0 : INFINITY;
  if (isinf(o)) return got == o ? 0.0 : INFINITY;
  const attn_dtype_info type = attn_dtype_of(limits->dtype_o);
  const double error = error_limit(limits, o, m, w);
  if (isinf(got) && fabs(o) + error >= type.overflow) return signbit(got) == signbit(o) ? 0.0 : INFINITY;
  return ratio_of(fabs(got - o), error + limits->store_error * (fabs(o) + error) + type.least / 2);
}

double bench_lse_ratio(const bench_row_limits *limits, double lse, double got) {
  if (isnan(lse)) return isnan(got) ? 0.0 : INFINITY;
  if (isinf(lse)) return got == lse ? 0.0 : INFINITY;
  return ratio_of(fabs(got - lse), limits->lse);
}

double bench_gradient_ratio(const bench_row_limits *limits, bench_right right, double got) {
  const double x = right.value;
  if (limits->empty) return got == 0.0 && x == 0.0 ? 0.0 : INFINITY;
  if (isnan(x)) return isnan(got) ? 0.0 : INFINITY;
  if (isinf(x)) return got == x ? 0.0 : INFINITY;
  const attn_dtype_info type = attn_dtype_of(limits->dtype_o);
  const double proven = limits->proven * right.m + right.proven + limits->lost;
  const double sharp = limits->sharp * right.m + 6 * limits->p_rounding * right.w + right.sharp + limits->lost;
  const double error = limits->both && sharp < proven ? sharp : proven;
  if (isinf(got) && fabs(x) + error >= type.overflow) return signbit(got) == signbit(x) ? 0.0 : INFINITY;
  return ratio_of(fabs(got - x), error + limits->store_error * fabs(x) + type.least / 2);
}
