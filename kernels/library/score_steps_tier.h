/* SPDX-License-Identifier: MIT */
/* A tier's attn_score_steps: include vec_<isa>.h, then this file, then write ATTN_SCORE_STEPS_OF(isa).
 *
 * Parameters: those of tiles.h; VEC_LANES must divide STEPS_LANES, and PANEL_KEYS must divide STEPS_KEYS. */
#ifndef ATTN_LIBRARY_SCORE_STEPS_TIER_H
#define ATTN_LIBRARY_SCORE_STEPS_TIER_H

#include "kernels/common/backward/unfused_backward.h"
#include "kernels/common/tiles/two_pass_softmax.h"
#include "score_steps.h"

_Static_assert(STEPS_LANES % (int)VEC_LANES == 0, "score_steps.h promises rows of STEPS_LANES");
_Static_assert(sizeof(backward_layout) <= STEPS_OWN_BYTES, "attn_schedule.own holds it and a pointer");
_Static_assert(STEPS_KEYS % (int)PANEL_KEYS == 0, "score_steps.h promises panels of STEPS_KEYS");

static bool is_finite_row(const float *row, int64_t count) {
  vec poison = vec_zero(); /* 0 * x is NaN for NaN and infinity */
  for (int64_t d = 0; d < count; d += VEC_LANES) poison = vec_fma(vec_load(row + d), vec_zero(), poison);
  return !vec_any_nan(poison);
}

static void steps_copy_rows(const row_source *from, int64_t rows, float *to, int64_t to_stride, uint8_t *finite) {
  for (int64_t i = 0; i < rows; i++) {
    float *row = to + i * to_stride;
    copy_row(from, i, row, to_stride);
    if (!finite) continue;
    finite[i] = is_finite_row(row, to_stride);
    if (!finite[i]) memset(row, 0, (size_t)to_stride * sizeof *row);
  }
}

static void scale_row(float *score, int64_t count, float factor) {
  for (int64_t j = 0; j < count; j += VEC_LANES) vec_store(score + j, vec_mul(vec_load(score + j), vec_set1(factor)));
}

static void clear_scores(float *row, int64_t begin, int64_t end) {
  if (begin < end) memset(row + begin, 0, (size_t)(end - begin) * sizeof *row);
}

/* Without adjustments only the first and the last panel of the row's keys can hold masked keys. */
static void mask_row_ends(const row_block *block, int64_t i, int64_t first, int64_t end, float *row) {
  if (first < block->range[i].begin) mask_row(block, i, first, first + PANEL_KEYS, row + first);
  if (block->range[i].end < end) mask_row(block, i, end - PANEL_KEYS, end, row + (end - PANEL_KEYS));
}

static void steps_softmax_rows(const row_block *block, attn_key_range keys, float factor) {
  for (int64_t i = 0; i < block->rows; i++) {
    float *row = block->score + i * block->score_stride;
    const attn_key_range range = block->range[i];
    if (range.begin >= range.end) {
      clear_scores(row, keys.begin, keys.end);
      continue;
    }
    const int64_t first = round_down(range.begin, PANEL_KEYS), end = round_up(range.end, PANEL_KEYS);
    if (factor != 1.0f) scale_row(row + first, end - first, factor);
    if (block->adjusted)
      mask_row(block, i, first, end, row + first);
    else
      mask_row_ends(block, i, first, end, row);
    softmax_row(block, i, end - first, row + first);
    clear_scores(row, keys.begin, first);
    clear_scores(row, end, keys.end);
  }
}

/* Turns the products of row i with the keys [key, end), whole panels, into masked scores in natural units. Returns the
 * largest of each lane. */
static vec mask_natural(const row_block *block, int64_t i, int64_t key, int64_t end, float factor, float *score) {
  vec best = vec_set1(-INFINITY);
  for (int64_t j = key; j < end; j += VEC_LANES) {
    vec x = vec_mul(vec_load(score + j), vec_set1(factor));
    if (block->adjusted) x = adjust_scores(block, i, j, x);
    x = select_allowed(block->range[i], j, x);
    best = vec_max(x, best);
    vec_store(score + j, vec_mul(x, vec_set1((float)LN_2)));
  }
  return best;
}

static void fill_scores(float *row, int64_t begin, int64_t end, float value) {
  for (int64_t j = begin; j < end; j += VEC_LANES) vec_store(row + j, vec_set1(value));
}

static void steps_mask_rows(const row_block *block, attn_key_range keys, float factor) {
  for (int64_t i = 0; i < block->rows; i++) {
    float *row = block->score + i * block->score_stride;
    const attn_key_range range = block->range[i];
    if (range.begin >= range.end) continue;
    const int64_t first = round_down(range.begin, PANEL_KEYS), end = round_up(range.end, PANEL_KEYS);
    fill_scores(row, keys.begin, first, -INFINITY);
    block->row_max[i] = vec_reduce_max(mask_natural(block, i, first, end, factor, row));
    fill_scores(row, end, keys.end, -INFINITY);
  }
}

/* The largest P is 1 over the sum of exponentials relative to the largest score, so that score and P give the logarithm of
 * the sum of all: taken for the reference, it makes the sum 1. */
static void steps_take_softmax(const row_block *block, attn_key_range keys) {
  const bool needed = attn_uses(block->problem, ATTN_USE_LSE | ATTN_USE_SINKS);
  for (int64_t i = 0; i < block->rows; i++) {
    block->row_sum[i * VEC_LANES] = block->problem->dtype_kv == ATTN_F32 ? 1.0f : 0.0f;
    if (!needed || block->range[i].begin >= block->range[i].end) continue;
    const float *row = block->score + i * block->score_stride;
    block->row_max[i] -= log2f(largest(row + keys.begin, keys.end - keys.begin));
  }
}

static void steps_add_narrowed(const row_block *block, const void *p, int64_t stride, int64_t keys) {
  const attn_storage narrowed = {p, block->problem->dtype_kv};
  for (int64_t i = 0; i < block->rows; i++) {
    vec sum = vec_load(block->row_sum + i * VEC_LANES);
    for (int64_t j = 0; j < keys; j += VEC_LANES) sum = vec_add(sum, load_elements(narrowed, i * stride, j, VEC_LANES));
    vec_store(block->row_sum + i * VEC_LANES, sum);
  }
}

static void steps_finish_rows(const row_block *block) {
  row_block last_try = *block;
  last_try.first_try = false;
  finish_rows(&last_try);
}

#define ATTN_SCORE_STEPS_OF(tier)                        \
  extern const attn_score_steps attn_score_steps_##tier; \
  const attn_score_steps attn_score_steps_##tier = {     \
      .isa = #tier,                                      \
      .copy_rows = steps_copy_rows,                      \
      .start_rows = start_rows,                          \
      .softmax_rows = steps_softmax_rows,                \
      .mask_rows = steps_mask_rows,                      \
      .take_softmax = steps_take_softmax,                \
      .add_narrowed = steps_add_narrowed,                \
      .finish_rows = steps_finish_rows,                  \
      .plan_gradients = unfused_plan,                    \
      .run_gradients = unfused_run,                      \
  };

#endif
