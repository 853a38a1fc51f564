/* SPDX-License-Identifier: MIT */
/* decode: few query rows against many keys, where the time goes into reading K and V.
 *
 * All query rows that share a KV head are one block, so K and V are read once per KV head. They are read in place, because a
 * packed panel would have to be written and read again. Keys are split at fixed borders into tasks of their own (Dao et al.
 * 2023, "Flash-Decoding"). Each task leaves (row_max, row_sum, acc) in the unit's memory, and the merge phase joins them in
 * the order of the keys. Borders are absolute key indices, so a row's bits do not depend on which thread computed what.
 *
 * Scores put the head dimension in lanes: VEC_LANES vectors of sums at a time, from 1 row x VEC_LANES keys to 8 rows x
 * VEC_LANES / 8 keys. A transposing tree of additions (vec_sum_each) turns them into one vector of scores.
 *
 * Parameters: those of register_tile.h, and
 *   DECODE_EIGHT_ROWS  optional: work on up to 8 rows at once instead of 4, for tiers with registers for their sums;
 *                      tested: set (avx512), not set (avx2, neon) */
#ifndef ATTN_COMMON_DECODE_H
#define ATTN_COMMON_DECODE_H

#include <assert.h>

#include "split_keys.h"
#include "streaming_softmax.h"
#include "two_phase.h"

/* The most rows that are scored and summed together: each load and conversion of K and V is used as often. */
#ifdef DECODE_EIGHT_ROWS
enum { DECODE_TILE_ROWS = 8 };
#define EIGHT_ROWS(...) __VA_ARGS__
#else
enum { DECODE_TILE_ROWS = 4 };
#define EIGHT_ROWS(...)
#endif

enum {
  DECODE_KEYS = 32, /* of one block: K and V alternate so often that memory serves both streams at once */
  PREFETCH_BYTES =
      8192 /* ahead in K and in V; the CPU's own prefetching stops at page borders and while arithmetic is slow */
};

static const char *decode_rejects(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  if (p->score != ATTN_SCORE_DOT) return "it computes dot scores only: other score functions gain nothing from few rows";
  if (p->k_stride.d != 1 || p->v_stride.d != 1)
    return "it reads K and V in place, so their head dimension must be dense (k_stride.d = v_stride.d = 1)";
  return too_many_rows(p, buffer, buffer_bytes);
}

/* ---- Memory: the state of every row, once per split ---- */

typedef struct split_layout {
  int64_t capacity;                     /* rows of a KV head, whole tiles */
  int64_t acc_stride;                   /* floats */
  int64_t acc, row_max, row_sum, total; /* offsets in bytes, and the size */
} split_layout;

/* False if a size overflows. */
static bool split_layout_of(const attn_problem *p, split_layout *at) {
  *at = (split_layout){.capacity = round_up(rows_per_kv_head(p), TILE_ROWS), .acc_stride = round_up(p->dim_v, VEC_LANES)};
  const memory_part parts[] = {{&at->acc, at->capacity, float_bytes(at->acc_stride)},
                               {&at->row_max, at->capacity, float_bytes(1)},
                               {&at->row_sum, at->capacity, float_bytes(VEC_LANES)}};
  return LAY_OUT(parts, &at->total);
}

/* Offsets in a thread's scratch, in bytes. */
typedef struct decode_scratch {
  int64_t q, q_tiles, range, score, v, total;
} decode_scratch;

enum { DECODE_SCORE_STRIDE = DECODE_KEYS + 16 };

static bool decode_scratch_of(const attn_problem *p, int64_t capacity, decode_scratch *at) {
  const int64_t q_bytes = float_bytes(round_up(p->dim_qk, VEC_LANES)), v_bytes = float_bytes(round_up(p->dim_v, VEC_LANES));
  const memory_part parts[] = {
      {&at->q, capacity, q_bytes},
      {&at->q_tiles, capacity, q_bytes},
      {&at->range, capacity, sizeof(attn_key_range)},
      {&at->score, DECODE_TILE_ROWS, float_bytes(DECODE_SCORE_STRIDE)},
      {&at->v, DECODE_KEYS, v_bytes},
  };
  at->total = 0;
  return LAY_OUT(parts, &at->total);
}

static bool decode_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  (void)machine;
  split_layout split;
  decode_scratch scratch;
  int64_t states, unit = 0;
  if (!split_layout_of(p, &split) || !decode_scratch_of(p, split.capacity, &scratch)) return false;
  const memory_part parts[] = {{&states, split_count(p), split.total}};
  if (!LAY_OUT(parts, &unit)) return false;
  schedule->phases = 2;
  schedule->items[0] = split_count(p);
  schedule->items[1] = 1;
  schedule->row_block = split.capacity;
  schedule->key_block = SPLIT_KEYS;
  schedule->unit_bytes = (size_t)unit;
  schedule->scratch_bytes = (size_t)scratch.total;
  return true;
}

/* ---- A few rows and a block of keys ---- */

/* Rows of K or V as the loops read them: element (j, d) is data[first + j * stride + d], in place or converted. */
typedef struct key_rows {
  const void *data;
  attn_dtype dtype;
  int64_t first, stride;
} key_rows;

/* Rows that are scored and summed together, and the block's keys. */
typedef struct few_rows {
  key_rows keys;  /* K for scores, V for sums */
  int64_t count;  /* of the keys */
  int64_t row;    /* the first row that a call works on */
  const float *q; /* as tile_queries leaves them */
  float *score;   /* [row][score_stride]: S, then P */
  float *acc;     /* [row][acc_stride] */
  int64_t dim_qk, score_stride, acc_stride;
} few_rows;

/* Constants at every call: how many rows there are, the type of K and V, and whether memory is asked for what comes next. */
typedef struct few_kind {
  int rows;
  attn_dtype dtype;
  bool ahead;
} few_kind;

enum { LINE_BYTES = 64 };
#define DTYPE(constant, name, element, ...) \
  _Static_assert(VEC_LANES * sizeof(element) <= LINE_BYTES, "a vector of " #name " must lie in a line");
#include "dtypes.def"
#undef DTYPE

/* Prefetches into level 2 the line PREFETCH_BYTES after the one at `index`. It is a hint only, so addresses beyond the
 * tensor do no harm. Each line in use gets one hint, so that memory works while the arithmetic runs. A burst of hints would
 * fill the core's few line buffers and stall. */
static ALWAYS_INLINE void prefetch_ahead(const void *data, attn_dtype dtype, int64_t index) {
  __builtin_prefetch((const void *)((uintptr_t)data + (uintptr_t)(index * (int)attn_dtype_bytes(dtype)) + PREFETCH_BYTES), 0,
                     2);
}

/* ---- S = Q K^T, K in place ---- */

/* Keys that are summed side by side. A row on its own waits for memory, which is read fastest in its own order: key by key.
 * Several rows go through their keys side by side, so that each load of q serves all of them. */
static ALWAYS_INLINE int keys_at_once(few_kind kind) { return kind.rows == 1 ? 1 : VEC_LANES / kind.rows; }

/* sum[r][j] += products of the elements [d, d + n) of the rows and of the keys that begin at elements key[0] .. */
static ALWAYS_INLINE void score_columns(vec *sum, const few_rows t, const int64_t *key, int64_t d, int64_t n,
                                        const few_kind kind) {
  const int columns = VEC_LANES / kind.rows;
  vec query[DECODE_TILE_ROWS];
  UNROLL
  for (int r = 0; r < kind.rows; r++) query[r] = vec_load(t.q + d * kind.rows + r * VEC_LANES);
  UNROLL
  for (int j = 0; j < keys_at_once(kind); j++) {
    const vec x = load_elements(t.keys.data, kind.dtype, key[j] + d, n);
    UNROLL
    for (int r = 0; r < kind.rows; r++) sum[r * columns + j] = vec_fma(query[r], x, sum[r * columns + j]);
  }
}

/* score[r][at + j] for the rows and j < VEC_LANES / rows; scores of keys that do not exist repeat the last key's. */
static ALWAYS_INLINE void score_few(const few_rows t, int64_t at, const few_kind kind) {
  const int columns = VEC_LANES / kind.rows, group = keys_at_once(kind),
            line = LINE_BYTES / (int)attn_dtype_bytes(kind.dtype);
  vec sum[VEC_LANES];
  int64_t key[VEC_LANES];
  UNROLL
  for (int i = 0; i < VEC_LANES; i++) sum[i] = vec_zero();
  UNROLL
  for (int j = 0; j < columns; j++) key[j] = t.keys.first + min64(at + j, t.count - 1) * t.keys.stride;
  UNROLL
  for (int j = 0; j < columns; j += group) {
    int64_t d = 0;
    for (; d + line <= t.dim_qk; d += line) {
      if (kind.ahead) {
        UNROLL
        for (int i = 0; i < group; i++) prefetch_ahead(t.keys.data, kind.dtype, key[j + i] + d);
      }
      UNROLL
      for (int part = 0; part < line; part += VEC_LANES) score_columns(&sum[j], t, &key[j], d + part, VEC_LANES, kind);
    }
    for (; d < t.dim_qk; d += VEC_LANES) score_columns(&sum[j], t, &key[j], d, min64(t.dim_qk - d, VEC_LANES), kind);
  }
  float each[VEC_LANES];
  vec_store(each, vec_sum_each(sum));
  UNROLL
  for (int r = 0; r < kind.rows; r++)
    memcpy(t.score + r * t.score_stride + at, each + r * columns, (size_t)columns * sizeof(float));
}

/* Rows that one call works on, by index into the tables below. */
static const int64_t ROWS_AT_ONCE[] = {8, 4, 2, 1};

static inline int rows_index(int64_t rows) {
  return rows >= 8 && DECODE_TILE_ROWS >= 8 ? 0 : rows >= 4 ? 1 : rows >= 2 ? 2 : 3;
}

/* NAME(rows, dtype, ahead) for all numbers of rows. Each combination is a function of its own, because in one function they
 * would compete for registers. `again` is for K and V that other rows have just read: it prefetches nothing. */
#define FOR_EACH_ROWS(NAME, dtype, ahead) \
  EIGHT_ROWS(NAME(8, dtype, ahead))       \
  NAME(4, dtype, ahead) NAME(2, dtype, ahead) NAME(1, dtype, ahead)
#define ENTRIES_OF(name, kind) \
  { EIGHT_ROWS([0] = name##_8_##kind, )[1] = name##_4_##kind, [2] = name##_2_##kind, [3] = name##_1_##kind }
enum { again = false, fresh = true };

typedef void few_function(const few_rows *rows);

/* The rows from `row` on. */
static ALWAYS_INLINE few_rows rows_left(const few_rows *t) {
  few_rows left = *t;
  left.q += t->row * round_up(t->dim_qk, VEC_LANES);
  left.score += t->row * t->score_stride;
  left.acc += t->row * t->acc_stride;
  return left;
}

/* Scores of the rows for all keys of the block. Up to VEC_LANES scores beyond those of the block's keys are written too. */
#define DEFINE_SCORE(rows, dtype, ahead)                                                       \
  static NO_INLINE void score_##rows##_##dtype##_##ahead(const few_rows *t) {                  \
    const few_rows left = rows_left(t);                                                        \
    const few_kind kind = {rows, dtype, ahead};                                                \
    for (int64_t at = 0; at < left.count; at += VEC_LANES / (rows)) score_few(left, at, kind); \
  }
#define DTYPE(constant, ...)                          \
  FOR_EACH_ROWS(DEFINE_SCORE, ATTN_##constant, fresh) \
  FOR_EACH_ROWS(DEFINE_SCORE, ATTN_##constant, again)
#include "dtypes.def"
#undef DTYPE

/* Arranges the queries as score_few reads them: one vector of each row that a call works on, side by side, so that one
 * pointer reaches all of them. */
static void tile_queries(const row_block *block, float *q_tiles) {
  for (int64_t row = 0, step; row < block->rows; row += step) {
    step = ROWS_AT_ONCE[rows_index(block->rows - row)];
    for (int64_t r = 0; r < step; r++)
      for (int64_t d = 0; d < block->q_stride; d += VEC_LANES)
        vec_store(q_tiles + row * block->q_stride + d * step + r * VEC_LANES,
                  vec_load(block->q + (row + r) * block->q_stride + d));
  }
}

/* Calls the functions of a table of a kind for all `rows` rows. `read`: other rows have already read the keys. */
static void for_few_rows(few_function *const functions[][2][4], few_rows *t, int64_t rows, bool read) {
  for (t->row = 0; t->row < rows; read = true) {
    const int index = rows_index(rows - t->row);
    functions[t->keys.dtype][read][index](t);
    t->row += ROWS_AT_ONCE[index];
  }
}

static void score_few_rows(few_rows *t, int64_t rows, bool read) {
  static few_function *const functions[][2][4] = {
#define DTYPE(constant, ...) \
  [ATTN_##constant] = {ENTRIES_OF(score, ATTN_##constant##_fresh), ENTRIES_OF(score, ATTN_##constant##_again)},
#include "dtypes.def"
#undef DTYPE
  };
  for_few_rows(functions, t, rows, read);
}

/* ---- Softmax of a block ---- */

/* The scores of row `row`, masked, to P; score[0] belongs to key `first`, the block holds `keys`. Like softmax_panel, for a
 * whole block at a time: one largest score, at most one rescaling. `plain`: nothing is added to scores, no key of the block
 * is masked. */
static void softmax_row(const row_block *block, int64_t row, int64_t first, attn_key_range keys, float *score, bool plain) {
  const attn_key_range range = {max64(block->range[row].begin, keys.begin), min64(block->range[row].end, keys.end)};
  const int64_t from = round_down(keys.begin - first, VEC_LANES), to = keys.end - first;
  vec best = vec_set1(-INFINITY), sum = vec_load(block->row_sum + row * VEC_LANES);
  const bool whole = plain && (keys.begin - first) % VEC_LANES == 0 && (keys.end - first) % VEC_LANES == 0;
  for (int64_t j = from; whole && j < to; j += VEC_LANES) best = vec_max(vec_load(score + j), best);
  for (int64_t j = from; !whole && j < to; j += VEC_LANES) {
    const vec x = select_allowed(range, first + j, adjust_scores(block, row, first + j, vec_load(score + j)));
    vec_store(score + j, x);
    best = vec_max(x, best);
  }
  const float step = vec_reduce_max(best) - reference_of(block, row);
  if (step > (block->row_max[row] == -INFINITY ? -INFINITY : RESCALE_AT)) {
    rescale_row(block, row, step, score, 0);
    sum = vec_load(block->row_sum + row * VEC_LANES);
  }
  const vec reference = vec_set1(reference_of(block, row));
  for (int64_t j = from; j < to; j += VEC_LANES) {
    const vec p = vec_exp2(vec_sub(vec_load(score + j), reference));
    vec_store(score + j, p);
    sum = vec_add(sum, p);
  }
  vec_store(block->row_sum + row * VEC_LANES, sum);
}

/* ---- O += P V, V in place ---- */

/* Sums that stay in registers: rows times vectors of columns. */
enum { DECODE_SUMS = 4 * TILE_VECS };

/* acc += P V for `vecs`, a constant, vectors of columns from `column` on. */
static ALWAYS_INLINE void accumulate_few(const few_rows t, int64_t column, const few_kind kind, const int vecs) {
  const int vecs_of_line = LINE_BYTES / (VEC_LANES * (int)attn_dtype_bytes(kind.dtype));
  float *acc = t.acc + column;
  vec sum[DECODE_SUMS];
  UNROLL
  for (int i = 0; i < kind.rows * vecs; i++) sum[i] = vec_load(acc + i / vecs * t.acc_stride + i % vecs * VEC_LANES);
  for (int64_t j = 0; j < t.count; j++) {
    const int64_t at = t.keys.first + j * t.keys.stride + column;
    vec_factor weight[DECODE_TILE_ROWS];
    UNROLL
    for (int r = 0; r < kind.rows; r++) weight[r] = vec_factor_at(t.score + r * t.score_stride + j);
    UNROLL
    for (int c = 0; c < vecs; c++) {
      if (kind.ahead && c % vecs_of_line == 0) prefetch_ahead(t.keys.data, kind.dtype, at + c * VEC_LANES);
      const vec x = load_elements(t.keys.data, kind.dtype, at + c * VEC_LANES, VEC_LANES);
      UNROLL
      for (int r = 0; r < kind.rows; r++) sum[r * vecs + c] = vec_fma_factor(weight[r], x, sum[r * vecs + c]);
    }
  }
  UNROLL
  for (int i = 0; i < kind.rows * vecs; i++) vec_store(acc + i / vecs * t.acc_stride + i % vecs * VEC_LANES, sum[i]);
}

/* All columns of the rows, as many vectors at a time as there are registers for their sums: too few sums could not hide the
 * latency of multiply-add. */
#define ACCUMULATE_VECS(rows, vecs)                                                                                  \
  for (; (vecs) * (rows) <= DECODE_SUMS && column + (vecs)*VEC_LANES <= left.acc_stride; column += (vecs)*VEC_LANES) \
    accumulate_few(left, column, kind, (vecs) * (rows) <= DECODE_SUMS ? (vecs) : 1);
#define DEFINE_ACCUMULATE(rows, dtype, ahead)                                      \
  static NO_INLINE void accumulate_##rows##_##dtype##_##ahead(const few_rows *t) { \
    const few_rows left = rows_left(t);                                            \
    const few_kind kind = {rows, dtype, ahead};                                    \
    int64_t column = 0;                                                            \
    ACCUMULATE_VECS(rows, 16)                                                      \
    ACCUMULATE_VECS(rows, 8)                                                       \
    ACCUMULATE_VECS(rows, 4)                                                       \
    ACCUMULATE_VECS(rows, 2)                                                       \
    ACCUMULATE_VECS(rows, 1)                                                       \
  }
#define DTYPE(constant, ...)                               \
  FOR_EACH_ROWS(DEFINE_ACCUMULATE, ATTN_##constant, fresh) \
  FOR_EACH_ROWS(DEFINE_ACCUMULATE, ATTN_##constant, again)
#include "dtypes.def"
#undef DTYPE

static void accumulate_few_rows(few_rows *t, int64_t rows, bool read) {
  static few_function *const functions[][2][4] = {
#define DTYPE(constant, ...) \
  [ATTN_##constant] = {ENTRIES_OF(accumulate, ATTN_##constant##_fresh), ENTRIES_OF(accumulate, ATTN_##constant##_again)},
#include "dtypes.def"
#undef DTYPE
  };
  for_few_rows(functions, t, rows, read);
}

/* ---- One block of keys ---- */

/* Copies V of the block's keys to float32 rows of whole vectors, where V cannot be read in place. */
static key_rows v_as_floats(const attn_problem *p, key_rows v, int64_t keys, float *copy) {
  const int64_t copy_stride = round_up(p->dim_v, VEC_LANES);
  for (int64_t j = 0; j < keys; j++)
    for (int64_t d = 0; d < p->dim_v; d += VEC_LANES)
      vec_store(copy + j * copy_stride + d,
                load_elements(v.data, v.dtype, v.first + j * v.stride + d, min64(p->dim_v - d, VEC_LANES)));
  return (key_rows){copy, ATTN_F32, 0, copy_stride};
}

static bool all_rows_see(const row_block *block, int64_t begin, int64_t end) {
  for (int64_t i = 0; i < block->rows; i++)
    if (block->range[i].begin > begin || block->range[i].end < end) return false;
  return true;
}

static void decode_block(const row_block *block, const float *q_tiles, int64_t begin, int64_t end, float *v_copy) {
  const attn_problem *p = block->problem;
  const int64_t first = round_down(begin, DECODE_KEYS), keys = end - begin;
  assert(begin < end && end - first <= DECODE_KEYS);
  const bool selects = selects_keys(p) || !all_rows_see(block, begin, end), picks = block->careful && selects;
  const bool plain = !selects && p->softcap == 0 && !attn_uses(p, ATTN_USE_ALIBI);
  const key_rows k = {block->args->k, p->dtype_kv, attn_k_offset(p, block->seq, block->b, block->head, begin),
                      p->k_stride.s};
  key_rows v = {block->args->v, p->dtype_kv, attn_v_offset(p, block->seq, block->b, block->head, begin), p->v_stride.s};
  /* Copy V as floats if its columns are not whole vectors, or if it is half precision and careful rows read single keys. */
  if (p->dim_v % VEC_LANES || (picks && v.dtype != ATTN_F32)) v = v_as_floats(p, v, keys, v_copy);
  row_block in_block = *block;
  in_block.keys = (packed_keys){.v = (const float *)v.data + v.first - begin * v.stride, .v_stride = v.stride};
  for (int64_t tile_row = 0; tile_row < block->rows; tile_row += DECODE_TILE_ROWS) {
    const int64_t rows = min64(DECODE_TILE_ROWS, block->rows - tile_row);
    few_rows tile = {.keys = k,
                     .count = keys,
                     .q = q_tiles + tile_row * block->q_stride,
                     .score = block->score + (begin - first),
                     .acc = block->acc + tile_row * block->acc_stride,
                     .dim_qk = p->dim_qk,
                     .score_stride = block->score_stride,
                     .acc_stride = block->acc_stride};
    score_few_rows(&tile, rows, tile_row > 0);
    for (int64_t i = 0; i < rows; i++)
      softmax_row(block, tile_row + i, first, (attn_key_range){begin, end}, block->score + i * block->score_stride, plain);
    tile.keys = v;
    if (picks)
      accumulate_selected(&in_block, tile_row, rows, begin, end, tile.score);
    else
      accumulate_few_rows(&tile, rows, tile_row > 0 || v.data == v_copy);
  }
}

/* ---- Tasks ---- */

typedef struct decode_task {
  const attn_problem *problem;
  const attn_args *args;
  attn_sequence seq;
  int64_t head, splits; /* head: the first of the query heads that share the unit's KV head */
  void *unit_memory, *scratch;
  split_layout state;
  decode_scratch at;
} decode_task;

static decode_task decode_task_of(const attn_schedule *schedule, const attn_args *args, int64_t unit, void *unit_memory,
                                  void *scratch) {
  const attn_problem *p = &schedule->problem;
  decode_task t = {.problem = p,
                   .args = args,
                   .seq = attn_sequence_of(p, args, attn_batch_of_unit(p, unit)),
                   .head = attn_head_of_unit(p, unit),
                   .splits = schedule->items[0],
                   .unit_memory = unit_memory,
                   .scratch = scratch};
  split_layout_of(p, &t.state);
  decode_scratch_of(p, t.state.capacity, &t.at);
  return t;
}

/* The block of all rows that share the unit's KV head, with the state of one split. */
static row_block decode_rows(const decode_task *t, int64_t split) {
  const attn_problem *p = t->problem;
  void *state = (char *)t->unit_memory + split * t->state.total;
  return (row_block){
      .problem = p,
      .args = t->args,
      .seq = &t->seq,
      .b = t->seq.b,
      .head = t->head,
      .rows = attn_group(p) * t->seq.rows,
      .rows_per_head = t->seq.rows,
      .acc = floats_at(state, t->state.acc),
      .row_max = floats_at(state, t->state.row_max),
      .row_sum = floats_at(state, t->state.row_sum),
      .range = (attn_key_range *)(void *)floats_at(t->scratch, t->at.range),
      .q_stride = round_up(p->dim_qk, VEC_LANES),
      .acc_stride = t->state.acc_stride,
      .score_stride = DECODE_SCORE_STRIDE,
      .adjusted = true, /* the reference is not subtracted from scores yet */
      .first_try = true,
  };
}

/* Keys of a split that any row may see. */
static attn_key_range keys_of_split(const row_block *block, int64_t split) {
  const attn_key_range keys = keys_of_block(block);
  return (attn_key_range){max64(keys.begin, split * SPLIT_KEYS), min64(keys.end, (split + 1) * SPLIT_KEYS)};
}

static void decode_split(const decode_task *t, int64_t split, bool careful) {
  row_block block = decode_rows(t, split);
  float *q_tiles = floats_at(t->scratch, t->at.q_tiles), *v_copy = floats_at(t->scratch, t->at.v);
  if (block.rows == 0) return;
  block.careful = careful;
  block.q = floats_at(t->scratch, t->at.q);
  block.score = floats_at(t->scratch, t->at.score);
  start_rows(&block, block.rows);
  tile_queries(&block, q_tiles);
  const attn_key_range keys = keys_of_split(&block, split);
  for (int64_t key = round_down(keys.begin, DECODE_KEYS); key < keys.end; key += DECODE_KEYS)
    decode_block(&block, q_tiles, max64(key, keys.begin), min64(key + DECODE_KEYS, keys.end), v_copy);
}

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

static void decode_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                       void *scratch) {
  const decode_task t = decode_task_of(schedule, args, task.unit, unit_memory, scratch);
  if (task.phase == 0) {
    decode_split(&t, task.item, false);
  } else if (!merge_splits(&t, false)) {
    for (int64_t split = 0; split < t.splits; split++) decode_split(&t, split, true);
    merge_splits(&t, true);
  }
}

#endif
