/* SPDX-License-Identifier: MIT */
/* Joins the splits of a KV head. Parameters: those of products.h. */
#ifndef ATTN_COMMON_DECODE_MERGE_H
#define ATTN_COMMON_DECODE_MERGE_H

#include "plan.h"

/* Adds a later split's state to the first one's; both are rescaled to the larger reference. */
static void merge_row(const row_block *first, const row_block *later, int64_t i) {
  if (later->row_max[i] == -INFINITY) return;
  const float reference = fmaxf(first->row_max[i], later->row_max[i]);
  const vec old = vec_exp2(vec_set1(first->row_max[i] - reference)), new = vec_exp2(vec_set1(later->row_max[i] - reference));
  float *sum = first->row_sum + i * VEC_LANES, *acc = first->acc + i * first->acc_stride;
  const float *sum_later = later->row_sum + i * VEC_LANES, *acc_later = later->acc + i * first->acc_stride;
  vec_store(sum, vec_fma(vec_load(sum), old, vec_mul(vec_load(sum_later), new)));
  for (int64_t c = 0; c < first->acc_stride; c += VEC_LANES)
    vec_store(acc + c, vec_fma(vec_load(acc + c), old, vec_mul(vec_load(acc_later + c), new)));
  first->row_max[i] = reference;
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
