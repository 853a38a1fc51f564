/* SPDX-License-Identifier: MIT */
/* attn_merge and attn_partial_merge fold states of rows over disjoint keys into one, in order, by the rule of partial.h: an
 * (O, LSE) pair is the state {O, LSE in log2 units, 1}. States without a key are skipped, not multiplied by 0, because their
 * O may hold NaN. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "attn/extend.h"
#include "kernels/common/memory/partial.h"
#include "kernels/common/problem/operation.h"
#include "kernels/common/problem/unroll.h"
#include "src/api/error.h"
#include "src/api/float_mode.h"
#include "src/api/problem.h"

enum { BLOCK = 64 };

static const attn_struct_layout partial_layout = {.name = "attn_partial",
                                                  .maker = "ATTN_STRUCT(attn_partial, ...)",
                                                  .bytes = sizeof(attn_partial),
                                                  .least = offsetof(attn_partial, stride),
                                                  .unsized = offsetof(attn_partial, stride)};

/* Some columns of a row. */
typedef struct row_state {
  double reference; /* -inf: no key yet, and o and sum hold nothing */
  float sum;
  float *o;
} row_state;

static void fold_row(row_state *state, double reference, float sum, const float *o, int64_t columns) {
  if (reference == -INFINITY) return;
  if (state->reference == -INFINITY) {
    state->reference = reference;
    state->sum = sum;
    memcpy(state->o, o, (size_t)columns * sizeof *o);
    return;
  }
  const partial_weights weights = weigh_partials(state->reference, reference);
  state->reference = weights.reference;
  state->sum = join_partials(weights, state->sum, sum);
  for (int64_t c = 0; c < columns; c++) state->o[c] = join_partials(weights, state->o[c], o[c]);
}

static void divide_row(const row_state *state, int64_t columns, float *o) {
  for (int64_t c = 0; c < columns; c++) o[c] = state->reference == -INFINITY ? 0 : state->o[c] / state->sum;
}

static float lse_of(const row_state *state) {
  return state->reference == -INFINITY ? -INFINITY : (float)(LN_2 * state->reference + log((double)state->sum));
}

static attn_status check_sizes(int64_t rows, int64_t dim_v) {
  REQUIRE(rows >= 0, "rows is %" PRId64 "; it must be at least 0", rows);
  REQUIRE(dim_v >= 1, "dim_v is %" PRId64 "; it must be at least 1", dim_v);
  return ATTN_OK;
}

/* ---- (O, LSE) pairs ---- */

typedef struct partial_results {
  int parts;
  int64_t dim_v;
  const float *const *o, *const *lse; /* [part][row][dim_v], [part][row] */
} partial_results;

static attn_status check_results(int parts, int64_t rows, int64_t dim_v, const float *const *o, const float *const *lse,
                                 const float *o_out) {
  REQUIRE(parts >= 1, "parts is %d; it must be at least 1", parts);
  const attn_status status = check_sizes(rows, dim_v);
  if (status != ATTN_OK || rows == 0) return status;
  if (!o || !lse || !o_out)
    return attn_fail(ATTN_INVALID_ARGUMENT, "%s is NULL; it must point to the rows", !o ? "o" : !lse ? "lse" : "o_out");
  for (int p = 0; p < parts; p++)
    if (!o[p] || !lse[p])
      return attn_fail(ATTN_INVALID_ARGUMENT, "%s[%d] is NULL; every part needs its rows", !o[p] ? "o" : "lse", p);
  return ATTN_OK;
}

/* Columns go in blocks, so that every part is read before the block is written: o_out may be one of them. Returns the LSE.
 */
static float merge_row(const partial_results *in, int64_t row, float *o_out) {
  float block[BLOCK];
  row_state state = {.o = block};
  for (int64_t first = 0; first < in->dim_v; first += BLOCK) {
    const int64_t columns = min64(in->dim_v - first, BLOCK), at = row * in->dim_v + first;
    state.reference = -INFINITY;
    for (int p = 0; p < in->parts; p++) fold_row(&state, LOG2_E_DOUBLE * (double)in->lse[p][row], 1, in->o[p] + at, columns);
    divide_row(&state, columns, o_out + at);
  }
  return lse_of(&state);
}

/* Not inlined: the compiler must not move arithmetic out of the default floating-point mode. */
static NO_INLINE void merge_rows(const partial_results *in, int64_t rows, float *o_out, float *lse_out) {
  for (int64_t row = 0; row < rows; row++) {
    const float lse = merge_row(in, row, o_out);
    if (lse_out) lse_out[row] = lse;
  }
}

attn_status attn_merge(int parts, int64_t rows, int64_t dim_v, const float *const *o, const float *const *lse, float *o_out,
                       float *lse_out) {
  const attn_status status = check_results(parts, rows, dim_v, o, lse, o_out);
  if (status != ATTN_OK) return status;
  const partial_results in = {.parts = parts, .dim_v = dim_v, .o = o, .lse = lse};
  const uint64_t mode = attn_float_mode_enter();
  merge_rows(&in, rows, o_out, lse_out);
  attn_float_mode_leave(mode);
  return ATTN_OK;
}

/* ---- Partial states ---- */

/* Reads a struct of rows that a caller names in words. */
static attn_status read_partial(const char *name, int64_t rows, int64_t dim_v, const attn_partial *theirs,
                                attn_partial *partial) {
  attn_status status = check_sizes(rows, dim_v);
  if (status != ATTN_OK) return status;
  REQUIRE(theirs, "%s is NULL; it must point to an attn_partial", name);
  status = attn_struct_read(&partial_layout, theirs, partial);
  if (status != ATTN_OK || rows == 0) return status;
  const char *missing = !partial->o ? "o" : !partial->reference ? "reference" : !partial->sum ? "sum" : NULL;
  REQUIRE(!missing, "%s.%s is NULL; it must point to the rows", name, missing);
  REQUIRE(partial->stride >= 0 && partial->sums >= 0, "%s.%s is %" PRId64 "; it must be at least 0", name,
          partial->stride < 0 ? "stride" : "sums", partial->stride < 0 ? partial->stride : partial->sums);
  return ATTN_OK;
}

/* Floats from one row to the next, where rows have so many. */
static int64_t stride_of(const attn_partial *partial, int64_t floats) { return partial->stride ? partial->stride : floats; }

static float *sums_of(const attn_partial *partial, int64_t row) {
  return partial->sum + row * stride_of(partial, max64(1, partial->sums));
}

static row_state state_of(const attn_partial *partial, int64_t row, int64_t dim_v) {
  const int64_t at = row * stride_of(partial, 1);
  const float *sums = sums_of(partial, row);
  row_state state = {(double)partial->reference[at], sums[0], partial->o + row * stride_of(partial, dim_v)};
  if (partial->reference_low && isfinite(state.reference)) state.reference += (double)partial->reference_low[at];
  for (int64_t part = 1; part < partial->sums; part++) state.sum += sums[part];
  return state;
}

/* Its o is there already. */
static void keep_state(const attn_partial *partial, int64_t row, const row_state *state) {
  const int64_t at = row * stride_of(partial, 1);
  float *sums = sums_of(partial, row);
  partial->reference[at] = (float)state->reference;
  if (partial->reference_low) partial->reference_low[at] = rest_of_reference(state->reference);
  sums[0] = state->sum;
  for (int64_t part = 1; part < partial->sums; part++) sums[part] = 0;
}

static NO_INLINE void fold_rows(int64_t rows, int64_t dim_v, const attn_partial *piece, const attn_partial *state) {
  for (int64_t row = 0; row < rows; row++) {
    row_state whole = state_of(state, row, dim_v);
    const row_state later = state_of(piece, row, dim_v);
    fold_row(&whole, later.reference, later.sum, later.o, dim_v);
    keep_state(state, row, &whole);
  }
}

attn_status attn_partial_merge(int64_t rows, int64_t dim_v, const attn_partial *their_piece,
                               const attn_partial *their_state) {
  attn_partial piece, state;
  attn_status status = read_partial("piece", rows, dim_v, their_piece, &piece);
  if (status == ATTN_OK) status = read_partial("state", rows, dim_v, their_state, &state);
  if (status != ATTN_OK) return status;
  const uint64_t mode = attn_float_mode_enter();
  fold_rows(rows, dim_v, &piece, &state);
  attn_float_mode_leave(mode);
  return ATTN_OK;
}

static NO_INLINE void finish_rows(int64_t rows, int64_t dim_v, const attn_partial *state, float *o, float *lse) {
  for (int64_t row = 0; row < rows; row++) {
    const row_state whole = state_of(state, row, dim_v);
    divide_row(&whole, dim_v, o + row * dim_v);
    if (lse) lse[row] = lse_of(&whole);
  }
}

attn_status attn_partial_finish(int64_t rows, int64_t dim_v, const attn_partial *their_state, float *o, float *lse) {
  attn_partial state;
  const attn_status status = read_partial("state", rows, dim_v, their_state, &state);
  if (status != ATTN_OK) return status;
  REQUIRE(o || rows == 0, "o is NULL; it must point to the rows");
  const uint64_t mode = attn_float_mode_enter();
  finish_rows(rows, dim_v, &state, o, lse);
  attn_float_mode_leave(mode);
  return ATTN_OK;
}

/* ---- args.state ---- */

attn_status attn_state_start(const attn_problem *problem, float *state) {
  attn_problem p;
  const attn_status status = attn_problem_read(problem, &p);
  if (status != ATTN_OK) return status;
  REQUIRE(attn_uses(&p, ATTN_USE_STATE), "attn_problem.uses lacks ATTN_USE_STATE; a state needs it");
  const attn_operand rows = attn_operand_of(&p, ATTN_OPERAND_STATE);
  REQUIRE(state || !rows.needed, "state is NULL; it must point to the rows");
  for (int64_t i = 0; rows.needed && i < rows.extent[0] * rows.extent[1] * rows.extent[2]; i++) {
    const int64_t token = i % rows.extent[2], head = i / rows.extent[2] % rows.extent[1],
                  b = i / rows.extent[2] / rows.extent[1];
    float *reference =
        state + b * rows.stride[0] + head * rows.stride[1] + token * rows.stride[2] + p.dim_v + ATTN_STATE_SUMS;
    reference[0] = -INFINITY;
    reference[1] = 0;
  }
  return ATTN_OK;
}
