/* SPDX-License-Identifier: MIT */
/* Streams: functions that take several rows, or one, through all whole blocks of keys of a split (group_rows.h, one_row.h).
 * Parameters: those of few_rows.h. */
#ifndef ATTN_COMMON_DECODE_STREAM_H
#define ATTN_COMMON_DECODE_STREAM_H

#include "few_rows.h"
#include "scales.h"
#include "split_keys.h"

/* ---- Where keys lie ---- */

enum {
  BLOCK_RUNS = DECODE_KEYS / RUN_KEYS,
  MOST_BLOCKS_AHEAD = 8, /* from what is read to what is prefetched */
  MOST_RUNS = SPLIT_KEYS / RUN_KEYS + MOST_BLOCKS_AHEAD * BLOCK_RUNS
};
_Static_assert(BLOCK_RUNS == 2 && RUN_KEYS % VEC_LANES == 0, "blocks are two runs, and a vector of scores lies in one");

/* Where the runs of K or V of a split begin, RUN_KEYS keys each: elements. Tables let loops cross the borders of pages as if
 * there were none. */
typedef struct run_list {
  const int64_t *table;
  int64_t ahead; /* runs from what is read to what is prefetched */
} run_list;

/* The runs of keys in pages; those that lie at one stride need none of this. */
typedef struct key_runs {
  int64_t begin; /* the first key */
  run_list k, v;
} key_runs;

/* Memory for the tables of pages. */
typedef struct run_tables {
  int64_t k[MOST_RUNS], v[MOST_RUNS];
} run_tables;

/* Runs to cover LEAST_DISTANCE: whole blocks, at least one. */
static int64_t runs_ahead(int64_t block_bytes) {
  const int64_t blocks = block_bytes > 0 ? min64(ceil_div(LEAST_DISTANCE, block_bytes), MOST_BLOCKS_AHEAD) : 1;
  return blocks * BLOCK_RUNS;
}

/* Where `count` runs from key `key` on lie, from entry `to` of the tables on. No row sees keys from `seen` on. */
static void look_up_runs(const row_block *block, int64_t key, int64_t count, int64_t seen, int64_t to, run_tables *tables) {
  const attn_problem *p = block->problem;
  attn_key_run at = {0};
  for (int64_t i = to; i < to + count; i++, key += RUN_KEYS) {
    if (at.keys <= 0 && key < seen) at = attn_key_run_at(p, block->args, block->seq, block->head, key);
    tables->k[i] = at.k;
    tables->v[i] = at.v;
    at.k += RUN_KEYS * p->k_stride.s;
    at.v += RUN_KEYS * p->v_stride.s;
    at.keys -= RUN_KEYS;
  }
}

/* Tables whose first run is that of key `key`. */
static void start_runs(const row_block *block, int64_t key, run_tables *tables, key_runs *runs) {
  const attn_problem *p = block->problem;
  runs->begin = key;
  runs->k.ahead = runs_ahead(attn_elements_bytes(p->dtype_kv, DECODE_KEYS * p->k_stride.s));
  runs->v.ahead = runs_ahead(attn_elements_bytes(p->dtype_kv, DECODE_KEYS * p->v_stride.s));
  runs->k.table = tables->k;
  runs->v.table = tables->v;
}

/* The same from `key` up to `end`, with the runs to prefetch behind them. */
static NO_INLINE void find_pages(const row_block *block, int64_t key, int64_t end, int64_t seen, run_tables *tables,
                                 key_runs *runs) {
  start_runs(block, key, tables, runs);
  look_up_runs(block, key, (end - key) / RUN_KEYS + max64(runs->k.ahead, runs->v.ahead), seen, 0, tables);
}

/* K or V of the block that begins at run `run`; `rows` leads there if keys lie at one stride. */
static ALWAYS_INLINE block_rows rows_of_block(key_rows rows, const run_list *list, int64_t run, const few_kind kind) {
  if (!kind.paged) return (block_rows){rows, 0};
  rows.first = list->table[run];
  return (block_rows){rows, list->table[run + 1] - rows.first - RUN_KEYS * rows.stride};
}

/* Where the runs of pages of K or V begin, for prefetches, and bytes of one. */
typedef struct run_places {
  attn_storage from;
  run_list runs;
  int64_t bytes;
} run_places;

static run_places places_of(const run_list *runs, const key_rows rows) {
  return (run_places){rows.from, *runs, attn_elements_bytes(rows.from.dtype, RUN_KEYS * rows.stride)};
}

static ALWAYS_INLINE uintptr_t place_of(const run_places at, int64_t run) {
  return (uintptr_t)attn_element_at(at.from.data, at.from.dtype, at.runs.table[run]);
}

/* From the end of a run to the next one. */
static ALWAYS_INLINE uintptr_t gap_behind(const run_places at, int64_t run) {
  return place_of(at, run + 1) - place_of(at, run) - (uintptr_t)at.bytes;
}

/* Over pages, aims at what is prefetched while `used`, K or V of a block, is read: of a later block, K and V of the run that
 * lies as far ahead of run `run`. Twice: as well both runs of `again` from run `again_run` on; or, where lines that are
 * nearer are prefetched instead, one run ahead of `run`, and half a run more before that. */
static ALWAYS_INLINE void aim_prefetches(prefetch_lines *next, const few_kind kind, const run_places k, const run_places v,
                                         int64_t run, const run_places used, const run_places again, int64_t again_run,
                                         uintptr_t *line) {
  if (!kind.paged || kind.policy == PREFETCH_NONE) return;
  next->k = place_of(k, run + k.runs.ahead);
  next->v = place_of(v, run + v.runs.ahead);
  next->left = next->row;
  if (kind.policy != PREFETCH_TWICE && next->policy != PREFETCH_TWICE) return;
  next->left = 0;
  next->until_gap = used.bytes / (2 * LINE_BYTES);
  if (next->nearer) {
    next->k = place_of(k, run + 1) + (uintptr_t)k.bytes / 2;
    next->v = place_of(v, run + 1) + (uintptr_t)v.bytes / 2;
    next->k_gap = gap_behind(k, run + 1);
    next->v_gap = gap_behind(v, run + 1);
    next->again_gap = 0;
    next->k_nearer = place_of(k, run + 1);
    next->v_nearer = place_of(v, run + 1);
  } else {
    next->k_gap = next->v_gap = 0;
    next->again_gap = gap_behind(again, again_run);
    *line = place_of(again, again_run);
  }
}

/* The same for the block that begins at run `run`. While its K is read, the first of two runs is prefetched, and V again;
 * while its V is read, the second run, and again K of the next block. */
static ALWAYS_INLINE void prefetch_beside_scores(prefetch_lines *next, const few_kind kind, const run_places k,
                                                 const run_places v, int64_t run) {
  aim_prefetches(next, kind, k, v, run, k, v, run, &next->v_again);
}
static ALWAYS_INLINE void prefetch_beside_sums(prefetch_lines *next, const few_kind kind, const run_places k,
                                               const run_places v, int64_t run) {
  aim_prefetches(next, kind, k, v, run + 1, v, k, run + BLOCK_RUNS, &next->k_again);
}

/* ---- Streams ---- */

/* The state of softmax for several rows side by side (group_rows.h). */
typedef struct group_softmax {
  float sum[VEC_LANES][VEC_LANES]; /* sums of P like row_sum, but in the order of scores; as many vectors as rows */
  float reference[VEC_LANES];      /* references of the rows, repeated as often as they fit */
  int64_t unset;                   /* rows that have no reference yet, and 0 as their sums */
} group_softmax;

/* Rows of a block that one function takes at once. */
typedef struct row_stream row_stream;

/* The blocks from `key` up to `end`; `runs`: of pages. */
typedef void stream_function(row_stream *stream, const key_runs *runs, int64_t key, int64_t end);

/* Keys at one stride, and in pages; NULL if the tier has none. */
typedef struct stream_functions {
  stream_function *dense, *paged;
} stream_functions;

#define STREAM_FUNCTIONS(has, dense, paged) \
  { (has) ? (dense) : NULL, (has) ? (paged) : NULL }

/* Whether streams of the type take factors. Functions of other types have no code for them. */
static ALWAYS_INLINE bool streams_scale(attn_dtype dtype) { return attn_dtype_is_integer(dtype); }

struct row_stream {
  const stream_functions *run;
  const row_block *block; /* the whole block if they are its first, else `part` */
  row_block part;
  const float *q; /* from tile_queries() */
  int64_t rows;
  prefetch_policy policy;
  bool nearer; /* distances of prefetch_of() */
  bool scaled; /* keys and values have factors */
  group_softmax state;
};

/* Where a stream reads, and what it prefetches. */
typedef struct stream_walk {
  key_rows k, v;                 /* rows of its first block; of pages, wherever */
  run_places k_places, v_places; /* pages only */
  prefetch_lines next;
} stream_walk;

/* Finds it for keys from `key` on. A call, because inlined it would be an eighth of each stream's code. */
static NO_INLINE void find_walk(const row_stream *stream, const key_runs *runs, int64_t key, bool paged, stream_walk *walk) {
  const row_block *block = stream->block;
  const attn_problem *p = block->problem;
  const attn_key_run first = paged ? (attn_key_run){0} : attn_key_run_at(p, block->args, block->seq, block->head, key);
  *walk = (stream_walk){.k = {attn_k_storage(p, block->args), first.k, p->k_stride.s},
                        .v = {attn_v_storage(p, block->args), first.v, p->v_stride.s}};
  walk->next = prefetch_of(block_lines(walk->k, p->dim_qk), block_lines(walk->v, p->dim_v), DECODE_KEYS, stream->policy,
                           stream->nearer);
  if (!paged) return;
  walk->k_places = places_of(&runs->k, walk->k);
  walk->v_places = places_of(&runs->v, walk->v);
}

/* The same in code for one kind. */
static ALWAYS_INLINE stream_walk walk_of(const row_stream *stream, const key_runs *runs, int64_t key, const few_kind kind) {
  stream_walk found, walk;
  find_walk(stream, runs, key, kind.paged, &found);
  walk = found;
  walk.k_places.from.dtype = walk.v_places.from.dtype = kind.dtype;
  if (kind.policy != PREFETCH_ANY) walk.next.policy = kind.policy;
  return walk;
}

#endif
