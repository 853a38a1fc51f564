/* SPDX-License-Identifier: MIT */
/* decode: few query rows against many keys, where the time goes into reading K and V.
 *
 * All query rows that share a KV head are one block, so K and V are read once per KV head. They are read in place, because a
 * packed panel would have to be written and read again. Keys are split at fixed borders into tasks of their own (Dao et al.
 * 2023, "Flash-Decoding"). Each task leaves (row_max, row_sum, acc) in the unit's memory, and the merge phase joins them in
 * the order of the keys. Borders are absolute key indices, so a row's bits do not depend on which thread computed what.
 *
 * Parameters: those of register_tile.h, and
 *   DECODE_OWN_PRODUCTS  optional: the tier has included products of its own, with the names of the last section of
 *                        few_rows.h; tested: set (amx), not set (the others) */
#ifndef ATTN_COMMON_DECODE_H
#define ATTN_COMMON_DECODE_H

#include <assert.h>

#include "split_keys.h"
#include "streaming_softmax.h"
#include "terms.h"
#include "two_phase.h"

#ifndef DECODE_OWN_PRODUCTS
#include "few_rows.h"
#endif

static const char *decode_rejects(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  if (p->score != ATTN_SCORE_DOT) return "it computes dot scores only: other score functions gain nothing from few rows";
  if (p->k_stride.d != 1 || p->v_stride.d != 1)
    return "it reads K and V in place, so their head dimension must be dense (k_stride.d = v_stride.d = 1)";
  return too_many_rows(p, buffer, buffer_bytes);
}

/* The same for kernels whose products multiply bf16 values. */
static inline const char *decode_rejects_all_but_bf16(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  const char *reason = takes_bf16(p, buffer, buffer_bytes);
  return reason ? reason : decode_rejects(p, buffer, buffer_bytes);
}

/* ---- Memory: the state of every row, once per split ---- */

typedef struct split_layout {
  int64_t capacity;                     /* rows of a KV head, whole tiles */
  int64_t acc_stride;                   /* floats */
  int64_t acc, row_max, row_sum, total; /* offsets in bytes, and the size */
} split_layout;

/* False if a size overflows. */
static bool split_layout_of(const attn_problem *p, split_layout *at) {
  *at = (split_layout){.capacity = decode_capacity(rows_per_kv_head(p)), .acc_stride = decode_columns(p)};
  const memory_part parts[] = {{&at->acc, at->capacity, float_bytes(at->acc_stride)},
                               {&at->row_max, at->capacity, float_bytes(1)},
                               {&at->row_sum, at->capacity, float_bytes(VEC_LANES)}};
  return LAY_OUT(parts, &at->total);
}

/* Offsets in a thread's scratch, in bytes. */
typedef struct decode_scratch {
  int64_t q, range, score, own, total;
  products_layout products; /* from `own` on */
} decode_scratch;

static bool decode_scratch_of(const attn_problem *p, int64_t capacity, decode_scratch *at) {
  if (!products_layout_of(p, capacity, &at->products)) return false;
  const memory_part parts[] = {
      {&at->q, FLOAT_QUERIES ? capacity : 0, float_bytes(round_up(p->dim_qk, VEC_LANES))},
      {&at->range, capacity, sizeof(attn_key_range)},
      {&at->score, DECODE_TILE_ROWS, float_bytes(DECODE_SCORE_STRIDE)},
      {&at->own, 1, at->products.total},
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
    const vec p = ROUND_P(vec_exp2(vec_sub(vec_load(score + j), reference)));
    vec_store(score + j, p);
    sum = vec_add(sum, p);
  }
  vec_store(block->row_sum + row * VEC_LANES, sum);
}

/* ---- One block of keys ---- */

static bool all_rows_see(const row_block *block, int64_t begin, int64_t end) {
  for (int64_t i = 0; i < block->rows; i++)
    if (block->range[i].begin > begin || block->range[i].end < end) return false;
  return true;
}

static void decode_block(const row_block *block, products *work, int64_t begin, int64_t end) {
  const attn_problem *p = block->problem;
  const int64_t first = round_down(begin, DECODE_KEYS);
  assert(begin < end && end - first <= DECODE_KEYS);
  const bool selects = selects_keys(p) || !all_rows_see(block, begin, end);
  const bool plain = !selects && p->softcap == 0 && !attn_uses(p, ATTN_USE_ALIBI);
  take_keys(work, block, begin, end, block->careful && selects);
  for (int64_t tile_row = 0; tile_row < block->rows; tile_row += DECODE_TILE_ROWS) {
    const int64_t rows = min64(DECODE_TILE_ROWS, block->rows - tile_row);
    score_rows(work, block, tile_row, rows);
    for (int64_t i = 0; i < rows; i++)
      softmax_row(block, tile_row + i, first, (attn_key_range){begin, end}, block->score + i * block->score_stride, plain);
    accumulate_rows(work, block, tile_row, rows);
  }
}

/* ---- Streams: all whole blocks of rows without a mask ---- */

#ifndef DECODE_OWN_PRODUCTS

/* What softmax of several rows side by side holds of them (group_rows.h). */
typedef struct group_softmax {
  float sum[VEC_LANES][VEC_LANES]; /* of P, as row_sum, but as scores stand; as many vectors as rows */
  float reference[VEC_LANES];      /* of the rows, as often as they fit */
  int64_t unset;                   /* rows that have no reference yet, and 0 as their sums */
} group_softmax;

/* The blocks from `key` up to `end`, of rows whose queries are at q as tile_queries() leaves them. */
typedef void stream_function(const row_block *block, const float *q, int64_t key, int64_t end, group_softmax *state);

#ifdef DECODE_GROUP_ROWS
#include "group_rows.h"
#else
#define group_of(problem, rows, asks)   ((void)(asks), (stream_function *)NULL)
#define start_group(block, rows, state) ((void)0)
#define store_sums(block, rows, state)  ((void)0)
#endif
#ifdef DECODE_PAIRS
#define one_row_of(problem, ahead) ((void)(ahead), (stream_function *)NULL)
#else
#include "one_row.h"
#endif

/* Rows of a block that one function takes at once. */
typedef struct row_stream {
  stream_function *run;
  const row_block *block; /* the whole block if they are its first, else `part` */
  row_block part;
  const float *q;
  int64_t rows;
  group_softmax state;
} row_stream;

enum { STREAMS = DECODE_ROWS / DECODE_TILE_ROWS + 2 /* whole tiles, and 5 rows more: 4 and 1 */ };

/* Splits the block into streams. Returns how many they are, 0 if not all of its rows are what group_rows.h or one_row.h is
 * for. */
static int64_t streams_of(const row_block *block, const products *work, row_stream streams[STREAMS]) {
  const attn_problem *p = block->problem;
  const bool plain = !selects_keys(p) && p->softcap == 0 && !attn_uses(p, ATTN_USE_ALIBI);
  int64_t count = 0;
  for (int64_t row = 0; plain && row < block->rows; row += streams[count++].rows) {
    row_stream *stream = &streams[count];
    stream->rows = ROWS_AT_ONCE[rows_index(block->rows - row)];
    stream->run = stream->rows > 1 ? group_of(p, stream->rows, work->ahead == twice) : one_row_of(p, work->ahead);
    if (!stream->run) return 0;
    stream->block = row > 0 ? &stream->part : block;
    stream->q = work->q_tiles + row * lanes_of(p->dim_qk);
    if (row == 0) continue;
    stream->part = *block;
    stream->part.acc += row * block->acc_stride;
    stream->part.row_max += row;
    stream->part.row_sum += row * VEC_LANES;
  }
  return count;
}

/* All whole blocks from `key` on that all rows see, up to `end`. Returns the first key that is left. */
static int64_t run_streams(const row_block *block, row_stream *streams, int64_t count, int64_t key, int64_t end) {
  for (int64_t i = 0; i < block->rows; i++) {
    if (count == 0 || block->range[i].begin > key) return key;
    end = min64(end, block->range[i].end);
  }
  end -= (end - key) % DECODE_KEYS;
  if (end <= key) return key;
  for (row_stream *s = streams; s < streams + count; s++)
    if (s->rows > 1) start_group(s->block, s->rows, &s->state);
  for (int64_t stop; key < end; key = stop) {
    stop = count > 1 ? key + DECODE_KEYS : end; /* the next stream finds K and V in a cache */
    for (row_stream *s = streams; s < streams + count; s++) s->run(s->block, s->q, key, stop, &s->state);
  }
  for (row_stream *s = streams; s < streams + count; s++)
    if (s->rows > 1) store_sums(s->block, s->rows, &s->state);
  return key;
}
#endif

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
  if (block.rows == 0) return;
  block.careful = careful;
  block.q = FLOAT_QUERIES ? floats_at(t->scratch, t->at.q) : NULL;
  block.score = floats_at(t->scratch, t->at.score);
  start_rows(&block, padded_rows(block.rows));
  products work = start_products(&block, &t->at.products, (char *)t->scratch + t->at.own);
  const attn_key_range keys = keys_of_split(&block, split);
#ifndef DECODE_OWN_PRODUCTS
  row_stream streams[STREAMS];
  const int64_t count = streams_of(&block, &work, streams);
#endif
  for (int64_t key = round_down(keys.begin, DECODE_KEYS); key < keys.end; key += DECODE_KEYS) {
#ifndef DECODE_OWN_PRODUCTS
    if (key >= keys.begin) key = run_streams(&block, streams, count, key, keys.end);
#endif
    if (key < keys.end) decode_block(&block, &work, max64(key, keys.begin), min64(key + DECODE_KEYS, keys.end));
  }
  end_products(&work, &block);
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

/* ---- Its time ---- */

#ifndef DECODE_OWN_PRODUCTS
static inline void decode_terms_of(const attn_problem *p, double *terms) {
  attn_decode_terms(p, (term_widths){VEC_LANES, VEC_VALUES}, terms);
}

#define DECODE_KERNEL_TERMS \
  { DECODE_TERM_COUNT, attn_decode_term_names, decode_terms_of }
#endif

#endif
