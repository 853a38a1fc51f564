/* SPDX-License-Identifier: MIT */
/* Plain-C tiles for blocked_c and flash_c: the phases that every tier has under the same names, without vectors, packing or
 * register tricks. Read this first, then kernels/common/tiles/tiles.h.
 *
 * Each row works on its own allowed keys only, [begin, end) of the block, so masked elements are never touched. Inner loops
 * run over keys or columns side by side, which any compiler turns into vectors. */
#ifndef ATTN_REF_TILES_C_H
#define ATTN_REF_TILES_C_H

#include <string.h>

#include "attn/kernel.h"
#include "kernels/common/memory/memory.h"
#include "kernels/common/memory/partial.h"
#include "kernels/common/problem/exact_row.h"
#include "kernels/common/problem/rejects.h"
#include "scores_c.h"

enum {
  ROWS = 32, /* query rows of a task: a key block is converted once and used this often */
  KEYS = 64  /* keys of a block: its K and V (head_dim 64: 32 KiB) stay in L2, its scores in L1 */
};

/* ROWS query rows of one head and their state. */
typedef struct row_block {
  const attn_problem *problem;
  const attn_args *args;
  attn_sequence seq;
  int64_t b, head, first_row, rows;
  attn_key_range range[ROWS]; /* keys that the row may see */
  float row_max[ROWS], row_sum[ROWS];
  float *q;     /* [ROWS][dim_qk], for dot scores times scale */
  float *k;     /* [dim_qk][KEYS]: the current key block, transposed */
  float *v;     /* [KEYS][dim_v]: the current key block */
  float *acc;   /* [ROWS][dim_v]: O before division */
  float *score; /* [ROWS][score_stride]: S, then P */
  int64_t score_stride;
  query_head scores; /* the same head as scores_c.h sees it: its keys are the current block */
} row_block;

/* The row's keys among [key, key + KEYS). */
static inline attn_key_range allowed_in(const row_block *t, int64_t i, int64_t key) {
  return (attn_key_range){max64(t->range[i].begin, key), min64(t->range[i].end, key + KEYS)};
}

/* Offsets in a thread's scratch, in bytes: the plan data. */
typedef struct tile_layout {
  int64_t q, k, v, acc, score, total;
} tile_layout;
_Static_assert(sizeof(tile_layout) <= ATTN_OWN_BYTES, "attn_schedule.own holds it");

/* False if a size overflows. */
static inline bool tile_layout_of(const attn_problem *p, int64_t score_stride, tile_layout *at) {
  const memory_part parts[] = {{&at->q, ROWS, float_bytes(p->dim_qk)},
                               {&at->k, KEYS, float_bytes(p->dim_qk)},
                               {&at->v, KEYS, float_bytes(p->dim_v)},
                               {&at->acc, ROWS, float_bytes(p->dim_v)},
                               {&at->score, ROWS, float_bytes(score_stride)}};
  at->total = 0;
  return LAY_OUT(parts, &at->total);
}

/* One phase. A task is ROWS rows of one query head; the last rows come first, because under a causal mask they see most
 * keys. */
static inline bool tile_plan(const attn_problem *p, int64_t score_stride, attn_schedule *schedule) {
  tile_layout *at = (void *)schedule->own;
  if (!tile_layout_of(p, score_stride, at)) return false;
  schedule->phases = 1;
  schedule->items[0] = attn_group(p) * ceil_div(p->seq_q, ROWS);
  schedule->row_block = ROWS;
  schedule->key_block = KEYS;
  schedule->scratch_bytes = (size_t)at->total;
  return true;
}

static inline row_block tile_block(const attn_schedule *schedule, const attn_args *args, attn_task task, void *scratch,
                                   int64_t score_stride) {
  const attn_problem *p = &schedule->problem;
  const int64_t group = attn_group(p), blocks = schedule->items[0] / group;
  row_block t = {.problem = p, .args = args, .b = attn_batch_of_unit(p, task.unit), .score_stride = score_stride};
  const tile_layout *at = (const void *)schedule->own;
  t.head = attn_head_of_unit(p, task.unit) + task.item % group;
  t.seq = attn_sequence_of(p, args, t.b);
  t.first_row = (blocks - 1 - task.item / group) * ROWS;
  t.rows = max64(min64(ROWS, attn_rows(p, &t.seq) - t.first_row), 0);
  t.q = floats_at(scratch, at->q);
  t.k = floats_at(scratch, at->k);
  t.v = floats_at(scratch, at->v);
  t.acc = floats_at(scratch, at->acc);
  t.score = floats_at(scratch, at->score);
  t.scores = (query_head){.problem = p, .args = args, .seq = t.seq, .b = t.b, .h = t.head, .k = {t.k, 1, KEYS}};
  return t;
}

static inline void start_rows(row_block *t) {
  const attn_problem *p = t->problem;
  const float factor = p->score == ATTN_SCORE_DOT ? p->scale : 1.0f;
  for (int64_t i = 0; i < t->rows; i++) {
    t->range[i] = attn_allowed_keys(p, t->args, &t->seq, t->b, t->first_row + i);
    t->row_max[i] = -INFINITY;
    t->row_sum[i] = 0.0f;
    memset(t->acc + i * p->dim_v, 0, (size_t)p->dim_v * sizeof(float));
    if (t->range[i].begin >= t->range[i].end || p->score == ATTN_SCORE_PRECOMPUTED) continue;
    const int64_t offset = attn_q_offset(p, &t->seq, t->b, t->head, t->first_row + i);
    for (int64_t d = 0; d < p->dim_qk; d++)
      t->q[i * p->dim_qk + d] = factor * attn_load_f32(attn_q_storage(p, t->args), offset + d * p->q_stride.d);
  }
}

static inline float *state_of_row(const row_block *t, int64_t i) {
  return t->args->state + attn_state_offset(t->problem, &t->seq, t->b, t->head, t->first_row + i);
}

/* Rows go on from their states, where keys come in pieces. Here references are natural logarithms. */
static inline void load_states(row_block *t) {
  const int64_t dim_v = t->problem->dim_v;
  for (int64_t i = 0; attn_uses(t->problem, ATTN_USE_STATE) && i < t->rows; i++) {
    const float *state = state_of_row(t, i);
    const double reference = kept_reference(state, dim_v);
    if (reference == -INFINITY) continue;
    t->row_max[i] = isnan(reference) ? 0.0f : (float)(LN_2 * reference); /* its sum is NaN and stays so */
    const float factor = exp2f((float)(reference - LOG2_E_DOUBLE * (double)t->row_max[i]));
    const float weight = isnan(factor) ? 1.0f : factor; /* 1 for a state that this tier has left */
    kept_sums(state, dim_v, 1, &t->row_sum[i]);
    t->row_sum[i] *= weight;
    for (int64_t c = 0; c < dim_v; c++) t->acc[i * dim_v + c] = weight * state[c];
  }
}

/* One range that holds all keys that rows of the block may see. */
static inline attn_key_range keys_of_block(const row_block *t) {
  attn_key_range used = {0, 0};
  for (int64_t i = 0; i < t->rows; i++) used = attn_join_keys(used, t->range[i]);
  return used;
}

/* Whether any row's list of key blocks has the block of keys [key, key + KEYS); true without lists. */
static inline bool keys_listed(const row_block *t, int64_t key) {
  _Static_assert(LEAST_BLOCK_KEYS % KEYS == 0, "a list has all of these keys or none");
  bool listed = !attn_lists_keys(t->problem);
  for (int64_t i = t->first_row; !listed && i < min64(t->first_row + t->rows, t->seq.len_q); i++)
    listed = attn_key_visited(t->problem, t->args, t->b, t->head, i, key);
  return listed;
}

/* K of keys [key, key + KEYS) that any row may see, transposed so that score_tile's inner loop is contiguous. */
static inline void load_k(const row_block *t, attn_key_range used, int64_t key) {
  const attn_problem *p = t->problem;
  if (p->score == ATTN_SCORE_PRECOMPUTED) return;
  for (int64_t j = max64(used.begin, key); j < min64(used.end, key + KEYS); j++) {
    const int64_t offset = attn_key_run_at(p, t->args, &t->seq, t->head, j).k;
    const float scale = *attn_key_scales_at(p, t->args, &t->seq, t->head, j).k;
    for (int64_t d = 0; d < p->dim_qk; d++)
      t->k[d * KEYS + (j - key)] = scale * attn_load_f32(attn_k_storage(p, t->args), offset + d * p->k_stride.d);
  }
}

static inline void load_v(const row_block *t, attn_key_range used, int64_t key) {
  const attn_problem *p = t->problem;
  for (int64_t j = max64(used.begin, key); j < min64(used.end, key + KEYS); j++) {
    const int64_t offset = attn_key_run_at(p, t->args, &t->seq, t->head, j).v;
    const float scale = *attn_key_scales_at(p, t->args, &t->seq, t->head, j).v;
    for (int64_t d = 0; d < p->dim_v; d++)
      t->v[(j - key) * p->dim_v + d] = scale * attn_load_f32(attn_v_storage(p, t->args), offset + d * p->v_stride.d);
  }
}

/* S of the block's keys; score[i][j - key]. */
static inline void score_tile(row_block *t, int64_t key, float *score) {
  const int64_t dim_qk = t->problem->dim_qk;
  for (int64_t i = 0; i < t->rows; i++) {
    const attn_key_range keys = allowed_in(t, i, key);
    if (keys.begin >= keys.end) continue;
    float *s = score + i * t->score_stride + (keys.begin - key);
    t->scores.query = t->q + i * dim_qk;
    if (t->problem->score == ATTN_SCORE_PRECOMPUTED) {
      given_scores(&t->scores, t->first_row + i, keys, s);
    } else {
      memset(s, 0, (size_t)(keys.end - keys.begin) * sizeof *s);
      for (int64_t d = 0; d < dim_qk; d++) add_dimension(&t->scores, d, keys.begin - key, keys.end - keys.begin, s);
    }
    adjust_scores(&t->scores, t->first_row + i, keys, s);
  }
}

static inline float largest(const float *x, int64_t count, float so_far) {
  for (int64_t j = 0; j < count; j++) so_far = x[j] > so_far ? x[j] : so_far;
  return so_far;
}

/* x = exp(x - row_max); returns the sum added to `sum`. A row that has seen no selected key has row_max -inf and x -inf: P =
 * 0. */
static inline float exponentials(float *x, int64_t count, float row_max, float sum) {
  const float reference = row_max == -INFINITY ? 0.0f : row_max;
  for (int64_t j = 0; j < count; j++) {
    x[j] = expf(x[j] - reference);
    sum += x[j];
  }
  return sum;
}

/* acc += P V for the block's keys; V of keys that mask or bias take from the row is not touched. */
static inline void accumulate_tile(const row_block *t, int64_t key, const float *score) {
  const int64_t dim_v = t->problem->dim_v;
  const bool selects = has_selection(t->problem);
  for (int64_t i = 0; i < t->rows; i++) {
    const attn_key_range keys = allowed_in(t, i, key);
    float *restrict acc = t->acc + i * dim_v;
    for (int64_t j = keys.begin - key; j < keys.end - key; j++) {
      if (selects && !selected(&t->scores, t->first_row + i, key + j)) continue;
      const float p = score[i * t->score_stride + j] * kept(&t->scores, t->first_row + i, key + j);
      const float *restrict v = t->v + j * dim_v;
      for (int64_t c = 0; c < dim_v; c++) acc[c] += p * v[c];
    }
  }
}

/* Divides a row by its denominator; false if it does not come out finite. */
static inline bool divide_row(float *row, int64_t count, float denominator) {
  float poison = 0.0f; /* 0 * x is NaN for NaN and Inf */
  for (int64_t c = 0; c < count; c++) {
    row[c] /= denominator;
    poison += 0.0f * row[c];
  }
  return poison == 0.0f;
}

static inline void store_row(const row_block *t, int64_t i, const float *row, double lse) {
  const attn_problem *p = t->problem;
  const int64_t offset = attn_o_offset(p, &t->seq, t->b, t->head, t->first_row + i);
  for (int64_t d = 0; t->args->o && d < p->dim_v; d++)
    attn_store_f32(t->args->o, p->dtype_o, offset + d * p->o_stride.d, row[d]);
  if (t->args->lse) t->args->lse[attn_lse_offset(p, &t->seq, t->b, t->head, t->first_row + i)] = (float)lse;
}

static inline float denominator_of(const row_block *t, int64_t i) {
  if (!attn_uses(t->problem, ATTN_USE_SINKS)) return t->row_sum[i];
  return t->row_sum[i] + expf(t->args->sinks[t->head] - t->row_max[i]);
}

/* The row's state, and O and LSE over all keys so far. */
static inline void finish_state(const row_block *t, int64_t i) {
  const int64_t dim_v = t->problem->dim_v;
  float *acc = t->acc + i * dim_v, *state = state_of_row(t, i);
  const float sum = t->row_sum[i];
  memcpy(state, acc, (size_t)dim_v * sizeof(float));
  keep_sums(state, dim_v, 1, &sum);
  keep_reference(state, dim_v, isnan(sum) ? (double)NAN : LOG2_E_DOUBLE * (double)t->row_max[i]);
  if (sum != 0) divide_row(acc, dim_v, denominator_of(t, i));
  store_row(t, i, acc, sum == 0 ? -INFINITY : (double)t->row_max[i] + log((double)sum));
}

/* O = acc / (row_sum + sink) and LSE = row_max + log(row_sum); a row without keys gives 0 and -inf. A row that does not come
 * out finite is computed again on its own in double precision: sums of huge values overflow, or an input is not finite. */
static inline void finish_rows(const row_block *t) {
  const attn_problem *p = t->problem;
  for (int64_t i = 0; i < t->rows; i++) {
    float *acc = t->acc + i * p->dim_v;
    if (attn_uses(p, ATTN_USE_STATE)) {
      finish_state(t, i);
      continue;
    }
    if (t->range[i].begin >= t->range[i].end) {
      store_row(t, i, acc, -INFINITY);
      continue;
    }
    const float denominator = denominator_of(t, i);
    if (t->row_sum[i] > 0 && denominator < INFINITY && divide_row(acc, p->dim_v, denominator))
      store_row(t, i, acc, (double)t->row_max[i] + log((double)t->row_sum[i]));
    else
      attn_exact_row(p, t->args, t->b, t->head, t->first_row + i);
  }
}

#endif
