/* SPDX-License-Identifier: MIT */
/* The float64 oracle: docs/semantics.md turned into loops, one row at a time. Beside every output it returns what the error
 * bound of docs/numerics.md needs. It shares no code with the kernels, not even the conversions, so a mistake in shared code
 * cannot hide.
 *
 * Sums are compensated: Knuth's TwoSum carries the rounding error of every addition along. So the oracle's own error is a
 * few units of 2^-53 relative to M for any number of keys, which is far below every limit. */
#include "kernels/ref/oracle_query_f64.h"

/* An element of a type of blocks: a float16 and 32 integers of 8 bits, or of 4, whose upper halves follow the lower ones. */
static double load_of_block(const void *data, attn_dtype dtype, int64_t index) {
  enum { VALUES = 32 };
  const int64_t i = index & (VALUES - 1), block_index = (index - i) / VALUES; /* rows may run backwards */
  const uint8_t *block = (const uint8_t *)data + block_index * (dtype == ATTN_Q8_0 ? 34 : 18), *integers = block + 2;
  uint16_t scale;
  memcpy(&scale, block, sizeof scale);
  const int upper = integers[i % (VALUES / 2)] >> (i < VALUES / 2 ? 0 : 4);
  return attn_oracle_load(&scale, ATTN_F16, 0) * (dtype == ATTN_Q8_0 ? (int8_t)integers[i] : upper % 16 - 8);
}

double attn_oracle_load(const void *data, attn_dtype dtype, int64_t index) {
  if (dtype == ATTN_F32) return ((const float *)data)[index];
  if (dtype == ATTN_ORACLE_F64) return ((const double *)data)[index];
  if (dtype == ATTN_F8_E4M3 || dtype == ATTN_F8_E5M2) {
    const int byte = ((const uint8_t *)data)[index], places = dtype == ATTN_F8_E4M3 ? 3 : 2,
              bias = dtype == ATTN_F8_E4M3 ? 7 : 15;
    const int sign = byte >> 7 ? -1 : 1, exponent = (byte & 127) >> places, fraction = byte & ((1 << places) - 1);
    if (dtype == ATTN_F8_E4M3 && (byte & 127) == 127) return NAN;
    if (dtype == ATTN_F8_E5M2 && exponent == 31) return fraction ? NAN : copysign(INFINITY, sign);
    return sign * ldexp(exponent ? (1 << places) + fraction : fraction, (exponent ? exponent : 1) - bias - places);
  }
  if (dtype == ATTN_I8) return ((const int8_t *)data)[index];
  if (dtype == ATTN_Q8_0 || dtype == ATTN_Q4_0) return load_of_block(data, dtype, index);
  const uint16_t bits = ((const uint16_t *)data)[index];
  if (dtype == ATTN_BF16) {
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
  }
  const int sign = bits >> 15 ? -1 : 1, exponent = bits >> 10 & 31, fraction = bits & 1023;
  if (exponent == 31) return fraction ? NAN : copysign(INFINITY, sign);
  return exponent ? sign * (1024 + fraction) * 0x1p-25 * (1 << exponent) : sign * fraction * 0x1p-24; /* exactly */
}

int64_t attn_oracle_f64_rows(const attn_problem *problem, const attn_args *args, int64_t b) {
  if (problem->uses & ATTN_USE_VARLEN) return args->cu_seqlens_q[b + 1] - args->cu_seqlens_q[b];
  return problem->seq_q;
}

/* ---- Scores of a row ---- */

/* Fills score[j] for the allowed keys, and the row's n, S, max_q, max_k, sum_k and norm_k. */
static void score_row(const query *r, attn_oracle_row *row, double *score) {
  const int64_t dim = r->problem->score == ATTN_SCORE_PRECOMPUTED ? 0 : r->problem->dim_qk;
  for (int64_t j = 0; j < r->len_k; j++) {
    if (!is_allowed(r, j)) continue;
    double magnitude;
    score[j] = score_of(r, j, row, &magnitude);
    row->allowed++;
    row->abs_sum = larger(row->abs_sum, magnitude);
  }
  for (int64_t first = 0; row->allowed && first < dim; first += COLUMNS) {
    double q[COLUMNS];
    load_q(r, first, block_of(first, dim), q);
    for (int64_t c = 0; c < block_of(first, dim); c++) row->max_q = larger(row->max_q, fabs(q[c]));
  }
}

/* ---- Softmax ----------------------------------------------------------------------------------------------------- */

/* Sum of exp(score - shift) over the allowed keys: NaN if a score is. */
static compensated sum_of_exp(const query *r, const double *score, double shift) {
  compensated sum = {0, 0};
  for (int64_t j = 0; j < r->len_k; j++)
    if (is_allowed(r, j)) add(&sum, exp(score[j] - shift));
  return sum;
}

/* Turns scores into probabilities and sets the row's LSE. The sink is one more logit in the denominator; the LSE does not
 * include it. Infinite scores follow the extended real numbers: p is NaN where it is 0/0 or inf/inf. */
static void softmax_row(const query *r, attn_oracle_row *row, double *score) {
  const bool sinks = r->problem->uses & ATTN_USE_SINKS;
  const double sink = sinks ? r->args->sinks[r->h] : -INFINITY;
  double largest = -INFINITY;
  bool nan = isnan(sink);
  for (int64_t j = 0; j < r->len_k; j++) {
    if (!is_allowed(r, j)) continue;
    largest = larger(largest, score[j]);
    row->lse = isnan(score[j]) ? NAN : row->lse;
    nan = nan || isnan(score[j]);
  }
  if (!isnan(row->lse)) {
    const compensated sum = isfinite(largest) ? sum_of_exp(r, score, largest) : (compensated){1, 0};
    row->lse = largest + log(value_of(&sum));
  }
  if (isfinite(sink)) row->abs_sum = larger(row->abs_sum, fabs(sink));

  const double shift = larger(largest, sink);
  compensated sum = {NAN, 0};
  if (isfinite(shift) && !nan) sum = sum_of_exp(r, score, shift);
  if (isfinite(shift) && !nan) add(&sum, exp(sink - shift));
  for (int64_t j = 0; j < r->len_k; j++) {
    if (!is_allowed(r, j)) continue;
    if (shift == INFINITY && !nan) {
      score[j] = score[j] == INFINITY ? NAN : 0;
    } else {
      score[j] = exp(score[j] - shift) / value_of(&sum);
    }
  }
}

/* ---- Output ------------------------------------------------------------------------------------------------------ */

/* Columns [first, first + columns) of o, m and w. */
static void weighted_sums(const query *r, int64_t first, int64_t columns, attn_oracle_row *row,
                          const attn_oracle_output *out) {
  const double *p = out->p;
  double *o = out->o + first, *m = out->m + first, *w = out->w + first, v[COLUMNS];
  compensated sum[COLUMNS] = {{0, 0}};
  for (int64_t c = 0; c < columns; c++) m[c] = w[c] = 0;
  for (int64_t j = 0; j < r->len_k; j++) {
    if (!is_allowed(r, j)) continue;
    const double kept = dropout_factor(r, j);
    load_v(r, j, first, columns, v);
    for (int64_t c = 0; c < columns; c++) {
      add(&sum[c], kept * p[j] * v[c]);
      m[c] += kept * p[j] * fabs(v[c]);
      row->max_v = larger(row->max_v, fabs(v[c]));
    }
  }
  const attn_strides *factors = &r->problem->v_scale_stride;
  for (int64_t c = 0; r->problem->uses & ATTN_USE_KV_SCALES && factors->d && c < columns; c++)
    row->max_v_factor =
        larger(row->max_v_factor, fabs((double)r->args->v_scale[key_at(r, factors, 0) + (first + c) * factors->d]));
  for (int64_t c = 0; c < columns; c++) o[c] = value_of(&sum[c]);
  for (int64_t j = 0; j < r->len_k; j++) {
    if (!is_allowed(r, j)) continue;
    load_v(r, j, first, columns, v);
    for (int64_t c = 0; c < columns; c++) w[c] += square(p[j] * (dropout_factor(r, j) * v[c] - o[c]));
  }
  for (int64_t c = 0; c < columns; c++) w[c] = sqrt(w[c]);
}

attn_oracle_row attn_oracle_f64_row(const attn_problem *problem, const attn_args *args, attn_oracle_index at,
                                    const attn_oracle_output *out) {
  const query r = locate(problem, args, at);
  attn_oracle_row row = {.lse = -INFINITY, .exists = at.i < r.len_q};
  for (int64_t d = 0; d < problem->dim_v; d++) out->o[d] = out->m[d] = out->w[d] = 0;
  if (row.exists) score_row(&r, &row, out->p);
  if (row.allowed == 0) return row;
  softmax_row(&r, &row, out->p);
  for (int64_t first = 0; first < problem->dim_v; first += COLUMNS)
    weighted_sums(&r, first, block_of(first, problem->dim_v), &row, out);
  return row;
}
