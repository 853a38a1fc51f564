/* flash_amx: flash attention on bf16 inputs in the tile unit (AMX), whose TDPBF16PS multiplies 16 x 32 by 32 x 16 values and adds the
 * 16 x 16 results in float32: 16 times the work of an AVX-512 multiply-add in the time of one.
 *
 * A block of rows is 32 queries, two tiles. Both products use 2 x 2 tiles of sums, so that each tile that is loaded is used twice.
 * The left operand is rows as they are; the right one holds pairs of neighbours along the dimension that is summed:
 *
 *   Q   [row][dim]                               K  [key / 16][dim / 32][dim pair][key][2]
 *   P   [row][key]                               V  [column / 16][key / 32][key pair][column][2]
 *
 * with zeros up to whole tiles. Scores go through level 1, a block of keys at a time: first all of them, then each row's largest, so that
 * a row moves its reference at most once per block and before any exponential, then P, rounded to bf16 as it is written; its sum is that
 * of the rounded values, as numerics declare. What a masked key holds is multiplied by a P of exactly 0. */
#define AVX512_TILE_ROWS 32
#include "kernels/avx512/vec_avx512.h"

#include "kernels/common/flash.h"
#include "tiles_amx.h"

enum {
  HALF = 16,       /* rows, and columns, of a tile */
  DEPTH = 32,      /* values that one tile product sums over */
  TILE = 16 * 32,  /* bf16 values of a tile */
  KEY_BLOCK = 128, /* scores and P of 32 rows, 24 KiB, stay in level 1 beside Q and the output */
  SCORE_STRIDE = KEY_BLOCK + FLASH_SCORE_PAD
};

static const char *rejects(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  (void)buffer, (void)buffer_bytes;
  if (p->score != ATTN_SCORE_DOT) return "it computes dot scores only: its products take bf16 values";
  if (p->dtype_q != ATTN_BF16) return "its dot product needs bf16 inputs: dtype_q must be ATTN_BF16";
  if (p->dtype_kv != ATTN_BF16) return "its dot product needs bf16 inputs: dtype_kv must be ATTN_BF16";
  return NULL;
}

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

/* P, then Q, behind the scores. */
static int64_t p_floats(void) { return TILE_ROWS * KEY_BLOCK / 2; }
static uint16_t *p_of(const row_block *block) { return (uint16_t *)(void *)(block->score + TILE_ROWS * SCORE_STRIDE); }
static uint16_t *q_of(const row_block *block) { return p_of(block) + 2 * p_floats(); }

static bool plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  const int64_t most = INT64_MAX / 64, rows = flash_rows(p, machine->threads);
  scratch_layout layout;
  if (p->dim_qk > most / 1024 || p->dim_v > most / 1024) return false;
  if (p->seq_k > 0 && depth_of(p) + columns_of(p) > most / keys_of(p)) return false;
  if (!scratch_layout_of(p, round_up(rows, TILE_ROWS), TILE_ROWS, SCORE_STRIDE, &layout)) return false;
  const int64_t q_floats = round_up(rows, TILE_ROWS) * depth_of(p) / 2;
  if (!plan_phases(p, rows, KEY_BLOCK, layout.total + p_floats() + q_floats, schedule)) return false;
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
  s.used = keys_in_use(p, args, &s.seq, b);
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

enum { FLOAT_STRIDE = SCORE_STRIDE * (int)sizeof(float), P_STRIDE = KEY_BLOCK * (int)sizeof(uint16_t) };

/* Scores of 32 rows, or of the first 16, and 32 keys. */
static ALWAYS_INLINE void score_keys(const uint16_t *q, int64_t depth, const uint16_t *k, float *score, const bool both) {
  const int64_t q_stride = depth * (int64_t)sizeof *q;
  tiles_see_stores();
  _tile_zero(0);
  _tile_zero(1);
  if (both) _tile_zero(2);
  if (both) _tile_zero(3);
  for (int64_t d = 0; d < depth; d += DEPTH) {
    _tile_loadd(4, q + d, q_stride);
    _tile_loadd(6, k + d * HALF, 64);
    _tile_loadd(7, k + (depth + d) * HALF, 64);
    if (both) _tile_loadd(5, q + HALF * depth + d, q_stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (both) _tile_dpbf16ps(2, 5, 6);
    if (both) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, score, FLOAT_STRIDE);
  _tile_stored(1, score + HALF, FLOAT_STRIDE);
  if (both) _tile_stored(2, score + HALF * SCORE_STRIDE, FLOAT_STRIDE);
  if (both) _tile_stored(3, score + HALF * SCORE_STRIDE + HALF, FLOAT_STRIDE);
}

/* acc += P V for 16 or, if `wide`, 32 columns and 16 or, if `both`, 32 rows. v_next: tiles of the second 16 columns. */
static ALWAYS_INLINE void accumulate_tiles(float *acc, int64_t acc_stride, const uint16_t *p, const uint16_t *v,
                                           const uint16_t *v_next, int64_t keys, const bool both, const bool wide) {
  const int64_t stride = acc_stride * (int64_t)sizeof *acc;
  tiles_see_stores();
  _tile_loadd(0, acc, stride);
  if (wide) _tile_loadd(1, acc + HALF, stride);
  if (both) _tile_loadd(2, acc + HALF * acc_stride, stride);
  if (both && wide) _tile_loadd(3, acc + HALF * acc_stride + HALF, stride);
  for (int64_t j = 0; j < keys; j += DEPTH) {
    _tile_loadd(4, p + j, P_STRIDE);
    _tile_loadd(6, v + j * HALF, 64);
    if (wide) _tile_loadd(7, v_next + j * HALF, 64);
    if (both) _tile_loadd(5, p + HALF * KEY_BLOCK + j, P_STRIDE);
    _tile_dpbf16ps(0, 4, 6);
    if (wide) _tile_dpbf16ps(1, 4, 7);
    if (both) _tile_dpbf16ps(2, 5, 6);
    if (both && wide) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, acc, stride);
  if (wide) _tile_stored(1, acc + HALF, stride);
  if (both) _tile_stored(2, acc + HALF * acc_stride, stride);
  if (both && wide) _tile_stored(3, acc + HALF * acc_stride + HALF, stride);
}

static void score_tile_amx(const row_block *block, const uint16_t *q, const uint16_t *unit, int64_t key, int64_t end,
                           bool both) {
  const int64_t depth = depth_of(block->problem);
  for (float *score = block->score; key < end; key += DEPTH, score += DEPTH) {
    if (both)
      score_keys(q, depth, k_tiles(block->problem, unit, key), score, true);
    else
      score_keys(q, depth, k_tiles(block->problem, unit, key), score, false);
  }
}

/* ---- Softmax of a block of keys ---- */

/* Scores of one row, in place: times factor, with all that is added to them, -inf where the row may not see the key. Returns the
 * largest of each lane. */
static vec adjust_row(const row_block *block, int64_t row, int64_t key, int64_t keys, float factor, float *score) {
  vec best = vec_set1(-INFINITY);
  for (int64_t j = 0; j < keys; j += VEC_LANES) {
    vec x = vec_mul(vec_load(score + j), vec_set1(factor));
    if (block->adjusted) x = adjust_scores(block, row, key + j, x);
    x = select_allowed(block->range[row], key + j, x);
    vec_store(score + j, x);
    best = vec_max(x, best);
  }
  return best;
}

static vec largest_of_row(const float *score, int64_t keys) {
  vec best = vec_load(score);
  for (int64_t j = VEC_LANES; j < keys; j += VEC_LANES) best = vec_max(vec_load(score + j), best);
  return best;
}

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

/* keys: a multiple of DEPTH, from `key` on. */
static void softmax_row_amx(const row_block *block, int64_t row, int64_t key, int64_t keys, float *score, uint16_t *p) {
  const attn_key_range range = block->range[row];
  const float scale = block->problem->scale * LOG2_E;
  const bool plain = !block->adjusted && range.begin <= key && key + keys <= range.end && scale > 0;
  const float largest = plain ? scale * vec_reduce_max(largest_of_row(score, keys))
                              : vec_reduce_max(adjust_row(block, row, key, keys, scale, score));
  const float step = largest - reference_of(block, row);
  if (step > (block->row_max[row] == -INFINITY ? -INFINITY : RESCALE_AT)) rescale_row(block, row, step, score, 0);
  float *sum = block->row_sum + row * VEC_LANES;
  vec_store(sum, exponentials_bf16(score, keys, vec_set1(plain ? scale : 1.0f), vec_set1(reference_of(block, row)), p,
                                   vec_load(sum)));
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
static void accumulate_careful(const row_block *block, int64_t tile_row, int64_t key, int64_t keys, const uint16_t *unit,
                               const uint16_t *p) {
  uint16_t copy[KEY_BLOCK * HALF];
  float sums[HALF * HALF];
  for (int64_t i = 0; i < TILE_ROWS && tile_row + i < block->rows; i++)
    for (int64_t column = 0; column < block->problem->dim_v; column += HALF) {
      float *acc = block->acc + (tile_row + i) * block->acc_stride + column;
      copy_allowed_v(block, tile_row + i, key, keys, v_tiles(block->problem, unit, column, key), copy);
      memset(sums, 0, sizeof sums);
      memcpy(sums + i % HALF * HALF, acc, HALF * sizeof *acc);
      accumulate_tiles(sums, HALF, p + i / HALF * HALF * KEY_BLOCK, copy, copy, keys, false, false);
      memcpy(acc, sums + i % HALF * HALF, HALF * sizeof *acc);
    }
}

static void accumulate_amx(const row_block *block, int64_t tile_row, int64_t key, int64_t keys, const uint16_t *unit,
                           const uint16_t *p, bool both) {
  const attn_problem *problem = block->problem;
  float *acc = block->acc + tile_row * block->acc_stride;
  for (int64_t column = 0; column < problem->dim_v; column += DEPTH) {
    const uint16_t *v = v_tiles(problem, unit, column, key), *v_next = v_tiles(problem, unit, column + HALF, key);
    const bool wide = column + HALF < problem->dim_v;
    if (both && wide)
      accumulate_tiles(acc + column, block->acc_stride, p, v, v_next, keys, true, true);
    else if (both)
      accumulate_tiles(acc + column, block->acc_stride, p, v, v, keys, true, false);
    else if (wide)
      accumulate_tiles(acc + column, block->acc_stride, p, v, v_next, keys, false, true);
    else
      accumulate_tiles(acc + column, block->acc_stride, p, v, v, keys, false, false);
  }
}

/* ---- The loop ---- */

static void tile_amx(const row_block *block, int64_t tile_row, int64_t begin, int64_t end, const uint16_t *q) {
  tile_keys tile = classify_tile(block, tile_row, begin, end);
  if (tile.class != TILE_SKIP && selects_keys(block->problem)) tile = trim_tile(block, tile_row, tile);
  if (tile.class == TILE_SKIP) return;
  const uint16_t *unit = (const uint16_t *)(const void *)block->keys.k;
  const int64_t key = round_down(tile.begin, DEPTH), keys = round_up(tile.end, DEPTH) - key;
  const int64_t rows = min64(block->rows - tile_row, TILE_ROWS);
  const bool both = rows > HALF;
  uint16_t *p = p_of(block);
  score_tile_amx(block, q, unit, key, key + keys, both);
  for (int64_t i = 0; i < (both ? TILE_ROWS : HALF); i++)
    softmax_row_amx(block, tile_row + i, key, keys, block->score + i * SCORE_STRIDE, p + i * KEY_BLOCK);
  if (block->careful)
    accumulate_careful(block, tile_row, key, keys, unit, p);
  else
    accumulate_amx(block, tile_row, key, keys, unit, p, both);
}

static void attend(const attn_schedule *schedule, const row_block *given, int64_t capacity) {
  const attn_key_range used = keys_of_block(given);
  const int64_t depth = depth_of(given->problem);
  row_block state = *given;
  const row_block *block = &state;
  (void)schedule;
  state.adjusted = similarities_adjusted(given->problem); /* all in one pass over stored scores */
  pack_queries(block, capacity, q_of(block));
  _tile_loadconfig(&eight_tiles);
  for (int64_t key = round_down(used.begin, KEY_BLOCK); key < used.end; key += KEY_BLOCK)
    for (int64_t tile_row = 0; tile_row < capacity; tile_row += TILE_ROWS)
      tile_amx(block, tile_row, key, min64(key + KEY_BLOCK, used.end), q_of(block) + tile_row * depth);
  _tile_release();
}

static void run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory, void *scratch) {
  if (task.phase == 0)
    pack(schedule, args, task, unit_memory);
  else
    compute_rows(schedule, args, task, unit_memory, scratch, TILE_ROWS, SCORE_STRIDE, attend);
}

const attn_kernel attn_flash_amx = {
    .info = {.name = "flash_amx",
             .algorithm = "flash",
             .isa = "amx",
             .library = "",
             .summary = "flash attention on bf16 inputs in the tile unit, P rounded to bf16; 32 rows x 32 keys at a time",
             .numerics = {.exp_error = 0x1p-22, .p_rounding = 0x1p-8, .input_flush = 0x1p-126}},
    .rejects = rejects,
    .plan = plan,
    .run = run,
};
