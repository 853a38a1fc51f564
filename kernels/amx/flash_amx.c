/* SPDX-License-Identifier: MIT */
/* flash_amx: flash attention on bf16 inputs in the tile unit (AMX): TDPBF16PS multiplies 16 x 32 by 32 x 16 values and adds the 16 x 16
 * results in float32, at 16 times the rate of AVX-512's float32 multiply-adds.
 *
 * A tile of rows is 32 queries, two tiles of the unit. Both products use 2 x 2 tiles of sums, so that each tile that is loaded is used
 * twice. The left operand is rows as they are; the right one holds pairs of neighbours along the dimension that is summed:
 *
 *   Q   [row][dim]                               K  [key / 16][dim / 32][dim pair][key][2]
 *   P   [row][key]                               V  [column / 16][key / 32][key pair][column][2]
 *
 * with zeros up to whole tiles. Scores go through memory, a block of keys at a time: first all of them, then each row's largest, so that
 * a row moves its reference at most once per block and before any exponential, then P, rounded to bf16 as it is written; its sum is that
 * of the rounded values, as numerics declare. While the vectors do that for one tile of rows, the unit accumulates the output of the tile
 * before and scores the one behind it. What a masked key holds is multiplied by a P of exactly 0. */
#define AVX512_TILE_ROWS 32
#include "kernels/avx512/vec_avx512.h"

#include "kernels/common/flash.h"
#include "kernels/common/rejects.h"
#include "tiles_amx.h"

enum {
  HALF = 16,       /* rows, and columns, of a tile */
  DEPTH = 32,      /* values that one tile product sums over */
  TILE = 16 * 32,  /* bf16 values of a tile */
  KEY_BLOCK = 128, /* measured: 64 and 256 are slower, at head_dim 64 by a tenth (docs/performance-log.md) */
  SCORE_STRIDE = KEY_BLOCK + FLASH_SCORE_PAD
};

/* ---- Memory ---- */

static int64_t depth_of(const attn_problem *p) { return round_up(p->dim_qk, DEPTH); }
static int64_t keys_of(const attn_problem *p) { return round_up(p->seq_k, DEPTH); }
static int64_t columns_of(const attn_problem *p) { return round_up(p->dim_v, HALF); }

/* Tiles of K: the 16 keys from `key` on. */
static const uint16_t *k_tiles(const attn_problem *p, const uint16_t *unit, int64_t key) { return unit + key * depth_of(p); }

/* Tiles of V: 16 columns from `column` on, the 32 keys from `key` on. */
static const uint16_t *v_tiles(const attn_problem *p, const uint16_t *unit, int64_t column, int64_t key) {
  return unit + keys_of(p) * depth_of(p) + column * keys_of(p) + key * HALF;
}

/* Scores and P of two tiles of rows, then Q. */
enum {
  TILES_IN_FLIGHT = 2,
  SCORE_ROWS = TILES_IN_FLIGHT * TILE_ROWS,
  SCORE_FLOATS = TILE_ROWS * SCORE_STRIDE,
  P_VALUES = TILE_ROWS * KEY_BLOCK
};
static uint16_t *p_of(const row_block *block) { return (uint16_t *)(void *)(block->score + TILES_IN_FLIGHT * SCORE_FLOATS); }
static uint16_t *q_of(const row_block *block) { return p_of(block) + TILES_IN_FLIGHT * P_VALUES; }

static bool plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  const int64_t most = INT64_MAX / 64, rows = flash_rows(p, machine->threads);
  scratch_layout layout;
  if (p->dim_qk > most / 1024 || p->dim_v > most / 1024) return false;
  if (p->seq_k > 0 && depth_of(p) + columns_of(p) > most / keys_of(p)) return false;
  if (!scratch_layout_of(p, round_up(rows, TILE_ROWS), SCORE_ROWS, SCORE_STRIDE, &layout)) return false;
  const int64_t q_bytes = round_up(rows, TILE_ROWS) * depth_of(p) * 2, p_bytes = TILES_IN_FLIGHT * P_VALUES * 2;
  if (!plan_phases(p, rows, KEY_BLOCK, layout.total + p_bytes + q_bytes, schedule)) return false;
  schedule->unit_bytes = (size_t)(keys_of(p) * (depth_of(p) + columns_of(p))) * sizeof(uint16_t);
  return true;
}

/* ---- Packing ---- */

/* n <= 32 values, `stride` apart, and zeros. */
static __m512i load_values(const uint16_t *from, int64_t stride, int64_t n) {
  if (n <= 0) return _mm512_setzero_si512();
  if (stride == 1) return _mm512_maskz_loadu_epi16(n >= DEPTH ? ~(__mmask32)0 : ((__mmask32)1 << n) - 1, from);
  uint16_t values[DEPTH] = {0};
  for (int64_t i = 0; i < min64(n, DEPTH); i++) values[i] = from[i * stride];
  return _mm512_loadu_si512(values);
}

/* The keys that a unit's KV head has in use, and where they stand. */
typedef struct key_source {
  const attn_problem *p;
  const attn_args *args;
  attn_sequence seq;
  int64_t b, head;
  attn_key_range used;
} key_source;

static __m512i load_k(const key_source *s, int64_t key, int64_t d) {
  if (key < s->used.begin || key >= s->used.end) return _mm512_setzero_si512();
  const uint16_t *k = s->args->k;
  return load_values(k + attn_k_offset(s->p, &s->seq, s->b, s->head, key) + d * s->p->k_stride.d, s->p->k_stride.d,
                     s->p->dim_qk - d);
}

static __m512i load_v(const key_source *s, int64_t key, int64_t column) {
  if (key < s->used.begin || key >= s->used.end) return _mm512_setzero_si512();
  const uint16_t *v = s->args->v;
  return load_values(v + attn_v_offset(s->p, &s->seq, s->b, s->head, key) + column * s->p->v_stride.d, s->p->v_stride.d,
                     s->p->dim_v - column);
}

/* 16 keys: pairs of values are what is transposed. */
static void pack_k_tiles(const key_source *s, int64_t key, uint16_t *to) {
  for (int64_t d = 0; d < s->p->dim_qk; d += DEPTH, to += TILE) {
    vec r[VEC_LANES];
    for (int i = 0; i < VEC_LANES; i++) r[i] = _mm512_castsi512_ps(load_k(s, key + i, d));
    vec_transpose(r);
    for (int i = 0; i < VEC_LANES; i++) vec_store((float *)(void *)(to + i * DEPTH), r[i]);
  }
}

/* 32 keys: of two neighbours the low and the high halves of 16 words; two tiles of columns at once. */
static void pack_v_tiles(const key_source *s, int64_t key, uint16_t *unit) {
  for (int64_t column = 0; column < s->p->dim_v; column += DEPTH) {
    uint16_t *left = (uint16_t *)(uintptr_t)v_tiles(s->p, unit, column, key);
    uint16_t *right = (uint16_t *)(uintptr_t)v_tiles(s->p, unit, column + HALF, key);
    for (int64_t j = 0; j < HALF; j++) {
      const __m512i low = load_v(s, key + 2 * j, column), high = load_v(s, key + 2 * j + 1, column);
      const __m512i low_left = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(low));
      const __m512i high_left = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(high));
      const __m512i low_right = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(low, 1));
      const __m512i high_right = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(high, 1));
      _mm512_storeu_si512(left + j * DEPTH, _mm512_or_si512(low_left, _mm512_slli_epi32(high_left, 16)));
      if (column + HALF < s->p->dim_v)
        _mm512_storeu_si512(right + j * DEPTH, _mm512_or_si512(low_right, _mm512_slli_epi32(high_right, 16)));
    }
  }
}

static void pack(const attn_schedule *schedule, const attn_args *args, attn_task task, uint16_t *unit) {
  const attn_problem *p = &schedule->problem;
  const int64_t b = task.unit / p->heads_kv, head = task.unit % p->heads_kv * (p->heads_q / p->heads_kv);
  key_source s = {.p = p, .args = args, .seq = attn_sequence_of(p, args, b), .b = b, .head = head};
  s.used = attn_keys_of_sequence(p, args, &s.seq, b);
  const int64_t begin = max64(round_down(s.used.begin, DEPTH), task.item * PACK_KEYS);
  const int64_t end = min64(round_up(s.used.end, DEPTH), (task.item + 1) * PACK_KEYS);
  for (int64_t key = begin; key < end; key += DEPTH) {
    pack_k_tiles(&s, key, (uint16_t *)(uintptr_t)k_tiles(p, unit, key));
    pack_k_tiles(&s, key + HALF, (uint16_t *)(uintptr_t)k_tiles(p, unit, key + HALF));
    pack_v_tiles(&s, key, unit);
  }
}

static void pack_queries(const row_block *block, int64_t capacity, uint16_t *to) {
  const attn_problem *p = block->problem;
  const uint16_t *q = block->args->q;
  for (int64_t i = 0; i < capacity; i++) {
    const bool used = i < block->rows && block->range[i].begin < block->range[i].end;
    const problem_row at = problem_row_of(block, i);
    const int64_t offset = attn_q_offset(p, block->seq, block->b, at.head, at.query);
    for (int64_t d = 0; d < depth_of(p); d += DEPTH, to += DEPTH)
      _mm512_storeu_si512(
          to, used ? load_values(q + offset + d * p->q_stride.d, p->q_stride.d, p->dim_qk - d) : _mm512_setzero_si512());
  }
}

/* ---- The products: tiles 0-3 sum, 4 and 5 hold rows, 6 and 7 columns ---- */

/* A tile of rows against a block of keys: where its scores and P are. */
typedef struct tile_job {
  bool exists, both; /* both: it has more than 16 rows */
  int64_t tile_row, key, keys;
  const uint16_t *q;
  float *score;
  uint16_t *p;
} tile_job;

/* One step of a product: 32 values along the sum, of 16 or, if `both`, 32 rows and 16 or, if `wide`, 32 columns. */
static ALWAYS_INLINE void multiply_tiles(const uint16_t *a, int64_t a_stride, const uint16_t *b, const uint16_t *b_next,
                                         bool both, bool wide) {
  const int64_t stride = a_stride * (int64_t)sizeof *a;
  _tile_loadd(4, a, stride);
  _tile_loadd(6, b, 64);
  if (wide) _tile_loadd(7, b_next, 64);
  if (both) _tile_loadd(5, a + HALF * a_stride, stride);
  _tile_dpbf16ps(0, 4, 6);
  if (wide) _tile_dpbf16ps(1, 4, 7);
  if (both) _tile_dpbf16ps(2, 5, 6);
  if (both && wide) _tile_dpbf16ps(3, 5, 7);
}

static ALWAYS_INLINE void load_sums(const float *from, int64_t row_stride, bool both, bool wide) {
  const int64_t stride = row_stride * (int64_t)sizeof *from;
  _tile_loadd(0, from, stride);
  if (wide) _tile_loadd(1, from + HALF, stride);
  if (both) _tile_loadd(2, from + HALF * row_stride, stride);
  if (both && wide) _tile_loadd(3, from + HALF * row_stride + HALF, stride);
}

static ALWAYS_INLINE void zero_sums(void) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

static ALWAYS_INLINE void store_sums(float *to, int64_t row_stride, bool both, bool wide) {
  const int64_t stride = row_stride * (int64_t)sizeof *to;
  _tile_stored(0, to, stride);
  if (wide) _tile_stored(1, to + HALF, stride);
  if (both) _tile_stored(2, to + HALF * row_stride, stride);
  if (both && wide) _tile_stored(3, to + HALF * row_stride + HALF, stride);
}

/* Products that wait to be computed, step by step, while softmax of another tile runs beside them: O += P V of one job, then S = Q K^T
 * of another. The tile unit works on a step for 64 cycles, in which the rest of the core is free. */
typedef struct tile_work {
  const row_block *block;
  const uint16_t *unit;
  tile_job output, scores;
  int64_t column, output_key; /* the next step of O += P V */
  int64_t key, d;             /* the next step of S = Q K^T */
} tile_work;

static int64_t steps_of(const tile_work *w) {
  const attn_problem *p = w->block->problem;
  const int64_t outputs = w->output.exists ? (p->dim_v + DEPTH - 1) / DEPTH * (w->output.keys / DEPTH) : 0;
  return outputs + (w->scores.exists ? depth_of(p) / DEPTH * (w->scores.keys / DEPTH) : 0);
}

static ALWAYS_INLINE void accumulate_step(tile_work *w) {
  const tile_job *job = &w->output;
  const attn_problem *p = w->block->problem;
  const int64_t stride = w->block->acc_stride;
  const bool wide = w->column + HALF < p->dim_v;
  const uint16_t *v = v_tiles(p, w->unit, w->column, job->key + w->output_key);
  const uint16_t *v_next = v_tiles(p, w->unit, w->column + HALF, job->key + w->output_key);
  float *acc = w->block->acc + job->tile_row * stride + w->column;
  tiles_see_stores();
  if (w->output_key == 0) load_sums(acc, stride, job->both, wide);
  multiply_tiles(job->p + w->output_key, KEY_BLOCK, v, v_next, job->both, wide);
  w->output_key += DEPTH;
  if (w->output_key < job->keys) return;
  store_sums(acc, stride, job->both, wide);
  w->output_key = 0;
  w->column += DEPTH;
}

static ALWAYS_INLINE void score_step(tile_work *w) {
  const tile_job *job = &w->scores;
  const int64_t depth = depth_of(w->block->problem);
  const uint16_t *k = k_tiles(w->block->problem, w->unit, job->key + w->key);
  tiles_see_stores();
  if (w->d == 0) zero_sums();
  multiply_tiles(job->q + w->d, depth, k + w->d * HALF, k + (depth + w->d) * HALF, job->both, true);
  w->d += DEPTH;
  if (w->d < depth) return;
  store_sums(job->score + w->key, SCORE_STRIDE, job->both, true);
  w->d = 0;
  w->key += DEPTH;
}

static ALWAYS_INLINE void step(tile_work *w) {
  if (w->output.exists && w->column < w->block->problem->dim_v)
    accumulate_step(w);
  else
    score_step(w);
}

static void all_steps(const row_block *block, const uint16_t *unit, const tile_job *output, const tile_job *scores) {
  tile_work w = {.block = block, .unit = unit};
  if (output) w.output = *output;
  if (scores) w.scores = *scores;
  for (int64_t left = steps_of(&w); left > 0; left--) step(&w);
}

/* ---- Softmax of a block of keys ---- */

/* Scores of one row, in place: -inf where the row may not see the key. */
static void mask_row_amx(const row_block *block, int64_t row, int64_t key, int64_t keys, float *score) {
  for (int64_t j = 0; j < keys; j += VEC_LANES)
    vec_store(score + j, select_allowed(block->range[row], key + j, vec_load(score + j)));
}

/* Scores of one row, in place: times scale, with all that is added to them, and masked. */
static void adjust_row(const row_block *block, int64_t row, int64_t key, int64_t keys, float scale, float *score) {
  for (int64_t j = 0; j < keys; j += VEC_LANES) {
    vec x = vec_mul(vec_load(score + j), vec_set1(scale));
    if (block->adjusted) x = adjust_scores(block, row, key + j, x);
    vec_store(score + j, select_allowed(block->range[row], key + j, x));
  }
}

static vec largest_of_row(const float *score, int64_t keys) {
  vec best = vec_set1(-INFINITY);
  for (int64_t j = 0; j < keys; j += VEC_LANES) best = vec_max(vec_load(score + j), best);
  return best;
}

/* Lane i of the result is the largest of x[i]'s lanes. */
static vec largest_of_each(vec x[VEC_LANES]) {
  vec_transpose(x);
  vec best = x[0];
  UNROLL
  for (int i = 1; i < VEC_LANES; i++) best = vec_max(x[i], best);
  return best;
}

/* What the exponentials of a job's rows are: 2^(factor score - reference). */
typedef struct row_scales {
  float factor, reference[TILE_ROWS];
} row_scales;

/* The values of low, then those of high, as bf16. */
static inline __m512i narrow(vec high, vec low) {
  const __m512bh values = _mm512_cvtne2ps_pbh(high, low);
  __m512i bits;
  memcpy(&bits, &values, sizeof bits);
  return bits;
}

/* P of one row, rounded to bf16, and its sum: that of the rounded values, of which a word holds an even and an odd key. */
static ALWAYS_INLINE vec exponentials_bf16(const float *score, int64_t keys, vec factor, vec reference, uint16_t *p,
                                           vec sum) {
  for (int64_t j = 0; j < keys; j += DEPTH) {
    const vec low = vec_exp2(_mm512_fmsub_ps(vec_load(score + j), factor, reference));
    const vec high = vec_exp2(_mm512_fmsub_ps(vec_load(score + j + VEC_LANES), factor, reference));
    const __m512i both = narrow(high, low);
    _mm512_storeu_si512(p + j, both);
    const vec even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    const vec odd = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000)));
    sum = vec_add(sum, vec_add(even, odd));
  }
  return sum;
}

/* Adjusts and masks the scores of rows that need it, and moves references where a score demands it. */
static void settle_job(const row_block *block, const tile_job *job, row_scales *scales) {
  const float scale = block->problem->scale * LOG2_E;
  const int64_t rows = job->both ? TILE_ROWS : HALF;
  const bool direct = !block->adjusted && scale > 0; /* of the problem, not of the row: both ways round differently */
  scales->factor = direct ? scale : 1.0f;
  for (int64_t i = 0; i < rows; i++) {
    const attn_key_range range = block->range[job->tile_row + i];
    float *score = job->score + i * SCORE_STRIDE;
    if (!direct)
      adjust_row(block, job->tile_row + i, job->key, job->keys, scale, score);
    else if (range.begin > job->key || job->key + job->keys > range.end)
      mask_row_amx(block, job->tile_row + i, job->key, job->keys, score);
  }
  for (int64_t half = 0; half < rows; half += HALF) {
    const float *row_max = block->row_max + job->tile_row + half;
    vec best[HALF];
    UNROLL
    for (int i = 0; i < HALF; i++) best[i] = largest_of_row(job->score + (half + i) * SCORE_STRIDE, job->keys);
    const vec before = vec_load(row_max), lowest = vec_set1(-INFINITY);
    const __mmask16 new = _mm512_cmp_ps_mask(before, lowest, _CMP_EQ_OQ);
    const vec reference = _mm512_mask_mov_ps(before, new, vec_zero());
    const vec step = vec_sub(vec_mul(largest_of_each(best), vec_set1(scales->factor)), reference);
    const vec limit = _mm512_mask_mov_ps(vec_set1(RESCALE_AT), new, lowest);
    const unsigned above = _mm512_cmp_ps_mask(step, limit, _CMP_GT_OQ);
    float steps[HALF];
    vec_store(steps, step);
    for (unsigned left = above; left; left &= left - 1) {
      const int i = __builtin_ctz(left);
      rescale_row(block, job->tile_row + half + i, steps[i], NULL, 0);
    }
    const vec after = vec_load(row_max);
    vec_store(scales->reference + half,
              _mm512_mask_mov_ps(after, _mm512_cmp_ps_mask(after, lowest, _CMP_EQ_OQ), vec_zero()));
  }
}

static ALWAYS_INLINE void exponentiate_row(const row_block *block, const tile_job *job, const row_scales *scales,
                                           int64_t i) {
  float *sum = block->row_sum + (job->tile_row + i) * VEC_LANES;
  vec_store(sum, exponentials_bf16(job->score + i * SCORE_STRIDE, job->keys, vec_set1(scales->factor),
                                   vec_set1(scales->reference[i]), job->p + i * KEY_BLOCK, vec_load(sum)));
}

/* ---- O += P V ---- */

/* A copy of 16 columns of V without the keys that row i may not see: zeros, as far as its sums can tell. */
static void copy_allowed_v(const row_block *block, int64_t i, int64_t key, int64_t keys, const uint16_t *v, uint16_t *copy) {
  const problem_row at = problem_row_of(block, i);
  memcpy(copy, v, (size_t)(keys * HALF) * sizeof *v);
  for (int64_t j = 0; j < keys; j++) {
    if (block->range[i].begin <= key + j && key + j < block->range[i].end &&
        attn_key_selected(block->problem, block->args, block->b, at.head, at.query, key + j))
      continue;
    for (int c = 0; c < HALF; c++) copy[j / 2 * DEPTH + c * 2 + j % 2] = 0;
  }
}

/* One row of a half tile at a time, and of its sums only that row. */
static void accumulate_careful(const row_block *block, const uint16_t *unit, const tile_job *job) {
  uint16_t copy[KEY_BLOCK * HALF];
  float sums[HALF * HALF];
  for (int64_t i = 0; i < TILE_ROWS && job->tile_row + i < block->rows; i++)
    for (int64_t column = 0; column < block->problem->dim_v; column += HALF) {
      float *acc = block->acc + (job->tile_row + i) * block->acc_stride + column;
      const uint16_t *v = v_tiles(block->problem, unit, column, job->key), *p = job->p + i / HALF * HALF * KEY_BLOCK;
      copy_allowed_v(block, job->tile_row + i, job->key, job->keys, v, copy);
      memset(sums, 0, sizeof sums);
      memcpy(sums + i % HALF * HALF, acc, HALF * sizeof *acc);
      tiles_see_stores();
      load_sums(sums, HALF, false, false);
      for (int64_t j = 0; j < job->keys; j += DEPTH) multiply_tiles(p + j, KEY_BLOCK, copy + j * HALF, NULL, false, false);
      store_sums(sums, HALF, false, false);
      memcpy(acc, sums + i % HALF * HALF, HALF * sizeof *acc);
    }
}

/* ---- The loop ---- */

/* Where the loop over blocks of keys and tiles of rows stands. */
typedef struct tile_walk {
  const row_block *block;
  int64_t capacity, key, end, tile_row, count;
} tile_walk;

/* The next tile that any row has keys in. */
static tile_job next_job(tile_walk *at) {
  const row_block *block = at->block;
  for (; at->key < at->end; at->key += KEY_BLOCK, at->tile_row = 0)
    for (; at->tile_row < at->capacity; at->tile_row += TILE_ROWS) {
      const tile_keys tile = keys_of_tile(block, at->tile_row, at->key, min64(at->key + KEY_BLOCK, at->end));
      if (tile.class == TILE_SKIP) continue;
      const int64_t key = round_down(tile.begin, DEPTH), flight = at->count++ % TILES_IN_FLIGHT, row = at->tile_row;
      at->tile_row += TILE_ROWS;
      return (tile_job){.exists = true,
                        .both = block->rows - row > HALF,
                        .tile_row = row,
                        .key = key,
                        .keys = round_up(tile.end, DEPTH) - key,
                        .q = q_of(block) + row * depth_of(block->problem),
                        .score = block->score + flight * SCORE_FLOATS,
                        .p = p_of(block) + flight * P_VALUES};
    }
  return (tile_job){.exists = false};
}

/* Softmax of a job's rows, with the waiting products spread among them. */
static void softmax_beside(const row_block *block, const tile_job *job, tile_work *work) {
  const int64_t rows = job->both ? TILE_ROWS : HALF, steps = steps_of(work);
  row_scales scales;
  settle_job(block, job, &scales);
  for (int64_t i = 0, done = 0; i < rows; i++) {
    exponentiate_row(block, job, &scales, i);
    for (; done * rows < steps * (i + 1); done++) step(work);
  }
}

/* While softmax of one job runs, the tile unit computes the output of the job before it and the scores of the one behind it. Jobs of the
 * same rows must not: softmax may rescale the output. */
static void attend_jobs(const row_block *block, const uint16_t *unit, tile_walk *at) {
  tile_job before = {.exists = false}, job = next_job(at);
  if (job.exists) all_steps(block, unit, NULL, &job);
  while (job.exists) {
    const tile_job next = next_job(at);
    if (before.exists && (before.tile_row == job.tile_row || block->careful)) {
      if (block->careful)
        accumulate_careful(block, unit, &before);
      else
        all_steps(block, unit, &before, NULL);
      before.exists = false;
    }
    tile_work work = {.block = block, .unit = unit, .output = before, .scores = next};
    softmax_beside(block, &job, &work);
    before = job;
    job = next;
  }
  if (before.exists && block->careful) accumulate_careful(block, unit, &before);
  if (before.exists && !block->careful) all_steps(block, unit, &before, NULL);
}

static void attend(const attn_schedule *schedule, const row_block *given, int64_t capacity) {
  const attn_key_range used = keys_of_block(given);
  row_block block = *given;
  (void)schedule;
  block.adjusted = similarities_adjusted(given->problem); /* all in one pass over stored scores */
  tile_walk walk = {.block = &block, .capacity = capacity, .key = round_down(used.begin, KEY_BLOCK), .end = used.end};
  pack_queries(&block, capacity, q_of(&block));
  _tile_loadconfig(&eight_tiles);
  attend_jobs(&block, (const uint16_t *)(const void *)block.keys.k, &walk);
  _tile_release();
}

static void run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory, void *scratch) {
  if (task.phase == 0)
    pack(schedule, args, task, unit_memory);
  else
    compute_rows(schedule, args, task, unit_memory, scratch, &(tiled_algorithm){SCORE_ROWS, SCORE_STRIDE, attend});
}

const attn_kernel attn_flash_amx = {
    .info = {.name = "flash_amx",
             .algorithm = "flash",
             .isa = "amx",
             .library = "",
             .summary = "flash attention on bf16 inputs in the tile unit, P rounded to bf16; 32 rows x 32 keys at a time",
             .numerics = {.exp_error = 0x1p-22, .p_rounding = 0x1p-8, .input_flush = 0x1p-126}},
    .rejects = takes_bf16,
    .plan = plan,
    .run = run,
};
