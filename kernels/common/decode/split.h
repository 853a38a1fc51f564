/* SPDX-License-Identifier: MIT */
/* The keys of one split, block by block or as streams. Parameters: those of products.h. */
#ifndef ATTN_COMMON_DECODE_SPLIT_H
#define ATTN_COMMON_DECODE_SPLIT_H

#include "listed_keys.h"
#include "scales.h"
#include "softmax.h"

/* ---- One block of keys ---- */

static bool all_rows_see(const row_block *block, int64_t begin, int64_t end) {
  for (int64_t i = 0; i < block->rows; i++)
    if (block->range[i].begin > begin || block->range[i].end < end) return false;
  return true;
}

/* Prefetches the keys behind these from their run `run` on, if they may lie elsewhere than behind these. */
static NO_INLINE void aim_behind(products *work, const row_block *block, int64_t run) {
  const attn_problem *p = block->problem;
  const int64_t key = work->behind + run * RUN_KEYS;
  const bool elsewhere = attn_uses(p, ATTN_USE_PAGES) || attn_has_block_kinds(p);
  if (!elsewhere || work->next.policy == PREFETCH_NONE || work->behind < 0 || key >= block->range[0].end) return;
  const attn_key_run at = attn_key_run_at(p, block->args, block->seq, block->head, key);
  work->next.k = (uintptr_t)attn_element_at(block->args->k, p->dtype_kv, at.k);
  work->next.v = (uintptr_t)attn_element_at(block->args->v, p->dtype_kv, at.v);
  if (work->next.left > 0) work->next.left = work->next.row;
}

static void decode_block(const row_block *block, products *work, int64_t begin, int64_t end) {
  const attn_problem *p = block->problem;
  const int64_t first = round_down(begin, DECODE_KEYS);
  assert(begin < end && end - first <= DECODE_KEYS);
  const bool selects = selects_keys(p) || !all_rows_see(block, begin, end);
  const bool plain = !selects && p->softcap == 0 && !attn_uses(p, ATTN_USE_ALIBI);
  const bool scaled = attn_uses(p, ATTN_USE_KV_SCALES), whole = !selects && end - begin == DECODE_KEYS;
  block_scales scales;
  if (scaled) find_scales(block, first, begin, end, &scales);
  take_keys(work, block, begin, end, block->careful && selects);
  aim_behind(work, block, 0);
  for (int64_t tile_row = 0; tile_row < block->rows; tile_row += DECODE_KNOBS.tile_rows) {
    const int64_t rows = min64(DECODE_KNOBS.tile_rows, block->rows - tile_row);
    score_rows(work, block, tile_row, rows);
    for (int64_t i = 0; i < rows; i++) {
      float *score = block->score + i * block->score_stride;
      if (scaled && whole) scale_whole_row(score, scales.k);
      if (scaled && !whole) scale_row(score, scales.k, begin - first, end - first);
      softmax_row(block, tile_row + i, first, (attn_key_range){begin, end}, score, plain);
      if (scaled && whole) scale_whole_row(score, scales.v);
      if (scaled && !whole) scale_row(score, scales.v, begin - first, end - first);
    }
    if (tile_row == 0) aim_behind(work, block, DECODE_KEYS / RUN_KEYS / 2); /* both halves prefetch half of the keys */
    accumulate_rows(work, block, tile_row, rows);
  }
}

/* ---- Streams: all whole blocks of rows without a mask ---- */

#ifdef ATTN_COMMON_DECODE_STREAM_H

enum { STREAMS = MOST_STREAM_ROWS / MOST_TILE_ROWS + 2 /* whole tiles, and 5 rows more: 4 and 1 */ };

/* NULL if the tier has no function for them. */
static const stream_functions *stream_of(const attn_problem *p, int64_t rows, prefetch_policy policy) {
  (void)policy;
#ifdef ATTN_COMMON_DECODE_ONE_ROW_H
  if (rows == 1) return one_row_of(p, policy);
#endif
#ifdef ATTN_COMMON_DECODE_GROUP_ROWS_H
  if (rows > 1) return group_of(p, rows, policy);
#endif
  return NULL;
}

/* Splits the block into streams. Returns how many they are, 0 if not all of its rows are what group_rows.h or one_row.h is
 * for. */
static int64_t streams_of(const row_block *block, const products *work, row_stream streams[STREAMS]) {
  const attn_problem *p = block->problem;
  const bool scaled = attn_uses(p, ATTN_USE_KV_SCALES);
  const bool plain = !similarities_adjusted(p) && (!scaled || streams_scale(p->dtype_kv));
  int64_t count = 0;
  if (block->rows > MOST_STREAM_ROWS) return 0;
  for (int64_t row = 0; plain && row < block->rows; row += streams[count++].rows) {
    row_stream *stream = &streams[count];
    stream->rows = rows_at_once(block->rows - row);
    stream->run = stream_of(p, stream->rows, work->policy);
    if (!stream->run || !stream->run->dense) return 0;
    stream->scaled = scaled;
    stream->policy = work->policy;
    stream->nearer = work->nearer;
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

/* Move the state of softmax between the block's rows and groups of them. */
static void start_groups(row_stream *streams, int64_t count) {
#ifdef ATTN_COMMON_DECODE_GROUP_ROWS_H
  for (row_stream *s = streams; s < streams + count; s++)
    if (s->rows > 1) start_group(s->block, s->rows, &s->state);
#else
  (void)streams, (void)count;
#endif
}
static void store_groups(row_stream *streams, int64_t count) {
#ifdef ATTN_COMMON_DECODE_GROUP_ROWS_H
  for (row_stream *s = streams; s < streams + count; s++)
    if (s->rows > 1) store_sums(s->block, s->rows, &s->state);
#else
  (void)streams, (void)count;
#endif
}

/* `runs`: where keys are paged, else nothing reads them; `key` and `end` then count from their begin. */
static void stream_keys(row_stream *streams, int64_t count, const key_runs *runs, bool paged, int64_t key, int64_t end) {
  const int64_t step = count > 1 ? DECODE_KEYS : end - key; /* the next stream finds K and V in a cache */
  start_groups(streams, count);
  for (; key < end; key += step)
    for (row_stream *s = streams; s < streams + count; s++)
      (paged ? s->run->paged : s->run->dense)(s, runs, key, key + step);
  store_groups(streams, count);
}

/* Where listed keys lie: their runs side by side, as if they were pages. */
static NO_INLINE void stream_listed(const row_block *block, row_stream *streams, int64_t count, const listed_keys *listed,
                                    int64_t key, int64_t end) {
  const int64_t seen = block->range[0].end - DECODE_KEYS,
                behind = min64(key_of_part(listed, LIST_PARTS) - DECODE_KEYS, seen);
  run_tables tables;
  key_runs runs;
  start_runs(block, 0, &tables, &runs);
  int64_t found = 0, used = 0;
  for (; key <= behind && found < MOST_RUNS; key += DECODE_KEYS) {
    if (key == end) used = found;
    if (!all_rows_visit(listed, key)) continue;
    look_up_runs(block, key, BLOCK_RUNS, INT64_MAX, found, &tables);
    found += BLOCK_RUNS;
  }
  if (key <= end) used = found;
  for (; found < MOST_RUNS; found++) tables.k[found] = tables.k[found - 1], tables.v[found] = tables.v[found - 1];
  stream_keys(streams, count, &runs, true, 0, used * RUN_KEYS);
}

/* The first key from `key` on, before `end`, that the visit leaves out. */
static int64_t first_gap(const decode_visit *visit, int64_t key, int64_t end) {
  while (visit->gaps && key < end && all_rows_visit(visit->lists, key)) key += DECODE_KEYS;
  return visit->gaps ? min64(key, end) : end;
}

/* All whole blocks from `key` on that all rows see, up to `end`. Returns the first key that is left. */
static int64_t run_streams(const decode_visit *visit, row_stream *streams, int64_t count, int64_t key, int64_t end) {
  const row_block *block = visit->block;
  for (int64_t i = 0; i < block->rows; i++) {
    if (count == 0 || block->range[i].begin > key) return key;
    end = min64(end, block->range[i].end);
  }
  end -= (end - key) % DECODE_KEYS;
  if (end <= key) return key;
  const int64_t together = first_gap(visit, key, end);
  if (together < end && !streams->scaled) {
    stream_listed(block, streams, count, visit->lists, key, end);
    return end;
  }
  run_tables tables;
  key_runs runs;
  const bool paged = attn_run_keys(block->problem, block->seq, key) < together - key;
  if (paged) find_pages(block, key, together, block->range[0].end, &tables, &runs);
  stream_keys(streams, count, &runs, paged, key, together);
  return together;
}
#endif

/* ---- All keys ---- */

/* Inline, because as a call it takes 10 ns of those that attend to a few keys. */
static ALWAYS_INLINE void attend_keys(const decode_visit *visit, products *work) {
  const row_block *block = visit->block;
  const attn_key_range keys = visit->keys;
#ifdef ATTN_COMMON_DECODE_STREAM_H
  row_stream streams[STREAMS];
  const int64_t count = streams_of(block, work, streams);
#endif
  for (int64_t key = round_down(keys.begin, DECODE_KEYS); key < keys.end; key += DECODE_KEYS) {
    if (visit->gaps && !all_rows_visit(visit->lists, key)) continue;
#ifdef ATTN_COMMON_DECODE_STREAM_H
    if (key >= keys.begin) key = run_streams(visit, streams, count, key, keys.end);
    if (key >= keys.end || (visit->gaps && !all_rows_visit(visit->lists, key))) continue;
#endif
    work->behind = visit->lists ? key_behind(visit->lists, key) : key + DECODE_KEYS;
    decode_block(block, work, max64(key, keys.begin), min64(key + DECODE_KEYS, keys.end));
  }
}

#endif
