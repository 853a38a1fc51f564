/* decode: few query rows against many keys, where reading K and V once is what counts.
 *
 * All query rows that share a KV head are one block, so K and V are read once per KV head, in place: a panel would have to
 * be written and read again. Keys are split at fixed borders into tasks of their own (Dao et al. 2023, "Flash-Decoding"),
 * each of which leaves (row_max, row_sum, acc) in the unit's memory; the merge phase takes them together in the order of the
 * keys. Borders depend on nothing but the key index, so bits do not depend on who computed what.
 *
 * Scores put the head dimension in lanes: VEC_LANES sums at a time, as 1 row x VEC_LANES keys up to 4 rows x VEC_LANES / 4
 * keys, which a transposing tree of additions turns into one vector of scores (vec_sum_each). */
#ifndef ATTN_COMMON_DECODE_H
#define ATTN_COMMON_DECODE_H

#include "rows_task.h"
#include "split_keys.h"
#include "streaming.h"

enum {
  DECODE_TILE_ROWS = 4, /* rows scored and summed together: each load of K and V is used 4 times; sums fit the registers */
  DECODE_KEYS = 64,     /* of one block, whose K and V stay in L1 from score to sum; a multiple of every PANEL_KEYS */
  PREFETCH_BYTES = 8192 /* ahead in K and in V, for CPUs whose own prefetching stops at pages */
};

static const char *decode_rejects(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  if (p->score != ATTN_SCORE_DOT) return "it computes dot scores only: other score functions gain nothing from few rows";
  if (p->k_stride.d != 1 || p->v_stride.d != 1)
    return "it reads K and V in place, so their head dimension must be dense (k_stride.d = v_stride.d = 1)";
  return too_many_rows(p, buffer, buffer_bytes);
}

/* ---- Memory: the state of every row, once per split ---- */

typedef struct split_layout {
  int64_t capacity;                            /* rows of a KV head, whole tiles */
  int64_t acc_stride, row_max, row_sum, total; /* floats; acc comes first */
} split_layout;

static split_layout split_layout_of(const attn_problem *p) {
  split_layout at = {.capacity = round_up(p->heads_q / p->heads_kv * p->seq_q, TILE_ROWS),
                     .acc_stride = round_up(p->dim_v, VEC_LANES)};
  at.row_max = at.capacity * at.acc_stride;
  at.row_sum = at.row_max + round_up(at.capacity, ATTN_MEMORY_ALIGN / 4);
  at.total = round_up(at.row_sum + at.capacity * VEC_LANES, ATTN_MEMORY_ALIGN / 4);
  return at;
}

/* Floats of a thread's scratch. */
typedef struct decode_scratch {
  int64_t q, range, score, k, v, total;
} decode_scratch;

enum { DECODE_SCORE_STRIDE = DECODE_KEYS + 16 };

static bool decode_scratch_of(const attn_problem *p, int64_t capacity, decode_scratch *at) {
  const scratch_part parts[] = {
      {&at->q, capacity, round_up(p->dim_qk, VEC_LANES)},
      {&at->range, capacity, RANGE_FLOATS},
      {&at->score, TILE_ROWS, DECODE_SCORE_STRIDE},
      {&at->k, p->dtype_kv == ATTN_F32 ? 0 : DECODE_KEYS, round_up(p->dim_qk, VEC_LANES)},
      {&at->v, DECODE_KEYS, round_up(p->dim_v, VEC_LANES)},
  };
  return lay_out_scratch(parts, sizeof parts / sizeof *parts, &at->total);
}

static bool decode_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  (void)machine;
  const split_layout split = split_layout_of(p);
  decode_scratch scratch;
  int64_t unit;
  schedule->phases = 2;
  schedule->items[0] = split_count(p);
  schedule->items[1] = 1;
  schedule->row_block = split.capacity;
  schedule->key_block = SPLIT_KEYS;
  if (__builtin_mul_overflow(schedule->items[0], split.total, &unit) || unit > INT64_MAX / 8) return false;
  schedule->unit_bytes = (size_t)unit * sizeof(float);
  if (!decode_scratch_of(p, split.capacity, &scratch)) return false;
  schedule->scratch_bytes = (size_t)scratch.total * sizeof(float);
  return true;
}

/* ---- S = Q K^T, K in place ---- */

/* Rows of K or V as the loops read them: element (j, d) is data[first + j * stride + d], in place or converted. */
typedef struct key_rows {
  const void *data;
  attn_dtype dtype;
  int64_t first, stride;
} key_rows;

/* score[r][j] for `rows` rows and VEC_LANES / rows keys from key `at` on, of which `keys` exist. `rows` is a constant, 1, 2
 * or 4, and so is the type. */
static ALWAYS_INLINE void score_few(const float *q, int64_t q_stride, key_rows k, int64_t at, int64_t keys, int64_t dim_qk,
                                    float *score, int64_t score_stride, const int rows, const attn_dtype dtype) {
  const int columns = VEC_LANES / rows;
  int64_t key[VEC_LANES];
  vec sum[VEC_LANES];
  UNROLL
  for (int j = 0; j < columns; j++) key[j] = k.first + (at + min64(j, keys - 1)) * k.stride;
  UNROLL
  for (int i = 0; i < VEC_LANES; i++) sum[i] = vec_zero();
  int64_t d = 0;
  for (; d + VEC_LANES <= dim_qk; d += VEC_LANES) {
    UNROLL
    for (int j = 0; j < columns; j++) {
      const vec x = load_elements(k.data, dtype, key[j] + d, VEC_LANES);
      UNROLL
      for (int r = 0; r < rows; r++) sum[r * columns + j] = vec_fma(vec_load(q + r * q_stride + d), x, sum[r * columns + j]);
    }
  }
  if (d < dim_qk)
    for (int j = 0; j < columns; j++) {
      const vec x = load_elements(k.data, dtype, key[j] + d, dim_qk - d);
      for (int r = 0; r < rows; r++) sum[r * columns + j] = vec_fma(vec_load(q + r * q_stride + d), x, sum[r * columns + j]);
    }
  float each[VEC_LANES];
  vec_store(each, vec_sum_each(sum));
  UNROLL
  for (int r = 0; r < rows; r++) memcpy(score + r * score_stride, each + r * columns, (size_t)columns * sizeof(float));
}

/* Scores of the block's rows [tile_row, tile_row + rows) for `keys` keys. What lies beyond them, up to VEC_LANES, is written
 * too. */
static void score_few_rows(const row_block *block, int64_t tile_row, int64_t rows, key_rows k, int64_t keys, float *score) {
  const int64_t dim_qk = block->problem->dim_qk;
  for (int64_t done = 0, step; done < rows; done += step) {
    const float *q = block->q + (tile_row + done) * block->q_stride;
    float *s = score + done * block->score_stride;
    step = rows - done >= 4 ? 4 : rows - done >= 2 ? 2 : 1;
    for (int64_t j = 0; j < keys; j += VEC_LANES / step) {
      if (step == 4)
        score_few(q, block->q_stride, k, j, keys - j, dim_qk, s + j, block->score_stride, 4, ATTN_F32);
      else if (step == 2)
        score_few(q, block->q_stride, k, j, keys - j, dim_qk, s + j, block->score_stride, 2, ATTN_F32);
      else if (k.dtype == ATTN_F32)
        score_few(q, block->q_stride, k, j, keys - j, dim_qk, s + j, block->score_stride, 1, ATTN_F32);
      else if (k.dtype == ATTN_F16)
        score_few(q, block->q_stride, k, j, keys - j, dim_qk, s + j, block->score_stride, 1, ATTN_F16);
      else
        score_few(q, block->q_stride, k, j, keys - j, dim_qk, s + j, block->score_stride, 1, ATTN_BF16);
    }
  }
}

/* ---- O += P V, V in place ---- */

/* `rows`, the type and `vecs` are constants. */
static ALWAYS_INLINE void accumulate_few(float *acc, int64_t acc_stride, const float *p, int64_t p_stride, key_rows v,
                                         int64_t column, int64_t keys, const int rows, const attn_dtype dtype,
                                         const int vecs) {
  vec sum[DECODE_TILE_ROWS][TILE_VECS];
  UNROLL
  for (int r = 0; r < rows; r++) {
    UNROLL
    for (int c = 0; c < vecs; c++) sum[r][c] = vec_load(acc + r * acc_stride + column + c * VEC_LANES);
  }
  UNROLL_4
  for (int64_t j = 0; j < keys; j++) {
    UNROLL
    for (int c = 0; c < vecs; c++) {
      const vec x = load_elements(v.data, dtype, v.first + j * v.stride + column + c * VEC_LANES, VEC_LANES);
      UNROLL
      for (int r = 0; r < rows; r++) sum[r][c] = vec_fma(vec_set1(p[r * p_stride + j]), x, sum[r][c]);
    }
  }
  UNROLL
  for (int r = 0; r < rows; r++) {
    UNROLL
    for (int c = 0; c < vecs; c++) vec_store(acc + r * acc_stride + column + c * VEC_LANES, sum[r][c]);
  }
}

#define ACCUMULATE_FEW(rows, dtype)                                                                                         \
  WITH_CONSTANT_VECS(next - c, accumulate_few, acc, block->acc_stride, weight, block->score_stride, v, c * VEC_LANES, keys, \
                     rows, dtype)

static void accumulate_few_rows(const row_block *block, int64_t tile_row, int64_t rows, key_rows v, int64_t keys,
                                const float *p) {
  const int64_t vecs = block->acc_stride / VEC_LANES;
  for (int64_t done = 0, step; done < rows; done += step) {
    float *acc = block->acc + (tile_row + done) * block->acc_stride;
    const float *weight = p + done * block->score_stride;
    step = rows - done >= 4 ? 4 : rows - done >= 2 ? 2 : 1;
    for (int64_t c = 0, next; c < vecs; c = next) {
      next = min64(c + TILE_VECS, vecs);
      if (step == 4) {
        ACCUMULATE_FEW(4, ATTN_F32)
      } else if (step == 2) {
        ACCUMULATE_FEW(2, ATTN_F32)
      } else if (v.dtype == ATTN_F32) {
        ACCUMULATE_FEW(1, ATTN_F32)
      } else if (v.dtype == ATTN_F16) {
        ACCUMULATE_FEW(1, ATTN_F16)
      } else {
        ACCUMULATE_FEW(1, ATTN_BF16)
      }
    }
  }
}

/* ---- One block of keys ---- */

/* `keys` rows of K or V from element `first` on: in place if the loops may read them there, else converted to float32 rows
 * of whole vectors. */
static key_rows open_rows(const void *data, attn_dtype dtype, int64_t first, int64_t stride, int64_t keys, int64_t dim,
                          bool in_place, float *copy) {
  const int64_t copy_stride = round_up(dim, VEC_LANES);
  if (in_place) return (key_rows){data, dtype, first, stride};
  for (int64_t j = 0; j < keys; j++)
    for (int64_t d = 0; d < dim; d += VEC_LANES)
      vec_store(copy + j * copy_stride + d, load_elements(data, dtype, first + j * stride + d, min64(dim - d, VEC_LANES)));
  return (key_rows){copy, ATTN_F32, 0, copy_stride};
}

/* A hint only: addresses beyond the tensor do no harm. */
static void prefetch_rows(const void *data, attn_dtype dtype, int64_t offset, int64_t stride, int64_t keys, int64_t dim) {
  const int64_t element = (int64_t)attn_dtype_bytes(dtype), row_bytes = dim * element,
                ahead = PREFETCH_BYTES / row_bytes + 1;
  const uintptr_t first = (uintptr_t)data + (uintptr_t)((offset + ahead * stride) * element);
  for (int64_t j = 0; j < keys; j++)
    for (int64_t byte = 0; byte < row_bytes; byte += 64)
      __builtin_prefetch((const void *)(first + (uintptr_t)(j * stride * element + byte)));
}

static bool all_rows_see(const row_block *block, int64_t begin, int64_t end) {
  for (int64_t i = 0; i < block->rows; i++)
    if (block->range[i].begin > begin || block->range[i].end < end) return false;
  return true;
}

static void decode_block(const row_block *block, int64_t begin, int64_t end, float *k_copy, float *v_copy) {
  const attn_problem *p = block->problem;
  const int64_t k_at = attn_k_offset(p, block->seq, block->b, block->head, begin);
  const int64_t v_at = attn_v_offset(p, block->seq, block->b, block->head, begin);
  const int64_t first = round_down(begin, PANEL_KEYS), keys = end - begin;
  prefetch_rows(block->args->k, p->dtype_kv, k_at, p->k_stride.s, keys, p->dim_qk);
  prefetch_rows(block->args->v, p->dtype_kv, v_at, p->v_stride.s, keys, p->dim_v);
  /* One row converts as it reads; several would convert again and again. Where not every row sees every key, V is picked key
   * by key, as floats. */
  const bool f32 = p->dtype_kv == ATTN_F32, alone = block->rows == 1, whole = p->dim_v % VEC_LANES == 0;
  const bool picks = selects_keys(p) || !all_rows_see(block, begin, end);
  const key_rows k = open_rows(block->args->k, p->dtype_kv, k_at, p->k_stride.s, keys, p->dim_qk, f32 || alone, k_copy);
  const key_rows v = open_rows(block->args->v, p->dtype_kv, v_at, p->v_stride.s, keys, p->dim_v,
                               whole && (f32 || (alone && !picks)), v_copy);
  row_block in_block = *block;
  in_block.keys = (packed_keys){.v = (const float *)v.data + v.first - begin * v.stride, .v_stride = v.stride};
  for (int64_t tile_row = 0; tile_row < block->rows; tile_row += DECODE_TILE_ROWS) {
    const int64_t rows = min64(DECODE_TILE_ROWS, block->rows - tile_row);
    score_few_rows(block, tile_row, rows, k, keys, block->score + (begin - first));
    for (int64_t key = first; key < end; key += PANEL_KEYS)
      softmax_panel(block, tile_row, key, block->score + (key - first), key - first, rows, TILE_VECS);
    if (picks)
      accumulate_selected(&in_block, tile_row, rows, begin, end, block->score + (begin - first));
    else
      accumulate_few_rows(block, tile_row, rows, v, keys, block->score + (begin - first));
  }
}

/* ---- Tasks ---- */

/* The block of all rows that share the unit's KV head, with the state of one split. */
static row_block decode_rows(const attn_schedule *schedule, const attn_args *args, const attn_sequence *seq, attn_task task,
                             int64_t split, float *unit_memory) {
  const attn_problem *p = &schedule->problem;
  const int64_t group = p->heads_q / p->heads_kv;
  const split_layout at = split_layout_of(p);
  float *state = unit_memory + split * at.total;
  return (row_block){
      .problem = p,
      .args = args,
      .seq = seq,
      .b = seq->b,
      .head = task.unit % p->heads_kv * group,
      .rows = group * seq->rows,
      .rows_per_head = seq->rows,
      .acc = state,
      .row_max = state + at.row_max,
      .row_sum = state + at.row_sum,
      .q_stride = round_up(p->dim_qk, VEC_LANES),
      .acc_stride = at.acc_stride,
      .score_stride = DECODE_SCORE_STRIDE,
      .adjusted = true, /* scores come without the reference taken off */
  };
}

/* Keys of a split that any row may see. */
static attn_key_range keys_of_split(const row_block *block, int64_t split) {
  attn_key_range keys = {INT64_MAX, 0};
  for (int64_t i = 0; i < block->rows; i++) {
    if (block->range[i].begin >= block->range[i].end) continue;
    keys.begin = min64(keys.begin, block->range[i].begin);
    keys.end = max64(keys.end, block->range[i].end);
  }
  return (attn_key_range){max64(keys.begin, split * SPLIT_KEYS), min64(keys.end, (split + 1) * SPLIT_KEYS)};
}

static void decode_split(const attn_schedule *schedule, const attn_args *args, attn_task task, float *unit_memory,
                         float *scratch) {
  const attn_problem *p = &schedule->problem;
  const attn_sequence seq = attn_sequence_of(p, args, task.unit / p->heads_kv);
  row_block block = decode_rows(schedule, args, &seq, task, task.item, unit_memory);
  if (block.rows == 0) return;
  decode_scratch at;
  decode_scratch_of(p, split_layout_of(p).capacity, &at);
  block.q = scratch + at.q;
  block.range = (attn_key_range *)(void *)(scratch + at.range);
  block.score = scratch + at.score;
  start_rows(&block, block.rows);
  const attn_key_range keys = keys_of_split(&block, task.item);
  for (int64_t key = round_down(keys.begin, DECODE_KEYS); key < keys.end; key += DECODE_KEYS)
    decode_block(&block, max64(key, keys.begin), min64(key + DECODE_KEYS, keys.end), scratch + at.k, scratch + at.v);
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

static void merge_splits(const attn_schedule *schedule, const attn_args *args, attn_task task, float *unit_memory,
                         float *scratch) {
  const attn_problem *p = &schedule->problem;
  const attn_sequence seq = attn_sequence_of(p, args, task.unit / p->heads_kv);
  row_block whole = decode_rows(schedule, args, &seq, task, 0, unit_memory);
  if (whole.rows == 0) return;
  whole.range = (attn_key_range *)(void *)scratch;
  for (int64_t i = 0; i < whole.rows; i++)
    whole.range[i] = attn_allowed_keys(p, args, &seq, whole.b, problem_row_of(&whole, i).query);
  for (int64_t split = 1; split < schedule->items[0]; split++) {
    const row_block later = decode_rows(schedule, args, &seq, task, split, unit_memory);
    for (int64_t i = 0; i < whole.rows; i++) merge_row(&whole, &later, i);
  }
  finish_rows(&whole);
}

static void decode_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                       void *scratch) {
  if (task.phase == 0)
    decode_split(schedule, args, task, unit_memory, scratch);
  else
    merge_splits(schedule, args, task, unit_memory, scratch);
}

#endif
