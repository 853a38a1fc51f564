/* SPDX-License-Identifier: MIT */
/* decode's products with integers: up to 8 query rows against 64 keys of int8, q8_0 or q4_0, K and V in place.
 *
 *   S = Q K^T   Q is rounded to int8, with one factor a row. VPDPBUSD adds the products of 4 integers of 16 keys with 4 of a
 *               row: keys are in lanes, so nothing is added across lanes, and a block's factors are a vector. It takes 64
 *               products at a time where a multiply-add takes 16, and no value of K is converted.
 *   O += P V    in float32. P takes the factors of V's blocks, 16 keys at a time, so that V is converted without them.
 *
 * Groups of 16 keys begin at absolute indices. One that has fewer is copied, with zeros where no key is. */
#ifndef ATTN_FEW_ROWS_AVX512VNNI_H
#define ATTN_FEW_ROWS_AVX512VNNI_H

#include "integer_scores_avx512vnni.h"
#include "integer_sums_avx512vnni.h"

#define DECODE_PRODUCTS /* decode.h takes the functions of this file */

/* Offsets in bytes, and the size. */
typedef struct products_layout {
  int64_t q_words, q_offsets, q_factors, k, v, total;
} products_layout;

static int64_t decode_capacity(int64_t rows) { return round_up(rows, MOST_TILE_ROWS); }
static int64_t decode_columns(const attn_problem *p) { return round_up(p->dim_v, BLOCK_VALUES); }

/* Rows of the next call: there are functions for 8, 4, 2 and 1. Others are taken with rows of zeros behind them. */
static int64_t rows_at_once(int64_t rows) { return rows > 4 ? 8 : rows > 2 ? 4 : rows; }

static int64_t padded_rows(int64_t rows) {
  return round_down(rows, MOST_TILE_ROWS) + (rows % MOST_TILE_ROWS ? rows_at_once(rows % MOST_TILE_ROWS) : 0);
}

static bool products_layout_of(const attn_problem *p, const attn_machine *machine, int64_t capacity, products_layout *at) {
  (void)machine;
  const int64_t blocks = ceil_div(p->dim_qk, BLOCK_VALUES);
  const memory_part parts[] = {
      {&at->q_words, capacity, blocks * BLOCK_VALUES},
      {&at->q_offsets, capacity, blocks * (int64_t)sizeof(int32_t)},
      {&at->q_factors, capacity, float_bytes(1)},
      {&at->k, GROUPS * GROUP_KEYS, attn_elements_bytes(p->dtype_kv, p->dim_qk)},
      {&at->v, GROUPS * GROUP_KEYS, attn_elements_bytes(p->dtype_kv, p->dim_v)},
  };
  at->total = 0;
  return LAY_OUT(parts, &at->total);
}

/* ---- Queries ---- */

/* The largest magnitude of a row of Q, whole vectors. NaN and infinities are larger than numbers. */
static float largest_of(const float *q, int64_t dim) {
  __m512i largest = _mm512_setzero_si512();
  for (int64_t d = 0; d < dim; d += VEC_LANES)
    largest = _mm512_max_epi32(largest, _mm512_castps_si512(vec_abs(vec_load(q + d))));
  return attn_f32_of_bits((uint32_t)_mm512_reduce_max_epi32(largest));
}

/* Rounds row `row` of the block; it is row r of `step` rows whose words and offsets are these. A row that is not finite gets
 * the factor NaN, so that it is computed again in double precision. */
static void round_row(const products *work, const row_block *block, int64_t row, int64_t r, int64_t step, int32_t *words,
                      int32_t *offsets) {
  const attn_problem *p = block->problem;
  const int64_t dim = round_up(p->dim_qk, VEC_LANES), blocks = ceil_div(p->dim_qk, BLOCK_VALUES);
  const int32_t moved = p->dtype_kv == ATTN_Q4_0 ? 8 : 128;
  const float *q = block->q + row * block->q_stride;
  const float largest = largest_of(q, dim), lift = largest < 0x1p-60f ? 0x1p90f : 1.0f; /* or the inverse might overflow */
  const bool finite = largest <= FLT_MAX;
  const vec inverse = vec_set1(finite && largest > 0 ? MOST_INTEGER / (largest * lift) : 0.0f), lifts = vec_set1(lift);
  for (int64_t b = 0; b < blocks; b++) offsets[b * step + r] = 0;
  for (int64_t d = 0; d < blocks * BLOCK_VALUES; d += VEC_LANES, words += VEC_LANES / 4 * step) {
    int8_t integers[VEC_LANES];
    int32_t sum = 0;
    const vec x = d < dim && finite ? vec_mul(vec_load(q + d), lifts) : vec_zero();
    const __m128i rounded = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(vec_mul(x, inverse)));
    _mm_storeu_si128((__m128i *)(void *)integers, rounded);
    for (int i = 0; i < VEC_LANES; i++) sum += integers[i];
    for (int w = 0; w < VEC_LANES / 4; w++) memcpy(words + w * step + r, integers + 4 * w, sizeof *words);
    offsets[(p->dtype_kv == ATTN_I8 ? 0 : d / BLOCK_VALUES) * step + r] -= moved * sum;
  }
  work->q_factors[row] = finite ? largest / MOST_INTEGER : NAN;
}

static products start_products(const row_block *block, const products_layout *at, void *memory) {
  const products work = {.q_words = (int32_t *)(void *)floats_at(memory, at->q_words),
                         .q_offsets = (int32_t *)(void *)floats_at(memory, at->q_offsets),
                         .q_factors = floats_at(memory, at->q_factors),
                         .k_copy = (char *)memory + at->k,
                         .v_copy = (char *)memory + at->v};
  const int64_t blocks = ceil_div(block->problem->dim_qk, BLOCK_VALUES);
  for (int64_t row = 0, step; row < block->rows; row += step) {
    step = rows_at_once(block->rows - row);
    for (int64_t r = 0; r < step; r++)
      round_row(&work, block, row + r, r, step, work.q_words + row * blocks * BLOCK_WORDS, work.q_offsets + row * blocks);
  }
  return work;
}

/* ---- Keys ---- */

/* The group from key `first` on, whose keys that are there begin at `from`: its own rows; or a copy, with zeros where no key
 * is, outside [begin, end) or not seen by `row`, if that is not -1. bytes: of a row. */
static byte_rows take_group(const products *work, const row_block *block, int64_t first, byte_rows from, int64_t bytes,
                            int64_t row, char *copy) {
  if (row < 0 && first >= work->begin && first + GROUP_KEYS <= work->end) return from;
  copy += (first - work->first) * bytes;
  for (int64_t key = first; key < first + GROUP_KEYS; key++) {
    const bool there = key >= work->begin && key < work->end && (row < 0 || row_sees(block, row, key));
    char *to = copy + (key - first) * bytes;
    if (there)
      memcpy(to, from.at + (key - max64(first, work->begin)) * from.stride, (size_t)bytes);
    else
      memset(to, 0, (size_t)bytes);
  }
  return (byte_rows){copy, bytes};
}

static attn_key_run run_from(const products *work, const row_block *block, int64_t first) {
  return attn_key_run_at(block->problem, block->args, block->seq, block->head, max64(first, work->begin));
}

static byte_rows rows_at(attn_storage from, int64_t first, int64_t stride) {
  return (byte_rows){attn_element_at(from.data, from.dtype, first), attn_elements_bytes(from.dtype, stride)};
}

static byte_rows take_k(const products *work, const row_block *block, int64_t first) {
  const attn_problem *p = block->problem;
  const byte_rows k = rows_at(attn_k_storage(p, block->args), run_from(work, block, first).k, p->k_stride.s);
  return take_group(work, block, first, k, attn_elements_bytes(p->dtype_kv, p->dim_qk), -1, work->k_copy);
}

static byte_rows take_v(const products *work, const row_block *block, int64_t first, int64_t row) {
  const attn_problem *p = block->problem;
  const byte_rows v = rows_at(attn_v_storage(p, block->args), run_from(work, block, first).v, p->v_stride.s);
  return take_group(work, block, first, v, attn_elements_bytes(p->dtype_kv, p->dim_v), row, work->v_copy);
}

/* Before the rows of a block meet the keys [begin, end). */
static void take_keys(products *work, const row_block *block, int64_t begin, int64_t end, bool picks) {
  const attn_problem *p = block->problem;
  const attn_dtype dtype = p->dtype_kv;
  work->first = round_down(begin, DECODE_KEYS);
  work->begin = begin;
  work->end = end;
  work->from = (int)(begin - work->first) / GROUP_KEYS;
  work->to = (int)ceil_div(end - work->first, GROUP_KEYS);
  work->picks = picks;
  for (int group = work->from; group < work->to; group++) {
    const int64_t first = work->first + group * GROUP_KEYS;
    work->k[group] = take_k(work, block, first);
    work->v[group] = take_v(work, block, first, -1);
  }
  const line_rows k = {work->k[work->from].at, attn_elements_bytes(dtype, p->dim_qk),
                       attn_elements_bytes(dtype, p->k_stride.s), line_step(dtype)};
  const line_rows v = {work->v[work->from].at, attn_elements_bytes(dtype, p->dim_v),
                       attn_elements_bytes(dtype, p->v_stride.s), line_step(dtype)};
  work->next = prefetch_of(k, v, DECODE_KEYS, end - begin == DECODE_KEYS ? PREFETCH_NEAR : PREFETCH_NONE, false);
}

/* ---- What tasks call ---- */

typedef void few_function(products *work, const row_block *block, int64_t tile_row);

#define FEW_ROWS(count, type)                                                                              \
  static NO_INLINE void score_##count##_##type(products *work, const row_block *block, int64_t tile_row) { \
    score_few(work, block, tile_row, (few_kind){count, ATTN_##type});                                      \
  }                                                                                                        \
  static NO_INLINE void sum_##count##_##type(products *work, const row_block *block, int64_t tile_row) {   \
    sum_few(work, block, tile_row, (few_kind){count, ATTN_##type});                                        \
  }
#define ALL_ROWS(type) FEW_ROWS(1, type) FEW_ROWS(2, type) FEW_ROWS(4, type) FEW_ROWS(8, type)
ALL_ROWS(I8)
ALL_ROWS(Q8_0)
ALL_ROWS(Q4_0)

/* Those of 1, 2, 4 and 8 rows. */
typedef few_function *const few_functions[ATTN_DTYPE_COUNT][4];
#define FUNCTIONS(name, type) [ATTN_##type] = {name##_1_##type, name##_2_##type, name##_4_##type, name##_8_##type}
#define ALL_FUNCTIONS(name)   FUNCTIONS(name, I8), FUNCTIONS(name, Q8_0), FUNCTIONS(name, Q4_0)
static few_functions score_functions = {ALL_FUNCTIONS(score)}, sum_functions = {ALL_FUNCTIONS(sum)};

static void call_few(few_functions functions, products *work, const row_block *block, int64_t tile_row, int64_t rows) {
  functions[block->problem->dtype_kv][__builtin_ctzll((uint64_t)rows_at_once(rows))](work, block, tile_row);
}

/* S of `rows` rows from tile_row on, to block->score. */
static void score_rows(products *work, const row_block *block, int64_t tile_row, int64_t rows) {
  if (tile_row > 0) work->next = (prefetch_lines){.policy = PREFETCH_NONE};
  call_few(score_functions, work, block, tile_row, rows);
}

/* acc += P V of one row, from copies of V of the keys that it may see. */
static void sum_carefully(products *work, const row_block *block, int64_t row, float *score) {
  row_block one = *block;
  one.score = score;
  for (int group = work->from; group < work->to; group++)
    work->v[group] = take_v(work, block, work->first + group * GROUP_KEYS, row);
  call_few(sum_functions, work, &one, row, 1);
}

/* acc += P V for the same rows. */
static void accumulate_rows(products *work, const row_block *block, int64_t tile_row, int64_t rows) {
  if (!work->picks) call_few(sum_functions, work, block, tile_row, rows);
  for (int64_t i = 0; work->picks && i < rows; i++)
    sum_carefully(work, block, tile_row + i, block->score + i * DECODE_SCORE_STRIDE);
}

/* After a split's last block. */
static void end_products(const products *work, const row_block *block) { (void)work, (void)block; }

#endif
