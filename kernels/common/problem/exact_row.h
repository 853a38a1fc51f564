/* SPDX-License-Identifier: MIT */
/* One output row, or one gradient, in double precision: the fallback of kernels whose float32 arithmetic did not give a
 * finite one, and of gradients that few calls ask for. docs/semantics.md has the formulas. */
#ifndef ATTN_COMMON_EXACT_ROW_H
#define ATTN_COMMON_EXACT_ROW_H

#include "attn/attn.h"
#include "convert.h"
#include "indexing.h"

/* Computes row i of query head h in batch b from its allowed keys alone and stores o (and lse, if used), sinks included.
 *
 * It is for rows that are not finite, or whose largest score is -inf although keys are allowed. There are three causes: an
 * intermediate overflow (V near FLT_MAX), which double precision avoids; a masked element that a product of whole tiles
 * read, which is not read here; or an allowed NaN or infinity, for which the result follows float64 arithmetic. Empty
 * rows get o = 0, lse = -inf. The function needs no memory and writes only that row. It computes scores again for every
 * block of output columns: slow, and meant to be rare. */
void attn_exact_row(const attn_problem *problem, const attn_args *args, int64_t b, int64_t h, int64_t i);

/* ---- Gradients ---- */

/* A query's part of its gradients: P = exp(s - lse) and dS = P (dP - delta). */
typedef struct row_terms {
  double lse;   /* all that is in the denominator: keys and sink; -inf: the row has no keys */
  double delta; /* rowsum(d_o o), less what d_lse adds to each dP */
} row_terms;

row_terms attn_row_terms(const attn_problem *problem, const attn_args *args, const attn_sequence *seq, int64_t h, int64_t i);

/* Row i of query head h: d_q, from its allowed keys alone. */
void attn_exact_query_gradient(const attn_problem *problem, const attn_args *args, int64_t b, int64_t h, int64_t i);

/* Key j of a KV head: d_v, or d_k, from the queries alone that may see it. */
void attn_exact_key_gradient(const attn_problem *problem, const attn_args *args, int64_t b, int64_t kv_head, int64_t j,
                             bool of_v);

/* The batches and heads over which a gradient is summed: all of them, or one of each. */
typedef struct attn_sum_range {
  int64_t first_b, batches, first_h, heads; /* no batches: another task does it */
} attn_sum_range;

/* The (batch, head) pairs whose sum stands at (b, h) of an array with these strides: the first pair of the sum does it all.
 */
attn_sum_range attn_sum_of(const attn_problem *problem, int64_t stride_b, int64_t stride_h, int64_t b, int64_t h);

/* The parts at batch b and query head h of d_bias, d_scores, d_score_weight, d_alibi_slopes and d_sinks, as far as the
 * problem has them. A part that is summed over batches or heads is computed where b or h is 0. */
void attn_exact_score_gradients(const attn_problem *problem, const attn_args *args, int64_t b, int64_t h);

/* d_sinks of query head h, where b is 0: the sink's share of the denominator takes from every value, so it is the sum of
 * -p_sink rowsum(d_o o) over all rows. */
void attn_exact_sink_gradient(const attn_problem *problem, const attn_args *args, int64_t b, int64_t h);

/* Stores an element of a gradient, or adds it to what is there. */
static inline void attn_put_gradient(const attn_problem *p, void *data, attn_dtype dtype, int64_t index, double value) {
  if (attn_uses(p, ATTN_USE_ACCUMULATE)) value += (double)attn_load_f32((attn_storage){data, dtype}, index);
  attn_store_f32(data, dtype, index, (float)value);
}

#endif
