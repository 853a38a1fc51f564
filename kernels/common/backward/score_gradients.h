/* SPDX-License-Identifier: MIT */
/* flash_backward: gradients of what is added to scores: dS is computed again, and summed over batches and heads in order.
 *
 * Parameters: those of tiles.h. */
#ifndef ATTN_COMMON_BACKWARD_SCORE_GRADIENTS_H
#define ATTN_COMMON_BACKWARD_SCORE_GRADIENTS_H

#include "load.h"
#include "terms.h"

/* A pair of blocks of all batches and heads that one gradient sums over, at the place of a head of a batch. */
typedef struct score_sum {
  const attn_schedule *schedule;
  const attn_args *args;
  void *scratch;
  attn_sum_range range;
  int64_t row, key;
  bool of_sums; /* before softcap */
} score_sum;

/* A gradient takes dS of one batch and head. */
typedef void take_scores(void *context, const backward_step *s);

/* dS of the pair of blocks for batch b and head h, handed to `take`. */
static void score_step(const score_sum *sum, int64_t b, int64_t h, take_scores *take, void *context) {
  const attn_problem *p = &sum->schedule->problem;
  const int64_t unit = b * p->heads_kv + attn_kv_head(p, h);
  const backward_task t = task_of(sum->schedule, sum->args, (attn_task){.unit = unit}, NULL, sum->scratch);
  const int64_t rows = min64(BACKWARD_ROWS, t.unit.seq.len_q - sum->row);
  const int64_t keys = min64(BACKWARD_KEYS, t.unit.seq.len_k - sum->key);
  float *terms = floats_at(sum->scratch, t.at->terms);
  backward_step s = step_in(&t);
  s.key = sum->key;
  s.keys = keys;
  s.minus_lse = terms;
  s.minus_delta = terms + BACKWARD_ROWS + TILE_ROWS;
  if (!sum->of_sums) s.slope = NULL;
  if (rows <= 0 || keys <= 0 || sees_none(&t, sum->row, rows, &s)) return;
  const head_terms of_rows = {
      .p = p,
      .args = sum->args,
      .seq = t.unit.seq,
      .h = h,
      .minus_lse = terms - sum->row,
      .minus_delta = terms + BACKWARD_ROWS + TILE_ROWS - sum->row,
      .copies = {floats_at(sum->scratch, t.at->d_o), floats_at(sum->scratch, t.at->d_o) + t.at->v_floats}};
  find_terms(&of_rows, sum->row, sum->row + rows);
  end_terms(&of_rows, sum->row + rows, sum->row + round_up(rows, TILE_ROWS));
  load_keys(&t, sum->key, keys, &s);
  load_step(&t, h, sum->row, rows, &s);
  fill_scores(&s);
  take(context, &s);
}

static void each_score_step(const score_sum *sum, take_scores *take, void *context) {
  for (int64_t b = sum->range.first_b; b < sum->range.first_b + sum->range.batches; b++)
    for (int64_t h = sum->range.first_h; h < sum->range.first_h + sum->range.heads; h++)
      score_step(sum, b, h, take, context);
}

/* sums[i][j] += dS. */
static void add_scores(void *context, const backward_step *s) {
  float *sums = context;
  for (int64_t i = 0; i < s->block.rows; i++) {
    const attn_key_range seen = s->seen[i / TILE_ROWS];
    for (int64_t j = seen.begin; j < min64(seen.end, s->keys); j++)
      sums[i * SCORE_STRIDE + j] += s->d_s[i * SCORE_STRIDE + j];
  }
}

/* d_bias or d_scores where the sums of batch b and head h stand. */
static void array_gradient(score_sum *sum, float *to, const attn_score_strides *stride, int64_t b, int64_t h) {
  const attn_problem *p = &sum->schedule->problem;
  const bool adds = attn_uses(p, ATTN_USE_ACCUMULATE);
  float *sums = floats_at(sum->scratch, backward_layout_in(sum->schedule)->sums);
  sum->range = attn_sum_of(p, stride->b, stride->h, b, h);
  if (sum->range.batches == 0) return;
  for (sum->row = 0; sum->row < p->seq_q; sum->row += BACKWARD_ROWS)
    for (sum->key = 0; sum->key < p->seq_k; sum->key += BACKWARD_KEYS) {
      memset(sums, 0, (size_t)(BACKWARD_ROWS * SCORE_STRIDE) * sizeof *sums);
      each_score_step(sum, add_scores, sums);
      for (int64_t i = 0; i < min64(BACKWARD_ROWS, p->seq_q - sum->row); i++)
        for (int64_t j = 0; j < min64(BACKWARD_KEYS, p->seq_k - sum->key); j++) {
          float *element = to + attn_score_offset(stride, b, h, sum->row + i, sum->key + j);
          const bool first = !adds && (stride->q || sum->row + i == 0) && (stride->k || sum->key + j == 0);
          *element = (first ? 0.0f : *element) + sums[i * SCORE_STRIDE + j];
        }
    }
}

/* -sum of dS |i + offset - j| */
static void add_distances(void *context, const backward_step *s) {
  double *total = context;
  for (int64_t i = 0; i < s->block.rows; i++) {
    const attn_key_range seen = s->seen[i / TILE_ROWS];
    const float position = (float)(s->block.first_row + i + s->block.seq->offset - s->key);
    float sum = 0.0f;
    for (int64_t j = seen.begin; j < min64(seen.end, s->keys); j++)
      sum += s->d_s[i * SCORE_STRIDE + j] * fabsf(position - (float)j);
    *total -= (double)sum;
  }
}

/* Sums of dS times the derivative of the score's sum by its weights: [dim_qk] doubles, in the place of d_k. */
static void add_weight_gradients(void *context, const backward_step *s) {
  const attn_problem *p = s->block.problem;
  const float *weight = s->block.args->score_weight + s->block.head * p->score_weight_stride_h;
  double *total = context;
  for (int64_t d = 0; d < p->dim_qk; d += VEC_LANES) {
    const vec w = vec_load_first(weight + d, min64(VEC_LANES, p->dim_qk - d));
    float lanes[VEC_LANES];
    for (int64_t i = 0; i < s->block.rows; i++) {
      const attn_key_range seen = s->seen[i / TILE_ROWS];
      const vec q = vec_load(s->q.down.at + i * s->q.down.stride + d);
      vec sum = vec_zero();
      for (int64_t j = seen.begin; j < min64(seen.end, s->keys); j++) {
        if (s->d_s[i * SCORE_STRIDE + j] == 0.0f) continue; /* a masked key may hold anything */
        const vec k = vec_load(s->k.at + j * s->k.stride + d), d_s = vec_set1(s->d_s[i * SCORE_STRIDE + j]);
        const vec apart = vec_sub(q, k);
        if (p->score == ATTN_SCORE_ADDITIVE)
          sum = vec_fma(d_s, vec_tanh(vec_add(q, k)), sum);
        else
          sum = vec_sub(sum, vec_mul(vec_mul(d_s, w), vec_mul(apart, apart)));
      }
      vec_store(lanes, sum);
      for (int64_t n = 0; n < min64(VEC_LANES, p->dim_qk - d); n++) total[d + n] += (double)lanes[n];
    }
  }
}

/* All pairs of blocks, in order. */
static void each_block(score_sum *sum, take_scores *take, void *context) {
  const attn_problem *p = &sum->schedule->problem;
  for (sum->row = 0; sum->row < p->seq_q; sum->row += BACKWARD_ROWS)
    for (sum->key = 0; sum->key < p->seq_k; sum->key += BACKWARD_KEYS) each_score_step(sum, take, context);
}

static void weight_gradient(score_sum *sum, int64_t b, int64_t h) {
  const attn_problem *p = &sum->schedule->problem;
  double *total = (double *)(void *)floats_at(sum->scratch, backward_layout_in(sum->schedule)->d_k);
  _Static_assert(BACKWARD_KEYS >= 2, "d_k holds a row of doubles");
  sum->range = attn_sum_of(p, 0, p->score_weight_stride_h, b, h);
  if (sum->range.batches == 0) return;
  memset(total, 0, (size_t)p->dim_qk * sizeof *total);
  if (p->score == ATTN_SCORE_ADDITIVE || p->score == ATTN_SCORE_GAUSSIAN) each_block(sum, add_weight_gradients, total);
  for (int64_t d = 0; d < p->dim_qk; d++)
    attn_put_gradient(p, sum->args->d_score_weight, ATTN_F32, h * p->score_weight_stride_h + d, total[d]);
}

/* Item: a query head of the unit, where sums over heads or batches are those of the first. */
static void score_gradients(const attn_schedule *schedule, const attn_args *args, attn_task task, void *scratch) {
  const attn_problem *p = &schedule->problem;
  const int64_t b = attn_batch_of_unit(p, task.unit), h = attn_head_of_unit(p, task.unit) + task.item;
  score_sum sum = {.schedule = schedule, .args = args, .scratch = scratch};
  if (args->d_bias && attn_uses(p, ATTN_USE_D_BIAS)) array_gradient(&sum, args->d_bias, &p->d_bias_stride, b, h);
  sum.of_sums = true;
  if (args->d_scores && p->score == ATTN_SCORE_PRECOMPUTED) array_gradient(&sum, args->d_scores, &p->d_scores_stride, b, h);
  if (args->d_score_weight && attn_uses(p, ATTN_USE_D_SCORE_WEIGHT)) weight_gradient(&sum, b, h);
  attn_exact_sink_gradient(p, args, b, h);
  if (b > 0 || !args->d_alibi_slopes || !attn_uses(p, ATTN_USE_D_ALIBI)) return;
  double total = 0;
  sum.of_sums = false;
  sum.range = attn_sum_of(p, 0, 1, b, h);
  each_block(&sum, add_distances, &total);
  attn_put_gradient(p, args->d_alibi_slopes, ATTN_F32, h, total);
}

#endif
