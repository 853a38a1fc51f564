/* SPDX-License-Identifier: MIT */
/* decode: few query rows against many keys, where reading K and V once is what counts.
 *
 * All query rows that share a KV head are one block, so K and V are read once per KV head, in place: a panel would have to
 * be written and read again. Keys are split at fixed borders into tasks of their own (Dao et al. 2023, "Flash-Decoding"),
 * each of which leaves (row_max, row_sum, acc) in the unit's memory; the merge phase takes them together in the order of the
 * keys. Borders depend on nothing but the key index, so bits do not depend on who computed what.
 *
 * Scores put the head dimension in lanes: VEC_LANES sums at a time, as 1 row x VEC_LANES keys up to 8 rows x VEC_LANES / 8
 * keys, which a transposing tree of additions turns into one vector of scores (vec_sum_each). */
#ifndef ATTN_COMMON_DECODE_H
#define ATTN_COMMON_DECODE_H

#include "split_keys.h"
#include "streaming_softmax.h"
#include "two_phase.h"

/* Rows scored and summed together, so often is each load (and conversion) of K and V used: 8 where a tier says that it has the registers
 * for their sums. */
#ifdef DECODE_EIGHT_ROWS
enum { DECODE_TILE_ROWS = 8 };
#define EIGHT_ROWS(...) __VA_ARGS__
#else
enum { DECODE_TILE_ROWS = 4 };
#define EIGHT_ROWS(...)
#endif

enum {
  DECODE_KEYS = 32,     /* of one block: K and V take turns so often that memory sees two streams, not one after the other */
  PREFETCH_BYTES = 8192 /* ahead in K and in V; CPUs prefetch on their own, but stop at pages and behind slow arithmetic */
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
  int64_t unit;
  if (!split_layout_of(p, &split) || !decode_scratch_of(p, split.capacity, &scratch)) return false;
  schedule->phases = 2;
  schedule->items[0] = split_count(p);
  schedule->items[1] = 1;
  schedule->row_block = split.capacity;
  schedule->key_block = SPLIT_KEYS;
  if (__builtin_mul_overflow(schedule->items[0], split.total, &unit) || unit > INT64_MAX / 8) return false;
  schedule->unit_bytes = (size_t)unit;
  schedule->scratch_bytes = (size_t)scratch.total;
  return true;
}

/* ---- S = Q K^T, K in place ---- */

/* Rows of K or V as the loops read them: element (j, d) is data[first + j * stride + d], in place or converted. */
typedef struct key_rows {
  const void *data;
  attn_dtype dtype;
  int64_t first, stride;
} key_rows;

enum { LINE_BYTES = 64 };

/* Asks for the line that the loops will need PREFETCH_BYTES after the one at `index`, into level 2. A hint only: addresses beyond
 * the tensor do no harm. One hint goes with each line that is used, so that memory is busy while the arithmetic runs; a burst of
 * them would fill the core's few line buffers and wait. */
static ALWAYS_INLINE void prefetch_ahead(const void *data, attn_dtype dtype, int64_t index) {
  __builtin_prefetch((const void *)((uintptr_t)data + (uintptr_t)(index * (int)attn_dtype_bytes(dtype)) + PREFETCH_BYTES), 0,
                     2);
}

/* sum[r][j] += products of the elements [d, d + n) of `rows` rows and of the `group` keys from key[0] on. */
static ALWAYS_INLINE void score_columns(vec *sum, const float *q, const void *data, const int64_t *key, int64_t d, int64_t n,
                                        const int rows, const int group, const attn_dtype dtype) {
  vec query[DECODE_TILE_ROWS];
  UNROLL
  for (int r = 0; r < rows; r++) query[r] = vec_load(q + d * rows + r * VEC_LANES);
  UNROLL
  for (int j = 0; j < group; j++) {
    const vec x = load_elements(data, dtype, key[j] + d, n);
    UNROLL
    for (int r = 0; r < rows; r++) sum[r * (VEC_LANES / rows) + j] = vec_fma(query[r], x, sum[r * (VEC_LANES / rows) + j]);
  }
}

/* score[r][j] for `rows` rows and VEC_LANES / rows keys from key `at` on, of which `keys` exist. `rows` is a constant, 1 to 8,
 * and so are the type and `ahead`. A row on its own waits for memory, which is read fastest in its own order: key by key.
 * Several rows go through their keys side by side, so that each load of q serves all of them. */
static ALWAYS_INLINE void score_few(const float *q, key_rows k, int64_t at, int64_t keys, int64_t dim_qk, float *score,
                                    int64_t score_stride, const int rows, const attn_dtype dtype, const bool ahead) {
  const int columns = VEC_LANES / rows, group = rows == 1 ? 1 : columns, line = LINE_BYTES / (int)attn_dtype_bytes(dtype);
  vec sum[VEC_LANES];
  int64_t key[VEC_LANES];
  UNROLL
  for (int i = 0; i < VEC_LANES; i++) sum[i] = vec_zero();
  UNROLL
  for (int j = 0; j < columns; j++) key[j] = k.first + min64(at + j, keys - 1) * k.stride;
  UNROLL
  for (int j = 0; j < columns; j += group) {
    int64_t d = 0;
    for (; d + line <= dim_qk; d += line) {
      UNROLL
      for (int i = 0; ahead && i < group; i++) prefetch_ahead(k.data, dtype, key[j + i] + d);
      UNROLL
      for (int part = 0; part < line; part += VEC_LANES)
        score_columns(&sum[j], q, k.data, &key[j], d + part, VEC_LANES, rows, group, dtype);
    }
    for (; d < dim_qk; d += VEC_LANES)
      score_columns(&sum[j], q, k.data, &key[j], d, min64(dim_qk - d, VEC_LANES), rows, group, dtype);
  }
  float each[VEC_LANES];
  vec_store(each, vec_sum_each(sum));
  UNROLL
  for (int r = 0; r < rows; r++) memcpy(score + r * score_stride, each + r * columns, (size_t)columns * sizeof(float));
}

/* Rows that one call works on, by index into the tables below. */
static const int64_t ROWS_AT_ONCE[] = {8, 4, 2, 1};

static inline int rows_index(int64_t rows) {
  return rows >= 8 && DECODE_TILE_ROWS >= 8 ? 0 : rows >= 4 ? 1 : rows >= 2 ? 2 : 3;
}

/* NAME(rows, dtype, ahead) for all numbers of rows, types and both `ahead`: a function of its own for each, or their registers would
 * get in each other's way. `again` is for K and V that other rows have just read: it asks memory for nothing. */
#define FOR_EACH_ROWS(NAME, dtype, ahead) \
  EIGHT_ROWS(NAME(8, dtype, ahead))       \
  NAME(4, dtype, ahead) NAME(2, dtype, ahead) NAME(1, dtype, ahead)
#define ENTRIES_OF(name, kind) \
  { EIGHT_ROWS([0] = name##_8_##kind, )[1] = name##_4_##kind, [2] = name##_2_##kind, [3] = name##_1_##kind }
enum { again = false, fresh = true };

/* Scores of `rows` rows for all keys of the block. What lies beyond `keys`, up to VEC_LANES, is written too. */
typedef void score_function(const float *q, key_rows k, int64_t keys, int64_t dim_qk, float *score, int64_t score_stride);
#define DEFINE_SCORE(rows, dtype, ahead)                                                                           \
  static NO_INLINE void score_##rows##_##dtype##_##ahead(const float *q, key_rows k, int64_t keys, int64_t dim_qk, \
                                                         float *score, int64_t score_stride) {                     \
    for (int64_t at = 0; at < keys; at += VEC_LANES / rows)                                                        \
      score_few(q, k, at, keys, dim_qk, score + at, score_stride, rows, dtype, ahead);                             \
  }
#define DTYPE(constant, ...)                           \
  FOR_EACH_ROWS(DEFINE_SCORE, ATTN_##constant, fresh) \
  FOR_EACH_ROWS(DEFINE_SCORE, ATTN_##constant, again)
#include "dtypes.def"
#undef DTYPE

/* The queries as score_few reads them: of the rows that one call works on, a vector of each, side by side, so that one pointer
 * reaches them all. */
static void tile_queries(const row_block *block, float *q_tiles) {
  for (int64_t row = 0, step; row < block->rows; row += step) {
    step = ROWS_AT_ONCE[rows_index(block->rows - row)];
    for (int64_t r = 0; r < step; r++)
      for (int64_t d = 0; d < block->q_stride; d += VEC_LANES)
        vec_store(q_tiles + row * block->q_stride + d * step + r * VEC_LANES,
                  vec_load(block->q + (row + r) * block->q_stride + d));
  }
}

/* Scores of the block's rows [tile_row, tile_row + rows). `read`: other rows have already read these keys. */
static void score_few_rows(const row_block *block, const float *q_tiles, int64_t tile_row, int64_t rows, key_rows k,
                           bool read, int64_t keys, float *score) {
  static score_function *const functions[][2][4] = {
#define DTYPE(constant, ...) \
  [ATTN_##constant] = {ENTRIES_OF(score, ATTN_##constant##_fresh), ENTRIES_OF(score, ATTN_##constant##_again)},
#include "dtypes.def"
#undef DTYPE
  };
  for (int64_t done = 0, step; done < rows; done += step, read = true) {
    const int index = rows_index(rows - done);
    step = ROWS_AT_ONCE[index];
    functions[k.dtype][read][index](q_tiles + (tile_row + done) * block->q_stride, k, keys, block->problem->dim_qk,
                                    score + done * block->score_stride, block->score_stride);
  }
}

/* ---- Softmax of a block ---- */

/* The scores of row `row`, masked, to P; score[0] belongs to key `first`, the block holds `keys`. Like softmax_panel, for a whole
 * block at a time: one largest score, at most one rescaling. `plain`: nothing is added to scores, no key of the block is masked. */
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

/* `rows`, the type, `ahead` and `vecs` are constants. */
static ALWAYS_INLINE void accumulate_few(float *acc, int64_t acc_stride, const float *p, int64_t p_stride, key_rows v,
                                         int64_t column, int64_t keys, const int rows, const attn_dtype dtype,
                                         const bool ahead, const int vecs) {
  const int vecs_of_line = LINE_BYTES / (VEC_LANES * (int)attn_dtype_bytes(dtype));
  vec sum[DECODE_SUMS];
  UNROLL
  for (int i = 0; i < rows * vecs; i++) sum[i] = vec_load(acc + i / vecs * acc_stride + column + i % vecs * VEC_LANES);
  for (int64_t j = 0; j < keys; j++) {
    const int64_t at = v.first + j * v.stride + column;
    vec_factor weight[DECODE_TILE_ROWS];
    UNROLL
    for (int r = 0; r < rows; r++) weight[r] = vec_factor_at(p + r * p_stride + j);
    UNROLL
    for (int c = 0; c < vecs; c++) {
      if (ahead && c % vecs_of_line == 0) prefetch_ahead(v.data, dtype, at + c * VEC_LANES);
      const vec x = load_elements(v.data, dtype, at + c * VEC_LANES, VEC_LANES);
      UNROLL
      for (int r = 0; r < rows; r++) sum[r * vecs + c] = vec_fma_factor(weight[r], x, sum[r * vecs + c]);
    }
  }
  UNROLL
  for (int i = 0; i < rows * vecs; i++) vec_store(acc + i / vecs * acc_stride + column + i % vecs * VEC_LANES, sum[i]);
}

/* All columns of `rows` rows, as many vectors at a time as there are registers for their sums: too few sums could not hide the
 * latency of multiply-add. */
#define ACCUMULATE_VECS(rows, dtype, ahead, vecs)                                                               \
  for (; (vecs) * (rows) <= DECODE_SUMS && column + (vecs)*VEC_LANES <= acc_stride; column += (vecs)*VEC_LANES) \
    accumulate_few(acc, acc_stride, p, p_stride, v, column, keys, rows, dtype, ahead,                           \
                   (vecs) * (rows) <= DECODE_SUMS ? (vecs) : 1);
typedef void accumulate_function(float *acc, int64_t acc_stride, const float *p, int64_t p_stride, key_rows v, int64_t keys);
#define DEFINE_ACCUMULATE(rows, dtype, ahead)                                                                 \
  static NO_INLINE void accumulate_##rows##_##dtype##_##ahead(float *acc, int64_t acc_stride, const float *p, \
                                                              int64_t p_stride, key_rows v, int64_t keys) {   \
    int64_t column = 0;                                                                                       \
    ACCUMULATE_VECS(rows, dtype, ahead, 16)                                                                   \
    ACCUMULATE_VECS(rows, dtype, ahead, 8)                                                                    \
    ACCUMULATE_VECS(rows, dtype, ahead, 4)                                                                    \
    ACCUMULATE_VECS(rows, dtype, ahead, 2)                                                                    \
    ACCUMULATE_VECS(rows, dtype, ahead, 1)                                                                    \
  }
#define DTYPE(constant, ...)                                \
  FOR_EACH_ROWS(DEFINE_ACCUMULATE, ATTN_##constant, fresh) \
  FOR_EACH_ROWS(DEFINE_ACCUMULATE, ATTN_##constant, again)
#include "dtypes.def"
#undef DTYPE

static void accumulate_few_rows(const row_block *block, int64_t tile_row, int64_t rows, key_rows v, bool read, int64_t keys,
                                const float *p) {
  static accumulate_function *const functions[][2][4] = {
#define DTYPE(constant, ...) \
  [ATTN_##constant] = {ENTRIES_OF(accumulate, ATTN_##constant##_fresh), ENTRIES_OF(accumulate, ATTN_##constant##_again)},
#include "dtypes.def"
#undef DTYPE
  };
  for (int64_t done = 0, step; done < rows; done += step, read = true) {
    const int index = rows_index(rows - done);
    step = ROWS_AT_ONCE[index];
    functions[v.dtype][read][index](block->acc + (tile_row + done) * block->acc_stride, block->acc_stride,
                                    p + done * block->score_stride, block->score_stride, v, keys);
  }
}

/* ---- One block of keys ---- */

/* V of the block's keys as float32 rows of whole vectors, for what cannot be read in place. */
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
  const bool selects = selects_keys(p) || !all_rows_see(block, begin, end), picks = block->careful && selects;
  const bool plain = !selects && p->softcap == 0 && !attn_uses(p, ATTN_USE_ALIBI);
  const key_rows k = {block->args->k, p->dtype_kv, attn_k_offset(p, block->seq, block->b, block->head, begin),
                      p->k_stride.s};
  key_rows v = {block->args->v, p->dtype_kv, attn_v_offset(p, block->seq, block->b, block->head, begin), p->v_stride.s};
  /* Columns that are no whole vectors, and half-precision V that careful rows pick key by key, are copied as floats. */
  if (p->dim_v % VEC_LANES || (picks && v.dtype != ATTN_F32)) v = v_as_floats(p, v, keys, v_copy);
  row_block in_block = *block;
  in_block.keys = (packed_keys){.v = (const float *)v.data + v.first - begin * v.stride, .v_stride = v.stride};
  for (int64_t tile_row = 0; tile_row < block->rows; tile_row += DECODE_TILE_ROWS) {
    const int64_t rows = min64(DECODE_TILE_ROWS, block->rows - tile_row);
    float *score = block->score + (begin - first);
    score_few_rows(block, q_tiles, tile_row, rows, k, tile_row > 0, keys, score);
    for (int64_t i = 0; i < rows; i++)
      softmax_row(block, tile_row + i, first, (attn_key_range){begin, end}, block->score + i * block->score_stride, plain);
    if (picks)
      accumulate_selected(&in_block, tile_row, rows, begin, end, score);
    else
      accumulate_few_rows(block, tile_row, rows, v, tile_row > 0 || v.data == v_copy, keys, score);
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
      .adjusted = true, /* scores come without the reference taken off */
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

/* Adds a later split's state to the first one's, both brought to the larger reference. */
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
