/* SPDX-License-Identifier: MIT */
/* A tile of 32 queries: which keys they see, their scores beyond the dot product, their references, and their output
 * rows. */
#ifndef ATTN_QUERY_TILE_AMX_H
#define ATTN_QUERY_TILE_AMX_H

#include "pack_amx.h"

#include "kernels/common/tiles/key_blocks.h"

typedef struct query_tile {
  int64_t row; /* in the task */
  attn_key_range range[TILE_QUERIES];
  int64_t all_begin, all_end;     /* keys that every query sees, as far as ranges tell */
  int64_t first_block, end_block; /* blocks that some query sees */
  float minus_ref[TILE_QUERIES], sum[TILE_QUERIES];
  float *o;       /* O^T */
  bool started;   /* o is in use */
  bool again;     /* some rows are not finite */
  uint32_t alone; /* bit i: query i is to be computed once more, without keys that other queries see */
  int64_t only;   /* the query that is, -1 = all are */
} query_tile;

/* Which keys the queries see. Rows beyond the last one repeat its range, so that they never make a block an edge. */
static void find_ranges(const row_block *block, query_tile *t) {
  const problem_row last = problem_row_of(block, t->row + TILE_QUERIES - 1);
  const bool one = attn_rows_see_alike(block->problem) && last.query < block->seq->len_q;
  attn_key_range range = {0, 0}, any = {INT64_MAX, 0}, all = {0, INT64_MAX};
  for (int64_t i = 0; i < TILE_QUERIES; i++) {
    if (i == 0 || !one) {
      range = attn_allowed_keys(block->problem, block->args, block->seq, block->b, problem_row_of(block, t->row + i).query);
      all = (attn_key_range){max64(all.begin, range.begin), min64(all.end, range.end)};
      any.begin = min64(any.begin, range.begin < range.end ? range.begin : INT64_MAX);
      any.end = max64(any.end, range.end);
    }
    t->range[i] = range;
  }
  t->all_begin = all.begin;
  t->all_end = all.end;
  t->first_block = any.begin < any.end ? any.begin / KEY_BLOCK : 0;
  t->end_block = any.begin < any.end ? blocks_of(any.end) : 0;
}

/* ---- Lists of key blocks ---- */

/* Lists that rows of one task may have: a list has 16 rows or more. */
static int64_t lists_of(int64_t rows) { return rows / HALF; }
_Static_assert((int)LEAST_BLOCK_QUERIES == (int)HALF && (int)LEAST_BLOCK_KEYS == (int)KEY_BLOCK, "half a tile has one list");

/* block->listed: [list][block of 64 keys], of which kind it is. */
static void mark_lists(const row_block *block) {
  const attn_problem *p = block->problem;
  const int64_t blocks = blocks_of(p->seq_k), size = p->block_keys / KEY_BLOCK;
  const int64_t first = block->first_row / p->block_queries, end = min64(block->first_row + block->rows, block->seq->len_q);
  for (int64_t list = first; list * p->block_queries < end && block->seq->len_k > 0; list++) {
    uint8_t *kinds = block->listed + (list - first) * blocks;
    memset(kinds, BLOCK_UNLISTED, (size_t)blocks);
    for (int full = 0; full < 2; full++) {
      const attn_key_list at = attn_key_list_of(p, block->args, full, block->b, block->head, list * p->block_queries);
      for (int64_t n = 0; n < at.count; n++) {
        const int64_t begin = at.at[n * at.step] * size;
        memset(kinds + begin, kind_of_list(p, full), (size_t)(min64(begin + size, blocks) - begin));
      }
    }
  }
}

/* The kind of a block of keys for a half of the tile; without lists it is that of the mask. */
static int kind_of_half(const row_block *block, const query_tile *t, int half, int64_t key_block) {
  const attn_problem *p = block->problem;
  const bool counts = (key_block + 1) * KEY_BLOCK > attn_first_masked(p, block->seq->len_k); /* the mask */
  if (!attn_lists_keys(p)) return counts ? kind_of_list(p, false) : BLOCK_FULL;
  const int64_t query = problem_row_of(block, t->row + half * HALF).query;
  const int64_t list = query / p->block_queries - block->first_row / p->block_queries;
  const int kind = block->listed[list * blocks_of(p->seq_k) + key_block];
  return kind == BLOCK_MASKED && !counts ? BLOCK_FULL : kind;
}

static bool both_halves_are(const row_block *block, const query_tile *t, int64_t key_block, int kind) {
  return kind_of_half(block, t, 0, key_block) == kind && kind_of_half(block, t, 1, key_block) == kind;
}

/* Leaves out blocks at both ends that no row of the tile visits. */
static void trim_blocks(const row_block *block, query_tile *t) {
  while (t->first_block < t->end_block && both_halves_are(block, t, t->end_block - 1, BLOCK_UNLISTED)) t->end_block--;
  while (t->first_block < t->end_block && both_halves_are(block, t, t->first_block, BLOCK_UNLISTED)) t->first_block++;
}

/* ---- Before the first key ---- */

static float *state_of_query(const row_block *block, const query_tile *t, int64_t i) {
  const problem_row at = problem_row_of(block, t->row + i);
  return block->args->state + attn_state_offset(block->problem, block->seq, block->b, at.head, at.query);
}

/* Query i goes on from its state, as load_state() of rows_io.h does, but from a reference that is a whole number: states of
 * other kernels may have any. */
static void load_query_state(const row_block *block, query_tile *t, int64_t i) {
  const int64_t dim_v = block->problem->dim_v;
  const float *state = state_of_query(block, t, i);
  const double reference = kept_reference(state, dim_v);
  if (reference == -INFINITY) return;
  const float near = isnan(reference) ? 0.0f : ceilf((float)reference), factor = exp2f((float)(reference - (double)near));
  const float weight = isnan(factor) ? 1.0f : factor;
  t->minus_ref[i] = -near;
  kept_sums(state, dim_v, 1, &t->sum[i]);
  t->sum[i] *= weight;
  for (int64_t d = 0; d < dim_v; d++) t->o[d * TILE_QUERIES + i] = weight * state[d];
}

static void load_tile_states(const row_block *block, query_tile *t) {
  memset(t->o, 0, (size_t)(depth_of(block->problem->dim_v) * DEPTH * TILE_QUERIES) * sizeof(float));
  for (int64_t i = 0; i < min64(TILE_QUERIES, block->rows - t->row); i++) load_query_state(block, t, i);
  t->started = true;
}

static void start_tile(const row_block *block, int64_t row, float *o, query_tile *t) {
  t->row = row;
  t->o = o;
  t->started = t->again = false;
  t->alone = 0;
  t->only = -1;
  find_ranges(block, t);
  for (int64_t i = 0; i < TILE_QUERIES; i++) {
    t->minus_ref[i] = -FIRST_REFERENCE;
    t->sum[i] = 0;
  }
  if (attn_uses(block->problem, ATTN_USE_STATE)) load_tile_states(block, t);
  if (attn_lists_keys(block->problem)) trim_blocks(block, t);
}

/* ---- Keys that a query sees ---- */

static inline uint64_t low_bits(int64_t n) { return n >= 64 ? ~(uint64_t)0 : n <= 0 ? 0 : ((uint64_t)1 << n) - 1; }

/* Bit j of a row: the mask leaves key j to it. `mask` is the byte of the first row and key, `rows` how many rows there are;
 * further rows repeat the last one. Here of 64 adjacent keys; fetches the rows' next ones. */
static ALWAYS_INLINE void masked_block(const uint8_t *mask, int64_t stride, const int64_t rows,
                                       uint64_t bits[TILE_QUERIES]) {
  UNROLL
  for (int64_t i = 0; i < TILE_QUERIES; mask += ++i < rows ? stride : 0) {
    bits[i] = _mm512_test_epi8_mask(_mm512_set1_epi8(-1), _mm512_loadu_si512(mask));
    __builtin_prefetch(mask + KEY_BLOCK);
  }
}

/* The same of `keys` keys, or the first 64 of them. */
static ALWAYS_INLINE void masked_keys(const uint8_t *mask, const attn_score_strides *stride, int64_t rows, int64_t keys,
                                      uint64_t bits[TILE_QUERIES]) {
  if (stride->k == 1 && keys >= KEY_BLOCK) {
    if (rows >= TILE_QUERIES)
      masked_block(mask, stride->q, TILE_QUERIES, bits);
    else
      masked_block(mask, stride->q, rows, bits);
    return;
  }
  for (int64_t i = 0; i < TILE_QUERIES; mask += ++i < rows ? stride->q : 0) {
    bits[i] = 0;
    for (int64_t j = 0; j < min64(keys, KEY_BLOCK); j++) bits[i] |= (uint64_t)(mask[j * stride->k] != 0) << j;
  }
}

/* Element of row `row` and key `key` in a bias or mask. */
static int64_t score_offset_of(const row_block *block, const attn_score_strides *stride, int64_t row, int64_t key) {
  const problem_row at = problem_row_of(block, row);
  return attn_score_offset(stride, block->b, at.head, at.query, key);
}

/* The same of the block from `key` on, by args.mask. */
static void unmasked_keys(const row_block *block, int64_t row, int64_t key, uint64_t bits[TILE_QUERIES]) {
  const attn_score_strides *stride = &block->problem->mask_stride;
  const int64_t column = key - attn_first_masked(block->problem, block->seq->len_k), open = max64(-column, 0);
  if (open < KEY_BLOCK)
    masked_keys(block->args->mask + score_offset_of(block, stride, row, max64(column, 0)), stride, block->rows - row,
                block->seq->len_k - key - open, bits);
  for (int64_t i = 0; open > 0 && i < TILE_QUERIES; i++)
    bits[i] = open < KEY_BLOCK ? bits[i] << open | low_bits(open) : ~(uint64_t)0;
}

/* Bit j: the bias of key `key` + j leaves it to the row. Bias hides its keys by their scores (adjust_block), so bits tell of
 * it only where V of hidden keys must be left alone. */
static uint64_t unbiased_keys(const row_block *block, int64_t row, int64_t key) {
  const attn_score_strides *stride = &block->problem->bias_stride;
  const float *bias = block->args->bias + score_offset_of(block, stride, row, key);
  uint64_t bits = 0;
  for (int64_t j = 0; j < min64(block->seq->len_k - key, KEY_BLOCK); j++)
    bits |= (uint64_t) !(bias[j * stride->k] == -INFINITY) << j;
  return bits;
}

/* Whether bias takes the whole block from all rows of the tile: nothing of it need be computed. Mostly one look tells. */
static bool bias_takes_all(const row_block *block, const query_tile *t, int64_t key) {
  const attn_problem *p = block->problem;
  const int64_t keys = min64(block->seq->len_k - key, KEY_BLOCK), rows = min64(block->rows - t->row, TILE_QUERIES);
  if (!attn_uses(p, ATTN_USE_BIAS)) return false;
  for (int64_t i = 0; i < rows; i++) {
    const float *bias = block->args->bias + score_offset_of(block, &p->bias_stride, t->row + i, key);
    for (int64_t j = 0; j < keys; j++)
      if (!(bias[j * p->bias_stride.k] == -INFINITY)) return false;
  }
  return true;
}

/* visible[key / 32][query]: bit j of a word is key j. Returns whether any bit is set. */
static NO_INLINE bool visible_keys(const row_block *block, const query_tile *t, int64_t key, uint32_t *visible) {
  const attn_problem *p = block->problem;
  uint64_t bits[TILE_QUERIES];
  if (attn_uses(p, ATTN_USE_MASK))
    unmasked_keys(block, t->row, key, bits);
  else
    memset(bits, 0xff, sizeof bits);
  for (int half = 0; half < 2; half++) {
    const int kind = kind_of_half(block, t, half, key / KEY_BLOCK);
    if (kind != BLOCK_MASKED) memset(bits + half * HALF, kind == BLOCK_FULL ? 0xff : 0, HALF * sizeof *bits);
  }
  if (t->all_begin > key || key + KEY_BLOCK > t->all_end)
    for (int64_t i = 0; i < TILE_QUERIES; i++)
      bits[i] &= low_bits(t->range[i].end - key) & ~low_bits(t->range[i].begin - key);
  for (int64_t i = 0; t->only >= 0 && i < TILE_QUERIES; i++) bits[i] = i == t->only ? bits[i] : 0;
  for (int64_t i = 0; block->careful && attn_uses(p, ATTN_USE_BIAS) && i < TILE_QUERIES; i++)
    bits[i] &= unbiased_keys(block, t->row + i, key);
  __m512i any = _mm512_setzero_si512();
  for (int64_t i = 0; i < TILE_QUERIES; i += 8) {
    const __m512i row = _mm512_loadu_si512(bits + i);
    _mm256_storeu_si256((__m256i *)(void *)(visible + i), _mm512_cvtepi64_epi32(row));
    _mm256_storeu_si256((__m256i *)(void *)(visible + TILE_QUERIES + i), _mm512_cvtepi64_epi32(_mm512_srli_epi64(row, 32)));
    any = _mm512_or_si512(any, row);
  }
  return _mm512_test_epi64_mask(any, any) != 0;
}

/* ---- Scores that are more than dot products ---- */

/* Further terms of the scores of 16 rows and 16 keys: bias, softcap and ALiBi. */
typedef struct further_terms {
  const float *bias; /* bias of the first row and key, NULL if there is none */
  int64_t row_stride, key_stride;
  int64_t rows, keys; /* rows and keys that exist; further rows repeat the last one, further keys have none */
  vec scale, cap, slope;
  bool has_cap, has_alibi;
} further_terms;

/* 16 keys of a bias for 16 rows, keys down and rows across. Fetches the rows' next block. */
static ALWAYS_INLINE void load_bias(const further_terms *w, vec bias[HALF]) {
  UNROLL
  for (int i = 0; i < HALF; i++) {
    const float *at = w->bias + min64(i, w->rows - 1) * w->row_stride;
    if (w->key_stride == 1 && w->keys >= HALF) {
      bias[i] = vec_load(at);
      __builtin_prefetch(at + KEY_BLOCK);
      continue;
    }
    float lanes[HALF] = {0};
    for (int64_t j = 0; j < min64(w->keys, HALF); j++) lanes[j] = at[j * w->key_stride];
    bias[i] = vec_load(lanes);
  }
  vec_transpose(bias);
}

/* Turns 16 keys of 16 queries into scores, in place: times scale, softcap, bias and ALiBi, in log2 units. A bias of -inf
 * hides its key, whatever the product is. */
static ALWAYS_INLINE void adjust_square(const further_terms *w, vec distance, float *s, const bool has_bias) {
  vec bias[HALF];
  if (has_bias) load_bias(w, bias);
  UNROLL
  for (int n = 0; n < HALF; n++) {
    float *at = s + n * TILE_QUERIES;
    vec x = vec_mul(vec_load(at), w->scale);
    if (w->has_cap) x = vec_mul(w->cap, vec_tanh(vec_div(x, w->cap)));
    if (has_bias) x = vec_unless_masked(vec_fma(vec_set1(LOG2_E), bias[n], x), bias[n]);
    if (w->has_alibi) x = vec_sub(x, vec_mul(w->slope, vec_abs(vec_sub(distance, vec_set1((float)n)))));
    vec_store(at, x);
  }
}

/* i + offset - key of 16 rows from row i on. */
static vec distances(const row_block *block, int64_t i, int64_t key) {
  float distance[HALF];
  for (int n = 0; n < HALF; n++) distance[n] = (float)(problem_row_of(block, i + n).query + block->seq->offset - key);
  return vec_load(distance);
}

/* Turns dot products of a block into scores, in place. */
static NO_INLINE void adjust_block(const row_block *block, int64_t row, int64_t key, float *s) {
  const attn_problem *p = block->problem;
  const attn_args *args = block->args;
  const bool has_bias = attn_uses(p, ATTN_USE_BIAS), has_alibi = attn_uses(p, ATTN_USE_ALIBI);
  further_terms w = {.row_stride = p->bias_stride.q,
                     .key_stride = p->bias_stride.k,
                     .scale = vec_set1(p->scale * LOG2_E),
                     .cap = vec_set1(p->softcap * LOG2_E),
                     .slope = vec_set1(has_alibi ? args->alibi_slopes[problem_row_of(block, row).head] * LOG2_E : 0),
                     .has_cap = p->softcap > 0,
                     .has_alibi = has_alibi};
  for (int64_t half = 0; half < TILE_QUERIES; half += HALF)
    for (int64_t j = 0; j < KEY_BLOCK; j += HALF) {
      const vec distance = has_alibi ? distances(block, row + half, key + j) : vec_zero();
      float *at = s + j * TILE_QUERIES + half;
      w.rows = max64(block->rows - row - half, 1);
      w.keys = block->seq->len_k - key - j;
      if (!has_bias || w.keys <= 0) {
        adjust_square(&w, distance, at, false);
        continue;
      }
      w.bias = args->bias + score_offset_of(block, &p->bias_stride, row + half, key + j);
      adjust_square(&w, distance, at, true);
    }
}

/* ---- References ---- */

/* The queries of a half that see any key of a block. */
static __mmask16 sees_block(const uint32_t *visible, int half) {
  const __m512i low = _mm512_loadu_si512(visible + half * HALF),
                high = _mm512_loadu_si512(visible + TILE_QUERIES + half * HALF);
  const __m512i both = _mm512_or_si512(low, high);
  return _mm512_test_epi32_mask(both, both);
}

/* For each query of a half, the largest score among the keys that it sees. `visible`: NULL if it sees all. */
static vec largest_scores(const float *s, const uint32_t *visible, int half) {
  vec best = vec_set1(-INFINITY);
  for (int key = 0; key < KEY_BLOCK; key++) {
    const vec x = vec_load(s + key * TILE_QUERIES + half * HALF);
    const __mmask16 sees = visible ? sees_key(visible, half, key) : (__mmask16)-1;
    best = vec_max(_mm512_mask_mov_ps(vec_set1(-INFINITY), sees, x), best);
  }
  return best;
}

/* Gives the queries `moving` of a half the reference `largest`, rounded up, and scales what they have summed by the same
 * power of 2. */
static void move_half(query_tile *t, int half, __mmask16 moving, vec largest, int64_t depth_v) {
  const vec before = vec_load(t->minus_ref + half * HALF), sum = vec_load(t->sum + half * HALF);
  const vec up = _mm512_roundscale_ps(largest, 0x0a); /* to whole numbers, no exceptions */
  moving &= _mm512_cmp_ps_mask(vec_abs(up), vec_set1(INFINITY), _CMP_LT_OQ);
  const vec after = _mm512_mask_mov_ps(before, moving, vec_sub(vec_zero(), up));
  const __mmask16 summed = moving & _mm512_cmp_ps_mask(sum, vec_zero(), _CMP_NEQ_UQ);
  const vec factor = _mm512_mask_mov_ps(vec_set1(1), summed, vec_exp2(vec_sub(after, before)));
  vec_store(t->minus_ref + half * HALF, after);
  vec_store(t->sum + half * HALF, vec_mul(sum, factor));
  for (int64_t d = 0; t->started && d < depth_v * DEPTH; d++) {
    float *o = t->o + d * TILE_QUERIES + half * HALF;
    vec_store(o, vec_mul(vec_load(o), factor));
  }
}

/* ---- Rows out ---- */

/* O^T / denominator for 16 queries of one dimension. -0 becomes 0, because its sign would tell whether unseen keys had added
 * their 0. `poison` becomes NaN where the result is not finite: 0 x is NaN for NaN and infinities. */
static ALWAYS_INLINE vec divided(const float *o, vec inverse, vec *poison) {
  const vec x = vec_fma(vec_load(o), inverse, vec_zero());
  *poison = vec_fma(x, vec_zero(), *poison);
  return x;
}

/* 16 values of a and of b as bfloat16, side by side in pairs. */
static ALWAYS_INLINE vec pairs_of(vec a, vec b) {
  static const uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512bh narrow = _mm512_cvtne2ps_pbh(b, a);
  __m512i bits;
  memcpy(&bits, &narrow, sizeof bits);
  return _mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_loadu_si512(order), bits));
}

/* Where 16 rows of a tile begin in O, and how many there are. */
typedef struct output_rows {
  int64_t count, first, stride;
} output_rows;

/* Stores 16 rows of adjacent elements. Returns NaN in the lanes of rows that are not finite. */
static NO_INLINE vec store_f32(const row_block *block, const float *o, vec inverse, output_rows rows) {
  vec poison = vec_zero();
  float *to = (float *)block->args->o + rows.first;
  for (int64_t d = 0; d < block->problem->dim_v; d += HALF) {
    vec r[HALF];
    UNROLL
    for (int i = 0; i < HALF; i++) r[i] = divided(o + (d + i) * TILE_QUERIES, inverse, &poison);
    vec_transpose(r);
    const __mmask16 columns = first_lanes(min64(block->problem->dim_v - d, HALF));
    UNROLL
    for (int i = 0; i < HALF; i++)
      if (i < rows.count) _mm512_mask_storeu_ps(to + i * rows.stride + d, columns, r[i]);
  }
  return poison;
}

static NO_INLINE vec store_bf16(const row_block *block, const float *o, vec inverse, output_rows rows) {
  vec poison[2] = {vec_zero(), vec_zero()};
  uint16_t *to = (uint16_t *)block->args->o + rows.first;
  for (int64_t d = 0; d < block->problem->dim_v; d += DEPTH) {
    vec r[HALF];
    UNROLL
    for (int i = 0; i < HALF; i++) {
      const float *at = o + (d + 2 * i) * TILE_QUERIES;
      r[i] = pairs_of(divided(at, inverse, &poison[0]), divided(at + TILE_QUERIES, inverse, &poison[1]));
    }
    vec_transpose(r);
    const __mmask32 columns = (__mmask32)low_bits(min64(block->problem->dim_v - d, DEPTH));
    UNROLL
    for (int i = 0; i < HALF; i++)
      if (i < rows.count) _mm512_mask_storeu_epi16(to + i * rows.stride + d, columns, _mm512_castps_si512(r[i]));
  }
  return vec_add(poison[0], poison[1]);
}

/* Rows whose elements are not adjacent. */
static NO_INLINE vec store_strided(const row_block *block, const float *o, vec inverse, output_rows rows) {
  const attn_problem *p = block->problem;
  vec poison = vec_zero();
  for (int64_t d = 0; d < p->dim_v; d++) {
    float x[HALF];
    vec_store(x, divided(o + d * TILE_QUERIES, inverse, &poison));
    for (int64_t i = 0; i < rows.count; i++)
      attn_store_f32(block->args->o, p->dtype_o, rows.first + i * rows.stride + d * p->o_stride.d, x[i]);
  }
  return poison;
}

/* The rows of a half: O = O^T / denominator. Returns which of them are finite. */
static __mmask16 store_half(const row_block *block, const query_tile *t, int half, int64_t count, vec inverse) {
  const attn_problem *p = block->problem;
  const problem_row at = problem_row_of(block, t->row + half * HALF);
  const output_rows rows = {
      .count = count, .first = attn_o_offset(p, block->seq, block->b, at.head, at.query), .stride = p->o_stride.s};
  const float *o = t->o + half * HALF;
  const vec poison = p->o_stride.d != 1        ? store_strided(block, o, inverse, rows)
                     : p->dtype_o == ATTN_BF16 ? store_bf16(block, o, inverse, rows)
                                               : store_f32(block, o, inverse, rows);
  return _mm512_cmp_ps_mask(poison, poison, _CMP_ORD_Q);
}

/* Row i of the tile without any key: O = 0, LSE = -inf. */
static void store_empty(const row_block *block, const query_tile *t, int64_t i) {
  const attn_problem *p = block->problem;
  const problem_row at = problem_row_of(block, t->row + i);
  const int64_t offset = attn_o_offset(p, block->seq, block->b, at.head, at.query);
  for (int64_t d = 0; d < p->dim_v; d++) attn_store_f32(block->args->o, p->dtype_o, offset + d * p->o_stride.d, 0.0f);
  store_lse(block, t->row + i, -INFINITY);
}

/* Settles the rows of a half that are not `good`, whatever has been stored for them. An O that is not finite may
 * have met NaN or infinity in V of a key that no query of the tile sees, whose weight is 0: `again` asks for a careful
 * second try without those, `alone` for a third one without those that another query sees. What is not finite then either
 * (an input, an overflow) is computed in double precision. */
static void settle_rows_left(const row_block *block, query_tile *t, int half, __mmask16 good, __mmask16 weighted) {
  for (int64_t i = 0; i < HALF && t->row + half * HALF + i < block->rows; i++) {
    const int64_t lane = half * HALF + i;
    const problem_row at = problem_row_of(block, t->row + lane);
    if (t->range[lane].begin >= t->range[lane].end)
      store_empty(block, t, lane);
    else if (good >> i & 1)
      continue;
    else if (weighted >> i & 1 && block->first_try)
      t->again = true;
    else if (weighted >> i & 1)
      t->alone |= 1u << lane;
    else
      attn_exact_row(block->problem, block->args, block->b, at.head, at.query);
  }
}

static void store_lse_half(const row_block *block, const query_tile *t, int half, __mmask16 good) {
  if (!attn_uses(block->problem, ATTN_USE_LSE)) return;
  for (int64_t i = half * HALF; i < (half + 1) * HALF; i++)
    if (good >> (i - half * HALF) & 1) store_lse(block, t->row + i, log((double)t->sum[i]) - LN_2 * (double)t->minus_ref[i]);
}

/* Query i's state, and O and LSE over all keys so far. */
static void finish_state(const row_block *block, const query_tile *t, int64_t i) {
  const attn_problem *p = block->problem;
  const problem_row at = problem_row_of(block, t->row + i);
  const int64_t offset = attn_o_offset(p, block->seq, block->b, at.head, at.query);
  const float sum = t->sum[i], sink = attn_uses(p, ATTN_USE_SINKS) ? block->args->sinks[at.head] * LOG2_E : -INFINITY;
  float *state = state_of_query(block, t, i), lanes[VEC_LANES];
  for (int64_t d = 0; d < p->dim_v; d++) state[d] = t->o[d * TILE_QUERIES + i];
  keep_sums(state, p->dim_v, 1, &sum);
  keep_reference(state, p->dim_v, isnan(sum) ? (double)NAN : sum == 0 ? -INFINITY : -(double)t->minus_ref[i]);
  vec_store(lanes, vec_exp2(vec_set1(sink + t->minus_ref[i])));
  const float denominator = attn_uses(p, ATTN_USE_SINKS) ? sum + lanes[0] : sum;
  double exact = 1; /* beside a sink that exceeds float */
  if (isinf(denominator)) exact = (double)sum + exp2((double)sink + (double)t->minus_ref[i]);
  vec_store(lanes, vec_div(vec_set1(1), vec_set1(denominator)));
  for (int64_t d = 0; block->args->o && d < p->dim_v; d++) {
    const float o = isinf(denominator) ? (float)((double)state[d] / exact) : fmaf(state[d], lanes[0], 0.0f);
    attn_store_f32(block->args->o, p->dtype_o, offset + d * p->o_stride.d, sum == 0 ? 0.0f : o);
  }
  if (block->args->lse)
    store_lse(block, t->row + i, sum == 0 ? -INFINITY : log((double)sum) - LN_2 * (double)t->minus_ref[i]);
}

static bool query_is_finite(const query_tile *t, int64_t i, int64_t dim_v) {
  float poison = 0;
  for (int64_t d = 0; d < dim_v; d++) poison += 0 * t->o[d * TILE_QUERIES + i];
  return poison == 0;
}

/* finish_tile where keys come in pieces: what is not finite when its query is alone stays as the arithmetic gave it. */
static NO_INLINE void finish_tile_states(const row_block *block, query_tile *t) {
  const int64_t queries = min64(TILE_QUERIES, block->rows - t->row), dim_v = block->problem->dim_v;
  if (t->only >= 0) {
    finish_state(block, t, t->only);
    return;
  }
  for (int64_t i = 0; i < queries; i++)
    if (t->first_block < t->end_block && !query_is_finite(t, i, dim_v)) t->alone |= 1u << i;
  t->again = block->first_try && t->alone;
  for (int64_t i = 0; !t->again && i < queries; i++)
    if (!(t->alone >> i & 1)) finish_state(block, t, i);
}

/* Denominators of the rows of a half. */
static vec row_denominators(const row_block *block, const query_tile *t, int half) {
  const vec sum = vec_load(t->sum + half * HALF), minus_ref = vec_load(t->minus_ref + half * HALF);
  if (!attn_uses(block->problem, ATTN_USE_SINKS)) return sum;
  const float sink = block->args->sinks[problem_row_of(block, t->row).head] * LOG2_E;
  return vec_add(sum, vec_exp2(vec_add(vec_set1(sink), minus_ref)));
}

/* The row of the query that was alone. */
static void finish_row_alone(const row_block *block, const query_tile *t) {
  const attn_problem *p = block->problem;
  const int half = (int)(t->only / HALF), lane = (int)(t->only % HALF);
  const problem_row at = problem_row_of(block, t->row + t->only);
  const int64_t offset = attn_o_offset(p, block->seq, block->b, at.head, at.query);
  const vec inverse = vec_div(vec_set1(1), row_denominators(block, t, half));
  vec poison = vec_zero();
  float x[HALF];
  for (int64_t d = 0; d < p->dim_v; d++) {
    vec_store(x, divided(t->o + d * TILE_QUERIES + half * HALF, inverse, &poison));
    attn_store_f32(block->args->o, p->dtype_o, offset + d * p->o_stride.d, x[lane]);
  }
  vec_store(x, poison);
  store_lse_half(block, t, half, (__mmask16)(1u << lane));
  if (isnan(x[lane])) attn_exact_row(p, block->args, block->b, at.head, at.query);
}

/* O = O^T / sum and LSE = reference + log(sum). A row without keys gives 0 and -inf. */
static NO_INLINE void finish_tile(const row_block *block, query_tile *t) {
  const attn_problem *p = block->problem;
  if (attn_uses(p, ATTN_USE_STATE)) {
    finish_tile_states(block, t);
    return;
  }
  if (t->only >= 0) {
    finish_row_alone(block, t);
    return;
  }
  for (int half = 0; half < 2 && t->row + half * HALF < block->rows; half++) {
    const int64_t rows = min64(block->rows - t->row - half * HALF, HALF);
    const vec sum = vec_load(t->sum + half * HALF), denominator = row_denominators(block, t, half);
    const vec inverse = vec_div(vec_set1(1), denominator);
    const __mmask16 weighted = first_lanes(rows) & _mm512_cmp_ps_mask(sum, vec_zero(), _CMP_GT_OQ) &
                               _mm512_cmp_ps_mask(denominator, vec_set1(INFINITY), _CMP_LT_OQ);
    const __mmask16 good = t->started ? weighted & store_half(block, t, half, rows, inverse) : 0;
    store_lse_half(block, t, half, good);
    if (good != first_lanes(rows)) settle_rows_left(block, t, half, good, weighted);
  }
}

#endif
