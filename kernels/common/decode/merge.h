/* SPDX-License-Identifier: MIT */
/* Joins the splits of a KV head. Parameters: those of products.h. */
#ifndef ATTN_COMMON_DECODE_MERGE_H
#define ATTN_COMMON_DECODE_MERGE_H

#include "kernels/common/problem/partial.h"
#include "plan.h"

/* Adds a later split's state to the first one's, by join_partials(). All of a merged sum stands in the first lane. */
static void merge_row(const row_block *first, const row_block *later, int64_t i) {
  if (later->row_max[i] == -INFINITY) return;
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

/* False if a row of the first try is not finite (finish_rows). */
static bool merge_splits(const decode_task *t, bool careful) {
  row_block whole = decode_rows(t, 0);
  if (whole.rows == 0) return true;
  whole.first_try = !careful;
  for (int64_t i = 0; i < whole.rows; i++)
    whole.range[i] = attn_allowed_keys(t->problem, t->args, &t->seq, whole.b, problem_row_of(&whole, i).query);
  for (int64_t split = 1; split < t->splits; split++) {
    const row_block later = decode_rows(t, split);
    for (int64_t i = 0; i < whole.rows; i++) merge_row(&whole, &later, i);
  }
  return finish_rows(&whole);
}

#endif
