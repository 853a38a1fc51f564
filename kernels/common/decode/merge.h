/* SPDX-License-Identifier: MIT */
/* Joins the splits of a KV head. Parameters: those of products.h. */
#ifndef ATTN_COMMON_DECODE_MERGE_H
#define ATTN_COMMON_DECODE_MERGE_H

#include "kernels/common/memory/partial.h"
#include "plan.h"

/* Adds a later split's state to the first one's, by join_partials(). All of a merged sum stands in the first lane. */
static void merge_row(const row_block *first, const row_block *later, int64_t i) {
  if (later->row_max[i] == -INFINITY && sum_of_row(later, i) == 0) return; /* not NaN: scores of NaN have no largest */
  const partial_weights weights = weigh_partials((double)first->row_max[i], (double)later->row_max[i]);
  const float sum = join_partials(weights, sum_of_row(first, i), sum_of_row(later, i));
  const vec old = vec_set1(weights.earlier), new = vec_set1(weights.later);
  float *acc = first->acc + i * first->acc_stride;
  const float *acc_later = later->acc + i * first->acc_stride;
  for (int64_t c = 0; c < first->acc_stride; c += VEC_LANES)
    vec_store(acc + c, vec_add(vec_mul(vec_load(acc + c), old), vec_mul(vec_load(acc_later + c), new)));
  vec_store(first->row_sum + i * VEC_LANES, vec_zero());
  first->row_sum[i * VEC_LANES] = sum;
  first->row_max[i] = (float)weights.reference;
}

/* Where pieces of keys came before: the rows go on from the state that they have left. */
static NO_INLINE void carry_states(const row_block *first) {
  memset(first->acc, 0, (size_t)(first->rows * first->acc_stride) * sizeof(float));
  memset(first->row_sum, 0, (size_t)(first->rows * VEC_LANES) * sizeof(float));
  for (int64_t i = 0; i < first->rows; i++) first->row_max[i] = -INFINITY;
  load_states(first);
}

/* False if a row of the first try is not finite (finish_rows). */
static bool merge_splits(const decode_task *t, bool careful) {
  if (t->seq.rows == 0) return true;
  const bool carries = attn_uses(t->problem, ATTN_USE_STATE);
  row_block whole = decode_rows(t, carries ? t->splits : 0);
  whole.first_try = !careful;
  for (int64_t i = 0; i < whole.rows; i++)
    whole.range[i] = attn_allowed_keys(t->problem, t->args, &t->seq, whole.b, problem_row_of(&whole, i).query);
  if (carries) carry_states(&whole);
  for (int64_t split = carries ? 0 : 1; split < t->splits; split++) {
    const row_block later = decode_rows(t, split);
    for (int64_t i = 0; i < whole.rows; i++) merge_row(&whole, &later, i);
  }
  return finish_rows(&whole);
}

#endif
