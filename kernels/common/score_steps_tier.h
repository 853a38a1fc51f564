/* A tier's attn_score_steps. Include vec_<isa>.h first, then write ATTN_SCORE_STEPS_OF(isa). */
#ifndef ATTN_COMMON_SCORE_STEPS_TIER_H
#define ATTN_COMMON_SCORE_STEPS_TIER_H

#include "score_steps.h"
#include "softmax.h"

_Static_assert(STEPS_LANES % (int)VEC_LANES == 0, "score_steps.h promises rows of STEPS_LANES");
_Static_assert(STEPS_KEYS % (int)PANEL_KEYS == 0, "score_steps.h promises panels of STEPS_KEYS");

static bool is_finite_row(const float *row, int64_t count) {
  vec poison = vec_zero(); /* 0 * x is NaN for NaN and infinity */
  for (int64_t d = 0; d < count; d += VEC_LANES) poison = vec_fma(vec_load(row + d), vec_zero(), poison);
  return !vec_any_nan(poison);
}

static void steps_copy_rows(const row_source *from, int64_t rows, float *to, int64_t to_stride, uint8_t *finite) {
  for (int64_t i = 0; i < rows; i++) {
    float *row = to + i * to_stride;
    copy_row(from->data, from->dtype, from->offset + i * from->row_stride, from->column_stride, from->columns, row,
             to_stride);
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

/* Without adjustments only the panels at both ends of the row's keys can hold others. */
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
      .finish_rows = steps_finish_rows,                  \
  };

#endif
